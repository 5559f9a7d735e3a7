/* jinja_lib.c - filters, tests, functions and container methods: tables of names over small functions.
 *
 * What Jinja has and no chat template uses (urlize, xmlattr, pprint, random …) is left out: a template that names it is refused when it
 * is compiled, not when it runs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "worker/data/jinja_ast.h"

/* --- arguments --- */

struct value arg_of(const struct args *args, size_t i, const char *name)
{
    if (i < args->plain->n) return args->plain->v[i];
    struct value *found = name ? dict_find(args->named, name) : NULL;
    return found ? *found : v_undefined();
}

void args_check(struct vm *vm, const char *who, const struct args *args, size_t least, size_t most)
{
    size_t n = args->plain->n + args->named->n;
    if (n < least) vm_fail(vm, "%s() takes at least %zu argument%s, %zu given", who, least, least == 1 ? "" : "s", n);
    if (n > most) vm_fail(vm, "%s() takes at most %zu argument%s, %zu given", who, most, most == 1 ? "" : "s", n);
}

static int64_t int_arg(struct vm *vm, const struct args *a, size_t i, const char *name, int64_t absent)
{
    struct value v = arg_of(a, i, name);
    return v.type == V_UNDEFINED ? absent : py_index(vm, v, name);
}

static struct value need_str(struct vm *vm, struct value v) { return v.type == V_STR ? v : py_to_str(vm, v); }

static struct value tuple_of(struct vm *vm, struct value a, struct value b)
{
    struct value t = v_list(&vm->pool);
    t.tag = 1;
    list_add(&vm->pool, t.l, a);
    list_add(&vm->pool, t.l, b);
    return t;
}

static struct value iterator(struct value list)         /* what Python gives as a generator: no length, no index, one walk */
{
    list.tag = LIST_ITERATOR;
    return list;
}

static struct value failing(struct vm *vm)
{
    struct value v = iterator(v_list(&vm->pool));
    v.l->cap = ITERATOR_FAILS;
    return v;
}

static struct value copy_list(struct vm *vm, struct list *l)
{
    struct value out = v_list(&vm->pool);
    vm_step(vm, (int64_t)l->n);
    for (size_t i = 0; i < l->n; i++) list_add(&vm->pool, out.l, l->v[i]);
    return out;
}

static struct value items_of(struct vm *vm, struct value v, char what)      /* k v i(tems) */
{
    struct value out = v_list(&vm->pool);
    out.tag = what == 'k' ? LIST_KEYS : what == 'v' ? LIST_VALUES : LIST_ITEMS;
    vm_step(vm, (int64_t)v.d->n);
    for (size_t i = 0; i < v.d->n; i++) list_add(&vm->pool, out.l, what == 'k' ? v.d->k[i] : what == 'v' ? v.d->v[i] : tuple_of(vm, v.d->k[i], v.d->v[i]));
    return out;
}

/* x.a.b or x.0 as in map(attribute="a.b") */
static struct value by_path(struct vm *vm, struct value v, struct value path)
{
    if (path.type == V_INT) return py_item(vm, v, path);
    if (path.type != V_STR) vm_fail(vm, "attribute: expected a string or an integer, found '%s'", py_type(path));
    for (const char *p = path.s.p, *end = p + path.s.n; p <= end;) {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        if (dot == NULL) dot = end;
        struct value key = str_new(vm, p, (size_t)(dot - p));
        bool digits = key.s.n > 0 && key.s.n < 10 && strspn(key.s.p, "0123456789") == key.s.n;
        v = py_item(vm, v, digits ? v_int(atoi(key.s.p)) : key);
        if (dot == end) break;
        p = dot + 1;
    }
    return v;
}

/* --- sorting: stable, by Python's order, case folded unless asked --- */

static struct value sort_key(struct vm *vm, struct value v, struct value attribute, bool fold)
{
    if (attribute.type != V_UNDEFINED && attribute.type != V_NONE) v = by_path(vm, v, attribute);
    return fold && v.type == V_STR ? str_case(vm, v, 'l') : v;
}

static struct value sorted(struct vm *vm, struct list *l, struct value attribute, bool fold, bool reverse)
{
    struct value out = copy_list(vm, l), keys = v_list(&vm->pool), a = v_list(&vm->pool), b = v_list(&vm->pool);
    size_t n = l->n;
    for (size_t i = 0; i < n; i++) list_add(&vm->pool, keys.l, sort_key(vm, l->v[i], attribute, fold));
    for (size_t i = 0; i < n; i++) { list_add(&vm->pool, a.l, v_int((int64_t)i)); list_add(&vm->pool, b.l, v_none()); }
    struct value *from = a.l->v, *to = b.l->v;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n, i = lo, k = mid;
            for (size_t o = lo; o < hi; o++) {
                bool right = i >= mid;
                if (!right && k < hi) {
                    int c = py_order(vm, keys.l->v[from[k].i], keys.l->v[from[i].i]);
                    right = reverse ? c == 1 : c < 0;
                }
                to[o] = right ? from[k++] : from[i++];
            }
        }
        struct value *t = from;
        from = to;
        to = t;
    }
    for (size_t i = 0; i < n; i++) out.l->v[i] = l->v[from[i].i];
    return out;
}

/* --- filters --- */

typedef struct value filter_fn(struct vm *vm, struct value v, const struct args *a);

static struct value f_abs(struct vm *vm, struct value v, const struct args *a)
{
    (void)a;
    vm_need_defined(vm, v);
    if (v.type == V_FLOAT) return (struct value){ .type = V_FLOAT, .f = fabs(v.f) };
    int64_t i = py_index(vm, v, "abs");
    return v_int(i < 0 ? -i : i);
}

static struct value f_attr(struct vm *vm, struct value v, const struct args *a)
{
    struct value name = arg_of(a, 0, "name");
    if (name.type != V_STR) vm_fail(vm, "attr: expected a name");
    if (v.type == V_DICT && dict_find(v.d, name.s.p)) return v_undefined_because(vm, "'dict object' has no attribute '%.60s'", name.s.p);
    return py_attr(vm, v, pool_strndup(&vm->pool, name.s.p, name.s.n));
}

