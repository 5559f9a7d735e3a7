/* jinja_text.c - Python's str on UTF-8: lengths and indexes count code points, white space and case are Unicode's. */
#include <ctype.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <wctype.h>

#include "worker/data/jinja_ast.h"
#include "worker/data/unicode.h"

size_t u8_len(const char *p)
{
    unsigned char c = (unsigned char)*p;
    return c < 0xC0 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

uint32_t u8_get(const char *p)
{
    const unsigned char *s = (const unsigned char *)p;
    switch (u8_len(p)) {
    case 1: return s[0];
    case 2: return (uint32_t)(s[0] & 31) << 6 | (s[1] & 63);
    case 3: return (uint32_t)(s[0] & 15) << 12 | (uint32_t)(s[1] & 63) << 6 | (s[2] & 63);
    default: return (uint32_t)(s[0] & 7) << 18 | (uint32_t)(s[1] & 63) << 12 | (uint32_t)(s[2] & 63) << 6 | (s[3] & 63);
    }
}

size_t u8_put(char out[4], uint32_t c)
{
    if (c < 0x80) { out[0] = (char)c; return 1; }
    if (c < 0x800) { out[0] = (char)(0xC0 | c >> 6); out[1] = (char)(0x80 | (c & 63)); return 2; }
    if (c < 0x10000) { out[0] = (char)(0xE0 | c >> 12); out[1] = (char)(0x80 | (c >> 6 & 63)); out[2] = (char)(0x80 | (c & 63)); return 3; }
    out[0] = (char)(0xF0 | c >> 18); out[1] = (char)(0x80 | (c >> 12 & 63)); out[2] = (char)(0x80 | (c >> 6 & 63)); out[3] = (char)(0x80 | (c & 63));
    return 4;
}

size_t u8_count(const char *p, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += (p[i] & 0xC0) != 0x80;
    return count;
}

size_t u8_offset(const char *p, size_t n, int64_t at)
{
    size_t i = 0;
    for (; i < n && at > 0; at--) i += u8_len(p + i);
    return i < n ? i : n;
}

bool u8_space(uint32_t c)       /* str.isspace(): also U+001C..1F, which Unicode's White_Space leaves out; not U+FEFF */
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A)
        || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* The C library's tables of its UTF-8 locale: always there, and no second Unicode library is needed for letters' case. */
static locale_t utf8_locale;
static void open_locale(void)
{
    utf8_locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (utf8_locale == (locale_t)0) utf8_locale = newlocale(LC_CTYPE_MASK, "C", (locale_t)0);
}
static locale_t locale_here(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, open_locale);
    return utf8_locale;
}
static uint32_t upper(uint32_t c) { return (uint32_t)towupper_l((wint_t)c, locale_here()); }
static uint32_t lower(uint32_t c) { return (uint32_t)towlower_l((wint_t)c, locale_here()); }
static bool is_upper(uint32_t c) { return iswupper_l((wint_t)c, locale_here()); }
static bool is_lower(uint32_t c) { return iswlower_l((wint_t)c, locale_here()); }
static bool is_digit(uint32_t c) { return (c >= '0' && c <= '9') || (c >= 0x80 && iswdigit_l((wint_t)c, locale_here())); }
static bool is_alpha(uint32_t c) { return c < 0x80 ? isalpha((int)c) : iswalpha_l((wint_t)c, locale_here()) && !is_digit(c); }

bool u8_printable(uint32_t c)
{
    if (c < 0x7F) return c >= 0x20;
    if (c < 0xA1 || c == 0xAD || u8_space(c)) return false;
    if ((c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB)) return false;
    if ((c >= 0xE000 && c <= 0xF8FF) || c >= 0xE0000) return c >= 0xE0100 && c <= 0xE01EF;
    return iswprint_l((wint_t)c, locale_here());
}

bool u8_word(uint32_t c) { return c == '_' || is_alpha(c) || is_digit(c) || (c >= 0x80 && cp_is_numeric(c)); }

