/* api_jobs.c - jobs as resources: list, show, change, and the verbs that act on one. */
#include "daemon/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/file.h"
#include "daemon/attempt.h"
#include "daemon/daemon.h"
#include "daemon/sse.h"

bool path_job(struct daemon *d, struct request *q, int64_t *id)
{
    (void)d;
    if (job_id_parse(q->param[0], id)) return true;
    reply_problem(q, 404, "not_found", NULL, "there is no job \"%.60s\"; ids look like j12", q->param[0]);
    return false;
}

struct job *live_job(struct daemon *d, struct request *q)
{
    int64_t id;
    if (!path_job(d, q, &id)) return NULL;
    struct job *j = job_find(d, id);
    if (j) return j;
    cJSON *o;
    struct error err;
    if (job_json(d, id, false, &o, &err) != OK) { reply_error(q, &err); return NULL; }
    reply_problem(q, 409, "ended", NULL, "job %.30s is %s already", q->param[0], json_str(o, "state"));
    cJSON_Delete(o);
    return NULL;
}

void reply_list(struct request *q, cJSON *items, const char *next)
{
    cJSON *o = cJSON_CreateObject();
    char *now = time_text(wall_ms());
    (void)cJSON_AddItemToObject(o, "items", items);
    json_add_str(o, "next", next);
    json_add_str(o, "server_time", now);
    free(now);
    if (next) {
        char *link = xasprintf("<%s?cursor=%s>; rel=\"next\"", q->path, next);
        reply_header(q, "Link", link);
        free(link);
    }
    reply_json(q, 200, o);
}

cJSON *body_object(struct request *q)
{
    struct error err;
    cJSON *o = NULL;
    if (q->body_len == 0) { reply_problem(q, 400, "body", NULL, "expected a JSON object as the body"); return NULL; }
    if (json_parse(&o, q->body, q->body_len, &json_limits_request, &err) != OK) { reply_problem(q, 400, "not_json", NULL, "%s", err.text); return NULL; }
    if (cJSON_IsObject(o)) return o;
    cJSON_Delete(o);
    reply_problem(q, 400, "body", NULL, "expected a JSON object as the body");
    return NULL;
}

static uint32_t check_of(int64_t id)
{
    uint64_t x = (uint64_t)id * 0x9E3779B97F4A7C15u;
    return (uint32_t)(x >> 32) ^ 0x52696e67u;
}

void cursor_make(char out[40], int64_t id) { (void)snprintf(out, 40, "%llx-%08x", (unsigned long long)id, check_of(id)); }

bool cursor_parse(const char *text, int64_t *id)
{
    unsigned long long v;
    unsigned c;
    char again[40];
    if (strlen(text) > 30 || sscanf(text, "%16llx-%8x", &v, &c) != 2 || v == 0 || v > INT64_MAX) return false;
    cursor_make(again, (int64_t)v);
    *id = (int64_t)v;
    return strcmp(again, text) == 0;
}

#define LIST_COLUMNS "SELECT id AS seq,'j'||id AS id,name,labels AS \"j:labels\",state,desired,reason,detail,priority,version,attempt,restarts,ranks,device,last_step AS step,max_steps," \
    "created_ms AS \"t:created_at\",nullif(started_ms,0) AS \"t:started_at\",nullif(ended_ms,0) AS \"t:ended_at\",run_ms,output_dir,array_id,checkpoint,json_extract(summary,'$.loss') AS loss FROM jobs"
#define LIST_WHERE " WHERE (?1 IS NULL OR instr(','||?1||',',','||state||',')) AND (?2 IS NULL OR instr(lower(name),lower(?2)))" \
    " AND (?3 IS NULL OR EXISTS(SELECT 1 FROM json_each(labels) WHERE key=?3 AND (?4 IS NULL OR value=?4))) AND created_ms>=?5 AND (?6 IS NULL OR array_id=?6)"

