/* api_admin.c - the page, health, schema, queue and devices, tokens, audit, figures of the coordinator itself. */
#include "daemon/api.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "api/file.h"
#include "api/message.h"
#include "daemon/attempt.h"
#include "daemon/auth.h"
#include "daemon/daemon.h"
#include "daemon/embedded.h"
#include "daemon/openapi.h"
#include "daemon/scheduler.h"
#include "daemon/sse.h"

static void send_file(struct request *q, const char *name)
{
    for (const struct embedded *f = web_files; f->name; f++) {
        if (strcmp(f->name, name) != 0) continue;
        const char *have = request_header(q, "If-None-Match"), *enc = request_header(q, "Accept-Encoding");
        reply_header(q, "ETag", f->etag);
        reply_header(q, "Cache-Control", "no-cache");
        if (have && strstr(have, f->etag)) { reply_static(q, 304, NULL, "", 0); return; }
        reply_header(q, "Vary", "Accept-Encoding");
        if (enc && strstr(enc, "gzip")) {
            reply_header(q, "Content-Encoding", "gzip");
            reply_static(q, 200, f->type, f->gzip, f->gzip_len);
        } else reply_static(q, 200, f->type, f->data, f->len);
        return;
    }
    reply_problem(q, 404, "not_found", NULL, "there is no such file");
}

void page_index(struct daemon *d, struct request *q) { if (!auth_exchange(d, q)) send_file(q, "index.html"); }
void page_file(struct daemon *d, struct request *q) { (void)d; send_file(q, q->path + sizeof "/static/" - 1); }

void health(struct daemon *d, struct request *q)
{
    (void)d;
    reply_json(q, 200, cJSON_Parse("{\"status\":\"ok\"}"));
}

void ready(struct daemon *d, struct request *q)
{
    if (!d->ready) reply_problem(q, 503, "starting", NULL, "running jobs are being adopted");
    else if (d->draining) reply_problem(q, 503, "draining", NULL, "the coordinator is going down");
    else reply_json(q, 200, cJSON_Parse("{\"status\":\"ready\"}"));
}

void version_show(struct daemon *d, struct request *q)
{
    (void)d;
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "name", "ringmaster");
    json_add_str(o, "version", RM_VERSION);
    json_add_int(o, "protocol", MESSAGE_PROTOCOL);
    reply_json(q, 200, o);
}

void schema_show(struct daemon *d, struct request *q) { (void)d; reply_json(q, 200, spec_schema()); }
void devices_show(struct daemon *d, struct request *q) { reply_list(q, devices_json(d), NULL); }
void queue_show(struct daemon *d, struct request *q) { reply_list(q, queue_json(d), NULL); }
void settings_show(struct daemon *d, struct request *q) { reply_json(q, 200, settings_json(&d->set)); }
void openapi_show(struct daemon *d, struct request *q) { (void)d; reply_json(q, 200, openapi_document()); }

/* --- tokens --- */

void tokens_list(struct daemon *d, struct request *q)
{
    struct error err;
    cJSON *rows;
    if (store_rows(d->store, &rows, &err, "SELECT id,name,scope,kind,created_ms AS \"t:created_at\",expires_ms AS \"t:expires_at\" FROM tokens WHERE expires_ms IS NULL OR expires_ms>? ORDER BY id", "i", wall_ms()) != OK) reply_error(q, &err);
    else reply_list(q, rows, NULL);
}

