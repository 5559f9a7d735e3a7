/* jinja_ops.c - Python's operators, as the templates expect them: what is an error there is one here. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/jinja_ast.h"

const char *py_type(struct value v)
{
    static const char *const names[] = { "Undefined", "NoneType", "bool", "int", "float", "int", "str", "list", "dict" };
    static const char *const others[] = { "Namespace", "Macro", "LoopContext", "method", "function", "Cycler", "Joiner" };
    if (v.type == V_OTHER) return others[v.tag];
    static const char *const lists[] = { "list", "tuple", "generator", "dict_items", "dict_keys", "dict_values", "range" };
    if (v.type == V_LIST) return lists[v.tag];
    return names[v.type];
}

struct value v_other(enum other_kind kind, void *o) { return (struct value){ .type = V_OTHER, .tag = (int)kind, .o = o }; }

struct value v_undefined_because(struct vm *vm, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return (struct value){ .type = V_UNDEFINED, .s = { pool_strndup(&vm->pool, text, strlen(text)), strlen(text) } };
}

void vm_need_defined(struct vm *vm, struct value v)
{
    if (v.type == V_UNDEFINED) vm_fail(vm, "%s", v.s.p ? v.s.p : "value is undefined");
}

bool py_true(struct value v)
{
    switch (v.type) {
    case V_UNDEFINED: case V_NONE: return false;
    case V_BOOL: return v.tag;
    case V_INT: return v.i != 0;
    case V_FLOAT: return v.f != 0.0;
    case V_STR: return v.s.n > 0;
    case V_LIST: return v.tag == LIST_ITERATOR || v.l->n > 0;
    case V_DICT: return v.d->n > 0;
    default: return true;
    }
}

static bool is_int(struct value v) { return v.type == V_INT || v.type == V_BOOL; }
static int64_t int_of(struct value v) { return v.type == V_BOOL ? v.tag : v.i; }
static bool is_number(struct value v) { return is_int(v) || v.type == V_FLOAT || v.type == V_BIG; }
static double float_of(struct value v) { return v.type == V_FLOAT ? v.f : v.type == V_BIG ? strtod(v.s.p, NULL) : (double)int_of(v); }

int64_t py_index(struct vm *vm, struct value v, const char *what)
{
    vm_need_defined(vm, v);
    if (!is_int(v)) vm_fail(vm, "%s: expected an integer, found '%s'", what, py_type(v));
    return int_of(v);
}

bool py_equal(struct vm *vm, struct value a, struct value b)
{
    vm_step(vm, 1);
    if (is_number(a) && is_number(b)) {
        if (is_int(a) && is_int(b)) return int_of(a) == int_of(b);
        if (a.type == V_BIG && b.type == V_BIG) return a.s.n == b.s.n && memcmp(a.s.p, b.s.p, a.s.n) == 0;
        return float_of(a) == float_of(b);
    }
    if (a.type != b.type) return false;
    switch (a.type) {
    case V_UNDEFINED: case V_NONE: return true;
    case V_STR: return a.s.n == b.s.n && (a.s.n == 0 || memcmp(a.s.p, b.s.p, a.s.n) == 0);
    case V_LIST:
        if (a.tag == LIST_ITERATOR || b.tag == LIST_ITERATOR) return a.l == b.l;
        if (a.tag != b.tag || a.l->n != b.l->n) return false;
        if (++vm->depth > 900) vm_fail(vm, "comparison is nested too deep");
        for (size_t i = 0; i < a.l->n; i++)
            if (!py_equal(vm, a.l->v[i], b.l->v[i])) { vm->depth--; return false; }
        vm->depth--;
        return true;
    case V_DICT:
        if (a.d->n != b.d->n) return false;
        if (++vm->depth > 900) vm_fail(vm, "comparison is nested too deep");
        for (size_t i = 0; i < a.d->n; i++) {
            bool same = false;
            for (size_t k = 0; k < b.d->n && !same; k++)
                if (py_equal(vm, a.d->k[i], b.d->k[k])) {
                    if (!py_equal(vm, a.d->v[i], b.d->v[k])) break;
                    same = true;
                }
            if (!same) { vm->depth--; return false; }
        }
        vm->depth--;
        return true;
    default: return a.o == b.o;
    }
}

int py_order(struct vm *vm, struct value a, struct value b)
{
    vm_step(vm, 1);
    vm_need_defined(vm, a);
    vm_need_defined(vm, b);
    if (is_int(a) && is_int(b)) return int_of(a) < int_of(b) ? -1 : int_of(a) > int_of(b);
    if (is_number(a) && is_number(b)) {
        double x = float_of(a), y = float_of(b);
        return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;         /* 2: NaN, neither less nor greater */
    }
    if (a.type == V_STR && b.type == V_STR) {                   /* UTF-8 sorts as code points do */
        size_t n = a.s.n < b.s.n ? a.s.n : b.s.n;
        int c = n ? memcmp(a.s.p, b.s.p, n) : 0;
        return c ? (c < 0 ? -1 : 1) : a.s.n < b.s.n ? -1 : a.s.n > b.s.n;
    }
    if (a.type == V_LIST && b.type == V_LIST && a.tag == b.tag && a.tag <= LIST_TUPLE) {
        for (size_t i = 0; i < a.l->n && i < b.l->n; i++)
            if (!py_equal(vm, a.l->v[i], b.l->v[i])) return py_order(vm, a.l->v[i], b.l->v[i]);
        return a.l->n < b.l->n ? -1 : a.l->n > b.l->n;
    }
    vm_fail(vm, "'<' not supported between instances of '%s' and '%s'", py_type(a), py_type(b));
}

