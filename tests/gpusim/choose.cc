// choose.cc - the check that a vendor's attention must pass before it is used: one that is right passes, one that is wrong in any array, silent about
// not running, or failing does not, and the stream goes back to our own kernels. The library here is ours in disguise, with a flaw.
#include <check.h>
#include <math.h>
#include <string.h>

#include "kernels/cuda/library.h"
#include "tests/gpusim/target.h"

static const struct kernel_ops *gpu;
static struct stream *s;

enum flaw { NONE, WRONG_O, BASE_TWO, NAN_DQ, NO_DK, STALE_DV, DECLINES, FAILS, SHIFTED_ONLY };
static struct { struct attn_library base; enum flaw flaw; } fake;

static bool takes(const struct attn_library *, enum dtype, enum dtype, struct attn_shape, struct attn_spans, bool) { return true; }

static void poke(float *device, float value) { ck_assert(cudaMemcpy(device, &value, sizeof value, cudaMemcpyDefault) == cudaSuccess); }

static int fwd(struct attn_library *l, struct stream *stream, enum dtype dto, void *o, float *lse, const void *q, const void *k, const void *v, struct attn_shape n, struct attn_spans spans)
{
    static char ws[1 << 16];
    if (fake.flaw == DECLINES) return E_UNSUPPORTED;
    if (fake.flaw == FAILS) return E_CUDA;
    struct attn_span span = spans.host[0];
    if (fake.flaw == SHIFTED_ONLY && span.diag > 0 && span.diag < n.Tk) span.diag++;
    struct attn_spans mine = { &span, spans.dev, 1 };
    if (fake.flaw == SHIFTED_ONLY) ck_assert(cudaMemcpy((void *)spans.dev, &span, sizeof span, cudaMemcpyDefault) == cudaSuccess);
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
    int rc = gpu->attn_bwd(stream, DT_BF16, dq, dk, dv, dout, q, k, v, lse, delta, n, spans, ws);
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
    fake.base = { "fake 1.0", 0, "not today", takes, fwd, bwd, NULL };
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
    tcase_add_test(t, not_asked);
    tcase_set_timeout(t, 120);
    suite_add_tcase(suite, t);
    SRunner *r = srunner_create(suite);
    srunner_set_fork_status(r, CK_NOFORK);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
