/* attention.c - attention over the group (see attention.h): exchange in over U, ring over R, exchange back.
 *
 *   in    q,k,v [Tl,H|Hkv,D] -> rotate, pack by destination -> a2a -> [Tr,hq|hk,D]; what arrives is already in ring-local order.
 *         More than exchange_limit, or than 8 MiB and a quarter, goes in pieces of so many tokens, each packed where the one before was
 *   ring  R = 1: the plain kernel. Else at step t rank r holds keys and values of owner (r-t) mod R and passes them on while it computes;
 *         o and lse accumulate in fp32 (the merge is the kernel's). Two buffers: one is read and sent, the other filled. A block of more than
 *         hop_limit goes round in pieces, one after the other, so that the buffers do not grow with the row
 *   back  o [Tr,hq,D] -> a2a, in the same pieces -> [U,Tl,hq,D] -> [Tl,H,D]
 * Backward is the mirror image. Every block gets the final lse and delta of the whole row; delta is computed where the output is, and exchanged: one number a
 * head and token, so that the output is kept in one form only. dq accumulates here; (dk,dv) of a block
 * travel with it in fp32, R hops, the last one home: each rank adds its part to what arrives. The part is computed while the sum so
 * far is still on its way, hence a third buffer for it. Half of a rank's own block is left for the end, to be computed during the last hop.
 *
 * Not every row needs every hop: an owner's block stops at the last rank that has queries in one of its documents (last[owner], which all
 * ranks compute from the layout alone), and an owner whose block never leaves gets no sums back either.
 * Sources: DeepSpeed-Ulysses 2309.14509, Ring Attention 2310.01889, zigzag and hybrid 2405.07719. */
#include "worker/parallel/attention.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "worker/parallel/volume.h"

struct attn_group {
    const struct kernel_ops *ops;
    const struct mesh *m;
    struct attn_dims d;
    struct volume_dims vd;
    enum dtype acc;                 /* F32, F64 for F64 */
    int64_t hq, hk;                 /* heads here after the exchange */
    int64_t *head_q, *head_k;       /* [U] first head each destination gets */

    /* shared: what peers read */
    void *send;                     /* U > 1: [piece] dt, a piece of an exchange as peers fetch it; delta [H,Tl] acc */
    int64_t piece;                  /* most elements of one exchange */
    void *kv[2];                    /* [2,step,hk,D] dt; R > 1 */
    void *sum[2];                   /* [2,step,hk,D] acc; R > 1 */
    /* device */
    void *q, *k, *v;                /* [Tr,hq,D], [Tr,hk,D] x2 dt: not kept q,k,v, arriving o; backward: dout, arriving dq, dk, dv */
    bool borrows;                   /* k and v are the ring's buffers: only for arriving dk, dv */
    void *o_acc;                    /* [Tr,hq,D] acc: forward o (of type dt where nothing is merged), backward dq */
    void *lse, *delta;              /* [hq,Tr] acc */
    void *part;                     /* [2,step,hk,D] acc: this rank's part of dk, dv */
    void *ws;

    /* the row */
    int64_t T, Tl, Tr;
    const float *cos, *sin;         /* [Tl,D/2] */
    struct attn_span *host_spans, *dev_spans;   /* [span_room]: each owner's one after another, then the halves of our own */
    int64_t span_room;
    int64_t step;                   /* rows of a piece of a block at most; Tr where there is one */
    int pieces, max_pieces;         /* of the row; of the longest */
    struct attn_spans *early, *late;    /* [pieces] the spans against its own keys in two halves; R > 1 */
    struct attn_spans *spans;       /* [R,max_pieces] this rank's queries against each owner's keys */
    int *last;                      /* [R] the last step at which an owner's block is still needed; 0: never leaves home */
};

static int checked(struct attn_group *g, struct stream *s, int rc, const char *what, struct error *err)
{
    return rc == OK ? OK : error_set(err, rc, "%s: %s", what, g->ops->error ? g->ops->error(s) : status_name((enum status)rc));
}

static void *at(enum dtype dt, void *p, int64_t elements)
{
    return (char *)p + elements * (int64_t)dtype_size(dt);
}

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static struct attn_shape shape(const struct attn_group *g, int64_t Tq, int64_t Tk)
{
    return (struct attn_shape){ .Tq = Tq, .Tk = Tk, .H = g->hq, .Hkv = g->hk, .D = g->d.D, .scale = g->d.scale, .window = g->d.window };
}

enum { HOP_BYTES = 8 << 20 };       /* long enough for any transport's best speed */

