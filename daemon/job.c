/* job.c - see job.h. */
#include "daemon/job.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/attempt.h"
#include "daemon/daemon.h"
#include "daemon/sse.h"

#define BIT(s) (1u << (s))
static const unsigned job_next[JOB_STATES] = {
    [JOB_QUEUED]   = BIT(JOB_STARTING) | BIT(JOB_STOPPING),
    [JOB_STARTING] = BIT(JOB_RUNNING) | BIT(JOB_STOPPING),
    [JOB_RUNNING]  = BIT(JOB_STOPPING),
    [JOB_STOPPING] = BIT(JOB_SUCCEEDED) | BIT(JOB_FAILED) | BIT(JOB_CANCELLED) | BIT(JOB_PAUSED) | BIT(JOB_QUEUED),
    [JOB_PAUSED]   = BIT(JOB_QUEUED) | BIT(JOB_STOPPING),
};
static const char *const state_names[JOB_STATES] = {
    [JOB_QUEUED] = "queued", [JOB_STARTING] = "starting", [JOB_RUNNING] = "running", [JOB_STOPPING] = "stopping", [JOB_SUCCEEDED] = "succeeded",
    [JOB_FAILED] = "failed", [JOB_CANCELLED] = "cancelled", [JOB_PAUSED] = "paused" };
static const char *const want_names[JOB_WANTS] = {
    [WANT_RUN] = "run", [WANT_PAUSE] = "pause", [WANT_REQUEUE] = "requeue", [WANT_CANCEL] = "cancel", [WANT_KILL] = "kill" };

const char *job_state_name(enum job_state s) { return state_names[s]; }
const char *job_want_name(enum job_want w) { return want_names[w]; }
bool job_state_final(enum job_state s) { return job_next[s] == 0; }
bool job_can(enum job_state from, enum job_state to) { return job_next[from] & BIT(to); }

bool job_state_parse(const char *name, enum job_state *s)
{
    for (int i = 0; i < JOB_STATES; i++)
        if (strcmp(state_names[i], name) == 0) { *s = (enum job_state)i; return true; }
    return false;
}

static enum job_want want_parse(const char *name)
{
    for (int i = 0; i < JOB_WANTS; i++) if (strcmp(want_names[i], name) == 0) return (enum job_want)i;
    return WANT_RUN;
}

bool job_id_parse(const char *text, int64_t *id)
{
    if (text[0] != 'j' || text[1] < '1' || text[1] > '9' || strlen(text) > 17) return false;
    int64_t v = 0;
    for (const char *p = text + 1; *p; p++) {
        if (*p < '0' || *p > '9') return false;
        v = v * 10 + (*p - '0');
    }
    *id = v;
    return true;
}

struct job *job_find(struct daemon *d, int64_t id)
{
    for (struct job *j = d->jobs; j; j = j->next) if (j->row.id == id) return j;
    return NULL;
}

/* The facts of job.h. */
static void job_check(const struct daemon *d, const struct job *j)
{
    int held = 0;
    for (int i = 0; i < d->n_slots; i++) held += d->slots[i].job == j->row.id;
    switch (j->row.state) {
    case JOB_QUEUED: case JOB_PAUSED: case JOB_SUCCEEDED: case JOB_FAILED: case JOB_CANCELLED:
        assert(held == 0);
        assert(j->attempt == NULL);
        break;
    case JOB_STARTING: case JOB_RUNNING:
        assert(j->row.attempt > 0);
        break;
    case JOB_STOPPING: case JOB_STATES: break;
    }
    assert(!job_state_final(j->row.state) || j->row.ended_ms > 0);
}

static void unlink_job(struct daemon *d, struct job *j)
{
    for (struct job **p = &d->jobs; *p; p = &(*p)->next)
        if (*p == j) { *p = j->next; break; }
    spec_release(&j->spec);
    free(j);
}

static void null_or(const char *text, const char **out) { *out = *text ? text : NULL; }

