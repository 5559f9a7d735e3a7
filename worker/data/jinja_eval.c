/* jinja_eval.c - walking the tree.
 *
 * Names resolve through a chain of scopes as Jinja's compiler arranges them: a loop body, a macro, a with block and the template itself
 * have one each, an if has none; a loop body's is fresh in every round, so {% set %} there is forgotten and namespace() exists. A fault
 * leaves by longjmp: all memory is the machine's pool. Steps, memory, output and depth are counted against fixed bounds. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/jinja_ast.h"

#define DEPTH_MAX 900                   /* nested nodes, calls included: what an 8 MiB stack holds even under sanitizers */

/* A conversation of a thousand messages takes about a hundred thousand steps. */
const struct jinja_limits jinja_limits_default = { 6000000, (size_t)1 << 30, (size_t)256 << 20 };

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

_Noreturn void vm_fail(struct vm *vm, const char *fmt, ...)
{
    char text[900];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t bad;
    if (!utf8_valid(text, strlen(text), &bad)) text[bad] = '\0';       /* cut in the middle of a character */
    (void)error_set(&vm->err, E_INVALID, "line %d: %s", vm->line, text);
    longjmp(vm->fault, 1);
}

static _Noreturn void over(struct vm *vm, const char *what)
{
    (void)error_set(&vm->err, E_LIMIT, "line %d: template %s", vm->line, what);
    longjmp(vm->fault, 1);
}

static void pool_full(void *arg) { over(arg, "uses too much memory"); }

void vm_step(struct vm *vm, int64_t n)
{
    vm->steps += n;
    if (vm->steps > vm->steps_max) over(vm, "runs too long; does it loop for ever?");
}

void text_add(struct vm *vm, struct text *t, const char *p, size_t n)
{
    if (n > vm->out_max || t->n > vm->out_max - n) over(vm, "makes too long a text");
    if (t->cap - t->n < n + 1) {
        size_t cap = t->cap ? t->cap * 2 : 64;
        while (cap - t->n < n + 1) cap *= 2;
        char *fresh = pool_alloc(&vm->pool, cap);
        if (t->n) memcpy(fresh, t->p, t->n);
        t->p = fresh;
        t->cap = cap;
    }
    if (n) memcpy(t->p + t->n, p, n);
    t->n += n;
    t->p[t->n] = '\0';
}

static void enter(struct vm *vm, const struct node *n)
{
    vm_step(vm, 1);
    vm->line = n->line;
    if (++vm->depth > DEPTH_MAX) over(vm, "is nested too deep or calls itself without end");
}

/* --- names --- */

static struct scope *scope_in(struct vm *vm, struct scope *up)
{
    struct scope *s = pool_alloc(&vm->pool, sizeof *s);
    s->up = up;
    return s;
}

static void assign(struct vm *vm, struct scope *s, const char *name, struct value v)
{
    for (struct bind *b = s->binds; b; b = b->next)
        if (b->name == name || strcmp(b->name, name) == 0) { b->v = v; return; }
    struct bind *b = pool_alloc(&vm->pool, sizeof *b);
    *b = (struct bind){ name, v, s->binds };
    s->binds = b;
}

static struct value lookup(struct vm *vm, const char *name)
{
    int64_t looked = 0;
    for (struct scope *s = vm->scope; s; s = s->up)
        for (struct bind *b = s->binds; b; b = b->next, looked++)
            if (b->name == name || strcmp(b->name, name) == 0) return b->v;
    vm_step(vm, looked / 8);
    struct value *found = dict_find(vm->context.d, name);
    if (found) return *found;
    struct value v = lib_global(vm, name);
    return v.type != V_UNDEFINED ? v : v_undefined_because(vm, "'%.80s' is undefined", name);
}