/* Rows of a block that one hop carries: even pieces of the longest row. */
static int64_t hop_rows(const struct attn_group *g, int64_t Tr)
{
    int64_t limit = g->d.hop_limit > 0 ? g->d.hop_limit : HOP_BYTES, most = max64(1, limit / volume_acc_hop(g->vd, g->m->R));
    if (g->m->R == 1 || most >= Tr) return Tr;
    int64_t pieces = (Tr + most - 1) / most;
    return (Tr + pieces - 1) / pieces;
}

enum { EXCHANGE_BYTES = 8 << 20 };

/* Most elements of one exchange of at most `whole`: long rows go in four pieces, so that the send buffer is small beside what is sent. */
static int64_t exchange_size(const struct attn_dims *d, int64_t whole)
{
    int64_t b = (int64_t)dtype_size(d->dt);
    if (d->exchange_limit == 0) return whole;
    return min64(whole, min64(d->exchange_limit / b, max64(EXCHANGE_BYTES / b, (whole + 3) / 4)));
}

int attn_group_new(struct attn_group **out, const struct kernel_ops *ops, const struct mesh *m, struct attn_dims d,
                   struct arena *device, struct arena *shared, struct arena *host, struct error *err)
{
    *out = NULL;
    int U = m->U, R = m->R;
    if (d.H <= 0 || d.Hkv <= 0 || d.H % d.Hkv != 0)
        return error_set(err, E_INVALID, "%lld query heads are not a multiple of %lld key/value heads", (long long)d.H, (long long)d.Hkv);
    if (!volume_splits(d.H, d.Hkv, U))
        return error_set(err, E_INVALID, "%d ranks cannot share %lld query and %lld key/value heads", U, (long long)d.H, (long long)d.Hkv);
    assert(d.max_T % ((int64_t)U * R) == 0);

    struct attn_group *g = xcalloc(1, sizeof *g);
    *g = (struct attn_group){ .ops = ops, .m = m, .d = d, .acc = d.dt == DT_F64 ? DT_F64 : DT_F32 };
    g->hq = d.H / U;
    g->hk = volume_kv_heads(d.Hkv, U) / U;
    g->vd = (struct volume_dims){ d.H, d.Hkv, d.D, (int64_t)dtype_size(d.dt), (int64_t)dtype_size(g->acc), U, R };
    g->head_q = xmalloc((unsigned long)U * sizeof *g->head_q);
    g->head_k = xmalloc((unsigned long)U * sizeof *g->head_k);
    for (int u = 0; u < U; u++) {
        g->head_q[u] = u * g->hq;
        g->head_k[u] = u * d.Hkv / U;               /* several ranks get the same head when U > Hkv */
    }
    int64_t Tr = d.max_T / R, D = d.D, hq = g->hq, hk = g->hk, b = (int64_t)dtype_size(d.dt), b_acc = (int64_t)dtype_size(g->acc);
    if (U > 1) {
        g->piece = max64(U * (hq + 2 * hk) * D, exchange_size(&d, Tr * (hq + 2 * hk) * D));      /* a token of each destination at least */
        g->send = arena_take(shared, MEM_COMMUNICATION, d.dt, max64(g->piece, Tr * hq * b_acc / b), 0, 0, 0, "attn.send");
    }
    int64_t step = g->step = hop_rows(g, Tr), block = 2 * step * hk * D;
    /* When the ring is done dk and dv may arrive in its buffers, from the caller's, which are as large unless heads are replicated. */
    g->borrows = U > 1 && R > 1 && d.Hkv == U * hk && Tr * b <= 2 * step * (b + b_acc);
    g->max_pieces = (int)((Tr + step - 1) / step);
    if (R > 1) {
        char *ring = arena_take(shared, MEM_COMMUNICATION, DT_U8, 2 * block * (b + b_acc), 0, 0, 0, "attn.ring");
        for (int i = 0; i < 2 && ring; i++) {
            g->sum[i] = ring + i * block * b_acc;
            g->kv[i] = ring + 2 * block * b_acc + i * block * b;
        }
    }
    g->q = arena_take(device, MEM_ATTENTION, d.dt, Tr, hq, D, 0, "attn.q");
    if (g->borrows) {
        g->k = g->sum[0];
        g->v = g->k ? at(d.dt, g->k, Tr * hk * D) : NULL;
    } else if (U > 1 || R == 1) {       /* in a ring alone the caller keeps k and v, and nothing arrives */
        g->k = arena_take(device, MEM_ATTENTION, d.dt, Tr, hk, D, 0, "attn.k");
        g->v = arena_take(device, MEM_ATTENTION, d.dt, Tr, hk, D, 0, "attn.v");
    }
    g->o_acc = arena_take(device, MEM_ATTENTION, g->acc, Tr, hq, D, 0, "attn.acc");
    g->part = arena_take(device, MEM_ATTENTION, g->acc, 2, step, hk, D, "attn.dkv");
    g->lse = arena_take(device, MEM_ATTENTION, g->acc, hq, Tr, 0, 0, "attn.lse");
    g->delta = arena_take(device, MEM_ATTENTION, g->acc, hq, Tr, 0, 0, "attn.delta");
    /* A key segment that two pieces share is met by the two segments at most that a rank has of its document. */
    int64_t of_one = layout_spans_bound(d.max_docs, d.max_T, R), cuts = 2 * (g->max_pieces - 1);
    g->span_room = layout_spans_bound_all(d.max_docs, d.max_T, R) + R * cuts + (R > 1 ? 2 * (of_one + cuts) : 0);
    int64_t ws = (int64_t)ops->attn_ws(d.dt, shape(g, Tr, step), of_one), span_bytes = g->span_room * (int64_t)sizeof(struct attn_span);
    g->ws = arena_take(device, MEM_WORKSPACE, DT_U8, ws, 0, 0, 0, "attn.ws");
    g->host_spans = arena_take(host, MEM_DATA, DT_U8, span_bytes, 0, 0, 0, "attn.spans");
    g->dev_spans = ops == kernel_ops_cpu() ? g->host_spans : arena_take(device, MEM_DATA, DT_U8, span_bytes, 0, 0, 0, "attn.spans");
    g->spans = xcalloc((unsigned long)(R * g->max_pieces), sizeof *g->spans);
    g->early = xcalloc((unsigned long)g->max_pieces, sizeof *g->early);
    g->late = xcalloc((unsigned long)g->max_pieces, sizeof *g->late);
    g->last = xcalloc((unsigned long)R, sizeof *g->last);
    *out = g;
    return OK;
}

