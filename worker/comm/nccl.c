/* nccl.c - the transport among GPUs; the only file that names nccl.h. It is part of the CUDA module, not of the worker.
 *
 * One host thread issues every call, in one order, on one stream of high priority beside the one that computes; events are the
 * only order between the two. A call: the communication stream waits for what the compute stream has queued so far, then transfers;
 * the compute stream waits for its end, at once or (hops, pieces) when the caller asks. The host waits for neither.
 *
 * Times come from the same events: busy is start to end on the communication stream, exposed is how long the compute stream
 * stood at the end. They are read when they have passed: when later calls come, and when somebody asks for the counts.
 *
 * Communicators do not block, and no wait is bare: every one looks at the stream, at NCCL's own errors, at what the keeper says
 * about the ranks, and at the clock. A transfer that has begun and does not end within the deadline is a lost peer (NCCL itself
 * spins for ever on a dead neighbour's memory); one that has not begun is our own computing. Then all communicators are revoked and
 * aborted, and a watchdog ends the process if that hangs.
 *
 * Groups of the same ranks share a communicator. Exchange memory is ncclMemAlloc's, registered once with each of them.
 * Sums are NCCL's: the same bits on every rank, and from run to run on the same machines; not in rank order. */
#include <assert.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/backend.h"
#include "worker/comm/transport.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 19, 1)
#error "NCCL 2.19 or newer is needed (ncclCommRegister, ncclMemAlloc)"
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#define HAVE_REVOKE 1
#pragma weak ncclCommRevoke             /* the library found at run time may be older than the header */
#endif

enum {
    HIGHEST_PRIORITY = -100,            /* the runtime takes the highest there is */
    MEET_TIMEOUT_MS = 120000,           /* at start-up the slowest rank decides */
    LEAVE_MS = 3000,                    /* for all to come to the end of a communicator in peace */
    REVOKE_MS = 1000,
    WATCHDOG_S = 10,
    LOOK_S_INVERSE = 1000,              /* looks a second */
};

struct team {                           /* one communicator */
    ncclComm_t comm;
    int *ranks, n;
    void *registered;
    struct error why;                   /* code other than OK: it could not be made, and there is no comm */
    struct team *next;
};

struct transfer {
    struct comm_hop head;               /* first: what comm.c holds */
    cudaEvent_t before, start, end, after;      /* compute stream ready or waiting; on the communication stream; compute stream goes on */
    bool waited, ended;                 /* after is recorded; end is known to have passed */
    struct transfer *next;
};

struct nccl {
    struct comm_world *w;
    struct stream s;                    /* the communication stream */
    int deadline_ms;
    float *pulse;                       /* what a barrier sums */
    struct team *teams;
    struct transfer *first, *last, *spare;      /* under way, oldest first; to be used again */
    const struct transfer *stuck;       /* has begun, has not ended, since: */
    double stuck_since, looked;
    bool over;                          /* communicators are aborted: nothing works any more */
    bool lost;                          /* because of a peer, or an error nobody survives */
    struct error why;

    pthread_t thread;                   /* watchdog */
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool quit;
    _Atomic double ending;              /* since when the process is ending; 0: it is not */
};

#define SPIN_S 0.005                    /* a launch takes NCCL's own thread some microseconds: not worth a sleep */

static int cuda_failed(struct error *err, cudaError_t e, const char *what)
{
    return error_set(err, e == cudaErrorMemoryAllocation ? E_NOMEM : E_CUDA, "nccl: %s: %s", what, cudaGetErrorString(e));
}

/* What NCCL said, with the text it keeps about its last error. */
static int nccl_failed(struct error *err, ncclResult_t r, ncclComm_t comm, const char *what)
{
    const char *more = ncclGetLastError(comm);
    enum status code = r == ncclRemoteError || r == ncclSystemError ? E_PEER : r == ncclInvalidArgument || r == ncclInvalidUsage ? E_INVALID : E_NCCL;
    return error_set(err, code, "nccl: %s: %s%s%.300s", what, ncclGetErrorString(r), more && *more ? ": " : "", more ? more : "");
}

/* --- the end --- */

