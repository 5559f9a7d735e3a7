/* tokenizer.c - see tokenizer.h. The whole way of a text:
 *
 *   added tokens in the text as it came (added.h)      each becomes its id; between them:
 *   normalizer                                         rewrites the stretch
 *   added tokens marked "normalized"                   each becomes its id; between them:
 *   pre-tokenizer                                      cuts the stretch into words
 *   BPE (bpe.h)                                        each word becomes ids
 *   post-processor                                     puts BOS, EOS … around, if asked
 *
 * Scratch memory and the cache of words belong to a space; spaces wait in a list, so as many exist as threads ever ran at once.
 * Not here: truncation and padding (the data code's), training, offsets.
 * Source: Hugging Face tokenizers 0.22, tokenizer/mod.rs and added_vocabulary.rs. */
#include "worker/data/tokenizer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api/file.h"
#include "api/json.h"
#include "worker/data/added.h"
#include "worker/data/bpe.h"
#include "worker/data/decoder.h"
#include "worker/data/normalizer.h"
#include "worker/data/nul.h"
#include "worker/data/pretokenizer.h"
#include "worker/data/tokenizer_file.h"

#define ADDED_MAX 100000

struct space {
    struct space *next;
    struct bpe_space *bpe;
    struct regex_space *regex;
    struct pretokenizer_space *pretokenizer;
    struct normalizer_space normalizer;
};

struct tokenizer {
    struct bpe *bpe;
    struct normalizer *normalizer;
    struct pretokenizer *pretokenizer;
    struct decoder *decoder;
    struct added_token *added;              /* by file order */
    const struct added_token **by_id, **by_content;
    size_t added_n;
    struct added_set *raw, *normalized;
    struct ids before, after;               /* the post-processor's */
    int32_t bos, eos, pad;
    bool raw_bytes;                         /* words reach BPE as bytes */
    pthread_mutex_t lock;
    struct space *spaces;                   /* not in use */
};

/* --- opening --- */

static int by_id(const void *a, const void *b)
{
    const struct added_token *x = *(const struct added_token *const *)a, *y = *(const struct added_token *const *)b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int compare_text(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int c = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return c ? c : a_len < b_len ? -1 : a_len > b_len;
}

static int by_content(const void *a, const void *b)
{
    const struct added_token *x = *(const struct added_token *const *)a, *y = *(const struct added_token *const *)b;
    return compare_text(x->content, x->len, y->content, y->len);
}

static const struct added_token *added_by_id(const struct tokenizer *t, int64_t id)
{
    size_t low = 0, high = t->added_n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (t->by_id[mid]->id < id) low = mid + 1;
        else high = mid;
    }
    return low < t->added_n && t->by_id[low]->id == id ? t->by_id[low] : NULL;
}

static const struct added_token *added_by_content(const struct tokenizer *t, const char *text, size_t len)
{
    size_t low = 0, high = t->added_n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (compare_text(t->by_content[mid]->content, t->by_content[mid]->len, text, len) < 0) low = mid + 1;
        else high = mid;
    }
    return low < t->added_n && compare_text(t->by_content[low]->content, t->by_content[low]->len, text, len) == 0 ? t->by_content[low] : NULL;
}

/* Ids are given as Hugging Face gives them, whatever the file says: the vocabulary's own, else the next free one. seen: bits of the
 * file's ids. */
