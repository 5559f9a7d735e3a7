/* decoder.c - see decoder.h. A Sequence becomes a flat list of steps; each maps a list of strings to a list of strings. */
#include "worker/data/decoder.h"

#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "worker/data/bpe.h"
#include "worker/data/normalizer.h"
#include "worker/data/nul.h"

#define STEPS_MAX 32
#define STRIP_MAX 1000000

enum kind { BYTE_LEVEL, REPLACE, BYTE_FALLBACK, FUSE, STRIP, METASPACE, BPE_SUFFIX, SEQUENCE };

struct step {
    enum kind kind;
    struct regex *pattern;      /* REPLACE, BPE_SUFFIX */
    char *content;
    size_t content_len;
    uint32_t cp;                /* STRIP, METASPACE */
    int64_t start, stop;        /* STRIP: at most so many */
    bool keep_first;            /* METASPACE: nothing was put in front, so nothing is taken away */
};

struct decoder { struct step steps[STEPS_MAX]; int n; };

static const struct { const char *type; enum kind kind; } kinds[] = {
    { "ByteLevel", BYTE_LEVEL }, { "Replace", REPLACE }, { "ByteFallback", BYTE_FALLBACK }, { "Fuse", FUSE }, { "Strip", STRIP },
    { "Metaspace", METASPACE }, { "BPEDecoder", BPE_SUFFIX }, { "Sequence", SEQUENCE },
};

void strings_release(struct strings *s)
{
    bytes_release(&s->text);
    free(s->ends);
    *s = (struct strings){ 0 };
}

void strings_end(struct strings *s)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 64;
        s->ends = xrealloc(s->ends, s->cap * sizeof *s->ends);
    }
    s->ends[s->n++] = s->text.n;
}

static int one_char(const cJSON *value, const char *field, const char *key, uint32_t *cp, struct error *err)
{
    const char *text = json_str(value, field);
    if (text == NULL || *text == '\0' || text[utf8_next(text, cp)] != '\0') return error_set(err, E_INVALID, "%s.%s: expected a string of one character", key, field);
    return OK;
}

static int open_step(struct step *s, const cJSON *value, const char *key, struct error *err)
{
    const char *text;
    switch (s->kind) {
    case REPLACE:
        if ((text = json_str(value, "content")) == NULL) return error_set(err, E_INVALID, "%s.content: expected a string", key);
        s->content = xstrdup(text);
        s->content_len = nul_show(s->content);
        return pattern_open(&s->pattern, value, key, err);
    case BPE_SUFFIX:
        if ((text = json_str(value, "suffix")) == NULL || *text == '\0') return error_set(err, E_INVALID, "%s.suffix: expected a string", key);
        return regex_open_literal(&s->pattern, text, strlen(text), err);
    case STRIP:
        if (!json_int(value, "start", &s->start) || !json_int(value, "stop", &s->stop) || s->start < 0 || s->stop < 0 ||
            s->start > STRIP_MAX || s->stop > STRIP_MAX) return error_set(err, E_INVALID, "%s: start and stop: expected whole numbers from 0 to %d", key, STRIP_MAX);
        return one_char(value, "content", key, &s->cp, err);
    case METASPACE:
        text = json_str(value, "prepend_scheme");
        s->keep_first = text ? strcmp(text, "never") == 0 : !json_bool(value, "add_prefix_space", true);
        return one_char(value, "replacement", key, &s->cp, err);
    case BYTE_LEVEL: byte_level_ready(); break;
    case BYTE_FALLBACK: case FUSE: case SEQUENCE: break;
    }
    return OK;
}

static int add(struct decoder *d, const cJSON *value, const char *key, int depth, struct error *err)
{
    const char *type = json_str(value, "type");
    size_t k = 0;
    int rc;
    if (type == NULL) return error_set(err, E_INVALID, "%s.type: expected a string", key);
    while (k < sizeof kinds / sizeof *kinds && strcmp(kinds[k].type, type) != 0) k++;
    if (k == sizeof kinds / sizeof *kinds) return error_set(err, E_UNSUPPORTED, "%s.type \"%.60s\" is not supported", key, type);
    if (d->n == STEPS_MAX || depth > STEPS_MAX) return error_set(err, E_LIMIT, "%s: more than %d steps", key, STEPS_MAX);
    if (kinds[k].kind == SEQUENCE) {
        const cJSON *list = json_get(value, "decoders"), *item;
        if (!cJSON_IsArray(list)) return error_set(err, E_INVALID, "%s.decoders: expected a list", key);
        cJSON_ArrayForEach(item, list) if ((rc = add(d, item, key, depth + 1, err)) != OK) return rc;
        return OK;
    }
    d->steps[d->n].kind = kinds[k].kind;
    return open_step(&d->steps[d->n++], value, key, err);
}

int decoder_open(struct decoder **out, const struct cJSON *value, const char *key, struct error *err)
{
    *out = NULL;
    if (value == NULL || cJSON_IsNull(value)) return OK;
    struct decoder *d = xcalloc(1, sizeof *d);
    int rc = add(d, value, key, 0, err);
    if (rc == OK) *out = d;
    else decoder_free(d);
    return rc;
}

void decoder_free(struct decoder *d)
{
    if (d == NULL) return;
    for (int i = 0; i < d->n; i++) {
        regex_free(d->steps[i].pattern);
        free(d->steps[i].content);
    }
    free(d);
}

