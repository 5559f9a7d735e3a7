/* Attention over the group against a plain O(T^2) loop over the whole row, for random shapes, degrees and documents; and the
 * bytes every rank sent against the formulas. Eight ranks are forked once and run all configurations; ranks a configuration does not
 * need stand aside. RM_SEED=n runs configuration n alone. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/comm/ranks.h"
#include "worker/parallel/attention.h"
#include "tests/suite.h"

enum { WORLD = 8, CONFIGS = 200, MEMORY = 8 << 20 };

struct config {
    enum dtype dt;
    int U, R;
    int64_t H, Hkv, D, T, window, n_docs, cu[64];
    bool overlap, keep_all, kept_before;        /* kept_before: only o and lse kept, q k v fetched again */
    int64_t limit, hop;                         /* of an exchange, of a hop: bytes */
};

static uint64_t state;
static int64_t pick(int64_t lo, int64_t hi)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return lo + (int64_t)(state % (uint64_t)(hi - lo + 1));
}

static struct config random_config(int seed, enum dtype dt)
{
    state = 0x9E3779B97F4A7C15u * (uint64_t)(seed + 1);
    for (int i = 0; i < 8; i++) (void)pick(0, 1);
    static const int64_t groups[] = { 1, 1, 2, 3, 4 };
    struct config c = { .dt = dt };
    do {
        c.Hkv = pick(1, 4);
        c.H = c.Hkv * groups[pick(0, 4)];
        c.U = (int)pick(1, 8);
        c.R = (int)pick(1, 8);
    } while (c.U * c.R > WORLD || c.H % c.U != 0 || (c.Hkv % c.U != 0 && c.U % c.Hkv != 0));
    c.D = 2 * pick(1, 5);
    c.T = c.U * c.R * pick(1, 64 / (c.U * c.R));
    c.window = pick(0, 4) == 0 ? pick(1, 20) : 0;
    c.overlap = pick(0, 1);
    c.keep_all = pick(0, 1);
    int64_t longest = pick(0, 1) ? 64 : 8;
    for (; c.cu[c.n_docs] < c.T; c.n_docs++) {
        int64_t end = c.cu[c.n_docs] + pick(c.n_docs > 40, longest);
        c.cu[c.n_docs + 1] = end < c.T && c.n_docs < 60 ? end : c.T;
    }
    c.limit = pick(0, 1) ? pick(1, 4000) : 0;
    c.hop = pick(0, 1) ? pick(1, 4000) : 0;
    return c;
}

static void describe(const struct config *c, int seed, int rank, const char *what)
{
    (void)fprintf(stderr, "seed %d rank %d: %s (%s U %d R %d H %lld Hkv %lld D %lld T %lld docs %lld window %lld overlap %d limits %lld %lld)\n", seed, rank, what,
                  dtype_name(c->dt), c->U, c->R, (long long)c->H, (long long)c->Hkv, (long long)c->D, (long long)c->T, (long long)c->n_docs,
                  (long long)c->window, c->overlap, (long long)c->limit, (long long)c->hop);
}

/* Element i of tensor `which`: in [-1, 1], different everywhere. */
static double value(int seed, int which, int64_t i)
{
    uint64_t x = (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u + (uint64_t)(seed * 8 + which) * 0xD1B54A32D192ED03u;
    x ^= x >> 31, x *= 0xBF58476D1CE4E5B9u, x ^= x >> 29;
    return (double)(x >> 11) * 0x1p-52 - 1.0;
}

static double get(enum dtype dt, const void *p, int64_t i) { return dt == DT_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i]; }
static void set(enum dtype dt, void *p, int64_t i, double x)
{
    if (dt == DT_F64) ((double *)p)[i] = x;
    else ((float *)p)[i] = (float)x;
}

/* The whole row in fp64: out, dq, dk, dv of rotated attention, by definition. */
struct truth { double *q, *k, *v, *dout, *out, *dq, *dk, *dv; };

static void rotate(double *x, int64_t D, const float *c, const float *s, bool back)
{
    for (int64_t i = 0; i < D / 2; i++) {
        double a = x[i], b = x[i + D / 2], sn = back ? -(double)s[i] : (double)s[i];
        x[i] = a * (double)c[i] - b * sn;
        x[i + D / 2] = b * (double)c[i] + a * sn;
    }
}

