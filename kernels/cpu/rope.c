/* rope.c - rotary embedding, fused with the layout change of the Ulysses exchange. Half-split convention: element d of a
 * head turns with element d + D/2. */
#include "kernels/cpu/isa.h"

static int bad_shape(struct stream *s, const char *op, enum dtype dt, int64_t D)
{
    if (dt != DT_F32 && dt != DT_BF16 && dt != DT_F64) return cpu_refuse(s, "%s: type %s is not supported", op, dtype_name(dt));
    if (D % 2 != 0) return cpu_refuse(s, "%s: head width %lld, expected an even number", op, (long long)D);
    return OK;
}

static int rope_table(struct stream *s, float *cosines, float *sines, const int32_t *pos, const float *inv_freq, int64_t N, int64_t D, float factor)
{
    if (D % 2 != 0) return cpu_refuse(s, "rope_table: head width %lld, expected an even number", (long long)D);
    int64_t half = D / 2;
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(blocks_of(N * half, BLOCK)))
    for (int64_t n = 0; n < N; n++) {
        for (int64_t i = 0; i < half; i++) {
            double a = (double)pos[n] * (double)inv_freq[i];
            cosines[n * half + i] = (float)(cos(a) * (double)factor);
            sines[n * half + i] = (float)(sin(a) * (double)factor);
        }
    }
    return OK;
}

/* One head: y = rot(x) over pairs (a[i], b[i]); y may be x. */
static void rotate_f32(float *y, const float *x, const float *c, const float *s, int64_t half)
{
    #pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        y[i] = a * c[i] - b * s[i];
        y[i + half] = b * c[i] + a * s[i];
    }
}
static void rotate_bf16(bf16 *y, const bf16 *x, const float *c, const float *s, int64_t half)
{
    #pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float a = from_bf16(x[i]), b = from_bf16(x[i + half]);
        y[i] = to_bf16(a * c[i] - b * s[i]);
        y[i + half] = to_bf16(b * c[i] + a * s[i]);
    }
}
static void rotate_f64(double *y, const double *x, const float *c, const float *s, int64_t half)
{
    for (int64_t i = 0; i < half; i++) {
        double a = x[i], b = x[i + half];
        y[i] = a * (double)c[i] - b * (double)s[i];
        y[i + half] = b * (double)c[i] + a * (double)s[i];
    }
}

static int rope_pack(struct stream *s, enum dtype dt, void *out, int64_t out_stride_u, const void *in, const float *cosines, const float *sines,
                     const int64_t *head0, int64_t N, int64_t H, int64_t D, int64_t U, int64_t Hu)
{
    int rc = bad_shape(s, "rope_pack", dt, D);
    if (rc != OK) return rc;
    int64_t half = D / 2;
    size_t size = dtype_size(dt);
    #pragma omp parallel for collapse(2) schedule(static) num_threads(cpu_threads(blocks_of(U * N * Hu * D, 4096)))
    for (int64_t u = 0; u < U; u++) {
        for (int64_t n = 0; n < N; n++) {
            for (int64_t j = 0; j < Hu; j++) {
                const void *x = (const char *)in + (size_t)((n * H + head0[u] + j) * D) * size;
                void *y = (char *)out + (size_t)(u * out_stride_u + (n * Hu + j) * D) * size;
                if (!cosines) memmove(y, x, (size_t)D * size);
                else if (dt == DT_F32) rotate_f32(y, x, cosines + n * half, sines + n * half, half);
                else if (dt == DT_BF16) rotate_bf16(y, x, cosines + n * half, sines + n * half, half);
                else rotate_f64(y, x, cosines + n * half, sines + n * half, half);
            }
        }
    }
    return OK;
}

