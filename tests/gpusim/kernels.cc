// kernels.cc - every CUDA kernel against the CPU table: the same inputs through both, bf16 and f32, odd sizes. Linked twice (target.h):
// with the emulator, where GPUSIM_SEED picks the adversarial order, and with the device's runtime. CK_RUN_CASE picks one case.
#include <check.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include "kernels/cuda/library.h"
#include "tests/gpusim/target.h"
#include "tests/suite.h"

static const struct kernel_ops *cpu;
static const struct kernel_ops *gpu;
static struct stream *cs, *gs;
static uint64_t state = 1;

static float uniform()
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (float)(state >> 40) / 8388608.0f - 1.0f;
}

// What both tables read: on a device, memory that both sides see.
template <class T> struct both_sides {
    typedef T value_type;
    both_sides() {}
    template <class O> both_sides(const both_sides<O> &) {}
    T *allocate(size_t n) { return (T *)target_alloc(n * sizeof(T)); }
    void deallocate(T *p, size_t) { target_free(p); }
    bool operator==(const both_sides &) const { return true; }
    bool operator!=(const both_sides &) const { return false; }
};
template <class T> using shared = std::vector<T, both_sides<T>>;

static int on_gpu(int rc)
{
    if (rc != OK) return (void)printf("%s\n", gpu->error(gs)), rc;
    return target_wait(gs);
}

// A tensor of one of the two types, and a view of it as floats.
struct tensor {
    enum dtype dt;
    shared<float> f;
    shared<bf16> h;
    tensor(enum dtype t, int64_t n, float size = 1.0f) : dt(t)
    {
        for (int64_t i = 0; i < n; i++) t == DT_F32 ? f.push_back(uniform() * size) : h.push_back(f32_to_bf16(uniform() * size));
    }
    void *p() { return dt == DT_F32 ? (void *)f.data() : (void *)h.data(); }
    size_t n() const { return dt == DT_F32 ? f.size() : h.size(); }
    float at(size_t i) const { return dt == DT_F32 ? f[i] : bf16_to_f32(h[i]); }
};

// Norm of the difference over the norm; infinities must be equal. bf16 results may differ by a rounding.
static void same(const tensor &a, const tensor &b, double tolerance, const char *what)
{
    double d = 0, n = 1e-30;
    for (size_t i = 0; i < a.n(); i++) {
        if (!isfinite(a.at(i)) || !isfinite(b.at(i))) {
            ck_assert_msg(a.at(i) == b.at(i), "%s: element %zu is %g on the CPU, %g on the GPU", what, i, (double)a.at(i), (double)b.at(i));
            continue;
        }
        d += pow((double)a.at(i) - (double)b.at(i), 2);
        n += pow((double)a.at(i), 2);
    }
    ck_assert_msg(sqrt(d / n) <= tolerance, "%s: relative difference %.3g, at most %.3g", what, sqrt(d / n), tolerance);
}

static const enum dtype types[] = { DT_F32, DT_BF16 };
#define TOLERANCE(dt) ((dt) == DT_F32 ? 2e-6 : 4e-3)
#define BOTH(op, a, b) do { ck_assert_int_eq(cpu->op a, OK); ck_assert_int_eq(on_gpu(gpu->op b), OK); } while (0)

START_TEST(elementwise)
{
    enum dtype dt = types[_i % 2];
    int64_t N = _i / 2 == 0 ? 7 : 33, C = _i / 2 == 0 ? 20 : 301, V = 13, n = N * C;
    double tol = TOLERANCE(dt);
    shared<int32_t> ids;
    for (int64_t i = 0; i < N; i++) ids.push_back((int32_t)((i * 5) % V));
    tensor w(dt, V * C), x(dt, n), g(dt, n), u(dt, n), b(dt, C), c(DT_F32, C), y1(dt, n), y2 = y1, z1(dt, n), z2 = z1;
    tensor dw1(DT_F32, V * C), dw2 = dw1, db1(DT_F32, C), db2 = db1;
    BOTH(embed_fwd, (cs, dt, y1.p(), w.p(), ids.data(), N, C, V), (gs, dt, y2.p(), w.p(), ids.data(), N, C, V));
    same(y1, y2, 0, "embed_fwd");
    BOTH(embed_bwd, (cs, dt, dw1.f.data(), x.p(), ids.data(), N, C, V), (gs, dt, dw2.f.data(), x.p(), ids.data(), N, C, V));
    same(dw1, dw2, 2e-6, "embed_bwd");
    BOTH(bias_add, (cs, dt, y1.p(), b.p(), N, C), (gs, dt, y2.p(), b.p(), N, C));
    same(y1, y2, tol, "bias_add");
    BOTH(bias_bwd, (cs, dt, db1.f.data(), x.p(), N, C), (gs, dt, db2.f.data(), x.p(), N, C));
    same(db1, db2, 2e-6, "bias_bwd");
    BOTH(add, (cs, dt, y1.p(), x.p(), g.p(), n), (gs, dt, y2.p(), x.p(), g.p(), n));
    same(y1, y2, tol, "add");
    BOTH(swiglu_fwd, (cs, dt, y1.p(), g.p(), u.p(), n), (gs, dt, y2.p(), g.p(), u.p(), n));
    same(y1, y2, tol, "swiglu_fwd");
    BOTH(swiglu_bwd, (cs, dt, y1.p(), z1.p(), x.p(), g.p(), u.p(), n), (gs, dt, y2.p(), z2.p(), x.p(), g.p(), u.p(), n));
    same(y1, y2, tol, "swiglu_bwd gate");
    same(z1, z2, tol, "swiglu_bwd up");
    BOTH(col_scale, (cs, dt, y1.p(), x.p(), c.f.data(), N, C), (gs, dt, y2.p(), x.p(), c.f.data(), N, C));
    same(y1, y2, tol, "col_scale");
    BOTH(col_dot, (cs, dt, db1.f.data(), x.p(), g.p(), c.f.data(), N, C), (gs, dt, db2.f.data(), x.p(), g.p(), c.f.data(), N, C));
    same(db1, db2, 2e-6, "col_dot");
    BOTH(axpy, (cs, dt, y1.p(), dt, x.p(), 0.3f, n), (gs, dt, y2.p(), dt, x.p(), 0.3f, n));
    same(y1, y2, tol, "axpy");
    BOTH(scale, (cs, dt, y1.p(), 0.7f, n), (gs, dt, y2.p(), 0.7f, n));
    same(y1, y2, tol, "scale");
    tensor f1(DT_F32, n), f2 = f1;
    BOTH(cast, (cs, DT_F32, f1.p(), dt, x.p(), n), (gs, DT_F32, f2.p(), dt, x.p(), n));
    same(f1, f2, 0, "cast");
    BOTH(dropout, (cs, dt, y1.p(), x.p(), 0.3f, 42, 17, n), (gs, dt, y2.p(), x.p(), 0.3f, 42, 17, n));
    same(y1, y2, tol, "dropout");
    for (size_t i = 0; i < y1.n(); i++) ck_assert_msg((y1.at(i) == 0) == (y2.at(i) == 0), "dropout: another element is dropped");
}
END_TEST

