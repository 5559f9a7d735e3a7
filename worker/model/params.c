/* params.c - which tensors a model has, what they are called, which are trained; see params.h.
 *
 * Names are Hugging Face's; LoRA parts and modules_to_save carry PEFT's. Order: embedding, layers (attention, MLP, norms), final
 * norm, head; the adapter of a linear follows it. */
#include "worker/model/params.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/model/decoder.h"
#include "worker/model/patterns.h"
#include "worker/model/targets.h"

enum { FLAT_ALIGN = 64 };
#define PEFT_PREFIX "base_model.model."

struct param *params_find(const struct params *p, const char *name)
{
    for (int64_t i = 0; i < p->n; i++) if (strcmp(p->v[i].name, name) == 0) return &p->v[i];
    return NULL;
}

const char *param_base_name(const struct param *p)
{
    size_t n = strlen(PEFT_PREFIX);
    return strncmp(p->name, PEFT_PREFIX, n) == 0 ? p->name + n : p->name;
}

/* Hugging Face's rule: no decay for anything named bias or norm. */
static bool decays(const char *name)
{
    size_t n = strlen(name);
    if (n >= 5 && strcmp(name + n - 5, ".bias") == 0) return false;
    return strstr(name, "norm.weight") == NULL;
}

static struct param *add(struct model *m, char *name, int64_t d0, int64_t d1, enum param_init init)
{
    struct params *p = &m->params;
    if (p->n == m->cap_params) abort();         /* params_build's bound is wrong: our bug */
    struct param *q = &p->v[p->n++];
    *q = (struct param){ .name = name, .ndim = d1 > 0 ? 2 : 1, .dim = { d0, d1 }, .n = d1 > 0 ? d0 * d1 : d0, .dt = m->dt, .at = -1,
                         .shard_at = -1, .init = init, .source = -1 };
    q->decay = decays(name);
    return q;
}

/* A tensor of the base model: trained when everything is, or when its module is in modules_to_save. */
static struct param *add_base(struct model *m, struct targets *t, const char *module, const char *leaf, int64_t d0, int64_t d1, enum param_init init)
{
    bool saved = m->lora && targets_saved(t, module);
    struct param *q = add(m, xasprintf("%s%s.%s", saved ? PEFT_PREFIX : "", module, leaf), d0, d1, init);
    q->trained = !m->lora || saved;
    q->adapter = saved;
    return q;
}

/* How the adapters are laid out: who has one, and of what rank. */
struct adapters { struct targets targets; struct lora_patterns patterns; };

/* The spec's rank_pattern and alpha_pattern; where it names none, those of the adapter (or checkpoint) it starts from. */
static int open_patterns(struct model *m, struct lora_patterns *p, struct error *err)
{
    static const char *const names[] = { "rank_pattern", "alpha_pattern" };
    const cJSON *const own[] = { m->spec->rank_pattern, m->spec->alpha_pattern };
    const char *dir = m->spec->adapter ? m->spec->adapter : m->spec->resume_from_checkpoint;
    char *path = dir ? xasprintf("%s/adapter_config.json", dir) : NULL;
    cJSON *theirs = NULL;
    int rc = path && access(path, F_OK) == 0 ? json_parse_file(&theirs, path, &json_limits_file, err) : OK;
    m->peft = cJSON_CreateObject();
    for (int i = 0; i < 2 && rc == OK; i++) {
        const cJSON *from = own[i] ? own[i] : theirs ? json_get(theirs, names[i]) : NULL;
        if (from && from->child) (void)cJSON_AddItemToObject(m->peft, names[i], cJSON_Duplicate(from, true));
    }
    if (rc == OK) rc = lora_patterns_open(p, m->peft, own[0] || own[1] || !path ? "" : path, err);
    cJSON_Delete(theirs);
    free(path);
    return rc;
}