/* Seeds from 2000 on: logits in the hundreds, where a merge through exp() overflows (EasyContext #14). */
static double amplitude(int seed, int which) { return seed >= 2000 && which < 2 ? 30 : 1; }

static double *filled(int seed, int which, int64_t n, enum dtype dt)
{
    double *x = xmalloc((unsigned long)n * 8);
    for (int64_t i = 0; i < n; i++) x[i] = amplitude(seed, which) * (dt == DT_F32 ? (double)(float)value(seed, which, i) : value(seed, which, i));
    return x;
}

static double *doubled(const double *x, int64_t n)
{
    double *y = xcalloc((unsigned long)n, 8);
    if (x) memcpy(y, x, (size_t)n * 8);
    return y;
}

static struct truth find_truth(const struct config *c, int seed, const float *cosines, const float *sines)
{
    int64_t H = c->H, K = c->Hkv, D = c->D, T = c->T;
    struct truth t = { filled(seed, 0, T * H * D, c->dt), filled(seed, 1, T * K * D, c->dt), filled(seed, 2, T * K * D, c->dt),
                       filled(seed, 3, T * H * D, c->dt), doubled(NULL, T * H * D), doubled(NULL, T * H * D), doubled(NULL, T * K * D), doubled(NULL, T * K * D) };
    double *q = doubled(t.q, T * H * D), *k = doubled(t.k, T * K * D), *p = xmalloc((unsigned long)T * 8), scale = (double)(float)(1 / sqrt((double)D));
    for (int64_t n = 0; n < T; n++) {
        for (int64_t h = 0; h < H; h++) rotate(q + (n * H + h) * D, D, cosines + n * D / 2, sines + n * D / 2, false);
        for (int64_t h = 0; h < K; h++) rotate(k + (n * K + h) * D, D, cosines + n * D / 2, sines + n * D / 2, false);
    }
    for (int64_t d = 0; d < c->n_docs; d++) {
        for (int64_t a = c->cu[d]; a < c->cu[d + 1]; a++) {
            int64_t b0 = c->window && a - c->window + 1 > c->cu[d] ? a - c->window + 1 : c->cu[d];
            for (int64_t h = 0; h < H; h++) {
                int64_t g = h * K / H, qa = (a * H + h) * D;
                double most = -INFINITY, sum = 0, delta = 0;
                for (int64_t b = b0; b <= a; b++) {
                    p[b] = 0;
                    for (int64_t i = 0; i < D; i++) p[b] += q[qa + i] * k[(b * K + g) * D + i] * scale;
                    most = fmax(most, p[b]);
                }
                for (int64_t b = b0; b <= a; b++) sum += p[b] = exp(p[b] - most);
                for (int64_t b = b0; b <= a; b++)
                    for (int64_t i = 0; i < D; i++) t.out[qa + i] += p[b] / sum * t.v[(b * K + g) * D + i];
                for (int64_t i = 0; i < D; i++) delta += t.out[qa + i] * t.dout[qa + i];
                for (int64_t b = b0; b <= a; b++) {
                    int64_t kb = (b * K + g) * D;
                    double dp = 0, w = p[b] / sum;
                    for (int64_t i = 0; i < D; i++) dp += t.dout[qa + i] * t.v[kb + i];
                    for (int64_t i = 0; i < D; i++) {
                        t.dv[kb + i] += w * t.dout[qa + i];
                        t.dq[qa + i] += scale * w * (dp - delta) * k[kb + i];
                        t.dk[kb + i] += scale * w * (dp - delta) * q[qa + i];
                    }
                }
            }
        }
    }
    for (int64_t n = 0; n < T; n++) {
        for (int64_t h = 0; h < H; h++) rotate(t.dq + (n * H + h) * D, D, cosines + n * D / 2, sines + n * D / 2, true);
        for (int64_t h = 0; h < K; h++) rotate(t.dk + (n * K + h) * D, D, cosines + n * D / 2, sines + n * D / 2, true);
    }
    free(q);
    free(k);
    free(p);
    return t;
}

static void truth_release(struct truth *t)
{
    free(t->q), free(t->k), free(t->v), free(t->dout), free(t->out), free(t->dq), free(t->dk), free(t->dv);
}

