/* api_run.c - what a run shows and leaves: attempts, ranks, logs, figures, checkpoints, files, events. */
#include "daemon/api.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/attempt.h"
#include "daemon/daemon.h"
#include "daemon/keeper/ranklog.h"
#include "daemon/metrics.h"
#include "daemon/sse.h"

enum { TAIL_BYTES = 8 << 20, NAMES_MAX = 32 };

/* The stored job of the path, or answers 404. */
static cJSON *stored_job(struct daemon *d, struct request *q, int64_t *id)
{
    struct error err;
    cJSON *o = NULL;
    if (!path_job(d, q, id)) return NULL;
    if (job_json(d, *id, true, &o, &err) != OK) { reply_error(q, &err); return NULL; }
    return o;
}

void job_attempts(struct daemon *d, struct request *q)
{
    int64_t id;
    struct error err;
    cJSON *rows, *o = stored_job(d, q, &id);
    if (o == NULL) return;
    cJSON_Delete(o);
    if (store_rows(d->store, &rows, &err, "SELECT n AS attempt,state,reason,detail,rank,code,signal,first_step,last_step,resumed_from,slots AS \"j:slots\",pid,bad_frames,"
                                          "slurm_job,started_ms AS \"t:started_at\",ended_ms AS \"t:ended_at\" FROM attempts WHERE job=? ORDER BY n", "i", id) != OK) reply_error(q, &err);
    else reply_list(q, rows, NULL);
}

void job_ranks(struct daemon *d, struct request *q)
{
    int64_t id, attempt = 0, n;
    struct error err;
    cJSON *rows, *o = stored_job(d, q, &id);
    if (o == NULL) return;
    (void)json_int(o, "attempt", &attempt);
    cJSON_Delete(o);
    if (!request_int(q, "attempt", 1, 1000000, attempt, &n)) return;
    struct job *j = job_find(d, id);
    if (j && j->attempt && n == attempt) { reply_list(q, attempt_ranks_json(j->attempt), NULL); return; }
    if (store_rows(d->store, &rows, &err, "SELECT rank,pid,attempt,'ended' AS state,step,code,signal,reason FROM ranks WHERE job=? AND attempt=? ORDER BY rank", "ii", id, n) != OK) { reply_error(q, &err); return; }
    cJSON *row;
    cJSON_ArrayForEach(row, rows) {
        int64_t rank;
        if (json_int(row, "rank", &rank)) metrics_last(d->store, id, (int)rank, n, row);
    }
    reply_list(q, rows, NULL);
}

/* --- logs --- */

/* Memory for what a request asked for, which may be much: without it the request fails (503), not the coordinator. */
static void *large(struct request *q, void *old, size_t n)
{
    void *p = realloc(old, n);
    if (p) return p;
    free(old);
    reply_problem(q, 503, "memory", NULL, "there is no memory for this answer (%zu bytes) now; ask for less", n);
    return NULL;
}

/* The last lines of fd that hold grep (NULL: all), at most max of them, out of its last TAIL_BYTES, none from before byte `first`. NULL
 * without any, or after large() has answered. */
static char *tail_lines(struct request *q, int fd, int64_t first, int64_t max, const char *grep, size_t *len, int64_t *found)
{
    struct stat st;
    *len = 0;
    *found = 0;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) return NULL;
    off_t from = st.st_size > TAIL_BYTES ? st.st_size - TAIL_BYTES : 0;
    if (first > st.st_size) first = st.st_size;
    if (first > from) from = first;
    char *buf = large(q, NULL, (size_t)(st.st_size - from) + 2);
    if (buf == NULL) return NULL;
    size_t n = 0, needle = grep ? strlen(grep) : 0;
    for (ssize_t got; n < (size_t)(st.st_size - from) && (got = pread(fd, buf + n, (size_t)(st.st_size - from) - n, from + (off_t)n)) > 0; n += (size_t)got) { }
    size_t start = n, at = n + 1;       /* lines found move to the end of buf: never more than was read of it */
    int64_t lines = 0;
    while (start > 0 && lines < max) {
        size_t end = start;
        if (buf[end - 1] == '\n') end--;
        size_t begin = end;
        while (begin > 0 && buf[begin - 1] != '\n') begin--;
        if (!grep || memmem(buf + begin, end - begin, grep, needle)) {
            size_t line = end - begin;
            at -= line + 1;
            memmove(buf + at, buf + begin, line);
            buf[at + line] = '\n';
            lines++;
        }
        start = begin;
    }
    *len = n + 1 - at;
    *found = lines;
    memmove(buf, buf + at, *len);
    return buf;
}