/* What a spec names must be there; an adapter's file may name modules of other models. */
static int patterns_all_used(const struct model *m, const struct lora_patterns *p, struct error *err)
{
    const char *rank = m->spec->rank_pattern ? patterns_unused(&p->rank) : NULL, *alpha = m->spec->alpha_pattern ? patterns_unused(&p->alpha) : NULL;
    if (!rank && !alpha) return OK;
    return error_set(err, E_INVALID, "%s: \"%.200s\" matches no layer with an adapter, or an earlier pattern took all of them", rank ? "rank_pattern" : "alpha_pattern", rank ? rank : alpha);
}

static int add_linear(struct model *m, struct adapters *ad, struct linear *l, char *module, int64_t out, int64_t in, bool bias, struct error *err)
{
    *l = (struct linear){ .in = in, .out = out, .id = m->n_linears++ };
    l->w = add_base(m, &ad->targets, module, "weight", out, in, INIT_NORMAL);
    if (bias) l->b = add_base(m, &ad->targets, module, "bias", out, 0, INIT_ZERO);
    bool wanted = false;
    int rc = m->lora ? targets_match(&ad->targets, module, &wanted, err) : OK;
    if (rc == OK && wanted) rc = lora_patterns_of(&ad->patterns, module, m->spec->lora_rank, m->spec->lora_alpha, m->spec->use_rslora, &l->r, &l->scale, err);
    if (rc == OK && wanted) {
        if (l->r > m->max_r) m->max_r = l->r;
        l->A = add(m, xasprintf(PEFT_PREFIX "%s.lora_A.weight", module), l->r, in, INIT_KAIMING);
        l->A->dt = m->params.dt;
        l->A->lora = LORA_A;
        l->B = add(m, xasprintf(PEFT_PREFIX "%s.lora_B.weight", module), out, l->r, INIT_ZERO);
        l->B->dt = m->params.dt;
        l->B->lora = LORA_B;
        l->A->trained = l->B->trained = l->A->adapter = l->B->adapter = true;
        if (m->dora) {
            l->mag = add(m, xasprintf(PEFT_PREFIX "%s.lora_magnitude_vector", module), out, 0, INIT_DORA);
            l->mag->dt = m->params.dt;
            l->mag->lora = LORA_MAGNITUDE;
            l->mag->trained = l->mag->adapter = true;
            l->mag->source = l->w - m->params.v;
        }
    }
    free(module);
    return rc;
}

static int add_layer(struct model *m, struct adapters *ad, int64_t i, struct error *err)
{
    const struct model_config *c = m->c;
    struct layer *l = &m->layers[i];
    struct { struct linear *l; const char *name; int64_t out, in; bool bias; } lin[] = {
        { &l->q, "self_attn.q_proj", c->H * c->D, c->C, c->qkv_bias },
        { &l->k, "self_attn.k_proj", c->Hkv * c->D, c->C, c->qkv_bias },
        { &l->v, "self_attn.v_proj", c->Hkv * c->D, c->C, c->qkv_bias },
        { &l->o, "self_attn.o_proj", c->C, c->H * c->D, c->o_bias },
        { &l->gate, "mlp.gate_proj", c->F, c->C, c->mlp_bias },
        { &l->up, "mlp.up_proj", c->F, c->C, c->mlp_bias },
        { &l->down, "mlp.down_proj", c->C, c->F, c->mlp_bias },
    };
    for (size_t k = 0; k < sizeof lin / sizeof lin[0]; k++)
        TRY(add_linear(m, ad, lin[k].l, xasprintf("model.layers.%lld.%s", (long long)i, lin[k].name), lin[k].out, lin[k].in, lin[k].bias, err));
    struct { struct param **p; const char *name; int64_t n; } norms[] = {
        { &l->norm1, "input_layernorm", c->C }, { &l->norm2, "post_attention_layernorm", c->C },
        { &l->qnorm, "self_attn.q_norm", c->qk_norm ? c->D : 0 }, { &l->knorm, "self_attn.k_norm", c->qk_norm ? c->D : 0 },
    };
    for (size_t k = 0; k < sizeof norms / sizeof norms[0]; k++) {
        if (norms[k].n == 0) continue;
        char *module = xasprintf("model.layers.%lld.%s", (long long)i, norms[k].name);
        *norms[k].p = add_base(m, &ad->targets, module, "weight", norms[k].n, 0, INIT_ONE);
        free(module);
    }
    return OK;
}