/* A thread that ends the process when its end hangs: after a peer was lost the main thread may stand in a call of the driver's. */
static void *watchdog(void *arg)
{
    struct nccl *nc = arg;
    (void)pthread_mutex_lock(&nc->lock);
    while (!nc->quit) {
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 200 * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        (void)pthread_cond_timedwait(&nc->change, &nc->lock, &until);
        double since = atomic_load(&nc->ending);
        if (since <= 0 && nc->w->meeting.lost && nc->w->meeting.lost(nc->w->meeting.arg)) atomic_store(&nc->ending, monotonic_s());
        else if (since > 0 && monotonic_s() - since > WATCHDOG_S && !nc->quit) {
            (void)fprintf(stderr, "ringmaster-worker: rank %d: a peer was lost and the communicators did not let go within %d s; leaving\n", nc->w->rank, WATCHDOG_S);
            _exit(COMM_EXIT_PEER);
        }
    }
    (void)pthread_mutex_unlock(&nc->lock);
    return NULL;
}

static int start_watchdog(struct nccl *nc, struct error *err)
{
    sigset_t all, old;
    (void)sigfillset(&all);                                     /* signals belong to the main thread */
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(&nc->thread, NULL, watchdog, nc);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    nc->started = e == 0;
    return e == 0 ? OK : error_set(err, E_IO, "cannot start the watchdog thread: %s", strerror(e));
}

static void stop_watchdog(struct nccl *nc)
{
    if (!nc->started) return;
    (void)pthread_mutex_lock(&nc->lock);
    nc->quit = true;
    (void)pthread_cond_broadcast(&nc->change);
    (void)pthread_mutex_unlock(&nc->lock);
    (void)pthread_join(nc->thread, NULL);
    nc->started = false;
}

static void sleep_ms(int ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    (void)nanosleep(&t, NULL);
}

/* Revoked all first: an abort frees memory, which waits for kernels of the others (NCCL issue 549). */
static void abort_all(struct nccl *nc)
{
    nc->over = true;
#ifdef HAVE_REVOKE
    double until = monotonic_s() + REVOKE_MS / 1e3;
    for (struct team *t = nc->teams; t && ncclCommRevoke; t = t->next)
        if (t->comm) (void)ncclCommRevoke(t->comm, NCCL_REVOKE_DEFAULT);
    for (struct team *t = nc->teams; t && ncclCommRevoke; t = t->next) {
        ncclResult_t r = ncclInProgress;
        while (t->comm && r == ncclInProgress && monotonic_s() < until) {
            if (ncclCommGetAsyncError(t->comm, &r) != ncclSuccess) break;
            if (r == ncclInProgress) sleep_ms(5);
        }
    }
#endif
    for (struct team *t = nc->teams; t; t = t->next) {
        if (t->comm) (void)ncclCommAbort(t->comm);
        t->comm = NULL;
    }
}

/* Remembers why, ends all communicators under the watchdog; every later call repeats the reason. */
static int lose(struct nccl *nc, const struct error *why, struct error *err)
{
    if (!nc->over) {
        nc->why = *why;
        nc->lost = true;
        double none = 0;
        (void)atomic_compare_exchange_strong(&nc->ending, &none, monotonic_s());
        abort_all(nc);
    }
    if (err) *err = nc->why;
    return nc->why.code;
}

/* --- looking while waiting --- */

/* Adds what finished transfers say to the counts; they become spare. */
static void collect(struct nccl *nc)
{
    while (nc->first) {
        struct transfer *x = nc->first;
        if (!x->waited || cudaEventQuery(x->after) != cudaSuccess) break;
        float busy = 0, exposed = 0;
        struct comm_count *n = &nc->w->counts[x->head.kind];
        if (cudaEventElapsedTime(&busy, x->start, x->end) == cudaSuccess) n->busy_s += (double)busy * 1e-3;
        if (cudaEventElapsedTime(&exposed, x->before, x->after) == cudaSuccess) n->exposed_s += (double)exposed * 1e-3;
        nc->first = x->next;
        if (nc->first == NULL) nc->last = NULL;
        if (nc->stuck == x) nc->stuck = NULL;
        x->next = nc->spare;
        nc->spare = x;
    }
    (void)cudaGetLastError();           /* "not ready" is an answer, not an error */
}

/* The oldest transfer that has begun and not ended; the clock starts anew with each. */
static double stuck_for(struct nccl *nc, double now)
{
    struct transfer *x = nc->first;
    while (x && (x->ended || cudaEventQuery(x->end) == cudaSuccess)) {
        x->ended = true;
        x = x->next;
    }
    if (x && cudaEventQuery(x->start) != cudaSuccess) x = NULL;
    (void)cudaGetLastError();
    if (x != nc->stuck) nc->stuck_since = now;
    nc->stuck = x;
    return x ? now - nc->stuck_since : 0;
}

