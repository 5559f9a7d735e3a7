/* merge.c - see merge.h. Tensors stream from the base's files to the new ones; only one piece is in memory at a time. */
#include "worker/model/merge.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/file.h"
#include "worker/model/config.h"
#include "worker/model/patterns.h"
#include "worker/model/safetensors.h"

#define PREFIX "base_model.model."
#define SHARD_BYTES ((int64_t)5 << 30)
enum { SMALL_FILE = 64 << 20 };

/* What happens to one tensor of the base. */
struct part {
    const struct safetensors *file;
    const struct st_tensor *t;          /* the base's, or the whole replacement */
    enum dtype dt;                      /* to store */
    const struct safetensors *afile;
    int64_t r;
    float scale, *A, *B, *mag, *norm;   /* A [r,in], B [out,r], mag, norm [out]; A NULL: a plain copy */
};

struct merge {
    struct safetensors *base, *adapter;
    struct model_config config;
    cJSON *settings;                    /* adapter_config.json */
    char *settings_path;
    double alpha, rank;
    struct lora_patterns patterns;
    bool rslora, dora, untied;
    bool *used;                         /* by adapter tensor */
    struct st_source *sources;
    struct part *parts;
    char **names;
    int64_t n;
};

static const struct st_tensor *adapter_find(struct merge *m, const char *module, size_t len, const char *leaf)
{
    char *name = xasprintf(PREFIX "%.*s%s", (int)len, module, leaf);
    const struct st_tensor *t = safetensors_find(m->adapter, name);
    if (t) m->used[t - safetensors_at(m->adapter, 0)] = true;
    free(name);
    return t;
}

static int load(struct merge *m, const struct st_tensor *t, float **out, struct error *err)
{
    *out = xmalloc((unsigned long)(t->n + 1) * sizeof **out);
    return safetensors_get(m->adapter, t, DT_F32, *out, 0, t->n, err);
}

/* row[in] = W[o,:] + s B[o,:] A in f32. */
static int merged_row(const struct part *p, int64_t o, float *row, struct error *err)
{
    int64_t in = p->t->dim[1];
    int rc = safetensors_get(p->file, p->t, DT_F32, row, o * in, in, err);
    for (int64_t k = 0; k < p->r && rc == OK; k++) {
        float b = p->scale * p->B[o * p->r + k];
        const float *a = p->A + k * in;
        for (int64_t i = 0; i < in; i++) row[i] += b * a[i];
    }
    return rc;
}

static int find_norms(struct part *p, struct error *err)
{
    int64_t out = p->t->dim[0], in = p->t->dim[1];
    float *row = xmalloc((unsigned long)(in + 1) * sizeof *row);
    int rc = OK;
    p->norm = xmalloc((unsigned long)out * sizeof *p->norm);
    for (int64_t o = 0; o < out && rc == OK; o++) {
        double sum = 0;
        rc = merged_row(p, o, row, err);
        for (int64_t i = 0; i < in; i++) sum += (double)row[i] * (double)row[i];
        p->norm[o] = (float)sqrt(sum);
    }
    free(row);
    return rc;
}

