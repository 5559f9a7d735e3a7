/* layout.h - which tokens of a row each rank holds, and which blocks of attention each pair of ranks shares.
 *
 * Every ring rank holds T/R tokens as segments of the row in ascending order, chosen so that all ring ranks have close to the
 * same causal work (zigzag within each document, uneven lengths allowed); the U ranks of one ring place hold equal contiguous
 * parts of that ring-local order. All ranks compute the same layout from (cu, T, R, U) alone. */
#ifndef RM_WORKER_PARALLEL_LAYOUT_H
#define RM_WORKER_PARALLEL_LAYOUT_H

#include "kernels/kernels.h"

struct layout_segment { int64_t doc, row0, len; };      /* tokens [row0, row0+len) of the row, all in document doc */

struct layout {
    int64_t T;
    int R, U;
    int64_t *n_segments;                /* [R] */
    struct layout_segment **segments;   /* [R][n_segments[r]], in local order */
};

int layout_build(struct layout *l, const int64_t *cu, int64_t n_docs, int64_t T, int R, int U, struct error *err);
void layout_release(struct layout *l);
/* index[i] = row position of token i of rank (r, u); T/(R*U) entries. */
void layout_index(const struct layout *l, int r, int u, int64_t *index);
/* Spans of ring rank rq's queries against ring rank rk's keys, both in ring-local order; returns how many (0: the hop is not
 * needed by these queries). out may be NULL to count. */
int64_t layout_spans(const struct layout *l, int rq, int rk, int64_t window, struct attn_span *out);
/* The same against rows [from, to) of rk's keys alone, which count from `from`. */
int64_t layout_spans_of(const struct layout *l, int rq, int rk, int64_t from, int64_t to, int64_t window, struct attn_span *out);
/* Pairs (query, key) a span covers. */
int64_t layout_span_pairs(const struct attn_span *s, int64_t window);
/* Cuts n spans (as layout_spans gives them) at a query row into two lists of about equal work; `early` and `late` have room for n each. */
void layout_halve(const struct attn_span *spans, int64_t n, int64_t window, struct attn_span *early, int64_t *n_early, struct attn_span *late, int64_t *n_late);
/* Most spans any (rq, rk) can have for rows of at most n_docs documents and T tokens; most that one rq has with all rk together. */
int64_t layout_spans_bound(int64_t n_docs, int64_t T, int R);
int64_t layout_spans_bound_all(int64_t n_docs, int64_t T, int R);
/* Pairs (query, key) ring rank r computes over all hops: its attention work. */
int64_t layout_work(const struct layout *l, int r, int64_t window);

#endif
