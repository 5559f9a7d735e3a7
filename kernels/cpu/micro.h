/* micro.h - the small matrix product inside the attention tiles: c[M,N] (+)= a[M,K] b[K,N], everything f32 and in cache.
 *
 * MR x NV vectors of c stay in registers while k runs; b is read a vector at a time, a is broadcast. That needs b's rows
 * contiguous in n, so keys and values are also kept transposed (attention_tiles.h); a may lie either way (two strides).
 * 6 x 4 vectors of 16 use 24 of AVX-512's 32 registers; 6 x 2 fit the 16 of AVX2 and SSE. */
#ifndef RM_KERNELS_CPU_MICRO_H
#define RM_KERNELS_CPU_MICRO_H

#include "kernels/cpu/isa.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define SPLAT4(x) x, x, x, x
#if defined(__AVX512F__)
enum { VL = 16, NV = 4 };
#define SPLAT(x) (vf){ SPLAT4(x), SPLAT4(x), SPLAT4(x), SPLAT4(x) }
#elif defined(__AVX2__)
enum { VL = 8, NV = 2 };
#define SPLAT(x) (vf){ SPLAT4(x), SPLAT4(x) }
#else
enum { VL = 4, NV = 2 };
#define SPLAT(x) (vf){ SPLAT4(x) }
#endif
enum { MR = 6 };

typedef float vf __attribute__((vector_size(4 * VL)));
typedef float vf_any __attribute__((vector_size(4 * VL), aligned(4), may_alias));     /* in memory, any alignment */

typedef int32_t vi __attribute__((vector_size(4 * VL)));

/* The larger of each lane. A NaN in b is kept, one in a is dropped. */
static inline vf max_lanes(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    for (int i = 0; i < VL; i++) b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
#endif
}
static inline float max_of(vf v)
{
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float m = v[0];
    for (int i = 1; i < VL; i++) m = v[i] > m ? v[i] : m;
    return m;
#endif
}
static inline float sum_of(vf v)
{
    float lane[VL], sum = 0.0f;
    memcpy(lane, &v, sizeof lane);
    for (int i = 0; i < VL; i++) sum += lane[i];
    return sum;
}

/* exp_f32(x scale - m) by lanes, for x scale <= m (up to rounding). What is left after n ln2 comes from the parts, not from their rounded difference, which
 * would cost the digits that m has before the point: m + n ln2_hi is exact as long as it is no larger than m, and the one rounding is at the size of r. */
static inline vf exp_lanes(vf x, vf scale, vf m)
{
    const vf round = SPLAT(12582912.0f), one = SPLAT(1.0f);
    vf t = max_lanes(SPLAT(-88.0f), x * scale - m);
    vf shifted = t * SPLAT(1.44269504088896341f) + round, n = shifted - round, r = max_lanes(SPLAT(-1.0f), x * scale - (m + n * SPLAT(0.693359375f)));
    vf p = SPLAT(1.9875691500e-4f);
    r = r - n * SPLAT(-2.12194440e-4f);
    p = p * r + SPLAT(1.3981999507e-3f);
    p = p * r + SPLAT(8.3334519073e-3f);
    p = p * r + SPLAT(4.1665795894e-2f);
    p = p * r + SPLAT(1.6666665459e-1f);
    p = p * r + SPLAT(5.0000001201e-1f);
    p = p * (r * r) + r + one;
    return p * (vf)(((vi)shifted << 23) + (vi)one);
}

/* One block of MR rows and nv vectors; nv, and which of a's strides is 1, are constants where this is inlined. Spelled out with one
 * variable per vector: gcc keeps a two-dimensional array of them in memory. */
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define C_AT(r, v) (*(vf_any *)(c + r * ldc + v * VL))
#define TAKE(r) \
    vf c##r##0 = SPLAT(0.0f), c##r##1 = c##r##0, c##r##2 = c##r##0, c##r##3 = c##r##0;
#define STEP(r) \
    { \
        float ar = ak[r * ars]; \
        vf av = SPLAT(ar); \
        c##r##0 += av * b0; \
        if (nv > 1) c##r##1 += av * b1; \
        if (nv > 2) c##r##2 += av * b2; \
        if (nv > 3) c##r##3 += av * b3; \
    }
/* The old value comes in last: a sum over many calls is then a sum of short sums, which keeps more digits than one long chain. */
#define GIVE(r) \
    if (accumulate) { \
        c##r##0 += C_AT(r, 0); \
        if (nv > 1) c##r##1 += C_AT(r, 1); \
        if (nv > 2) c##r##2 += C_AT(r, 2); \
        if (nv > 3) c##r##3 += C_AT(r, 3); \
    } \
    C_AT(r, 0) = c##r##0; \
    if (nv > 1) C_AT(r, 1) = c##r##1; \
    if (nv > 2) C_AT(r, 2) = c##r##2; \
    if (nv > 3) C_AT(r, 3) = c##r##3;

static inline __attribute__((always_inline)) void micro(float *c, int64_t ldc, const float *a, int64_t ars, int64_t aks, const float *b, int64_t ldb,
                                                        int64_t K, bool accumulate, const int nv)
{
    EACH_ROW(TAKE)
    for (int64_t k = 0; k < K; k++) {
        const float *ak = a + k * aks;
        const vf_any *bk = (const vf_any *)(b + k * ldb);
        vf b0 = bk[0], b1 = b0, b2 = b0, b3 = b0;
        if (nv > 1) b1 = bk[1];
        if (nv > 2) b2 = bk[2];
        if (nv > 3) b3 = bk[3];
        EACH_ROW(STEP)
    }
    EACH_ROW(GIVE)
}

static inline __attribute__((always_inline)) void product(float *c, int64_t ldc, const float *a, int64_t ars, int64_t aks, const float *b, int64_t ldb,
                                                          int64_t M, int64_t N, int64_t K, bool accumulate)
{
    for (int64_t n = 0; n < N; n += NV * VL) {
        int64_t left = (N - n) / VL;
        for (int64_t m = 0; m < M; m += MR) {
            float *cc = c + m * ldc + n;
            const float *aa = a + m * ars;
            if (left >= NV) micro(cc, ldc, aa, ars, aks, b + n, ldb, K, accumulate, NV);
            else if (left == 3) micro(cc, ldc, aa, ars, aks, b + n, ldb, K, accumulate, NV < 3 ? NV : 3);
            else if (left == 2) micro(cc, ldc, aa, ars, aks, b + n, ldb, K, accumulate, 2);
            else micro(cc, ldc, aa, ars, aks, b + n, ldb, K, accumulate, 1);
        }
    }
}

/* c[M,N] (+)= a[M,K] b[K,N]. M a multiple of MR, N of VL: the caller's buffers are padded. */
static void product_nn(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t ldb, int64_t M, int64_t N, int64_t K, bool accumulate)
{
    product(c, ldc, a, lda, 1, b, ldb, M, N, K, accumulate);
}
/* c[M,N] (+)= at[K,M]^T b[K,N]. */
static void product_tn(float *c, int64_t ldc, const float *at, int64_t lda, const float *b, int64_t ldb, int64_t M, int64_t N, int64_t K, bool accumulate)
{
    product(c, ldc, at, 1, lda, b, ldb, M, N, K, accumulate);
}

#endif
