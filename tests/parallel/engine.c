/* Every gradient of the whole decoder on many ranks equals one rank's, for random heads, degrees, documents, labels, data-parallel
 * sizes, accumulation, policies, full and LoRA. Eight ranks are forked once and run all configurations; each rank also computes the
 * single-rank answer for itself. RM_SEED=n runs configuration n alone. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/comm/ranks.h"
#include "worker/model/decoder.h"

#if defined(__SANITIZE_ADDRESS__)
enum { CONFIGS = 60 };      /* three times slower */
#else
enum { CONFIGS = 200 };
#endif
enum { WORLD = 8, SHARED = 8 << 20, MAX_T = 96, MAX_DOCS = 40 };

struct config {
    int U, R, dp, accumulation, zero;
    enum act_policy policy;
    bool lora, overlap, last_quarter;           /* last_quarter: labels only there, so some ranks have none */
    struct model_config model;
};

static uint64_t state;
static int64_t pick(int64_t lo, int64_t hi)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return lo + (int64_t)(state % (uint64_t)(hi - lo + 1));
}

static void start_random(int seed)
{
    state = 0x9E3779B97F4A7C15u * (uint64_t)(seed + 1);
    for (int i = 0; i < 8; i++) (void)pick(0, 1);
}

static struct config random_config(int seed)
{
    start_random(seed);
    struct config c = { .policy = (enum act_policy)pick(ACT_NONE, ACT_LAYER) };
    struct model_config *m = &c.model;
    do {
        m->Hkv = pick(1, 4);
        m->H = m->Hkv * pick(1, 4);
        c.U = (int)pick(1, 8);
        c.R = (int)pick(1, 8);
        c.dp = (int)pick(1, 3);
    } while (c.U * c.R * c.dp > WORLD || c.U * c.R * c.dp == 1 || m->H % c.U != 0 || (m->Hkv % c.U != 0 && c.U % m->Hkv != 0));
    c.accumulation = (int)pick(1, 3);
    c.zero = (int)pick(0, 2);
    c.zero += c.zero > 0;                   /* 0, 2, 3 */
    c.lora = pick(0, 2) == 0;
    c.overlap = pick(0, 1);
    c.last_quarter = pick(0, 3) == 0;
    (void)snprintf(m->model_type, sizeof m->model_type, "qwen2");
    m->L = 2, m->C = 16 * pick(2, 4), m->F = 16 * pick(2, 4), m->V = pick(20, 50), m->D = 2 * pick(2, 4);
    m->max_positions = 4096, m->eps = 1e-6f, m->initializer_range = 0.06f;
    m->tied = pick(0, 1), m->qkv_bias = pick(0, 1), m->qk_norm = pick(0, 1);
    m->rope = (struct rope_config){ .type = ROPE_DEFAULT, .theta = 1000, .factor = 1, .attention_factor = -1 };
    if (pick(0, 4) == 0) m->window = pick(2, 20), m->window_from = 1;
    return c;
}

/* The row of micro-step i on data-parallel rank d; the same wherever it is made. */
static struct row random_row(int seed, const struct config *c, int i, int d)
{
    start_random(seed * 31 + i * 7 + d + 1000);
    int P = c->U * c->R;
    struct row r = { .T = P * pick(1, MAX_T / P), .index = i * 8 + d };
    r.ids = xcalloc((unsigned long)r.T, 4), r.labels = xcalloc((unsigned long)r.T, 4), r.positions = xcalloc((unsigned long)r.T, 4);
    r.weights = xcalloc((unsigned long)r.T, 4);
    r.cu = xcalloc(MAX_DOCS + 1, 8);
    for (int64_t longest = pick(0, 1) ? MAX_T : 10; r.cu[r.n_docs] < r.T; r.n_docs++) {
        int64_t end = r.cu[r.n_docs] + pick(1, longest);
        r.cu[r.n_docs + 1] = end < r.T && r.n_docs + 1 < MAX_DOCS ? end : r.T;
    }
    for (int64_t k = 0; k < r.n_docs; k++)
        for (int64_t t = r.cu[k]; t < r.cu[k + 1]; t++) {
            r.ids[t] = (int32_t)pick(0, c->model.V - 1);
            r.positions[t] = (int32_t)(t - r.cu[k]);
            bool trained = t + 1 < r.cu[k + 1] && pick(0, 2) > 0 && (!c->last_quarter || t >= r.T * 3 / 4);
            r.labels[t] = trained ? (int32_t)pick(0, c->model.V - 1) : -100;
            r.weights[t] = trained ? (float)pick(1, 4) * 0.25f : 0;
            r.weight_sum += (double)r.weights[t];
            r.tokens_trained += trained;
        }
    r.tokens_real = r.T;
    return r;
}