static int read_added(struct tokenizer *t, const cJSON *item, int64_t i, uint64_t *seen, int64_t *next, struct error *err)
{
    const cJSON *content = json_get(item, "content");
    struct added_token *a = &t->added[t->added_n];
    int64_t id;
    if (!cJSON_IsString(content)) return error_set(err, E_INVALID, "added_tokens[%lld].content: expected a string", (long long)i);
    if (!json_int(item, "id", &id) || id < 0 || id >= TOKEN_ID_MAX)
        return error_set(err, E_INVALID, "added_tokens[%lld].id (\"%.60s\"): expected a whole number from 0 to %d", (long long)i, content->valuestring, TOKEN_ID_MAX - 1);
    if (*content->valuestring == '\0') return OK;              /* Hugging Face passes over it */
    a->content = xstrdup(content->valuestring);
    a->len = nul_show(a->content);
    t->added_n++;                                               /* from here on tokenizer_free frees it */
    int32_t in_vocab = bpe_id(t->bpe, a->content, a->len);
    const char *other = bpe_token(t->bpe, id, NULL);
    if (in_vocab >= 0 && in_vocab != id)
        return error_set(err, E_INVALID, "added_tokens[%lld].id: \"%.60s\" is %lld here and %d in model.vocab", (long long)i, a->content, (long long)id, in_vocab);
    if (in_vocab < 0 && other)
        return error_set(err, E_INVALID, "added_tokens[%lld].id: %lld belongs to \"%.60s\" in model.vocab", (long long)i, (long long)id, other);
    if (seen[id / 64] >> id % 64 & 1) return error_set(err, E_INVALID, "added_tokens[%lld].id: %lld appears twice", (long long)i, (long long)id);
    seen[id / 64] |= UINT64_C(1) << id % 64;
    if (in_vocab < 0 && (other = bpe_token(t->bpe, *next, NULL)) != NULL)
        return error_set(err, E_INVALID, "added_tokens[%lld]: \"%.60s\" would get id %lld, which belongs to \"%.60s\" in model.vocab", (long long)i, a->content, (long long)*next, other);
    a->id = in_vocab >= 0 ? in_vocab : (int32_t)*next;
    if (a->id >= *next) *next = a->id + 1;
    a->single_word = json_bool(item, "single_word", false);
    a->lstrip = json_bool(item, "lstrip", false);
    a->rstrip = json_bool(item, "rstrip", false);
    a->special = json_bool(item, "special", false);
    a->normalized = json_bool(item, "normalized", !a->special);
    return OK;
}

static int index_added(struct tokenizer *t, struct error *err)
{
    free(t->by_id);
    free(t->by_content);
    t->by_id = xcalloc(t->added_n, sizeof *t->by_id);
    t->by_content = xcalloc(t->added_n, sizeof *t->by_content);
    for (size_t i = 0; i < t->added_n; i++) t->by_id[i] = t->by_content[i] = &t->added[i];
    if (t->added_n == 0) return OK;
    qsort(t->by_id, t->added_n, sizeof *t->by_id, by_id);
    qsort(t->by_content, t->added_n, sizeof *t->by_content, by_content);
    for (size_t i = 1; i < t->added_n; i++) {
        if (by_content(&t->by_content[i - 1], &t->by_content[i]) == 0)
            return error_set(err, E_INVALID, "added_tokens: \"%.60s\" appears twice", t->by_content[i]->content);
    }
    return OK;
}

static int open_added(struct tokenizer *t, const cJSON *list, struct error *err)
{
    const cJSON *item;
    int64_t i = 0;
    int rc = OK;
    if (list && !cJSON_IsArray(list) && !cJSON_IsNull(list)) return error_set(err, E_INVALID, "added_tokens: expected a list");
    int n = list ? cJSON_GetArraySize(list) : 0;
    if (n > ADDED_MAX) return error_set(err, E_LIMIT, "added_tokens: %d entries; at most %d are taken", n, ADDED_MAX);
    t->added = xcalloc((size_t)n, sizeof *t->added);
    uint64_t *seen = xcalloc(TOKEN_ID_MAX / 64, sizeof *seen);
    int64_t next = bpe_count(t->bpe);
    cJSON_ArrayForEach(item, list) if ((rc = read_added(t, item, i++, seen, &next, err)) != OK) break;
    free(seen);
    return rc == OK ? index_added(t, err) : rc;
}

/* Special tokens count before others where two have one spelling. */
static int fill_sets(struct tokenizer *t, struct error *err)
{
    struct normalizer_space space = { .regex = regex_space_new() };
    int rc = OK;
    t->raw = added_set_new();
    t->normalized = added_set_new();
    for (int pass = 0; pass < 2 && rc == OK; pass++) {
        for (size_t i = 0; i < t->added_n && rc == OK; i++) {
            const struct added_token *a = &t->added[i];
            const char *text = a->content;
            size_t len = a->len;
            bool moved;
            if (a->special != (pass == 0)) continue;
            if (a->normalized) rc = normalizer_run(t->normalizer, &space, a->content, a->len, &text, &len, &moved, err);
            if (rc == OK) rc = added_set_add(a->normalized ? t->normalized : t->raw, text, len, a, err);
        }
    }
    bytes_release(&space.a);
    bytes_release(&space.b);
    regex_space_free(space.regex);
    return rc;
}

