/* spool.h - the numbered records of an attempt, in the file `spool`, exactly as they go over the socket.
 *
 * Records are numbered from 1 without gaps. A record the disk does not take has no number: it is counted instead (`dropped`), so
 * that a full disk never stops the training and never tears a line. What is acknowledged may be dropped from the front once the file
 * is larger than SPOOL_COMPACT; beyond SPOOL_MAX unacknowledged bytes metrics are dropped, other records still taken. */
#ifndef RM_KEEPER_SPOOL_H
#define RM_KEEPER_SPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/error.h"

#define SPOOL_COMPACT (64LL << 20)
#define SPOOL_MAX (1LL << 30)

struct spool {
    char *path;
    int fd;
    int64_t base, end;              /* logical offsets of the file's first byte and of its end */
    int64_t first_seq, last_seq;    /* first kept, newest; first = last + 1: empty */
    int64_t *at;                    /* at[seq - first_seq]: logical offset of the record */
    int64_t cap;
    int64_t dropped;
};
int spool_open(struct spool *s, const char *dir, struct error *err);
/* Appends {"t":"record","seq":…,"rank":…,"ms":…,"m":<m>} where m is one JSON object as text. Returns the number, or 0: dropped. */
int64_t spool_append(struct spool *s, int rank, int64_t ms, const char *m, size_t len, bool metrics);
/* Logical offset of the first record after seq. */
int64_t spool_after(const struct spool *s, int64_t seq);
/* Reads up to n bytes at a logical offset; 0 at the end. */
long spool_read(const struct spool *s, int64_t offset, char *buf, size_t n);
void spool_ack(struct spool *s, int64_t seq);
void spool_sync(struct spool *s);
void spool_close(struct spool *s);

#endif