void attn_group_free(struct attn_group *g)
{
    if (g == NULL) return;
    free(g->head_q);
    free(g->head_k);
    free(g->spans);
    free(g->early);
    free(g->late);
    free(g->last);
    free(g);
}

const char *attn_group_choose(struct attn_group *g, struct stream *s, enum attn_impl impl)
{
    struct attn_shape n = shape(g, g->d.max_T / g->m->R, g->step);
    g->ops->attn_choose(s, impl, g->d.dt, n);
    return g->ops->attn_name(s, g->d.dt, n);
}

void attn_kept_shape(const struct attn_group *g, int64_t *Tr, int64_t *hq, int64_t *hk)
{
    *Tr = g->d.max_T / g->m->R;
    *hq = g->hq;
    *hk = g->hk;
}

void attn_group_bytes(const struct attn_group *g, int64_t T, int64_t *fwd, int64_t *refetch, int64_t *bwd)
{
    struct volume v = volume_of_layer(g->vd, T);
    *fwd = v.fwd;
    *refetch = v.refetch;
    *bwd = v.bwd;
}

/* Piece p of every block: rows [from, from+n). */
static int64_t piece_rows(const struct attn_group *g, int p, int64_t *from)
{
    *from = p * g->step;
    return g->Tr - *from < g->step ? g->Tr - *from : g->step;
}

static const struct attn_spans *spans_of(const struct attn_group *g, int owner, int p) { return &g->spans[owner * g->max_pieces + p]; }

/* Lists the spans of one owner's piece at *used, which moves on. */
static int list_spans(struct attn_group *g, const struct layout *l, int owner, int p, int64_t *used, struct error *err)
{
    int64_t from, rows = piece_rows(g, p, &from), n = layout_spans_of(l, g->m->r, owner, from, from + rows, g->d.window, NULL);
    if (*used + n > g->span_room)
        return error_set(err, E_LIMIT, "a row with more than %lld blocks of documents: memory was planned for %lld documents", (long long)(*used + n),
                         (long long)g->d.max_docs);
    (void)layout_spans_of(l, g->m->r, owner, from, from + rows, g->d.window, g->host_spans + *used);
    g->spans[owner * g->max_pieces + p] = (struct attn_spans){ .host = g->host_spans + *used, .dev = g->dev_spans + *used, .n = n };
    *used += n;
    return OK;
}

/* The halves of a piece of our own, each with room for all of its spans. */
static int list_halves(struct attn_group *g, int p, int64_t *used, struct error *err)
{
    const struct attn_spans *own = spans_of(g, g->m->r, p);
    struct attn_span *early = g->host_spans + *used, *late = early + own->n;
    if (*used + 2 * own->n > g->span_room) return error_set(err, E_LIMIT, "a row with too many blocks of documents: memory was planned for %lld documents", (long long)g->d.max_docs);
    layout_halve(own->host, own->n, g->d.window, early, &g->early[p].n, late, &g->late[p].n);
    g->early[p].host = early, g->early[p].dev = g->dev_spans + *used;
    g->late[p].host = late, g->late[p].dev = g->early[p].dev + own->n;
    *used += 2 * own->n;
    return OK;
}