/* old: the file that was the log before the last rotation; end: ".times" for the one beside it, or "". */
static int open_log(struct daemon *d, int64_t id, int64_t attempt, const char *rank, bool old, const char *end)
{
    bool keeper = strcmp(rank, "keeper") == 0;
    char *path = xasprintf("%s/jobs/j%lld/attempt-%lld/%s%s.log%s%s", d->set.home, (long long)id, (long long)attempt, keeper ? "" : "rank-", rank, old ? ".1" : "", end);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    free(path);
    return fd;
}

/* The byte of a log (old: of the one before its rotation) from which all was printed since `ms`; up to a second, or 16 bytes, more. 0: from its
 * start. *whole: all of it is younger. Without its file of times nothing is left out. */
static int64_t byte_since(struct daemon *d, int64_t id, int64_t attempt, const char *rank, bool old, int64_t ms, bool *whole)
{
    int fd = ms > 0 ? open_log(d, id, attempt, rank, old, ".times") : -1;
    struct ranklog_time e;
    int64_t found = 0;
    struct stat st;
    *whole = true;
    if (fd < 0) return 0;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))     /* the last entry not after ms, by halving: times rise but where a clock was set back */
        for (int64_t lo = 0, hi = st.st_size / (int64_t)sizeof e; lo < hi;) {
            int64_t mid = lo + (hi - lo) / 2;
            if (pread(fd, &e, sizeof e, (off_t)(mid * (int64_t)sizeof e)) != (ssize_t)sizeof e) break;
            if (e.ms <= ms) { found = e.offset > 0 ? e.offset : 0; *whole = false; lo = mid + 1; }
            else hi = mid;
        }
    (void)close(fd);
    return found;
}

/* The last lines of a rank, across a rotation; since: ms since 1970, 0 for all. NULL: it printed nothing yet. */
static char *tail_rank(struct daemon *d, struct request *q, int64_t id, int64_t attempt, const char *rank, int64_t since, int64_t max, const char *grep, size_t *len)
{
    int64_t found = 0, more, first;
    size_t older = 0;
    bool whole;
    int fd = open_log(d, id, attempt, rank, false, "");
    first = byte_since(d, id, attempt, rank, false, since, &whole);
    char *now = fd >= 0 ? tail_lines(q, fd, first, max, grep, len, &found) : NULL, *before = NULL;
    if (fd >= 0) (void)close(fd);
    if (q->status == 0 && whole && found < max && (fd = open_log(d, id, attempt, rank, true, "")) >= 0) {
        first = byte_since(d, id, attempt, rank, true, since, &whole);
        before = tail_lines(q, fd, first, max - found, grep, &older, &more);
        (void)close(fd);
    }
    if (before == NULL) return now;
    if (now == NULL) *len = 0;
    if ((before = large(q, before, older + *len + 1)) == NULL) { free(now); return NULL; }
    if (now) memcpy(before + older, now, *len);
    *len += older;
    free(now);
    return before;
}

