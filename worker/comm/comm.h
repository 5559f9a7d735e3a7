/* comm.h - collectives among the ranks of one job; every call counted in one place.
 *
 * A transport fills struct comm_transport (comm/shm.c, comm/nccl.c); callers use the functions below, which check, count
 * bytes and time, and call it. Bytes are those this rank SENDS to other ranks (copies to itself are not sent); they must
 * equal the formulas of docs/communication.md exactly. Rules: all ranks of a group make the same calls in the same order;
 * buffers that cross ranks come from comm_memory(); a lost or stuck peer ends every wait within comm_open's deadline with
 * E_PEER. Over shm, reductions add in rank order 0…n-1 in f32 (f64 for F64). Over nccl the order is NCCL's: the same bits on every rank and
 * from run to run on the same machines, but not those of shm; BF16 sums are rounded on the way. */
#ifndef RM_WORKER_COMM_COMM_H
#define RM_WORKER_COMM_COMM_H

#include "kernels/kernels.h"
#include "worker/link.h"

enum { COMM_EXIT_PEER = 72 };   /* the worker's exit code for a lost peer; a transport that cannot get out leaves with it */

enum comm_kind { COMM_ALL_TO_ALL, COMM_HOP, COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER, COMM_BROADCAST, COMM_BARRIER, COMM_KINDS };
extern const char *const comm_kind_names[COMM_KINDS];

struct comm_count {
    int64_t calls, bytes;       /* bytes sent */
    double busy_s;              /* time in the transfer, waiting for late peers included */
    double exposed_s;           /* time this rank's compute waited for it */
    double late_s;              /* part of busy_s spent waiting for peers that had not come yet; nccl cannot tell: 0 */
};

struct comm_world;              /* one per process */
struct comm;                    /* a group of ranks */
struct comm_hop;                /* a transfer under way: a hop, or a reduction or gathering in the background */

/* shared_bytes: what comm_memory must provide on each rank (the plan's PLACE_SHARED arena), the same on all ranks.
 * deadline_ms: how long a peer may give no sign of life (shm: at most 4.5 s; it shows one all the time; nccl: how long a transfer
 * that has begun may take).
 * transport: "shm" | "nccl". A single rank works with either, without peers. name: tells this world from others that the same ranks open,
 * one after the other; the same on all of them. */
int comm_open(struct comm_world **w, const char *name, const char *transport, const struct kernel_ops *ops, struct link *link, int rank, int world,
              int64_t shared_bytes, int deadline_ms, struct error *err);
/* What comm_open would refuse at once: E_UNSUPPORTED when more than one rank asks for a transport this build does not have. */
int comm_usable(const char *transport, int world, struct error *err);
void *comm_memory(struct comm_world *w);                /* shared_bytes of zeroed memory that peers can reach */
/* Shared bytes the transport takes beside shared_bytes, per rank: the plan lists them. */
int64_t comm_overhead_bytes(const char *transport, int world);
/* A group of n ranks (world ranks in ascending group order); collective over the members only. */
int comm_group(struct comm **c, struct comm_world *w, const int *ranks, int n, struct error *err);
int comm_size(const struct comm *c);
/* Since comm_open. Times of transfers that have not ended yet come later; those before the last wait for the stream are in. */
void comm_counts(struct comm_world *w, struct comm_count out[COMM_KINDS]);
void comm_close(struct comm_world *w);                  /* removes shared memory; safe after an error */

/* One exchange of several tensors: for each part recv[p] = peer p's send[me], slices of slice_bytes, n of them in each buffer, each
 * stride after the one before (0: slice_bytes), so that an exchange may be a piece of a larger one. send lies in comm_memory, recv
 * anywhere. One call; counts (n-1) * the parts' slice_bytes. */
enum { COMM_PARTS_MAX = 4 };
struct comm_part { void *recv; const void *send; int64_t slice_bytes, recv_stride, send_stride; };
int comm_all_to_all_parts(struct comm *c, struct stream *s, const struct comm_part *parts, int n_parts, struct error *err);
int comm_all_to_all(struct comm *c, struct stream *s, void *recv, const void *send, int64_t slice_bytes, struct error *err);
/* Ring step: send (in comm_memory) goes to rank+1, recv is filled from rank-1, while the caller computes. `send` must stay
 * untouched and recv unread until comm_hop_wait. Several hops (at most 8) may be under way; all members start them in the same
 * order and wait for them in any. send NULL: nothing goes out, recv NULL: nothing comes in; the neighbours must agree. */
int comm_hop_start(struct comm *c, struct stream *s, void *recv, const void *send, int64_t bytes, struct comm_hop **h, struct error *err);
int comm_hop_wait(struct comm *c, struct stream *s, struct comm_hop *h, struct error *err);
/* Reduce-scatter and all-gather over uneven pieces, in the background like hops and ended by comm_hop_wait (members start all their
 * background calls, hops too, in the same order). Piece p is [cuts[p], cuts[p+1]), cuts[n+1] ascending, the same on all ranks, copied here.
 * reduce: out += sum over ranks of their in[piece me]; in, in comm_memory, starts at cuts[0], is overwritten; f32. Sends all but its own piece.
 * gather: out, which starts at cuts[0], gets every piece p from rank p's in, in comm_memory. Sends its piece n-1 times. */
int comm_reduce_pieces_start(struct comm *c, struct stream *s, float *out, const float *in, const int64_t *cuts, struct comm_hop **h, struct error *err);
int comm_gather_pieces_start(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, const int64_t *cuts, struct comm_hop **h, struct error *err);
/* In place. dt F32, F64 or BF16 (summed in f32). The buffer may be anywhere. Counts 2*(n-1)/n of the
 * bytes, as reduce-scatter + all-gather over slices of ceil(count/n) elements send. */
int comm_all_reduce(struct comm *c, struct stream *s, enum dtype dt, void *x, int64_t count, struct error *err);
/* out[count] = sum over ranks of their in[me*count …]; in has n*count elements. Counts (n-1)*count elements. */
int comm_reduce_scatter(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, int64_t count, struct error *err);
/* out[n*count]: rank p's in at p*count. in may be out + me*count. Counts (n-1)*count elements. */
int comm_all_gather(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, int64_t count, struct error *err);
int comm_broadcast(struct comm *c, struct stream *s, void *x, int64_t bytes, int root, struct error *err);
int comm_barrier(struct comm *c, struct error *err);
/* Member p's comm_memory, to be read in place while nobody writes it; NULL where the transport cannot. */
const void *comm_peer_memory(const struct comm *c, int p);

#endif
