/* AdamW against numbers torch printed (torch.optim.AdamW, lr 1e-2, betas 0.9/0.95, eps 1e-8, weight decay 0.1, f32), and the rules of ranges. */
#include "worker/train/optimizer.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_FLAT = 192, STEPS = 5 };

static const float start[5] = { 0.5f, -1.25f, 2.0f, 0.0f, 1e-3f };
static const double torch_w[STEPS][5] = {
    { 0.4895000159740448, -1.2587499618530273, 1.9880989789962769, -0.009999999776482582, 0.010999000631272793 },
    { 0.4794306457042694, -1.266884207725525, 1.9762098789215088, -0.019989999011158943, 0.02098800241947174 },
    { 0.4695061147212982, -1.2729719877243042, 1.9643326997756958, -0.02997000887989998, 0.030967015773057938 },
    { 0.4596281349658966, -1.2747746706008911, 1.9524673223495483, -0.039940040558576584, 0.040936049073934555 },
    { 0.44975197315216064, -1.2720184326171875, 1.940613865852356, -0.049900103360414505, 0.05089511349797249 },
};

struct bench {
    struct spec spec;
    struct param v[3];
    struct params p;
    struct arena arena;
    struct optimizer *o;
    struct stream *s;
    void *memory;
    float stage[3];         /* shorter than a parameter: an update in pieces */
    float *w32;             /* what the optimizer updates */
};

static bool offloaded, far;     /* pretend that the device has memory of its own, and keep the optimizer or gradients out of it */

/* Three parameters: a decayed one, one without decay, a LoRA B; the rest of the flat vector is padding. */
static void bench_open(struct bench *b, enum dtype dt, int64_t lo, int64_t hi)
{
    static struct kernel_ops device;
    device = *kernel_ops_cpu();
    const struct kernel_ops *ops = offloaded || far ? &device : kernel_ops_cpu();
    struct error err;
    *b = (struct bench){ .spec = { .zero_offload_optimizer = offloaded, .zero_offload_gradients = far, .zero_stage = 2, .adam_beta1 = 0.9, .adam_beta2 = 0.95, .adam_epsilon = 1e-8, .weight_decay = 0.1, .lorap_lr_ratio = 16 } };
    b->v[0] = (struct param){ .name = (char *)"a", .n = 5, .at = 0, .trained = true, .decay = true, .dt = dt };
    b->v[1] = (struct param){ .name = (char *)"b", .n = 5, .at = 64, .trained = true, .decay = false, .dt = dt };
    b->v[2] = (struct param){ .name = (char *)"c", .n = 5, .at = 128, .trained = true, .decay = true, .lora = LORA_B, .dt = dt };
    b->p = (struct params){ .v = b->v, .n = 3, .dt = dt, .n_flat = N_FLAT, .n_trained = 15, .n_total = 15 };
    b->p.flat_w = calloc(N_FLAT, sizeof(float));
    b->p.flat_g = calloc(N_FLAT, sizeof(float));
    b->p.g_stage = b->stage;
    b->p.n_g_stage = far ? sizeof b->stage / sizeof *b->stage : 0;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 5; i++) {
            if (dt == DT_F32) ((float *)b->p.flat_w)[64 * k + i] = start[i];
            else ((bf16 *)b->p.flat_w)[64 * k + i] = f32_to_bf16(start[i]);
        }
    arena_init(&b->arena, PLACE_DEVICE, b->memory = aligned_alloc(4096, 64 << 20), 64 << 20);
    ck_assert_int_eq(ops->stream_new(&b->s, true, &err), OK);
    ck_assert_int_eq(optimizer_new(&b->o, &b->spec, ops, &b->p, lo, hi, &b->arena, &b->arena, &err), OK);
    memset(b->o->m, 0, (size_t)(hi - lo) * sizeof *b->o->m);
    memset(b->o->v, 0, (size_t)(hi - lo) * sizeof *b->o->v);
    ck_assert_int_eq(optimizer_start(b->o, b->s, &err), OK);
    b->w32 = b->o->master ? b->o->master - lo : b->p.flat_w;
}