void job_logs(struct daemon *d, struct request *q)
{
    int64_t id, attempt = 0, tail, since, n, ranks = 1;
    const char *rank = request_arg(q, "rank"), *grep = request_arg(q, "grep");
    cJSON *o = stored_job(d, q, &id);
    if (o == NULL) return;
    (void)json_int(o, "attempt", &attempt);
    (void)json_int(o, "ranks", &ranks);
    cJSON_Delete(o);
    if (!request_int(q, "tail", 0, 1000000, -1, &tail) || !request_int(q, "since", 0, INT64_C(1) << 52, 0, &since) || !request_int(q, "attempt", 1, 1000000, attempt, &n)) return;
    if (rank && strcmp(rank, "all") != 0 && strcmp(rank, "keeper") != 0 && (strlen(rank) > 5 || strspn(rank, "0123456789") != strlen(rank) || !*rank || atoll(rank) >= ranks)) {
        reply_problem(q, 400, "parameter", NULL, "rank: expected 0 to %lld, all or keeper", (long long)ranks - 1);
        return;
    }
    char *text = xstrdup("");
    size_t len = 0, cap = 1;
    if (rank && strcmp(rank, "all") == 0) {
        if (tail < 0) tail = 1000;
        for (int64_t r = 0; r < ranks && text && len < 4 * (size_t)TAIL_BYTES; r++) {
            char name[24];
            (void)snprintf(name, sizeof name, "%lld", (long long)r);
            size_t part = 0;
            char *lines = tail_rank(d, q, id, n, name, since, tail, grep, &part), *p = lines;
            if (q->status) { free(lines); free(text); return; }
            if (lines == NULL) continue;
            while (p < lines + part) {
                char *nl = memchr(p, '\n', (size_t)(lines + part - p));
                size_t line = (size_t)(nl - p) + 1;
                if (len + line + 32 > cap && (text = large(q, text, cap = (len + line + 32) * 2)) == NULL) break;
                len += (size_t)sprintf(text + len, "[rank %lld] ", (long long)r);
                memcpy(text + len, p, line);
                len += line;
                p = nl + 1;
            }
            free(lines);
        }
        if (text) reply_text(q, 200, "text/plain; charset=utf-8", text, len);
        return;
    }
    char name[24];
    (void)snprintf(name, sizeof name, "%.20s", rank ? rank : "0");
    if (tail < 0 && !grep && since == 0) {
        int fd = open_log(d, id, n, name, false, "");
        if (fd < 0) { reply_text(q, 200, "text/plain; charset=utf-8", text, 0); return; }      /* nothing printed yet */
        free(text);
        reply_file(q, fd, "text/plain; charset=utf-8", NULL);
        return;
    }
    free(text);
    text = tail_rank(d, q, id, n, name, since, tail < 0 ? 1000000 : tail, grep, &len);
    if (q->status) free(text);
    else reply_text(q, 200, "text/plain; charset=utf-8", text ? text : xstrdup(""), text ? len : 0);
}

/* --- figures --- */

void job_metrics(struct daemon *d, struct request *q)
{
    int64_t id, from, to, max, rank = 0;
    struct error err;
    char *names[NAMES_MAX], *list;
    int n = 0;
    const char *want = request_arg(q, "names"), *r = request_arg(q, "rank");
    cJSON *o = stored_job(d, q, &id), *out;
    if (o == NULL) return;
    cJSON_Delete(o);
    if (!request_int(q, "max_points", 4, 5000, 1000, &max) || !request_int(q, "from", 0, INT64_C(1) << 52, 0, &from) || !request_int(q, "to", 0, INT64_C(1) << 52, INT64_C(1) << 52, &to)) return;
    if (r && strcmp(r, "all") == 0) rank = -1;
    else if (!request_int(q, "rank", 0, 4095, 0, &rank)) return;
    list = xstrdup(want && *want ? want : "loss");
    for (char *save = NULL, *p = strtok_r(list, ",", &save); p && n < NAMES_MAX; p = strtok_r(NULL, ",", &save)) names[n++] = p;
    if (metrics_series(d->store, id, names, n, (int)rank, from, to, max, &out, &err) != OK) reply_error(q, &err);
    else reply_json(q, 200, out);
    free(list);
}

void job_metric_names(struct daemon *d, struct request *q)
{
    int64_t id;
    struct error err;
    cJSON *o = stored_job(d, q, &id), *out;
    if (o == NULL) return;
    cJSON_Delete(o);
    if (metrics_names(d->store, id, &out, &err) != OK) reply_error(q, &err);
    else reply_list(q, out, NULL);
}

