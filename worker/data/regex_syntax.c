/* regex_syntax.c - Oniguruma's patterns rewritten for PCRE2, meaning unchanged.
 *
 * One pass over the pattern, writing as it reads. Where the two differ, the PCRE2 text spells Oniguruma's meaning out:
 *   \s \w \d \h \b and the POSIX names   explicit classes (PCRE2's own differ in a few code points)
 *   ^ $                                  at every line; "." stops at \n only
 *   (?i) alone                           holds to the end of its group, over every "|" after it
 *   x{2,3}+                              a repeated repeat, not a possessive one; {,n} is {0,n}
 *   [a[bc]&&[^d]]                        classes nest and intersect; written with look-aheads
 *   (?i:ss)                              also matches one code point that folds to two letters
 * Source: Oniguruma's doc/RE, with the syntax ONIG_SYNTAX_ONIGURUMA that Hugging Face `tokenizers` uses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/regex.h"

#define DEPTH_MAX 100
#define REPEAT_MAX 65535
#define WRITTEN_MAX (1 << 20)             /* bytes of the PCRE2 pattern */

struct reader {
    const char *text;
    size_t at, len;
    bool (*has_property)(const char *name);
    struct bytes *out;
    struct error *err;
    int depth;
};

#define SPACES "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORDS "0-9A-Z_a-z\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define LATIN1_WORDS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"    /* \w and \p{Word} have these six, but not within a class */
#define WORDS_NEWER "L M Nd Pc"
#define ALPHABETIC_NEWER "\\x{363}-\\x{36f}\\x{897}\\x{c04}\\x{cf3}\\x{f82}\\x{f83}\\x{1dd3}-\\x{1de6}\\x{10d69}\\x{10efc}\\x{11080}\\x{11081}\\x{11241}" \
    "\\x{113b8}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}\\x{113cd}\\x{11f00}\\x{11f01}\\x{11f03}\\x{11f34}-\\x{11f3a}" \
    "\\x{11f3e}-\\x{11f40}\\x{1611e}-\\x{1612e}\\x{1e08f}"

/* Names for \p{…} and [:…:]: the inside of a PCRE2 class, and the general categories whose newer code points (unicode.h) belong in
 * it. Compared without case, blanks, '-' and '_'. A name that starts with ':' is what the brackets [:…:] mean where that differs. */
