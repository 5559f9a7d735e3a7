/* AdamW, norms, casts, axpy, scale, add, dropout, and the device part of the table. */
#include "tests/kernels/common.h"

START_TEST(adamw_follows_torch)
{
    const struct kernel_ops *ops = table(_i);
    if (!ops) return;
    struct stream *s = new_stream(ops);
    enum { n = 1037 };
    struct rng r = { 3 };
    for (int half = 0; half < 2; half++) {
        float *w = tensor(DT_F32, n, 1, &r), *m = xcalloc(n, 4), *v = xcalloc(n, 4), *g = NULL;
        bf16 *w16 = half ? xcalloc(n, 2) : NULL;
        double *W = xcalloc(n, 8), *M = xcalloc(n, 8), *V = xcalloc(n, 8), lr = 1e-3, b1 = 0.9, b2 = 0.999, eps = 1e-8, wd = 0.1;
        for (int i = 0; i < n; i++) W[i] = (double)w[i];
        for (int t = 1; t <= 10; t++) {
            g = tensor(DT_F32, n, t == 4 ? 1e-6 : 1.0, &r);
            for (int i = 0; i < n; i++) {
                double gi = (double)g[i] * 0.5;
                M[i] = b1 * M[i] + (1 - b1) * gi;
                V[i] = b2 * V[i] + (1 - b2) * gi * gi;
                W[i] -= lr * wd * W[i];
                W[i] -= lr * (M[i] / (1 - pow(b1, t))) / (sqrt(V[i] / (1 - pow(b2, t))) + eps);
            }
            ck_assert_int_eq(ops->adamw(s, w, w16, m, v, g, n, 0.5f, lr, b1, b2, eps, wd, t), OK);
            free(g);
        }
        ck_assert_double_le(rel_norm(DT_F32, w, W, n), 3e-7);
        ck_assert_double_le(rel_norm(DT_F32, m, M, n), 1e-6);
        ck_assert_double_le(rel_norm(DT_F32, v, V, n), 1e-6);
        for (int i = 0; i < n && half; i++) ck_assert_int_eq(w16[i].bits, f32_to_bf16(w[i]).bits);
        free(w); free(m); free(v); free(w16); free(W); free(M); free(V);
    }
    ck_assert_int_eq(ops->adamw(s, NULL, NULL, NULL, NULL, NULL, 0, 1, 1, 0.9, 0.999, 1e-8, 0, 0), E_INVALID);
    ops->stream_free(s);
}
END_TEST

START_TEST(sumsq_is_exact_and_the_same_everywhere)
{
    const struct kernel_ops *ops = table(_i), *base = table(0);
    if (!ops) return;
    struct stream *s = new_stream(ops);
    struct rng r = { 4 };
    for (int64_t n = 0; n < 3000000; n = n * 7 + 1) {
        float *x = tensor(DT_F32, n, 1, &r);
        double want = 1.5, got = 1.5, one = 1.5, plain = 1.5;
        for (int64_t i = 0; i < n; i++) want += (double)x[i] * (double)x[i];
        ck_assert_int_eq(ops->sumsq(s, &got, x, n), OK);
        kernel_cpu_threads(1);
        ck_assert_int_eq(ops->sumsq(s, &one, x, n), OK);
        ck_assert_int_eq(base->sumsq(s, &plain, x, n), OK);
        kernel_cpu_threads(0);
        ck_assert_double_eq_tol(got / want, 1.0, 1e-12);
        ck_assert(got == one && got == plain);
        free(x);
    }
    ops->stream_free(s);
}
END_TEST

