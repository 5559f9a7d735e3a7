/* job.h - jobs and their states.
 *
 *  QUEUED -> STARTING -> RUNNING -> STOPPING -> SUCCEEDED | FAILED | CANCELLED | PAUSED        QUEUED, PAUSED -> STOPPING
 *  STOPPING -> QUEUED (another attempt)     PAUSED -> QUEUED
 *  QUEUED            no process, no slot held
 *  STARTING          slots held; the attempt's nonce is in the store; its keeper is being spawned or its ranks get ready
 *  RUNNING           every rank reported ready; steps advance
 *  STOPPING          no new step begins; ranks leaving. The only door out: attempts end in one place (attempt.c)
 *  SUCCEEDED FAILED CANCELLED  no process, no slot; ended_ms is set; never left
 *  PAUSED            no process, no slot; goes on from its checkpoint when resumed
 * What was asked for is a separate column (enum job_want): a cancel wins over a start that is under way. */
#ifndef RM_DAEMON_JOB_H
#define RM_DAEMON_JOB_H

#include "api/spec.h"

struct daemon;
struct attempt;

enum job_state { JOB_QUEUED, JOB_STARTING, JOB_RUNNING, JOB_STOPPING, JOB_SUCCEEDED, JOB_FAILED, JOB_CANCELLED, JOB_PAUSED, JOB_STATES };
enum job_want { WANT_RUN, WANT_PAUSE, WANT_REQUEUE, WANT_CANCEL, WANT_KILL, JOB_WANTS };     /* later ones win */

/* What the store holds of a job and may change; copied, changed, committed, then taken over: memory never runs ahead. */
struct job_row {
    int64_t id, version, priority, attempt, restarts, not_before_ms;
    int64_t created_ms, queued_ms, started_ms, ended_ms, run_ms;
    int64_t last_step, max_steps, checkpoint_step, checkpoint_ms;
    enum job_state state;
    enum job_want want;
    char reason[48], detail[1000], checkpoint[4096], name[201];
};

struct job {                    /* only of jobs that can still change; the rest is in the store alone */
    struct job *next;
    struct job_row row;
    struct spec spec;
    bool gpu;                   /* kind of slots */
    struct attempt *attempt;    /* STARTING, RUNNING, STOPPING after an attempt; else NULL */
    const char *wait_code;      /* why it waits, while QUEUED */
    char wait_text[240];
    int64_t wait_position;
};

const char *job_state_name(enum job_state s);           /* "queued" … */
bool job_state_parse(const char *name, enum job_state *s);
const char *job_want_name(enum job_want w);
bool job_state_final(enum job_state s);                 /* never left */
bool job_can(enum job_state from, enum job_state to);

struct job *job_find(struct daemon *d, int64_t id);     /* live jobs only */
bool job_id_parse(const char *text, int64_t *id);       /* "j12" */

/* The only writer of a job's row: commits *to over j->row, guarded by version, with an event for watchers. also (may be NULL) runs in
 * the same transaction. On failure nothing changed. A final state unlinks and frees j: the caller must not touch it again. */
int job_commit(struct daemon *d, struct job *j, struct job_row *to, int (*also)(struct daemon *d, struct job *j, void *arg, struct error *err), void *arg,
               struct error *err);
/* Change of state alone, with reason ("" keeps none) and detail. */
int job_move(struct daemon *d, struct job *j, enum job_state to, const char *reason, const char *detail, struct error *err);
/* Stores a checked spec as a new QUEUED job; spec is taken over on success. also as above, after the row is in (j->row.id is known). */
struct job_origin { const char *plan, *array_id; int64_t cloned_from; };
int job_create(struct daemon *d, struct spec *spec, const struct job_origin *from, int (*also)(struct daemon *d, struct job *j, void *arg, struct error *err), void *arg,
               struct job **out, struct error *err);
int job_load_all(struct daemon *d, struct error *err);  /* at start: every job that is not final */
void job_free_all(struct daemon *d);

/* What a person asked: E_CONFLICT if the state does not allow it, OK also when it was so already. */
int job_want_set(struct daemon *d, struct job *j, enum job_want want, const char *reason, struct error *err);
int job_resume(struct daemon *d, struct job *j, struct error *err);

/* The job as clients see it; *out NULL and E_NOTFOUND if there is none. */
int job_json(struct daemon *d, int64_t id, bool whole, cJSON **out, struct error *err);
void job_live_json(struct job *j, cJSON *o);            /* adds what only memory knows: waiting, progress, latest figures */

#endif