static int open_model(struct tokenizer *t, const cJSON *model, struct error *err)
{
    double dropout;
    const cJSON *value = json_get(model, "dropout"), *unk = json_get(model, "unk_token");
    if (value && !cJSON_IsNull(value) && !(json_number(value, &dropout) && dropout == 0.0))
        return error_set(err, E_UNSUPPORTED, "model.dropout is not supported: tokens must not depend on chance; set it to null");
    if (unk && !cJSON_IsNull(unk) && !cJSON_IsString(unk)) return error_set(err, E_INVALID, "model.unk_token: expected a string or null");
    struct bpe_options o = {
        .ignore_merges = json_bool(model, "ignore_merges", false), .fuse_unk = json_bool(model, "fuse_unk", false),
        .byte_fallback = json_bool(model, "byte_fallback", false), .unk = json_str(model, "unk_token"),
        .prefix = json_str(model, "continuing_subword_prefix"), .suffix = json_str(model, "end_of_word_suffix"),
    };
    t->raw_bytes = pretokenizer_ends_in_bytes(t->pretokenizer) && !(o.prefix && *o.prefix) && !(o.suffix && *o.suffix);
    for (int b = 0; b < 256 && t->raw_bytes; b++) {
        char text[4];
        t->raw_bytes = bpe_id(t->bpe, text, utf8_put(text, byte_level_cp[b])) >= 0;
    }
    return bpe_ready(t->bpe, &o, t->raw_bytes, err);
}

/* --- the post-processor: ids before and after the text --- */

static int add_special(struct tokenizer *t, const cJSON *ids, struct ids *out, const char *key, struct error *err)
{
    const cJSON *item;
    if (!cJSON_IsArray(ids)) return error_set(err, E_INVALID, "%s: expected a list of ids", key);
    cJSON_ArrayForEach(item, ids) {
        double v;
        if (!json_number(item, &v) || v < 0 || v >= (double)tokenizer_size(t) || v != (double)(int32_t)v)
            return error_set(err, E_INVALID, "%s: expected ids of this vocabulary", key);
        ids_add(out, (int32_t)v);
    }
    return OK;
}

static int open_template(struct tokenizer *t, const cJSON *value, const char *key, struct error *err)
{
    const cJSON *single = json_get(value, "single"), *tokens = json_get(value, "special_tokens"), *item;
    struct ids before = { 0 }, after = { 0 };
    bool seen = false;
    int rc = OK;
    if (!cJSON_IsArray(single)) return error_set(err, E_INVALID, "%s.single: expected a list", key);
    cJSON_ArrayForEach(item, single) {
        const cJSON *sequence = json_get(item, "Sequence"), *special = json_get(item, "SpecialToken");
        const char *id = json_str(sequence ? sequence : special, "id");
        if (id == NULL) { rc = error_set(err, E_INVALID, "%s.single: expected {\"Sequence\": …} or {\"SpecialToken\": …}", key); break; }
        if (sequence) {
            if (seen || strcmp(id, "A") != 0) { rc = error_set(err, E_UNSUPPORTED, "%s.single: the text (A) has to stand in it once", key); break; }
            seen = true;
            continue;
        }
        if ((rc = add_special(t, json_get(json_get(tokens, id), "ids"), seen ? &after : &before, key, err)) != OK) break;
    }
    if (rc == OK && !seen) rc = error_set(err, E_UNSUPPORTED, "%s.single: the text (A) has to stand in it once", key);
    if (rc == OK) {                                             /* a later step goes around an earlier one */
        for (int64_t i = 0; i < t->before.n; i++) ids_add(&before, t->before.v[i]);
        for (int64_t i = 0; i < after.n; i++) ids_add(&t->after, after.v[i]);
        ids_release(&t->before);
        t->before = before;
        before = (struct ids){ 0 };
    }
    ids_release(&before);
    ids_release(&after);
    return rc;
}