static int prepare(struct merge *m, struct part *p, const char *name, struct error *err)
{
    size_t len = strlen(name), tail = strlen(".weight");
    if (len <= tail || strcmp(name + len - tail, ".weight") != 0) return OK;
    const struct st_tensor *A = adapter_find(m, name, len - tail, ".lora_A.weight"), *B = adapter_find(m, name, len - tail, ".lora_B.weight");
    const struct st_tensor *mag = adapter_find(m, name, len - tail, ".lora_magnitude_vector");
    if (!A && !B && !mag) return OK;
    if (!A || !B || A->ndim != 2 || B->ndim != 2 || p->t->ndim != 2 || A->dim[1] != p->t->dim[1] || B->dim[0] != p->t->dim[0] || A->dim[0] != B->dim[1] || A->dim[0] < 1
        || (mag != NULL) != m->dora || (mag && mag->n != p->t->dim[0]))
        return error_set(err, E_INVALID, "%s: the adapter of %.200s does not fit a weight of [%lld,%lld]", safetensors_file(m->adapter, A ? A : B ? B : mag), name,
                         (long long)p->t->dim[0], (long long)p->t->dim[1]);
    p->afile = m->adapter;
    p->r = A->dim[0];
    int64_t r;
    char *module = xasprintf("%.*s", (int)(len - tail), name);
    int rc = lora_patterns_of(&m->patterns, module, (int64_t)m->rank, m->alpha, m->rslora, &r, &p->scale, err);
    free(module);
    if (rc == OK && r != p->r)
        rc = error_set(err, E_INVALID, "%s: the adapter of %.200s has rank %lld, %s says %lld", safetensors_file(m->adapter, A), name, (long long)p->r, m->settings_path, (long long)r);
    if (rc == OK) rc = load(m, A, &p->A, err);
    if (rc == OK) rc = load(m, B, &p->B, err);
    if (rc == OK && mag) rc = load(m, mag, &p->mag, err);
    return rc;
}

/* Bytes [off, off+bytes) of the merged tensor. */
static int read_part(void *arg, void *buf, int64_t off, int64_t bytes, struct error *err)
{
    struct part *p = arg;
    int64_t size = (int64_t)dtype_size(p->dt), from = off / size, n = bytes / size;
    if (!p->A) return safetensors_get(p->file, p->t, p->dt, buf, from, n, err);
    int64_t in = p->t->dim[1];
    float *row = xmalloc((unsigned long)(in + 1) * sizeof *row);
    int rc = p->mag && !p->norm ? find_norms(p, err) : OK;
    for (int64_t o = from / in, at = 0; at < n && rc == OK; o++) {
        int64_t first = o == from / in ? from % in : 0, k = in - first < n - at ? in - first : n - at;
        rc = merged_row(p, o, row, err);
        float f = p->mag && p->norm[o] > 0 ? p->mag[o] / p->norm[o] : 1;
        for (int64_t i = 0; i < k; i++, at++) {
            float x = row[first + i] * f;
            if (p->dt == DT_BF16) ((bf16 *)buf)[at] = f32_to_bf16(x);
            else ((float *)buf)[at] = x;
        }
    }
    free(row);
    return rc;
}

static int add(struct merge *m, const char *name, const struct safetensors *file, const struct st_tensor *t, enum dtype dt, bool adapt, struct error *err)
{
    struct part *p = &m->parts[m->n];
    *p = (struct part){ .file = file, .t = t, .dt = dt == DT_F16 || dt == DT_F64 ? DT_F32 : dt };
    if (t->dt == DTYPE_COUNT) return error_set(err, E_UNSUPPORTED, "%s: tensor %.200s is quantised; merge needs the unquantised base", safetensors_file(file, t), name);
    if (t->ndim > 4) return error_set(err, E_UNSUPPORTED, "%s: tensor %.200s has %d dimensions", safetensors_file(file, t), name, t->ndim);
    m->names[m->n] = xstrdup(name);
    struct st_source *s = &m->sources[m->n];
    *s = (struct st_source){ .name = m->names[m->n], .dt = p->dt, .ndim = t->ndim, .read = read_part, .arg = p };
    for (int d = 0; d < t->ndim; d++) s->dim[d] = t->dim[d];
    m->n++;
    return adapt ? prepare(m, p, name, err) : OK;
}