static struct value f_batch(struct vm *vm, struct value v, const struct args *a)
{
    int64_t n = int_arg(vm, a, 0, "linecount", 0);
    struct value fill = arg_of(a, 1, "fill_with"), out = v_list(&vm->pool), row = v_undefined();
    if (!py_iterable(v)) return failing(vm);
    struct list *l = py_iter(vm, v);
    if (n < 1 || n > 1000000) vm_fail(vm, "batch: expected a count of at least 1");
    for (size_t i = 0; i < l->n; i++) {
        if (i % (size_t)n == 0) { row = v_list(&vm->pool); list_add(&vm->pool, out.l, row); }
        list_add(&vm->pool, row.l, l->v[i]);
    }
    while (fill.type != V_UNDEFINED && fill.type != V_NONE && row.type == V_LIST && row.l->n < (size_t)n) list_add(&vm->pool, row.l, fill);
    return iterator(out);
}

static struct value f_capitalize(struct vm *vm, struct value v, const struct args *a) { (void)a; return str_case(vm, need_str(vm, v), 'c'); }
static struct value f_lower(struct vm *vm, struct value v, const struct args *a) { (void)a; return str_case(vm, need_str(vm, v), 'l'); }
static struct value f_upper(struct vm *vm, struct value v, const struct args *a) { (void)a; return str_case(vm, need_str(vm, v), 'u'); }
static struct value f_title(struct vm *vm, struct value v, const struct args *a) { (void)a; return str_case(vm, need_str(vm, v), 'T'); }
static struct value f_string(struct vm *vm, struct value v, const struct args *a) { (void)a; return v.type == V_STR ? v : py_to_str(vm, v); }
static struct value f_trim(struct vm *vm, struct value v, const struct args *a) { return str_strip(vm, need_str(vm, v), arg_of(a, 0, "chars"), true, true); }
static struct value f_length(struct vm *vm, struct value v, const struct args *a) { (void)a; return v_int(py_len(vm, v)); }
static struct value f_list(struct vm *vm, struct value v, const struct args *a) { (void)a; return copy_list(vm, py_iter(vm, v)); }

static struct value f_center(struct vm *vm, struct value v, const struct args *a)
{
    struct value width = v_list(&vm->pool);
    list_add(&vm->pool, width.l, v_int(int_arg(vm, a, 0, "width", 80)));
    struct args one = { width.l, v_dict(&vm->pool).d };
    return str_method(vm, need_str(vm, v), "center", &one);
}

static struct value f_default(struct vm *vm, struct value v, const struct args *a)
{
    struct value other = arg_of(a, 0, "default_value");
    bool falsy = py_true(arg_of(a, 1, "boolean"));
    (void)vm;
    if (v.type == V_UNDEFINED || (falsy && !py_true(v))) return other.type == V_UNDEFINED && a->plain->n == 0 ? v_cstr("") : other;
    return v;
}

static struct value f_dictsort(struct vm *vm, struct value v, const struct args *a)
{
    struct value by = arg_of(a, 1, "by");
    if (v.type != V_DICT) vm_fail(vm, "dictsort: expected a dict, found '%s'", py_type(v));
    return sorted(vm, items_of(vm, v, 'i').l, v_int(value_is_str(by, "value")), !py_true(arg_of(a, 0, "case_sensitive")), py_true(arg_of(a, 2, "reverse")));
}

static struct value f_escape(struct vm *vm, struct value v, const struct args *a)
{
    (void)a;
    return v.type == V_STR && v.tag ? v : str_escape(vm, need_str(vm, v));
}

static struct value f_safe(struct vm *vm, struct value v, const struct args *a)
{
    (void)a;
    v = need_str(vm, v);
    v.tag = 1;
    return v;
}

static struct value f_first(struct vm *vm, struct value v, const struct args *a)
{
    (void)a;
    if (v.type == V_LIST && v.tag == LIST_ITERATOR && v.l->n && v.l->cap != ITERATOR_FAILS) { v.l->n--; return *v.l->v++; }
    struct list *l = py_iter(vm, v);
    return l->n ? l->v[0] : v_undefined_because(vm, "No first item, sequence was empty.");
}

static struct value f_last(struct vm *vm, struct value v, const struct args *a)
{
    (void)a;
    if (v.type == V_LIST && v.tag == LIST_ITERATOR) vm_fail(vm, "'generator' object is not reversible");
    struct list *l = py_iter(vm, v);
    return l->n ? l->v[l->n - 1] : v_undefined_because(vm, "No last item, sequence was empty.");
}

static struct value f_float(struct vm *vm, struct value v, const struct args *a)
{
    struct value other = arg_of(a, 0, "default");
    vm_need_defined(vm, v);
    if (v.type == V_FLOAT) return v;
    if (v.type == V_INT || v.type == V_BOOL) return (struct value){ .type = V_FLOAT, .f = (double)py_index(vm, v, "float") };
    if (v.type == V_STR || v.type == V_BIG) {
        struct value s = v.type == V_STR ? str_strip(vm, v, v_undefined(), true, true) : v;
        char *text = pool_strndup(&vm->pool, s.s.p, s.s.n), *end;
        double d = strtod(text, &end);
        if (s.s.n && *end == '\0' && strspn(text, "+-.0123456789eE") == s.s.n) return (struct value){ .type = V_FLOAT, .f = d };
    }
    return other.type == V_UNDEFINED ? (struct value){ .type = V_FLOAT, .f = 0.0 } : other;
}

static struct value f_int(struct vm *vm, struct value v, const struct args *a)
{
    struct value other = arg_of(a, 0, "default");
    int64_t base = int_arg(vm, a, 1, "base", 10);
    vm_need_defined(vm, v);
    if (other.type == V_UNDEFINED) other = v_int(0);
    if (v.type == V_INT || v.type == V_BOOL) return v_int(py_index(vm, v, "int"));
    if (v.type == V_BIG) return v;
    double d = NAN;
    if (v.type == V_FLOAT) d = v.f;
    else if (v.type == V_STR) {
        struct value s = str_strip(vm, v, v_undefined(), true, true);
        char *text = pool_strndup(&vm->pool, s.s.p, s.s.n), *end;
        if (base < 2 || base > 36) vm_fail(vm, "int() base must be between 2 and 36");
        long long i = strtoll(text, &end, (int)base);
        if (s.s.n && s.s.n < 19 && *end == '\0') return v_int(i);
        if (s.s.n && strspn(text, "+-.0123456789eE") == s.s.n) { d = strtod(text, &end); if (*end) d = NAN; }
    }
    return isfinite(d) && fabs(d) < 9e18 ? v_int((int64_t)d) : other;
}

