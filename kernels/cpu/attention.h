/* attention.h - what the attention files share: which keys a query row sees, and the two implementations' entries. */
#ifndef RM_KERNELS_CPU_ATTENTION_H
#define RM_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/isa.h"

enum { ATTN_HEAD_MAX = 256 };

struct range { int64_t lo, hi; };

/* Keys of span p that query row t (of this rank's queries) sees, as rows of k: [lo, hi), empty when lo >= hi.
 * Both ends only grow with t. */
static inline struct range keys_of_row(const struct attn_span *p, int64_t t, int64_t window)
{
    struct range r = { 0, 0 };
    if (t < p->q0 || t >= p->q0 + p->nq) return r;
    int64_t end = t - p->q0 + p->diag + 1;              /* of the span's keys: past the newest one seen */
    r.hi = p->k0 + max64(0, min64(p->nk, end));
    r.lo = p->k0 + (window ? max64(0, end - window) : 0);
    return r;
}

/* attention_f64.c */
void ISA(attn_fwd_f64)(double *o, double *lse, const double *q, const double *k, const double *v, struct attn_shape n, struct attn_spans spans, bool merge);
void ISA(attn_delta_f64)(double *delta, const double *dout, const double *o, int64_t T, int64_t H, int64_t D);
void ISA(attn_bwd_f64)(double *dq, double *dk, double *dv, const double *dout, const double *q, const double *k, const double *v,
                       const double *lse, const double *delta, struct attn_shape n, struct attn_spans spans);

/* attention_tiles.c: dt f32 or bf16 */
void ISA(attn_fwd_tiles)(enum dtype dt, enum dtype dto, void *o, float *lse, const void *q, const void *k, const void *v, struct attn_shape n,
                         struct attn_spans spans, bool merge, void *ws);
void ISA(attn_bwd_tiles)(enum dtype dt, float *dq, float *dk, float *dv, const void *dout, const void *q, const void *k, const void *v,
                         const float *lse, const float *delta, struct attn_shape n, struct attn_spans spans, void *ws);
size_t ISA(attn_ws_tiles)(struct attn_shape n, int64_t max_spans);

#endif
