/* lines.c - see lines.h. */
#include "worker/data/lines.h"

#include <errno.h>
#include <string.h>

const struct json_limits lines_limits = { 64u << 20, 256, 8000000 };

/* *more false at the end of the input. The line comes without its newline. */
static int read_line(FILE *in, struct buf *text, bool *more, struct error *err)
{
    char piece[16384];
    text->n = 0;
    *more = false;
    for (;;) {
        size_t n = 0;
        int c = 0;
        flockfile(in);
        while (n < sizeof piece && (c = getc_unlocked(in)) != EOF && c != '\n') piece[n++] = (char)c;
        funlockfile(in);
        if (n || c == '\n') *more = true;
        buf_add(text, piece, n);
        if (c == EOF && ferror(in)) return error_set(err, E_IO, "standard input: %s", strerror(errno));
        if (text->n > lines_limits.bytes) return error_set(err, E_LIMIT, "longer than %zu bytes", lines_limits.bytes);
        if (c == '\n' || c == EOF) break;
    }
    if (text->n && text->p[text->n - 1] == '\r') text->n--;
    return OK;
}

int lines_run(FILE *in, FILE *to, int (*line)(void *arg, struct value record, struct pool *pool, struct buf *out, struct error *err),
              void *arg, struct error *err)
{
    struct buf text = { 0 }, out = { 0 };
    long long number = 1;
    int rc = OK;
    for (bool more; rc == OK; number++) {
        struct pool pool = { 0 };
        struct value record;
        out.n = 0;
        rc = read_line(in, &text, &more, err);
        if (rc == OK && !more) break;
        if (rc == OK) rc = value_parse(&record, &pool, text.n ? text.p : "", text.n, &lines_limits, err);
        if (rc == OK) rc = line(arg, record, &pool, &out, err);
        pool_release(&pool);
        if (rc != OK) { (void)error_prefix(err, "line %lld", number); break; }
        buf_str(&out, "\n");
        if (fwrite(out.p, 1, out.n, to) != out.n) rc = error_set(err, errno == ENOSPC ? E_DISK_FULL : E_IO, "standard output: %s", strerror(errno));
    }
    if (fflush(to) != 0 && rc == OK) rc = error_set(err, errno == ENOSPC ? E_DISK_FULL : E_IO, "standard output: %s", strerror(errno));
    buf_release(&text);
    buf_release(&out);
    return rc;
}