/* OK, or E_PEER and friends after everything was ended. What every waiting loop calls. */
static int look(void *arg, struct error *err)
{
    struct nccl *nc = arg;
    struct error why = { 0 };
    if (nc->over) return lose(nc, &nc->why, err);
    double now = monotonic_s();
    if ((now - nc->looked) * LOOK_S_INVERSE < 1) return OK;
    nc->looked = now;
    const struct comm_meeting *m = &nc->w->meeting;
    if (m->lost && m->lost(m->arg)) {
        char *none = NULL;
        struct error said = { 0 };
        (void)m->get(m->arg, "nccl.lost", &none, 1, &said);     /* never put: what it says is why the rendezvous ended */
        free(none);
        const char *text = said.code == E_PEER ? strstr(said.text, ": ") : NULL;        /* behind "get nccl.lost" */
        error_set(&why, E_PEER, "nccl: rank %d waits for a peer that is lost%s", nc->w->rank, text ? text : "");
        return lose(nc, &why, err);
    }
    for (struct team *t = nc->teams; t; t = t->next) {
        ncclResult_t r = ncclSuccess;
        if (t->comm == NULL || ncclCommGetAsyncError(t->comm, &r) != ncclSuccess || r == ncclSuccess || r == ncclInProgress) continue;
        (void)nccl_failed(&why, r, t->comm, "communicator");
        return lose(nc, &why, err);
    }
    double stuck = stuck_for(nc, now);
    if (stuck * 1e3 < nc->deadline_ms) return OK;
    error_set(&why, E_PEER, "nccl: %s of rank %d has not ended for %.0f s: a peer is lost or stuck, and none has been reported", comm_kind_names[nc->stuck->head.kind], nc->w->rank, stuck);
    return lose(nc, &why, err);
}

/* After a call on a communicator that does not block: until it has taken the call. */
static int taken(struct nccl *nc, struct team *t, ncclResult_t r, int timeout_ms, const char *what, struct error *err)
{
    struct error why = { 0 };
    double from = monotonic_s();
    while (r == ncclInProgress) {
        int rc = look(nc, err);
        if (rc != OK) return rc;
        ncclResult_t e = ncclCommGetAsyncError(t->comm, &r);
        if (e != ncclSuccess) r = e;
        if (r == ncclInProgress && (monotonic_s() - from) * 1e3 > timeout_ms) {
            error_set(&why, E_PEER, "nccl: %s: the other ranks did not come within %d s", what, timeout_ms / 1000);
            return lose(nc, &why, err);
        }
        if (r == ncclInProgress && monotonic_s() - from > SPIN_S) sleep_ms(1);
        else (void)sched_yield();
    }
    if (r == ncclSuccess) return OK;
    int rc = nccl_failed(&why, r, t->comm, what);
    if (r == ncclInvalidArgument) {             /* the one a communicator survives */
        if (err) *err = why;
        return rc;
    }
    return lose(nc, &why, err);
}

/* --- a call --- */

static struct team *team_of(const struct comm *c) { return c->priv; }
static struct nccl *nccl_of(const struct comm *c) { return c->w->priv; }

static void free_transfer(struct transfer *x)
{
    if (x->before) (void)cudaEventDestroy(x->before);
    if (x->start) (void)cudaEventDestroy(x->start);
    if (x->end) (void)cudaEventDestroy(x->end);
    if (x->after) (void)cudaEventDestroy(x->after);
    free(x);
}

static int new_transfer(struct nccl *nc, struct transfer **out, struct error *err)
{
    collect(nc);
    struct transfer *x = nc->spare;
    if (x) {
        nc->spare = x->next;
        *out = x;
        return OK;
    }
    *out = x = xcalloc(1, sizeof *x);
    cudaError_t e = cudaEventCreate(&x->before);
    if (e == cudaSuccess) e = cudaEventCreate(&x->start);
    if (e == cudaSuccess) e = cudaEventCreate(&x->end);
    if (e == cudaSuccess) e = cudaEventCreate(&x->after);
    if (e == cudaSuccess) return OK;
    free_transfer(x);
    return cuda_failed(err, e, "make an event");
}

