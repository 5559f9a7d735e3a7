/* Token-local layers against f64: embedding, RMSNorm, bias, columns, SwiGLU, RoPE, cross-entropy. Backward is checked against the
 * derivative written out in f64, not against forward differences. */
#include "kernels/cpu/isa.h"
#include "tests/kernels/common.h"

static double tol_of(enum dtype dt) { return dt == DT_BF16 ? 6e-3 : 1e-6; }
static const enum dtype acts[] = { DT_F32, DT_BF16 };
static const struct { int64_t count, width; } rows[] = { { 1, 1 }, { 3, 7 }, { 65, 64 }, { 33, 515 }, { 200, 130 }, { 0, 16 } };
enum { ROWS = sizeof rows / sizeof rows[0] };

#define EACH(ops, s, dt, N, columns) \
    const struct kernel_ops *ops = table(_i); \
    if (!ops) return; \
    struct stream *s = new_stream(ops); \
    struct rng r = { 42 }; \
    for (int a_ = 0; a_ < 2; a_++) for (int r_ = 0; r_ < ROWS; r_++) { \
        enum dtype dt = acts[a_]; int64_t N = rows[r_].count, columns = rows[r_].width;
#define EACH_END } ops->stream_free(s);

START_TEST(embedding)
{
    EACH(ops, s, dt, N, C)
        int64_t V = 11;
        void *w = tensor(dt, V * C, 1, &r), *y = tensor(dt, N * C, 1, &r), *dy = tensor(dt, N * C, 1, &r);
        int32_t *ids = xcalloc(N + 1, 4);
        float *dw = tensor(DT_F32, V * C, 1, &r);
        double *want = xcalloc(V * C, 8);
        for (int64_t n = 0; n < N; n++) ids[n] = (int32_t)(n * 5 % 7);
        for (int64_t i = 0; i < V * C; i++) want[i] = (double)dw[i];
        for (int64_t n = 0; n < N; n++) for (int64_t c = 0; c < C; c++) want[ids[n] * C + c] += get(dt, dy, n * C + c);
        ck_assert_int_eq(ops->embed_fwd(s, dt, y, w, ids, N, C, V), OK);
        for (int64_t i = 0; i < N * C; i++) ck_assert(get(dt, y, i) == get(dt, w, ids[i / C] * C + i % C));
        ck_assert_int_eq(ops->embed_bwd(s, dt, dw, dy, ids, N, C, V), OK);
        ck_assert_double_le(rel_norm(DT_F32, dw, want, V * C), 1e-6);
        free(w); free(y); free(dy); free(ids); free(dw); free(want);
    EACH_END
}
END_TEST

START_TEST(rmsnorm)
{
    EACH(ops, s, dt, N, C)
        for (int mode = 0; mode < 3; mode++) {          /* 0: plain; 1: dx +=, no dw; 2: dx is dy */
            void *x = tensor(dt, N * C, 1, &r), *w = tensor(dt, C, 1, &r), *y = tensor(dt, N * C, 1, &r), *dy = tensor(dt, N * C, 1, &r), *dx = tensor(dt, N * C, 1, &r);
            for (int64_t n = 0; n < N; n++) put(dt, x, n * C + C / 2, 100.0);                           /* an outlier channel */
            float *rstd = xcalloc(N + 1, 4), *dw = tensor(DT_F32, C, 1, &r), *ws = xmalloc(ops->rmsnorm_bwd_ws(N, C) + 4);
            double *wy = xcalloc(N * C + 1, 8), *wdx = xcalloc(N * C + 1, 8), *wdw = xcalloc(C, 8), eps = 1e-6;
            memset(ws, 0xFF, ops->rmsnorm_bwd_ws(N, C));
            for (int64_t c = 0; c < C; c++) wdw[c] = (double)dw[c];
            for (int64_t n = 0; n < N; n++) {
                double sq = 0, dot = 0;
                for (int64_t c = 0; c < C; c++) sq += get(dt, x, n * C + c) * get(dt, x, n * C + c);
                double rs = 1 / sqrt(sq / (double)C + (double)(float)eps);
                for (int64_t c = 0; c < C; c++) dot += get(dt, dy, n * C + c) * get(dt, w, c) * get(dt, x, n * C + c);
                for (int64_t c = 0; c < C; c++) {
                    double xi = get(dt, x, n * C + c), g = get(dt, dy, n * C + c);
                    wy[n * C + c] = xi * rs * get(dt, w, c);
                    wdx[n * C + c] = (mode == 1 ? get(dt, dx, n * C + c) : 0) + rs * g * get(dt, w, c) - xi * rs * rs * rs * dot / (double)C;
                    wdw[c] += g * xi * rs;
                }
            }
            ck_assert_int_eq(ops->rmsnorm_fwd(s, dt, y, rstd, x, w, N, C, (float)eps), OK);
            ck_assert_double_le(rel_norm(dt, y, wy, N * C), tol_of(dt));
            ck_assert_int_eq(ops->rmsnorm_fwd(s, dt, y, NULL, x, w, N, C, (float)eps), OK);
            void *to = mode == 2 ? dy : dx;
            ck_assert_int_eq(ops->rmsnorm_bwd(s, dt, to, mode == 1, mode == 1 ? NULL : dw, dy, x, w, rstd, N, C, ws), OK);
            if (C > 1) ck_assert_double_le(rel_norm(dt, to, wdx, N * C), tol_of(dt));                  /* C = 1: all cancels */
            if (mode != 1) ck_assert_double_le(rel_norm(DT_F32, dw, wdw, C), 2e-6);
            free(x); free(w); free(y); free(dy); free(dx); free(rstd); free(dw); free(ws); free(wy); free(wdx); free(wdw);
        }
    EACH_END
}
END_TEST

START_TEST(bias)
{
    EACH(ops, s, dt, N, C)
        void *y = tensor(dt, N * C, 1, &r), *b = tensor(dt, C, 1, &r);
        float *db = tensor(DT_F32, C, 1, &r);
        double *wy = xcalloc(N * C + 1, 8), *wb = xcalloc(C, 8);
        for (int64_t i = 0; i < N * C; i++) wy[i] = get(dt, y, i) + get(dt, b, i % C);
        for (int64_t c = 0; c < C; c++) wb[c] = (double)db[c];
        for (int64_t i = 0; i < N * C; i++) wb[i % C] += get(dt, y, i);
        ck_assert_int_eq(ops->bias_bwd(s, dt, db, y, N, C), OK);
        ck_assert_double_le(rel_norm(DT_F32, db, wb, C), 1e-6);
        ck_assert_int_eq(ops->bias_add(s, dt, y, b, N, C), OK);
        ck_assert_double_le(rel_norm(dt, y, wy, N * C), tol_of(dt));
        free(y); free(b); free(db); free(wy); free(wb);
    EACH_END
}
END_TEST

START_TEST(columns)
{
    EACH(ops, s, dt, N, C)
        void *x = tensor(dt, N * C, 1, &r), *y = tensor(dt, N * C, 1, &r);
        float *c = tensor(DT_F32, C, 1, &r), *out = tensor(DT_F32, C, 1, &r);
        double *wy = xcalloc(N * C + 1, 8), *wo = xcalloc(C, 8);
        for (int64_t i = 0; i < C; i++) wo[i] = (double)out[i];
        for (int64_t i = 0; i < N * C; i++) wo[i % C] += (double)c[i % C] * get(dt, x, i) * get(dt, y, i);
        for (int64_t i = 0; i < N * C; i++) wy[i] = get(dt, x, i) * (double)c[i % C];
        ck_assert_int_eq(ops->col_dot(s, dt, out, x, y, c, N, C), OK);
        ck_assert_double_le(rel_norm(DT_F32, out, wo, C), 1e-6);
        ck_assert_int_eq(ops->col_scale(s, dt, y, x, c, N, C), OK);
        ck_assert_double_le(rel_norm(dt, y, wy, N * C), tol_of(dt));
        ck_assert_int_eq(ops->col_scale(s, dt, x, x, c, N, C), OK);                /* in place */
        ck_assert(memcmp(x, y, (size_t)(N * C) * dtype_size(dt)) == 0);
        free(x); free(y); free(c); free(out); free(wy); free(wo);
    EACH_END
}
END_TEST

START_TEST(swiglu)
{
    EACH(ops, s, dt, N, C)
        int64_t n = N * C;
        for (int mode = 0; mode < 3; mode++) {          /* 0: apart; 1: dgate is dy, dup is up; 2: dgate is gate, dup is dy */
            void *g = tensor(dt, n, 3, &r), *u = tensor(dt, n, 1, &r), *dy = tensor(dt, n, 1, &r), *y = tensor(dt, n, 1, &r), *dg = tensor(dt, n, 1, &r), *du = tensor(dt, n, 1, &r);
            double *wy = xcalloc(n + 1, 8), *wg = xcalloc(n + 1, 8), *wu = xcalloc(n + 1, 8);
            if (n > 2) { put(dt, g, 0, -200.0); put(dt, g, 1, 200.0); put(dt, g, 2, -88.0); }           /* ends of the exponential */
            for (int64_t i = 0; i < n; i++) {
                double x = get(dt, g, i), sig = 1 / (1 + exp(-x));
                wy[i] = x * sig * get(dt, u, i);
                wg[i] = get(dt, dy, i) * get(dt, u, i) * (sig + x * sig * (1 - sig));
                wu[i] = get(dt, dy, i) * x * sig;
            }
            ck_assert_int_eq(ops->swiglu_fwd(s, dt, y, g, u, n), OK);
            ck_assert_double_le(rel_norm(dt, y, wy, n), tol_of(dt));
            void *in_place = copy_of(g, (size_t)n * dtype_size(dt));
            ck_assert_int_eq(ops->swiglu_fwd(s, dt, in_place, in_place, u, n), OK);
            ck_assert_mem_eq(in_place, y, (size_t)n * dtype_size(dt));
            void *to_g = mode == 0 ? dg : mode == 1 ? dy : g, *to_u = mode == 0 ? du : mode == 1 ? u : dy;
            ck_assert_int_eq(ops->swiglu_bwd(s, dt, to_g, to_u, dy, g, u, n), OK);
            ck_assert_double_le(rel_norm(dt, to_g, wg, n), tol_of(dt));
            ck_assert_double_le(rel_norm(dt, to_u, wu, n), tol_of(dt));
            free(g); free(u); free(dy); free(y); free(dg); free(du); free(wy); free(wg); free(wu); free(in_place);
        }
    EACH_END
}
END_TEST

/* rope_pack and rope_unpack are each other's transpose: <pack(x), y> = <x, unpack(y)>; and pack is checked by hand. */
START_TEST(rope)
{
    const struct kernel_ops *ops = table(_i);
    if (!ops) return;
    struct stream *s = new_stream(ops);
    struct rng r = { 1 };
    static const struct { int64_t N, H, D, U, Hu; int64_t head0[4]; } cases[] = {
        { 5, 4, 64, 1, 4, { 0 } }, { 33, 4, 40, 2, 2, { 0, 2 } }, { 9, 2, 16, 4, 1, { 0, 0, 1, 1 } }, { 7, 3, 6, 1, 2, { 1 } }, { 0, 4, 8, 2, 2, { 0, 2 } }, { 3, 2, 1200, 2, 1, { 0, 1 } },
    };
    static const enum dtype types[] = { DT_F32, DT_BF16, DT_F64 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) for (int ty = 0; ty < 3; ty++) for (int plain = 0; plain < 2; plain++) {
        enum dtype dt = types[ty];
        int64_t N = cases[c].N, H = cases[c].H, D = cases[c].D, U = cases[c].U, Hu = cases[c].Hu, half = D / 2, stride = N * Hu * D + 3;
        int32_t *pos = xcalloc(N + 1, 4);
        float *freq = xcalloc(half, 4), *cs = xcalloc(N * half + 1, 4), *sn = xcalloc(N * half + 1, 4);
        for (int64_t n = 0; n < N; n++) pos[n] = (int32_t)(n * 400000 % 1000003);
        for (int64_t i = 0; i < half; i++) freq[i] = (float)pow(1e6, -2.0 * (double)i / (double)D);
        ck_assert_int_eq(ops->rope_table(s, cs, sn, pos, freq, N, D, 1.25f), OK);
        for (int64_t i = 0; i < N * half; i++)
            ck_assert_double_eq_tol((double)cs[i], 1.25 * cos((double)pos[i / half] * (double)freq[i % half]), 2e-7);
        void *x = tensor(dt, N * H * D, 1, &r), *out = tensor(dt, U * stride, 1, &r), *back = tensor(dt, N * H * D, 1, &r);
        double *want = xcalloc(U * stride + 1, 8), *wback = xcalloc(N * H * D + 1, 8);
        for (int64_t i = 0; i < U * stride; i++) want[i] = get(dt, out, i);
        for (int64_t u = 0; u < U; u++) for (int64_t n = 0; n < N; n++) for (int64_t j = 0; j < Hu; j++) for (int64_t i = 0; i < half; i++) {
            int64_t from = (n * H + cases[c].head0[u] + j) * D, to = u * stride + (n * Hu + j) * D;
            double co = plain ? 1 : (double)cs[n * half + i], si = plain ? 0 : (double)sn[n * half + i], a = get(dt, x, from + i), b = get(dt, x, from + i + half);
            want[to + i] = a * co - b * si;
            want[to + i + half] = b * co + a * si;
        }
        ck_assert_int_eq(ops->rope_pack(s, dt, out, stride, x, plain ? NULL : cs, sn, cases[c].head0, N, H, D, U, Hu), OK);
        ck_assert_double_le(rel_norm(dt, out, want, U * stride), tol_of(dt));
        for (int f32 = 0; f32 < 2; f32++) {
            enum dtype din = f32 ? DT_F32 : dt;
            void *in = tensor(din, U * stride, 1, &r);
            memset(wback, 0, (size_t)(N * H * D) * 8);
            for (int64_t u = 0; u < U; u++) for (int64_t n = 0; n < N; n++) for (int64_t j = 0; j < Hu; j++) for (int64_t i = 0; i < half; i++) {
                int64_t to = (n * H + cases[c].head0[u] + j) * D, from = u * stride + (n * Hu + j) * D;
                double co = plain ? 1 : (double)cs[n * half + i], si = plain ? 0 : (double)sn[n * half + i], a = get(din, in, from + i), b = get(din, in, from + i + half);
                wback[to + i] += a * co + b * si;
                wback[to + i + half] += b * co - a * si;
            }
            ck_assert_int_eq(ops->rope_unpack(s, dt, back, din, in, stride, plain ? NULL : cs, sn, cases[c].head0, N, H, D, U, Hu), OK);
            ck_assert_double_le(rel_norm(dt, back, wback, N * H * D), tol_of(dt));
            free(in);
        }
        if (U == 1 && Hu == H) {                        /* in place */
            void *y = copy_of(x, (size_t)(N * H * D) * dtype_size(dt));
            ck_assert_int_eq(ops->rope_pack(s, dt, y, 0, y, plain ? NULL : cs, sn, cases[c].head0, N, H, D, 1, H), OK);
            ck_assert_mem_eq(y, out, (size_t)(N * H * D) * dtype_size(dt));
            free(y);
        }
        free(pos); free(freq); free(cs); free(sn); free(x); free(out); free(back); free(want); free(wback);
    }
    ops->stream_free(s);
}
END_TEST

START_TEST(cross_entropy)
{
    EACH(ops, s, dt, N, V)
        for (int size = 0; size < 2; size++) {
            void *z = tensor(dt, N * V, size ? 100 : 1, &r), *keep = copy_of(z, (size_t)(N * V) * dtype_size(dt));
            int32_t *labels = xcalloc(N + 1, 4);
            float *weight = xcalloc(N + 1, 4), *loss = xcalloc(N + 1, 4);
            uint8_t *correct = xcalloc(N + 1, 1);
            double *wz = xcalloc(N * V + 1, 8), *wl = xcalloc(N + 1, 8);
            for (int64_t n = 0; n < N; n++) {
                labels[n] = n % 4 == 3 ? -100 : (int32_t)(n * 31 % V);
                weight[n] = (float)(0.5 + (double)(n % 3));
                int64_t best = 0;
                double sum = 0;
                for (int64_t c = 1; c < V; c++) if (get(dt, z, n * V + c) > get(dt, z, n * V + best)) best = c;
                double max = get(dt, z, n * V + best);
                for (int64_t c = 0; c < V; c++) sum += exp(get(dt, z, n * V + c) - max);
                if (labels[n] < 0) continue;
                wl[n] = (double)weight[n] * (log(sum) + max - get(dt, z, n * V + labels[n]));
                correct[n] = best == labels[n];
                for (int64_t c = 0; c < V; c++) wz[n * V + c] = 0.25 * (double)weight[n] * (exp(get(dt, z, n * V + c) - max) / sum - (c == labels[n]));
            }
            uint8_t *got = xcalloc(N + 1, 1);
            ck_assert_int_eq(ops->cross_entropy(s, dt, loss, NULL, z, labels, weight, 0.25f, false, N, V), OK);
            ck_assert_mem_eq(z, keep, (size_t)(N * V) * dtype_size(dt));
            ck_assert_double_le(rel_norm(DT_F32, loss, wl, N), 1e-6);
            ck_assert_int_eq(ops->cross_entropy(s, dt, loss, got, z, labels, weight, 0.25f, true, N, V), OK);
            ck_assert_double_le(rel_norm(DT_F32, loss, wl, N), 1e-6);
            ck_assert_mem_eq(got, correct, (size_t)N);
            ck_assert_double_le(rel_norm(dt, z, wz, N * V), dt == DT_BF16 ? 6e-3 : size ? 1e-5 : 1e-6);
            free(z); free(keep); free(labels); free(weight); free(loss); free(correct); free(wz); free(wl); free(got);
        }
    EACH_END
}
END_TEST

START_TEST(cross_entropy_edges)
{
    const struct kernel_ops *ops = table(_i);
    if (!ops) return;
    struct stream *s = new_stream(ops);
    float z[4][4] = { { 2, 5, 5, 1 }, { 2, 5, 5, 1 }, { NAN, 1, 2, 3 }, { 3, 1, 2, -INFINITY } }, loss[4], weight[4] = { 1, 1, 1, 1 };
    int32_t labels[4] = { 1, 2, 1, 0 };
    uint8_t correct[4];
    ck_assert_int_eq(ops->cross_entropy(s, DT_F32, loss, correct, z, labels, weight, 1.0f, true, 4, 4), OK);
    ck_assert_int_eq(correct[0], 1);                    /* ties: the first place is the arg max */
    ck_assert_int_eq(correct[1], 0);
    ck_assert(isnan(loss[2]));                          /* a NaN logit must show */
    ck_assert(isfinite(loss[3]) && z[3][3] == 0.0f);    /* a masked logit costs nothing */
    ops->stream_free(s);
}
END_TEST

START_TEST(exponential)
{
    double worst = 0;
    for (float x = -87.3f; x < 88.3f; x += 0.00037f) worst = fmax(worst, fabs((double)exp_f32(x) / exp((double)x) - 1.0));
    ck_assert_double_le(worst, 1.5e-7);                 /* 1 ulp is 1.2e-7 at worst */
    ck_assert(exp_f32(0.0f) == 1.0f && exp_f32(-88.5f) == 0.0f && exp_f32(-INFINITY) == 0.0f && isnan(exp_f32(NAN)) && isfinite(exp_f32(INFINITY)));
}
END_TEST

static void add_tests(TCase *tc)
{
    tcase_add_test(tc, exponential);
    tcase_add_loop_test(tc, embedding, 0, TABLES);
    tcase_add_loop_test(tc, rmsnorm, 0, TABLES);
    tcase_add_loop_test(tc, bias, 0, TABLES);
    tcase_add_loop_test(tc, columns, 0, TABLES);
    tcase_add_loop_test(tc, swiglu, 0, TABLES);
    tcase_add_loop_test(tc, rope, 0, TABLES);
    tcase_add_loop_test(tc, cross_entropy, 0, TABLES);
    tcase_add_loop_test(tc, cross_entropy_edges, 0, TABLES);
}

int main(void) { return run_suite("layers", add_tests); }
