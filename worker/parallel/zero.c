#include "worker/parallel/zero.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS_MAX = 8 };

struct zero {
    const struct kernel_ops *ops;
    const struct mesh *m;
    int64_t n_flat, lo, hi;
    struct zero_unit *units;
    int n_units;
    float *shard;                       /* [hi-lo] */
    float *bucket[BUCKETS_MAX];         /* in comm_memory */
    struct comm_hop *pending[BUCKETS_MAX];
    int64_t *cuts;                      /* [world+1] */
    /* The shard is in host memory, the device has its own: */
    bool staged;
    float *stage[BUCKETS_MAX];          /* this rank's piece of the bucket's unit */
    int64_t n_stage[BUCKETS_MAX];
    int away[BUCKETS_MAX];              /* the unit whose piece is there, -1: none */
    struct stream *copies;              /* made when first needed: not when planning */
    struct event *reached, *left, *here[BUCKETS_MAX];   /* s has come to; all copies have been made; a piece is in its stage */
};

void zero_shard(const struct mesh *m, int stage, int64_t n, int64_t *lo, int64_t *hi)
{
    *lo = 0;
    *hi = n;
    if (stage == 0) return;
    assert(n % m->world == 0);
    *lo = n / m->world * m->rank;
    *hi = *lo + n / m->world;
}

/* This rank's piece of the unit: elements at … of the shard. */
static void piece(const struct zero *z, int unit, int64_t *at, int64_t *n)
{
    int64_t from = z->units[unit].at, to = from + z->units[unit].n;
    if (from < z->lo) from = z->lo;
    if (to > z->hi) to = z->hi;
    *at = to > from ? from - z->lo : 0;
    *n = to > from ? to - from : 0;
}

int zero_new(struct zero **out, const struct kernel_ops *ops, const struct mesh *m, int64_t n_flat, const struct zero_unit *units, int n_units,
             struct arena *device, struct arena *shared, struct arena *host, struct error *err)
{
    (void)err;
    struct zero *z = *out = xcalloc(1, sizeof *z);
    *z = (struct zero){ .ops = ops, .m = m, .n_flat = n_flat, .n_units = n_units, .staged = host && ops != kernel_ops_cpu() };
    zero_shard(m, 2, n_flat, &z->lo, &z->hi);
    z->units = xmalloc((unsigned long)n_units * sizeof *units);
    memcpy(z->units, units, (unsigned long)n_units * sizeof *units);
    z->cuts = xmalloc((unsigned long)(m->world + 1) * sizeof *z->cuts);
    z->shard = arena_take(host ? host : device, MEM_GRADIENTS, DT_F32, z->hi - z->lo, 0, 0, 0, "gradients.shard");
    for (int b = 0; b < BUCKETS_MAX; b++) {
        int64_t most = 0, own = 0, at, n;
        for (int i = 0; i < n_units; i++) {
            if (units[i].bucket != b) continue;
            if (units[i].n > most) most = units[i].n;
            piece(z, i, &at, &n);
            if (n > own) own = n;
        }
        z->away[b] = -1;
        if (most > 0) z->bucket[b] = arena_take(shared, MEM_GRADIENTS, DT_F32, most, 0, 0, 0, "gradients.bucket%d", b);
        if (!z->staged || own == 0) continue;
        z->n_stage[b] = own;
        z->stage[b] = arena_take(device, MEM_GRADIENTS, DT_F32, own, 0, 0, 0, "gradients.stage%d", b);
    }
    return OK;
}

void zero_free(struct zero *z)
{
    if (z == NULL) return;
    for (int b = 0; b < BUCKETS_MAX; b++) z->ops->event_free(z->here[b]);
    z->ops->event_free(z->reached);
    z->ops->event_free(z->left);
    if (z->copies) z->ops->stream_free(z->copies);
    free(z->units);
    free(z->cuts);
    free(z);
}

float *zero_gradients(struct zero *z) { return z->shard; }