void token_create(struct daemon *d, struct request *q)
{
    struct error err;
    struct problems p = { 0 };
    char secret[80];
    int64_t id, ttl = 0;
    cJSON *body = body_object(q);
    if (body == NULL) return;
    const char *name = json_str(body, "name"), *scope = json_str(body, "scope");
    if (name == NULL || !*name || strlen(name) > 60) problems_add(&p, "/name", "required", "expected a name of 1 to 60 bytes");
    if (scope == NULL || scope_parse(scope) == SCOPE_NONE) problems_add(&p, "/scope", "out_of_range", "expected read, submit or admin");
    if (json_get(body, "ttl_s") && (!json_int(body, "ttl_s", &ttl) || ttl < 1 || ttl > INT64_C(3153600000))) problems_add(&p, "/ttl_s", "out_of_range", "expected a whole number of seconds from 1");
    for (const cJSON *v = body->child; v; v = v->next)
        if (strcmp(v->string, "name") != 0 && strcmp(v->string, "scope") != 0 && strcmp(v->string, "ttl_s") != 0) problems_add(&p, "", "unknown_field", "unknown field \"%.60s\"", v->string);
    if (p.n > 0) reply_problem(q, 422, "invalid", &p, "the token is refused");
    else if (auth_token_new(d, name, scope, "token", ttl * 1000, secret, &id, &err) != OK) reply_error(q, &err);
    else {
        cJSON *o = cJSON_CreateObject();
        json_add_int(o, "id", id);
        json_add_str(o, "name", name);
        json_add_str(o, "scope", scope);
        json_add_str(o, "token", secret);
        reply_json(q, 201, o);
    }
    problems_release(&p);
    cJSON_Delete(body);
}

bool path_number(struct request *q, int64_t *id)
{
    char *end;
    *id = strtoll(q->param[0], &end, 10);
    if (q->param[0][0] >= '1' && q->param[0][0] <= '9' && *end == '\0' && strlen(q->param[0]) < 18) return true;
    reply_problem(q, 404, "not_found", NULL, "expected a number, got \"%.40s\"", q->param[0]);
    return false;
}

void token_delete(struct daemon *d, struct request *q)
{
    int64_t id;
    struct error err;
    if (!path_number(q, &id)) return;
    if (id == q->token_id) { reply_problem(q, 409, "conflict", NULL, "a token cannot remove itself"); return; }
    if (store_exec(d->store, &err, "DELETE FROM tokens WHERE id=?", "i", id) != OK) reply_error(q, &err);
    else if (store_changes(d->store) == 0) reply_problem(q, 404, "not_found", NULL, "there is no token %lld", (long long)id);
    else reply_static(q, 204, NULL, "", 0);
}

void audit_list(struct daemon *d, struct request *q)
{
    struct error err;
    int64_t limit, at = INT64_MAX, last = 0;
    const char *cursor = request_arg(q, "cursor");
    cJSON *rows, *o;
    char next[40];
    if (!request_int(q, "limit", 1, 200, 100, &limit)) return;
    if (cursor && !cursor_parse(cursor, &at)) { reply_problem(q, 400, "parameter", NULL, "cursor: not one of ours"); return; }
    if (store_rows(d->store, &rows, &err, "SELECT id,ms AS \"t:at\",who,peer,method,path,status,note FROM audit WHERE id<? ORDER BY id DESC LIMIT ?", "ii", at, limit + 1) != OK) { reply_error(q, &err); return; }
    bool more = cJSON_GetArraySize(rows) > limit;
    if (more) cJSON_DeleteItemFromArray(rows, (int)limit);
    cJSON_ArrayForEach(o, rows) (void)json_int(o, "id", &last);
    cursor_make(next, last);
    reply_list(q, rows, more ? next : NULL);
}

/* --- Prometheus text format --- */

struct text { char *p; size_t n; };
static void add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct text *t, const char *fmt, ...)
{
    char line[400];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    t->p = xrealloc(t->p, t->n + (size_t)n + 1);
    memcpy(t->p + t->n, line, (size_t)n + 1);
    t->n += (size_t)n;
}

static void metric(struct text *t, const char *name, const char *type, const char *help, int64_t v) { add(t, "# HELP %s %s\n# TYPE %s %s\n%s %lld\n", name, help, name, type, name, (long long)v); }

static int64_t rss_bytes(void)
{
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f == NULL) return 0;
    if (fscanf(f, "%ld %ld", &pages, &resident) != 2) resident = 0;
    (void)fclose(f);
    return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

static int64_t heap_bytes(void)
{
    struct mallinfo2 m = mallinfo2();
    return (int64_t)(m.uordblks + m.hblkhd);
}

static bool take_count(void *arg, struct store_row *r)
{
    add(arg, "ringmaster_jobs{state=\"%s\"} %lld\n", row_text(r, 0), (long long)row_int(r, 1));
    return true;
}

