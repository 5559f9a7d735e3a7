/* pack.c - best fit decreasing over a treap of open rows, ordered by (room, row) (pack.h). */
#include "worker/data/pack.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "api/error.h"
#include "worker/data/order.h"

struct node { int64_t room; int64_t left, right; uint64_t priority; };     /* node number = row number; -1: none */

static int before(const struct node *t, int64_t a, int64_t b) { return t[a].room != t[b].room ? t[a].room < t[b].room : a < b; }

static int64_t merge(struct node *t, int64_t a, int64_t b)     /* every key of a before every key of b */
{
    if (a < 0) return b;
    if (b < 0) return a;
    if (t[a].priority > t[b].priority) { t[a].right = merge(t, t[a].right, b); return a; }
    t[b].left = merge(t, a, t[b].left);
    return b;
}

static void split(struct node *t, int64_t root, int64_t key, int64_t *less, int64_t *more)
{
    if (root < 0) { *less = *more = -1; return; }
    if (before(t, root, key)) { split(t, t[root].right, key, &t[root].right, more); *less = root; }
    else { split(t, t[root].left, key, less, &t[root].left); *more = root; }
}

static int64_t insert(struct node *t, int64_t root, int64_t row)
{
    int64_t less, more;
    split(t, root, row, &less, &more);
    return merge(t, merge(t, less, row), more);
}

static int64_t erase(struct node *t, int64_t root, int64_t row)
{
    if (root == row) return merge(t, t[root].left, t[root].right);
    if (before(t, row, root)) t[root].left = erase(t, t[root].left, row);
    else t[root].right = erase(t, t[root].right, row);
    return root;
}

static int64_t tightest(const struct node *t, int64_t root, int64_t length)    /* least room >= length; -1 if none */
{
    int64_t best = -1;
    while (root >= 0) {
        if (t[root].room >= length) { best = root; root = t[root].left; }
        else root = t[root].right;
    }
    return best;
}

struct by_length { int64_t length, doc; };

static int longest_first(const void *a, const void *b)
{
    const struct by_length *x = a, *y = b;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return x->doc < y->doc ? -1 : x->doc > y->doc;
}

void pack_best_fit(struct packing *out, const int64_t *length, int64_t n, int64_t capacity)
{
    struct by_length *order = xmalloc((size_t)(n + 1) * sizeof *order);
    struct node *t = xmalloc((size_t)(n + 1) * sizeof *t);
    int64_t *row_of = xmalloc((size_t)(n + 1) * sizeof *row_of), *rank = xmalloc((size_t)(n + 1) * sizeof *rank);
    int64_t rows = 0, root = -1;
    uint64_t random = 1;
    for (int64_t i = 0; i < n; i++) order[i] = (struct by_length){ length[i], i };
    if (n) qsort(order, (size_t)n, sizeof *order, longest_first);
    for (int64_t i = 0; i < n; i++) {
        assert(order[i].length >= 1 && order[i].length <= capacity);
        int64_t row = tightest(t, root, order[i].length);
        if (row >= 0) root = erase(t, root, row);
        else { row = rows++; t[row].room = capacity; t[row].priority = order_next(&random); }
        t[row].room -= order[i].length;
        t[row].left = t[row].right = -1;
        if (t[row].room > 0) root = insert(t, root, row);
        row_of[order[i].doc] = row;
    }
    /* number the rows by their first document, then deal the documents out in order */
    out->n_rows = rows;
    out->first = xcalloc((size_t)rows + 1, sizeof *out->first);
    out->docs = xmalloc((size_t)(n + 1) * sizeof *out->docs);
    for (int64_t r = 0; r < rows; r++) rank[r] = -1;
    for (int64_t i = 0, next = 0; i < n; i++)
        if (rank[row_of[i]] < 0) rank[row_of[i]] = next++;
    for (int64_t i = 0; i < n; i++) out->first[rank[row_of[i]] + 1]++;
    for (int64_t r = 0; r < rows; r++) out->first[r + 1] += out->first[r];
    int64_t *at = xmalloc((size_t)(rows + 1) * sizeof *at);
    memcpy(at, out->first, (size_t)(rows + 1) * sizeof *at);
    for (int64_t i = 0; i < n; i++) out->docs[at[rank[row_of[i]]]++] = i;
    free(at);
    free(rank);
    free(row_of);
    free(t);
    free(order);
}

void pack_single(struct packing *out, int64_t n)
{
    out->n_rows = n;
    out->first = xmalloc((size_t)(n + 1) * sizeof *out->first);
    out->docs = xmalloc((size_t)(n + 1) * sizeof *out->docs);
    for (int64_t i = 0; i <= n; i++) out->first[i] = out->docs[i] = i;
}

void packing_release(struct packing *p)
{
    free(p->first);
    free(p->docs);
    *p = (struct packing){ 0 };
}
