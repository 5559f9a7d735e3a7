/* regex.c - see regex.h; the only file that includes PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "worker/data/regex.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATTERN_MAX (64 << 10)          /* bytes; real ones have at most a few hundred */
#define JIT_STACK_MAX (8 << 20)         /* bytes */
/* PCRE2's count of backtracking points for one match: giving back a run of blanks as long as the text takes one a byte */
#define MATCH_STEPS_MAX 20000000
#define MATCH_STEPS_PER_BYTE 8
#define HEAP_KIB_MAX (64 << 10)

struct regex {
    pcre2_code *code;                   /* NULL: a literal */
    bool jit;
    char *literal;
    size_t literal_len;
};

struct regex_space {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    size_t limit_len;                   /* text length that the step limit is set for */
};

static bool pcre_has_property(const char *name)
{
    char text[96];
    int code;
    PCRE2_SIZE at;
    (void)snprintf(text, sizeof text, "\\p{%.80s}", name);
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)text, strlen(text), PCRE2_UTF, &code, &at, NULL);
    pcre2_code_free(c);
    return c != NULL;
}

int regex_open(struct regex **r, const char *pattern, size_t len, struct error *err)
{
    struct bytes text = { 0 };
    int code;
    PCRE2_SIZE at;
    *r = NULL;
    if (len > PATTERN_MAX) return error_set(err, E_LIMIT, "pattern of %zu bytes; at most %d are taken", len, PATTERN_MAX);
    int rc = regex_translate(pattern, len, pcre_has_property, &text, err);
    if (rc != OK) goto out;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)(text.n ? text.v : ""), text.n, PCRE2_UTF | PCRE2_NO_UTF_CHECK, &code, &at, context);
    pcre2_compile_context_free(context);
    if (compiled == NULL) {
        PCRE2_UCHAR why[120];
        (void)pcre2_get_error_message(code, why, sizeof why);
        rc = error_set(err, E_UNSUPPORTED, "pattern \"%.*s\": %s", (int)(len < 200 ? len : 200), pattern, (const char *)why);
        goto out;
    }
    *r = xcalloc(1, sizeof **r);
    (*r)->code = compiled;
    (*r)->jit = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
out:
    bytes_release(&text);
    return rc;
}

int regex_open_literal(struct regex **r, const char *text, size_t len, struct error *err)
{
    if (len == 0) return regex_open(r, "", 0, err);
    *r = xcalloc(1, sizeof **r);
    (*r)->literal = xmalloc(len);
    memcpy((*r)->literal, text, len);
    (*r)->literal_len = len;
    return OK;
}

void regex_free(struct regex *r)
{
    if (r == NULL) return;
    pcre2_code_free(r->code);
    free(r->literal);
    free(r);
}

struct regex_space *regex_space_new(void)
{
    struct regex_space *s = xcalloc(1, sizeof *s);
    s->data = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_MAX, NULL);
    if (s->data == NULL || s->context == NULL) { (void)fputs("ringmaster: out of host memory\n", stderr); abort(); }
    (void)pcre2_set_match_limit(s->context, MATCH_STEPS_MAX);           /* short texts */
    (void)pcre2_set_heap_limit(s->context, HEAP_KIB_MAX);
    if (s->stack) pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s;
}

void regex_space_free(struct regex_space *s)
{
    if (s == NULL) return;
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    free(s);
}

static int match_code(const struct regex *r, struct regex_space *space, const char *text, size_t len, size_t from, bool *found, struct error *err)
{
    int n = PCRE2_ERROR_JIT_STACKLIMIT;
    if (len != space->limit_len) {
        size_t most = len > UINT32_MAX / MATCH_STEPS_PER_BYTE - MATCH_STEPS_MAX ? UINT32_MAX : MATCH_STEPS_MAX + MATCH_STEPS_PER_BYTE * len;
        (void)pcre2_set_match_limit(space->context, (uint32_t)most);
        space->limit_len = len;
    }
    if (r->jit) n = pcre2_jit_match(r->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, space->data, space->context);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT)
        n = pcre2_match(r->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, space->data, space->context);
    *found = n >= 0;
    if (n >= 0 || n == PCRE2_ERROR_NOMATCH) return OK;
    PCRE2_UCHAR why[120];
    (void)pcre2_get_error_message(n, why, sizeof why);
    return error_set(err, E_LIMIT, "the tokenizer's pattern takes too many steps at byte %zu of a text of %zu: %s", from, len, (const char *)why);
}

/* Short ones by their first byte: sanitizers look at the whole rest of the text at every call of memmem. */
static const char *find_literal(const char *text, size_t len, const char *literal, size_t n)
{
    if (n > 16) return memmem(text, len, literal, n);
    for (const char *end = text + len; (size_t)(end - text) >= n; text++) {
        text = memchr(text, literal[0], (size_t)(end - text) - n + 1);
        if (text == NULL || memcmp(text, literal, n) == 0) return text;
    }
    return NULL;
}

int regex_next(const struct regex *r, struct regex_space *space, const char *text, size_t len, struct regex_iter *it, size_t *start,
               size_t *end, bool *found, struct error *err)
{
    *found = false;
    if (r->code == NULL) {
        const char *p = it->at < len ? find_literal(text + it->at, len - it->at, r->literal, r->literal_len) : NULL;
        if (p == NULL) return OK;
        *start = (size_t)(p - text);
        *end = it->at = *start + r->literal_len;
        *found = true;
        return OK;
    }
    while (it->at <= len) {
        int rc = match_code(r, space, text, len, it->at, found, err);
        if (rc != OK || !*found) return rc;
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(space->data);
        *start = span[0];
        *end = span[1];
        if (*start != *end || !it->any || it->last_end != *end) {
            it->at = it->last_end = *end;
            it->any = true;
            return OK;
        }
        uint32_t cp;                    /* an empty match where the last one ended: look one character on */
        it->at += it->at < len ? utf8_next(text + it->at, &cp) : 1;
    }
    *found = false;
    return OK;
}