static struct value f_format(struct vm *vm, struct value v, const struct args *a)
{
    struct value list = v_list(&vm->pool), named = { .type = V_DICT, .d = a->named };
    if (a->plain->n && a->named->n) vm_fail(vm, "can't handle positional and keyword arguments at the same time");
    list.tag = LIST_TUPLE;
    *list.l = *a->plain;
    return str_format(vm, need_str(vm, v), a->named->n ? named : list);
}

static struct value f_groupby(struct vm *vm, struct value v, const struct args *a)
{
    struct value attribute = arg_of(a, 0, "attribute"), other = arg_of(a, 1, "default"), out = v_list(&vm->pool), group = v_undefined();
    struct list *l = sorted(vm, py_iter(vm, v), attribute, !py_true(arg_of(a, 2, "case_sensitive")), false).l;
    for (size_t i = 0; i < l->n; i++) {
        struct value key = by_path(vm, l->v[i], attribute);
        if (key.type == V_UNDEFINED && other.type != V_UNDEFINED) key = other;
        struct value last = out.l->n ? out.l->v[out.l->n - 1].l->v[0] : v_undefined();
        if (out.l->n == 0 || !py_equal(vm, sort_key(vm, last, v_undefined(), true), sort_key(vm, key, v_undefined(), true))) {
            group = v_list(&vm->pool);
            struct value t = tuple_of(vm, key, group);
            list_add(&vm->pool, out.l, t);
        }
        list_add(&vm->pool, group.l, l->v[i]);
    }
    return out;
}

static struct value f_indent(struct vm *vm, struct value v, const struct args *a)
{
    struct value width = arg_of(a, 0, "width"), s = v;
    vm_need_defined(vm, v);
    if (v.type != V_STR) vm_fail(vm, "unsupported operand type(s) for +=: '%s' and 'str'", py_type(v));
    bool first = py_true(arg_of(a, 1, "first")), blank = py_true(arg_of(a, 2, "blank"));
    struct text t = { 0 };
    if (width.type == V_UNDEFINED) width = v_int(4);
    if (width.type != V_STR) width = py_binary(vm, OP_MUL, v_cstr(" "), width);
    struct args none = { v_list(&vm->pool).l, v_dict(&vm->pool).d };
    struct list *lines = str_method(vm, py_binary(vm, OP_ADD, s, v_cstr("\n")), "splitlines", &none).l;
    for (size_t i = 0; i < lines->n; i++) {
        if (i) text_add(vm, &t, "\n", 1);
        if (i ? blank || lines->v[i].s.n : first) text_add(vm, &t, width.s.p, width.s.n);
        text_add(vm, &t, lines->v[i].s.p, lines->v[i].s.n);
    }
    return v_str(t.p ? t.p : "", t.n);
}

static struct value f_items(struct vm *vm, struct value v, const struct args *a)
{
    (void)a;
    if (v.type == V_UNDEFINED) return iterator(v_list(&vm->pool));
    if (v.type != V_DICT) return failing(vm);
    return iterator(items_of(vm, v, 'i'));
}

static struct value f_join(struct vm *vm, struct value v, const struct args *a)
{
    struct value sep = arg_of(a, 0, "d"), attribute = arg_of(a, 1, "attribute");
    struct list *l = py_iter(vm, v);
    struct text t = { 0 };
    sep = sep.type == V_UNDEFINED ? v_cstr("") : need_str(vm, sep);
    for (size_t i = 0; i < l->n; i++) {
        vm_step(vm, 1);
        if (i) text_add(vm, &t, sep.s.p, sep.s.n);
        py_str(vm, &t, attribute.type == V_UNDEFINED || attribute.type == V_NONE ? l->v[i] : by_path(vm, l->v[i], attribute));
    }
    return v_str(t.p ? t.p : "", t.n);
}

static struct value prepared(struct vm *vm, struct value v, const struct args *a, size_t from)     /* the rest of map/select's arguments */
{
    struct value name = arg_of(a, from, NULL);
    (void)v;
    if (name.type != V_STR) vm_fail(vm, "map and select need the name of a filter or test");
    return name;
}

static struct args rest_of(struct vm *vm, const struct args *a, size_t from)
{
    struct value l = v_list(&vm->pool);
    for (size_t i = from; i < a->plain->n; i++) list_add(&vm->pool, l.l, a->plain->v[i]);
    return (struct args){ l.l, a->named };
}

static struct value f_map(struct vm *vm, struct value v, const struct args *a)
{
    struct value attribute = arg_of(a, 99, "attribute"), other = arg_of(a, 99, "default"), out = v_list(&vm->pool);
    if (!py_true(v)) return iterator(out);                      /* none maps to nothing */
    if (!py_iterable(v)) return failing(vm);
    struct list *l = py_iter(vm, v);
    if (attribute.type != V_UNDEFINED) {
        for (size_t i = 0; i < l->n; i++) {
            struct value x = by_path(vm, l->v[i], attribute);
            list_add(&vm->pool, out.l, x.type == V_UNDEFINED && other.type != V_UNDEFINED ? other : x);
        }
        return iterator(out);
    }
    struct value name = prepared(vm, v, a, 0);
    struct args rest = rest_of(vm, a, 1);
    for (size_t i = 0; i < l->n; i++) list_add(&vm->pool, out.l, lib_filter(vm, name.s.p, l->v[i], &rest));
    return iterator(out);
}