static const struct { const char *name, *inside, *newer; } properties[] = {
    { "alnum", "0-9A-Za-z\\p{Alphabetic}\\p{Nd}" ALPHABETIC_NEWER, "L Nd" }, { "alpha", "A-Za-z\\p{Alphabetic}" ALPHABETIC_NEWER, "L" },
    { "alphabetic", "A-Za-z\\p{Alphabetic}" ALPHABETIC_NEWER, "L" }, { "ascii", "\\x00-\\x7f", "" }, { "blank", "\\x09\\p{Zs}", "" },
    { "cntrl", "\\p{Cc}", "" }, { "digit", "0-9\\p{Nd}", "Nd" }, { "lower", "\\p{Lowercase}\\x{10fc}\\x{a7f2}-\\x{a7f4}\\x{ab69}\\x{1e030}-\\x{1e06d}", "Ll" },
    { "lowercase", "\\p{Lowercase}\\x{10fc}\\x{a7f2}-\\x{a7f4}\\x{ab69}\\x{1e030}-\\x{1e06d}", "Ll" },
    { "punct", "\\p{P}", "P" }, { ":punct", "\\p{P}\\p{S}", "P S" }, { "space", SPACES, "" }, { "whitespace", SPACES, "" },
    { "upper", "\\p{Uppercase}", "Lu" }, { "uppercase", "\\p{Uppercase}", "Lu" },
    { "graph", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}", "L M N P S Cf" }, { "print", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}\\p{Zs}", "L M N P S Cf" },
    { "xdigit", "0-9A-Fa-f", "" }, { "asciihexdigit", "0-9A-Fa-f", "" }, { "word", WORDS, WORDS_NEWER }, { "any", "\\x00-\\x{10ffff}", "" },
    { "assigned", "\\P{Cn}", "L M N P S Cf" }, { "han", "\\p{sc:Han}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}", "" },
    { "l", "A-Za-z\\p{L}", "L" }, { "letter", "A-Za-z\\p{L}", "L" }, { "n", "0-9\\p{N}", "N" }, { "number", "0-9\\p{N}", "N" },
    { "nd", "0-9\\p{Nd}", "Nd" }, { "decimalnumber", "0-9\\p{Nd}", "Nd" }, { "nl", "\\p{Nl}", "Nl" }, { "no", "\\p{No}", "No" },
    { "lu", "A-Z\\p{Lu}", "Lu" }, { "uppercaseletter", "A-Z\\p{Lu}", "Lu" }, { "ll", "a-z\\p{Ll}", "Ll" }, { "lowercaseletter", "a-z\\p{Ll}", "Ll" },
    { "lt", "\\p{Lt}", "Lt" }, { "lm", "\\p{Lm}", "Lm" }, { "lo", "\\p{Lo}", "Lo" }, { "lc", "\\p{Lu}\\p{Ll}\\p{Lt}", "Lu Ll Lt" },
    { "m", "\\p{M}", "M" }, { "mark", "\\p{M}", "M" }, { "mn", "\\p{Mn}", "Mn" }, { "nonspacingmark", "\\p{Mn}", "Mn" }, { "mc", "\\p{Mc}", "Mc" }, { "me", "\\p{Me}", "" },
    { "p", "\\p{P}", "P" }, { "punctuation", "\\p{P}", "P" }, { "pc", "\\p{Pc}", "" }, { "pd", "\\p{Pd}", "Pd" }, { "pe", "\\p{Pe}", "" },
    { "pf", "\\p{Pf}", "" }, { "pi", "\\p{Pi}", "" }, { "po", "\\p{Po}", "Po" }, { "ps", "\\p{Ps}", "" },
    { "s", "\\p{S}", "S" }, { "symbol", "\\p{S}", "S" }, { "sc", "\\p{Sc}", "" }, { "sk", "\\p{Sk}", "" }, { "sm", "\\p{Sm}", "Sm" }, { "so", "\\p{So}", "So" },
    { "z", "\\p{Z}", "" }, { "separator", "\\p{Z}", "" }, { "zl", "\\p{Zl}", "" }, { "zp", "\\p{Zp}", "" }, { "zs", "\\p{Zs}", "" },
    { "c", "\\p{C}", "" }, { "other", "\\p{C}", "" }, { "cc", "\\p{Cc}", "" }, { "cf", "\\p{Cf}", "Cf" }, { "cn", "\\p{Cn}", "" }, { "co", "\\p{Co}", "" },
};

/* Code points that fold to several ASCII letters, longest first. */
static const struct { const char *letters, *alone; } folds[] = {
    { "ffi", "\\x{fb03}" }, { "ffl", "\\x{fb04}" }, { "ff", "\\x{fb00}" }, { "fi", "\\x{fb01}" }, { "fl", "\\x{fb02}" },
    { "ss", "\\x{df}|\\x{1e9e}" }, { "st", "\\x{fb05}|\\x{fb06}" },
};

static int refuse(struct reader *r, const char *what)
{
    return error_set(r->err, E_UNSUPPORTED, "pattern \"%.*s\", byte %zu: %s", (int)(r->len < 200 ? r->len : 200), r->text, r->at, what);
}

static void say(struct bytes *b, const char *s) { bytes_add(b, s, strlen(s)); }

