/* loader.c - rows in training order (loader.h).
 *
 * Open: index the files, choose the evaluation split, tokenize (or map the cache), pack. Then a thread of its own copies the next
 * micro-batch together while the engine works on the last one; two slots take turns.
 * Order of an epoch: the packed rows, permuted by (seed, epoch). Rank d of D takes rows d, d+D, … of it; D and the batch size never
 * change the order itself. Packing does not change between epochs.
 * Streaming tokenizes as it goes: samples in the order of (seed, epoch), packed a window at a time, epochs joined without a seam. */
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

#define WINDOW_SAMPLES 1024         /* streaming packs so many at a time, or so many rows' worth of tokens */
#define WINDOW_ROWS 64
#define THREADS_MAX 16
#define ROUND 32                    /* samples a tokenizing thread takes at once */

/* Streaming: the window of documents that rows come from now. Only the builder touches it. */
struct stream {
    struct dataset *dataset;
    int64_t *list, n;               /* the samples to train, and how many */
    int64_t *order, epoch, at;      /* their order in this epoch, and the next one to tokenize */
    struct corpus window;
    struct packing rows;
    int64_t *row_order, row;        /* rows of the window already passed */
    int64_t passed, window_number;  /* rows passed since the very first; windows since then */
    bool any;                       /* this epoch gave a row */
};

struct slot { struct row row; int64_t cap_T, cap_docs; int rc; struct error err; };

