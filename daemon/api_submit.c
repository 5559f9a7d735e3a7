/* api_submit.c - from a spec in a request to a queued job.
 *
 * Checks run in order of cost: JSON, field table, paths, slots, then the worker's plan in a process of its own while the request
 * waits. Requests with the same Idempotency-Key join the one that is under way and get its answer. */
#include "daemon/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "daemon/launcher.h"
#include "daemon/paths.h"
#include "daemon/planner.h"
#include "daemon/scheduler.h"
#include "daemon/sha256.h"

struct creation {
    struct creation *next;
    struct daemon *d;
    struct request **waiter; int n_waiters;
    struct spec spec;
    bool dry;
    int64_t cloned_from;
    char key[256], who[80], hash[65];
    char *answer;               /* body of the 201, once made */
};
static struct creation *under_way;

static void release(struct creation *c)
{
    for (struct creation **p = &under_way; *p; p = &(*p)->next) if (*p == c) { *p = c->next; break; }
    spec_release(&c->spec);
    free(c->waiter);
    free(c->answer);
    free(c);
}

static void reply_created(struct request *q, const char *answer, bool replayed)
{
    cJSON *o = cJSON_Parse(answer);
    char *where = xasprintf("/v1/jobs/%s", json_str(o, "id") ? json_str(o, "id") : "");
    reply_header(q, "Location", where);
    reply_header(q, "ETag", "\"1\"");
    if (replayed) reply_header(q, "Idempotency-Replayed", "true");
    free(where);
    cJSON_Delete(o);
    reply_text(q, 201, "application/json", xstrdup(answer), strlen(answer));
}

static int keep_answer(struct daemon *d, struct job *j, void *arg, struct error *err)
{
    struct creation *c = arg;
    cJSON *o;
    int rc = job_json(d, j->row.id, true, &o, err);
    if (rc != OK) return rc;
    char *line = json_line(o);
    cJSON_Delete(o);
    c->answer = xasprintf("%s\n", line);
    free(line);
    if (!c->key[0]) return OK;
    return store_exec(d->store, err, "INSERT INTO idempotency(key,who,body_hash,job,created_ms,status,answer) VALUES(?,?,?,?,?,201,?)", "sssiis", c->key, c->who, c->hash, j->row.id, wall_ms(), c->answer);
}

static void planned(void *arg, int rc, const char *plan, const struct problems *p, const struct error *err)
{
    struct creation *c = arg;
    struct daemon *d = c->d;
    struct error e = *err;
    struct job *j;
    if (rc == OK && c->dry) {
        cJSON *o = cJSON_CreateObject(), *pl = cJSON_Parse(plan), *warnings = json_get(pl, "warnings");
        (void)cJSON_AddTrueToObject(o, "valid");
        (void)cJSON_AddItemToObject(o, "spec", spec_json(&c->spec));
        (void)cJSON_AddItemToObject(o, "warnings", warnings ? cJSON_Duplicate(warnings, true) : cJSON_CreateArray());
        (void)cJSON_AddItemToObject(o, "plan", pl ? pl : cJSON_CreateNull());
        reply_json(c->waiter[0], 200, o);
        release(c);
        return;
    }
    if (rc == OK) {
        struct job_origin from = { plan, NULL, c->cloned_from };
        rc = job_create(d, &c->spec, &from, keep_answer, c, &j, &e);
    }
    for (int i = 0; i < c->n_waiters; i++) {
        struct request *q = c->waiter[i];
        if (rc == OK) reply_created(q, c->answer, i > 0);
        else if (p && p->n > 0) reply_problem(q, 422, "invalid", p, "the job is refused: %s", p->v[0].message);
        else reply_error(q, &e);
    }
    release(c);
}

static void refuse(struct request *q, struct problems *p)
{
    bool not_json = p->n == 1 && strcmp(p->v[0].code, "not_json") == 0;
    reply_problem(q, not_json ? 400 : 422, not_json ? "not_json" : "invalid", p, "%s%s%s", p->n == 1 ? p->v[0].pointer : "", p->n == 1 && *p->v[0].pointer ? ": " : "",
                  p->n == 1 ? p->v[0].message : "several fields are refused; see errors");
    problems_release(p);
}

/* What needs this coordinator: roots, slots, other jobs. */
void submit_check(struct daemon *d, struct spec *s, struct problems *p)
{
    bool gpu = strcmp(s->device, "cuda") == 0 || (strcmp(s->device, "auto") == 0 && slots_of_kind(d, true) > 0);
    int slots = slots_of_kind(d, gpu);
    paths_check(s, &d->set.allow_root, p);
    const char *missing;
    if (strcmp(s->launcher, "slurm") == 0) {
        if (!launcher_slurm_there(&missing))
            problems_add(p, "/launcher", "unsupported", "%s is not in the PATH of ringmasterd: it must run where jobs can be submitted to Slurm; expected launcher local", missing);
    } else if (s->nproc_per_node > slots)
        problems_add(p, "/nproc_per_node", "out_of_range", "expected at most %d, the %s slots of this coordinator, got %lld", slots, gpu ? "GPU" : "CPU rank", (long long)s->nproc_per_node);
    for (int i = 0; i < s->after.n; i++) {
        int64_t id;
        char ptr[40];
        (void)snprintf(ptr, sizeof ptr, "/after/%d", i);
        if (!job_id_parse(s->after.v[i], &id) || store_int(d->store, 0, "SELECT count(*) FROM jobs WHERE id=?", "i", id) == 0)
            problems_add(p, ptr, "not_found", "there is no job \"%.60s\"", s->after.v[i]);
    }
}

