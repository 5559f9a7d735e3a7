/* galore.h - GaLore (Zhao et al. 2024, arXiv 2403.03507): AdamW's moments live in a projection of each gradient matrix.
 *
 * Every update_proj_gap updates a matrix's leading singular vectors become its projection; which side is fixed by its shape and
 * galore_proj_type, once (as in galore_torch: std takes the right side of a tall matrix, the left of a wide one). A projection that cannot
 * be computed leaves the last one in use (or, when there is none yet, the matrix as it is for this step) and is counted. Whole
 * matrices only: never a shard. */
#ifndef RM_WORKER_TRAIN_GALORE_H
#define RM_WORKER_TRAIN_GALORE_H

#include "api/spec.h"
#include "worker/arena.h"
#include "worker/model/params.h"

struct galore_matrix {
    int64_t param;              /* index in params */
    int64_t rows, cols, r;
    bool left, right;           /* which sides are projected; both: galore_proj_type full */
    bool have;                  /* a projection has been computed */
    float *basis_left, *basis_right;    /* [r,rows], [r,cols] */
    float *m, *v;               /* moments of the projected gradient */
    int64_t n_low;              /* its elements: rows*r, r*cols or r*r */
};

struct galore {
    const struct kernel_ops *ops;
    struct galore_matrix *v;
    int64_t n;
    int64_t gap;
    float scale;
    float *state;               /* device [n_state]: all bases and moments, one buffer, for checkpoints */
    int64_t n_state;
    float *low, *delta, *half;  /* device scratch: projected gradient, its update, product with one side */
    void *ws; size_t ws_bytes;
    int64_t failures;           /* projections that could not be computed */
};

/* NULL in *g without use_galore. */
int galore_new(struct galore **g, const struct spec *spec, const struct kernel_ops *ops, const struct params *params, struct arena *device, struct error *err);
void galore_free(struct galore *g);
bool galore_has(const struct galore *g, int64_t param);         /* g may be NULL */
/* After `state` was loaded: which matrices have a projection. */
int galore_resume(struct galore *g, struct stream *s, struct error *err);
struct galore_rates { double lr, beta1, beta2, eps, decay; float gscale; int64_t t; };
/* One update of matrix k: w32 its f32 weights, w16 the bf16 copy or NULL, grad f32 [rows,cols] (used up: holds the update afterwards). */
int galore_step(struct galore *g, struct stream *s, int64_t k, float *w32, bf16 *w16, float *grad, const struct galore_rates *rates, struct error *err);

#endif