/* Largest difference of this rank's rows from the truth's, relative to the truth's largest value, or to `least` where that is larger: dq and dk are sums of
 * P dP k and -P delta k, each about 0.1 here, which cancel altogether where every query sees one key. */
static double off(enum dtype dt, const void *got, const double *want, const int64_t *index, int64_t n, int64_t T, int64_t width, double least)
{
    double most = 0, big = least;
    for (int64_t i = 0; i < T * width; i++) big = fmax(big, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) {
            double d = fabs(get(dt, got, i * width + j) - want[index[i] * width + j]);
            if (!(d <= most)) most = d;
        }
    return most / big;
}

static void take_local(enum dtype dt, void *to, const double *from, const int64_t *index, int64_t n, int64_t width)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) set(dt, to, i * width + j, from[index[i] * width + j]);
}

static int64_t sent(struct comm_world *w)
{
    struct comm_count n[COMM_KINDS];
    int64_t bytes = 0;
    comm_counts(w, n);
    for (int i = 0; i < COMM_KINDS; i++) bytes += n[i].bytes;
    return bytes;
}

/* One rank's side of one configuration, ready to run. */
struct bench {
    struct mesh m;
    struct layout l;
    struct attn_group *g;
    struct stream *s;
    char *device, *host;
    float *cosines, *sines, *lc, *ls;           /* of the row; of this rank */
    int64_t Tl, *index;
    void *q, *k, *v, *dout, *out, *dq, *dk, *dv;
    struct attn_kept kept;
};

static void *room(const struct config *c, int64_t n) { return xcalloc((unsigned long)n + 1, dtype_size(c->dt)); }

static int bench_open(struct bench *b, const struct config *c, struct comm_world *w, int rank, struct error *err)
{
    const struct kernel_ops *ops = kernel_ops_cpu();
    *b = (struct bench){ .m = { .world = WORLD, .rank = rank, .dp = 1, .R = c->R, .U = c->U, .r = rank / c->U, .u = rank % c->U } };
    int ranks[WORLD];
    for (int i = 0; i < c->U; i++) ranks[i] = b->m.r * c->U + i;
    int rc = comm_group(&b->m.uly, w, ranks, c->U, err);
    for (int i = 0; i < c->R; i++) ranks[i] = i * c->U + b->m.u;
    if (rc == OK) rc = comm_group(&b->m.ring, w, ranks, c->R, err);
    if (rc == OK) rc = ops->stream_new(&b->s, true, err);
    if (rc == OK) rc = layout_build(&b->l, c->cu, c->n_docs, c->T, c->R, c->U, err);
    if (rc != OK) return rc;
    b->Tl = c->T / c->R / c->U;
    b->index = xmalloc((unsigned long)b->Tl * 8);
    layout_index(&b->l, b->m.r, b->m.u, b->index);
    int64_t half = c->D / 2;
    b->cosines = xmalloc((unsigned long)(c->T * half) * 4);
    b->sines = xmalloc((unsigned long)(c->T * half) * 4);
    b->lc = xmalloc((unsigned long)(b->Tl * half) * 4);
    b->ls = xmalloc((unsigned long)(b->Tl * half) * 4);
    for (int64_t d = 0; d < c->n_docs; d++)
        for (int64_t t = c->cu[d]; t < c->cu[d + 1]; t++)
            for (int64_t i = 0; i < half; i++) {
                double a = (double)(t - c->cu[d]) * pow(100.0, -(double)i / (double)half);
                b->cosines[t * half + i] = (float)cos(a);
                b->sines[t * half + i] = (float)sin(a);
            }
    for (int64_t i = 0; i < b->Tl; i++) {
        memcpy(b->lc + i * half, b->cosines + b->index[i] * half, (size_t)half * 4);
        memcpy(b->ls + i * half, b->sines + b->index[i] * half, (size_t)half * 4);
    }
    b->device = aligned_alloc(4096, MEMORY);
    b->host = aligned_alloc(4096, MEMORY);
    struct arena device, shared, host;
    arena_init(&device, PLACE_DEVICE, b->device, MEMORY);
    arena_init(&host, PLACE_HOST, b->host, MEMORY);
    arena_init(&shared, PLACE_SHARED, comm_memory(w), MEMORY);
    struct attn_dims d = { c->dt, c->H, c->Hkv, c->D, c->T + 0, c->n_docs, c->window, (float)(1 / sqrt((double)c->D)), c->overlap, c->limit, c->hop };
    rc = attn_group_new(&b->g, ops, &b->m, d, &device, &shared, &host, err);
    if (rc == OK) rc = attn_group_row(b->g, b->s, &b->l, b->lc, b->ls, err);
    int64_t Tr, hq, hk, wide = b->Tl * c->H * c->D, narrow = b->Tl * c->Hkv * c->D;
    attn_kept_shape(b->g, &Tr, &hq, &hk);
    b->q = room(c, wide), b->k = room(c, narrow), b->v = room(c, narrow), b->dout = room(c, wide), b->out = room(c, wide);
    b->dq = room(c, wide), b->dk = room(c, narrow), b->dv = room(c, narrow);
    b->kept = (struct attn_kept){ room(c, Tr * hq * c->D), room(c, Tr * hk * c->D), room(c, Tr * hk * c->D), room(c, Tr * hq) };
    return rc;
}