float *zero_largest_stage(const struct zero *z, int64_t *n)
{
    int best = 0;
    for (int b = 1; b < BUCKETS_MAX; b++)
        if (z->n_stage[b] > z->n_stage[best]) best = b;
    *n = z->n_stage[best];
    return z->stage[best];
}

int zero_clear(struct zero *z, struct stream *s, struct error *err)
{
    size_t bytes = (size_t)(z->hi - z->lo) * sizeof *z->shard;
    int rc;
    if (!z->staged) return (rc = z->ops->zero(s, z->shard, bytes)) == OK ? OK : error_set(err, (enum status)rc, "zero: %s", z->ops->error(s));
    if ((rc = z->ops->stream_wait(s, err)) == OK) memset(z->shard, 0, bytes);      /* nothing reads it any more */
    return rc;
}

/* --- a shard on the host --- */

static int open_copies(struct zero *z, struct error *err)
{
    if (!z->staged || z->copies) return OK;
    int rc = z->ops->event_new(&z->reached, err);
    if (rc == OK) rc = z->ops->event_new(&z->left, err);
    for (int b = 0; b < BUCKETS_MAX && rc == OK; b++) rc = z->ops->event_new(&z->here[b], err);
    return rc == OK ? z->ops->stream_new(&z->copies, true, err) : rc;
}

static int copied(struct zero *z, int rc, struct error *err)
{
    return rc == OK ? OK : error_set(err, (enum status)rc, "zero_offload_gradients: %s", z->ops->error(z->copies));
}

/* The unit's piece goes to its stage, behind what leaves from there: copies run in order. */
static int bring(struct zero *z, int unit, struct error *err)
{
    int b = z->units[unit].bucket;
    int64_t at, n;
    piece(z, unit, &at, &n);
    if (!z->staged || n == 0) return OK;
    z->away[b] = unit;
    int rc = z->ops->copy(z->copies, z->stage[b], z->shard + at, (size_t)n * sizeof *z->shard);
    return copied(z, rc == OK ? z->ops->event_record(z->here[b], z->copies) : rc, err);
}

/* The piece in the stage goes home once s, which has waited for its sums, comes to this point. */
static int take_home(struct zero *z, struct stream *s, int b, struct error *err)
{
    int64_t at, n;
    if (z->away[b] < 0) return OK;
    piece(z, z->away[b], &at, &n);
    z->away[b] = -1;
    int rc = z->ops->event_record(z->reached, s);
    if (rc == OK) rc = z->ops->event_wait(z->copies, z->reached);
    return copied(z, rc == OK ? z->ops->copy(z->copies, z->shard + at, z->stage[b], (size_t)n * sizeof *z->shard) : rc, err);
}

static int settle(struct zero *z, struct stream *s, int bucket, struct error *err)
{
    struct comm_hop *h = z->pending[bucket];
    z->pending[bucket] = NULL;
    int rc = comm_hop_wait(z->m->all, s, h, err);
    return rc == OK ? take_home(z, s, bucket, err) : rc;
}

/* The oldest first, as comm.h wants it: buckets are closed in turn, so at most a few are under way. */
int zero_open(struct zero *z, struct stream *s, int unit, float **grads, struct error *err)
{
    const struct zero_unit *u = &z->units[unit];
    assert(unit >= 0 && unit < z->n_units);
    *grads = z->bucket[u->bucket];
    if (u->n == 0) return OK;
    int rc = open_copies(z, err);
    if (rc == OK) rc = settle(z, s, u->bucket, err);
    if (rc == OK) rc = bring(z, unit, err);
    if (rc == OK && (rc = z->ops->zero(s, *grads, (size_t)u->n * sizeof **grads)) != OK) rc = error_set(err, (enum status)rc, "zero: %s", z->ops->error(s));
    return rc;
}

