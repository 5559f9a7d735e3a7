/* pretokenizer.c - see pretokenizer.h.
 *
 * A Sequence becomes a flat list of steps. A step rewrites its piece (a prefix, blanks to '▁', bytes to characters), then cuts it;
 * each part goes through the steps after it before the next part is looked for, so nothing is collected but the merges of
 * "behavior". Empty parts vanish. */
#include "worker/data/pretokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "worker/data/bpe.h"
#include "worker/data/normalizer.h"

#define STEPS_MAX 32

static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
/* "Whitespace" uses Rust's own \w. */
#define RUST_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"
static const char whitespace_pattern[] = "[" RUST_WORD "]+|[^" RUST_WORD "\\s]+";

enum kind { SPLIT, BYTE_LEVEL, METASPACE, DIGITS, PUNCTUATION, WHITESPACE, WHITESPACE_SPLIT, DELIMITER, BERT, SEQUENCE };
enum behavior { REMOVED, ISOLATED, CONTIGUOUS, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT };
enum scheme { SCHEME_FIRST, SCHEME_NEVER, SCHEME_ALWAYS };
/* How the piece is cut: not at all, by a pattern, or at single characters. */
enum cut { CUT_NOT, CUT_PATTERN, CUT_CHAR };

struct step {
    enum kind kind;
    enum cut cut;
    enum behavior behavior;
    bool invert;
    struct regex *pattern;              /* CUT_PATTERN */
    bool (*is)(uint32_t cp);            /* CUT_CHAR: this, or the character itself */
    uint32_t cp;
    bool prefix_space, to_bytes;        /* BYTE_LEVEL */
    enum scheme scheme;                 /* METASPACE */
};

struct pretokenizer { struct step steps[STEPS_MAX]; int n; };

struct span { size_t start, end; bool match; };

struct pretokenizer_space {
    struct regex_space *regex;
    struct bytes text[STEPS_MAX];       /* the rewritten piece, by step */
    struct bytes spelled[STEPS_MAX];    /* a part's bytes as characters */
    struct span *spans[STEPS_MAX];      /* its cuts, where they have to be collected */
    size_t cap[STEPS_MAX];
};

static const struct { const char *type; enum kind kind; } kinds[] = {
    { "Split", SPLIT }, { "ByteLevel", BYTE_LEVEL }, { "Metaspace", METASPACE }, { "Digits", DIGITS }, { "Punctuation", PUNCTUATION },
    { "Whitespace", WHITESPACE }, { "WhitespaceSplit", WHITESPACE_SPLIT }, { "CharDelimiterSplit", DELIMITER },
    { "BertPreTokenizer", BERT }, { "Sequence", SEQUENCE },
};
static const char *const behaviors[] = { "Removed", "Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext" };
static const char *const schemes[] = { "first", "never", "always" };

static int choice(const cJSON *value, const char *field, const char *const *names, int n, int absent, const char *key, int *out, struct error *err)
{
    const char *text = json_str(value, field);
    *out = absent;
    if (text == NULL && absent >= 0 && json_get(value, field) == NULL) return OK;
    for (int i = 0; text && i < n; i++) if (strcmp(names[i], text) == 0) { *out = i; return OK; }
    return error_set(err, E_UNSUPPORTED, "%s.%s \"%.60s\" is not supported", key, field, text ? text : "(not a string)");
}

static int one_char(const cJSON *value, const char *field, const char *key, uint32_t *cp, struct error *err)
{
    const char *text = json_str(value, field);
    if (text == NULL || *text == '\0' || text[utf8_next(text, cp)] != '\0') return error_set(err, E_INVALID, "%s.%s: expected a string of one character", key, field);
    return OK;
}

static int open_metaspace(struct step *s, const cJSON *value, const char *key, struct error *err)
{
    int scheme, rc = one_char(value, "replacement", key, &s->cp, err);
    const cJSON *prefix = json_get(value, "add_prefix_space");      /* the older spelling */
    if (rc == OK) rc = choice(value, "prepend_scheme", schemes, 3, prefix && cJSON_IsFalse(prefix) ? SCHEME_NEVER : SCHEME_ALWAYS, key, &scheme, err);
    if (rc != OK) return rc;
    if (prefix && cJSON_IsFalse(prefix) && scheme != SCHEME_NEVER)
        return error_set(err, E_INVALID, "%s: add_prefix_space false contradicts prepend_scheme \"%s\"", key, schemes[scheme]);
    s->scheme = (enum scheme)scheme;
    s->cut = json_bool(value, "split", true) ? CUT_CHAR : CUT_NOT;
    s->behavior = MERGED_WITH_NEXT;
    return OK;
}

