/* loader.c - rows in training order (loader.h).
 *
 * Open: index the files, choose the evaluation split, tokenize (or map the cache), pack. Then a thread of its own copies the next
 * micro-batch together while the engine works on the last one; two slots take turns.
 * Order of an epoch: the packed rows, permuted by (seed, epoch). Rank d of D takes rows d, d+D, … of it; D and the batch size never
 * change the order itself. Packing does not change between epochs. */
#include "worker/data/loader.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/file.h"
#include "worker/data/corpus.h"
#include "worker/data/order.h"
#include "worker/data/pack.h"

#define CACHE_VERSION 1

struct slot { struct row row; int64_t cap_T, cap_docs; int rc; struct error err; };

struct loader {
    const struct encoder *encoder;
    struct encoder own_encoder;
    struct tokenizer *tok;
    struct chat_template *tmpl;
    struct corpus train, val;
    struct packing rows, val_rows;
    int64_t *row_tokens;                /* [rows.n_rows] */
    int64_t max_length, batch, multiple, micro_per_epoch;
    int dp_rank, dp_size;
    bool shuffle, packing;
    uint64_t seed;
    enum truncation truncation;
    int64_t *order, order_epoch;        /* permutation of rows of that epoch; only the builder touches it */
    struct slot slots[2], val_slot;
    int build_slot;
    int64_t next;                       /* micro-batch in, or to go into, the build slot; = handed out so far */
    bool filled, quit, started;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static int64_t round_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }

/* --- rows --- */

static void slot_room(struct slot *s, int64_t T, int64_t docs)
{
    if (T > s->cap_T) {
        s->row.ids = xrealloc(s->row.ids, (size_t)T * sizeof *s->row.ids);
        s->row.labels = xrealloc(s->row.labels, (size_t)T * sizeof *s->row.labels);
        s->row.positions = xrealloc(s->row.positions, (size_t)T * sizeof *s->row.positions);
        s->row.weights = xrealloc(s->row.weights, (size_t)T * sizeof *s->row.weights);
        s->cap_T = T;
    }
    if (docs > s->cap_docs) {
        s->row.cu = xrealloc(s->row.cu, (size_t)(docs + 1) * sizeof *s->row.cu);
        s->cap_docs = docs;
    }
}

static void slot_release(struct slot *s)
{
    free(s->row.ids);
    free(s->row.labels);
    free(s->row.positions);
    free(s->row.weights);
    free(s->row.cu);
}

/* Puts rows r[0..n) one after another into s, and padding behind them up to a multiple. */
static void build_row(const struct loader *l, struct slot *s, const struct corpus *c, const struct packing *p, const int64_t *r, int64_t n)
{
    int64_t real = 0, docs = 0, t = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = p->first[r[i]]; k < p->first[r[i] + 1]; k++) { real += c->docs[p->docs[k]].n_ids; docs++; }
    int64_t T = real == 0 ? l->multiple : round_up(real, l->multiple);
    struct row *row = &s->row;
    int32_t pad = tokenizer_pad(l->tok);
    slot_room(s, T, docs + 1);
    row->T = T;
    row->n_docs = 0;
    row->tokens_real = real;
    row->tokens_trained = 0;
    row->weight_sum = 0.0;
    row->cu[0] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = p->first[r[i]]; k < p->first[r[i] + 1]; k++) {
            const struct document *d = &c->docs[p->docs[k]];
            memcpy(row->ids + t, c->ids + d->id0, (size_t)d->n_ids * sizeof *row->ids);
            corpus_labels(c, p->docs[k], row->labels + t, row->weights + t);
            for (int32_t j = 0; j < d->n_ids; j++) {
                row->positions[t + j] = j;
                if (row->labels[t + j] == -100) continue;
                row->tokens_trained++;
                row->weight_sum += (double)row->weights[t + j];
            }
            t += d->n_ids;
            row->cu[++row->n_docs] = t;
        }
    for (int64_t j = t; j < T; j++) {
        row->ids[j] = pad >= 0 ? pad : 0;
        row->labels[j] = -100;
        row->positions[j] = (int32_t)(j - t);
        row->weights[j] = 0.0f;
    }
    if (t < T) row->cu[++row->n_docs] = T;
}

