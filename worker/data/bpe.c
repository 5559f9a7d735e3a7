/* bpe.c - see bpe.h. Source: Sennrich et al. 2016, arXiv 1508.07909; order of merges as in Hugging Face tokenizers, models/bpe. */
#include "worker/data/bpe.h"

#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define SCAN_MAX 48                     /* symbols; longer words use the heap */
#define TOKEN_LEN_MAX 16384             /* bytes */
#define AFFIX_MAX 256                   /* bytes */
#define PARTS_MIN 12                    /* symbols; shorter words are not looked at for parts */
#define WORD_MAX (1u << 28)             /* bytes */
#define JOIN_BITS (1u << 20)
#define CACHE_SLOTS (1u << 15)
#define CACHE_KEY 30
#define CACHE_IDS 7

uint32_t byte_level_cp[256];
static int16_t byte_of_cp[512];
static pthread_once_t filled = PTHREAD_ONCE_INIT;

struct token { uint32_t at, len; };                             /* in the pool; at NONE: no such id */
struct merge { uint32_t left, right; int32_t rank, id; };       /* left NONE: empty slot */

struct bpe {
    struct bytes pool;                  /* all spellings, each with a NUL */
    struct token *tokens;               /* by id */
    int64_t size, cap, count;
    uint32_t *slots;                    /* id by spelling, open addressing; NONE: empty */
    uint32_t slot_mask;
    struct merge *merges;               /* by pair, open addressing */
    uint32_t merge_mask;
    int64_t merge_count;
    int32_t rank;                       /* next one */
    bool bytes, ignore_merges, fuse_unk, byte_fallback;
    int32_t unk;                        /* -1: none */
    char *prefix, *suffix;
    int32_t byte_id[256];               /* id of the byte's spelling or -1 */
    int32_t fallback_id[256];           /* id of <0xXX> or -1 */
    uint64_t *joins;                    /* bits by hash_pair of two characters' ids: some merge joins them. NULL: not known */
};

struct cached { uint32_t hash; uint8_t len, n; char key[CACHE_KEY]; int32_t ids[CACHE_IDS]; };

struct symbol { int32_t id, prev, next, rank, made; };         /* rank, made: of the merge with the next; INT_MAX: none, or not live */

struct bpe_space {
    struct cached *cache;
    struct bytes spelled;
    struct symbol *symbols;
    uint64_t *heap;                     /* rank << 32 | position */
    size_t symbol_cap, heap_cap, heap_n;
    int32_t *start;                     /* ids of the single characters */
    size_t start_cap;
};

/* --- byte-level spelling --- */

static void fill_byte_level(void)
{
    uint32_t next = 256;
    memset(byte_of_cp, -1, sizeof byte_of_cp);
    for (uint32_t b = 0; b < 256; b++) {
        bool shown = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE);
        byte_level_cp[b] = shown ? b : next++;
        byte_of_cp[byte_level_cp[b]] = (int16_t)b;
    }
}

void byte_level_ready(void) { (void)pthread_once(&filled, fill_byte_level); }

int byte_level_byte(uint32_t cp) { return cp < 512 ? byte_of_cp[cp] : -1; }

/* --- tables --- */

static uint32_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = n * UINT64_C(0x9E3779B97F4A7C15), w;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * UINT64_C(0xD6E8FEB86659FD93);
        h ^= h >> 32;
    }
    w = 0;
    if (n) memcpy(&w, s, n);
    h = (h ^ w) * UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(h >> 32);
}