START_TEST(norms_and_loss)
{
    enum dtype dt = types[_i % 2];
    int64_t N = 37, C = _i / 2 == 0 ? 64 : 300;
    double tol = TOLERANCE(dt);
    tensor x(dt, N * C), w(dt, C), dy(dt, N * C), y1(dt, N * C), y2 = y1, dw1(DT_F32, C), dw2 = dw1, r1(DT_F32, N), r2 = r1;
    if (dt == DT_F32) x.f[5] = 300.0f;      // an outlier channel
    BOTH(rmsnorm_fwd, (cs, dt, y1.p(), r1.f.data(), x.p(), w.p(), N, C, 1e-6f), (gs, dt, y2.p(), r2.f.data(), x.p(), w.p(), N, C, 1e-6f));
    same(y1, y2, tol, "rmsnorm_fwd");
    same(r1, r2, 2e-6, "rstd");
    shared<char> ws1(cpu->rmsnorm_bwd_ws(N, C) + 1), ws2(gpu->rmsnorm_bwd_ws(N, C) + 1);
    BOTH(rmsnorm_bwd, (cs, dt, y1.p(), _i & 1, dw1.f.data(), dy.p(), x.p(), w.p(), r1.f.data(), N, C, ws1.data()),
         (gs, dt, y2.p(), _i & 1, dw2.f.data(), dy.p(), x.p(), w.p(), r1.f.data(), N, C, ws2.data()));
    same(y1, y2, tol, "rmsnorm_bwd dx");
    same(dw1, dw2, 5e-6, "rmsnorm_bwd dw");

    tensor z1(dt, N * C, 5.0f), l1(DT_F32, N), l2 = l1, weight(DT_F32, N);
    tensor z2 = z1;
    shared<int32_t> labels;
    shared<uint8_t> c1(N), c2(N);
    for (int64_t i = 0; i < N; i++) labels.push_back(i % 5 == 0 ? -100 : (int32_t)((i * 7) % C));
    BOTH(cross_entropy, (cs, dt, l1.f.data(), c1.data(), z1.p(), labels.data(), weight.f.data(), 0.1f, true, N, C),
         (gs, dt, l2.f.data(), c2.data(), z2.p(), labels.data(), weight.f.data(), 0.1f, true, N, C));
    same(l1, l2, 2e-6, "loss");
    same(z1, z2, tol, "dlogits");
    ck_assert_msg(c1 == c2, "correct");

    tensor p1(DT_F32, 1000), p2 = p1, m1(DT_F32, 1000, 0.1f), m2 = m1, v1(DT_F32, 1000, 0.0f), v2 = v1, gr(DT_F32, 1000), h1(DT_BF16, 1000), h2 = h1;
    BOTH(adamw, (cs, p1.f.data(), h1.h.data(), m1.f.data(), v1.f.data(), gr.f.data(), 1000, 0.5f, 1e-3, 0.9, 0.95, 1e-8, 0.1, 3),
         (gs, p2.f.data(), h2.h.data(), m2.f.data(), v2.f.data(), gr.f.data(), 1000, 0.5f, 1e-3, 0.9, 0.95, 1e-8, 0.1, 3));
    same(p1, p2, 1e-6, "adamw");
    same(h1, h2, 4e-3, "adamw bf16");
    double s1 = 1;
    shared<double> s2(1, 1.0);
    tensor much(DT_F32, 10001);         // more than one part
    BOTH(sumsq, (cs, &s1, gr.f.data(), 1000), (gs, s2.data(), gr.f.data(), 1000));
    BOTH(sumsq, (cs, &s1, much.f.data(), 10001), (gs, s2.data(), much.f.data(), 10001));
    ck_assert_double_le(fabs(s1 - s2[0]), 1e-9 * s1);
}
END_TEST