static void assign_target(struct vm *vm, const struct node *target, struct value v)
{
    if (target->kind == N_NAME) { assign(vm, vm->scope, target->name, v); return; }
    if (target->kind == N_ATTR) {
        struct value ns = lookup(vm, target->a->name);
        if (ns.type != V_OTHER || ns.tag != O_NAMESPACE) vm_fail(vm, "cannot assign attribute on non-namespace object");
        if (target->name[0] == '_') vm_fail(vm, "Chat templates cannot store underscore-prefixed attributes on a namespace");
        vm_step(vm, (int64_t)(((struct dict *)ns.o)->n / 8));
        dict_set(&vm->pool, ns.o, v_cstr(target->name), v);
        return;
    }
    struct list *l = py_iter(vm, v);
    vm_need_defined(vm, v);
    if (l->n != (size_t)target->n) vm_fail(vm, l->n < (size_t)target->n ? "not enough values to unpack (expected %d, got %zu)" : "too many values to unpack (expected %d, got %zu)", target->n, l->n);
    for (int i = 0; i < target->n; i++) assign_target(vm, target->list[i], l->v[i]);
}

/* --- expressions --- */

static struct value eval(struct vm *vm, const struct node *n);
static enum flow run(struct vm *vm, const struct node *n);
static struct value filter_on(struct vm *vm, const struct node *n, struct value bottom);

static struct args arguments(struct vm *vm, const struct node *n)
{
    struct args a = { v_list(&vm->pool).l, v_dict(&vm->pool).d };
    for (int i = 0; i < n->n; i++) {
        const struct node *arg = n->list[i];
        struct value v = eval(vm, arg->a);
        switch (arg->op) {
        case ARG_KEYWORD: dict_set(&vm->pool, a.named, v_cstr(arg->name), v); break;
        case ARG_STAR: {
            struct list *l = py_iter(vm, v);
            vm_step(vm, (int64_t)l->n);
            for (size_t k = 0; k < l->n; k++) list_add(&vm->pool, a.plain, l->v[k]);
            break;
        }
        case ARG_STARS:
            if (v.type != V_DICT) vm_fail(vm, "argument after ** must be a mapping, not %s", py_type(v));
            for (size_t k = 0; k < v.d->n; k++) {
                if (v.d->k[k].type != V_STR) vm_fail(vm, "keywords must be strings");
                vm_step(vm, (int64_t)(a.named->n / 8 + 1));
                dict_set(&vm->pool, a.named, v.d->k[k], v.d->v[k]);
            }
            break;
        default: list_add(&vm->pool, a.plain, v); break;
        }
    }
    return a;
}

static struct value captured(struct vm *vm, const struct node *body)
{
    struct text *outer = vm->out, t = { 0 };
    vm->out = &t;
    (void)run(vm, body);
    vm->out = outer;
    return v_str(t.p ? t.p : "", t.n);
}

static struct value call_macro(struct vm *vm, const struct macro *m, const struct args *a)
{
    const struct node *n = m->node;
    struct scope *outer = vm->scope;
    const char *name = n->name ? n->name : "caller";
    vm->scope = scope_in(vm, m->scope);
    struct value extra = v_list(&vm->pool), named = v_dict(&vm->pool), caller = v_undefined();
    extra.tag = 1;
    for (size_t k = 0; k < a->named->n; k++) {
        bool known = false;
        for (int i = 0; i < n->n; i++) {
            if (!value_is_str(a->named->k[k], n->list[i]->name)) continue;
            if ((size_t)i < a->plain->n) vm_fail(vm, "macro '%.60s' got two values for '%.60s'", name, n->list[i]->name);
            known = true;
        }
        if (known) continue;
        if (value_is_str(a->named->k[k], "caller") && n->uses_caller) { caller = a->named->v[k]; continue; }
        if (!n->uses_kwargs) vm_fail(vm, "macro '%.60s' takes no keyword argument '%.60s'", name, a->named->k[k].s.p);
        dict_set(&vm->pool, named.d, a->named->k[k], a->named->v[k]);
    }
    if (a->plain->n > (size_t)n->n && !n->uses_varargs) vm_fail(vm, "macro '%.60s' takes not more than %d argument(s)", name, n->n);
    for (size_t k = (size_t)n->n; k < a->plain->n; k++) list_add(&vm->pool, extra.l, a->plain->v[k]);
    for (int i = 0; i < n->n; i++) {
        struct value *found = dict_find(a->named, n->list[i]->name), v;
        if ((size_t)i < a->plain->n) v = a->plain->v[i];
        else if (found) v = *found;
        else if (n->list[i]->a) v = eval(vm, n->list[i]->a);
        else v = v_undefined_because(vm, "parameter '%.60s' was not provided", n->list[i]->name);
        assign(vm, vm->scope, n->list[i]->name, v);
    }
    if (n->uses_caller) assign(vm, vm->scope, "caller", caller.type == V_UNDEFINED ? v_undefined_because(vm, "No caller defined") : caller);
    if (n->uses_varargs) assign(vm, vm->scope, "varargs", extra);
    if (n->uses_kwargs) assign(vm, vm->scope, "kwargs", named);
    struct value out = captured(vm, n->c);
    vm->scope = outer;
    return out;
}