static void say_cp(struct bytes *b, uint32_t cp)
{
    char text[16];
    if ((cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || (cp >= 'a' && cp <= 'z')) { bytes_add_char(b, (char)cp); return; }
    (void)snprintf(text, sizeof text, "\\x{%x}", cp);
    say(b, text);
}

static bool more(const struct reader *r) { return r->at < r->len; }
static char peek(const struct reader *r) { return r->at < r->len ? r->text[r->at] : '\0'; }
static bool looking_at(const struct reader *r, const char *s)
{
    size_t n = strlen(s);
    return r->len - r->at >= n && memcmp(r->text + r->at, s, n) == 0;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The newer code points of the categories that start with one of the names in list. */
static void add_newer(struct bytes *inside, const char *list)
{
    char text[40];
    for (int i = 0; i < unicode_newer_n; i++) {
        const struct unicode_range *n = &unicode_newer[i];
        for (const char *p = list; *p; p += strcspn(p, " "), p += *p == ' ') {
            if (strncmp(p, n->category, strcspn(p, " ")) != 0) continue;
            (void)snprintf(text, sizeof text, "\\x{%x}-\\x{%x}", n->first, n->last);
            say(inside, text);
            break;
        }
    }
}

/* Inside of the class for \p{name}; negated says whether it is the complement that was asked for. */
static int property(struct reader *r, const char *name, size_t n, bool brackets, struct bytes *inside, bool *negated)
{
    char key[64], upper[80];
    size_t k = 0;
    if (n && *name == '^') { *negated = !*negated; name++; n--; }
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        if (c == ' ' || c == '-' || c == '_') continue;
        if (c >= 'A' && c <= 'Z') c = (char)(c - 'A' + 'a');
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) || k + 1 >= sizeof key) return refuse(r, "property name is not known");
        key[k++] = c;
    }
    key[k] = '\0';
    for (int pass = brackets ? 0 : 1; pass < 2; pass++) {
        for (size_t i = 0; i < sizeof properties / sizeof *properties; i++) {
            const char *known = properties[i].name;
            if (pass == 0 && *known++ != ':') continue;
            if (strcmp(known, key) != 0) continue;
            say(inside, properties[i].inside);
            add_newer(inside, properties[i].newer);
            return OK;
        }
    }
    (void)snprintf(upper, sizeof upper, "sc:%s", key);          /* a script, else a binary property */
    if (!r->has_property(upper)) {
        (void)snprintf(upper, sizeof upper, "%s", key);
        if (k == 0 || !r->has_property(upper)) return refuse(r, "property name is not known");
    }
    say(inside, "\\p{");
    say(inside, upper);
    say(inside, "}");
    return OK;
}

/* --- escapes --- */

enum escape { ESC_CHAR, ESC_SET, ESC_OTHER };   /* one code point; a set of them; anything else */

/* Reads what follows a backslash (r->at is after it). ESC_SET leaves the class's inside in *set. ESC_OTHER leaves r->at at the letter. */
static int read_escape(struct reader *r, bool in_class, enum escape *kind, uint32_t *cp, struct bytes *set, bool *negated)
{
    static const struct { char letter; uint32_t cp; } controls[] = {
        { 'n', '\n' }, { 't', '\t' }, { 'r', '\r' }, { 'f', '\f' }, { 'v', 0x0B }, { 'a', 0x07 }, { 'e', 0x1B } };
    static const struct { char letter; const char *inside, *newer; } sets[] = {
        { 'd', "0-9\\p{Nd}", "Nd" }, { 's', SPACES, "" }, { 'w', WORDS, WORDS_NEWER }, { 'h', "0-9A-Fa-f", "" } };
    if (!more(r)) return refuse(r, "ends in a backslash");
    char c = peek(r);
    *kind = ESC_CHAR;
    *negated = false;
    for (size_t i = 0; i < sizeof controls / sizeof *controls; i++)
        if (controls[i].letter == c) { *cp = controls[i].cp; r->at++; return OK; }
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (sets[i].letter != c && sets[i].letter - 32 != c) continue;
        *kind = ESC_SET;
        *negated = sets[i].letter != c;
        say(set, sets[i].inside);
        add_newer(set, sets[i].newer);
        if (sets[i].letter == 'w' && !in_class) say(set, LATIN1_WORDS);
        r->at++;
        return OK;
    }
    if (c == 'p' || c == 'P') {
        if (r->at + 1 >= r->len || r->text[r->at + 1] != '{') return refuse(r, "\\p without {name}");
        const char *name = r->text + r->at + 2, *close = memchr(name, '}', r->len - r->at - 2);
        if (close == NULL) return refuse(r, "\\p{ without }");
        *kind = ESC_SET;
        *negated = c == 'P';
        int rc = property(r, name, (size_t)(close - name), false, set, negated);
        if (rc == OK && !in_class && close - name >= 4 && strncasecmp(close - 4, "word", 4) == 0) say(set, LATIN1_WORDS);
        r->at = (size_t)(close + 1 - r->text);
        return rc;
    }
    if (c == 'x' || c == 'u') {
        uint32_t v = 0;
        int digits = 0, most = c == 'u' ? 4 : 2;
        bool braces = c == 'x' && r->at + 1 < r->len && r->text[r->at + 1] == '{';
        r->at += braces ? 2 : 1;
        if (braces) most = 8;
        while (digits < most && more(r) && hex_value(peek(r)) >= 0) { v = v << 4 | (uint32_t)hex_value(peek(r)); r->at++; digits++; }
        if (braces) { if (peek(r) != '}') return refuse(r, "\\x{ without }"); r->at++; }
        if (digits == 0 || (c == 'u' && digits != 4) || v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF)) return refuse(r, "escape names no code point");
        if (!braces && c == 'x' && v > 0x7F) return refuse(r, "\\x escapes of single bytes above 7f are not taken; write \\x{…}");
        *cp = v;
        return OK;
    }
    if (c == '0') {
        uint32_t v = 0;
        for (int digits = 0; digits < 3 && peek(r) >= '0' && peek(r) <= '7'; digits++) v = v << 3 | (uint32_t)(r->text[r->at++] - '0');
        if (v > 0x7F) return refuse(r, "octal escape above 177");
        *cp = v;
        return OK;
    }
    if (in_class && c == 'b') { *cp = 8; r->at++; return OK; }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) { *kind = ESC_OTHER; return OK; }
    r->at += utf8_next(r->text + r->at, cp);        /* escaped punctuation, or any other character */
    return OK;
}