bool py_in(struct vm *vm, struct value item, struct value in)
{
    vm_step(vm, 1);
    switch (in.type) {
    case V_STR:
        if (item.type != V_STR) vm_fail(vm, "'in <string>' requires string as left operand, not %s", py_type(item));
        vm_step(vm, (int64_t)(in.s.n / 64));
        return item.s.n == 0 || memmem(in.s.p, in.s.n, item.s.p, item.s.n) != NULL;
    case V_LIST:
        if (in.tag == LIST_ITERATOR && in.l->cap == ITERATOR_FAILS) (void)py_iter(vm, in);
        for (size_t i = 0; i < in.l->n; i++)
            if (py_equal(vm, item, in.l->v[i])) return true;
        if (in.tag == LIST_ITERATOR) in.l->n = 0;
        return false;
    case V_DICT:
        if (item.type == V_LIST || item.type == V_DICT) vm_fail(vm, "unhashable type: '%s'", py_type(item));
        for (size_t i = 0; i < in.d->n; i++)
            if (py_equal(vm, item, in.d->k[i])) return true;
        return false;
    case V_UNDEFINED: return false;
    default: vm_fail(vm, "argument of type '%s' is not iterable", py_type(in));
    }
}

static bool repeats(struct value v) { return v.type == V_STR || (v.type == V_LIST && v.tag <= LIST_TUPLE); }

static struct value repeat(struct vm *vm, struct value v, int64_t times)
{
    if (times < 0) times = 0;
    size_t n = v.type == V_STR ? v.s.n : v.l->n;
    if (n && (uint64_t)times > (uint64_t)vm->out_max / n) vm_fail(vm, "repetition makes too large a value");
    vm_step(vm, (int64_t)(n * (size_t)times / 64));
    if (v.type == V_STR) {
        char *p = pool_alloc(&vm->pool, n * (size_t)times + 1);
        for (int64_t i = 0; i < times; i++) memcpy(p + (size_t)i * n, v.s.p, n);
        return v_str(p, n * (size_t)times);
    }
    struct value out = v_list(&vm->pool);
    out.tag = v.tag;
    for (int64_t i = 0; i < times; i++)
        for (size_t k = 0; k < n; k++) { vm_step(vm, 1); list_add(&vm->pool, out.l, v.l->v[k]); }
    return out;
}

