#include "worker/train/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/file.h"
#include "worker/model/safetensors.h"

enum { STATE_VERSION = 1, CHUNK = 1 << 20 /* elements staged at once */ };

static const char *const tokenizer_files[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
    "chat_template.jinja", "generation_config.json",
};

/* --- the optimizer's part: device memory in pieces of CHUNK elements --- */

struct device_source { const struct kernel_ops *ops; struct stream *s; const char *data; };

static int read_device(void *arg, void *buf, int64_t off, int64_t bytes, struct error *err)
{
    const struct device_source *d = arg;
    int rc = d->ops->copy(d->s, buf, d->data + off, (size_t)bytes);
    return rc == OK ? d->ops->stream_wait(d->s, err) : error_set(err, (enum status)rc, "optimizer state: %s", d->ops->error(d->s));
}

/* exp_avg, exp_avg_sq and master are ranges of the flat vector (with GaLore the first two are packed: worker/train/optimizer.h). */
enum state { STATE_M, STATE_V, STATE_MASTER, STATE_GALORE, STATES };
static const char *const state_names[STATES] = { "exp_avg", "exp_avg_sq", "master", "galore" };

/* NULL and 0 where this run has no such state. */
static float *state_of(const struct optimizer *o, int i, int64_t *n)
{
    switch (i) {
    case STATE_M: *n = o->n_state; return o->m;
    case STATE_V: *n = o->n_state; return o->v;
    case STATE_MASTER: *n = o->master ? o->hi - o->lo : 0; return o->master;
    default: *n = o->galore ? o->galore->n_state : 0; return o->galore ? o->galore->state : NULL;
    }
}

/* With ZeRO every rank writes what it owns; without, rank 0 holds all of it. */
static bool sharded(const struct run *r) { return r->spec->zero_stage > 0; }
static bool writes_shard(const struct run *r) { return sharded(r) || r->job.mesh.rank == 0; }
static int shards(const struct run *r) { return sharded(r) ? r->job.mesh.world : 1; }

static int save_optimizer(struct run *r, const char *dir, struct error *err)
{
    const struct optimizer *o = r->job.opt;
    struct st_source t[STATES];
    struct device_source d[STATES];
    int64_t n = 0, len;
    for (int i = 0; i < STATES; i++) {
        const float *state = state_of(o, i, &len);
        if (len == 0) continue;
        d[n] = (struct device_source){ r->job.ops, r->job.stream, (const char *)state };
        t[n] = (struct st_source){ .name = state_names[i], .dt = DT_F32, .ndim = 1, .dim = { len }, .read = read_device, .arg = &d[n] };
        n++;
    }
    char from[32];
    (void)snprintf(from, sizeof from, "%" PRId64, o->lo);
    const char *const meta[] = { "from", from, NULL };
    char *path = xasprintf("%s/optimizer-%05d-of-%05d.safetensors", dir, sharded(r) ? r->job.mesh.rank + 1 : 1, shards(r));
    int rc = safetensors_write(path, t, n, meta, err);
    free(path);
    return rc;
}

/* The part of t, which starts at `from` of the whole, that this rank holds as to[0..n), starting at `mine`. */
static int load_range(struct run *r, const struct safetensors *f, const struct st_tensor *t, int64_t from, float *to, int64_t mine, int64_t len, float *stage,
                      struct error *err)
{
    int64_t lo = from > mine ? from : mine, hi = from + t->n < mine + len ? from + t->n : mine + len;
    for (int64_t at = lo; at < hi; at += CHUNK) {
        int64_t n = hi - at < CHUNK ? hi - at : CHUNK;
        int rc = safetensors_get(f, t, DT_F32, stage, at - from, n, err);
        if (rc != OK) return rc;
        rc = r->job.ops->copy(r->job.stream, to + (at - mine), stage, (size_t)n * sizeof *stage);
        if (rc != OK) return error_set(err, (enum status)rc, "optimizer state: %s", r->job.ops->error(r->job.stream));
        rc = r->job.ops->stream_wait(r->job.stream, err);
        if (rc != OK) return rc;
    }
    return OK;
}