/* --- classes: every function appends a PCRE2 expression that matches exactly one code point --- */

static int read_class(struct reader *r, struct bytes *out);

struct set { struct bytes inside, others; bool others_any; };       /* union: the inside of one [], and "|expr" for what does not fit in */

static void set_release(struct set *s) { bytes_release(&s->inside); bytes_release(&s->others); }

static void set_add_negated(struct set *s, const char *inside, size_t n)
{
    say(&s->others, "|[^");
    bytes_add(&s->others, inside, n);
    say(&s->others, "]");
}

static void set_write(const struct set *s, struct bytes *out)
{
    if (s->others.n == 0) {
        if (s->inside.n == 0) { say(out, "(?!)"); return; }
        say(out, "[");
        bytes_add(out, s->inside.v, s->inside.n);
        say(out, "]");
        return;
    }
    say(out, "(?:");
    if (s->inside.n) {
        say(out, "[");
        bytes_add(out, s->inside.v, s->inside.n);
        say(out, "]");
        bytes_add(out, s->others.v, s->others.n);
    } else bytes_add(out, s->others.v + 1, s->others.n - 1);
    say(out, ")");
}

static int read_posix(struct reader *r, struct set *s)      /* at "[:" */
{
    const char *start = r->text + r->at + 2, *end = memmem(start, r->len - r->at - 2, ":]", 2);
    struct bytes inside = { 0 };
    bool negated = false;
    if (end == NULL) return refuse(r, "[: without :]");
    int rc = property(r, start, (size_t)(end - start), true, &inside, &negated);
    if (rc == OK && negated) set_add_negated(s, inside.v, inside.n);
    else if (rc == OK) bytes_add(&s->inside, inside.v, inside.n);
    bytes_release(&inside);
    r->at = (size_t)(end + 2 - r->text);
    return rc;
}

/* One end of a range, or a set. */
static int read_item(struct reader *r, bool *is_char, uint32_t *cp, struct set *s)
{
    struct bytes inside = { 0 };
    enum escape kind = ESC_CHAR;
    bool negated = false;
    int rc = OK;
    *is_char = true;
    if (peek(r) != '\\') { r->at += utf8_next(r->text + r->at, cp); return OK; }
    r->at++;
    rc = read_escape(r, true, &kind, cp, &inside, &negated);
    if (rc == OK && kind == ESC_OTHER) rc = refuse(r, "escape is not known in a class");
    if (rc == OK && kind == ESC_SET) {
        *is_char = false;
        if (negated) set_add_negated(s, inside.v, inside.n);
        else bytes_add(&s->inside, inside.v, inside.n);
    }
    bytes_release(&inside);
    return rc;
}

