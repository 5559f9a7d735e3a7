/* jinja_parse.c - tokens into a tree: the grammar and the precedences of jinja2/parser.py (Jinja 3.1.6).
 *
 * Unlike Python's, "not" binds looser than comparisons, "~" tighter than "+", and a filter or test binds to what stands right before it.
 * Errors leave by longjmp to jinja_compile: the tree lives in one pool, so there is nothing to clean up on the way. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/jinja_ast.h"

#define DEPTH_MAX 180

struct intern { const char *name; size_t n; struct intern *next; };

struct parser {
    struct jinja *t;
    struct token *tok;          /* the current one */
    struct error *err;
    int rc, depth, loops;
    jmp_buf fault;
    struct intern *names[256];
    struct node *macro;         /* innermost S_MACRO or S_CALL */
};

static _Noreturn void fail(struct parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static _Noreturn void fail(struct parser *p, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->rc = error_set(p->err, E_INVALID, "line %d: %s", p->tok->line, text);
    longjmp(p->fault, 1);
}

static const char *intern(struct parser *p, const char *s, size_t n)
{
    unsigned h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 16777619u;
    for (struct intern *e = p->names[h & 255]; e; e = e->next)
        if (e->n == n && memcmp(e->name, s, n) == 0) return e->name;
    struct intern *e = pool_alloc(&p->t->pool, sizeof *e);
    *e = (struct intern){ pool_strndup(&p->t->pool, s, n), n, p->names[h & 255] };
    p->names[h & 255] = e;
    return e->name;
}

static struct node *node(struct parser *p, enum node_kind kind)
{
    struct node *n = pool_alloc(&p->t->pool, sizeof *n);
    n->kind = kind;
    n->line = p->tok->line;
    return n;
}

static void add(struct parser *p, struct node *n, struct node *child)
{
    if ((n->n & (n->n - 1)) == 0) {                             /* grows at 0, 1, 2, 4, 8 … */
        struct node **fresh = pool_alloc(&p->t->pool, (size_t)(n->n ? n->n * 2 : 1) * sizeof *fresh);
        if (n->n) memcpy(fresh, n->list, (size_t)n->n * sizeof *fresh);
        n->list = fresh;
    }
    n->list[n->n++] = child;
}

static void deeper(struct parser *p)
{
    if (++p->depth > DEPTH_MAX) fail(p, "nested too deep");
}

static bool at_op(const struct parser *p, enum op op) { return p->tok->type == T_OP && p->tok->op == op; }
static bool tok_is(const struct token *t, const char *word) { return t->type == T_NAME && value_is_str(t->v, word); }
static bool at(const struct parser *p, const char *word) { return tok_is(p->tok, word); }
static bool take_op(struct parser *p, enum op op) { bool hit = at_op(p, op); p->tok += hit; return hit; }
static bool take(struct parser *p, const char *word) { bool hit = at(p, word); p->tok += hit; return hit; }

static const char *shown(const struct parser *p)
{
    static const char *const types[] = { "text", "{{", "}}", "{%", "%}", "name", "string", "integer", "float", "operator", "the end of the template" };
    return p->tok->type == T_NAME ? p->tok->v.s.p : types[p->tok->type];
}
static int shown_n(const struct parser *p) { return p->tok->type == T_NAME ? (int)(p->tok->v.s.n < 60 ? p->tok->v.s.n : 60) : 60; }

static void want_op(struct parser *p, enum op op, const char *what)
{
    if (!take_op(p, op)) fail(p, "expected %s, found %.*s", what, shown_n(p), shown(p));
}

static const char *want_name(struct parser *p)
{
    if (p->tok->type != T_NAME) fail(p, "expected a name, found %.*s", shown_n(p), shown(p));
    const char *name = intern(p, p->tok->v.s.p, p->tok->v.s.n);
    p->tok++;
    return name;
}

static void want_block_end(struct parser *p)
{
    if (p->tok->type != T_BLOCK_END) fail(p, "expected the end of the {%% %%} tag, found %.*s", shown_n(p), shown(p));
    p->tok++;
}

/* --- expressions --- */

static struct node *expression(struct parser *p);
static struct node *conditional(struct parser *p, bool with_if);
static struct node *unary(struct parser *p, bool with_filter);
static struct node *postfix(struct parser *p, struct node *n);
static struct node *primary(struct parser *p);

static bool ends_tuple(const struct parser *p)
{
    return p->tok->type == T_VAR_END || p->tok->type == T_BLOCK_END || at_op(p, OP_RPAREN) || at(p, "in") || at(p, "recursive");
}

/* a, b, c: one expression without a comma stays itself. names_only: targets of for and set. */
static struct node *tuple(struct parser *p, bool names_only, bool with_if, bool in_parentheses)
{
    struct node *t = node(p, N_TUPLE);
    bool comma = false;
    while (!ends_tuple(p)) {
        add(p, t, names_only ? primary(p) : conditional(p, with_if));
        if (!take_op(p, OP_COMMA)) break;
        comma = true;
    }
    if (!comma && t->n) return t->list[0];
    if (!comma && !in_parentheses) fail(p, "expected an expression, found %.*s", shown_n(p), shown(p));
    return t;
}

static struct node *constant(struct parser *p, struct value v)
{
    struct node *n = node(p, N_CONST);
    n->value = v;
    return n;
}

static void note_name(struct parser *p, const char *name)
{
    if (p->macro == NULL) return;
    p->macro->uses_caller |= strcmp(name, "caller") == 0;
    p->macro->uses_varargs |= strcmp(name, "varargs") == 0;
    p->macro->uses_kwargs |= strcmp(name, "kwargs") == 0;
}

static struct node *primary(struct parser *p)
{
    struct token *t = p->tok;
    struct node *n;
    switch (t->type) {
    case T_NAME:
        p->tok++;
        if (tok_is(t, "true") || tok_is(t, "True")) return constant(p, v_bool(true));
        if (tok_is(t, "false") || tok_is(t, "False")) return constant(p, v_bool(false));
        if (tok_is(t, "none") || tok_is(t, "None")) return constant(p, v_none());
        n = node(p, N_NAME);
        n->line = t->line;
        n->name = intern(p, t->v.s.p, t->v.s.n);
        note_name(p, n->name);
        return n;
    case T_STRING: {
        struct value v = t->v;
        for (p->tok++; p->tok->type == T_STRING; p->tok++) {    /* "a" "b" is "ab" */
            size_t len = v.s.n + p->tok->v.s.n;
            char *both = pool_alloc(&p->t->pool, len + 1);
            if (v.s.n) memcpy(both, v.s.p, v.s.n);
            if (p->tok->v.s.n) memcpy(both + v.s.n, p->tok->v.s.p, p->tok->v.s.n);
            v = v_str(both, len);
        }
        return constant(p, v);
    }
    case T_INT: case T_FLOAT:
        p->tok++;
        return constant(p, t->v);
    case T_OP:
        deeper(p);
        if (take_op(p, OP_LPAREN)) {
            n = tuple(p, false, true, true);
            want_op(p, OP_RPAREN, ")");
        } else if (take_op(p, OP_LBRACKET)) {
            n = node(p, N_LIST);
            while (!at_op(p, OP_RBRACKET)) {
                if (n->n) want_op(p, OP_COMMA, ", or ]");
                if (at_op(p, OP_RBRACKET)) break;
                add(p, n, expression(p));
            }
            want_op(p, OP_RBRACKET, "]");
        } else if (take_op(p, OP_LBRACE)) {
            n = node(p, N_DICT);
            while (!at_op(p, OP_RBRACE)) {
                if (n->n) want_op(p, OP_COMMA, ", or }");
                if (at_op(p, OP_RBRACE)) break;
                add(p, n, expression(p));
                want_op(p, OP_COLON, ":");
                add(p, n, expression(p));
            }
            want_op(p, OP_RBRACE, "}");
        } else break;
        p->depth--;
        return n;
    default: break;
    }
    fail(p, "expected an expression, found %.*s", shown_n(p), shown(p));
}

static void call_args(struct parser *p, struct node *n)         /* p at "(" */
{
    bool named = false;
    want_op(p, OP_LPAREN, "(");
    for (bool first = true; !at_op(p, OP_RPAREN); first = false) {
        if (!first) want_op(p, OP_COMMA, ", or )");
        if (at_op(p, OP_RPAREN)) break;
        struct node *arg = node(p, N_ARG);
        if (take_op(p, OP_MUL)) arg->op = ARG_STAR;
        else if (take_op(p, OP_POW)) arg->op = ARG_STARS;
        else if (p->tok->type == T_NAME && p->tok[1].type == T_OP && p->tok[1].op == OP_ASSIGN) {
            arg->op = ARG_KEYWORD;
            arg->name = want_name(p);
            p->tok++;
            named = true;
        } else if (named) fail(p, "a plain argument after a named one");
        arg->a = expression(p);
        add(p, n, arg);
    }
    want_op(p, OP_RPAREN, ")");
}

static struct node *subscript(struct parser *p, struct node *of)
{
    struct node *n;
    if (take_op(p, OP_DOT)) {
        if (p->tok->type == T_INT) {
            n = node(p, N_ITEM);
            n->b = constant(p, p->tok->v);
            p->tok++;
        } else {
            n = node(p, N_ATTR);
            n->name = want_name(p);
        }
        n->a = of;
        return n;
    }
    want_op(p, OP_LBRACKET, "[");
    n = node(p, N_ITEM);
    n->a = of;
    struct node *part[3] = { NULL };
    int at_part = 0;
    bool slice = false;
    while (!at_op(p, OP_RBRACKET)) {
        if (take_op(p, OP_COLON)) {
            slice = true;
            if (++at_part > 2) fail(p, "expected ], found :");
            continue;
        }
        if (part[at_part]) fail(p, "expected ], found %.*s", shown_n(p), shown(p));
        part[at_part] = expression(p);
        if (at_op(p, OP_COMMA)) fail(p, "several subscripts are not supported");
    }
    want_op(p, OP_RBRACKET, "]");
    if (slice) {
        n->kind = N_SLICE;
        n->b = part[0];
        n->c = part[1];
        if (part[2]) add(p, n, part[2]);
    } else if (part[0]) n->b = part[0];
    else fail(p, "expected a subscript");
    return n;
}

static struct node *call(struct parser *p, struct node *f)
{
    struct node *n = node(p, N_CALL);
    n->a = f;
    call_args(p, n);
    return n;
}

static struct node *postfix(struct parser *p, struct node *n)
{
    int levels = 0;
    for (;; levels++) {
        if (levels > 100) fail(p, "too many subscripts and calls in a row");
        if (at_op(p, OP_DOT) || at_op(p, OP_LBRACKET)) n = subscript(p, n);
        else if (at_op(p, OP_LPAREN)) n = call(p, n);
        else return n;
    }
}

static const char *dotted_name(struct parser *p)
{
    const char *name = want_name(p);
    while (take_op(p, OP_DOT)) {
        char text[200];
        const char *more = want_name(p);
        int len = snprintf(text, sizeof text, "%.90s.%.90s", name, more);
        name = intern(p, text, (size_t)len);
    }
    return name;
}

static struct node *filter(struct parser *p, struct node *of)   /* behind "|" */
{
    struct node *n = node(p, N_FILTER);
    n->a = of;
    n->name = dotted_name(p);
    if (!lib_knows(n->name, false)) fail(p, "no filter named '%.60s'", n->name);
    if (at_op(p, OP_LPAREN)) call_args(p, n);
    return n;
}

static struct node *test(struct parser *p, struct node *of)     /* behind "is" */
{
    bool negated = take(p, "not");
    struct node *n = node(p, N_TEST);
    n->a = of;
    n->name = dotted_name(p);
    if (!lib_knows(n->name, true)) fail(p, "no test named '%.60s'", n->name);
    if (at_op(p, OP_LPAREN)) call_args(p, n);
    else if (p->tok->type == T_STRING || p->tok->type == T_INT || p->tok->type == T_FLOAT || at_op(p, OP_LBRACKET) || at_op(p, OP_LBRACE)
             || (p->tok->type == T_NAME && !at(p, "else") && !at(p, "or") && !at(p, "and"))) {
        if (at(p, "is")) fail(p, "you cannot chain tests with is");
        struct node *arg = node(p, N_ARG);
        arg->a = postfix(p, primary(p));
        add(p, n, arg);
    }
    if (!negated) return n;
    struct node *not = node(p, N_NOT);
    not->a = n;
    return not;
}

static struct node *filters(struct parser *p, struct node *n)
{
    for (int levels = 0;; levels++) {
        if (levels > 100) fail(p, "too many filters in a row");
        if (take_op(p, OP_PIPE)) n = filter(p, n);
        else if (take(p, "is")) n = test(p, n);
        else if (at_op(p, OP_LPAREN)) n = call(p, n);
        else return n;
    }
}

static struct node *unary(struct parser *p, bool with_filter)
{
    struct node *n;
    if (at_op(p, OP_SUB) || at_op(p, OP_ADD)) {
        deeper(p);
        n = node(p, at_op(p, OP_SUB) ? N_NEG : N_POS);
        p->tok++;
        n->a = unary(p, false);
        p->depth--;
    } else n = primary(p);
    n = postfix(p, n);
    return with_filter ? filters(p, n) : n;
}

static struct node *binary(struct parser *p, int op, struct node *a, struct node *b)
{
    struct node *n = node(p, N_BINARY);
    n->op = op;
    n->a = a;
    n->b = b;
    return n;
}

static struct node *power(struct parser *p)
{
    struct node *n = unary(p, true);
    while (take_op(p, OP_POW)) n = binary(p, OP_POW, n, unary(p, true));
    return n;
}

static struct node *product(struct parser *p)
{
    struct node *n = power(p);
    for (;;) {
        enum op op = p->tok->type == T_OP ? p->tok->op : OP_NONE;
        if (op != OP_MUL && op != OP_DIV && op != OP_FLOORDIV && op != OP_MOD) return n;
        p->tok++;
        n = binary(p, (int)op, n, power(p));
    }
}

static struct node *concat(struct parser *p)
{
    struct node *first = product(p);
    if (!at_op(p, OP_TILDE)) return first;
    struct node *n = node(p, N_CONCAT);
    add(p, n, first);
    while (take_op(p, OP_TILDE)) add(p, n, product(p));
    return n;
}

static struct node *sum(struct parser *p)
{
    struct node *n = concat(p);
    for (;;) {
        enum op op = p->tok->type == T_OP ? p->tok->op : OP_NONE;
        if (op != OP_ADD && op != OP_SUB) return n;
        p->tok++;
        n = binary(p, (int)op, n, concat(p));
    }
}

static struct node *comparison(struct parser *p)
{
    struct node *first = sum(p), *n = NULL;
    for (;;) {
        enum op op = OP_NONE;
        if (p->tok->type == T_OP && p->tok->op >= OP_EQ && p->tok->op <= OP_GE) op = p->tok->op;
        else if (at(p, "in")) op = OP_IN;
        else if (at(p, "not") && tok_is(p->tok + 1, "in")) { op = OP_NOT_IN; p->tok++; }
        if (op == OP_NONE) return n ? n : first;
        p->tok++;
        if (n == NULL) { n = node(p, N_COMPARE); n->a = first; }
        struct node *arg = node(p, N_ARG);
        arg->op = (int)op;
        arg->a = sum(p);
        add(p, n, arg);
    }
}

static struct node *negation(struct parser *p)
{
    if (!at(p, "not")) return comparison(p);
    deeper(p);
    struct node *n = node(p, N_NOT);
    p->tok++;
    n->a = negation(p);
    p->depth--;
    return n;
}

static struct node *both(struct parser *p, enum node_kind kind, struct node *a, struct node *b)
{
    struct node *n = node(p, kind);
    n->a = a;
    n->b = b;
    return n;
}

static struct node *conjunction(struct parser *p)
{
    struct node *n = negation(p);
    while (take(p, "and")) n = both(p, N_AND, n, negation(p));
    return n;
}

static struct node *disjunction(struct parser *p)
{
    struct node *n = conjunction(p);
    while (take(p, "or")) n = both(p, N_OR, n, conjunction(p));
    return n;
}

static struct node *conditional(struct parser *p, bool with_if)
{
    deeper(p);
    struct node *n = disjunction(p);
    while (with_if && take(p, "if")) {
        struct node *c = node(p, N_COND);
        c->a = n;
        c->b = disjunction(p);
        if (take(p, "else")) c->c = conditional(p, true);
        n = c;
    }
    p->depth--;
    return n;
}

static struct node *expression(struct parser *p) { return conditional(p, true); }

/* --- statements --- */

static struct node *body(struct parser *p, const char *ends);

static bool one_of(const struct token *t, const char *words)    /* "a|b" */
{
    if (t->type != T_NAME) return false;
    for (const char *w = words; *w;) {
        size_t n = strcspn(w, "|");
        if (t->v.s.n == n && memcmp(t->v.s.p, w, n) == 0) return true;
        w += n + (w[n] == '|');
    }
    return false;
}

static struct node *if_statement(struct parser *p)
{
    struct node *n = node(p, S_IF);
    for (;;) {
        add(p, n, tuple(p, false, false, false));
        want_block_end(p);
        add(p, n, body(p, "elif|else|endif"));
        if (take(p, "elif")) continue;
        if (take(p, "else")) {
            want_block_end(p);
            n->c = body(p, "endif");
        }
        if (!take(p, "endif")) fail(p, "expected endif");
        want_block_end(p);
        return n;
    }
}

static void check_target(struct parser *p, struct node *t, bool attributes)
{
    if (t->kind == N_NAME) return;
    if (t->kind == N_TUPLE && t->n) {
        for (int i = 0; i < t->n; i++) check_target(p, t->list[i], false);
        return;
    }
    if (attributes && t->kind == N_ATTR && t->a->kind == N_NAME) return;
    fail(p, "cannot assign to that");
}

static struct node *for_statement(struct parser *p)
{
    struct node *n = node(p, S_FOR);
    n->a = tuple(p, true, false, false);
    check_target(p, n->a, false);
    if (!take(p, "in")) fail(p, "expected 'in' in a for tag, found %.*s", shown_n(p), shown(p));
    n->b = tuple(p, false, false, false);
    struct node *condition = take(p, "if") ? expression(p) : NULL;
    n->op = take(p, "recursive");
    want_block_end(p);
    p->loops++;
    n->c = body(p, "endfor|else");
    p->loops--;
    struct node *otherwise = NULL;
    if (take(p, "else")) {
        want_block_end(p);
        otherwise = body(p, "endfor");
    }
    p->tok++;
    want_block_end(p);
    add(p, n, condition);
    add(p, n, otherwise);
    return n;
}

static struct node *filter_chain(struct parser *p)              /* a | b | c on what will be there: a NULL operand at the bottom */
{
    struct node *n = NULL;
    do n = filter(p, n); while (take_op(p, OP_PIPE));
    return n;
}

static struct node *set_statement(struct parser *p)
{
    struct node *n = node(p, S_SET);
    if (p->tok->type == T_NAME && p->tok[1].type == T_OP && p->tok[1].op == OP_DOT) {
        n->a = node(p, N_ATTR);
        n->a->a = node(p, N_NAME);
        n->a->a->name = want_name(p);
        note_name(p, n->a->a->name);
        p->tok++;
        n->a->name = want_name(p);
    } else {
        n->a = tuple(p, true, false, false);
        check_target(p, n->a, true);
    }
    if (take_op(p, OP_ASSIGN)) {
        n->b = tuple(p, false, true, false);
        want_block_end(p);
        return n;
    }
    n->kind = S_SET_BLOCK;
    if (n->a->kind == N_TUPLE) fail(p, "a set block needs one name");
    if (take_op(p, OP_PIPE)) n->b = filter_chain(p);
    want_block_end(p);
    n->c = body(p, "endset");
    p->tok++;
    want_block_end(p);
    return n;
}

static void parameters(struct parser *p, struct node *n)
{
    bool defaults = false;
    want_op(p, OP_LPAREN, "(");
    for (bool first = true; !at_op(p, OP_RPAREN); first = false) {
        if (!first) want_op(p, OP_COMMA, ", or )");
        if (at_op(p, OP_RPAREN)) break;
        struct node *arg = node(p, N_ARG);
        arg->name = want_name(p);
        if (take_op(p, OP_ASSIGN)) { arg->a = expression(p); defaults = true; }
        else if (defaults) fail(p, "a parameter without default after one with");
        add(p, n, arg);
    }
    want_op(p, OP_RPAREN, ")");
}

static struct node *macro_body(struct parser *p, struct node *n, const char *end)
{
    struct node *outer = p->macro;
    int loops = p->loops;
    p->macro = n;
    p->loops = 0;
    n->c = body(p, end);
    p->macro = outer;
    p->loops = loops;
    p->tok++;
    want_block_end(p);
    return n;
}

static struct node *statement(struct parser *p)                 /* behind {%, at a name */
{
    struct node *n;
    if (p->tok->type != T_NAME) fail(p, "expected a tag name, found %.*s", shown_n(p), shown(p));
    if (take(p, "if")) return if_statement(p);
    if (take(p, "for")) return for_statement(p);
    if (take(p, "set")) return set_statement(p);
    if (take(p, "macro")) {
        n = node(p, S_MACRO);
        n->name = want_name(p);
        parameters(p, n);
        want_block_end(p);
        return macro_body(p, n, "endmacro");
    }
    if (take(p, "call")) {
        n = node(p, S_CALL);
        if (at_op(p, OP_LPAREN)) parameters(p, n);
        n->a = unary(p, true);
        if (n->a->kind != N_CALL) fail(p, "expected a call");
        want_block_end(p);
        return macro_body(p, n, "endcall");
    }
    if (take(p, "filter")) {
        n = node(p, S_FILTER);
        n->b = filter_chain(p);
        want_block_end(p);
        n->c = body(p, "endfilter");
        p->tok++;
        want_block_end(p);
        return n;
    }
    if (take(p, "with")) {
        n = node(p, S_WITH);
        while (p->tok->type != T_BLOCK_END) {
            if (n->n) want_op(p, OP_COMMA, ",");
            struct node *target = primary(p);
            check_target(p, target, false);
            want_op(p, OP_ASSIGN, "=");
            add(p, n, target);
            add(p, n, expression(p));
        }
        want_block_end(p);
        n->c = body(p, "endwith");
        p->tok++;
        want_block_end(p);
        return n;
    }
    if (take(p, "block")) {                                     /* nothing extends a chat template: a block is its content */
        n = node(p, S_WITH);
        const char *name = want_name(p);
        want_block_end(p);
        n->c = body(p, "endblock");
        p->tok++;
        if (p->tok->type == T_NAME && want_name(p) != name) fail(p, "endblock names another block");
        want_block_end(p);
        return n;
    }
    if (take(p, "generation")) {
        n = node(p, S_GENERATION);
        want_block_end(p);
        p->t->generation = true;
        n->c = body(p, "endgeneration");
        p->tok++;
        want_block_end(p);
        return n;
    }
    if (at(p, "break") || at(p, "continue")) {
        n = node(p, at(p, "break") ? S_BREAK : S_CONTINUE);
        if (p->loops == 0) fail(p, "%.*s outside a loop", shown_n(p), shown(p));
        p->tok++;
        want_block_end(p);
        return n;
    }
    static const char *const refused[] = { "include", "import", "from", "extends", "do", "autoescape", "trans", "debug" };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (at(p, refused[i])) fail(p, "the %s tag is not supported in a chat template", refused[i]);
    fail(p, "unknown tag '%.*s'", shown_n(p), shown(p));
}

/* Everything up to {% one of ends: p is left at that name. ends NULL: up to the end of the template. */
static struct node *body(struct parser *p, const char *ends)
{
    struct node *n = node(p, S_BODY);
    int line = p->tok->line;
    deeper(p);
    for (;;) {
        switch (p->tok->type) {
        case T_DATA: {
            struct node *text = node(p, S_TEXT);
            text->value = p->tok->v;
            p->tok++;
            add(p, n, text);
            break;
        }
        case T_VAR_BEGIN: {
            struct node *out = node(p, S_OUTPUT);
            p->tok++;
            out->a = tuple(p, false, true, false);
            if (p->tok->type != T_VAR_END) fail(p, "expected }}, found %.*s", shown_n(p), shown(p));
            p->tok++;
            add(p, n, out);
            break;
        }
        case T_BLOCK_BEGIN:
            p->tok++;
            if (ends && one_of(p->tok, ends)) { p->depth--; return n; }
            if (one_of(p->tok, "elif|else|endif|endfor|endset|endmacro|endcall|endfilter|endwith|endgeneration|endblock"))
                fail(p, "unexpected tag '%.*s'", shown_n(p), shown(p));
            add(p, n, statement(p));
            break;
        case T_EOF:
            if (ends) {
                p->tok->line = line;
                fail(p, "template ends inside a block; expected %.*s for the one begun here", (int)strcspn(ends, "|"), strrchr(ends, '|') ? strrchr(ends, '|') + 1 : ends);
            }
            p->depth--;
            return n;
        default: fail(p, "unexpected %.*s", shown_n(p), shown(p));
        }
    }
}

static int parse(struct parser *p)
{
    if (setjmp(p->fault)) return p->rc;
    p->t->root = body(p, NULL);
    return OK;
}

int jinja_compile(struct jinja **out, const char *source, size_t len, struct error *err)
{
    size_t bad, n;
    *out = NULL;
    if (len > 4u << 20) return error_set(err, E_LIMIT, "template of %zu bytes, at most 4 MiB are taken", len);
    if (!utf8_valid(source, len, &bad)) return error_set(err, E_INVALID, "template is not valid UTF-8 at byte %zu", bad);
    if (memchr(source, '\0', len)) return error_set(err, E_INVALID, "template has a NUL byte");
    struct jinja *t = xcalloc(1, sizeof *t);
    struct parser *p = xcalloc(1, sizeof *p);
    p->t = t;
    p->err = err;
    int rc = jinja_lex(&t->pool, source, len, &p->tok, &n, err);
    if (rc == OK) rc = parse(p);
    free(p);
    t->hash = 14695981039346656037u;
    for (size_t i = 0; i < len; i++) t->hash = (t->hash ^ (unsigned char)source[i]) * 1099511628211u;
    if (rc != OK) { jinja_free(t); return rc; }
    *out = t;
    return OK;
}

void jinja_free(struct jinja *t)
{
    if (t == NULL) return;
    pool_release(&t->pool);
    free(t);
}

bool jinja_marks_generation(const struct jinja *t) { return t->generation; }