static int load_optimizer(struct run *r, const char *dir, int n_shards, struct error *err)
{
    float *stage = xmalloc(CHUNK * sizeof *stage);
    int rc = OK;
    for (int k = 1; k <= n_shards && rc == OK; k++) {
        struct safetensors *f = NULL;
        char *path = xasprintf("%s/optimizer-%05d-of-%05d.safetensors", dir, k, n_shards);
        rc = safetensors_open(&f, path, NULL, err);
        const char *from = rc == OK ? safetensors_metadata(f, "from") : NULL;
        for (int i = 0; i < STATES && rc == OK; i++) {
            int64_t len, start = from ? strtoll(from, NULL, 10) : -1;
            const struct st_tensor *t = safetensors_find(f, state_names[i]);
            float *to = state_of(r->job.opt, i, &len);
            if (len == 0) continue;                     /* saved with masters, resumed in f32: the weights are the masters */
            if (t == NULL && i == STATE_MASTER) continue;       /* the other way round */
            if (t == NULL || t->ndim != 1 || start < 0 || (i == STATE_GALORE && t->n != len))
                rc = error_set(err, E_INVALID, "%s: expected a tensor \"%s\" of one axis and the metadata \"from\"", path, state_names[i]);
            else rc = load_range(r, f, t, start, to, i == STATE_GALORE ? 0 : r->job.opt->lo, len, stage, err);
        }
        safetensors_close(f);
        free(path);
    }
    free(stage);
    if (rc == OK && r->job.opt->galore) rc = galore_resume(r->job.opt->galore, r->job.stream, err);
    return rc;
}

/* --- trainer_state.json --- */

/* Where each parameter lies: equal numbers mean that saved ranges can be read back. */
static uint64_t fingerprint(const struct params *p)
{
    uint64_t h = 1469598103934665603u;      /* FNV-1a, 64 bits */
    for (int64_t i = 0; i < p->n; i++) {
        char line[400];
        if (!p->v[i].trained) continue;
        int n = snprintf(line, sizeof line, "%s %" PRId64 " %" PRId64 ";", p->v[i].name, p->v[i].at, p->v[i].n);
        for (int k = 0; k < n && k < (int)sizeof line - 1; k++) h = (h ^ (unsigned char)line[k]) * 1099511628211u;
    }
    return h;
}

static cJSON *state_json(const struct run *r, cJSON *files)
{
    const struct progress *p = &r->progress;
    const struct mesh *m = &r->job.mesh;
    char hex[32];
    cJSON *o = cJSON_CreateObject(), *own = cJSON_CreateObject();
    json_add_int(o, "global_step", p->step);
    json_add_int(o, "max_steps", r->steps);
    json_add_num(o, "epoch", p->epoch);
    json_add_num(o, "num_train_epochs", r->spec->num_train_epochs);
    json_add_int(o, "train_batch_size", r->spec->per_device_train_batch_size);
    if (isnan(p->best_loss)) json_add_str(o, "best_metric", NULL);
    else json_add_num(o, "best_metric", p->best_loss);
    char *best = p->best_step > 0 ? xasprintf("%s/checkpoint-%" PRId64, r->spec->output_dir, p->best_step) : NULL;
    json_add_str(o, "best_model_checkpoint", best);
    free(best);
    (void)cJSON_AddItemToObject(o, "log_history", cJSON_CreateArray());     /* logging.jsonl has it */

    json_add_int(own, "version", STATE_VERSION);
    json_add_str(own, "run", r->claim.run);
    json_add_int(own, "step", p->step);
    json_add_int(own, "skipped", p->skipped);
    json_add_int(own, "updates", r->job.opt->t);
    json_add_num(own, "loss", p->loss);
    json_add_int(own, "best_step", p->best_step);
    json_add_int(own, "seed", r->spec->seed);
    json_add_str(own, "tuner_type", r->spec->tuner_type);
    json_add_str(own, "torch_dtype", r->spec->torch_dtype);
    json_add_int(own, "position", p->position);
    json_add_int(own, "per_epoch", r->per_epoch);
    json_add_int(own, "epoch_tokens", r->info.tokens);
    json_add_int(own, "dp", m->dp);
    json_add_int(own, "ring", m->R);
    json_add_int(own, "ulysses", m->U);
    json_add_int(own, "batch", r->spec->per_device_train_batch_size);
    (void)cJSON_AddBoolToObject(own, "only_model", r->spec->save_only_model);
    json_add_int(own, "shards", r->spec->save_only_model ? 0 : shards(r));
    (void)snprintf(hex, sizeof hex, "%016" PRIx64, fingerprint(model_params(r->job.model)));
    json_add_str(own, "parameters", hex);
    (void)cJSON_AddItemToObject(own, "files", files);
    (void)cJSON_AddItemToObject(o, "ringmaster", own);
    return o;
}

