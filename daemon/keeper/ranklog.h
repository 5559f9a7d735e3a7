/* ranklog.h - what a rank prints, in rank-<r>.log: bounded (two files of at most `limit` bytes, the older ends in .1), never a
 * reason to stop. What the disk does not take is counted. A log deleted from outside is made anew.
 * Beside each file lies <file>.times, at most one entry a second, and one for as many bytes as it takes, so that it is never larger than the log: at `ms` (since 1970) the log had `offset` bytes. It answers "since when". */
#ifndef RM_KEEPER_RANKLOG_H
#define RM_KEEPER_RANKLOG_H

#include <stddef.h>
#include <stdint.h>

struct ranklog_time { int64_t ms, offset; };    /* host byte order: written and read on one machine */
struct ranklog {
    char *path;
    int fd, times_fd;
    int64_t noted_ms, noted_at;             /* of the last entry */
    int64_t size, limit, dropped_bytes, rotations;
    char tail[4096]; size_t tail_len;       /* the last bytes, for the exit record and for signs of a full device */
};
void ranklog_open(struct ranklog *g, const char *dir, int rank, int64_t limit);
void ranklog_write(struct ranklog *g, const char *data, size_t n);
void ranklog_check(struct ranklog *g);      /* once a second: still the file of that name? */
void ranklog_close(struct ranklog *g);
/* The tail's last line that holds a letter, control characters replaced, valid UTF-8 made of it; the caller frees. */
char *ranklog_last_line(const struct ranklog *g);

#endif
