#include "api/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/file.h"

const struct json_limits json_limits_request = { 1u << 20, 64, 100000 };
const struct json_limits json_limits_file = { 64u << 20, 256, 8000000 };

#define INT_EXACT 9007199254740992.0    /* 2^53 */

static void *tree_memory(size_t n) { return xmalloc(n); }

/* Out of memory cJSON drops members and goes on: a record would be stored half. We end instead, as everywhere (xmalloc). */
__attribute__((constructor)) static void no_half_trees(void)
{
    cJSON_Hooks hooks = { tree_memory, free };
    cJSON_InitHooks(&hooks);
}

bool utf8_valid(const char *s, size_t len, size_t *bad)
{
    const unsigned char *p = (const unsigned char *)s;
    for (size_t i = 0; i < len;) {
        unsigned c = p[i];
        size_t n;
        uint32_t cp, least;
        if (c < 0x80) { i++; continue; }
        if (c >= 0xC2 && c <= 0xDF) { n = 1; cp = c & 0x1F; least = 0x80; }
        else if (c >= 0xE0 && c <= 0xEF) { n = 2; cp = c & 0x0F; least = 0x800; }
        else if (c >= 0xF0 && c <= 0xF4) { n = 3; cp = c & 0x07; least = 0x10000; }
        else goto invalid;
        if (len - i <= n) goto invalid;
        for (size_t k = 1; k <= n; k++) {
            if ((p[i + k] & 0xC0) != 0x80) goto invalid;
            cp = cp << 6 | (p[i + k] & 0x3F);
        }
        if (cp < least || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) goto invalid;
        i += n + 1;
        continue;
invalid:
        if (bad) *bad = i;
        return false;
    }
    return true;
}

void utf8_scrub(char *s)
{
    size_t bad;
    for (size_t len = strlen(s); !utf8_valid(s, len, &bad); s += bad + 1, len -= bad + 1) s[bad] = '?';
}

/* --- the scanner: recursive descent over the grammar of RFC 8259 --- */

struct scan {
    const char *text, *p, *end;
    const struct json_limits *lim;
    size_t values;
    bool allow_nul;
    struct error *err;
};

static int refuse(struct scan *s, const char *at, const char *what)
{
    size_t line = 1, column = 1;
    for (const char *p = s->text; p < at; p++) {
        if (*p == '\n') { line++; column = 1; } else column++;
    }
    return error_set(s->err, E_INVALID, "line %zu column %zu: %s", line, column, what);
}

static void skip_space(struct scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r')) s->p++;
}

static bool hex4(const char *p, unsigned *v)
{
    *v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        unsigned d;
        if (c >= '0' && c <= '9') d = (unsigned)(c - '0');
        else if (c >= 'a' && c <= 'f') d = (unsigned)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F') d = (unsigned)(c - 'A' + 10);
        else return false;
        *v = *v << 4 | d;
    }
    return true;
}

static int scan_string(struct scan *s)      /* s->p at the opening quote */
{
    const char *start = s->p++;
    while (s->p < s->end) {
        unsigned char c = (unsigned char)*s->p;
        if (c == '"') { s->p++; return OK; }
        if (c < 0x20) return refuse(s, s->p, "control character in a string; write it as an escape");
        if (c != '\\') { s->p++; continue; }
        if (s->end - s->p < 2) break;
        char e = s->p[1];
        if (e != 'u') {
            if (strchr("\"\\/bfnrt", e) == NULL || e == '\0') return refuse(s, s->p, "unknown escape in a string");
            s->p += 2;
            continue;
        }
        unsigned u, low;
        if (s->end - s->p < 6 || !hex4(s->p + 2, &u)) return refuse(s, s->p, "\\u needs four hexadecimal digits");
        if (u == 0 && !s->allow_nul) return refuse(s, s->p, "NUL (\\u0000) is not allowed in a string");
        if (u >= 0xDC00 && u <= 0xDFFF) return refuse(s, s->p, "lone low surrogate escape");
        if (u >= 0xD800 && u <= 0xDBFF) {
            if (s->end - s->p < 12 || s->p[6] != '\\' || s->p[7] != 'u' || !hex4(s->p + 8, &low) || low < 0xDC00 || low > 0xDFFF)
                return refuse(s, s->p, "lone high surrogate escape");
            s->p += 6;
        }
        s->p += 6;
    }
    return refuse(s, start, "string is not closed");
}

