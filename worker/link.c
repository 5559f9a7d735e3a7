/* link.c - the worker's side of its pipe to the keeper (see link.h).
 *
 * One thread owns the libuv loop and the pipe; the trainer's threads only append finished lines to a queue under a mutex and
 * wake the loop, so a slow or stopped keeper never blocks a step: beyond QUEUE_MAX waiting bytes records are dropped, counted,
 * and the count is told once the pipe moves again. put/get/fence wait on a condition with a deadline; a lost peer, a stop
 * without checkpoint or the keeper's death ends every wait.
 * When the keeper dies the pipe ends: the rank is asked to stop now, and what has not left after EXIT_MS is ended from here,
 * because nobody is left to do it (the keeper also sets a parent-death signal: daemon/keeper/gang.c). */
#include "worker/link.h"

#include <assert.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/loop.h"
#include "api/message.h"
#include "worker/failpoint.h"

enum { QUEUE_MAX = 64 << 20, BEAT_MS = 1000, EXIT_MS = 5000, FLUSH_MS = 2000, BATCH_MAX = 1 << 20 };

struct pair { char *key, *value; int64_t count; struct pair *next; };

struct link {
    int rank, world;
    bool threaded;
    _Atomic int stop;
    atomic_bool checkpoint, peer_lost;
    _Atomic int64_t step, ticks;                /* ticks: calls of link_step, so that "still the same step" and "stuck" differ */
    _Atomic(const char *) phase;

    uv_mutex_t mu;
    uv_cond_t changed;
    /* under mu */
    char *queue; size_t queued, queue_cap;      /* lines not yet given to libuv */
    int64_t dropped;
    struct pair *values, *fences;               /* what the keeper told; fences: how often each opened */
    char lost_text[200];
    bool closing, ended;                        /* ended: the pipe is gone */

    /* the thread's own */
    uv_thread_t thread;
    uv_loop_t loop;
    uv_pipe_t pipe;
    uv_async_t wake;
    uv_timer_t beat, last;                      /* last: EXIT_MS after the keeper's death, FLUSH_MS when closing */
    uv_write_t write;
    char *writing;                              /* the batch libuv holds; NULL: none */
    struct line_reader reader;
    char chunk[65536];
};

static struct pair *find(struct pair *p, const char *key)
{
    while (p && strcmp(p->key, key) != 0) p = p->next;
    return p;
}

static struct pair *find_or_add(struct pair **list, const char *key)
{
    struct pair *p = find(*list, key);
    if (p) return p;
    p = xcalloc(1, sizeof *p);
    p->key = xstrdup(key);
    p->next = *list;
    return *list = p;
}

static void pairs_free(struct pair *p)
{
    while (p) {
        struct pair *next = p->next;
        free(p->key);
        free(p->value);
        free(p);
        p = next;
    }
}

/* Under mu. */
static void append(struct link *l, const char *line, size_t n)
{
    if (l->queued + n > l->queue_cap) {
        l->queue_cap = (l->queued + n) * 2;
        l->queue = xrealloc(l->queue, l->queue_cap);
    }
    memcpy(l->queue + l->queued, line, n);
    l->queued += n;
}

static cJSON *record_of(const char *t)
{
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "t", t);
    return o;
}

/* --- the thread --- */

static void pump(struct link *l);

static void stop_loop(struct link *l)
{
    uv_handle_t *all[] = { (uv_handle_t *)&l->pipe, (uv_handle_t *)&l->wake, (uv_handle_t *)&l->beat, (uv_handle_t *)&l->last };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!uv_is_closing(all[i])) uv_close(all[i], NULL);
}

static void on_last(uv_timer_t *t)
{
    struct link *l = t->data;
    uv_mutex_lock(&l->mu);
    bool closing = l->closing;
    uv_mutex_unlock(&l->mu);
    if (closing) { stop_loop(l); return; }
    (void)fprintf(stderr, "rank %d: the keeper is gone and this rank did not leave within %d ms: ending\n", l->rank, EXIT_MS);
    _exit(70);
}