void jobs_list(struct daemon *d, struct request *q)
{
    struct error err;
    const char *states = request_arg(q, "state"), *label = request_arg(q, "label"), *cursor = request_arg(q, "cursor"), *sort = request_arg(q, "sort");
    int64_t limit, at = 0, since;
    char *key = NULL, next[40] = "";
    cJSON *rows;
    if (!request_int(q, "limit", 1, 200, 50, &limit) || !request_int(q, "since", 0, INT64_C(1) << 52, 0, &since)) return;
    if (cursor && !cursor_parse(cursor, &at)) { reply_problem(q, 400, "parameter", NULL, "cursor: not one of ours"); return; }
    if (sort && strcmp(sort, "created") != 0 && strcmp(sort, "-created") != 0) { reply_problem(q, 400, "parameter", NULL, "sort: expected created or -created"); return; }
    for (const char *p = states; p && *p;) {
        char one[16];
        enum job_state s;
        size_t n = strcspn(p, ",");
        (void)snprintf(one, sizeof one, "%.*s", (int)(n < 15 ? n : 15), p);
        if (n > 15 || !job_state_parse(one, &s)) { reply_problem(q, 400, "parameter", NULL, "state: \"%.30s\" is no state", one); return; }
        p += n + (p[n] == ',');
    }
    const char *value = label ? strchr(label, ':') : NULL;
    if (label) key = value ? xstrndup(label, (unsigned long)(value - label)) : xstrdup(label);
    if (value) value++;
    const char *array = request_arg(q, "array"), *name = request_arg(q, "name");
    if (states && !*states) states = NULL;
    int rc;
    if (sort && strcmp(sort, "created") == 0)
        rc = store_rows(d->store, &rows, &err, LIST_COLUMNS LIST_WHERE " AND id>?7 ORDER BY jobs.id LIMIT ?8", "ssssisii", states, name, key, value, since, array, at, limit + 1);
    else
        rc = store_rows(d->store, &rows, &err, LIST_COLUMNS LIST_WHERE " AND (?7=0 OR id<?7) ORDER BY jobs.id DESC LIMIT ?8", "ssssisii", states, name, key, value, since, array, at, limit + 1);
    free(key);
    if (rc != OK) { reply_error(q, &err); return; }
    bool more = cJSON_GetArraySize(rows) > limit;
    if (more) cJSON_DeleteItemFromArray(rows, (int)limit);
    cJSON *o;
    int64_t seq = 0;
    cJSON_ArrayForEach(o, rows) {
        (void)json_int(o, "seq", &seq);
        cJSON_DeleteItemFromObjectCaseSensitive(o, "seq");
        struct job *j = job_find(d, seq);
        if (j) job_live_json(j, o);
    }
    if (more) cursor_make(next, seq);
    reply_list(q, rows, more ? next : NULL);
}

static void etag_of(struct daemon *d, int64_t id, const cJSON *o, char out[64])
{
    int64_t v = 0;
    struct job *j = job_find(d, id);
    (void)json_int(o, "version", &v);
    int64_t n = j && j->attempt ? attempt_version(j->attempt) : 0;
    if (n) (void)snprintf(out, 64, "\"%lld.%lld\"", (long long)v, (long long)n);
    else (void)snprintf(out, 64, "\"%lld\"", (long long)v);
}

static void reply_job(struct daemon *d, struct request *q, int status, int64_t id, bool whole)
{
    struct error err;
    cJSON *o;
    char tag[64];
    if (job_json(d, id, whole, &o, &err) != OK) { reply_error(q, &err); return; }
    etag_of(d, id, o, tag);
    reply_header(q, "ETag", tag);
    const char *have = request_header(q, "If-None-Match");
    if (status == 200 && strcmp(q->method, "GET") == 0 && have && strstr(have, tag) && job_find(d, id) == NULL) {
        cJSON_Delete(o);
        reply_static(q, 304, NULL, "", 0);
        return;
    }
    reply_json(q, status, o);
}

void job_show(struct daemon *d, struct request *q)
{
    int64_t id;
    if (path_job(d, q, &id)) reply_job(d, q, 200, id, true);
}

struct patch { const char *labels; };
static int patch_labels(struct daemon *d, struct job *j, void *arg, struct error *err)
{
    struct patch *p = arg;
    return p->labels ? store_exec(d->store, err, "UPDATE jobs SET labels=? WHERE id=?", "si", p->labels, j->row.id) : OK;
}

void job_patch(struct daemon *d, struct request *q)
{
    int64_t id, version = 0, have = 0;
    struct error err;
    struct problems p = { 0 };
    cJSON *now;
    const char *match = request_header(q, "If-Match");
    if (!path_job(d, q, &id)) return;
    if (job_json(d, id, false, &now, &err) != OK) { reply_error(q, &err); return; }
    (void)json_int(now, "version", &version);
    cJSON_Delete(now);
    if (match == NULL) { reply_problem(q, 428, "if_match", NULL, "send If-Match with the ETag of the job you read"); return; }
    cJSON *body = body_object(q);               /* what is no JSON is so whatever the version */
    if (body == NULL) return;
    if (strcmp(match, "*") != 0 && (sscanf(match, "\"%20lld", (long long *)&have) != 1 || have != version)) {
        reply_problem(q, 412, "if_match", NULL, "the job changed since it was read (now version %lld)", (long long)version);
        cJSON_Delete(body);
        return;
    }
    struct job_row row = { 0 };
    struct job *j = job_find(d, id);
    char *labels = NULL, *name = NULL;
    int64_t priority = 0;
    bool set_priority = false;
    for (const cJSON *v = body->child; v; v = v->next) {
        char ptr[100];
        (void)snprintf(ptr, sizeof ptr, "/%.80s", v->string);
        if (strcmp(v->string, "name") == 0) {
            if (!cJSON_IsString(v) || strlen(v->valuestring) > 200) problems_add(&p, ptr, "wrong_type", "expected a string of at most 200 bytes");
            else name = v->valuestring;
        } else if (strcmp(v->string, "priority") == 0) {
            if (!json_int(body, "priority", &priority) || priority < -1000 || priority > 1000) problems_add(&p, ptr, "out_of_range", "expected a whole number from -1000 to 1000");
            else set_priority = true;
        } else if (strcmp(v->string, "labels") == 0) {
            const cJSON *l;
            bool ok = cJSON_IsObject(v);
            cJSON_ArrayForEach(l, v) ok = ok && cJSON_IsString(l);
            if (!ok) problems_add(&p, ptr, "wrong_type", "expected an object of strings");
            else labels = json_line(v);
        } else problems_add(&p, ptr, "unknown_field", "only name, labels and priority can be changed");
    }
    if (p.n > 0) reply_problem(q, 422, "invalid", &p, "the change is refused");
    else if (j) {
        row = j->row;
        struct patch a = { labels };
        if (name) (void)snprintf(row.name, sizeof row.name, "%s", name);
        if (set_priority) row.priority = priority;
        if (job_commit(d, j, &row, patch_labels, &a, &err) != OK) reply_error(q, &err);
        else reply_job(d, q, 200, id, true);
    } else {
        int rc = store_exec(d->store, &err, "UPDATE jobs SET version=version+1,name=ifnull(?,name),labels=ifnull(?,labels),priority=CASE WHEN ? THEN ? ELSE priority END WHERE id=? AND version=?",
                            "ssiiii", name, labels, (int64_t)set_priority, priority, id, version);
        if (rc != OK) reply_error(q, &err);
        else reply_job(d, q, 200, id, true);
    }
    problems_release(&p);
    free(labels);
    cJSON_Delete(body);
}