static struct value add(struct vm *vm, struct value a, struct value b)
{
    if (a.type == V_STR && b.type == V_STR) {
        bool safe = a.tag || b.tag;                             /* Markup + str escapes the str */
        if (safe && !a.tag) a = str_escape(vm, a);
        if (safe && !b.tag) b = str_escape(vm, b);
        vm_step(vm, (int64_t)((a.s.n + b.s.n) / 64));
        char *p = pool_alloc(&vm->pool, a.s.n + b.s.n + 1);
        if (a.s.n) memcpy(p, a.s.p, a.s.n);
        if (b.s.n) memcpy(p + a.s.n, b.s.p, b.s.n);
        struct value out = v_str(p, a.s.n + b.s.n);
        out.tag = safe;
        return out;
    }
    if (a.type == V_LIST && b.type == V_LIST && a.tag == b.tag && a.tag <= LIST_TUPLE) {
        struct value out = v_list(&vm->pool);
        out.tag = a.tag;
        vm_step(vm, (int64_t)(a.l->n + b.l->n));
        for (size_t i = 0; i < a.l->n; i++) list_add(&vm->pool, out.l, a.l->v[i]);
        for (size_t i = 0; i < b.l->n; i++) list_add(&vm->pool, out.l, b.l->v[i]);
        return out;
    }
    if (a.type == V_STR) vm_fail(vm, "can only concatenate str (not \"%s\") to str", py_type(b));
    if (a.type == V_LIST && a.tag <= LIST_TUPLE) vm_fail(vm, "can only concatenate %s (not \"%s\") to %s", py_type(a), py_type(b), py_type(a));
    vm_fail(vm, "unsupported operand type(s) for +: '%s' and '%s'", py_type(a), py_type(b));
}

static struct value int_power(struct vm *vm, int64_t a, int64_t b)
{
    int64_t r = 1;
    if (b < 0) return (struct value){ .type = V_FLOAT, .f = pow((double)a, (double)b) };
    if (b > 64 && a != 0 && a != 1 && a != -1) vm_fail(vm, "integer is too large");
    for (int64_t i = 0, n = b > 64 ? 64 + b % 2 : b; i < n; i++)
        if (__builtin_mul_overflow(r, a, &r)) vm_fail(vm, "integer is too large");
    return v_int(r);
}

struct value py_binary(struct vm *vm, enum op op, struct value a, struct value b)
{
    static const char *const signs[] = { "", "+", "-", "*", "/", "//", "%", "**" };
    vm_step(vm, 1);
    vm_need_defined(vm, a);
    if (!(op == OP_MOD && a.type == V_STR)) vm_need_defined(vm, b);
    if (op == OP_MOD && a.type == V_STR) return str_format(vm, a, b);
    if (op == OP_MUL && is_int(b) && repeats(a)) return repeat(vm, a, int_of(b));
    if (op == OP_MUL && is_int(a) && repeats(b)) return repeat(vm, b, int_of(a));
    if (!is_number(a) || !is_number(b)) {
        if (op == OP_ADD) return add(vm, a, b);
        vm_fail(vm, "unsupported operand type(s) for %s: '%s' and '%s'", signs[op], py_type(a), py_type(b));
    }
    if (a.type == V_BIG || b.type == V_BIG) vm_fail(vm, "integer is too large for arithmetic");
    if (is_int(a) && is_int(b) && op != OP_DIV) {
        int64_t x = int_of(a), y = int_of(b), r;
        switch (op) {
        case OP_ADD: if (__builtin_add_overflow(x, y, &r)) vm_fail(vm, "integer is too large"); return v_int(r);
        case OP_SUB: if (__builtin_sub_overflow(x, y, &r)) vm_fail(vm, "integer is too large"); return v_int(r);
        case OP_MUL: if (__builtin_mul_overflow(x, y, &r)) vm_fail(vm, "integer is too large"); return v_int(r);
        case OP_POW: return int_power(vm, x, y);
        default: break;
        }
        if (y == 0) vm_fail(vm, "integer division or modulo by zero");
        if (x == INT64_MIN && y == -1) vm_fail(vm, "integer is too large");
        int64_t q = x / y, m = x % y;
        if (m != 0 && (m < 0) != (y < 0)) { q--; m += y; }      /* Python rounds down */
        return v_int(op == OP_MOD ? m : q);
    }
    double x = float_of(a), y = float_of(b), r = 0.0;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && y == 0.0) vm_fail(vm, "division by zero");
    switch (op) {
    case OP_ADD: r = x + y; break;
    case OP_SUB: r = x - y; break;
    case OP_MUL: r = x * y; break;
    case OP_DIV: r = x / y; break;
    case OP_FLOORDIV: r = floor(x / y); break;
    case OP_MOD: r = fmod(x, y); if (r != 0.0 && (r < 0.0) != (y < 0.0)) r += y; break;
    default: r = pow(x, y); break;
    }
    return (struct value){ .type = V_FLOAT, .f = r };
}