static void pipe_ended(struct link *l)
{
    uv_mutex_lock(&l->mu);
    bool first = !l->ended, closing = l->closing;
    l->ended = true;
    if (first && !closing) {
        (void)snprintf(l->lost_text, sizeof l->lost_text, "the keeper is gone");
        atomic_store(&l->stop, LINK_STOP_NOW);
        atomic_store(&l->peer_lost, true);
    }
    uv_cond_broadcast(&l->changed);
    uv_mutex_unlock(&l->mu);
    if (!first) return;
    uv_timer_stop(&l->beat);
    if (!uv_is_closing((uv_handle_t *)&l->pipe)) uv_close((uv_handle_t *)&l->pipe, NULL);
    if (closing) stop_loop(l);
    else (void)uv_timer_start(&l->last, on_last, EXIT_MS, 0);
}

static void on_written(uv_write_t *w, int status)
{
    struct link *l = w->data;
    free(l->writing);
    l->writing = NULL;
    if (status == UV_ECANCELED) return;
    if (status < 0) pipe_ended(l);
    else pump(l);
}

static void pump(struct link *l)
{
    uv_mutex_lock(&l->mu);
    if (l->writing || l->ended) { uv_mutex_unlock(&l->mu); return; }
    if (l->dropped > 0 && l->queued < QUEUE_MAX / 2) {
        cJSON *o = record_of("event");
        size_t n;
        char text[100];
        (void)snprintf(text, sizeof text, "%lld records were dropped: the keeper did not read them", (long long)l->dropped);
        json_add_str(o, "level", "warning");
        json_add_str(o, "code", "records_dropped");
        json_add_str(o, "text", text);
        char *line = message_line(o, &n);
        l->dropped = 0;
        append(l, line, n);
        free(line);
    }
    size_t n = l->queued;
    bool closing = l->closing;
    if (n > 0) {
        l->writing = l->queue;
        l->queue = NULL;
        l->queued = l->queue_cap = 0;
    }
    uv_mutex_unlock(&l->mu);
    if (n == 0) {
        if (closing) stop_loop(l);      /* all flushed */
        return;
    }
    uv_buf_t b = uv_buf_init(l->writing, (unsigned)n);
    l->write.data = l;
    if (uv_write(&l->write, (uv_stream_t *)&l->pipe, &b, 1, on_written) < 0) {
        free(l->writing);
        l->writing = NULL;
        pipe_ended(l);
    }
}

static void on_wake(uv_async_t *a)
{
    struct link *l = a->data;
    uv_mutex_lock(&l->mu);
    bool closing = l->closing, ended = l->ended;
    uv_mutex_unlock(&l->mu);
    if (closing && ended) { stop_loop(l); return; }
    if (closing) (void)uv_timer_start(&l->last, on_last, FLUSH_MS, 0);
    pump(l);
}

static void on_beat(uv_timer_t *t)
{
    struct link *l = t->data;
    cJSON *o = record_of("beat");
    json_add_int(o, "step", atomic_load(&l->step));
    json_add_str(o, "phase", atomic_load(&l->phase));
    json_add_int(o, "ticks", atomic_load(&l->ticks));
    size_t n;
    char *line = message_line(o, &n);
    uv_mutex_lock(&l->mu);
    if (l->queued < QUEUE_MAX) append(l, line, n);
    uv_mutex_unlock(&l->mu);
    free(line);
    pump(l);
}

static void on_message(void *arg, cJSON *m)
{
    struct link *l = arg;
    const char *t = json_str(m, "t"), *key = json_str(m, "key"), *value = json_str(m, "value"), *name = json_str(m, "name");
    if (t == NULL) return;
    uv_mutex_lock(&l->mu);
    if (strcmp(t, "value") == 0 && key && value) {
        struct pair *p = find_or_add(&l->values, key);
        free(p->value);
        p->value = xstrdup(value);
    } else if (strcmp(t, "fence") == 0 && name) {
        find_or_add(&l->fences, name)->count++;
    } else if (strcmp(t, "stop") == 0) {
        const char *mode = json_str(m, "mode");
        int want = mode && strcmp(mode, "checkpoint") == 0 ? LINK_STOP_CHECKPOINT : LINK_STOP_NOW;
        if (want > atomic_load(&l->stop)) atomic_store(&l->stop, want);
    } else if (strcmp(t, "checkpoint") == 0) {
        atomic_store(&l->checkpoint, true);
    } else if (strcmp(t, "peer_lost") == 0) {
        const char *text = json_str(m, "text");
        if (l->lost_text[0] == '\0') (void)snprintf(l->lost_text, sizeof l->lost_text, "%s", text ? text : "another rank is gone");
        atomic_store(&l->peer_lost, true);
    }
    uv_cond_broadcast(&l->changed);
    uv_mutex_unlock(&l->mu);
}