static int open_step(struct step *s, const cJSON *value, const char *key, struct error *err)
{
    int behavior = ISOLATED, rc = OK;
    switch (s->kind) {
    case SPLIT:
        s->cut = CUT_PATTERN;
        s->invert = json_bool(value, "invert", false);
        if ((rc = choice(value, "behavior", behaviors, 5, -1, key, &behavior, err)) != OK) return rc;
        s->behavior = (enum behavior)behavior;
        return pattern_open(&s->pattern, value, key, err);
    case BYTE_LEVEL:
        byte_level_ready();
        s->prefix_space = json_bool(value, "add_prefix_space", true);
        s->to_bytes = true;
        s->behavior = ISOLATED;
        if (!json_bool(value, "use_regex", true)) return OK;
        s->cut = CUT_PATTERN;
        return regex_open(&s->pattern, gpt2_pattern, sizeof gpt2_pattern - 1, err);
    case METASPACE: return open_metaspace(s, value, key, err);
    case DIGITS:
        s->cut = CUT_CHAR;
        s->is = cp_is_numeric;
        s->behavior = json_bool(value, "individual_digits", false) ? ISOLATED : CONTIGUOUS;
        return OK;
    case PUNCTUATION:
        s->cut = CUT_CHAR;
        s->is = cp_is_punct;
        rc = choice(value, "behavior", behaviors, 5, ISOLATED, key, &behavior, err);
        s->behavior = (enum behavior)behavior;
        return rc;
    case WHITESPACE:
        s->cut = CUT_PATTERN;
        s->invert = true;
        s->behavior = REMOVED;
        return regex_open(&s->pattern, whitespace_pattern, sizeof whitespace_pattern - 1, err);
    case WHITESPACE_SPLIT:
        s->cut = CUT_CHAR;
        s->is = cp_is_space;
        s->behavior = REMOVED;
        return OK;
    case DELIMITER:
        s->cut = CUT_CHAR;
        s->behavior = REMOVED;
        return one_char(value, "delimiter", key, &s->cp, err);
    case BERT:
        s->cut = CUT_CHAR;
        s->is = cp_is_punct;
        s->behavior = ISOLATED;
        return OK;
    case SEQUENCE: break;
    }
    return rc;
}

static int add(struct pretokenizer *p, const cJSON *value, const char *key, int depth, struct error *err)
{
    const char *type = json_str(value, "type");
    size_t k = 0;
    int rc;
    if (type == NULL) return error_set(err, E_INVALID, "%s.type: expected a string", key);
    while (k < sizeof kinds / sizeof *kinds && strcmp(kinds[k].type, type) != 0) k++;
    if (k == sizeof kinds / sizeof *kinds) return error_set(err, E_UNSUPPORTED, "%s.type \"%.60s\" is not supported", key, type);
    if (p->n + 2 > STEPS_MAX || depth > STEPS_MAX) return error_set(err, E_LIMIT, "%s: more than %d steps", key, STEPS_MAX - 2);
    if (kinds[k].kind == SEQUENCE) {
        const cJSON *list = json_get(value, "pretokenizers"), *item;
        if (!cJSON_IsArray(list)) return error_set(err, E_INVALID, "%s.pretokenizers: expected a list", key);
        cJSON_ArrayForEach(item, list) if ((rc = add(p, item, key, depth + 1, err)) != OK) return rc;
        return OK;
    }
    if (kinds[k].kind == BERT)                              /* blanks out, then punctuation apart */
        p->steps[p->n++] = (struct step){ .kind = WHITESPACE_SPLIT, .cut = CUT_CHAR, .is = cp_is_space, .behavior = REMOVED };
    struct step *s = &p->steps[p->n++];
    s->kind = kinds[k].kind;
    if ((rc = open_step(s, value, key, err)) != OK) return rc;
    int spellings = 0;                                      /* each may double a text */
    for (int i = 0; i < p->n; i++) spellings += p->steps[i].to_bytes;
    return spellings <= 4 ? OK : error_set(err, E_LIMIT, "%s: more than 4 ByteLevel steps", key);
}