int job_forget(struct daemon *d, int64_t id, struct error *err)
{
    int rc = store_begin(d->store, err);
    if (rc != OK) return rc;
    if ((rc = store_exec(d->store, err, "DELETE FROM metrics WHERE job=?", "i", id)) == OK && (rc = store_exec(d->store, err, "DELETE FROM ranks WHERE job=?", "i", id)) == OK &&
        (rc = store_exec(d->store, err, "DELETE FROM attempts WHERE job=?", "i", id)) == OK && (rc = store_exec(d->store, err, "DELETE FROM checkpoints WHERE job=?", "i", id)) == OK &&
        (rc = store_exec(d->store, err, "DELETE FROM idempotency WHERE job=?", "i", id)) == OK && (rc = store_exec(d->store, err, "DELETE FROM jobs WHERE id=?", "i", id)) == OK) {
        cJSON *o = cJSON_CreateObject();
        char text[24];
        (void)snprintf(text, sizeof text, "j%lld", (long long)id);
        json_add_str(o, "id", text);
        rc = event_add(d, id, "deleted", "info", o, err);
    }
    if (rc == OK) rc = store_commit(d->store, err);
    else store_rollback(d->store);
    if (rc != OK) return rc;
    events_publish(d);
    struct error ignored;
    char *dir = xasprintf("%s/jobs/j%lld", d->set.home, (long long)id);
    if (remove_tree(dir, &ignored) != OK) log_line("warning", "j%lld: %s", (long long)id, ignored.text);
    free(dir);
    return OK;
}

void job_delete(struct daemon *d, struct request *q)
{
    int64_t id;
    struct error err;
    cJSON *o;
    if (!path_job(d, q, &id)) return;
    if (job_json(d, id, false, &o, &err) != OK) { reply_error(q, &err); return; }
    cJSON_Delete(o);
    if (job_find(d, id)) { reply_problem(q, 409, "conflict", NULL, "only an ended job can be deleted; cancel it first"); return; }
    if (job_forget(d, id, &err) != OK) reply_error(q, &err);
    else reply_static(q, 204, NULL, "", 0);
}

/* The verbs answer 202 with the job; repeating one changes nothing; an ended job stays as it is. */
static void act(struct daemon *d, struct request *q, enum job_want want, const char *reason)
{
    int64_t id;
    struct error err;
    if (!path_job(d, q, &id)) return;
    struct job *j = job_find(d, id);
    if (j && job_want_set(d, j, want, reason, &err) != OK) { reply_error(q, &err); return; }
    if (j == NULL && (want == WANT_PAUSE || want == WANT_REQUEUE)) { (void)live_job(d, q); return; }
    reply_job(d, q, 202, id, false);
}

void job_cancel(struct daemon *d, struct request *q) { act(d, q, WANT_CANCEL, "cancelled"); }
void job_kill(struct daemon *d, struct request *q) { act(d, q, WANT_KILL, "killed"); }
void job_pause(struct daemon *d, struct request *q) { act(d, q, WANT_PAUSE, "paused"); }
void job_requeue(struct daemon *d, struct request *q) { act(d, q, WANT_REQUEUE, "requeued"); }

void job_resume_post(struct daemon *d, struct request *q)
{
    struct error err;
    struct job *j = live_job(d, q);
    if (j == NULL) return;
    int64_t id = j->row.id;
    if (job_resume(d, j, &err) != OK) reply_error(q, &err);
    else reply_job(d, q, 202, id, false);
}

void job_checkpoint_now(struct daemon *d, struct request *q)
{
    struct error err;
    struct job *j = live_job(d, q);
    if (j == NULL) return;
    int64_t id = j->row.id;
    if (attempt_checkpoint(d, j, &err) != OK) reply_error(q, &err);
    else reply_job(d, q, 202, id, false);
}