/* From here to finish() the communication stream is this transfer's. s: the stream that computes. */
static int begin(struct comm *c, struct stream *s, enum comm_kind kind, struct transfer **out, struct error *err)
{
    struct nccl *nc = nccl_of(c);
    struct transfer *x = NULL;
    if (nc->over) return lose(nc, &nc->why, err);
    int rc = new_transfer(nc, &x, err);
    if (rc != OK) return rc;
    x->head.kind = kind;
    x->waited = x->ended = false;
    x->next = NULL;
    cudaError_t e = cudaEventRecord(x->before, s->q);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(nc->s.q, x->before, 0);
    if (e == cudaSuccess) e = cudaEventRecord(x->start, nc->s.q);
    if (e != cudaSuccess) {
        free_transfer(x);
        return cuda_failed(err, e, "order a transfer behind the computation");
    }
    *out = x;
    return OK;
}

/* rc: of what was queued in between. On an error the transfer is gone. */
static int finish(struct comm *c, struct transfer *x, int rc, struct error *err)
{
    struct nccl *nc = nccl_of(c);
    if (rc == OK) {
        cudaError_t e = cudaEventRecord(x->end, nc->s.q);
        if (e != cudaSuccess) rc = cuda_failed(err, e, "mark the end of a transfer");
    }
    if (rc != OK) {
        free_transfer(x);
        return rc;
    }
    if (nc->last) nc->last->next = x;
    else nc->first = x;
    nc->last = x;
    return OK;
}

/* The compute stream goes on only after x. */
static int await(struct stream *s, struct transfer *x, bool mark, struct error *err)
{
    cudaError_t e = mark ? cudaEventRecord(x->before, s->q) : cudaSuccess;
    if (e == cudaSuccess) e = cudaStreamWaitEvent(s->q, x->end, 0);
    if (e == cudaSuccess) e = cudaEventRecord(x->after, s->q);
    x->waited = e == cudaSuccess;
    return e == cudaSuccess ? OK : cuda_failed(err, e, "wait for a transfer");
}

/* The end of a call that the compute stream waits for at once. */
static int close_call(struct comm *c, struct stream *s, struct transfer *x, int rc, struct error *err)
{
    rc = finish(c, x, rc, err);
    return rc == OK ? await(s, x, false, err) : rc;
}

static int issued(struct comm *c, ncclResult_t r, const char *what, struct error *err)
{
    struct nccl *nc = nccl_of(c);
    return r == ncclSuccess ? OK : taken(nc, team_of(c), r, nc->deadline_ms, what, err);
}

/* Inside a group; a communicator that does not block may say that it is still at it. */
static bool fine(ncclResult_t r) { return r == ncclSuccess || r == ncclInProgress; }

/* Ends a group of calls: the first failure inside it counts, but a group once begun is ended. */
static int end_group(struct comm *c, ncclResult_t inside, const char *what, struct error *err)
{
    ncclResult_t r = ncclGroupEnd();
    if (!fine(inside)) r = inside;
    return issued(c, r, what, err);
}

static ncclDataType_t type_of(enum dtype dt) { return dt == DT_F32 ? ncclFloat32 : dt == DT_F64 ? ncclFloat64 : ncclBfloat16; }

static char *byte_at(void *p, int64_t i) { return (char *)p + i; }
static const char *byte_in(const void *p, int64_t i) { return (const char *)p + i; }

/* --- the calls --- */

static int nccl_all_to_all(struct comm *c, struct stream *s, const struct comm_part *parts, int n_parts, struct error *err)
{
    struct nccl *nc = nccl_of(c);
    struct transfer *x;
    int rc = begin(c, s, COMM_ALL_TO_ALL, &x, err);
    if (rc != OK) return rc;
    for (int i = 0; i < n_parts && rc == OK; i++) {
        const struct comm_part *t = &parts[i];
        if (t->slice_bytes == 0) continue;
        cudaError_t e = cudaMemcpyAsync(byte_at(t->recv, t->recv_stride * c->me), byte_in(t->send, t->send_stride * c->me), (size_t)t->slice_bytes, cudaMemcpyDefault, nc->s.q);
        if (e != cudaSuccess) rc = cuda_failed(err, e, "copy of this rank's own slice");
    }
    if (rc == OK) {
        ncclComm_t comm = team_of(c)->comm;
        ncclResult_t r = ncclGroupStart();
        for (int i = 0; i < n_parts; i++) {
            const struct comm_part *t = &parts[i];
            size_t n = (size_t)t->slice_bytes;
            for (int p = 0; p < c->n && n > 0 && fine(r); p++) {
                if (p == c->me) continue;
                r = ncclSend(byte_in(t->send, t->send_stride * p), n, ncclInt8, p, comm, nc->s.q);
                if (fine(r)) r = ncclRecv(byte_at(t->recv, t->recv_stride * p), n, ncclInt8, p, comm, nc->s.q);
            }
        }
        rc = end_group(c, r, "all-to-all", err);
    }
    return close_call(c, s, x, rc, err);
}

