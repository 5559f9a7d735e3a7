#include "daemon/keeper/ranklog.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "api/error.h"
#include "api/json.h"

enum { NOTE_MS = 1000 };

static void reopen(struct ranklog *g)
{
    struct stat st;
    char *times = xasprintf("%s.times", g->path);
    if (g->times_fd >= 0) (void)close(g->times_fd);
    g->times_fd = open(times, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    g->noted_ms = 0;
    free(times);
    g->fd = open(g->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    g->size = g->fd >= 0 && fstat(g->fd, &st) == 0 ? (int64_t)st.st_size : 0;
    if (g->times_fd >= 0 && g->size == 0) (void)!ftruncate(g->times_fd, 0);     /* of a log that is gone */
}

void ranklog_open(struct ranklog *g, const char *dir, int rank, int64_t limit)
{
    *g = (struct ranklog){ .path = xasprintf("%s/rank-%d.log", dir, rank), .fd = -1, .times_fd = -1, .limit = limit };
    reopen(g);
}

static void rotate(struct ranklog *g)
{
    static const char *const ends[] = { "", ".times" };
    for (int i = 0; i < 2; i++) {
        char *now = xasprintf("%s%s", g->path, ends[i]), *old = xasprintf("%s.1%s", g->path, ends[i]);
        (void)rename(now, old);
        free(now);
        free(old);
    }
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

static void note_time(struct ranklog *g)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    struct ranklog_time e = { (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000, g->size };
    if (g->noted_ms > 0 && ((e.ms >= g->noted_ms && e.ms - g->noted_ms < NOTE_MS) || e.offset - g->noted_at < (int64_t)sizeof e)) return;
    if (write(g->times_fd, &e, sizeof e) != (ssize_t)sizeof e) return;
    g->noted_ms = e.ms;
    g->noted_at = e.offset;
}

void ranklog_write(struct ranklog *g, const char *data, size_t n)
{
    keep_tail(g, data, n);
    if (g->size >= g->limit && g->fd >= 0) rotate(g);
    if (g->fd < 0) reopen(g);
    if (g->fd >= 0 && g->times_fd >= 0) note_time(g);
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
    if (g->times_fd >= 0) (void)close(g->times_fd);
    free(g->path);
    *g = (struct ranklog){ .fd = -1, .times_fd = -1 };
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
    for (char *p = line; *p; p++)
        if (iscntrl((unsigned char)*p)) *p = ' ';
    utf8_scrub(line);
    return line;
}