int attn_group_row(struct attn_group *g, struct stream *s, const struct layout *l, const float *cos, const float *sin, struct error *err)
{
    int R = g->m->R, rc = OK;
    assert(l->R == R && l->U == g->m->U);
    if (l->T > g->d.max_T)
        return error_set(err, E_LIMIT, "a row of %lld tokens, but memory was planned for %lld", (long long)l->T, (long long)g->d.max_T);
    g->T = l->T;
    g->Tr = l->T / R;
    g->Tl = g->Tr / g->m->U;
    g->pieces = (int)((g->Tr + g->step - 1) / g->step);
    g->cos = cos;
    g->sin = sin;
    int64_t used = 0;
    for (int o = 0; o < R; o++) {
        for (int p = 0; p < g->pieces && rc == OK; p++) rc = list_spans(g, l, o, p, &used, err);
        g->last[o] = 0;
        for (int t = 1; t < R; t++)
            if (layout_spans(l, (o + t) % R, o, g->d.window, NULL) > 0) g->last[o] = t;
    }
    for (int p = 0; p < g->pieces && R > 1 && rc == OK; p++) rc = list_halves(g, p, &used, err);
    if (rc != OK || used == 0 || g->dev_spans == g->host_spans) return rc;
    return checked(g, s, g->ops->copy(s, g->dev_spans, g->host_spans, (size_t)used * sizeof *g->host_spans), "attention spans", err);
}

void attn_group_row_bytes(const struct attn_group *g, int64_t *fwd, int64_t *refetch, int64_t *bwd)
{
    int R = g->m->R, r = g->m->r;
    struct volume_dims flat = g->vd;
    struct volume v = volume_of_layer(g->vd, g->T);
    int64_t kv = volume_kv_hop(flat, g->T), sum = volume_acc_hop(flat, g->T);
    *fwd = v.fwd;
    *refetch = v.refetch;
    *bwd = v.bwd;
    if (R == 1) return;
    for (int t = 0; t < R; t++) {
        int owner = (r - t + R) % R;
        if (t + 1 < R && g->last[owner] < t + 1) *fwd -= kv, *bwd -= kv;
        if (g->last[owner] == 0) *bwd -= sum;
    }
}

/* --- forward --- */

/* Tokens [from, from+n) of this rank, packed by destination: out [U,n,h,D]. */
static int pack(struct attn_group *g, struct stream *s, void *out, const void *in, bool rotate, const int64_t *head0, int64_t H, int64_t h, int64_t from, int64_t n,
                struct error *err)
{
    const char *x = (const char *)in + from * H * g->d.D * (int64_t)dtype_size(g->d.dt);
    int64_t angle = from * (g->d.D / 2);
    return checked(g, s, g->ops->rope_pack(s, g->d.dt, out, n * h * g->d.D, x, rotate ? g->cos + angle : NULL, rotate ? g->sin + angle : NULL, head0, n, H, g->d.D,
                                           g->m->U, h), "rope_pack", err);
}

/* in [U,n,h,D] -> tokens [from, from+n) of out. */
static int unpack_rows(struct attn_group *g, struct stream *s, void *out, enum dtype din, const void *in, bool rotate, const int64_t *head0, int64_t H, int64_t h,
                       int64_t from, int64_t n, struct error *err)
{
    int64_t angle = from * (g->d.D / 2);
    return checked(g, s, g->ops->rope_unpack(s, g->d.dt, at(g->d.dt, out, from * H * g->d.D), din, in, n * h * g->d.D, rotate ? g->cos + angle : NULL,
                                             rotate ? g->sin + angle : NULL, head0, n, H, g->d.D, g->m->U, h), "rope_unpack", err);
}

static int unpack(struct attn_group *g, struct stream *s, void *out, enum dtype din, const void *in, bool rotate, const int64_t *head0, int64_t H, int64_t h,
                  struct error *err)
{
    return unpack_rows(g, s, out, din, in, rotate, head0, H, h, 0, g->Tl, err);
}

static int copy(struct attn_group *g, struct stream *s, void *dst, const void *src, int64_t elements, struct error *err)
{
    return checked(g, s, g->ops->copy(s, dst, src, (size_t)elements * dtype_size(g->d.dt)), "copy", err);
}

static int64_t q_size(const struct attn_group *g) { return g->Tr * g->hq * g->d.D; }
static int64_t k_size(const struct attn_group *g) { return g->Tr * g->hk * g->d.D; }

