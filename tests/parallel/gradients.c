/* Many ranks compute what one computes: 200 random decoders (heads, degrees, documents, labels, windows, data-parallel rows, accumulation, ZeRO stages,
 * policies with and without offload, full and LoRA), every gradient tensor on its own, and the bytes of every kind of collective on every rank.
 *
 * Gradients. |many - one| <= 1e-6 max(|g|, S) for each tensor; |g| is its norm in f64 (exact.h), S that of its summands: the root of the sum over tokens
 * of each one's squared contribution. S exceeds |g| only where contributions cancel, and then the digits of |g| are not in f32's summands: the gradient of a
 * key's bias would be exactly 0 but for RoPE. For what lies behind the softmax (q, k: weights, biases, norms, adapters) S also counts P dP and P delta as two
 * summands of dS = P (dP - delta), for an adapter's A the terms of dy B.
 *
 * Bytes. Written here once more, from the masks and docs/communication.md alone, and equal for each kind on each rank, hops that nobody needs left out.
 *
 * Eight ranks are forked once and run all configurations. RM_SEED=n runs configuration n alone, RM_CONFIGS=n the first n, RM_SHOW=1 prints each tensor. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/comm/ranks.h"
#include "tests/parallel/exact.h"
#include "tests/parallel/rig.h"
#include "tests/suite.h"

#if defined(__SANITIZE_ADDRESS__)
enum { CONFIGS = 12 };
#else
enum { CONFIGS = 60 };
#endif

/* --- bytes --- */

struct bytes { int64_t kind[COMM_KINDS]; };

static struct bytes sent(struct comm_world *w)
{
    struct comm_count n[COMM_KINDS];
    struct bytes b;
    comm_counts(w, n);
    for (int i = 0; i < COMM_KINDS; i++) b.kind[i] = n[i].bytes;
    return b;
}

/* last[o]: the last hop (1…R-1) after which somebody still needs the keys of ring place o; 0: nobody else does. By looking at every pair of tokens. */
static void last_hops(int *last, const struct config *c, const struct row *row, int64_t window)
{
    struct layout l;
    struct error err;
    int place[MAX_T];
    int64_t index[MAX_T], Tl = row->T / (c->U * c->R), doc[MAX_T];
    ck_assert_int_eq(layout_build(&l, row->cu, row->n_docs, row->T, c->R, c->U, &err), OK);
    for (int r = 0; r < c->R; r++)
        for (int u = 0; u < c->U; u++) {
            layout_index(&l, r, u, index);
            for (int64_t i = 0; i < Tl; i++) place[index[i]] = r;
        }
    for (int64_t k = 0; k < row->n_docs; k++)
        for (int64_t t = row->cu[k]; t < row->cu[k + 1]; t++) doc[t] = k;
    for (int o = 0; o < c->R; o++) last[o] = 0;
    for (int64_t q = 0; q < row->T; q++)
        for (int64_t k = 0; k <= q; k++) {
            if (doc[k] != doc[q] || (window > 0 && q - k >= window)) continue;
            int hop = (place[q] - place[k] + c->R) % c->R;
            if (hop > last[place[k]]) last[place[k]] = hop;
        }
    layout_release(&l);
}

/* One row through one layer on ring place r, forward and backward. */
static void layer_bytes(struct bytes *b, const struct config *c, const struct row *row, int64_t window, int r)
{
    const struct model_config *m = &c->model;
    int64_t U = c->U, R = c->R, size = 4, Tl = row->T / (U * R), hq = m->H / U, hk = (U > m->Hkv ? U : m->Hkv) / U;
    int64_t in = (U - 1) * Tl * m->D * (hq + 2 * hk) * size, out = (U - 1) * Tl * m->D * hq * size, block = 2 * (row->T / R) * hk * m->D * size, around = 0, home = 0;
    int last[WORLD];
    last_hops(last, c, row, window);
    for (int hop = 1; hop < R; hop++) around += last[(r - (hop - 1) + R) % R] >= hop ? block : 0;
    for (int o = 0; o < R && R > 1; o++) home += last[o] > 0 ? block : 0;       /* every rank hands on every sum that travels */
    int64_t again = c->policy == ACT_NONE ? 0 : c->policy == ACT_ATTENTION ? in : in + out, delta = (U - 1) * Tl * hq * 4;
    b->kind[COMM_ALL_TO_ALL] += in + out + again + delta + out + in;
    b->kind[COMM_HOP] += around + (c->policy >= ACT_LAYER ? around : 0) + around + home;
}