struct value py_negate(struct vm *vm, struct value v, bool plus)
{
    vm_need_defined(vm, v);
    if (v.type == V_FLOAT) return (struct value){ .type = V_FLOAT, .f = plus ? v.f : -v.f };
    if (!is_int(v)) vm_fail(vm, "bad operand type for unary %c: '%s'", plus ? '+' : '-', py_type(v));
    return v_int(plus ? int_of(v) : -int_of(v));                /* no source of INT64_MIN: literals and products stop before it */
}

/* --- text --- */

static void repr_str(struct vm *vm, struct text *out, struct value v)
{
    char quote = memchr(v.s.p, '\'', v.s.n) && !memchr(v.s.p, '"', v.s.n) ? '"' : '\'';
    text_add(vm, out, &quote, 1);
    for (size_t i = 0; i < v.s.n;) {
        uint32_t c = u8_get(v.s.p + i);
        size_t n = u8_len(v.s.p + i);
        char esc[16];
        if (c == '\\' || c == (uint32_t)quote) { text_add(vm, out, "\\", 1); text_add(vm, out, v.s.p + i, 1); }
        else if (c == '\n') text_add(vm, out, "\\n", 2);
        else if (c == '\r') text_add(vm, out, "\\r", 2);
        else if (c == '\t') text_add(vm, out, "\\t", 2);
        else if (u8_printable(c)) text_add(vm, out, v.s.p + i, n);
        else {
            int len = snprintf(esc, sizeof esc, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
            text_add(vm, out, esc, (size_t)len);
        }
        i += n;
    }
    text_add(vm, out, &quote, 1);
}

void py_repr(struct vm *vm, struct text *out, struct value v)
{
    vm_step(vm, 1);
    if (v.type == V_STR) {
        if (v.tag) text_add(vm, out, "Markup(", 7);
        repr_str(vm, out, v);
        if (v.tag) text_add(vm, out, ")", 1);
        return;
    }
    if (v.type == V_UNDEFINED) { text_add(vm, out, "Undefined", 9); return; }
    if (v.type != V_LIST && v.type != V_DICT) { py_str(vm, out, v); return; }
    if (++vm->depth > 900) vm_fail(vm, "value is nested too deep");
    if (v.type == V_LIST) {
        bool view = v.tag >= LIST_ITEMS && v.tag <= LIST_VALUES;
        if (v.tag > LIST_TUPLE && !view) vm_fail(vm, "a %s has no text", py_type(v));
        if (view) {                                             /* dict_items([…]) */
            text_add(vm, out, py_type(v), strlen(py_type(v)));
            text_add(vm, out, "(", 1);
            v.tag = LIST_PLAIN;
        }
        text_add(vm, out, v.tag ? "(" : "[", 1);
        for (size_t i = 0; i < v.l->n; i++) {
            if (i) text_add(vm, out, ", ", 2);
            py_repr(vm, out, v.l->v[i]);
        }
        if (v.tag && v.l->n == 1) text_add(vm, out, ",", 1);
        text_add(vm, out, v.tag ? ")" : "]", 1);
        if (view) text_add(vm, out, ")", 1);
    } else {
        text_add(vm, out, "{", 1);
        for (size_t i = 0; i < v.d->n; i++) {
            if (i) text_add(vm, out, ", ", 2);
            py_repr(vm, out, v.d->k[i]);
            text_add(vm, out, ": ", 2);
            py_repr(vm, out, v.d->v[i]);
        }
        text_add(vm, out, "}", 1);
    }
    vm->depth--;
}

void py_str(struct vm *vm, struct text *out, struct value v)
{
    char num[40];
    switch (v.type) {
    case V_UNDEFINED: return;
    case V_NONE: text_add(vm, out, "None", 4); return;
    case V_BOOL: text_add(vm, out, v.tag ? "True" : "False", v.tag ? 4 : 5); return;
    case V_INT: (void)snprintf(num, sizeof num, "%lld", (long long)v.i); text_add(vm, out, num, strlen(num)); return;
    case V_FLOAT: float_repr(v.f, num); text_add(vm, out, num, strlen(num)); return;
    case V_BIG: case V_STR: text_add(vm, out, v.s.p, v.s.n); return;
    case V_LIST: case V_DICT: py_repr(vm, out, v); return;
    default:
        if (v.tag == O_NAMESPACE) {
            text_add(vm, out, "<Namespace ", 11);
            py_repr(vm, out, (struct value){ .type = V_DICT, .d = v.o });
            text_add(vm, out, ">", 1);
            return;
        }
        if (v.tag == O_JOINER || v.tag == O_CYCLER || v.tag == O_LOOP || v.tag == O_MACRO || v.tag == O_METHOD || v.tag == O_FUNCTION)
            vm_fail(vm, "a %s has no text", py_type(v));        /* Python prints an address: no template means that */
        return;
    }
}

struct value py_to_str(struct vm *vm, struct value v)
{
    struct text t = { 0 };
    if (v.type == V_STR) return v_str(v.s.p, v.s.n);
    py_str(vm, &t, v);
    return v_str(t.p ? t.p : "", t.n);
}

/* --- containers --- */

struct list *py_iter(struct vm *vm, struct value v)
{
    struct value out;
    switch (v.type) {
    case V_LIST:
        if (v.tag != LIST_ITERATOR) return v.l;
        if (v.l->cap == ITERATOR_FAILS) vm_fail(vm, "the value given to a filter is not iterable");
        out = v_list(&vm->pool);                                /* can be walked once */
        *out.l = *v.l;
        v.l->n = 0;
        return out.l;
    case V_DICT:
        out = v_list(&vm->pool);
        vm_step(vm, (int64_t)v.d->n);
        for (size_t i = 0; i < v.d->n; i++) list_add(&vm->pool, out.l, v.d->k[i]);
        return out.l;
    case V_STR:
        out = v_list(&vm->pool);
        vm_step(vm, (int64_t)v.s.n);
        for (size_t i = 0; i < v.s.n; i += u8_len(v.s.p + i)) list_add(&vm->pool, out.l, v_str(v.s.p + i, u8_len(v.s.p + i)));
        return out.l;
    case V_UNDEFINED: return v_list(&vm->pool).l;
    default: break;
    }
    if (v.type == V_OTHER && v.tag == O_LOOP) vm_fail(vm, "the loop object cannot be iterated here");
    vm_fail(vm, "'%s' object is not iterable", py_type(v));
}

bool py_iterable(struct value v)
{
    if (v.type == V_LIST) return !(v.tag == LIST_ITERATOR && v.l->cap == ITERATOR_FAILS);
    return v.type == V_DICT || v.type == V_STR || v.type == V_UNDEFINED;
}

int64_t py_len(struct vm *vm, struct value v)
{
    switch (v.type) {
    case V_UNDEFINED: return 0;
    case V_STR: return (int64_t)u8_count(v.s.p, v.s.n);
    case V_LIST:
        if (v.tag == LIST_ITERATOR) break;
        return (int64_t)v.l->n;
    case V_DICT: return (int64_t)v.d->n;
    default: break;
    }
    if (v.type == V_OTHER && v.tag == O_LOOP) return (int64_t)((struct loop *)v.o)->items->n;
    vm_fail(vm, "object of type '%s' has no len()", py_type(v));
}

static struct value missing(struct vm *vm, struct value v, const char *name)
{
    if (v.type == V_NONE) return v_undefined_because(vm, "'None' has no attribute '%.60s'", name);
    return v_undefined_because(vm, "'%s object' has no attribute '%.60s'", py_type(v), name);
}

static struct value loop_attr(struct vm *vm, struct value v, const char *name)
{
    struct loop *l = v.o;
    int64_t i = (int64_t)l->i, n = (int64_t)l->items->n;
    if (strcmp(name, "index") == 0) return v_int(i + 1);
    if (strcmp(name, "index0") == 0) return v_int(i);
    if (strcmp(name, "revindex") == 0) return v_int(n - i);
    if (strcmp(name, "revindex0") == 0) return v_int(n - i - 1);
    if (strcmp(name, "first") == 0) return v_bool(i == 0);
    if (strcmp(name, "last") == 0) return v_bool(i == n - 1);
    if (strcmp(name, "length") == 0) return v_int(n);
    if (strcmp(name, "depth") == 0) return v_int(l->depth0 + 1);
    if (strcmp(name, "depth0") == 0) return v_int(l->depth0);
    if (strcmp(name, "previtem") == 0) return i > 0 ? l->items->v[i - 1] : v_undefined_because(vm, "there is no previous item");
    if (strcmp(name, "nextitem") == 0) return i + 1 < n ? l->items->v[i + 1] : v_undefined_because(vm, "there is no next item");
    if (strcmp(name, "cycle") == 0 || strcmp(name, "changed") == 0) {
        struct method *m = pool_alloc(&vm->pool, sizeof *m);
        *m = (struct method){ v, name };
        return v_other(O_METHOD, m);
    }
    return missing(vm, v, name);
}

static bool dict_method(const char *name)
{
    static const char *const names[] = { "items", "keys", "values", "get", "copy", "pop", "popitem", "update", "clear", "setdefault", "fromkeys" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static bool list_method(const char *name, bool tuple)
{
    static const char *const names[] = { "index", "count", "append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear", "copy" };
    for (size_t i = 0; i < (tuple ? 2 : sizeof names / sizeof names[0]); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

struct value py_attr(struct vm *vm, struct value v, const char *name)
{
    bool method = false;
    vm_step(vm, 1);
    switch (v.type) {
    case V_UNDEFINED: vm_need_defined(vm, v); break;
    case V_DICT: {
        method = dict_method(name);
        struct value *found = method ? NULL : dict_find(v.d, name);
        vm_step(vm, (int64_t)(v.d->n / 32));
        if (found) return *found;
        break;
    }
    case V_STR: method = str_has_method(name); break;
    case V_LIST:
        if (v.tag == LIST_TUPLE && v.l->n == 2 && strcmp(name, "grouper") == 0) return v.l->v[0];      /* what groupby gives */
        if (v.tag == LIST_TUPLE && v.l->n == 2 && strcmp(name, "list") == 0) return v.l->v[1];
        method = (v.tag <= LIST_TUPLE || v.tag == LIST_RANGE) && list_method(name, v.tag != LIST_PLAIN);
        break;
    case V_OTHER:
        if (v.tag == O_LOOP) return loop_attr(vm, v, name);
        if (v.tag == O_NAMESPACE) {
            struct value *found = dict_find(v.o, name);
            if (found) return *found;
        }
        if (v.tag == O_MACRO && strcmp(name, "name") == 0) return v_cstr(((struct macro *)v.o)->node->name ? ((struct macro *)v.o)->node->name : "");
        if (v.tag == O_CYCLER) {
            struct cycler *c = v.o;
            if (strcmp(name, "current") == 0) return c->items->v[c->i];
            method = strcmp(name, "next") == 0 || strcmp(name, "reset") == 0;
        }
        if (v.tag == O_FUNCTION) return v_undefined_because(vm, "access to attribute '%.60s' of a function is refused", name);
        break;
    default: break;
    }
    if (!method) return missing(vm, v, name);
    struct method *m = pool_alloc(&vm->pool, sizeof *m);
    *m = (struct method){ v, name };
    return v_other(O_METHOD, m);
}

struct value py_item(struct vm *vm, struct value v, struct value key)
{
    vm_step(vm, 1);
    vm_need_defined(vm, v);
    if (v.type == V_DICT) {
        if (key.type != V_LIST && key.type != V_DICT)
            for (size_t i = 0; i < v.d->n; i++)
                if (py_equal(vm, v.d->k[i], key)) return v.d->v[i];
    } else if (v.type == V_LIST && is_int(key) && (v.tag <= LIST_TUPLE || v.tag == LIST_RANGE)) {
        int64_t n = (int64_t)v.l->n, i = int_of(key) < 0 ? int_of(key) + n : int_of(key);
        if (i >= 0 && i < n) return v.l->v[i];
    } else if (v.type == V_STR && is_int(key)) {
        int64_t n = (int64_t)u8_count(v.s.p, v.s.n), i = int_of(key) < 0 ? int_of(key) + n : int_of(key);
        vm_step(vm, (int64_t)(v.s.n / 64));
        if (i >= 0 && i < n) {
            size_t at = u8_offset(v.s.p, v.s.n, i);
            return v_str(v.s.p + at, u8_len(v.s.p + at));
        }
    }
    if (key.type == V_STR) {                                    /* x["name"] falls back to x.name */
        char *name = pool_strndup(&vm->pool, key.s.p, key.s.n);
        if (v.type != V_DICT || dict_method(name)) return py_attr(vm, v, name);
        return missing(vm, v, name);
    }
    if (is_int(key)) return v_undefined_because(vm, "%s object has no element %lld", py_type(v), (long long)int_of(key));
    return v_undefined_because(vm, "'%s object' has no such element", py_type(v));
}

static int64_t bound(struct vm *vm, struct value v, int64_t n, int64_t absent, bool down)
{
    if (v.type == V_NONE) return absent;
    int64_t i = py_index(vm, v, "slice"), least = down ? -1 : 0, most = down ? n - 1 : n;
    if (i < 0) i = i < -n ? least : i + n;
    return i < least ? least : i > most ? most : i;
}

struct value py_slice(struct vm *vm, struct value v, struct value from, struct value to, struct value by)
{
    vm_need_defined(vm, v);
    if (v.type != V_STR && (v.type != V_LIST || (v.tag > LIST_TUPLE && v.tag != LIST_RANGE))) vm_fail(vm, "'%s' object is not subscriptable", py_type(v));
    int64_t step = by.type == V_NONE ? 1 : py_index(vm, by, "slice"), n = py_len(vm, v);
    if (step == 0) vm_fail(vm, "slice step cannot be zero");
    int64_t a = bound(vm, from, n, step > 0 ? 0 : n - 1, step < 0), b = bound(vm, to, n, step > 0 ? n : -1, step < 0);
    if (v.type == V_STR) {
        vm_step(vm, (int64_t)(v.s.n / 16));
        if (step == 1) {
            size_t x = u8_offset(v.s.p, v.s.n, a), y = b > a ? u8_offset(v.s.p, v.s.n, b) : x;
            struct value out = v_str(v.s.p + x, y - x);
            out.tag = v.tag;
            return out;
        }
        struct list *chars = py_iter(vm, v);
        struct text t = { 0 };
        for (int64_t i = a; step > 0 ? i < b : i > b; ) {
            text_add(vm, &t, chars->v[i].s.p, chars->v[i].s.n);
            if (__builtin_add_overflow(i, step, &i)) break;
        }
        return v_str(t.p ? t.p : "", t.n);
    }
    struct value out = v_list(&vm->pool);
    out.tag = v.tag;
    for (int64_t i = a; step > 0 ? i < b : i > b; ) {
        vm_step(vm, 1);
        list_add(&vm->pool, out.l, v.l->v[i]);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return out;
}
