/* layout.c - zigzag within every document, with uneven chunks (see layout.h).
 *
 * A document of len tokens is cut into 2R chunks; ring rank r owns chunks r and 2R-1-r, a cheap one from the front and a dear one
 * from the back, so that all ranks have the same causal work. len need not divide: every chunk gets len / 2R tokens, and each token
 * left over goes to the rank with the fewest tokens so far (of those, the one with the least work). Counts therefore never differ by
 * more than one while the documents go by, and since R divides T they are all T/R at the end. */
#include "worker/parallel/layout.h"

#include <assert.h>
#include <stdlib.h>

/* Causal pairs of queries [p, p+n) of a document with all its keys up to each of them. */
static double pairs_of(int64_t p, int64_t n) { return (double)n * (double)p + (double)n * ((double)n + 1) / 2; }

static void add_segment(struct layout *l, int r, int64_t doc, int64_t row0, int64_t len)
{
    if (len == 0) return;
    int64_t n = l->n_segments[r];
    struct layout_segment *last = n > 0 ? &l->segments[r][n - 1] : NULL;
    if (last && last->doc == doc && last->row0 + last->len == row0)
        last->len += len;
    else
        l->segments[r][l->n_segments[r]++] = (struct layout_segment){ doc, row0, len };
}

int layout_build(struct layout *l, const int64_t *cu, int64_t n_docs, int64_t T, int R, int U, struct error *err)
{
    *l = (struct layout){ .T = T, .R = R, .U = U };
    assert(R >= 1 && U >= 1);
    if (T < 0 || T % ((int64_t)R * U) != 0)
        return error_set(err, E_INVALID, "a row of %lld tokens cannot be shared by %d ranks: its length must be a multiple of them", (long long)T, R * U);
    if (n_docs < 0 || cu[0] != 0 || cu[n_docs] != T)
        return error_set(err, E_INVALID, "document boundaries do not span the row of %lld tokens", (long long)T);
    for (int64_t d = 0; d < n_docs; d++)
        if (cu[d + 1] < cu[d]) return error_set(err, E_INVALID, "document %lld ends before it begins", (long long)d);

    l->n_segments = xcalloc((unsigned long)R, sizeof *l->n_segments);
    l->segments = xcalloc((unsigned long)R, sizeof *l->segments);
    for (int r = 0; r < R; r++) l->segments[r] = xmalloc(2 * (unsigned long)n_docs * sizeof **l->segments);
    int64_t *tokens = xcalloc((unsigned long)R, sizeof *tokens), *m = xmalloc((unsigned long)R * sizeof *m);
    double *work = xcalloc((unsigned long)R, sizeof *work);
    for (int64_t d = 0; d < n_docs; d++) {
        int64_t len = cu[d + 1] - cu[d], even = len / (2 * R) * 2, over = len - even * R, at = cu[d];
        for (int r = 0; r < R; r++) tokens[r] += m[r] = even;
        for (; over > 0; over--) {
            int least = 0;
            for (int r = 1; r < R; r++)
                if (tokens[r] < tokens[least] || (tokens[r] == tokens[least] && work[r] < work[least])) least = r;
            tokens[least]++;
            m[least]++;
        }
        for (int c = 0; c < 2 * R; c++) {                       /* an odd token stands in the front chunk */
            int r = c < R ? c : 2 * R - 1 - c;
            int64_t n = c < R ? m[r] - m[r] / 2 : m[r] / 2;
            add_segment(l, r, d, at, n);
            work[r] += pairs_of(at - cu[d], n);
            at += n;
        }
        assert(at == cu[d + 1]);
    }
    for (int r = 0; r < R; r++) assert(tokens[r] == T / R);
    free(tokens);
    free(m);
    free(work);
    return OK;
}

void layout_release(struct layout *l)
{
    for (int r = 0; l->segments && r < l->R; r++) free(l->segments[r]);
    free(l->segments);
    free(l->n_segments);
    *l = (struct layout){ 0 };
}

void layout_index(const struct layout *l, int r, int u, int64_t *index)
{
    int64_t n = l->T / l->R / l->U, from = n * u, at = 0, out = 0;
    for (int64_t i = 0; i < l->n_segments[r]; i++) {
        const struct layout_segment *s = &l->segments[r][i];
        for (int64_t j = from > at ? from - at : 0; j < s->len && at + j < from + n; j++) index[out++] = s->row0 + j;
        at += s->len;
    }
    assert(out == n);
}

/* Whether any of nq queries sees any of nk keys. */
static bool visible(int64_t nq, int64_t nk, int64_t diag, int64_t window)
{
    if (nq - 1 + diag < 0) return false;                        /* the last query stands before the first key */
    return window == 0 || nk - 1 > diag - window;               /* the last key is still in the first query's window */
}