static void order_for(struct loader *l, int64_t epoch)
{
    if (l->order_epoch == epoch) return;
    for (int64_t i = 0; i < l->rows.n_rows; i++) l->order[i] = i;
    if (l->shuffle) order_shuffle(l->order, l->rows.n_rows, order_stream(l->seed, 'e', (uint64_t)epoch));
    l->order_epoch = epoch;
}

static void build(struct loader *l, struct slot *s, int64_t micro)
{
    int64_t epoch = micro / l->micro_per_epoch, k = micro % l->micro_per_epoch, n = 0;
    int64_t *mine = xmalloc((size_t)l->batch * sizeof *mine);
    order_for(l, epoch);
    for (int64_t b = 0; b < l->batch; b++) {
        int64_t at = (k * l->batch + b) * l->dp_size + l->dp_rank;
        if (at < l->rows.n_rows) mine[n++] = l->order[at];
    }
    build_row(l, s, &l->train, &l->rows, mine, n);
    s->row.epoch = epoch;
    s->row.index = n ? mine[0] : -1;
    s->rc = OK;
    free(mine);
}

static void *run(void *arg)
{
    struct loader *l = arg;
    (void)pthread_mutex_lock(&l->lock);
    for (;;) {
        while (l->filled && !l->quit) (void)pthread_cond_wait(&l->changed, &l->lock);
        if (l->quit) break;
        int64_t micro = l->next;
        struct slot *s = &l->slots[l->build_slot];
        (void)pthread_mutex_unlock(&l->lock);
        build(l, s, micro);
        (void)pthread_mutex_lock(&l->lock);
        l->filled = true;
        (void)pthread_cond_broadcast(&l->changed);
    }
    (void)pthread_mutex_unlock(&l->lock);
    return NULL;
}

int loader_next(struct loader *l, const struct row **row, struct error *err)
{
    (void)pthread_mutex_lock(&l->lock);
    while (!l->filled) (void)pthread_cond_wait(&l->changed, &l->lock);
    struct slot *s = &l->slots[l->build_slot];
    int rc = s->rc;
    if (rc == OK) {
        *row = &s->row;
        l->build_slot ^= 1;
        l->next++;
        l->filled = false;
        (void)pthread_cond_broadcast(&l->changed);
    } else if (err) *err = s->err;
    (void)pthread_mutex_unlock(&l->lock);
    return rc;
}

int64_t loader_position(const struct loader *l) { return l->next; }

int loader_seek(struct loader *l, int64_t n, struct error *err)
{
    if (n < 0) return error_set(err, E_INVALID, "data position %lld", (long long)n);
    (void)pthread_mutex_lock(&l->lock);
    while (!l->filled) (void)pthread_cond_wait(&l->changed, &l->lock);
    l->next = n;
    l->filled = false;
    (void)pthread_cond_broadcast(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
    return OK;
}

int loader_val(struct loader *l, int64_t i, const struct row **row, struct error *err)
{
    if (i < 0 || i >= l->val_rows.n_rows)
        return error_set(err, E_INVALID, "evaluation row %lld of %lld", (long long)i, (long long)l->val_rows.n_rows);
    build_row(l, &l->val_slot, &l->val, &l->val_rows, &i, 1);
    l->val_slot.row.epoch = 0;
    l->val_slot.row.index = i;
    *row = &l->val_slot.row;
    return OK;
}

/* --- figures --- */

const struct corpus *loader_documents(const struct loader *l) { return &l->train; }
const struct tokenizer *loader_tokenizer(const struct loader *l) { return l->tok; }

void loader_info(const struct loader *l, struct loader_info *out)
{
    const struct corpus *c = &l->train;
    *out = (struct loader_info){ .documents = c->n_docs, .documents_dropped = c->dropped_long + c->dropped_untrained,
                                 .rows_per_epoch = l->rows.n_rows, .micro_per_epoch = l->micro_per_epoch, .val_rows = l->val_rows.n_rows,
                                 .pad_id = tokenizer_pad(l->tok), .eos_id = tokenizer_eos(l->tok) };
    for (int64_t i = 0; i < c->n_docs; i++) {
        out->tokens += c->docs[i].n_ids;
        out->tokens_trained += corpus_trained(c, i);
        if (c->docs[i].n_ids > out->longest) out->longest = c->docs[i].n_ids;
    }
    if (l->rows.n_rows) out->packing_efficiency = (double)out->tokens / ((double)l->rows.n_rows * (double)l->max_length);
}

static int descending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x > y ? -1 : x < y;
}

