/* attempt.c - the life of an attempt; see attempt.h.
 *
 * Spawn, connect, listen, end. Everything that can be lost with this process is either in the store already or still at the keeper
 * (its spool holds each record until the store has it), so a daemon killed at any line finds its way again in attempt_adopt(). */
#include "daemon/attempt.h"

#include <assert.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"
#include "api/message.h"
#include "daemon/advisor.h"
#include "daemon/daemon.h"
#include "daemon/launcher.h"
#include "daemon/metrics.h"
#include "daemon/sha256.h"
#include "daemon/sse.h"

enum { LATE_MS = 15000, FLUSH_RECORDS = 500 /* in one transaction: some 10 ms, then requests have their turn */ };

static int64_t figures_version;

const struct launcher *launcher_of(const struct spec *s)
{
    static const struct launcher *const all[] = { &launcher_local, &launcher_slurm };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i]->name, s->launcher) == 0) return all[i];
    return &launcher_local;         /* the field's table allows no other */
}

/* --- building and letting go --- */

static struct attempt *attempt_new(struct daemon *d, struct job *j, int64_t n)
{
    struct attempt *a = xcalloc(1, sizeof *a);
    a->d = d;
    a->j = j;
    a->n = n;
    a->first_step = -1;
    a->by = launcher_of(&j->spec);
    a->n_ranks = (int)j->spec.nproc_per_node;
    a->rank = xcalloc((unsigned long)a->n_ranks, sizeof *a->rank);
    a->dir = xasprintf("%s/jobs/j%lld/attempt-%lld", d->set.home, (long long)j->row.id, (long long)n);
    a->begun_mono_ms = mono_ms();
    return a;
}

static void attempt_free(struct attempt *a)
{
    a->by->drop(a);
    for (int i = 0; i < a->n_q; i++) cJSON_Delete(a->q[i].m);
    for (int i = 0; i < a->n_ranks; i++) cJSON_Delete(a->rank[i].latest);
    cJSON_Delete(a->exit);
    free(a->event);
    free(a->q);
    free(a->rank);
    free(a->dir);
    free(a);
}

static void slots_free(struct daemon *d, int64_t job)
{
    for (int i = 0; i < d->n_slots; i++) if (d->slots[i].job == job) d->slots[i].job = 0;
}

/* --- talking to the keeper --- */

static cJSON *message(const char *t)
{
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "t", t);
    return o;
}

static void tell_ack(struct attempt *a)
{
    cJSON *m = message("ack");
    json_add_int(m, "seq", a->last_seq);
    a->by->tell(a, m);
}

static void tell_stop(struct attempt *a)
{
    static const char *const modes[JOB_WANTS] = { [WANT_PAUSE] = "checkpoint", [WANT_REQUEUE] = "checkpoint", [WANT_CANCEL] = "now", [WANT_KILL] = "kill" };
    enum job_want want = a->j->row.want;
    if (want == WANT_RUN || want <= a->told || !a->greeted) return;
    cJSON *m = message("stop");
    json_add_str(m, "mode", modes[want]);
    json_add_str(m, "reason", want == WANT_PAUSE || want == WANT_REQUEUE ? "paused" : a->j->row.reason);
    a->by->tell(a, m);
    a->told = want;
}

void attempt_stop(struct daemon *d, struct job *j)
{
    (void)d;
    struct attempt *a = j->attempt;
    if (a == NULL) return;
    if (a->stop_mono_ms == 0 || j->row.want == WANT_KILL) a->stop_mono_ms = mono_ms();
    tell_stop(a);
}

int attempt_checkpoint(struct daemon *d, struct job *j, struct error *err)
{
    (void)d;
    if (j->attempt == NULL || !j->attempt->greeted || j->row.state != JOB_RUNNING)
        return error_set(err, E_CONFLICT, "job j%lld is %s, only a running job can save a checkpoint", (long long)j->row.id, job_state_name(j->row.state));
    j->attempt->by->tell(j->attempt, message("checkpoint"));
    return OK;
}

/* What a record changes in memory; the store follows at the next flush. */
static void apply(struct attempt *a, int rank, const cJSON *m)
{
    struct rank_info *r = &a->rank[rank];
    const char *t = json_str(m, "t"), *phase = json_str(m, "phase");
    int64_t step = -1;
    (void)json_int(m, "step", &step);
    r->beat_mono_ms = mono_ms();
    if (t == NULL) return;
    if (phase) (void)snprintf(r->phase, sizeof r->phase, "%s", phase);
    if (step >= 0 && step != r->step && (strcmp(t, "beat") == 0 || strcmp(t, "metrics") == 0)) { r->step = step; r->dirty = true; }
    if (strcmp(t, "hello") == 0) {
        if (json_int(m, "pid", &r->pid)) r->dirty = true;
    } else if (strcmp(t, "ready") == 0 && !r->ready) {
        r->ready = r->dirty = true;
        a->n_ready++;
    } else if (strcmp(t, "metrics") == 0) {
        cJSON_Delete(r->latest);
        r->latest = cJSON_Duplicate(m, true);
        if (!r->ready) { r->ready = r->dirty = true; a->n_ready++; }    /* nobody trains unready */
        if (a->first_step < 0) a->first_step = step;
        if (step > a->last_step) a->last_step = step;
        a->version = ++figures_version;
    }
}