static void bench_close(struct bench *b)
{
    attn_group_free(b->g);
    layout_release(&b->l);
    kernel_ops_cpu()->stream_free(b->s);
    free(b->index), free(b->cosines), free(b->sines), free(b->lc), free(b->ls), free(b->device), free(b->host);
    free(b->q), free(b->k), free(b->v), free(b->dout), free(b->out), free(b->dq), free(b->dk), free(b->dv);
    free(b->kept.q), free(b->kept.k), free(b->kept.v), free(b->kept.lse);
}

static int one_config(const struct config *c, struct comm_world *w, int rank, int seed)
{
    struct error err = { 0 };
    struct bench b;
    char what[1200] = "";
    int rc = bench_open(&b, c, w, rank, &err);
    if (rc != OK) {
        describe(c, seed, rank, err.text);
        return 1;
    }
    int64_t K = c->Hkv > c->U ? c->Hkv : c->U, bytes = (int64_t)dtype_size(c->dt), wide = c->H * c->D, narrow = c->Hkv * c->D;
    struct truth t = find_truth(c, seed, b.cosines, b.sines);
    take_local(c->dt, b.q, t.q, b.index, b.Tl, wide);
    take_local(c->dt, b.k, t.k, b.index, b.Tl, narrow);
    take_local(c->dt, b.v, t.v, b.index, b.Tl, narrow);
    take_local(c->dt, b.dout, t.dout, b.index, b.Tl, wide);
    int64_t at0 = sent(w), at1, at2, at3, fwd, refetch, bwd, most_fwd, most_refetch, most_bwd;
    struct attn_kept some = b.kept;
    if (!c->keep_all) some.q = NULL;
    if (!c->keep_all && c->R == 1) some.k = some.v = NULL;
    rc = attn_group_fwd(b.g, b.s, b.out, b.q, b.k, b.v, &some, &err);
    at2 = at1 = sent(w);
    if (rc == OK && !c->keep_all) {
        rc = attn_group_refetch(b.g, b.s, b.q, b.k, b.v, &b.kept, &err);
        at2 = sent(w);
    }
    if (rc == OK) rc = attn_group_bwd(b.g, b.s, b.dq, b.dk, b.dv, b.dout, b.out, &b.kept, &err);
    at3 = sent(w);
    attn_group_row_bytes(b.g, &fwd, &refetch, &bwd);
    attn_group_bytes(b.g, c->T, &most_fwd, &most_refetch, &most_bwd);
    double limit = seed >= 2000 ? 1e-8 : c->dt == DT_F64 ? 1e-12 : 1e-6;      /* one-hot softmax: gradients are differences that cancel */
    double e[4] = { off(c->dt, b.out, t.out, b.index, b.Tl, c->T, wide, 1e-30), off(c->dt, b.dq, t.dq, b.index, b.Tl, c->T, wide, 0.1),
                    off(c->dt, b.dk, t.dk, b.index, b.Tl, c->T, narrow, 0.1), off(c->dt, b.dv, t.dv, b.index, b.Tl, c->T, narrow, 1e-30) };
    /* algorithms.md section 6, hybrid row, written out: n local tokens, K' kv heads after replication */
    int64_t n = b.Tl, S_R = c->T / c->R, a2a = bytes * c->D * n * (2 * c->H + 2 * K) * (c->U - 1) / c->U, acc = c->dt == DT_F64 ? 8 : 4;
    int64_t ring_fwd = 2 * (K / c->U) * c->D * bytes * S_R * (c->R - 1), ring_bwd = 2 * (K / c->U) * c->D * S_R * (bytes * (c->R - 1) + acc * c->R);
    if (c->R == 1) ring_bwd = 0;
    ring_bwd += acc * n * c->H * (c->U - 1) / c->U;             /* delta */
    bool dense = c->n_docs == 1 && c->window == 0 && c->T >= 2 * c->R;
    if (rc != OK)
        (void)snprintf(what, sizeof what, "%s", err.text);
    else if (!(e[0] <= limit && e[1] <= limit && e[2] <= limit && e[3] <= limit))
        (void)snprintf(what, sizeof what, "relative errors: out %.2g dq %.2g dk %.2g dv %.2g", e[0], e[1], e[2], e[3]);
    else if (at1 - at0 != fwd || at2 - at1 != (c->keep_all ? 0 : refetch) || at3 - at2 != bwd)
        (void)snprintf(what, sizeof what, "sent %lld %lld %lld bytes, expected %lld %lld %lld", (long long)(at1 - at0), (long long)(at2 - at1),
                       (long long)(at3 - at2), (long long)fwd, (long long)refetch, (long long)bwd);
    else if (most_fwd != a2a + ring_fwd || most_bwd != a2a + ring_bwd || fwd > most_fwd || bwd > most_bwd || (dense && (fwd != most_fwd || bwd != most_bwd)))
        (void)snprintf(what, sizeof what, "formulas: %lld %lld, at most %lld %lld, reference %lld %lld", (long long)fwd, (long long)bwd, (long long)most_fwd,
                       (long long)most_bwd, (long long)(a2a + ring_fwd), (long long)(a2a + ring_bwd));
    if (what[0]) describe(c, seed, rank, what);
    truth_release(&t);
    bench_close(&b);
    return what[0] != 0;
}

