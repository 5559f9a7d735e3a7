/* common.h - what the kernel tests share: every table this processor can run, random numbers, and f64 views of any type.
 * Tests that loop over tables use _i as the index of the table: TABLES rows, those that cannot run here are skipped inside. */
#ifndef RM_TESTS_KERNELS_COMMON_H
#define RM_TESTS_KERNELS_COMMON_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

enum { TABLES = 3 };
static const char *const isa_names[TABLES] = { "baseline", "v3", "v4" };

/* The table at index i, or NULL where the processor has it not (a message says so). */
static inline const struct kernel_ops *table(int i)
{
    const struct kernel_ops *ops = kernel_ops_cpu_isa(isa_names[i]);
    if (!ops) fprintf(stderr, "not run here: instruction set %s\n", isa_names[i]);
    return ops;
}

static inline struct stream *new_stream(const struct kernel_ops *ops)
{
    struct stream *s;
    ck_assert_int_eq(ops->stream_new(&s, true, NULL), OK);
    return s;
}

struct rng { uint64_t state; };
static inline double uniform(struct rng *r)             /* (-1, 1) */
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(r->state >> 11 << 1) / (double)(1ll << 53) - 1.0;
}
static inline double normal(struct rng *r)              /* about N(0,1): twelve uniforms */
{
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += uniform(r);
    return sum * 0.5;
}

static inline double get(enum dtype dt, const void *x, int64_t i)
{
    return dt == DT_F64 ? ((const double *)x)[i] : dt == DT_F32 ? (double)((const float *)x)[i] : (double)bf16_to_f32(((const bf16 *)x)[i]);
}
static inline void put(enum dtype dt, void *x, int64_t i, double v)
{
    if (dt == DT_F64) ((double *)x)[i] = v;
    else if (dt == DT_F32) ((float *)x)[i] = (float)v;
    else ((bf16 *)x)[i] = f32_to_bf16((float)v);
}

/* n elements of type dt, N(0, scale); the caller frees. Never a zero-size block, and a guard after the end. */
static inline void *tensor(enum dtype dt, int64_t n, double scale, struct rng *r)
{
    void *x = xcalloc((size_t)n + 1, dtype_size(dt));
    for (int64_t i = 0; i < n; i++) put(dt, x, i, scale * normal(r));
    return x;
}
static inline void *copy_of(const void *x, size_t bytes)
{
    void *y = xmalloc(bytes + 1);
    memcpy(y, x, bytes);
    return y;
}
static inline void fill(enum dtype dt, void *x, int64_t n, double v)
{
    for (int64_t i = 0; i < n; i++) put(dt, x, i, v);
}

/* ||a - want|| / ||want||, and NAN if a holds one; the plain norm of a where want is all zero. */
static inline double rel_norm(enum dtype dt, const void *a, const double *want, int64_t n)
{
    double diff = 0, ref = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = get(dt, a, i) - want[i];
        diff += e * e;
        ref += want[i] * want[i];
    }
    return ref > 0 ? sqrt(diff / ref) : sqrt(diff);
}

static inline int run_suite(const char *name, void (*add)(TCase *tc))
{
    kernel_cpu_threads(1);                              /* tests of several threads say so */
    Suite *suite = suite_create(name);
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, 120);
    add(tc);
    suite_add_tcase(suite, tc);
    SRunner *r = srunner_create(suite);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