/* Where a unit (0 embedding, 1…L layers, L+1 norm and head) lies in the flat vector: of what is trained, or of what ZeRO 3 cuts. */
struct range { int64_t from, to; };

static int unit_of(const char *name, int64_t L)
{
    const char *at = strstr(name, "layers.");
    return at ? 1 + atoi(at + 7) : strstr(name, "embed_tokens") ? 0 : (int)L + 1;
}

static int64_t units(struct range *u, const struct config *c, const struct params *p, bool weights, int world)
{
    int64_t n = 0;
    for (int i = 0; i < c->model.L + 2; i++) u[i] = (struct range){ 0, 0 };
    for (int64_t i = 0; i < p->n; i++) {
        const struct param *q = &p->v[i];
        if (weights ? c->lora && q->trained : !q->trained) continue;
        struct range *x = &u[unit_of(q->name, c->model.L)];
        if (x->to == 0) x->from = n;
        x->to = n + q->n;
        n += (q->n + 63) / 64 * 64;
    }
    return (n + 64 * world - 1) / (64 * world) * (64 * world);
}

static int64_t overlap(struct range a, int64_t lo, int64_t hi)
{
    int64_t from = a.from > lo ? a.from : lo, to = a.to < hi ? a.to : hi;
    return to > from ? to - from : 0;
}

/* ZeRO 3: units are fetched in the order in which they are used, unless their bucket still holds them. */
struct fetches { const struct config *c; const struct range *u; int64_t lo, hi, bytes; int holds[4], world; };

static void fetch(struct fetches *f, int unit)
{
    int L = (int)f->c->model.L, bucket = unit == 0 ? 0 : unit <= L ? 1 + unit % 2 : f->c->model.tied ? 3 : 0;
    if (unit < 0 || f->holds[bucket] == unit) return;
    f->holds[bucket] = unit;
    f->bytes += (f->world - 1) * overlap(f->u[unit], f->lo, f->hi) * 4;
}

static void fetch_sweep(struct fetches *f)
{
    int L = (int)f->c->model.L;
    for (int i = 0; i <= L + 1; i++) fetch(f, i);
    if (f->c->model.tied) fetch(f, 0);
    for (int i = L; i > 0; i--) fetch(f, i);
}

static struct bytes expected(const struct config *c, int seed, const struct mesh *m, const struct params *p)
{
    struct bytes b = { 0 };
    int W = m->world;
    struct range grads[8], weights[8];
    int64_t N = units(grads, c, p, false, W), N3 = units(weights, c, p, true, W);
    struct fetches f = { .c = c, .u = weights, .lo = N3 / W * m->rank, .hi = N3 / W * (m->rank + 1), .holds = { -1, -1, -1, -1 }, .world = W };
    for (int i = 0; i < c->accumulation; i++) {
        struct row row = random_row(seed, c, i, m->dp_rank);
        for (int64_t l = 0; l < c->model.L; l++) layer_bytes(&b, c, &row, c->model.window > 0 && l >= c->model.window_from ? c->model.window : 0, m->r);
        if (c->zero >= 3) fetch_sweep(&f);
        for (int k = 0; k < c->model.L + 2 && c->zero >= 2; k++)
            b.kind[COMM_REDUCE_SCATTER] += 4 * (grads[k].to - grads[k].from - overlap(grads[k], N / W * m->rank, N / W * (m->rank + 1)));
        row_release(&row);
    }
    b.kind[COMM_ALL_GATHER] = f.bytes;
    if (c->zero == 1) b.kind[COMM_REDUCE_SCATTER] = (W - 1) * (N / W) * 4;
    if (c->zero == 0) b.kind[COMM_ALL_REDUCE] = 2 * (W - 1) * (N / W) * 4;
    return b;
}

/* --- gradients --- */

static struct { int64_t tensors, cancelling; double own, floor, one_off, many_off; } worst;      /* own, floor: over |g|, over max(|g|, S) */

/* The gradient of the whole step on one rank. */
struct answer { struct comm_world *w; struct rig rig; struct model_loss loss; };

static int answer_open(struct answer *a, const struct config *c, int seed, const struct kernel_ops *ops, enum dtype dt, double scale, struct error *err)
{
    *a = (struct answer){ 0 };
    int rc = world_of_one(&a->w, err);
    if (rc == OK) rc = rig_open(&a->rig, c, ops, dt, 1, 0, 1, 1, a->w, err);
    if (rc == OK) rc = model_zero_grads(a->rig.m, err);
    for (int i = 0; i < c->accumulation && rc == OK; i++)
        for (int d = 0; d < c->dp && rc == OK; d++) {
            struct row r = random_row(seed, c, i, d);
            rc = model_row(a->rig.m, &r, err);
            if (rc == OK) rc = model_forward_backward(a->rig.m, scale, &a->loss, err);
            row_release(&r);
        }
    return rc;
}

