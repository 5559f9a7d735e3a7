/* store.h - what must survive: one SQLite database, one connection, one thread.
 *
 * store.c is the only file that knows SQLite; the SQL itself stands beside its use and comes through here as string literals
 * (statements are kept prepared, keyed by the literal's address). WAL with synchronous=FULL: a returned OK from store_commit is
 * on disk. One connection both writes and checkpoints, because of the WAL-reset race in SQLite before 3.51.3.
 * A foreign lock makes calls fail with E_TIMEOUT after STORE_BUSY_MS; a full disk with E_DISK_FULL: nothing is then changed. */
#ifndef RM_DAEMON_STORE_H
#define RM_DAEMON_STORE_H

#include <stdbool.h>

#include "api/json.h"

enum { STORE_BUSY_MS = 250 };

struct store;
struct store_row;       /* the current row inside a store_each callback */

/* Opens or makes the database, checks it (quick_check), applies the embedded migrations in one transaction each, after a copy
 * <path>.before-<n> of an existing one. Refuses a newer schema and a damaged file: E_INVALID with what to do. */
int store_open(struct store **out, const char *path, struct error *err);
void store_close(struct store *s);

/* binds: one letter per ? of the SQL: i int64_t, d double, s const char * (NULL is NULL), b const void * and size_t. */
int store_exec(struct store *s, struct error *err, const char *sql, const char *binds, ...);
/* Rows as an array of objects; a column named "j:x" holds JSON text and becomes member x, "b:x" becomes a boolean, "t:x" a ms time as RFC 3339. */
int store_rows(struct store *s, cJSON **rows, struct error *err, const char *sql, const char *binds, ...);
/* First row alone, or *row = NULL. */
int store_one(struct store *s, cJSON **row, struct error *err, const char *sql, const char *binds, ...);
/* First column of the first row as a number; absent if there is none. */
int64_t store_int(struct store *s, int64_t absent, const char *sql, const char *binds, ...);
/* Calls row for each result row until it returns false. */
int store_each(struct store *s, bool (*row)(void *arg, struct store_row *r), void *arg, struct error *err, const char *sql, const char *binds, ...);
int64_t row_int(struct store_row *r, int col);
const char *row_text(struct store_row *r, int col);                 /* NULL if NULL; borrowed until the callback returns */
const void *row_blob(struct store_row *r, int col, size_t *len);

int64_t store_changes(struct store *s);         /* rows the last store_exec changed */
int64_t store_last_id(struct store *s);
int store_begin(struct store *s, struct error *err);                /* takes the write lock at once; nests by count */
int store_commit(struct store *s, struct error *err);               /* on failure everything is rolled back */
void store_rollback(struct store *s);
/* A whole copy of the database at path, made while in use. */
int store_backup(struct store *s, const char *path, struct error *err);
/* With no daemon running: checks the backup and puts it in path's place; what was there stays as <path>.replaced-<time>. */
int store_restore(const char *path, const char *backup, struct error *err);
/* Moves the WAL into the database and cuts it; called when idle. */
void store_checkpoint(struct store *s);
int64_t store_wal_bytes(struct store *s);
int64_t store_heap_bytes(void);                /* what SQLite holds now, its page cache included */

char *time_text(int64_t ms);                    /* "2026-01-02T03:04:05.678Z"; the caller frees */
int64_t wall_ms(void);
int64_t mono_ms(void);

#endif