/* Tokens of each destination that one exchange of h heads may carry. */
static int64_t piece(const struct attn_group *g, int64_t h)
{
    return min64(g->Tl, g->piece / (g->m->U * h * g->d.D));
}

/* Tokens [from, from+n) of every slice of h heads: out of send, where the slices stand `apart` tokens from each other, to recv [U,Tl,h,D]. */
static struct comm_part part_of(const struct attn_group *g, void *recv, const void *send, int64_t h, int64_t from, int64_t n, int64_t apart)
{
    int64_t token = h * g->d.D * (int64_t)dtype_size(g->d.dt);
    return (struct comm_part){ .recv = (char *)recv + from * token, .send = send, .slice_bytes = n * token, .recv_stride = g->Tl * token, .send_stride = apart * token };
}

/* q, k, v of this rank's tokens -> rq, rk, rv: all tokens of the ring place, this rank's heads, rotated. k NULL: q alone, not rotated. */
static int exchange_in(struct attn_group *g, struct stream *s, void *rq, void *rk, void *rv, const void *q, const void *k, const void *v, struct error *err)
{
    bool alone = g->m->U == 1, rotate = k != NULL;
    int64_t hq = g->hq, hk = k ? g->hk : 0, U = g->m->U, D = g->d.D, step = alone ? g->Tl : piece(g, hq + 2 * hk);
    int rc = OK;
    for (int64_t t = 0; t < g->Tl && rc == OK; t += step) {
        int64_t n = g->Tl - t < step ? g->Tl - t : step;
        void *sq = alone ? rq : g->send, *sk = alone ? rk : at(g->d.dt, sq, U * n * hq * D), *sv = alone ? rv : at(g->d.dt, sk, U * n * hk * D);
        rc = pack(g, s, sq, q, rotate, g->head_q, g->d.H, hq, t, n, err);
        if (rc == OK && k) rc = pack(g, s, sk, k, true, g->head_k, g->d.Hkv, hk, t, n, err);
        if (rc == OK && k) rc = pack(g, s, sv, v, false, g->head_k, g->d.Hkv, hk, t, n, err);
        if (rc != OK || alone) break;
        struct comm_part parts[3] = { part_of(g, rq, sq, hq, t, n, n) };
        if (k) parts[1] = part_of(g, rk, sk, hk, t, n, n), parts[2] = part_of(g, rv, sv, hk, t, n, n);
        rc = comm_all_to_all_parts(g->m->uly, s, parts, k ? 3 : 1, err);
    }
    return rc;
}

/* Tokens [from, from+n) of every slice of x [U,Tl,h,D] of type `dt` -> out [U,n,h,D]. */
static int take_slices(struct attn_group *g, struct stream *s, void *out, enum dtype dt, const void *x, int64_t h, int64_t from, int64_t n, struct error *err)
{
    int64_t width = h * g->d.D, runs = n == g->Tl ? 1 : g->m->U, len = n * width * g->m->U / runs;
    int rc = OK;
    for (int64_t u = 0; u < runs && rc == OK; u++) {
        const char *slice = (const char *)x + (u * g->Tl + from) * width * (int64_t)dtype_size(dt);
        void *to = at(g->d.dt, out, u * len);
        rc = dt == g->d.dt ? copy(g, s, to, slice, len, err) : checked(g, s, g->ops->cast(s, g->d.dt, to, dt, slice, len), "cast", err);
    }
    return rc;
}

/* x [U,Tl,hq,D] of type `dt`, all tokens of the ring place -> g->q: this rank's tokens, all heads. With dk also dk and dv [U,Tl,hk,D] -> g->k and g->v,
 * which they may be: a piece leaves from the very places where it arrives. */
static int exchange_back(struct attn_group *g, struct stream *s, enum dtype dt, const void *x, const void *dk, const void *dv, struct error *err)
{
    int64_t hq = g->hq, hk = dk ? g->hk : 0, U = g->m->U, D = g->d.D, step = piece(g, hq + 2 * hk);
    int rc = OK;
    for (int64_t t = 0; t < g->Tl && rc == OK; t += step) {
        int64_t n = min64(step, g->Tl - t);
        void *sq = g->send, *sk = at(g->d.dt, sq, U * n * hq * D), *sv = at(g->d.dt, sk, U * n * hk * D);
        rc = take_slices(g, s, sq, dt, x, hq, t, n, err);
        if (rc == OK && dk) rc = take_slices(g, s, sk, g->d.dt, dk, hk, t, n, err);
        if (rc == OK && dk) rc = take_slices(g, s, sv, g->d.dt, dv, hk, t, n, err);
        struct comm_part parts[3] = { part_of(g, g->q, sq, hq, t, n, n) };
        if (dk) parts[1] = part_of(g, g->k, sk, hk, t, n, n), parts[2] = part_of(g, g->v, sv, hk, t, n, n);
        if (rc == OK) rc = comm_all_to_all_parts(g->m->uly, s, parts, dk ? 3 : 1, err);
    }
    return rc;
}