static void bench_close(struct bench *b)
{
    optimizer_free(b->o);
    kernel_ops_cpu()->stream_free(b->s);
    arena_release_all(&b->arena);
    free(b->memory);
    free(b->p.flat_w);
    free(b->p.flat_g);
}

static void set_gradients(struct bench *b, int t, float scale)
{
    const float g[5] = { 0.1f * (float)(t + 1), -0.02f * (float)(t - 2), 1e-6f, 3.0f, -0.5f };
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 5; i++) b->p.flat_g[64 * k + i] = g[i] * scale;
}

START_TEST(as_torch)
{
    struct bench b;
    struct error err;
    bench_open(&b, DT_F32, 0, N_FLAT);
    for (int t = 0; t < STEPS; t++) {
        set_gradients(&b, t, 1);
        ck_assert_int_eq(optimizer_step(b.o, b.s, 1, 1e-2, &err), OK);
        for (int i = 0; i < 5; i++) ck_assert_double_eq_tol(b.w32[i], torch_w[t][i], 3e-7 * fmax(1, fabs(torch_w[t][i])));
    }
    /* no decay: the first update of a plain parameter is lr * sign(g), up to eps */
    ck_assert_double_eq_tol(b.w32[64 + 3], -5 * 1e-2, 1e-6);
    bench_close(&b);
}
END_TEST

START_TEST(decay_only_where_wanted_and_lora_plus)
{
    struct bench b;
    struct error err;
    bench_open(&b, DT_F32, 0, N_FLAT);
    set_gradients(&b, 0, 1);
    ck_assert_int_eq(optimizer_step(b.o, b.s, 1, 1e-3, &err), OK);
    ck_assert_double_eq_tol(b.w32[0], 0.5 - 1e-3 * 0.1 * 0.5 - 1e-3, 1e-7);
    ck_assert_double_eq_tol(b.w32[64], 0.5 - 1e-3, 1e-7);
    ck_assert_double_eq_tol(b.w32[128], 0.5 - 16e-3 * 0.1 * 0.5 - 16e-3, 1e-6);     /* LoRA+: B at 16 times the rate */
    for (int i = 5; i < 64; i++) ck_assert_double_eq(b.w32[i], 0);                  /* padding stays padding */
    bench_close(&b);
}
END_TEST

/* Masters and moments on the host: the same bits, in f32 and with bf16 weights, on a shard that cuts parameters. */
START_TEST(offload_is_the_same)
{
    for (int k = 0; k < 6; k++) {          /* the optimizer on the host, gradients, both; in either type */
        struct bench here, there;
        struct error err;
        enum dtype dt = k % 2 ? DT_BF16 : DT_F32;
        double sum_here, sum_there;
        bench_open(&here, dt, 2, 66);
        offloaded = k / 2 != 1;
        far = k / 2 != 0;
        bench_open(&there, dt, 2, 66);
        offloaded = far = false;
        ck_assert(there.o->offload == (k / 2 != 1) && there.o->far_gradients == (k / 2 != 0) && !here.o->offload && !here.o->far_gradients);
        for (int t = 0; t < STEPS; t++) {
            set_gradients(&here, t, 1);
            set_gradients(&there, t, 1);
            ck_assert_int_eq(optimizer_sumsq(here.o, here.s, &sum_here, &err), OK);
            ck_assert_int_eq(optimizer_sumsq(there.o, there.s, &sum_there, &err), OK);
            ck_assert(sum_here > 0 && sum_here == sum_there);
            ck_assert_int_eq(optimizer_step(here.o, here.s, 0.5f, 1e-2, &err), OK);
            ck_assert_int_eq(optimizer_step(there.o, there.s, 0.5f, 1e-2, &err), OK);
        }
        ck_assert_int_eq(memcmp(here.p.flat_w, there.p.flat_w, N_FLAT * dtype_size(dt)), 0);
        ck_assert_int_eq(memcmp(here.o->v, there.o->v, 64 * sizeof(float)), 0);
        bench_close(&here);
        bench_close(&there);
    }
}
END_TEST