void prometheus(struct daemon *d, struct request *q)
{
    struct text t = { 0 };
    int busy = 0;
    for (int i = 0; i < d->n_slots; i++) busy += d->slots[i].job != 0;
    add(&t, "# HELP ringmaster_jobs Jobs by state.\n# TYPE ringmaster_jobs gauge\n");
    (void)store_each(d->store, take_count, &t, NULL, "SELECT state,count(*) FROM jobs GROUP BY state", "");
    metric(&t, "ringmaster_slots", "gauge", "Device slots.", d->n_slots);
    metric(&t, "ringmaster_slots_busy", "gauge", "Device slots held by jobs.", busy);
    metric(&t, "ringmaster_http_connections", "gauge", "Open client connections.", http_connections(d->http));
    metric(&t, "ringmaster_event_streams", "gauge", "Open event streams.", sse_clients(d));
    metric(&t, "ringmaster_records_total", "counter", "Records received from keepers.", d->records);
    metric(&t, "ringmaster_bad_frames_total", "counter", "Records that were torn, oversized or senseless.", d->bad_frames);
    metric(&t, "ringmaster_flushes_total", "counter", "Transactions that stored records.", d->flushes);
    metric(&t, "ringmaster_flush_failures_total", "counter", "Times the store did not take records.", d->flush_failures);
    metric(&t, "ringmaster_wal_bytes", "gauge", "Length of the database's write-ahead log.", store_wal_bytes(d->store));
    metric(&t, "ringmaster_loop_lag_ms_max", "gauge", "Longest delay of the loop's tick in the last minute.", d->lag_ms_max);
    metric(&t, "process_resident_memory_bytes", "gauge", "Resident memory.", rss_bytes());
    metric(&t, "ringmaster_heap_bytes", "gauge", "Allocated and not freed.", heap_bytes());
    metric(&t, "ringmaster_store_heap_bytes", "gauge", "Part of it that SQLite holds, its page cache above all.", store_heap_bytes());
    metric(&t, "ringmaster_uptime_seconds", "gauge", "Since start.", (mono_ms() - d->started_mono_ms) / 1000);
    add(&t, "# HELP ringmaster_http_responses_total Replies by class.\n# TYPE ringmaster_http_responses_total counter\n");
    for (int i = 2; i <= 5; i++) add(&t, "ringmaster_http_responses_total{class=\"%dxx\"} %lld\n", i, (long long)http_count(d->http, i));
    static const struct { const char *name, *metric; } shown[] = { { "loss", "loss" }, { "tokens_per_s", "tokens_per_second" }, { "comm_share", "communication_share" }, { "peak_bytes", "peak_bytes" } };
    for (size_t k = 0; k < sizeof shown / sizeof shown[0]; k++) {
        add(&t, "# HELP ringmaster_job_%s Latest value, rank 0.\n# TYPE ringmaster_job_%s gauge\n", shown[k].metric, shown[k].metric);
        for (struct job *j = d->jobs; j; j = j->next) {
            double v = j->attempt ? attempt_figure(j->attempt, 0, shown[k].name) : 0;
            if (j->attempt && v == v) add(&t, "ringmaster_job_%s{job=\"j%lld\"} %.9g\n", shown[k].metric, (long long)j->row.id, v);
        }
    }
    reply_text(q, 200, "text/plain; version=0.0.4; charset=utf-8", t.p, t.n);
}

void backup_create(struct daemon *d, struct request *q)
{
    struct error err;
    cJSON *o = cJSON_CreateObject();
    char *when = time_text(wall_ms());
    for (char *p = when; *p; p++) if (*p == ':') *p = '-';
    char *dir = xasprintf("%s/backups", d->set.home), *path = xasprintf("%s/%s.db", dir, when);
    int rc = make_dirs(dir, &err);
    if (rc == OK) rc = store_backup(d->store, path, &err);
    json_add_str(o, "path", path);
    if (rc == OK) reply_json(q, 201, o);
    else { cJSON_Delete(o); reply_error(q, &err); }
    free(when);
    free(dir);
    free(path);
}
