/* isa.h - tools for the sources that are compiled once per instruction set.
 *
 * Activations come as f32 or bf16, arithmetic is f32: an operation walks its row in blocks of BLOCK elements, block_in()
 * hands it f32 (the array itself, or a converted copy that stays in L1), block_out()/block_done() take the result back.
 * So every operation is written once. Loops carry `omp simd`: in place is legal, and the compiler picks the vectors. */
#ifndef RM_KERNELS_CPU_ISA_H
#define RM_KERNELS_CPU_ISA_H

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

#define ISA_PASTE2(name, isa) name##_##isa
#define ISA_PASTE(name, isa) ISA_PASTE2(name, isa)
#define ISA(name) ISA_PASTE(name, RM_ISA)

enum { BLOCK = 512 };

static inline uint32_t f32_bits(float x) { uint32_t u; memcpy(&u, &x, sizeof u); return u; }
static inline float f32_of_bits(uint32_t u) { float x; memcpy(&x, &u, sizeof x); return x; }

static inline float from_bf16(bf16 x) { return f32_of_bits((uint32_t)x.bits << 16); }
static inline bf16 to_bf16(float x)                     /* as f32_to_bf16(), without a branch */
{
    uint32_t u = f32_bits(x);
    uint32_t rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
    return (bf16){ (uint16_t)((u & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded) };
}

static inline void widen(float *y, const bf16 *x, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = from_bf16(x[i]);
}
static inline void narrow(bf16 *y, const float *x, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = to_bf16(x[i]);
}

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t blocks_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* x[at, at+n) as f32, n <= BLOCK. */
static inline const float *block_in(enum dtype dt, float *tmp, const void *x, int64_t at, int64_t n)
{
    if (dt == DT_F32) return (const float *)x + at;
    widen(tmp, (const bf16 *)x + at, n);
    return tmp;
}
/* Where to write y[at, …): y itself, or tmp until block_done(). */
static inline float *block_out(enum dtype dt, float *tmp, void *y, int64_t at)
{
    return dt == DT_F32 ? (float *)y + at : tmp;
}
static inline void block_done(enum dtype dt, void *y, int64_t at, const float *tmp, int64_t n)
{
    if (dt == DT_BF16) narrow((bf16 *)y + at, tmp, n);
}

/* e^x to about 1 ulp; 0 below -87.7 (no denormals), finite up to +88.3, above that the value at 88.3. NaN stays NaN.
 * Source: the classic Cephes split x = n ln2 + r with a degree-6 polynomial in r. */
static inline float exp_f32(float x)
{
    float t = x > 88.3f ? 88.3f : x;
    t = t < -88.0f ? -88.0f : t;                        /* there n = -127, whose 2^n is made of zero bits: 0 */
    const float round = 12582912.0f;                    /* 1.5 * 2^23: adding it rounds to an integer */
    float shifted = t * 1.44269504088896341f + round;
    float n = shifted - round;
    float r = t - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return p * f32_of_bits((f32_bits(shifted) << 23) + 0x3F800000u);      /* the low bits of `shifted` hold n */
}
static inline float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

#endif
