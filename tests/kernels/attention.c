/* Attention against a plain f64 reference that does hold the whole [Tq,Tk] matrix. */
#include "tests/kernels/common.h"

struct problem {
    struct attn_shape n;
    enum dtype dt;                                      /* of q k v dout */
    void *q, *k, *v, *dout;
    const struct attn_span *spans;
    int64_t nspans;
};
struct result { double *o, *lse, *delta, *dq, *dk, *dv; };
struct outputs { enum dtype dt; void *o, *lse, *delta, *dq, *dk, *dv; };    /* of one run: f32, or f64 for DT_F64 */

static int64_t nq_(struct attn_shape n) { return n.Tq * n.H * n.D; }
static int64_t nk_(struct attn_shape n) { return n.Tk * n.Hkv * n.D; }

static struct problem problem_new(enum dtype dt, struct attn_shape n, const struct attn_span *spans, int64_t nspans, double qscale, uint64_t seed)
{
    struct rng r = { seed };
    struct problem p = { .n = n, .dt = dt, .spans = spans, .nspans = nspans };
    if (p.n.scale == 0.0f) p.n.scale = (float)(1.0 / sqrt((double)n.D));
    p.q = tensor(dt, nq_(n), qscale, &r);
    p.k = tensor(dt, nk_(n), 1.0, &r);
    p.v = tensor(dt, nk_(n), 1.0, &r);
    p.dout = tensor(dt, nq_(n), 1.0, &r);
    return p;
}
static void problem_free(struct problem *p) { free(p->q); free(p->k); free(p->v); free(p->dout); }

static bool sees(const struct problem *p, int64_t t, int64_t j)
{
    for (int64_t s = 0; s < p->nspans; s++) {
        const struct attn_span *a = p->spans + s;
        int64_t i = t - a->q0, c = j - a->k0;
        if (i < 0 || i >= a->nq || c < 0 || c >= a->nk) continue;
        if (c <= i + a->diag && (p->n.window == 0 || c > i + a->diag - p->n.window)) return true;
    }
    return false;
}

static double *in_f64(enum dtype dt, const void *x, int64_t n)
{
    double *y = xcalloc((size_t)n + 1, 8);
    for (int64_t i = 0; i < n; i++) y[i] = get(dt, x, i);
    return y;
}

