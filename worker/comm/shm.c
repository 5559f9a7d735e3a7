/* shm.c - the transport among ranks of one host: every rank's exchange memory is mapped by all, so a peer reads it in place.
 *
 * Each rank owns one segment: a control block, a staging area, then the shared_bytes of comm_memory. The segment is a memfd,
 * which peers open through /proc/<pid>/fd/<n> once and the kernel drops with its last user: there is no name in /dev/shm that a
 * SIGKILL could leave behind, and no size limit of /dev/shm (64 MiB in a default container).
 *
 * Order is kept by counters between pairs of ranks, never by one shared word: rank p counts up box[p] in q's control block and
 * rings q's bell; q waits until the counter has reached what it has worked out itself. All members of a group make the same calls
 * in the same order, so both ends of a pair always agree on the count, whatever groups the two share. What was called rides along
 * with the counter and is compared, so that two ranks in different calls stop instead of mixing their data.
 *
 * Waiting spins briefly where ranks have cores of their own, then sleeps on the bell (futex). Each rank has one communication
 * thread: it carries out hops while the rank computes, and counts up `beat` ten times a second. A peer whose process has ended
 * (pidfd) or whose beat stands still for the deadline is lost, and so is everybody waiting: the first to notice marks its own
 * block, the others see that. A rank that computes for minutes still beats; a frozen step is the keeper's business.
 *
 * Reductions: every rank sums its slice over the ranks in order 0…n-1, reading their memory in place, then all copy the slices.
 * What does not lie in comm_memory goes through the staging area piece by piece, in two halves used in turn. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "worker/comm/transport.h"

enum {
    STAGE_HALF = 4 << 20,           /* bytes */
    PIECE = 4 << 20,                /* bytes copied between two beats */
    HOPS = 8,                       /* sends to one peer under way */
    JOBS = 64,                      /* hops of one rank under way, all groups together */
    TICK_MS = 100,                  /* longest sleep between two looks at the peers */
    SILENCE_MS = 4500,              /* without a beat, at most: a beat is due every TICK_MS, whatever the rank computes */
    MEET_TIMEOUT_MS = 120000,       /* at start-up the slowest rank decides */
    PAGE = 4096,
    SPINS = 4000,
};

enum { FRONT, BACK, LANES };        /* calls that the main thread waits in; calls in the background, in the order they were started */
enum { LIVE, CLOSED, LOST };        /* control.state */

struct call {                       /* what a rank is in: rides with the counter */
    int64_t kind, n_parts, bytes[COMM_PARTS_MAX], at[COMM_PARTS_MAX];      /* at: offset in the segment, -1: staged */
    int64_t half;                   /* of the staging area; ranks differ, having been in different groups */
};

/* In the reader's control block, written by one peer. Cells of their own, so that peers do not fight over cache lines. */
struct box {
    struct {
        _Alignas(64) _Atomic uint64_t met;  /* barriers this peer has entered with me */
        struct call call[2];                /* by parity of `met`: a peer is at most one barrier ahead */
    } at[LANES];                            /* of calls the main thread waits in; of those in the background */
    _Alignas(64) _Atomic uint64_t ready;    /* hops it has offered to me */
    struct { int64_t at, bytes; } hop[HOPS];
    _Alignas(64) _Atomic uint64_t done;     /* hops of mine it has read */
};

struct control {
    _Alignas(64) _Atomic uint32_t bell;     /* futex: something changed for this rank */
    _Atomic uint32_t sleepers;
    _Alignas(64) _Atomic uint32_t beat;
    _Atomic uint32_t state;
    _Atomic int32_t lost_rank;              /* when LOST: who */
    struct box box[];                       /* [world] */
};

/* What one waiting thread has seen of the peers. */
struct watch {
    uint32_t *beat;                         /* [world] */
    double *quiet_s;                        /* [world] */
    double looked;
};

/* A job of the communication thread. */
struct transfer {
    struct comm_hop head;                   /* kind */
    struct transfer *older, *newer;         /* all that are not yet waited for, so that an error leaves nothing behind */
    struct comm *c;
    struct shm *sh;
    /* a hop */
    char *recv;
    int64_t bytes;
    int prev, next;                         /* world ranks; -1: nothing that way */
    uint64_t want_ready, want_done;
    /* pieces */
    enum dtype dt;
    char *out;
    const char *in;
    int64_t *cuts;
    enum { QUEUED, RUNNING, FINISHED } state;
    int rc;
    double started, busy_s, late_s;         /* busy: from the start to the end of the transfer, peers that are late included */
    struct error err;
};

struct shm {
    struct comm_world *w;
    int fd, deadline_ms, spins;
    int64_t seg_bytes, stage_at, user_at;
    char **seg;                             /* [world] mapped segments */
    int *pid, *pidfd;                       /* [world]; pidfd -1 where the kernel has none */
    uint64_t *met[LANES], *sent, *got;      /* [world] my side of the counters */
    struct transfer *newest;                /* of those not yet waited for */
    int half;                               /* of the staging area, next to use */
    struct watch watch[2];                  /* main thread, communication thread */

    pthread_t thread;
    bool started;
    pthread_mutex_t lock;                   /* guards all below and job states */
    pthread_cond_t change;
    struct transfer *job[JOBS];
    unsigned head, tail;                    /* job[head % JOBS] is next */
    atomic_bool quit;
};

static struct control *control_of(const struct shm *sh, int q) { return (struct control *)sh->seg[q]; }

/* --- bells and waiting --- */