static int nccl_hop_start(struct comm *c, struct stream *s, void *recv, const void *send, int64_t bytes, struct comm_hop **h, struct error *err)
{
    struct nccl *nc = nccl_of(c);
    struct transfer *x;
    int rc = begin(c, s, COMM_HOP, &x, err);
    if (rc != OK) return rc;
    ncclComm_t comm = team_of(c)->comm;
    ncclResult_t r = ncclGroupStart();
    if (fine(r) && send) r = ncclSend(send, (size_t)bytes, ncclInt8, (c->me + 1) % c->n, comm, nc->s.q);
    if (fine(r) && recv) r = ncclRecv(recv, (size_t)bytes, ncclInt8, (c->me + c->n - 1) % c->n, comm, nc->s.q);
    rc = finish(c, x, end_group(c, r, "hop", err), err);
    if (rc == OK) *h = &x->head;
    return rc;
}

static int nccl_hop_wait(struct comm *c, struct stream *s, struct comm_hop *h, double *busy_s, double *late_s, struct error *err)
{
    (void)busy_s;                               /* from events, later */
    (void)late_s;
    (void)c;
    return await(s, (struct transfer *)(void *)h, true, err);
}

/* A reduction to each piece's owner, in place over the owner's own part of in; then one addition behind it on the same stream. */
static int nccl_reduce_pieces_start(struct comm *c, struct stream *s, float *out, const float *in, const int64_t *cuts, struct comm_hop **h, struct error *err)
{
    struct nccl *nc = nccl_of(c);
    struct transfer *x;
    int rc = begin(c, s, COMM_REDUCE_SCATTER, &x, err);
    if (rc != OK) return rc;
    float *mine = (float *)(uintptr_t)in;       /* comm_memory, ours until hop_wait */
    ncclComm_t comm = team_of(c)->comm;
    ncclResult_t r = ncclGroupStart();
    for (int p = 0; p < c->n && fine(r); p++) {
        int64_t at = cuts[p] - cuts[0], n = cuts[p + 1] - cuts[p];
        if (n > 0) r = ncclReduce(mine + at, mine + at, (size_t)n, ncclFloat32, ncclSum, p, comm, nc->s.q);
    }
    rc = end_group(c, r, "reduction", err);
    int64_t n = cuts[c->me + 1] - cuts[c->me];
    if (rc == OK && n > 0) {
        rc = c->w->ops->axpy(&nc->s, DT_F32, out, DT_F32, mine + (cuts[c->me] - cuts[0]), 1.0f, n);
        if (rc != OK) rc = error_set(err, (enum status)rc, "axpy: %s", c->w->ops->error(&nc->s));
    }
    rc = finish(c, x, rc, err);
    if (rc == OK) *h = &x->head;
    return rc;
}

static int nccl_gather_pieces_start(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, const int64_t *cuts, struct comm_hop **h,
                                    struct error *err)
{
    struct nccl *nc = nccl_of(c);
    struct transfer *x;
    int64_t size = (int64_t)dtype_size(dt);
    int rc = begin(c, s, COMM_ALL_GATHER, &x, err);
    if (rc != OK) return rc;
    ncclComm_t comm = team_of(c)->comm;
    ncclResult_t r = ncclGroupStart();
    for (int p = 0; p < c->n && fine(r); p++) {
        char *to = byte_at(out, (cuts[p] - cuts[0]) * size);
        int64_t n = (cuts[p + 1] - cuts[p]) * size;
        if (n > 0) r = ncclBroadcast(p == c->me ? in : to, to, (size_t)n, ncclInt8, p, comm, nc->s.q);
    }
    rc = finish(c, x, end_group(c, r, "gathering", err), err);
    if (rc == OK) *h = &x->head;
    return rc;
}

