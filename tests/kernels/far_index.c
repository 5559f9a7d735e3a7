/* Indexes beyond 2^31 elements and 2^32 bytes: sparse mappings of many GB of which only the far rows are touched. A product of sizes
 * formed in 32 bits lands elsewhere: in the guard-free middle (wrong result) or outside (a fault). */
#include <sys/mman.h>

#include "tests/kernels/common.h"

struct sparse { char *p; size_t bytes; };

static struct sparse sparse_new(int64_t elements, enum dtype dt)
{
    struct sparse s = { NULL, (size_t)elements * dtype_size(dt) };
    s.p = mmap(NULL, s.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s.p == MAP_FAILED) ck_abort_msg("no address space for %zu bytes; is there a limit (ulimit -v)?", s.bytes);
    return s;
}
static void sparse_free(struct sparse s) { munmap(s.p, s.bytes); }

/* Attention over 410,923 rows of 76 heads x 128 (4.0e9 elements), of which the last 40 are asked for; likewise its keys. */
START_TEST(attention_far)
{
    const struct kernel_ops *ops = kernel_ops_cpu();
    enum { n = 40, H = 76, D = 128 };
    const int64_t T = 410923, far = T - n;
    struct stream *s = new_stream(ops);
    struct rng r = { 1 };
    struct attn_shape small = { n, n, H, H, D, 0.1f, 0 }, big = { T, T, H, H, D, 0.1f, 0 };
    struct attn_span near_span = { 0, n, 0, n, 0 }, far_span = { far, n, far, n, 0 };
    struct attn_spans spans = { &near_span, &near_span, 1 }, far_spans = { &far_span, &far_span, 1 };
    size_t len = (size_t)n * H * D, ws_bytes = ops->attn_ws(DT_F32, big, 1);
    struct sparse ws = sparse_new((int64_t)ws_bytes, DT_U8), t[7];
    float *a[7], *lse = xcalloc(H * n, 4), *delta = xcalloc(H * n, 4);                    /* q k v dout dq dk dv; o is dq's place before backward */
    for (int i = 0; i < 7; i++) {
        t[i] = sparse_new(T * H * D, DT_F32);
        a[i] = i < 4 ? tensor(DT_F32, (int64_t)len, 1, &r) : xcalloc(len, 4);
        if (i < 4) memcpy((float *)(void *)t[i].p + far * H * D, a[i], len * 4);
    }
    #define AT(i) ((float *)(void *)t[i].p + far * H * D)
    struct sparse flse = sparse_new(H * T, DT_F32), fdelta = sparse_new(H * T, DT_F32);
    float *L = (float *)(void *)flse.p, *E = (float *)(void *)fdelta.p;
    for (int64_t h = 0; h < H; h++) for (int64_t i = 0; i < n; i++) { L[h * T + far + i] = lse[h * n + i] = -INFINITY; }
    ck_assert_int_eq(ops->attn_fwd(s, DT_F32, DT_F32, a[4], lse, a[0], a[1], a[2], small, spans, true, ws.p), OK);
    ck_assert_int_eq(ops->attn_fwd(s, DT_F32, DT_F32, t[4].p, L, t[0].p, t[1].p, t[2].p, big, far_spans, true, ws.p), OK);
    /* Panels begin elsewhere, so sums differ in the last bits. */
    double worst = 0;
    for (size_t i = 0; i < len; i++) worst = fmax(worst, fabs((double)AT(4)[i] - (double)a[4][i]));
    ck_assert_double_le(worst, 1e-5);
    ck_assert_int_eq(ops->attn_delta(s, DT_F32, DT_F32, delta, a[3], a[4], n, H, D), OK);
    for (int64_t h = 0; h < H; h++) for (int64_t i = 0; i < n; i++) {
        ck_assert_double_eq_tol((double)L[h * T + far + i], (double)lse[h * n + i], 1e-5);
        E[h * T + far + i] = delta[h * n + i];
    }
    ck_assert_int_eq(ops->attn_bwd(s, DT_F32, a[4], a[5], a[6], a[3], a[0], a[1], a[2], lse, delta, small, spans, ws.p), OK);
    ck_assert_int_eq(ops->attn_bwd(s, DT_F32, t[4].p, t[5].p, t[6].p, t[3].p, t[0].p, t[1].p, t[2].p, L, E, big, far_spans, ws.p), OK);
    for (int k = 4; k < 7; k++)
        for (size_t i = 0; i < len; i++) ck_assert_double_le(fabs((double)AT(k)[i] - (double)a[k][i]), 1e-4);
    for (int i = 0; i < 7; i++) { sparse_free(t[i]); free(a[i]); }
    sparse_free(ws); sparse_free(flse); sparse_free(fdelta);
    free(lse); free(delta);
    ops->stream_free(s);
}
END_TEST

