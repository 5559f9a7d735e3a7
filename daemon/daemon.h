/* daemon.h - the coordinator's state: one thread, one loop, one of each of these. */
#ifndef RM_DAEMON_DAEMON_H
#define RM_DAEMON_DAEMON_H

#include "api/loop.h"
#include "daemon/http.h"
#include "daemon/job.h"
#include "daemon/settings.h"
#include "daemon/store.h"

struct sse;
struct planner;
struct slot {
    char id[80];                /* "cpu:0", or a GPU's UUID */
    char name[120];
    bool gpu;
    int64_t memory_bytes;
    int64_t job;                /* 0: free */
};

struct daemon {
    uv_loop_t *loop;
    struct settings set;
    struct store *store;
    struct http *http;
    struct sse *sse;
    struct planner *planner;
    struct job *jobs;
    struct slot *slots; int n_slots;
    uv_timer_t tick, flush;
    uv_signal_t sigterm, sigint;
    char boot_id[40];
    char *worker, *keeper, *deliver;        /* programs; NULL if not found */
    int port;
    bool ready;                 /* adoption is over: POST is taken */
    bool draining;
    bool schedule_wanted;
    int64_t started_mono_ms, ready_by_ms;
    int64_t records, bad_frames, flushes, flush_failures, lag_ms_max;
    int lock_fd;
};

void log_line(const char *level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));   /* one line on stderr */
void failpoint(const char *name);       /* tests only: dies by SIGKILL where RINGMASTER_FAILPOINT says */
void daemon_schedule(struct daemon *d); /* looks at the queue soon */

#endif