struct value str_new(struct vm *vm, const char *p, size_t n) { return v_str(pool_strndup(&vm->pool, p, n), n); }

static struct value part(struct value of, const char *p, size_t n)
{
    struct value v = v_str(p, n);
    v.tag = of.tag;
    return v;
}

struct value str_strip(struct vm *vm, struct value s, struct value chars, bool left, bool right)
{
    const char *a = s.s.p, *b = s.s.p + s.s.n;
    vm_step(vm, 1);
    if (chars.type == V_NONE) chars = v_undefined();
    if (chars.type != V_UNDEFINED && chars.type != V_STR) vm_fail(vm, "strip arg must be None or str, not %s", py_type(chars));
    bool space = chars.type == V_UNDEFINED;
    if (!space) vm_step(vm, (int64_t)(s.s.n / 64 * (chars.s.n / 64)));
    while (left && a < b && (space ? u8_space(u8_get(a)) : memmem(chars.s.p, chars.s.n, a, u8_len(a)) != NULL)) a += u8_len(a);
    while (right && b > a) {
        const char *c = b - 1;
        while (c > a && (*c & 0xC0) == 0x80) c--;
        if (!(space ? u8_space(u8_get(c)) : memmem(chars.s.p, chars.s.n, c, (size_t)(b - c)) != NULL)) break;
        b = c;
    }
    return part(s, a, (size_t)(b - a));
}

struct value str_case(struct vm *vm, struct value s, char how)
{
    struct text t = { 0 };
    bool start = true;
    vm_step(vm, (int64_t)(s.s.n / 8));
    for (size_t i = 0; i < s.s.n; i += u8_len(s.s.p + i)) {
        uint32_t c = u8_get(s.s.p + i);
        bool up = how == 'u' || ((how == 't' || how == 'T' || how == 'c') && start) || (how == 's' && is_lower(c));
        bool down = how == 'l' || ((how == 't' || how == 'T' || how == 'c') && !start) || (how == 's' && is_upper(c));
        if (how == 't') start = !(is_upper(c) || is_lower(c));
        else if (how == 'T') start = u8_space(c) || (c < 0x80 && strchr("-({[<", (int)c) && c);
        else start = false;
        char out[8];
        size_t n;
        if (up && c == 0xDF) { memcpy(out, how == 'u' ? "SS" : "Ss", 2); n = 2; }
        else n = u8_put(out, up ? upper(c) : down ? lower(c) : c);
        text_add(vm, &t, out, n);
    }
    return part(s, t.p ? t.p : "", t.n);
}

struct value str_escape(struct vm *vm, struct value s)
{
    struct text t = { 0 };
    for (size_t i = 0; i < s.s.n; i++) {
        char c = s.s.p[i];
        const char *e = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '\'' ? "&#39;" : c == '"' ? "&#34;" : NULL;
        if (e) text_add(vm, &t, e, strlen(e));
        else text_add(vm, &t, &c, 1);
    }
    struct value v = v_str(t.p ? t.p : "", t.n);
    v.tag = 1;
    return v;
}

struct value str_replace(struct vm *vm, struct value s, struct value from, struct value to, int64_t count)
{
    struct text t = { 0 };
    if (from.type != V_STR || to.type != V_STR) vm_fail(vm, "replace() argument must be str, not %s", py_type(from.type != V_STR ? from : to));
    vm_step(vm, (int64_t)(s.s.n / 16));
    const char *p = s.s.p, *end = p + s.s.n;
    while (count != 0) {
        vm_step(vm, 1);
        if (from.s.n == 0) {                                    /* between all characters */
            text_add(vm, &t, to.s.p, to.s.n);
            count--;
            if (p >= end) break;
            text_add(vm, &t, p, u8_len(p));
            p += u8_len(p);
            continue;
        }
        const char *hit = p < end ? memmem(p, (size_t)(end - p), from.s.p, from.s.n) : NULL;
        if (hit == NULL) break;
        text_add(vm, &t, p, (size_t)(hit - p));
        text_add(vm, &t, to.s.p, to.s.n);
        p = hit + from.s.n;
        count--;
    }
    if (p < end) text_add(vm, &t, p, (size_t)(end - p));
    return part(s, t.p ? t.p : "", t.n);
}

