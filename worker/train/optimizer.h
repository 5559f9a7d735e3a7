/* optimizer.h - AdamW over a range of the flat vector, with f32 masters where the weights are bf16.
 *
 * Everything trained lies in one flat vector (worker/model/params.h); a rank owns [lo, hi) of it: all of it, or its ZeRO shard.
 * Parameters are cut into ranges that share decay and rate; padding belongs to no range and is never touched.
 * Bias correction counts this optimizer's own updates: a skipped step does not advance it. */
#ifndef RM_WORKER_TRAIN_OPTIMIZER_H
#define RM_WORKER_TRAIN_OPTIMIZER_H

#include "api/spec.h"
#include "worker/arena.h"
#include "worker/model/params.h"
#include "worker/train/galore.h"

struct opt_range {
    int64_t at, n;              /* in the flat vector */
    int64_t state;              /* of its moments in m and v */
    bool decay;
    double lr_ratio;
};

struct optimizer {
    const struct kernel_ops *ops;
    const struct params *params;
    double beta1, beta2, eps, decay;
    int64_t lo, hi;             /* the shard, elements of the flat vector */
    struct opt_range *ranges;
    int64_t n_ranges;
    float *master;              /* [hi-lo] f32, NULL when the weights are f32 themselves */
    float *m, *v;               /* [n_state] f32 moments: of [lo, hi), or packed without GaLore's matrices */
    int64_t n_state;
    double *sumsq;              /* device f64 [1] */
    int64_t t;                  /* updates done */
    struct galore *galore;      /* NULL without use_galore */
    /* zero_offload_optimizer on a device of its own: masters and moments are in host memory and the CPU updates them, a piece at a time */
    bool offload;
    const struct kernel_ops *host_ops;
    struct stream *host_stream;
    float *g_host, *w_host;     /* [OFFLOAD_PIECE] staging; w_host holds bf16 where there are masters */
    bool far_gradients;         /* zero_offload_gradients, likewise: flat_g is in host memory, where its squares are summed */
};

/* Takes its memory from `device`, masters and moments from `host` with zero_offload_optimizer (recording: nothing else may be called but
 * optimizer_free). */
int optimizer_new(struct optimizer **o, const struct spec *spec, const struct kernel_ops *ops, const struct params *params, int64_t lo, int64_t hi,
                  struct arena *device, struct arena *host, struct error *err);
void optimizer_free(struct optimizer *o);
/* Masters from the weights; called once they are loaded (a resume then puts the saved masters over them). */
int optimizer_start(struct optimizer *o, struct stream *s, struct error *err);
/* *sum = sum of squares of the shard's gradients. */
int optimizer_sumsq(struct optimizer *o, struct stream *s, double *sum, struct error *err);
/* One update of the shard's weights from gscale * flat_g. */
int optimizer_step(struct optimizer *o, struct stream *s, float gscale, double lr, struct error *err);

#endif
