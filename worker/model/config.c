/* config.c - reads config.json; see config.h. What families differ in is one row each of `families`; nothing else asks for a name. */
#include "worker/model/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum window_rule { WINDOW_NONE, WINDOW_ALL /* every layer, unless null */, WINDOW_UPPER /* use_sliding_window, layers from max_window_layers */ };

static const struct family {
    const char *type;
    bool qkv_bias;              /* always there */
    bool attention_bias;        /* the key attention_bias adds biases to q, k, v and o */
    bool mlp_bias;              /* the key mlp_bias adds biases to the MLP */
    bool qk_norm;
    int64_t head_dim;           /* when the key is absent; 0: hidden_size / num_attention_heads */
    enum window_rule window;
    int64_t max_positions;      /* when absent */
} families[] = {
    /*            qkv_b  attn_b mlp_b  qk_norm head_dim  window        max_pos */
    { "qwen2",    true,  false, false, false,  0,        WINDOW_UPPER, 32768 },
    { "qwen3",    false, true,  false, true,   128,      WINDOW_UPPER, 32768 },
    { "llama",    false, true,  true,  false,  0,        WINDOW_NONE,  2048 },
    { "mistral",  false, false, false, false,  0,        WINDOW_ALL,   131072 },
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

const char *const rope_type_names[ROPE_TYPES] = {
    [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear", [ROPE_DYNAMIC] = "dynamic", [ROPE_YARN] = "yarn", [ROPE_LLAMA3] = "llama3",
};

/* --- reading keys --- */
struct reader { const cJSON *object; const char *path, *prefix; struct error *err; };

static const cJSON *value_of(const struct reader *r, const char *key)
{
    const cJSON *v = json_get(r->object, key);
    return v && cJSON_IsNull(v) ? NULL : v;
}

static int bad(const struct reader *r, const char *key, const char *expected)
{
    const cJSON *v = json_get(r->object, key);
    char *text = v ? json_line(v) : xstrdup("nothing");
    int rc = error_set(r->err, E_INVALID, "%s: %s%s is %.120s, expected %s", r->path, r->prefix, key, text, expected);
    free(text);
    return rc;
}

/* absent < min means: required. */
static int get_int(const struct reader *r, const char *key, int64_t min, int64_t max, int64_t absent, int64_t *out)
{
    char expected[100];
    (void)snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)min, (long long)max);
    if (!value_of(r, key)) {
        if (absent < min) return bad(r, key, expected);
        *out = absent;
        return OK;
    }
    if (!json_int(r->object, key, out) || *out < min || *out > max) return bad(r, key, expected);
    return OK;
}

static int get_num(const struct reader *r, const char *key, double min, double max, double absent, double *out)
{
    const cJSON *v = value_of(r, key);
    *out = absent;
    if (!v && !isnan(absent)) return OK;
    char expected[100];
    (void)snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    if (!v || !json_number(v, out) || !(*out >= min && *out <= max)) return bad(r, key, expected);
    return OK;
}

static int get_bool(const struct reader *r, const char *key, bool absent, bool *out)
{
    const cJSON *v = value_of(r, key);
    *out = absent;
    if (!v) return OK;
    if (!cJSON_IsBool(v)) return bad(r, key, "true or false");
    *out = cJSON_IsTrue(v);
    return OK;
}

/* --- RoPE --- */
static int read_rope_type(const struct reader *r, enum rope_type *type)
{
    const char *name = json_str(r->object, "rope_type");
    if (!name) name = json_str(r->object, "type");
    *type = ROPE_DEFAULT;
    if (!name) return OK;
    for (int i = 0; i < ROPE_TYPES; i++) {
        if (strcmp(name, rope_type_names[i]) == 0) { *type = (enum rope_type)i; return OK; }
    }
    return error_set(r->err, E_UNSUPPORTED, "%s: %srope_type \"%.60s\" is not built; known: default, linear, dynamic, yarn, llama3", r->path, r->prefix, name);
}