static uint32_t hash_pair(uint32_t left, uint32_t right)
{
    return (uint32_t)((((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
}

static void grow_slots(struct bpe *m)
{
    uint32_t n = m->slot_mask ? (m->slot_mask + 1) * 2 : 1024;
    free(m->slots);
    m->slots = xmalloc(n * sizeof *m->slots);
    memset(m->slots, 0xFF, n * sizeof *m->slots);
    m->slot_mask = n - 1;
    for (int64_t id = 0; id < m->size; id++) {
        const struct token *t = &m->tokens[id];
        if (t->at == NONE) continue;
        uint32_t i = hash_bytes(m->pool.v + t->at, t->len) & m->slot_mask;
        while (m->slots[i] != NONE) i = (i + 1) & m->slot_mask;
        m->slots[i] = (uint32_t)id;
    }
}

static void grow_merges(struct bpe *m)
{
    uint32_t old_n = m->merge_mask ? m->merge_mask + 1 : 0, n = old_n ? old_n * 2 : 1024;
    struct merge *old = m->merges;
    m->merges = xmalloc(n * sizeof *m->merges);
    memset(m->merges, 0xFF, n * sizeof *m->merges);
    m->merge_mask = n - 1;
    for (uint32_t k = 0; k < old_n; k++) {
        if (old[k].left == NONE) continue;
        uint32_t i = hash_pair(old[k].left, old[k].right) & m->merge_mask;
        while (m->merges[i].left != NONE) i = (i + 1) & m->merge_mask;
        m->merges[i] = old[k];
    }
    free(old);
}

static inline const struct merge *find_merge(const struct bpe *m, int32_t left, int32_t right)
{
    uint32_t i = hash_pair((uint32_t)left, (uint32_t)right) & m->merge_mask;
    for (;; i = (i + 1) & m->merge_mask) {
        const struct merge *g = &m->merges[i];
        if (g->left == (uint32_t)left && g->right == (uint32_t)right) return g;
        if (g->left == NONE) return NULL;
    }
}

struct bpe *bpe_new(void)
{
    struct bpe *m = xcalloc(1, sizeof *m);
    byte_level_ready();
    grow_slots(m);
    grow_merges(m);
    m->unk = -1;
    return m;
}

void bpe_free(struct bpe *m)
{
    if (m == NULL) return;
    bytes_release(&m->pool);
    free(m->tokens);
    free(m->slots);
    free(m->merges);
    free(m->joins);
    free(m->prefix);
    free(m->suffix);
    free(m);
}

int32_t bpe_id(const struct bpe *m, const char *token, size_t len)
{
    uint32_t i = hash_bytes(token, len) & m->slot_mask;
    for (;; i = (i + 1) & m->slot_mask) {
        if (m->slots[i] == NONE) return -1;
        const struct token *t = &m->tokens[m->slots[i]];
        if (t->len == len && memcmp(m->pool.v + t->at, token, len) == 0) return (int32_t)m->slots[i];
    }
}

const char *bpe_token(const struct bpe *m, int64_t id, size_t *len)
{
    if (id < 0 || id >= m->size || m->tokens[id].at == NONE) return NULL;
    if (len) *len = m->tokens[id].len;
    return m->pool.v + m->tokens[id].at;
}

int64_t bpe_size(const struct bpe *m) { return m->size; }
int64_t bpe_count(const struct bpe *m) { return m->count; }

static int show(size_t n) { return (int)(n < 80 ? n : 80); }

int bpe_add_token(struct bpe *m, const char *token, size_t len, int64_t id, struct error *err)
{
    if (id < 0 || id >= TOKEN_ID_MAX) return error_set(err, E_INVALID, "token \"%.*s\" has id %lld; expected 0 to %d", show(len), token, (long long)id, TOKEN_ID_MAX - 1);
    if (bpe_token(m, id, NULL)) return error_set(err, E_INVALID, "id %lld belongs to both \"%.80s\" and \"%.*s\"", (long long)id, bpe_token(m, id, NULL), show(len), token);
    if (bpe_id(m, token, len) >= 0) return error_set(err, E_INVALID, "token \"%.*s\" appears twice", show(len), token);
    if (len > TOKEN_LEN_MAX) return error_set(err, E_LIMIT, "token \"%.*s…\" has %zu bytes; at most %d are taken", show(len), token, len, TOKEN_LEN_MAX);
    if (m->pool.n + len + 1 >= NONE) return error_set(err, E_LIMIT, "vocabulary is larger than 4 GiB");
    if (id >= m->cap) {
        int64_t cap = m->cap ? m->cap : 1024;
        while (cap <= id) cap *= 2;
        m->tokens = xrealloc(m->tokens, (size_t)cap * sizeof *m->tokens);
        memset(m->tokens + m->cap, 0xFF, (size_t)(cap - m->cap) * sizeof *m->tokens);
        m->cap = cap;
    }
    m->tokens[id] = (struct token){ (uint32_t)m->pool.n, (uint32_t)len };
    bytes_add(&m->pool, token, len);
    bytes_add_char(&m->pool, '\0');
    if (id >= m->size) m->size = id + 1;
    m->count++;
    if ((uint64_t)m->count * 2 > m->slot_mask) { grow_slots(m); return OK; }
    uint32_t i = hash_bytes(token, len) & m->slot_mask;
    while (m->slots[i] != NONE) i = (i + 1) & m->slot_mask;
    m->slots[i] = (uint32_t)id;
    return OK;
}

int bpe_add_merge(struct bpe *m, const char *left, size_t left_len, const char *right, size_t right_len, size_t prefix_len, struct error *err)
{
    char small[256], *joined = small;
    int32_t a = bpe_id(m, left, left_len), b = bpe_id(m, right, right_len);
    if (a < 0 || b < 0) {
        return error_set(err, E_INVALID, "merge %d names \"%.*s\", which is not in the vocabulary", m->rank, a < 0 ? show(left_len) : show(right_len),
                         a < 0 ? left : right);
    }
    if (right_len < prefix_len) return error_set(err, E_INVALID, "merge %d: \"%.*s\" is shorter than continuing_subword_prefix", m->rank, show(right_len), right);
    size_t n = left_len + right_len - prefix_len;
    if (n > sizeof small) joined = xmalloc(n);
    memcpy(joined, left, left_len);
    memcpy(joined + left_len, right + prefix_len, right_len - prefix_len);
    int32_t id = bpe_id(m, joined, n);
    int rc = OK;
    if (id < 0) rc = error_set(err, E_INVALID, "merge %d makes \"%.*s\", which is not in the vocabulary", m->rank, show(n), joined);
    if (joined != small) free(joined);
    if (rc != OK) return rc;
    if ((uint64_t)(m->merge_count + 1) * 2 > m->merge_mask) grow_merges(m);
    uint32_t i = hash_pair((uint32_t)a, (uint32_t)b) & m->merge_mask;
    while (m->merges[i].left != NONE && !(m->merges[i].left == (uint32_t)a && m->merges[i].right == (uint32_t)b)) i = (i + 1) & m->merge_mask;
    if (m->merges[i].left == NONE) m->merge_count++;
    m->merges[i] = (struct merge){ (uint32_t)a, (uint32_t)b, m->rank++, id };
    return OK;
}

/* Two characters that no merge joins part the word: nothing to their left ever meets anything to their right. So a text without
 * blanks to split at (Metaspace, split false) still falls into words. Not with merges of unk or byte tokens, whose spelling is not
 * the text's. */
static void find_joins(struct bpe *m)
{
    if (m->prefix || m->suffix) return;
    uint64_t *joins = xcalloc(JOIN_BITS / 64, sizeof *joins);
    bool *foreign = xcalloc((unsigned long)m->size + 1, sizeof *foreign);
    if (m->unk >= 0) foreign[m->unk] = true;
    for (int b = 0; b < 256; b++) if (m->fallback_id[b] >= 0) foreign[m->fallback_id[b]] = true;
    for (uint32_t i = 0; i <= m->merge_mask; i++) {
        const struct merge *g = &m->merges[i];
        if (g->left == NONE) continue;
        const struct token *left = &m->tokens[g->left], *right = &m->tokens[g->right];
        if (foreign[g->left] || foreign[g->right] || left->len == 0 || right->len == 0) { free(joins); joins = NULL; break; }
        const char *l = m->pool.v + left->at, *r = m->pool.v + right->at;
        uint32_t cp;
        size_t l_at = utf8_prev(l, left->len, &cp), r_len = utf8_next(r, &cp);
        int32_t a = bpe_id(m, l + l_at, left->len - l_at), b = bpe_id(m, r, r_len);
        if (a < 0 || b < 0) continue;                           /* no text gets there */
        uint32_t h = hash_pair((uint32_t)a, (uint32_t)b) % JOIN_BITS;
        joins[h / 64] |= UINT64_C(1) << h % 64;
    }
    free(foreign);
    m->joins = joins;
}

int bpe_ready(struct bpe *m, const struct bpe_options *o, bool bytes, struct error *err)
{
    char text[8];
    m->bytes = bytes;
    m->ignore_merges = o->ignore_merges;
    m->fuse_unk = o->fuse_unk;
    m->byte_fallback = o->byte_fallback;
    m->prefix = o->prefix && *o->prefix ? xstrdup(o->prefix) : NULL;
    m->suffix = o->suffix && *o->suffix ? xstrdup(o->suffix) : NULL;
    assert(!bytes || (!m->prefix && !m->suffix));
    if ((m->prefix && strlen(m->prefix) > AFFIX_MAX) || (m->suffix && strlen(m->suffix) > AFFIX_MAX))
        return error_set(err, E_LIMIT, "model: continuing_subword_prefix and end_of_word_suffix: at most %d bytes are taken", AFFIX_MAX);
    if (o->unk) {
        m->unk = bpe_id(m, o->unk, strlen(o->unk));
        if (m->unk < 0) return error_set(err, E_INVALID, "model.unk_token \"%.80s\" is not in the vocabulary", o->unk);
    }
    for (int b = 0; b < 256; b++) {
        size_t n = utf8_put(text, byte_level_cp[b]);
        m->byte_id[b] = bpe_id(m, text, n);
        (void)snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        m->fallback_id[b] = bpe_id(m, text, 6);
    }
    for (int b = 0; b < 256 && bytes; b++) assert(m->byte_id[b] >= 0);
    find_joins(m);
    return OK;
}

/* --- one word --- */

struct bpe_space *bpe_space_new(void)
{
    struct bpe_space *s = xcalloc(1, sizeof *s);
    s->cache = xcalloc(CACHE_SLOTS, sizeof *s->cache);
    return s;
}

void bpe_space_free(struct bpe_space *s)
{
    if (s == NULL) return;
    free(s->cache);
    bytes_release(&s->spelled);
    free(s->symbols);
    free(s->heap);
    free(s->start);
    free(s);
}

void ids_add(struct ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        ids->cap = ids->cap ? ids->cap * 2 : 64;
        ids->v = xrealloc(ids->v, (size_t)ids->cap * sizeof *ids->v);
    }
    ids->v[ids->n++] = id;
}

void ids_release(struct ids *ids)
{
    free(ids->v);
    *ids = (struct ids){ 0 };
}

static void ids_add_all(struct ids *ids, const int32_t *v, size_t n)
{
    if (n == 0) return;
    if (ids->cap - ids->n < (int64_t)n) {
        int64_t cap = ids->cap ? ids->cap : 64;
        while (cap - ids->n < (int64_t)n) cap *= 2;
        ids->v = xrealloc(ids->v, (size_t)cap * sizeof *ids->v);
        ids->cap = cap;
    }
    if (n) memcpy(ids->v + ids->n, v, n * sizeof *v);
    ids->n += (int64_t)n;
}

/* The single characters' ids in s->start. An unknown character becomes unk (several in a row one, with fuse_unk), its bytes, or
 * nothing. A waiting unk is written only before the next known character: the order of Hugging Face, also around byte_fallback. */
static size_t split_characters(const struct bpe *m, struct bpe_space *s, const char *word, size_t len)
{
    size_t n = 0;
    bool unk_waits = false;
    struct bytes *spelled = &s->spelled;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t k = utf8_next(word + i, &cp);
        const char *c = word + i;
        size_t c_len = k;
        if ((m->prefix && i > 0) || (m->suffix && i + k == len)) {
            spelled->n = 0;
            if (m->prefix && i > 0) bytes_add(spelled, m->prefix, strlen(m->prefix));
            bytes_add(spelled, word + i, k);
            if (m->suffix && i + k == len) bytes_add(spelled, m->suffix, strlen(m->suffix));
            c = spelled->v;
            c_len = spelled->n;
        }
        i += k;
        int32_t id = bpe_id(m, c, c_len);
        if (id >= 0) {
            if (unk_waits) s->start[n++] = m->unk;
            unk_waits = false;
            s->start[n++] = id;
            continue;
        }
        if (m->byte_fallback) {
            bool all = true;
            for (size_t b = 0; b < c_len; b++) all = all && m->fallback_id[(unsigned char)c[b]] >= 0;
            if (all) {
                for (size_t b = 0; b < c_len; b++) s->start[n++] = m->fallback_id[(unsigned char)c[b]];
                continue;
            }
        }
        if (m->unk < 0) continue;
        if (unk_waits && !m->fuse_unk) s->start[n++] = m->unk;
        unk_waits = true;
    }
    if (unk_waits) s->start[n++] = m->unk;
    return n;
}

/* Short words: keep every pair's rank in a row, take the smallest, close the gap. */
static size_t merge_scan(const struct bpe *m, int32_t *id, size_t n)
{
    int32_t rank[SCAN_MAX], made[SCAN_MAX];
    for (size_t i = 0; i + 1 < n; i++) {
        const struct merge *g = find_merge(m, id[i], id[i + 1]);
        rank[i] = g ? g->rank : INT_MAX;
        made[i] = g ? g->id : -1;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) if (rank[i] < rank[best]) best = i;
        if (rank[best] == INT_MAX) break;
        id[best] = made[best];
        n--;
        for (size_t i = best + 1; i < n; i++) id[i] = id[i + 1];
        for (size_t i = best + 1; i + 1 < n; i++) { rank[i] = rank[i + 1]; made[i] = made[i + 1]; }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct merge *g = find_merge(m, id[i], id[i + 1]);
            rank[i] = g ? g->rank : INT_MAX;
            made[i] = g ? g->id : -1;
        }
    }
    return n;
}

