#include "api/printable.h"

#include <stdlib.h>
#include <string.h>

#include "api/json.h"

char *printable(const char *s, size_t n, bool body)
{
    char *out = xmalloc(4 * n + 1), *o = out;
    for (size_t i = 0, k; i < n; i += k) {
        unsigned char c = (unsigned char)s[i];
        k = c < 0x80 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
        if (c >= 0x80 && (k > n - i || !utf8_valid(s + i, k, NULL))) {
            k = 1;
            o += sprintf(o, "\\x%02x", c);
        } else if (c == 0xC2 && (unsigned char)s[i + 1] < 0xA0) o += sprintf(o, "\\u%04x", (unsigned char)s[i + 1]);
        else if ((c < 0x20 && !(body && (c == '\n' || c == '\t'))) || c == 0x7F) o += sprintf(o, "\\x%02x", c);
        else {
            memcpy(o, s + i, k);
            o += k;
        }
    }
    *o = '\0';
    return out;
}

char *printable_v(const char *fmt, va_list ap)
{
    char *raw = NULL;
    if (vasprintf(&raw, fmt, ap) < 0) abort();
    char *line = printable(raw, strlen(raw), false);
    free(raw);
    return line;
}

void print_line(FILE *to, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *line = printable_v(fmt, ap);
    va_end(ap);
    (void)fprintf(to, "%s\n", line);
    free(line);
}