static int all_configs(struct comm_world *w, int rank, void *arg)
{
    kernel_cpu_threads(1);
    enum dtype dt = *(enum dtype *)arg;
    const char *only = getenv("RM_SEED");
    int from = only ? atoi(only) : 0, to = only ? from + 1 : CONFIGS, bad = 0;
    for (int seed = from; seed < to && !bad; seed++) {
        struct config c = random_config(seed, dt);
        if (rank < c.U * c.R) bad = one_config(&c, w, rank, seed);
    }
    return bad;
}

static int known_configs(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    kernel_cpu_threads(1);
    static const struct config known[] = {
        { .dt = DT_F64, .U = 4, .R = 1, .H = 8, .Hkv = 2, .D = 4, .T = 32, .n_docs = 1, .cu = { 0, 32 } },            /* torn group: DeepSpeed #8291 */
        { .dt = DT_F64, .U = 1, .R = 3, .H = 2, .Hkv = 1, .D = 4, .T = 45, .n_docs = 1, .cu = { 0, 45 }, .overlap = true },
        { .dt = DT_F64, .U = 2, .R = 4, .H = 8, .Hkv = 8, .D = 2, .T = 64, .n_docs = 3, .cu = { 0, 1, 40, 64 }, .overlap = true },
        { .dt = DT_F64, .U = 1, .R = 8, .H = 1, .Hkv = 1, .D = 2, .T = 64, .n_docs = 64 / 2, .cu = { 0 } },           /* filled below: only tiny documents */
        { .dt = DT_F64, .U = 1, .R = 4, .H = 2, .Hkv = 2, .D = 4, .T = 64, .n_docs = 1, .cu = { 0, 64 }, .window = 3 },
    };
    int bad = 0;
    for (int i = 0; i < (int)(sizeof known / sizeof known[0]) && !bad; i++) {
        struct config c = known[i];
        if (i == 3)
            for (int64_t d = 1; d <= c.n_docs; d++) c.cu[d] = 2 * d;
        if (rank < c.U * c.R) bad = one_config(&c, w, rank, 1000 + i) || one_config(&c, w, rank, 2000 + i);
    }
    return bad;
}