static void on_alloc(uv_handle_t *h, size_t size, uv_buf_t *b)
{
    struct link *l = h->data;
    (void)size;
    *b = uv_buf_init(l->chunk, sizeof l->chunk);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct link *l = s->data;
    if (n > 0) line_reader_feed(&l->reader, b->base, (size_t)n, on_message, l);
    else if (n < 0) pipe_ended(l);
}

static void thread_main(void *arg)
{
    struct link *l = arg;
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, NULL);       /* signals are the main thread's; and SIGPIPE must not end us */
    (void)uv_run(&l->loop, UV_RUN_DEFAULT);
}

/* --- the worker's side --- */

int link_open(struct link **out, int fd, int rank, int world, struct error *err)
{
    struct link *l = xcalloc(1, sizeof *l);
    *out = NULL;
    l->rank = rank;
    l->world = world;
    atomic_store(&l->phase, "start");
    if (uv_mutex_init(&l->mu) < 0 || uv_cond_init(&l->changed) < 0) abort();
    if (fd < 0) {
        if (world == 1) { *out = l; return OK; }
        link_close(l);
        return error_set(err, E_INVALID, "rank %d of %d has no link to a keeper on descriptor %d; start it through ringmaster run or the daemon", rank, world, LINK_FD);
    }
    int rc = uv_loop_init(&l->loop);
    if (rc < 0) {
        link_close(l);
        return error_set(err, E_IO, "event loop of the link: %s", uv_strerror(rc));
    }
    l->pipe.data = l->wake.data = l->beat.data = l->last.data = l;
    rc = uv_pipe_init(&l->loop, &l->pipe, 0);
    if (rc == 0) rc = uv_async_init(&l->loop, &l->wake, on_wake);
    if (rc == 0) rc = uv_timer_init(&l->loop, &l->beat);
    if (rc == 0) rc = uv_timer_init(&l->loop, &l->last);
    assert(rc == 0);
    if ((rc = uv_pipe_open(&l->pipe, fd)) == 0 && (rc = uv_read_start((uv_stream_t *)&l->pipe, on_alloc, on_read)) == 0
        && (rc = uv_timer_start(&l->beat, on_beat, BEAT_MS, BEAT_MS)) == 0) {
        cJSON *o = record_of("hello");
        json_add_int(o, "rank", rank);
        json_add_int(o, "pid", getpid());
        json_add_int(o, "protocol", MESSAGE_PROTOCOL);
        size_t n;
        char *line = message_line(o, &n);
        append(l, line, n);
        free(line);
        rc = uv_thread_create(&l->thread, thread_main, l);
    }
    if (rc < 0) {
        stop_loop(l);
        (void)uv_run(&l->loop, UV_RUN_DEFAULT);
        (void)uv_loop_close(&l->loop);
        link_close(l);
        return error_set(err, E_IO, "link to the keeper on descriptor %d: %s", fd, uv_strerror(rc));
    }
    l->threaded = true;
    (void)uv_async_send(&l->wake);
    *out = l;
    return OK;
}

/* must: rendezvous is never dropped; it is small and the caller waits for it. */
static void queue_record(struct link *l, cJSON *record, bool must)
{
    size_t n;
    if (!l->threaded) { cJSON_Delete(record); return; }
    char *line = message_line(record, &n);
    uv_mutex_lock(&l->mu);
    if (n > MESSAGE_MAX || l->ended || (!must && l->queued + n > QUEUE_MAX)) l->dropped++;
    else append(l, line, n);
    uv_mutex_unlock(&l->mu);
    (void)uv_async_send(&l->wake);
    free(line);
}

void link_send(struct link *l, cJSON *record) { queue_record(l, record, false); }

void link_step(struct link *l, int64_t step, const char *phase)
{
    atomic_store(&l->step, step);
    atomic_store(&l->phase, phase);
    (void)atomic_fetch_add(&l->ticks, 1);
    failpoint_step(l->rank, step, phase);
}