/* Every tensor of the new model, in the base's order; then the ends that are no longer tied. */
static int plan(struct merge *m, struct error *err)
{
    int64_t n = safetensors_count(m->base), na = safetensors_count(m->adapter);
    m->used = xcalloc((unsigned long)na + 1, sizeof *m->used);
    m->sources = xcalloc((unsigned long)n + 2, sizeof *m->sources);
    m->parts = xcalloc((unsigned long)n + 2, sizeof *m->parts);
    m->names = xcalloc((unsigned long)n + 2, sizeof *m->names);
    static const char head[] = "lm_head.weight", embed[] = "model.embed_tokens.weight";
    const struct st_tensor *new_head = safetensors_find(m->adapter, PREFIX "lm_head.weight");
    const struct st_tensor *new_embed = safetensors_find(m->adapter, PREFIX "model.embed_tokens.weight"), *old_embed = safetensors_find(m->base, embed);
    m->untied = m->config.tied && (new_head || new_embed);
    int rc = OK;
    for (int64_t i = 0; i < n && rc == OK; i++) {
        const struct st_tensor *t = safetensors_at(m->base, i);
        if (m->config.tied && strcmp(t->name, head) == 0) continue;             /* written below, or tied */
        size_t len = strlen(t->name);
        const struct st_tensor *whole = adapter_find(m, t->name, len, "");
        if (whole && (whole->n != t->n || whole->ndim != t->ndim || whole->dim[0] != t->dim[0]))
            rc = error_set(err, E_INVALID, "%s: tensor %.200s has another shape than the base's", safetensors_file(m->adapter, whole), whole->name);
        else rc = add(m, t->name, whole ? m->adapter : m->base, whole ? whole : t, t->dt, !whole, err);
    }
    if (rc == OK && m->untied) {
        if (!old_embed) return error_set(err, E_INVALID, "the base has no tensor %s", embed);
        if (new_head) (void)adapter_find(m, head, sizeof head - 1, "");
        rc = add(m, head, new_head ? m->adapter : m->base, new_head ? new_head : old_embed, old_embed->dt, false, err);
    }
    for (int64_t i = 0; i < na && rc == OK; i++)
        if (!m->used[i]) rc = error_set(err, E_INVALID, "%s: tensor %.200s belongs to no weight of the base", safetensors_file(m->adapter, safetensors_at(m->adapter, i)), safetensors_at(m->adapter, i)->name);
    return rc;
}

static int read_settings(struct merge *m, const char *adapter, struct error *err)
{
    m->settings_path = xasprintf("%s/adapter_config.json", adapter);
    int rc = json_parse_file(&m->settings, m->settings_path, &json_limits_file, err);
    if (rc != OK) return rc;
    const char *type = json_str(m->settings, "peft_type"), *bias = json_str(m->settings, "bias");
    if (!type || strcmp(type, "LORA") != 0) return error_set(err, E_UNSUPPORTED, "%s: peft_type is %.40s, only LORA is built", m->settings_path, type ? type : "missing");
    if (bias && strcmp(bias, "none") != 0) return error_set(err, E_UNSUPPORTED, "%s: bias is \"%.40s\", only \"none\" is built", m->settings_path, bias);
    if (json_bool(m->settings, "fan_in_fan_out", false)) return error_set(err, E_UNSUPPORTED, "%s: fan_in_fan_out is not built", m->settings_path);
    if (!json_number(json_get(m->settings, "r"), &m->rank) || !(m->rank >= 1 && m->rank < 1e6)) return error_set(err, E_INVALID, "%s: r must be a number above 0", m->settings_path);
    if (!json_number(json_get(m->settings, "lora_alpha"), &m->alpha) || !(fabs(m->alpha) < 1e9)) return error_set(err, E_INVALID, "%s: lora_alpha must be a number", m->settings_path);
    m->rslora = json_bool(m->settings, "use_rslora", false);
    m->dora = json_bool(m->settings, "use_dora", false);
    return lora_patterns_open(&m->patterns, m->settings, m->settings_path, err);
}

static bool is_weights(const char *name)
{
    static const char *const ends[] = { ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf", ".h5", ".msgpack" };
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t k = strlen(ends[i]);
        if (n >= k && strcmp(name + n - k, ends[i]) == 0) return true;
    }
    return false;
}