START_TEST(casts_and_sums)
{
    const struct kernel_ops *ops = table(_i);
    if (!ops) return;
    struct stream *s = new_stream(ops);
    struct rng r = { 5 };
    static const enum dtype types[] = { DT_F32, DT_BF16, DT_F64 };
    static const int64_t sizes[] = { 0, 1, 17, 1025, 5000 };
    for (int i = 0; i < 5; i++) for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++) {
        int64_t n = sizes[i];
        enum dtype dx = types[a], dy = types[b];
        double tol = dy == DT_BF16 ? 5e-3 : dy == DT_F32 ? 2e-7 : 1e-15;
        void *x = tensor(dx, n, 1, &r), *y = tensor(dy, n, 1, &r);
        double *want = xcalloc(n + 1, 8);
        for (int64_t k = 0; k < n; k++) want[k] = get(dy, y, k) + (double)0.3f * get(dx, x, k);
        ck_assert_int_eq(ops->axpy(s, dy, y, dx, x, 0.3f, n), OK);
        ck_assert_double_le(rel_norm(dy, y, want, n), tol);
        for (int64_t k = 0; k < n; k++) want[k] = get(dx, x, k);
        ck_assert_int_eq(ops->cast(s, dy, y, dx, x, n), OK);
        for (int64_t k = 0; k < n; k++) ck_assert_double_le(fabs(get(dy, y, k) - want[k]), fabs(want[k]) * (dy == DT_BF16 ? 0.00391 : tol));
        for (int64_t k = 0; k < n; k++) want[k] = get(dy, y, k) * -1.5;
        ck_assert_int_eq(ops->scale(s, dy, y, -1.5f, n), OK);
        ck_assert_double_le(rel_norm(dy, y, want, n), tol);
        if (dx == dy) {
            for (int64_t k = 0; k < n; k++) want[k] = get(dy, y, k) + get(dx, x, k);
            ck_assert_int_eq(ops->add(s, dy, y, y, x, n), OK);
            ck_assert_double_le(rel_norm(dy, y, want, n), tol);
        }
        free(x); free(y); free(want);
    }
    ck_assert_int_eq(ops->cast(s, DT_F16, NULL, DT_F32, NULL, 0), E_INVALID);
    ck_assert_ptr_nonnull(strstr(ops->error(s), "float16"));
    ops->stream_free(s);
}
END_TEST

/* Every one of the 65,536 upper halves, and the ties between them. */
START_TEST(bf16_rounding)
{
    const struct kernel_ops *ops = table(_i);
    if (!ops) return;
    struct stream *s = new_stream(ops);
    enum { n = 3 * 65536 };
    uint32_t *x = xmalloc(n * 4ul);
    bf16 *y = xmalloc(n * 2ul);
    for (uint32_t i = 0; i < 65536; i++) { x[3 * i] = i << 16; x[3 * i + 1] = i << 16 | 0x8000; x[3 * i + 2] = i << 16 | 0x8001; }
    ck_assert_int_eq(ops->cast(s, DT_BF16, y, DT_F32, x, n), OK);
    for (int i = 0; i < n; i++) {
        float f;
        memcpy(&f, x + i, 4);
        ck_assert_int_eq(y[i].bits, f32_to_bf16(f).bits);
        if (isnan(f)) ck_assert(isnan(bf16_to_f32(y[i])));
        else if (x[i] % 3 == 0 && isfinite(bf16_to_f32(y[i]))) ck_assert_double_le(fabs((double)bf16_to_f32(y[i]) - (double)f), fabs((double)f) / 256 + 1e-40);
    }
    free(x); free(y);
    ops->stream_free(s);
}
END_TEST

