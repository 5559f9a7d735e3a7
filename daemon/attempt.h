/* attempt.h - one start of a job: its keeper, the socket to it, what it reports, its end.
 *
 * The nonce is in the store before the keeper is spawned; RINGMASTER_ATTEMPT=<nonce> is in the environment of everything it
 * starts, so what is left of an attempt is found by that, never by a pid alone. Slots are freed when nothing is left. */
#ifndef RM_DAEMON_ATTEMPT_H
#define RM_DAEMON_ATTEMPT_H

#include "api/json.h"

struct daemon;
struct job;
struct attempt;

/* Commits attempt n+1 with the slots it holds, moves the job to STARTING and spawns the keeper. On failure the job stays QUEUED. */
int attempt_start(struct daemon *d, struct job *j, struct error *err);
/* At daemon start, for a job in STARTING, RUNNING or STOPPING: finds its keeper or its exit record, else the truth that it is lost. */
void attempt_adopt(struct daemon *d, struct job *j);
void attempt_stop(struct daemon *d, struct job *j);             /* tells the keeper what job->row.want says */
int attempt_checkpoint(struct daemon *d, struct job *j, struct error *err);
int attempt_never(struct daemon *d, struct job *j, struct error *err);      /* STOPPING without an attempt: to its final state */
void attempt_tick(struct daemon *d);                            /* deadlines; about ten times a second */
/* What ranks reported goes to the store, then is acknowledged: one transaction's worth. True if more waits. */
bool attempts_flush(struct daemon *d);
bool attempts_settled(const struct daemon *d);                  /* no adoption is pending */
void attempts_detach(struct daemon *d);                         /* the daemon leaves; keepers go on */
void attempt_live_json(struct attempt *a, cJSON *o);            /* progress, latest figures */
cJSON *attempt_ranks_json(struct attempt *a);
/* Latest figures of every rank for watchers, made once for all of them (borrowed); NULL if nothing new since *seen (advanced). */
const char *attempt_metrics_event(struct job *j, int64_t *seen);
/* For the advisor and /metrics: latest value of a figure of a rank, NAN if unknown. */
int64_t attempt_version(const struct attempt *a);                 /* changes with every figure */
double attempt_figure(const struct attempt *a, int rank, const char *name);

/* Of a row of checkpoints: how many attempts started from it and came no step further, by what may be the checkpoint's fault. */
enum { BAD_AFTER = 2 };
#define BAD_CHECKPOINT "(SELECT count(*) FROM attempts WHERE attempts.job=checkpoints.job AND attempts.n>checkpoints.attempt AND resumed_from=checkpoints.path" \
    " AND attempts.state='failed' AND attempts.reason NOT IN ('lost','not_started','spawn_failed') AND ifnull(attempts.last_step,0)<=checkpoints.step)"

#endif
