/* weights.c - where the numbers come from and go to: safetensors, PEFT folders, random initialisation.
 *
 * A file is checked whole (names, shapes, types; nothing missing, nothing unknown) before its first byte reaches the model.
 * Random numbers depend on (seed, name of the tensor, index) alone: the same for any rank count, tuner and order. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/file.h"
#include "worker/model/decoder.h"
#include "worker/model/patterns.h"
#include "worker/model/safetensors.h"

enum { PIECE = 1 << 20 };                       /* elements moved at a time */
#define SHARD_BYTES ((int64_t)5 << 30)          /* Hugging Face's usual shard */

/* --- moving one tensor --- */
typedef int (*filler)(void *arg, void *out, int64_t from, int64_t n, struct error *err);       /* elements of type param_stored() */

static int fill_param(struct model *m, struct param *p, filler fill, void *arg, struct error *err)
{
    size_t size = dtype_size(param_stored(p));
    void *buf = xmalloc(PIECE * size);
    int rc = OK;
    m->err = err;
    for (int64_t i = 0; i < p->n && rc == OK; i += PIECE) {
        int64_t n = p->n - i < PIECE ? p->n - i : PIECE;
        rc = fill(arg, buf, i, n, err);
        if (rc == OK) rc = params_store(m, p, buf, i, n);
        if (rc == OK) rc = m->ops->stream_wait(m->s, err);
    }
    free(buf);
    return rc;
}

struct from_file { const struct safetensors *s; const struct st_tensor *t; enum dtype dt; };

static int fill_from_file(void *arg, void *out, int64_t from, int64_t n, struct error *err)
{
    const struct from_file *f = arg;
    return safetensors_get(f->s, f->t, f->dt, out, from, n, err);
}

/* --- random numbers --- */
static uint64_t mix(uint64_t x)         /* splitmix64's finaliser */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t name_seed(uint64_t seed, const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return mix(seed ^ mix(h));
}

static double uniform(uint64_t seed, uint64_t i) { return ((double)(mix(seed + i * 0xd1342543de82ef95u) >> 11) + 0.5) * 0x1p-53; }    /* in (0,1) */

struct from_seed { uint64_t seed; enum param_init init; double range; enum dtype dt; };

static void put(enum dtype dt, void *out, int64_t i, double x)
{
    if (dt == DT_BF16) ((bf16 *)out)[i] = f32_to_bf16((float)x);
    else ((float *)out)[i] = (float)x;
}

static int fill_from_seed(void *arg, void *out, int64_t from, int64_t n, struct error *err)
{
    const struct from_seed *f = arg;
    (void)err;
    #pragma omp parallel for schedule(static)
    for (int64_t k = from / 2; k <= (from + n - 1) / 2; k++) {          /* Box-Muller makes two at a time */
        uint64_t u = (uint64_t)k * 2;
        double x[2] = { f->init == INIT_ONE, f->init == INIT_ONE };
        if (f->init == INIT_KAIMING) for (int j = 0; j < 2; j++) x[j] = (2 * uniform(f->seed, u + (uint64_t)j) - 1) * f->range;
        if (f->init == INIT_NORMAL) {
            double r = f->range * sqrt(-2 * log(uniform(f->seed, u))), angle = 6.283185307179586477 * uniform(f->seed, u + 1);
            x[0] = r * cos(angle);
            x[1] = r * sin(angle);
        }
        for (int j = 0; j < 2; j++) if (2 * k + j >= from && 2 * k + j < from + n) put(f->dt, out, 2 * k + j - from, x[j]);
    }
    return OK;
}

static int init_param(struct model *m, struct param *p, uint64_t seed, struct error *err)
{
    struct from_seed f = { name_seed(seed, param_base_name(p)), p->init, (double)m->c->initializer_range, param_stored(p) };
    if (p->init == INIT_KAIMING) f.range = 1 / sqrt((double)p->dim[1]);
    return fill_param(m, p, fill_from_seed, &f, err);
}