/* {name: bytes} of dir's files, each fsynced. */
static int list_files(const char *dir, cJSON *files, struct error *err)
{
    DIR *d = opendir(dir);
    if (d == NULL) return error_set(err, status_of_errno(errno), "%s: %s", dir, strerror(errno));
    int rc = OK;
    for (struct dirent *e; rc == OK && (e = readdir(d)) != NULL;) {
        struct stat st;
        if (e->d_name[0] == '.') continue;
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0 || fsync(fd) < 0) rc = error_set(err, status_of_errno(errno), "%s/%s: %s", dir, e->d_name, strerror(errno));
        else json_add_int(files, e->d_name, st.st_size);
        if (fd >= 0) (void)close(fd);
    }
    (void)closedir(d);
    return rc;
}

static int copy_tokenizer(const char *model, const char *dir, struct error *err)
{
    int rc = OK;
    for (size_t i = 0; i < sizeof tokenizer_files / sizeof tokenizer_files[0] && rc == OK; i++) {
        char *from = xasprintf("%s/%s", model, tokenizer_files[i]), *to = xasprintf("%s/%s", dir, tokenizer_files[i]), *data = NULL;
        size_t len = 0;
        if (access(from, F_OK) == 0) {
            rc = file_read(from, (size_t)256 << 20, &data, &len, err);
            if (rc == OK) rc = file_write(to, data, len, err);
        }
        free(data);
        free(from);
        free(to);
    }
    return rc;
}

/* --- the folder's life --- */

/* tmp becomes dir in one move; what was dir before is removed afterwards, if the same run wrote it. */
static int publish(const struct run *r, const char *tmp, const char *dir, struct error *err)
{
    int rc = fsync_parent(dir, err);
    if (rc != OK) return rc;
    if (rename(tmp, dir) == 0) return fsync_parent(dir, err);
    if (errno != ENOTEMPTY && errno != EEXIST) return error_set(err, status_of_errno(errno), "rename %s: %s", tmp, strerror(errno));
    if (!claim_owns(dir, r->claim.run)) return error_set(err, E_CONFLICT, "%s is there and was not written by this run: move it away", dir);
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, dir, RENAME_EXCHANGE) < 0)
        return error_set(err, status_of_errno(errno), "%s stands in the way of a checkpoint: %s", dir, strerror(errno));
    rc = fsync_parent(dir, err);
    return rc == OK ? remove_tree(tmp, err) : rc;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Keeps save_total_limit checkpoints: the last and the best (even if that makes two of one), then the newest others.
 * Only whole ones of this run count and go. A folder is renamed aside before it is emptied, so no half of one has the name. */
static int drop_old(const struct run *r, struct error *err)
{
    const char *out = r->spec->output_dir;
    int64_t *steps = NULL, n = 0;
    int rc = OK;
    DIR *d = opendir(out);
    if (d == NULL) return error_set(err, status_of_errno(errno), "%s: %s", out, strerror(errno));
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        int64_t step = claim_step(e->d_name);
        char *path = xasprintf("%s/%s", out, e->d_name);
        bool ours = step >= 0 && claim_owns(path, r->claim.run);
        free(path);
        if (!ours) continue;
        steps = xrealloc(steps, (unsigned long)(n + 1) * sizeof *steps);
        steps[n++] = step;
    }
    (void)closedir(d);
    if (n > 0) qsort(steps, (size_t)n, sizeof *steps, newest_first);
    int64_t last = r->progress.step, best = r->progress.best_step, others = r->spec->save_total_limit - 1 - (best > 0 && best != last);
    for (int64_t i = 0; i < n && rc == OK; i++) {
        if (steps[i] == best || steps[i] == last || others-- > 0) continue;
        char *dir = xasprintf("%s/checkpoint-%" PRId64, out, steps[i]), *aside = xasprintf("%s/.tmp-drop-%" PRId64, out, steps[i]);
        if (rename(dir, aside) < 0) rc = error_set(err, status_of_errno(errno), "%s: %s", dir, strerror(errno));
        else rc = remove_tree(aside, err);
        free(dir);
        free(aside);
    }
    free(steps);
    return rc;
}