static struct value choose(struct vm *vm, struct value v, const struct args *a, bool by_attribute, bool keep)
{
    struct value out = v_list(&vm->pool), attribute = by_attribute ? arg_of(a, 0, NULL) : v_undefined();
    if (!py_true(v)) return iterator(out);
    if (!py_iterable(v)) return failing(vm);
    struct list *l = py_iter(vm, v);
    size_t from = by_attribute ? 1 : 0;
    bool named = a->plain->n > from;
    struct value name = named ? prepared(vm, v, a, from) : v_undefined();
    struct args rest = rest_of(vm, a, from + 1);
    if (by_attribute && attribute.type == V_UNDEFINED) vm_fail(vm, "Missing parameter for attribute name");
    for (size_t i = 0; i < l->n; i++) {
        struct value x = by_attribute ? by_path(vm, l->v[i], attribute) : l->v[i];
        vm_step(vm, 1);
        if ((named ? lib_test(vm, name.s.p, x, &rest) : py_true(x)) == keep) list_add(&vm->pool, out.l, l->v[i]);
    }
    return iterator(out);
}

static struct value f_select(struct vm *vm, struct value v, const struct args *a) { return choose(vm, v, a, false, true); }
static struct value f_reject(struct vm *vm, struct value v, const struct args *a) { return choose(vm, v, a, false, false); }
static struct value f_selectattr(struct vm *vm, struct value v, const struct args *a) { return choose(vm, v, a, true, true); }
static struct value f_rejectattr(struct vm *vm, struct value v, const struct args *a) { return choose(vm, v, a, true, false); }

static struct value extreme(struct vm *vm, struct value v, const struct args *a, bool most)
{
    struct list *l = py_iter(vm, v);
    struct value attribute = arg_of(a, 1, "attribute"), best = v_undefined(), best_key = v_undefined();
    bool fold = !py_true(arg_of(a, 0, "case_sensitive"));
    if (l->n == 0) return v_undefined_because(vm, "No aggregated item, sequence was empty.");
    for (size_t i = 0; i < l->n; i++) {
        struct value key = sort_key(vm, l->v[i], attribute, fold);
        int c = i == 0 ? 0 : py_order(vm, key, best_key);
        if (i == 0 || (most ? c == 1 : c < 0)) { best = l->v[i]; best_key = key; }
    }
    return best;
}

static struct value f_max(struct vm *vm, struct value v, const struct args *a) { return extreme(vm, v, a, true); }
static struct value f_min(struct vm *vm, struct value v, const struct args *a) { return extreme(vm, v, a, false); }

static struct value f_replace(struct vm *vm, struct value v, const struct args *a)
{
    struct value count = arg_of(a, 2, "count");
    return str_replace(vm, need_str(vm, v), need_str(vm, arg_of(a, 0, "old")), need_str(vm, arg_of(a, 1, "new")),
                       count.type == V_UNDEFINED || count.type == V_NONE ? -1 : py_index(vm, count, "count"));
}

static struct value f_reverse(struct vm *vm, struct value v, const struct args *a)
{
    (void)a;
    if (v.type == V_STR) return py_slice(vm, v, v_none(), v_none(), v_int(-1));
    bool once = !(v.type == V_LIST && v.tag == LIST_ITERATOR);  /* reversed() of a sequence is an iterator */
    struct value out = copy_list(vm, py_iter(vm, v));
    for (size_t i = 0, n = out.l->n; i < n / 2; i++) {
        struct value t = out.l->v[i];
        out.l->v[i] = out.l->v[n - 1 - i];
        out.l->v[n - 1 - i] = t;
    }
    return once ? iterator(out) : out;
}

static struct value f_round(struct vm *vm, struct value v, const struct args *a)
{
    int64_t digits = int_arg(vm, a, 0, "precision", 0);
    struct value method = arg_of(a, 1, "method"), x = f_float(vm, v, &(struct args){ v_list(&vm->pool).l, v_dict(&vm->pool).d });
    if (digits < -300 || digits > 300) vm_fail(vm, "round: precision %lld", (long long)digits);
    if (v.type != V_INT && v.type != V_FLOAT && v.type != V_BOOL) vm_fail(vm, "type %s doesn't define __round__ method", py_type(v));
    double scale = pow(10.0, (double)digits), r;
    if (value_is_str(method, "ceil")) r = ceil(x.f * scale) / scale;
    else if (value_is_str(method, "floor")) r = floor(x.f * scale) / scale;
    else if (v.type != V_FLOAT && digits >= 0) return v_int(py_index(vm, v, "round"));
    else if (digits >= 0) {                                     /* round half to even on the decimal value, as Python */
        char text[400];
        (void)snprintf(text, sizeof text, "%.*f", (int)digits, x.f);
        r = strtod(text, NULL);
    } else r = rint(x.f * scale) / scale;
    return (struct value){ .type = V_FLOAT, .f = r };
}

static struct value f_slice(struct vm *vm, struct value v, const struct args *a)
{
    int64_t n = int_arg(vm, a, 0, "slices", 0);
    struct value fill = arg_of(a, 1, "fill_with"), out = v_list(&vm->pool);
    if (!py_iterable(v)) return failing(vm);
    struct list *l = py_iter(vm, v);
    if (n < 1 || n > 1000000) vm_fail(vm, "slice: expected a count of at least 1");
    size_t each = l->n / (size_t)n, more = l->n % (size_t)n, at = 0;
    for (size_t s = 0; s < (size_t)n; s++) {
        struct value row = v_list(&vm->pool);
        for (size_t k = 0; k < each + (s < more); k++) list_add(&vm->pool, row.l, l->v[at++]);
        if (fill.type != V_UNDEFINED && fill.type != V_NONE && s >= more && more) list_add(&vm->pool, row.l, fill);
        list_add(&vm->pool, out.l, row);
    }
    return iterator(out);
}

static struct value f_sort(struct vm *vm, struct value v, const struct args *a)
{
    return sorted(vm, py_iter(vm, v), arg_of(a, 2, "attribute"), !py_true(arg_of(a, 1, "case_sensitive")), py_true(arg_of(a, 0, "reverse")));
}

static struct value f_sum(struct vm *vm, struct value v, const struct args *a)
{
    struct value attribute = arg_of(a, 0, "attribute"), total = arg_of(a, 1, "start");
    struct list *l = py_iter(vm, v);
    if (total.type == V_UNDEFINED) total = v_int(0);
    for (size_t i = 0; i < l->n; i++)
        total = py_binary(vm, OP_ADD, total, attribute.type == V_UNDEFINED || attribute.type == V_NONE ? l->v[i] : by_path(vm, l->v[i], attribute));
    return total;
}