/* An advice is an event for people; each cause once per attempt, also across restarts of the daemon. */
static void advise(struct attempt *a, int rank, const cJSON *m)
{
    char text[600];
    const char *t = json_str(m, "t"), *code;
    struct error err;
    if (t == NULL || strcmp(t, "metrics") != 0 || (code = advisor_step(&a->advisor, &a->j->spec, rank, m, text)) == NULL) return;
    if (store_int(a->d->store, 0, "SELECT count(*) FROM events WHERE job=? AND attempt=? AND kind='advice' AND json_extract(data,'$.code')=?", "iis", a->j->row.id, a->n, code) > 0) return;
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "code", code);
    json_add_str(o, "text", text);
    json_add_int(o, "rank", rank);
    int rc = event_add_seq(a->d, a->j->row.id, a->n, 0, wall_ms(), "advice", "warning", o, &err);
    cJSON_Delete(o);
    log_line("info", "j%lld: advice %s: %s%s", (long long)a->j->row.id, code, text, rc == OK ? "" : " (not stored)");
    if (rc == OK) events_publish(a->d);
}

static void take_record(struct attempt *a, cJSON *msg)
{
    int64_t seq = 0, rank = 0, ms = 0;
    const cJSON *m = json_get(msg, "m");
    a->d->records++;
    if (!json_int(msg, "seq", &seq) || seq < 1 || !json_int(msg, "rank", &rank) || rank < -1 || rank >= a->n_ranks || !cJSON_IsObject(m)) {
        attempt_bad_frames(a, 1);
        return;
    }
    if (seq <= a->seen_seq) return;         /* a repeat after a reconnect, or a step backward: harmless */
    (void)json_int(msg, "ms", &ms);
    if (ms <= 0) ms = wall_ms();
    a->seen_seq = seq;
    if (rank >= 0) advise(a, (int)rank, m);
    if (rank >= 0) apply(a, (int)rank, m);      /* -1: the keeper's own words */
    if (a->n_q == a->cap_q) {
        a->cap_q = a->cap_q ? a->cap_q * 2 : 64;
        a->q = xrealloc(a->q, (unsigned long)a->cap_q * sizeof *a->q);
    }
    a->q[a->n_q++] = (struct pending){ seq, ms, (int)rank, cJSON_DetachItemFromObjectCaseSensitive(msg, "m") };
}

static void take_beat(struct attempt *a, const cJSON *beat)
{
    int64_t rank = -1, step = -1, silent = 0;
    const char *phase = json_str(beat, "phase");
    if (!json_int(beat, "rank", &rank) || rank < 0 || rank >= a->n_ranks) return;
    struct rank_info *r = &a->rank[rank];
    if (json_int(beat, "pid", &r->pid)) r->dirty = true;
    if (json_int(beat, "step", &step) && step > r->step) r->step = step;
    (void)json_int(beat, "silent_ms", &silent);
    r->beat_mono_ms = mono_ms() - silent;
    r->cpu = json_num(beat, "cpu", NAN);
    r->rss_bytes = (int64_t)json_num(beat, "rss_bytes", 0);
    r->log_dropped = (int64_t)json_num(beat, "log_dropped_bytes", 0);
    r->frames_bad = (int64_t)(json_num(beat, "malformed", 0) + json_num(beat, "oversized", 0) + json_num(beat, "backward", 0) + json_num(beat, "repeated", 0));
    if (phase) (void)snprintf(r->phase, sizeof r->phase, "%s", phase);
}

void attempt_awaits_replay(struct attempt *a)
{
    for (int i = 0; i < a->n_q; i++) cJSON_Delete(a->q[i].m);
    a->n_q = 0;
    a->seen_seq = a->last_seq;
}

void attempt_bad_frames(struct attempt *a, int64_t n)
{
    a->bad_frames += n;
    a->d->bad_frames += n;
    if (n > 0) a->dirty = true;
}

static bool exit_record_fits(const struct attempt *a, const cJSON *rec)
{
    const char *nonce = json_str(rec, "nonce");
    return cJSON_IsObject(rec) && nonce && strcmp(nonce, a->nonce) == 0 && json_str(rec, "state");
}