int checkpoint_sweep(const char *output_dir, struct error *err)
{
    int rc = OK;
    DIR *d = opendir(output_dir);
    if (d == NULL) return errno == ENOENT ? OK : error_set(err, status_of_errno(errno), "%s: %s", output_dir, strerror(errno));
    for (struct dirent *e; rc == OK && (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, ".tmp-checkpoint-", 16) != 0 && strncmp(e->d_name, ".tmp-drop-", 10) != 0) continue;
        char *path = xasprintf("%s/%s", output_dir, e->d_name);
        rc = remove_tree(path, err);
        free(path);
    }
    (void)closedir(d);
    return rc;
}

static int write_state(struct run *r, const char *tmp, struct error *err)
{
    cJSON *files = cJSON_CreateObject();
    int rc = list_files(tmp, files, err);
    cJSON *o = state_json(r, files);
    char *text = json_line(o), *path = xasprintf("%s/trainer_state.json", tmp);
    if (rc == OK) rc = file_write(path, text, strlen(text), err);
    cJSON_Delete(o);
    free(text);
    free(path);
    return rc;
}

int checkpoint_save(struct run *r, struct error *err)
{
    bool first = r->job.mesh.rank == 0;
    char *dir = xasprintf("%s/checkpoint-%" PRId64, r->spec->output_dir, r->progress.step);
    char *tmp = xasprintf("%s/.tmp-checkpoint-%" PRId64, r->spec->output_dir, r->progress.step);
    int rc = OK;
    if (first) {
        rc = remove_tree(tmp, err);
        if (rc == OK) rc = make_dirs(tmp, err);
    }
    rc = run_agree(r, rc, err);
    if (rc == OK) {
        rc = model_collect(r->job.model, first, err);
        if (rc == OK && first) rc = model_save(r->job.model, tmp, err);
        model_saved(r->job.model);
        if (rc == OK && first) rc = copy_tokenizer(r->spec->model, tmp, err);
        if (rc == OK && !r->spec->save_only_model && writes_shard(r)) rc = save_optimizer(r, tmp, err);
        rc = run_agree(r, rc, err);
    }
    if (rc == OK) {
        if (first) {
            rc = write_state(r, tmp, err);
            if (rc == OK) rc = publish(r, tmp, dir, err);
        }
        rc = run_agree(r, rc, err);
    }
    if (first && rc == OK && r->spec->save_total_limit > 0) {
        struct error why;
        if (drop_old(r, &why) != OK) run_event(r, "warning", "save_total_limit", "old checkpoints stay: %s", why.text);
    }
    if (first && rc != OK) (void)remove_tree(tmp, NULL);
    if (rc == OK) {
        free(r->last_checkpoint);
        r->last_checkpoint = dir;
        dir = NULL;
    } else (void)error_prefix(err, "checkpoint of step %" PRId64, r->progress.step);
    free(dir);
    free(tmp);
    return rc;
}

/* --- resume --- */

