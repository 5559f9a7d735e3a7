// far.cc - every CUDA kernel beyond 2^31 elements, in the emulator: sparse mappings of many GB, of which only what a grid's last block touches
// becomes real. A product of sizes in 32 bits lands elsewhere: in a hole (a wrong result) or outside (a fault). Flash-attention #2611 and #767,
// Liger-Kernel #803 were such. The same for the CPU: tests/kernels/far_index.c.
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <vector>

#include "kernels/cuda/library.h"
#include "tests/gpusim/target.h"
#include "tests/suite.h"

namespace gpusim { extern uint64_t only_last_blocks; }

static const struct kernel_ops *gpu;
static struct stream *s;

template <class T> struct sparse {
    T *p;
    size_t n;
    explicit sparse(int64_t elements) : n((size_t)elements)
    {
        void *at = mmap(NULL, n * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        ck_assert_msg(at != MAP_FAILED, "no address space for %zu bytes; is there a limit (ulimit -v)?", n * sizeof(T));
        p = (T *)at;
    }
    ~sparse() { munmap((void *)p, n * sizeof(T)); }
    sparse(const sparse &) = delete;
    T &operator[](int64_t i) { return p[i]; }
};

// A grid of 65536 blocks of 256 threads strides by 2^24 elements, one of 65536 rows by 65536: the last block meets the last element and row.
static const int64_t C = 4096, N = 9 * 65536, n = N * C, last = n - 1;
#define RUN(call) do { gpusim::only_last_blocks = 1; int rc_ = (call); gpusim::only_last_blocks = 0; ck_assert_msg(rc_ == OK, "%s", s->text); } while (0)
static float f(bf16 x) { return bf16_to_f32(x); }
static bf16 b(float x) { return f32_to_bf16(x); }

START_TEST(elementwise)
{
    sparse<bf16> x(n), y(n), z(n), g(n);
    sparse<float> f1(n), f2(n), f3(n), f4(n);
    std::vector<bf16> row(C, b(0.25f));
    std::vector<float> col(C, 3.0f);
    std::vector<bf16> few(C, b(7.0f));
    x[last] = b(2.0f), y[last] = b(5.0f);
    RUN(gpu->add(s, DT_BF16, z.p, x.p, y.p, n));
    ck_assert(f(z[last]) == 7.0f);
    RUN(gpu->swiglu_fwd(s, DT_BF16, z.p, x.p, y.p, n));
    ck_assert(fabsf(f(z[last]) - 8.808f) < 0.05f);
    RUN(gpu->swiglu_bwd(s, DT_BF16, z.p, g.p, x.p, x.p, y.p, n));
    ck_assert(fabsf(f(g[last]) - 3.523f) < 0.02f);
    RUN(gpu->axpy(s, DT_F32, f1.p, DT_BF16, x.p, 2.0f, n));
    ck_assert(f1[last] == 4.0f);
    RUN(gpu->scale(s, DT_F32, f1.p, 0.5f, n));
    ck_assert(f1[last] == 2.0f);
    RUN(gpu->cast(s, DT_BF16, z.p, DT_F32, f1.p, n));
    ck_assert(f(z[last]) == 2.0f);
    RUN(gpu->dropout(s, DT_BF16, z.p, x.p, 0.0f, 1, 2, n));
    ck_assert(f(z[last]) == 2.0f);
    RUN(gpu->bias_add(s, DT_BF16, x.p, row.data(), N, C));
    ck_assert(f(x[last]) == 2.25f);
    RUN(gpu->col_scale(s, DT_BF16, z.p, x.p, col.data(), N, C));
    ck_assert(f(z[last]) == 6.75f);
    f2[last] = 1.0f;        // the gradient
    RUN(gpu->adamw(s, f1.p, z.p, f3.p, f4.p, f2.p, n, 1.0f, 0.5, 0.9, 0.95, 0.0, 0.0, 1));
    ck_assert(fabsf(f1[last] - 1.5f) < 1e-5f && f(z[last]) == 1.5f && f3[last] > 0.09f);
    double before = 0;
    RUN(gpu->sumsq(s, &before, f2.p, n));
    ck_assert(before == 1.0);
    RUN(cuda_add_bf16(s, f2.p, x.p, n));
    ck_assert(f2[last] == 3.25f);

    sparse<int32_t> ids(N);
    RUN(gpu->embed_fwd(s, DT_BF16, z.p, few.data(), ids.p, N, C, 1));
    ck_assert(f(z[last]) == 7.0f);
}
END_TEST

START_TEST(rows)
{
    sparse<bf16> x(n), y(n), z(n);
    sparse<float> rstd(N), loss(N), weight(N);
    sparse<int32_t> labels(N);
    std::vector<bf16> w(C, b(1.0f));
    std::vector<float> dw(C, 0.0f);
    for (int64_t c = 0; c < C; c++) x[n - C + c] = b(c % 2 ? 2.0f : -2.0f), z[n - C + c] = b(c == C - 1 ? 1.0f : 0.0f);
    RUN(gpu->rmsnorm_fwd(s, DT_BF16, y.p, rstd.p, x.p, w.data(), N, C, 0.0f));
    ck_assert(fabsf(rstd[N - 1] - 0.5f) < 1e-6f && f(y[last]) == 1.0f);
    sparse<char> ws((int64_t)gpu->rmsnorm_bwd_ws(N, C));
    gpusim::only_last_blocks = 16;      // the last part of the sum over rows is of 16 blocks
    ck_assert_int_eq(gpu->rmsnorm_bwd(s, DT_BF16, y.p, false, dw.data(), z.p, x.p, w.data(), rstd.p, N, C, ws.p), OK);
    gpusim::only_last_blocks = 0;
    ck_assert(fabsf(dw[C - 1] - 1.0f) < 1e-6f);
    ck_assert(fabsf(f(y[last]) - 0.5f) < 4e-3f);
    RUN(gpu->bias_bwd(s, DT_BF16, dw.data(), x.p, N, C));
    ck_assert(fabsf(dw[C - 1] - 3.0f) < 1e-6f);
    std::vector<float> c(C, 1.0f);
    RUN(gpu->col_dot(s, DT_BF16, dw.data(), x.p, x.p, c.data(), N, C));
    ck_assert(fabsf(dw[C - 1] - 7.0f) < 1e-6f);

    labels[N - 1] = (int32_t)C - 1;
    weight[N - 1] = 1.0f;
    RUN(gpu->cross_entropy(s, DT_BF16, loss.p, NULL, x.p, labels.p, weight.p, 1.0f, true, N, C));
    ck_assert(fabsf(loss[N - 1] - (float)(log(C / 2 * (1 + exp(-4))))) < 1e-3f);
    ck_assert(fabsf(f(x[last]) + 1.0f) < 4e-3f);
}
END_TEST

START_TEST(rope)
{
    const int64_t H = 32, D = 128, rows = N, far = (1ll << 31) + 64;
    int64_t head0[2] = { 0, 16 };
    sparse<bf16> x(n), y(n), apart(far + rows * 16 * D);
    sparse<float> cosines(n), sines(n);
    sparse<int32_t> pos(n / 64);
    std::vector<float> freq(D / 2, 0.5f);
    pos[n / 64 - 1] = 3;
    RUN(gpu->rope_table(s, cosines.p, sines.p, pos.p, freq.data(), n / 64, D, 1.0f));
    ck_assert(fabsf(cosines[last] - cosf(1.5f)) < 1e-6f);
    cosines[rows * D / 2 - 1] = cosf(1.5f);
    sines[rows * D / 2 - 1] = sinf(1.5f);
    x[last] = b(4.0f);
    RUN(gpu->rope_pack(s, DT_BF16, y.p, rows * 16 * D, x.p, NULL, NULL, head0, rows, H, D, 2, 16));
    ck_assert(f(y[last]) == 4.0f);
    RUN(gpu->rope_pack(s, DT_BF16, apart.p, far, x.p, NULL, NULL, head0, rows, H, D, 2, 16));      // destinations further apart than they are long
    ck_assert(f(apart[far + rows * 16 * D - 1]) == 4.0f);
    x[last] = b(0.0f);
    RUN(gpu->rope_unpack(s, DT_BF16, x.p, DT_BF16, y.p, rows * 16 * D, cosines.p, sines.p, head0, rows, H, D, 2, 16));
    ck_assert(fabsf(f(x[last]) - 4.0f * cosf(1.5f)) < 0.02f);
}
END_TEST

START_TEST(embedding)
{
    const int64_t V = 600000;
    sparse<float> w(V * C), dw(V * C);
    std::vector<float> y(C);
    int32_t id = (int32_t)V - 1;
    w[V * C - 1] = 3.0f;
    ck_assert_int_eq(gpu->embed_fwd(s, DT_F32, y.data(), w.p, &id, 1, C, V), OK);
    ck_assert(y[C - 1] == 3.0f);
    ck_assert_int_eq(gpu->embed_bwd(s, DT_F32, dw.p, y.data(), &id, 1, C, V), OK);
    ck_assert(dw[V * C - 1] == 3.0f);
}
END_TEST

// 410,923 rows of 76 heads x 128 (4.0e9 elements), of which the last 40 are asked for, against the same 40 alone: the same tiles, so the same bits.
template <class T> static void attention_at(enum dtype dt)
{
    const int64_t few = 40, H = 76, D = 128, rows = 410923, at = (rows - few) * H * D, size = few * H * D;
    struct attn_shape small = { few, few, H, H, D, 0.1f, 0 }, big = { rows, rows, H, H, D, 0.1f, 0 };
    struct attn_span near_span = { 0, few, 0, few, 0 }, far_span = { rows - few, few, rows - few, few, 0 };
    struct attn_spans near_spans = { &near_span, &near_span, 1 }, far_spans = { &far_span, &far_span, 1 };
    std::vector<char> ws(gpu->attn_ws(dt, big, 1) + 64);
    sparse<T> q(rows * H * D), k(rows * H * D), v(rows * H * D), d(rows * H * D);
    sparse<float> o(rows * H * D), dq(rows * H * D), dk(rows * H * D), dv(rows * H * D), lse(H * rows), delta(H * rows);
    std::vector<float> o1(size), dq1(size), dk1(size), dv1(size), lse1(H * few, -INFINITY), delta1(H * few);
    uint32_t x = 1;
    for (T *p : { q.p, k.p, v.p, d.p })
        for (int64_t i = 0; i < size; i++) {
            x = x * 1664525u + 1013904223u;
            float value = (float)(int32_t)x * 0x1p-31f;
            if (dt == DT_F32) memcpy(&p[at + i], &value, 4);
            else {
                bf16 half = b(value);
                memcpy((void *)&p[at + i], &half, sizeof(T));
            }
        }
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < few; i++) lse[h * rows + rows - few + i] = -INFINITY;
    ck_assert_int_eq(gpu->attn_fwd(s, dt, DT_F32, o1.data(), lse1.data(), q.p + at, k.p + at, v.p + at, small, near_spans, true, ws.data()), OK);
    ck_assert_int_eq(gpu->attn_fwd(s, dt, DT_F32, o.p, lse.p, q.p, k.p, v.p, big, far_spans, true, ws.data()), OK);
    ck_assert_msg(memcmp(o1.data(), o.p + at, (size_t)size * 4) == 0, "o");
    ck_assert_int_eq(gpu->attn_delta(s, dt, DT_F32, delta1.data(), d.p + at, o1.data(), few, H, D), OK);
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < few; i++) {
            ck_assert(lse1[h * few + i] == lse[h * rows + rows - few + i]);
            delta[h * rows + rows - few + i] = delta1[h * few + i];
        }
    ck_assert_int_eq(gpu->attn_bwd(s, dt, dq1.data(), dk1.data(), dv1.data(), d.p + at, q.p + at, k.p + at, v.p + at, lse1.data(), delta1.data(), small, near_spans, ws.data()), OK);
    ck_assert_int_eq(gpu->attn_bwd(s, dt, dq.p, dk.p, dv.p, d.p, q.p, k.p, v.p, lse.p, delta.p, big, far_spans, ws.data()), OK);
    ck_assert_msg(memcmp(dq1.data(), dq.p + at, (size_t)size * 4) == 0, "dq");
    ck_assert_msg(memcmp(dk1.data(), dk.p + at, (size_t)size * 4) == 0, "dk");
    ck_assert_msg(memcmp(dv1.data(), dv.p + at, (size_t)size * 4) == 0, "dv");
}
START_TEST(attention_flash) { attention_at<bf16>(DT_BF16); }
END_TEST
START_TEST(attention_plain) { attention_at<float>(DT_F32); }
END_TEST

