#include "api/import_shell.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 20000, WORD_MAX = 1 << 16, VARS_MAX = 1000 };

struct var { char *name, *value; };

struct reader {
    const char *p, *end;
    struct script *s;
    struct command cur;
    struct var *vars; int n_vars;
    char *word; size_t len, cap;
    bool in_word;
    int words;
    struct error *err;
};

static int put(struct reader *r, const char *s, size_t n)
{
    if (r->len + n > WORD_MAX) return error_set(r->err, E_LIMIT, "a word of more than %d bytes", WORD_MAX);
    if (r->len + n + 1 > r->cap) r->word = xrealloc(r->word, r->cap = (r->len + n + 1) * 2);
    memcpy(r->word + r->len, s, n);
    r->len += n;
    r->in_word = true;
    return OK;
}

static const char *lookup(const struct reader *r, const char *name, size_t n)
{
    for (int i = r->n_vars; i-- > 0;)
        if (strlen(r->vars[i].name) == n && memcmp(r->vars[i].name, name, n) == 0) return r->vars[i].value;
    return NULL;
}

static bool name_char(char c, bool first) { return c == '_' || isalpha((unsigned char)c) || (!first && isdigit((unsigned char)c)); }

/* At '$': puts the variable's value, or the text as it is. */
static int dollar(struct reader *r)
{
    const char *from = r->p++, *name = r->p, *value = NULL, *other = NULL;
    size_t n = 0, other_n = 0;
    if (r->p < r->end && *r->p == '(') {            /* $(…): kept as written, to its bracket */
        int depth = 0;
        while (r->p < r->end) {
            if (*r->p == '(') depth++;
            if (*r->p++ == ')' && --depth == 0) break;
        }
        return put(r, from, (size_t)(r->p - from));
    }
    bool brace = r->p < r->end && *r->p == '{';
    if (brace) name = ++r->p;
    while (r->p < r->end && name_char(*r->p, n == 0)) { r->p++; n++; }
    if (brace) {
        if (r->end - r->p > 2 && (r->p[0] == ':' && r->p[1] == '-')) other = r->p + 2;
        const char *close = r->p;
        while (close < r->end && *close != '}') close++;
        if (close == r->end) { r->p = r->end; return put(r, from, (size_t)(r->end - from)); }
        if (other) other_n = (size_t)(close - other);
        else if (close != r->p) n = 0;              /* ${x%y} and the like are beyond us */
        r->p = close + 1;
    }
    if (n > 0) value = lookup(r, name, n);
    if (value) return put(r, value, strlen(value));
    if (other) return put(r, other, other_n);
    return put(r, from, (size_t)(r->p - from));
}

static int end_word(struct reader *r)
{
    if (!r->in_word) return OK;
    if (++r->words > WORDS_MAX) return error_set(r->err, E_LIMIT, "more than %d words", WORDS_MAX);
    r->cur.word = xrealloc(r->cur.word, (unsigned long)(r->cur.n + 2) * sizeof *r->cur.word);
    r->cur.word[r->cur.n++] = xstrndup(r->len ? r->word : "", r->len);
    r->cur.word[r->cur.n] = NULL;
    r->len = 0;
    r->in_word = false;
    return OK;
}

static void remember(struct reader *r, const char *word)
{
    const char *eq = strchr(word, '=');
    if (eq == NULL || eq == word || r->n_vars == VARS_MAX) return;
    for (const char *p = word; p < eq; p++)
        if (!name_char(*p, p == word)) return;
    r->vars = xrealloc(r->vars, (unsigned long)(r->n_vars + 1) * sizeof *r->vars);
    r->vars[r->n_vars++] = (struct var){ xstrndup(word, (unsigned long)(eq - word)), xstrdup(eq + 1) };
}

