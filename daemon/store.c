/* store.c - the one door to SQLite; see store.h. */
#include "daemon/store.h"

#include <assert.h>
#include <errno.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/embedded.h"

struct cached { const char *sql; sqlite3_stmt *stmt; };
struct store {
    sqlite3 *db;
    char *path;
    struct cached *cache;
    int n_cache;
    int depth;              /* of store_begin */
    int64_t changes;
};
struct store_row { sqlite3_stmt *stmt; };

int64_t wall_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t mono_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

char *time_text(int64_t ms)
{
    time_t s = (time_t)(ms / 1000);
    struct tm tm;
    char day[32];
    (void)gmtime_r(&s, &tm);
    (void)strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    return xasprintf("%s.%03dZ", day, (int)(ms % 1000));
}

static int db_error(struct store *s, int rc, const char *what, struct error *err)
{
    switch (rc & 0xff) {
    case SQLITE_BUSY: case SQLITE_LOCKED:
        return error_set(err, E_TIMEOUT, "the database is locked by another process; try again");
    case SQLITE_FULL:
        return error_set(err, E_DISK_FULL, "the disk is full: %s", what);
    case SQLITE_IOERR: case SQLITE_CANTOPEN:        /* WAL frames and temp files report ENOSPC as I/O errors */
        if (s->db && sqlite3_system_errno(s->db) == ENOSPC) return error_set(err, E_DISK_FULL, "the disk is full: %s", what);
        return error_set(err, E_IO, "database: %s: %s", what, sqlite3_errstr(rc));
    case SQLITE_CORRUPT: case SQLITE_NOTADB:
        return error_set(err, E_INVALID, "%s is damaged (%s); restore a backup with `ringmaster restore`, or move the file away to start empty",
                         s->path, s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(rc));
    case SQLITE_CONSTRAINT:
        return error_set(err, E_CONFLICT, "database: %s", sqlite3_errmsg(s->db));
    default:
        return error_set(err, E_INTERNAL, "database: %s: %s", what, sqlite3_errmsg(s->db));
    }
}

static sqlite3_stmt *statement(struct store *s, const char *sql, struct error *err)
{
    for (int i = 0; i < s->n_cache; i++)
        if (s->cache[i].sql == sql) {
            if (i > 0) { struct cached c = s->cache[i]; s->cache[i] = s->cache[i / 2]; s->cache[i / 2] = c; }    /* drifts to the front */
            return s->cache[i / 2].stmt;
        }
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL);
    if (rc != SQLITE_OK) { (void)db_error(s, rc, sql, err); return NULL; }
    s->cache = xrealloc(s->cache, (unsigned long)(s->n_cache + 1) * sizeof *s->cache);
    s->cache[s->n_cache++] = (struct cached){ sql, stmt };
    return stmt;
}

static void bind_all(sqlite3_stmt *stmt, const char *binds, va_list ap)
{
    for (int i = 1; *binds; binds++, i++) {
        switch (*binds) {
        case 'i': (void)sqlite3_bind_int64(stmt, i, va_arg(ap, int64_t)); break;
        case 'd': (void)sqlite3_bind_double(stmt, i, va_arg(ap, double)); break;
        case 's': {
            const char *t = va_arg(ap, const char *);
            if (t) (void)sqlite3_bind_text(stmt, i, t, -1, SQLITE_TRANSIENT);
            else (void)sqlite3_bind_null(stmt, i);
            break;
        }
        case 'b': {
            const void *p = va_arg(ap, const void *);
            size_t n = va_arg(ap, size_t);
            (void)sqlite3_bind_blob64(stmt, i, p, n, SQLITE_TRANSIENT);
            break;
        }
        default: assert(!"bind letter");
        }
    }
}

static int each(struct store *s, bool (*row)(void *, struct store_row *), void *arg, struct error *err, const char *sql, const char *binds, va_list ap)
{
    sqlite3_stmt *stmt = statement(s, sql, err);
    if (stmt == NULL) return err ? (int)err->code : E_INTERNAL;
    bind_all(stmt, binds, ap);
    struct store_row r = { stmt };
    int rc;
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW)
        if (row == NULL || !row(arg, &r)) { rc = SQLITE_DONE; break; }
    s->changes = sqlite3_changes64(s->db);
    int status = rc == SQLITE_DONE ? OK : db_error(s, rc, sql, err);
    (void)sqlite3_reset(stmt);
    (void)sqlite3_clear_bindings(stmt);
    return status;
}

int store_each(struct store *s, bool (*row)(void *, struct store_row *), void *arg, struct error *err, const char *sql, const char *binds, ...)
{
    va_list ap;
    va_start(ap, binds);
    int rc = each(s, row, arg, err, sql, binds, ap);
    va_end(ap);
    return rc;
}

int store_exec(struct store *s, struct error *err, const char *sql, const char *binds, ...)
{
    va_list ap;
    va_start(ap, binds);
    int rc = each(s, NULL, NULL, err, sql, binds, ap);
    va_end(ap);
    return rc;
}

