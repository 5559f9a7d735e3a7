/* added.c - see added.h. A trie over bytes; positions whose byte starts no token are skipped at once. */
#include "worker/data/added.h"

#include <stdlib.h>
#include <string.h>

#include "worker/data/unicode.h"

#define SPELLING_MAX 4096       /* bytes: bounds the work per position of the text */

/* Children are a list: first child, next sibling. Real sets have some thousand nodes. */
struct node { uint32_t child, sibling; unsigned char byte; const struct added_token *token; };

struct added_set {
    struct node *nodes;         /* [0] is the root */
    uint32_t n, cap;
    uint32_t first[256];        /* the root's children, by byte; 0: none */
    int starts;                 /* bytes with a child, and the only one if there is one */
    unsigned char only;
};

struct added_set *added_set_new(void)
{
    struct added_set *s = xcalloc(1, sizeof *s);
    s->cap = 64;
    s->nodes = xcalloc(s->cap, sizeof *s->nodes);
    s->n = 1;
    return s;
}

void added_set_free(struct added_set *s)
{
    if (s == NULL) return;
    free(s->nodes);
    free(s);
}

static uint32_t child_of(const struct added_set *s, uint32_t node, unsigned char byte)
{
    if (node == 0) return s->first[byte];
    uint32_t c = s->nodes[node].child;
    while (c && s->nodes[c].byte != byte) c = s->nodes[c].sibling;
    return c;
}

int added_set_add(struct added_set *s, const char *spelling, size_t len, const struct added_token *token, struct error *err)
{
    uint32_t at = 0;
    if (len == 0) return error_set(err, E_INVALID, "added token \"%.80s\" is empty once normalized", token->content);
    if (len > SPELLING_MAX) return error_set(err, E_LIMIT, "added token \"%.80s…\" has %zu bytes; at most %d are taken", token->content, len, SPELLING_MAX);
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)spelling[i];
        uint32_t c = child_of(s, at, byte);
        if (c == 0) {
            if (s->n == s->cap) {
                s->cap *= 2;
                s->nodes = xrealloc(s->nodes, s->cap * sizeof *s->nodes);
            }
            c = s->n++;
            s->nodes[c] = (struct node){ 0, s->nodes[at].child, byte, NULL };
            s->nodes[at].child = c;
            if (at == 0) { s->first[byte] = c; s->starts++; s->only = byte; }
        }
        at = c;
    }
    if (s->nodes[at].token == NULL) s->nodes[at].token = token;     /* of two with one spelling the first counts */
    return OK;
}

static const struct added_token *longest(const struct added_set *s, const char *text, size_t len, size_t *match_len)
{
    const struct added_token *found = NULL;
    uint32_t at = 0;
    for (size_t i = 0; i < len; i++) {
        if ((at = child_of(s, at, (unsigned char)text[i])) == 0) break;
        if (s->nodes[at].token) { found = s->nodes[at].token; *match_len = i + 1; }
    }
    return found;
}

static bool word_before(const char *text, size_t at)
{
    uint32_t cp;
    return at > 0 && ((void)utf8_prev(text, at, &cp), cp_is_word(cp));
}

static bool word_after(const char *text, size_t len, size_t at)
{
    uint32_t cp;
    return at < len && ((void)utf8_next(text + at, &cp), cp_is_word(cp));
}

int added_set_split(const struct added_set *s, const char *text, size_t len,
                    int (*piece)(void *arg, const char *text, size_t len, size_t at, const struct added_token *token, struct error *err), void *arg,
                    struct error *err)
{
    size_t done = 0;
    int rc;
    for (size_t i = 0; s->starts && i < len;) {
        size_t n = 0;
        if (s->starts == 1) {
            const char *p = memchr(text + i, s->only, len - i);
            if (p == NULL) break;
            i = (size_t)(p - text);
        } else if (s->first[(unsigned char)text[i]] == 0) { i++; continue; }
        const struct added_token *t = longest(s, text + i, len - i, &n);
        if (t == NULL) { i++; continue; }
        size_t start = i, end = i + n;
        uint32_t cp;
        i = end;
        if (t->single_word && (word_before(text, start) || word_after(text, len, end))) continue;
        if (t->lstrip) {                                            /* not beyond what an earlier token took */
            for (size_t k; start > 0 && (k = utf8_prev(text, start, &cp), cp_is_space(cp)); start = k) {}
            if (start < done) start = done;
        }
        if (t->rstrip) for (size_t k; end < len && (k = utf8_next(text + end, &cp), cp_is_space(cp)); end += k) {}
        if (done < start && (rc = piece(arg, text + done, start - done, done, NULL, err)) != OK) return rc;
        /* all its characters may be blanks that an earlier token took */
        if (start < end && (rc = piece(arg, text + start, end - start, start, t, err)) != OK) return rc;
        done = end;
    }
    return done < len ? piece(arg, text + done, len - done, done, NULL, err) : OK;
}