/* sum(out * dout) moves as the gradients say, in fp64, over a ring of four blocks (ms-swift's recipe is 40-60 % off here). */
static int finite_differences(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    kernel_cpu_threads(1);
    struct config c = { .dt = DT_F64, .U = 2, .R = 4, .H = 4, .Hkv = 2, .D = 4, .T = 48, .n_docs = 2, .cu = { 0, 37, 48 }, .overlap = true };
    struct error err = { 0 };
    struct bench b;
    struct comm *all;
    int ranks[WORLD] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    if (bench_open(&b, &c, w, rank, &err) != OK || comm_group(&all, w, ranks, WORLD, &err) != OK) return 1;
    int64_t wide = c.H * c.D, narrow = c.Hkv * c.D, width[3] = { wide, narrow, narrow };
    double *global[4] = { filled(7, 0, c.T * wide, c.dt), filled(7, 1, c.T * narrow, c.dt), filled(7, 2, c.T * narrow, c.dt), filled(7, 3, c.T * wide, c.dt) };
    void *local[4] = { b.q, b.k, b.v, b.dout }, *grad[3] = { b.dq, b.dk, b.dv };
    for (int i = 0; i < 4; i++) take_local(c.dt, local[i], global[i], b.index, b.Tl, i == 3 ? wide : width[i]);
    int bad = attn_group_fwd(b.g, b.s, b.out, b.q, b.k, b.v, &b.kept, &err) != OK ||
              attn_group_bwd(b.g, b.s, b.dq, b.dk, b.dv, b.dout, b.out, &b.kept, &err) != OK;
    for (int probe = 0; probe < 60 && !bad; probe++) {
        int which = probe % 3;
        int64_t row = (probe * 17) % c.T, j = (probe * 7) % width[which], mine = -1;
        for (int64_t i = 0; i < b.Tl; i++)
            if (b.index[i] == row) mine = i;
        double *x = mine >= 0 ? (double *)local[which] + mine * width[which] + j : NULL, step = 1e-5, keep = x ? *x : 0, loss[2], slope;
        for (int side = 0; side < 2 && !bad; side++) {
            if (x) *x = keep + (side ? step : -step);
            bad = attn_group_fwd(b.g, b.s, b.out, b.q, b.k, b.v, &b.kept, &err) != OK;
            loss[side] = 0;
            for (int64_t i = 0; i < b.Tl * wide; i++) loss[side] += ((double *)b.out)[i] * ((double *)b.dout)[i];
            bad = bad || comm_all_reduce(all, NULL, DT_F64, &loss[side], 1, &err) != OK;
        }
        if (x) *x = keep;
        slope = (loss[1] - loss[0]) / (2 * step);
        double said = x ? ((double *)grad[which])[mine * width[which] + j] : 0;
        if (!bad && x && fabs(slope - said) > 1e-7 * (1 + fabs(slope))) {
            (void)fprintf(stderr, "d%c row %lld: slope %.12g, gradient %.12g\n", "qkv"[which], (long long)row, slope, said);
            bad = 1;
        }
    }
    if (err.text[0]) (void)fprintf(stderr, "rank %d: %s\n", rank, err.text);
    for (int i = 0; i < 4; i++) free(global[i]);
    bench_close(&b);
    return bad;
}

/* Forward and backward again and again give the same bits: communication never decides an order of sums, whether it overlaps or not,
 * whether an exchange goes whole or in pieces of one token. In pieces it takes less memory. */