static void run_loop(struct vm *vm, const struct node *n, struct list *items, int64_t depth0, struct scope *scope);

struct value vm_call(struct vm *vm, struct value f, const struct args *a)
{
    vm_need_defined(vm, f);
    if (f.type != V_OTHER) vm_fail(vm, "'%s' object is not callable", py_type(f));
    switch (f.tag) {
    case O_MACRO: return call_macro(vm, f.o, a);
    case O_METHOD: return lib_method(vm, f.o, a);
    case O_FUNCTION: return lib_function(vm, ((struct function *)f.o)->name, a);
    case O_JOINER: {
        struct value *j = f.o, first = j[1];
        j[1] = v_bool(true);
        return first.tag ? j[0] : v_cstr("");
    }
    case O_LOOP: {                                              /* {% for … recursive %}: loop(children) */
        struct loop *l = f.o;
        struct text *outer = vm->out, t = { 0 };
        if (!l->node->op) vm_fail(vm, "the loop must have the 'recursive' marker to be called recursively");
        vm->out = &t;
        run_loop(vm, l->node, py_iter(vm, arg_of(a, 0, NULL)), l->depth0 + 1, l->scope);
        vm->out = outer;
        return v_str(t.p ? t.p : "", t.n);
    }
    default: vm_fail(vm, "'%s' object is not callable", py_type(f));
    }
}

static struct value compare(struct vm *vm, const struct node *n)
{
    struct value left = eval(vm, n->a);
    for (int i = 0; i < n->n; i++) {
        struct value right = eval(vm, n->list[i]->a);
        bool ok;
        switch (n->list[i]->op) {
        case OP_EQ: ok = py_equal(vm, left, right); break;
        case OP_NE: ok = !py_equal(vm, left, right); break;
        case OP_IN: ok = py_in(vm, left, right); break;
        case OP_NOT_IN: ok = !py_in(vm, left, right); break;
        case OP_LT: ok = py_order(vm, left, right) < 0; break;
        case OP_GT: ok = py_order(vm, left, right) == 1; break;
        case OP_LE: ok = py_order(vm, left, right) <= 0; break;
        default: { int c = py_order(vm, left, right); ok = c == 0 || c == 1; } break;
        }
        if (!ok) return v_bool(false);
        left = right;
    }
    return v_bool(true);
}

static struct value optional(struct vm *vm, const struct node *n) { return n ? eval(vm, n) : v_none(); }