static int read_rope(struct model_config *c, const struct reader *r)
{
    struct rope_config *p = &c->rope;
    double original;
    int rc = read_rope_type(r, &p->type);
    if (rc != OK) return rc;
    double partial;
    if ((rc = get_num(r, "partial_rotary_factor", 0, 1, 1, &partial)) != OK) return rc;
    if (partial != 1) return error_set(r->err, E_UNSUPPORTED, "%s: %spartial_rotary_factor %g: only 1 is built", r->path, r->prefix, partial);
    bool scaled = p->type != ROPE_DEFAULT;
    bool may_derive = p->type == ROPE_YARN && value_of(r, "original_max_position_embeddings");  /* then max_position_embeddings tells it */
    if ((rc = get_num(r, "original_max_position_embeddings", 1, 1 << 30, (double)c->max_positions, &original)) != OK
        || (rc = get_num(r, "factor", p->type == ROPE_LINEAR ? 1e-3 : 1, 1e6, scaled && !may_derive ? NAN : -1, &p->factor)) != OK
        || (rc = get_num(r, "attention_factor", 0, 1e3, -1, &p->attention_factor)) != OK
        || (rc = get_num(r, "beta_fast", 1e-3, 1e6, 32, &p->beta_fast)) != OK
        || (rc = get_num(r, "beta_slow", 1e-3, 1e6, 1, &p->beta_slow)) != OK
        || (rc = get_num(r, "mscale", 0, 1e3, 0, &p->mscale)) != OK
        || (rc = get_num(r, "mscale_all_dim", 0, 1e3, 0, &p->mscale_all_dim)) != OK
        || (rc = get_bool(r, "truncate", true, &p->truncate)) != OK
        || (rc = get_num(r, "low_freq_factor", 1e-3, 1e6, p->type == ROPE_LLAMA3 ? NAN : 1, &p->low_freq_factor)) != OK
        || (rc = get_num(r, "high_freq_factor", 1e-3, 1e6, p->type == ROPE_LLAMA3 ? NAN : 4, &p->high_freq_factor)) != OK)
        return rc;
    p->original_max = (int64_t)original;
    if (p->factor < 0) p->factor = may_derive ? (double)c->max_positions / original : 1;
    if (p->type == ROPE_LLAMA3 && p->high_freq_factor <= p->low_freq_factor) return bad(r, "high_freq_factor", "more than low_freq_factor");
    return OK;
}

/* What the saved config.json says the model can read. Not with dynamic scaling: there transformers takes it for the original length. */
static void set_max_positions(struct model_config *c, double len)
{
    if (c->rope.type == ROPE_DYNAMIC || !(len >= 1 && len <= 1 << 30)) return;
    c->max_positions = (int64_t)len;
    cJSON_DeleteItemFromObjectCaseSensitive(c->json, "max_position_embeddings");
    json_add_int(c->json, "max_position_embeddings", c->max_positions);
}

/* The spec's rope_scaling and max_model_len, with ms-swift's rules (its model_args.py, _init_rope_scaling): the factor is always from the
 * original length, so that a configuration saved and read again is not scaled twice; absent, it is ceil(max_model_len / original length).
 * The original length: what rope_scaling says, the new one before the model's own; else max_position_embeddings over the model's own factor. */
