/* Every gradient of the whole decoder on many ranks equals one rank's, for random heads, degrees, documents, labels, data-parallel
 * sizes, accumulation, policies, full and LoRA. Eight ranks are forked once and run all configurations; each rank also computes the
 * single-rank answer for itself. RM_SEED=n runs configuration n alone. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/comm/ranks.h"
#include "worker/model/model.h"

enum { WORLD = 8, CONFIGS = 200, SHARED = 8 << 20, MAX_T = 96, MAX_DOCS = 40 };

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
    c.zero = (int)pick(0, 1) * 2;
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
    for (int64_t i = 0; i < ps->n; i++) {                       /* LoRA's B starts at zero, norms at one: move everything a little */
        struct param *q = &ps->v[i];
        start_random((int)i + 99);
        for (int64_t k = 0; k < q->n && q->trained; k++) ((float *)q->w)[k] += (float)pick(-1000, 1000) * 3e-5f;
    }
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

static int64_t sent(const struct comm_world *w)
{
    struct comm_count n[COMM_KINDS];
    comm_counts(w, n);
    return n[COMM_ALL_TO_ALL].bytes + n[COMM_HOP].bytes;
}

static int64_t reduced_bytes(const struct comm_world *w)
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

START_TEST(many_ranks_equal_one) { ck_assert_int_eq(ranks_run(WORLD, kernel_ops_cpu(), SHARED, 20000, all_configs, NULL), 0); } END_TEST

int main(void)
{
    Suite *s = suite_create("engine");
    TCase *t = tcase_create("engine");
    tcase_set_timeout(t, 100);
    tcase_add_test(t, many_ranks_equal_one);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