/* Starts hop t (1…R-1) of n elements of keys and as many values out of buffer `from`, as far as this row needs it. */
static int start_kv(struct attn_group *g, struct stream *s, int t, int from, int64_t n, struct comm_hop **h, struct error *err)
{
    int R = g->m->R, r = g->m->r, held = (r - t + 1 + R) % R, next = (r - t + R) % R;
    *h = NULL;
    if (t >= R) return OK;
    return comm_hop_start(g->m->ring, s, g->last[next] >= t ? g->kv[1 - from] : NULL, g->last[held] >= t ? g->kv[from] : NULL,
                          2 * n * (int64_t)dtype_size(g->d.dt), h, err);
}

/* Piece p of this rank's keys and values to kv[0], where the next rank fetches them. */
static int load_kv(struct attn_group *g, struct stream *s, const void *k, const void *v, int p, struct error *err)
{
    int64_t from, width = g->hk * g->d.D, n = piece_rows(g, p, &from) * width, skip = from * width * (int64_t)dtype_size(g->d.dt);
    int rc = copy(g, s, g->kv[0], (const char *)k + skip, n, err);
    return rc == OK ? copy(g, s, at(g->d.dt, g->kv[0], n), (const char *)v + skip, n, err) : rc;
}

static int attend(struct attn_group *g, struct stream *s, enum dtype dto, void *o, void *lse, const void *q, const void *k, const void *v, int owner, int p, bool merge,
                  struct error *err)
{
    const struct attn_spans *spans = spans_of(g, owner, p);
    int64_t from, rows = piece_rows(g, p, &from);
    if (merge && spans->n == 0) return OK;
    return checked(g, s, g->ops->attn_fwd(s, g->d.dt, dto, o, lse, q, k, v, shape(g, g->Tr, rows), *spans, merge, g->ws), "attn_fwd", err);
}

/* o of type acc, lse, from q and this rank's k and v. */
static int ring_fwd(struct attn_group *g, struct stream *s, void *o, void *lse, const void *q, const void *k, const void *v, struct error *err)
{
    int R = g->m->R, r = g->m->r, rc = OK;
    for (int p = 0; p < g->pieces && rc == OK; p++) {
        int64_t from, n = piece_rows(g, p, &from) * g->hk * g->d.D;
        rc = load_kv(g, s, k, v, p, err);
        for (int t = 0, cur = 0; t < R && rc == OK; t++, cur = 1 - cur) {
            struct comm_hop *h = NULL;
            if (g->d.overlap) rc = start_kv(g, s, t + 1, cur, n, &h, err);
            if (rc == OK) rc = attend(g, s, g->acc, o, lse, q, g->kv[cur], at(g->d.dt, g->kv[cur], n), (r - t + R) % R, p, p > 0 || t > 0, err);
            if (rc == OK && !g->d.overlap) rc = start_kv(g, s, t + 1, cur, n, &h, err);
            if (rc == OK) rc = comm_hop_wait(g->m->ring, s, h, err);
        }
    }
    return rc;
}

int attn_group_fwd(struct attn_group *g, struct stream *s, void *out, const void *q, const void *k, const void *v, struct attn_kept *keep, struct error *err)
{
    static struct attn_kept nothing;
    if (keep == NULL) keep = &nothing;
    bool ring = g->m->R > 1, alone = g->m->U == 1;
    void *rq = keep->q ? keep->q : g->q;
    void *rk = keep->k ? keep->k : g->k, *rv = keep->v ? keep->v : g->v;
    void *lse = keep->lse ? keep->lse : g->lse, *o = alone && (!ring || g->acc == g->d.dt) ? out : g->o_acc;

    assert(!ring || (keep->k && keep->v));
    int rc = exchange_in(g, s, rq, rk, rv, q, k, v, err);
    if (rc != OK) return rc;
    rc = ring ? ring_fwd(g, s, o, lse, rq, rk, rv, err) : attend(g, s, g->d.dt, o, lse, rq, rk, rv, 0, 0, false, err);
    if (rc == OK && alone && o != out) rc = checked(g, s, g->ops->cast(s, g->d.dt, out, g->acc, o, q_size(g)), "cast", err);
    if (rc != OK || alone) return rc;
    rc = exchange_back(g, s, ring ? g->acc : g->d.dt, o, NULL, NULL, err);
    return rc == OK ? unpack(g, s, out, g->d.dt, g->q, false, g->head_q, g->d.H, g->hq, err) : rc;
}