static bool take_answer(void *arg, struct store_row *r)
{
    char **out = arg;
    out[0] = xstrdup(row_text(r, 0));
    out[1] = xstrdup(row_text(r, 1));
    return false;
}

static void submit(struct daemon *d, struct request *q, const char *text, size_t len, bool dry, int64_t cloned_from)
{
    struct problems p = { 0 };
    struct error err;
    const char *key = dry ? NULL : request_header(q, "Idempotency-Key");
    char hash[65], *stored[2] = { NULL, NULL };
    sha256_hex(hash, text, len);
    if (key && (!*key || strlen(key) > 255)) { reply_problem(q, 400, "idempotency_key", NULL, "Idempotency-Key: expected 1 to 255 characters"); return; }
    if (key) {
        (void)store_each(d->store, take_answer, stored, NULL, "SELECT body_hash,answer FROM idempotency WHERE key=? AND who=?", "ss", key, q->who);
        for (struct creation *c = under_way; c; c = c->next) {
            if (strcmp(c->key, key) != 0 || strcmp(c->who, q->who) != 0) continue;
            if (strcmp(c->hash, hash) != 0) { reply_problem(q, 422, "idempotency_key", NULL, "this Idempotency-Key is under way with another body"); return; }
            c->waiter = xrealloc(c->waiter, (unsigned long)(c->n_waiters + 1) * sizeof(void *));
            c->waiter[c->n_waiters++] = q;
            request_hold(q);
            return;
        }
    }
    if (stored[0]) {
        if (strcmp(stored[0], hash) != 0) reply_problem(q, 422, "idempotency_key", NULL, "this Idempotency-Key was used with another body");
        else reply_created(q, stored[1], true);
        free(stored[0]);
        free(stored[1]);
        return;
    }
    struct creation *c = xcalloc(1, sizeof *c);
    c->d = d;
    c->dry = dry;
    c->cloned_from = cloned_from;
    (void)snprintf(c->who, sizeof c->who, "%s", q->who);
    (void)snprintf(c->key, sizeof c->key, "%s", key ? key : "");
    (void)snprintf(c->hash, sizeof c->hash, "%s", hash);
    if (spec_parse(&c->spec, text, len, &p) == OK) submit_check(d, &c->spec, &p);
    if (p.n > 0) { refuse(q, &p); release(c); return; }
    char *normal = spec_line(&c->spec);
    int rc = planner_ask(d, ASK_PLAN, normal, planned, c, &err);
    free(normal);
    if (rc != OK) { reply_error(q, &err); release(c); return; }
    c->waiter = xcalloc(1, sizeof(void *));
    c->waiter[c->n_waiters++] = q;
    c->next = under_way;
    under_way = c;
    request_hold(q);
}

void jobs_create(struct daemon *d, struct request *q)
{
    const char *dry = request_arg(q, "dry_run");
    submit(d, q, q->body ? q->body : "", q->body_len, dry && strcmp(dry, "0") != 0 && strcmp(dry, "false") != 0, 0);
}

void jobs_validate(struct daemon *d, struct request *q) { submit(d, q, q->body ? q->body : "", q->body_len, true, 0); }

static void previewed(void *arg, int rc, const char *answer, const struct problems *p, const struct error *err)
{
    struct request *q = arg;
    if (rc == OK) reply_text(q, 200, "application/json", xstrdup(answer), strlen(answer));
    else if (p->n > 0) reply_problem(q, 422, "invalid", p, "the data cannot be shown: %s", p->v[0].message);
    else reply_error(q, err);
}

void jobs_preview(struct daemon *d, struct request *q)
{
    struct problems p = { 0 };
    struct error err;
    struct spec s = { 0 };
    if (spec_parse(&s, q->body ? q->body : "", q->body_len, &p) == OK) submit_check(d, &s, &p);
    if (p.n > 0) { refuse(q, &p); spec_release(&s); return; }
    char *normal = spec_line(&s);
    spec_release(&s);
    int rc = planner_ask(d, ASK_DATASET, normal, previewed, q, &err);
    free(normal);
    if (rc != OK) reply_error(q, &err);
    else request_hold(q);
}

static bool take_text(void *arg, struct store_row *r) { *(char **)arg = xstrdup(row_text(r, 0)); return false; }

void job_clone(struct daemon *d, struct request *q)
{
    int64_t id;
    struct error err;
    char *text = NULL;
    cJSON *edits = NULL, *e;
    if (!path_job(d, q, &id)) return;
    if (q->body_len > 0 && (edits = body_object(q)) == NULL) return;
    if (store_each(d->store, take_text, &text, &err, "SELECT spec FROM jobs WHERE id=?", "i", id) != OK) { reply_error(q, &err); cJSON_Delete(edits); return; }
    if (text == NULL) { reply_problem(q, 404, "not_found", NULL, "there is no job j%lld", (long long)id); cJSON_Delete(edits); return; }
    cJSON *spec = cJSON_Parse(text);
    free(text);
    cJSON_ArrayForEach(e, edits) {
        cJSON_DeleteItemFromObjectCaseSensitive(spec, e->string);
        if (!cJSON_IsNull(e)) (void)cJSON_AddItemToObject(spec, e->string, cJSON_Duplicate(e, true));
    }
    char *merged = json_line(spec);
    submit(d, q, merged, strlen(merged), false, id);
    free(merged);
    cJSON_Delete(spec);
    cJSON_Delete(edits);
}
