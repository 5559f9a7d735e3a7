/* tokenizer_file.c - see tokenizer_file.h. */
#include "worker/data/tokenizer_file.h"

#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "worker/data/nul.h"

struct span { const char *p, *end; };           /* one JSON value, or what is left to read */

/* --- a reader for text that json_check has passed --- */

static void skip_space(struct span *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r')) s->p++;
}

static void skip_string(struct span *s)
{
    for (s->p++; *s->p != '"'; s->p++) if (*s->p == '\\') s->p++;
    s->p++;
}

static struct span take_value(struct span *s)
{
    skip_space(s);
    struct span v = { s->p, s->p };
    for (int depth = 0; s->p < s->end;) {
        char c = *s->p;
        if (c == '"') {
            skip_string(s);
            if (depth == 0) break;
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}' || c == ']' || c == ' ' || c == '\t' || c == '\n' || c == '\r')) break;
        s->p++;
        if (c == '{' || c == '[') depth++;
        if ((c == '}' || c == ']') && --depth == 0) break;
    }
    v.end = s->p;
    return v;
}

static unsigned hex4(const char *p)
{
    unsigned v = 0;
    for (int i = 0; i < 4; i++) v = v << 4 | (unsigned)(p[i] <= '9' ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
    return v;
}

static void take_string(struct span *s, struct bytes *out)      /* at the quote; replaces *out */
{
    static const char from[] = "bfnrt\"\\/", to[] = "\b\f\n\r\t\"\\/";
    out->n = 0;
    for (s->p++; *s->p != '"';) {
        const char *plain = s->p;
        while (*s->p != '"' && *s->p != '\\') s->p++;
        bytes_add(out, plain, (size_t)(s->p - plain));
        if (*s->p == '"') break;
        if (s->p[1] != 'u') {
            bytes_add_char(out, to[strchr(from, s->p[1]) - from]);
            s->p += 2;
            continue;
        }
        uint32_t cp = hex4(s->p + 2);
        s->p += 6;
        if (cp >= 0xD800 && cp <= 0xDBFF) {
            cp = 0x10000 + ((cp - 0xD800) << 10) + (hex4(s->p + 2) - 0xDC00);
            s->p += 6;
        }
        bytes_add_cp(out, cp);
    }
    s->p++;
}

/* Steps through an object or array: true with s at the next key or element. Call with s->p at the bracket, then after each value. */
static bool next_in(struct span *s)
{
    skip_space(s);
    char c = *s->p;
    if (c == '{' || c == '[' || c == ',') {
        s->p++;
        skip_space(s);
        if (*s->p != '}' && *s->p != ']') return true;
    }
    return false;
}

static void take_key(struct span *s, struct bytes *key)
{
    take_string(s, key);
    bytes_add_char(key, '\0');
    skip_space(s);
    s->p++;                                                     /* the colon */
    skip_space(s);
}

/* --- the model --- */

static int read_vocab(struct bpe *m, struct span v, struct error *err)
{
    struct bytes key = { 0 };
    int rc = OK;
    if (*v.p != '{') return error_set(err, E_INVALID, "expected an object of token to id");
    while (rc == OK && next_in(&v)) {
        take_string(&v, &key);
        skip_space(&v);
        v.p++;
        struct span id = take_value(&v);
        int64_t n = 0;
        bool whole = id.end - id.p > 0 && id.end - id.p < 12;
        for (const char *p = id.p; p < id.end; p++) {
            if (*p < '0' || *p > '9') { whole = false; break; }
            n = n * 10 + (*p - '0');
            if (n > INT32_MAX) break;
        }
        if (whole) rc = bpe_add_token(m, key.n ? key.v : "", key.n, n, err);
        else {
            rc = error_set(err, E_INVALID, "token \"%.*s\" has id %.*s; expected a whole number", (int)(key.n < 80 ? key.n : 80), key.n ? key.v : "",
                           (int)(id.end - id.p < 40 ? id.end - id.p : 40), id.p);
        }
    }
    bytes_release(&key);
    return rc;
}

static int read_merges(struct bpe *m, struct span v, size_t prefix_len, struct error *err)
{
    struct bytes a = { 0 }, b = { 0 };
    long long n = 0;
    int rc = OK;
    if (*v.p != '[') return error_set(err, E_INVALID, "expected a list");
    for (; rc == OK && next_in(&v); n++) {
        const char *left, *right;
        size_t left_len, right_len;
        if (*v.p == '"') {                                      /* "a b" */
            take_string(&v, &a);
            if (a.n >= 8 && memcmp(a.v, "#version", 8) == 0) continue;
            const char *blank = a.n ? memchr(a.v, ' ', a.n) : NULL;
            if (blank == NULL || memchr(blank + 1, ' ', (size_t)(a.v + a.n - blank - 1))) {
                rc = error_set(err, E_INVALID, "entry %lld \"%.*s\": expected two tokens with one blank between", n, (int)(a.n < 80 ? a.n : 80), a.n ? a.v : "");
                break;
            }
            left = a.v;
            left_len = (size_t)(blank - a.v);
            right = blank + 1;
            right_len = a.n - left_len - 1;
        } else {                                                /* ["a", "b"] */
            int k = 0;
            if (*v.p != '[') { rc = error_set(err, E_INVALID, "entry %lld: expected \"a b\" or [\"a\", \"b\"]", n); break; }
            while (next_in(&v)) {
                if (*v.p != '"' || k == 2) { k = 3; break; }
                take_string(&v, k ? &b : &a);
                k++;
            }
            if (k != 2) { rc = error_set(err, E_INVALID, "entry %lld: expected two strings", n); break; }
            v.p++;                                              /* the closing bracket */
            left = a.n ? a.v : "";
            left_len = a.n;
            right = b.n ? b.v : "";
            right_len = b.n;
        }
        rc = bpe_add_merge(m, left, left_len, right, right_len, prefix_len, err);
    }
    bytes_release(&a);
    bytes_release(&b);
    return rc;
}

static int add_tree(cJSON *object, const char *key, struct span v, struct error *err)
{
    cJSON *tree;
    int rc = nul_parse(&tree, v.p, (size_t)(v.end - v.p), &json_limits_file, err);
    if (rc != OK) return error_prefix(err, "%s", key);
    (void)cJSON_AddItemToObject(object, key, tree);
    return OK;
}

static int read_model(struct tokenizer_file *f, struct span v, struct error *err)
{
    static const char *const known[] = { "type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges" };
    struct span vocab = { 0 }, merges = { 0 };
    struct bytes key = { 0 };
    int rc = OK;
    if (*v.p != '{') return error_set(err, E_INVALID, "model: expected an object");
    while (rc == OK && next_in(&v)) {
        take_key(&v, &key);
        struct span value = take_value(&v);
        bool found = false;
        if (strcmp(key.v, "vocab") == 0) { vocab = value; continue; }
        if (strcmp(key.v, "merges") == 0) { merges = value; continue; }
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) found = found || strcmp(known[i], key.v) == 0;
        if (found) rc = add_tree(f->model, key.v, value, err);
        else rc = error_set(err, E_UNSUPPORTED, "model.%.60s is not supported", key.v);
    }
    bytes_release(&key);
    if (rc != OK) return rc;
    const cJSON *type = json_get(f->model, "type");
    const char *prefix = json_str(f->model, "continuing_subword_prefix");
    if (type && (!cJSON_IsString(type) || strcmp(type->valuestring, "BPE") != 0))
        return error_set(err, E_UNSUPPORTED, "model.type \"%.60s\" is not supported; BPE is", cJSON_IsString(type) ? type->valuestring : "(not a string)");
    if (vocab.p == NULL) return error_set(err, E_INVALID, "model.vocab is missing");
    if (merges.p == NULL) return error_set(err, E_INVALID, "model.merges is missing");
    if ((rc = read_vocab(f->bpe, vocab, err)) != OK) return error_prefix(err, "model.vocab");
    if ((rc = read_merges(f->bpe, merges, prefix ? strlen(prefix) : 0, err)) != OK) return error_prefix(err, "model.merges");
    return OK;
}

