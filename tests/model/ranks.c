/* The same row on several ranks: loss and summed gradients are Hugging Face's for every split, policy and tuner. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/comm/ranks.h"
#include "tests/model/rig.h"
#include "tests/suite.h"

static const struct { int U, R; } splits[] = { { 2, 1 }, { 1, 2 }, { 4, 1 }, { 1, 4 }, { 2, 2 } };
static const struct { const char *name, *base, *more; } cases[] = {
    { "qwen2-tied", NULL, "" }, { "qwen2-untied", NULL, "" }, { "qwen2-window", NULL, "" }, { "qwen3", NULL, "" },
    { "lora", "qwen2-tied", "\"lora_rank\":4,\"lora_alpha\":8,\"target_modules\":[\"all-linear\"]" },
};
enum { N_SPLITS = sizeof splits / sizeof splits[0], N_CASES = sizeof cases / sizeof cases[0] };

struct job { int split, i; };

static int step(struct rig *r, struct test_case *c, const char *name, struct error *err)
{
    struct model_loss loss = { 0 };
    struct params *p = model_params(r->m);
    int rc = model_zero_grads(r->m, err);
    if (rc == OK) rc = model_row(r->m, &c->row, err);
    if (rc == OK) rc = model_forward_backward(r->m, 1.0 / c->row.weight_sum, &loss, err);
    double sum[2] = { loss.loss_sum, loss.weight_sum };
    if (rc == OK) rc = comm_all_reduce(r->mesh.all, r->s, DT_F64, sum, 2, err);
    if (rc == OK) rc = comm_all_reduce(r->mesh.all, r->s, DT_F32, p->flat_g, p->n_flat, err);
    if (rc != OK) return rc;
    double *want = case_get(c, "loss", NULL);
    if (fabs(sum[0] / sum[1] - *want) > 1e-5 * *want) rc = error_set(err, E_INTERNAL, "%s: loss %.9g, expected %.9g", name, sum[0] / sum[1], *want);
    free(want);
    for (int64_t k = 0; k < p->n; k++) {
        if (!p->v[k].trained) continue;
        char key[300];
        double num = 0, den = 0;
        (void)snprintf(key, sizeof key, "grad.%s", p->v[k].name);
        want = case_get(c, key, NULL);
        for (int64_t i = 0; i < p->v[k].n; i++) { double d = want[i] - (double)p->v[k].g[i]; num += d * d; den += want[i] * want[i]; }
        if (!(sqrt(num) <= 1e-4 * sqrt(den))) rc = error_set(err, E_INTERNAL, "%s: gradient of %s is off by %.3g", name, p->v[k].name, sqrt(num / den));
        free(want);
    }
    return rc;
}

static int body(struct comm_world *w, int rank, void *arg)
{
    const struct job *j = arg;
    struct error err = { 0 };
    for (int policy = ACT_NONE; policy <= ACT_LAYER; policy++) {
        struct rig r;
        struct test_case c;
        char more[2000];
        const char *base = cases[j->i].base ? cases[j->i].base : cases[j->i].name;
        int n = snprintf(more, sizeof more, ",\"torch_dtype\":\"float32\",\"nproc_per_node\":%d,\"ulysses_size\":%d,\"ring_size\":%d", splits[j->split].U * splits[j->split].R, splits[j->split].U, splits[j->split].R);
        if (cases[j->i].base) (void)snprintf(more + n, sizeof more - (size_t)n, ",\"lora_dropout\":0,\"adapter\":\"%s\",%s", fixture(cases[j->i].name), cases[j->i].more);
        else (void)snprintf(more + n, sizeof more - (size_t)n, ",\"tuner_type\":\"full\"");
        case_open(&c, fixture(cases[j->i].name));
        int rc = rig_open_rank(&r, w, rank, fixture(base), more, (enum act_policy)policy, c.row.T, c.row.n_docs, &err);
        if (rc == OK) rc = model_load(r.m, fixture(base), &err);
        if (rc == OK) rc = step(&r, &c, cases[j->i].name, &err);
        if (rc != OK) {
            (void)fprintf(stderr, "rank %d of U %d R %d, policy %s: %s\n", rank, splits[j->split].U, splits[j->split].R, act_policy_names[policy], err.text);
            return 1;
        }
        if (rc == OK && comm_barrier(r.mesh.all, &err) != OK) return 1;
        rig_close(&r);
        case_close(&c);
    }
    return 0;
}

/* Gradients of the LoRA case with dropout, on this rank's part of the row. */
static int dropout_grads(struct comm_world *w, int rank, int U, int R, struct rig *r, struct error *err)
{
    struct test_case c;
    struct model_loss loss = { 0 };
    char more[500];
    (void)snprintf(more, sizeof more, ",\"torch_dtype\":\"float32\",\"nproc_per_node\":%d,\"ulysses_size\":%d,\"ring_size\":%d,\"lora_rank\":4,\"lora_alpha\":8,\"lora_dropout\":0.4,\"adapter\":\"%s\"",
                   U * R, U, R, fixture("lora"));
    case_open(&c, fixture("lora"));
    int rc = rig_open_rank(r, w, rank, fixture("qwen2-tied"), more, ACT_ATTENTION, c.row.T, c.row.n_docs, err);
    if (rc == OK) rc = model_load(r->m, fixture("qwen2-tied"), err);
    if (rc == OK) rc = model_zero_grads(r->m, err);
    if (rc == OK) rc = model_row(r->m, &c.row, err);
    if (rc == OK) rc = model_forward_backward(r->m, 1.0 / c.row.weight_sum, &loss, err);
    case_close(&c);
    return rc;
}