void loader_bounds(const struct loader *l, int64_t *max_T, int64_t *max_docs)
{
    /* any rows may meet in a micro-batch: the largest `batch` of each kind bound them all, in every epoch */
    int64_t n = l->rows.n_rows, T = 0, docs = 0;
    int64_t *tokens = xmalloc((size_t)(n + 1) * sizeof *tokens), *counts = xmalloc((size_t)(n + 1) * sizeof *counts);
    for (int64_t r = 0; r < n; r++) { tokens[r] = l->row_tokens[r]; counts[r] = l->rows.first[r + 1] - l->rows.first[r]; }
    qsort(tokens, (size_t)n, sizeof *tokens, descending);
    qsort(counts, (size_t)n, sizeof *counts, descending);
    for (int64_t r = 0; r < n && r < l->batch; r++) { T += tokens[r]; docs += counts[r]; }
    for (int64_t r = 0; r < l->val_rows.n_rows; r++) {
        int64_t v = 0;
        for (int64_t k = l->val_rows.first[r]; k < l->val_rows.first[r + 1]; k++) v += l->val.docs[l->val_rows.docs[k]].n_ids;
        if (v > T) T = v;
        if (l->val_rows.first[r + 1] - l->val_rows.first[r] > docs) docs = l->val_rows.first[r + 1] - l->val_rows.first[r];
    }
    *max_T = round_up(T, l->multiple);
    *max_docs = docs + 1;
    free(tokens);
    free(counts);
}

/* --- opening --- */

struct progress { void (*call)(void *arg, const char *what, int64_t done, int64_t total); void *arg; };

static int tokenize(struct loader *l, const struct dataset *d, const int64_t *list, int64_t n, struct corpus *out,
                    const struct progress *p, struct error *err)
{
    struct encoded e = { 0 };
    int rc = OK;
    for (int64_t i = 0; i < n && rc == OK; i++) {
        struct pool pool = { 0 };
        struct sample s;
        rc = dataset_sample(d, list[i], &pool, &s, err);
        if (rc == OK && (rc = encode_sample(l->encoder, &s, &e, err)) != OK) (void)error_prefix(err, "%s:%lld", s.path, (long long)s.line);
        if (rc == OK) corpus_add(out, &e, s.is_text, list[i], l->max_length, l->truncation);
        pool_release(&pool);
        if (p->call && (i % 16 == 0 || i + 1 == n)) p->call(p->arg, "tokenizing", i + 1, n);
    }
    encoded_release(&e);
    return rc;
}

static void mix_word(uint64_t key[2], uint64_t w)
{
    key[0] = (key[0] ^ w) * 0x9E3779B97F4A7C15u;
    key[0] ^= key[0] >> 32;
    key[1] = (key[1] + w) * 0xD6E8FEB86659FD93u;
    key[1] ^= key[1] >> 29;
}

/* Everything that decides the tokens: the records chosen, the tokenizer's files, the template, how turns are weighed and cut. */
static int cache_key(struct loader *l, const struct spec *spec, const struct dataset *d, const int64_t *list, int64_t n, uint64_t key[2], struct error *err)
{
    static const char *const files[] = { "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "added_tokens.json" };
    int rc = dataset_hash(d, key, err);
    if (rc != OK) return rc;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char *path = xasprintf("%s/%s", spec->model, files[i]), *text;
        size_t len;
        if (file_read(path, 1u << 30, &text, &len, NULL) == OK) {
            mix_word(key, len + 1);
            for (size_t k = 0; k < len; k += 8) {
                uint64_t w = 0;
                memcpy(&w, text + k, len - k < 8 ? len - k : 8);
                mix_word(key, w);
            }
            free(text);
        } else mix_word(key, 0);
        free(path);
    }
    for (int64_t i = 0; i < n; i++) mix_word(key, (uint64_t)list[i]);
    mix_word(key, l->tmpl ? template_hash(l->tmpl) : 0);
    mix_word(key, (uint64_t)l->encoder->loss_scale);
    mix_word(key, (uint64_t)l->max_length);
    mix_word(key, (uint64_t)l->truncation);
    mix_word(key, CACHE_VERSION);
    return OK;
}