static int read_state(const char *dir, cJSON **out, struct error *err)
{
    struct stat there;
    if (stat(dir, &there) < 0) return error_set(err, status_of_errno(errno), "%s: %s", dir, errno == ENOENT ? "no such folder" : strerror(errno));
    if (!S_ISDIR(there.st_mode)) return error_set(err, E_INVALID, "%s: expected a checkpoint's folder, found a file", dir);
    char *path = xasprintf("%s/trainer_state.json", dir);
    int rc = json_parse_file(out, path, &json_limits_file, err);
    if (rc == E_NOTFOUND) rc = error_set(err, E_INVALID, "%s is no complete checkpoint: it has no trainer_state.json, which is written last", dir);
    free(path);
    if (rc != OK) return rc;
    const cJSON *own = json_get(*out, "ringmaster"), *files = json_get(own, "files");
    int64_t version = 0;
    if (!json_int(own, "version", &version) || version != STATE_VERSION || !cJSON_IsObject(files)) {
        cJSON_Delete(*out);
        *out = NULL;
        return error_set(err, E_INVALID, "%s/trainer_state.json was not written by Ringmaster (format %d): it holds no optimizer state to go on from; "
                         "give the folder as model or adapter to start from its weights", dir, STATE_VERSION);
    }
    for (const cJSON *f = files->child; f && rc == OK; f = f->next) {
        struct stat st;
        int64_t bytes = -1;
        char *file = xasprintf("%s/%s", dir, f->string);
        if (strchr(f->string, '/') || !json_int(files, f->string, &bytes)) rc = error_set(err, E_INVALID, "%s/trainer_state.json: bad file entry \"%.100s\"", dir, f->string);
        else if (stat(file, &st) < 0) rc = error_set(err, E_INVALID, "checkpoint %s is incomplete: %s: %s", dir, f->string, strerror(errno));
        else if (st.st_size != bytes)
            rc = error_set(err, E_INVALID, "checkpoint %s is damaged: %s has %lld bytes, expected %lld", dir, f->string, (long long)st.st_size, (long long)bytes);
        free(file);
    }
    if (rc != OK) {
        cJSON_Delete(*out);
        *out = NULL;
    }
    return rc;
}

static int check_state(const char *dir, const cJSON *own, const struct spec *spec, struct progress *p, struct error *err)
{
    int64_t seed = -1;
    const char *tuner = json_str(own, "tuner_type");
    if (json_bool(own, "only_model", true))
        return error_set(err, E_INVALID, "%s was saved with save_only_model: it holds no optimizer state, so it cannot be resumed; give it as model or adapter instead", dir);
    if (tuner == NULL || strcmp(tuner, spec->tuner_type) != 0)
        return error_set(err, E_INVALID, "%s was written with tuner_type %s, this job has %s", dir, tuner ? tuner : "unknown", spec->tuner_type);
    if (!json_int(own, "seed", &seed) || seed != spec->seed)
        return error_set(err, E_INVALID, "%s was written with seed %lld, this job has %lld: the order of the data would change", dir, (long long)seed, (long long)spec->seed);
    if (!json_int(own, "step", &p->step) || !json_int(own, "position", &p->position) || !json_int(own, "skipped", &p->skipped) || p->step < 0 ||
        p->position < 0 || p->skipped < 0 || p->skipped > p->step)
        return error_set(err, E_INVALID, "%s/trainer_state.json: step, position and skipped are expected to be whole numbers", dir);
    p->loss = json_num(own, "loss", NAN);
    if (!json_int(own, "best_step", &p->best_step)) p->best_step = 0;
    return OK;
}

int checkpoint_check(const char *dir, const struct spec *spec, struct progress *p, struct error *err)
{
    cJSON *o = NULL;
    int rc = read_state(dir, &o, err);
    if (rc == OK) {
        *p = (struct progress){ 0 };
        rc = check_state(dir, json_get(o, "ringmaster"), spec, p, err);
        p->best_loss = json_num(o, "best_metric", NAN);
    }
    cJSON_Delete(o);
    return rc;
}

