// elementwise.cu - embedding, bias, residual, SwiGLU, columns, casts, dropout: one pass over memory each. Contracts: kernels.h.
#include "kernels/cuda/common.cuh"
#include "kernels/random.h"

template <class T>
static __global__ void embed_fwd_kernel(T *y, const T *w, const int32_t *ids, int64_t N, int64_t C, int64_t V)
{
    GRID_STRIDE(i, N * C) {
        int64_t n = i / C, id = ids[n];
        y[i] = id >= 0 && id < V ? w[id * C + i % C] : from_float<T>(0.0f);
    }
}

// dw[v,:] += the rows of dy whose id is v, in ascending n: one block owns a stretch of columns and walks the rows, so that no two
// threads meet at one element and the order is fixed. Blocks in y split the vocabulary; each skips the ids of the others.
enum { EMBED_SLICES = 64 };
template <class T>
static __global__ void embed_bwd_kernel(float *dw, const T *dy, const int32_t *ids, int64_t N, int64_t C, int64_t V)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) return;
    for (int64_t n = 0; n < N; n++) {
        int64_t id = ids[n];
        if (id < 0 || id >= V || id % EMBED_SLICES != blockIdx.y) continue;
        dw[id * C + c] += to_float(dy[n * C + c]);
    }
}

template <class T> static __global__ void bias_add_kernel(T *y, const T *b, int64_t N, int64_t C)
{
    GRID_STRIDE(i, N * C) y[i] = from_float<T>(to_float(y[i]) + to_float(b[i % C]));
}

// One block per 32 columns: each of 8 row groups sums every 8th row, then the groups are added in order.
template <class T, class U>
static __global__ void col_sum_kernel(float *out, const T *a, const U *b, const float *c, int64_t N, int64_t C)
{
    GPU_SHARED(float, part, [8][33]);
    int64_t col = (int64_t)blockIdx.x * 32 + threadIdx.x % 32;
    int group = threadIdx.x / 32;
    float sum = 0.0f;
    if (col < C)
        for (int64_t n = group; n < N; n += 8) sum += b ? to_float(a[n * C + col]) * to_float(b[n * C + col]) : to_float(a[n * C + col]);
    part[group][threadIdx.x % 32] = sum;
    __syncthreads();
    if (group != 0 || col >= C) return;
    float total = 0.0f;
    for (int g = 0; g < 8; g++) total += part[g][threadIdx.x];
    out[col] += c ? c[col] * total : total;
}