/* Separators that are not json.dumps' own: rewritten outside strings. */
static void add_separated(struct vm *vm, struct text *t, const char *p, size_t n, struct value item, struct value key, bool lines)
{
    bool string = false;
    for (size_t i = 0; i < n; i++) {
        if (string && p[i] == '\\') { text_add(vm, t, p + i, 2); i++; continue; }
        if (p[i] == '"') string = !string;
        if (string || (p[i] != ',' && p[i] != ':')) { text_add(vm, t, p + i, 1); continue; }
        struct value s = p[i] == ',' ? item : key;
        text_add(vm, t, s.s.p, s.s.n);
        if (p[i] == ':' || !lines) i++;                         /* the blank behind it */
    }
}

static void add_ascii(struct vm *vm, struct text *t, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i += u8_len(p + i)) {
        uint32_t c = u8_get(p + i);
        char esc[16];
        if (c < 0x80) { text_add(vm, t, p + i, 1); continue; }
        int len = c < 0x10000 ? snprintf(esc, sizeof esc, "\\u%04x", c)
                              : snprintf(esc, sizeof esc, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
        text_add(vm, t, esc, (size_t)len);
    }
}

static void weigh(struct vm *vm, struct value v, int depth)     /* a shared value may print as many: counted before it is printed */
{
    vm_step(vm, 1);
    if (depth > 190) vm_fail(vm, "value is nested too deep");
    if (v.type == V_LIST) for (size_t i = 0; i < v.l->n; i++) weigh(vm, v.l->v[i], depth + 1);
    if (v.type == V_DICT) for (size_t i = 0; i < v.d->n; i++) weigh(vm, v.d->v[i], depth + 1);
    if (v.type == V_STR) vm_step(vm, (int64_t)(v.s.n / 8));
}

static struct value f_tojson(struct vm *vm, struct value v, const struct args *a)
{
    struct value indent = arg_of(a, 1, "indent"), separators = arg_of(a, 2, "separators"), item = v_cstr(", "), key = v_cstr(": ");
    const char *bad = NULL;
    struct text t = { 0 }, u = { 0 };
    int64_t width = indent.type == V_UNDEFINED || indent.type == V_NONE ? -1 : py_index(vm, indent, "indent");
    if (width < -1 || width > 64) vm_fail(vm, "tojson: indent of %lld", (long long)width);
    weigh(vm, v, 0);
    vm->scratch.n = 0;
    if (!value_dumps(&vm->scratch, v, (int)width, py_true(arg_of(a, 3, "sort_keys")), &bad))
        vm_fail(vm, "Object of type %s is not JSON serializable", v.type == V_OTHER ? py_type(v) : bad);
    if (separators.type == V_LIST) {
        if (separators.l->n != 2 || separators.l->v[0].type != V_STR || separators.l->v[1].type != V_STR) vm_fail(vm, "tojson: separators are two strings");
        item = separators.l->v[0];
        key = separators.l->v[1];
        add_separated(vm, &t, vm->scratch.p, vm->scratch.n, item, key, width >= 0);
    } else text_add(vm, &t, vm->scratch.p, vm->scratch.n);
    if (!py_true(arg_of(a, 0, "ensure_ascii"))) return v_str(t.p, t.n);
    add_ascii(vm, &u, t.p, t.n);
    return v_str(u.p, u.n);
}

static struct value f_truncate(struct vm *vm, struct value v, const struct args *a)
{
    struct value s = v, end = arg_of(a, 2, "end");
    int64_t length = int_arg(vm, a, 0, "length", 255), leeway = 5;
    struct value given = arg_of(a, 3, "leeway");
    if (end.type == V_UNDEFINED) end = v_cstr("...");
    if (given.type != V_UNDEFINED && given.type != V_NONE) leeway = py_index(vm, given, "leeway");
    if (end.type != V_STR || length < py_len(vm, end)) vm_fail(vm, "truncate: length is below that of the end mark");
    if (py_len(vm, s) <= length + leeway) return s;
    if (s.type != V_STR) vm_fail(vm, "'%s' object has no attribute 'rsplit'", py_type(s));
    struct value head = py_slice(vm, s, v_none(), v_int(length - py_len(vm, end)), v_none());
    if (!py_true(arg_of(a, 1, "killwords"))) {
        const char *space = memrchr(head.s.p, ' ', head.s.n);
        if (space) head.s.n = (size_t)(space - head.s.p);
    }
    return py_binary(vm, OP_ADD, head, end);
}

static struct value f_unique(struct vm *vm, struct value v, const struct args *a)
{
    struct value attribute = arg_of(a, 1, "attribute"), keys = v_list(&vm->pool), out = v_list(&vm->pool);
    bool fold = !py_true(arg_of(a, 0, "case_sensitive"));
    if (!py_iterable(v)) return failing(vm);
    struct list *l = py_iter(vm, v);
    for (size_t i = 0; i < l->n; i++) {
        struct value key = sort_key(vm, l->v[i], attribute, fold);
        if (key.type == V_DICT || (key.type == V_LIST && key.tag != LIST_TUPLE)) vm_fail(vm, "unhashable type: '%s'", py_type(key));
        if (py_in(vm, key, keys)) continue;
        list_add(&vm->pool, keys.l, key);
        list_add(&vm->pool, out.l, l->v[i]);
    }
    return iterator(out);
}

static struct value f_urlencode(struct vm *vm, struct value v, const struct args *a)
{
    struct value s = need_str(vm, v);
    struct text t = { 0 };
    (void)a;
    if (v.type == V_DICT || v.type == V_LIST) vm_fail(vm, "urlencode: only strings are supported");
    for (size_t i = 0; i < s.s.n; i++) {
        unsigned char c = (unsigned char)s.s.p[i];
        char esc[4];
        (void)snprintf(esc, sizeof esc, "%%%02X", c);
        bool plain = (c | 32u) - 'a' < 26u || c - 0u - '0' < 10u || (c && strchr("_.-~/", c));
        text_add(vm, &t, plain ? s.s.p + i : esc, plain ? 1 : 3);
    }
    return v_str(t.p ? t.p : "", t.n);
}