static int override_rope(struct model_config *c, const char *path, const struct spec *spec, bool new_spelling, struct error *err)
{
    cJSON *old = json_get(c->json, new_spelling ? "rope_parameters" : "rope_scaling");
    if (!cJSON_IsObject(old)) old = NULL;
    bool old_scaled = old && c->rope.type != ROPE_DEFAULT;
    if (!spec) return OK;
    if (!spec->rope_scaling && !(old_scaled && spec->max_model_len > 0)) {
        if (spec->max_model_len > 0) set_max_positions(c, (double)spec->max_model_len);
        return OK;
    }

    cJSON *now = cJSON_Duplicate(spec->rope_scaling ? spec->rope_scaling : old, 1);
    if (!spec->rope_scaling) cJSON_DeleteItemFromObjectCaseSensitive(now, "factor");
    if (!json_get(now, "rope_type") && json_str(now, "type")) json_add_str(now, "rope_type", json_str(now, "type"));
    struct reader r = { now, spec->rope_scaling ? "the spec" : path, spec->rope_scaling ? "/rope_scaling/" : "rope_scaling.", err };
    enum rope_type type;
    double original = (double)c->max_positions, v;
    int rc = read_rope_type(&r, &type);
    if (rc != OK) { cJSON_Delete(now); return rc; }
    if (old_scaled) {
        if (json_number(json_get(old, "original_max_position_embeddings"), &v) && v >= 1) original = v;
        else if (c->rope.type != ROPE_DYNAMIC && json_number(json_get(old, "factor"), &v) && v >= 1) original = fmax(floor((double)c->max_positions / v), 1);
    }
    if (json_number(json_get(now, "original_max_position_embeddings"), &v) && v >= 1) original = v;
    else if (type != ROPE_DEFAULT) json_add_num(now, "original_max_position_embeddings", original);
    if (type != ROPE_DEFAULT && !json_get(now, "factor")) {
        double len = spec->max_model_len > 0 ? (double)spec->max_model_len : 0;
        if (len == 0) {
            cJSON_Delete(now);
            return error_set(err, E_INVALID, "rope_scaling needs \"factor\", or max_model_len to compute it from");
        }
        json_add_num(now, "factor", fmax(ceil(len / original), 1));
    }
    if (new_spelling && !json_get(now, "rope_theta")) json_add_num(now, "rope_theta", c->rope.theta);
    r.object = now;
    rc = read_rope(c, &r);
    if (rc == OK && json_get(now, "rope_theta") && new_spelling) rc = get_num(&r, "rope_theta", 1.001, 1e12, c->rope.theta, &c->rope.theta);
    if (rc != OK) { cJSON_Delete(now); return rc; }
    const char *key = new_spelling ? "rope_parameters" : "rope_scaling";
    cJSON_DeleteItemFromObjectCaseSensitive(c->json, key);
    (void)cJSON_AddItemToObject(c->json, key, now);
    if (spec->max_model_len > 0) set_max_positions(c, (double)spec->max_model_len);
    else if (type != ROPE_DEFAULT) set_max_positions(c, floor(original * c->rope.factor));
    return OK;
}

/* --- sliding windows --- */
static int read_window(struct model_config *c, const struct reader *r, const struct family *f)
{
    int rc;
    bool use = true;
    int64_t upper = 0;
    c->window = 0;
    c->window_from = 0;
    if (f->window == WINDOW_NONE) return OK;
    if (f->window == WINDOW_UPPER) {
        if ((rc = get_bool(r, "use_sliding_window", false, &use)) != OK) return rc;
        if ((rc = get_int(r, "max_window_layers", 0, 1 << 20, 28, &upper)) != OK) return rc;
    }
    const cJSON *v = json_get(r->object, "sliding_window");
    if (!use || (v && cJSON_IsNull(v))) return OK;
    if ((rc = get_int(r, "sliding_window", 1, 1 << 30, 4096, &c->window)) != OK) return rc;
    const cJSON *types = value_of(r, "layer_types");
    if (f->window == WINDOW_UPPER && types) {       /* transformers 5 says it per layer; we take "full … full sliding … sliding" */
        if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != c->L) return bad(r, "layer_types", "one entry for each layer");
        int64_t i = 0, n_full = 0;
        bool sorted = true;
        for (const cJSON *t = types->child; t; t = t->next, i++) {
            bool sliding = cJSON_IsString(t) && strcmp(t->valuestring, "sliding_attention") == 0;
            if (!sliding && !(cJSON_IsString(t) && strcmp(t->valuestring, "full_attention") == 0))
                return bad(r, "layer_types", "\"full_attention\" or \"sliding_attention\" everywhere");
            if (!sliding) { n_full++; sorted = sorted && n_full == i + 1; }
        }
        if (!sorted) return error_set(r->err, E_UNSUPPORTED, "%s: layer_types mixes full and sliding layers; only full layers below, sliding above is built", r->path);
        upper = n_full;
    }
    c->window_from = upper;
    if (upper >= c->L) c->window = 0;
    return OK;
}

