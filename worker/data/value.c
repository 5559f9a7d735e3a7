/* value.c - values and the pool they live in (value.h). */
#include "worker/data/value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pool_block { struct pool_block *next; size_t used, cap; _Alignas(16) char data[]; };

void *pool_alloc(struct pool *p, size_t bytes)
{
    if (bytes > SIZE_MAX / 4) { (void)fputs("ringmaster: absurd allocation\n", stderr); abort(); }
    bytes = (bytes + 15) & ~(size_t)15;
    if (p->limit && (bytes > p->limit || p->used > p->limit - bytes)) p->full(p->arg);
    p->used += bytes;
    struct pool_block *b = p->head;
    if (b == NULL || b->cap - b->used < bytes) {
        size_t cap = b == NULL ? 4096 : b->cap < 1u << 20 ? b->cap * 2 : 1u << 20;
        if (cap < bytes) cap = bytes;
        struct pool_block *fresh = xmalloc(sizeof *fresh + cap);
        *fresh = (struct pool_block){ b, 0, cap };
        p->head = b = fresh;
    }
    void *at = b->data + b->used;
    b->used += bytes;
    return memset(at, 0, bytes);
}

char *pool_strndup(struct pool *p, const char *s, size_t n)
{
    char *copy = pool_alloc(p, n + 1);
    if (n) memcpy(copy, s, n);
    return copy;
}

void pool_release(struct pool *p)
{
    for (struct pool_block *b = p->head; b != NULL;) {
        struct pool_block *next = b->next;
        free(b);
        b = next;
    }
    p->head = NULL;
    p->used = 0;
}

struct value v_str(const char *p, size_t n) { return (struct value){ .type = V_STR, .s = { p, n } }; }
struct value v_cstr(const char *p) { return v_str(p, strlen(p)); }
struct value v_int(int64_t i) { return (struct value){ .type = V_INT, .i = i }; }
struct value v_bool(bool b) { return (struct value){ .type = V_BOOL, .tag = b }; }
struct value v_none(void) { return (struct value){ .type = V_NONE }; }
struct value v_undefined(void) { return (struct value){ .type = V_UNDEFINED, .s = { NULL, 0 } }; }
struct value v_list(struct pool *p) { return (struct value){ .type = V_LIST, .l = pool_alloc(p, sizeof(struct list)) }; }
struct value v_dict(struct pool *p) { return (struct value){ .type = V_DICT, .d = pool_alloc(p, sizeof(struct dict)) }; }

static void *grown(struct pool *p, const void *old, size_t n, size_t cap)
{
    struct value *fresh = pool_alloc(p, cap * sizeof *fresh);
    if (n) memcpy(fresh, old, n * sizeof *fresh);
    return fresh;
}

void list_add(struct pool *p, struct list *l, struct value v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        l->v = grown(p, l->v, l->n, cap);
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

static bool key_equal(struct value a, struct value b)
{
    if (a.type != b.type) return false;
    switch (a.type) {
    case V_STR: case V_BIG: return a.s.n == b.s.n && (a.s.n == 0 || memcmp(a.s.p, b.s.p, a.s.n) == 0);
    case V_INT: return a.i == b.i;
    case V_FLOAT: return a.f == b.f;
    case V_BOOL: return a.tag == b.tag;
    case V_NONE: return true;
    default: return false;
    }
}

void dict_push(struct pool *p, struct dict *d, struct value key, struct value v)
{
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        d->k = grown(p, d->k, d->n, cap);
        d->v = grown(p, d->v, d->n, cap);
        d->cap = cap;
    }
    d->k[d->n] = key;
    d->v[d->n++] = v;
}

void dict_set(struct pool *p, struct dict *d, struct value key, struct value v)
{
    for (size_t i = 0; i < d->n; i++)
        if (key_equal(d->k[i], key)) { d->v[i] = v; return; }
    dict_push(p, d, key, v);
}

struct value *dict_find(const struct dict *d, const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < d->n; i++)
        if (d->k[i].type == V_STR && d->k[i].s.n == n && memcmp(d->k[i].s.p, key, n) == 0) return &d->v[i];
    return NULL;
}

struct value value_get(struct value v, const char *key)
{
    struct value *found = v.type == V_DICT ? dict_find(v.d, key) : NULL;
    return found ? *found : v_undefined();
}

bool value_is_str(struct value v, const char *s)
{
    return v.type == V_STR && v.s.n == strlen(s) && memcmp(v.s.p, s, v.s.n) == 0;
}

const char *value_kind(struct value v)
{
    static const char *const names[] = { "nothing", "null", "a boolean", "a number", "a number", "a number", "a string", "an array", "an object", "a template object" };
    return names[v.type];
}

/* --- JSON: the text has passed json_check, so this reader only builds --- */

struct reader { const char *p, *end; struct pool *pool; };

static void skip_space(struct reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r')) r->p++;
}

static unsigned hex4(const char *p)
{
    unsigned v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        v = v << 4 | (unsigned)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return v;
}

