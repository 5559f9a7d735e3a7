/* unicode.c - see unicode.h. */
#include "worker/data/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define LONG_RUN 64              /* marks on one letter */

void bytes_release(struct bytes *b)
{
    free(b->v);
    *b = (struct bytes){ 0 };
}

void bytes_need(struct bytes *b, size_t more)
{
    if (b->cap - b->n >= more) return;
    size_t cap = b->cap ? b->cap : 64;
    while (cap - b->n < more) cap *= 2;
    b->v = xrealloc(b->v, cap);
    b->cap = cap;
}

void bytes_add(struct bytes *b, const void *p, size_t n)
{
    if (n == 0) return;
    bytes_need(b, n);
    memcpy(b->v + b->n, p, n);
    b->n += n;
}

void bytes_add_char(struct bytes *b, char c) { bytes_add(b, &c, 1); }

void bytes_add_cp(struct bytes *b, uint32_t cp)
{
    bytes_need(b, 4);
    b->n += utf8_put(b->v + b->n, cp);
}

size_t utf8_next(const char *s, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) { *cp = p[0]; return 1; }
    if (p[0] < 0xE0) { *cp = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu); return 2; }
    if (p[0] < 0xF0) { *cp = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu); return 3; }
    *cp = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}

size_t utf8_put(char out[4], uint32_t cp)
{
    unsigned char *p = (unsigned char *)out;
    if (cp < 0x80) { p[0] = (unsigned char)cp; return 1; }
    if (cp < 0x800) { p[0] = (unsigned char)(0xC0 | cp >> 6); p[1] = (unsigned char)(0x80 | (cp & 0x3F)); return 2; }
    if (cp < 0x10000) {
        p[0] = (unsigned char)(0xE0 | cp >> 12);
        p[1] = (unsigned char)(0x80 | (cp >> 6 & 0x3F));
        p[2] = (unsigned char)(0x80 | (cp & 0x3F));
        return 3;
    }
    p[0] = (unsigned char)(0xF0 | cp >> 18);
    p[1] = (unsigned char)(0x80 | (cp >> 12 & 0x3F));
    p[2] = (unsigned char)(0x80 | (cp >> 6 & 0x3F));
    p[3] = (unsigned char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t utf8_prev(const char *s, size_t n, uint32_t *cp)
{
    size_t i = n - 1;
    while (i > 0 && ((unsigned char)s[i] & 0xC0) == 0x80) i--;
    (void)utf8_next(s + i, cp);
    return i;
}

/* Length of the longest start of [p, p+n) that could begin a character, and whether it is a whole one. */
static size_t utf8_part(const unsigned char *p, size_t n, bool *whole)
{
    unsigned char lo = 0x80, hi = 0xBF;
    size_t want;
    *whole = false;
    if (p[0] < 0x80) { *whole = true; return 1; }
    if (p[0] >= 0xC2 && p[0] <= 0xDF) want = 2;
    else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        want = 3;
        if (p[0] == 0xE0) lo = 0xA0;
        if (p[0] == 0xED) hi = 0x9F;
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        want = 4;
        if (p[0] == 0xF0) lo = 0x90;
        if (p[0] == 0xF4) hi = 0x8F;
    } else return 1;
    size_t k = 1;
    for (; k < want && k < n; k++) {
        if (p[k] < lo || p[k] > hi) return k;
        lo = 0x80;
        hi = 0xBF;
    }
    *whole = k == want;
    return k;
}

void utf8_lossy(struct bytes *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        bool whole;
        size_t k = utf8_part((const unsigned char *)s + i, n - i, &whole);
        if (whole) bytes_add(out, s + i, k);
        else bytes_add(out, "\xEF\xBF\xBD", 3);
        i += k;
    }
}

/* --- properties --- */

