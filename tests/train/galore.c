/* GaLore against a numpy implementation of galore_torch's projector and AdamW in f64 (5 updates, gap 2: the basis changes twice), and the
 * singular vectors it stands on. eps is 1e-3, or with `full` Adam would blow
 * up the rounding of what a fresh basis makes zero. Signs: each basis vector's largest component is positive. */
#include "worker/train/galore.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/train/eigen.h"

enum { ROWS = 6, COLS = 4, N = ROWS * COLS };

static const struct { const char *type; double w[N]; } want[] = {
    { "std", { -0.195558335, -0.154063546, -0.104430431, -0.0526994652, -0.105566407, -0.0475781957, -7.88003046e-05, 0.0492294236, -0.00522955806, 0.0509623104, 0.0991345701, 0.145990047, 0.0999503497, 0.148843512, 0.196855481, 0.248068493, 0.208473208, 0.247340886, 0.298015256, 0.349969665, 0.307784124, 0.349639026, 0.398207895, 0.456315546 } },
    { "reverse_std", { -0.20200359, -0.156064567, -0.10594249, -0.0560970485, -0.101647189, -0.0476461207, 0.00201372478, 0.0509865694, -0.00396536229, 0.0529393501, 0.102911408, 0.151083975, 0.09871338, 0.150719802, 0.201071401, 0.249780411, 0.199169978, 0.246301772, 0.296485712, 0.346675902, 0.302391796, 0.35022906, 0.398215964, 0.450818905 } },
    { "right", { -0.195558335, -0.154063546, -0.104430431, -0.0526994652, -0.105566407, -0.0475781957, -7.88003046e-05, 0.0492294236, -0.00522955806, 0.0509623104, 0.0991345701, 0.145990047, 0.0999503497, 0.148843512, 0.196855481, 0.248068493, 0.208473208, 0.247340886, 0.298015256, 0.349969665, 0.307784124, 0.349639026, 0.398207895, 0.456315546 } },
    { "left", { -0.20200359, -0.156064567, -0.10594249, -0.0560970485, -0.101647189, -0.0476461207, 0.00201372478, 0.0509865694, -0.00396536229, 0.0529393501, 0.102911408, 0.151083975, 0.09871338, 0.150719802, 0.201071401, 0.249780411, 0.199169978, 0.246301772, 0.296485712, 0.346675902, 0.302391796, 0.35022906, 0.398215964, 0.450818905 } },
    { "full", { -0.20051649, -0.152250726, -0.10417081, -0.0512351129, -0.10272935, -0.0490543977, -0.000684189493, 0.0509133906, 0.000311938674, 0.0523743015, 0.101846177, 0.149525154, 0.0969990515, 0.149412887, 0.197601023, 0.250133177, 0.20327765, 0.247905714, 0.299305904, 0.346435708, 0.298349434, 0.347965473, 0.397488409, 0.449198049 } },
};

static void gradient(float *g, int t)
{
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) g[i * COLS + j] = (float)(sin(1.0 + 0.7 * i * (j + 1) + 0.9 * t) + 0.3 * cos(2.0 * j * i + t));
}

struct bench {
    struct spec spec;
    struct param v;
    struct params p;
    struct arena arena;
    struct stream *s;
    struct galore *g;
    void *memory;
    float w[N], grad[N];
};

static void bench_open(struct bench *b, const char *type)
{
    struct error err;
    *b = (struct bench){ .spec = { .use_galore = true, .galore_rank = 2, .galore_update_proj_gap = 2, .galore_scale = 0.25, .galore_proj_type = (char *)type } };
    b->v = (struct param){ .name = (char *)"model.layers.0.mlp.up_proj.weight", .ndim = 2, .dim = { ROWS, COLS }, .n = N, .trained = true, .decay = true };
    b->p = (struct params){ .v = &b->v, .n = 1, .dt = DT_F32, .n_flat = 64 };
    arena_init(&b->arena, PLACE_DEVICE, b->memory = aligned_alloc(4096, 1 << 20), 1 << 20);
    memset(b->memory, 0, 1 << 20);
    ck_assert_int_eq(kernel_ops_cpu()->stream_new(&b->s, true, &err), OK);
    ck_assert_int_eq(galore_new(&b->g, &b->spec, kernel_ops_cpu(), &b->p, &b->arena, &err), OK);
    ck_assert_int_eq(b->g->n, 1);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) b->w[i * COLS + j] = (float)(0.1 * (i - 2) + 0.05 * j);
}

static void bench_close(struct bench *b)
{
    galore_free(b->g);
    kernel_ops_cpu()->stream_free(b->s);
    free(b->memory);
}

static int step(struct bench *b, int64_t t)
{
    struct error err;
    struct galore_rates rates = { 1e-2, 0.9, 0.95, 1e-3, 0.1, 1, t };
    return galore_step(b->g, b->s, 0, b->w, NULL, b->grad, &rates, &err);
}

START_TEST(as_galore_torch)
{
    struct bench b;
    bench_open(&b, want[_i].type);
    for (int t = 1; t <= 5; t++) {
        gradient(b.grad, t - 1);
        ck_assert_int_eq(step(&b, t), OK);
    }
    for (int i = 0; i < N; i++) ck_assert_double_eq_tol(b.w[i], want[_i].w[i], 2e-6);
    bench_close(&b);
}
END_TEST

