/* dataset.c - indexing and reading of .json, .jsonl, .csv and .txt files (dataset.h).
 *
 * One pass over each file finds record borders with the smallest grammar that can: newlines; brackets outside strings; quotes.
 * Whether a record is right is judged when it is read, by json_check and record.c, so that the message names its line. */
#include "worker/data/dataset.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "worker/data/order.h"

#define RECORD_MAX ((int64_t)32 << 20)      /* bytes of one JSON or CSV record */
#define TEXT_MAX ((int64_t)1 << 30)         /* bytes of one .txt file */
#define RECORDS_MAX ((int64_t)1 << 31)
#define FOLDER_FILES_MAX 100000

static const struct json_limits record_limits = { (size_t)RECORD_MAX, 200, 4000000 };

enum kind { KIND_JSON, KIND_JSONL, KIND_CSV, KIND_TEXT };
static const struct { const char *ext; enum kind kind; } kinds[] = {
    { ".json", KIND_JSON }, { ".jsonl", KIND_JSONL }, { ".ndjson", KIND_JSONL }, { ".csv", KIND_CSV }, { ".txt", KIND_TEXT },
};

struct record { int64_t offset, line; int32_t length, file; };

struct data_file {
    char *path;
    enum kind kind;
    int64_t size;
    struct timespec changed;    /* files are opened when read, not kept open: a folder may hold more than a process may open */
    char **header;              /* CSV: column names */
    int n_header;
};

struct dataset {
    struct data_file *files;
    int n_files;
    struct record *records;     /* of all files */
    int64_t n_records, cap_records;
    int64_t *samples;           /* record numbers, after #N */
    int64_t n_samples;
    char *system;
    struct { char *from, *to; } *columns;
    int n_columns;
    uint64_t seed;
};

/* --- scanning --- */

struct scanner {
    struct dataset *d;
    int file, fd;
    int64_t pos, line;          /* of the next byte */
    size_t at, got;
    struct error *err;
    int rc;
    char block[1 << 16];
};

static int next_byte(struct scanner *s)     /* -1 at the end or after an error (rc tells) */
{
    if (s->at == s->got) {
        ssize_t n = pread(s->fd, s->block, sizeof s->block, s->pos);
        if (n < 0) s->rc = error_set(s->err, E_IO, "%s: %s", s->d->files[s->file].path, strerror(errno));
        if (n <= 0) return -1;
        s->at = 0;
        s->got = (size_t)n;
    }
    unsigned char c = (unsigned char)s->block[s->at++];
    s->pos++;
    if (c == '\n') s->line++;
    return c;
}

static int refuse(struct scanner *s, int64_t line, const char *what)
{
    return s->rc = error_set(s->err, E_INVALID, "%s:%lld: %s", s->d->files[s->file].path, (long long)line, what);
}

static int add_record(struct scanner *s, int64_t from, int64_t to, int64_t line)
{
    struct dataset *d = s->d;
    if (to - from > RECORD_MAX)
        return s->rc = error_set(s->err, E_LIMIT, "%s:%lld: record of %lld bytes, at most %lld are taken; long texts belong in .txt files",
                                 d->files[s->file].path, (long long)line, (long long)(to - from), (long long)RECORD_MAX);
    if (d->n_records == RECORDS_MAX) return s->rc = error_set(s->err, E_LIMIT, "%s: too many records", d->files[s->file].path);
    if (d->n_records == d->cap_records) {
        d->cap_records = d->cap_records ? d->cap_records * 2 : 256;
        d->records = xrealloc(d->records, (size_t)d->cap_records * sizeof *d->records);
    }
    d->records[d->n_records++] = (struct record){ from, line, (int32_t)(to - from), s->file };
    return OK;
}

/* A byte order mark in front of a file is what some editors and spreadsheets write; it says UTF-8 and is no text. Anywhere else it is refused. */
static void skip_mark(struct scanner *s)
{
    char head[3];
    if (pread(s->fd, head, 3, 0) == 3 && memcmp(head, "\xEF\xBB\xBF", 3) == 0) s->pos = 3;
}

static void index_lines(struct scanner *s)
{
    for (int c = 0; c >= 0 && s->rc == OK;) {
        int64_t from = s->pos, line = s->line;
        bool blank = true;
        while ((c = next_byte(s)) >= 0 && c != '\n') blank &= c == ' ' || c == '\t' || c == '\r';
        if (!blank && s->rc == OK) (void)add_record(s, from, s->pos - (c == '\n'), line);
    }
}

