/* random.h - the counter-based generator of dropout: 32 random bits for (seed, i), the same on every backend.
 * SplitMix64's finaliser (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators") over seed + i * golden. */
#ifndef RM_KERNELS_RANDOM_H
#define RM_KERNELS_RANDOM_H

#include <stdint.h>

#ifdef __CUDACC__
#define RM_RANDOM_FN static __host__ __device__ __forceinline__
#else
#define RM_RANDOM_FN static inline
#endif

RM_RANDOM_FN uint32_t random_bits(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}
/* An element is dropped iff random_bits() < this. p in [0,1). */
RM_RANDOM_FN uint32_t random_threshold(float p)
{
    double t = (double)p * 4294967296.0;
    return t <= 0.0 ? 0u : t >= 4294967295.0 ? 4294967295u : (uint32_t)t;
}

#endif