static void heap_push(struct bpe_space *s, uint64_t key)
{
    if (s->heap_n == s->heap_cap) {
        s->heap_cap = s->heap_cap ? s->heap_cap * 2 : 256;
        s->heap = xrealloc(s->heap, s->heap_cap * sizeof *s->heap);
    }
    size_t i = s->heap_n++;
    for (; i > 0 && key < s->heap[(i - 1) / 4]; i = (i - 1) / 4) s->heap[i] = s->heap[(i - 1) / 4];
    s->heap[i] = key;
}

static uint64_t heap_pop(struct bpe_space *s)
{
    uint64_t top = s->heap[0], key = s->heap[--s->heap_n];
    size_t i = 0, n = s->heap_n;
    for (size_t first = 1; first < n; first = 4 * i + 1) {
        size_t least = first, end = first + 4 < n ? first + 4 : n;
        for (size_t k = first + 1; k < end; k++) if (s->heap[k] < s->heap[least]) least = k;
        if (s->heap[least] >= key) break;
        s->heap[i] = s->heap[least];
        i = least;
    }
    if (n) s->heap[i] = key;
    return top;
}

static void consider(const struct bpe *m, struct bpe_space *s, int32_t pos)
{
    struct symbol *a = &s->symbols[pos];
    const struct merge *g = a->next < 0 ? NULL : find_merge(m, a->id, s->symbols[a->next].id);
    a->rank = g ? g->rank : INT_MAX;
    a->made = g ? g->id : -1;
    if (g) heap_push(s, (uint64_t)g->rank << 32 | (uint32_t)pos);
}