int job_commit(struct daemon *d, struct job *j, struct job_row *to, int (*also)(struct daemon *, struct job *, void *, struct error *), void *arg,
               struct error *err)
{
    struct store *s = d->store;
    const char *reason, *detail, *checkpoint;
    assert(to->state == j->row.state || job_can(j->row.state, to->state));
    if (job_state_final(to->state) && to->ended_ms == 0) to->ended_ms = wall_ms();
    null_or(to->reason, &reason);
    null_or(to->detail, &detail);
    null_or(to->checkpoint, &checkpoint);
    int rc = store_begin(s, err);
    if (rc != OK) return rc;
    rc = store_exec(s, err, "UPDATE jobs SET version=version+1, name=?, priority=?, attempt=?, restarts=?, not_before_ms=?, queued_ms=?, started_ms=?,"
                            " ended_ms=?, run_ms=?, last_step=?, max_steps=?, checkpoint_step=?, checkpoint_ms=?, state=?, desired=?, reason=?, detail=?, checkpoint=?"
                            " WHERE id=? AND version=? AND state=?",
                    "siiiiiiiiiiiisssssiis", to->name, to->priority, to->attempt, to->restarts, to->not_before_ms, to->queued_ms, to->started_ms, to->ended_ms,
                    to->run_ms, to->last_step, to->max_steps, to->checkpoint_step, to->checkpoint_ms, state_names[to->state], want_names[to->want], reason,
                    detail, checkpoint, j->row.id, j->row.version, state_names[j->row.state]);
    if (rc == OK && store_changes(s) != 1)
        rc = error_set(err, E_CONFLICT, "job j%lld was changed by somebody else (version %lld)", (long long)j->row.id, (long long)j->row.version);
    if (rc == OK && also) rc = also(d, j, arg, err);
    if (rc == OK) {
        cJSON *o = cJSON_CreateObject();
        char id[24];
        (void)snprintf(id, sizeof id, "j%lld", (long long)j->row.id);
        json_add_str(o, "id", id);
        json_add_str(o, "name", to->name);
        json_add_str(o, "state", state_names[to->state]);
        json_add_str(o, "before", state_names[j->row.state]);
        json_add_str(o, "desired", want_names[to->want]);
        json_add_str(o, "reason", reason);
        json_add_str(o, "detail", detail);
        json_add_int(o, "attempt", to->attempt);
        json_add_int(o, "version", to->version + 1);
        rc = event_add(d, j->row.id, "job", to->state == JOB_FAILED ? "error" : "info", o, err);
    }
    if (rc == OK) rc = store_commit(s, err);
    else store_rollback(s);
    if (rc != OK) return rc;
    if (to->state != j->row.state)
        log_line("info", "j%lld %s -> %s%s%s%s%s", (long long)j->row.id, state_names[j->row.state], state_names[to->state], reason ? " reason=" : "",
                 reason ? reason : "", detail ? ": " : "", detail ? detail : "");
    to->version++;
    j->row = *to;
    job_check(d, j);
    events_publish(d);
    daemon_schedule(d);
    if (job_state_final(j->row.state)) {
        sse_job_ended(d, j->row.id);
        unlink_job(d, j);
    }
    return OK;
}

int job_move(struct daemon *d, struct job *j, enum job_state to, const char *reason, const char *detail, struct error *err)
{
    struct job_row n = j->row;
    n.state = to;
    (void)snprintf(n.reason, sizeof n.reason, "%s", reason ? reason : "");
    (void)snprintf(n.detail, sizeof n.detail, "%s", detail ? detail : "");
    if (to == JOB_QUEUED) n.queued_ms = wall_ms();
    return job_commit(d, j, &n, NULL, NULL, err);
}

static bool wants_gpu(const struct daemon *d, const struct spec *s)
{
    if (strcmp(s->device, "cuda") == 0) return true;
    if (strcmp(s->device, "cpu") == 0 || strcmp(s->launcher, "local") != 0) return false;
    for (int i = 0; i < d->n_slots; i++) if (d->slots[i].gpu) return true;
    return false;
}

