#include "api/error.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"

static const char *const status_names[STATUS_COUNT] = {
    [OK] = "ok", [E_INVALID] = "invalid", [E_UNSUPPORTED] = "unsupported", [E_NOTFOUND] = "not_found", [E_IO] = "io",
    [E_DISK_FULL] = "disk_full", [E_NOMEM] = "out_of_memory", [E_LIMIT] = "limit", [E_TIMEOUT] = "timeout",
    [E_PEER] = "peer_lost", [E_STOPPED] = "stopped", [E_CONFLICT] = "conflict", [E_CUDA] = "cuda", [E_NCCL] = "nccl",
    [E_INTERNAL] = "internal",
};

/* A cut in the middle of a UTF-8 sequence would make our own JSON invalid: drop the torn tail. */
static void trim_torn_utf8(char *s)
{
    size_t n = strlen(s), i = n;
    while (i > 0 && n - i < 4 && ((unsigned char)s[i - 1] & 0xC0) == 0x80) i--;
    if (i == 0) return;
    unsigned char lead = (unsigned char)s[i - 1];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (want > 1 && n - (i - 1) < want) s[i - 1] = '\0';
}

int error_set(struct error *err, enum status code, const char *fmt, ...)
{
    assert(code != OK);
    if (err == NULL) return code;
    err->code = code;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    trim_torn_utf8(err->text);
    utf8_scrub(err->text);      /* "%.60s" cuts where it likes */
    return code;
}

int error_prefix(struct error *err, const char *fmt, ...)
{
    if (err == NULL) return E_INTERNAL;
    struct error old = *err;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (n < 0) n = 0;
    size_t used = (size_t)n < sizeof err->text ? (size_t)n : sizeof err->text - 1;
    (void)snprintf(err->text + used, sizeof err->text - used, ": %.*s", (int)sizeof old.text - 1, old.text);
    trim_torn_utf8(err->text);
    return err->code;
}

const char *status_name(enum status code)
{
    return (unsigned)code < STATUS_COUNT ? status_names[code] : "unknown";
}

enum status status_of_errno(int e)
{
    switch (e) {
    case ENOSPC: case EDQUOT: return E_DISK_FULL;
    case ENOMEM: return E_NOMEM;
    case ENOENT: return E_NOTFOUND;
    default: return E_IO;
    }
}

static void *must(void *p)
{
    if (p == NULL) {
        (void)fputs("ringmaster: out of host memory\n", stderr);
        abort();
    }
    return p;
}

void *xmalloc(unsigned long bytes) { return must(malloc(bytes ? bytes : 1)); }
void *xcalloc(unsigned long n, unsigned long bytes) { return must(calloc(n ? n : 1, bytes ? bytes : 1)); }
void *xrealloc(void *p, unsigned long bytes) { return must(realloc(p, bytes ? bytes : 1)); }
char *xstrdup(const char *s) { return must(strdup(s)); }
char *xstrndup(const char *s, unsigned long n) { return must(strndup(s, n)); }

char *xasprintf(const char *fmt, ...)
{
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    return must(n < 0 ? NULL : s);
}