/* From the cache, or tokenized and put there. Ranks of one job open at the same time: the first to take the lock does the work. */
static int get_corpus(struct loader *l, const struct spec *spec, const struct dataset *d, const int64_t *list, int64_t n, struct corpus *out,
                      const struct progress *p, struct error *err)
{
    uint64_t key[2];
    struct error quiet = { 0 };
    char *folder = spec->cached_dataset ? xstrdup(spec->cached_dataset) : spec->output_dir ? xasprintf("%s/cache", spec->output_dir) : NULL;
    char *path = NULL, *lock = NULL;
    int fd = -1, rc = OK;
    if (folder == NULL) { rc = tokenize(l, d, list, n, out, p, err); goto out; }
    if ((rc = cache_key(l, spec, d, list, n, key, err)) != OK) goto out;
    path = xasprintf("%s/%016llx%016llx.tokens", folder, (unsigned long long)key[0], (unsigned long long)key[1]);
    lock = xasprintf("%s/.lock", folder);
    if (cache_read(out, path, key, tokenizer_size(l->tok), &quiet) == OK) goto out;
    if (make_dirs(folder, &quiet) == OK) fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0 && spec->cached_dataset) { rc = error_set(err, E_IO, "cached_dataset %s: cannot write there: %s", folder, strerror(errno)); goto out; }
    if (fd >= 0) {
        while (flock(fd, LOCK_EX) < 0 && errno == EINTR) {}
        if (cache_read(out, path, key, tokenizer_size(l->tok), &quiet) == OK) goto out;
    }
    rc = tokenize(l, d, list, n, out, p, err);
    if (rc == OK && fd >= 0 && cache_write(path, out, key, &quiet) != OK && spec->cached_dataset) {
        rc = quiet.code;
        if (err) *err = quiet;
    }
out:
    if (fd >= 0) (void)close(fd);
    free(folder);
    free(path);
    free(lock);
    return rc;
}

static void pack_corpus(const struct loader *l, const struct corpus *c, struct packing *out)
{
    if (!l->packing) { pack_single(out, c->n_docs); return; }
    int64_t *length = xmalloc((size_t)(c->n_docs + 1) * sizeof *length);
    for (int64_t i = 0; i < c->n_docs; i++) length[i] = c->docs[i].n_ids;
    pack_best_fit(out, length, c->n_docs, l->max_length);
    free(length);
}

/* Splits samples 0..n of d by seed into training (ascending) and evaluation. */
static void choose(const struct spec *spec, int64_t n, int64_t **train, int64_t *n_train, int64_t **val, int64_t *n_val)
{
    int64_t *perm = xmalloc((size_t)(n + 1) * sizeof *perm), aside = 0;
    char *taken = xcalloc((size_t)n + 1, 1);
    for (int64_t i = 0; i < n; i++) perm[i] = i;
    if (spec->split_dataset_ratio > 0 && n > 1) {
        aside = (int64_t)floor(spec->split_dataset_ratio * (double)n);
        if (aside < 1) aside = 1;
        if (aside > n - 1) aside = n - 1;
        order_shuffle(perm, n, order_stream((uint64_t)spec->seed, 'v', 0));
        for (int64_t i = 0; i < aside; i++) taken[perm[i]] = 1;
    }
    *train = xmalloc((size_t)(n + 1) * sizeof **train);
    *val = xmalloc((size_t)(n + 1) * sizeof **val);
    *n_train = *n_val = 0;
    for (int64_t i = 0; i < n; i++) {
        if (taken[i]) (*val)[(*n_val)++] = i;
        else (*train)[(*n_train)++] = i;
    }
    free(perm);
    free(taken);
}

static int nothing_left(const struct loader *l, const struct corpus *c, const char *field, struct error *err)
{
    return error_set(err, E_INVALID, "%s: empty dataset: of %lld samples %lld are longer than max_length=%lld (truncation_strategy decides what "
                     "happens to them) and %lld have nothing to train", field, (long long)c->samples, (long long)c->dropped_long,
                     (long long)l->max_length, (long long)c->dropped_untrained);
}