/* DoRA: magnitudes start as the norms of the weights. */
static int dora_start(struct model *m)
{
    if (!m->dora) return OK;
    void *ones = xmalloc((unsigned long)m->widest * sizeof(float));
    for (int64_t i = 0; i < m->widest; i++) ((float *)ones)[i] = 1;
    int rc = model_op(m, "copy", m->ops->copy(m->s, m->ones, ones, (size_t)m->widest * sizeof(float)));
    if (rc == OK) rc = m->ops->stream_wait(m->s, m->err);
    free(ones);
    for (int64_t i = 0; i < m->c->L && rc == OK; i++) {
        for (int k = 0; k < LAYER_LINEARS && rc == OK; k++) {
            struct linear *l = layer_linear(&m->layers[i], k);
            if (l->mag) rc = dora_refresh(m, l, true);
        }
    }
    return rc;
}

/* Copies made from other tensors, once those are there. */
static int init_derived(struct model *m, struct error *err)
{
    m->err = err;
    for (int64_t i = 0; i < m->params.n; i++) {
        struct param *p = &m->params.v[i];
        const struct param *from = p->init == INIT_COPY ? &m->params.v[p->source] : NULL;
        if (!from) continue;
        TRY(model_op(m, "copy", m->ops->copy(m->s, p->w, from->w, (size_t)p->n * dtype_size(p->dt))));
        if (p->master) TRY(model_op(m, "cast", m->ops->cast(m->s, DT_F32, p->master, from->dt, from->w, p->n)));
    }
    return dora_start(m);
}

/* Embedding and trained matrices start as N(0, initializer_range) as in Hugging Face's _init_weights. */
int model_init_random(struct model *m, uint64_t seed, struct error *err)
{
    for (int64_t i = 0; i < m->params.n; i++) {
        struct param *p = &m->params.v[i];
        if (p->init != INIT_COPY && p->init != INIT_DORA) TRY(init_param(m, p, seed, err));
    }
    TRY(init_derived(m, err));
    return m->spec->adapter ? model_load_adapter(m, m->spec->adapter, err) : OK;
}

/* --- reading --- */
static int check_shape(const struct safetensors *s, const struct st_tensor *t, const struct param *p, struct error *err)
{
    if (t->ndim == p->ndim && t->dim[0] == p->dim[0] && (p->ndim == 1 || t->dim[1] == p->dim[1])) {
        if (t->dt == DT_F32 || t->dt == DT_BF16 || t->dt == DT_F16 || t->dt == DT_F64) return OK;
        return error_set(err, E_UNSUPPORTED, "%s: tensor %.200s is neither F32, BF16, F16 nor F64; quantised weights are not built", safetensors_file(s, t), t->name);
    }
    char found[128] = "", *at = found;
    for (int d = 0; d < t->ndim && d < 4; d++) at += snprintf(at, 24, "%s%lld", d ? "," : "", (long long)t->dim[d]);
    return error_set(err, E_INVALID, "%s: tensor %.200s has shape [%s], config.json asks for [%lld%s%.0lld]", safetensors_file(s, t), t->name, found, (long long)p->dim[0],
                     p->ndim == 2 ? "," : "", (long long)(p->ndim == 2 ? p->dim[1] : 0));
}

/* Which tensor of the file fills p when `adapter` parts are read, or base parts; NULL: p is not from such a file. */
static const char *wanted_name(const struct param *p, bool adapter)
{
    if (adapter) return p->adapter ? p->name : NULL;
    if (p->lora != LORA_NONE || p->init == INIT_COPY) return NULL;
    return param_base_name(p);
}

static bool ignorable(const struct model *m, const char *name)
{
    size_t n = strlen(name);
    return (m->c->tied && strcmp(name, "lm_head.weight") == 0) || (n > 20 && strcmp(name + n - 20, ".rotary_emb.inv_freq") == 0);
}

