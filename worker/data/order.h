/* order.h - randomness for the data side: the same numbers on every machine and for every number of ranks. */
#ifndef RM_WORKER_DATA_ORDER_H
#define RM_WORKER_DATA_ORDER_H

#include <stdint.h>

/* splitmix64 (Steele, Lea, Flood 2014; public domain reference by S. Vigna). */
static inline uint64_t order_next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* A stream for (seed, purpose, number): purposes are named by their letters. */
static inline uint64_t order_stream(uint64_t seed, uint64_t purpose, uint64_t number)
{
    uint64_t s = seed;
    s = order_next(&s) ^ purpose;
    s = order_next(&s) ^ number;
    return order_next(&s);
}

/* Fisher-Yates over v[0..n). The bias of % is below n / 2^64. */
static inline void order_shuffle(int64_t *v, int64_t n, uint64_t state)
{
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)(order_next(&state) % (uint64_t)(i + 1));
        int64_t t = v[i];
        v[i] = v[j];
        v[j] = t;
    }
}

#endif