static utf8proc_category_t category(uint32_t cp)
{
    static const char names[][3] = { "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
                                     "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co" };      /* utf8proc's order */
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    if (c != UTF8PROC_CATEGORY_CN) return c;
    for (int low = 0, high = unicode_newer_n; low < high;) {
        int mid = (low + high) / 2;
        const struct unicode_range *r = &unicode_newer[mid];
        if (cp < r->first) high = mid;
        else if (cp > r->last) low = mid + 1;
        else for (int i = 0; i < 30; i++) if (strcmp(names[i], r->category) == 0) return (utf8proc_category_t)i;
    }
    return c;
}

bool cp_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= '\t' && cp <= '\r');
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool cp_is_numeric(uint32_t cp)
{
    if (cp < 0x80) return cp >= '0' && cp <= '9';
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO ||
           (cp >= 0x11DE0 && cp <= 0x11DE9) || (cp >= 0x16FF4 && cp <= 0x16FF6);       /* Unicode 17 */
}

bool cp_is_punct(uint32_t cp)
{
    if (cp < 0x80) return (cp >= 33 && cp <= 47) || (cp >= 58 && cp <= 64) || (cp >= 91 && cp <= 96) || (cp >= 123 && cp <= 126);
    utf8proc_category_t c = category(cp);
    return (c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO) != unicode_punct_differs(cp);
}

bool cp_is_mark(uint32_t cp)
{
    if (cp == 0x1CF2 || cp == 0x1CF3) return true;      /* were marks in Unicode 9 */
    if (cp < 0x300 || unicode_after_9(cp)) return false;
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME;
}

bool cp_is_word(uint32_t cp)
{
    if (cp < 0x80) return (cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || (cp >= 'a' && cp <= 'z') || cp == '_';
    if (cp == 0x200C || cp == 0x200D) return true;
    utf8proc_category_t c = category(cp);
    if (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) return true;       /* L, M, Nd, Nl */
    if (c == UTF8PROC_CATEGORY_PC) return true;
    /* Other_Alphabetic outside L and M: circled letters and squared Latin letters */
    return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
           (cp >= 0x1F170 && cp <= 0x1F189);
}

/* --- normal forms --- */

/* Blocks of starters that no normal form changes or joins to what stands before them. */
static bool plain(enum normal_form form, uint32_t cp)
{
    if (cp < 0x80) return true;
    if (cp >= 0x3400 && cp <= 0x9FFF) return true;                      /* CJK ideographs */
    if (cp >= 0x2010 && cp <= 0x2015) return cp != 0x2011 || form == FORM_NFC || form == FORM_NFD;
    if (cp >= 0x2018 && cp <= 0x2022) return cp != 0x2017;              /* quotes, bullets */
    if (cp == 0x3001 || cp == 0x3002 || (cp >= 0x3008 && cp <= 0x3011)) return true;
    if (form != FORM_NFC) return false;
    return cp < 0x300 || (cp >= 0x400 && cp <= 0x482) || (cp >= 0x48A && cp <= 0x52F) || (cp >= 0x3041 && cp <= 0x3096) ||
           (cp >= 0x309D && cp <= 0x30FF) || (cp >= 0xAC00 && cp <= 0xD7A3) || (cp >= 0xFF01 && cp <= 0xFFEF) ||
           (cp >= 0x1F300 && cp <= 0x1FAFF) || cp == 0x3000;
}

bool unicode_is_normal(enum normal_form form, const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t w;
        while (i + 8 <= n) {                                            /* ASCII, eight bytes at a time */
            memcpy(&w, s + i, 8);
            if (w & UINT64_C(0x8080808080808080)) break;
            i += 8;
        }
        if (i >= n) break;
        uint32_t cp;
        size_t k = utf8_next(s + i, &cp);
        if (!plain(form, cp)) return false;
        i += k;
    }
    return true;
}

struct mark { utf8proc_int32_t cp; uint8_t ccc; };

static int by_class(const void *a, const void *b)
{
    const struct mark *x = *(const struct mark *const *)a, *y = *(const struct mark *const *)b;
    return x->ccc != y->ccc ? (x->ccc < y->ccc ? -1 : 1) : x < y ? -1 : x > y;
}

static bool is_combining(uint32_t cp) { return cp >= 0x300 && utf8proc_get_property((utf8proc_int32_t)cp)->combining_class != 0; }