/* Textbook attention, f64. round_bf16: probabilities and outputs are rounded as plain bf16 code does (its error is our yardstick). */
static struct result reference(const struct problem *p, bool round_bf16)
{
    struct attn_shape n = p->n;
    struct result r = { xcalloc(nq_(n) + 1, 8), xcalloc(n.H * n.Tq + 1, 8), xcalloc(n.H * n.Tq + 1, 8), xcalloc(nq_(n) + 1, 8), xcalloc(nk_(n) + 1, 8), xcalloc(nk_(n) + 1, 8) };
    double *S = xcalloc(n.Tk + 1, 8), *q = in_f64(p->dt, p->q, nq_(n)), *k = in_f64(p->dt, p->k, nk_(n)), *v = in_f64(p->dt, p->v, nk_(n)), *g = in_f64(p->dt, p->dout, nq_(n));
    #define ROUND(x) (round_bf16 ? (double)bf16_to_f32(f32_to_bf16((float)(x))) : (x))
    for (int64_t h = 0; h < n.H; h++) for (int64_t t = 0; t < n.Tq; t++) {
        int64_t hk = h / (n.H / n.Hkv), qi = (t * n.H + h) * n.D;
        double max = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n.Tk; j++) {
            S[j] = -INFINITY;
            if (!sees(p, t, j)) continue;
            double dot = 0;
            for (int64_t d = 0; d < n.D; d++) dot += q[qi + d] * k[(j * n.Hkv + hk) * n.D + d];
            S[j] = ROUND(dot) * (double)n.scale;
            if (S[j] > max) max = S[j];
        }
        r.lse[h * n.Tq + t] = -INFINITY;
        if (max == -INFINITY) continue;
        for (int64_t j = 0; j < n.Tk; j++) sum += S[j] == -INFINITY ? 0 : exp(S[j] - max);
        r.lse[h * n.Tq + t] = max + log(sum);
        double delta = 0;
        for (int64_t j = 0; j < n.Tk; j++) {
            if (S[j] == -INFINITY) continue;
            double P = ROUND(exp(S[j] - max) / sum);
            for (int64_t d = 0; d < n.D; d++) r.o[qi + d] += P * v[(j * n.Hkv + hk) * n.D + d];
        }
        for (int64_t d = 0; d < n.D; d++) { r.o[qi + d] = ROUND(r.o[qi + d]); delta += g[qi + d] * r.o[qi + d]; }
        r.delta[h * n.Tq + t] = delta;
        for (int64_t j = 0; j < n.Tk; j++) {
            if (S[j] == -INFINITY) continue;
            int64_t kj = (j * n.Hkv + hk) * n.D;
            double P = ROUND(exp(S[j] - max) / sum), dp = 0;
            for (int64_t d = 0; d < n.D; d++) dp += g[qi + d] * v[kj + d];
            double dS = ROUND(P * (ROUND(dp) - delta)) * (double)n.scale;
            for (int64_t d = 0; d < n.D; d++) {
                r.dv[kj + d] += P * g[qi + d];
                r.dq[qi + d] += dS * k[kj + d];
                r.dk[kj + d] += dS * q[qi + d];
            }
        }
    }
    free(S); free(q); free(k); free(v); free(g);
    return r;
}
static void result_free(struct result *r) { free(r->o); free(r->lse); free(r->delta); free(r->dq); free(r->dk); free(r->dv); }

static struct outputs outputs_new(const struct problem *p)
{
    struct attn_shape n = p->n;
    enum dtype dt = p->dt == DT_F64 ? DT_F64 : DT_F32;
    size_t z = dtype_size(dt);
    return (struct outputs){ dt, xcalloc(nq_(n) + 1, z), xcalloc(n.H * n.Tq + 1, z), xcalloc(n.H * n.Tq + 1, z), xcalloc(nq_(n) + 1, z),
                             xcalloc(nk_(n) + 1, z), xcalloc(nk_(n) + 1, z) };
}
static void outputs_free(struct outputs *x) { free(x->o); free(x->lse); free(x->delta); free(x->dq); free(x->dk); free(x->dv); }

/* Forward over each group of spans (merging), then delta and backward over each group. cuts: ends of the groups, ascending. */
static struct outputs run(const struct kernel_ops *ops, const struct problem *p, const int64_t *cuts, int ncuts)
{
    struct stream *s = new_stream(ops);
    struct outputs x = outputs_new(p);
    fill(x.dt, x.o, nq_(p->n), 777.0);                  /* must be overwritten by the first call */
    fill(x.dt, x.lse, p->n.H * p->n.Tq, 777.0);
    size_t bytes = ops->attn_ws(p->dt, p->n, p->nspans);
    void *ws;
    ck_assert_int_eq(ops->mem_alloc(&ws, bytes, NULL), OK);
    if (bytes) memset(ws, 0xFF, bytes);                 /* NaN */
    for (int64_t c = 0, at = 0; c < ncuts; at = cuts[c++]) {
        struct attn_spans sp = { p->spans + at, p->spans + at, cuts[c] - at };
        ck_assert_int_eq(ops->attn_fwd(s, p->dt, x.dt, x.o, x.lse, p->q, p->k, p->v, p->n, sp, c > 0, ws), OK);
    }
    ck_assert_int_eq(ops->attn_delta(s, p->dt, x.dt, x.delta, p->dout, x.o, p->n.Tq, p->n.H, p->n.D), OK);
    for (int64_t c = 0, at = 0; c < ncuts; at = cuts[c++]) {
        struct attn_spans sp = { p->spans + at, p->spans + at, cuts[c] - at };
        ck_assert_int_eq(ops->attn_bwd(s, p->dt, x.dq, x.dk, x.dv, p->dout, p->q, p->k, p->v, x.lse, x.delta, p->n, sp, ws), OK);
    }
    ops->mem_free(ws, bytes);
    ops->stream_free(s);
    return x;
}