static int nccl_all_reduce(struct comm *c, struct stream *s, enum dtype dt, void *v, int64_t count, struct error *err)
{
    struct transfer *x;
    int rc = begin(c, s, COMM_ALL_REDUCE, &x, err);
    if (rc != OK) return rc;
    rc = issued(c, ncclAllReduce(v, v, (size_t)count, type_of(dt), ncclSum, team_of(c)->comm, nccl_of(c)->s.q), "all-reduce", err);
    return close_call(c, s, x, rc, err);
}

static int nccl_reduce_scatter(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, int64_t count, struct error *err)
{
    struct transfer *x;
    int rc = begin(c, s, COMM_REDUCE_SCATTER, &x, err);
    if (rc != OK) return rc;
    rc = issued(c, ncclReduceScatter(in, out, (size_t)count, type_of(dt), ncclSum, team_of(c)->comm, nccl_of(c)->s.q), "reduce-scatter", err);
    return close_call(c, s, x, rc, err);
}

static int nccl_all_gather(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, int64_t count, struct error *err)
{
    struct transfer *x;
    int rc = begin(c, s, COMM_ALL_GATHER, &x, err);
    if (rc != OK) return rc;
    rc = issued(c, ncclAllGather(in, out, (size_t)count * dtype_size(dt), ncclInt8, team_of(c)->comm, nccl_of(c)->s.q), "all-gather", err);
    return close_call(c, s, x, rc, err);
}

static int nccl_broadcast(struct comm *c, struct stream *s, void *v, int64_t bytes, int root, struct error *err)
{
    struct transfer *x;
    int rc = begin(c, s, COMM_BROADCAST, &x, err);
    if (rc != OK) return rc;
    rc = issued(c, ncclBroadcast(v, v, (size_t)bytes, ncclInt8, root, team_of(c)->comm, nccl_of(c)->s.q), "broadcast", err);
    return close_call(c, s, x, rc, err);
}

/* The host waits too: that is what a barrier is for. It has no compute stream, so nothing is exposed but the host's own wait. */
static int nccl_barrier(struct comm *c, struct error *err)
{
    struct nccl *nc = nccl_of(c);
    struct transfer *x;
    double from = monotonic_s();
    int rc = begin(c, &nc->s, COMM_BARRIER, &x, err);
    if (rc != OK) return rc;
    rc = issued(c, ncclAllReduce(nc->pulse, nc->pulse, 1, ncclFloat32, ncclSum, team_of(c)->comm, nc->s.q), "barrier", err);
    rc = close_call(c, &nc->s, x, rc, err);
    if (rc == OK) rc = cuda_wait(nc->s.q, "barrier", err);
    nc->w->counts[COMM_BARRIER].exposed_s += monotonic_s() - from;
    return rc;
}

/* --- groups --- */

/* All ranks of a group find the same key; groups of the same ranks share a communicator, so it is used once. */
static char *key_of(const struct comm *c)
{
    uint64_t h = 1469598103934665603u;          /* FNV-1a, 64 bits */
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < 4; k++) h = (h ^ (uint64_t)(c->ranks[i] >> 8 * k & 255)) * 1099511628211u;
    return xasprintf("nccl.%d.%d.%016llx", c->n, c->ranks[0], (unsigned long long)h);
}

/* The first rank makes the id and tells the others. Its listening thread lives in that process, which stays. */
static int meet(struct comm *c, ncclUniqueId *id, struct error *err)
{
    const struct comm_meeting *m = &c->w->meeting;
    char *key = key_of(c), *text = NULL;
    unsigned char *b = (unsigned char *)id->internal;
    size_t n = sizeof id->internal;
    int rc = OK;
    if (c->me == 0) {
        ncclResult_t r = ncclGetUniqueId(id);
        if (r != ncclSuccess) rc = nccl_failed(err, r, NULL, "ncclGetUniqueId");
        text = xmalloc(2 * n + 1);
        for (size_t i = 0; i < n; i++) (void)snprintf(text + 2 * i, 3, "%02x", b[i]);
        if (rc == OK) rc = m->put(m->arg, key, text, err);
    } else {
        rc = m->get(m->arg, key, &text, MEET_TIMEOUT_MS, err);
        bool good = rc == OK && strlen(text) == 2 * n;
        for (size_t i = 0; i < n && good; i++) {
            unsigned byte;
            good = sscanf(text + 2 * i, "%2x", &byte) == 1;
            b[i] = (unsigned char)byte;
        }
        if (rc == OK && !good) rc = error_set(err, E_INTERNAL, "nccl: rank %d announced an id of %zu characters, expected %zu hexadecimal digits", c->ranks[0], strlen(text), 2 * n);
    }
    free(text);
    free(key);
    return rc;
}