/* Appends the marks of [s, s+n), decomposed and in canonical order. */
static void sort_marks(utf8proc_option_t options, const char *s, size_t n, struct bytes *out)
{
    struct mark *marks = xmalloc((n * 2 + 8) * sizeof *marks), **order = xmalloc((n * 2 + 8) * sizeof *order);
    size_t count = 0;
    options = (utf8proc_option_t)((options & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        utf8proc_int32_t parts[32];
        int boundary = 0;
        i += utf8_next(s + i, &cp);
        utf8proc_ssize_t k = utf8proc_decompose_char((utf8proc_int32_t)cp, parts, 32, options, &boundary);
        for (utf8proc_ssize_t j = 0; j < k && j < 32 && count < n * 2; j++)
            marks[count++] = (struct mark){ parts[j], (uint8_t)utf8proc_get_property(parts[j])->combining_class };
    }
    for (size_t i = 0; i < count; i++) order[i] = &marks[i];
    qsort(order, count, sizeof *order, by_class);
    for (size_t i = 0; i < count; i++) bytes_add_cp(out, (uint32_t)order[i]->cp);
    free(marks);
    free(order);
}

/* utf8proc orders marks by swapping neighbours: a megabyte of accents on one letter would take hours. Long runs are put in order first. */
static bool order_long_runs(utf8proc_option_t options, const char *s, size_t n, struct bytes *out)
{
    size_t done = 0, k;
    uint32_t cp;
    for (size_t i = 0; i < n; i += k) {
        k = utf8_next(s + i, &cp);
        if (!is_combining(cp)) continue;
        size_t end = i + k, marks = 1;
        for (; end < n; end += k, marks++) {
            k = utf8_next(s + end, &cp);
            if (!is_combining(cp)) break;
        }
        k = end - i;
        if (marks < LONG_RUN) continue;
        bytes_add(out, s + done, i - done);
        sort_marks(options, s + i, end - i, out);
        done = end;
    }
    if (done == 0) return false;
    bytes_add(out, s + done, n - done);
    return true;
}

/* Appends the normal form of a stretch without characters newer than Unicode 9. */
static int normalize_known(utf8proc_option_t options, const char *s, size_t n, struct bytes *out, struct error *err)
{
    utf8proc_uint8_t *form_text = NULL;
    struct bytes ordered = { 0 };
    if (n == 0) return OK;
    if (order_long_runs(options, s, n, &ordered)) { s = ordered.v; n = ordered.n; }
    utf8proc_ssize_t got = utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &form_text, options);
    bytes_release(&ordered);
    if (got < 0) return error_set(err, got == UTF8PROC_ERROR_NOMEM ? E_NOMEM : E_INVALID, "normalizing a text of %zu bytes: %s", n, utf8proc_errmsg(got));
    bytes_add(out, form_text, (size_t)got);
    free(form_text);
    return OK;
}

int unicode_normalize(enum normal_form form, const char *s, size_t n, struct bytes *out, struct error *err)
{
    static const int options[] = {
        [FORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [FORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [FORM_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [FORM_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    size_t from = 0;
    out->n = 0;
    for (size_t i = 0, k; i < n; i += k) {              /* an unknown character parts what stands before it from what comes after */
        uint32_t cp;
        k = utf8_next(s + i, &cp);
        if (cp < 0x300 || !unicode_after_9(cp)) continue;
        int rc = normalize_known((utf8proc_option_t)options[form], s + from, i - from, out, err);
        if (rc != OK) return rc;
        bytes_add(out, s + i, k);
        from = i + k;
    }
    return normalize_known((utf8proc_option_t)options[form], s + from, n - from, out, err);
}

void unicode_lower(const char *s, size_t n, struct bytes *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += utf8_next(s + i, &cp);
        if (cp == 0x130) { bytes_add(out, "i\xCC\x87", 3); continue; }   /* the one letter whose lower case is two */
        bytes_add_cp(out, unicode_lower_newer((uint32_t)utf8proc_tolower((utf8proc_int32_t)cp)));
    }
}
