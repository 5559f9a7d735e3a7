/* attention_tiles.c - attention in tiles of ROWS queries x KEYS keys (FlashAttention-2, arXiv 2307.08691 §3), f32 arithmetic.
 *
 * Keys are cut into panels of KEYS rows, counted from key row 0; each call first writes the panels of k and v into its workspace
 * as f32, transposed where a product needs that (micro.h): cost and size linear in Tk, and it makes bf16 the same code.
 * Queries are cut from the start of each span, so tiles do not depend on threads. The keys a row sees are an interval whose
 * ends grow with the row: a tile computes only rows and keys inside it and masks the rest of its edge by selection, never
 * by adding -inf, so what lies in keys nobody sees (NaN included) cannot reach a result.
 *
 * Forward: one (query tile, head) is one piece of work. Backward: with key heads enough for the threads, one piece is a kv head: it
 * walks panels, then the query tiles that see them, and computes S, P, dP, dS once for dq, dk and dv. Otherwise dq (by query
 * tile) and dk, dv (by panel) are two passes. Both add into every dq, dk, dv element in the same order: same bits. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/micro.h"

enum { ROWS = 96, KEYS = 64, KEYS_UP = 66, WIDTH = ATTN_HEAD_MAX };     /* ROWS, KEYS_UP: multiples of MR; KEYS, WIDTH: of VL */

/* Spans with the same queries, next to each other in the list. */
struct group { int64_t first, n, q0, nq, tile0; };

struct problem {
    enum dtype dt;
    struct attn_shape n;
    struct attn_spans spans;
    const void *q, *dout;
    const float *lse, *delta;
    int64_t G, W, panels;           /* query heads per kv head; D rounded up to VL; panels of keys */
    float *kt, *k, *vt, *v;         /* [Hkv][panels][D][KEYS] and [Hkv][panels][KEYS][W] f32; forward has kt, v only; backward kt, vt, k */
    struct group *groups;           /* ngroups, in order of queries */
    int64_t *by_key;                /* nkeyed spans that hold anything, in order of keys, then of the list */
    int64_t ngroups, nkeyed, tiles;
    int64_t p0, p1;                 /* panels that any span reaches */
};

static int64_t round_up(int64_t n, int64_t m) { return blocks_of(n, m) * m; }

/* --- workspace and indexes --- */

static size_t panel_floats(struct attn_shape n) { return (size_t)n.Hkv * (size_t)blocks_of(n.Tk, KEYS) * KEYS * (size_t)round_up(n.D, 16); }

size_t ISA(attn_ws_tiles)(struct attn_shape n, int64_t max_spans)
{
    return 3 * panel_floats(n) * sizeof(float) + (size_t)max_spans * (sizeof(struct group) + 2 * sizeof(int64_t)) + 64;
}

static bool key_before(const struct attn_span *host, int64_t a, int64_t b) { return host[a].k0 != host[b].k0 ? host[a].k0 < host[b].k0 : a < b; }

/* Bottom-up merge sort of v[0..n) by key; tmp as large. Lists are mostly in order already, and that costs one look. */
static void sort_by_key(int64_t *v, int64_t *tmp, int64_t n, const struct attn_span *host)
{
    bool sorted = true;
    for (int64_t i = 1; i < n && sorted; i++) sorted = key_before(host, v[i - 1], v[i]);
    for (int64_t w = 1; w < n && !sorted; w *= 2) {
        for (int64_t at = 0; at < n; at += 2 * w) {
            int64_t a = at, amax = min64(n, at + w), b = amax, bmax = min64(n, at + 2 * w);
            for (int64_t i = at; i < bmax; i++) tmp[i] = b >= bmax || (a < amax && key_before(host, v[a], v[b])) ? v[a++] : v[b++];
        }
        memcpy(v, tmp, (size_t)n * sizeof *v);
    }
}