static void check_lse(enum dtype dt, const void *lse, const double *want, int64_t n, double tol)
{
    for (int64_t i = 0; i < n; i++) {
        double got = get(dt, lse, i);
        if (want[i] == -INFINITY) ck_assert(got == -INFINITY);
        else ck_assert_double_le(fabs(got - want[i]), tol * fmax(1.0, fabs(want[i])));
    }
}

/* Relative to the wanted gradient, or to 4 per element where that cancels to nothing (a row that sees one key). */
static double grad_error(enum dtype dt, const void *got, const double *want, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += want[i] * want[i];
    if (sum > 1e-12 * (double)n) return rel_norm(dt, got, want, n);
    double *zero = xcalloc((size_t)n + 1, 8), e = rel_norm(dt, got, zero, n);
    free(zero);
    return n ? e / sqrt((double)n) / 4 : 0;
}

static void check_result(const struct problem *p, const struct outputs *got, const struct result *want, double tol)
{
    struct attn_shape n = p->n;
    check_lse(got->dt, got->lse, want->lse, n.H * n.Tq, tol);
    ck_assert_double_le(rel_norm(got->dt, got->o, want->o, nq_(n)), tol);
    ck_assert_double_le(rel_norm(got->dt, got->delta, want->delta, n.H * n.Tq), tol * 4);
    ck_assert_double_le(grad_error(got->dt, got->dq, want->dq, nq_(n)), tol);
    ck_assert_double_le(grad_error(got->dt, got->dk, want->dk, nk_(n)), tol);
    ck_assert_double_le(grad_error(got->dt, got->dv, want->dv, nk_(n)), tol);
}

/* Every table; the reference is computed once. */
static void check_against(const struct problem *p, const int64_t *cuts, int ncuts, double tol)
{
    struct result want = reference(p, false);
    for (int i = 0; i < TABLES; i++) {
        const struct kernel_ops *ops = table(i);
        if (!ops) continue;
        struct outputs got = run(ops, p, cuts, ncuts);
        check_result(p, &got, &want, tol);
        outputs_free(&got);
    }
    result_free(&want);
}