template <class T> static __global__ void add_kernel(T *y, const T *a, const T *b, int64_t n)
{
    GRID_STRIDE(i, n) y[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
}

static __device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class T> static __global__ void swiglu_fwd_kernel(T *y, const T *gate, const T *up, int64_t n)
{
    GRID_STRIDE(i, n) {
        float g = to_float(gate[i]);
        y[i] = from_float<T>(g * sigmoid(g) * to_float(up[i]));
    }
}

template <class T> static __global__ void swiglu_bwd_kernel(T *dgate, T *dup, const T *dy, const T *gate, const T *up, int64_t n)
{
    GRID_STRIDE(i, n) {
        float g = to_float(gate[i]), u = to_float(up[i]), d = to_float(dy[i]), s = sigmoid(g);
        dgate[i] = from_float<T>(d * u * s * (1.0f + g * (1.0f - s)));
        dup[i] = from_float<T>(d * g * s);
    }
}

template <class T> static __global__ void col_scale_kernel(T *y, const T *x, const float *c, int64_t N, int64_t C)
{
    GRID_STRIDE(i, N * C) y[i] = from_float<T>(to_float(x[i]) * c[i % C]);
}

template <class T, class U> static __global__ void axpy_kernel(T *y, const U *x, float a, int64_t n)
{
    GRID_STRIDE(i, n) y[i] = from_float<T>(to_float(y[i]) + a * to_float(x[i]));
}

template <class T> static __global__ void scale_kernel(T *y, float a, int64_t n)
{
    GRID_STRIDE(i, n) y[i] = from_float<T>(to_float(y[i]) * a);
}

template <class T, class U> static __global__ void cast_kernel(T *y, const U *x, int64_t n)
{
    GRID_STRIDE(i, n) y[i] = from_float<T>(to_float(x[i]));
}

template <class T> static __global__ void dropout_kernel(T *y, const T *x, uint32_t threshold, float keep_scale, uint64_t seed, uint64_t offset, int64_t n)
{
    GRID_STRIDE(i, n) y[i] = random_bits(seed, offset + (uint64_t)i) < threshold ? from_float<T>(0.0f) : from_float<T>(to_float(x[i]) * keep_scale);
}

// --- launchers ---

#define LAUNCH_N(kernel, n, ...) GPU_LAUNCH((kernel), grid_for(n), dim3(THREADS), 0, s->q, __VA_ARGS__)

static int embed_fwd(struct stream *s, enum dtype dt, void *y, const void *w, const int32_t *ids, int64_t N, int64_t C, int64_t V)
{
    if (N == 0) return OK;
    return BY_TYPE(s, "embed_fwd", dt, LAUNCH_N(embed_fwd_kernel<float>, N * C, (float *)y, (const float *)w, ids, N, C, V),
                   LAUNCH_N(embed_fwd_kernel<gbf16>, N * C, (gbf16 *)y, (const gbf16 *)w, ids, N, C, V));
}

static int embed_bwd(struct stream *s, enum dtype dt, float *dw, const void *dy, const int32_t *ids, int64_t N, int64_t C, int64_t V)
{
    if (N == 0) return OK;
    dim3 grid((unsigned)((C + THREADS - 1) / THREADS), EMBED_SLICES);
    return BY_TYPE(s, "embed_bwd", dt, GPU_LAUNCH((embed_bwd_kernel<float>), grid, dim3(THREADS), 0, s->q, dw, (const float *)dy, ids, N, C, V),
                   GPU_LAUNCH((embed_bwd_kernel<gbf16>), grid, dim3(THREADS), 0, s->q, dw, (const gbf16 *)dy, ids, N, C, V));
}

static int bias_add(struct stream *s, enum dtype dt, void *y, const void *b, int64_t N, int64_t C)
{
    if (N == 0) return OK;
    return BY_TYPE(s, "bias_add", dt, LAUNCH_N(bias_add_kernel<float>, N * C, (float *)y, (const float *)b, N, C),
                   LAUNCH_N(bias_add_kernel<gbf16>, N * C, (gbf16 *)y, (const gbf16 *)b, N, C));
}

static int col_dot(struct stream *s, enum dtype dt, float *out, const void *a, const void *b, const float *c, int64_t N, int64_t C)
{
    if (N == 0 || C == 0) return OK;
    dim3 grid((unsigned)((C + 31) / 32));
    return BY_TYPE(s, "col_dot", dt, GPU_LAUNCH((col_sum_kernel<float, float>), grid, dim3(THREADS), 0, s->q, out, (const float *)a, (const float *)b, c, N, C),
                   GPU_LAUNCH((col_sum_kernel<gbf16, gbf16>), grid, dim3(THREADS), 0, s->q, out, (const gbf16 *)a, (const gbf16 *)b, c, N, C));
}

static int bias_bwd(struct stream *s, enum dtype dt, float *db, const void *dy, int64_t N, int64_t C) { return col_dot(s, dt, db, dy, NULL, NULL, N, C); }

static int add(struct stream *s, enum dtype dt, void *y, const void *a, const void *b, int64_t n)
{
    if (n == 0) return OK;
    return BY_TYPE(s, "add", dt, LAUNCH_N(add_kernel<float>, n, (float *)y, (const float *)a, (const float *)b, n),
                   LAUNCH_N(add_kernel<gbf16>, n, (gbf16 *)y, (const gbf16 *)a, (const gbf16 *)b, n));
}

static int swiglu_fwd(struct stream *s, enum dtype dt, void *y, const void *gate, const void *up, int64_t n)
{
    if (n == 0) return OK;
    return BY_TYPE(s, "swiglu_fwd", dt, LAUNCH_N(swiglu_fwd_kernel<float>, n, (float *)y, (const float *)gate, (const float *)up, n),
                   LAUNCH_N(swiglu_fwd_kernel<gbf16>, n, (gbf16 *)y, (const gbf16 *)gate, (const gbf16 *)up, n));
}

static int swiglu_bwd(struct stream *s, enum dtype dt, void *dgate, void *dup, const void *dy, const void *gate, const void *up, int64_t n)
{
    if (n == 0) return OK;
    return BY_TYPE(s, "swiglu_bwd", dt,
                   LAUNCH_N(swiglu_bwd_kernel<float>, n, (float *)dgate, (float *)dup, (const float *)dy, (const float *)gate, (const float *)up, n),
                   LAUNCH_N(swiglu_bwd_kernel<gbf16>, n, (gbf16 *)dgate, (gbf16 *)dup, (const gbf16 *)dy, (const gbf16 *)gate, (const gbf16 *)up, n));
}

static int col_scale(struct stream *s, enum dtype dt, void *y, const void *x, const float *c, int64_t N, int64_t C)
{
    if (N == 0) return OK;
    return BY_TYPE(s, "col_scale", dt, LAUNCH_N(col_scale_kernel<float>, N * C, (float *)y, (const float *)x, c, N, C),
                   LAUNCH_N(col_scale_kernel<gbf16>, N * C, (gbf16 *)y, (const gbf16 *)x, c, N, C));
}

static int axpy(struct stream *s, enum dtype dy, void *y, enum dtype dx, const void *x, float a, int64_t n)
{
    if (n == 0) return OK;
    if (dx == DT_F32) return BY_TYPE(s, "axpy", dy, LAUNCH_N((axpy_kernel<float, float>), n, (float *)y, (const float *)x, a, n),
                                     LAUNCH_N((axpy_kernel<gbf16, float>), n, (gbf16 *)y, (const float *)x, a, n));
    if (dx != DT_BF16) return cuda_refuse(s, "axpy: type %s is not supported on CUDA", dtype_name(dx));
    return BY_TYPE(s, "axpy", dy, LAUNCH_N((axpy_kernel<float, gbf16>), n, (float *)y, (const gbf16 *)x, a, n),
                   LAUNCH_N((axpy_kernel<gbf16, gbf16>), n, (gbf16 *)y, (const gbf16 *)x, a, n));
}

static int scale(struct stream *s, enum dtype dt, void *y, float a, int64_t n)
{
    if (n == 0) return OK;
    return BY_TYPE(s, "scale", dt, LAUNCH_N(scale_kernel<float>, n, (float *)y, a, n), LAUNCH_N(scale_kernel<gbf16>, n, (gbf16 *)y, a, n));
}

static int cast(struct stream *s, enum dtype dy, void *y, enum dtype dx, const void *x, int64_t n)
{
    if (n == 0) return OK;
    if (dx == DT_F32) return BY_TYPE(s, "cast", dy, LAUNCH_N((cast_kernel<float, float>), n, (float *)y, (const float *)x, n),
                                     LAUNCH_N((cast_kernel<gbf16, float>), n, (gbf16 *)y, (const float *)x, n));
    if (dx != DT_BF16) return cuda_refuse(s, "cast: type %s is not supported on CUDA", dtype_name(dx));
    return BY_TYPE(s, "cast", dy, LAUNCH_N((cast_kernel<float, gbf16>), n, (float *)y, (const gbf16 *)x, n),
                   LAUNCH_N((cast_kernel<gbf16, gbf16>), n, (gbf16 *)y, (const gbf16 *)x, n));
}

static int dropout(struct stream *s, enum dtype dt, void *y, const void *x, float p, uint64_t seed, uint64_t offset, int64_t n)
{
    if (n == 0) return OK;
    uint32_t threshold = random_threshold(p);
    float keep = 1.0f / (1.0f - p);
    return BY_TYPE(s, "dropout", dt, LAUNCH_N(dropout_kernel<float>, n, (float *)y, (const float *)x, threshold, keep, seed, offset, n),
                   LAUNCH_N(dropout_kernel<gbf16>, n, (gbf16 *)y, (const gbf16 *)x, threshold, keep, seed, offset, n));
}

extern "C" void cuda_fill_elementwise(struct kernel_ops *ops)
{
    ops->embed_fwd = embed_fwd;
    ops->embed_bwd = embed_bwd;
    ops->bias_add = bias_add;
    ops->bias_bwd = bias_bwd;
    ops->add = add;
    ops->swiglu_fwd = swiglu_fwd;
    ops->swiglu_bwd = swiglu_bwd;
    ops->col_scale = col_scale;
    ops->col_dot = col_dot;
    ops->axpy = axpy;
    ops->scale = scale;
    ops->cast = cast;
    ops->dropout = dropout;
}
