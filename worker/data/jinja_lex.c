/* jinja_lex.c - template source into tokens, with Jinja's white space rules (trim_blocks, lstrip_blocks, -, +).
 *
 * Follows jinja2/lexer.py of Jinja 3.1.6: "-" strips all white space on its side; trim_blocks takes one newline after a block or comment;
 * lstrip_blocks takes the blanks between the start of a line and a block or comment, but not a {{ }}. Inside brackets an end mark is none. */
#include <stdlib.h>
#include <string.h>

#include "worker/data/jinja_ast.h"

#define TOKENS_MAX 2000000

struct lexer {
    struct pool *pool;
    const char *p, *end;
    int line;
    struct token *tokens;
    size_t n, cap;
    struct error *err;
    int rc;
    bool line_starting;
};

static int fail(struct lexer *x, int line, const char *what) { return x->rc = error_set(x->err, E_INVALID, "line %d: %s", line, what); }

static void push(struct lexer *x, enum token_type type, enum op op, struct value v)
{
    if (x->n == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 256;
        if (cap > TOKENS_MAX) { x->rc = error_set(x->err, E_LIMIT, "line %d: template has too many tokens", x->line); return; }
        struct token *fresh = pool_alloc(x->pool, cap * sizeof *fresh);
        if (x->n) memcpy(fresh, x->tokens, x->n * sizeof *fresh);
        x->tokens = fresh;
        x->cap = cap;
    }
    x->tokens[x->n++] = (struct token){ type, op, x->line, v };
}

static void advance(struct lexer *x, const char *to)
{
    for (; x->p < to; x->p++) x->line += *x->p == '\n';
}

static const char *rstrip(const char *from, const char *to)     /* Python's str.rstrip() */
{
    while (to > from) {
        const char *c = to - 1;
        while (c > from && (*c & 0xC0) == 0x80) c--;
        if (!u8_space(u8_get(c))) break;
        to = c;
    }
    return to;
}

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && u8_space(u8_get(p))) p += u8_len(p);
    return p;
}

/* Text before a tag; sign is the tag's "-", "+" or 0. */
static void push_data(struct lexer *x, const char *to, char sign, bool variable)
{
    const char *from = x->p, *keep = to;
    if (sign == '-') keep = rstrip(from, to);
    else if (sign != '+' && !variable) {
        const char *nl = memrchr(from, '\n', (size_t)(to - from)), *start = nl ? nl + 1 : from;
        if ((nl || x->line_starting) && start < to && skip_space(start, to) == to) keep = start;
    }
    if (keep > from) push(x, T_DATA, OP_NONE, v_str(from, (size_t)(keep - from)));
    advance(x, to);
}

/* What a block's or comment's end eats. p: just behind the end mark. */
static void after_end(struct lexer *x, const char *p, char sign, bool variable)
{
    if (sign == '-') p = skip_space(p, x->end);
    else if (sign != '+' && !variable && p < x->end && *p == '\n') p++;
    x->line_starting = p > x->p && p[-1] == '\n';
    advance(x, p);
}

static bool name_start(uint32_t c) { return c == '_' || (c | 32) - 'a' < 26u || c >= 0x80; }
static bool digit(char c) { return c >= '0' && c <= '9'; }

static void lex_string(struct lexer *x)
{
    const char *start = x->p, *p = start + 1;
    char quote = *start;
    while (p < x->end && *p != quote) p += *p == '\\' && p + 1 < x->end ? 2 : 1;
    if (p >= x->end) { (void)fail(x, x->line, "string is not closed"); return; }
    char *out = pool_alloc(x->pool, (size_t)(p - start) * 2 + 8);
    size_t n = 0;
    for (const char *s = start + 1; s < p;) {
        if (*s != '\\') { out[n++] = *s++; continue; }
        char c = s[1];
        s += 2;
        static const char from[] = "ntr\\'\"abfv", to[] = "\n\t\r\\'\"\a\b\f\v";
        const char *simple = c ? strchr(from, c) : NULL;
        if (simple) { out[n++] = to[simple - from]; continue; }
        if (c == '\n') continue;
        int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (digits) {
            uint32_t v = 0;
            for (int i = 0; i < digits; i++, s++) {
                if (s >= p || !((*s >= '0' && *s <= '9') || ((*s | 32) >= 'a' && (*s | 32) <= 'f'))) { (void)fail(x, x->line, "bad \\x or \\u escape in a string"); return; }
                v = v << 4 | (uint32_t)(*s <= '9' ? *s - '0' : (*s | 32) - 'a' + 10);
            }
            if (v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF)) { (void)fail(x, x->line, "escape in a string is no character"); return; }
            n += u8_put(out + n, v);
            continue;
        }
        if (c >= '0' && c <= '7') {
            uint32_t v = (uint32_t)(c - '0');
            for (int i = 0; i < 2 && s < p && *s >= '0' && *s <= '7'; i++) v = v * 8 + (uint32_t)(*s++ - '0');
            n += u8_put(out + n, v);
            continue;
        }
        if (c == 'N') { (void)fail(x, x->line, "\\N{name} escapes are not supported"); return; }
        out[n++] = '\\';                                        /* Python keeps what it does not know */
        s--;
    }
    push(x, T_STRING, OP_NONE, v_str(out, n));
    advance(x, p + 1);
}