void attempt_hears(struct attempt *a, cJSON *msg)
{
    const char *t = json_str(msg, "t"), *nonce = json_str(msg, "nonce");
    if (t == NULL) return;
    if (strcmp(t, "hello") == 0) {
        int64_t pid = 0, start = 0, protocol = 0;
        if (nonce == NULL || strcmp(nonce, a->nonce) != 0) {
            log_line("warning", "j%lld: a keeper with another nonce answered in %s; it is left alone", (long long)a->j->row.id, a->dir);
            a->by->drop(a);
            return;
        }
        if (json_int(msg, "protocol", &protocol) && protocol > MESSAGE_PROTOCOL)
            log_line("warning", "j%lld: its keeper speaks protocol %lld, this daemon %d; what both know is used", (long long)a->j->row.id, (long long)protocol, MESSAGE_PROTOCOL);
        if (json_int(msg, "pid", &pid)) a->pid = pid;
        if (json_int(msg, "start_time", &start)) a->start_time = start;
        const cJSON *r;
        cJSON_ArrayForEach(r, json_get(msg, "ranks")) {
            int64_t rank = -1;
            if (json_int(r, "rank", &rank) && rank >= 0 && rank < a->n_ranks && json_int(r, "pid", &a->rank[rank].pid)) a->rank[rank].dirty = true;
        }
        a->greeted = a->settled = a->dirty = true;
        a->told = WANT_RUN;
        if (a->j->row.want != WANT_RUN) tell_stop(a);
    } else if (strcmp(t, "record") == 0) {
        if (a->greeted) take_record(a, msg);
    } else if (strcmp(t, "beats") == 0) {
        const cJSON *r;
        cJSON_ArrayForEach(r, json_get(msg, "ranks")) take_beat(a, r);
    } else if (strcmp(t, "refused") == 0) {
        log_line("warning", "j%lld: its keeper refused: %.200s", (long long)a->j->row.id, json_str(msg, "text") ? json_str(msg, "text") : "");
    } else if (strcmp(t, "exit") == 0) {
        const cJSON *rec = json_get(msg, "record");
        if (!a->exit && exit_record_fits(a, rec)) a->exit = cJSON_Duplicate(rec, true);
    } else {
        a->bad_frames++;
        a->d->bad_frames++;
    }
}

/* --- starting --- */

struct begin { struct attempt *a; char *slots; const char *resumed; };

static int insert_attempt(struct daemon *d, struct job *j, void *arg, struct error *err)
{
    struct begin *b = arg;
    return store_exec(d->store, err, "INSERT INTO attempts(job,n,nonce,boot_id,state,started_ms,slots,resumed_from) VALUES(?,?,?,?,'running',?,?,?)", "iississ", j->row.id,
                      b->a->n, b->a->nonce, d->boot_id, wall_ms(), b->slots, b->resumed);
}

/* The attempt's own copy of the spec: from the newest checkpoint, on the devices it was given. */
static int write_spec(struct attempt *a, struct error *err)
{
    struct job *j = a->j;
    char *path = xasprintf("%s/spec.json", a->dir);
    cJSON *o = spec_json(&j->spec);
    if (j->row.checkpoint[0]) {
        cJSON_DeleteItemFromObjectCaseSensitive(o, "resume_from_checkpoint");
        json_add_str(o, "resume_from_checkpoint", j->row.checkpoint);
    }
    char *text = json_line(o);
    int rc = make_dirs(a->dir, err);
    if (rc == OK) rc = file_write(path, text, strlen(text), err);
    free(text);
    cJSON_Delete(o);
    free(path);
    return rc;
}

cJSON *attempt_verdict(struct attempt *a, const char *state, const char *reason, const char *fmt, const char *arg)
{
    char detail[700];
    (void)snprintf(detail, sizeof detail, fmt, arg);
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "nonce", a->nonce);
    json_add_str(o, "state", state);
    json_add_str(o, "reason", reason);
    json_add_str(o, "detail", detail);
    return o;
}

int attempt_start(struct daemon *d, struct job *j, struct error *err)
{
    struct attempt *a = attempt_new(d, j, j->row.attempt + 1);
    struct job_row n = j->row;
    cJSON *ids = cJSON_CreateArray();
    for (int i = 0; i < d->n_slots; i++) if (d->slots[i].job == j->row.id) (void)cJSON_AddItemToArray(ids, cJSON_CreateString(d->slots[i].id));
    struct begin b = { a, json_line(ids), j->row.checkpoint[0] ? j->row.checkpoint : j->spec.resume_from_checkpoint };
    cJSON_Delete(ids);
    random_hex(a->nonce, 16);
    int rc = write_spec(a, err);
    if (rc == OK) {
        n.state = JOB_STARTING;
        n.attempt = a->n;
        n.reason[0] = n.detail[0] = '\0';
        if (n.started_ms == 0) n.started_ms = wall_ms();
        rc = job_commit(d, j, &n, insert_attempt, &b, err);
    }
    free(b.slots);
    if (rc != OK) { attempt_free(a); return rc; }
    a->settled = true;
    j->attempt = a;
    failpoint("after_commit");
    if (a->by->start(a, err) != OK) {
        a->exit = attempt_verdict(a, "failed", "spawn_failed", "%s", err->text);
        return OK;              /* the attempt exists; it ends like any other */
    }
    failpoint("after_spawn");
    if (store_exec(d->store, NULL, "UPDATE attempts SET pid=?,start_time=? WHERE job=? AND n=?", "iiii", a->pid, a->start_time, j->row.id, a->n) != OK) a->dirty = true;
    return OK;
}

/* --- ending --- */

static void on_line(void *a, cJSON *msg) { attempt_hears(a, msg); }

void attempt_read_spool(struct attempt *a)
{
    char *path = xasprintf("%s/spool", a->dir), *buf = xmalloc(65536);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0) {
        struct line_reader reader = { 0 };
        bool greeted = a->greeted;
        a->greeted = true;
        for (ssize_t n; (n = read(fd, buf, 65536)) > 0;) {
            line_reader_feed(&reader, buf, (size_t)n, on_line, a);
            if (a->n_q > PENDING_MAX) while (attempts_flush(a->d)) { }
        }
        attempt_bad_frames(a, reader.oversized + reader.malformed);
        line_reader_release(&reader);
        (void)close(fd);
        a->greeted = greeted;
    }
    free(buf);
    free(path);
}