static size_t put_utf8(char *out, uint32_t c)
{
    if (c < 0x80) { out[0] = (char)c; return 1; }
    if (c < 0x800) { out[0] = (char)(0xC0 | c >> 6); out[1] = (char)(0x80 | (c & 63)); return 2; }
    if (c < 0x10000) { out[0] = (char)(0xE0 | c >> 12); out[1] = (char)(0x80 | (c >> 6 & 63)); out[2] = (char)(0x80 | (c & 63)); return 3; }
    out[0] = (char)(0xF0 | c >> 18); out[1] = (char)(0x80 | (c >> 12 & 63)); out[2] = (char)(0x80 | (c >> 6 & 63)); out[3] = (char)(0x80 | (c & 63));
    return 4;
}

static struct value read_string(struct reader *r)
{
    const char *start = ++r->p;
    while (*r->p != '"') r->p += *r->p == '\\' ? 2 : 1;
    char *out = pool_alloc(r->pool, (size_t)(r->p - start) + 1);    /* an escape is never shorter than what it stands for */
    size_t n = 0;
    for (const char *p = start; p < r->p;) {
        if (*p != '\\') { out[n++] = *p++; continue; }
        char e = p[1];
        p += 2;
        switch (e) {
        case 'b': out[n++] = '\b'; break;
        case 'f': out[n++] = '\f'; break;
        case 'n': out[n++] = '\n'; break;
        case 'r': out[n++] = '\r'; break;
        case 't': out[n++] = '\t'; break;
        case 'u': {
            uint32_t c = hex4(p);
            p += 4;
            if (c >= 0xD800 && c <= 0xDBFF) { c = 0x10000 + ((c - 0xD800) << 10) + (hex4(p + 2) - 0xDC00); p += 6; }
            n += put_utf8(out + n, c);
            break;
        }
        default: out[n++] = e; break;
        }
    }
    r->p++;
    return v_str(out, n);
}

static struct value read_number(struct reader *r)
{
    const char *start = r->p;
    bool whole = true;
    while (r->p < r->end && strchr("+-0123456789.eE", *r->p) != NULL && *r->p != '\0') {
        if (*r->p == '.' || *r->p == 'e' || *r->p == 'E') whole = false;
        r->p++;
    }
    size_t n = (size_t)(r->p - start);
    char *text = pool_strndup(r->pool, start, n);
    if (!whole) return (struct value){ .type = V_FLOAT, .f = strtod(text, NULL) };
    if (n < 19) return v_int(strtoll(text, NULL, 10));
    return (struct value){ .type = V_BIG, .s = { text, n } };
}

static struct value read_value(struct reader *r)
{
    skip_space(r);
    switch (*r->p) {
    case '"': return read_string(r);
    case 't': r->p += 4; return v_bool(true);
    case 'f': r->p += 5; return v_bool(false);
    case 'n': r->p += 4; return v_none();
    case '[': {
        struct value out = v_list(r->pool);
        r->p++;
        for (skip_space(r); *r->p != ']'; skip_space(r)) {
            if (*r->p == ',') { r->p++; continue; }
            list_add(r->pool, out.l, read_value(r));
        }
        r->p++;
        return out;
    }
    case '{': {
        struct value out = v_dict(r->pool);
        r->p++;
        for (skip_space(r); *r->p != '}'; skip_space(r)) {
            if (*r->p == ',') { r->p++; continue; }
            struct value key = read_string(r);
            skip_space(r);
            r->p++;                                             /* ':' */
            struct value v = read_value(r);
            dict_push(r->pool, out.d, key, v);
        }
        r->p++;
        return out;
    }
    default: return read_number(r);
    }
}

int value_parse(struct value *out, struct pool *p, const char *text, size_t len, const struct json_limits *lim, struct error *err)
{
    *out = v_undefined();
    int rc = json_check(text, len, lim, true, err);
    if (rc != OK) return rc;
    struct reader r = { text, text + len, p };
    *out = read_value(&r);
    return OK;
}

/* --- text --- */

void buf_add(struct buf *b, const char *s, size_t n)
{
    if (b->cap - b->n < n + 1) {
        size_t cap = b->cap ? b->cap : 256;
        while (cap - b->n < n + 1) cap *= 2;
        b->p = xrealloc(b->p, cap);
        b->cap = cap;
    }
    if (n) memcpy(b->p + b->n, s, n);
    b->n += n;
    b->p[b->n] = '\0';
}

void buf_str(struct buf *b, const char *s) { buf_add(b, s, strlen(s)); }

void buf_release(struct buf *b)
{
    free(b->p);
    *b = (struct buf){ 0 };
}

void float_repr(double v, char out[32])
{
    if (isnan(v)) { memcpy(out, "nan", 4); return; }
    if (isinf(v)) { memcpy(out, v > 0 ? "inf" : "-inf", v > 0 ? 4 : 5); return; }
    char e[40];
    int digits = 1;
    for (; digits < 17; digits++) {                     /* fewest digits that read back the same */
        (void)snprintf(e, sizeof e, "%.*e", digits - 1, v);
        if (strtod(e, NULL) == v) break;
    }
    (void)snprintf(e, sizeof e, "%.*e", digits - 1, v);
    int exp = atoi(strchr(e, 'e') + 1);
    if (exp < -4 || exp >= 16) {                        /* Python: 1e-05, 1e+16, 1.5e+16 */
        char mantissa[32];
        size_t n = (size_t)(strchr(e, 'e') - e);
        memcpy(mantissa, e, n);
        mantissa[n] = '\0';
        (void)snprintf(out, 32, "%.24se%c%02d", mantissa, exp < 0 ? '-' : '+', abs(exp));
        return;
    }
    int decimals = digits - 1 - exp;
    (void)snprintf(out, 32, "%.*f", decimals > 0 ? decimals : 1, v);
}

