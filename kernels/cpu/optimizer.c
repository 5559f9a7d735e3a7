/* optimizer.c - gradient norm and AdamW, one pass over the parameters. */
#include "kernels/cpu/isa.h"

enum { SUM_PARTS = 256, SUM_LANES = 16 };

/* f64 throughout. The parts and the lanes depend on n alone, so the order is the same for any thread count and instruction set. */
static int sumsq(struct stream *s, double *out, const float *x, int64_t n)
{
    (void)s;
    double part[SUM_PARTS];
    int64_t len = blocks_of(blocks_of(n, SUM_PARTS), 4096) * 4096, parts = n ? blocks_of(n, len) : 0;
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(parts))
    for (int64_t p = 0; p < parts; p++) {
        double lane[SUM_LANES] = { 0 };
        const float *v = x + p * len;
        int64_t m = min64(len, n - p * len), i = 0;
        for (; i + SUM_LANES <= m; i += SUM_LANES) {
            #pragma omp simd
            for (int k = 0; k < SUM_LANES; k++) lane[k] += (double)v[i + k] * (double)v[i + k];   /* exact in f64: fma or not */
        }
        for (int k = 0; i + k < m; k++) lane[k] += (double)v[i + k] * (double)v[i + k];
        double sum = 0.0;
        for (int k = 0; k < SUM_LANES; k++) sum += lane[k];
        part[p] = sum;
    }
    for (int64_t p = 0; p < parts; p++) *out += part[p];
    return OK;
}

static int adamw(struct stream *s, float *w32, bf16 *w16, float *m, float *v, const float *g, int64_t n, float gscale,
                 double lr, double b1, double b2, double eps, double wd, int64_t t)
{
    if (t < 1) return cpu_refuse(s, "adamw: step %lld, expected 1 or more", (long long)t);
    const float step = (float)(lr / (1.0 - pow(b1, (double)t))), inv_root = (float)(1.0 / sqrt(1.0 - pow(b2, (double)t)));
    const float decay = (float)(1.0 - lr * wd), c1 = (float)(1.0 - b1), f2 = (float)b2, c2 = (float)(1.0 - b2), e = (float)eps;
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(blocks_of(n, 8 * BLOCK)))
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t len = min64(BLOCK, n - at);
        float *wb = w32 + at, *mb = m + at, *vb = v + at;
        const float *gb = g + at;
        #pragma omp simd
        for (int64_t i = 0; i < len; i++) {
            float gi = gb[i] * gscale;
            float mi = mb[i] + c1 * (gi - mb[i]);       /* b1 m + (1-b1) g, as torch's lerp */
            float vi = f2 * vb[i] + c2 * gi * gi;
            mb[i] = mi;
            vb[i] = vi;
            wb[i] = wb[i] * decay - step * (mi / (sqrtf(vi) * inv_root + e));
        }
        if (w16) narrow(w16 + at, wb, len);
    }
    return OK;
}

void ISA(fill_optimizer)(struct kernel_ops *ops)
{
    ops->sumsq = sumsq;
    ops->adamw = adamw;
}