static struct value eval_inner(struct vm *vm, const struct node *n)
{
    struct value v, out;
    switch (n->kind) {
    case N_CONST: return n->value;
    case N_NAME: return lookup(vm, n->name);
    case N_ATTR: return py_attr(vm, eval(vm, n->a), n->name);
    case N_ITEM: v = eval(vm, n->a); return py_item(vm, v, eval(vm, n->b));
    case N_SLICE: {
        v = eval(vm, n->a);
        struct value from = optional(vm, n->b), to = optional(vm, n->c), step = optional(vm, n->n ? n->list[0] : NULL);
        return py_slice(vm, v, from, to, step);
    }
    case N_CALL: {
        v = eval(vm, n->a);
        struct args a = arguments(vm, n);
        vm->line = n->line;
        return vm_call(vm, v, &a);
    }
    case N_FILTER: return filter_on(vm, n, v_undefined());
    case N_TEST: {
        v = eval(vm, n->a);
        struct args a = arguments(vm, n);
        return v_bool(lib_test(vm, n->name, v, &a));
    }
    case N_NOT: return v_bool(!py_true(eval(vm, n->a)));
    case N_NEG: case N_POS: return py_negate(vm, eval(vm, n->a), n->kind == N_POS);
    case N_BINARY: v = eval(vm, n->a); out = eval(vm, n->b); vm->line = n->line; return py_binary(vm, (enum op)n->op, v, out);
    case N_COMPARE: return compare(vm, n);
    case N_AND: v = eval(vm, n->a); return py_true(v) ? eval(vm, n->b) : v;
    case N_OR: v = eval(vm, n->a); return py_true(v) ? v : eval(vm, n->b);
    case N_COND:
        if (py_true(eval(vm, n->b))) return eval(vm, n->a);
        return n->c ? eval(vm, n->c) : v_undefined_because(vm, "the inline if-expression evaluated to false and no else section was defined.");
    case N_CONCAT: {
        struct text t = { 0 };
        for (int i = 0; i < n->n; i++) py_str(vm, &t, eval(vm, n->list[i]));
        return v_str(t.p ? t.p : "", t.n);
    }
    case N_LIST: case N_TUPLE:
        out = v_list(&vm->pool);
        out.tag = n->kind == N_TUPLE;
        for (int i = 0; i < n->n; i++) list_add(&vm->pool, out.l, eval(vm, n->list[i]));
        return out;
    case N_DICT:
        out = v_dict(&vm->pool);
        for (int i = 0; i + 1 < n->n; i += 2) {
            v = eval(vm, n->list[i]);
            if (v.type == V_LIST || v.type == V_DICT) vm_fail(vm, "unhashable type: '%s'", py_type(v));
            vm_step(vm, (int64_t)(out.d->n / 8));
            dict_set(&vm->pool, out.d, v, eval(vm, n->list[i + 1]));
        }
        return out;
    default: vm_fail(vm, "unexpected expression");
    }
}

static struct value eval(struct vm *vm, const struct node *n)
{
    enter(vm, n);
    struct value v = eval_inner(vm, n);
    vm->depth--;
    return v;
}

static struct value filter_on(struct vm *vm, const struct node *n, struct value bottom)
{
    struct value v = n->a == NULL ? bottom : n->a->kind == N_FILTER ? filter_on(vm, n->a, bottom) : eval(vm, n->a);
    struct args a = arguments(vm, n);
    vm->line = n->line;
    return lib_filter(vm, n->name, v, &a);
}

/* --- statements --- */

static void run_loop(struct vm *vm, const struct node *n, struct list *items, int64_t depth0, struct scope *scope)
{
    struct scope *outer = vm->scope;
    struct loop *l = pool_alloc(&vm->pool, sizeof *l);
    if (n->list[0]) {                                           /* for … if: what fails is not counted by loop */
        struct value kept = v_list(&vm->pool);
        for (size_t i = 0; i < items->n; i++) {
            vm->scope = scope_in(vm, scope);
            assign_target(vm, n->a, items->v[i]);
            if (!py_true(eval(vm, n->list[0]))) continue;
            struct value item = items->v[i];
            if (n->a->kind == N_TUPLE && item.type == V_LIST) item.tag = LIST_TUPLE;     /* the filter hands on what it unpacked */
            list_add(&vm->pool, kept.l, item);
        }
        items = kept.l;
    }
    *l = (struct loop){ .node = n, .scope = scope, .items = items, .depth0 = depth0 };
    size_t count = items->n;
    for (; l->i < count; l->i++) {
        vm_step(vm, 1);
        vm->scope = scope_in(vm, scope);
        assign(vm, vm->scope, "loop", v_other(O_LOOP, l));
        assign_target(vm, n->a, items->v[l->i]);
        if (run(vm, n->c) == FLOW_BREAK) break;
    }
    if (count == 0 && n->list[1]) {
        vm->scope = scope_in(vm, scope);
        (void)run(vm, n->list[1]);
    }
    vm->scope = outer;
}