/* Every tensor asked for is there with its shape, and no other is. */
static int check_all(const struct model *m, const struct safetensors *s, const char *dir, bool adapter, struct error *err)
{
    const struct params *p = &m->params;
    int64_t n = safetensors_count(s), used = 0;
    bool *seen = xcalloc((unsigned long)n + 1, sizeof *seen);
    int rc = OK;
    for (int64_t i = 0; i < p->n && rc == OK; i++) {
        const char *name = wanted_name(&p->v[i], adapter);
        if (!name) continue;
        const struct st_tensor *t = safetensors_find(s, name);
        if (!t) rc = error_set(err, E_INVALID, "%s: tensor %.200s [%lld%s%.0lld] is missing", dir, name, (long long)p->v[i].dim[0], p->v[i].ndim == 2 ? "," : "",
                               (long long)(p->v[i].ndim == 2 ? p->v[i].dim[1] : 0));
        else rc = check_shape(s, t, &p->v[i], err);
        if (rc == OK) { seen[t - safetensors_at(s, 0)] = true; used++; }
    }
    for (int64_t i = 0; i < n && rc == OK && used < n; i++) {
        const struct st_tensor *t = safetensors_at(s, i);
        if (!seen[i] && (adapter || !ignorable(m, t->name)))
            rc = error_set(err, E_INVALID, "%s: tensor %.200s is not part of the model that %s describes", safetensors_file(s, t), t->name, adapter ? "the spec" : "config.json");
    }
    free(seen);
    return rc;
}

static int read_all(struct model *m, const struct safetensors *s, const char *dir, bool adapter, struct error *err)
{
    struct params *p = &m->params;
    int rc = check_all(m, s, dir, adapter, err);
    for (int64_t i = 0; i < p->n && rc == OK; i++) {
        const char *name = wanted_name(&p->v[i], adapter);
        if (!name) continue;
        struct from_file f = { s, safetensors_find(s, name), param_stored(&p->v[i]) };
        rc = fill_param(m, &p->v[i], fill_from_file, &f, err);
    }
    return rc;
}

static int read_dir(struct model *m, const char *dir, bool adapter, struct error *err)
{
    struct safetensors *s;
    int rc = safetensors_open(&s, dir, adapter ? "adapter_model" : "model", err);
    if (rc != OK) return rc;
    rc = read_all(m, s, dir, adapter, err);
    safetensors_close(s);
    return rc;
}

int model_load(struct model *m, const char *dir, struct error *err)
{
    TRY(read_dir(m, dir, false, err));
    for (int64_t i = 0; i < m->params.n; i++) {
        struct param *p = &m->params.v[i];
        if (p->lora == LORA_A || p->lora == LORA_B) TRY(init_param(m, p, (uint64_t)m->spec->seed, err));
    }
    TRY(init_derived(m, err));
    return m->spec->adapter ? model_load_adapter(m, m->spec->adapter, err) : OK;
}

/* Whatever the patterns are called, every module must come out with the same rank and scale. */
static int check_patterns(const struct model *m, const cJSON *j, const char *path, struct error *err)
{
    struct lora_patterns p;
    int rc = lora_patterns_open(&p, j, path, err);
    for (int64_t i = 0; i < m->c->L && rc == OK; i++) {
        for (int k = 0; k < LAYER_LINEARS && rc == OK; k++) {
            const struct linear *l = layer_linear(&m->layers[i], k);
            if (!l->A) continue;
            const char *name = param_base_name(l->w);
            char *module = xasprintf("%.*s", (int)(strlen(name) - strlen(".weight")), name);
            int64_t r;
            float scale;
            rc = lora_patterns_of(&p, module, m->spec->lora_rank, m->spec->lora_alpha, m->spec->use_rslora, &r, &scale, err);
            if (rc == OK && (r != l->r || scale != l->scale))
                rc = error_set(err, E_INVALID, "%s: rank %lld and scale %g of %s, the spec's rank_pattern and alpha_pattern give %lld and %g", path, (long long)r, (double)scale, module,
                               (long long)l->r, (double)l->scale);
            free(module);
        }
    }
    lora_patterns_release(&p);
    return rc;
}