/* Fields in which the specs of 2 to 10 runs differ, and their curves. */
void compare(struct daemon *d, struct request *q)
{
    struct error err;
    const char *ids = request_arg(q, "ids"), *names = request_arg(q, "names");
    int64_t id[10], max;
    int n = 0;
    if (!request_int(q, "max_points", 4, 2000, 300, &max)) return;
    for (const char *p = ids; p && *p;) {
        char one[24];
        size_t len = strcspn(p, ",");
        (void)snprintf(one, sizeof one, "%.*s", (int)(len < 23 ? len : 23), p);
        if (n == 10 || !job_id_parse(one, &id[n])) { n = 0; break; }
        n++;
        p += len + (p[len] == ',');
    }
    if (n < 2) { reply_problem(q, 400, "parameter", NULL, "ids: expected 2 to 10 job ids, like j1,j2"); return; }
    cJSON *jobs[10] = { NULL }, *o = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(o, "jobs"), *diff = cJSON_AddObjectToObject(o, "differences");
    int rc = OK;
    for (int i = 0; i < n && rc == OK; i++) rc = job_json(d, id[i], true, &jobs[i], &err);
    for (int f = 0; f < n_spec_fields && rc == OK; f++) {
        bool same = true;
        for (int i = 1; i < n && same; i++)
            same = cJSON_Compare(json_get(json_get(jobs[0], "spec"), spec_fields[f].name), json_get(json_get(jobs[i], "spec"), spec_fields[f].name), true);
        if (same) continue;
        cJSON *row = cJSON_AddArrayToObject(diff, spec_fields[f].name);
        for (int i = 0; i < n; i++) {
            cJSON *v = json_get(json_get(jobs[i], "spec"), spec_fields[f].name);
            (void)cJSON_AddItemToArray(row, v ? cJSON_Duplicate(v, true) : cJSON_CreateNull());
        }
    }
    for (int i = 0; i < n && rc == OK; i++) {
        char *copy = xstrdup(names && *names ? names : "loss,tokens_per_s"), *name[NAMES_MAX];
        int k = 0;
        for (char *save = NULL, *p = strtok_r(copy, ",", &save); p && k < NAMES_MAX; p = strtok_r(NULL, ",", &save)) name[k++] = p;
        cJSON *series = NULL, *row;
        rc = metrics_series(d->store, id[i], name, k, 0, 0, INT64_C(1) << 52, max, &series, &err);
        free(copy);
        if (rc != OK) break;
        row = cJSON_CreateObject();
        json_add_str(row, "id", json_str(jobs[i], "id"));
        json_add_str(row, "name", json_str(jobs[i], "name"));
        json_add_str(row, "state", json_str(jobs[i], "state"));
        (void)cJSON_AddItemToObject(row, "series", cJSON_DetachItemFromObject(series, "series"));
        (void)cJSON_AddItemToArray(list, row);
        cJSON_Delete(series);
    }
    for (int i = 0; i < n; i++) cJSON_Delete(jobs[i]);
    if (rc == OK) reply_json(q, 200, o);
    else { cJSON_Delete(o); reply_error(q, &err); }
}

/* --- files --- */

/* Opens name beneath dir, one part after the other, no symbolic link on the way, nothing but plain names. */
static int open_beneath(const char *dir, const char *name, int flags)
{
    int at = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    while (at >= 0) {
        size_t n = strcspn(name, "/");
        char part[256];
        int next = -1;
        bool last = name[n] == '\0';
        if (n > 0 && n < sizeof part && !(name[0] == '.' && (n == 1 || (n == 2 && name[1] == '.')))) {
            memcpy(part, name, n);
            part[n] = '\0';
            next = openat(at, part, last ? flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK : O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        }
        (void)close(at);
        if (last || next < 0) return next;
        at = next;
        name += n + 1;
    }
    return -1;
}

void job_checkpoints(struct daemon *d, struct request *q)
{
    int64_t id;
    struct error err;
    cJSON *rows, *row, *o = stored_job(d, q, &id);
    if (o == NULL) return;
    cJSON_Delete(o);
    if (store_rows(d->store, &rows, &err, "SELECT step,path,attempt,ms AS \"t:at\"," BAD_CHECKPOINT ">=? AS \"b:bad\" FROM checkpoints WHERE job=? ORDER BY step", "ii", (int64_t)BAD_AFTER, id) != OK) { reply_error(q, &err); return; }
    cJSON_ArrayForEach(row, rows) {         /* save_total_limit may have removed it since */
        DIR *dir = opendir(json_str(row, "path") ? json_str(row, "path") : "");
        int64_t bytes = 0;
        for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
            struct stat st;
            if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)) bytes += st.st_size;
        }
        (void)cJSON_AddBoolToObject(row, "complete", dir != NULL);      /* written aside and renamed: there means complete */
        json_add_int(row, "bytes", bytes);
        if (dir) (void)closedir(dir);
    }
    reply_list(q, rows, NULL);
}