static void dump_string(struct buf *b, const char *s, size_t n)
{
    buf_add(b, "\"", 1);
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        buf_add(b, s + from, i - from);
        from = i + 1;
        char esc[8];
        switch (c) {
        case '"': buf_str(b, "\\\""); break;
        case '\\': buf_str(b, "\\\\"); break;
        case '\n': buf_str(b, "\\n"); break;
        case '\r': buf_str(b, "\\r"); break;
        case '\t': buf_str(b, "\\t"); break;
        case '\b': buf_str(b, "\\b"); break;
        case '\f': buf_str(b, "\\f"); break;
        default: (void)snprintf(esc, sizeof esc, "\\u%04x", c); buf_str(b, esc); break;
        }
    }
    buf_add(b, s + from, n - from);
    buf_add(b, "\"", 1);
}

static void new_line(struct buf *b, int indent, int depth)
{
    if (indent < 0) return;
    buf_add(b, "\n", 1);
    for (int i = 0; i < indent * depth; i++) buf_add(b, " ", 1);
}

static int by_key(const void *a, const void *b)
{
    const struct value *x = *(struct value *const *)a, *y = *(struct value *const *)b;
    size_t n = x->s.n < y->s.n ? x->s.n : y->s.n;
    int c = n ? memcmp(x->s.p, y->s.p, n) : 0;
    return c ? c : x->s.n < y->s.n ? -1 : x->s.n > y->s.n;
}

static bool dump(struct buf *b, struct value v, int indent, int depth, bool sort_keys, const char **bad)
{
    char num[40];
    if (depth > 200) { *bad = "too deep"; return false; }
    switch (v.type) {
    case V_NONE: buf_str(b, "null"); return true;
    case V_BOOL: buf_str(b, v.tag ? "true" : "false"); return true;
    case V_INT: (void)snprintf(num, sizeof num, "%lld", (long long)v.i); buf_str(b, num); return true;
    case V_FLOAT:
        float_repr(v.f, num);
        buf_str(b, isnan(v.f) ? "NaN" : isinf(v.f) ? v.f > 0 ? "Infinity" : "-Infinity" : num);
        return true;
    case V_BIG: buf_add(b, v.s.p, v.s.n); return true;
    case V_STR: dump_string(b, v.s.p, v.s.n); return true;
    case V_LIST:
        if (v.tag > LIST_TUPLE) { *bad = v.tag == LIST_ITERATOR ? "generator" : v.tag == LIST_RANGE ? "range" : "dict view"; return false; }
        if (v.l->n == 0) { buf_str(b, "[]"); return true; }
        buf_add(b, "[", 1);
        for (size_t i = 0; i < v.l->n; i++) {
            if (i) buf_str(b, indent < 0 ? ", " : ",");
            new_line(b, indent, depth + 1);
            if (!dump(b, v.l->v[i], indent, depth + 1, sort_keys, bad)) return false;
        }
        new_line(b, indent, depth);
        buf_add(b, "]", 1);
        return true;
    case V_DICT: {
        if (v.d->n == 0) { buf_str(b, "{}"); return true; }
        struct value **order = xmalloc(v.d->n * sizeof *order);
        bool ok = true, strings = true;
        for (size_t i = 0; i < v.d->n; i++) { order[i] = &v.d->k[i]; strings &= v.d->k[i].type == V_STR; }
        if (sort_keys && strings) qsort(order, v.d->n, sizeof *order, by_key);
        buf_add(b, "{", 1);
        for (size_t i = 0; i < v.d->n && ok; i++) {
            struct value key = *order[i];
            if (i) buf_str(b, indent < 0 ? ", " : ",");
            new_line(b, indent, depth + 1);
            if (key.type != V_STR) buf_add(b, "\"", 1);         /* json.dumps writes 1, true and null keys as strings */
            ok = key.type != V_LIST && key.type != V_DICT && dump(b, key, -1, depth + 1, false, bad);
            if (key.type != V_STR) buf_add(b, "\"", 1);
            buf_str(b, ": ");
            ok = ok && dump(b, v.d->v[order[i] - v.d->k], indent, depth + 1, sort_keys, bad);
        }
        free(order);
        new_line(b, indent, depth);
        buf_add(b, "}", 1);
        return ok;
    }
    case V_UNDEFINED: *bad = "Undefined"; return false;
    default: *bad = "object"; return false;
    }
}

bool value_dumps(struct buf *b, struct value v, int indent, bool sort_keys, const char **bad) { return dump(b, v, indent, 0, sort_keys, bad); }