bool attempt_read_exit(struct attempt *a)
{
    static const struct json_limits limits = { 4u << 20, 32, 200000 };
    char *path = xasprintf("%s/exit.json", a->dir);
    cJSON *rec = NULL;
    struct error err;
    int rc = json_parse_file(&rec, path, &limits, &err);
    if (rc == OK && exit_record_fits(a, rec)) a->exit = rec;
    else {
        if (rc != OK && rc != E_NOTFOUND) log_line("warning", "j%lld: %s", (long long)a->j->row.id, err.text);
        cJSON_Delete(rec);
    }
    free(path);
    return a->exit != NULL;
}

struct ending { struct attempt *a; const char *state, *reason, *detail; };

static int store_ending(struct daemon *d, struct job *j, void *arg, struct error *err)
{
    struct ending *e = arg;
    struct attempt *a = e->a;
    const cJSON *rec = a->exit, *r, *summary = json_get(rec, "summary");
    int64_t rank = -1, code = 0, sig = 0, step = a->last_step;
    int rc = OK;
    cJSON_ArrayForEach(r, json_get(rec, "ranks")) {
        int64_t k = -1, pid = 0, c = 0, s = 0, last = 0;
        if (!json_int(r, "rank", &k)) continue;
        (void)json_int(r, "pid", &pid);
        (void)json_int(r, "code", &c);
        (void)json_int(r, "signal", &s);
        (void)json_int(r, "last_step", &last);
        const char *why = json_str(r, "reason");
        if (rc == OK)
            rc = store_exec(d->store, err, "INSERT INTO ranks(job,attempt,rank,pid,step,code,signal,reason) VALUES(?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET"
                                           " pid=excluded.pid,step=max(ifnull(step,0),excluded.step),code=excluded.code,signal=excluded.signal,reason=excluded.reason",
                            "iiiiiiis", j->row.id, a->n, k, pid, last, c, s, why);
        if (rank < 0 && (c != 0 || s != 0) && why && strcmp(why, e->reason) == 0) { rank = k; code = c; sig = s; }      /* whose fault it was */
    }
    int64_t told = -1;
    if (json_int(rec, "rank", &told) && told >= 0) rank = told;         /* the keeper knows who was first */
    if (rc == OK)
        rc = store_exec(d->store, err, "UPDATE attempts SET state=?,reason=?,detail=?,rank=nullif(?,-1),code=?,signal=?,last_step=?,ended_ms=?,last_seq=?,bad_frames=? WHERE job=? AND n=?",
                        "sssiiiiiiiii", e->state, e->reason, e->detail, rank, code, sig, step, wall_ms(), a->last_seq, a->bad_frames, j->row.id, a->n);
    if (rc == OK && summary) {
        char *text = json_line(summary);
        rc = store_exec(d->store, err, "UPDATE jobs SET summary=? WHERE id=?", "si", text, j->row.id);
        free(text);
    }
    return rc;
}

static bool take_older(void *arg, struct store_row *r)
{
    struct job_row *n = arg;
    (void)snprintf(n->checkpoint, sizeof n->checkpoint, "%s", row_text(r, 0));
    n->checkpoint_step = row_int(r, 1);
    return false;
}

/* A checkpoint from which two attempts came no step further is bad (BAD_CHECKPOINT counts them): the next start uses the newest before it
 * that is not, or what the spec said. An attempt that says nothing about the checkpoint does not count. */
static void doubt_checkpoint(struct attempt *a, struct job_row *n, const char *reason)
{
    struct store *s = a->d->store;
    struct error err;
    if (!n->checkpoint[0] || a->last_step > n->checkpoint_step || strcmp(reason, "lost") == 0 || strcmp(reason, "spawn_failed") == 0) return;
    int64_t step = n->checkpoint_step, failed = store_int(s, 0, "SELECT " BAD_CHECKPOINT "+(SELECT count(*) FROM attempts WHERE job=?1 AND n=?2 AND resumed_from=path) FROM checkpoints WHERE job=?1 AND step=?3",
                                                          "iii", n->id, a->n, step);
    if (failed < BAD_AFTER) return;
    cJSON *o = cJSON_CreateObject();
    char *text = xasprintf("two attempts came no further than checkpoint %s; ", n->checkpoint), *whole;
    n->checkpoint[0] = '\0';
    n->checkpoint_step = 0;
    (void)store_each(s, take_older, n, NULL, "SELECT path,step FROM checkpoints WHERE job=? AND step<? AND " BAD_CHECKPOINT "<? ORDER BY step DESC LIMIT 1", "iii", n->id, step, (int64_t)BAD_AFTER);
    whole = n->checkpoint[0] ? xasprintf("%sthe next starts from %s", text, n->checkpoint) : xasprintf("%sthere is no older one: the next starts as the first did", text);
    log_line("warning", "j%lld: %s", (long long)n->id, whole);
    json_add_str(o, "code", "bad_checkpoint");
    json_add_str(o, "text", whole);
    (void)event_add_seq(a->d, n->id, a->n, 0, wall_ms(), "event", "warning", o, &err);
    cJSON_Delete(o);
    free(whole);
    free(text);
}