int pretokenizer_open(struct pretokenizer **out, const struct cJSON *value, const char *key, struct error *err)
{
    *out = NULL;
    if (value == NULL || cJSON_IsNull(value)) return OK;
    struct pretokenizer *p = xcalloc(1, sizeof *p);
    int rc = add(p, value, key, 0, err);
    if (rc == OK) *out = p;
    else pretokenizer_free(p);
    return rc;
}

void pretokenizer_free(struct pretokenizer *p)
{
    if (p == NULL) return;
    for (int i = 0; i < p->n; i++) regex_free(p->steps[i].pattern);
    free(p);
}

bool pretokenizer_ends_in_bytes(const struct pretokenizer *p) { return p && p->n && p->steps[p->n - 1].to_bytes; }

struct pretokenizer_space *pretokenizer_space_new(struct regex_space *regex)
{
    struct pretokenizer_space *s = xcalloc(1, sizeof *s);
    s->regex = regex;
    return s;
}

void pretokenizer_space_free(struct pretokenizer_space *s)
{
    if (s == NULL) return;
    for (int i = 0; i < STEPS_MAX; i++) {
        bytes_release(&s->text[i]);
        bytes_release(&s->spelled[i]);
        free(s->spans[i]);
    }
    free(s);
}

/* --- running --- */

struct run {
    const struct pretokenizer *p;
    struct pretokenizer_space *s;
    bool raw_bytes;
    int (*word)(void *arg, const char *word, size_t len, struct error *err);
    void *arg;
    struct error *err;
};

static int run_from(struct run *r, int k, const char *text, size_t len, bool first);

/* The next stretch of the text, match or not, from *at on; false at the end. */
static int next_span(struct run *r, const struct step *st, const char *text, size_t len, struct regex_iter *it, size_t *at,
                     struct span *next_match, struct span *out, bool *any)
{
    uint32_t cp;
    *any = false;
    if (st->cut == CUT_CHAR) {
        size_t i = *at, k;
        if (i >= len) return OK;
        *any = true;
        for (; i < len; i += k) {
            k = utf8_next(text + i, &cp);
            if (!(st->is ? st->is(cp) : cp == st->cp)) continue;
            if (i == *at) { *out = (struct span){ i, i + k, true }; *at = i + k; return OK; }
            break;
        }
        *out = (struct span){ *at, i, false };
        *at = i;
        return OK;
    }
    if (!next_match->match) {                               /* none in hand: look for one */
        bool found;
        if (next_match->start == SIZE_MAX) found = false;
        else {
            int rc = regex_next(st->pattern, r->s->regex, text, len, it, &next_match->start, &next_match->end, &found, r->err);
            if (rc != OK) return rc;
        }
        if (!found) {
            next_match->start = SIZE_MAX;
            if (*at >= len) return OK;
            *out = (struct span){ *at, len, false };
            *at = len;
            *any = true;
            return OK;
        }
        next_match->match = true;
    }
    *any = true;
    if (next_match->start > *at) {
        *out = (struct span){ *at, next_match->start, false };
        *at = next_match->start;
        return OK;
    }
    *out = *next_match;
    *at = next_match->end;
    next_match->match = false;
    return OK;
}

static int part(struct run *r, int k, const char *text, struct span span, bool first)
{
    struct bytes *spelled = &r->s->spelled[k];
    size_t len = span.end - span.start;
    if (span.end <= span.start) return OK;
    text += span.start;
    first = first && span.start == 0;
    if (!r->p->steps[k].to_bytes || (r->raw_bytes && k + 1 == r->p->n)) return run_from(r, k + 1, text, len, first);
    spelled->n = 0;
    for (size_t i = 0; i < len; i++) bytes_add_cp(spelled, byte_level_cp[(unsigned char)text[i]]);
    return run_from(r, k + 1, spelled->v, spelled->n, first);
}