/* [ {…}, {…} ] or {…} {…}: records are the values at the outermost level. */
static void index_values(struct scanner *s)
{
    int c = next_byte(s);
    while (c == ' ' || c == '\t' || c == '\n' || c == '\r') c = next_byte(s);
    if (c < 0) return;
    bool array = c == '[', closed = false, wait = true, string = false;     /* wait: a value may start; else inside one */
    int64_t from = 0, line = 0, start_line = s->line;
    int depth = 0;
    if (array) c = next_byte(s);
    for (bool need = false; c >= 0 && s->rc == OK; c = next_byte(s)) {      /* need: after a comma */
        if (!wait && !string && depth == 0 && (c == ',' || c == ']' || (!array && (c == '\n' || c == '{')))) {
            if (add_record(s, from, s->pos - 1, line) != OK) return;
            wait = true;
            need = c == ',';
            if (c == ',' && !array) { (void)refuse(s, s->line, "',' between objects that are in no array"); return; }
            if (c == ',' || c == '\n') continue;
        }
        if (wait) {
            if (c == ' ' || c == '\t' || c == '\n' || c == '\r') continue;
            if (c == ']' && array && !closed) {
                if (need) { (void)refuse(s, s->line, "']' after a comma"); return; }
                closed = true;
                continue;
            }
            if (closed) { (void)refuse(s, s->line, "text after the end of the array"); return; }
            if (c == ',') { (void)refuse(s, s->line, "expected a record, found ','"); return; }
            wait = false;
            from = s->pos - 1;
            line = s->line;
        }
        if (string) {
            if (c == '\\') { if (next_byte(s) < 0) break; }
            else if (c == '"') string = false;
        } else if (c == '"') string = true;
        else if (c == '{' || c == '[') depth++;
        else if ((c == '}' || c == ']') && depth > 0) depth--;
        if (s->pos - from > RECORD_MAX + 1) { (void)add_record(s, from, s->pos, line); return; }
    }
    if (s->rc != OK) return;
    if (!wait && !array && depth == 0 && !string) (void)add_record(s, from, s->pos, line);
    else if (!wait || (array && !closed)) (void)refuse(s, wait ? start_line : line, "value is not closed at the end of the file; is the file cut short?");
}

static void index_rows(struct scanner *s)
{
    for (int c = 0; c >= 0 && s->rc == OK;) {
        int64_t from = s->pos, line = s->line;
        bool blank = true, quoted = false;
        while ((c = next_byte(s)) >= 0 && (quoted || c != '\n')) {
            if (c == '"') quoted = !quoted;
            blank &= c == '\r';
            if (s->pos - from > RECORD_MAX + 1) { (void)add_record(s, from, s->pos, line); return; }
        }
        if (s->rc != OK) return;
        if (quoted) { (void)refuse(s, line, "a quoted field is not closed"); return; }
        if (!blank) (void)add_record(s, from, s->pos - (c == '\n'), line);
    }
}

/* --- reading one record --- */