/* The data position when the number of data-parallel ranks or the batch has changed: the same rows have been seen. */
static int translate_position(const char *dir, const cJSON *own, const struct spec *spec, int now_dp, const struct loader_info *info, struct progress *p, struct error *err)
{
    int64_t dp = 0, batch = 0, per_epoch = 0, tokens = 0, now = now_dp * spec->per_device_train_batch_size;
    if (!json_int(own, "dp", &dp) || !json_int(own, "batch", &batch) || !json_int(own, "per_epoch", &per_epoch) || dp < 1 || batch < 1 || per_epoch < 1 ||
        dp > INT32_MAX || batch > INT32_MAX)
        return error_set(err, E_INVALID, "%s/trainer_state.json: dp, batch and per_epoch are expected to be whole numbers above 0", dir);
    if (json_int(own, "epoch_tokens", &tokens) && tokens != info->tokens)       /* a state without it says nothing about that */
        return error_set(err, E_INVALID, "%s was written on a data set of %lld tokens; the data set has %lld now", dir, (long long)tokens, (long long)info->tokens);
    int64_t was = dp * batch;
    if (was == now) {
        if (per_epoch != info->micro_per_epoch)
            return error_set(err, E_INVALID, "%s was written when an epoch had %lld micro-batches; the data set gives %lld now", dir, (long long)per_epoch,
                             (long long)info->micro_per_epoch);
        return OK;
    }
    int64_t epochs = p->position / per_epoch, rows = p->position % per_epoch * was;
    if (rows % now != 0)
        return error_set(err, E_INVALID, "%s stands %lld rows into an epoch, which %lld rows per micro-step (ranks / sequence-parallel size x batch) do not divide",
                         dir, (long long)rows, (long long)now);
    p->position = epochs * info->micro_per_epoch + rows / now;
    return OK;
}

void checkpoint_degrees(const char *dir, int *U, int *R)
{
    cJSON *o = NULL;
    int64_t u = 0, v = 0;
    bool told = read_state(dir, &o, NULL) == OK && json_int(json_get(o, "ringmaster"), "ulysses", &u) && json_int(json_get(o, "ringmaster"), "ring", &v);
    *U = told && u > 0 && u <= 4096 ? (int)u : 0;
    *R = told && v > 0 && v <= 4096 ? (int)v : 0;
    cJSON_Delete(o);
}

int checkpoint_check_data(const char *dir, const struct spec *spec, int dp, const struct loader_info *info, struct progress *p, struct error *err)
{
    cJSON *o = NULL;
    int rc = read_state(dir, &o, err);
    if (rc == OK) rc = translate_position(dir, json_get(o, "ringmaster"), spec, dp, info, p, err);
    cJSON_Delete(o);
    return rc;
}

int checkpoint_load(struct run *r, const char *dir, struct error *err)
{
    cJSON *o = NULL;
    struct progress p = { 0 };
    int64_t n_shards = 0, updates = 0;
    char hex[32];
    int rc = read_state(dir, &o, err);
    const cJSON *own = rc == OK ? json_get(o, "ringmaster") : NULL;
    if (rc == OK) rc = check_state(dir, own, r->spec, &p, err);
    if (rc == OK) rc = translate_position(dir, own, r->spec, r->job.mesh.dp, &r->info, &p, err);
    (void)snprintf(hex, sizeof hex, "%016" PRIx64, fingerprint(model_params(r->job.model)));
    if (rc == OK && (json_str(own, "parameters") == NULL || strcmp(json_str(own, "parameters"), hex) != 0))
        rc = error_set(err, E_INVALID, "%s trains other parameters than this job (model, tuner, lora_rank, rank_pattern, target_modules or modules_to_save differ)", dir);
    if (rc == OK && (!json_int(own, "shards", &n_shards) || n_shards < 1 || n_shards > 99999 || !json_int(own, "updates", &updates) || updates < 0))
        rc = error_set(err, E_INVALID, "%s/trainer_state.json: shards and updates are expected to be whole numbers", dir);
    if (rc == OK) rc = model_load_checkpoint(r->job.model, dir, err);
    if (rc == OK) rc = optimizer_start(r->job.opt, r->job.stream, err);         /* masters of padding, and where none were saved */
    if (rc == OK) rc = load_optimizer(r, dir, (int)n_shards, err);
    if (rc == OK) rc = loader_seek(r->loader, p.position, err);
    if (rc == OK) {
        p.best_loss = json_num(o, "best_metric", NAN);
        p.epoch = (double)p.position / (double)r->per_epoch;
        r->progress = p;
        r->job.opt->t = updates;
    } else (void)error_prefix(err, "resume_from_checkpoint");
    cJSON_Delete(o);
    return run_agree(r, rc, err);
}