START_TEST(rope)
{
    enum dtype dt = types[_i % 2];
    int64_t N = 19, H = 4, D = _i / 2 == 0 ? 64 : 10, U = 4, Hu = 2;
    const int64_t head0[] = { 0, 0, 2, 2 };     // replicated heads
    double tol = TOLERANCE(dt);
    tensor x(dt, N * H * D), cos1(DT_F32, N * D / 2), cos2 = cos1, sin1 = cos1, sin2 = cos1, freq(DT_F32, D / 2), y1(dt, U * N * Hu * D), y2 = y1;
    shared<int32_t> pos;
    for (int64_t i = 0; i < N; i++) pos.push_back((int32_t)(i * 61000));
    BOTH(rope_table, (cs, cos1.f.data(), sin1.f.data(), pos.data(), freq.f.data(), N, D, 1.2f), (gs, cos2.f.data(), sin2.f.data(), pos.data(), freq.f.data(), N, D, 1.2f));
    same(cos1, cos2, 1e-6, "cos");
    same(sin1, sin2, 1e-6, "sin");
    BOTH(rope_pack, (cs, dt, y1.p(), N * Hu * D, x.p(), cos1.f.data(), sin1.f.data(), head0, N, H, D, U, Hu),
         (gs, dt, y2.p(), N * Hu * D, x.p(), cos1.f.data(), sin1.f.data(), head0, N, H, D, U, Hu));
    same(y1, y2, tol, "rope_pack");
    tensor b1(dt, N * H * D), b2 = b1, in32(DT_F32, U * N * Hu * D);
    BOTH(rope_unpack, (cs, dt, b1.p(), dt, y1.p(), N * Hu * D, cos1.f.data(), sin1.f.data(), head0, N, H, D, U, Hu),
         (gs, dt, b2.p(), dt, y1.p(), N * Hu * D, cos1.f.data(), sin1.f.data(), head0, N, H, D, U, Hu));
    same(b1, b2, tol, "rope_unpack");
    BOTH(rope_unpack, (cs, dt, b1.p(), DT_F32, in32.p(), N * Hu * D, NULL, NULL, head0, N, H, D, U, Hu),
         (gs, dt, b2.p(), DT_F32, in32.p(), N * Hu * D, NULL, NULL, head0, N, H, D, U, Hu));
    same(b1, b2, tol, "rope_unpack from f32");
}
END_TEST

// Documents, a ring block with an offset, a block that nobody sees, a single row with far more keys than rows.
static const struct attn_span documents[] = { { 0, 130, 0, 130, 0 }, { 130, 70, 130, 100, 5 }, { 130, 70, 230, 33, -40 }, { 205, 1, 0, 130, 1000 } };
static const struct { enum dtype dt; int64_t H, Hkv, D, window; bool merge; } attentions[] = {
    { DT_BF16, 2, 1, 64, 0, false }, { DT_BF16, 2, 1, 128, 0, true }, { DT_BF16, 2, 2, 96, 37, false }, { DT_BF16, 1, 1, 256, 0, false },
    { DT_BF16, 2, 1, 60, 0, false }, { DT_F32, 2, 1, 40, 37, true }, { DT_BF16, 4, 2, 64, 20, true },
};

START_TEST(attention)
{
    auto a = attentions[_i];
    int64_t Tq = 210, Tk = 270, H = a.H, Hkv = a.Hkv, D = a.D;
    shared<attn_span> list(documents, documents + 4);
    struct attn_spans spans = { list.data(), list.data(), 4 };
    struct attn_shape n = { Tq, Tk, H, Hkv, D, 1.0f / sqrtf((float)D), a.window };
    tensor q(a.dt, Tq * H * D, 1.5f), k(a.dt, Tk * Hkv * D, 1.5f), v(a.dt, Tk * Hkv * D), dout(a.dt, Tq * H * D);
    tensor o1(DT_F32, Tq * H * D), l1(DT_F32, H * Tq), o2 = o1, l2 = l1, e1(DT_F32, H * Tq), e2 = e1;
    tensor dq1(DT_F32, Tq * H * D), dk1(DT_F32, Tk * Hkv * D), dv1 = dk1, dq2 = dq1, dk2 = dk1, dv2 = dv1;
    shared<char> ws1(cpu->attn_ws(a.dt, n, 4) + 64), ws2(gpu->attn_ws(a.dt, n, 4) + 64);
    double tol = a.dt == DT_F32 ? 3e-6 : 4e-3;          // P is rounded to bf16 on the way, as in any such kernel
    uint64_t conflicts = target_bank_conflicts();
    BOTH(attn_fwd, (cs, a.dt, DT_F32, o1.p(), l1.p(), q.p(), k.p(), v.p(), n, spans, a.merge, ws1.data()),
         (gs, a.dt, DT_F32, o2.p(), l2.p(), q.p(), k.p(), v.p(), n, spans, a.merge, ws2.data()));
    same(l1, l2, 1e-6, "lse");
    same(o1, o2, tol, "o");
    BOTH(attn_delta, (cs, a.dt, DT_F32, e1.p(), dout.p(), o1.p(), Tq, H, D), (gs, a.dt, DT_F32, e2.p(), dout.p(), o1.p(), Tq, H, D));
    same(e1, e2, 2e-6, "delta");
    BOTH(attn_bwd, (cs, a.dt, dq1.p(), dk1.p(), dv1.p(), dout.p(), q.p(), k.p(), v.p(), l1.p(), e1.p(), n, spans, ws1.data()),
         (gs, a.dt, dq2.p(), dk2.p(), dv2.p(), dout.p(), q.p(), k.p(), v.p(), l1.p(), e1.p(), n, spans, ws2.data()));
    same(dv1, dv2, tol, "dv");
    same(dk1, dk2, tol, "dk");
    same(dq1, dq2, tol, "dq");
    ck_assert_msg(target_bank_conflicts() == conflicts, "shared-memory bank conflicts");
}
END_TEST