static struct problem problem_new(enum dtype dt, const void *q, struct attn_shape n, struct attn_spans spans, void *ws)
{
    struct problem x = { .dt = dt, .n = n, .spans = spans, .q = q, .G = n.H / n.Hkv, .W = round_up(n.D, VL), .panels = blocks_of(n.Tk, KEYS) };
    x.kt = (float *)(((uintptr_t)ws + 63) & ~(uintptr_t)63);
    x.v = x.vt = x.kt + panel_floats(n);
    x.k = x.v + panel_floats(n);
    x.groups = (struct group *)(void *)(x.k + panel_floats(n));
    x.by_key = (int64_t *)(void *)(x.groups + spans.n);
    for (int64_t i = 0; i < spans.n; i++) {
        const struct attn_span *s = spans.host + i;
        struct group *g = x.groups + x.ngroups - 1;
        if (s->nq > 0 && s->nk > 0) x.by_key[x.nkeyed++] = i;
        if (x.ngroups > 0 && g->q0 == s->q0 && g->nq == s->nq) {
            g->n++;
            continue;
        }
        x.groups[x.ngroups++] = (struct group){ i, 1, s->q0, s->nq, x.tiles };
        x.tiles += blocks_of(s->nq, ROWS);
    }
    sort_by_key(x.by_key, x.by_key + spans.n, x.nkeyed, spans.host);
    if (x.nkeyed) {
        const struct attn_span *last = spans.host + x.by_key[x.nkeyed - 1];
        x.p0 = spans.host[x.by_key[0]].k0 / KEYS;
        x.p1 = blocks_of(last->k0 + last->nk, KEYS);
    }
    return x;
}

/* The group that owns query tile i. */
static const struct group *group_of(const struct problem *x, int64_t i)
{
    int64_t lo = 0, hi = x->ngroups - 1;
    while (lo < hi) {                                   /* the last group with tile0 <= i; empty groups share tile0 with the next */
        int64_t mid = (lo + hi + 1) / 2;
        if (x->groups[mid].tile0 <= i) lo = mid;
        else hi = mid - 1;
    }
    return x->groups + lo;
}

/* len elements of x from `at`, as f32, zeros up to W. */
static void load_row(float *y, enum dtype dt, const void *x, int64_t at, int64_t len, int64_t W)
{
    if (dt == DT_F32) memcpy(y, (const float *)x + at, (size_t)len * sizeof(float));
    else widen(y, (const bf16 *)x + at, len);
    for (int64_t d = len; d < W; d++) y[d] = 0.0f;
}

/* Panels of kv [Tk,Hkv,D] that spans reach, as rows (NULL: not wanted) and transposed (NULL: not wanted). Rows past Tk become 0. */
static void write_panels(float *rows, float *turned, const struct problem *x, const void *kv)
{
    struct attn_shape n = x->n;
    int64_t W = x->W, panels = x->panels;
    #pragma omp parallel for collapse(2) schedule(static) num_threads(cpu_threads(n.Hkv * (x->p1 - x->p0)))
    for (int64_t h = 0; h < n.Hkv; h++) {
        for (int64_t p = x->p0; p < x->p1; p++) {
            float local[KEYS * WIDTH], *r = rows ? rows + (h * panels + p) * KEYS * W : local;
            for (int64_t j = 0; j < KEYS; j++) {
                int64_t t = p * KEYS + j;
                if (t < n.Tk) load_row(r + j * W, x->dt, kv, (t * n.Hkv + h) * n.D, n.D, W);
                else memset(r + j * W, 0, (size_t)W * sizeof(float));
            }
            if (!turned) continue;
            float *c = turned + (h * panels + p) * n.D * KEYS;
            for (int64_t d0 = 0; d0 < n.D; d0 += 16)            /* 16 columns at a time: the lines of r stay in L1 */
                for (int64_t j = 0; j < KEYS; j++)
                    for (int64_t d = d0; d < min64(n.D, d0 + 16); d++) c[d * KEYS + j] = r[j * W + d];
        }
    }
}

/* --- one tile --- */

/* Query rows [t0, t0+rows) of a span against one panel: what of it is visible. Rows and keys count from the tile's start. */
struct window { int64_t ra, rb, ja, jb; bool whole; int lo[ROWS], hi[ROWS]; };