/* --- methods --- */

static const char *const methods[] = {
    "capitalize", "casefold", "center", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
    "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix",
    "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title",
    "upper", "zfill", "encode", "expandtabs", "translate", "isidentifier", "isprintable", "maketrans", "format_map" };

bool str_has_method(const char *name)
{
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (strcmp(methods[i], name) == 0) return true;
    return false;
}

static void add_item(struct vm *vm, struct list *l, struct value of, const char *p, size_t n)
{
    vm_step(vm, 1);
    list_add(&vm->pool, l, part(of, p, n));
}

static struct value split_space(struct vm *vm, struct value s, int64_t most, bool right)
{
    struct value out = v_list(&vm->pool);
    const char *a = s.s.p, *b = a + s.s.n;
    if (right && most >= 0) {
        struct value parts = v_list(&vm->pool);
        while (most-- != 0) {
            struct value rest = str_strip(vm, v_str(a, (size_t)(b - a)), v_undefined(), false, true);
            b = rest.s.p + rest.s.n;
            const char *w = b;
            while (w > a) {
                const char *c = w - 1;
                while (c > a && (*c & 0xC0) == 0x80) c--;
                if (u8_space(u8_get(c))) break;
                w = c;
            }
            if (w == b) break;
            add_item(vm, parts.l, s, w, (size_t)(b - w));
            b = w;
        }
        struct value rest = str_strip(vm, v_str(a, (size_t)(b - a)), v_undefined(), false, true);
        if (rest.s.n) add_item(vm, parts.l, s, rest.s.p, rest.s.n);
        for (size_t i = parts.l->n; i > 0; i--) list_add(&vm->pool, out.l, parts.l->v[i - 1]);
        return out;
    }
    while (true) {
        while (a < b && u8_space(u8_get(a))) a += u8_len(a);
        if (a >= b) return out;
        if (most-- == 0) { add_item(vm, out.l, s, a, (size_t)(b - a)); return out; }    /* the rest keeps its trailing space */
        const char *w = a;
        while (a < b && !u8_space(u8_get(a))) a += u8_len(a);
        add_item(vm, out.l, s, w, (size_t)(a - w));
    }
}

static const char *find_last(struct vm *vm, const char *p, size_t n, struct value what)
{
    if (what.s.n == 0) return p + n;
    for (size_t i = n >= what.s.n ? n - what.s.n + 1 : 0; i > 0; i--) {
        if (p[i - 1] != what.s.p[0]) continue;
        vm_step(vm, 1 + (int64_t)(what.s.n / 64));
        if (memcmp(p + i - 1, what.s.p, what.s.n) == 0) return p + i - 1;
    }
    return NULL;
}

static struct value split(struct vm *vm, struct value s, struct value sep, int64_t most, bool right)
{
    if (sep.type == V_NONE || sep.type == V_UNDEFINED) return split_space(vm, s, most, right);
    if (sep.type != V_STR) vm_fail(vm, "must be str or None, not %s", py_type(sep));
    if (sep.s.n == 0) vm_fail(vm, "empty separator");
    vm_step(vm, (int64_t)(s.s.n / 16));
    struct value out = v_list(&vm->pool);
    const char *a = s.s.p, *b = a + s.s.n;
    if (right && most >= 0) {
        struct value parts = v_list(&vm->pool);
        for (const char *hit; most-- != 0 && (hit = find_last(vm, a, (size_t)(b - a), sep)) != NULL; b = hit)
            add_item(vm, parts.l, s, hit + sep.s.n, (size_t)(b - hit) - sep.s.n);
        add_item(vm, parts.l, s, a, (size_t)(b - a));
        for (size_t i = parts.l->n; i > 0; i--) list_add(&vm->pool, out.l, parts.l->v[i - 1]);
        return out;
    }
    for (const char *hit; most-- != 0 && (hit = memmem(a, (size_t)(b - a), sep.s.p, sep.s.n)) != NULL; a = hit + sep.s.n)
        add_item(vm, out.l, s, a, (size_t)(hit - a));
    add_item(vm, out.l, s, a, (size_t)(b - a));
    return out;
}