// A key that no query sees must not matter, whatever it holds; LSE of equal logits is log(n) + logit (natural base).
START_TEST(masked_keys_and_base)
{
    int64_t T = 65, D = 64;
    shared<attn_span> one(1, attn_span{ 0, T, 0, T, 0 });
    struct attn_spans spans = { one.data(), one.data(), 1 };
    struct attn_shape n = { T, T, 1, 1, D, 0.125f, 0 };
    tensor q(DT_BF16, T * D, 0.0f), k(DT_BF16, T * D), v(DT_BF16, T * D), dout(DT_BF16, T * D), o(DT_BF16, T * D), l(DT_F32, T), e(DT_F32, T);
    shared<char> ws(gpu->attn_ws(DT_BF16, n, 1) + 64);
    for (int64_t d = 0; d < D; d++) k.h[(T - 1) * D + d] = f32_to_bf16(1e30f);
    ck_assert_int_eq(on_gpu(gpu->attn_fwd(gs, DT_BF16, DT_BF16, o.p(), l.p(), q.p(), k.p(), v.p(), n, spans, false, ws.data())), OK);
    for (int64_t t = 0; t < T; t++) ck_assert_double_le(fabs((double)l.f[t] - log((double)t + 1)), 1e-5);
    tensor dq(DT_F32, T * D, 0.0f), dk = dq, dv = dq;
    ck_assert_int_eq(on_gpu(gpu->attn_delta(gs, DT_BF16, DT_BF16, e.p(), dout.p(), o.p(), T, 1, D)), OK);
    ck_assert_int_eq(on_gpu(gpu->attn_bwd(gs, DT_BF16, dq.p(), dk.p(), dv.p(), dout.p(), q.p(), k.p(), v.p(), l.p(), e.p(), n, spans, ws.data())), OK);
    for (int64_t i = 0; i < (T - 1) * D; i++) ck_assert_msg(isfinite(dq.f[i]) && fabsf(dq.f[i]) < 1e3f, "dq[%lld] = %g", (long long)i, (double)dq.f[i]);
}
END_TEST