static int same_bits(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    kernel_cpu_threads(1);
    static const struct { bool overlap; int64_t limit; } ways[] = { { true, 0 }, { true, 0 }, { false, 0 }, { true, 1 }, { false, 1 }, { true, 500 }, { true, 900 }, { false, 3000 }, { true, 1 << 30 } };
    static const struct { int U, R; int64_t H, Hkv; } shapes[] = { { 2, 4, 4, 1 }, { 4, 2, 8, 2 }, { 8, 1, 8, 8 }, { 2, 2, 2, 2 } };
    int bad = 0;
    for (int k = 0; k < (int)(sizeof shapes / sizeof shapes[0]) && !bad; k++) {
        struct config c = { .dt = DT_F32, .U = shapes[k].U, .R = shapes[k].R, .H = shapes[k].H, .Hkv = shapes[k].Hkv, .D = 6, .T = 64, .n_docs = 2, .cu = { 0, 50, 64 } };
        if (rank >= c.U * c.R) continue;
        struct error err = { 0 };
        float *first = NULL;
        for (int i = 0; i < (int)(sizeof ways / sizeof ways[0]) && !bad; i++) {
            struct bench b;
            c.overlap = ways[i].overlap, c.limit = ways[i].limit;
            if (bench_open(&b, &c, w, rank, &err) != OK) return 1;
            int64_t wide = b.Tl * c.H * c.D, narrow = b.Tl * c.Hkv * c.D, all = 2 * wide + 2 * narrow;
            for (int64_t j = 0; j < wide; j++) set(c.dt, b.q, j, value(1, rank, j)), set(c.dt, b.dout, j, value(2, rank, j));
            for (int64_t j = 0; j < narrow; j++) set(c.dt, b.k, j, value(3, rank, j)), set(c.dt, b.v, j, value(4, rank, j));
            bad = attn_group_fwd(b.g, b.s, b.out, b.q, b.k, b.v, &b.kept, &err) != OK || attn_group_bwd(b.g, b.s, b.dq, b.dk, b.dv, b.dout, b.out, &b.kept, &err) != OK;
            float *got = xmalloc((unsigned long)all * 4);
            memcpy(got, b.out, (size_t)wide * 4);
            memcpy(got + wide, b.dq, (size_t)wide * 4);
            memcpy(got + 2 * wide, b.dk, (size_t)narrow * 4);
            memcpy(got + 2 * wide + narrow, b.dv, (size_t)narrow * 4);
            if (!bad && first && memcmp(first, got, (size_t)all * 4) != 0) {
                bad = 1;
                (void)fprintf(stderr, "rank %d: U %d R %d overlap %d limit %lld gives other bits\n", rank, c.U, c.R, c.overlap, (long long)c.limit);
            }
            if (first) free(got);
            else first = got;
            bench_close(&b);
        }
        if (err.text[0]) (void)fprintf(stderr, "rank %d: %s\n", rank, err.text);
        free(first);
    }
    return bad;
}

/* What a group takes from the shared arena: the plan's figure. */
static int64_t shared_bytes(int64_t limit)
{
    struct mesh m = { .world = 4, .dp = 1, .R = 1, .U = 4 };
    struct attn_dims d = { DT_F32, 8, 4, 16, 4096, 4, 0, 0.25f, true, limit, 0 };
    struct arena a[3];
    struct attn_group *g;
    struct error err;
    for (int i = 0; i < 3; i++) arena_init(&a[i], (enum mem_place)i, NULL, 0);
    ck_assert_int_eq(attn_group_new(&g, kernel_ops_cpu(), &m, d, &a[0], &a[1], &a[2], &err), OK);
    int64_t n = a[1].peak;
    attn_group_free(g);
    for (int i = 0; i < 3; i++) arena_release_all(&a[i]);
    return n;
}

START_TEST(pieces_take_less_memory)
{
    int64_t whole = 4096 * (2 + 2 * 1) * 16 * 4;
    ck_assert_int_eq(shared_bytes(0), whole);
    ck_assert_int_eq(shared_bytes(1 << 30), whole);
    ck_assert_int_eq(shared_bytes(whole / 2), whole / 2);
    ck_assert_int_eq(shared_bytes(1), 4096 * 2 * 4);        /* delta needs its place whole */
}
END_TEST

static int run(rank_body *body, void *arg) { return ranks_run(WORLD, kernel_ops_cpu(), MEMORY, 20000, body, arg); }
static const enum dtype types[] = { DT_F64, DT_F32 };

START_TEST(one_equals_many) { enum dtype dt = types[_i]; ck_assert_int_eq(run(all_configs, &dt), 0); } END_TEST
START_TEST(known) { ck_assert_int_eq(run(known_configs, NULL), 0); } END_TEST
START_TEST(gradients_are_slopes) { ck_assert_int_eq(run(finite_differences, NULL), 0); } END_TEST
START_TEST(deterministic) { ck_assert_int_eq(run(same_bits, NULL), 0); } END_TEST

int main(void)
{
    Suite *s = suite_create("attention_group");
    TCase *t = tcase_create("attention_group");
    tcase_set_timeout(t, 200);
    tcase_add_test(t, known);
    tcase_add_loop_test(t, one_equals_many, 0, 2);
    tcase_add_test(t, gradients_are_slopes);
    tcase_add_test(t, deterministic);
    tcase_add_test(t, pieces_take_less_memory);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