static struct value f_wordcount(struct vm *vm, struct value v, const struct args *a)
{
    struct value s = need_str(vm, v);
    int64_t words = 0;
    bool in = false;
    (void)a;
    for (size_t i = 0; i < s.s.n; i += u8_len(s.s.p + i)) {
        bool word = u8_word(u8_get(s.s.p + i));
        words += word && !in;
        in = word;
    }
    return v_int(words);
}

static const struct { const char *name; filter_fn *fn; unsigned char most; const char *names; } filters[] = {
    { "abs", f_abs, 0, "" }, { "attr", f_attr, 1, "name" }, { "batch", f_batch, 2, "linecount|fill_with" }, { "capitalize", f_capitalize, 0, "" },
    { "center", f_center, 1, "width" }, { "count", f_length, 0, "" }, { "d", f_default, 2, "default_value|boolean" },
    { "default", f_default, 2, "default_value|boolean" }, { "dictsort", f_dictsort, 3, "case_sensitive|by|reverse" }, { "e", f_escape, 0, "" },
    { "escape", f_escape, 0, "" }, { "first", f_first, 0, "" }, { "float", f_float, 1, "default" }, { "forceescape", f_escape, 0, "" },
    { "format", f_format, 255, NULL }, { "groupby", f_groupby, 3, "attribute|default|case_sensitive" }, { "indent", f_indent, 3, "width|first|blank" }, { "int", f_int, 2, "default|base" },
    { "items", f_items, 0, "" }, { "join", f_join, 2, "d|attribute" }, { "last", f_last, 0, "" }, { "length", f_length, 0, "" }, { "list", f_list, 0, "" },
    { "lower", f_lower, 0, "" }, { "map", f_map, 255, NULL }, { "max", f_max, 2, "case_sensitive|attribute" }, { "min", f_min, 2, "case_sensitive|attribute" },
    { "reject", f_reject, 255, NULL }, { "rejectattr", f_rejectattr, 255, NULL }, { "replace", f_replace, 3, "old|new|count" }, { "reverse", f_reverse, 0, "" },
    { "round", f_round, 2, "precision|method" }, { "safe", f_safe, 0, "" }, { "select", f_select, 255, NULL }, { "selectattr", f_selectattr, 255, NULL },
    { "slice", f_slice, 2, "slices|fill_with" }, { "sort", f_sort, 3, "reverse|case_sensitive|attribute" }, { "string", f_string, 0, "" },
    { "sum", f_sum, 2, "attribute|start" }, { "title", f_title, 0, "" }, { "tojson", f_tojson, 4, "ensure_ascii|indent|separators|sort_keys" },
    { "trim", f_trim, 1, "chars" }, { "truncate", f_truncate, 4, "length|killwords|end|leeway" }, { "unique", f_unique, 2, "case_sensitive|attribute" },
    { "upper", f_upper, 0, "" }, { "urlencode", f_urlencode, 0, "" }, { "wordcount", f_wordcount, 0, "" },
};
#define COUNT(a) (sizeof (a) / sizeof (a)[0])

static bool among(const char *names, struct value name)
{
    for (const char *w = names; *w;) {
        size_t n = strcspn(w, "|");
        if (name.s.n == n && memcmp(name.s.p, w, n) == 0) return true;
        w += n + (w[n] == '|');
    }
    return false;
}

struct value lib_filter(struct vm *vm, const char *name, struct value v, const struct args *args)
{
    vm_step(vm, 1);
    for (size_t i = 0; i < COUNT(filters); i++) {
        if (strcmp(filters[i].name, name) != 0) continue;
        if (filters[i].names) {
            args_check(vm, name, args, 0, filters[i].most);
            for (size_t k = 0; k < args->named->n; k++)
                if (!among(filters[i].names, args->named->k[k])) vm_fail(vm, "%s() got an unexpected argument '%.60s'", name, args->named->k[k].s.p);
        }
        if (++vm->depth > 900) vm_fail(vm, "filters are nested too deep");
        v = filters[i].fn(vm, v, args);
        vm->depth--;
        return v;
    }
    vm_fail(vm, "No filter named '%.60s'.", name);
}

/* --- tests --- */

enum test {
    IS_BOOLEAN, IS_CALLABLE, IS_DEFINED, IS_DIVISIBLE, IS_EQ, IS_ESCAPED, IS_EVEN, IS_FALSE, IS_FILTER, IS_FLOAT, IS_GE, IS_GT, IS_IN, IS_INTEGER,
    IS_ITERABLE, IS_LE, IS_LOWER, IS_LT, IS_MAPPING, IS_NE, IS_NONE, IS_NUMBER, IS_ODD, IS_SAMEAS, IS_SEQUENCE, IS_STRING, IS_TEST, IS_TRUE,
    IS_UNDEFINED, IS_UPPER
};
static const struct { const char *name; enum test test; unsigned char args; } tests[] = {
    { "boolean", IS_BOOLEAN, 0 }, { "callable", IS_CALLABLE, 0 }, { "defined", IS_DEFINED, 0 }, { "divisibleby", IS_DIVISIBLE, 1 }, { "eq", IS_EQ, 1 },
    { "equalto", IS_EQ, 1 }, { "==", IS_EQ, 1 }, { "escaped", IS_ESCAPED, 0 }, { "even", IS_EVEN, 0 }, { "false", IS_FALSE, 0 }, { "filter", IS_FILTER, 0 },
    { "float", IS_FLOAT, 0 }, { "ge", IS_GE, 1 }, { ">=", IS_GE, 1 }, { "gt", IS_GT, 1 }, { ">", IS_GT, 1 }, { "greaterthan", IS_GT, 1 }, { "in", IS_IN, 1 },
    { "integer", IS_INTEGER, 0 }, { "iterable", IS_ITERABLE, 0 }, { "le", IS_LE, 1 }, { "<=", IS_LE, 1 }, { "lower", IS_LOWER, 0 }, { "lt", IS_LT, 1 },
    { "<", IS_LT, 1 }, { "lessthan", IS_LT, 1 }, { "mapping", IS_MAPPING, 0 }, { "ne", IS_NE, 1 }, { "!=", IS_NE, 1 }, { "none", IS_NONE, 0 },
    { "number", IS_NUMBER, 0 }, { "odd", IS_ODD, 0 }, { "sameas", IS_SAMEAS, 1 }, { "sequence", IS_SEQUENCE, 0 }, { "string", IS_STRING, 0 },
    { "test", IS_TEST, 0 }, { "true", IS_TRUE, 0 }, { "undefined", IS_UNDEFINED, 0 }, { "upper", IS_UPPER, 0 },
};