// A long row, as it is trained: sampled queries (o, lse, dq) and sampled keys (dk, dv) against the CPU. GPU_ROWS: its length.
START_TEST(sampled_rows)
{
    int64_t T = getenv("GPU_ROWS") ? atoll(getenv("GPU_ROWS")) : 300, H = 2, Hkv = 1, D = _i ? 128 : 64, S = 8;
    shared<attn_span> one(1, attn_span{ 0, T, 0, T, 0 });
    struct attn_spans whole = { one.data(), one.data(), 1 };
    struct attn_shape n = { T, T, H, Hkv, D, 1.0f / sqrtf((float)D), 0 };
    tensor q(DT_BF16, T * H * D, 1.5f), k(DT_BF16, T * Hkv * D, 1.5f), v(DT_BF16, T * Hkv * D), dout(DT_BF16, T * H * D);
    tensor o(DT_F32, T * H * D), l(DT_F32, H * T), e = l, dq(DT_F32, T * H * D, 0.0f), dk(DT_F32, T * Hkv * D, 0.0f), dv = dk;
    shared<char> ws(gpu->attn_ws(DT_BF16, n, 1) + 64);
    ck_assert_int_eq(on_gpu(gpu->attn_fwd(gs, DT_BF16, DT_F32, o.p(), l.p(), q.p(), k.p(), v.p(), n, whole, false, ws.data())), OK);
    ck_assert_int_eq(on_gpu(gpu->attn_delta(gs, DT_BF16, DT_F32, e.p(), dout.p(), o.p(), T, H, D)), OK);
    ck_assert_int_eq(on_gpu(gpu->attn_bwd(gs, DT_BF16, dq.p(), dk.p(), dv.p(), dout.p(), q.p(), k.p(), v.p(), l.p(), e.p(), n, whole, ws.data())), OK);

    // the sampled rows alone, each a span of its own that sees what its row sees
    std::vector<attn_span> rows, keys;
    std::vector<int64_t> at;
    for (int64_t i = 0; i < S; i++) at.push_back(i == S - 1 ? T - 1 : i * (T / S) + i);
    tensor qs(DT_BF16, S * H * D), ds = qs, ks(DT_BF16, S * Hkv * D), vs = ks, os(DT_F32, S * H * D), ls(DT_F32, H * S), es = ls;
    tensor o2 = os, l2 = ls, dqs(DT_F32, S * H * D, 0.0f), dq2 = dqs, dks(DT_F32, S * Hkv * D, 0.0f), dvs = dks, dk2 = dks, dv2 = dks;
    for (int64_t i = 0; i < S; i++) {
        rows.push_back({ i, 1, 0, T, at[i] });
        keys.push_back({ 0, T, i, 1, -at[i] });
        for (int64_t c = 0; c < H * D; c++) {
            qs.h[i * H * D + c] = q.h[at[i] * H * D + c], ds.h[i * H * D + c] = dout.h[at[i] * H * D + c];
            o2.f[i * H * D + c] = o.f[at[i] * H * D + c], dq2.f[i * H * D + c] = dq.f[at[i] * H * D + c];
        }
        for (int64_t c = 0; c < Hkv * D; c++) {
            ks.h[i * Hkv * D + c] = k.h[at[i] * Hkv * D + c], vs.h[i * Hkv * D + c] = v.h[at[i] * Hkv * D + c];
            dk2.f[i * Hkv * D + c] = dk.f[at[i] * Hkv * D + c], dv2.f[i * Hkv * D + c] = dv.f[at[i] * Hkv * D + c];
        }
        for (int64_t h = 0; h < H; h++) l2.f[h * S + i] = l.f[h * T + at[i]], es.f[h * S + i] = e.f[h * T + at[i]];
    }
    struct attn_shape few_rows = { S, T, H, Hkv, D, n.scale, 0 }, few_keys = { T, S, H, Hkv, D, n.scale, 0 };
    struct attn_spans row_spans = { rows.data(), rows.data(), S }, key_spans = { keys.data(), keys.data(), S };
    size_t ws1 = cpu->attn_ws(DT_BF16, few_rows, S), ws2 = cpu->attn_ws(DT_BF16, few_keys, S);
    std::vector<char> cws((ws1 > ws2 ? ws1 : ws2) + 64);
    ck_assert_int_eq(cpu->attn_fwd(cs, DT_BF16, DT_F32, os.p(), ls.p(), qs.p(), k.p(), v.p(), few_rows, row_spans, false, cws.data()), OK);
    same(ls, l2, 1e-6, "lse of sampled rows");
    same(os, o2, 4e-3, "o of sampled rows");
    tensor none_k(DT_F32, T * Hkv * D, 0.0f), none_v = none_k, none_q(DT_F32, T * H * D, 0.0f);
    ck_assert_int_eq(cpu->attn_bwd(cs, DT_BF16, dqs.p(), none_k.p(), none_v.p(), ds.p(), qs.p(), k.p(), v.p(), ls.p(), es.p(), few_rows, row_spans, cws.data()), OK);
    same(dqs, dq2, 6e-3, "dq of sampled rows");
    ck_assert_int_eq(cpu->attn_bwd(cs, DT_BF16, none_q.p(), dks.p(), dvs.p(), dout.p(), q.p(), ks.p(), vs.p(), l.p(), e.p(), few_keys, key_spans, cws.data()), OK);
    same(dks, dk2, 6e-3, "dk of sampled keys");
    same(dvs, dv2, 6e-3, "dv of sampled keys");
}
END_TEST

// Every order of operands, f32 and bf16 in, f32 and bf16 out, adding and not.
START_TEST(products)
{
    enum dtype dt = types[_i % 2], out = _i / 2 % 2 ? dt : DT_F32;
    bool ta = _i & 4, tb = _i & 8;
    int64_t M = 72, N = 136, K = 200;
    float beta = _i % 3 ? 1.0f : 0.0f;
    tensor a(dt, M * K), b(dt, K * N), c1(out, M * N), c2 = c1;
    std::vector<char> ws1(cpu->matmul_ws(out, dt, M, N, K, ta, tb) + 64);
    shared<char> ws2(gpu->matmul_ws(out, dt, M, N, K, ta, tb) + 64);
    BOTH(matmul, (cs, out, c1.p(), N, dt, a.p(), ta ? M : K, ta, dt, b.p(), tb ? K : N, tb, M, N, K, 0.5f, beta, ws1.data(), ws1.size()),
         (gs, out, c2.p(), N, dt, a.p(), ta ? M : K, ta, dt, b.p(), tb ? K : N, tb, M, N, K, 0.5f, beta, ws2.data(), ws2.size()));
    same(c1, c2, out == DT_F32 ? 5e-6 : 4e-3, "matmul");
}
END_TEST

START_TEST(kernel_choice)
{
    struct attn_shape wide = { 64, 64, 1, 1, 64, 1, 0 }, odd = { 64, 64, 1, 1, 60, 1, 0 };
    ck_assert_str_eq(gpu->attn_name(gs, DT_BF16, wide), "flash");
    ck_assert_msg(strncmp(gpu->attn_name(gs, DT_BF16, odd), "plain: flash takes", 18) == 0, "%s", gpu->attn_name(gs, DT_BF16, odd));
    gpu->attn_choose(gs, ATTN_EAGER, DT_BF16, wide);
    ck_assert_str_eq(gpu->attn_name(gs, DT_BF16, wide), "plain");
    gpu->attn_choose(gs, ATTN_FLASH, DT_BF16, wide);
}
END_TEST