/* The adapter's own words against the spec's: a silent difference would train or merge something else. */
static int check_adapter_config(const struct model *m, const char *dir, struct error *err)
{
    char *path = xasprintf("%s/adapter_config.json", dir);
    cJSON *j = NULL;
    int64_t r;
    int rc = json_parse_file(&j, path, &json_limits_file, err);
    if (rc != OK) goto out;
    const char *type = json_str(j, "peft_type"), *bias = json_str(j, "bias");
    double alpha = json_num(j, "lora_alpha", 8);
    if (!type || strcmp(type, "LORA") != 0) rc = error_set(err, E_UNSUPPORTED, "%s: peft_type is %.40s, only LORA is built", path, type ? type : "missing");
    else if (bias && strcmp(bias, "none") != 0) rc = error_set(err, E_UNSUPPORTED, "%s: bias is \"%.40s\", only \"none\" is built", path, bias);
    else if (!json_int(j, "r", &r) || r != m->spec->lora_rank) rc = error_set(err, E_INVALID, "%s: r differs from the spec's lora_rank %lld", path, (long long)m->spec->lora_rank);
    else if (fabs(alpha - m->spec->lora_alpha) > 1e-9) rc = error_set(err, E_INVALID, "%s: lora_alpha is %g, the spec's is %g", path, alpha, m->spec->lora_alpha);
    else if (json_bool(j, "use_rslora", false) != m->spec->use_rslora) rc = error_set(err, E_INVALID, "%s: use_rslora differs from the spec's", path);
    else if (json_bool(j, "use_dora", false) != m->dora) rc = error_set(err, E_INVALID, "%s: use_dora differs from the spec's", path);
    else rc = check_patterns(m, j, path, err);
out:
    cJSON_Delete(j);
    free(path);
    return rc;
}

int model_load_adapter(struct model *m, const char *dir, struct error *err)
{
    if (!m->lora) return error_set(err, E_INVALID, "adapter %s: the spec's tuner_type is not lora", dir);
    TRY(check_adapter_config(m, dir, err));
    TRY(read_dir(m, dir, true, err));
    return model_weights_changed(m, err);
}

static int check_dir(const struct model *m, const char *dir, bool adapter, struct error *err)
{
    struct safetensors *s;
    int rc = safetensors_open(&s, dir, adapter ? "adapter_model" : "model", err);
    if (rc != OK) return rc;
    rc = check_all(m, s, dir, adapter, err);
    safetensors_close(s);
    return rc;
}

int model_check_files(const struct model *m, struct error *err)
{
    int rc = strcmp(m->spec->init, "random") == 0 ? OK : check_dir(m, m->spec->model, false, err);
    if (rc == OK && m->spec->adapter && !m->lora) rc = error_set(err, E_INVALID, "adapter %s: the spec's tuner_type is not lora", m->spec->adapter);
    if (rc == OK && m->spec->adapter) rc = check_adapter_config(m, m->spec->adapter, err);
    return rc == OK && m->spec->adapter ? check_dir(m, m->spec->adapter, true, err) : rc;
}

int model_load_checkpoint(struct model *m, const char *dir, struct error *err)
{
    if (m->lora) return model_load_adapter(m, dir, err);
    TRY(read_dir(m, dir, false, err));
    return init_derived(m, err);
}

/* --- writing --- */
struct to_file { struct model *m; const void *w; int64_t shard_at; };    /* shard_at: with ZeRO 3, where it lies in the shards; else -1 */

static int read_device(void *arg, void *buf, int64_t off, int64_t bytes, struct error *err)
{
    const struct to_file *f = arg;
    f->m->err = err;
    if (f->shard_at >= 0) {
        int64_t size = (int64_t)dtype_size(f->m->dt);
        return zero_weights_read(f->m->shards, f->m->s, buf, f->shard_at + off / size, bytes / size, err);
    }
    TRY(model_op(f->m, "copy", f->m->ops->copy(f->m->s, buf, (const char *)f->w + off, (size_t)bytes)));
    return f->m->ops->stream_wait(f->m->s, err);
}

static int write_params(struct model *m, bool grads, const char *dir, const char *stem, const char *path, struct error *err)
{
    struct params *p = &m->params;
    struct st_source *t = xcalloc((unsigned long)p->n, sizeof *t);
    struct to_file *f = xcalloc((unsigned long)p->n, sizeof *f);
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++) {
        struct param *q = &p->v[i];
        if (grads ? !q->trained : m->lora && !q->adapter) continue;
        f[n] = (struct to_file){ m, grads ? q->g : q->master ? q->master : q->w, grads ? -1 : q->shard_at };
        t[n] = (struct st_source){ .name = q->name, .dt = grads ? DT_F32 : param_stored(q), .ndim = q->ndim, .dim = { q->dim[0], q->dim[1] }, .read = read_device, .arg = &f[n] };
        n++;
    }
    int rc = path ? safetensors_write(path, t, n, NULL, err) : safetensors_write_dir(dir, stem, t, n, SHARD_BYTES, err);
    free(t);
    free(f);
    return rc;
}