START_TEST(clipping_scale_is_applied_before_the_moments)
{
    struct bench a, b;
    struct error err;
    double sum;
    bench_open(&a, DT_F32, 0, N_FLAT);
    bench_open(&b, DT_F32, 0, N_FLAT);
    for (int t = 0; t < STEPS; t++) {
        set_gradients(&a, t, 1);
        set_gradients(&b, t, 4);
        ck_assert_int_eq(optimizer_sumsq(b.o, b.s, &sum, &err), OK);
        ck_assert_int_eq(optimizer_step(a.o, a.s, 1, 1e-2, &err), OK);
        ck_assert_int_eq(optimizer_step(b.o, b.s, 0.25f, 1e-2, &err), OK);
    }
    ck_assert_int_eq(memcmp(a.w32, b.w32, N_FLAT * sizeof(float)), 0);
    double want = 0;
    for (int i = 0; i < N_FLAT; i++) want += (double)b.p.flat_g[i] * (double)b.p.flat_g[i];
    ck_assert_double_eq_tol(sum, want, 1e-9 * want);
    bench_close(&a);
    bench_close(&b);
}
END_TEST

START_TEST(bf16_keeps_f32_masters)
{
    struct bench b;
    struct error err;
    bench_open(&b, DT_BF16, 0, N_FLAT);
    for (int i = 0; i < 5; i++) b.o->master[i] = start[i];
    for (int t = 0; t < STEPS; t++) {
        set_gradients(&b, t, 1);
        ck_assert_int_eq(optimizer_step(b.o, b.s, 1, 1e-2, &err), OK);
    }
    for (int i = 0; i < 5; i++) {
        ck_assert_double_eq_tol(b.o->master[i], torch_w[STEPS - 1][i], 1e-6);
        ck_assert_int_eq(((bf16 *)b.p.flat_w)[i].bits, f32_to_bf16(b.o->master[i]).bits);
    }
    bench_close(&b);
}
END_TEST

START_TEST(a_shard_is_a_range)      /* cut through the middle of a parameter: the two halves do what the whole does */
{
    struct bench whole, lo, hi;
    struct error err;
    bench_open(&whole, DT_F32, 0, N_FLAT);
    bench_open(&lo, DT_F32, 0, 66);
    bench_open(&hi, DT_F32, 66, N_FLAT);
    for (int t = 0; t < STEPS; t++) {
        set_gradients(&whole, t, 1);
        set_gradients(&lo, t, 1);
        set_gradients(&hi, t, 1);
        ck_assert_int_eq(optimizer_step(whole.o, whole.s, 1, 1e-2, &err), OK);
        ck_assert_int_eq(optimizer_step(lo.o, lo.s, 1, 1e-2, &err), OK);
        ck_assert_int_eq(optimizer_step(hi.o, hi.s, 1, 1e-2, &err), OK);
    }
    ck_assert_int_eq(memcmp(whole.w32, lo.w32, 66 * sizeof(float)), 0);
    ck_assert_int_eq(memcmp(whole.w32 + 66, hi.w32 + 66, (N_FLAT - 66) * sizeof(float)), 0);
    bench_close(&whole);
    bench_close(&lo);
    bench_close(&hi);
}
END_TEST

int main(void)
{
    Suite *su = suite_create("optimizer");
    TCase *t = tcase_create("optimizer");
    tcase_add_test(t, as_torch);
    tcase_add_test(t, decay_only_where_wanted_and_lora_plus);
    tcase_add_test(t, offload_is_the_same);
    tcase_add_test(t, clipping_scale_is_applied_before_the_moments);
    tcase_add_test(t, bf16_keeps_f32_masters);
    tcase_add_test(t, a_shard_is_a_range);
    suite_add_tcase(su, t);
    return suite_run(su, CK_FORK_GETENV);
}