int64_t row_int(struct store_row *r, int col) { return sqlite3_column_int64(r->stmt, col); }
const char *row_text(struct store_row *r, int col) { return (const char *)sqlite3_column_text(r->stmt, col); }

const void *row_blob(struct store_row *r, int col, size_t *len)
{
    const void *p = sqlite3_column_blob(r->stmt, col);
    *len = (size_t)sqlite3_column_bytes(r->stmt, col);
    return p;
}

static cJSON *row_object(sqlite3_stmt *stmt)
{
    cJSON *o = cJSON_CreateObject();
    for (int i = 0; i < sqlite3_column_count(stmt); i++) {
        const char *name = sqlite3_column_name(stmt, i);
        int type = sqlite3_column_type(stmt, i);
        char mark = name[0] && name[1] == ':' ? name[0] : '\0';
        const char *key = mark ? name + 2 : name;
        if (type == SQLITE_NULL) { (void)cJSON_AddNullToObject(o, key); continue; }
        if (mark == 'j') {
            cJSON *v = cJSON_Parse((const char *)sqlite3_column_text(stmt, i));
            (void)cJSON_AddItemToObject(o, key, v ? v : cJSON_CreateNull());
        } else if (mark == 'b') (void)cJSON_AddBoolToObject(o, key, sqlite3_column_int64(stmt, i) != 0);
        else if (mark == 't') {
            char *t = time_text(sqlite3_column_int64(stmt, i));
            json_add_str(o, key, t);
            free(t);
        } else if (type == SQLITE_INTEGER) json_add_int(o, key, sqlite3_column_int64(stmt, i));
        else if (type == SQLITE_FLOAT) json_add_num(o, key, sqlite3_column_double(stmt, i));
        else json_add_str(o, key, (const char *)sqlite3_column_text(stmt, i));
    }
    return o;
}

static bool add_row(void *arg, struct store_row *r)
{
    (void)cJSON_AddItemToArray(arg, row_object(r->stmt));
    return true;
}

int store_rows(struct store *s, cJSON **rows, struct error *err, const char *sql, const char *binds, ...)
{
    va_list ap;
    *rows = cJSON_CreateArray();
    va_start(ap, binds);
    int rc = each(s, add_row, *rows, err, sql, binds, ap);
    va_end(ap);
    if (rc != OK) { cJSON_Delete(*rows); *rows = NULL; }
    return rc;
}

static bool take_row(void *arg, struct store_row *r)
{
    *(cJSON **)arg = row_object(r->stmt);
    return false;
}

int store_one(struct store *s, cJSON **row, struct error *err, const char *sql, const char *binds, ...)
{
    va_list ap;
    *row = NULL;
    va_start(ap, binds);
    int rc = each(s, take_row, row, err, sql, binds, ap);
    va_end(ap);
    return rc;
}

static bool take_int(void *arg, struct store_row *r)
{
    if (sqlite3_column_type(r->stmt, 0) != SQLITE_NULL) *(int64_t *)arg = row_int(r, 0);
    return false;
}

int64_t store_int(struct store *s, int64_t absent, const char *sql, const char *binds, ...)
{
    va_list ap;
    va_start(ap, binds);
    (void)each(s, take_int, &absent, NULL, sql, binds, ap);
    va_end(ap);
    return absent;
}

int64_t store_changes(struct store *s) { return s->changes; }
int64_t store_last_id(struct store *s) { return sqlite3_last_insert_rowid(s->db); }

int store_begin(struct store *s, struct error *err)
{
    if (s->depth++ > 0) return OK;
    int rc = store_exec(s, err, "BEGIN IMMEDIATE", "");
    if (rc != OK) s->depth = 0;
    return rc;
}

int store_commit(struct store *s, struct error *err)
{
    assert(s->depth > 0);
    if (--s->depth > 0) return OK;
    int rc = store_exec(s, err, "COMMIT", "");
    if (rc != OK && !sqlite3_get_autocommit(s->db)) (void)store_exec(s, NULL, "ROLLBACK", "");
    return rc;
}

void store_rollback(struct store *s)
{
    s->depth = 0;
    if (!sqlite3_get_autocommit(s->db)) (void)store_exec(s, NULL, "ROLLBACK", "");
}

int store_backup(struct store *s, const char *path, struct error *err)
{
    if (access(path, F_OK) == 0) return error_set(err, E_CONFLICT, "%s exists already; name a new file", path);
    char *sql = sqlite3_mprintf("VACUUM INTO %Q", path), *text = NULL;
    int rc = sqlite3_exec(s->db, sql, NULL, NULL, &text);
    sqlite3_free(sql);
    int status = rc == SQLITE_OK ? OK : db_error(s, rc, text ? text : "backup", err);
    sqlite3_free(text);
    if (status == OK) (void)chmod(path, 0600);
    return status;
}