static void list_files(int fd, const char *prefix, int depth, cJSON *out)
{
    DIR *dir = fdopendir(fd);
    if (dir == NULL) { (void)close(fd); return; }
    for (struct dirent *e; cJSON_GetArraySize(out) < 2000 && (e = readdir(dir)) != NULL;) {
        struct stat st;
        size_t bad;
        if (e->d_name[0] == '.' || !utf8_valid(e->d_name, strlen(e->d_name), &bad) || fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) continue;
        char *name = xasprintf("%s%s", prefix, e->d_name);
        if (S_ISREG(st.st_mode)) {
            cJSON *o = cJSON_CreateObject();
            char *when = time_text((int64_t)st.st_mtim.tv_sec * 1000);
            json_add_str(o, "name", name);
            json_add_int(o, "bytes", (int64_t)st.st_size);
            json_add_str(o, "changed_at", when);
            free(when);
            (void)cJSON_AddItemToArray(out, o);
        } else if (S_ISDIR(st.st_mode) && depth < 3) {
            char *deeper = xasprintf("%s/", name);
            int sub = openat(dirfd(dir), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (sub >= 0) list_files(sub, deeper, depth + 1, out);
            free(deeper);
        }
        free(name);
    }
    (void)closedir(dir);
}

void job_artifacts(struct daemon *d, struct request *q)
{
    int64_t id;
    cJSON *o = stored_job(d, q, &id), *list;
    if (o == NULL) return;
    const char *out = json_str(o, "output_dir");
    int fd = out ? open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    list = cJSON_CreateArray();
    if (fd >= 0) list_files(fd, "", 0, list);
    cJSON_Delete(o);
    reply_list(q, list, NULL);
}

void job_artifact(struct daemon *d, struct request *q)
{
    int64_t id;
    cJSON *o = stored_job(d, q, &id);
    if (o == NULL) return;
    const char *out = json_str(o, "output_dir"), *base = strrchr(q->param[1], '/');
    int fd = out ? open_beneath(out, q->param[1], O_RDONLY) : -1;
    cJSON_Delete(o);
    if (fd < 0) reply_problem(q, 404, "not_found", NULL, "this job has no file \"%.200s\"", q->param[1]);
    else reply_file(q, fd, "application/octet-stream", base ? base + 1 : q->param[1]);
}

/* --- events --- */

void all_events(struct daemon *d, struct request *q) { sse_open(d, q, 0); }

void job_events(struct daemon *d, struct request *q)
{
    int64_t id;
    cJSON *o = stored_job(d, q, &id);
    if (o == NULL) return;
    cJSON_Delete(o);
    sse_open(d, q, id);
}

void job_events_list(struct daemon *d, struct request *q)
{
    int64_t id, limit;
    struct error err;
    cJSON *rows, *o = stored_job(d, q, &id);
    if (o == NULL) return;
    cJSON_Delete(o);
    if (!request_int(q, "limit", 1, 1000, 200, &limit)) return;
    if (store_rows(d->store, &rows, &err, "SELECT id AS event_id,attempt,ms AS \"t:at\",kind,level,data AS \"j:data\" FROM events WHERE job=? ORDER BY id DESC LIMIT ?", "ii", id, limit) != OK) reply_error(q, &err);
    else reply_list(q, rows, NULL);
}