int zero_close(struct zero *z, struct stream *s, int unit, struct error *err)
{
    const struct zero_unit *u = &z->units[unit];
    if (u->n == 0) return OK;
    int64_t per = z->n_flat / z->m->world, end = u->at + u->n;
    for (int p = 0; p <= z->m->world; p++) z->cuts[p] = per * p < u->at ? u->at : per * p > end ? end : per * p;
    int64_t at, n;
    piece(z, unit, &at, &n);
    float *out = z->staged ? z->stage[u->bucket] : z->shard + at;
    assert(z->pending[u->bucket] == NULL);
    if (z->staged && n > 0) {
        int rc = z->ops->event_wait(s, z->here[u->bucket]);
        if (rc != OK) return error_set(err, (enum status)rc, "zero_offload_gradients: %s", z->ops->error(s));
    }
    return comm_reduce_pieces_start(z->m->all, s, out, z->bucket[u->bucket], z->cuts, &z->pending[u->bucket], err);
}

int zero_finish(struct zero *z, struct stream *s, struct error *err)
{
    int rc = OK;
    for (int b = 0; b < BUCKETS_MAX && rc == OK; b++) rc = settle(z, s, b, err);
    if (rc == OK && z->copies) {
        rc = z->ops->event_record(z->left, z->copies);
        rc = copied(z, rc == OK ? z->ops->event_wait(s, z->left) : rc, err);
    }
    return rc;
}

/* --- stage 3 --- */

struct zero_weights {
    const struct kernel_ops *ops;
    const struct mesh *m;
    enum dtype dt;
    int64_t n, lo, hi;
    struct zero_unit *units;
    int n_units;
    char *shard;                        /* [hi-lo], in comm_memory */
    char *whole;                        /* [n] on the host, while collected */
    char *bucket[BUCKETS_MAX];
    int holds[BUCKETS_MAX], users[BUCKETS_MAX];     /* unit in the bucket or on its way, -1: none; opens not yet closed */
    struct comm_hop *pending[BUCKETS_MAX];
    int64_t *cuts;
};

int zero_weights_new(struct zero_weights **out, const struct kernel_ops *ops, const struct mesh *m, enum dtype dt, int64_t n, const struct zero_unit *units, int n_units,
                     struct arena *device, struct arena *shared, struct error *err)
{
    (void)err;
    struct zero_weights *z = *out = xcalloc(1, sizeof *z);
    *z = (struct zero_weights){ .ops = ops, .m = m, .dt = dt, .n = n, .n_units = n_units };
    zero_shard(m, 3, n, &z->lo, &z->hi);
    z->units = xmalloc((unsigned long)n_units * sizeof *units);
    memcpy(z->units, units, (unsigned long)n_units * sizeof *units);
    z->cuts = xmalloc((unsigned long)(m->world + 1) * sizeof *z->cuts);
    z->shard = arena_take(shared, MEM_WEIGHTS, dt, z->hi - z->lo, 0, 0, 0, "weights.shard");
    for (int b = 0; b < BUCKETS_MAX; b++) {
        int64_t most = 0;
        z->holds[b] = -1;
        for (int i = 0; i < n_units; i++)
            if (units[i].bucket == b && units[i].n > most) most = units[i].n;
        if (most > 0) z->bucket[b] = arena_take(device, MEM_WEIGHTS, dt, most, 0, 0, 0, "weights.bucket%d", b);
    }
    return OK;
}

void zero_weights_free(struct zero_weights *z)
{
    if (z == NULL) return;
    zero_weights_drop(z);
    free(z->units);
    free(z->cuts);
    free(z);
}

void *zero_weights_shard(struct zero_weights *z, int64_t *lo, int64_t *hi)
{
    *lo = z->lo;
    *hi = z->hi;
    return z->shard;
}

/* The unit is in its bucket or on its way there. */
static int fetch(struct zero_weights *z, struct stream *s, int unit, struct error *err)
{
    const struct zero_unit *u = &z->units[unit];
    int b = u->bucket;
    if (u->n == 0 || z->holds[b] == unit) return OK;
    assert(z->users[b] == 0 && z->pending[b] == NULL);
    int64_t per = z->n / z->m->world, end = u->at + u->n;
    for (int p = 0; p <= z->m->world; p++) z->cuts[p] = per * p < u->at ? u->at : per * p > end ? end : per * p;
    int64_t from = z->cuts[z->m->rank] > z->lo ? z->cuts[z->m->rank] - z->lo : 0;
    z->holds[b] = unit;
    return comm_gather_pieces_start(z->m->all, s, z->dt, z->bucket[b], z->shard + (size_t)from * dtype_size(z->dt), z->cuts, &z->pending[b], err);
}