/* Sums pairs [i0, i0+len) of every (u,j) that holds head h of row n, turns them back and stores them. f32 sums, f64 for F64. */
#define UNPACK(name, ACC, T_OUT, T_IN, LOAD, STORE) \
static void name(T_OUT *out, const T_IN *in, int64_t in_stride_u, const float *c, const float *s, const int64_t *head0, \
                 int64_t n, int64_t h, int64_t D, int64_t U, int64_t Hu, int64_t i0, int64_t len) \
{ \
    ACC a[BLOCK], b[BLOCK]; \
    int64_t half = D / 2; \
    for (int64_t i = 0; i < len; i++) a[i] = b[i] = 0; \
    for (int64_t u = 0; u < U; u++) { \
        int64_t j = h - head0[u]; \
        if (j < 0 || j >= Hu) continue; \
        const T_IN *x = in + u * in_stride_u + (n * Hu + j) * D + i0; \
        _Pragma("omp simd") \
        for (int64_t i = 0; i < len; i++) { a[i] += LOAD(x[i]); b[i] += LOAD(x[i + half]); } \
    } \
    _Pragma("omp simd") \
    for (int64_t i = 0; i < len; i++) { \
        ACC ci = c ? (ACC)c[i0 + i] : (ACC)1, si = c ? (ACC)s[i0 + i] : (ACC)0; \
        out[i0 + i] = STORE(c ? a[i] * ci + b[i] * si : a[i]); \
        out[i0 + i + half] = STORE(c ? b[i] * ci - a[i] * si : b[i]); \
    } \
}
#define AS_IS(x) (x)
UNPACK(unpack_f32_f32, float, float, float, AS_IS, AS_IS)
UNPACK(unpack_bf16_f32, float, bf16, float, AS_IS, to_bf16)
UNPACK(unpack_bf16_bf16, float, bf16, bf16, from_bf16, to_bf16)
UNPACK(unpack_f64_f64, double, double, double, AS_IS, AS_IS)
UNPACK(unpack_f64_f32, double, double, float, AS_IS, AS_IS)

static int rope_unpack(struct stream *s, enum dtype dt, void *out, enum dtype din, const void *in, int64_t in_stride_u, const float *cosines,
                       const float *sines, const int64_t *head0, int64_t N, int64_t H, int64_t D, int64_t U, int64_t Hu)
{
    int rc = bad_shape(s, "rope_unpack", dt, D);
    if (rc != OK) return rc;
    if (din != dt && din != DT_F32) return cpu_refuse(s, "rope_unpack: input type %s with output type %s, expected the same or float32", dtype_name(din), dtype_name(dt));
    int64_t half = D / 2;
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(blocks_of(N * H * D, 4096)))
    for (int64_t n = 0; n < N; n++) {
        const float *c = cosines ? cosines + n * half : NULL, *sn = cosines ? sines + n * half : NULL;
        for (int64_t h = 0; h < H; h++) {
            int64_t row = (n * H + h) * D;
            for (int64_t i0 = 0; i0 < half; i0 += BLOCK) {
                int64_t len = min64(BLOCK, half - i0);
                if (dt == DT_F32) unpack_f32_f32((float *)out + row, in, in_stride_u, c, sn, head0, n, h, D, U, Hu, i0, len);
                else if (dt == DT_BF16 && din == DT_F32) unpack_bf16_f32((bf16 *)out + row, in, in_stride_u, c, sn, head0, n, h, D, U, Hu, i0, len);
                else if (dt == DT_BF16) unpack_bf16_bf16((bf16 *)out + row, in, in_stride_u, c, sn, head0, n, h, D, U, Hu, i0, len);
                else if (din == DT_F64) unpack_f64_f64((double *)out + row, in, in_stride_u, c, sn, head0, n, h, D, U, Hu, i0, len);
                else unpack_f64_f32((double *)out + row, in, in_stride_u, c, sn, head0, n, h, D, U, Hu, i0, len);
            }
        }
    }
    return OK;
}

void ISA(fill_rope)(struct kernel_ops *ops)
{
    ops->rope_table = rope_table;
    ops->rope_pack = rope_pack;
    ops->rope_unpack = rope_unpack;
}