static void lex_number(struct lexer *x)
{
    char text[320];
    size_t n = 0;
    const char *p = x->p;
    int base = 10;
    bool real = false;
    if (*p == '0' && p + 1 < x->end && strchr("bBoOxX", p[1]) && p[1]) {
        base = (p[1] | 32) == 'b' ? 2 : (p[1] | 32) == 'o' ? 8 : 16;
        p += 2;
    }
    for (; p < x->end && n < sizeof text - 1; p++) {
        if (*p == '_') continue;
        if (digit(*p) || (base == 16 && (*p | 32) >= 'a' && (*p | 32) <= 'f')) { text[n++] = *p; continue; }
        if (base == 10 && *p == '.' && !real && p + 1 < x->end && digit(p[1])) { real = true; text[n++] = *p; continue; }
        if (base == 10 && (*p | 32) == 'e' && p + 1 < x->end && (digit(p[1]) || ((p[1] == '-' || p[1] == '+') && p + 2 < x->end && digit(p[2])))) {
            real = true;
            text[n++] = *p++;
            text[n++] = *p;
            for (p++; p < x->end && digit(*p) && n < sizeof text - 1; p++) text[n++] = *p;
            break;
        }
        break;
    }
    text[n] = '\0';
    if (n == 0 || n == sizeof text - 1) { (void)fail(x, x->line, "bad number"); return; }
    if (real) push(x, T_FLOAT, OP_NONE, (struct value){ .type = V_FLOAT, .f = strtod(text, NULL) });
    else {
        char *end;
        unsigned long long v = strtoull(text, &end, base);
        if (*end || n > 64 || v > INT64_MAX || (base == 10 && n > 18)) { (void)fail(x, x->line, "integer is too large"); return; }
        push(x, T_INT, OP_NONE, v_int((int64_t)v));
    }
    advance(x, p);
}

static const struct { char text[3]; enum op op; } operators[] = {       /* longest first */
    { "//", OP_FLOORDIV }, { "**", OP_POW }, { "==", OP_EQ }, { "!=", OP_NE }, { ">=", OP_GE }, { "<=", OP_LE },
    { "+", OP_ADD }, { "-", OP_SUB }, { "/", OP_DIV }, { "*", OP_MUL }, { "%", OP_MOD }, { "~", OP_TILDE }, { "[", OP_LBRACKET }, { "]", OP_RBRACKET },
    { "(", OP_LPAREN }, { ")", OP_RPAREN }, { "{", OP_LBRACE }, { "}", OP_RBRACE }, { ">", OP_GT }, { "<", OP_LT }, { "=", OP_ASSIGN },
    { ".", OP_DOT }, { ":", OP_COLON }, { "|", OP_PIPE }, { ",", OP_COMMA }, { ";", OP_SEMI },
};

/* Tokens between {{ and }} or {% and %}, including the end mark. */
static void lex_inside(struct lexer *x, bool variable, int begin_line)
{
    char brackets[256];
    int open = 0;
    char e0 = variable ? '}' : '%';
    while (x->rc == OK) {
        advance(x, skip_space(x->p, x->end));
        if (x->p >= x->end) { (void)fail(x, begin_line, variable ? "{{ is not closed" : "{% is not closed"); return; }
        const char *p = x->p;
        if (open == 0) {
            char sign = (*p == '-' || (*p == '+' && !variable)) && x->end - p >= 3 && p[1] == e0 && p[2] == '}' ? *p : 0;
            if (sign || (x->end - p >= 2 && p[0] == e0 && p[1] == '}')) {
                push(x, variable ? T_VAR_END : T_BLOCK_END, OP_NONE, v_none());
                after_end(x, p + (sign ? 3 : 2), sign, variable);
                return;
            }
        }
        if (*p == '"' || *p == '\'') { lex_string(x); continue; }
        if (digit(*p)) { lex_number(x); continue; }
        if (name_start((unsigned char)*p)) {
            while (p < x->end && (name_start((unsigned char)*p) || digit(*p))) p++;
            push(x, T_NAME, OP_NONE, v_str(x->p, (size_t)(p - x->p)));
            advance(x, p);
            continue;
        }
        size_t i = 0, count = sizeof operators / sizeof operators[0];
        for (; i < count; i++)
            if (strncmp(operators[i].text, p, strlen(operators[i].text)) == 0) break;
        if (i == count) { (void)fail(x, x->line, "unexpected character"); return; }
        enum op op = operators[i].op;
        if (op == OP_LPAREN || op == OP_LBRACKET || op == OP_LBRACE) {
            if (open == (int)sizeof brackets) { (void)fail(x, x->line, "brackets are nested too deep"); return; }
            brackets[open++] = *p == '(' ? ')' : *p == '[' ? ']' : '}';
        } else if (op == OP_RPAREN || op == OP_RBRACKET || op == OP_RBRACE) {
            if (open == 0 || brackets[open - 1] != *p) { (void)fail(x, x->line, "closing bracket does not match"); return; }
            open--;
        }
        push(x, T_OP, op, v_none());
        advance(x, p + strlen(operators[i].text));
    }
}