/* A file as it was indexed; *fd is the caller's to close. */
static int open_again(const struct data_file *f, int *fd, struct error *err)
{
    struct stat st;
    *fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return error_set(err, status_of_errno(errno), "%s: %s", f->path, strerror(errno));
    if (fstat(*fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == f->size && st.st_mtim.tv_sec == f->changed.tv_sec && st.st_mtim.tv_nsec == f->changed.tv_nsec) return OK;
    (void)close(*fd);
    *fd = -1;
    return error_set(err, E_IO, "%s: the file changed while the data set was in use", f->path);
}

static int read_bytes(const struct data_file *f, const struct record *r, int64_t length, char **out, struct error *err)
{
    int fd, rc = open_again(f, &fd, err);
    if (rc != OK) return rc;
    char *text = xmalloc((size_t)length + 1);
    for (int64_t n = 0; n < length;) {
        ssize_t got = pread(fd, text + n, (size_t)(length - n), r->offset + n);
        if (got <= 0) {
            rc = error_set(err, E_IO, "%s: %s", f->path, got < 0 ? strerror(errno) : "the file became shorter while it was read");
            (void)close(fd);
            free(text);
            return rc;
        }
        n += got;
    }
    (void)close(fd);
    text[length] = '\0';
    *out = text;
    return OK;
}

/* Cuts a CSV row into fields (RFC 4180; "" inside quotes is one quote). */
static int csv_fields(const char *text, size_t len, struct pool *pool, struct list *out, struct error *err)
{
    const char *p = text, *end = text + len;
    char *field = pool_alloc(pool, len + 2);                    /* all fields, each with a NUL where its comma was */
    if (end > p && end[-1] == '\r') end--;
    for (size_t n = 0;; field += n + 1, n = 0) {
        if (p < end && *p == '"') {
            for (p++; p < end; p++) {
                if (*p != '"') { field[n++] = *p; continue; }
                if (p + 1 < end && p[1] == '"') { field[n++] = '"'; p++; continue; }
                break;
            }
            if (p >= end) return error_set(err, E_INVALID, "a quoted field is not closed");
            p++;
            if (p < end && *p != ',') return error_set(err, E_INVALID, "text after a closing quote in column %zu; double the quotes inside a quoted field", out->n + 1);
        } else {
            while (p < end && *p != ',') field[n++] = *p++;
        }
        list_add(pool, out, v_str(field, n));
        if (p >= end) return OK;
        p++;
        if (out->n > 10000) return error_set(err, E_LIMIT, "more than 10,000 columns");
    }
}

static int bad_text(const char *text, size_t len, bool nul_ok, struct error *err)
{
    size_t bad;
    if (len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) return error_set(err, E_INVALID, "byte order mark inside the file; it may stand at its beginning only");
    const char *nul = nul_ok ? NULL : memchr(text, '\0', len);
    if (nul) return error_set(err, E_INVALID, "NUL byte at offset %zu; is this a text file?", (size_t)(nul - text));
    if (!utf8_valid(text, len, &bad)) return error_set(err, E_INVALID, "not valid UTF-8 at byte %zu of the record (0x%02x)", bad, (unsigned char)text[bad]);
    return OK;
}

static int csv_record(const struct data_file *f, const char *text, size_t len, struct pool *pool, struct value *out, struct error *err)
{
    struct value fields = v_list(pool);
    int rc = bad_text(text, len, false, err);
    if (rc == OK) rc = csv_fields(text, len, pool, fields.l, err);
    if (rc != OK) return rc;
    if (fields.l->n != (size_t)f->n_header)
        return error_set(err, E_INVALID, "%zu fields, the header has %d", fields.l->n, f->n_header);
    *out = v_dict(pool);
    for (int i = 0; i < f->n_header; i++)                       /* an empty field is an absent one */
        if (fields.l->v[i].s.n > 0) dict_push(pool, out->d, v_cstr(f->header[i]), fields.l->v[i]);
    return OK;
}

/* json_check says "line 1 column 7: …" of the record; the reader wants the file's line. */
static int place(const struct data_file *f, int64_t line, struct error *err)
{
    int64_t l = 1;
    int column = 0, used = 0;
    if (err == NULL) return E_INVALID;
    long long in = 0;
    if (sscanf(err->text, "line %lld column %d: %n", &in, &column, &used) == 2 && used > 0) {
        char rest[sizeof err->text];
        l = in;
        memcpy(rest, err->text + used, strlen(err->text + used) + 1);
        return error_set(err, err->code, "%s:%lld: column %d: %.800s", f->path, (long long)(line + l - 1), column, rest);
    }
    return error_prefix(err, "%s:%lld", f->path, (long long)line);
}

static int parse_record(const struct data_file *f, const char *text, size_t length, struct pool *pool, struct value *record, struct error *err)
{
    int rc = f->kind == KIND_CSV ? csv_record(f, text, length, pool, record, err) : value_parse(record, pool, text, length, &record_limits, err);
    if (rc == OK && record->type != V_DICT) rc = error_set(err, E_INVALID, "expected a record {\"name\": value, …}, found %s", value_kind(*record));
    return rc;
}

int dataset_sample(const struct dataset *d, int64_t i, struct pool *pool, struct sample *out, struct error *err)
{
    const struct record *r = &d->records[d->samples[i]];
    const struct data_file *f = &d->files[r->file];
    int64_t length = f->kind == KIND_TEXT ? f->size - r->offset : r->length;
    char *text;
    int rc = read_bytes(f, r, length, &text, err);
    if (rc != OK) return rc;
    *out = (struct sample){ .path = f->path, .line = r->line };
    if (f->kind == KIND_TEXT) {
        rc = bad_text(text, (size_t)length, false, err);
        if (rc == OK) {
            char *copy = pool_alloc(pool, (size_t)length + 1);
            size_t n = 0;
            for (int64_t k = 0; k < length; k++)                /* line ends as in Python's text mode */
                if (text[k] != '\r') copy[n++] = text[k];
                else if (text[k + 1] != '\n') copy[n++] = '\n';
            out->is_text = true;
            out->text = v_str(copy, n);
        }
    } else {
        struct value record;
        rc = parse_record(f, text, (size_t)length, pool, &record, err);
        if (rc == OK)
            for (int c = 0; c < d->n_columns; c++)
                for (size_t k = 0; k < record.d->n; k++)
                    if (value_is_str(record.d->k[k], d->columns[c].from)) {
                        for (size_t o = 0; o < record.d->n; o++)        /* a mapped column hides one that had the name */
                            if (o != k && value_is_str(record.d->k[o], d->columns[c].to)) record.d->k[o] = v_cstr("");
                        record.d->k[k] = v_cstr(d->columns[c].to);
                        break;
                    }
        if (rc == OK) rc = record_sample(out, pool, record, d->system, err);
    }
    free(text);
    return rc == OK ? OK : place(f, r->line, err);
}

bool dataset_columns_seen(const struct dataset *d, int64_t max_bytes, bool *seen)
{
    int missing = d->n_columns;
    for (int c = 0; c < d->n_columns; c++) seen[c] = false;
    for (int64_t i = 0; i < d->n_samples && missing > 0; i++) {
        const struct record *r = &d->records[d->samples[i]];
        const struct data_file *f = &d->files[r->file];
        struct pool pool = { 0 };
        struct value record;
        char *text;
        if (f->kind == KIND_TEXT) continue;
        if (r->length > max_bytes) return false;
        max_bytes -= r->length;
        if (read_bytes(f, r, r->length, &text, NULL) != OK) continue;
        if (parse_record(f, text, (size_t)r->length, &pool, &record, NULL) == OK)
            for (size_t k = 0; k < record.d->n; k++)
                for (int c = 0; c < d->n_columns; c++)
                    if (!seen[c] && value_is_str(record.d->k[k], d->columns[c].from)) { seen[c] = true; missing--; }
        pool_release(&pool);
        free(text);
    }
    return true;
}

/* --- opening --- */

static int read_header(struct dataset *d, int file, int64_t first, struct error *err)
{
    struct data_file *f = &d->files[file];
    struct record *r = &d->records[first];
    struct pool pool = { 0 };
    struct value fields = v_list(&pool);
    char *text;
    int rc = read_bytes(f, r, r->length, &text, err);
    if (rc != OK) return rc;
    rc = bad_text(text, (size_t)r->length, false, err);
    if (rc == OK) rc = csv_fields(text, (size_t)r->length, &pool, fields.l, err);
    for (size_t i = 0; rc == OK && i < fields.l->n; i++)
        for (size_t k = 0; k < i && rc == OK; k++)
            if (fields.l->v[i].s.n == fields.l->v[k].s.n && memcmp(fields.l->v[i].s.p, fields.l->v[k].s.p, fields.l->v[i].s.n) == 0)
                rc = error_set(err, E_INVALID, "column \"%.60s\" appears twice in the header", fields.l->v[i].s.p);
    if (rc == OK) {
        f->n_header = (int)fields.l->n;
        f->header = xcalloc(fields.l->n, sizeof *f->header);
        for (int i = 0; i < f->n_header; i++) f->header[i] = xstrndup(fields.l->v[i].s.p, fields.l->v[i].s.n);
        d->n_records--;
        memmove(r, r + 1, (size_t)(d->n_records - first) * sizeof *r);
    } else (void)place(f, r->line, err);
    free(text);
    pool_release(&pool);
    return rc;
}

static int kind_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcasecmp(dot, kinds[i].ext) == 0) return (int)kinds[i].kind;
    return -1;
}