/* STOPPING to where the exit record and the wish together lead. */
static void settle(struct attempt *a)
{
    struct daemon *d = a->d;
    struct job *j = a->j;
    struct error err;
    const char *state = json_str(a->exit, "state"), *reason = json_str(a->exit, "reason"), *detail = json_str(a->exit, "detail"), *ck = json_str(a->exit, "checkpoint");
    if (reason == NULL) reason = "";
    if (detail == NULL) detail = "";
    if (j->row.state != JOB_STOPPING && job_move(d, j, JOB_STOPPING, j->row.reason, j->row.detail, &err) != OK) return;    /* tried again at the next tick */
    struct job_row n = j->row;
    int64_t step = 0, now = wall_ms();
    bool limit = strcmp(n.reason, "time_limit") == 0;
    int64_t ran = mono_ms() - a->begun_mono_ms;
    (void)json_int(a->exit, "run_ms", &ran);        /* the keeper knows better: it may have ended while nobody was here */
    n.run_ms += ran;
    if (json_int(a->exit, "last_step", &step) && step > a->last_step) a->last_step = step;
    if (a->last_step > 0) n.last_step = a->last_step;
    if (ck && strlen(ck) < sizeof n.checkpoint && strcmp(ck, n.checkpoint) != 0) {
        (void)snprintf(n.checkpoint, sizeof n.checkpoint, "%s", ck);
        (void)json_int(a->exit, "checkpoint_step", &n.checkpoint_step);
        n.checkpoint_ms = now;
    }
    bool stopped = strcmp(state, "cancelled") == 0 || strcmp(state, "paused") == 0;
    if (strcmp(state, "succeeded") == 0) n.state = JOB_SUCCEEDED;
    else if (limit) { n.state = JOB_FAILED; reason = "time_limit"; detail = "the job reached its time_limit_s"; }
    else if (n.want == WANT_CANCEL || n.want == WANT_KILL) { n.state = JOB_CANCELLED; if (!*reason || stopped) reason = n.want == WANT_KILL ? "killed" : "cancelled"; }
    else if (n.want == WANT_PAUSE && stopped) n.state = JOB_PAUSED;
    else if (n.want == WANT_REQUEUE && stopped) { n.state = JOB_QUEUED; n.queued_ms = now; n.not_before_ms = 0; }
    else if (strcmp(reason, "cancelled_outside") == 0) n.state = JOB_CANCELLED;
    else if (strcmp(reason, "preempted") == 0 || strcmp(reason, "requeued") == 0) { n.state = JOB_QUEUED; n.queued_ms = now; n.not_before_ms = now + d->set.backoff_ms; }     /* nothing was wrong with it */
    else if (strcmp(reason, "not_started") == 0) { n.state = JOB_QUEUED; n.queued_ms = now; }      /* nothing ran: no restart is spent */
    else if (exit_reason_retries(reason) && n.restarts < j->spec.max_restarts) {
        n.state = JOB_QUEUED;
        n.queued_ms = now;
        n.not_before_ms = now + (d->set.backoff_ms << (n.restarts < 6 ? n.restarts : 6));
        n.restarts++;
        doubt_checkpoint(a, &n, reason);
    } else n.state = JOB_FAILED;
    if (n.state == JOB_QUEUED || n.state == JOB_PAUSED) n.want = WANT_RUN;
    (void)snprintf(n.reason, sizeof n.reason, "%s", reason);
    (void)snprintf(n.detail, sizeof n.detail, "%s", detail);
    struct ending e = { a, limit && n.state == JOB_FAILED ? "failed" : state, reason, detail };
    bool last = job_state_final(n.state);
    slots_free(d, j->row.id);               /* nothing of the attempt runs any more */
    j->attempt = NULL;
    if (last) tell_ack(a);                  /* before the commit only by microseconds; exit.json stays where it is */
    if (job_commit(d, j, &n, store_ending, &e, &err) != OK) {
        log_line("warning", "j%lld: its end cannot be stored yet: %s", (long long)j->row.id, err.text);
        j->attempt = a;
        return;
    }
    if (!last) tell_ack(a);
    attempt_free(a);
}

int attempt_never(struct daemon *d, struct job *j, struct error *err)
{
    assert(j->attempt == NULL);
    switch (j->row.want) {
    case WANT_PAUSE: return job_move(d, j, JOB_PAUSED, "paused", NULL, err);
    case WANT_RUN: case WANT_REQUEUE: return job_move(d, j, JOB_QUEUED, NULL, NULL, err);
    default: return job_move(d, j, JOB_CANCELLED, j->row.want == WANT_KILL ? "killed" : "cancelled", NULL, err);
    }
}

