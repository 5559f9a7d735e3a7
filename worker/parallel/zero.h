/* zero.h - ZeRO: what every rank would hold alike is cut over all ranks (Rajbhandari et al. 2020, arXiv 1910.02054).
 *
 *   stage 1   optimizer state     gradients are reduce-scattered, updated weights all-gathered            (train/step.c)
 *   stage 2   and gradients       a unit's gradients live in a bucket only while they are computed; then they are summed into the
 *                                 owners' shards in the background while backward goes on
 *   stage 3   and weights         a unit's weights are gathered just before it computes, the next unit's while it computes
 * A rank's shard is an even range [lo, hi) of the flat vector of trained parameters (model/params.h). A unit is a run of neighbouring parameters
 * used together: the embedding, each layer, final norm and head. Every micro-step adds to the shard: nothing is dropped.
 * The shard may lie in host memory (zero_offload_gradients): while a unit is computed, this rank's piece of it comes to the device, takes the
 * sums there, and goes home while the next unit is computed. So sums are those of a shard on the device, bit for bit. */
#ifndef RM_WORKER_PARALLEL_ZERO_H
#define RM_WORKER_PARALLEL_ZERO_H

#include "worker/arena.h"
#include "worker/parallel/mesh.h"

struct zero;

struct zero_unit {
    int64_t at, n;              /* in the flat vector; n may be 0 (nothing trained) */
    int bucket;                 /* units that are never open together may share one */
};

/* This rank's shard of a flat vector of n elements (a multiple of world): all of it at stage 0. */
void zero_shard(const struct mesh *m, int stage, int64_t n, int64_t *lo, int64_t *hi);

/* Stage 2 and up. units are copied; n_flat a multiple of world. Takes the shard of gradients from device, buckets from shared; with a host (NULL:
 * without) the shard from there, and room for pieces of it from a device of its own. */
int zero_new(struct zero **z, const struct kernel_ops *ops, const struct mesh *m, int64_t n_flat, const struct zero_unit *units, int n_units,
             struct arena *device, struct arena *shared, struct arena *host, struct error *err);
void zero_free(struct zero *z);
/* f32 [hi-lo], on the host when it was given: sums over all ranks and micro-steps once zero_finish has returned. */
float *zero_gradients(struct zero *z);
/* Device memory for n elements that is free between sweeps; 0 where the shard is on the device itself. */
float *zero_largest_stage(const struct zero *z, int64_t *n);
/* The shard becomes zero. */
int zero_clear(struct zero *z, struct stream *s, struct error *err);
/* The unit's gradients, zeroed: element `at` of the flat vector is [0]. Waits for an earlier unit of the same bucket. */
int zero_open(struct zero *z, struct stream *s, int unit, float **grads, struct error *err);
/* They are complete: off to their owners. */
int zero_close(struct zero *z, struct stream *s, int unit, struct error *err);
/* All have arrived. */
int zero_finish(struct zero *z, struct stream *s, struct error *err);

/* --- stage 3 --- */

struct zero_weights;

/* n: elements of the vector that is sharded, a multiple of world; dt theirs. The shard comes from shared (peers read it), buckets from device. */
int zero_weights_new(struct zero_weights **z, const struct kernel_ops *ops, const struct mesh *m, enum dtype dt, int64_t n, const struct zero_unit *units, int n_units,
                     struct arena *device, struct arena *shared, struct error *err);
void zero_weights_free(struct zero_weights *z);
/* [hi-lo] of type dt, this rank's part, and where it starts. */
void *zero_weights_shard(struct zero_weights *z, int64_t *lo, int64_t *hi);
/* The unit's weights, whole: element `at` of the vector is [0]. Stays until zero_weights_close. Starts to gather `next` (-1: none) into a bucket
 * of its own. Collective: all ranks open the same units in the same order. */
int zero_weights_open(struct zero_weights *z, struct stream *s, int unit, int next, void **w, struct error *err);
void zero_weights_close(struct zero_weights *z, int unit);
/* Shards have changed: what buckets hold is old. */
int zero_weights_changed(struct zero_weights *z, struct stream *s, struct error *err);
/* Where ranks cannot read each other's memory (comm_peer_memory): all weights into host memory of the ranks that say keep, until the next change or
 * zero_weights_drop. Elsewhere it does nothing. Collective. */
int zero_weights_collect(struct zero_weights *z, struct stream *s, bool keep, struct error *err);
void zero_weights_drop(struct zero_weights *z);
/* n elements from `at` on into host memory, out of what was collected, else the shards of whoever has them. By one rank alone, while nobody
 * writes. */
int zero_weights_read(struct zero_weights *z, struct stream *s, void *out, int64_t at, int64_t n, struct error *err);

#endif