static int read_union(struct reader *r, struct set *s)      /* up to "]" or "&&", which stay */
{
    bool first = true;
    for (;; first = false) {
        if (!more(r)) return refuse(r, "class is not closed");
        if (s->inside.n + s->others.n > WRITTEN_MAX) return refuse(r, "pattern is too large");
        if (peek(r) == ']' && !first) return OK;
        if (looking_at(r, "&&")) return OK;
        int rc;
        if (looking_at(r, "[:") && memmem(r->text + r->at, r->len - r->at, ":]", 2)) {
            if ((rc = read_posix(r, s)) != OK) return rc;
            continue;
        }
        if (peek(r) == '[') {
            struct bytes inner = { 0 };
            r->at++;
            rc = read_class(r, &inner);
            /* a plain class joins this one; anything else becomes an alternative */
            if (rc == OK && inner.n > 2 && inner.v[0] == '[' && inner.v[1] != '^') bytes_add(&s->inside, inner.v + 1, inner.n - 2);
            else if (rc == OK) { say(&s->others, "|"); bytes_add(&s->others, inner.v, inner.n); }
            bytes_release(&inner);
            if (rc != OK) return rc;
            continue;
        }
        bool is_char, end_is_char;
        uint32_t from = 0, to = 0;
        if ((rc = read_item(r, &is_char, &from, s)) != OK) return rc;
        if (!is_char) continue;
        say_cp(&s->inside, from);
        if (peek(r) != '-' || r->at + 1 >= r->len || r->text[r->at + 1] == ']') continue;
        if (r->text[r->at + 1] == '[' || r->text[r->at + 1] == '&') continue;           /* '-' stands for itself */
        r->at++;
        if ((rc = read_item(r, &end_is_char, &to, s)) != OK) return rc;
        if (!end_is_char) { say_cp(&s->inside, '-'); continue; }
        if (to < from) return refuse(r, "range runs backwards");
        say(&s->inside, "-");
        say_cp(&s->inside, to);
    }
}

static int read_class(struct reader *r, struct bytes *out)  /* r->at is after "[" */
{
    struct bytes parts = { 0 }, last = { 0 };               /* look-aheads for the operands before the last && */
    bool negated = false, several = false;
    int rc = OK;
    if (++r->depth > DEPTH_MAX) return refuse(r, "nested too deep");
    if (peek(r) == '^') { negated = true; r->at++; }
    for (;;) {
        struct set s = { 0 };
        rc = read_union(r, &s);
        last.n = 0;
        if (rc == OK && negated && !several && peek(r) == ']' && s.others.n == 0 && s.inside.n) {
            say(out, "[^");                                 /* the everyday case */
            bytes_add(out, s.inside.v, s.inside.n);
            say(out, "]");
            r->at++;
            set_release(&s);
            goto out;
        }
        if (rc == OK) set_write(&s, &last);
        set_release(&s);
        if (rc != OK) goto out;
        if (peek(r) == ']') break;
        r->at += 2;                                         /* && */
        several = true;
        say(&parts, "(?=");
        bytes_add(&parts, last.v, last.n);
        say(&parts, ")");
    }
    r->at++;
    if (negated || several) {
        say(out, negated ? "(?:(?!" : "(?:");
        bytes_add(out, parts.v, parts.n);
        bytes_add(out, last.v, last.n);
        say(out, negated ? ")(?s:.))" : ")");
    } else bytes_add(out, last.v, last.n);
out:
    r->depth--;
    bytes_release(&parts);
    bytes_release(&last);
    return rc;
}

/* --- expressions --- */

struct options { bool caseless, dotall; };

static int read_alternatives(struct reader *r, struct options o);

/* "{n}", "{n,}", "{n,m}", "{,m}" at r->at: true with the bounds (most < 0: none) and r->at after it; else nothing is read. */
static bool read_interval(struct reader *r, long *least, long *most)
{
    size_t i = r->at + 1;
    long v[2] = { -1, -1 };
    bool comma = false;
    for (; i < r->len && r->text[i] != '}'; i++) {
        char c = r->text[i];
        if (c == ',' && !comma) { comma = true; continue; }
        if (c < '0' || c > '9') return false;
        long *w = &v[comma];
        *w = (*w < 0 ? 0 : *w) * 10 + (c - '0');
        if (*w > 1000000) *w = 1000000;
    }
    if (i >= r->len || (v[0] < 0 && v[1] < 0)) return false;
    *least = v[0] < 0 ? 0 : v[0];
    *most = comma ? v[1] : v[0];
    r->at = i + 1;
    return true;
}

static void wrap(struct bytes *out, size_t start)           /* out[start…] becomes (?:…) */
{
    bytes_need(out, 4);
    memmove(out->v + start + 3, out->v + start, out->n - start);
    memcpy(out->v + start, "(?:", 3);
    out->n += 3;
    bytes_add_char(out, ')');
}