// Public bugs of other kernels, each as the shape that showed it, against the CPU table. cu: borders of documents in rows of q, and of k.
static const struct regression {
    const char *what;
    int64_t H, Hkv, D, window;
    float shift;                // the logits lie around it
    int docs;
    int64_t cu_q[6], cu_k[6];
    bool bottom_right;          // the last query sees the last key; else the first sees the first
} regressions[] = {
    { "flash-attention #443: more queries than keys", 1, 1, 64, 0, 0, 3, { 0, 76, 110, 256 }, { 0, 1, 2, 3 }, true },
    { "flash-attention #2562: no queries, width 256", 1, 1, 256, 0, 0, 4, { 0, 0, 60, 104, 104 }, { 0, 7, 67, 67, 80 }, false },
    { "flash-attention #1537: lengths 0 and 1, GQA", 4, 2, 64, 0, 0, 4, { 0, 0, 1, 1, 2 }, { 0, 0, 1, 1, 2 }, false },
    { "flash-attention #282: 2 queries, 5 keys, last to last", 1, 1, 64, 0, 0, 1, { 0, 2 }, { 0, 5 }, true },
    { "flash-attention #282: 2 queries, 5 keys, first to first", 1, 1, 64, 0, 0, 1, { 0, 2 }, { 0, 5 }, false },
    { "pytorch #196678: logits near -120, length mod 128 = 64", 1, 1, 64, 0, -120, 1, { 0, 192 }, { 0, 192 }, false },
    { "cudnn-frontend #160: 2 rows", 1, 1, 128, 0, 0, 1, { 0, 2 }, { 0, 2 }, false },
    { "cudnn-frontend #160: 65 rows", 1, 1, 128, 0, 0, 1, { 0, 65 }, { 0, 65 }, false },
    { "cudnn-frontend #160: 97 rows", 1, 1, 64, 0, 0, 1, { 0, 97 }, { 0, 97 }, false },
    { "pytorch #193893: GQA 7:1", 7, 1, 64, 0, 0, 1, { 0, 70 }, { 0, 70 }, false },
    { "pytorch #193893: GQA 5:1", 10, 2, 64, 0, 0, 1, { 0, 40 }, { 0, 40 }, false },
    { "pytorch #193893: GQA 4:1", 8, 2, 64, 0, 0, 1, { 0, 40 }, { 0, 40 }, false },
    { "flash-attention #2896: width 72", 1, 1, 72, 0, 0, 1, { 0, 70 }, { 0, 70 }, false },
    { "flash-attention #2896: width 104", 1, 1, 104, 0, 0, 1, { 0, 70 }, { 0, 70 }, false },
    { "width 8", 1, 1, 8, 0, 0, 1, { 0, 70 }, { 0, 70 }, false }, { "width 16", 1, 1, 16, 0, 0, 1, { 0, 40 }, { 0, 40 }, false },
    { "width 88", 1, 1, 88, 0, 0, 1, { 0, 40 }, { 0, 40 }, false }, { "width 136", 1, 1, 136, 0, 0, 1, { 0, 40 }, { 0, 40 }, false },
    { "width 200", 1, 1, 200, 0, 0, 1, { 0, 40 }, { 0, 40 }, false }, { "width 248", 1, 1, 248, 0, 0, 1, { 0, 40 }, { 0, 40 }, false },
    { "flash-attention #1347: width 70, no multiple of 8", 1, 1, 70, 0, 0, 1, { 0, 40 }, { 0, 40 }, false },
    { "a window of one", 2, 1, 64, 1, 0, 1, { 0, 70 }, { 0, 70 }, false },
};
enum { REGRESSIONS = sizeof regressions / sizeof regressions[0] };