int job_create(struct daemon *d, struct spec *spec, const struct job_origin *from, int (*also)(struct daemon *, struct job *, void *, struct error *), void *arg,
               struct job **out, struct error *err)
{
    const char *plan = from->plan;
    struct job *j = xcalloc(1, sizeof *j);
    cJSON *json = spec_json(spec), *pj = plan ? cJSON_Parse(plan) : NULL;
    char *text = json_line(json), *labels = spec->labels ? json_line(spec->labels) : NULL;
    int64_t now = wall_ms();
    bool gpu = wants_gpu(d, spec);
    *out = NULL;
    j->row = (struct job_row){ .version = 1, .priority = spec->priority, .created_ms = now, .queued_ms = now, .max_steps = spec->max_steps };
    if (!json_int(pj, "steps", &j->row.max_steps)) (void)json_int(pj, "max_steps", &j->row.max_steps);
    (void)snprintf(j->row.name, sizeof j->row.name, "%s", spec->name ? spec->name : "");
    cJSON_Delete(json);
    cJSON_Delete(pj);
    int rc = store_begin(d->store, err);
    if (rc == OK) {
        rc = store_exec(d->store, err, "INSERT INTO jobs(name,labels,priority,spec,plan,state,desired,ranks,device,created_ms,queued_ms,max_steps,output_dir,array_id,cloned_from)"
                                       " VALUES(?,?,?,?,?,'queued','run',?,?,?,?,?,?,?,nullif(?,0))",
                        "ssissisiiissi", j->row.name, labels, spec->priority, text, plan, spec->nproc_per_node, gpu ? "cuda" : "cpu", now, now, j->row.max_steps,
                        spec->output_dir, from->array_id, from->cloned_from);
        j->row.id = store_last_id(d->store);
        cJSON *o = cJSON_CreateObject();
        char id[24];
        (void)snprintf(id, sizeof id, "j%lld", (long long)j->row.id);
        json_add_str(o, "id", id);
        json_add_str(o, "name", j->row.name);
        json_add_str(o, "state", "queued");
        if (rc == OK) rc = event_add(d, j->row.id, "job", "info", o, err);
        else cJSON_Delete(o);
        if (rc == OK && also) rc = also(d, j, arg, err);
        if (rc == OK) rc = store_commit(d->store, err);
        else store_rollback(d->store);
    }
    free(text);
    free(labels);
    if (rc != OK) { free(j); return rc; }
    j->spec = *spec;
    *spec = (struct spec){ 0 };
    j->gpu = gpu;
    struct job **p = &d->jobs;
    while (*p) p = &(*p)->next;
    *p = j;
    *out = j;
    log_line("info", "j%lld queued: %lld ranks", (long long)j->row.id, (long long)j->spec.nproc_per_node);
    events_publish(d);
    daemon_schedule(d);
    return OK;
}

static bool load_row(void *arg, struct store_row *r)
{
    struct daemon *d = arg;
    struct job *j = xcalloc(1, sizeof *j);
    struct problems p = { 0 };
    const char *spec = row_text(r, 1);
    j->row = (struct job_row){ .id = row_int(r, 0), .version = row_int(r, 2), .priority = row_int(r, 3), .attempt = row_int(r, 4), .restarts = row_int(r, 5),
        .not_before_ms = row_int(r, 6), .created_ms = row_int(r, 7), .queued_ms = row_int(r, 8), .started_ms = row_int(r, 9), .run_ms = row_int(r, 10),
        .last_step = row_int(r, 11), .max_steps = row_int(r, 12), .checkpoint_step = row_int(r, 13), .checkpoint_ms = row_int(r, 14) };
    (void)job_state_parse(row_text(r, 15), &j->row.state);
    j->row.want = want_parse(row_text(r, 16));
    (void)snprintf(j->row.reason, sizeof j->row.reason, "%s", row_text(r, 17) ? row_text(r, 17) : "");
    (void)snprintf(j->row.detail, sizeof j->row.detail, "%s", row_text(r, 18) ? row_text(r, 18) : "");
    (void)snprintf(j->row.checkpoint, sizeof j->row.checkpoint, "%s", row_text(r, 19) ? row_text(r, 19) : "");
    (void)snprintf(j->row.name, sizeof j->row.name, "%s", row_text(r, 20));
    j->gpu = strcmp(row_text(r, 21), "cuda") == 0;
    if (spec_parse(&j->spec, spec, strlen(spec), &p) != OK) {   /* stored by us, checked then: a newer or older version wrote it */
        log_line("error", "j%lld: its stored spec is not understood by this version (%s %s); it stays as it is", (long long)j->row.id, p.v[0].pointer, p.v[0].message);
        problems_release(&p);
        free(j);
        return true;
    }
    struct job **at = &d->jobs;
    while (*at) at = &(*at)->next;
    *at = j;
    return true;
}