int loader_open(struct loader **out, const struct spec *spec, int dp_rank, int dp_size, int multiple,
                void (*progress)(void *arg, const char *what, int64_t done, int64_t total), void *arg, struct error *err)
{
    struct loader *l = xcalloc(1, sizeof *l);
    struct dataset *d = NULL, *v = NULL;
    struct progress p = { progress, arg };
    int64_t *train = NULL, *val = NULL, n_train = 0, n_val = 0;
    int rc;
    assert(dp_size >= 1 && dp_rank >= 0 && dp_rank < dp_size && multiple >= 1);
    *out = NULL;
    l->dp_rank = dp_rank;
    l->dp_size = dp_size;
    l->multiple = multiple;
    l->max_length = spec->max_length;
    l->batch = spec->per_device_train_batch_size;
    l->shuffle = spec->dataset_shuffle;
    l->packing = spec->packing;
    l->seed = (uint64_t)spec->seed;
    l->truncation = (enum truncation)truncation_named(spec->truncation_strategy);
    l->order_epoch = -1;
    l->own_encoder.loss_scale = (enum loss_scale)loss_scale_named(spec->loss_scale);
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_cond_init(&l->changed, NULL);
    if (spec->streaming) { rc = error_set(err, E_UNSUPPORTED, "streaming is not built yet; leave it false"); goto out; }
    if ((rc = dataset_open(&d, &spec->dataset, spec->columns, spec->system, spec->dataset_shuffle, l->seed, err)) != OK) goto out;
    if (spec->val_dataset.n && (rc = dataset_open(&v, &spec->val_dataset, spec->columns, spec->system, spec->dataset_shuffle, l->seed, err)) != OK) goto out;
    if ((rc = tokenizer_open(&l->tok, spec->model, err)) != OK) goto out;
    if (strcmp(spec->template, "none") != 0 && (rc = template_open(&l->tmpl, spec->model, spec->template, l->tok, err)) != OK) goto out;
    l->own_encoder.tok = l->tok;
    l->own_encoder.tmpl = l->tmpl;
    l->encoder = &l->own_encoder;

    choose(spec, dataset_count(d), &train, &n_train, &val, &n_val);
    if ((rc = get_corpus(l, spec, d, train, n_train, &l->train, &p, err)) != OK) goto out;
    if (l->train.n_docs == 0) { rc = nothing_left(l, &l->train, "dataset", err); goto out; }
    if (v) {                                                    /* val_dataset wins over a split */
        n_val = dataset_count(v);
        val = xrealloc(val, (size_t)(n_val + 1) * sizeof *val);
        for (int64_t i = 0; i < n_val; i++) val[i] = i;
    }
    if (n_val && (rc = get_corpus(l, spec, v ? v : d, val, n_val, &l->val, &p, err)) != OK) goto out;
    if (v && l->val.n_docs == 0) { rc = nothing_left(l, &l->val, "val_dataset", err); goto out; }

    pack_corpus(l, &l->train, &l->rows);
    pack_corpus(l, &l->val, &l->val_rows);
    l->row_tokens = xcalloc((size_t)l->rows.n_rows, sizeof *l->row_tokens);
    for (int64_t r = 0; r < l->rows.n_rows; r++)
        for (int64_t k = l->rows.first[r]; k < l->rows.first[r + 1]; k++) l->row_tokens[r] += l->train.docs[l->rows.docs[k]].n_ids;
    l->order = xmalloc((size_t)l->rows.n_rows * sizeof *l->order);
    l->micro_per_epoch = (l->rows.n_rows + l->batch * dp_size - 1) / (l->batch * dp_size);
    if (pthread_create(&l->thread, NULL, run, l) != 0) { rc = error_set(err, E_IO, "cannot start the loader's thread"); goto out; }
    l->started = true;
out:
    dataset_close(d);
    dataset_close(v);
    free(train);
    free(val);
    if (rc != OK) { loader_close(l); return rc; }
    *out = l;
    return OK;
}

void loader_close(struct loader *l)
{
    if (l == NULL) return;
    if (l->started) {
        (void)pthread_mutex_lock(&l->lock);
        l->quit = true;
        (void)pthread_cond_broadcast(&l->changed);
        (void)pthread_mutex_unlock(&l->lock);
        (void)pthread_join(l->thread, NULL);
    }
    (void)pthread_mutex_destroy(&l->lock);
    (void)pthread_cond_destroy(&l->changed);
    corpus_release(&l->train);
    corpus_release(&l->val);
    packing_release(&l->rows);
    packing_release(&l->val_rows);
    free(l->row_tokens);
    free(l->order);
    for (int i = 0; i < 2; i++) slot_release(&l->slots[i]);
    slot_release(&l->val_slot);
    template_free(l->tmpl);
    tokenizer_free(l->tok);
    free(l);
}