static enum flow run_inner(struct vm *vm, const struct node *n)
{
    struct scope *outer = vm->scope;
    enum flow flow;
    switch (n->kind) {
    case S_BODY:
        for (int i = 0; i < n->n; i++)
            if ((flow = run(vm, n->list[i])) != FLOW_ON) return flow;
        return FLOW_ON;
    case S_TEXT: text_add(vm, vm->out, n->value.s.p, n->value.s.n); return FLOW_ON;
    case S_OUTPUT: py_str(vm, vm->out, eval(vm, n->a)); return FLOW_ON;
    case S_IF:
        for (int i = 0; i + 1 < n->n; i += 2)
            if (py_true(eval(vm, n->list[i]))) return run(vm, n->list[i + 1]);
        return n->c ? run(vm, n->c) : FLOW_ON;
    case S_FOR: {
        struct value v = eval(vm, n->b);
        run_loop(vm, n, py_iter(vm, v), 0, vm->scope);
        return FLOW_ON;
    }
    case S_SET: assign_target(vm, n->a, eval(vm, n->b)); return FLOW_ON;
    case S_SET_BLOCK: {
        vm->scope = scope_in(vm, outer);
        struct value v = captured(vm, n->c);
        vm->scope = outer;
        assign_target(vm, n->a, n->b ? filter_on(vm, n->b, v) : v);
        return FLOW_ON;
    }
    case S_MACRO: {
        struct macro *m = pool_alloc(&vm->pool, sizeof *m);
        *m = (struct macro){ n, vm->scope };
        assign(vm, vm->scope, n->name, v_other(O_MACRO, m));
        return FLOW_ON;
    }
    case S_CALL: {
        struct macro *m = pool_alloc(&vm->pool, sizeof *m);
        *m = (struct macro){ n, vm->scope };
        struct value f = eval(vm, n->a->a);
        struct args a = arguments(vm, n->a);
        dict_set(&vm->pool, a.named, v_cstr("caller"), v_other(O_MACRO, m));
        py_str(vm, vm->out, vm_call(vm, f, &a));
        return FLOW_ON;
    }
    case S_FILTER: {
        vm->scope = scope_in(vm, outer);
        struct value v = captured(vm, n->c);
        vm->scope = outer;
        py_str(vm, vm->out, filter_on(vm, n->b, v));
        return FLOW_ON;
    }
    case S_WITH: {
        struct scope *inner = scope_in(vm, outer);
        struct value values = v_list(&vm->pool);
        for (int i = 0; i + 1 < n->n; i += 2) list_add(&vm->pool, values.l, eval(vm, n->list[i + 1]));     /* all in the outer scope */
        vm->scope = inner;
        for (int i = 0; i + 1 < n->n; i += 2) assign_target(vm, n->list[i], values.l->v[i / 2]);
        flow = run(vm, n->c);
        vm->scope = outer;
        return flow;
    }
    case S_GENERATION: {
        size_t from = vm->out->n;
        vm->scope = scope_in(vm, outer);
        (void)run(vm, n->c);
        vm->scope = outer;
        if (vm->out == &vm->root) {
            struct rendered *r = vm->result;
            r->generated = xrealloc(r->generated, (r->n_generated + 1) * sizeof *r->generated);
            r->generated[r->n_generated++] = (struct byte_span){ from, vm->out->n };
        }
        return FLOW_ON;
    }
    case S_BREAK: return FLOW_BREAK;
    case S_CONTINUE: return FLOW_CONTINUE;
    default: vm_fail(vm, "unexpected statement");
    }
}

static enum flow run(struct vm *vm, const struct node *n)
{
    enter(vm, n);
    enum flow flow = run_inner(vm, n);
    vm->depth--;
    return flow;
}

static int render(struct vm *vm)
{
    if (setjmp(vm->fault)) return vm->err.code;
    vm->scope = scope_in(vm, NULL);
    (void)run(vm, vm->t->root);
    return OK;
}

int jinja_render(const struct jinja *t, struct value context, int64_t now, const struct jinja_limits *limits, struct rendered *out, struct error *err)
{
    struct vm *vm = xcalloc(1, sizeof *vm);
    vm->t = t;
    vm->now = now;
    vm->steps_max = limits->steps;
    vm->out_max = limits->output;
    vm->pool = (struct pool){ .limit = limits->memory, .full = pool_full, .arg = vm };
    vm->out = &vm->root;
    vm->result = out;
    vm->context = context;
    out->text.n = 0;
    out->n_generated = 0;
    int rc = render(vm);
    if (rc == OK) buf_add(&out->text, vm->root.p ? vm->root.p : "", vm->root.n);
    else if (err) *err = vm->err;
    pool_release(&vm->pool);
    buf_release(&vm->scratch);
    free(vm);
    return rc;
}