static int scan_number(struct scan *s)
{
    const char *start = s->p, *p = s->p;
    if (p < s->end && *p == '-') p++;
    if (p < s->end && *p == '0') p++;
    else if (p < s->end && *p >= '1' && *p <= '9') while (p < s->end && *p >= '0' && *p <= '9') p++;
    else return refuse(s, start, "expected a value");
    if (p < s->end && *p >= '0' && *p <= '9') return refuse(s, start, "number with a leading zero");
    if (p < s->end && *p == '.') {
        p++;
        if (p >= s->end || *p < '0' || *p > '9') return refuse(s, start, "number needs a digit after the point");
        while (p < s->end && *p >= '0' && *p <= '9') p++;
    }
    if (p < s->end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < s->end && (*p == '+' || *p == '-')) p++;
        if (p >= s->end || *p < '0' || *p > '9') return refuse(s, start, "number needs a digit in its exponent");
        while (p < s->end && *p >= '0' && *p <= '9') p++;
    }
    if (p - start > 400) return refuse(s, start, "number is too long");
    char tmp[401];
    memcpy(tmp, start, (size_t)(p - start));
    tmp[p - start] = '\0';
    if (!isfinite(strtod(tmp, NULL))) return refuse(s, start, "number is too large");
    s->p = p;
    return OK;
}

struct key { const char *p; size_t n; };

/* Keys compare as decoded text: "a" and "\u0061" are the same key. Escaped keys are decoded by cJSON itself, on a copy in which
 * \u0000 is C0 80 (valid in no text), for cJSON's strings end at NUL. The caller frees. */
static char *decode_key(const char *k, size_t n)
{
    char *copy = xmalloc(n + 1), *to = copy;
    for (size_t i = 0; i < n;) {
        bool nul = n - i >= 6 && memcmp(k + i, "\\u0000", 6) == 0;
        if (nul) { memcpy(to, "\xC0\x80", 2); to += 2; i += 6; continue; }
        if (k[i] == '\\') *to++ = k[i++];
        *to++ = k[i++];
    }
    cJSON *item = cJSON_ParseWithLength(copy, (size_t)(to - copy));
    char *text = xstrdup(cJSON_IsString(item) ? item->valuestring : "");
    cJSON_Delete(item);
    free(copy);
    return text;
}

static int key_cmp(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int c = memcmp(x->p, y->p, n);
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

static int scan_value(struct scan *s, int depth);

static int scan_object(struct scan *s, int depth)
{
    const char *start = s->p++;
    struct key *keys = NULL;
    char **owned = NULL;
    size_t n = 0, cap = 0, n_owned = 0;
    int rc = OK;
    skip_space(s);
    if (s->p < s->end && *s->p == '}') { s->p++; return OK; }
    for (;;) {
        skip_space(s);
        if (s->p >= s->end || *s->p != '"') { rc = refuse(s, s->p, "expected a \"key\""); break; }
        const char *k = s->p;
        if ((rc = scan_string(s)) != OK) break;
        if (n == cap) { cap = cap ? cap * 2 : 8; keys = xrealloc(keys, cap * sizeof *keys); owned = xrealloc(owned, cap * sizeof *owned); }
        keys[n] = (struct key){ k + 1, (size_t)(s->p - k) - 2 };
        if (memchr(k, '\\', (size_t)(s->p - k))) {
            char *text = decode_key(k, (size_t)(s->p - k));
            owned[n_owned++] = text;
            keys[n] = (struct key){ text, strlen(text) };
        }
        n++;
        skip_space(s);
        if (s->p >= s->end || *s->p != ':') { rc = refuse(s, s->p, "expected ':' after a key"); break; }
        s->p++;
        if ((rc = scan_value(s, depth + 1)) != OK) break;
        skip_space(s);
        if (s->p < s->end && *s->p == ',') { s->p++; continue; }
        if (s->p < s->end && *s->p == '}') { s->p++; break; }
        rc = refuse(s, s->p, "expected ',' or '}'");
        break;
    }
    if (rc == OK && n > 1) {
        qsort(keys, n, sizeof *keys, key_cmp);
        for (size_t i = 1; i < n && rc == OK; i++) {
            if (key_cmp(&keys[i - 1], &keys[i]) != 0) continue;
            char what[160];
            (void)snprintf(what, sizeof what, "key \"%.*s\" appears twice in one object", (int)(keys[i].n < 60 ? keys[i].n : 60), keys[i].p);
            rc = refuse(s, start, what);
        }
    }
    for (size_t i = 0; i < n_owned; i++) free(owned[i]);
    free(owned);
    free(keys);
    return rc;
}

static int scan_array(struct scan *s, int depth)
{
    s->p++;
    skip_space(s);
    if (s->p < s->end && *s->p == ']') { s->p++; return OK; }
    for (;;) {
        int rc = scan_value(s, depth + 1);
        if (rc != OK) return rc;
        skip_space(s);
        if (s->p < s->end && *s->p == ',') { s->p++; continue; }
        if (s->p < s->end && *s->p == ']') { s->p++; return OK; }
        return refuse(s, s->p, "expected ',' or ']'");
    }
}

static int scan_value(struct scan *s, int depth)
{
    static const char *const words[] = { "true", "false", "null" };
    if (depth > s->lim->depth) return refuse(s, s->p, "nested too deep");
    if (++s->values > s->lim->values) return refuse(s, s->p, "too many values");
    skip_space(s);
    if (s->p >= s->end) return refuse(s, s->p, "unexpected end of text");
    switch (*s->p) {
    case '{': return scan_object(s, depth);
    case '[': return scan_array(s, depth);
    case '"': return scan_string(s);
    default: break;
    }
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(s->end - s->p) >= n && memcmp(s->p, words[i], n) == 0) { s->p += n; return OK; }
    }
    return scan_number(s);
}

