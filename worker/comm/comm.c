/* comm.c - the one place through which every collective passes: it checks, counts and times, then calls the transport.
 *
 * A group of one rank never reaches a transport: here are the copies such a call still owes. */
#include "worker/comm/transport.h"
#include "worker/failpoint.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Exchange memory of a single rank is where its tensors are. */
static bool on_device(const struct comm_world *w) { return w->ops && strcmp(w->ops->name, "cuda") == 0; }

int comm_open_with(struct comm_world **out, const struct comm_transport *t, const struct kernel_ops *ops, const struct comm_meeting *meeting,
                   int rank, int world, int64_t shared_bytes, int deadline_ms, struct error *err)
{
    assert(world >= 1 && rank >= 0 && rank < world && shared_bytes >= 0);
    struct comm_world *w = xcalloc(1, sizeof *w);
    *w = (struct comm_world){ .t = t, .ops = ops, .rank = rank, .world = world, .shared_bytes = shared_bytes };
    if (meeting) w->meeting = *meeting;
    int rc = OK;
    if (on_device(w) && world == 1) {
        void *m = NULL;
        rc = ops->mem_alloc(&m, (size_t)shared_bytes, err);
        w->memory = m;
    } else if (world == 1) {                /* nobody to share with: plain zeroed memory, which costs nothing until touched */
        if (shared_bytes > 0) {
            void *m = mmap(NULL, (size_t)shared_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (m == MAP_FAILED)
                rc = error_set(err, E_NOMEM, "no memory for %lld bytes of exchange buffers", (long long)shared_bytes);
            else
                w->memory = m;
        }
    } else {
        assert(meeting != NULL && deadline_ms > 0);
        rc = t->open(w, shared_bytes, deadline_ms, err);
    }
    if (rc != OK) {
        comm_close(w);
        w = NULL;
    }
    *out = w;
    return rc;
}

void comm_close(struct comm_world *w)
{
    if (w == NULL) return;
    while (w->groups) {
        struct comm *c = w->groups;
        w->groups = c->next;
        if (c->n > 1 && w->t->group_free) w->t->group_free(c);
        free(c->ranks);
        free(c);
    }
    if (w->world > 1)
        w->t->close(w);
    else if (w->memory && on_device(w))
        w->ops->mem_free(w->memory, (size_t)w->shared_bytes);
    else if (w->memory)
        (void)munmap(w->memory, (size_t)w->shared_bytes);
    free(w->door);
    free(w);
}

void *comm_memory(struct comm_world *w) { return w->memory; }
int comm_size(const struct comm *c) { return c->n; }

void comm_counts(struct comm_world *w, struct comm_count out[COMM_KINDS])
{
    if (w->world > 1 && w->t->settle) w->t->settle(w);
    memcpy(out, w->counts, sizeof w->counts);
}

int comm_group(struct comm **out, struct comm_world *w, const int *ranks, int n, struct error *err)
{
    struct comm *c = xcalloc(1, sizeof *c);
    *c = (struct comm){ .w = w, .n = n, .me = -1, .ranks = xmalloc(sizeof *ranks * (unsigned long)n) };
    memcpy(c->ranks, ranks, sizeof *ranks * (unsigned long)n);
    for (int i = 0; i < n; i++) {
        assert(ranks[i] >= 0 && ranks[i] < w->world && (i == 0 || ranks[i] > ranks[i - 1]));
        if (ranks[i] == w->rank) c->me = i;
    }
    assert(c->me >= 0);
    int rc = n > 1 && w->t->group ? w->t->group(c, err) : OK;
    if (rc != OK) {
        free(c->ranks);
        free(c);
        *out = NULL;
        return rc;
    }
    c->next = w->groups;
    w->groups = c;
    *out = c;
    return OK;
}

/* A call's clock: started before the transport runs, stopped after. */
static double call_start(struct comm_world *w)
{
    failpoint("exchange");
    w->late_s = 0;
    return monotonic_s();
}

static void call_end(struct comm_world *w, enum comm_kind kind, int64_t bytes, double started)
{
    struct comm_count *n = &w->counts[kind];
    n->calls++;
    n->bytes += bytes;
    if (w->t->async) return;
    double took = monotonic_s() - started;
    n->busy_s += took;
    n->exposed_s += took;
    n->late_s += w->late_s;
}

/* Within one rank; the CPU table's copy is memcpy, a device's runs on the stream. */
static int local_copy(struct comm *c, struct stream *s, void *dst, const void *src, int64_t bytes, struct error *err)
{
    if (dst == src || bytes == 0) return OK;
    if (c->w->ops == NULL || s == NULL) {
        memmove(dst, src, (size_t)bytes);
        return OK;
    }
    int rc = c->w->ops->copy(s, dst, src, (size_t)bytes);
    return rc == OK ? OK : error_set(err, rc, "copy of %lld bytes: %s", (long long)bytes, c->w->ops->error(s));
}

int comm_all_to_all_parts(struct comm *c, struct stream *s, const struct comm_part *parts, int n_parts, struct error *err)
{
    assert(n_parts >= 1 && n_parts <= COMM_PARTS_MAX);
    int64_t bytes = 0;
    struct comm_part full[COMM_PARTS_MAX];
    for (int i = 0; i < n_parts; i++) {
        full[i] = parts[i];
        bytes += full[i].slice_bytes;
        if (full[i].recv_stride == 0) full[i].recv_stride = full[i].slice_bytes;
        if (full[i].send_stride == 0) full[i].send_stride = full[i].slice_bytes;
        assert(full[i].recv_stride >= full[i].slice_bytes && full[i].send_stride >= full[i].slice_bytes);
    }
    if (bytes == 0) return OK;
    if (c->n == 1) {
        int rc = OK;
        for (int i = 0; i < n_parts && rc == OK; i++) rc = local_copy(c, s, parts[i].recv, parts[i].send, parts[i].slice_bytes, err);
        return rc;
    }
    double t0 = call_start(c->w);
    int rc = c->w->t->all_to_all(c, s, full, n_parts, err);
    call_end(c->w, COMM_ALL_TO_ALL, (c->n - 1) * bytes, t0);
    return rc;
}

int comm_all_to_all(struct comm *c, struct stream *s, void *recv, const void *send, int64_t slice_bytes, struct error *err)
{
    struct comm_part p = { .recv = recv, .send = send, .slice_bytes = slice_bytes };
    return comm_all_to_all_parts(c, s, &p, 1, err);
}

/* Counts a transfer that goes on in the background. */
static int started(struct comm *c, enum comm_kind kind, int64_t bytes, double t0, struct comm_hop *h, int rc)
{
    struct comm_count *n = &c->w->counts[kind];
    if (h) h->kind = kind;
    n->calls++;
    n->bytes += bytes;
    if (!c->w->t->async) n->exposed_s += monotonic_s() - t0;
    return rc;
}

int comm_hop_start(struct comm *c, struct stream *s, void *recv, const void *send, int64_t bytes, struct comm_hop **h, struct error *err)
{
    *h = NULL;
    if (bytes == 0 || (recv == NULL && send == NULL)) return OK;
    if (c->n == 1) return recv && send ? local_copy(c, s, recv, send, bytes, err) : OK;
    failpoint("exchange");
    double t0 = monotonic_s();
    int rc = c->w->t->hop_start(c, s, recv, send, bytes, h, err);
    return started(c, COMM_HOP, send ? bytes : 0, t0, *h, rc);
}

int comm_reduce_pieces_start(struct comm *c, struct stream *s, float *out, const float *in, const int64_t *cuts, struct comm_hop **h, struct error *err)
{
    *h = NULL;
    int64_t all = cuts[c->n] - cuts[0], mine = cuts[c->me + 1] - cuts[c->me];
    if (all == 0) return OK;
    if (c->n == 1) {
        const struct kernel_ops *ops = c->w->ops;
        int rc = ops->axpy(s, DT_F32, out, DT_F32, in, 1.0f, all);
        return rc == OK ? OK : error_set(err, rc, "axpy: %s", ops->error(s));
    }
    if (c->w->t->reduce_pieces_start == NULL) return error_set(err, E_UNSUPPORTED, "the %s transport has no background reductions", c->w->t->name);
    double t0 = monotonic_s();
    int rc = c->w->t->reduce_pieces_start(c, s, out, in, cuts, h, err);
    return started(c, COMM_REDUCE_SCATTER, (all - mine) * (int64_t)sizeof *in, t0, *h, rc);
}

int comm_gather_pieces_start(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, const int64_t *cuts, struct comm_hop **h, struct error *err)
{
    *h = NULL;
    int64_t size = (int64_t)dtype_size(dt), all = cuts[c->n] - cuts[0], mine = cuts[c->me + 1] - cuts[c->me];
    if (all == 0) return OK;
    if (c->n == 1) return local_copy(c, s, out, in, all * size, err);
    if (c->w->t->gather_pieces_start == NULL) return error_set(err, E_UNSUPPORTED, "the %s transport has no background gathering", c->w->t->name);
    double t0 = monotonic_s();
    int rc = c->w->t->gather_pieces_start(c, s, dt, out, in, cuts, h, err);
    return started(c, COMM_ALL_GATHER, (c->n - 1) * mine * size, t0, *h, rc);
}

int comm_hop_wait(struct comm *c, struct stream *s, struct comm_hop *h, struct error *err)
{
    if (h == NULL) return OK;
    double t0 = monotonic_s(), busy = 0, late = 0;
    enum comm_kind kind = h->kind;
    int rc = c->w->t->hop_wait(c, s, h, &busy, &late, err);
    if (!c->w->t->async) {
        struct comm_count *n = &c->w->counts[kind];
        n->exposed_s += monotonic_s() - t0;
        n->busy_s += busy;
        n->late_s += late;
    }
    return rc;
}

int comm_all_reduce(struct comm *c, struct stream *s, enum dtype dt, void *x, int64_t count, struct error *err)
{
    assert(dt == DT_F32 || dt == DT_F64 || dt == DT_BF16);
    if (c->n == 1 || count == 0) return OK;
    double t0 = call_start(c->w);
    int rc = c->w->t->all_reduce(c, s, dt, x, count, err);
    call_end(c->w, COMM_ALL_REDUCE, 2 * (c->n - 1) * ((count + c->n - 1) / c->n) * (int64_t)dtype_size(dt), t0);
    return rc;
}

int comm_reduce_scatter(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, int64_t count, struct error *err)
{
    assert(dt == DT_F32 || dt == DT_F64 || dt == DT_BF16);
    if (count == 0) return OK;
    if (c->n == 1) return local_copy(c, s, out, in, count * (int64_t)dtype_size(dt), err);
    double t0 = call_start(c->w);
    int rc = c->w->t->reduce_scatter(c, s, dt, out, in, count, err);
    call_end(c->w, COMM_REDUCE_SCATTER, (c->n - 1) * count * (int64_t)dtype_size(dt), t0);
    return rc;
}

int comm_all_gather(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, int64_t count, struct error *err)
{
    if (count == 0) return OK;
    if (c->n == 1) return local_copy(c, s, out, in, count * (int64_t)dtype_size(dt), err);
    double t0 = call_start(c->w);
    int rc = c->w->t->all_gather(c, s, dt, out, in, count, err);
    call_end(c->w, COMM_ALL_GATHER, (c->n - 1) * count * (int64_t)dtype_size(dt), t0);
    return rc;
}

int comm_broadcast(struct comm *c, struct stream *s, void *x, int64_t bytes, int root, struct error *err)
{
    assert(root >= 0 && root < c->n);
    if (c->n == 1 || bytes == 0) return OK;
    double t0 = call_start(c->w);
    int rc = c->w->t->broadcast(c, s, x, bytes, root, err);
    call_end(c->w, COMM_BROADCAST, c->me == root ? (c->n - 1) * bytes : 0, t0);
    return rc;
}

int comm_barrier(struct comm *c, struct error *err)
{
    if (c->n == 1) return OK;
    double t0 = call_start(c->w);
    int rc = c->w->t->barrier(c, err);
    call_end(c->w, COMM_BARRIER, 0, t0);
    return rc;
}

const void *comm_peer_memory(const struct comm *c, int p)
{
    assert(p >= 0 && p < c->n);
    if (p == c->me) return c->w->memory;
    return c->w->t->peer_memory ? c->w->t->peer_memory(c, p) : NULL;
}