static void row_release(struct row *r) { free(r->ids), free(r->labels), free(r->positions), free(r->weights), free(r->cu); }

struct rig {
    struct spec spec;
    struct mesh mesh;
    struct stream *s;
    struct model *m;
    struct arena arenas[MEM_PLACES];
    void *memory[MEM_PLACES];
};

static int rig_open(struct rig *r, const struct config *c, int world, int rank, int U, int R, struct comm_world *w, struct error *err)
{
    char text[1000];
    struct problems p = { 0 };
    *r = (struct rig){ 0 };
    int n = snprintf(text, sizeof text, "{\"model\":\"x\",\"dataset\":[\"x\"],\"output_dir\":\"x\",\"max_length\":5040,\"torch_dtype\":\"float32\",\"tuner_type\":\"%s\",\"lora_rank\":3,\"lora_alpha\":3,"
                     "\"nproc_per_node\":%d,\"ulysses_size\":%d,\"ring_size\":%d,\"sequence_parallel_method\":\"hybrid\",\"enable_sequence_overlap\":%s,\"zero_stage\":%d}",
                     c->lora ? "lora" : "full", world, U, R, c->overlap ? "true" : "false", world > 1 ? c->zero : 0);
    if (spec_parse(&r->spec, text, (size_t)n, &p) != OK) return error_set(err, E_INVALID, "spec: %s", p.v[0].message);
    const struct kernel_ops *ops = kernel_ops_cpu();
    int rc = mesh_choose(&r->mesh, &r->spec, c->model.H, c->model.Hkv, rank, err);
    if (rc == OK) rc = mesh_connect(&r->mesh, w, err);
    if (rc == OK) rc = ops->stream_new(&r->s, true, err);
    struct model_options o = { .spec = &r->spec, .config = &c->model, .ops = ops, .mesh = &r->mesh, .policy = c->policy, .max_T = MAX_T / (U * R) * (U * R), .max_docs = MAX_DOCS };
    for (int pass = 0; pass < 2 && rc == OK; pass++) {          /* plan, then the same with memory */
        for (int i = 0; i < MEM_PLACES; i++) {
            int64_t need = pass ? r->arenas[i].peak : 0;
            if (pass) {
                arena_release_all(&r->arenas[i]);
                r->memory[i] = i == PLACE_SHARED ? NULL : aligned_alloc(4096, (size_t)(need + 8192) / 4096 * 4096);
                if (r->memory[i]) memset(r->memory[i], 0xff, (size_t)need);
            }
            arena_init(&r->arenas[i], (enum mem_place)i, pass ? (i == PLACE_SHARED ? comm_memory(w) : r->memory[i]) : NULL, need);
        }
        if (pass) model_free(r->m);
        rc = model_new(&r->m, &o, r->s, &r->arenas[PLACE_DEVICE], &r->arenas[PLACE_SHARED], &r->arenas[PLACE_HOST], err);
    }
    if (rc == OK) rc = model_init_random(r->m, 7, err);
    if (rc != OK) return rc;
    struct params *ps = model_params(r->m);
    for (int64_t i = 0; i < ps->n && rc == OK; i++) {           /* the same everywhere, by position alone; LoRA's B would start at zero */
        struct param *q = &ps->v[i];
        float *x = xmalloc((unsigned long)q->n * sizeof *x);
        start_random((int)i + 99);
        for (int64_t k = 0; k < q->n; k++) x[k] = (q->init == INIT_ONE ? 1.0f : 0.0f) + (float)pick(-1000, 1000) * 0.7e-4f;
        r->m->err = err;
        rc = params_store(r->m, q, x, 0, q->n);
        free(x);
    }
    if (rc != OK) return rc;
    return model_weights_changed(r->m, err);
}

