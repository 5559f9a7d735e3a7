#include "daemon/keeper/ranklog.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/error.h"
#include "api/json.h"

static void reopen(struct ranklog *g)
{
    struct stat st;
    g->fd = open(g->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    g->size = g->fd >= 0 && fstat(g->fd, &st) == 0 ? (int64_t)st.st_size : 0;
}

void ranklog_open(struct ranklog *g, const char *dir, int rank, int64_t limit)
{
    *g = (struct ranklog){ .path = xasprintf("%s/rank-%d.log", dir, rank), .fd = -1, .limit = limit };
    reopen(g);
}

static void rotate(struct ranklog *g)
{
    char *old = xasprintf("%s.1", g->path);
    (void)rename(g->path, old);
    free(old);
    (void)close(g->fd);
    reopen(g);
    g->rotations++;
}

static void keep_tail(struct ranklog *g, const char *data, size_t n)
{
    size_t cap = sizeof g->tail;
    if (n >= cap) {
        memcpy(g->tail, data + n - cap, cap);
        g->tail_len = cap;
        return;
    }
    if (g->tail_len + n > cap) {
        size_t drop = g->tail_len + n - cap;
        memmove(g->tail, g->tail + drop, g->tail_len - drop);
        g->tail_len -= drop;
    }
    memcpy(g->tail + g->tail_len, data, n);
    g->tail_len += n;
}

void ranklog_write(struct ranklog *g, const char *data, size_t n)
{
    keep_tail(g, data, n);
    if (g->size >= g->limit && g->fd >= 0) rotate(g);
    if (g->fd < 0) reopen(g);
    while (n > 0 && g->fd >= 0) {
        ssize_t w = write(g->fd, data, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) break;
        data += w;
        n -= (size_t)w;
        g->size += w;
    }
    g->dropped_bytes += (int64_t)n;
}

void ranklog_check(struct ranklog *g)
{
    struct stat ours, theirs;
    if (g->fd < 0) { reopen(g); return; }
    if (fstat(g->fd, &ours) == 0 && lstat(g->path, &theirs) == 0 && ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev) return;
    (void)close(g->fd);
    reopen(g);
}

void ranklog_close(struct ranklog *g)
{
    if (g->fd >= 0) (void)close(g->fd);
    free(g->path);
    *g = (struct ranklog){ .fd = -1 };
}

char *ranklog_last_line(const struct ranklog *g)
{
    size_t end = g->tail_len, from = end;
    bool letter = false;
    while (from > 0) {
        char c = g->tail[from - 1];
        if (c == '\n' || c == '\r') {
            if (letter) break;
            end = from - 1;
        } else if (isalpha((unsigned char)c)) letter = true;
        from--;
    }
    if (end - from > 500) from = end - 500;
    char *line = xstrndup(g->tail + from, letter ? end - from : 0);
    size_t bad, n = strlen(line);
    for (char *p = line; *p; p++)
        if (iscntrl((unsigned char)*p)) *p = ' ';
    while (!utf8_valid(line, n, &bad)) line[bad] = '?';
    return line;
}
