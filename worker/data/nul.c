/* nul.c - see nul.h. */
#include "worker/data/nul.h"

#include <stdio.h>
#include <string.h>

/* Noncharacters: never in a well-meant text. */
#define FIRST 0xFDD0u
#define LAST 0xFDEFu

static bool occurs(const char *json, size_t len, uint32_t cp)
{
    char raw[4], upper[8], lower[8];
    size_t n = utf8_put(raw, cp);
    (void)snprintf(upper, sizeof upper, "%04X", cp);
    (void)snprintf(lower, sizeof lower, "%04x", cp);
    if (memmem(json, len, raw, n)) return true;
    for (const char *p = json, *end = json + len; (p = memmem(p, (size_t)(end - p), "\\u", 2)) != NULL; p += 2)
        if (end - p >= 6 && strncasecmp(p + 2, lower, 4) == 0) return true;
    return false;
}

int nul_hide(const char *json, size_t len, struct bytes *out, uint32_t *stand_in, struct error *err)
{
    *stand_in = 0;
    out->n = 0;
    if (memmem(json, len, "\\u0000", 6)) {
        uint32_t cp = FIRST;
        while (cp <= LAST && occurs(json, len, cp)) cp++;
        if (cp > LAST) return error_set(err, E_LIMIT, "text holds NUL and every noncharacter from U+FDD0 to U+FDEF");
        *stand_in = cp;
    }
    for (size_t i = 0; i < len;) {
        if (*stand_in && json[i] == '\\' && i + 1 < len) {
            if (len - i >= 6 && memcmp(json + i, "\\u0000", 6) == 0) { bytes_add_cp(out, *stand_in); i += 6; continue; }
            bytes_add(out, json + i, 2);                    /* a backslash takes the next character with it */
            i += 2;
            continue;
        }
        bytes_add_char(out, json[i++]);
    }
    bytes_add_char(out, '\0');
    out->n--;
    return OK;
}

size_t nul_show(char *s, uint32_t stand_in)
{
    char raw[4];
    if (stand_in == 0) return strlen(s);
    size_t n = utf8_put(raw, stand_in), k = 0;
    for (size_t i = 0; s[i];) {
        if (strncmp(s + i, raw, n) == 0) { s[k++] = '\0'; i += n; }
        else s[k++] = s[i++];
    }
    s[k] = '\0';
    return k;
}
