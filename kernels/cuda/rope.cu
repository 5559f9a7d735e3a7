// rope.cu - rotary embedding fused with the layout change of the Ulysses exchange. Half-split: element i turns with i + D/2.
#include "kernels/cuda/common.cuh"

enum { DESTINATIONS_MAX = 64 };
struct heads { int64_t first[DESTINATIONS_MAX]; };      // head0, by value: 512 bytes of kernel arguments

static __global__ void rope_table_kernel(float *cosines, float *sines, const int32_t *pos, const float *inv_freq, int64_t N, int64_t half, float factor)
{
    GRID_STRIDE(i, N * half) {
        double a = (double)pos[i / half] * (double)inv_freq[i % half];      // f64: fp32 loses the angle beyond some 100K tokens
        cosines[i] = (float)(cos(a) * (double)factor);
        sines[i] = (float)(sin(a) * (double)factor);
    }
}

// One thread per pair (u, n, j, i).
template <class T>
static __global__ void rope_pack_kernel(T *out, int64_t stride_u, const T *in, const float *cosines, const float *sines, struct heads h, int64_t N, int64_t H,
                                        int64_t half, int64_t U, int64_t Hu)
{
    GRID_STRIDE(x, U * N * Hu * half) {
        int64_t i = x % half, j = x / half % Hu, n = x / (half * Hu) % N, u = x / (half * Hu * N);
        const T *from = in + ((n * H + h.first[u] + j) * 2) * half;
        T *to = out + u * stride_u + ((n * Hu + j) * 2) * half;
        if (!cosines) {
            to[i] = from[i];
            to[i + half] = from[i + half];
            continue;
        }
        float a = to_float(from[i]), b = to_float(from[i + half]), c = cosines[n * half + i], s = sines[n * half + i];
        to[i] = from_float<T>(a * c - b * s);
        to[i + half] = from_float<T>(b * c + a * s);
    }
}

// One thread per pair (n, h, i): sums the copies of head h in ascending u, then turns back.
template <class T, class IN>
static __global__ void rope_unpack_kernel(T *out, const IN *in, int64_t stride_u, const float *cosines, const float *sines, struct heads h, int64_t N, int64_t H,
                                          int64_t half, int64_t U, int64_t Hu)
{
    GRID_STRIDE(x, N * H * half) {
        int64_t i = x % half, head = x / half % H, n = x / (half * H);
        float a = 0.0f, b = 0.0f;
        for (int64_t u = 0; u < U; u++) {
            int64_t j = head - h.first[u];
            if (j < 0 || j >= Hu) continue;
            const IN *from = in + u * stride_u + ((n * Hu + j) * 2) * half;
            a += to_float(from[i]);
            b += to_float(from[i + half]);
        }
        T *to = out + ((n * H + head) * 2) * half;
        float c = cosines ? cosines[n * half + i] : 1.0f, s = cosines ? sines[n * half + i] : 0.0f;
        to[i] = from_float<T>(cosines ? a * c + b * s : a);
        to[i + half] = from_float<T>(cosines ? b * c - a * s : b);
    }
}

static int check(struct stream *s, const char *op, const int64_t *head0, int64_t D, int64_t U, struct heads *h)
{
    if (D % 2 != 0) return cuda_refuse(s, "%s: head width %lld, expected an even number", op, (long long)D);
    if (U > DESTINATIONS_MAX) return cuda_refuse(s, "%s: %lld destinations, at most %d are taken", op, (long long)U, DESTINATIONS_MAX);
    for (int64_t u = 0; u < U; u++) h->first[u] = head0[u];
    return OK;
}

static int rope_table(struct stream *s, float *cosines, float *sines, const int32_t *pos, const float *inv_freq, int64_t N, int64_t D, float factor)
{
    if (N == 0) return OK;
    if (D % 2 != 0) return cuda_refuse(s, "rope_table: head width %lld, expected an even number", (long long)D);
    return cuda_status(s, GPU_LAUNCH(rope_table_kernel, grid_for(N * (D / 2)), dim3(THREADS), 0, s->q, cosines, sines, pos, inv_freq, N, D / 2, factor), "rope_table");
}

static int rope_pack(struct stream *s, enum dtype dt, void *out, int64_t out_stride_u, const void *in, const float *cosines, const float *sines,
                     const int64_t *head0, int64_t N, int64_t H, int64_t D, int64_t U, int64_t Hu)
{
    struct heads h = {};
    int rc = check(s, "rope_pack", head0, D, U, &h);
    if (rc != OK || N == 0) return rc;
    dim3 grid = grid_for(U * N * Hu * (D / 2));
    return BY_TYPE(s, "rope_pack", dt,
                   GPU_LAUNCH((rope_pack_kernel<float>), grid, dim3(THREADS), 0, s->q, (float *)out, out_stride_u, (const float *)in, cosines, sines, h, N, H, D / 2, U, Hu),
                   GPU_LAUNCH((rope_pack_kernel<gbf16>), grid, dim3(THREADS), 0, s->q, (gbf16 *)out, out_stride_u, (const gbf16 *)in, cosines, sines, h, N, H, D / 2, U, Hu));
}

static int rope_unpack(struct stream *s, enum dtype dt, void *out, enum dtype din, const void *in, int64_t in_stride_u, const float *cosines,
                       const float *sines, const int64_t *head0, int64_t N, int64_t H, int64_t D, int64_t U, int64_t Hu)
{
    struct heads h = {};
    int rc = check(s, "rope_unpack", head0, D, U, &h);
    if (rc != OK || N == 0) return rc;
    if (din != dt && din != DT_F32) return cuda_refuse(s, "rope_unpack: input type %s with output type %s, expected the same or float32", dtype_name(din), dtype_name(dt));
    dim3 grid = grid_for(N * H * (D / 2));
    if (dt == DT_BF16 && din == DT_BF16)
        return cuda_status(s, GPU_LAUNCH((rope_unpack_kernel<gbf16, gbf16>), grid, dim3(THREADS), 0, s->q, (gbf16 *)out, (const gbf16 *)in, in_stride_u, cosines, sines, h, N, H, D / 2, U, Hu), "rope_unpack");
    return BY_TYPE(s, "rope_unpack", dt,
                   GPU_LAUNCH((rope_unpack_kernel<float, float>), grid, dim3(THREADS), 0, s->q, (float *)out, (const float *)in, in_stride_u, cosines, sines, h, N, H, D / 2, U, Hu),
                   GPU_LAUNCH((rope_unpack_kernel<gbf16, float>), grid, dim3(THREADS), 0, s->q, (gbf16 *)out, (const float *)in, in_stride_u, cosines, sines, h, N, H, D / 2, U, Hu));
}

extern "C" void cuda_fill_rope(struct kernel_ops *ops)
{
    ops->rope_table = rope_table;
    ops->rope_pack = rope_pack;
    ops->rope_unpack = rope_unpack;
}