START_TEST(a_failed_projection_is_counted_and_survived)
{
    struct bench b;
    bench_open(&b, "std");
    float before[N];
    memcpy(before, b.w, sizeof before);
    memset(b.grad, 0, sizeof b.grad);                   /* no direction at all: the matrix stays as it is */
    ck_assert_int_eq(step(&b, 1), OK);
    ck_assert_int_eq(b.g->failures, 1);
    ck_assert_int_eq(memcmp(before, b.w, sizeof before), 0);
    gradient(b.grad, 0);
    ck_assert_int_eq(step(&b, 2), OK);                  /* the next gradient brings one, off the schedule */
    ck_assert(b.g->v[0].have);
    ck_assert_int_ne(memcmp(before, b.w, sizeof before), 0);
    memset(b.grad, 0, sizeof b.grad);
    ck_assert_int_eq(step(&b, 3), OK);                  /* due again: fails, and the old basis serves */
    ck_assert_int_eq(b.g->failures, 2);
    for (int i = 0; i < N; i++) ck_assert(isfinite(b.w[i]));
    bench_close(&b);
}
END_TEST

START_TEST(sharded_gradients_are_refused)
{
    struct error err;
    struct galore *g = NULL;
    struct arena a;
    struct spec spec = { .use_galore = true, .galore_rank = 2, .zero_stage = 2, .galore_proj_type = (char *)"std" };
    struct params p = { 0 };
    arena_init(&a, PLACE_DEVICE, NULL, 0);
    ck_assert_int_eq(galore_new(&g, &spec, kernel_ops_cpu(), &p, &a, &err), E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "zero_stage"));
    arena_release_all(&a);
}
END_TEST

/* A matrix with known singular values 3^-k along known directions, tall and wide, both sides of EIGEN_EXACT. */
static const struct { int rows, cols; } sizes[] = { { 5, 3 }, { 3, 5 }, { 40, 40 }, { 17, 150 }, { 200, 24 }, { 24, 200 }, { 1, 7 } };

START_TEST(singular_vectors_span_what_they_should)
{
    int R = sizes[_i].rows, C = sizes[_i].cols, low = R < C ? R : C, r = low < 4 ? low : 4;
    float *g = calloc((size_t)R * (size_t)C, sizeof *g), *u = calloc((size_t)low * (size_t)R, sizeof *u), *v = calloc((size_t)low * (size_t)C, sizeof *v);
    unsigned seed = 1;
    for (int i = 0; i < R * C; i++) {
        seed = seed * 1664525u + 1013904223u;
        g[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    for (int k = 0; k < 3 && k < low; k++)              /* three strong directions over the noise */
        for (int i = 0; i < R; i++)
            for (int j = 0; j < C; j++) g[i * C + j] += (float)(100.0 / (1 + 3 * k) * cos(0.3 * (k + 1) * i) * sin(0.2 * (k + 2) * j + 1));
    ck_assert_int_eq(singular_vectors(u, g, R, C, true, r, NULL), OK);
    ck_assert_int_eq(singular_vectors(v, g, R, C, false, r, NULL), OK);
    for (int a = 0; a < r; a++)
        for (int b = 0; b < r; b++) {
            double uu = 0, vv = 0, uv = 0;
            for (int i = 0; i < R; i++) uu += (double)u[a * R + i] * (double)u[b * R + i];
            for (int j = 0; j < C; j++) vv += (double)v[a * C + j] * (double)v[b * C + j];
            ck_assert_double_eq_tol(uu, a == b, 1e-5);
            ck_assert_double_eq_tol(vv, a == b, 1e-5);
            if (a >= 3 || b >= 3) continue;
            for (int i = 0; i < R; i++)
                for (int j = 0; j < C; j++) uv += (double)u[a * R + i] * (double)g[i * C + j] * (double)v[b * C + j];
            double norm = 100.0 * sqrt((double)R * (double)C);
            if (a != b) ck_assert_double_le(fabs(uv), 1e-4 * norm);         /* u_a^T G v_b is diagonal */
            else ck_assert_double_ge(fabs(uv), 1e-3 * norm);
        }
    free(g);
    free(u);
    free(v);
}
END_TEST

START_TEST(no_vectors_of_nothing)
{
    float zero[6] = { 0 }, bad[6] = { 1, NAN, 2, 3, 4, 5 }, out[6] = { 7, 7 };
    struct error err;
    ck_assert_int_eq(singular_vectors(out, zero, 2, 3, true, 1, &err), E_INVALID);
    ck_assert_int_eq(singular_vectors(out, bad, 2, 3, true, 1, &err), E_INVALID);
    ck_assert(out[0] == 7 && out[1] == 7);
}
END_TEST

int main(void)
{
    Suite *su = suite_create("galore");
    TCase *t = tcase_create("galore");
    tcase_add_loop_test(t, as_galore_torch, 0, (int)(sizeof want / sizeof want[0]));
    tcase_add_test(t, a_failed_projection_is_counted_and_survived);
    tcase_add_test(t, sharded_gradients_are_refused);
    tcase_add_loop_test(t, singular_vectors_span_what_they_should, 0, (int)(sizeof sizes / sizeof sizes[0]));
    tcase_add_test(t, no_vectors_of_nothing);
    suite_add_tcase(su, t);
    return suite_run(su, CK_FORK_GETENV);
}