static void rig_close(struct rig *r)
{
    model_free(r->m);
    if (r->s) kernel_ops_cpu()->stream_free(r->s);
    for (int i = 0; i < MEM_PLACES; i++) {
        arena_release_all(&r->arenas[i]);
        free(r->memory[i]);
    }
    spec_release(&r->spec);
}

static int64_t sent(struct comm_world *w)
{
    struct comm_count n[COMM_KINDS];
    comm_counts(w, n);
    return n[COMM_ALL_TO_ALL].bytes + n[COMM_HOP].bytes;
}

static int64_t reduced_bytes(struct comm_world *w)
{
    struct comm_count n[COMM_KINDS];
    comm_counts(w, n);
    return n[COMM_REDUCE_SCATTER].bytes;
}

static int one_config(const struct config *c, int seed, struct comm_world *w, int rank)
{
    struct error err = { 0 };
    struct rig many, one;
    struct model_loss loss_many = { 0 }, loss_one = { 0 };
    int world = c->U * c->R * c->dp;
    char what[1200] = "";
    double weight = 0;
    int64_t expected = 0;
    bool exact = true;
    struct comm_world *alone = NULL;
    int rc = comm_open_with(&alone, &comm_transport_shm, kernel_ops_cpu(), NULL, 0, 1, SHARED, 1000, &err);
    if (rc == OK) rc = rig_open(&one, c, 1, 0, 1, 1, alone, &err);
    if (rc == OK) rc = rig_open(&many, c, world, rank, c->U, c->R, w, &err);
    for (int i = 0; i < c->accumulation; i++)
        for (int d = 0; d < c->dp; d++) {
            struct row r = random_row(seed, c, i, d);
            weight += r.weight_sum;
            row_release(&r);
        }
    double scale = weight > 0 ? 1 / weight : 0;
    if (rc == OK) rc = model_zero_grads(one.m, &err);
    if (rc == OK) rc = model_zero_grads(many.m, &err);
    int64_t before = sent(w), reduced0 = reduced_bytes(w);
    for (int i = 0; i < c->accumulation && rc == OK; i++) {
        for (int d = 0; d < c->dp && rc == OK; d++) {
            struct row r = random_row(seed, c, i, d);
            rc = model_row(one.m, &r, &err);
            if (rc == OK) rc = model_forward_backward(one.m, scale, &loss_one, &err);
            if (rc == OK && d == many.mesh.dp_rank) {
                rc = model_row(many.m, &r, &err);
                if (rc == OK) rc = model_forward_backward(many.m, scale, &loss_many, &err);
                int64_t longest = 0;
                for (int64_t k = 0; k < r.n_docs; k++) longest = r.cu[k + 1] - r.cu[k] > longest ? r.cu[k + 1] - r.cu[k] : longest;
                if (c->R > 1 && (longest < 2 * c->R || c->model.window > 0)) exact = false;       /* hops may be skipped */
                expected += model_row_bytes(many.m, r.T);
            }
            row_release(&r);
        }
    }
    int64_t bytes = sent(w) - before, reduced = reduced_bytes(w) - reduced0;
    struct params *pm = rc == OK ? model_params(many.m) : NULL, *po = rc == OK ? model_params(one.m) : NULL;
    int64_t shards = 0;                 /* everything trained but this rank's own part, each micro-step */
    for (int64_t i = 0; rc == OK && c->zero && i < pm->n_flat; i++) shards += i < pm->g_at || i >= pm->g_at + pm->n_g;
    double sums[4] = { loss_many.loss_sum, loss_many.weight_sum, loss_many.correct, loss_many.count };
    if (rc == OK && c->zero == 0) rc = comm_all_reduce(many.mesh.all, NULL, DT_F32, pm->flat_g, pm->n_flat, &err);
    if (rc == OK) rc = comm_all_reduce(many.mesh.all, NULL, DT_F64, sums, 4, &err);
    if (rc != OK)
        (void)snprintf(what, sizeof what, "%s", err.text);
    else if (fabs(sums[0] - loss_one.loss_sum) > 1e-6 * fabs(loss_one.loss_sum) || sums[1] != loss_one.weight_sum || sums[3] != loss_one.count)
        (void)snprintf(what, sizeof what, "loss %.9g of weight %g, one rank has %.9g of %g", sums[0], sums[1], loss_one.loss_sum, loss_one.weight_sum);
    else if (exact ? bytes != expected : bytes > expected)
        (void)snprintf(what, sizeof what, "sent %lld bytes, expected %lld", (long long)bytes, (long long)expected);
    if (!what[0] && (reduced > shards * 4 * c->accumulation || (c->zero && !c->lora && reduced < shards * 4 * c->accumulation * 9 / 10)))
        (void)snprintf(what, sizeof what, "sent %lld bytes of gradients, expected %lld less padding", (long long)reduced, (long long)shards * 4 * c->accumulation);
    double whole = 0, off = 0;          /* of 200 configurations one is off by 1.2e-6, the others by at most 0.9e-6 */
    for (int64_t i = 0; !what[0] && i < po->n_flat; i++) whole += (double)po->flat_g[i] * (double)po->flat_g[i];
    for (int64_t i = 0; !what[0] && i < po->n; i++) {
        const struct param *a = &po->v[i], *b = params_find(pm, a->name);
        if (!a->trained) continue;
        double diff = 0, norm = 0;
        for (int64_t k = 0; k < a->n; k++) {
            int64_t at = b->at + k - pm->g_at;                  /* with ZeRO 2 this rank can judge its shard */
            double d = at >= 0 && at < pm->n_g ? (double)pm->flat_g[at] - (double)a->g[k] : 0;
            diff += d * d;
            norm += (double)a->g[k] * (double)a->g[k];
        }
        off += diff;
        if (!(sqrt(diff) <= 4e-6 * sqrt(norm) + 1e-8 * sqrt(whole)))    /* fp32 noise of small gradients behind a norm reaches 3.4e-6 */
            (void)snprintf(what, sizeof what, "gradient of %s is off by %.2g of %.2g", a->name, sqrt(diff), sqrt(norm));
    }
    if (!what[0] && !(sqrt(off) <= 1.3e-6 * sqrt(whole))) (void)snprintf(what, sizeof what, "the gradient is off by %.2g of %.2g", sqrt(off), sqrt(whole));
    if (what[0])
        (void)fprintf(stderr, "seed %d rank %d: %s (U %d R %d dp %d accumulation %d zero %d %s %s H %lld Hkv %lld D %lld window %lld overlap %d)\n", seed, rank, what, c->U, c->R,
                      c->dp, c->accumulation, c->zero, act_policy_names[c->policy], c->lora ? "lora" : "full", (long long)c->model.H, (long long)c->model.Hkv,
                      (long long)c->model.D, (long long)c->model.window, c->overlap);
    rig_close(&many);
    rig_close(&one);
    comm_close(alone);
    return what[0] != 0;
}

