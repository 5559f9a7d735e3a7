#include "daemon/keeper/spool.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "api/file.h"

int spool_open(struct spool *s, const char *dir, struct error *err)
{
    *s = (struct spool){ .path = xasprintf("%s/spool", dir), .first_seq = 1 };
    s->fd = open(s->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->fd >= 0) return OK;
    int e = errno;
    return error_set(err, status_of_errno(e), "open %s: %s", s->path, strerror(e));
}

int64_t spool_append(struct spool *s, int rank, int64_t ms, const char *m, size_t len, bool metrics)
{
    char head[128];
    if (metrics && s->end - s->base > SPOOL_MAX) { s->dropped++; return 0; }
    int n = snprintf(head, sizeof head, "{\"t\":\"record\",\"seq\":%lld,\"rank\":%d,\"ms\":%lld,\"m\":", (long long)s->last_seq + 1, rank, (long long)ms);
    struct iovec v[3] = { { head, (size_t)n }, { (void *)m, len }, { (void *)"}\n", 2 } };
    ssize_t want = (ssize_t)((size_t)n + len + 2), got;
    do got = pwritev(s->fd, v, 3, s->end - s->base);
    while (got < 0 && errno == EINTR);
    if (got != want) {
        (void)!ftruncate(s->fd, s->end - s->base);      /* no torn line stays behind */
        s->dropped++;
        return 0;
    }
    int64_t i = s->last_seq + 1 - s->first_seq;
    if (i == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 1024;
        s->at = xrealloc(s->at, (unsigned long)s->cap * sizeof *s->at);
    }
    s->at[i] = s->end;
    s->end += want;
    return ++s->last_seq;
}

int64_t spool_after(const struct spool *s, int64_t seq)
{
    if (seq < s->first_seq - 1) seq = s->first_seq - 1;
    return seq >= s->last_seq ? s->end : s->at[seq + 1 - s->first_seq];
}

long spool_read(const struct spool *s, int64_t offset, char *buf, size_t n)
{
    if (offset < s->base) offset = s->base;
    if ((int64_t)n > s->end - offset) n = (size_t)(s->end - offset);
    ssize_t got;
    do got = pread(s->fd, buf, n, offset - s->base);
    while (got < 0 && errno == EINTR);
    return got < 0 ? 0 : (long)got;
}

/* Rewrites the file without what is acknowledged; on any failure the old one simply stays. */
static void compact(struct spool *s, int64_t keep)
{
    char *tmp = xasprintf("%s.tmp", s->path), *buf = xmalloc(1 << 20);
    int fd = open(tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    int64_t from = spool_after(s, keep), at = from;
    bool ok = fd >= 0;
    while (ok && at < s->end) {
        long n = spool_read(s, at, buf, 1 << 20);
        ok = n > 0 && write_all(fd, buf, (size_t)n, NULL) == OK;
        at += n;
    }
    if (ok && rename(tmp, s->path) == 0) {
        (void)close(s->fd);
        s->fd = fd;
        fd = -1;
        memmove(s->at, s->at + (keep + 1 - s->first_seq), (size_t)(s->last_seq - keep) * sizeof *s->at);
        s->first_seq = keep + 1;
        s->base = from;
    } else (void)unlink(tmp);
    if (fd >= 0) (void)close(fd);
    free(buf);
    free(tmp);
}

void spool_ack(struct spool *s, int64_t seq)
{
    if (seq > s->last_seq) seq = s->last_seq;
    if (seq >= s->first_seq && spool_after(s, seq) - s->base > SPOOL_COMPACT) compact(s, seq);
}

void spool_sync(struct spool *s) { (void)fdatasync(s->fd); }

void spool_close(struct spool *s)
{
    if (s->fd >= 0) (void)close(s->fd);
    free(s->path);
    free(s->at);
    *s = (struct spool){ .fd = -1 };
}