/* Stretches that join: walked forwards, or backwards for MergedWithNext. A match joins what came before it unless that was a
 * match too; Contiguous joins equals. Source: Hugging Face tokenizers, NormalizedString::split. */
static int cut_joined(struct run *r, int k, const char *text, size_t len, bool first)
{
    const struct step *st = &r->p->steps[k];
    struct regex_iter it = { 0 };
    struct span next_match = { 0 }, span, *v;
    size_t at = 0, n = 0, m = 0;
    bool any, previous = false, back = st->behavior == MERGED_WITH_NEXT;
    int rc;
    for (;;) {
        if ((rc = next_span(r, st, text, len, &it, &at, &next_match, &span, &any)) != OK) return rc;
        if (!any) break;
        if (n == r->s->cap[k]) {
            r->s->cap[k] = n ? n * 2 : 64;
            r->s->spans[k] = xrealloc(r->s->spans[k], r->s->cap[k] * sizeof **r->s->spans);
        }
        span.match ^= st->invert;
        r->s->spans[k][n++] = span;
    }
    v = r->s->spans[k];
    if (back) for (size_t i = 0; i < n / 2; i++) { span = v[i]; v[i] = v[n - 1 - i]; v[n - 1 - i] = span; }
    for (size_t i = 0; i < n; i++) {
        bool join = st->behavior == CONTIGUOUS ? v[i].match == previous : v[i].match && !previous;
        previous = v[i].match;
        if (!join || m == 0) v[m++] = v[i];
        else if (back) v[m - 1].start = v[i].start;
        else v[m - 1].end = v[i].end;
    }
    for (size_t i = 0; i < m && rc == OK; i++) rc = part(r, k, text, v[back ? m - 1 - i : i], first);
    return rc;
}

static int cut(struct run *r, int k, const char *text, size_t len, bool first)
{
    const struct step *st = &r->p->steps[k];
    struct regex_iter it = { 0 };
    struct span next_match = { 0 }, span;
    size_t at = 0;
    bool any;
    int rc = OK;
    if (st->cut == CUT_NOT) return part(r, k, text, (struct span){ 0, len, false }, first);
    if (st->behavior != ISOLATED && st->behavior != REMOVED) return cut_joined(r, k, text, len, first);
    while ((rc = next_span(r, st, text, len, &it, &at, &next_match, &span, &any)) == OK && any) {
        if (st->behavior == REMOVED && span.match != st->invert) continue;
        if ((rc = part(r, k, text, span, first)) != OK) return rc;
    }
    return rc;
}

static int run_from(struct run *r, int k, const char *text, size_t len, bool first)
{
    if (len == 0) return OK;
    if (r->p == NULL || k == r->p->n) return r->word(r->arg, text, len, r->err);
    const struct step *st = &r->p->steps[k];
    struct bytes *own = &r->s->text[k];
    own->n = 0;
    if (st->kind == METASPACE) {
        char mark[4];
        size_t mark_len = utf8_put(mark, st->cp);
        bool has = (text[0] == ' ') || (len >= mark_len && memcmp(text, mark, mark_len) == 0);
        if (!has && (st->scheme == SCHEME_ALWAYS || (st->scheme == SCHEME_FIRST && first))) bytes_add(own, mark, mark_len);
        for (size_t i = 0; i < len;) {
            const char *space = memchr(text + i, ' ', len - i);
            size_t n = space ? (size_t)(space - text) - i : len - i;
            bytes_add(own, text + i, n);
            if (space) bytes_add(own, mark, mark_len);
            i += n + (space != NULL);
        }
        text = own->v;
        len = own->n;
    }
    if (st->kind == BYTE_LEVEL && st->prefix_space && text[0] != ' ') {
        bytes_add(own, " ", 1);
        bytes_add(own, text, len);
        text = own->v;
        len = own->n;
    }
    return cut(r, k, text, len, first);
}

int pretokenizer_run(const struct pretokenizer *p, struct pretokenizer_space *s, const char *text, size_t len, bool first, bool raw_bytes,
                     int (*word)(void *arg, const char *word, size_t len, struct error *err), void *arg, struct error *err)
{
    struct run r = { p, s, raw_bytes, word, arg, err };
    return run_from(&r, 0, text, len, first);
}
