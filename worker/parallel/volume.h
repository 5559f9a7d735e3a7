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
struct volume { int64_t fwd, refetch, bwd; };       /* refetch: q, k, v in again, and out back again */

/* U divides the query heads, and splits or replicates the kv heads evenly. */
bool volume_splits(int64_t H, int64_t Hkv, int U);
/* K': kv heads after replication. */
int64_t volume_kv_heads(int64_t Hkv, int U);
/* Of a row of T tokens in which every ring block is needed everywhere (one long document, or many cut ones). */
struct volume volume_of_layer(struct volume_dims d, int64_t T);
/* One ring hop of keys and values; of their gradient sums. */
int64_t volume_kv_hop(struct volume_dims d, int64_t T);
int64_t volume_acc_hop(struct volume_dims d, int64_t T);

#endif