static void ring_bell(struct control *c)
{
    atomic_fetch_add(&c->bell, 1);
    if (atomic_load(&c->sleepers) > 0) (void)syscall(SYS_futex, &c->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static int lose(struct shm *sh, int q, struct error *err, const char *what)
{
    struct control *me = control_of(sh, sh->w->rank);
    atomic_store(&me->lost_rank, q);
    atomic_store(&me->state, LOST);
    for (int i = 0; i < sh->w->world; i++) ring_bell(control_of(sh, i));
    return error_set(err, E_PEER, "rank %d (pid %d) %s", q, sh->pid[q], what);
}

static int check_live(struct shm *sh, struct error *err)
{
    struct control *me = control_of(sh, sh->w->rank);
    if (atomic_load(&me->state) != LOST) return OK;
    return error_set(err, E_PEER, "rank %d was lost before", atomic_load(&me->lost_rank));
}

/* Looks at every peer; awaited: the one this call needs, which must not have closed either unless it counted up to want first. */
static int look_at_peers(struct shm *sh, struct watch *look, int awaited, _Atomic uint64_t *counter, uint64_t want, struct error *err)
{
    struct comm_world *w = sh->w;
    int rc = check_live(sh, err);
    if (rc != OK) return rc;
    if (look == &sh->watch[1] && atomic_load(&sh->quit)) return error_set(err, E_STOPPED, "the communication thread was told to end");
    double now = monotonic_s(), since = now - look->looked;
    look->looked = now;
    if (since > 0.25) since = 0.25;         /* only what this thread has watched counts: it may have been stopped itself */
    for (int q = 0; q < w->world; q++) {
        if (q == w->rank) continue;
        struct control *c = control_of(sh, q);
        uint32_t state = atomic_load(&c->state), beat = atomic_load(&c->beat);
        if (state == LOST) {
            int who = atomic_load(&c->lost_rank);
            if (who < 0 || who >= w->world) return lose(sh, q, err, "left because the keeper reported a rank's death");
            if (who == w->rank) return lose(sh, q, err, "gave this rank up as lost");
            char text[80];
            (void)snprintf(text, sizeof text, "was lost, says rank %d", q);
            return lose(sh, who, err, text);
        }
        if (state == CLOSED) {
            if (q == awaited && atomic_load(counter) < want) return lose(sh, q, err, "has left while others still wait for it");
            continue;
        }
        struct pollfd p = { .fd = sh->pidfd[q], .events = POLLIN };
        if (sh->pidfd[q] >= 0 && poll(&p, 1, 0) == 1) {
            if (atomic_load(&c->state) == CLOSED) continue;         /* closed, then ended, between the two looks */
            return lose(sh, q, err, "has died");
        }
        look->quiet_s[q] = beat != look->beat[q] ? 0 : look->quiet_s[q] + since;
        look->beat[q] = beat;
        if (look->quiet_s[q] * 1000 >= sh->deadline_ms) return lose(sh, q, err, "shows no sign of life (stopped, or its machine is stuck)");
    }
    if (w->meeting.lost && w->meeting.lost(w->meeting.arg)) {
        atomic_store(&control_of(sh, w->rank)->lost_rank, -1);
        atomic_store(&control_of(sh, w->rank)->state, LOST);
        return error_set(err, E_PEER, "the keeper reports that a rank died");
    }
    return OK;
}

/* Waits until *counter, in this rank's control block, has reached want; q is who counts it. */
static int wait_for(struct shm *sh, struct watch *look, _Atomic uint64_t *counter, uint64_t want, int q, double *late_s, struct error *err)
{
    if (atomic_load_explicit(counter, memory_order_acquire) >= want) return OK;
    struct control *me = control_of(sh, sh->w->rank);
    double t0 = monotonic_s();
    int rc = OK;
    for (int i = 0; i < sh->spins; i++) {
        if (atomic_load_explicit(counter, memory_order_acquire) >= want) goto out;
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
    for (;;) {
        uint32_t bell = atomic_load(&me->bell);
        if (atomic_load(counter) >= want) goto out;
        if (monotonic_s() - look->looked > TICK_MS * 1e-3) {
            rc = look_at_peers(sh, look, q, counter, want, err);
            if (rc != OK) goto out;
        }
        if (look == &sh->watch[1]) atomic_fetch_add(&me->beat, 1);
        struct timespec tick = { .tv_nsec = TICK_MS * 1000000L };
        atomic_fetch_add(&me->sleepers, 1);
        (void)syscall(SYS_futex, &me->bell, FUTEX_WAIT, bell, &tick, NULL, 0);
        atomic_fetch_sub(&me->sleepers, 1);
    }
out:
    *late_s += monotonic_s() - t0;
    return rc;
}

/* All members enter with the same call and see each other's offsets: peers[i].at. NULL: nothing is exchanged. */
static int meet_in(struct comm *c, int lane, struct watch *look, double *late_s, const struct call *call, struct call *peers, struct error *err)
{
    struct shm *sh = c->w->priv;
    struct control *me = control_of(sh, c->w->rank);
    int rc = check_live(sh, err);
    if (rc != OK) return rc;
    for (int i = 0; i < c->n; i++) {
        int q = c->ranks[i];
        if (i == c->me) continue;
        struct box *b = &control_of(sh, q)->box[c->w->rank];
        uint64_t turn = ++sh->met[lane][q];
        b->at[lane].call[turn & 1] = *call;
        atomic_store_explicit(&b->at[lane].met, turn, memory_order_release);
        ring_bell(control_of(sh, q));
    }
    for (int i = 0; i < c->n; i++) {
        int q = c->ranks[i];
        if (i == c->me) continue;
        struct box *b = &me->box[q];
        rc = wait_for(sh, look, &b->at[lane].met, sh->met[lane][q], q, late_s, err);
        if (rc != OK) return rc;
        const struct call *other = &b->at[lane].call[sh->met[lane][q] & 1];
        bool same = other->kind == call->kind && other->n_parts == call->n_parts;
        for (int k = 0; same && k < call->n_parts; k++)
            same = other->bytes[k] == call->bytes[k] && (other->at[k] < 0) == (call->at[k] < 0);
        if (!same)
            return error_set(err, E_INTERNAL, "rank %d is in %s of %lld bytes while rank %d is in %s of %lld bytes", q,
                             (unsigned)other->kind < COMM_KINDS ? comm_kind_names[other->kind] : "?", (long long)other->bytes[0], c->w->rank,
                             comm_kind_names[call->kind], (long long)call->bytes[0]);
        if (peers) peers[i] = *other;
    }
    if (peers) peers[c->me] = *call;
    return OK;
}

static int meet(struct comm *c, const struct call *call, struct call *peers, struct error *err)
{
    struct shm *sh = c->w->priv;
    return meet_in(c, FRONT, &sh->watch[0], &c->w->late_s, call, peers, err);
}

static int meet_again(struct comm *c, enum comm_kind kind, struct error *err)
{
    struct call call = { .kind = kind };
    return meet(c, &call, NULL, err);
}

/* --- copies --- */

static bool plain_memory(const struct comm_world *w) { return w->ops == NULL || strcmp(w->ops->name, "cpu") == 0; }

/* One of the two may be a device's. */
static int put(struct comm *c, struct stream *s, void *dst, const void *src, int64_t bytes, struct error *err)
{
    if (dst == src) return OK;
    if (plain_memory(c->w)) {
        memcpy(dst, src, (size_t)bytes);
        return OK;
    }
    int rc = c->w->ops->copy(s, dst, src, (size_t)bytes);
    if (rc != OK) return error_set(err, rc, "copy of %lld bytes: %s", (long long)bytes, c->w->ops->error(s));
    return c->w->ops->stream_wait(s, err);
}

/* Before peers read what the stream writes. */
static int settle(struct comm *c, struct stream *s, struct error *err)
{
    return plain_memory(c->w) || s == NULL ? OK : c->w->ops->stream_wait(s, err);
}

/* Offset of p in this rank's segment, -1 if it lies elsewhere. */
static int64_t shared_at(const struct shm *sh, const void *p, int64_t bytes)
{
    const char *base = sh->seg[sh->w->rank], *q = p;
    return q >= base + sh->user_at && q + bytes <= base + sh->seg_bytes ? q - base : -1;
}

static inline float widen(bf16 x)
{
    union { uint32_t u; float f; } v = { (uint32_t)x.bits << 16 };
    return v.f;
}

/* dst[i] = sum over r of src[r][i], r ascending. dst may be one of the src. */
#define DEFINE_SUM(name, type, acc, get, set)                                                               \
    static void name(type *dst, type *const *src, int n, int64_t count)                                     \
    {                                                                                                       \
        enum { BLOCK = 1024 };                                                                              \
        acc sum[BLOCK];                                                                                     \
        for (int64_t i = 0; i < count; i += BLOCK) {                                                        \
            int64_t m = count - i < BLOCK ? count - i : BLOCK;                                              \
            for (int64_t j = 0; j < m; j++) sum[j] = get(src[0][i + j]);                                    \
            for (int r = 1; r < n; r++)                                                                     \
                for (int64_t j = 0; j < m; j++) sum[j] += get(src[r][i + j]);                               \
            for (int64_t j = 0; j < m; j++) dst[i + j] = set(sum[j]);                                       \
        }                                                                                                   \
    }
DEFINE_SUM(sum_f32, float, float, , )
DEFINE_SUM(sum_f64, double, double, , )
DEFINE_SUM(sum_bf16, bf16, float, widen, f32_to_bf16)

/* dst[i] += sum over r of src[r][i] */
static void add_slices(float *dst, float *const *src, int n, int64_t count)
{
    enum { BLOCK = 1024 };
    float sum[BLOCK];
    for (int64_t i = 0; i < count; i += BLOCK) {
        int64_t m = count - i < BLOCK ? count - i : BLOCK;
        for (int64_t j = 0; j < m; j++) sum[j] = src[0][i + j];
        for (int r = 1; r < n; r++)
            for (int64_t j = 0; j < m; j++) sum[j] += src[r][i + j];
        for (int64_t j = 0; j < m; j++) dst[i + j] += sum[j];
    }
}

static void sum_slices(enum dtype dt, void *dst, void **src, int n, int64_t count)
{
    if (dt == DT_F32)
        sum_f32(dst, (float *const *)src, n, count);
    else if (dt == DT_F64)
        sum_f64(dst, (double *const *)src, n, count);
    else
        sum_bf16(dst, (bf16 *const *)src, n, count);
}

/* --- collectives --- */

static int shm_all_to_all(struct comm *c, struct stream *s, const struct comm_part *parts, int n_parts, struct error *err)
{
    struct shm *sh = c->w->priv;
    struct call mine = { .kind = COMM_ALL_TO_ALL, .n_parts = n_parts };
    for (int k = 0; k < n_parts; k++) {
        mine.bytes[k] = parts[k].slice_bytes;
        mine.at[k] = shared_at(sh, parts[k].send, parts[k].send_stride * (c->n - 1) + parts[k].slice_bytes);
        assert(mine.at[k] >= 0 || parts[k].slice_bytes == 0);       /* comm.h: send lies in comm_memory */
    }
    struct call *peers = xmalloc(sizeof *peers * (unsigned long)c->n);
    int rc = settle(c, s, err);
    if (rc == OK) rc = meet(c, &mine, peers, err);
    for (int i = 0; i < c->n && rc == OK; i++) {        /* each rank starts at another peer, so that no one's memory is hit by all */
        int p = (c->me + i) % c->n;
        for (int k = 0; k < n_parts && rc == OK; k++) {
            char *from = sh->seg[c->ranks[p]] + peers[p].at[k] + c->me * parts[k].send_stride;
            rc = put(c, s, (char *)parts[k].recv + p * parts[k].recv_stride, from, parts[k].slice_bytes, err);
        }
    }
    if (rc == OK) rc = meet_again(c, COMM_ALL_TO_ALL, err);
    free(peers);
    return rc;
}

static char *stage_of(const struct shm *sh, int q, int64_t half) { return sh->seg[q] + sh->stage_at + half * STAGE_HALF; }

static int shm_all_reduce(struct comm *c, struct stream *s, enum dtype dt, void *x, int64_t count, struct error *err)
{
    struct shm *sh = c->w->priv;
    int64_t es = (int64_t)dtype_size(dt), at = plain_memory(c->w) ? shared_at(sh, x, count * es) : -1;
    int64_t piece = at >= 0 ? count : STAGE_HALF / es;
    void **src = xmalloc(sizeof *src * (unsigned long)c->n);
    struct call *peers = xmalloc(sizeof *peers * (unsigned long)c->n);
    int rc = OK;
    for (int64_t done = 0; done < count && rc == OK; done += piece) {
        int64_t m = count - done < piece ? count - done : piece, per = (m + c->n - 1) / c->n;
        char *mine = at >= 0 ? x : stage_of(sh, c->w->rank, sh->half), *xs = (char *)x + done * es;
        rc = put(c, s, mine, at >= 0 ? mine : xs, m * es, err);
        struct call call = { .kind = COMM_ALL_REDUCE, .n_parts = 1, .bytes = { m * es }, .at = { at }, .half = sh->half };
        if (rc == OK) rc = meet(c, &call, peers, err);
        if (rc != OK) break;
        int64_t lo = c->me * per < m ? c->me * per : m, n = m - lo < per ? m - lo : per;
        for (int p = 0; p < c->n; p++) {
            peers[p].at[0] = at >= 0 ? peers[p].at[0] : stage_of(sh, c->ranks[p], peers[p].half) - sh->seg[c->ranks[p]];
            src[p] = sh->seg[c->ranks[p]] + peers[p].at[0] + lo * es;
        }
        sum_slices(dt, mine + lo * es, src, c->n, n);           /* nobody else reads this slice of ours before the next meeting */
        rc = meet_again(c, COMM_ALL_REDUCE, err);
        for (int i = 0; i < c->n && rc == OK; i++) {
            int p = (c->me + i) % c->n;
            lo = p * per < m ? p * per : m;
            n = m - lo < per ? m - lo : per;
            if (n > 0) rc = put(c, s, xs + lo * es, sh->seg[c->ranks[p]] + peers[p].at[0] + lo * es, n * es, err);
        }
        sh->half ^= 1;
    }
    if (rc == OK) rc = meet_again(c, COMM_ALL_REDUCE, err);
    free(src);
    free(peers);
    return rc;
}

static int shm_reduce_scatter(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, int64_t count, struct error *err)
{
    struct shm *sh = c->w->priv;
    int64_t es = (int64_t)dtype_size(dt), at = plain_memory(c->w) ? shared_at(sh, in, c->n * count * es) : -1;
    int64_t piece = at >= 0 ? count : STAGE_HALF / es / c->n;
    void **src = xmalloc(sizeof *src * (unsigned long)c->n);
    struct call *peers = xmalloc(sizeof *peers * (unsigned long)c->n);
    int rc = settle(c, s, err);
    for (int64_t done = 0; done < count && rc == OK; done += piece) {
        int64_t m = count - done < piece ? count - done : piece;
        char *stage = stage_of(sh, c->w->rank, sh->half);
        for (int p = 0; p < c->n && at < 0 && rc == OK; p++)
            rc = put(c, s, stage + p * m * es, (const char *)in + (p * count + done) * es, m * es, err);
        struct call call = { .kind = COMM_REDUCE_SCATTER, .n_parts = 1, .bytes = { m * es }, .at = { at }, .half = sh->half };
        if (rc == OK) rc = meet(c, &call, peers, err);
        if (rc != OK) break;
        for (int p = 0; p < c->n; p++) {
            char *seg = sh->seg[c->ranks[p]];
            src[p] = at >= 0 ? seg + peers[p].at[0] + (c->me * count + done) * es : stage_of(sh, c->ranks[p], peers[p].half) + c->me * m * es;
        }
        char *to = (char *)out + done * es;
        if (plain_memory(c->w)) {
            sum_slices(dt, to, src, c->n, m);
        } else {                                                /* slice `me` of our own stage is read by nobody else */
            sum_slices(dt, stage + c->me * m * es, src, c->n, m);
            rc = put(c, s, to, stage + c->me * m * es, m * es, err);
        }
        sh->half ^= 1;
    }
    if (rc == OK) rc = meet_again(c, COMM_REDUCE_SCATTER, err);
    free(src);
    free(peers);
    return rc;
}

static int shm_all_gather(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, int64_t count, struct error *err)
{
    struct shm *sh = c->w->priv;
    int64_t bytes = count * (int64_t)dtype_size(dt), at = plain_memory(c->w) ? shared_at(sh, in, bytes) : -1;
    int64_t piece = at >= 0 ? bytes : STAGE_HALF;
    struct call *peers = xmalloc(sizeof *peers * (unsigned long)c->n);
    int rc = settle(c, s, err);
    for (int64_t done = 0; done < bytes && rc == OK; done += piece) {
        int64_t m = bytes - done < piece ? bytes - done : piece;
        if (at < 0) rc = put(c, s, stage_of(sh, c->w->rank, sh->half), (const char *)in + done, m, err);
        struct call call = { .kind = COMM_ALL_GATHER, .n_parts = 1, .bytes = { m }, .at = { at }, .half = sh->half };
        if (rc == OK) rc = meet(c, &call, peers, err);
        for (int i = 0; i < c->n && rc == OK; i++) {
            int p = (c->me + i) % c->n;
            const char *from = p == c->me ? (const char *)in + done
                             : at >= 0 ? sh->seg[c->ranks[p]] + peers[p].at[0] + done : stage_of(sh, c->ranks[p], peers[p].half);
            rc = put(c, s, (char *)out + p * bytes + done, from, m, err);
        }
        sh->half ^= 1;
    }
    if (rc == OK) rc = meet_again(c, COMM_ALL_GATHER, err);
    free(peers);
    return rc;
}

static int shm_broadcast(struct comm *c, struct stream *s, void *x, int64_t bytes, int root, struct error *err)
{
    struct shm *sh = c->w->priv;
    struct call *peers = xmalloc(sizeof *peers * (unsigned long)c->n);
    int rc = settle(c, s, err);
    for (int64_t done = 0; done < bytes && rc == OK; done += STAGE_HALF) {
        int64_t m = bytes - done < STAGE_HALF ? bytes - done : STAGE_HALF;
        if (c->me == root) rc = put(c, s, stage_of(sh, c->w->rank, sh->half), (char *)x + done, m, err);
        struct call call = { .kind = COMM_BROADCAST, .n_parts = 1, .bytes = { m }, .at = { -1 }, .half = sh->half };
        if (rc == OK) rc = meet(c, &call, peers, err);
        if (rc == OK && c->me != root) rc = put(c, s, (char *)x + done, stage_of(sh, c->ranks[root], peers[root].half), m, err);
        sh->half ^= 1;
    }
    free(peers);
    return rc == OK ? meet_again(c, COMM_BROADCAST, err) : rc;
}

static int shm_barrier(struct comm *c, struct error *err) { return meet_again(c, COMM_BARRIER, err); }

static const void *shm_peer_memory(const struct comm *c, int p)
{
    const struct shm *sh = c->w->priv;
    return sh->seg[c->ranks[p]] + sh->user_at;
}

/* --- the communication thread's work --- */

/* Takes what prev has offered. */
static int take_hop(struct transfer *h, struct watch *look)
{
    struct shm *sh = h->sh;
    struct control *me = control_of(sh, sh->w->rank), *prev = control_of(sh, h->prev);
    struct box *b = &me->box[h->prev];
    int rc = wait_for(sh, look, &b->ready, h->want_ready, h->prev, &h->late_s, &h->err);
    if (rc != OK) return rc;
    int64_t at = b->hop[h->want_ready % HOPS].at, bytes = b->hop[h->want_ready % HOPS].bytes;
    if (bytes != h->bytes)
        rc = error_set(&h->err, E_INTERNAL, "rank %d sends a hop of %lld bytes, rank %d expects %lld", h->prev, (long long)bytes, sh->w->rank,
                       (long long)h->bytes);
    for (int64_t i = 0; i < h->bytes && rc == OK; i += PIECE) {
        memcpy(h->recv + i, sh->seg[h->prev] + at + i, (size_t)(h->bytes - i < PIECE ? h->bytes - i : PIECE));
        atomic_fetch_add(&me->beat, 1);
    }
    atomic_fetch_add_explicit(&prev->box[sh->w->rank].done, 1, memory_order_release);
    ring_bell(prev);
    return rc;
}

/* Adds up this rank's piece of all ranks' in, or fetches every rank's piece. */
static int do_pieces(struct transfer *h, struct watch *look)
{
    struct shm *sh = h->sh;
    struct comm *c = h->c;
    struct control *me = control_of(sh, sh->w->rank);
    int64_t size = (int64_t)dtype_size(h->dt), lo = h->cuts[c->me], n = h->cuts[c->me + 1] - lo;
    struct call *peers = xmalloc(sizeof *peers * (unsigned long)c->n), call = { .kind = h->head.kind, .n_parts = 1, .bytes = { (h->cuts[c->n] - h->cuts[0]) * size } };
    void **src = xmalloc(sizeof *src * (unsigned long)c->n);
    call.at[0] = h->in - sh->seg[sh->w->rank];
    int rc = meet_in(c, BACK, look, &h->late_s, &call, peers, &h->err);
    if (rc == OK && h->head.kind == COMM_REDUCE_SCATTER) {
        enum { STEP = 1 << 18 };                            /* elements between two beats */
        for (int64_t i = 0; i < n; i += STEP) {
            int64_t m = n - i < STEP ? n - i : STEP;
            for (int p = 0; p < c->n; p++) src[p] = sh->seg[c->ranks[p]] + peers[p].at[0] + (lo - h->cuts[0] + i) * size;
            add_slices((float *)(void *)h->out + i, (float *const *)src, c->n, m);
            atomic_fetch_add(&me->beat, 1);
        }
    } else if (rc == OK) {
        for (int i = 0; i < c->n; i++) {
            int p = (c->me + i) % c->n;
            const char *from = p == c->me ? h->in : sh->seg[c->ranks[p]] + peers[p].at[0];
            char *to = h->out + (h->cuts[p] - h->cuts[0]) * size;
            int64_t bytes = (h->cuts[p + 1] - h->cuts[p]) * size;
            for (int64_t k = 0; k < bytes && to != from; k += PIECE) {
                memcpy(to + k, from + k, (size_t)(bytes - k < PIECE ? bytes - k : PIECE));
                atomic_fetch_add(&me->beat, 1);
            }
        }
    }
    call = (struct call){ .kind = h->head.kind };
    if (rc == OK) rc = meet_in(c, BACK, look, &h->late_s, &call, NULL, &h->err);
    free(src);
    free(peers);
    return rc;
}

/* Runs on the communication thread, or on the main one when it has nothing better to do. */
static void run_job(struct transfer *h, struct watch *look)
{
    h->rc = h->head.kind == COMM_HOP ? take_hop(h, look) : do_pieces(h, look);
    h->busy_s = monotonic_s() - h->started;
}

static void *communication_thread(void *arg)
{
    struct shm *sh = arg;
    struct control *me = control_of(sh, sh->w->rank);
    (void)pthread_mutex_lock(&sh->lock);
    while (!atomic_load(&sh->quit)) {
        if (sh->head == sh->tail || sh->job[sh->head % JOBS]->state != QUEUED) {
            struct timespec until;
            (void)clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += TICK_MS * 1000000L;
            until.tv_sec += until.tv_nsec / 1000000000L;
            until.tv_nsec %= 1000000000L;
            (void)pthread_cond_timedwait(&sh->change, &sh->lock, &until);
            atomic_fetch_add(&me->beat, 1);
            continue;
        }
        struct transfer *h = sh->job[sh->head % JOBS];
        h->state = RUNNING;
        (void)pthread_mutex_unlock(&sh->lock);
        run_job(h, &sh->watch[1]);
        (void)pthread_mutex_lock(&sh->lock);
        h->state = FINISHED;
        sh->head++;
        (void)pthread_cond_broadcast(&sh->change);
    }
    (void)pthread_mutex_unlock(&sh->lock);
    return NULL;
}

static struct transfer *new_transfer(struct comm *c, enum comm_kind kind)
{
    struct shm *sh = c->w->priv;
    struct transfer *h = xcalloc(1, sizeof *h);
    *h = (struct transfer){ .head = { kind }, .c = c, .sh = sh, .prev = -1, .next = -1, .state = FINISHED, .started = monotonic_s(), .older = sh->newest };
    if (h->older) h->older->newer = h;
    sh->newest = h;
    return h;
}

static void free_transfer(struct transfer *h)
{
    if (h->newer) h->newer->older = h->older;
    else h->sh->newest = h->older;
    if (h->older) h->older->newer = h->newer;
    free(h->cuts);
    free(h);
}

static void queue(struct transfer *h)
{
    struct shm *sh = h->sh;
    h->state = QUEUED;
    (void)pthread_mutex_lock(&sh->lock);
    assert(sh->tail - sh->head < JOBS);
    sh->job[sh->tail++ % JOBS] = h;
    (void)pthread_cond_broadcast(&sh->change);
    (void)pthread_mutex_unlock(&sh->lock);
}

static int shm_hop_start(struct comm *c, struct stream *s, void *recv, const void *send, int64_t bytes, struct comm_hop **out, struct error *err)
{
    struct shm *sh = c->w->priv;
    int rc = check_live(sh, err);
    if (rc == OK) rc = settle(c, s, err);
    if (rc != OK) return rc;
    struct transfer *h = new_transfer(c, COMM_HOP);
    h->recv = recv;
    h->bytes = bytes;
    if (send) {
        h->next = c->ranks[(c->me + 1) % c->n];
        struct control *next = control_of(sh, h->next);
        struct box *b = &next->box[c->w->rank];
        int64_t at = shared_at(sh, send, bytes);
        assert(at >= 0);                                        /* comm.h: send lies in comm_memory */
        h->want_done = ++sh->sent[h->next];
        assert(h->want_done - atomic_load(&control_of(sh, c->w->rank)->box[h->next].done) <= HOPS);
        b->hop[h->want_done % HOPS].at = at;
        b->hop[h->want_done % HOPS].bytes = bytes;
        atomic_store_explicit(&b->ready, h->want_done, memory_order_release);
        ring_bell(next);
    }
    if (recv) {
        h->prev = c->ranks[(c->me + c->n - 1) % c->n];
        h->want_ready = ++sh->got[h->prev];
        queue(h);
    }
    *out = &h->head;
    return OK;
}

static int pieces_start(struct comm *c, struct stream *s, enum comm_kind kind, enum dtype dt, void *out, const void *in, const int64_t *cuts,
                        struct comm_hop **hop, struct error *err)
{
    struct shm *sh = c->w->priv;
    int rc = check_live(sh, err);
    if (rc == OK && !plain_memory(c->w)) rc = error_set(err, E_UNSUPPORTED, "background reductions over shared memory are for CPU ranks");
    if (rc == OK) rc = settle(c, s, err);
    if (rc != OK) return rc;
    struct transfer *h = new_transfer(c, kind);
    h->dt = dt;
    h->out = out;
    h->in = in;
    h->cuts = xmalloc((unsigned long)(c->n + 1) * sizeof *cuts);
    memcpy(h->cuts, cuts, (unsigned long)(c->n + 1) * sizeof *cuts);
    int64_t n = kind == COMM_REDUCE_SCATTER ? cuts[c->n] - cuts[0] : cuts[c->me + 1] - cuts[c->me];
    assert(n == 0 || shared_at(sh, in, n * (int64_t)dtype_size(dt)) >= 0);      /* comm.h: in lies in comm_memory */
    queue(h);
    *hop = &h->head;
    return OK;
}

static int shm_reduce_pieces_start(struct comm *c, struct stream *s, float *out, const float *in, const int64_t *cuts, struct comm_hop **h, struct error *err)
{
    return pieces_start(c, s, COMM_REDUCE_SCATTER, DT_F32, out, in, cuts, h, err);
}

static int shm_gather_pieces_start(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, const int64_t *cuts, struct comm_hop **h,
                                   struct error *err)
{
    return pieces_start(c, s, COMM_ALL_GATHER, dt, out, in, cuts, h, err);
}

static int shm_hop_wait(struct comm *c, struct stream *s, struct comm_hop *hop, double *busy_s, double *late_s, struct error *err)
{
    (void)s;
    struct shm *sh = c->w->priv;
    struct transfer *h = (struct transfer *)(void *)hop;        /* its first member */
    (void)pthread_mutex_lock(&sh->lock);
    while (h->state != FINISHED) {
        if (h->state == QUEUED && sh->job[sh->head % JOBS] == h) {      /* not begun yet: quicker done here than waited for */
            h->state = RUNNING;
            (void)pthread_mutex_unlock(&sh->lock);
            run_job(h, &sh->watch[0]);
            (void)pthread_mutex_lock(&sh->lock);
            h->state = FINISHED;
            sh->head++;
            (void)pthread_cond_broadcast(&sh->change);
        } else {
            (void)pthread_cond_wait(&sh->change, &sh->lock);
        }
    }
    (void)pthread_mutex_unlock(&sh->lock);
    int rc = h->rc;
    if (rc != OK && err) *err = h->err;
    if (rc == OK && h->next >= 0) {
        _Atomic uint64_t *done = &control_of(sh, c->w->rank)->box[h->next].done;
        bool waits = atomic_load(done) < h->want_done;
        rc = wait_for(sh, &sh->watch[0], done, h->want_done, h->next, &h->late_s, err);
        if (waits || h->prev < 0) h->busy_s = monotonic_s() - h->started;
    }
    *busy_s = h->busy_s;
    *late_s = h->late_s;
    free_transfer(h);
    return rc;
}

/* --- life --- */

static int64_t page_up(int64_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

static int64_t control_bytes(int world) { return page_up((int64_t)sizeof(struct control) + world * (int64_t)sizeof(struct box)); }

static int64_t shm_overhead_bytes(int world) { return control_bytes(world) + 2 * STAGE_HALF; }

/* Maps the segment of rank q, whose owner said "pid fd bytes". */
static int map_peer(struct shm *sh, int q, const char *said, struct error *err)
{
    int pid = 0, fd = 0;
    long long bytes = 0;
    if (sscanf(said, "%d %d %lld", &pid, &fd, &bytes) != 3 || pid <= 0 || fd < 0)
        return error_set(err, E_INTERNAL, "rank %d announced its memory as \"%.60s\", not as pid, descriptor, bytes", q, said);
    if (bytes != sh->seg_bytes)
        return error_set(err, E_INTERNAL, "rank %d plans %lld bytes of shared memory, rank %d plans %lld", q, bytes, sh->w->rank,
                         (long long)sh->seg_bytes);
    sh->pid[q] = pid;
    sh->pidfd[q] = (int)syscall(SYS_pidfd_open, pid, 0);
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    int f = open(path, O_RDWR | O_CLOEXEC);
    if (f < 0) return error_set(err, errno == ENOENT ? E_PEER : E_IO, "cannot open rank %d's memory at %s: %s", q, path, strerror(errno));
    void *m = mmap(NULL, (size_t)sh->seg_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    int e = errno;
    (void)close(f);
    if (m == MAP_FAILED) return error_set(err, E_NOMEM, "cannot map %lld bytes of rank %d: %s", (long long)sh->seg_bytes, q, strerror(e));
    sh->seg[q] = m;
    return OK;
}

static int start_thread(struct shm *sh, struct error *err)
{
    sigset_t all, old;
    (void)sigfillset(&all);                                     /* signals belong to the main thread */
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(&sh->thread, NULL, communication_thread, sh);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e != 0) return error_set(err, E_IO, "cannot start the communication thread: %s", strerror(e));
    sh->started = true;
    return OK;
}

static int shm_open_world(struct comm_world *w, int64_t shared_bytes, int deadline_ms, struct error *err)
{
    struct shm *sh = xcalloc(1, sizeof *sh);
    unsigned long n = (unsigned long)w->world;
    w->priv = sh;
    *sh = (struct shm){ .w = w, .fd = -1, .deadline_ms = deadline_ms < SILENCE_MS ? deadline_ms : SILENCE_MS, .stage_at = control_bytes(w->world) };
    sh->user_at = shm_overhead_bytes(w->world);
    sh->seg_bytes = sh->user_at + page_up(shared_bytes);
    sh->spins = sysconf(_SC_NPROCESSORS_ONLN) >= w->world ? SPINS : 0;
    sh->seg = xcalloc(n, sizeof *sh->seg);
    sh->pid = xcalloc(n, sizeof *sh->pid);
    sh->pidfd = xmalloc(n * sizeof *sh->pidfd);
    for (int q = 0; q < w->world; q++) sh->pidfd[q] = -1;
    for (int i = 0; i < LANES; i++) sh->met[i] = xcalloc(n, sizeof *sh->met[i]);
    sh->sent = xcalloc(n, sizeof *sh->sent);
    sh->got = xcalloc(n, sizeof *sh->got);
    for (int i = 0; i < 2; i++) sh->watch[i] = (struct watch){ xcalloc(n, sizeof(uint32_t)), xcalloc(n, sizeof(double)), monotonic_s() };
    pthread_condattr_t clock;
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&sh->lock, NULL);
    (void)pthread_cond_init(&sh->change, &clock);
    (void)pthread_condattr_destroy(&clock);

    sh->fd = memfd_create("ringmaster", MFD_CLOEXEC);
    if (sh->fd < 0 || ftruncate(sh->fd, sh->seg_bytes) < 0)
        return error_set(err, status_of_errno(errno), "cannot make %lld bytes of shared memory: %s", (long long)sh->seg_bytes, strerror(errno));
    void *m = mmap(NULL, (size_t)sh->seg_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, sh->fd, 0);
    if (m == MAP_FAILED) return error_set(err, E_NOMEM, "cannot map %lld bytes of shared memory: %s", (long long)sh->seg_bytes, strerror(errno));
    sh->seg[w->rank] = m;
    sh->pid[w->rank] = (int)getpid();
    w->memory = sh->seg[w->rank] + sh->user_at;
    int rc = start_thread(sh, err);
    if (rc != OK) return rc;

    char key[32], said[64];
    (void)snprintf(key, sizeof key, "shm.%d", w->rank);
    (void)snprintf(said, sizeof said, "%d %d %lld", (int)getpid(), sh->fd, (long long)sh->seg_bytes);
    rc = w->meeting.put(w->meeting.arg, key, said, err);
    for (int q = 0; q < w->world && rc == OK; q++) {
        if (q == w->rank) continue;
        char *text = NULL;
        (void)snprintf(key, sizeof key, "shm.%d", q);
        rc = w->meeting.get(w->meeting.arg, key, &text, MEET_TIMEOUT_MS, err);
        if (rc == OK) rc = map_peer(sh, q, text, err);
        free(text);
    }
    if (rc != OK) return rc;
    int *everyone = xmalloc(n * sizeof *everyone);
    for (int q = 0; q < w->world; q++) everyone[q] = q;
    struct comm all = { .w = w, .ranks = everyone, .n = w->world, .me = w->rank };
    rc = meet_again(&all, COMM_BARRIER, err);                   /* all have mapped all: the descriptor has served */
    free(everyone);
    (void)close(sh->fd);
    sh->fd = -1;
    return rc;
}

static void shm_close(struct comm_world *w)
{
    struct shm *sh = w->priv;
    if (sh == NULL) return;
    if (sh->started) {
        struct control *me = control_of(sh, w->rank);
        uint32_t live = LIVE;
        (void)atomic_compare_exchange_strong(&me->state, &live, CLOSED);
        for (int q = 0; q < w->world; q++)
            if (sh->seg[q]) ring_bell(control_of(sh, q));
        (void)pthread_mutex_lock(&sh->lock);
        atomic_store(&sh->quit, true);
        (void)pthread_cond_broadcast(&sh->change);
        (void)pthread_mutex_unlock(&sh->lock);
        (void)pthread_join(sh->thread, NULL);                   /* a hop in its hands ends by itself: done, or the peer is lost */
        while (sh->newest) free_transfer(sh->newest);
    }
    for (int q = 0; q < w->world; q++) {
        if (sh->seg[q]) (void)munmap(sh->seg[q], (size_t)sh->seg_bytes);
        if (sh->pidfd[q] >= 0) (void)close(sh->pidfd[q]);
    }
    if (sh->fd >= 0) (void)close(sh->fd);
    for (int i = 0; i < 2; i++) {
        free(sh->watch[i].beat);
        free(sh->watch[i].quiet_s);
    }
    free(sh->seg);
    free(sh->pid);
    free(sh->pidfd);
    for (int i = 0; i < LANES; i++) free(sh->met[i]);
    free(sh->sent);
    free(sh->got);
    (void)pthread_mutex_destroy(&sh->lock);
    (void)pthread_cond_destroy(&sh->change);
    free(sh);
    w->priv = NULL;
}

const struct comm_transport comm_transport_shm = {
    .name = "shm", .overhead_bytes = shm_overhead_bytes, .open = shm_open_world, .close = shm_close, .all_to_all = shm_all_to_all,
    .hop_start = shm_hop_start, .hop_wait = shm_hop_wait, .reduce_pieces_start = shm_reduce_pieces_start, .gather_pieces_start = shm_gather_pieces_start, .all_reduce = shm_all_reduce, .reduce_scatter = shm_reduce_scatter,
    .all_gather = shm_all_gather, .broadcast = shm_broadcast, .barrier = shm_barrier, .peer_memory = shm_peer_memory,
};