static bool listed(const cJSON *list, const char *name)
{
    for (const cJSON *e = list->child; e; e = e->next) if (strcmp(e->valuestring, name) == 0) return true;
    return false;
}

static void list_name(cJSON *list, const char *name)
{
    if (!listed(list, name)) (void)cJSON_AddItemToArray(list, cJSON_CreateString(name));
}

/* The spec's own words, with ms-swift's "all-…" spelt out as PEFT needs it. */
static cJSON *target_list(const struct model *m)
{
    cJSON *list = cJSON_CreateArray();
    const struct strlist *t = &m->spec->target_modules;
    for (int k = 0; k < t->n; k++) {
        if (strcmp(t->v[k], "all-linear") != 0) { list_name(list, t->v[k]); continue; }
        for (int64_t i = 0; i < m->params.n; i++) {
            if (m->params.v[i].lora != LORA_A) continue;
            char *s = xstrdup(m->params.v[i].name);             /* "….q_proj.lora_A.weight" */
            *strrchr(s, '.') = '\0';
            *strrchr(s, '.') = '\0';
            list_name(list, strrchr(s, '.') + 1);
            free(s);
        }
    }
    return list;
}

static cJSON *saved_list(const struct model *m)
{
    static const char *const norms[] = { "input_layernorm", "post_attention_layernorm", "norm", "q_norm", "k_norm" };
    cJSON *list = cJSON_CreateArray();
    const struct strlist *t = &m->spec->modules_to_save;
    for (int k = 0; k < t->n; k++) {
        if (strcmp(t->v[k], "all-embedding") == 0) list_name(list, "embed_tokens");
        else if (strcmp(t->v[k], "all-norm") == 0) for (int i = 0; i < (m->c->qk_norm ? 5 : 3); i++) list_name(list, norms[i]);
        else list_name(list, t->v[k]);
    }
    return list;
}

static char *adapter_config_text(const struct model *m)
{
    const struct spec *s = m->spec;
    cJSON *j = cJSON_CreateObject();
    json_add_str(j, "base_model_name_or_path", s->model);
    json_add_str(j, "bias", "none");
    (void)cJSON_AddBoolToObject(j, "fan_in_fan_out", false);
    (void)cJSON_AddBoolToObject(j, "inference_mode", true);
    (void)cJSON_AddBoolToObject(j, "init_lora_weights", true);
    json_add_num(j, "lora_alpha", s->lora_alpha);
    json_add_num(j, "lora_dropout", s->lora_dropout);
    cJSON *saved = saved_list(m);
    if (saved->child) (void)cJSON_AddItemToObject(j, "modules_to_save", saved);
    else { cJSON_Delete(saved); json_add_str(j, "modules_to_save", NULL); }
    json_add_str(j, "peft_type", "LORA");
    json_add_int(j, "r", s->lora_rank);
    for (const cJSON *v = m->peft->child; v; v = v->next) (void)cJSON_AddItemToObject(j, v->string, cJSON_Duplicate(v, true));
    if (s->target_modules.n == 1 && strpbrk(s->target_modules.v[0], "*+?()[]|^$\\")) json_add_str(j, "target_modules", s->target_modules.v[0]);
    else (void)cJSON_AddItemToObject(j, "target_modules", target_list(m));
    json_add_str(j, "task_type", "CAUSAL_LM");
    (void)cJSON_AddBoolToObject(j, "use_dora", m->dora);
    (void)cJSON_AddBoolToObject(j, "use_rslora", s->use_rslora);
    char *text = json_line(j);
    cJSON_Delete(j);
    return text;
}

int model_save(struct model *m, const char *dir, struct error *err)
{
    TRY(write_params(m, false, dir, m->lora ? "adapter_model" : "model", NULL, err));
    char *path = xasprintf("%s/%s", dir, m->lora ? "adapter_config.json" : "config.json");
    char *text = m->lora ? adapter_config_text(m) : model_config_text(m->c, m->dt, m->c->tied);
    int rc = file_write(path, text, strlen(text), err);
    free(path);
    free(text);
    return rc;
}

int model_save_grads(struct model *m, const char *path, struct error *err)
{
    return write_params(m, true, NULL, NULL, path, err);
}