static int open_pair(struct tokenizer *t, const cJSON *value, const char *key, struct error *err)      /* BertProcessing: cls text sep */
{
    static const char *const fields[] = { "cls", "sep" };
    double v[2];
    for (int i = 0; i < 2; i++) {
        const cJSON *pair = json_get(value, fields[i]);
        if (!cJSON_IsArray(pair) || !json_number(cJSON_GetArrayItem(pair, 1), &v[i]) || v[i] < 0 || v[i] >= (double)tokenizer_size(t))
            return error_set(err, E_INVALID, "%s.%s: expected [token, id]", key, fields[i]);
    }
    struct ids before = { 0 };
    ids_add(&before, (int32_t)v[0]);
    for (int64_t i = 0; i < t->before.n; i++) ids_add(&before, t->before.v[i]);
    ids_release(&t->before);
    t->before = before;
    ids_add(&t->after, (int32_t)v[1]);
    return OK;
}

static int open_post_processor(struct tokenizer *t, const cJSON *value, const char *key, int depth, struct error *err)
{
    if (value == NULL || cJSON_IsNull(value)) return OK;
    const char *type = json_str(value, "type");
    if (type == NULL) return error_set(err, E_INVALID, "%s.type: expected a string", key);
    if (depth > 16) return error_set(err, E_LIMIT, "%s: nested too deep", key);
    if (strcmp(type, "ByteLevel") == 0) return OK;              /* moves offsets only */
    if (strcmp(type, "TemplateProcessing") == 0) return open_template(t, value, key, err);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) return open_pair(t, value, key, err);
    if (strcmp(type, "Sequence") != 0) return error_set(err, E_UNSUPPORTED, "%s.type \"%.60s\" is not supported", key, type);
    const cJSON *list = json_get(value, "processors"), *item;
    if (!cJSON_IsArray(list)) return error_set(err, E_INVALID, "%s.processors: expected a list", key);
    cJSON_ArrayForEach(item, list) {
        int rc = open_post_processor(t, item, key, depth + 1, err);
        if (rc != OK) return rc;
    }
    return OK;
}

/* --- the files beside it --- */

static const char *token_name(const cJSON *object, const char *field)
{
    const cJSON *v = json_get(object, field);
    return cJSON_IsString(v) ? v->valuestring : json_str(v, "content");
}

/* Absent is fine: then *out is NULL. */
static int read_beside(cJSON **out, const char *folder, const char *name, struct error *err)
{
    struct stat st;
    char *path = xasprintf("%s/%s", folder, name);
    int rc = OK;
    *out = NULL;
    if (stat(path, &st) == 0) rc = json_parse_file(out, path, &json_limits_file, err);
    if (rc == OK && *out && !cJSON_IsObject(*out)) rc = error_set(err, E_INVALID, "%s: expected an object", path);
    free(path);
    return rc;
}

static int read_special(struct tokenizer *t, const char *folder, struct error *err)
{
    static const char *const files[] = { "tokenizer_config.json", "special_tokens_map.json" };
    static const char *const fields[] = { "bos_token", "eos_token", "pad_token" };
    int32_t *ids[] = { &t->bos, &t->eos, &t->pad };
    cJSON *file;
    int rc;
    for (int f = 0; f < 2; f++) {
        if ((rc = read_beside(&file, folder, files[f], err)) != OK) return rc;
        for (int i = 0; i < 3; i++) {
            const char *name = token_name(file, fields[i]);
            if (name == NULL || *ids[i] >= 0) continue;
            *ids[i] = tokenizer_id(t, name);
            if (*ids[i] < 0 && i < 2) {                         /* a missing pad is harmless: eos stands in */
                rc = error_set(err, E_INVALID, "%s/%s: %s \"%.80s\" is not in the vocabulary", folder, files[f], fields[i], name);
                cJSON_Delete(file);
                return rc;
            }
        }
        cJSON_Delete(file);
    }
    if (t->eos < 0) {
        if ((rc = read_beside(&file, folder, "generation_config.json", err)) != OK) return rc;
        const cJSON *eos = json_get(file, "eos_token_id");
        double v;
        if (cJSON_IsArray(eos)) eos = cJSON_GetArrayItem(eos, 0);
        if (eos && json_number(eos, &v) && v >= 0 && v < (double)tokenizer_size(t)) t->eos = (int32_t)v;
        cJSON_Delete(file);
    }
    if (t->pad < 0) t->pad = t->eos;
    return OK;
}