int attn_group_refetch(struct attn_group *g, struct stream *s, const void *q, const void *k, const void *v, struct attn_kept *keep, struct error *err)
{
    assert(keep->q && keep->k && keep->v);
    return exchange_in(g, s, keep->q, keep->k, keep->v, q, k, v, err);
}

/* --- backward --- */

/* Against `rows` keys and values; dkv: dk, then dv. */
static int block_bwd(struct attn_group *g, struct stream *s, void *dkv, const void *dout, const void *k, const void *v, int64_t rows, const struct attn_kept *kept,
                     struct attn_spans spans, struct error *err)
{
    return checked(g, s, g->ops->attn_bwd(s, g->d.dt, g->o_acc, dkv, at(g->acc, dkv, rows * g->hk * g->d.D), dout, kept->q, k, v, kept->lse, g->delta,
                                          shape(g, g->Tr, rows), spans, g->ws), "attn_bwd", err);
}

static int clear(struct attn_group *g, struct stream *s, void *x, int64_t elements, struct error *err)
{
    return checked(g, s, g->ops->zero(s, x, (size_t)elements * dtype_size(g->acc)), "zero", err);
}

/* dk, dv of rows [from, from+rows) of this rank's own block are complete: to their place, or g->k and g->v, from where they go home. */
static int deliver_dkv(struct attn_group *g, struct stream *s, void *dkv, int64_t from, int64_t rows, void *dk, void *dv, struct error *err)
{
    int64_t width = g->hk * g->d.D, n = rows * width;
    void *sum_v = at(g->acc, dkv, n);
    if (g->m->U == 1) {
        int rc = unpack_rows(g, s, dk, g->acc, dkv, true, g->head_k, g->d.Hkv, g->hk, from, rows, err);
        return rc == OK ? unpack_rows(g, s, dv, g->acc, sum_v, false, g->head_k, g->d.Hkv, g->hk, from, rows, err) : rc;
    }
    void *to_k = g->borrows ? dk : g->k, *to_v = g->borrows ? dv : g->v;
    int rc = checked(g, s, g->ops->cast(s, g->d.dt, at(g->d.dt, to_k, from * width), g->acc, dkv, n), "cast", err);
    return rc == OK ? checked(g, s, g->ops->cast(s, g->d.dt, at(g->d.dt, to_v, from * width), g->acc, sum_v, n), "cast", err) : rc;
}

/* Piece p of every block: adds up dq in o_acc and delivers this rank's own dk, dv. */
static int ring_bwd_piece(struct attn_group *g, struct stream *s, int p, void *dk, void *dv, const void *dout, const struct attn_kept *kept, struct error *err)
{
    int R = g->m->R, r = g->m->r;
    int64_t from, rows = piece_rows(g, p, &from), n = rows * g->hk * g->d.D, sum_bytes = 2 * n * (int64_t)dtype_size(g->acc);
    struct comm *ring = g->m->ring;
    struct comm_hop *kv = NULL, *sums = NULL;
    bool travels = g->last[r] > 0;
    int rc = load_kv(g, s, kept->k, kept->v, p, err);
    for (int t = 0, cur = 0; t < R && rc == OK; t++, cur = 1 - cur) {
        int owner = (r - t + R) % R, coming = (r - 1 - t + 2 * R) % R;
        const struct attn_spans *spans = t == 0 && travels ? &g->early[p] : spans_of(g, owner, p);
        bool work = spans->n > 0 || t == 0;
        void *part = t == 0 && travels ? g->sum[0] : g->part, *k = g->kv[cur];
        if (g->d.overlap) rc = start_kv(g, s, t + 1, cur, n, &kv, err);
        if (rc == OK && work) rc = clear(g, s, part, 2 * n, err);
        if (rc == OK && work) rc = block_bwd(g, s, part, dout, k, at(g->d.dt, k, n), rows, kept, *spans, err);
        if (rc == OK && t == 0 && !travels) rc = deliver_dkv(g, s, part, from, rows, dk, dv, err);
        if (rc == OK) rc = comm_hop_wait(ring, s, sums, err);                   /* the sum so far of this owner's block */
        sums = NULL;
        if (rc == OK && t > 0 && work) rc = checked(g, s, g->ops->axpy(s, g->acc, g->sum[cur], g->acc, part, 1.0f, 2 * n), "axpy", err);
        if (rc == OK)
            rc = comm_hop_start(ring, s, g->last[coming] > 0 ? g->sum[1 - cur] : NULL, g->last[owner] > 0 ? g->sum[cur] : NULL, sum_bytes, &sums, err);
        if (!g->d.overlap) {
            if (rc == OK) rc = comm_hop_wait(ring, s, sums, err);
            sums = NULL;
            if (rc == OK) rc = start_kv(g, s, t + 1, cur, n, &kv, err);
        }
        if (rc == OK) rc = comm_hop_wait(ring, s, kv, err);
        kv = NULL;
    }
    /* The sums are on their last hop, home. The ring's buffers are spent: kept k, v serve the other half of our own block. */
    int64_t skip = from * g->hk * g->d.D * (int64_t)dtype_size(g->d.dt);
    if (rc == OK && travels) rc = clear(g, s, g->part, 2 * n, err);
    if (rc == OK && travels) rc = block_bwd(g, s, g->part, dout, (const char *)kept->k + skip, (const char *)kept->v + skip, rows, kept, g->late[p], err);
    if (rc == OK) rc = comm_hop_wait(ring, s, sums, err);
    if (rc == OK && travels) rc = checked(g, s, g->ops->axpy(s, g->acc, g->sum[R & 1], g->acc, g->part, 1.0f, 2 * n), "axpy", err);
    return rc == OK && travels ? deliver_dkv(g, s, g->sum[R & 1], from, rows, dk, dv, err) : rc;
}

