/* lines.h - the tools' common shape: JSONL on standard input, JSONL on standard output, one line for one line. */
#ifndef RM_WORKER_DATA_LINES_H
#define RM_WORKER_DATA_LINES_H

#include <stdio.h>

#include "worker/data/value.h"

extern const struct json_limits lines_limits;   /* 64 MiB a line */

/* Parses every line of in and calls line() for it; what that puts into *out is written, with a newline. Stops at the first error,
 * which is prefixed with "line N". The record and everything in pool are gone after the call. */
int lines_run(FILE *in, FILE *to, int (*line)(void *arg, struct value record, struct pool *pool, struct buf *out, struct error *err),
              void *arg, struct error *err);

#endif