/* One span [0,Tq) x [0,Tk). */
static const struct { int64_t Tq, Tk, H, Hkv, D, diag, window; } shapes[] = {
    { 1, 1, 1, 1, 64, 0, 0 }, { 2, 2, 1, 1, 16, 0, 0 }, { 65, 65, 2, 2, 64, 0, 0 }, { 97, 97, 2, 1, 96, 0, 0 }, { 127, 127, 2, 1, 128, 0, 0 },
    { 113, 65, 3, 3, 40, -48, 0 }, { 65, 193, 3, 1, 64, 128, 0 }, { 76, 1, 5, 1, 64, 0, 0 }, { 33, 200, 4, 1, 24, 1000, 0 }, { 64, 64, 2, 1, 64, -64, 0 },
    { 200, 200, 3, 1, 32, 0, 17 }, { 150, 90, 2, 1, 64, 30, 64 }, { 100, 300, 2, 2, 72, 200, 1 }, { 70, 70, 2, 1, 104, -3, 5 }, { 66, 67, 7, 1, 256, 1, 0 },
    { 96, 128, 2, 1, 8, 500, 450 }, { 65, 65, 2, 1, 80, 0, 1000 }, { 2, 5, 1, 1, 64, 0, 0 }, { 2, 5, 1, 1, 64, 3, 0 }, { 200, 170, 1, 1, 7, -20, 100 },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static struct problem shape_problem(enum dtype dt, int i, struct attn_span *span)
{
    struct attn_shape n = { shapes[i].Tq, shapes[i].Tk, shapes[i].H, shapes[i].Hkv, shapes[i].D, 0.0f, shapes[i].window };
    *span = (struct attn_span){ 0, n.Tq, 0, n.Tk, shapes[i].diag };
    return problem_new(dt, n, span, 1, 1.0, 100 + (uint64_t)i);
}
static void one_span(enum dtype dt, double tol, int i)
{
    struct attn_span span;
    struct problem p = shape_problem(dt, i, &span);
    check_against(&p, (int64_t[]){ 1 }, 1, tol);
    problem_free(&p);
}
START_TEST(f64_matches) { one_span(DT_F64, 1e-13, _i); } END_TEST
START_TEST(f32_matches) { one_span(DT_F32, 1e-6, _i); } END_TEST

/* bf16 inputs: at most twice as far from the truth as plain bf16 code, which rounds S, P, dP, dS and o. Also o stored as bf16. */
START_TEST(bf16_beats_plain_code)
{
    struct attn_span span;
    struct problem p = shape_problem(DT_BF16, _i, &span);
    struct attn_shape n = p.n;
    struct attn_spans spans = { &span, &span, 1 };
    for (int64_t t = 0; t < n.Tk; t++) put(DT_BF16, p.k, t * n.Hkv * n.D + 3, 20.0);                  /* an outlier channel */
    struct result want = reference(&p, false), plain = reference(&p, true);
    for (int i = 0; i < TABLES; i++) {
        const struct kernel_ops *ops = table(i);
        if (!ops) continue;
        struct outputs got = run(ops, &p, (int64_t[]){ 1 }, 1);
        const double *w[] = { want.o, want.dq, want.dk, want.dv }, *b[] = { plain.o, plain.dq, plain.dk, plain.dv };
        const void *g[] = { got.o, got.dq, got.dk, got.dv };
        for (int q = 0; q < 4; q++) {
            int64_t len = q < 2 ? nq_(n) : nk_(n);
            ck_assert_double_le(grad_error(DT_F32, g[q], w[q], len), 2 * grad_error(DT_F64, b[q], w[q], len) + 1e-5);
        }
        struct stream *s = new_stream(ops);
        bf16 *o = xcalloc((size_t)nq_(n) + 1, 2);
        float *lse = xcalloc((size_t)(n.H * n.Tq) + 1, 4), *delta = xcalloc((size_t)(n.H * n.Tq) + 1, 4);
        void *ws = xmalloc(ops->attn_ws(DT_BF16, n, 1));
        ck_assert_int_eq(ops->attn_fwd(s, DT_BF16, DT_BF16, o, lse, p.q, p.k, p.v, n, spans, false, ws), OK);
        for (int64_t k = 0; k < nq_(n); k++) ck_assert_int_eq(o[k].bits, f32_to_bf16(((float *)got.o)[k]).bits);
        ck_assert_mem_eq(lse, got.lse, (size_t)(n.H * n.Tq) * 4);
        ck_assert_int_eq(ops->attn_delta(s, DT_BF16, DT_BF16, delta, p.dout, o, n.Tq, n.H, n.D), OK);
        ck_assert_double_le(rel_norm(DT_F32, delta, want.delta, n.H * n.Tq), 1e-2);
        ck_assert_int_eq(ops->attn_fwd(s, DT_BF16, DT_BF16, o, lse, p.q, p.k, p.v, n, spans, true, ws), E_INVALID);
        ops->stream_free(s);
        free(o); free(lse); free(delta); free(ws);
        outputs_free(&got);
    }
    result_free(&want);
    result_free(&plain);
    problem_free(&p);
}
END_TEST

/* Packed documents, gaps, several key ranges per query range, an empty span; queries and keys nobody names. */
static const struct attn_span packed[] = {
    { 0, 0, 0, 0, 0 }, { 0, 1, 0, 1, 0 }, { 3, 70, 2, 30, 40 }, { 3, 70, 33, 70, 9 }, { 80, 5, 110, 5, 0 }, { 90, 100, 120, 97, -2 }, { 190, 9, 0, 1, 3 }, { 190, 9, 110, 5, 100 },
};
enum { PACKED = sizeof packed / sizeof packed[0] };

START_TEST(packed_and_merged)                          /* _i: f32 or f64, with a window or without */
{
    enum dtype dt = _i & 1 ? DT_F64 : DT_F32;
    struct attn_shape n = { 205, 220, 4, 2, 64, 0.0f, _i & 2 ? 21 : 0 };
    struct problem p = problem_new(dt, n, packed, PACKED, 1.0, 7);
    check_against(&p, (int64_t[]){ PACKED }, 1, dt == DT_F64 ? 1e-13 : 1e-6);
    check_against(&p, (int64_t[]){ 1, 3, 4, 6, PACKED }, 5, dt == DT_F64 ? 1e-13 : 1e-6);
    problem_free(&p);
}
END_TEST

/* Logits of size 100: the merge must not overflow; one block or eight, the result is the same. */
START_TEST(large_logits_and_splits)
{
    const struct kernel_ops *ops = table(_i);
    if (!ops) return;
    enum { T = 256 };
    struct attn_shape n = { T, T, 2, 1, 64, 0.0f, 0 };
    for (int big = 0; big < 2; big++) {
        struct attn_span one = { 0, T, 0, T, 0 }, parts[36];
        int64_t np = 0;
        for (int64_t a = 0; a < 8; a++)
            for (int64_t b = 0; b <= a; b++) parts[np++] = (struct attn_span){ a * 32, 32, b * 32, 32, (a - b) * 32 };
        struct problem p = problem_new(DT_F32, n, &one, 1, big ? 100.0 : 1.0, 3), split = p;
        split.spans = parts;
        split.nspans = np;
        struct outputs x = run(ops, &p, (int64_t[]){ 1 }, 1), y = run(ops, &split, (int64_t[]){ np }, 1);
        int64_t each[36];
        for (int i = 0; i < 36; i++) each[i] = i + 1;
        struct outputs z = run(ops, &split, each, 36);
        struct result want = reference(&p, false);
        const struct outputs *runs[] = { &x, &y, &z };
        double *base[4];
        const void *first[4] = { x.o, x.dq, x.dk, x.dv };
        int64_t len[4] = { nq_(n), nq_(n), nk_(n), nk_(n) };
        for (int q = 0; q < 4; q++) { base[q] = xcalloc((size_t)len[q], 8); for (int64_t i = 0; i < len[q]; i++) base[q][i] = get(DT_F32, first[q], i); }
        for (int i = 0; i < 3; i++) {
            const void *got[4] = { runs[i]->o, runs[i]->dq, runs[i]->dk, runs[i]->dv };
            const double *ref[4] = { want.o, want.dq, want.dk, want.dv };
            for (int q = 0; q < 4; q++) {
                ck_assert_double_le(rel_norm(DT_F32, got[q], ref[q], len[q]), big ? 3e-5 : 1e-6);    /* f32 logits of 100 carry 1e-5 */
                ck_assert_double_le(rel_norm(DT_F32, got[q], base[q], len[q]), big ? 1e-5 : 1e-6);
            }
        }
        for (int q = 0; q < 4; q++) free(base[q]);
        outputs_free(&x); outputs_free(&y); outputs_free(&z);
        result_free(&want);
        problem_free(&p);
    }
}
END_TEST

/* Reported elsewhere: more queries than keys under a bottom-right mask, documents of length 0 and 1, all logits near -120. */
START_TEST(documents_that_broke_others)
{
    static const int64_t cuts[3][6] = { { 0, 76, 110, 256, -1 }, { 0, 0, 1, 1, 2, -1 }, { 0, 0, 60, 75, 75, -1 } }, kcuts[3][6] = { { 0, 1, 2, 3 }, { 0, 0, 1, 1, 2 }, { 0, 7, 50, 50, 63 } };
    for (int c = 0; c < 3; c++) {
        struct attn_span spans[8];
        int64_t m = 0;
        for (; cuts[c][m + 1] >= 0; m++) {
            int64_t nq = cuts[c][m + 1] - cuts[c][m], nk = kcuts[c][m + 1] - kcuts[c][m];
            spans[m] = (struct attn_span){ cuts[c][m], nq, kcuts[c][m], nk, nk - nq };
        }
        struct attn_shape n = { cuts[c][m], kcuts[c][m], 4, 2, 64, 0.0f, 0 };
        struct problem p = problem_new(DT_F32, n, spans, m, 1.0, 21);
        fill(DT_F32, p.dout, nq_(n), 1.0);
        check_against(&p, (int64_t[]){ m }, 1, 1e-6);
        problem_free(&p);
    }
    struct attn_shape n = { 352, 352, 1, 1, 64, 1.0f, 0 };          /* ends in a half tile */
    struct attn_span span = { 0, 352, 0, 352, 0 };
    struct problem p = problem_new(DT_F32, n, &span, 1, 1.0, 22);
    for (int64_t i = 0; i < nq_(n); i++) { put(DT_F32, p.q, i, i % 64 ? 0.1 * get(DT_F32, p.q, i) : 10.0); if (i % 64 == 0) put(DT_F32, p.k, i, -12.0); }
    check_against(&p, (int64_t[]){ 1 }, 1, 3e-5);                     /* f32 logits of 120 carry 1e-5 */
    problem_free(&p);
}
END_TEST

/* Every head width a multiple of 8, in a workspace of NaN: nothing of the padding reaches a result. */
START_TEST(every_width)
{
    for (int64_t D = 8; D <= 256; D += 8) {
        struct attn_shape n = { 13, 11, 2, 1, D, 0.0f, 0 };
        struct attn_span span = { 0, 13, 0, 11, -1 };
        struct problem p = problem_new(DT_F32, n, &span, 1, 1.0, 31);
        check_against(&p, (int64_t[]){ 1 }, 1, 2e-6);
        problem_free(&p);
    }
}
END_TEST

START_TEST(workspace_is_linear)
{
    const struct kernel_ops *ops = kernel_ops_cpu();
    struct attn_shape n = { 131072, 131072, 32, 8, 128, 0.0f, 0 };
    ck_assert_uint_le(ops->attn_ws(DT_BF16, n, 1), (size_t)3 * 131072 * 8 * 128 * 4 + 4096);
}
END_TEST

START_TEST(uniform_keys_give_log_n)
{
    const struct kernel_ops *ops = table(_i);
    if (!ops) return;
    struct attn_shape n = { 90, 90, 1, 1, 64, 0.0f, 0 };
    struct attn_span span = { 0, 90, 0, 90, 0 };
    struct problem p = problem_new(DT_F32, n, &span, 1, 1.0, 5);
    for (int64_t j = 1; j < n.Tk; j++) memcpy((float *)p.k + j * n.D, p.k, (size_t)n.D * 4);
    struct outputs x = run(ops, &p, (int64_t[]){ 1 }, 1);
    for (int64_t t = 0; t < n.Tq; t++) {
        double dot = 0;
        for (int64_t d = 0; d < n.D; d++) dot += get(DT_F32, p.q, t * n.D + d) * get(DT_F32, p.k, d);
        ck_assert_double_eq_tol(get(DT_F32, x.lse, t), log((double)(t + 1)) + dot * (double)p.n.scale, 2e-6);
    }
    outputs_free(&x);
    problem_free(&p);
}
END_TEST

/* Keys that nobody sees may hold anything at all, also NaN: outputs keep their bits and the keys' own gradients stay zero.
 * Keys that later queries see may be huge (not NaN) without reaching earlier ones. */
START_TEST(poisoned_keys_do_not_leak)
{
    const struct kernel_ops *ops = table(_i);
    if (!ops) return;
    struct attn_shape n = { 70, 150, 2, 1, 64, 0.0f, 0 };
    struct attn_span span = { 0, 70, 3, 101, 20 };      /* sees keys 3 .. 92 */
    struct problem p = problem_new(DT_F32, n, &span, 1, 1.0, 6);
    struct outputs x = run(ops, &p, (int64_t[]){ 1 }, 1);
    float poison[] = { 1e30f, NAN, INFINITY };
    for (int c = 0; c < 3; c++) {
        for (int64_t i = 0; i < nk_(n); i++) {
            int64_t j = i / (n.Hkv * n.D);
            if (j >= 3 && j < 93) continue;
            ((float *)p.k)[i] = poison[c];
            ((float *)p.v)[i] = poison[c];
        }
        struct outputs y = run(ops, &p, (int64_t[]){ 1 }, 1);
        ck_assert_mem_eq(x.o, y.o, (size_t)nq_(n) * 4);
        ck_assert_mem_eq(x.lse, y.lse, (size_t)(n.H * n.Tq) * 4);
        ck_assert_mem_eq(x.dq, y.dq, (size_t)nq_(n) * 4);
        ck_assert_mem_eq(x.dk, y.dk, (size_t)nk_(n) * 4);
        ck_assert_mem_eq(x.dv, y.dv, (size_t)nk_(n) * 4);
        outputs_free(&y);
    }
    for (int64_t d = 0; d < n.D; d++) { ((float *)p.k)[92 * n.D + d] = 1e18f; ((float *)p.v)[92 * n.D + d] = 1e18f; }    /* only the last query sees 92 */
    struct outputs y = run(ops, &p, (int64_t[]){ 1 }, 1);
    ck_assert_mem_eq(x.o, y.o, (size_t)(n.H * n.D * 69) * 4);
    ck_assert_mem_eq(x.dq, y.dq, (size_t)(n.H * n.D * 69) * 4);
    outputs_free(&y);
    outputs_free(&x);
    problem_free(&p);
}
END_TEST

/* Rows without a key: o 0, lse -inf, gradients 0; nothing at all: no spans, no queries, no keys. */
START_TEST(empty_rows_and_empty_calls)
{
    const struct kernel_ops *ops = table(_i);
    if (!ops) return;
    struct attn_span late = { 0, 100, 0, 60, -37 };     /* the first 37 queries see nothing */
    struct attn_shape n = { 100, 60, 2, 1, 64, 0.0f, 0 };
    struct problem p = problem_new(DT_F32, n, &late, 1, 1.0, 8);
    struct outputs x = run(ops, &p, (int64_t[]){ 1 }, 1);
    for (int64_t t = 0; t < n.Tq; t++) for (int64_t h = 0; h < n.H; h++) {
        bool empty = t < 37;
        ck_assert_int_eq(empty, get(DT_F32, x.lse, h * n.Tq + t) == -INFINITY);
        for (int64_t d = 0; d < n.D && empty; d++) {
            ck_assert(get(DT_F32, x.o, (t * n.H + h) * n.D + d) == 0.0);
            ck_assert(get(DT_F32, x.dq, (t * n.H + h) * n.D + d) == 0.0);
        }
    }
    outputs_free(&x);
    p.nspans = 0;
    x = run(ops, &p, (int64_t[]){ 0 }, 1);
    for (int64_t i = 0; i < nq_(n); i++) ck_assert(get(DT_F32, x.o, i) == 0.0);
    for (int64_t i = 0; i < n.H * n.Tq; i++) ck_assert(get(DT_F32, x.lse, i) == -INFINITY);
    outputs_free(&x);
    problem_free(&p);
    static const struct attn_shape none[] = { { 0, 0, 2, 1, 64, 1.0f, 0 }, { 0, 5, 2, 1, 64, 1.0f, 0 }, { 5, 0, 2, 1, 64, 1.0f, 0 } };
    for (int i = 0; i < 3; i++) {
        struct attn_span span = { 0, none[i].Tq, 0, none[i].Tk, 0 };
        struct problem e = problem_new(DT_F32, none[i], &span, 1, 1.0, 9);
        x = run(ops, &e, (int64_t[]){ 1 }, 1);
        for (int64_t k = 0; k < nq_(none[i]); k++) ck_assert(get(DT_F32, x.o, k) == 0.0);
        outputs_free(&x);
        problem_free(&e);
    }
}
END_TEST

START_TEST(threads_do_not_change_bits)
{
    const struct kernel_ops *ops = table(_i);
    if (!ops) return;
    struct attn_shape n = { 205, 220, 4, 2, 64, 0.0f, 0 };
    struct problem p = problem_new(DT_F32, n, packed, PACKED, 1.0, 7);
    kernel_cpu_threads(1);
    struct outputs x = run(ops, &p, (int64_t[]){ PACKED }, 1);
    kernel_cpu_threads(3);
    struct outputs y = run(ops, &p, (int64_t[]){ PACKED }, 1);
    ck_assert_mem_eq(x.o, y.o, (size_t)nq_(n) * 4);
    ck_assert_mem_eq(x.dq, y.dq, (size_t)nq_(n) * 4);
    ck_assert_mem_eq(x.dk, y.dk, (size_t)nk_(n) * 4);
    ck_assert_mem_eq(x.dv, y.dv, (size_t)nk_(n) * 4);
    outputs_free(&x);
    outputs_free(&y);
    problem_free(&p);
}
END_TEST

START_TEST(refusals_name_the_shape)
{
    const struct kernel_ops *ops = kernel_ops_cpu();
    struct stream *s = new_stream(ops);
    struct attn_spans none = { 0 };
    ck_assert_int_eq(ops->attn_fwd(s, DT_F32, DT_F32, NULL, NULL, NULL, NULL, NULL, (struct attn_shape){ 1, 1, 3, 2, 64, 1.0f, 0 }, none, false, NULL), E_INVALID);
    ck_assert_ptr_nonnull(strstr(ops->error(s), "3 query heads over 2"));
    ck_assert_int_eq(ops->attn_fwd(s, DT_F32, DT_F32, NULL, NULL, NULL, NULL, NULL, (struct attn_shape){ 1, 1, 2, 2, 4096, 1.0f, 0 }, none, false, NULL), E_INVALID);
    ck_assert_ptr_nonnull(strstr(ops->error(s), "4096"));
    ck_assert_int_eq(ops->attn_bwd(s, DT_F32, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, (struct attn_shape){ 1, 1, 2, 2, 64, 0.0f, 0 }, none, NULL), E_INVALID);
    ck_assert_ptr_nonnull(strstr(ops->error(s), "scale"));
    ops->stream_free(s);
}
END_TEST

static void add_tests(TCase *tc)
{
    tcase_add_loop_test(tc, f64_matches, 0, SHAPES);
    tcase_add_loop_test(tc, f32_matches, 0, SHAPES);
    tcase_add_loop_test(tc, bf16_beats_plain_code, 0, SHAPES);
    tcase_add_loop_test(tc, packed_and_merged, 0, 4);
    tcase_add_loop_test(tc, large_logits_and_splits, 0, TABLES);
    tcase_add_test(tc, documents_that_broke_others);
    tcase_add_test(tc, every_width);
    tcase_add_test(tc, workspace_is_linear);
    tcase_add_loop_test(tc, uniform_keys_give_log_n, 0, TABLES);
    tcase_add_loop_test(tc, poisoned_keys_do_not_leak, 0, TABLES);
    tcase_add_loop_test(tc, empty_rows_and_empty_calls, 0, TABLES);
    tcase_add_loop_test(tc, threads_do_not_change_bits, 0, TABLES);
    tcase_add_test(tc, refusals_name_the_shape);
}

int main(void) { return run_suite("attention", add_tests); }
