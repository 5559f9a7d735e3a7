/* volume.h - bytes attention sends, per layer and rank: the formulas of docs/communication.md in one place.
 *
 * The run counts what it really sends (comm.c) and tests hold the two equal; mesh.c and the cluster planner choose by them. */
#ifndef RM_WORKER_PARALLEL_VOLUME_H
#define RM_WORKER_PARALLEL_VOLUME_H

#include <stdbool.h>
#include <stdint.h>

struct volume_dims {
    int64_t H, Hkv, D;
    int64_t b, b_acc;           /* bytes of an activation; of a travelling gradient sum (4, or 8 in the F64 build) */
    int U, R;
};
struct volume { int64_t fwd, refetch, bwd; };       /* refetch: q, k, v in again */

/* U divides the query heads, and splits or replicates the kv heads evenly. */
bool volume_splits(int64_t H, int64_t Hkv, int U);
/* K': kv heads after replication. */
int64_t volume_kv_heads(int64_t Hkv, int U);
/* Of a row of T tokens in which every ring block is needed everywhere (one long document, or many cut ones). */
struct volume volume_of_layer(struct volume_dims d, int64_t T);
/* One ring hop of keys and values; of their gradient sums. */
int64_t volume_kv_hop(struct volume_dims d, int64_t T);
int64_t volume_acc_hop(struct volume_dims d, int64_t T);

/* Seconds of attention in one layer, forward and backward, on one rank for a row of T tokens in one document: kernels at attn_flops FLOP/s (a ring's blocks
 * are smaller and slower), all of the exchange at link_Bps, and of ring hops what the block at hand does not hide (all of them without overlap); each
 * transfer costs a moment of its own. *exposed: the communication in it. */
double volume_seconds(struct volume_dims d, int64_t T, double link_Bps, double attn_flops, bool overlap, double *exposed);

#endif