static int all_configs(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    kernel_cpu_threads(1);
    const char *only = getenv("RM_SEED");
    int from = only ? atoi(only) : 0, to = only ? from + 1 : CONFIGS, bad = 0;
    for (int seed = from; seed < to && !bad; seed++) {
        struct config c = random_config(seed);
        if (rank < c.U * c.R * c.dp) bad = one_config(&c, seed, w, rank);
    }
    return bad;
}

/* --- one rank: what packing and tiling must not change --- */

struct single { struct comm_world *w; struct rig rig; };

static void single_open(struct single *x, const struct config *c)
{
    struct error err = { 0 };
    ck_assert_int_eq(comm_open_with(&x->w, &comm_transport_shm, kernel_ops_cpu(), NULL, 0, 1, SHARED, 1000, &err), OK);
    ck_assert_msg(rig_open(&x->rig, c, 1, 0, 1, 1, x->w, &err) == OK, "%s", err.text);
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

START_TEST(many_ranks_equal_one) { ck_assert_int_eq(ranks_run(WORLD, kernel_ops_cpu(), SHARED, 20000, all_configs, NULL), 0); } END_TEST

int main(void)
{
    Suite *s = suite_create("engine");
    TCase *t = tcase_create("engine");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, packing_adds_up, 0, 12);
    tcase_add_loop_test(t, documents_are_apart, 0, 6);
    tcase_add_test(t, tiles_add_up);
    tcase_add_test(t, many_ranks_equal_one);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
