// norm.cu - RMSNorm. Forward: a block per row. Weight gradient: per-part sums over fixed row ranges, then over the parts in order,
// so that the bits do not depend on the card.
#include "kernels/cuda/common.cuh"

enum { PARTS_MAX = 256, PART_ROWS_MIN = 16 };

template <class T>
static __global__ void rmsnorm_fwd_kernel(T *y, float *rstd, const T *x, const T *w, int64_t N, int64_t C, float eps)
{
    GPU_SHARED(float, partial, [32]);
    for (int64_t n = blockIdx.x; n < N; n += gridDim.x) {
        const T *xn = x + n * C;
        float sum = 0.0f;
        for (int64_t c = threadIdx.x; c < C; c += THREADS) {
            float v = to_float(xn[c]);
            sum += v * v;
        }
        float r = 1.0f / sqrtf(block_sum(sum, &partial[0]) / (float)C + eps);
        if (rstd && threadIdx.x == 0) rstd[n] = r;
        for (int64_t c = threadIdx.x; c < C; c += THREADS) y[n * C + c] = from_float<T>(to_float(xn[c]) * r * to_float(w[c]));
    }
}

// dx = rstd (dy w - h mean(dy w h)) with h = x rstd. dx may be dy: a row is read before it is written, element by element.
template <class T>
static __global__ void rmsnorm_dx_kernel(T *dx, bool add, const T *dy, const T *x, const T *w, const float *rstd, int64_t N, int64_t C)
{
    GPU_SHARED(float, partial, [32]);
    for (int64_t n = blockIdx.x; n < N; n += gridDim.x) {
        float r = rstd[n], sum = 0.0f;
        for (int64_t c = threadIdx.x; c < C; c += THREADS) sum += to_float(dy[n * C + c]) * to_float(w[c]) * to_float(x[n * C + c]);
        float mean = block_sum(sum, &partial[0]) * r / (float)C;
        for (int64_t c = threadIdx.x; c < C; c += THREADS) {
            int64_t i = n * C + c;
            float d = r * (to_float(dy[i]) * to_float(w[c]) - to_float(x[i]) * r * mean);
            dx[i] = from_float<T>(add ? to_float(dx[i]) + d : d);
        }
    }
}

// part[p,c] = sum over rows of part p of dy h; before dx, which may overwrite dy.
template <class T>
static __global__ void rmsnorm_dw_kernel(float *part, const T *dy, const T *x, const float *rstd, int64_t N, int64_t C, int64_t rows)
{
    int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x, p = blockIdx.y;
    if (c >= C) return;
    int64_t end = (p + 1) * rows < N ? (p + 1) * rows : N;
    float sum = 0.0f;
    for (int64_t n = p * rows; n < end; n++) sum += to_float(dy[n * C + c]) * to_float(x[n * C + c]) * rstd[n];
    part[p * C + c] = sum;
}

static __global__ void sum_parts_kernel(float *dw, const float *part, int64_t parts, int64_t C)
{
    GRID_STRIDE(c, C) {
        float sum = 0.0f;
        for (int64_t p = 0; p < parts; p++) sum += part[p * C + c];
        dw[c] += sum;
    }
}

static dim3 row_grid(int64_t N) { return dim3((unsigned)(N < 65536 ? N : 65536)); }

static int rmsnorm_fwd(struct stream *s, enum dtype dt, void *y, float *rstd, const void *x, const void *w, int64_t N, int64_t C, float eps)
{
    if (N == 0) return OK;
    return BY_TYPE(s, "rmsnorm_fwd", dt,
                   GPU_LAUNCH((rmsnorm_fwd_kernel<float>), row_grid(N), dim3(THREADS), 0, s->q, (float *)y, rstd, (const float *)x, (const float *)w, N, C, eps),
                   GPU_LAUNCH((rmsnorm_fwd_kernel<gbf16>), row_grid(N), dim3(THREADS), 0, s->q, (gbf16 *)y, rstd, (const gbf16 *)x, (const gbf16 *)w, N, C, eps));
}

static int64_t parts_of(int64_t N)
{
    int64_t parts = (N + PART_ROWS_MIN - 1) / PART_ROWS_MIN;
    return parts < PARTS_MAX ? parts : PARTS_MAX;
}

static size_t rmsnorm_bwd_ws(int64_t N, int64_t C) { return (size_t)parts_of(N) * (size_t)C * sizeof(float); }

static int rmsnorm_bwd(struct stream *s, enum dtype dt, void *dx, bool add, float *dw, const void *dy, const void *x, const void *w, const float *rstd,
                       int64_t N, int64_t C, void *ws)
{
    if (N == 0) return OK;
    int rc = OK;
    if (dw) {
        int64_t parts = parts_of(N), rows = (N + parts - 1) / parts;
        dim3 grid((unsigned)((C + THREADS - 1) / THREADS), (unsigned)parts);
        rc = BY_TYPE(s, "rmsnorm_bwd", dt,
                     GPU_LAUNCH((rmsnorm_dw_kernel<float>), grid, dim3(THREADS), 0, s->q, (float *)ws, (const float *)dy, (const float *)x, rstd, N, C, rows),
                     GPU_LAUNCH((rmsnorm_dw_kernel<gbf16>), grid, dim3(THREADS), 0, s->q, (float *)ws, (const gbf16 *)dy, (const gbf16 *)x, rstd, N, C, rows));
        if (rc == OK) rc = cuda_status(s, GPU_LAUNCH(sum_parts_kernel, grid_for(C), dim3(THREADS), 0, s->q, dw, (const float *)ws, parts, C), "rmsnorm_bwd");
    }
    if (rc != OK) return rc;
    return BY_TYPE(s, "rmsnorm_bwd", dt,
                   GPU_LAUNCH((rmsnorm_dx_kernel<float>), row_grid(N), dim3(THREADS), 0, s->q, (float *)dx, add, (const float *)dy, (const float *)x, (const float *)w, rstd, N, C),
                   GPU_LAUNCH((rmsnorm_dx_kernel<gbf16>), row_grid(N), dim3(THREADS), 0, s->q, (gbf16 *)dx, add, (const gbf16 *)dy, (const gbf16 *)x, (const gbf16 *)w, rstd, N, C));
}

extern "C" void cuda_fill_norm(struct kernel_ops *ops)
{
    ops->rmsnorm_fwd = rmsnorm_fwd;
    ops->rmsnorm_bwd = rmsnorm_bwd;
    ops->rmsnorm_bwd_ws = rmsnorm_bwd_ws;
}