static int arrived(struct zero_weights *z, struct stream *s, int b, struct error *err)
{
    struct comm_hop *h = z->pending[b];
    z->pending[b] = NULL;
    return comm_hop_wait(z->m->all, s, h, err);
}

int zero_weights_open(struct zero_weights *z, struct stream *s, int unit, int next, void **w, struct error *err)
{
    int b = z->units[unit].bucket;
    *w = z->bucket[b];
    int rc = OK;
    if (z->holds[b] != unit && z->pending[b]) rc = arrived(z, s, b, err);       /* fetched ahead and not needed after all */
    if (rc == OK) rc = fetch(z, s, unit, err);
    if (rc == OK) rc = arrived(z, s, b, err);
    z->users[b]++;
    if (rc == OK && next >= 0) {
        int c = z->units[next].bucket;
        if (z->users[c] == 0 && z->pending[c] == NULL) rc = fetch(z, s, next, err);
    }
    return rc;
}

void zero_weights_close(struct zero_weights *z, int unit)
{
    int b = z->units[unit].bucket;
    assert(z->users[b] > 0);
    z->users[b]--;
}

int zero_weights_changed(struct zero_weights *z, struct stream *s, struct error *err)
{
    int rc = OK;
    for (int b = 0; b < BUCKETS_MAX; b++) {
        assert(z->users[b] == 0);
        if (rc == OK) rc = arrived(z, s, b, err);
        z->holds[b] = -1;
    }
    return rc;
}

void zero_weights_drop(struct zero_weights *z)
{
    free(z->whole);
    z->whole = NULL;
}

int zero_weights_collect(struct zero_weights *z, struct stream *s, bool keep, struct error *err)
{
    size_t size = dtype_size(z->dt);
    const struct mesh *m = z->m;
    zero_weights_drop(z);
    if (comm_peer_memory(m->all, m->rank == 0 ? m->world - 1 : 0) != NULL) return OK;
    if (keep) z->whole = xmalloc((unsigned long)z->n * size);
    for (int i = 0; i < z->n_units; i++) {
        const struct zero_unit *u = &z->units[i];
        void *w;
        int rc = zero_weights_open(z, s, i, -1, &w, err);
        if (rc == OK) rc = z->ops->stream_wait(s, err);         /* first: a copy into pageable memory watches no peer */
        if (rc == OK && keep && u->n > 0 && (rc = z->ops->copy(s, z->whole + (size_t)u->at * size, w, (size_t)u->n * size)) != OK)
            rc = error_set(err, (enum status)rc, "collecting weights: %s", z->ops->error(s));
        if (rc == OK) rc = z->ops->stream_wait(s, err);
        zero_weights_close(z, i);
        if (rc != OK) return rc;
    }
    return OK;
}

int zero_weights_read(struct zero_weights *z, struct stream *s, void *out, int64_t at, int64_t n, struct error *err)
{
    size_t size = dtype_size(z->dt);
    int64_t per = z->n / z->m->world, place = z->shard - (const char *)comm_peer_memory(z->m->all, z->m->rank);     /* the same on every rank */
    (void)s;
    if (z->whole) {
        memcpy(out, z->whole + (size_t)at * size, (size_t)n * size);
        return OK;
    }
    for (int64_t done = 0; done < n;) {
        int p = (int)((at + done) / per);
        int64_t from = (at + done) % per, m = n - done < per - from ? n - done : per - from;
        const char *memory = comm_peer_memory(z->m->all, p);
        if (memory == NULL || z->ops != kernel_ops_cpu()) return error_set(err, E_INTERNAL, "zero_stage 3: weights of rank %d were not collected before they were read", p);
        memcpy((char *)out + (size_t)done * size, memory + place + (size_t)from * size, (size_t)m * size);
        done += m;
    }
    return OK;
}