/* Long words: a heap of pairs by rank, then position. An entry whose rank is no longer its position's is out of date. */
static size_t merge_heap(const struct bpe *m, struct bpe_space *s, int32_t *id, size_t n)
{
    if (n > s->symbol_cap) {
        s->symbol_cap = n * 2;
        free(s->symbols);
        s->symbols = xmalloc(s->symbol_cap * sizeof *s->symbols);
    }
    for (size_t i = 0; i < n; i++) s->symbols[i] = (struct symbol){ id[i], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1, INT_MAX, -1 };
    s->heap_n = 0;
    for (size_t i = 0; i + 1 < n; i++) consider(m, s, (int32_t)i);
    while (s->heap_n) {
        uint64_t key = heap_pop(s);
        int32_t pos = (int32_t)(uint32_t)key;
        struct symbol *a = &s->symbols[pos];
        if ((uint64_t)a->rank != key >> 32) continue;
        struct symbol *b = &s->symbols[a->next];
        a->id = a->made;
        a->next = b->next;
        b->rank = INT_MAX;
        if (a->next >= 0) s->symbols[a->next].prev = pos;
        if (a->prev >= 0) consider(m, s, a->prev);
        consider(m, s, pos);
    }
    size_t out = 0;
    for (int32_t i = 0; i >= 0; i = s->symbols[i].next) id[out++] = s->symbols[i].id;
    return out;
}