START_TEST(public_bugs)
{
    const regression &r = regressions[_i];
    int64_t Tq = r.cu_q[r.docs], Tk = r.cu_k[r.docs], H = r.H, Hkv = r.Hkv, D = r.D;
    shared<attn_span> list;
    for (int d = 0; d < r.docs; d++) {
        int64_t nq = r.cu_q[d + 1] - r.cu_q[d], nk = r.cu_k[d + 1] - r.cu_k[d];
        list.push_back({ r.cu_q[d], nq, r.cu_k[d], nk, r.bottom_right ? nk - nq : 0 });
    }
    struct attn_spans spans = { list.data(), list.data(), r.docs };
    struct attn_shape n = { Tq, Tk, H, Hkv, D, 1.0f / sqrtf((float)D), r.window };
    tensor q(DT_BF16, Tq * H * D), k(DT_BF16, Tk * Hkv * D), v(DT_BF16, Tk * Hkv * D), dout(DT_BF16, Tq * H * D);
    if (r.shift != 0) {
        for (int64_t i = 0; i < Tq * H; i++) q.h[i * D] = f32_to_bf16(8.0f);
        for (int64_t i = 0; i < Tk * Hkv; i++) k.h[i * D] = f32_to_bf16(r.shift * sqrtf((float)D) / 8.0f);
    }
    tensor o1(DT_F32, Tq * H * D), l1(DT_F32, H * Tq), o2 = o1, l2 = l1, e1 = l1;
    tensor dq1(DT_F32, Tq * H * D, 0.0f), dk1(DT_F32, Tk * Hkv * D, 0.0f), dv1 = dk1, dq2 = dq1, dk2 = dk1, dv2 = dv1;
    shared<char> ws1(cpu->attn_ws(DT_BF16, n, r.docs) + 64), ws2(gpu->attn_ws(DT_BF16, n, r.docs) + 64);
    BOTH(attn_fwd, (cs, DT_BF16, DT_F32, o1.p(), l1.p(), q.p(), k.p(), v.p(), n, spans, false, ws1.data()),
         (gs, DT_BF16, DT_F32, o2.p(), l2.p(), q.p(), k.p(), v.p(), n, spans, false, ws2.data()));
    same(l1, l2, 1e-6, r.what);
    same(o1, o2, 4e-3, r.what);
    ck_assert_int_eq(cpu->attn_delta(cs, DT_BF16, DT_F32, e1.p(), dout.p(), o1.p(), Tq, H, D), OK);
    BOTH(attn_bwd, (cs, DT_BF16, dq1.p(), dk1.p(), dv1.p(), dout.p(), q.p(), k.p(), v.p(), l1.p(), e1.p(), n, spans, ws1.data()),
         (gs, DT_BF16, dq2.p(), dk2.p(), dv2.p(), dout.p(), q.p(), k.p(), v.p(), l1.p(), e1.p(), n, spans, ws2.data()));
    for (int64_t i = 0; r.shift != 0 && i < Tq * H; i++) {      // sum of dS, which is 0, times -120: rounding alone
        ck_assert_msg(fabsf(dq2.f[i * D]) < 1.0f, "%s: dq %g", r.what, (double)dq2.f[i * D]);
        dq1.f[i * D] = dq2.f[i * D] = 0.0f;
    }
    same(dv1, dv2, 6e-3, r.what);
    same(dk1, dk2, 6e-3, r.what);
    same(dq1, dq2, 6e-3, r.what);
    for (const tensor *t : { &o2, &dq2, &dk2, &dv2 })
        for (size_t i = 0; i < t->n(); i++) ck_assert_msg(isfinite(t->at(i)), "%s: not finite", r.what);
}
END_TEST

// ring-flash-attention #42: the error must not grow with the number of blocks that are merged.
START_TEST(merging_loses_nothing)
{
    int64_t T = 128, D = 64;
    struct attn_shape n = { T, T, 1, 1, D, 0.125f, 0 };
    tensor q(DT_BF16, T * D, 2.0f), k(DT_BF16, T * D, 2.0f), v(DT_BF16, T * D), ref(DT_F32, T * D), rl(DT_F32, T);
    shared<attn_span> one(1, attn_span{ 0, T, 0, T, 0 });
    struct attn_spans whole = { one.data(), one.data(), 1 };
    shared<char> ws1(cpu->attn_ws(DT_BF16, n, 1) + 64), ws2(gpu->attn_ws(DT_BF16, n, 1) + 64);
    ck_assert_int_eq(cpu->attn_fwd(cs, DT_BF16, DT_F32, ref.p(), rl.p(), q.p(), k.p(), v.p(), n, whole, false, ws1.data()), OK);
    for (int64_t ring = 1; ring <= 8; ring *= 2) {
        tensor o(DT_F32, T * D, 0.0f), l(DT_F32, T, 0.0f);
        for (int64_t r = 0; r < ring; r++) {            // the blocks, the own one first, then backwards round the ring
            int64_t rows = T / ring;
            struct attn_shape part = { T, rows, 1, 1, D, 0.125f, 0 };
            int64_t k0 = (ring - r) % ring * rows;
            shared<attn_span> block(1, attn_span{ 0, T, 0, rows, -k0 });
            struct attn_spans spans = { block.data(), block.data(), 1 };
            ck_assert_int_eq(on_gpu(gpu->attn_fwd(gs, DT_BF16, DT_F32, o.p(), l.p(), q.p(), k.h.data() + k0 * D, v.h.data() + k0 * D, part, spans, r > 0, ws2.data())), OK);
        }
        same(rl, l, 1e-6, "lse of the ring");
        same(ref, o, 4e-3, "o of the ring");
    }
}
END_TEST