/* A unit's range of the flat vector, or of the one that shards weights. Tied, the embedding is open from the head's backward to its own; untied
 * the two never meet. */
static struct zero_unit unit_range(const struct model *m, int64_t unit, bool weights)
{
    const struct params *p = &m->params;
    int64_t last = m->c->L + 1, from = -1, to = 0;
    for (int64_t i = m->unit_first[unit]; i < m->unit_first[unit + 1]; i++) {
        int64_t at = weights ? p->v[i].shard_at : p->v[i].at;
        if (at < 0) continue;
        if (from < 0) from = at;
        to = at + p->v[i].n;
    }
    return (struct zero_unit){ from < 0 ? 0 : from, from < 0 ? 0 : to - from, unit == 0 ? 0 : unit < last ? 1 + (int)(unit % 2) : m->head == m->embed ? 3 : 0 };
}

static struct zero_unit *all_units(const struct model *m, bool weights, int *n)
{
    *n = (int)m->c->L + 2;
    struct zero_unit *units = xmalloc((unsigned long)*n * sizeof *units);
    for (int i = 0; i < *n; i++) units[i] = unit_range(m, i, weights);
    return units;
}

static bool shards_weights(const struct model *m) { return m->spec->zero_stage >= 3 && m->mesh->world > 1; }

/* Everything when everything is trained; with adapters, which are small and stay whole, the frozen base. */
static int take_shards(struct model *m, struct arena *device, struct arena *shared, struct error *err)
{
    struct params *p = &m->params;
    int64_t n = 0, step = FLAT_ALIGN * (int64_t)m->mesh->world, hi;
    if (m->dora) return error_set(err, E_UNSUPPORTED, "zero_stage 3 with use_dora: its norms need whole matrices; use zero_stage 2");
    if (m->lora && m->head != m->embed && m->head->init == INIT_COPY)
        return error_set(err, E_UNSUPPORTED, "zero_stage 3 with a tied embedding in modules_to_save is not built; use zero_stage 2");
    for (int64_t i = 0; i < p->n; i++) {
        struct param *q = &p->v[i];
        if (m->lora && q->trained) continue;
        q->shard_at = n;
        n += (q->n + FLAT_ALIGN - 1) / FLAT_ALIGN * FLAT_ALIGN;
    }
    n = (n + step - 1) / step * step;
    int n_units;
    struct zero_unit *units = all_units(m, true, &n_units);
    int rc = zero_weights_new(&m->shards, m->ops, m->mesh, m->dt, n, units, n_units, device, shared, err);
    free(units);
    if (rc == OK && !m->lora) {
        p->flat_w = zero_weights_shard(m->shards, &p->w_at, &hi);
        p->n_w = hi - p->w_at;
    }
    return rc;
}

/* Whole gradients, or with ZeRO 2 a shard and buckets. A single rank needs those only to keep gradients out of a device's memory. */
static int take_grads(struct model *m, struct arena *device, struct arena *shared, struct arena *host, struct error *err)
{
    struct params *p = &m->params;
    bool away = m->spec->zero_offload_gradients;
    if (away && m->spec->zero_stage < 2)
        return error_set(err, E_UNSUPPORTED, "zero_offload_gradients with zero_stage %lld: gradients are in shards with 2 and 3", (long long)m->spec->zero_stage);
    p->n_g = p->n_flat;
    if (m->spec->zero_stage < 2 || (m->mesh->world == 1 && (!away || m->ops == kernel_ops_cpu()))) {
        p->flat_g = arena_take(away ? host : device, MEM_GRADIENTS, DT_F32, p->n_flat, 0, 0, 0, "gradients");
        return OK;
    }
    int n;
    struct zero_unit *units = all_units(m, false, &n);
    int64_t hi;
    zero_shard(m->mesh, 2, p->n_flat, &p->g_at, &hi);
    p->n_g = hi - p->g_at;
    int rc = zero_new(&m->zero, m->ops, m->mesh, p->n_flat, units, n, device, shared, away ? host : NULL, err);
    if (rc == OK) {
        p->flat_g = zero_gradients(m->zero);
        p->g_stage = zero_largest_stage(m->zero, &p->n_g_stage);
    }
    free(units);
    return rc;
}