/* One attempt's deadlines. Frees a when it is over. */
static void tick(struct attempt *a)
{
    struct daemon *d = a->d;
    struct job *j = a->j;
    struct error err;
    int64_t now = mono_ms();
    if (a->exit == NULL) a->by->look(a);
    if (a->greeted) tell_stop(a);
    if (a->exit == NULL && j->row.state == JOB_STARTING && j->row.want == WANT_RUN && a->n_ready == a->n_ranks)
        (void)job_move(d, j, JOB_RUNNING, NULL, NULL, &err);
    if (a->exit == NULL && j->row.want == WANT_RUN && j->spec.time_limit_s > 0 && j->row.run_ms + now - a->begun_mono_ms > j->spec.time_limit_s * 1000 &&
        (j->row.state == JOB_RUNNING || j->row.state == JOB_STARTING))
        (void)job_want_set(d, j, WANT_CANCEL, "time_limit", &err);
    if (a->exit == NULL && a->stop_mono_ms > 0) {
        int64_t late = (j->row.want == WANT_KILL ? 0 : j->spec.grace_ms) + LATE_MS;
        if (j->row.want == WANT_PAUSE || j->row.want == WANT_REQUEUE) late += 60000;       /* a checkpoint takes its time */
        if (now - a->stop_mono_ms > late) a->by->late(a);
    }
    if (a->exit == NULL) return;
    a->settled = true;
    if (a->n_q > 0) (void)attempts_flush(d);
    if (a->n_q > 0) return;                     /* more than one transaction's worth, or the store is not available: the end waits */
    if (!a->by->empty(a)) return;
    settle(a);
}

void attempt_tick(struct daemon *d)
{
    for (struct job *j = d->jobs, *next; j; j = next) {
        next = j->next;
        if (j->attempt) tick(j->attempt);
        else if (j->row.state == JOB_STOPPING) (void)attempt_never(d, j, NULL);     /* the store refused its last move: again */
    }
}

/* --- adoption --- */

static bool load_rank(void *arg, struct store_row *r)
{
    struct attempt *a = arg;
    int64_t k = row_int(r, 0);
    if (k < 0 || k >= a->n_ranks) return true;
    a->rank[k].pid = row_int(r, 1);
    a->rank[k].ready = row_int(r, 2) != 0;
    a->rank[k].step = row_int(r, 3);
    a->n_ready += a->rank[k].ready;
    return true;
}

void attempt_adopt(struct daemon *d, struct job *j)
{
    struct error err;
    cJSON *row = NULL, *ids = NULL;
    const cJSON *id;
    struct attempt *a = attempt_new(d, j, j->row.attempt);
    if (store_one(d->store, &row, &err, "SELECT nonce,pid,start_time,boot_id,last_seq,slots AS \"j:slots\",ended_ms,first_step,last_step,bad_frames,started_ms,slurm_job FROM attempts WHERE job=? AND n=?", "ii",
                  j->row.id, j->row.attempt) != OK || row == NULL || cJSON_IsRaw(json_get(row, "ended_ms"))) {
        attempt_free(a);            /* stopped while it waited */
        if (attempt_never(d, j, &err) != OK) log_line("error", "j%lld: %s", (long long)j->row.id, err.text);
        cJSON_Delete(row);
        return;
    }
    int64_t started = wall_ms();
    (void)snprintf(a->nonce, sizeof a->nonce, "%s", json_str(row, "nonce"));
    (void)json_int(row, "pid", &a->pid);
    (void)json_int(row, "start_time", &a->start_time);
    (void)json_int(row, "last_seq", &a->last_seq);
    (void)json_int(row, "first_step", &a->first_step);
    (void)json_int(row, "last_step", &a->last_step);
    (void)json_int(row, "bad_frames", &a->bad_frames);
    if (json_int(row, "started_ms", &started) && wall_ms() > started) a->begun_mono_ms = mono_ms() - (wall_ms() - started);     /* the time limit goes on */
    a->seen_seq = a->last_seq;
    (void)store_each(d->store, load_rank, a, NULL, "SELECT rank,pid,ready,step FROM ranks WHERE job=? AND attempt=?", "ii", j->row.id, a->n);
    ids = json_get(row, "slots");
    cJSON_ArrayForEach(id, ids) {
        bool found = false;
        for (int i = 0; i < d->n_slots; i++)
            if (cJSON_IsString(id) && strcmp(d->slots[i].id, id->valuestring) == 0) { d->slots[i].job = j->row.id; found = true; }
        if (!found) log_line("warning", "j%lld holds %s, which this configuration does not have", (long long)j->row.id, cJSON_IsString(id) ? id->valuestring : "?");
    }
    j->attempt = a;
    if (attempt_read_exit(a)) attempt_read_spool(a);
    a->by->adopt(a, row);
    if (j->row.want != WANT_RUN) a->stop_mono_ms = mono_ms();
    cJSON_Delete(row);
}

bool attempts_settled(const struct daemon *d)
{
    for (const struct job *j = d->jobs; j; j = j->next) if (j->attempt && !j->attempt->settled) return false;
    return true;
}

void attempts_detach(struct daemon *d)
{
    while (attempts_flush(d)) { }
    for (struct job *j = d->jobs; j; j = j->next)
        if (j->attempt) { attempt_free(j->attempt); j->attempt = NULL; }
    launcher_local_stop();
    launcher_slurm_stop(d);
}

/* --- to the store --- */

/* Everything up to here is stored once the first n records that wait are. */
static int64_t seq_after(const struct attempt *a, int n) { return n == a->n_q ? a->seen_seq : n > 0 ? a->q[n - 1].seq : a->last_seq; }

