/* attention.h - attention's kernels behind the table: flash (tensor cores, bf16) and plain (any type, any shape). */
#ifndef RM_KERNELS_CUDA_ATTENTION_H
#define RM_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/spans.h"

#ifdef __cplusplus
extern "C" {
#endif

/* bf16, D a multiple of 8 up to 256. Rows in no span are not touched. Arguments as in kernels.h; ws: a span table. */
int flash_fwd(struct stream *s, enum dtype dto, void *o, float *lse, const void *q, const void *k, const void *v, struct attn_shape n,
              struct attn_spans spans, bool merge, void *ws);
/* Deterministic: one pass owns keys (dk, dv), one owns queries (dq). ws: two span tables. */
int flash_bwd(struct stream *s, float *dq, float *dk, float *dv, const void *dout, const void *q, const void *k, const void *v, const float *lse,
              const float *delta, struct attn_shape n, struct attn_spans spans, void *ws);
/* f32 or bf16, any D up to 256: a warp per row. */
int plain_fwd(struct stream *s, enum dtype dt, enum dtype dto, void *o, float *lse, const void *q, const void *k, const void *v, struct attn_shape n,
              struct attn_spans spans, bool merge, void *ws);
int plain_bwd(struct stream *s, enum dtype dt, float *dq, float *dk, float *dv, const void *dout, const void *q, const void *k, const void *v,
              const float *lse, const float *delta, struct attn_shape n, struct attn_spans spans, void *ws);

#ifdef __cplusplus
}
#endif
#endif