int json_check(const char *text, size_t len, const struct json_limits *lim, bool allow_nul, struct error *err)
{
    struct scan s = { text, text, text + len, lim, 0, allow_nul, err };
    size_t bad;
    if (len > lim->bytes) return error_set(err, E_LIMIT, "JSON text has %zu bytes, at most %zu are taken", len, lim->bytes);
    if (len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) return refuse(&s, text, "byte order mark; save the text as UTF-8 without one");
    if (!utf8_valid(text, len, &bad)) return refuse(&s, text + bad, "not valid UTF-8");
    int rc = scan_value(&s, 0);
    if (rc != OK) return rc;
    skip_space(&s);
    if (s.p != s.end) return refuse(&s, s.p, "text after the end of the JSON value");
    return OK;
}

int json_parse(cJSON **out, const char *text, size_t len, const struct json_limits *lim, struct error *err)
{
    *out = NULL;
    int rc = json_check(text, len, lim, false, err);
    if (rc != OK) return rc;
    *out = cJSON_ParseWithLength(text, len);
    return *out ? OK : error_set(err, E_INVALID, "JSON could not be parsed");
}

int json_parse_file(cJSON **out, const char *path, const struct json_limits *lim, struct error *err)
{
    char *text;
    size_t len;
    *out = NULL;
    int rc = file_read(path, lim->bytes, &text, &len, err);
    if (rc != OK) return rc;
    rc = json_parse(out, text, len, lim, err);
    free(text);
    if (rc != OK) (void)error_prefix(err, "%s", path);
    return rc;
}

cJSON *json_get(const cJSON *object, const char *key) { return cJSON_GetObjectItemCaseSensitive(object, key); }

const char *json_str(const cJSON *object, const char *key)
{
    const cJSON *v = json_get(object, key);
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

bool json_number(const cJSON *v, double *out)
{
    if (cJSON_IsRaw(v)) *out = strtod(v->valuestring, NULL);
    else if (cJSON_IsNumber(v)) *out = v->valuedouble;
    else return false;
    return true;
}

double json_num(const cJSON *object, const char *key, double absent)
{
    double v;
    return json_number(json_get(object, key), &v) ? v : absent;
}

bool json_bool(const cJSON *object, const char *key, bool absent)
{
    const cJSON *v = json_get(object, key);
    return cJSON_IsBool(v) ? (bool)cJSON_IsTrue(v) : absent;
}

bool json_int(const cJSON *object, const char *key, int64_t *out)
{
    double v;
    if (!json_number(json_get(object, key), &v) || fabs(v) > INT_EXACT || v != floor(v)) return false;
    *out = (int64_t)v;
    return true;
}

void json_add_int(cJSON *object, const char *key, int64_t v)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", (long long)v);
    if (v > (int64_t)INT_EXACT || v < -(int64_t)INT_EXACT) (void)cJSON_AddStringToObject(object, key, text);
    else (void)cJSON_AddRawToObject(object, key, text);
}

void number_text(char text[32], double v)
{
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, 32, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
}

void json_add_num(cJSON *object, const char *key, double v)
{
    char text[128];
    if (isfinite(v)) {
        number_text(text, v);
        (void)cJSON_AddRawToObject(object, key, text);
        return;
    }
    (void)cJSON_AddNullToObject(object, key);
    (void)snprintf(text, sizeof text, "%.100s_nonfinite", key);
    (void)cJSON_AddStringToObject(object, text, isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
}

void json_add_str(cJSON *object, const char *key, const char *v)
{
    if (v) (void)cJSON_AddStringToObject(object, key, v);
    else (void)cJSON_AddNullToObject(object, key);
}

char *json_line(const cJSON *value)
{
    char *s = cJSON_PrintUnformatted(value);
    if (s == NULL) {
        (void)fputs("ringmaster: out of host memory\n", stderr);
        abort();
    }
    return s;
}

void json_print(cJSON *value)
{
    char *line = json_line(value);
    (void)puts(line);
    free(line);
    cJSON_Delete(value);
}