int store_restore(const char *path, const char *backup, struct error *err)
{
    static const char *const parts[] = { "", "-wal", "-shm" };
    struct store *s = NULL;
    char *data = NULL, *fresh = xasprintf("%s.restoring", path);
    size_t len;
    int rc = file_read(backup, (size_t)1 << 40, &data, &len, err);
    if (rc == OK) rc = file_write(fresh, data, len, err);
    free(data);
    if (rc == OK && chmod(fresh, 0600) != 0) rc = error_set(err, E_IO, "%s: %m", fresh);
    if (rc == OK) rc = store_open(&s, fresh, err);      /* checks it, and brings an older schema up to date */
    if (rc != OK) (void)error_prefix(err, "%s", backup);
    else {
        store_checkpoint(s);
        store_close(s);
        int64_t now = wall_ms();
        for (int i = 0; i < 3 && rc == OK; i++) {
            char *old = xasprintf("%s%s", path, parts[i]), *kept = xasprintf("%s.replaced-%lld%s", path, (long long)now, parts[i]);
            if (rename(old, kept) != 0 && errno != ENOENT) rc = error_set(err, E_IO, "keep %s: %s", old, strerror(errno));
            free(old);
            free(kept);
        }
        if (rc == OK && rename(fresh, path) != 0) rc = error_set(err, E_IO, "restore %s: %s", path, strerror(errno));
        if (rc == OK) rc = fsync_parent(path, err);
    }
    for (int i = 0; i < 3; i++) {
        char *p = xasprintf("%s%s", fresh, parts[i]);
        (void)unlink(p);
        free(p);
    }
    free(fresh);
    return rc;
}

void store_checkpoint(struct store *s) { (void)sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL); }

int64_t store_wal_bytes(struct store *s)
{
    struct stat st;
    char *wal = xasprintf("%s-wal", s->path);
    int64_t n = stat(wal, &st) == 0 ? (int64_t)st.st_size : 0;
    free(wal);
    return n;
}

int64_t store_heap_bytes(void) { return (int64_t)sqlite3_memory_used(); }

static int run_script(struct store *s, const char *sql, struct error *err)
{
    char *text = NULL;
    int rc = sqlite3_exec(s->db, sql, NULL, NULL, &text);
    int status = rc == SQLITE_OK ? OK : db_error(s, rc, text ? text : sql, err);
    sqlite3_free(text);
    return status;
}

static int migrate(struct store *s, struct error *err)
{
    int64_t have = store_int(s, -1, "PRAGMA user_version", ""), want = 0;
    int rc = OK;
    while (migrations[want].name) want++;
    if (have < 0) return error_set(err, E_INVALID, "%s: cannot read its schema version", s->path);
    if (have > want)
        return error_set(err, E_INVALID, "%s was written by a newer ringmasterd (schema %lld, this one knows %lld); install that version", s->path, (long long)have, (long long)want);
    if (have > 0 && have < want) {
        char *copy = xasprintf("%s.before-%lld", s->path, (long long)want);
        (void)unlink(copy);
        rc = store_backup(s, copy, err);
        free(copy);
        if (rc != OK) { (void)error_prefix(err, "copy before migration"); return rc; }
    }
    for (int64_t n = have; n < want && rc == OK; n++) {
        if ((rc = store_begin(s, err)) != OK) break;
        char *version = xasprintf("PRAGMA user_version=%lld", (long long)(n + 1));
        if ((rc = run_script(s, (const char *)migrations[n].data, err)) == OK && (rc = run_script(s, version, err)) == OK) rc = store_commit(s, err);
        else store_rollback(s);
        free(version);
        if (rc != OK) (void)error_prefix(err, "migration %s", migrations[n].name);
    }
    return rc;
}

static bool check_row(void *arg, struct store_row *r)
{
    (void)snprintf(arg, 300, "%s", row_text(r, 0));
    return false;
}

int store_open(struct store **out, const char *path, struct error *err)
{
    struct store *s = xcalloc(1, sizeof *s);
    char verdict[300] = "no answer";
    *out = NULL;
    s->path = xstrdup(path);
    mode_t old = umask(077);
    int rc = sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc != SQLITE_OK) { rc = db_error(s, rc, path, err); goto out; }
    (void)sqlite3_extended_result_codes(s->db, 1);
    (void)sqlite3_busy_timeout(s->db, STORE_BUSY_MS);
    if ((rc = run_script(s, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA mmap_size=0; PRAGMA journal_size_limit=8388608; PRAGMA trusted_schema=OFF;", err)) != OK) goto out;
    if ((rc = store_each(s, check_row, verdict, err, "PRAGMA quick_check(1)", "")) != OK) goto out;
    if (strcmp(verdict, "ok") != 0) {
        rc = error_set(err, E_INVALID, "%s is damaged (%s); restore a backup with `ringmaster restore`, or move the file away to start empty", path, verdict);
        goto out;
    }
    rc = migrate(s, err);
out:
    (void)umask(old);
    if (rc != OK) store_close(s);
    else *out = s;
    return rc;
}

void store_close(struct store *s)
{
    if (s == NULL) return;
    for (int i = 0; i < s->n_cache; i++) (void)sqlite3_finalize(s->cache[i].stmt);
    free(s->cache);
    (void)sqlite3_close(s->db);
    free(s->path);
    free(s);
}