static int add_file(struct dataset *d, const char *path, struct error *err)
{
    struct stat st;
    int kind = kind_of(path);
    if (kind < 0) return error_set(err, E_UNSUPPORTED, "%s: not a data set I can read; known are .json .jsonl .csv .txt", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return error_set(err, status_of_errno(errno), "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd);
        return error_set(err, E_INVALID, "%s: not a regular file", path);
    }
    d->files = xrealloc(d->files, (size_t)(d->n_files + 1) * sizeof *d->files);
    d->files[d->n_files] = (struct data_file){ .path = xstrdup(path), .kind = (enum kind)kind, .size = st.st_size, .changed = st.st_mtim };
    struct scanner *s = xcalloc(1, sizeof *s);
    s->d = d;
    s->file = d->n_files++;
    s->fd = fd;
    s->line = 1;
    s->err = err;
    int64_t first = d->n_records;
    skip_mark(s);
    switch (kind) {
    case KIND_JSON: index_values(s); break;
    case KIND_JSONL: index_lines(s); break;
    case KIND_CSV: index_rows(s); break;
    case KIND_TEXT:
        if (st.st_size > TEXT_MAX)
            s->rc = error_set(err, E_LIMIT, "%s: %lld bytes, a .txt file may have %lld; split it", path, (long long)st.st_size, (long long)TEXT_MAX);
        else if (st.st_size > s->pos) (void)add_record(s, s->pos, s->pos, 1);
        break;
    }
    int rc = s->rc;
    free(s);
    (void)close(fd);
    if (rc == OK && kind == KIND_CSV && d->n_records > first) rc = read_header(d, d->n_files - 1, first, err);
    return rc;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int add_folder(struct dataset *d, const char *path, int depth, struct error *err)
{
    char **names = NULL;
    int n = 0, rc = OK;
    DIR *dir = opendir(path);
    if (dir == NULL) return error_set(err, status_of_errno(errno), "%s: %s", path, strerror(errno));
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.' || strcmp(e->d_name, "dataset_info.json") == 0) continue;       /* a registry, not data */
        if (n == FOLDER_FILES_MAX) { rc = error_set(err, E_LIMIT, "%s: more than %d entries", path, FOLDER_FILES_MAX); break; }
        names = xrealloc(names, (size_t)(n + 1) * sizeof *names);
        names[n++] = xasprintf("%s/%s", path, e->d_name);
    }
    (void)closedir(dir);
    if (n) qsort(names, (size_t)n, sizeof *names, by_name);
    for (int i = 0; i < n && rc == OK; i++) {
        struct stat st;
        if (stat(names[i], &st) < 0) continue;
        if (S_ISDIR(st.st_mode)) {
            struct stat link;
            if (lstat(names[i], &link) == 0 && S_ISLNK(link.st_mode)) continue;     /* could lead back up here */
            if (depth < 8) rc = add_folder(d, names[i], depth + 1, err);
        } else if (kind_of(names[i]) >= 0) rc = add_file(d, names[i], err);
    }
    for (int i = 0; i < n; i++) free(names[i]);
    free(names);
    return rc;
}

/* ms-swift's meaning of path#N: whole copies of the set while N exceeds it, then N % size of it by seed. */
static void take_samples(struct dataset *d, int64_t first, int64_t wanted, bool shuffle, uint64_t seed)
{
    int64_t size = d->n_records - first, n = wanted < 0 ? size : wanted;
    if (size == 0 || n == 0) return;
    d->samples = xrealloc(d->samples, (size_t)(d->n_samples + n) * sizeof *d->samples);
    int64_t *out = d->samples + d->n_samples, whole = n / size * size;
    for (int64_t i = 0; i < whole; i++) out[i] = first + i % size;
    if (n > whole) {
        int64_t *perm = xmalloc((size_t)size * sizeof *perm);
        for (int64_t i = 0; i < size; i++) perm[i] = first + i;
        if (shuffle) order_shuffle(perm, size, order_stream(seed, 'p', (uint64_t)first));
        memcpy(out + whole, perm, (size_t)(n - whole) * sizeof *perm);
        free(perm);
    }
    d->n_samples += n;
}

static int add_spec(struct dataset *d, const char *spec, bool shuffle, uint64_t seed, struct error *err)
{
    struct stat st;
    int64_t wanted = -1, first = d->n_records;
    char *path = xstrdup(spec), *mark = strrchr(path, '#');
    int rc;
    if (stat(path, &st) < 0 && mark) {                          /* a file that is really called so wins */
        char *end;
        errno = 0;
        wanted = strtoll(mark + 1, &end, 10);
        if (errno || end == mark + 1 || *end != '\0' || wanted <= 0 || wanted > RECORDS_MAX || !isdigit((unsigned char)mark[1])) {
            rc = error_set(err, E_INVALID, "dataset \"%s\": after # comes a number of samples of at least 1", spec);
            free(path);
            return rc;
        }
        *mark = '\0';
    }
    if (stat(path, &st) < 0) rc = error_set(err, status_of_errno(errno), "dataset %s: %s", path, strerror(errno));
    else if (S_ISDIR(st.st_mode)) {
        rc = add_folder(d, path, 0, err);
    } else rc = add_file(d, path, err);
    if (rc == OK && d->n_records == first)
        rc = error_set(err, E_INVALID, "%s: empty dataset: %s", path, S_ISDIR(st.st_mode) ? "no records in any .json .jsonl .csv .txt file below it" : "the file has no records");
    if (rc == OK) take_samples(d, first, wanted, shuffle, seed);
    free(path);
    return rc;
}

int dataset_open(struct dataset **out, const struct strlist *specs, const cJSON *columns, const char *system, bool shuffle,
                 uint64_t seed, struct error *err)
{
    struct dataset *d = xcalloc(1, sizeof *d);
    int rc = OK;
    *out = NULL;
    d->system = system ? xstrdup(system) : NULL;
    d->seed = seed;
    for (const cJSON *c = columns ? columns->child : NULL; c && rc == OK; c = c->next) {
        if (!cJSON_IsString(c)) { rc = error_set(err, E_INVALID, "columns/%s: expected the name of one of our columns, as a string", c->string); break; }
        rc = record_column(c->valuestring, err);
        if (rc != OK) { (void)error_prefix(err, "columns/%.100s", c->string); break; }
        d->columns = xrealloc(d->columns, (size_t)(d->n_columns + 1) * sizeof *d->columns);
        d->columns[d->n_columns].from = xstrdup(c->string);
        d->columns[d->n_columns++].to = xstrdup(c->valuestring);
    }
    if (rc == OK && specs->n == 0) rc = error_set(err, E_INVALID, "dataset: no file or folder is named");
    for (int i = 0; i < specs->n && rc == OK; i++) rc = add_spec(d, specs->v[i], shuffle, seed, err);
    if (rc != OK) { dataset_close(d); return rc; }
    *out = d;
    return OK;
}

int64_t dataset_count(const struct dataset *d) { return d->n_samples; }

static void mix(uint64_t h[2], const void *data, size_t n)      /* two FNV-1a lanes with different starts, eight bytes at a time */
{
    const unsigned char *p = data;
    while (n > 0) {
        uint64_t w = 0;
        size_t k = n < 8 ? n : 8;
        memcpy(&w, p, k);
        h[0] = (h[0] ^ w ^ (uint64_t)k << 56) * 0x100000001B3u;
        h[0] ^= h[0] >> 29;
        h[1] = (h[1] + w) * 0x9E3779B97F4A7C15u + k;
        h[1] ^= h[1] >> 32;
        p += k;
        n -= k;
    }
}

int dataset_hash(const struct dataset *d, uint64_t h[2], struct error *err)
{
    enum { BLOCK = 1 << 20 };
    char *block = xmalloc(BLOCK);
    int rc = OK;
    h[0] = 0xCBF29CE484222325u;
    h[1] = 0x84222325CBF29CE4u;
    for (int i = 0; i < d->n_files && rc == OK; i++) {
        const struct data_file *f = &d->files[i];
        int64_t head[2] = { f->size, f->kind };
        int fd;
        if ((rc = open_again(f, &fd, err)) != OK) break;
        mix(h, head, sizeof head);
        for (int64_t at = 0; at < f->size && rc == OK;) {
            ssize_t n = pread(fd, block, BLOCK, at);
            if (n <= 0) { rc = error_set(err, E_IO, "%s: %s", f->path, n < 0 ? strerror(errno) : "the file became shorter while it was read"); break; }
            mix(h, block, (size_t)n);
            at += n;
        }
        (void)close(fd);
    }
    free(block);
    mix(h, d->samples, (size_t)d->n_samples * sizeof *d->samples);
    if (d->system) mix(h, d->system, strlen(d->system) + 1);
    for (int i = 0; i < d->n_columns; i++) {
        mix(h, d->columns[i].from, strlen(d->columns[i].from) + 1);
        mix(h, d->columns[i].to, strlen(d->columns[i].to) + 1);
    }
    return rc;
}

void dataset_close(struct dataset *d)
{
    if (d == NULL) return;
    for (int i = 0; i < d->n_files; i++) {
        free(d->files[i].path);
        for (int k = 0; k < d->files[i].n_header; k++) free(d->files[i].header[k]);
        free(d->files[i].header);
    }
    for (int i = 0; i < d->n_columns; i++) { free(d->columns[i].from); free(d->columns[i].to); }
    free(d->columns);
    free(d->files);
    free(d->records);
    free(d->samples);
    free(d->system);
    free(d);
}