static int read_dtype(struct model_config *c, const struct reader *r)
{
    const char *key = value_of(r, "dtype") ? "dtype" : "torch_dtype";
    c->stored_dtype = DT_F32;
    if (!value_of(r, key)) return OK;
    const char *name = json_str(r->object, key);
    static const enum dtype known[] = { DT_F32, DT_BF16, DT_F16, DT_F64 };
    for (size_t i = 0; name && i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, dtype_name(known[i])) == 0) { c->stored_dtype = known[i]; return OK; }
    }
    return bad(r, key, "\"float32\", \"bfloat16\", \"float16\" or \"float64\"");
}

static int refuse_unbuilt(const struct reader *r)
{
    const char *act = json_str(r->object, "hidden_act");
    double v;
    if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return error_set(r->err, E_UNSUPPORTED, "%s: hidden_act \"%.60s\": only silu is built", r->path, act);
    if (json_number(json_get(r->object, "attention_dropout"), &v) && v != 0)
        return error_set(r->err, E_UNSUPPORTED, "%s: attention_dropout %g: only 0 is built", r->path, v);
    if (value_of(r, "quantization_config"))
        return error_set(r->err, E_UNSUPPORTED, "%s: quantization_config: quantised weights are not built; use the unquantised model", r->path);
    return OK;
}