static void free_team(struct team *t)
{
    free(t->ranks);
    free(t);
}

static int nccl_group(struct comm *c, struct error *err)
{
    struct nccl *nc = nccl_of(c);
    if (nc->over) return lose(nc, &nc->why, err);
    for (struct team *t = nc->teams; t; t = t->next)
        if (t->n == c->n && memcmp(t->ranks, c->ranks, sizeof *t->ranks * (unsigned long)t->n) == 0) {
            if (t->why.code != OK && err) *err = t->why;
            if (t->why.code != OK) return t->why.code;
            c->priv = t;
            return OK;
        }
    ncclUniqueId id;
    int rc = meet(c, &id, err);
    if (rc != OK) return rc;
    struct team *t = xcalloc(1, sizeof *t);
    *t = (struct team){ .n = c->n, .ranks = xmalloc(sizeof *t->ranks * (unsigned long)c->n) };
    memcpy(t->ranks, c->ranks, sizeof *t->ranks * (unsigned long)c->n);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t r = ncclCommInitRankConfig(&t->comm, c->n, id, c->me, &config);
    if (r != ncclSuccess && r != ncclInProgress) {
        rc = nccl_failed(err, r, NULL, "ncclCommInitRankConfig");
        free_team(t);
        return rc;
    }
    t->next = nc->teams;
    nc->teams = t;
    rc = taken(nc, t, ncclInProgress, MEET_TIMEOUT_MS, "making a communicator", err);
    if (rc == OK && c->w->memory) {
        r = ncclCommRegister(t->comm, c->w->memory, (size_t)c->w->shared_bytes, &t->registered);
        if (r != ncclSuccess) rc = taken(nc, t, r, nc->deadline_ms, "registering the exchange memory", err);
    }
    if (rc != OK && !nc->over) {                /* the key is used up: a second group of these ranks gets the same answer, not this communicator */
        error_set(&t->why, rc, "nccl: no communicator of ranks %d .. %d: %.300s", t->ranks[0], t->ranks[t->n - 1], err ? err->text : "invalid argument");
        if (t->comm) (void)ncclCommAbort(t->comm);
        t->comm = NULL;
        return rc;
    }
    c->priv = t;
    return rc;
}

/* --- life --- */

static int nccl_open_world(struct comm_world *w, int64_t shared_bytes, int deadline_ms, struct error *err)
{
    struct nccl *nc = xcalloc(1, sizeof *nc);
    w->priv = nc;
    nc->w = w;
    nc->deadline_ms = deadline_ms;
    nc->s.deterministic = true;
    pthread_condattr_t clock;
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&nc->lock, NULL);
    (void)pthread_cond_init(&nc->change, &clock);
    (void)pthread_condattr_destroy(&clock);
    cudaError_t e = cudaStreamCreateWithPriority(&nc->s.q, cudaStreamNonBlocking, HIGHEST_PRIORITY);
    if (e == cudaSuccess) e = cudaMalloc((void **)&nc->pulse, 256);
    if (e == cudaSuccess) e = cudaMemsetAsync(nc->pulse, 0, 256, nc->s.q);
    if (e != cudaSuccess) return cuda_failed(err, e, "make the communication stream");
    if (shared_bytes > 0) {
        void *m = NULL;
        ncclResult_t r = ncclMemAlloc(&m, (size_t)shared_bytes);
        if (r != ncclSuccess) {
            struct error why;
            (void)nccl_failed(&why, r, NULL, "ncclMemAlloc");
            return error_set(err, E_NOMEM, "%lld bytes of exchange memory: %s", (long long)shared_bytes, why.text);
        }
        w->memory = m;
        e = cudaMemset(m, 0, (size_t)shared_bytes);
        if (e == cudaSuccess) e = cudaStreamSynchronize(NULL);      /* neither nc->s nor the compute stream waits for the clearing by itself */
        if (e != cudaSuccess) return cuda_failed(err, e, "clear the exchange memory");
    }
    int rc = start_watchdog(nc, err);
    if (rc == OK) cuda_watch_set(look, nc);
    return rc;
}

