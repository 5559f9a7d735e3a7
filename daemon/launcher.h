/* launcher.h - where an attempt's keeper runs: how it is started there, reached, found again, known to be gone, cleared away.
 *
 * attempt.c is the life of an attempt, the same everywhere; a launcher is what differs by place: local (a child process, reached through its
 * socket) and slurm (a batch job, reached through files). An attempt's records, exit record and end are attempt.c's business in both. */
#ifndef RM_DAEMON_LAUNCHER_H
#define RM_DAEMON_LAUNCHER_H

#include "api/loop.h"
#include "api/message.h"
#include "daemon/advisor.h"
#include "daemon/job.h"

enum { PENDING_MAX = 50000 /* records that wait for the store; beyond it nothing more is read */ };

struct attempt;
struct launcher {
    const char *name;                                   /* as in a spec */
    bool slots;                                         /* takes slots of this machine */
    int (*start)(struct attempt *a, struct error *err); /* the attempt is in the store, its spec in its folder */
    void (*adopt)(struct attempt *a, const cJSON *row); /* after a restart of the daemon; row: the attempt's, from the store; a->exit may be known already */
    void (*look)(struct attempt *a);                    /* ten times a second while the end is not known: reaches for the keeper, or finds it gone (a->exit) */
    void (*tell)(struct attempt *a, cJSON *msg);        /* takes msg; lost if the keeper is not reached */
    void (*more)(struct attempt *a);                    /* the store took what waited: records may come again */
    void (*late)(struct attempt *a);                    /* a stop was not followed in time: ends everything */
    bool (*empty)(struct attempt *a);                   /* the end is known: true once nothing of the attempt runs; called until then */
    void (*drop)(struct attempt *a);                    /* lets go of the keeper, which goes on */
    void (*live_json)(struct attempt *a, cJSON *o);     /* what it knows besides, for watchers; NULL: nothing */
};
extern const struct launcher launcher_local, launcher_slurm;
void launcher_local_stop(void);                         /* the daemon leaves */
/* For a job that waits in Slurm's queue: true, and why. */
bool launcher_slurm_waits(const struct attempt *a, char *text, size_t n);
bool launcher_slurm_there(const char **missing);        /* sbatch, squeue and scancel are in PATH */
void launcher_slurm_stop(struct daemon *d);             /* the daemon leaves */
const struct launcher *launcher_of(const struct spec *s);

struct rank_info {
    int64_t pid, step, beat_mono_ms;
    int64_t rss_bytes, log_dropped, frames_bad;     /* from the keeper's beats */
    double cpu;
    bool ready, dirty;
    char phase[24];
    cJSON *latest;                  /* last metrics record */
};
struct pending { int64_t seq, ms; int rank; cJSON *m; };

struct attempt {
    struct daemon *d;
    struct job *j;
    int64_t n, pid, start_time;
    char nonce[33], *dir;
    const struct launcher *by;
    void *place;                    /* the launcher's own */
    bool greeted;                   /* hello arrived and its nonce was right */
    bool settled;                   /* adoption decided */
    int64_t last_seq, seen_seq;     /* committed; received */
    struct pending *q; int n_q, cap_q;
    struct rank_info *rank; int n_ranks, n_ready;
    int64_t first_step, last_step, bad_frames;
    bool dirty;                     /* something to flush even without records */
    cJSON *exit;                    /* the exit record, once known */
    enum job_want told;             /* last stop sent */
    int64_t begun_mono_ms, look_mono_ms, stop_mono_ms, kill_mono_ms, gone_mono_ms;
    int64_t version;                /* of the figures */
    struct advisor advisor;
    char *event;                    /* the figures as watchers get them, of event_version */
    int64_t event_version;
};

/* Calls up from a launcher. */
void attempt_hears(struct attempt *a, cJSON *msg);      /* a line from the keeper */
void attempt_awaits_replay(struct attempt *a);          /* what is not committed will come again: forget it */
void attempt_bad_frames(struct attempt *a, int64_t n);
bool attempt_read_exit(struct attempt *a);              /* true once a->exit is the keeper's record */
void attempt_read_spool(struct attempt *a);             /* what the keeper wrote but could not send */
/* An end that no keeper wrote; fmt takes arg. */
cJSON *attempt_verdict(struct attempt *a, const char *state, const char *reason, const char *fmt, const char *arg);

#endif