int job_load_all(struct daemon *d, struct error *err)
{
    return store_each(d->store, load_row, d, err,
        "SELECT id,spec,version,priority,attempt,restarts,not_before_ms,created_ms,queued_ms,started_ms,run_ms,last_step,max_steps,checkpoint_step,checkpoint_ms,"
        "state,desired,reason,detail,checkpoint,name,device FROM jobs WHERE state NOT IN ('succeeded','failed','cancelled') ORDER BY id", "");
}

void job_free_all(struct daemon *d)
{
    while (d->jobs) unlink_job(d, d->jobs);
}

int job_want_set(struct daemon *d, struct job *j, enum job_want want, const char *reason, struct error *err)
{
    struct job_row n = j->row;
    if (want <= j->row.want && j->row.state == JOB_STOPPING) return OK;             /* already leaving, at least that urgently */
    if (j->row.state == JOB_PAUSED && want == WANT_PAUSE) return OK;
    if (j->row.state == JOB_QUEUED && want == WANT_REQUEUE) return OK;
    if (j->row.state == JOB_PAUSED && want == WANT_REQUEUE) return job_resume(d, j, err);
    if (!job_can(j->row.state, JOB_STOPPING) && j->row.state != JOB_STOPPING)
        return error_set(err, E_CONFLICT, "job j%lld is %s", (long long)j->row.id, state_names[j->row.state]);
    bool idle = j->row.state == JOB_QUEUED || j->row.state == JOB_PAUSED;
    n.want = want;
    (void)snprintf(n.reason, sizeof n.reason, "%s", reason);
    n.detail[0] = '\0';
    n.state = JOB_STOPPING;
    int rc = job_commit(d, j, &n, NULL, NULL, err);
    if (rc != OK) return rc;
    if (idle && j->attempt == NULL) return attempt_never(d, j, err);
    attempt_stop(d, j);
    return OK;
}

int job_resume(struct daemon *d, struct job *j, struct error *err)
{
    if (j->row.state == JOB_QUEUED || ((j->row.state == JOB_RUNNING || j->row.state == JOB_STARTING) && j->row.want == WANT_RUN)) return OK;
    if (j->row.state != JOB_PAUSED) return error_set(err, E_CONFLICT, "job j%lld is %s, only a paused job can be resumed", (long long)j->row.id, state_names[j->row.state]);
    struct job_row n = j->row;
    n.state = JOB_QUEUED;
    n.want = WANT_RUN;
    n.queued_ms = wall_ms();
    n.not_before_ms = 0;
    n.reason[0] = n.detail[0] = '\0';
    return job_commit(d, j, &n, NULL, NULL, err);
}

#define JOB_COLUMNS "'j'||id AS id,name,labels AS \"j:labels\",state,desired,reason,detail,priority,version,attempt,restarts,ranks,device,last_step AS step,max_steps," \
    "created_ms AS \"t:created_at\",queued_ms AS \"t:queued_at\",nullif(started_ms,0) AS \"t:started_at\",nullif(ended_ms,0) AS \"t:ended_at\",run_ms,"                \
    "checkpoint,CASE WHEN checkpoint IS NULL THEN NULL ELSE checkpoint_step END AS checkpoint_step,nullif(checkpoint_ms,0) AS \"t:checkpoint_at\",output_dir,array_id,'j'||cloned_from AS cloned_from,summary AS \"j:summary\""

int job_json(struct daemon *d, int64_t id, bool whole, cJSON **out, struct error *err)
{
    int rc = whole ? store_one(d->store, out, err, "SELECT " JOB_COLUMNS ",spec AS \"j:spec\",plan AS \"j:plan\" FROM jobs WHERE id=?", "i", id)
                   : store_one(d->store, out, err, "SELECT " JOB_COLUMNS " FROM jobs WHERE id=?", "i", id);
    if (rc != OK) return rc;
    if (*out == NULL) return error_set(err, E_NOTFOUND, "there is no job j%lld", (long long)id);
    struct job *j = job_find(d, id);
    if (j) job_live_json(j, *out);
    return OK;
}

void job_live_json(struct job *j, cJSON *o)
{
    if (j->row.state == JOB_QUEUED) {
        cJSON *w = cJSON_AddObjectToObject(o, "waiting");
        json_add_str(w, "reason", j->wait_code ? j->wait_code : "scheduling");
        json_add_str(w, "text", j->wait_text);
        json_add_int(w, "position", j->wait_position);
    }
    if (j->attempt) attempt_live_json(j->attempt, o);
}