static int read_repeats(struct reader *r, size_t start)     /* the quantifiers after the atom written at out[start…] */
{
    for (int again = 0; more(r); again++) {
        char c = peek(r), text[48];
        long least, most;
        if (again > 20) return refuse(r, "too many quantifiers in a row");
        if (c == '*' || c == '+' || c == '?') {
            if (again) wrap(r->out, start);
            bytes_add_char(r->out, c);
            r->at++;
            if (peek(r) == '?' || peek(r) == '+') { bytes_add_char(r->out, peek(r)); r->at++; }
            continue;
        }
        if (c != '{' || !read_interval(r, &least, &most)) return OK;
        if (least > REPEAT_MAX || most > REPEAT_MAX) return refuse(r, "repeat count is above 65535");
        if (most >= 0 && most < least) return refuse(r, "repeat counts run backwards");
        if (again) wrap(r->out, start);
        if (most < 0) (void)snprintf(text, sizeof text, "{%ld,}", least);
        else (void)snprintf(text, sizeof text, "{%ld,%ld}", least, most);
        say(r->out, text);
        if (peek(r) == '?' && least != most) { bytes_add_char(r->out, '?'); r->at++; }
    }
    return OK;
}

static int read_flags(struct reader *r, struct options *o)  /* "imx-imx" up to ':' or ')' */
{
    for (bool on = true; more(r); r->at++) {
        switch (peek(r)) {
        case 'i': o->caseless = on; break;
        case 'm': o->dotall = on; break;
        case '-': on = false; break;
        case 'x': if (on) return refuse(r, "option x is not supported"); break;
        case ':': case ')': return OK;
        default: return refuse(r, "group is not known");
        }
    }
    return refuse(r, "group is not closed");
}

static int close_group(struct reader *r)
{
    if (peek(r) != ')') return refuse(r, "group is not closed");
    r->at++;
    bytes_add_char(r->out, ')');
    return OK;
}

static int read_group(struct reader *r, struct options o, bool *to_end)     /* at "(" */
{
    static const char *const openers[] = { "(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!" };
    int rc;
    *to_end = false;
    for (size_t i = 0; i < sizeof openers / sizeof *openers; i++) {
        if (!looking_at(r, openers[i])) continue;
        say(r->out, openers[i]);
        r->at += strlen(openers[i]);
        rc = read_alternatives(r, o);
        return rc == OK ? close_group(r) : rc;
    }
    if (looking_at(r, "(?#")) {
        const char *close = memchr(r->text + r->at, ')', r->len - r->at);
        if (close == NULL) return refuse(r, "comment is not closed");
        r->at = (size_t)(close + 1 - r->text);
        return OK;
    }
    if (looking_at(r, "(?<")) return refuse(r, "named groups are not supported");
    if (looking_at(r, "(*")) return refuse(r, "call-outs are not supported");
    if (!looking_at(r, "(?")) {
        r->at++;
        say(r->out, "(");
        rc = read_alternatives(r, o);
        return rc == OK ? close_group(r) : rc;
    }
    r->at += 2;
    if ((rc = read_flags(r, &o)) != OK) return rc;
    say(r->out, o.caseless ? "(?i:" : "(?-i:");
    *to_end = peek(r) == ')';                               /* (?i) alone: what follows, to the end of the group around it */
    r->at++;
    if ((rc = read_alternatives(r, o)) != OK) return rc;
    if (!*to_end) return close_group(r);
    bytes_add_char(r->out, ')');
    return OK;
}