// What no span covers, delta, and the projection: a warp a row and head; the last block of 65536 x 8 warps meets row 33 x 524288 - 1.
START_TEST(attention_rows)
{
    const int64_t H = 8, D = 128, rows = 33 * 524288 / H, elements = rows * H * D;
    sparse<bf16> d(elements), out(elements);
    sparse<float> o(elements), lse(H * rows), delta(H * rows);
    struct attn_shape shape = { rows, rows, H, H, D, 1, 0 };
    struct attn_spans none = { NULL, NULL, 0 };
    std::vector<char> ws(gpu->attn_ws(DT_BF16, shape, 1) + 64);
    o[elements - 1] = 5.0f;
    d[elements - 1] = b(3.0f);
    RUN(gpu->attn_delta(s, DT_BF16, DT_F32, delta.p, d.p, o.p, rows, H, D));
    ck_assert(delta[H * rows - 1] == 15.0f);
    RUN(cuda_project(s, out.p, d.p, delta.p, rows, rows, H, D));
    ck_assert(f(out[elements - 1]) == 5.0f);
    RUN(gpu->attn_fwd(s, DT_BF16, DT_F32, o.p, lse.p, d.p, d.p, d.p, shape, none, false, ws.data()));
    ck_assert(o[elements - 1] == 0.0f && lse[(1 << 24) - 1] == -INFINITY);
}
END_TEST

int main()
{
    if ((gpu = target_open(&s)) == NULL) return 77;
    Suite *suite = suite_create("far");
    TCase *t = tcase_create("far");
    tcase_add_test(t, elementwise);
    tcase_add_test(t, rows);
    tcase_add_test(t, rope);
    tcase_add_test(t, embedding);
    tcase_add_test(t, attention_flash);
    tcase_add_test(t, attention_plain);
    tcase_add_test(t, attention_rows);
    tcase_set_timeout(t, 200);
    suite_add_tcase(suite, t);
    return suite_run(suite, CK_NOFORK);
}