int tokenizer_file_read(struct tokenizer_file *f, const char *text, size_t len, struct error *err)
{
    static const char *const kept[] = { "normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens" };
    static const char *const ignored[] = { "version", "truncation", "padding" };       /* the caller truncates and pads */
    struct span s = { text, text + len };
    struct bytes key = { 0 };
    bool model = false;
    *f = (struct tokenizer_file){ 0 };
    int rc = json_check(text, len, &json_limits_file, true, err);
    if (rc != OK) return rc;
    f->members = cJSON_CreateObject();
    f->model = cJSON_CreateObject();
    f->bpe = bpe_new();
    skip_space(&s);
    if (*s.p != '{') rc = error_set(err, E_INVALID, "expected an object");
    while (rc == OK && next_in(&s)) {
        take_key(&s, &key);
        struct span value = take_value(&s);
        bool keep = false, known = false;
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) keep = keep || strcmp(kept[i], key.v) == 0;
        for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) known = known || strcmp(ignored[i], key.v) == 0;
        if (strcmp(key.v, "model") == 0) { model = true; rc = read_model(f, value, err); }
        else if (keep) rc = add_tree(f->members, key.v, value, err);
        else if (!known) rc = error_set(err, E_UNSUPPORTED, "\"%.60s\" is not a known member of a tokenizer.json", key.v);
    }
    if (rc == OK && !model) rc = error_set(err, E_INVALID, "model is missing");
    bytes_release(&key);
    if (rc != OK) tokenizer_file_release(f);
    return rc;
}

void tokenizer_file_release(struct tokenizer_file *f)
{
    cJSON_Delete(f->members);
    cJSON_Delete(f->model);
    bpe_free(f->bpe);
    *f = (struct tokenizer_file){ 0 };
}
