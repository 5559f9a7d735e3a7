#include "tests/parallel/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;
int64_t pick(int64_t lo, int64_t hi)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return lo + (int64_t)(state % (uint64_t)(hi - lo + 1));
}

void start_random(int seed)
{
    state = 0x9E3779B97F4A7C15u * (uint64_t)(seed + 1);
    for (int i = 0; i < 8; i++) (void)pick(0, 1);
}

struct config random_config(int seed)
{
    start_random(seed);
    struct config c = { .policy = (enum act_policy)pick(ACT_NONE, ACT_OFFLOAD_DISK) };
    struct model_config *m = &c.model;
    do {
        m->Hkv = pick(1, 4);
        m->H = m->Hkv * pick(1, 4);
        c.U = (int)pick(1, 8);
        c.R = (int)pick(1, 8);
        c.dp = (int)pick(1, 3);
    } while (c.U * c.R * c.dp > WORLD || c.U * c.R * c.dp == 1 || m->H % c.U != 0 || (m->Hkv % c.U != 0 && c.U % m->Hkv != 0));
    c.accumulation = (int)pick(1, 3);
    c.zero = (int)pick(0, 3);
    c.lora = pick(0, 2) == 0;
    c.overlap = pick(0, 1);
    c.last_quarter = pick(0, 3) == 0;
    (void)snprintf(m->model_type, sizeof m->model_type, "qwen2");
    m->L = pick(1, 3), m->C = 16 * pick(2, 4), m->F = 16 * pick(2, 4), m->V = pick(20, 50), m->D = 2 * pick(4, 16);
    m->max_positions = 4096, m->eps = 1e-6f, m->initializer_range = 0.06f;
    m->tied = pick(0, 1), m->qkv_bias = pick(0, 1), m->qk_norm = pick(0, 1);
    m->rope = (struct rope_config){ .type = ROPE_DEFAULT, .theta = 1000, .factor = 1, .attention_factor = -1 };
    if (pick(0, 4) == 0) m->window = pick(2, 20), m->window_from = pick(0, 1);
    return c;
}

struct row random_row(int seed, const struct config *c, int i, int d)
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

void row_release(struct row *r) { free(r->ids), free(r->labels), free(r->positions), free(r->weights), free(r->cu); }

/* Weights by position alone, the same everywhere and in every type; LoRA's B would start at zero. */
static int fill(struct rig *r, struct error *err)
{
    struct params *ps = model_params(r->m);
    r->m->err = err;
    for (int64_t i = 0; i < ps->n; i++) {
        struct param *q = &ps->v[i];
        double *x = xmalloc((unsigned long)q->n * sizeof *x);
        float *f = xmalloc((unsigned long)q->n * sizeof *f);
        start_random((int)i + 99);
        for (int64_t k = 0; k < q->n; k++) x[k] = (double)(f[k] = (q->init == INIT_ONE ? 1.0f : 0.0f) + (float)pick(-1000, 1000) * 0.7e-4f);
        int rc = params_store(r->m, q, q->dt == DT_F64 ? (void *)x : (void *)f, 0, q->n);
        free(x);
        free(f);
        if (rc != OK) return rc;
    }
    return model_weights_changed(r->m, err);
}

int rig_open(struct rig *r, const struct config *c, const struct kernel_ops *ops, enum dtype dt, int world, int rank, int U, int R, struct comm_world *w, struct error *err)
{
    char text[1000];
    struct problems p = { 0 };
    *r = (struct rig){ 0 };
    const char *tmp = getenv("TMPDIR");
    int n = snprintf(text, sizeof text, "{\"model\":\"x\",\"dataset\":[\"x\"],\"output_dir\":\"%s\",\"max_length\":5040,\"torch_dtype\":\"float32\",\"tuner_type\":\"%s\",\"lora_rank\":3,\"lora_alpha\":3,"
                     "\"nproc_per_node\":%d,\"ulysses_size\":%d,\"ring_size\":%d,\"sequence_parallel_method\":\"hybrid\",\"enable_sequence_overlap\":%s,\"zero_stage\":%d}",
                     tmp ? tmp : "/tmp", c->lora ? "lora" : "full", world, U, R, c->overlap ? "true" : "false", world > 1 ? c->zero : 0);
    if (spec_parse(&r->spec, text, (size_t)n, &p) != OK) return error_set(err, E_INVALID, "spec: %s", p.v[0].message);
    if (dt == DT_F64) {
        free(r->spec.torch_dtype);
        r->spec.torch_dtype = xstrdup("float64");
    }
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
    return rc == OK ? fill(r, err) : rc;
}

void rig_close(struct rig *r)
{
    model_free(r->m);
    if (r->s) kernel_ops_cpu()->stream_free(r->s);
    for (int i = 0; i < MEM_PLACES; i++) {
        arena_release_all(&r->arenas[i]);
        free(r->memory[i]);
    }
    spec_release(&r->spec);
}

int world_of_one(struct comm_world **w, struct error *err)
{
    return comm_open_with(w, &comm_transport_shm, kernel_ops_cpu(), NULL, 0, 1, SHARED, 1000, err);
}