struct loader {
    const struct encoder *encoder;
    struct encoder own_encoder;
    struct tokenizer *tok;
    struct chat_template *tmpl;
    struct corpus train, val;
    struct stream stream;
    bool streaming;
    int threads;
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

static void begin_row(struct slot *s)
{
    slot_room(s, 1, 1);
    s->row.T = s->row.n_docs = s->row.tokens_real = s->row.tokens_trained = 0;
    s->row.weight_sum = 0.0;
    s->row.cu[0] = 0;
}

static void add_row(struct slot *s, const struct corpus *c, const struct packing *p, int64_t r)
{
    struct row *row = &s->row;
    int64_t t = row->T, more = 0;
    for (int64_t k = p->first[r]; k < p->first[r + 1]; k++) more += c->docs[p->docs[k]].n_ids;
    slot_room(s, t + more, row->n_docs + p->first[r + 1] - p->first[r] + 1);
    for (int64_t k = p->first[r]; k < p->first[r + 1]; k++) {
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
    row->T = row->tokens_real = t;
}

static void end_row(const struct loader *l, struct slot *s)     /* padding up to a multiple, as a document of its own */
{
    struct row *row = &s->row;
    int64_t t = row->T, T = t == 0 ? l->multiple : round_up(t, l->multiple);
    int32_t pad = tokenizer_pad(l->tok);
    slot_room(s, T, row->n_docs + 1);
    for (int64_t j = t; j < T; j++) {
        row->ids[j] = pad >= 0 ? pad : 0;
        row->labels[j] = -100;
        row->positions[j] = (int32_t)(j - t);
        row->weights[j] = 0.0f;
    }
    if (t < T) row->cu[++row->n_docs] = T;
    row->T = T;
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
    int64_t epoch = micro / l->micro_per_epoch, k = micro % l->micro_per_epoch;
    order_for(l, epoch);
    begin_row(s);
    s->row.epoch = epoch;
    s->row.index = -1;
    for (int64_t b = l->batch - 1; b >= 0; b--) {               /* downwards, so that index ends as the first row's */
        int64_t at = (k * l->batch + b) * l->dp_size + l->dp_rank;
        if (at < l->rows.n_rows) s->row.index = l->order[at];
    }
    for (int64_t b = 0; b < l->batch; b++) {
        int64_t at = (k * l->batch + b) * l->dp_size + l->dp_rank;
        if (at < l->rows.n_rows) add_row(s, &l->train, &l->rows, l->order[at]);
    }
    end_row(l, s);
    s->rc = OK;
}

/* --- streaming --- */

static void pack_corpus(const struct loader *l, const struct corpus *c, struct packing *out);

static void stream_epoch(struct loader *l, int64_t epoch)
{
    struct stream *m = &l->stream;
    memcpy(m->order, m->list, (size_t)m->n * sizeof *m->order);
    if (l->shuffle) order_shuffle(m->order, m->n, order_stream(l->seed, 'e', (uint64_t)epoch));
    m->epoch = epoch;
    m->at = 0;
    m->any = false;
}

static void stream_forget(struct stream *m)
{
    corpus_release(&m->window);
    packing_release(&m->rows);
    free(m->row_order);
    m->row_order = NULL;
    m->row = 0;
}

/* Tokenizes and packs the next window. */
static int stream_window(struct loader *l, struct error *err)
{
    struct stream *m = &l->stream;
    struct encoded e = { 0 };
    int rc = OK;
    stream_forget(m);
    while (m->window.n_docs == 0 && rc == OK) {
        if (m->at == m->n) {
            if (!m->any) { rc = error_set(err, E_INVALID, "dataset: empty dataset: none of its %lld samples leaves anything to train at max_length=%lld", (long long)m->n, (long long)l->max_length); break; }
            stream_epoch(l, m->epoch + 1);
        }
        int64_t end = m->at + WINDOW_SAMPLES < m->n ? m->at + WINDOW_SAMPLES : m->n;
        for (; m->at < end && m->window.n_ids < WINDOW_ROWS * l->max_length && rc == OK; m->at++) {
            struct pool pool = { 0 };
            struct sample s;
            rc = dataset_sample(m->dataset, m->order[m->at], &pool, &s, err);
            if (rc == OK && (rc = encode_sample(l->encoder, &s, &e, err)) != OK) (void)error_prefix(err, "%s:%lld", s.path, (long long)s.line);
            if (rc == OK) corpus_add(&m->window, &e, s.is_text, m->order[m->at], l->max_length, l->truncation);
            pool_release(&pool);
        }
    }
    encoded_release(&e);
    if (rc != OK) return rc;
    m->any = true;
    pack_corpus(l, &m->window, &m->rows);
    m->row_order = xmalloc((size_t)m->rows.n_rows * sizeof *m->row_order);
    for (int64_t i = 0; i < m->rows.n_rows; i++) m->row_order[i] = i;
    if (l->shuffle) order_shuffle(m->row_order, m->rows.n_rows, order_stream(l->seed, 's', (uint64_t)m->window_number));
    m->window_number++;
    return OK;
}

/* Goes to row `want` of the endless sequence; back means from the beginning again. */
static int stream_go(struct loader *l, int64_t want, struct error *err)
{
    struct stream *m = &l->stream;
    if (want < m->passed) {
        stream_forget(m);
        stream_epoch(l, 0);
        m->passed = m->window_number = 0;
    }
    while (want - m->passed >= m->rows.n_rows - m->row) {
        m->passed += m->rows.n_rows - m->row;
        int rc = stream_window(l, err);
        if (rc != OK) return rc;
    }
    m->row += want - m->passed;
    m->passed = want;
    return OK;
}

static void build_stream(struct loader *l, struct slot *s, int64_t micro)
{
    begin_row(s);
    s->rc = OK;
    for (int64_t b = 0; b < l->batch && s->rc == OK; b++) {
        int64_t want = (micro * l->batch + b) * l->dp_size + l->dp_rank;
        s->rc = stream_go(l, want, &s->err);
        if (s->rc != OK) return;
        add_row(s, &l->stream.window, &l->stream.rows, l->stream.row_order[l->stream.row]);
        if (b == 0) { s->row.epoch = l->stream.epoch; s->row.index = want; }
    }
    end_row(l, s);
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
        if (l->streaming) build_stream(l, s, micro);
        else build(l, s, micro);
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
    begin_row(&l->val_slot);
    add_row(&l->val_slot, &l->val, &l->val_rows, i);
    end_row(l, &l->val_slot);
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
    *out = (struct loader_info){ .documents = l->streaming ? l->stream.n : c->n_docs, .documents_dropped = c->dropped_long + c->dropped_untrained,
                                 .dropped_long = c->dropped_long, .dropped_untrained = c->dropped_untrained,
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
    if (l->streaming) {                                         /* nothing is known yet: what the rules allow */
        T = l->batch * l->max_length;
        docs = l->batch * (l->packing ? l->max_length / 2 : 1);
    }
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

/* One thread's share of a round: samples from..to of the list, each into its own place. */
struct share {
    const struct loader *l;
    const struct dataset *d;
    const int64_t *list;
    int64_t from, to;
    struct encoded out[ROUND];
    bool is_text[ROUND];
    int64_t failed;             /* the sample that failed; -1 if none */
    struct error err;
    int rc;
};

static void *tokenize_share(void *arg)
{
    struct share *h = arg;
    h->rc = OK;
    h->failed = -1;
    for (int64_t i = h->from; i < h->to; i++) {
        struct pool pool = { 0 };
        struct sample s;
        h->rc = dataset_sample(h->d, h->list[i], &pool, &s, &h->err);
        if (h->rc == OK && (h->rc = encode_sample(h->l->encoder, &s, &h->out[i - h->from], &h->err)) != OK) (void)error_prefix(&h->err, "%s:%lld", s.path, (long long)s.line);
        h->is_text[i - h->from] = h->rc == OK && s.is_text;
        pool_release(&pool);
        if (h->rc != OK) { h->failed = i; break; }
    }
    return NULL;
}

/* In rounds: every thread takes the next few samples, then all results are added in order. The first bad sample is the one that is named. */
static int tokenize(struct loader *l, const struct dataset *d, const int64_t *list, int64_t n, struct corpus *out,
                    const struct progress *p, struct error *err)
{
    int threads = l->threads, rc = OK;
    struct share *share = xcalloc((size_t)threads, sizeof *share);
    for (int64_t at = 0; at < n && rc == OK;) {
        pthread_t id[THREADS_MAX];
        bool own[THREADS_MAX];
        int used = 0;
        for (; used < threads && at < n; used++) {
            struct share *h = &share[used];
            h->l = l;
            h->d = d;
            h->list = list;
            h->from = at;
            at = h->to = at + ROUND < n ? at + ROUND : n;
            own[used] = used > 0 && pthread_create(&id[used], NULL, tokenize_share, h) == 0;
        }
        for (int i = 0; i < used; i++) if (!own[i]) (void)tokenize_share(&share[i]);
        for (int i = 0; i < used; i++) if (own[i]) (void)pthread_join(id[i], NULL);
        for (int i = 0; i < used && rc == OK; i++) {
            struct share *h = &share[i];
            rc = h->rc;
            if (rc != OK && err) *err = h->err;
            for (int64_t k = h->from; k < h->to && rc == OK; k++) corpus_add(out, &h->out[k - h->from], h->is_text[k - h->from], list[k], l->max_length, l->truncation);
        }
        if (rc == OK && p->call) p->call(p->arg, "tokenizing", at, n);
    }
    for (int i = 0; i < threads; i++) for (int k = 0; k < ROUND; k++) encoded_release(&share[i].out[k]);
    free(share);
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
    l->streaming = spec->streaming;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    l->threads = cores < 1 ? 1 : cores > THREADS_MAX ? THREADS_MAX : (int)cores;
    if (l->streaming && spec->max_steps < 1) {
        rc = error_set(err, E_INVALID, "streaming needs max_steps of at least 1: how long an epoch is shows only at its end");
        goto out;
    }
    if ((rc = dataset_open(&d, &spec->dataset, spec->columns, spec->system, spec->dataset_shuffle, l->seed, err)) != OK) goto out;
    if (spec->val_dataset.n && (rc = dataset_open(&v, &spec->val_dataset, spec->columns, spec->system, spec->dataset_shuffle, l->seed, err)) != OK) goto out;
    if ((rc = tokenizer_open(&l->tok, spec->model, err)) != OK) goto out;
    if (strcmp(spec->template, "none") != 0 && (rc = template_open(&l->tmpl, spec->model, spec->template, l->tok, err)) != OK) goto out;
    l->own_encoder.tok = l->tok;
    l->own_encoder.tmpl = l->tmpl;
    l->encoder = &l->own_encoder;

    choose(spec, dataset_count(d), &train, &n_train, &val, &n_val);
    if (l->streaming) {
        l->stream = (struct stream){ .dataset = d, .list = train, .n = n_train, .order = xmalloc((size_t)(n_train + 1) * sizeof *l->stream.order) };
        d = NULL;
        train = NULL;
        stream_epoch(l, 0);
    } else if ((rc = get_corpus(l, spec, d, train, n_train, &l->train, &p, err)) != OK) goto out;
    if (!l->streaming && l->train.n_docs == 0) { rc = nothing_left(l, &l->train, "dataset", err); goto out; }
    if (v) {                                                    /* val_dataset wins over a split */
        n_val = dataset_count(v);
        val = xrealloc(val, (size_t)(n_val + 1) * sizeof *val);
        for (int64_t i = 0; i < n_val; i++) val[i] = i;
    }
    if (n_val && (rc = get_corpus(l, spec, v ? v : l->streaming ? l->stream.dataset : d, val, n_val, &l->val, &p, err)) != OK) goto out;
    if (v && l->val.n_docs == 0) { rc = nothing_left(l, &l->val, "val_dataset", err); goto out; }

    pack_corpus(l, &l->train, &l->rows);
    pack_corpus(l, &l->val, &l->val_rows);
    l->row_tokens = xcalloc((size_t)l->rows.n_rows, sizeof *l->row_tokens);
    for (int64_t r = 0; r < l->rows.n_rows; r++)
        for (int64_t k = l->rows.first[r]; k < l->rows.first[r + 1]; k++) l->row_tokens[r] += l->train.docs[l->rows.docs[k]].n_ids;
    l->order = xmalloc((size_t)l->rows.n_rows * sizeof *l->order);
    if (l->streaming) l->micro_per_epoch = (int64_t)1 << 40;
    else l->micro_per_epoch = (l->rows.n_rows + l->batch * dp_size - 1) / (l->batch * dp_size);
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
    stream_forget(&l->stream);
    dataset_close(l->stream.dataset);
    free(l->stream.list);
    free(l->stream.order);
    free(l->row_tokens);
    free(l->order);
    for (int i = 0; i < 2; i++) slot_release(&l->slots[i]);
    slot_release(&l->val_slot);
    template_free(l->tmpl);
    tokenizer_free(l->tok);
    free(l);
}
