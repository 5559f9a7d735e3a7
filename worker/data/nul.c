/* nul.c - see nul.h. */
#include "worker/data/nul.h"

#include <string.h>

static const char hidden[] = "\xC0\x80";

int nul_parse(cJSON **out, const char *text, size_t len, const struct json_limits *lim, struct error *err)
{
    struct bytes copy = { 0 };
    if (len < 6 || memmem(text, len, "\\u0000", 6) == NULL) return json_parse(out, text, len, lim, err);
    *out = NULL;
    int rc = json_check(text, len, lim, true, err);
    if (rc != OK) return rc;
    for (size_t i = 0; i < len;) {
        if (text[i] != '\\') { bytes_add_char(&copy, text[i++]); continue; }
        bool nul = len - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0;
        bytes_add(&copy, nul ? hidden : text + i, 2);           /* a backslash takes the next character with it */
        i += nul ? 6 : 2;
    }
    *out = cJSON_ParseWithLength(copy.v, copy.n);
    bytes_release(&copy);
    return *out ? OK : error_set(err, E_INVALID, "JSON could not be parsed");
}

size_t nul_show(char *s)
{
    size_t len = strlen(s), k = 0;
    if (strstr(s, hidden) == NULL) return len;
    for (size_t i = 0; i < len; k++) {
        bool nul = s[i] == hidden[0] && s[i + 1] == hidden[1];
        s[k] = nul ? '\0' : s[i];
        i += nul ? 2 : 1;
    }
    s[k] = '\0';
    return k;
}
