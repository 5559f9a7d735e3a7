/* attention.h - attention over the group, one composition:  a2a in (U) -> ring over R, or the plain kernel -> a2a out (U).
 *
 * Ulysses is R = 1, ring is U = 1, one rank is both 1: one code path. Local tensors are [Tl,H,D]; between the exchanges a rank
 * holds its ring-local tokens Tr = T/R with hq = H/U query heads and hk = K'/U kv heads, K' = Hkv, or U when U > Hkv (replicated,
 * gradients summed at home). RoPE and the packing are one pass (ops->rope_pack). Ring: global out and LSE, fp32 accumulators. */
#ifndef RM_WORKER_PARALLEL_ATTENTION_H
#define RM_WORKER_PARALLEL_ATTENTION_H

#include "worker/arena.h"
#include "worker/parallel/layout.h"
#include "worker/parallel/mesh.h"

struct attn_group;              /* buffers and the current row's spans; one per rank */

struct attn_dims {
    enum dtype dt;
    int64_t H, Hkv, D;          /* global head counts */
    int64_t max_T, max_docs;    /* bounds of any row */
    int64_t window;
    float scale;
    bool overlap;               /* enable_sequence_overlap */
    int64_t exchange_limit;     /* most bytes a rank puts into one exchange over U; 0: any (exchange_limit_bytes) */
    int64_t hop_limit;          /* most bytes of gradient sums in one hop of the ring; 0: 8 MiB */
};

/* What a layer keeps from forward for backward; the engine owns the memory by its policy. NULL members: not kept. */
struct attn_kept {
    void *q, *k, *v;            /* [Tr,hq,D], [Tr,hk,D] x2 dt, after exchange and rotation */
    float *lse;                 /* [hq,Tr] (f64 in the F64 test build) */
};

/* Takes its buffers from the arenas (works on recording arenas: g gets NULL pointers and must not run). */
int attn_group_new(struct attn_group **g, const struct kernel_ops *ops, const struct mesh *m, struct attn_dims d,
                   struct arena *device, struct arena *shared, struct arena *host, struct error *err);
void attn_group_free(struct attn_group *g);
/* Chooses the kernel that attn_impl asks for, before the first row; the name of what will run, with the reason where it is not what was
 * asked for. Valid until the next call. */
const char *attn_group_choose(struct attn_group *g, struct stream *s, enum attn_impl impl);
/* Sizes of attn_kept's members for max_T, in elements. */
void attn_kept_shape(const struct attn_group *g, int64_t *Tr, int64_t *hq, int64_t *hk);
/* Sets the row: layout, spans, this rank's RoPE tables cos, sin [Tl,D/2] (device, borrowed until the next call). */
int attn_group_row(struct attn_group *g, struct stream *s, const struct layout *l, const float *cos, const float *sin, struct error *err);
/* out [Tl,H,D] = attention of q [Tl,H,D], k, v [Tl,Hkv,D] (before RoPE). keep: written as far as its members are not NULL;
 * with a ring k and v must be there, as the block goes round piece by piece. */
int attn_group_fwd(struct attn_group *g, struct stream *s, void *out, const void *q, const void *k, const void *v, struct attn_kept *keep, struct error *err);
/* Recomputes keep->q,k,v from q,k,v (rotation and exchange in, no attention): for policies that kept only the output and lse. */
int attn_group_refetch(struct attn_group *g, struct stream *s, const void *q, const void *k, const void *v, struct attn_kept *keep, struct error *err);
/* dq, dk, dv [Tl,H|Hkv,D] dt (before RoPE) from dout and out (what attn_group_fwd gave) [Tl,H,D] and everything in kept; dk and dv
 * overlap no input: they are used on the way. */
int attn_group_bwd(struct attn_group *g, struct stream *s, void *dq, void *dk, void *dv, const void *dout, const void *out, const struct attn_kept *kept,
                   struct error *err);
/* Bytes one layer sends, by the formulas of docs/communication.md, for a row of T tokens: forward, refetch, backward. */
/* attn_group_bytes: every ring block needed everywhere, the most a row can send. attn_group_row_bytes: exactly what this rank sends for
 * the row set, hops that nobody needs left out. */
void attn_group_row_bytes(const struct attn_group *g, int64_t *fwd, int64_t *refetch, int64_t *bwd);
void attn_group_bytes(const struct attn_group *g, int64_t T, int64_t *fwd, int64_t *refetch, int64_t *bwd);

#endif
