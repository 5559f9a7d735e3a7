// choose.cc - the check that a vendor's attention must pass before it is used: one that is right passes, one that is wrong in any array, silent about
// not running, or failing does not, and the stream goes back to our own kernels. The library here is ours in disguise, with a flaw.
#include <check.h>
#include <math.h>
#include <string.h>

#include "kernels/cuda/library.h"
#include "tests/gpusim/target.h"
#include "tests/suite.h"

static const struct kernel_ops *gpu;
static struct stream *s;

enum flaw { NONE, WRONG_O, BASE_TWO, NAN_DQ, NO_DK, STALE_DV, DECLINES, FAILS, SHIFTED_ONLY };
static struct { struct attn_library base; enum flaw flaw; } fake;

static bool takes(const struct attn_library *, enum dtype, enum dtype, struct attn_shape, struct attn_spans spans, bool) { return spans.n == 1 && spans.host->nq % 128 == 0; }

static void poke(float *device, float value) { ck_assert(cudaMemcpy(device, &value, sizeof value, cudaMemcpyDefault) == cudaSuccess); }

// The library has only the host's list to go by.
static struct attn_spans on_device(struct attn_span span)
{
    static struct attn_span host, *device;
    host = span;
    ck_assert(device || cudaMalloc((void **)&device, sizeof *device) == cudaSuccess);
    ck_assert(cudaMemcpy(device, &host, sizeof host, cudaMemcpyDefault) == cudaSuccess);
    return { &host, device, 1 };
}

static int fwd(struct attn_library *l, struct stream *stream, enum dtype dto, void *o, float *lse, const void *q, const void *k, const void *v, struct attn_shape n, struct attn_spans spans)
{
    static char ws[1 << 16];
    if (fake.flaw == DECLINES) return E_UNSUPPORTED;
    if (fake.flaw == FAILS) return E_CUDA;
    struct attn_span span = spans.host[0];
    if (fake.flaw == SHIFTED_ONLY && span.diag > 0 && span.diag < n.Tk) span.diag++;
    struct attn_spans mine = on_device(span);
    stream->library = NULL;
    int rc = gpu->attn_fwd(stream, DT_BF16, dto, o, lse, q, k, v, n, mine, false, ws);
    stream->library = l;
    l->done++;
    if (fake.flaw == WRONG_O) poke((float *)o + n.Tq * n.H * n.D / 2, 100.0f);
    return rc == OK && fake.flaw == BASE_TWO ? gpu->scale(stream, DT_F32, lse, 1.442695f, n.Tq * n.H) : rc;
}

static int bwd(struct attn_library *l, struct stream *stream, float *dq, float *dk, float *dv, const void *dout, const void *q, const void *k, const void *v, const float *lse,
               const float *delta, struct attn_shape n, struct attn_spans spans)
{
    static char ws[1 << 16];
    stream->library = NULL;
    int rc = gpu->attn_bwd(stream, DT_BF16, dq, dk, dv, dout, q, k, v, lse, delta, n, on_device(spans.host[0]), ws);
    stream->library = l;
    l->done++;
    if (fake.flaw == NAN_DQ) poke(dq + 7, NAN);
    if (rc == OK && fake.flaw == NO_DK) rc = gpu->scale(stream, DT_F32, dk, 0.0f, n.Tk * n.Hkv * n.D);
    if (rc == OK && fake.flaw == STALE_DV) rc = gpu->scale(stream, DT_F32, dv, 1.05f, n.Tk * n.Hkv * n.D);
    return rc;
}

static const struct { enum flaw flaw; const char *says; } cases[] = {
    { NONE, NULL }, { WRONG_O, "another O" }, { BASE_TWO, "another LSE" }, { NAN_DQ, "another dQ" }, { NO_DK, "another dK" }, { STALE_DV, "another dV" },
    { DECLINES, "does not take case 0: not today" }, { FAILS, "" }, { SHIFTED_ONLY, "case 2" },
};

START_TEST(check)
{
    struct error err = {};
    fake.base = { "fake 1.0", 0, "not today", NULL, takes, fwd, bwd, NULL };
    fake.flaw = cases[_i].flaw;
    int rc = cuda_library_check(s, &fake.base, 64, &err);
    if (!cases[_i].says) ck_assert_msg(rc == OK, "%s", err.text);
    else {
        ck_assert_int_ne(rc, OK);
        ck_assert_msg(strstr(err.text, cases[_i].says) != NULL, "\"%s\" does not say \"%s\"", err.text, cases[_i].says);
    }
    ck_assert_ptr_null(s->library);
}
END_TEST