int model_config_read(struct model_config *c, const char *dir, const struct spec *spec, struct error *err)
{
    *c = (struct model_config){ 0 };
    char *path = xasprintf("%s/config.json", dir);
    int rc = json_parse_file(&c->json, path, &json_limits_file, err);
    if (rc != OK) goto out;
    struct reader r = { c->json, path, "", err };
    if (!cJSON_IsObject(c->json)) { rc = error_set(err, E_INVALID, "%s: expected a JSON object", path); goto out; }

    const char *type = json_str(c->json, "model_type");
    if (!type) { rc = bad(&r, "model_type", "the name of a model family, e.g. \"qwen2\""); goto out; }
    const struct family *f = NULL;
    for (int i = 0; i < N_FAMILIES; i++) if (strcmp(type, families[i].type) == 0) f = &families[i];
    if (!f) {
        rc = error_set(err, E_UNSUPPORTED, "%s: model_type \"%.60s\" is not a family Ringmaster knows; known: qwen2, qwen3, llama, mistral", path, type);
        goto out;
    }
    (void)snprintf(c->model_type, sizeof c->model_type, "%s", f->type);
    if ((rc = refuse_unbuilt(&r)) != OK
        || (rc = get_int(&r, "num_hidden_layers", 1, 4096, -1, &c->L)) != OK
        || (rc = get_int(&r, "hidden_size", 1, 1 << 20, -1, &c->C)) != OK
        || (rc = get_int(&r, "intermediate_size", 1, 1 << 22, -1, &c->F)) != OK
        || (rc = get_int(&r, "vocab_size", 1, 1 << 24, -1, &c->V)) != OK
        || (rc = get_int(&r, "num_attention_heads", 1, 4096, -1, &c->H)) != OK
        || (rc = get_int(&r, "num_key_value_heads", 1, 4096, c->H, &c->Hkv)) != OK
        || (rc = get_int(&r, "max_position_embeddings", 1, 1 << 30, f->max_positions, &c->max_positions)) != OK
        || (rc = get_int(&r, "pad_token_id", -1, c->V - 1, -1, &c->pad_id)) != OK) goto out;
    if (c->H % c->Hkv != 0) { rc = bad(&r, "num_key_value_heads", "a divisor of num_attention_heads"); goto out; }
    int64_t head_dim = f->head_dim;
    if (!value_of(&r, "head_dim") && head_dim == 0) {
        if (c->C % c->H != 0) { rc = bad(&r, "num_attention_heads", "a divisor of hidden_size (or a head_dim)"); goto out; }
        head_dim = c->C / c->H;
    }
    if ((rc = get_int(&r, "head_dim", 1, 1024, head_dim, &c->D)) != OK) goto out;
    if (c->D < 2 || c->D % 2 != 0 || c->D > 1024) {
        rc = error_set(err, E_INVALID, "%s: head width %lld, expected an even number from 2 to 1024", path, (long long)c->D);
        goto out;
    }
    double eps, range;
    bool bias = false, mlp_bias = false;
    if ((rc = get_num(&r, "rms_norm_eps", 0, 1, 1e-6, &eps)) != OK
        || (rc = get_num(&r, "initializer_range", 0, 100, 0.02, &range)) != OK
        || (rc = get_bool(&r, "tie_word_embeddings", false, &c->tied)) != OK
        || (f->attention_bias && (rc = get_bool(&r, "attention_bias", false, &bias)) != OK)
        || (f->mlp_bias && (rc = get_bool(&r, "mlp_bias", false, &mlp_bias)) != OK)) goto out;
    c->eps = (float)eps;
    c->initializer_range = (float)range;
    c->qkv_bias = f->qkv_bias || bias;
    c->o_bias = bias;
    c->mlp_bias = mlp_bias;
    c->qk_norm = f->qk_norm;
    if ((rc = read_window(c, &r, f)) != OK || (rc = read_dtype(c, &r)) != OK) goto out;

    /* transformers 5: rope_parameters holds theta and scaling; before: rope_theta and rope_scaling. */
    const cJSON *params = value_of(&r, "rope_parameters"), *scaling = value_of(&r, "rope_scaling");
    if (params && !cJSON_IsObject(params)) { rc = bad(&r, "rope_parameters", "an object"); goto out; }
    if (scaling && !cJSON_IsObject(scaling)) { rc = bad(&r, "rope_scaling", "an object or null"); goto out; }
    double theta;
    if ((rc = get_num(&r, "rope_theta", 1.001, 1e12, 10000, &theta)) != OK) goto out;
    cJSON *empty = cJSON_CreateObject();
    struct reader rr = { params ? params : scaling ? scaling : empty, path, params ? "rope_parameters." : "rope_scaling.", err };
    rc = read_rope(c, &rr);
    if (rc == OK) rc = get_num(&rr, "rope_theta", 1.001, 1e12, theta, &c->rope.theta);
    cJSON_Delete(empty);
    if (rc == OK) rc = override_rope(c, path, spec, params != NULL, err);
out:
    free(path);
    if (rc != OK) model_config_release(c);
    return rc;
}

void model_config_release(struct model_config *c)
{
    cJSON_Delete(c->json);
    *c = (struct model_config){ 0 };
}

char *model_config_text(const struct model_config *c, enum dtype dt, bool tied)
{
    cJSON *j = cJSON_Duplicate(c->json, 1);
    const char *key = json_get(j, "dtype") ? "dtype" : "torch_dtype";
    cJSON_DeleteItemFromObjectCaseSensitive(j, key);
    json_add_str(j, key, dtype_name(dt));
    cJSON_DeleteItemFromObjectCaseSensitive(j, "tie_word_embeddings");
    (void)cJSON_AddBoolToObject(j, "tie_word_embeddings", tied);
    char *text = json_line(j);
    cJSON_Delete(j);
    return text;
}

enum dtype spec_dtype(const struct spec *spec)
{
    const char *name = spec->torch_dtype ? spec->torch_dtype : "bfloat16";
    return strcmp(name, "float32") == 0 ? DT_F32 : strcmp(name, "float64") == 0 ? DT_F64 : DT_BF16;     /* float64: tests alone; a spec cannot say it */
}