static int dropout_body(struct comm_world *w, int rank, void *arg)
{
    const struct job *j = arg;
    struct error err = { 0 };
    struct rig alone, r;
    int rc = dropout_grads(NULL, 0, 1, 1, &alone, &err);
    if (rc == OK) rc = dropout_grads(w, rank, splits[j->split].U, splits[j->split].R, &r, &err);
    struct params *p = rc == OK ? model_params(r.m) : NULL, *q = rc == OK ? model_params(alone.m) : NULL;
    if (rc == OK) rc = comm_all_reduce(r.mesh.all, r.s, DT_F32, p->flat_g, p->n_flat, &err);
    double num = 0, den = 0;
    for (int64_t k = 0; rc == OK && k < q->n; k++) {
        for (int64_t i = 0; q->v[k].trained && i < q->v[k].n; i++) {
            double a = (double)p->v[k].g[i], b = (double)q->v[k].g[i];
            num += (a - b) * (a - b);
            den += b * b;
        }
    }
    if (rc == OK && !(sqrt(num) <= 1e-5 * sqrt(den))) rc = error_set(&err, E_INTERNAL, "the masks differ: %g", sqrt(num / den));
    if (rc == OK) rc = comm_barrier(r.mesh.all, &err);
    if (rc != OK) (void)fprintf(stderr, "rank %d: %s\n", rank, err.text);
    return rc != OK;
}

/* The same masks for every split. */
START_TEST(dropout_is_the_row_s)
{
    struct job j = { _i, 0 };
    ck_assert_int_eq(ranks_run(splits[j.split].U * splits[j.split].R, kernel_ops_cpu(), 4 << 20, 20000, dropout_body, &j), 0);
}
END_TEST

START_TEST(every_split_agrees)
{
    struct job j = { _i / N_CASES, _i % N_CASES };
    ck_assert_int_eq(ranks_run(splits[j.split].U * splits[j.split].R, kernel_ops_cpu(), 4 << 20, 20000, body, &j), 0);
}
END_TEST

int main(void)
{
    kernel_cpu_threads(1);
    Suite *s = suite_create("model-ranks");
    TCase *t = tcase_create("ranks");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, every_split_agrees, 0, N_SPLITS * N_CASES);
    tcase_add_loop_test(t, dropout_is_the_row_s, 0, N_SPLITS);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
