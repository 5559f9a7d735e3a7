/* Matrix products against f64, in every layout, with row strides, alpha and beta. */
#include "kernels/cpu/onednn.h"
#include "tests/kernels/common.h"

static const struct { int64_t M, N, K; } sizes[] = { { 1, 1, 1 }, { 3, 5, 7 }, { 64, 33, 129 }, { 257, 300, 65 }, { 5, 261, 1100 }, { 513, 7, 5 }, { 3, 520, 1030 }, { 2, 3, 0 } };

static void check(enum dtype dc, enum dtype da, int64_t M, int64_t N, int64_t K, bool ta, bool tb, float alpha, float beta)
{
    const struct kernel_ops *ops = kernel_ops_cpu();
    struct stream *s = new_stream(ops);
    struct rng r = { (uint64_t)(M * 7 + N * 3 + K + ta * 2 + tb) };
    int64_t lda = (ta ? M : K) + 3, ldb = (tb ? K : N) + 1, ldc = N + 5, ra = ta ? K : M, rb = tb ? N : K;
    void *a = tensor(da, ra * lda, 1, &r), *b = tensor(da, rb * ldb, 1, &r), *c = tensor(dc, M * ldc, 1, &r), *ws;
    double *want = xcalloc(M * ldc + 1, 8);
    for (int64_t m = 0; m < M; m++) for (int64_t n = 0; n < ldc; n++) {
        want[m * ldc + n] = get(dc, c, m * ldc + n);
        if (n >= N) continue;
        double sum = 0;
        for (int64_t k = 0; k < K; k++) sum += get(da, a, ta ? k * lda + m : m * lda + k) * get(da, b, tb ? n * ldb + k : k * ldb + n);
        want[m * ldc + n] = (double)alpha * sum + (beta == 0.0f ? 0.0 : (double)beta * want[m * ldc + n]);
        if (beta == 0.0f) put(dc, c, m * ldc + n, NAN); /* must not be read */
    }
    size_t bytes = ops->matmul_ws(dc, da, M, N, K, ta, tb);
    ck_assert_int_eq(ops->mem_alloc(&ws, bytes, NULL), OK);
    ck_assert_int_eq(ops->matmul(s, dc, c, ldc, da, a, lda, ta, da, b, ldb, tb, M, N, K, alpha, beta, ws, bytes), OK);
    ck_assert_double_le(rel_norm(dc, c, want, M * ldc), dc == DT_BF16 ? 4e-3 : 1e-6);
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = N; n < ldc; n++) ck_assert(get(dc, c, m * ldc + n) == want[m * ldc + n]);      /* between the rows: untouched */
    ops->mem_free(ws, bytes);
    free(a); free(b); free(c); free(want);
    ops->stream_free(s);
}

static void all_layouts(enum dtype dc, enum dtype da)
{
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int t = 0; t < 4; t++)
            for (int ab = 0; ab < 3; ab++)
                check(dc, da, sizes[i].M, sizes[i].N, sizes[i].K, t & 1, t & 2, ab == 2 ? 0.5f : 1.0f, ab == 0 ? 0.0f : ab == 1 ? 1.0f : -2.0f);
}
START_TEST(f32) { all_layouts(DT_F32, DT_F32); } END_TEST
START_TEST(bf16_to_f32_sums) { all_layouts(DT_F32, DT_BF16); } END_TEST
START_TEST(bf16_to_bf16) { all_layouts(DT_BF16, DT_BF16); } END_TEST

/* oneDNN's own bf16, which is otherwise taken only where there is AMX; twice, so that a kept primitive is used again. */
START_TEST(bf16_in_hardware)
{
    onednn_bf16_policy(1);
    all_layouts(DT_F32, DT_BF16);
    all_layouts(DT_BF16, DT_BF16);
    for (int i = 0; i < 2; i++) check(DT_F32, DT_BF16, 64, 33, 129, true, false, 1.0f, 1.0f);
}
END_TEST

/* A row's product has the same bits whatever the number of rows (2 or more): what a token gives does not depend on how many a rank holds. */
START_TEST(few_rows_are_like_many)
{
    const struct kernel_ops *ops = kernel_ops_cpu();
    struct stream *s = new_stream(ops);
    static const int64_t widths[] = { 3, 16, 130, 600 };
    struct rng r = { 5 };
    enum { M = 64 };
    for (int i = 0; i < 32; i++) {
        int64_t N = widths[i & 3], K = widths[i >> 2 & 3], rows = 2 + (i * 5) % 20;
        float alpha = i & 16 ? 0.7f : 1.0f, beta = i & 16 ? 1.0f : 0.0f;
        float *a = tensor(DT_F32, M * K, 1, &r), *b = tensor(DT_F32, N * K, 1, &r), *many = tensor(DT_F32, M * N, 1, &r), *few = xmalloc(M * N * 4);
        memcpy(few, many, (size_t)(M * N) * 4);
        ck_assert_int_eq(ops->matmul(s, DT_F32, many, N, DT_F32, a, K, false, DT_F32, b, K, true, M, N, K, alpha, beta, NULL, 0), OK);
        ck_assert_int_eq(ops->matmul(s, DT_F32, few, N, DT_F32, a, K, false, DT_F32, b, K, true, rows, N, K, alpha, beta, NULL, 0), OK);
        ck_assert_msg(memcmp(many, few, (size_t)(rows * N) * 4) == 0, "N %lld K %lld, %lld rows of %d", (long long)N, (long long)K, (long long)rows, M);
        free(a); free(b); free(many); free(few);
    }
    ops->stream_free(s);
}
END_TEST

START_TEST(nothing_and_refusals)
{
    const struct kernel_ops *ops = kernel_ops_cpu();
    struct stream *s = new_stream(ops);
    float x[4] = { 1, 2, 3, 4 };
    ck_assert_int_eq(ops->matmul(s, DT_F32, NULL, 4, DT_F32, NULL, 4, false, DT_F32, NULL, 4, false, 0, 4, 4, 1, 0, NULL, 0), OK);
    ck_assert_int_eq(ops->matmul(s, DT_F32, x, 2, DT_F32, x, 2, false, DT_BF16, x, 2, false, 2, 2, 2, 1, 0, NULL, 0), E_INVALID);
    ck_assert_ptr_nonnull(strstr(ops->error(s), "bfloat16"));
    ck_assert_int_eq(ops->matmul(s, DT_F32, x, 1, DT_F32, x, 2, false, DT_F32, x, 2, false, 2, 2, 2, 1, 0, NULL, 0), E_INVALID);
    ops->stream_free(s);
}
END_TEST

static void add_tests(TCase *tc)
{
    tcase_add_test(tc, f32);
    tcase_add_test(tc, bf16_to_f32_sums);
    tcase_add_test(tc, bf16_to_bf16);
    tcase_add_test(tc, bf16_in_hardware);
    tcase_add_test(tc, few_rows_are_like_many);
    tcase_add_test(tc, nothing_and_refusals);
}

int main(void) { return run_suite("matmul", add_tests); }