/* Places: the flat vector, then the frozen tensors one by one. */
static int place(struct model *m, struct arena *device, struct arena *shared, struct arena *host, struct error *err)
{
    struct params *p = &m->params;
    for (int64_t i = 0; i < p->n; i++) {
        struct param *q = &p->v[i];
        p->n_total += q->n;
        if (!q->trained) continue;
        p->n_trained += q->n;
        q->at = p->n_flat;
        p->n_flat += (q->n + FLAT_ALIGN - 1) / FLAT_ALIGN * FLAT_ALIGN;
    }
    int64_t step = FLAT_ALIGN * (int64_t)m->mesh->world;
    p->n_flat = (p->n_flat + step - 1) / step * step;
    bool shards = shards_weights(m);
    p->n_w = p->n_flat;
    if (shards) TRY(take_shards(m, device, shared, err));
    if (!shards || m->lora) p->flat_w = arena_take(device, MEM_WEIGHTS, p->dt, p->n_flat, 0, 0, 0, "weights.trained");
    TRY(take_grads(m, device, shared, host, err));
    for (int64_t i = 0; i < p->n; i++) {
        struct param *q = &p->v[i];
        if (q->shard_at >= 0) continue;
        if (!q->trained) q->w = arena_take(device, MEM_WEIGHTS, q->dt, q->dim[0], q->dim[1], 0, 0, "%s", q->name);
        else if (p->flat_w || m->planning) {
            char *at = p->flat_w ? (char *)p->flat_w + q->at * (int64_t)dtype_size(p->dt) : NULL;
            if (q->dt == p->dt) q->w = at;
            else {                              /* modules_to_save beside f32 adapters */
                q->master = (float *)(void *)at;
                q->w = arena_take(device, MEM_WEIGHTS, q->dt, q->dim[0], q->dim[1], 0, 0, "%s", q->name);
            }
            q->g = m->zero || !p->flat_g ? NULL : p->flat_g + q->at;
        }
    }
    return OK;
}

int params_open_grads(struct model *m, int64_t unit)
{
    if (!m->zero) return OK;
    float *g;
    TRY(zero_open(m->zero, m->s, (int)unit, &g, m->err));
    int64_t at = unit_range(m, unit, false).at;
    for (int64_t i = m->unit_first[unit]; i < m->unit_first[unit + 1]; i++)
        if (m->params.v[i].trained) m->params.v[i].g = g + (m->params.v[i].at - at);
    return OK;
}

int params_close_grads(struct model *m, int64_t unit)
{
    if (!m->zero) return OK;
    for (int64_t i = m->unit_first[unit]; i < m->unit_first[unit + 1]; i++) m->params.v[i].g = NULL;
    return zero_close(m->zero, m->s, (int)unit, m->err);
}

int params_open(struct model *m, int64_t unit, int64_t next)
{
    if (!m->shards) return OK;
    void *w;
    TRY(zero_weights_open(m->shards, m->s, (int)unit, (int)next, &w, m->err));
    int64_t at = unit_range(m, unit, true).at;
    for (int64_t i = m->unit_first[unit]; i < m->unit_first[unit + 1]; i++) {
        struct param *q = &m->params.v[i];
        if (q->shard_at >= 0) q->w = (char *)w + (size_t)(q->shard_at - at) * dtype_size(m->dt);
    }
    return OK;
}

