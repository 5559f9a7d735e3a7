/* keeper.h - what the keeper's files share: one attempt, its ranks, and who calls whom.
 *
 * main.c starts it; gang.c spawns the ranks, judges them and ends them; rendezvous.c answers put/get/fence; spool.c numbers and
 * keeps the records; server.c serves them on the socket; ranklog.c keeps the ranks' output; process.c reads /proc; record.c writes
 * exit.json. One thread, one libuv loop, nothing that blocks longer than a write to a local file. */
#ifndef RM_KEEPER_H
#define RM_KEEPER_H

#include "api/json.h"
#include "api/loop.h"
#include "api/message.h"
#include "api/spec.h"
#include "daemon/keeper/ranklog.h"
#include "daemon/keeper/rendezvous.h"
#include "daemon/keeper/spool.h"

enum {
    TICK_MS = 100, BEAT_MS = 1000,
    SILENCE_MS = 7000,          /* a rank that said nothing for so long is frozen whole: its peers are gone within 10 s */
    SILENCE_MIN_MS = 3000,      /* … or for stall_timeout_ms, but never sooner than this */
    START_MS = 120000,          /* from exec to the rank's hello */
    LEAVE_MS = 60000,           /* from its done to its exit */
    TERM_MS = 1000,             /* from peer_lost to SIGTERM: time to tell why */
    DRAIN_MS = 2000,            /* after the last rank: how long output pipes held open by others are read */
    LINGER_MS = 5000,           /* after exit.json: how long an attached daemon may take to acknowledge */
    PUBLISH_MS = 60000          /* how long exit.json is tried on a full disk */
};

enum keeper_phase {
    KEEPER_RUNNING,             /* ranks run, nobody asked for an end */
    KEEPER_ENDING,              /* a stop, a verdict or a death: ranks are leaving; deadline_ms says when they are killed */
    KEEPER_SWEEPING,            /* every rank is reaped; leftovers are being killed and output read to its end */
    KEEPER_PUBLISHING,          /* the process tree was seen empty; exit.json is being written */
    KEEPER_ENDED                /* exit.json is on disk and clients are being told */
};

struct rank {
    struct keeper *k;
    int index;
    uv_process_t process;
    uv_pipe_t link, out;
    bool spawned, exited, out_open, link_open, hello, ready, done, killed;  /* killed: SIGKILL came from here */
    int code, signal, exit_order;
    struct line_reader reader;
    struct ranklog log;
    int64_t heard_ms, moved_ms, done_ms;        /* loop time */
    int64_t step, ticks, last_step;             /* what beats (step, ticks) and what metrics say */
    char phase[32];
    char error_code[32], error_text[600];       /* its own last word */
    int64_t backward, repeated, unknown;        /* metrics with a step below the last; the same again; messages of an unknown kind */
    uint64_t last_line_hash; size_t last_line_len;      /* of the last metrics */
    int64_t cpu_ticks; double cpu;              /* share of one core over the last second */
    /* for the summary, from metrics and done */
    double step_s, exposed_s, sent_bytes, peak_bytes;
    bool totals;                                /* done told sent_bytes itself */
};

struct keeper {
    /* from the command line */
    char *dir, *spec_path, *job, *nonce, *resume;
    int attempt;
    bool foreground;
    bool mailbox;                               /* files instead of the socket: the daemon may be on another machine */

    struct spec spec;
    char *rank_spec;                            /* the spec file the ranks read */
    char *worker;
    char *cgroup;                               /* the ranks' own control group, or NULL; also in the file `cgroup`, for a daemon that finds us dead */
    uv_loop_t *loop;
    uv_timer_t tick, beat;
    uv_signal_t term, interrupt;
    int world;
    struct rank *ranks;
    int live, exits;

    enum keeper_phase phase;
    int64_t started_ms;                         /* wall clock; for people only, it may jump */
    int64_t began_ms;                           /* loop time; limits and durations are measured by it */
    int64_t tick_ms, deadline_ms, term_ms, phase_ms, warned_ms;    /* loop time; deadline: SIGKILL; term: SIGTERM; 0: none */
    char stop_mode[16], stop_reason[64];        /* "" while nobody asked */
    bool limit_hit;
    char verdict[32], verdict_text[800];        /* the keeper's own judgement (stalled, …), before any rank's */
    int verdict_rank;
    int64_t oom_kills;                          /* of our memory cgroup when we started */

    struct rendezvous rendezvous;
    struct spool spool;
    int64_t acked;
    struct server *server;
    int64_t beats, orders, saves;               /* mailbox: state files written, last order taken, checkpoints ordered so far */

    char *checkpoint; int64_t checkpoint_step;  /* newest complete one any rank told of */
    double loss, first_loss, tokens, tokens_s, tokens_per_s, comm_share;
    bool have_loss, have_first_loss, have_tokens_per_s, have_comm_share;
    int64_t last_step;
    char done_detail[200];                      /* what rank 0 had to say of its success; mostly "" */
    cJSON *exit_record;
};

/* gang.c */
int gang_start(struct keeper *k, struct error *err);
/* mode: checkpoint | now | kill. A harder mode may follow a softer one; never the other way round. */
void gang_stop(struct keeper *k, const char *mode, const char *reason);
void gang_checkpoint(struct keeper *k);
void gang_send(struct rank *r, cJSON *msg);     /* takes msg */
/* Numbers, spools and forwards a record; rank -1: the keeper's own. Takes m. */
void keeper_record(struct keeper *k, int rank, cJSON *m);
void keeper_event(struct keeper *k, const char *level, const char *code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
int64_t wall_ms(void);

/* server.c */
int server_start(struct keeper *k, struct error *err);
void server_records(struct keeper *k);          /* there is more in the spool */
void server_beats(struct keeper *k);
void server_exit(struct keeper *k);             /* exit.json is on disk: tell everyone, after all records */
bool server_all_told(const struct keeper *k);   /* nobody is attached, or all who are acknowledged the last record and were told the exit */
void server_close(struct keeper *k);
cJSON *server_hello_json(const struct keeper *k);
cJSON *server_beats_json(struct keeper *k);      /* the list "ranks" of beats */
void server_ack(struct keeper *k, int64_t seq); /* all that listen have committed up to here */

/* mailbox.c */
void mailbox_tick(struct keeper *k);            /* each second: takes new orders, says how it goes */

/* record.c */
cJSON *record_build(struct keeper *k);
int record_write(struct keeper *k, cJSON *record, struct error *err);
int record_reserve(struct keeper *k, struct error *err);    /* sets disk space aside, so that a full disk cannot hide the end */

#endif