bool lib_knows(const char *name, bool test)
{
    for (size_t i = 0; !test && i < COUNT(filters); i++) if (strcmp(filters[i].name, name) == 0) return true;
    for (size_t i = 0; test && i < COUNT(tests); i++) if (strcmp(tests[i].name, name) == 0) return true;
    return false;
}

static bool is_case(struct vm *vm, struct value v, const char *method)
{
    struct args none = { v_list(&vm->pool).l, v_dict(&vm->pool).d };
    return py_true(str_method(vm, need_str(vm, v), method, &none));
}

static bool same(struct value a, struct value b)                /* Python's "is", for what has an identity here */
{
    if (a.type != b.type || a.tag != b.tag) return false;
    switch (a.type) {
    case V_NONE: case V_BOOL: return true;
    case V_INT: return a.i == b.i;
    case V_STR: return a.s.p == b.s.p && a.s.n == b.s.n;
    case V_LIST: return a.l == b.l;
    case V_DICT: return a.d == b.d;
    case V_OTHER: return a.o == b.o;
    default: return false;
    }
}

bool lib_test(struct vm *vm, const char *name, struct value v, const struct args *args)
{
    struct value x = arg_of(args, 0, NULL);
    size_t i = 0;
    vm_step(vm, 1);
    while (i < COUNT(tests) && strcmp(tests[i].name, name) != 0) i++;
    if (i == COUNT(tests)) vm_fail(vm, "No test named '%.60s'.", name);
    args_check(vm, name, args, tests[i].args, tests[i].args);
    bool whole = v.type == V_INT || v.type == V_BIG;
    switch (tests[i].test) {
    case IS_BOOLEAN: return v.type == V_BOOL;
    case IS_CALLABLE: return v.type == V_UNDEFINED || (v.type == V_OTHER && (v.tag == O_MACRO || v.tag == O_METHOD || v.tag == O_FUNCTION || v.tag == O_JOINER || v.tag == O_LOOP));
    case IS_DEFINED: return v.type != V_UNDEFINED;
    case IS_UNDEFINED: return v.type == V_UNDEFINED;
    case IS_DIVISIBLE: return py_equal(vm, py_binary(vm, OP_MOD, v, x), v_int(0));
    case IS_EQ: return py_equal(vm, v, x);
    case IS_NE: return !py_equal(vm, v, x);
    case IS_LT: return py_order(vm, v, x) < 0;
    case IS_GT: return py_order(vm, v, x) == 1;
    case IS_LE: { int c = py_order(vm, v, x); return c <= 0; }
    case IS_GE: { int c = py_order(vm, v, x); return c == 0 || c == 1; }
    case IS_IN: return py_in(vm, v, x);
    case IS_ESCAPED: return v.type == V_STR && v.tag;
    case IS_EVEN: return py_equal(vm, py_binary(vm, OP_MOD, v, v_int(2)), v_int(0));
    case IS_ODD: return py_equal(vm, py_binary(vm, OP_MOD, v, v_int(2)), v_int(1));
    case IS_FALSE: return v.type == V_BOOL && !v.tag;
    case IS_TRUE: return v.type == V_BOOL && v.tag;
    case IS_FILTER: return v.type == V_STR && lib_knows(v.s.p, false);
    case IS_TEST: return v.type == V_STR && lib_knows(v.s.p, true);
    case IS_FLOAT: return v.type == V_FLOAT;
    case IS_INTEGER: return whole;
    case IS_NUMBER: return whole || v.type == V_FLOAT || v.type == V_BOOL;
    case IS_ITERABLE: return v.type == V_STR || v.type == V_LIST || v.type == V_DICT || v.type == V_UNDEFINED || (v.type == V_OTHER && v.tag == O_LOOP);
    case IS_SEQUENCE: return v.type == V_STR || (v.type == V_LIST && (v.tag <= LIST_TUPLE || v.tag == LIST_RANGE)) || v.type == V_DICT || v.type == V_UNDEFINED;
    case IS_LOWER: return is_case(vm, v, "islower");
    case IS_UPPER: return is_case(vm, v, "isupper");
    case IS_MAPPING: return v.type == V_DICT;
    case IS_NONE: return v.type == V_NONE;
    case IS_SAMEAS: return same(v, x);
    case IS_STRING: return v.type == V_STR;
    }
    return false;
}

/* --- functions --- */

static const char *const functions[] = { "range", "namespace", "dict", "raise_exception", "strftime_now", "cycler", "joiner" };

struct value lib_global(struct vm *vm, const char *name)
{
    for (size_t i = 0; i < COUNT(functions); i++)
        if (strcmp(functions[i], name) == 0) {
            struct function *f = pool_alloc(&vm->pool, sizeof *f);
            f->name = functions[i];
            return v_other(O_FUNCTION, f);
        }
    return v_undefined();
}