static const char *string_at(const struct strings *s, size_t i, size_t *len)
{
    size_t start = i ? s->ends[i - 1] : 0;
    *len = s->ends[i] - start;
    return s->text.v + start;
}

/* A token whose characters all stand for bytes gives these; any other gives its own. The whole is one string, torn UTF-8 shown as U+FFFD. */
static void byte_level(const struct strings *in, struct strings *out)
{
    struct bytes raw = { 0 };
    for (size_t i = 0; i < in->n; i++) {
        size_t len, before = raw.n;
        const char *s = string_at(in, i, &len);
        for (size_t k = 0; k < len;) {
            uint32_t cp;
            k += utf8_next(s + k, &cp);
            int b = byte_level_byte(cp);
            if (b < 0) { raw.n = before; bytes_add(&raw, s, len); break; }
            bytes_add_char(&raw, (char)b);
        }
    }
    utf8_lossy(&out->text, raw.v, raw.n);
    strings_end(out);
    bytes_release(&raw);
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static int fallback_byte(const char *s, size_t len)             /* "<0xXX>"; else -1 */
{
    if (len != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int high = s[3] == '+' ? 0 : hex(s[3]), low = hex(s[4]);    /* Rust's number parser takes a '+' */
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static void flush_bytes(struct bytes *run, struct strings *out)
{
    size_t bad;
    if (run->n == 0) return;
    if (utf8_valid(run->v, run->n, &bad)) { bytes_add(&out->text, run->v, run->n); strings_end(out); }
    else for (size_t i = 0; i < run->n; i++) { bytes_add(&out->text, "\xEF\xBF\xBD", 3); strings_end(out); }
    run->n = 0;
}

static void byte_fallback(const struct strings *in, struct strings *out)
{
    struct bytes run = { 0 };
    for (size_t i = 0; i < in->n; i++) {
        size_t len;
        const char *s = string_at(in, i, &len);
        int b = fallback_byte(s, len);
        if (b >= 0) { bytes_add_char(&run, (char)b); continue; }
        flush_bytes(&run, out);
        bytes_add(&out->text, s, len);
        strings_end(out);
    }
    flush_bytes(&run, out);
    bytes_release(&run);
}

static void strip(const struct step *st, const char *s, size_t len, struct bytes *out)
{
    uint32_t cp;
    for (int64_t i = 0; i < st->start && len; i++) {
        size_t k = utf8_next(s, &cp);
        if (cp != st->cp) break;
        s += k;
        len -= k;
    }
    for (int64_t i = 0; i < st->stop && len; i++) {
        size_t k = utf8_prev(s, len, &cp);
        if (cp != st->cp) break;
        len = k;
    }
    bytes_add(out, s, len);
}

static void metaspace(const struct step *st, const char *s, size_t len, bool first, struct bytes *out)
{
    for (size_t i = 0, k; i < len; i += k) {
        uint32_t cp;
        k = utf8_next(s + i, &cp);
        if (cp != st->cp) bytes_add(out, s + i, k);
        else if (!first || st->keep_first) bytes_add_char(out, ' ');
    }
}

static int run_step(const struct step *st, struct regex_space *space, const struct strings *in, size_t most, struct strings *out, struct error *err)
{
    int rc = OK;
    switch (st->kind) {
    case BYTE_LEVEL: byte_level(in, out); return OK;
    case BYTE_FALLBACK: byte_fallback(in, out); return OK;
    case FUSE: bytes_add(&out->text, in->text.v, in->text.n); strings_end(out); return OK;
    default: break;
    }
    for (size_t i = 0; i < in->n && rc == OK; i++) {
        size_t len;
        const char *s = string_at(in, i, &len), *blank = i + 1 == in->n ? "" : " ";
        if (st->kind == STRIP) strip(st, s, len, &out->text);
        else if (st->kind == METASPACE) metaspace(st, s, len, i == 0, &out->text);
        else if (st->kind == BPE_SUFFIX) rc = pattern_replace(st->pattern, space, s, len, blank, strlen(blank), most, &out->text, err);
        else rc = pattern_replace(st->pattern, space, s, len, st->content, st->content_len, most, &out->text, err);
        strings_end(out);
    }
    return rc;
}

int decoder_run(const struct decoder *d, struct strings *tokens, struct error *err)
{
    struct strings out = { 0 };
    struct regex_space *space = NULL;
    size_t most = growth_limit(tokens->text.n);
    int rc = OK;
    if (d == NULL) {
        for (size_t i = 0; i < tokens->n; i++) {
            size_t len;
            const char *s = string_at(tokens, i, &len);
            if (i) bytes_add_char(&out.text, ' ');
            bytes_add(&out.text, s, len);
        }
        strings_end(&out);
        strings_release(tokens);
        *tokens = out;
        return OK;
    }
    for (int k = 0; k < d->n && rc == OK; k++) {
        if (d->steps[k].pattern && space == NULL) space = regex_space_new();
        out = (struct strings){ 0 };
        bytes_need(&out.text, 1);                               /* a list of empty strings has an address too */
        rc = run_step(&d->steps[k], space, tokens, most, &out, err);
        strings_release(tokens);
        *tokens = out;
    }
    regex_space_free(space);
    return rc;
}
