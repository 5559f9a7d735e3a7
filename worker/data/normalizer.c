/* normalizer.c - see normalizer.h. A Sequence becomes a flat list of steps. */
#include "worker/data/normalizer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "worker/data/bpe.h"
#include "worker/data/nul.h"

#define STEPS_MAX 64
#define CONTENT_MAX 4096                /* bytes */
#define GROWTH_FREE (16u << 20)         /* bytes any text may grow to */

enum kind { FORM, PREPEND, REPLACE, LOWERCASE, STRIP, STRIP_ACCENTS, BYTE_LEVEL, SEQUENCE };

struct step {
    enum kind kind;
    enum normal_form form;
    char *content;              /* PREPEND, REPLACE */
    size_t content_len;
    struct regex *pattern;      /* REPLACE */
    bool left, right;           /* STRIP */
};

struct normalizer { struct step steps[STEPS_MAX]; int n; };

static const struct { const char *type; enum kind kind; enum normal_form form; } kinds[] = {
    { "NFC", FORM, FORM_NFC }, { "NFD", FORM, FORM_NFD }, { "NFKC", FORM, FORM_NFKC }, { "NFKD", FORM, FORM_NFKD },
    { "Prepend", PREPEND, 0 }, { "Replace", REPLACE, 0 }, { "Lowercase", LOWERCASE, 0 }, { "Strip", STRIP, 0 },
    { "StripAccents", STRIP_ACCENTS, 0 }, { "ByteLevel", BYTE_LEVEL, 0 }, { "Sequence", SEQUENCE, 0 },
};

int pattern_open(struct regex **out, const struct cJSON *step, const char *key, struct error *err)
{
    const cJSON *pattern = json_get(step, "pattern");
    const char *literal = json_str(pattern, "String"), *regex = json_str(pattern, "Regex");
    int rc;
    *out = NULL;
    if (cJSON_IsString(pattern)) literal = pattern->valuestring;
    if ((literal == NULL) == (regex == NULL)) return error_set(err, E_INVALID, "%s.pattern: expected {\"String\": …} or {\"Regex\": …}", key);
    char *text = xstrdup(literal ? literal : regex);
    size_t len = literal ? nul_show(text) : strlen(text);       /* the translator reads C0 80 as NUL itself */
    rc = literal ? regex_open_literal(out, text, len, err) : regex_open(out, text, len, err);
    free(text);
    return rc == OK ? OK : error_prefix(err, "%s.pattern", key);
}

size_t growth_limit(size_t len) { return len > SIZE_MAX / 64 ? SIZE_MAX : GROWTH_FREE + 32 * len; }

static int too_much(size_t most, struct error *err) { return error_set(err, E_LIMIT, "the tokenizer makes more than %zu bytes of a text", most); }

int pattern_replace(const struct regex *r, struct regex_space *space, const char *text, size_t len, const char *content, size_t content_len,
                    size_t most, struct bytes *out, struct error *err)
{
    struct regex_iter it = { 0 };
    size_t last = 0, start, end;
    bool found;
    int rc;
    while ((rc = regex_next(r, space, text, len, &it, &start, &end, &found, err)) == OK && found) {
        bytes_add(out, text + last, start - last);
        bytes_add(out, content, content_len);
        last = end;
        if (out->n > most) return too_much(most, err);
    }
    if (rc == OK) bytes_add(out, text + last, len - last);
    return rc;
}

static int add(struct normalizer *n, const cJSON *value, const char *key, int depth, struct error *err)
{
    const char *type = json_str(value, "type"), *content;
    size_t k = 0;
    if (type == NULL) return error_set(err, E_INVALID, "%s.type: expected a string", key);
    while (k < sizeof kinds / sizeof *kinds && strcmp(kinds[k].type, type) != 0) k++;
    if (k == sizeof kinds / sizeof *kinds) return error_set(err, E_UNSUPPORTED, "%s.type \"%.60s\" is not supported", key, type);
    if (n->n == STEPS_MAX || depth > STEPS_MAX) return error_set(err, E_LIMIT, "%s: more than %d steps", key, STEPS_MAX);
    if (kinds[k].kind == SEQUENCE) {
        const cJSON *list = json_get(value, "normalizers"), *item;
        if (!cJSON_IsArray(list)) return error_set(err, E_INVALID, "%s.normalizers: expected a list", key);
        cJSON_ArrayForEach(item, list) {
            int rc = add(n, item, key, depth + 1, err);
            if (rc != OK) return rc;
        }
        return OK;
    }
    struct step *s = &n->steps[n->n++];
    s->kind = kinds[k].kind;
    s->form = kinds[k].form;
    if (s->kind == BYTE_LEVEL) byte_level_ready();
    if (s->kind == STRIP) {
        s->left = json_bool(value, "strip_left", true);
        s->right = json_bool(value, "strip_right", true);
    }
    if (s->kind == PREPEND || s->kind == REPLACE) {
        const char *field = s->kind == PREPEND ? "prepend" : "content";
        if ((content = json_str(value, field)) == NULL) return error_set(err, E_INVALID, "%s.%s: expected a string", key, field);
        if (strlen(content) > CONTENT_MAX) return error_set(err, E_LIMIT, "%s.%s has %zu bytes; at most %d are taken", key, field, strlen(content), CONTENT_MAX);
        s->content = xstrdup(content);
        s->content_len = nul_show(s->content);
    }
    return s->kind == REPLACE ? pattern_open(&s->pattern, value, key, err) : OK;
}