static int open_text(struct tokenizer *t, const char *text, size_t len, struct error *err)
{
    struct tokenizer_file f;
    int rc = tokenizer_file_read(&f, text, len, err);
    if (rc != OK) return rc;
    t->bpe = f.bpe;
    f.bpe = NULL;
    rc = normalizer_open(&t->normalizer, json_get(f.members, "normalizer"), "normalizer", err);
    if (rc == OK) rc = pretokenizer_open(&t->pretokenizer, json_get(f.members, "pre_tokenizer"), "pre_tokenizer", err);
    if (rc == OK) rc = decoder_open(&t->decoder, json_get(f.members, "decoder"), "decoder", err);
    if (rc == OK) rc = open_model(t, f.model, err);
    if (rc == OK) rc = open_added(t, json_get(f.members, "added_tokens"), err);
    if (rc == OK) rc = fill_sets(t, err);
    if (rc == OK) rc = open_post_processor(t, json_get(f.members, "post_processor"), "post_processor", 0, err);
    tokenizer_file_release(&f);
    return rc;
}

int tokenizer_open_text(struct tokenizer **out, const char *text, size_t len, struct error *err)
{
    struct tokenizer *t = xcalloc(1, sizeof *t);
    *out = NULL;
    t->bos = t->eos = t->pad = -1;
    (void)pthread_mutex_init(&t->lock, NULL);
    int rc = open_text(t, text, len, err);
    if (rc == OK) *out = t;
    else tokenizer_free(t);
    return rc;
}

int tokenizer_open(struct tokenizer **out, const char *path, struct error *err)
{
    struct stat st;
    char *file = NULL, *folder = NULL, *text = NULL;
    size_t len;
    *out = NULL;
    if (stat(path, &st) != 0) return error_set(err, status_of_errno(errno), "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        folder = xstrdup(path);
        file = xasprintf("%s/tokenizer.json", path);
    } else {
        const char *slash = strrchr(path, '/');
        folder = slash == NULL ? xstrdup(".") : xstrndup(path, slash == path ? 1 : (unsigned long)(slash - path));
        file = xstrdup(path);
    }
    int rc = file_read(file, json_limits_file.bytes, &text, &len, err);
    if (rc == OK) {
        rc = tokenizer_open_text(out, text, len, err);
        if (rc != OK) (void)error_prefix(err, "%s", file);
    }
    free(text);
    if (rc == OK && (rc = read_special(*out, folder, err)) != OK) {
        tokenizer_free(*out);
        *out = NULL;
    }
    free(file);
    free(folder);
    return rc;
}

static void space_free(struct space *s)
{
    bpe_space_free(s->bpe);
    pretokenizer_space_free(s->pretokenizer);
    regex_space_free(s->regex);
    bytes_release(&s->normalizer.a);
    bytes_release(&s->normalizer.b);
    free(s);
}

void tokenizer_free(struct tokenizer *t)
{
    if (t == NULL) return;
    for (struct space *s = t->spaces, *next; s; s = next) {
        next = s->next;
        space_free(s);
    }
    for (size_t i = 0; i < t->added_n; i++) free(t->added[i].content);
    free(t->added);
    free(t->by_id);
    free(t->by_content);
    added_set_free(t->raw);
    added_set_free(t->normalized);
    ids_release(&t->before);
    ids_release(&t->after);
    bpe_free(t->bpe);
    normalizer_free(t->normalizer);
    pretokenizer_free(t->pretokenizer);
    decoder_free(t->decoder);
    (void)pthread_mutex_destroy(&t->lock);
    free(t);
}

/* --- encoding --- */

static struct space *space_take(const struct tokenizer *t)
{
    struct tokenizer *mine = (struct tokenizer *)t;             /* the list of spaces is the one thing that changes */
    (void)pthread_mutex_lock(&mine->lock);
    struct space *s = mine->spaces;
    if (s) mine->spaces = s->next;
    (void)pthread_mutex_unlock(&mine->lock);
    if (s) return s;
    s = xcalloc(1, sizeof *s);
    s->bpe = bpe_space_new();
    s->regex = regex_space_new();
    s->pretokenizer = pretokenizer_space_new(s->regex);
    s->normalizer.regex = s->regex;
    return s;
}

static void space_give(const struct tokenizer *t, struct space *s)
{
    struct tokenizer *mine = (struct tokenizer *)t;
    (void)pthread_mutex_lock(&mine->lock);
    s->next = mine->spaces;
    mine->spaces = s;
    (void)pthread_mutex_unlock(&mine->lock);
}