static void answer_close(struct answer *a)
{
    rig_close(&a->rig);
    comm_close(a->w);
}

static double distance(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

static double norm(const float *a, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)a[i];
    return sqrt(sum);
}

/* S of a tensor; g: its gradient in f64's answer. */
static double summands(const char *name, const float *g, const struct config *c)
{
    bool q = strstr(name, ".q_proj.") || strstr(name, ".q_norm."), k = strstr(name, ".k_proj.") || strstr(name, ".k_norm.");
    double S = sqrt(exact_summands(g));
    return q || k ? S * fmax(1, exact_attention_loss((int)c->model.L - unit_of(name, c->model.L), (int)c->model.L, k)) : S;
}

/* whole: many ranks' gradient, as pm lays it out. */
static void judge(const struct config *c, int seed, const struct params *pm, const float *whole, struct answer *one, struct answer *truth, char *what, size_t cap)
{
    const struct params *po = model_params(one->rig.m), *pt = model_params(truth->rig.m);
    for (int64_t i = 0; i < po->n; i++) {
        const struct param *o = &po->v[i], *m = params_find(pm, o->name), *t = params_find(pt, o->name);
        if (!o->trained) continue;
        const float *gm = whole + m->at, *go = po->flat_g + o->at, *gt = pt->flat_g + t->at;
        double n = norm(gt, t->n), S = summands(o->name, gt, c), apart = distance(gm, go, o->n), most = fmax(n, S);
        double one_off = distance(go, gt, o->n), many_off = distance(gm, gt, o->n);
        if (!(apart <= 1e-6 * most)) (void)snprintf(what, cap, "gradient of %s is off by %.2g of %.2g, summands of %.2g", o->name, apart, n, S);
        if (getenv("RM_SHOW")) printf("%d %s norm %.3g summands %.3g apart %.3g one rank off %.2g many off %.2g\n", seed, o->name, n, S, apart / n, one_off / n, many_off / n);
        if (n == 0) continue;
        worst.tensors++;
        worst.cancelling += apart > 1e-6 * n;
        worst.own = fmax(worst.own, apart / n);
        worst.floor = fmax(worst.floor, apart / most);
        worst.one_off = fmax(worst.one_off, one_off / most);
        worst.many_off = fmax(worst.many_off, many_off / most);
    }
}

/* many ranks' sums of loss, weight, correct, count. */
static void judge_loss(const double *sums, const struct model_loss *one, char *what, size_t cap)
{
    if (fabs(sums[0] - one->loss_sum) > 1e-6 * fabs(one->loss_sum) || sums[1] != one->weight_sum || sums[3] != one->count)
        (void)snprintf(what, cap, "loss %.9g of weight %g, one rank has %.9g of %g", sums[0], sums[1], one->loss_sum, one->weight_sum);
}

/* As worker/train/step.c does it; what ZeRO 2 and 3 have done already is left. */
static int reduce(const struct config *c, struct rig *r, struct params *p, int64_t lo, int64_t n, struct error *err)
{
    if (c->zero == 0) return comm_all_reduce(r->mesh.all, NULL, DT_F32, p->flat_g, p->n_flat, err);
    return c->zero == 1 ? comm_reduce_scatter(r->mesh.all, NULL, DT_F32, p->flat_g + lo, p->flat_g, n, err) : OK;
}

static double step_weight(const struct config *c, int seed)
{
    double weight = 0;
    for (int i = 0; i < c->accumulation; i++)
        for (int d = 0; d < c->dp; d++) {
            struct row r = random_row(seed, c, i, d);
            weight += r.weight_sum;
            row_release(&r);
        }
    return weight;
}