// What cuDNN's backward gets in O's place: its product with dO is delta, at any size of dO.
START_TEST(projection)
{
    int64_t T = 9, H = 3, D = 64, stride = 12;
    tensor dout(DT_BF16, T * H * D), out(DT_BF16, T * H * D), delta(DT_F32, H * stride), sum(DT_F32, 1000), x(DT_BF16, 1000);
    for (int64_t r = 0; r < T * H; r++)
        for (int64_t d = 0; d < D; d++) {
            float size = r == 4 ? 0.0f : r == 5 ? 1e-25f : r == 6 ? 1e25f : 1.0f;
            dout.h[r * D + d] = f32_to_bf16(bf16_to_f32(dout.h[r * D + d]) * size);
            if (r == 5 || r == 6) delta.f[r % H * stride + r / H] = size * 0.3f;
        }
    ck_assert_int_eq(on_gpu(cuda_project(gs, out.p(), dout.p(), delta.f.data(), stride, T, H, D)), OK);
    for (int64_t r = 0; r < T * H; r++) {
        double got = 0, terms = 0, want = r == 4 ? 0 : (double)delta.f[r % H * stride + r / H];
        for (int64_t d = 0; d < D; d++) {
            double term = (double)dout.at(r * D + d) * (double)out.at(r * D + d);
            got += term;
            terms += fabs(term);
        }
        ck_assert_msg(fabs(got - want) <= terms / 256, "row %lld: %g, expected %g", (long long)r, got, want);
    }
    tensor before = sum;
    ck_assert_int_eq(on_gpu(cuda_add_bf16(gs, sum.f.data(), x.p(), 1000)), OK);
    for (int i = 0; i < 1000; i++) ck_assert(sum.f[i] == before.f[i] + x.at(i));
}
END_TEST

// A library that says yes to one shape and then cannot after all: our kernel runs, and what it made is right.
static struct { struct attn_library base; int fwd, bwd, rc; } fake;
static bool fake_takes(const struct attn_library *, enum dtype, enum dtype, struct attn_shape n, struct attn_spans spans, bool merge) { return n.D == 64 && spans.n == 1 && !merge; }
static int fake_fwd(struct attn_library *, struct stream *, enum dtype, void *, float *, const void *, const void *, const void *, struct attn_shape, struct attn_spans)
{
    fake.fwd++;
    return fake.rc;
}
static int fake_bwd(struct attn_library *, struct stream *, float *, float *, float *, const void *, const void *, const void *, const void *, const float *, const float *,
                    struct attn_shape, struct attn_spans)
{
    fake.bwd++;
    return fake.rc;
}

START_TEST(library)
{
    int64_t T = 33, D = 64;
    shared<attn_span> one(1, attn_span{ 0, T, 0, T, 0 });
    struct attn_spans spans = { one.data(), one.data(), 1 };
    struct attn_shape n = { T, T, 1, 1, D, 0.125f, 0 };
    tensor q(DT_BF16, T * D), k = q, v = q, o1(DT_F32, T * D), o2(DT_F32, T * D), l1(DT_F32, T), l2(DT_F32, T), g(DT_F32, T * D);
    shared<char> ws(gpu->attn_ws(DT_BF16, n, 1) + 64);
    ck_assert_int_eq(on_gpu(gpu->attn_fwd(gs, DT_BF16, DT_F32, o1.p(), l1.p(), q.p(), k.p(), v.p(), n, spans, false, ws.data())), OK);
    fake.base.takes = fake_takes, fake.base.fwd = fake_fwd, fake.base.bwd = fake_bwd;
    gs->library = &fake.base;
    for (int rc : { (int)OK, (int)E_CUDA, (int)E_UNSUPPORTED }) {
        fake.rc = rc;
        int want = rc == E_UNSUPPORTED ? (int)OK : rc;
        ck_assert_int_eq(gpu->attn_fwd(gs, DT_BF16, DT_F32, o2.p(), l2.p(), q.p(), k.p(), v.p(), n, spans, false, ws.data()), want);
        ck_assert_int_eq(gpu->attn_bwd(gs, DT_BF16, g.p(), g.p(), g.p(), q.p(), q.p(), k.p(), v.p(), l1.p(), l1.p(), n, spans, ws.data()), want);
    }
    ck_assert_int_eq(target_wait(gs), OK);
    ck_assert_int_eq(fake.fwd, 3);
    ck_assert_int_eq(fake.bwd, 3);
    same(o1, o2, 0, "o when the library declines");
    ck_assert_int_eq(gpu->attn_fwd(gs, DT_BF16, DT_F32, o2.p(), l2.p(), q.p(), k.p(), v.p(), n, spans, true, ws.data()), OK);
    ck_assert_int_eq(fake.fwd, 3);
    gs->library = NULL;
}
END_TEST

int main()
{
    cpu = kernel_ops_cpu();
    if (cpu->stream_new(&cs, true, NULL) != OK) return 1;
    if ((gpu = target_open(&gs)) == NULL) return 77;
    Suite *s = suite_create("gpusim");
    TCase *t[] = { tcase_create("local"), tcase_create("attention") };
    tcase_add_loop_test(t[0], elementwise, 0, 4);
    tcase_add_loop_test(t[0], norms_and_loss, 0, 4);
    tcase_add_loop_test(t[0], rope, 0, 4);
    tcase_add_loop_test(t[1], attention, 0, (int)(sizeof attentions / sizeof attentions[0]));
    tcase_add_test(t[1], masked_keys_and_base);
    tcase_add_loop_test(t[1], sampled_rows, 0, 2);
    tcase_add_test(t[1], kernel_choice);
    tcase_add_loop_test(t[1], public_bugs, 0, REGRESSIONS);
    tcase_add_test(t[1], merging_loses_nothing);
    tcase_add_test(t[1], projection);
    tcase_add_test(t[1], library);
    tcase_add_loop_test(t[0], products, 0, 16);
    for (TCase *c : t) {
        tcase_set_timeout(c, 240);
        suite_add_tcase(s, c);
    }
    return suite_run(s, CK_NOFORK);
}