/* Tokenizer, templates, generation settings: the small files of a model folder that no weights are in. */
static int copy_small(const char *from, const char *to, bool only_tokenizer, struct error *err)
{
    DIR *d = opendir(from);
    if (!d) return error_set(err, status_of_errno(errno), "open %s: %s", from, strerror(errno));
    int rc = OK;
    for (struct dirent *e; rc == OK && (e = readdir(d));) {
        bool tokenizer = strstr(e->d_name, "token") || strcmp(e->d_name, "vocab.json") == 0 || strcmp(e->d_name, "merges.txt") == 0 || strncmp(e->d_name, "chat_template", 13) == 0;
        if (e->d_name[0] == '.' || is_weights(e->d_name) || strcmp(e->d_name, "config.json") == 0 || (only_tokenizer && !tokenizer)) continue;
        char *src = xasprintf("%s/%s", from, e->d_name), *dst = xasprintf("%s/%s", to, e->d_name), *data = NULL;
        struct stat st;
        size_t len;
        if (stat(src, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= SMALL_FILE && access(dst, F_OK) != 0) {
            rc = file_read(src, SMALL_FILE, &data, &len, err);
            if (rc == OK) rc = file_write(dst, data, len, err);
        }
        free(data);
        free(src);
        free(dst);
    }
    (void)closedir(d);
    return rc;
}

static int write_out(struct merge *m, const char *base, const char *adapter, const char *dir, struct error *err)
{
    int rc = make_dirs(dir, err);
    if (rc == OK) rc = safetensors_write_dir(dir, "model", m->sources, m->n, SHARD_BYTES, err);
    if (rc != OK) return rc;
    enum dtype dt = m->config.stored_dtype == DT_F16 || m->config.stored_dtype == DT_F64 ? DT_F32 : m->config.stored_dtype;
    char *path = xasprintf("%s/config.json", dir), *text = model_config_text(&m->config, dt, m->config.tied && !m->untied);
    rc = file_write(path, text, strlen(text), err);
    free(path);
    free(text);
    if (rc == OK) rc = copy_small(adapter, dir, true, err);
    return rc == OK ? copy_small(base, dir, false, err) : rc;
}

int merge_adapter(const char *base, const char *adapter, const char *out, struct error *err)
{
    struct merge m = { 0 };
    char *tmp = xasprintf("%s.tmp-%ld", out, (long)getpid());
    int rc = OK;
    if (access(out, F_OK) == 0) { rc = error_set(err, E_CONFLICT, "%s is already there; merge writes a new folder", out); goto out; }
    if ((rc = read_settings(&m, adapter, err)) != OK) goto out;
    if (!base) base = json_str(m.settings, "base_model_name_or_path");
    if (!base || access(base, F_OK) != 0) {
        rc = error_set(err, E_NOTFOUND, "%s: base_model_name_or_path %.300s is no folder here; name the base model", m.settings_path, base ? base : "(absent)");
        goto out;
    }
    if ((rc = model_config_read(&m.config, base, NULL, err)) != OK || (rc = safetensors_open(&m.base, base, "model", err)) != OK
        || (rc = safetensors_open(&m.adapter, adapter, "adapter_model", err)) != OK || (rc = plan(&m, err)) != OK) goto out;
    rc = write_out(&m, base, adapter, tmp, err);
    if (rc == OK && rename(tmp, out) < 0) rc = error_set(err, status_of_errno(errno), "publish %s: %s", out, strerror(errno));
    if (rc == OK) rc = fsync_parent(out, err);
    if (rc != OK) (void)remove_tree(tmp, NULL);
out:
    for (int64_t i = 0; i < m.n; i++) {
        free(m.names[i]);
        free(m.parts[i].A);
        free(m.parts[i].B);
        free(m.parts[i].mag);
        free(m.parts[i].norm);
    }
    free(m.names);
    free(m.parts);
    free(m.sources);
    free(m.used);
    free(m.settings_path);
    lora_patterns_release(&m.patterns);
    cJSON_Delete(m.settings);
    safetensors_close(m.base);
    safetensors_close(m.adapter);
    model_config_release(&m.config);
    free(tmp);
    return rc;
}
