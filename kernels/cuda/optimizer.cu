// optimizer.cu - gradient norm and AdamW, one pass over the parameters.
#include "kernels/cuda/common.cuh"

// Parts depend on n alone, a block sums one of them, and one thread adds them in order: the same bits on every card.
static __global__ void sumsq_parts_kernel(double *parts, const float *x, int64_t n)
{
    GPU_SHARED(double, partial, [32]);
    int64_t len = (n + gridDim.x - 1) / gridDim.x, end = (blockIdx.x + 1) * len < n ? (blockIdx.x + 1) * len : n;
    double sum = 0.0;
    for (int64_t i = blockIdx.x * len + threadIdx.x; i < end; i += THREADS) sum += (double)x[i] * (double)x[i];
    sum = block_sum(sum, &partial[0]);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

static __global__ void sumsq_total_kernel(double *out, const double *parts, int n)
{
    double total = 0.0;
    for (int p = 0; p < n; p++) total += parts[p];
    out[0] += total;
}

struct adam { float gscale, step, inv_root, decay, c1, f2, c2, eps; };

static __global__ void adamw_kernel(float *w32, gbf16 *w16, float *m, float *v, const float *g, int64_t n, struct adam a)
{
    GRID_STRIDE(i, n) {
        float gi = g[i] * a.gscale, mi = m[i] + a.c1 * (gi - m[i]), vi = a.f2 * v[i] + a.c2 * gi * gi;
        float w = w32[i] * a.decay - a.step * (mi / (sqrtf(vi) * a.inv_root + a.eps));
        m[i] = mi;
        v[i] = vi;
        w32[i] = w;
        if (w16) w16[i] = from_float<gbf16>(w);
    }
}

static int sumsq(struct stream *s, double *out, const float *x, int64_t n)
{
    if (n == 0) return OK;
    int parts = n < CUDA_SUM_PARTS * 4096 ? (int)((n + 4095) / 4096) : CUDA_SUM_PARTS;
    int rc = cuda_status(s, GPU_LAUNCH(sumsq_parts_kernel, dim3((unsigned)parts), dim3(THREADS), 0, s->q, s->parts, x, n), "sumsq");
    return rc == OK ? cuda_status(s, GPU_LAUNCH(sumsq_total_kernel, dim3(1), dim3(1), 0, s->q, out, (const double *)s->parts, parts), "sumsq") : rc;
}

static int adamw(struct stream *s, float *w32, bf16 *w16, float *m, float *v, const float *g, int64_t n, float gscale, double lr, double b1, double b2,
                 double eps, double wd, int64_t t)
{
    if (t < 1) return cuda_refuse(s, "adamw: step %lld, expected 1 or more", (long long)t);
    if (n == 0) return OK;
    struct adam a = { gscale, (float)(lr / (1.0 - pow(b1, (double)t))), (float)(1.0 / sqrt(1.0 - pow(b2, (double)t))), (float)(1.0 - lr * wd), (float)(1.0 - b1),
                      (float)b2, (float)(1.0 - b2), (float)eps };
    return cuda_status(s, GPU_LAUNCH(adamw_kernel, grid_for(n), dim3(THREADS), 0, s->q, w32, (gbf16 *)w16, m, v, g, n, a), "adamw");
}

extern "C" void cuda_fill_optimizer(struct kernel_ops *ops)
{
    ops->sumsq = sumsq;
    ops->adamw = adamw;
}