/* The step on this rank: *whole, all ranks' gradient; sums, their loss. */
static int step(const struct config *c, int seed, struct rig *many, struct comm_world *w, double scale, float **whole, double *sums, char *what, size_t cap, struct error *err)
{
    struct model_loss loss = { 0 };
    struct bytes before = sent(w), after, want;
    int rc = model_zero_grads(many->m, err);
    for (int i = 0; i < c->accumulation && rc == OK; i++) {
        struct row r = random_row(seed, c, i, many->mesh.dp_rank);
        rc = model_row(many->m, &r, err);
        if (rc == OK) rc = model_forward_backward(many->m, scale, &loss, err);
        row_release(&r);
    }
    struct params *p = model_params(many->m);
    int64_t lo, hi;
    zero_shard(&many->mesh, c->zero, p->n_flat, &lo, &hi);
    if (rc == OK) rc = reduce(c, many, p, lo, hi - lo, err);
    after = sent(w);
    want = expected(c, seed, &many->mesh, p);
    for (int k = 0; k < COMM_KINDS && rc == OK; k++)
        if (after.kind[k] - before.kind[k] != want.kind[k])
            (void)snprintf(what, cap, "sent %lld bytes by %s, expected %lld", (long long)(after.kind[k] - before.kind[k]), comm_kind_names[k], (long long)want.kind[k]);
    sums[0] = loss.loss_sum, sums[1] = loss.weight_sum, sums[2] = loss.correct, sums[3] = loss.count;
    *whole = xmalloc((unsigned long)p->n_flat * sizeof **whole);
    if (c->zero == 0) memcpy(*whole, p->flat_g, (size_t)p->n_flat * sizeof **whole);
    else if (rc == OK) rc = comm_all_gather(many->mesh.all, NULL, DT_F32, *whole, p->flat_g + (c->zero == 1 ? lo : 0), hi - lo, err);
    return rc == OK ? comm_all_reduce(many->mesh.all, NULL, DT_F64, sums, 4, err) : rc;
}

static int one_config(const struct config *c, int seed, struct comm_world *w, int rank)
{
    struct error err = { 0 };
    struct rig many;
    struct answer one, truth;
    char what[1200] = "";
    float *whole = NULL;
    double weight = step_weight(c, seed), scale = weight > 0 ? 1 / weight : 0, sums[4];
    int rc = rig_open(&many, c, kernel_ops_cpu(), DT_F32, c->U * c->R * c->dp, rank, c->U, c->R, w, &err);
    if (rc == OK) rc = step(c, seed, &many, w, scale, &whole, sums, what, sizeof what, &err);
    if (rc == OK && rank == 0) {                /* one rank judges for all */
        rc = answer_open(&one, c, seed, kernel_ops_cpu(), DT_F32, scale, &err);
        if (rc == OK) rc = answer_open(&truth, c, seed, exact_ops((double)c->model.eps), DT_F64, scale, &err);
        if (rc == OK && !what[0]) judge_loss(sums, &one.loss, what, sizeof what);
        if (rc == OK && !what[0]) judge(c, seed, model_params(many.m), whole, &one, &truth, what, sizeof what);
        if (rc == OK) answer_close(&truth), answer_close(&one);
    }
    if (rc != OK) (void)snprintf(what, sizeof what, "%s", err.text);
    if (what[0])
        (void)fprintf(stderr, "seed %d rank %d: %s (U %d R %d dp %d accumulation %d zero %d %s %s L %lld H %lld Hkv %lld D %lld window %lld overlap %d)\n", seed, rank, what, c->U, c->R,
                      c->dp, c->accumulation, c->zero, act_policy_names[c->policy], c->lora ? "lora" : "full", (long long)c->model.L, (long long)c->model.H,
                      (long long)c->model.Hkv, (long long)c->model.D, (long long)c->model.window, c->overlap);
    free(whole);
    rig_close(&many);
    return what[0] != 0;
}

static int all_configs(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    kernel_cpu_threads(1);
    const char *only = getenv("RM_SEED"), *some = getenv("RM_CONFIGS");
    int from = only ? atoi(only) : 0, to = only ? from + 1 : some ? atoi(some) : CONFIGS, bad = 0;
    for (int seed = from; seed < to && !bad; seed++) {
        struct config c = random_config(seed);
        if (rank < c.U * c.R * c.dp) bad = one_config(&c, seed, w, rank);
    }
    if (rank == 0)
        printf("configurations %d to %d: %lld tensors, %lld of them further apart than 1e-6 of their norm (worst %.2g), worst of max(norm, summands) %.2g; from f64: one rank %.2g, "
               "many %.2g\n", from, to - 1, (long long)worst.tensors, (long long)worst.cancelling, worst.own, worst.floor, worst.one_off, worst.many_off);
    return bad;
}

START_TEST(many_ranks_equal_one) { ck_assert_int_eq(ranks_run(WORLD, kernel_ops_cpu(), SHARED, 20000, all_configs, NULL), 0); } END_TEST

int main(void)
{
    Suite *s = suite_create("gradients");
    TCase *t = tcase_create("gradients");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, many_ranks_equal_one);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