static struct value range(struct vm *vm, const struct args *a)
{
    args_check(vm, "range", a, 1, 3);
    int64_t first = a->plain->n > 1 ? int_arg(vm, a, 0, NULL, 0) : 0, end = int_arg(vm, a, a->plain->n > 1 ? 1 : 0, NULL, 0), step = int_arg(vm, a, 2, NULL, 1);
    struct value out = v_list(&vm->pool);
    if (step == 0) vm_fail(vm, "range() arg 3 must not be zero");
    for (int64_t i = first; step > 0 ? i < end : i > end;) {
        if (out.l->n == 100000) vm_fail(vm, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
        vm_step(vm, 1);
        list_add(&vm->pool, out.l, v_int(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    out.tag = LIST_RANGE;
    return out;
}

static struct value dict_from(struct vm *vm, const struct args *a, bool guarded)
{
    struct value out = v_dict(&vm->pool), from = arg_of(a, 0, NULL);
    if (from.type == V_DICT)
        for (size_t i = 0; i < from.d->n; i++) { vm_step(vm, 1); dict_push(&vm->pool, out.d, from.d->k[i], from.d->v[i]); }
    else if (from.type == V_OTHER && from.tag == O_NAMESPACE) vm_fail(vm, "a namespace is no mapping");
    else if (a->plain->n) {
        struct list *l = py_iter(vm, from);
        for (size_t i = 0; i < l->n; i++) {
            if (l->v[i].type != V_LIST || l->v[i].l->n != 2) vm_fail(vm, "dictionary update sequence element #%zu is no pair", i);
            vm_step(vm, (int64_t)out.d->n / 8 + 1);
            dict_set(&vm->pool, out.d, l->v[i].l->v[0], l->v[i].l->v[1]);
        }
    }
    for (size_t i = 0; i < a->named->n; i++) {
        vm_step(vm, (int64_t)(out.d->n / 8 + 1));
        dict_set(&vm->pool, out.d, a->named->k[i], a->named->v[i]);
    }
    for (size_t i = 0; guarded && i < out.d->n; i++)
        if (out.d->k[i].type == V_STR && out.d->k[i].s.n && out.d->k[i].s.p[0] == '_') vm_fail(vm, "Chat templates cannot store underscore-prefixed attributes on a namespace");
    return out;
}

struct value lib_function(struct vm *vm, const char *name, const struct args *a)
{
    if (strcmp(name, "range") == 0) return range(vm, a);
    if (strcmp(name, "namespace") == 0) return v_other(O_NAMESPACE, dict_from(vm, a, true).d);
    if (strcmp(name, "dict") == 0) return dict_from(vm, a, false);
    if (strcmp(name, "raise_exception") == 0) {
        struct text t = { 0 };
        py_str(vm, &t, arg_of(a, 0, "message"));
        vm_fail(vm, "%.*s", (int)(t.n < 800 ? t.n : 800), t.p ? t.p : "");
    }
    if (strcmp(name, "strftime_now") == 0) {
        struct value format = arg_of(a, 0, "format");
        char text[1024], *fmt;
        struct tm tm;
        time_t now = vm->now >= 0 ? (time_t)vm->now : time(NULL);
        if (format.type != V_STR) vm_fail(vm, "strftime_now() needs a format");
        fmt = pool_alloc(&vm->pool, format.s.n + 2);
        memcpy(fmt, format.s.p, format.s.n);
        fmt[format.s.n] = ' ';                                  /* so that an empty result is told from one too long */
        if (localtime_r(&now, &tm) == NULL) vm_fail(vm, "strftime_now: the clock is out of range");
        size_t n = strftime(text, sizeof text, fmt, &tm);
        if (n == 0) vm_fail(vm, "strftime_now: the result is too long");
        return str_new(vm, text, n - 1);
    }
    if (strcmp(name, "joiner") == 0) {
        struct value sep = arg_of(a, 0, "sep"), *j = pool_alloc(&vm->pool, 2 * sizeof *j);
        j[0] = sep.type == V_UNDEFINED ? v_cstr(", ") : sep;
        j[1] = v_bool(false);
        return v_other(O_JOINER, j);
    }
    struct cycler *c = pool_alloc(&vm->pool, sizeof *c);
    if (a->plain->n == 0) vm_fail(vm, "at least one item has to be provided");
    c->items = a->plain;
    return v_other(O_CYCLER, c);
}

struct value lib_method(struct vm *vm, const struct method *m, const struct args *a)
{
    struct value s = m->self;
#define IS(x) (strcmp(m->name, x) == 0)
    vm_step(vm, 1);
    if (s.type == V_STR) return str_method(vm, s, m->name, a);
    if (s.type == V_DICT) {
        if (IS("items")) return items_of(vm, s, 'i');
        if (IS("keys")) return items_of(vm, s, 'k');
        if (IS("values")) return items_of(vm, s, 'v');
        if (IS("copy")) { struct value one = v_list(&vm->pool); list_add(&vm->pool, one.l, s); struct args from = { one.l, v_dict(&vm->pool).d }; return dict_from(vm, &from, false); }
        if (IS("get")) {
            struct value key = arg_of(a, 0, NULL), other = arg_of(a, 1, NULL);
            args_check(vm, "get", a, 1, 2);
            if (key.type == V_LIST || key.type == V_DICT) vm_fail(vm, "unhashable type: '%s'", py_type(key));
            for (size_t i = 0; i < s.d->n; i++) if (py_equal(vm, s.d->k[i], key)) return s.d->v[i];
            return a->plain->n > 1 ? other : v_none();
        }
    }
    if (s.type == V_LIST) {
        if (IS("copy")) return copy_list(vm, s.l);
        if (IS("count") || IS("index")) {
            int64_t n = 0;
            for (size_t i = 0; i < s.l->n; i++)
                if (py_equal(vm, s.l->v[i], arg_of(a, 0, NULL))) { if (IS("index")) return v_int((int64_t)i); n++; }
            if (IS("index")) vm_fail(vm, "value is not in list");
            return v_int(n);
        }
    }
    if (s.type == V_OTHER && s.tag == O_LOOP) {
        struct loop *l = s.o;
        if (IS("cycle")) {
            if (a->plain->n == 0) vm_fail(vm, "no items for cycling given");
            return a->plain->v[l->i % a->plain->n];
        }
        struct value now = v_list(&vm->pool);
        *now.l = *a->plain;
        bool differs = !l->has_changed || !py_equal(vm, l->changed, now);
        l->changed = now;
        l->has_changed = true;
        return v_bool(differs);
    }
    if (s.type == V_OTHER && s.tag == O_CYCLER) {
        struct cycler *c = s.o;
        struct value now = c->items->v[c->i];
        c->i = IS("reset") ? 0 : (c->i + 1) % c->items->n;
        return IS("reset") ? v_none() : now;
    }
    vm_fail(vm, "access to '%s' of %s is refused: templates cannot change values", m->name, py_type(s));
#undef IS
}