static size_t merge(const struct bpe *m, struct bpe_space *s, int32_t *id, size_t n)
{
    if (n <= PARTS_MIN || m->joins == NULL) return n <= SCAN_MAX ? merge_scan(m, id, n) : merge_heap(m, s, id, n);
    size_t out = 0;
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n; to++) {
            uint32_t h = hash_pair((uint32_t)id[to - 1], (uint32_t)id[to]) % JOIN_BITS;
            if (!(m->joins[h / 64] >> h % 64 & 1)) break;
        }
        size_t k = to - from <= SCAN_MAX ? merge_scan(m, id + from, to - from) : merge_heap(m, s, id + from, to - from);
        if (out != from) memmove(id + out, id + from, k * sizeof *id);
        out += k;
    }
    return out;
}

static void spell(struct bytes *out, const char *word, size_t len)
{
    out->n = 0;
    for (size_t i = 0; i < len; i++) bytes_add_cp(out, byte_level_cp[(unsigned char)word[i]]);
}

int bpe_encode(const struct bpe *m, struct bpe_space *s, const char *word, size_t len, struct ids *out, struct error *err)
{
    struct cached *slot = NULL;
    uint32_t hash = 0;
    size_t n = 0;
    if (len == 0) return OK;
    if (len > WORD_MAX) return error_set(err, E_LIMIT, "a word of %zu bytes; at most %u are taken", len, WORD_MAX);
    if (len <= CACHE_KEY) {
        hash = hash_bytes(word, len);
        slot = &s->cache[hash & (CACHE_SLOTS - 1)];
        if (slot->hash == hash && slot->len == len && memcmp(slot->key, word, len) == 0) {
            ids_add_all(out, slot->ids, slot->n);
            return OK;
        }
    }
    size_t most = len * (1 + (m->prefix ? strlen(m->prefix) : 0)) + (m->suffix ? strlen(m->suffix) : 0) + 1;
    if (most > s->start_cap) {                                     /* no more symbols than bytes, and one unk */
        s->start_cap = most + most / 8 + 64;
        free(s->start);
        s->start = xmalloc(s->start_cap * sizeof *s->start);
    }
    if (m->ignore_merges) {
        const char *whole = word;
        size_t whole_len = len;
        if (m->bytes) {
            spell(&s->spelled, word, len);
            whole = s->spelled.v;
            whole_len = s->spelled.n;
        }
        int32_t id = bpe_id(m, whole, whole_len);
        if (id >= 0) { s->start[0] = id; n = 1; goto done; }
    }
    if (m->bytes) for (size_t i = 0; i < len; i++) s->start[n++] = m->byte_id[(unsigned char)word[i]];
    else n = split_characters(m, s, word, len);
    n = merge(m, s, s->start, n);
done:
    ids_add_all(out, s->start, n);
    if (slot && n <= CACHE_IDS) {
        slot->hash = hash;
        slot->len = (uint8_t)len;
        slot->n = (uint8_t)n;
        memcpy(slot->key, word, len);
        memcpy(slot->ids, s->start, n * sizeof *s->start);
    }
    return OK;
}