START_TEST(dropout_is_a_function_of_place)
{
    const struct kernel_ops *ops = table(_i), *base = table(0);
    if (!ops) return;
    struct stream *s = new_stream(ops);
    enum { n = 100003 };
    float *x = xcalloc(n, 4), *y = xcalloc(n, 4), *z = xcalloc(n, 4);
    fill(DT_F32, x, n, 2.0);
    ck_assert_int_eq(ops->dropout(s, DT_F32, y, x, 0.1f, 77, 1000, n), OK);
    int64_t kept = 0;
    for (int i = 0; i < n; i++) { ck_assert(y[i] == 0.0f || fabsf(y[i] - 2.0f / 0.9f) < 1e-6f); kept += y[i] != 0.0f; }
    ck_assert_double_eq_tol((double)kept / n, 0.9, 0.005);
    ck_assert_int_eq(base->dropout(s, DT_F32, z, x, 0.1f, 77, 1000, n), OK);
    ck_assert_mem_eq(y, z, n * sizeof(float));
    ck_assert_int_eq(ops->dropout(s, DT_F32, z, x + 333, 0.1f, 77, 1333, n - 333), OK);       /* in two calls: the same */
    ck_assert_mem_eq(y + 333, z, (n - 333) * sizeof(float));
    ck_assert_int_eq(ops->dropout(s, DT_F32, z, x, 0.1f, 78, 1000, n), OK);
    ck_assert(memcmp(y, z, n * sizeof(float)) != 0);
    ck_assert_int_eq(ops->dropout(s, DT_F32, z, x, 0.0f, 78, 1000, n), OK);
    ck_assert_mem_eq(x, z, n * sizeof(float));
    ck_assert_int_eq(ops->dropout(s, DT_F32, z, x, 1.0f, 78, 1000, n), E_INVALID);
    free(x); free(y); free(z);
    ops->stream_free(s);
}
END_TEST

START_TEST(device_part)
{
    const struct kernel_ops *ops = kernel_ops_cpu();
    struct error err = { 0 };
    struct device_info info;
    struct stream *s = new_stream(ops);
    struct event *a, *b;
    void *p, *q;
    ck_assert_int_eq(ops->device_open(0, &err), OK);
    ck_assert_int_eq(ops->device_info(0, &info, &err), OK);
    ck_assert_str_eq(info.name, "cpu");
    ck_assert(info.free_bytes > 0 && info.free_bytes <= info.total_bytes);
    ck_assert_int_eq(ops->mem_alloc(&p, 5000, &err), OK);
    ck_assert_int_eq((int)((uintptr_t)p % 4096), 0);
    for (int i = 0; i < 5000; i++) ck_assert_int_eq(((char *)p)[i], 0);
    ck_assert_int_eq(ops->mem_alloc(&q, SIZE_MAX / 2, &err), E_NOMEM);
    ck_assert_ptr_null(q);
    ck_assert_int_eq(ops->event_new(&a, &err), OK);
    ck_assert_int_eq(ops->event_new(&b, &err), OK);
    ck_assert_int_eq(ops->event_record(a, s), OK);
    ck_assert_int_eq(ops->copy(s, p, "ring", 5), OK);
    ck_assert_int_eq(ops->event_record(b, s), OK);
    ck_assert_int_eq(ops->event_wait(s, b), OK);
    ck_assert_int_eq(ops->stream_wait(s, &err), OK);
    ck_assert_str_eq(p, "ring");
    ck_assert_double_ge(ops->event_ms(a, b), 0.0);
    ck_assert_int_eq(ops->zero(s, p, 5), OK);
    ck_assert_str_eq(p, "");
    ops->event_free(a);
    ops->event_free(b);
    ops->mem_free(p, 5000);
    ops->stream_free(s);
    const void *const *member = (const void *const *)ops;           /* every member is filled */
    for (size_t i = 0; i < sizeof *ops / sizeof *member; i++) ck_assert_msg(member[i] != NULL, "member %zu of the table is empty", i);
}
END_TEST

static void add_tests(TCase *tc)
{
    tcase_add_loop_test(tc, adamw_follows_torch, 0, TABLES);
    tcase_add_loop_test(tc, sumsq_is_exact_and_the_same_everywhere, 0, TABLES);
    tcase_add_loop_test(tc, casts_and_sums, 0, TABLES);
    tcase_add_loop_test(tc, bf16_rounding, 0, TABLES);
    tcase_add_loop_test(tc, dropout_is_a_function_of_place, 0, TABLES);
    tcase_add_test(tc, device_part);
}

int main(void) { return run_suite("optimizer", add_tests); }