/* Under mu: OK to go on waiting, else why not. */
static int wait_broken(struct link *l, const char *what, const char *name, struct error *err)
{
    if (atomic_load(&l->peer_lost) || l->ended)
        return error_set(err, E_PEER, "%s %s: %s", what, name, l->lost_text[0] ? l->lost_text : "the keeper is gone");
    if (atomic_load(&l->stop) == LINK_STOP_NOW) return error_set(err, E_STOPPED, "%s %s: asked to stop", what, name);
    return OK;
}

int link_put(struct link *l, const char *key, const char *value, struct error *err)
{
    if (strlen(key) + strlen(value) > MESSAGE_MAX / 8)
        return error_set(err, E_LIMIT, "put %s: %zu bytes, at most %d are taken", key, strlen(value), MESSAGE_MAX / 8);
    uv_mutex_lock(&l->mu);
    int rc = wait_broken(l, "put", key, err);
    if (rc == OK && !l->threaded) {
        struct pair *p = find_or_add(&l->values, key);
        free(p->value);
        p->value = xstrdup(value);
    }
    uv_mutex_unlock(&l->mu);
    if (rc != OK || !l->threaded) return rc;
    cJSON *o = record_of("put");
    json_add_str(o, "key", key);
    json_add_str(o, "value", value);
    queue_record(l, o, true);
    return OK;
}

int link_get(struct link *l, const char *key, char **value, int timeout_ms, struct error *err)
{
    uint64_t end = uv_hrtime() + (uint64_t)timeout_ms * 1000000;
    *value = NULL;
    if (l->threaded) {
        cJSON *o = record_of("get");
        json_add_str(o, "key", key);
        queue_record(l, o, true);
    }
    uv_mutex_lock(&l->mu);
    struct pair *p;
    int rc = OK;
    while ((p = find(l->values, key)) == NULL && (rc = wait_broken(l, "get", key, err)) == OK) {
        uint64_t now = uv_hrtime();
        if (!l->threaded || now >= end) {
            rc = error_set(err, E_TIMEOUT, "get %s: nobody put it within %d ms", key, l->threaded ? timeout_ms : 0);
            break;
        }
        (void)uv_cond_timedwait(&l->changed, &l->mu, end - now);
    }
    if (p) *value = xstrdup(p->value);
    uv_mutex_unlock(&l->mu);
    return p ? OK : rc;
}

int link_fence(struct link *l, const char *name, int timeout_ms, struct error *err)
{
    uint64_t end = uv_hrtime() + (uint64_t)timeout_ms * 1000000;
    if (!l->threaded) return OK;
    uv_mutex_lock(&l->mu);
    int64_t before = find_or_add(&l->fences, name)->count;
    uv_mutex_unlock(&l->mu);
    cJSON *o = record_of("fence");
    json_add_str(o, "name", name);
    queue_record(l, o, true);
    uv_mutex_lock(&l->mu);
    int rc = OK;
    while (find(l->fences, name)->count == before && (rc = wait_broken(l, "fence", name, err)) == OK) {
        uint64_t now = uv_hrtime();
        if (now >= end) {
            rc = error_set(err, E_TIMEOUT, "fence %s: not all %d ranks came within %d ms", name, l->world, timeout_ms);
            break;
        }
        (void)uv_cond_timedwait(&l->changed, &l->mu, end - now);
    }
    uv_mutex_unlock(&l->mu);
    return rc;
}

enum link_stop link_stop_wanted(const struct link *l) { return (enum link_stop)atomic_load(&l->stop); }

bool link_checkpoint_wanted(struct link *l) { return atomic_exchange(&l->checkpoint, false); }

bool link_peer_lost(const struct link *l) { return atomic_load(&l->peer_lost); }

void link_close(struct link *l)
{
    if (l == NULL) return;
    if (l->threaded) {
        uv_mutex_lock(&l->mu);
        l->closing = true;
        uv_mutex_unlock(&l->mu);
        (void)uv_async_send(&l->wake);
        (void)uv_thread_join(&l->thread);
        int rc = uv_loop_close(&l->loop);
        assert(rc == 0);
        (void)rc;
    }
    line_reader_release(&l->reader);
    free(l->writing);
    free(l->queue);
    pairs_free(l->values);
    pairs_free(l->fences);
    uv_cond_destroy(&l->changed);
    uv_mutex_destroy(&l->mu);
    free(l);
}