START_TEST(embedding_far)
{
    const struct kernel_ops *ops = kernel_ops_cpu();
    struct stream *s = new_stream(ops);
    const int64_t V = 600000, C = 4096;                 /* 2.46e9 elements */
    struct sparse w = sparse_new(V * C, DT_F32), dw = sparse_new(V * C, DT_F32);
    int32_t ids[2] = { (int32_t)V - 1, (int32_t)V - 2 };
    float *y = xcalloc(2 * C, 4);
    ((float *)(void *)w.p)[V * C - 1] = 3.0f;
    ck_assert_int_eq(ops->embed_fwd(s, DT_F32, y, w.p, ids, 2, C, V), OK);
    ck_assert(y[C - 1] == 3.0f && y[2 * C - 1] == 0.0f);
    ck_assert_int_eq(ops->embed_bwd(s, DT_F32, (float *)(void *)dw.p, y, ids, 2, C, V), OK);
    ck_assert(((float *)(void *)dw.p)[V * C - 1] == 3.0f);
    sparse_free(w); sparse_free(dw);
    free(y);
    ops->stream_free(s);
}
END_TEST

START_TEST(strides_far)
{
    const struct kernel_ops *ops = kernel_ops_cpu();
    struct stream *s = new_stream(ops);
    const int64_t ld = (1ll << 31) + 64;
    for (int t = 0; t < 2; t++) {                       /* the second row of a matrix more than 2^31 elements on */
        enum dtype dt = t ? DT_BF16 : DT_F32;
        struct sparse a = sparse_new(ld + 64, dt), c = sparse_new(ld + 64, dt);
        void *ws;
        float one[4] = { 0 };
        size_t bytes = ops->matmul_ws(dt, dt, 2, 2, 2, false, false);
        ck_assert_int_eq(ops->mem_alloc(&ws, bytes, NULL), OK);
        put(dt, one, 0, 1.0);
        put(dt, one, 3, 1.0);                           /* the identity */
        put(dt, a.p, ld + 1, 5.0);
        ck_assert_int_eq(ops->matmul(s, dt, c.p, ld, dt, a.p, ld, false, dt, one, 2, false, 2, 2, 2, 1.0f, 0.0f, ws, bytes), OK);
        ck_assert(get(dt, c.p, ld + 1) == 5.0);
        ops->mem_free(ws, bytes);
        float x[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
        int64_t head0[2] = { 0, 1 };
        if (dt == DT_F32) {                             /* and the exchange layout: the second destination as far */
            ck_assert_int_eq(ops->rope_pack(s, dt, c.p, ld, x, NULL, NULL, head0, 1, 2, 4, 2, 1), OK);
            ck_assert(((float *)(void *)c.p)[ld + 3] == 8.0f);
            float back[8] = { 0 };
            ck_assert_int_eq(ops->rope_unpack(s, dt, back, dt, c.p, ld, NULL, NULL, head0, 1, 2, 4, 2, 1), OK);
            ck_assert_mem_eq(back, x, sizeof x);
        }
        sparse_free(a); sparse_free(c);
    }
    ops->stream_free(s);
}
END_TEST

static void add_tests(TCase *tc)
{
    tcase_add_test(tc, attention_far);
    tcase_add_test(tc, embedding_far);
    tcase_add_test(tc, strides_far);
}

int main(void) { return run_suite("far_index", add_tests); }