/* Pairs seen: for each query i the keys j with max(0, i+diag-window+1) <= j <= min(nk-1, i+diag). */
int64_t layout_span_pairs(const struct attn_span *s, int64_t window)
{
    int64_t n = 0;
    if (window == 0) {                                          /* queries up to `none` see nothing, from `all` on every key, between them i+diag+1 */
        int64_t none = s->diag < 0 ? (-s->diag < s->nq ? -s->diag : s->nq) : 0, all = s->nk - 1 - s->diag;
        all = all < none ? none : all > s->nq ? s->nq : all;
        return (s->nq - all) * s->nk + (all - none) * (s->diag + 1) + (all * (all - 1) - none * (none - 1)) / 2;
    }
    for (int64_t i = 0; i < s->nq; i++) {
        int64_t hi = i + s->diag < s->nk - 1 ? i + s->diag : s->nk - 1;
        int64_t lo = window > 0 && i + s->diag - window + 1 > 0 ? i + s->diag - window + 1 : 0;
        if (hi >= lo) n += hi - lo + 1;
    }
    return n;
}

int64_t layout_spans(const struct layout *l, int rq, int rk, int64_t window, struct attn_span *out)
{
    return layout_spans_of(l, rq, rk, 0, l->T / l->R, window, out);
}

int64_t layout_spans_of(const struct layout *l, int rq, int rk, int64_t from, int64_t to, int64_t window, struct attn_span *out)
{
    const struct layout_segment *q = l->segments[rq], *k = l->segments[rk];
    int64_t n = 0, q_at = 0, k_first = 0, k_first_at = 0;       /* first key segment of the current document, its local row */
    for (int64_t i = 0; i < l->n_segments[rq]; q_at += q[i++].len) {
        while (k_first < l->n_segments[rk] && k[k_first].doc < q[i].doc) k_first_at += k[k_first++].len;
        int64_t k_at = k_first_at;
        for (int64_t j = k_first; j < l->n_segments[rk] && k[j].doc == q[i].doc; k_at += k[j++].len) {
            int64_t lo = k_at > from ? k_at : from, hi = k_at + k[j].len < to ? k_at + k[j].len : to, diag = q[i].row0 - (k[j].row0 + lo - k_at);
            if (hi <= lo || !visible(q[i].len, hi - lo, diag, window)) continue;
            if (out) out[n] = (struct attn_span){ .q0 = q_at, .nq = q[i].len, .k0 = lo - from, .nk = hi - lo, .diag = diag };
            n++;
        }
    }
    return n;
}

/* The part of a span with query rows [from, to). */
static struct attn_span clip(struct attn_span s, int64_t from, int64_t to)
{
    int64_t lo = from > s.q0 ? from : s.q0, hi = to < s.q0 + s.nq ? to : s.q0 + s.nq;
    s.diag += lo - s.q0;
    s.q0 = lo;
    s.nq = hi > lo ? hi - lo : 0;
    return s;
}

static int64_t pairs_before(const struct attn_span *spans, int64_t n, int64_t window, int64_t row)
{
    int64_t pairs = 0;
    for (int64_t i = 0; i < n && spans[i].q0 < row; i++) {
        struct attn_span s = clip(spans[i], 0, row);
        pairs += layout_span_pairs(&s, window);
    }
    return pairs;
}

void layout_halve(const struct attn_span *spans, int64_t n, int64_t window, struct attn_span *early, int64_t *n_early, struct attn_span *late, int64_t *n_late)
{
    int64_t lo = 0, hi = n > 0 ? spans[n - 1].q0 + spans[n - 1].nq : 0, all = pairs_before(spans, n, window, hi), end = hi;
    while (lo < hi) {                                           /* the first row with half of the work before it */
        int64_t mid = lo + (hi - lo) / 2;
        if (2 * pairs_before(spans, n, window, mid) < all) lo = mid + 1;
        else hi = mid;
    }
    *n_early = *n_late = 0;
    for (int64_t i = 0; i < n; i++) {
        struct attn_span a = clip(spans[i], 0, lo), b = clip(spans[i], lo, end);
        if (a.nq > 0 && visible(a.nq, a.nk, a.diag, window)) early[(*n_early)++] = a;
        if (b.nq > 0 && visible(b.nq, b.nk, b.diag, window)) late[(*n_late)++] = b;
    }
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

/* A rank has at most two segments of a document, and no more segments than tokens. Each meets at most two of another rank's, and one pair of
 * the four never sees each other; all ranks together have at most 2R. */
int64_t layout_spans_bound(int64_t n_docs, int64_t T, int R)
{
    return R == 1 ? n_docs : min64(3 * n_docs, 2 * min64(2 * n_docs, T / R));
}

int64_t layout_spans_bound_all(int64_t n_docs, int64_t T, int R)
{
    return R == 1 ? n_docs : min64(2 * n_docs, T / R) * 2 * R;
}

int64_t layout_work(const struct layout *l, int r, int64_t window)
{
    int64_t pairs = 0;
    for (int rk = 0; rk < l->R; rk++) {
        int64_t n = layout_spans(l, r, rk, window, NULL);
        if (n == 0) continue;
        struct attn_span *s = xmalloc((unsigned long)n * sizeof *s);
        (void)layout_spans(l, r, rk, window, s);
        for (int64_t i = 0; i < n; i++) pairs += layout_span_pairs(&s[i], window);
        free(s);
    }
    return pairs;
}