/* False when nothing is. */
static bool look(struct window *w, const struct attn_span *s, int64_t t0, int64_t rows, int64_t panel, int64_t window)
{
    w->ra = rows;
    w->rb = 0;
    w->ja = KEYS;
    w->jb = 0;
    w->whole = true;
    for (int64_t r = 0; r < rows; r++) {
        struct range k = keys_of_row(s, t0 + r, window);
        int64_t lo = max64(0, k.lo - panel * KEYS), hi = min64(KEYS, k.hi - panel * KEYS);
        if (hi <= lo) lo = hi = 0;
        w->lo[r] = (int)lo;
        w->hi[r] = (int)hi;
        if (hi <= lo) continue;
        w->ra = min64(w->ra, r);
        w->rb = r + 1;
        w->ja = min64(w->ja, lo);
        w->jb = max64(w->jb, hi);
        w->whole = w->whole && lo == 0 && hi == KEYS;
    }
    if (w->rb == 0) return false;
    w->ra = w->ra / MR * MR;
    return true;
}

/* What the mask hides of a row becomes `hidden`: by selection, whatever was there. */
static inline void hide(float *s, int lo, int hi, float hidden)
{
    for (int j = 0; j < lo; j++) s[j] = hidden;
    for (int j = hi; j < KEYS; j++) s[j] = hidden;
}

/* s[0..KEYS) = exp(scale s - m'), m' = max(*m, the row's maximum); l, the sum by lanes, follows. Returns what older results are to
 * be multiplied by. */
static inline float softmax_row(float *s, float scale, float *m, vf *l)
{
    vf *v = (vf *)(void *)s, mx = v[0];
    for (int c = 1; c < KEYS / VL; c++) mx = max_lanes(v[c], mx);
    float old = *m, top = max_of(mx) * scale, up = old > top ? old : top;
    if (up == -INFINITY) up = 0.0f;                     /* every logit is -inf: all weights 0, not NaN */
    float fix = old == up ? 1.0f : exp_f32(old - up);
    vf sum = *l * SPLAT(fix);
    for (int c = 0; c < KEYS / VL; c++) {
        v[c] = exp_lanes(v[c], SPLAT(scale), SPLAT(up));
        sum += v[c];
    }
    *m = up;
    *l = sum;
    return fix;
}

/* --- forward --- */

struct out { enum dtype dto; void *o; float *lse; bool merge; };

static void store_row(const struct problem *x, const struct out *out, int64_t t, int64_t h, const float *acc, float factor, float lse)
{
    int64_t at = (t * x->n.H + h) * x->n.D;
    float row[WIDTH];
    #pragma omp simd
    for (int64_t d = 0; d < x->n.D; d++) row[d] = acc[d] * factor;
    if (out->dto == DT_F32) memcpy((float *)out->o + at, row, (size_t)x->n.D * sizeof(float));
    else narrow((bf16 *)out->o + at, row, x->n.D);
    out->lse[h * x->n.Tq + t] = lse;
}