/* In peace where nothing is under way and all come; else by force. */
static void leave(struct nccl *nc)
{
    bool idle = nc->s.q && cudaStreamQuery(nc->s.q) == cudaSuccess;
    double until = monotonic_s() + LEAVE_MS / 1e3;
    for (struct team *t = nc->teams; t && idle && !nc->over; t = t->next) {
        if (t->comm == NULL) continue;
        if (t->registered) (void)ncclCommDeregister(t->comm, t->registered);
        t->registered = NULL;
        ncclResult_t r = ncclCommFinalize(t->comm);
        while (r == ncclInProgress && monotonic_s() < until && !(nc->w->meeting.lost && nc->w->meeting.lost(nc->w->meeting.arg))) {
            if (ncclCommGetAsyncError(t->comm, &r) != ncclSuccess) break;
            if (r == ncclInProgress) sleep_ms(1);
        }
        if (r != ncclSuccess) break;
        (void)ncclCommDestroy(t->comm);
        t->comm = NULL;
    }
    double none = 0;
    for (struct team *t = nc->teams; t; t = t->next)
        if (t->comm) (void)atomic_compare_exchange_strong(&nc->ending, &none, monotonic_s());
    if (!nc->over) abort_all(nc);               /* those that are left */
}

static void nccl_close(struct comm_world *w)
{
    struct nccl *nc = w->priv;
    if (nc == NULL) return;
    cuda_watch_set(NULL, NULL);
    leave(nc);
    while (nc->teams) {
        struct team *t = nc->teams;
        nc->teams = t->next;
        free_team(t);
    }
    while (nc->first) {
        struct transfer *x = nc->first;
        nc->first = x->next;
        free_transfer(x);
    }
    while (nc->spare) {
        struct transfer *x = nc->spare;
        nc->spare = x->next;
        free_transfer(x);
    }
    if (w->memory) (void)ncclMemFree(w->memory);
    if (nc->pulse) (void)cudaFree(nc->pulse);
    if (nc->s.q) (void)cudaStreamDestroy(nc->s.q);
    stop_watchdog(nc);
    (void)pthread_mutex_destroy(&nc->lock);
    (void)pthread_cond_destroy(&nc->change);
    free(nc);
    w->priv = NULL;
    w->memory = NULL;
}

/* NCCL's version into text, and whether a communicator of this process alone can be made on its device. */
int ringmaster_cuda_nccl_check(char *version, size_t size, struct error *err);
int ringmaster_cuda_nccl_check(char *version, size_t size, struct error *err)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int number = 0;
    config.blocking = 0;
    ncclResult_t r = ncclGetVersion(&number);
    (void)snprintf(version, size, "%d.%d.%d", number / 10000, number / 100 % 100, number % 100);
    if (r == ncclSuccess) r = ncclGetUniqueId(&id);
    if (r != ncclSuccess) return nccl_failed(err, r, NULL, "ncclGetUniqueId");
    r = ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    for (double from = monotonic_s(); comm && (r == ncclInProgress || r == ncclSuccess) && monotonic_s() - from < MEET_TIMEOUT_MS / 1e3; sleep_ms(1)) {
        ncclResult_t e = ncclCommGetAsyncError(comm, &r);
        if (e != ncclSuccess) r = e;
        if (r != ncclInProgress) break;
    }
    int rc = r == ncclSuccess ? OK : nccl_failed(err, r, comm, "ncclCommInitRankConfig");
    if (comm) (void)ncclCommAbort(comm);
    return rc;
}

static void settle(struct comm_world *w) { collect(w->priv); }

static const struct comm_transport transport = {
    .name = "nccl", .async = true, .open = nccl_open_world, .close = nccl_close, .group = nccl_group, .settle = settle,
    .all_to_all = nccl_all_to_all, .hop_start = nccl_hop_start, .hop_wait = nccl_hop_wait, .reduce_pieces_start = nccl_reduce_pieces_start,
    .gather_pieces_start = nccl_gather_pieces_start, .all_reduce = nccl_all_reduce, .reduce_scatter = nccl_reduce_scatter, .all_gather = nccl_all_gather,
    .broadcast = nccl_broadcast, .barrier = nccl_barrier,
};

const struct comm_transport *ringmaster_cuda_transport(void);
const struct comm_transport *ringmaster_cuda_transport(void) { return &transport; }