struct encoding { const struct tokenizer *t; struct space *s; struct ids *out; bool first; };

static int encode_word(void *arg, const char *word, size_t len, struct error *err)
{
    struct encoding *e = arg;
    return bpe_encode(e->t->bpe, e->s->bpe, word, len, e->out, err);
}

static int encode_normalized(void *arg, const char *text, size_t len, size_t at, const struct added_token *token, struct error *err)
{
    struct encoding *e = arg;
    if (token) { ids_add(e->out, token->id); return OK; }
    return pretokenizer_run(e->t->pretokenizer, e->s->pretokenizer, text, len, e->first && at == 0, e->t->raw_bytes, encode_word, e, err);
}

static int encode_raw(void *arg, const char *text, size_t len, size_t at, const struct added_token *token, struct error *err)
{
    struct encoding *e = arg;
    if (token) { ids_add(e->out, token->id); return OK; }
    bool moved;
    int rc = normalizer_run(e->t->normalizer, &e->s->normalizer, text, len, &text, &len, &moved, err);
    e->first = at == 0 && !moved;
    return rc == OK ? added_set_split(e->t->normalized, text, len, encode_normalized, e, err) : rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool special, struct ids *out, struct error *err)
{
    size_t bad;
    int64_t before = out->n;
    if (!utf8_valid(text, len, &bad)) return error_set(err, E_INVALID, "text is not valid UTF-8 at byte %zu", bad);
    struct encoding e = { t, space_take(t), out, false };
    for (int64_t i = 0; special && i < t->before.n; i++) ids_add(out, t->before.v[i]);
    int rc = added_set_split(t->raw, text, len, encode_raw, &e, err);
    for (int64_t i = 0; special && i < t->after.n; i++) ids_add(out, t->after.v[i]);
    space_give(t, e.s);
    if (rc != OK) out->n = before;
    return rc;
}

/* --- decoding and looking up --- */

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, char **text, size_t *len, struct error *err)
{
    struct strings tokens = { 0 };
    bytes_need(&tokens.text, 1);
    for (int64_t i = 0; i < n; i++) {                           /* ids that name no token vanish, as in Hugging Face */
        const struct added_token *a = added_by_id(t, ids[i]);
        size_t token_len;
        const char *token = a ? a->content : bpe_token(t->bpe, ids[i], &token_len);
        if (token == NULL || (a && a->special && skip_special)) continue;
        bytes_add(&tokens.text, token, a ? a->len : token_len);
        strings_end(&tokens);
    }
    *text = NULL;
    int rc = decoder_run(t->decoder, &tokens, err);
    if (rc == OK) {
        bytes_add_char(&tokens.text, '\0');
        *text = tokens.text.v;
        *len = tokens.text.n - 1;
        tokens.text = (struct bytes){ 0 };
    }
    strings_release(&tokens);
    return rc;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token)
{
    size_t len = strlen(token);
    const struct added_token *a = added_by_content(t, token, len);
    return a ? a->id : bpe_id(t->bpe, token, len);
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id)
{
    const struct added_token *a = added_by_id(t, id);
    return a ? a->content : bpe_token(t->bpe, id, NULL);
}

int64_t tokenizer_size(const struct tokenizer *t)
{
    int64_t n = bpe_size(t->bpe);
    return t->added_n && t->by_id[t->added_n - 1]->id >= n ? t->by_id[t->added_n - 1]->id + 1 : n;
}

int tokenizer_fits(const struct tokenizer *t, int64_t vocab, struct error *err)
{
    int64_t ids = tokenizer_size(t), id = vocab;
    /* a padding token added behind the vocabulary is common, and harmless until a text holds it: then the rank refuses that text */
    while (id < ids && added_by_id(t, id)) id++;
    if (id >= ids) return OK;
    return error_set(err, E_INVALID, "the tokenizer has ids up to %lld, the model's vocab_size is %lld: ids from %lld on have no embedding; give the tokenizer that belongs to the "
                     "model, or a model whose vocab_size is at least %lld", (long long)(ids - 1), (long long)vocab, (long long)vocab, (long long)ids);
}

int32_t tokenizer_bos(const struct tokenizer *t) { return t->bos; }
int32_t tokenizer_eos(const struct tokenizer *t) { return t->eos; }
int32_t tokenizer_pad(const struct tokenizer *t) { return t->pad; }