static void tile_fwd(const struct problem *x, const struct out *out, const struct group *g, int64_t t0, int64_t h)
{
    _Alignas(64) float q[ROWS * WIDTH], acc[ROWS * WIDTH], s[ROWS * KEYS];
    float m[ROWS];
    vf l[ROWS];
    bool seen[ROWS] = { false };
    struct window w;
    int64_t rows = min64(ROWS, g->q0 + g->nq - t0), up = round_up(rows, MR), W = x->W, D = x->n.D, hk = h / x->G;
    for (int64_t r = 0; r < up; r++) {
        float *a = acc + r * W;
        m[r] = -INFINITY;
        l[r] = SPLAT(0.0f);
        if (r < rows) load_row(q + r * W, x->dt, x->q, ((t0 + r) * x->n.H + h) * D, D, W);
        else memset(q + r * W, 0, (size_t)W * sizeof(float));
        memset(a, 0, (size_t)W * sizeof(float));
        if (r >= rows || !out->merge || !(out->lse[h * x->n.Tq + t0 + r] > -INFINITY)) continue;
        m[r] = out->lse[h * x->n.Tq + t0 + r];
        l[r][0] = 1.0f;
        memcpy(a, (const float *)out->o + ((t0 + r) * x->n.H + h) * D, (size_t)D * sizeof(float));
    }
    for (const struct attn_span *sp = x->spans.host + g->first; sp < x->spans.host + g->first + g->n; sp++) {
        int64_t first = max64(sp->k0, keys_of_row(sp, t0, x->n.window).lo), end = keys_of_row(sp, t0 + rows - 1, x->n.window).hi;
        for (int64_t p = first / KEYS; p * KEYS < end; p++) {
            if (!look(&w, sp, t0, rows, p, x->n.window)) continue;
            int64_t M = round_up(w.rb - w.ra, MR);
            product_nn(s + w.ra * KEYS, KEYS, q + w.ra * W, W, x->kt + (hk * x->panels + p) * D * KEYS, KEYS, M, KEYS, D, false);
            for (int64_t r = w.ra; r < w.ra + M; r++) {
                if (r >= rows || w.hi[r] == 0) {
                    memset(s + r * KEYS, 0, KEYS * sizeof(float));
                    continue;
                }
                seen[r] = true;
                if (!w.whole) hide(s + r * KEYS, w.lo[r], w.hi[r], -INFINITY);
                float fix = softmax_row(s + r * KEYS, x->n.scale, m + r, l + r);
                if (fix == 1.0f) continue;
                #pragma omp simd
                for (int64_t d = 0; d < W; d++) acc[r * W + d] *= fix;
            }
            product_nn(acc + w.ra * W, W, s + w.ra * KEYS + w.ja, KEYS, x->v + ((hk * x->panels + p) * KEYS + w.ja) * W, W, M, W, w.jb - w.ja, true);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        if (out->merge && !seen[r]) continue;
        float sum = sum_of(l[r]);
        bool any = sum != 0.0f;                         /* a NaN counts */
        store_row(x, out, t0 + r, h, acc + r * W, any ? 1.0f / sum : 0.0f, any ? m[r] + logf(sum) : -INFINITY);
    }
}

/* Rows [t0, t1) that no span names: o 0, lse -inf. */
static void fill_empty(const struct problem *x, const struct out *out, int64_t t0, int64_t t1)
{
    float zeros[WIDTH] = { 0 };
    for (int64_t t = t0; t < t1; t++)
        for (int64_t h = 0; h < x->n.H; h++) store_row(x, out, t, h, zeros, 0.0f, -INFINITY);
}

void ISA(attn_fwd_tiles)(enum dtype dt, enum dtype dto, void *o, float *lse, const void *q, const void *k, const void *v, struct attn_shape n,
                         struct attn_spans spans, bool merge, void *ws)
{
    struct problem x = problem_new(dt, q, n, spans, ws);
    struct out out = { dto, o, lse, merge };
    write_panels(NULL, x.kt, &x, k);
    write_panels(x.v, NULL, &x, v);
    int64_t done = 0;
    for (const struct group *g = x.groups; g < x.groups + x.ngroups && !merge; g++) {
        fill_empty(&x, &out, done, g->q0);
        done = max64(done, g->q0 + g->nq);
    }
    if (!merge) fill_empty(&x, &out, done, n.Tq);
    /* Tiles from the last to the first: the long rows of a causal mask start first. */
    #pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(cpu_threads(x.tiles * n.H))
    for (int64_t i = 0; i < x.tiles; i++) {
        for (int64_t h = 0; h < n.H; h++) {
            int64_t tile = x.tiles - 1 - i;
            const struct group *g = group_of(&x, tile);
            tile_fwd(&x, &out, g, g->q0 + (tile - g->tile0) * ROWS, h);
        }
    }
}

/* --- backward --- */

/* What one thread needs for a tile; lives on its stack. The padded rows of dk and dv come from reads past the end of p and ds, which
 * land in the member that follows; they are never used. */
struct scratch {
    _Alignas(64) float q[ROWS * WIDTH], dout[ROWS * WIDTH], p[ROWS * KEYS], ds[ROWS * KEYS], dq[ROWS * WIDTH];
    float dk[KEYS_UP * WIDTH], dv[KEYS_UP * WIDTH];
    struct window w;
};

static void load_queries(struct scratch *b, const struct problem *x, int64_t t0, int64_t rows, int64_t h)
{
    int64_t up = round_up(rows, MR), W = x->W;
    for (int64_t r = 0; r < up; r++) {
        if (r < rows) {
            int64_t at = ((t0 + r) * x->n.H + h) * x->n.D;
            load_row(b->q + r * W, x->dt, x->q, at, x->n.D, W);
            load_row(b->dout + r * W, x->dt, x->dout, at, x->n.D, W);
        } else {
            memset(b->q + r * W, 0, (size_t)W * sizeof(float));
            memset(b->dout + r * W, 0, (size_t)W * sizeof(float));
        }
    }
}

/* P and dS of the loaded queries against a panel, in place of S and dP; 0 wherever the mask says no. */
static void probabilities(struct scratch *b, const struct problem *x, int64_t t0, int64_t rows, int64_t h, int64_t p)
{
    const struct window *w = &b->w;
    int64_t W = x->W, D = x->n.D, at = ((h / x->G) * x->panels + p) * D * KEYS, M = round_up(w->rb - w->ra, MR);
    float scale = x->n.scale;
    product_nn(b->p + w->ra * KEYS, KEYS, b->q + w->ra * W, W, x->kt + at, KEYS, M, KEYS, D, false);
    product_nn(b->ds + w->ra * KEYS, KEYS, b->dout + w->ra * W, W, x->vt + at, KEYS, M, KEYS, D, false);
    for (int64_t r = w->ra; r < w->ra + M; r++) {
        float *ps = b->p + r * KEYS, *ds = b->ds + r * KEYS;
        float lse = r < rows ? x->lse[h * x->n.Tq + t0 + r] : -INFINITY;
        if (lse == -INFINITY || w->hi[r] == 0) {
            memset(ps, 0, KEYS * sizeof(float));
            memset(ds, 0, KEYS * sizeof(float));
            continue;
        }
        float delta = x->delta[h * x->n.Tq + t0 + r];
        if (!w->whole) {
            hide(ps, w->lo[r], w->hi[r], -INFINITY);
            hide(ds, w->lo[r], w->hi[r], 0.0f);
        }
        vf *pv = (vf *)(void *)ps, *dv = (vf *)(void *)ds;
        for (int c = 0; c < KEYS / VL; c++) {
            pv[c] = exp_lanes(pv[c], SPLAT(scale), SPLAT(lse));
            dv[c] = pv[c] * (dv[c] - SPLAT(delta)) * SPLAT(scale);
        }
    }
}

/* dq[t0.., h] += dS K of one panel: summed inside the panel first, whichever pass asks. */
static void add_dq(struct scratch *b, const struct problem *x, float *dq, int64_t t0, int64_t rows, int64_t h, int64_t p)
{
    const struct window *w = &b->w;
    int64_t W = x->W, M = round_up(w->rb - w->ra, MR);
    product_nn(b->dq + w->ra * W, W, b->ds + w->ra * KEYS + w->ja, KEYS, x->k + (((h / x->G) * x->panels + p) * KEYS + w->ja) * W, W, M, W, w->jb - w->ja, false);
    for (int64_t r = w->ra; r < min64(rows, w->rb); r++) {
        float *to = dq + ((t0 + r) * x->n.H + h) * x->n.D;
        #pragma omp simd
        for (int64_t d = 0; d < x->n.D; d++) to[d] += b->dq[r * W + d];
    }
}

/* dk and dv of one panel, from every query tile that sees it; with dq, the tiles' dq too. */
static void panel_bwd(struct scratch *b, const struct problem *x, float *dq, float *dk, float *dv, int64_t hk, int64_t p)
{
    int64_t W = x->W, D = x->n.D, lo = 0, hi = x->nkeyed, begin = p * KEYS, end = min64(x->n.Tk, begin + KEYS);
    while (lo < hi) {                                   /* the first span by key that reaches into the panel */
        int64_t mid = (lo + hi) / 2;
        const struct attn_span *s = x->spans.host + x->by_key[mid];
        if (s->k0 + s->nk <= begin) lo = mid + 1;
        else hi = mid;
    }
    if (lo == x->nkeyed || x->spans.host[x->by_key[lo]].k0 >= end) return;
    memset(b->dk, 0, (size_t)(KEYS_UP * W) * sizeof(float));
    memset(b->dv, 0, (size_t)(KEYS_UP * W) * sizeof(float));
    for (int64_t i = lo; i < x->nkeyed && x->spans.host[x->by_key[i]].k0 < end; i++) {
        const struct attn_span *s = x->spans.host + x->by_key[i];
        /* Of the span's query rows, those from which its first key inside the panel is seen, by diag. */
        int64_t skip = max64(0, max64(begin - s->k0, 0) - s->diag) / ROWS;
        for (int64_t t0 = s->q0 + skip * ROWS; t0 < s->q0 + s->nq; t0 += ROWS) {
            int64_t rows = min64(ROWS, s->q0 + s->nq - t0);
            if (keys_of_row(s, t0, x->n.window).lo >= end) break;       /* the window has left the panel behind */
            if (!look(&b->w, s, t0, rows, p, x->n.window)) continue;
            int64_t ra = b->w.ra, n = b->w.rb - ra, m0 = b->w.ja / MR * MR, M = round_up(b->w.jb - m0, MR);
            for (int64_t h = hk * x->G; h < (hk + 1) * x->G; h++) {
                load_queries(b, x, t0, rows, h);
                probabilities(b, x, t0, rows, h, p);
                product_tn(b->dv + m0 * W, W, b->p + ra * KEYS + m0, KEYS, b->dout + ra * W, W, M, W, n, true);
                product_tn(b->dk + m0 * W, W, b->ds + ra * KEYS + m0, KEYS, b->q + ra * W, W, M, W, n, true);
                if (dq) add_dq(b, x, dq, t0, rows, h, p);
            }
        }
    }
    for (int64_t j = begin; j < end; j++) {
        float *to_k = dk + (j * x->n.Hkv + hk) * D, *to_v = dv + (j * x->n.Hkv + hk) * D;
        #pragma omp simd
        for (int64_t d = 0; d < D; d++) {
            to_k[d] += b->dk[(j - begin) * W + d];
            to_v[d] += b->dv[(j - begin) * W + d];
        }
    }
}

/* dq of one query tile, panels ascending as panel_bwd() would come by. */
static void tile_dq(struct scratch *b, const struct problem *x, float *dq, const struct group *g, int64_t t0, int64_t h)
{
    int64_t rows = min64(ROWS, g->q0 + g->nq - t0);
    load_queries(b, x, t0, rows, h);
    for (const struct attn_span *s = x->spans.host + g->first; s < x->spans.host + g->first + g->n; s++) {
        int64_t first = max64(s->k0, keys_of_row(s, t0, x->n.window).lo), end = keys_of_row(s, t0 + rows - 1, x->n.window).hi;
        for (int64_t p = first / KEYS; p * KEYS < end; p++) {
            if (!look(&b->w, s, t0, rows, p, x->n.window)) continue;
            probabilities(b, x, t0, rows, h, p);
            add_dq(b, x, dq, t0, rows, h, p);
        }
    }
}

void ISA(attn_bwd_tiles)(enum dtype dt, float *dq, float *dk, float *dv, const void *dout, const void *q, const void *k, const void *v,
                         const float *lse, const float *delta, struct attn_shape n, struct attn_spans spans, void *ws)
{
    struct problem x = problem_new(dt, q, n, spans, ws);
    if (x.nkeyed == 0) return;
    x.dout = dout;
    x.lse = lse;
    x.delta = delta;
    write_panels(x.k, x.kt, &x, k);
    write_panels(NULL, x.vt, &x, v);
    int threads = cpu_threads(n.Hkv * (x.p1 - x.p0));
    if (n.Hkv % threads == 0) {
        #pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t hk = 0; hk < n.Hkv; hk++) {
            struct scratch b;
            for (int64_t p = x.p0; p < x.p1; p++) panel_bwd(&b, &x, dq, dk, dv, hk, p);
        }
        return;
    }
    #pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(threads)
    for (int64_t p = x.p0; p < x.p1; p++) {
        for (int64_t hk = 0; hk < n.Hkv; hk++) {
            struct scratch b;
            panel_bwd(&b, &x, NULL, dk, dv, hk, p);
        }
    }
    #pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(cpu_threads(x.tiles * n.H))
    for (int64_t i = 0; i < x.tiles; i++) {
        for (int64_t h = 0; h < n.H; h++) {
            struct scratch b;
            int64_t tile = x.tiles - 1 - i;
            const struct group *g = group_of(&x, tile);
            tile_dq(&b, &x, dq, g, g->q0 + (tile - g->tile0) * ROWS, h);
        }
    }
}