static struct value splitlines(struct vm *vm, struct value s, bool keep)
{
    struct value out = v_list(&vm->pool);
    for (const char *a = s.s.p, *end = a + s.s.n; a < end;) {
        const char *p = a, *next;
        while (p < end) {
            uint32_t c = u8_get(p);
            if ((c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029) break;
            p += u8_len(p);
        }
        next = p < end ? p + (*p == '\r' && p + 1 < end && p[1] == '\n' ? 2 : u8_len(p)) : p;
        add_item(vm, out.l, s, a, (size_t)((keep ? next : p) - a));
        a = next;
    }
    return out;
}

static bool affix(struct vm *vm, struct value s, struct value with, bool end, const char *name)
{
    if (with.type == V_LIST && with.tag == 1) {
        for (size_t i = 0; i < with.l->n; i++)
            if (affix(vm, s, with.l->v[i], end, name)) return true;
        return false;
    }
    if (with.type != V_STR) vm_fail(vm, "%s first arg must be str or a tuple of str, not %s", name, py_type(with));
    return with.s.n <= s.s.n && memcmp(end ? s.s.p + s.s.n - with.s.n : s.s.p, with.s.p, with.s.n) == 0;
}

static struct value window(struct vm *vm, struct value s, struct value from, struct value to)
{
    if (from.type == V_UNDEFINED && to.type == V_UNDEFINED) return s;
    if (from.type == V_UNDEFINED) from = v_none();
    if (to.type == V_UNDEFINED) to = v_none();
    return py_slice(vm, s, from, to, v_none());
}

static struct value pad(struct vm *vm, struct value s, int64_t width, struct value fill, char side)
{
    int64_t n = (int64_t)u8_count(s.s.p, s.s.n), more = width > n ? width - n : 0, left = side == 'r' ? more : side == 'c' ? more / 2 + (more & width & 1) : 0;
    struct text t = { 0 };
    if (fill.type == V_UNDEFINED) fill = v_cstr(" ");
    if (fill.type != V_STR || u8_count(fill.s.p, fill.s.n) != 1) vm_fail(vm, "the fill character must be exactly one character long");
    if (more > (int64_t)vm->out_max) vm_fail(vm, "padding makes too large a value");
    vm_step(vm, more);
    for (int64_t i = 0; i < left; i++) text_add(vm, &t, fill.s.p, fill.s.n);
    text_add(vm, &t, s.s.p, s.s.n);
    for (int64_t i = left; i < more; i++) text_add(vm, &t, fill.s.p, fill.s.n);
    return part(s, t.p ? t.p : "", t.n);
}

/* "{} {0} {name} {{": fields without conversions or format specs. */
static struct value format_braces(struct vm *vm, struct value s, const struct args *args)
{
    struct text t = { 0 };
    size_t next = 0;
    for (size_t i = 0; i < s.s.n; i++) {
        char c = s.s.p[i];
        if ((c == '{' || c == '}') && i + 1 < s.s.n && s.s.p[i + 1] == c) { text_add(vm, &t, &c, 1); i++; continue; }
        if (c == '}') vm_fail(vm, "Single '}' encountered in format string");
        if (c != '{') { text_add(vm, &t, &c, 1); continue; }
        const char *close = memchr(s.s.p + i, '}', s.s.n - i);
        if (close == NULL) vm_fail(vm, "expected '}' before end of string");
        char *name = pool_strndup(&vm->pool, s.s.p + i + 1, (size_t)(close - s.s.p) - i - 1);
        struct value v;
        if (strpbrk(name, ".[:!{")) vm_fail(vm, "format fields with attributes or format specs are not supported");
        char *end;
        long at = strtol(name, &end, 10);
        if (*name == '\0' || *end == '\0') {
            size_t k = *name ? (size_t)at : next++;
            if (k >= args->plain->n) vm_fail(vm, "Replacement index %zu out of range for positional args tuple", k);
            v = args->plain->v[k];
        } else {
            struct value *found = dict_find(args->named, name);
            if (found == NULL) vm_fail(vm, "format: no argument '%.60s'", name);
            v = *found;
        }
        py_str(vm, &t, v);
        i = (size_t)(close - s.s.p);
    }
    return part(s, t.p ? t.p : "", t.n);
}

struct value str_format(struct vm *vm, struct value fmt, struct value args)
{
    struct text t = { 0 };
    struct list one = { &args, 1, 1 }, *list = args.type == V_LIST && args.tag == 1 ? args.l : &one;
    size_t used = 0;
    bool by_name = false;
    for (size_t i = 0; i < fmt.s.n; i++) {
        if (fmt.s.p[i] != '%') { text_add(vm, &t, fmt.s.p + i, 1); continue; }
        char spec[32] = "%";
        size_t n = 1;
        struct value v = v_undefined();
        bool have = false;
        if (++i < fmt.s.n && fmt.s.p[i] == '%') { text_add(vm, &t, "%", 1); continue; }
        if (i < fmt.s.n && fmt.s.p[i] == '(') {
            const char *close = memchr(fmt.s.p + i, ')', fmt.s.n - i);
            if (close == NULL || args.type != V_DICT) vm_fail(vm, "format requires a mapping");
            v = py_item(vm, args, v_str(fmt.s.p + i + 1, (size_t)(close - fmt.s.p) - i - 1));
            have = by_name = true;
            i = (size_t)(close - fmt.s.p) + 1;
        }
        while (i < fmt.s.n && n < 20 && strchr("-+ #0123456789.", fmt.s.p[i]) && fmt.s.p[i]) spec[n++] = fmt.s.p[i++];
        if (i >= fmt.s.n) vm_fail(vm, "incomplete format");
        if (strtol(spec + 1 + strcspn(spec + 1, "123456789"), NULL, 10) > 10000) vm_fail(vm, "format field is too wide");
        if (!have) {
            if (used >= list->n) vm_fail(vm, "not enough arguments for format string");
            v = list->v[used++];
        }
        char c = fmt.s.p[i], *out = NULL;
        if (c == 's' || c == 'r') {
            struct text x = { 0 };
            if (c == 's') py_str(vm, &x, v); else py_repr(vm, &x, v);
            struct value s = v_str(x.p ? x.p : "", x.n);
            char *dot = strchr(spec, '.');
            if (dot) { s.s.n = u8_offset(s.s.p, s.s.n, atoi(dot + 1)); *dot = '\0'; }
            int width = atoi(spec + 1 + strspn(spec + 1, "+ #0"));
            s = pad(vm, s, width < 0 ? -width : width, v_undefined(), width < 0 ? 'l' : 'r');
            text_add(vm, &t, s.s.p, s.s.n);
            continue;
        }
        vm_need_defined(vm, v);
        if (strchr("diuxXo", c) && c) {
            if (v.type == V_FLOAT && strchr("diu", c) && v.f > -9e18 && v.f < 9e18) v = v_int((int64_t)v.f);
            int64_t k = py_index(vm, v, "format");
            (void)snprintf(spec + n, sizeof spec - n, "ll%c", c == 'u' || c == 'i' ? 'd' : c);
            if (k < 0 && strchr("xXo", c)) vm_fail(vm, "format of a negative number is not supported");
            out = pool_alloc(&vm->pool, 10100);
            (void)snprintf(out, 10100, spec, (long long)k);
        } else if (strchr("eEfFgG", c) && c) {
            if (v.type != V_FLOAT) v = (struct value){ .type = V_FLOAT, .f = (double)py_index(vm, v, "format") };
            spec[n] = c;
            spec[n + 1] = '\0';
            out = pool_alloc(&vm->pool, 10500);
            (void)snprintf(out, 10500, spec, v.f);
        } else vm_fail(vm, "unsupported format character '%c'", c);
        text_add(vm, &t, out, strlen(out));
    }
    if (!by_name && used < list->n && !(list == &one && (args.type == V_DICT || (args.type == V_LIST && args.tag != LIST_ITERATOR) || args.type == V_UNDEFINED)))    /* what could be a mapping */
        vm_fail(vm, "not all arguments converted during string formatting");
    return part(fmt, t.p ? t.p : "", t.n);
}

static bool all(struct value s, bool (*what)(uint32_t c))
{
    for (size_t i = 0; i < s.s.n; i += u8_len(s.s.p + i))
        if (!what(u8_get(s.s.p + i))) return false;
    return s.s.n > 0;
}
static bool alnum(uint32_t c) { return is_alpha(c) || is_digit(c); }
static bool ascii(uint32_t c) { return c < 0x80; }

static bool cased(struct value s, bool upper_case)
{
    bool any = false;
    for (size_t i = 0; i < s.s.n; i += u8_len(s.s.p + i)) {
        uint32_t c = u8_get(s.s.p + i);
        if (upper_case ? is_lower(c) : is_upper(c)) return false;
        any |= upper_case ? is_upper(c) : is_lower(c);
    }
    return any;
}

struct value str_method(struct vm *vm, struct value s, const char *name, const struct args *args)
{
#define IS(x) (strcmp(name, x) == 0)
    struct value a = arg_of(args, 0, NULL), b = arg_of(args, 1, NULL), c = arg_of(args, 2, NULL);
    vm_step(vm, 1);
    if (IS("upper")) return str_case(vm, s, 'u');
    if (IS("lower") || IS("casefold")) return str_case(vm, s, 'l');
    if (IS("title")) return str_case(vm, s, 't');
    if (IS("capitalize")) return str_case(vm, s, 'c');
    if (IS("swapcase")) return str_case(vm, s, 's');
    if (IS("strip")) return str_strip(vm, s, a, true, true);
    if (IS("lstrip")) return str_strip(vm, s, a, true, false);
    if (IS("rstrip")) return str_strip(vm, s, a, false, true);
    if (IS("split") || IS("rsplit")) {
        struct value sep = arg_of(args, 0, "sep"), most = arg_of(args, 1, "maxsplit");
        return split(vm, s, sep, most.type == V_UNDEFINED ? -1 : py_index(vm, most, "maxsplit"), IS("rsplit"));
    }
    if (IS("splitlines")) return splitlines(vm, s, py_true(arg_of(args, 0, "keepends")));
    if (IS("startswith") || IS("endswith")) { s = window(vm, s, b, c); return v_bool(affix(vm, s, a, IS("endswith"), name)); }
    if (IS("removeprefix") || IS("removesuffix")) {
        if (!affix(vm, s, a, IS("removesuffix"), name)) return s;
        return part(s, IS("removeprefix") ? s.s.p + a.s.n : s.s.p, s.s.n - a.s.n);
    }
    if (IS("replace")) {
        struct value count = arg_of(args, 2, "count");
        return str_replace(vm, s, a, b, count.type == V_UNDEFINED ? -1 : py_index(vm, count, "count"));
    }
    if (IS("join")) {
        struct text t = { 0 };
        struct list *l = py_iter(vm, a);
        vm_need_defined(vm, a);
        for (size_t i = 0; i < l->n; i++) {
            if (l->v[i].type != V_STR) vm_fail(vm, "sequence item %zu: expected str instance, %s found", i, py_type(l->v[i]));
            vm_step(vm, 1);
            if (i) text_add(vm, &t, s.s.p, s.s.n);
            text_add(vm, &t, l->v[i].s.p, l->v[i].s.n);
        }
        return v_str(t.p ? t.p : "", t.n);
    }
    if (IS("find") || IS("rfind") || IS("index") || IS("rindex") || IS("count")) {
        struct value w = window(vm, s, b, c);
        if (a.type != V_STR) vm_fail(vm, "must be str, not %s", py_type(a));
        vm_step(vm, (int64_t)(s.s.n / 16));
        if (IS("count")) {
            int64_t n = 0;
            if (a.s.n == 0) return v_int((int64_t)u8_count(w.s.p, w.s.n) + 1);
            for (const char *p = w.s.p, *end = p + w.s.n, *hit; p < end && (hit = memmem(p, (size_t)(end - p), a.s.p, a.s.n)) != NULL; p = hit + a.s.n) n++;
            return v_int(n);
        }
        const char *hit = name[0] == 'r' ? find_last(vm, w.s.p, w.s.n, a) : a.s.n == 0 ? w.s.p : memmem(w.s.p, w.s.n, a.s.p, a.s.n);
        if (hit) return v_int((int64_t)u8_count(s.s.p, (size_t)(hit - s.s.p)));
        if (IS("index") || IS("rindex")) vm_fail(vm, "substring not found");
        return v_int(-1);
    }
    if (IS("partition") || IS("rpartition")) {
        if (a.type != V_STR || a.s.n == 0) vm_fail(vm, "empty separator");
        const char *hit = IS("partition") ? memmem(s.s.p, s.s.n, a.s.p, a.s.n) : find_last(vm, s.s.p, s.s.n, a);
        struct value out = v_list(&vm->pool);
        out.tag = 1;
        list_add(&vm->pool, out.l, hit ? part(s, s.s.p, (size_t)(hit - s.s.p)) : IS("partition") ? s : v_cstr(""));
        list_add(&vm->pool, out.l, hit ? a : v_cstr(""));
        list_add(&vm->pool, out.l, hit ? part(s, hit + a.s.n, s.s.n - (size_t)(hit - s.s.p) - a.s.n) : IS("partition") ? v_cstr("") : s);
        return out;
    }
    if (IS("center") || IS("ljust") || IS("rjust")) return pad(vm, s, py_index(vm, a, "width"), b, IS("center") ? 'c' : IS("rjust") ? 'r' : 'l');
    if (IS("zfill")) {
        bool sign = s.s.n && (*s.s.p == '-' || *s.s.p == '+');
        int64_t width = py_index(vm, a, "width");
        struct value digits = pad(vm, part(s, s.s.p + sign, s.s.n - sign), width - sign, v_cstr("0"), 'r');
        if (!sign) return digits;
        return py_binary(vm, OP_ADD, part(s, s.s.p, 1), digits);
    }
    if (IS("format")) return format_braces(vm, s, args);
    if (IS("isspace")) return v_bool(all(s, u8_space));
    if (IS("isalpha")) return v_bool(all(s, is_alpha));
    if (IS("isalnum")) return v_bool(all(s, alnum));
    if (IS("isdigit") || IS("isdecimal")) return v_bool(all(s, is_digit));
    if (IS("isnumeric")) return v_bool(all(s, cp_is_numeric));
    if (IS("isascii")) return v_bool(s.s.n == 0 || all(s, ascii));
    if (IS("isprintable")) return v_bool(s.s.n == 0 || all(s, u8_printable));
    if (IS("isupper")) return v_bool(cased(s, true));
    if (IS("islower")) return v_bool(cased(s, false));
    vm_fail(vm, "str.%s is not supported", name);
#undef IS
}
