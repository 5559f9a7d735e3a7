/* One rank's decoder: what packing, documents and tiles must not change. Many ranks against one: gradients.c. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/parallel/rig.h"
#include "tests/suite.h"

struct single { struct comm_world *w; struct rig rig; };

static void single_open(struct single *x, const struct config *c)
{
    struct error err = { 0 };
    ck_assert_int_eq(world_of_one(&x->w, &err), OK);
    ck_assert_msg(rig_open(&x->rig, c, kernel_ops_cpu(), DT_F32, 1, 0, 1, 1, x->w, &err) == OK, "%s", err.text);
}

static void single_close(struct single *x)
{
    rig_close(&x->rig);
    comm_close(x->w);
}

static double sweep(struct single *x, const struct row *r)
{
    struct error err = { 0 };
    struct model_loss loss = { 0 };
    ck_assert_msg(model_row(x->rig.m, r, &err) == OK, "%s", err.text);
    ck_assert_msg(model_forward_backward(x->rig.m, 0.125, &loss, &err) == OK, "%s", err.text);
    return loss.loss_sum;
}

/* Document d of a row as a row of its own. */
static struct row alone(const struct row *r, int64_t d, int64_t *cu)
{
    int64_t at = r->cu[d];
    cu[0] = 0, cu[1] = r->cu[d + 1] - at;
    return (struct row){ .T = cu[1], .n_docs = 1, .ids = r->ids + at, .labels = r->labels + at, .positions = r->positions + at, .weights = r->weights + at, .cu = cu };
}

static double distance(const float *a, const float *b, int64_t n)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(diff / (norm + 1e-30));
}

/* Packed loss of {A,B,…} = loss(A) + loss(B) + …, gradients too (LLaMA-Factory #7318, #7754). */
START_TEST(packing_adds_up)
{
    struct error err;
    struct config c = random_config(_i + 500);
    c.U = c.R = c.dp = 1, c.lora = false;                       /* dropout depends on the place in the row */
    struct single x;
    single_open(&x, &c);
    struct row r = random_row(_i, &c, 0, 0);
    const struct params *p = model_params(x.rig.m);
    ck_assert_int_eq(model_zero_grads(x.rig.m, &err), OK);
    double whole = sweep(&x, &r), parts = 0;
    float *g = xmalloc((unsigned long)p->n_flat * 4);
    memcpy(g, p->flat_g, (size_t)p->n_flat * 4);
    ck_assert_int_eq(model_zero_grads(x.rig.m, &err), OK);
    for (int64_t d = 0; d < r.n_docs; d++) {
        int64_t cu[2];
        struct row one = alone(&r, d, cu);
        parts += sweep(&x, &one);
    }
    ck_assert_double_le(fabs(whole - parts), 1e-6 * fabs(whole));
    ck_assert_double_le(distance(p->flat_g, g, p->n_flat), 2e-6);
    free(g);
    row_release(&r);
    single_close(&x);
}
END_TEST

/* What stands in one document never reaches another, to the bit (axolotl #1375). */
START_TEST(documents_are_apart)
{
    struct config c = random_config(_i + 600);
    c.U = c.R = c.dp = 1, c.lora = false;
    struct single x;
    single_open(&x, &c);
    struct row r = random_row(_i, &c, 0, 0);
    r.T = 60, r.n_docs = 3, r.cu[1] = 17, r.cu[2] = 41, r.cu[3] = 60;
    r.ids = xrealloc(r.ids, 60 * 4), r.labels = xrealloc(r.labels, 60 * 4), r.positions = xrealloc(r.positions, 60 * 4), r.weights = xrealloc(r.weights, 60 * 4);
    for (int64_t t = 0; t < 60; t++) {
        int64_t d = t < 17 ? 0 : t < 41 ? 1 : 2;
        r.ids[t] = (int32_t)(t * 7 % c.model.V), r.positions[t] = (int32_t)(t - r.cu[d]);
        r.labels[t] = d == 1 ? (int32_t)(t % c.model.V) : -100;
        r.weights[t] = d == 1;
    }
    double before = sweep(&x, &r);
    for (int64_t t = 0; t < 60; t++)
        if (t < 17 || t >= 41) r.ids[t] = (int32_t)((t * 11 + 3) % c.model.V);
    ck_assert_double_eq(before, sweep(&x, &r));
    row_release(&r);
    single_close(&x);
}
END_TEST

/* A vocabulary so large that a tile of logits has 32 rows: 70 tokens are tiles of 32, 32 and 6. Loss and every gradient, the head's above all, equal
 * those of three rows of one tile each (DeepSpeed's TiledFusedLogitsLoss scaled the head's wrongly and miscounted short tiles). */
START_TEST(tiles_add_up)
{
    struct error err;
    struct config c = random_config(700);
    c.U = c.R = c.dp = 1, c.lora = false, c.policy = ACT_NONE;
    c.model.V = 1 << 20, c.model.C = 8, c.model.F = 16, c.model.L = 1, c.model.tied = false, c.model.window = 0;
    struct single x;
    single_open(&x, &c);
    int32_t ids[70], labels[70], positions[70];
    float weights[70];
    int64_t cu[4] = { 0, 32, 64, 70 };
    for (int t = 0; t < 70; t++) {
        ids[t] = t * 14983 % (1 << 20), positions[t] = t % 32;
        labels[t] = t % 3 == 0 || (t >= 32 && t < 64) ? -100 : t * 7919 % (1 << 20);        /* the tile in the middle trains nothing */
        weights[t] = labels[t] < 0 ? 0 : 1 + 0.25f * (float)(t % 4);
    }
    struct row r = { .T = 70, .n_docs = 3, .ids = ids, .labels = labels, .positions = positions, .weights = weights, .cu = cu };
    const struct params *p = model_params(x.rig.m);
    ck_assert_int_eq(model_zero_grads(x.rig.m, &err), OK);
    double whole = sweep(&x, &r), parts = 0;
    float *g = xmalloc((unsigned long)p->n_flat * 4);
    memcpy(g, p->flat_g, (size_t)p->n_flat * 4);
    ck_assert_int_eq(model_zero_grads(x.rig.m, &err), OK);
    for (int64_t d = 0; d < 3; d++) {
        int64_t one_cu[2];
        struct row one = alone(&r, d, one_cu);
        parts += sweep(&x, &one);
    }
    ck_assert_double_le(fabs(whole - parts), 1e-6 * whole);
    for (int64_t i = 0; i < p->n; i++) {
        const struct param *q = &p->v[i];
        double off = distance(p->flat_g + q->at, g + q->at, q->n);
        ck_assert_msg(off <= 2e-6 || strstr(q->name, "k_proj.bias"), "%s: %.2g", q->name, off);
    }
    free(g);
    single_close(&x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine");
    TCase *t = tcase_create("engine");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, packing_adds_up, 0, 12);
    tcase_add_loop_test(t, documents_are_apart, 0, 6);
    tcase_add_test(t, tiles_add_up);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