static int read_other_escape(struct reader *r)              /* outside a class; at the letter */
{
    static const struct { char letter; const char *text; } known[] = {
        { 'A', "\\A" }, { 'z', "\\z" }, { 'Z', "\\Z" }, { 'G', "\\G" }, { 'R', "\\R" }, { 'X', "\\X" }, { 'O', "(?s:.)" }, { 'N', "[^\\n]" } };
    char c = peek(r), text[16];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].letter == c) { say(r->out, known[i].text); r->at++; return OK; }
    if (c == 'b' || c == 'B') {
        struct bytes w = { 0 };
        say(&w, WORDS LATIN1_WORDS);
        add_newer(&w, WORDS_NEWER);
        const int n = (int)w.n;
        char *both = c == 'b' ? xasprintf("(?:(?<=[%.*s])(?![%.*s])|(?<![%.*s])(?=[%.*s]))", n, w.v, n, w.v, n, w.v, n, w.v)
                              : xasprintf("(?:(?<=[%.*s])(?=[%.*s])|(?<![%.*s])(?![%.*s]))", n, w.v, n, w.v, n, w.v, n, w.v);
        say(r->out, both);
        free(both);
        bytes_release(&w);
        r->at++;
        return OK;
    }
    if (c >= '1' && c <= '9') {
        if (r->at + 1 < r->len && r->text[r->at + 1] >= '0' && r->text[r->at + 1] <= '9') return refuse(r, "back-references above 9 are not supported");
        (void)snprintf(text, sizeof text, "\\g{%c}", c);
        say(r->out, text);
        r->at++;
        return OK;
    }
    return refuse(r, "escape is not known");
}

static bool is_repeat(const struct reader *r, size_t at)
{
    return at < r->len && strchr("*+?{", r->text[at]) != NULL && r->text[at] != '\0';
}

static bool read_fold(struct reader *r)                     /* caseless letters that one code point folds to */
{
    for (size_t i = 0; i < sizeof folds / sizeof *folds; i++) {
        size_t n = strlen(folds[i].letters);
        if (r->len - r->at < n || strncasecmp(r->text + r->at, folds[i].letters, n) != 0 || is_repeat(r, r->at + n)) continue;
        say(r->out, "(?:");
        say(r->out, folds[i].letters);
        say(r->out, "|");
        say(r->out, folds[i].alone);
        say(r->out, ")");
        r->at += n;
        return true;
    }
    return false;
}

static int read_atom(struct reader *r, struct options o, bool *to_end)
{
    struct bytes set = { 0 };
    enum escape kind;
    bool negated;
    uint32_t cp = 0;
    int rc = OK;
    *to_end = false;
    switch (peek(r)) {
    case '(': return read_group(r, o, to_end);
    case '[': r->at++; return read_class(r, r->out);
    case '.': r->at++; say(r->out, o.dotall ? "(?s:.)" : "[^\\n]"); return OK;
    case '^': r->at++; say(r->out, "(?m:^)"); return OK;
    case '$': r->at++; say(r->out, "(?m:$)"); return OK;
    case '*': case '+': case '?': return refuse(r, "nothing to repeat");
    case '\\': break;
    default:
        if (o.caseless && read_fold(r)) return OK;
        r->at += utf8_next(r->text + r->at, &cp);
        if (o.caseless && (cp == 0xDF || cp == 0x1E9E)) say(r->out, "(?:ss|\\x{df}|\\x{1e9e})");
        else say_cp(r->out, cp);
        return OK;
    }
    r->at++;
    rc = read_escape(r, false, &kind, &cp, &set, &negated);
    if (rc == OK && kind == ESC_CHAR) say_cp(r->out, cp);
    if (rc == OK && kind == ESC_SET) {
        say(r->out, negated ? "[^" : "[");
        bytes_add(r->out, set.v, set.n);
        say(r->out, "]");
    }
    bytes_release(&set);
    return rc == OK && kind == ESC_OTHER ? read_other_escape(r) : rc;
}

static int read_alternatives(struct reader *r, struct options o)    /* up to ")" or the end, which stay */
{
    if (++r->depth > DEPTH_MAX) return refuse(r, "nested too deep");
    while (more(r) && peek(r) != ')') {
        bool to_end;
        if (peek(r) == '|') { bytes_add_char(r->out, '|'); r->at++; continue; }
        size_t start = r->out->n;
        if (start > WRITTEN_MAX) return refuse(r, "pattern is too large");
        int rc = read_atom(r, o, &to_end);
        if (rc == OK && !to_end) rc = read_repeats(r, start);
        if (rc != OK) return rc;
    }
    r->depth--;
    return OK;
}

int regex_translate(const char *pattern, size_t len, bool (*has_property)(const char *name), struct bytes *out, struct error *err)
{
    struct reader r = { pattern, 0, len, has_property, out, err, 0 };
    out->n = 0;
    int rc = read_alternatives(&r, (struct options){ false, false });
    if (rc == OK && more(&r)) rc = refuse(&r, "\")\" without \"(\"");
    return rc;
}