static int end_command(struct reader *r)
{
    int rc = end_word(r);
    if (rc != OK || r->cur.n == 0) return rc;
    int i = strcmp(r->cur.word[0], "export") == 0 ? 1 : 0, first = i;
    while (i < r->cur.n && strchr(r->cur.word[i], '=') && name_char(r->cur.word[i][0], true)) i++;
    if (i == r->cur.n)              /* nothing but assignments: they hold from here on */
        for (int k = first; k < r->cur.n; k++) remember(r, r->cur.word[k]);
    r->s->v = xrealloc(r->s->v, (unsigned long)(r->s->n + 1) * sizeof *r->s->v);
    r->s->v[r->s->n++] = r->cur;
    r->cur = (struct command){ 0 };
    return OK;
}

/* Skips "> file", "2>&1", "< file": the output's way does not matter here. */
static void redirection(struct reader *r)
{
    while (r->p < r->end && strchr("<>&|", *r->p)) r->p++;
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t')) r->p++;
    while (r->p < r->end && !isspace((unsigned char)*r->p) && !strchr(";&|", *r->p)) r->p++;
}

static int quoted(struct reader *r, char quote)
{
    const char *from = r->p++;
    int rc = put(r, "", 0);
    while (rc == OK && r->p < r->end && *r->p != quote) {
        if (quote == '"' && *r->p == '\\' && r->p + 1 < r->end && strchr("\"\\$`\n", r->p[1])) {
            if (r->p[1] != '\n') rc = put(r, r->p + 1, 1);
            r->p += 2;
        } else if (quote == '"' && *r->p == '$') rc = dollar(r);
        else rc = put(r, r->p++, 1);
    }
    if (rc != OK) return rc;
    if (r->p == r->end) return error_set(r->err, E_INVALID, "a quote is opened and not closed: %.*s", r->end - from < 40 ? (int)(r->end - from) : 40, from);
    r->p++;
    return OK;
}

static int read_all(struct reader *r)
{
    int rc = OK;
    while (rc == OK && r->p < r->end) {
        char c = *r->p;
        if (c == '\\' && r->p + 1 < r->end) {
            if (r->p[1] == '\n') r->p += 2;
            else if (r->p[1] == '\r' && r->p + 2 < r->end && r->p[2] == '\n') r->p += 3;
            else { rc = put(r, r->p + 1, 1); r->p += 2; }
        } else if (c == '\\') r->p++;
        else if (c == '\'' || c == '"') rc = quoted(r, c);
        else if (c == '$') rc = dollar(r);
        else if (c == '#' && !r->in_word) {
            while (r->p < r->end && *r->p != '\n') r->p++;
        } else if (c == '\n' || c == ';') { rc = end_command(r); r->p++; }
        else if (c == '&' || c == '|') {
            if (c == '&' && r->p + 1 < r->end && r->p[1] == '>') { rc = end_word(r); redirection(r); }
            else { rc = end_command(r); r->p++; }
        } else if (c == '<' || c == '>') {
            if (r->in_word && r->len == 1 && isdigit((unsigned char)r->word[0])) { r->len = 0; r->in_word = false; }
            rc = end_word(r);
            redirection(r);
        } else if (isspace((unsigned char)c)) { rc = end_word(r); r->p++; }
        else rc = put(r, r->p++, 1);
    }
    return rc == OK ? end_command(r) : rc;
}

int script_read(struct script *s, const char *text, size_t len, struct error *err)
{
    struct reader r = { .p = text, .end = text + len, .s = s, .err = err };
    *s = (struct script){ 0 };
    int rc = memchr(text, '\0', len) ? error_set(err, E_INVALID, "the text holds a NUL byte") : read_all(&r);
    for (int i = 0; i < r.cur.n; i++) free(r.cur.word[i]);
    free(r.cur.word);
    for (int i = 0; i < r.n_vars; i++) {
        free(r.vars[i].name);
        free(r.vars[i].value);
    }
    free(r.vars);
    free(r.word);
    if (rc != OK) script_release(s);
    return rc;
}

void script_release(struct script *s)
{
    for (int i = 0; i < s->n; i++) {
        for (int k = 0; k < s->v[i].n; k++) free(s->v[i].word[k]);
        free(s->v[i].word);
    }
    free(s->v);
    *s = (struct script){ 0 };
}