/* delta [hq,Tr] of all tokens of the ring place, this rank's heads. Rows of one head lie together on both sides, so nothing is packed. */
static int exchange_delta(struct attn_group *g, struct stream *s, const void *dout, const void *out, struct error *err)
{
    bool alone = g->m->U == 1;
    int64_t row = g->Tl * (int64_t)dtype_size(g->acc);
    int rc = checked(g, s, g->ops->attn_delta(s, g->d.dt, g->d.dt, alone ? g->delta : g->send, dout, out, g->Tl, g->d.H, g->d.D), "attn_delta", err);
    for (int64_t h = 0; h < g->hq && rc == OK && !alone; h += COMM_PARTS_MAX) {
        struct comm_part parts[COMM_PARTS_MAX];
        int n = 0;
        for (int64_t i = h; i < g->hq && n < COMM_PARTS_MAX; i++)
            parts[n++] = (struct comm_part){ .recv = at(g->acc, g->delta, i * g->Tr), .send = at(g->acc, g->send, i * g->Tl), .slice_bytes = row,
                                             .recv_stride = row, .send_stride = g->hq * row };
        rc = comm_all_to_all_parts(g->m->uly, s, parts, n, err);
    }
    return rc;
}

int attn_group_bwd(struct attn_group *g, struct stream *s, void *dq, void *dk, void *dv, const void *dout, const void *out, const struct attn_kept *kept,
                   struct error *err)
{
    assert(kept->q && kept->k && kept->v && kept->lse);
    bool alone = g->m->U == 1;
    int64_t nq = q_size(g), nk = k_size(g);
    const void *here = dout;                    /* [Tr,hq,D] */
    int rc = exchange_delta(g, s, dout, out, err);
    if (rc == OK && !alone) {
        rc = exchange_in(g, s, g->q, NULL, NULL, dout, NULL, NULL, err);
        here = g->q;
    }
    if (rc == OK) rc = clear(g, s, g->o_acc, nq, err);
    if (rc != OK) return rc;
    if (g->m->R > 1) {
        for (int p = 0; p < g->pieces && rc == OK; p++) rc = ring_bwd_piece(g, s, p, dk, dv, here, kept, err);
    } else {
        rc = clear(g, s, g->part, 2 * nk, err);
        if (rc == OK) rc = block_bwd(g, s, g->part, here, kept->k, kept->v, g->Tr, kept, g->spans[0], err);
        if (rc == OK) rc = deliver_dkv(g, s, g->part, 0, g->Tr, dk, dv, err);
    }
    if (rc == OK && alone) return unpack(g, s, dq, g->acc, g->o_acc, true, g->head_q, g->d.H, g->hq, err);
    if (rc == OK) rc = exchange_back(g, s, g->acc, g->o_acc, g->borrows ? dk : g->k, g->borrows ? dv : g->v, err);
    if (rc == OK) rc = unpack(g, s, dq, g->d.dt, g->q, true, g->head_q, g->d.H, g->hq, err);
    if (rc == OK) rc = unpack(g, s, dk, g->d.dt, g->k, true, g->head_k, g->d.Hkv, g->hk, err);
    return rc == OK ? unpack(g, s, dv, g->d.dt, g->v, false, g->head_k, g->d.Hkv, g->hk, err) : rc;
}