// A document of 128 n + 37 rows: the library's head and our tail together are what our kernel gives alone.
START_TEST(head_and_tail)
{
    enum { T = 165, H = 2, HKV = 1, D = 64, Q = T * H * D, K = T * HKV * D, ROOM = 7 };      // ROOM: rows before the document
    struct attn_shape n = { T + ROOM, T + ROOM, H, HKV, D, 0.125f, 0 };
    struct attn_span span = { ROOM, T, ROOM, T, 0 }, *device;
    static bf16 half[2 * (Q + K) + 4096];
    static float whole[2][4 * Q + 4096];
    static char ws[1 << 16];
    ck_assert(cudaMalloc((void **)&device, sizeof span) == cudaSuccess && cudaMemcpy(device, &span, sizeof span, cudaMemcpyDefault) == cudaSuccess);
    ck_assert(cudaMalloc((void **)&fake.base.tail, sizeof span) == cudaSuccess);
    struct attn_spans spans = { &span, device, 1 };
    uint32_t x = 9;
    for (bf16 &v : half) {
        x = x * 1664525u + 1013904223u;
        v = f32_to_bf16((float)(int32_t)x * 0x1p-31f);
    }
    const bf16 *q = half, *dout = q + (T + ROOM) * H * D, *k = dout + (T + ROOM) * H * D, *v = k + (T + ROOM) * HKV * D;
    fake.base = { "fake 1.0", 0, "", fake.base.tail, takes, fwd, bwd, NULL };
    fake.flaw = NONE;
    for (int i = 0; i < 2; i++) {
        float *o = whole[i], *dq = o + (T + ROOM) * H * D, *dk = dq + (T + ROOM) * H * D, *dv = dk + (T + ROOM) * HKV * D, *lse = dv + (T + ROOM) * HKV * D, *delta = lse + (T + ROOM) * H;
        s->library = i ? &fake.base : NULL;
        ck_assert_int_eq(gpu->attn_fwd(s, DT_BF16, DT_F32, o, lse, q, k, v, n, spans, false, ws), OK);
        ck_assert_int_eq(gpu->attn_delta(s, DT_BF16, DT_F32, delta, dout, o, T + ROOM, H, D), OK);
        ck_assert_int_eq(gpu->attn_bwd(s, DT_BF16, dq, dk, dv, dout, q, k, v, lse, delta, n, spans, ws), OK);
        ck_assert_int_eq(fake.base.done, 2 * i);
    }
    s->library = NULL;
    double d = 0, size = 0;
    for (size_t i = 0; i < sizeof whole[0] / 4; i++) {
        if (isinf(whole[0][i])) { ck_assert(whole[0][i] == whole[1][i]); continue; }
        d += pow((double)whole[0][i] - (double)whole[1][i], 2);
        size += pow((double)whole[0][i], 2);
    }
    ck_assert_msg(size > 100 && sqrt(d / size) < 1e-6, "off by %g of %g", sqrt(d), sqrt(size));
    cudaFree(device);
    cudaFree(fake.base.tail);
}
END_TEST

// What attn_choose says where the library is not even asked.
START_TEST(not_asked)
{
    struct attn_shape n = { 256, 256, 4, 2, 64, 0.125f, 0 }, odd = n, window = n;
    int major = 0;
    odd.D = 96;
    window.window = 100;
    ck_assert(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
    s->deterministic = true;
    gpu->attn_choose(s, ATTN_AUTO, DT_BF16, n);
    const char *name = gpu->attn_name(s, DT_BF16, n);
    if (major != 9) ck_assert_str_eq(name, "flash");
    else {
        ck_assert_msg(strstr(name, "flash: ") == name && strstr(name, "deterministic false"), "%s", name);
        gpu->attn_choose(s, ATTN_AUTO, DT_BF16, odd);
        ck_assert_msg(strstr(gpu->attn_name(s, DT_BF16, odd), "this is 96") != NULL, "%s", gpu->attn_name(s, DT_BF16, odd));
        gpu->attn_choose(s, ATTN_AUTO, DT_BF16, window);
        ck_assert_msg(strstr(gpu->attn_name(s, DT_BF16, window), "sliding window") != NULL, "%s", gpu->attn_name(s, DT_BF16, window));
    }
    gpu->attn_choose(s, ATTN_FLASH, DT_BF16, n);
    ck_assert_str_eq(gpu->attn_name(s, DT_BF16, n), "flash");
    gpu->attn_choose(s, ATTN_AUTO, DT_F32, n);
    ck_assert_msg(strncmp(gpu->attn_name(s, DT_F32, n), "plain: ", 7) == 0, "%s", gpu->attn_name(s, DT_F32, n));
    ck_assert_ptr_null(s->library);
}
END_TEST

int main()
{
    const struct kernel_ops *table = target_open(&s);
    if (table == NULL) return 77;
    static struct kernel_ops ops;
    ops = *table;
    cuda_fill_choose(&ops);
    gpu = &ops;
    Suite *suite = suite_create("choose");
    TCase *t = tcase_create("choose");
    tcase_add_loop_test(t, check, 0, (int)(sizeof cases / sizeof cases[0]));
    tcase_add_test(t, head_and_tail);
    tcase_add_test(t, not_asked);
    tcase_set_timeout(t, 120);
    suite_add_tcase(suite, t);
    return suite_run(suite, CK_NOFORK);
}