/* The plan could only assume how fast the ranks reach each other; rank 0 says what they have decided, and why. */
static int keep_degrees(struct store *s, int64_t job, const cJSON *ready, struct error *err)
{
    const char *why = json_str(ready, "parallel");
    int64_t U = 0, R = 0;
    if (why == NULL || !json_int(ready, "ulysses", &U) || !json_int(ready, "ring", &R)) return OK;
    cJSON *patch = cJSON_CreateObject(), *parallel = cJSON_CreateObject();
    json_add_int(parallel, "ring", R);
    json_add_int(parallel, "ulysses", U);
    json_add_str(parallel, "why", why);
    (void)cJSON_AddItemToObject(patch, "parallel", parallel);
    char *text = json_line(patch);
    int rc = store_exec(s, err, "UPDATE jobs SET plan=json_patch(plan,?) WHERE id=? AND json_valid(plan)", "si", text, job);
    free(text);
    cJSON_Delete(patch);
    return rc;
}

/* Stores the first n of the records that wait. */
static int flush_one(struct attempt *a, int n, struct job_row *row, struct error *err)
{
    struct store *s = a->d->store;
    int rc = OK;
    int64_t id = a->j->row.id;
    for (int i = 0; i < n && rc == OK; i++) {
        const struct pending *p = &a->q[i];
        const char *t = json_str(p->m, "t"), *level = json_str(p->m, "level"), *path = json_str(p->m, "path");
        if (t && strcmp(t, "ready") == 0 && p->rank == 0) rc = keep_degrees(s, id, p->m, err);
        if (t == NULL || strcmp(t, "beat") == 0 || strcmp(t, "hello") == 0 || strcmp(t, "ready") == 0) continue;
        if (strcmp(t, "metrics") == 0) { rc = metrics_store(s, id, p->rank, a->n, p->seq, p->ms, p->m, err); continue; }
        if (strcmp(t, "checkpoint") == 0 && path && strlen(path) < sizeof row->checkpoint) {
            int64_t step = 0;
            (void)json_int(p->m, "step", &step);
            rc = store_exec(s, err, "INSERT INTO checkpoints(job,step,path,attempt,ms) VALUES(?,?,?,?,?) ON CONFLICT DO UPDATE SET path=excluded.path,attempt=excluded.attempt,ms=excluded.ms", "iisii",
                            id, step, path, a->n, p->ms);
            if (rc == OK) rc = store_exec(s, err, "UPDATE jobs SET checkpoint=?,checkpoint_step=?,checkpoint_ms=? WHERE id=?", "siii", path, step, p->ms, id);
            (void)snprintf(row->checkpoint, sizeof row->checkpoint, "%s", path);
            row->checkpoint_step = step;
            row->checkpoint_ms = p->ms;
        }
        if (rc == OK) rc = event_add_seq(a->d, id, a->n, p->seq, p->ms, t, strcmp(t, "error") == 0 ? "error" : level ? level : "info", p->m, err);
    }
    for (int k = 0; k < a->n_ranks && rc == OK; k++)
        if (a->rank[k].dirty)
            rc = store_exec(s, err, "INSERT INTO ranks(job,attempt,rank,pid,ready,step) VALUES(?,?,?,?,?,?) ON CONFLICT DO UPDATE SET pid=excluded.pid,ready=excluded.ready,step=excluded.step",
                            "iiiiii", id, a->n, (int64_t)k, a->rank[k].pid, (int64_t)a->rank[k].ready, a->rank[k].step);
    if (rc == OK)
        rc = store_exec(s, err, "UPDATE attempts SET pid=?,start_time=?,last_seq=?,first_step=nullif(?,-1),last_step=?,bad_frames=? WHERE job=? AND n=?", "iiiiiiii", a->pid, a->start_time,
                        seq_after(a, n), a->first_step, a->last_step, a->bad_frames, id, a->n);
    if (rc == OK && a->last_step > row->last_step) {
        rc = store_exec(s, err, "UPDATE jobs SET last_step=? WHERE id=?", "ii", a->last_step, id);
        row->last_step = a->last_step;
    }
    return rc;
}

static bool wants_flush(const struct attempt *a) { return a->n_q > 0 || a->dirty || a->seen_seq > a->last_seq; }

bool attempts_flush(struct daemon *d)
{
    struct error err;
    int n = 0, rc;
    bool more = false;
    for (struct job *j = d->jobs; j; j = j->next) n += j->attempt && wants_flush(j->attempt);
    if (n == 0) return false;
    int share = FLUSH_RECORDS / n > 50 ? FLUSH_RECORDS / n : 50;       /* of each, so that none waits for another's burst */
    struct job_row *rows = xcalloc((unsigned long)n, sizeof *rows);
    rc = store_begin(d->store, &err);
    int i = 0;
    for (struct job *j = d->jobs; j && rc == OK; j = j->next) {
        if (!j->attempt || !wants_flush(j->attempt)) continue;
        rows[i] = j->row;
        rc = flush_one(j->attempt, j->attempt->n_q < share ? j->attempt->n_q : share, &rows[i], &err);
        i++;
    }
    if (rc == OK) rc = store_commit(d->store, &err);
    else store_rollback(d->store);
    if (rc != OK) {
        if (d->flush_failures++ % 20 == 0) log_line("warning", "figures cannot be stored now, keepers hold them: %s", err.text);
        free(rows);
        return false;
    }
    d->flushes++;
    i = 0;
    for (struct job *j = d->jobs; j; j = j->next) {
        struct attempt *a = j->attempt;
        if (!a || !wants_flush(a)) continue;
        j->row = rows[i++];
        int stored = a->n_q < share ? a->n_q : share;
        int64_t seq = seq_after(a, stored);
        for (int k = 0; k < stored; k++) cJSON_Delete(a->q[k].m);
        a->n_q -= stored;
        if (a->n_q > 0) memmove(a->q, a->q + stored, (size_t)a->n_q * sizeof *a->q);
        more |= a->n_q > 0;
        a->dirty = false;
        for (int k = 0; k < a->n_ranks; k++) a->rank[k].dirty = false;
        if (seq > a->last_seq) {
            a->last_seq = seq;
            tell_ack(a);
        }
        if (a->n_q <= PENDING_MAX / 2) a->by->more(a);
    }
    free(rows);
    events_publish(d);
    return more;
}