static const char *word(const char *p, const char *end, const char *w)      /* behind w with space around it, or NULL */
{
    p = skip_space(p, end);
    size_t n = strlen(w);
    if ((size_t)(end - p) < n || memcmp(p, w, n) != 0) return NULL;
    return skip_space(p + n, end);
}

/* {% raw %} … {% endraw %}: p is behind "{%" and its sign. True if it was one. */
static bool lex_raw(struct lexer *x, const char *p)
{
    const char *q = word(p, x->end, "raw");
    if (q == NULL) return false;
    char sign = q < x->end && *q == '-' ? '-' : 0;
    if (sign) q++;
    if (x->end - q < 2 || q[0] != '%' || q[1] != '}') return false;
    q += 2;
    if (sign == '-') q = skip_space(q, x->end);
    int line = x->line;
    advance(x, q);
    for (const char *s = x->p; (s = memmem(s, (size_t)(x->end - s), "{%", 2)) != NULL; s += 2) {
        const char *inner = s + 2;
        char open = inner < x->end && (*inner == '-' || *inner == '+') ? *inner++ : 0, close = 0;
        const char *r = word(inner, x->end, "endraw");
        if (r == NULL) continue;
        if (r < x->end && (*r == '-' || *r == '+')) close = *r++;
        if (x->end - r < 2 || r[0] != '%' || r[1] != '}') continue;
        x->line_starting = false;
        push_data(x, s, open, false);
        after_end(x, r + 2, close, false);
        return true;
    }
    (void)fail(x, line, "{% raw %} is not closed");
    return true;
}

static void lex(struct lexer *x)
{
    x->line_starting = true;
    while (x->p < x->end && x->rc == OK) {
        const char *s = x->p;
        for (; s < x->end; s++) {
            s = memchr(s, '{', (size_t)(x->end - s));
            if (s == NULL || x->end - s < 2) { s = NULL; break; }
            if (s[1] == '{' || s[1] == '%' || s[1] == '#') break;
        }
        if (s == NULL || s >= x->end) {
            push(x, T_DATA, OP_NONE, v_str(x->p, (size_t)(x->end - x->p)));
            advance(x, x->end);
            break;
        }
        char kind = s[1], sign = x->end - s > 2 && (s[2] == '-' || s[2] == '+') ? s[2] : 0;
        const char *inner = s + 2 + (sign != 0);
        push_data(x, s, sign, kind == '{');
        int line = x->line;
        if (kind == '#') {
            const char *e = memmem(inner, (size_t)(x->end - inner), "#}", 2);
            if (e == NULL) { (void)fail(x, line, "{# is not closed"); return; }
            char close = e > inner && (e[-1] == '-' || e[-1] == '+') ? e[-1] : 0;
            after_end(x, e + 2, close, false);
            continue;
        }
        if (kind == '%' && lex_raw(x, inner)) continue;
        advance(x, inner);
        push(x, kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN, OP_NONE, v_none());
        lex_inside(x, kind == '{', line);
    }
}

int jinja_lex(struct pool *pool, const char *source, size_t len, struct token **tokens, size_t *n, struct error *err)
{
    /* newlines become \n, and one at the very end goes (keep_trailing_newline=False) */
    char *text = pool_alloc(pool, len + 8);
    size_t m = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] != '\r') { text[m++] = source[i]; continue; }
        text[m++] = '\n';
        if (i + 1 < len && source[i + 1] == '\n') i++;
    }
    if (m > 0 && text[m - 1] == '\n') m--;
    text[m] = '\0';
    struct lexer x = { .pool = pool, .p = text, .end = text + m, .line = 1, .err = err };
    lex(&x);
    if (x.rc != OK) return x.rc;
    push(&x, T_EOF, OP_NONE, v_none());
    *tokens = x.tokens;
    *n = x.n;
    return x.rc;
}