void params_close(struct model *m, int64_t unit)
{
    if (!m->shards) return;
    for (int64_t i = m->unit_first[unit]; i < m->unit_first[unit + 1]; i++)
        if (m->params.v[i].shard_at >= 0) m->params.v[i].w = NULL;
    zero_weights_close(m->shards, (int)unit);
}

int params_store(struct model *m, const struct param *p, const void *host, int64_t from, int64_t n)
{
    size_t size = dtype_size(param_stored(p));
    if (p->master) {
        TRY(model_op(m, "copy", m->ops->copy(m->s, p->master + from, host, (size_t)n * size)));
        return model_op(m, "cast", m->ops->cast(m->s, p->dt, (char *)p->w + (size_t)from * dtype_size(p->dt), DT_F32, p->master + from, n));
    }
    if (p->shard_at < 0) return model_op(m, "copy", m->ops->copy(m->s, (char *)p->w + (size_t)from * size, host, (size_t)n * size));
    int64_t lo, hi, at = p->shard_at + from;
    char *shard = zero_weights_shard(m->shards, &lo, &hi);
    int64_t a = at > lo ? at : lo, b = at + n < hi ? at + n : hi;
    if (a >= b) return OK;
    return model_op(m, "copy", m->ops->copy(m->s, shard + (size_t)(a - lo) * size, (const char *)host + (size_t)(a - at) * size, (size_t)(b - a) * size));
}

int params_refresh(struct model *m)
{
    for (int64_t i = 0; i < m->params.n; i++) {
        const struct param *p = &m->params.v[i];
        if (p->master) TRY(model_op(m, "cast", m->ops->cast(m->s, p->dt, p->w, DT_F32, p->master, p->n)));
    }
    return OK;
}

int params_build(struct model *m, struct arena *device, struct arena *shared, struct arena *host, struct error *err)
{
    const struct model_config *c = m->c;
    struct params *p = &m->params;
    struct adapters ad = { 0 };
    struct targets *t = &ad.targets;
    int rc = targets_init(t, m->spec, err);
    if (rc != OK) return rc;
    if (m->lora && (rc = open_patterns(m, &ad.patterns, err)) != OK) {
        targets_release(t);
        return rc;
    }
    m->cap_params = c->L * (7 * 5 + 4) + 3;
    p->v = xcalloc((unsigned long)m->cap_params, sizeof *p->v);
    p->dt = m->lora && m->dt != DT_F64 ? DT_F32 : m->dt;        /* see linear.c */

    /* With a tied head the two are one tensor, unless an adapter trains one of them whole: then each has its own. */
    bool untie = c->tied && m->lora && (targets_saved(t, "model.embed_tokens") || targets_saved(t, "lm_head"));
    m->embed = add_base(m, t, "model.embed_tokens", "weight", c->V, c->C, INIT_NORMAL);
    m->unit_first = xcalloc((unsigned long)c->L + 3, sizeof *m->unit_first);
    for (int64_t i = 0; i < c->L && rc == OK; i++) {
        m->unit_first[i + 1] = p->n;
        rc = add_layer(m, &ad, i, err);
    }
    m->unit_first[c->L + 1] = p->n;
    m->norm = add_base(m, t, "model.norm", "weight", c->C, 0, INIT_ONE);
    m->head = m->embed;
    if (!c->tied || untie) m->head = add_base(m, t, "lm_head", "weight", c->V, c->C, untie ? INIT_COPY : INIT_NORMAL);
    if (untie) m->head->source = m->embed - p->v;
    if (rc == OK && m->lora) rc = targets_all_used(t, err);
    if (rc == OK) rc = patterns_all_used(m, &ad.patterns, err);
    targets_release(t);
    lora_patterns_release(&ad.patterns);
    m->unit_first[c->L + 2] = p->n;
    return rc == OK ? place(m, device, shared, host, err) : rc;
}

void params_release(struct params *p)
{
    for (int64_t i = 0; i < p->n; i++) free(p->v[i].name);
    free(p->v);
    *p = (struct params){ 0 };
}