/* --- for watchers --- */

int64_t attempt_version(const struct attempt *a) { return a->version; }

static void add_figure(void *arg, const char *name, double v)
{
    if (v == floor(v) && fabs(v) < 9007199254740992.0) json_add_int(arg, name, (int64_t)v);     /* bytes as digits, not 4.64e+07 */
    else json_add_num(arg, name, v);
}

double attempt_figure(const struct attempt *a, int rank, const char *name)
{
    return rank < a->n_ranks && a->rank[rank].latest ? json_num(a->rank[rank].latest, name, NAN) : NAN;
}

void attempt_live_json(struct attempt *a, cJSON *o)
{
    static const char *const shown[] = { "loss", "tokens_per_s", "eta_s", "grad_norm", "learning_rate", "epoch", "comm_share", "comm_share_mean", "comm_share_max", "skew", "slowest_rank", "step_s", "peak_bytes", "allocated_bytes" };
    cJSON *p = cJSON_AddObjectToObject(o, "progress");
    json_add_int(p, "step", a->last_step);
    json_add_int(p, "max_steps", a->j->row.max_steps);
    json_add_int(p, "ready_ranks", a->n_ready);
    (void)cJSON_AddBoolToObject(p, "connected", a->greeted);
    json_add_int(p, "bad_frames", a->bad_frames);
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        double v;
        if (a->rank[0].latest && json_number(json_get(a->rank[0].latest, shown[i]), &v)) json_add_num(p, shown[i], v);
    }
    if (a->by->live_json) a->by->live_json(a, o);
    cJSON_DeleteItemFromObjectCaseSensitive(o, "run_ms");
    json_add_int(o, "run_ms", a->j->row.run_ms + mono_ms() - a->begun_mono_ms);
    cJSON_DeleteItemFromObjectCaseSensitive(o, "step");
    json_add_int(o, "step", a->last_step > a->j->row.last_step ? a->last_step : a->j->row.last_step);
}

cJSON *attempt_ranks_json(struct attempt *a)
{
    cJSON *list = cJSON_CreateArray();
    int64_t now = mono_ms();
    for (int k = 0; k < a->n_ranks; k++) {
        struct rank_info *r = &a->rank[k];
        cJSON *o = cJSON_CreateObject();
        json_add_int(o, "rank", k);
        if (r->pid > 0) json_add_int(o, "pid", r->pid);
        else (void)cJSON_AddNullToObject(o, "pid");
        json_add_int(o, "attempt", a->n);
        json_add_str(o, "state", a->j->row.state == JOB_STOPPING ? "stopping" : r->ready ? "running" : "starting");
        json_add_int(o, "step", r->step);
        json_add_str(o, "phase", r->phase);
        if (r->beat_mono_ms) json_add_num(o, "heartbeat_age_s", (double)(now - r->beat_mono_ms) / 1000.0);
        else (void)cJSON_AddNullToObject(o, "heartbeat_age_s");
        if (r->rss_bytes > 0) {
            json_add_int(o, "rss_bytes", r->rss_bytes);
            json_add_num(o, "cpu", r->cpu);
            json_add_int(o, "log_dropped_bytes", r->log_dropped);
            json_add_int(o, "bad_frames", r->frames_bad);
        }
        if (r->latest) metrics_each(r->latest, add_figure, o);
        (void)cJSON_AddItemToArray(list, o);
    }
    return list;
}

const char *attempt_metrics_event(struct job *j, int64_t *seen)
{
    struct attempt *a = j->attempt;
    if (a == NULL || a->version <= *seen) return NULL;
    *seen = a->version;
    if (a->event_version == a->version) return a->event;
    cJSON *o = cJSON_CreateObject();
    char id[24];
    (void)snprintf(id, sizeof id, "j%lld", (long long)j->row.id);
    json_add_str(o, "id", id);
    json_add_int(o, "attempt", a->n);
    json_add_int(o, "step", a->last_step);
    json_add_int(o, "max_steps", j->row.max_steps);
    cJSON *list = cJSON_AddArrayToObject(o, "ranks");
    for (int k = 0; k < a->n_ranks && k < 64; k++) {
        if (a->rank[k].latest == NULL) continue;
        cJSON *r = cJSON_CreateObject();
        json_add_int(r, "rank", k);
        json_add_int(r, "step", a->rank[k].step);
        metrics_each(a->rank[k].latest, add_figure, r);
        (void)cJSON_AddItemToArray(list, r);
    }
    free(a->event);
    a->event = json_line(o);
    a->event_version = a->version;
    cJSON_Delete(o);
    return a->event;
}