int normalizer_open(struct normalizer **out, const struct cJSON *value, const char *key, struct error *err)
{
    *out = NULL;
    if (value == NULL || cJSON_IsNull(value)) return OK;
    struct normalizer *n = xcalloc(1, sizeof *n);
    int rc = add(n, value, key, 0, err);
    if (rc == OK) *out = n;
    else normalizer_free(n);
    return rc;
}

void normalizer_free(struct normalizer *n)
{
    if (n == NULL) return;
    for (int i = 0; i < n->n; i++) {
        free(n->steps[i].content);
        regex_free(n->steps[i].pattern);
    }
    free(n);
}

/* Whether the first match stands at the start and is put out of it: nothing takes its place, or it was several characters, of which
 * the replacement counts as the last. */
static int replaces_start(const struct step *s, struct regex_space *regex, const char *text, size_t len, bool *moved, struct error *err)
{
    struct regex_iter it = { 0 };
    size_t start, end;
    uint32_t cp;
    bool found;
    int rc = regex_next(s->pattern, regex, text, len, &it, &start, &end, &found, err);
    if (rc == OK && found && start == 0 && end > 0) *moved = s->content_len == 0 || end > utf8_next(text, &cp);
    return rc;
}

/* Appends the result of one step to *out, or leaves the text as it is: *same. */
static int run_step(const struct step *s, struct regex_space *regex, const char **text, size_t *len, size_t most, struct bytes *out, bool *same,
                    bool *moved, struct error *err)
{
    uint32_t cp;
    int rc;
    *same = false;
    switch (s->kind) {
    case FORM:
        if ((*same = unicode_is_normal(s->form, *text, *len))) return OK;
        return unicode_normalize(s->form, *text, *len, out, err);
    case PREPEND:
        if ((*same = *len == 0)) return OK;
        bytes_add(out, s->content, s->content_len);
        bytes_add(out, *text, *len);
        return OK;
    case REPLACE:
        if (*len && !*moved && (rc = replaces_start(s, regex, *text, *len, moved, err)) != OK) return rc;
        return pattern_replace(s->pattern, regex, *text, *len, s->content, s->content_len, most, out, err);
    case LOWERCASE: unicode_lower(*text, *len, out); return OK;
    case STRIP:
        *same = true;
        for (size_t k; s->left && *len && (k = utf8_next(*text, &cp), cp_is_space(cp)); *text += k, *len -= k) *moved = true;
        for (size_t k; s->right && *len && (k = utf8_prev(*text, *len, &cp), cp_is_space(cp)); *len = k) {}
        return OK;
    case STRIP_ACCENTS:
        for (size_t i = 0, k; i < *len; i += k) {
            k = utf8_next(*text + i, &cp);
            if (!cp_is_mark(cp)) bytes_add(out, *text + i, k);
            else if (i == 0) *moved = true;
        }
        return OK;
    case BYTE_LEVEL:
        for (size_t i = 0; i < *len; i++) bytes_add_cp(out, byte_level_cp[(unsigned char)(*text)[i]]);
        return OK;
    case SEQUENCE: break;
    }
    return OK;
}

int normalizer_run(const struct normalizer *n, struct normalizer_space *space, const char *text, size_t len, const char **out,
                   size_t *out_len, bool *moved, struct error *err)
{
    struct bytes *into = &space->a;
    size_t most = growth_limit(len);
    *out = text;
    *out_len = len;
    *moved = false;
    for (int i = 0; n && i < n->n; i++) {
        bool same;
        into->n = 0;
        int rc = run_step(&n->steps[i], space->regex, out, out_len, most, into, &same, moved, err);
        if (rc == OK && !same && into->n > most) rc = too_much(most, err);
        if (rc != OK) return rc;
        if (same) continue;
        *out = into->v ? into->v : "";
        *out_len = into->n;
        into = into == &space->a ? &space->b : &space->a;
    }
    return OK;
}
