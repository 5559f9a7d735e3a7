/* corpus.c - documents: truncation, splitting, shifted labels (corpus.h). */
#include "worker/data/corpus.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void corpus_release(struct corpus *c)
{
    if (c->map) (void)munmap(c->map, c->map_bytes);
    else { free(c->ids); free(c->spans); free(c->docs); }
    *c = (struct corpus){ 0 };
}

int truncation_named(const char *name)
{
    static const char *const names[] = { "delete", "left", "right", "split" };
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

#define ROOM(array, n, cap, more) \
    while ((n) + (more) > (cap)) { (cap) = (cap) ? (cap) * 2 : 1024; (array) = xrealloc((array), (size_t)(cap) * sizeof *(array)); }

static void add_piece(struct corpus *c, const struct encoded *e, int64_t sample, int64_t from, int64_t to)
{
    int64_t span0 = c->n_spans, trained = 0;
    for (int i = 0; i < e->n_spans; i++) {
        int64_t a = e->spans[i].from < from ? from : e->spans[i].from, b = e->spans[i].to > to ? to : e->spans[i].to;
        if (a >= b) continue;
        ROOM(c->spans, c->n_spans, c->cap_spans, 1)
        c->spans[c->n_spans++] = (struct span){ (int32_t)(a - from), (int32_t)(b - from), e->spans[i].weight };
        trained += b - (a > from ? a : from + 1);               /* nothing predicts a document's first token */
    }
    if (trained <= 0) { c->n_spans = span0; c->dropped_untrained++; return; }
    ROOM(c->ids, c->n_ids, c->cap_ids, to - from)
    ROOM(c->docs, c->n_docs, c->cap_docs, 1)
    memcpy(c->ids + c->n_ids, e->ids.v + from, (size_t)(to - from) * sizeof *c->ids);
    c->docs[c->n_docs++] = (struct document){ c->n_ids, span0, (int32_t)(to - from), (int32_t)(c->n_spans - span0), sample };
    c->n_ids += to - from;
}

void corpus_add(struct corpus *c, const struct encoded *e, bool is_text, int64_t sample, int64_t max_length, enum truncation how)
{
    int64_t n = e->ids.n;
    c->samples++;
    if (how == TRUNCATE_DELETE && is_text) how = TRUNCATE_SPLIT;
    if (n <= max_length) add_piece(c, e, sample, 0, n);
    else if (how == TRUNCATE_DELETE) c->dropped_long++;
    else if (how == TRUNCATE_LEFT) add_piece(c, e, sample, n - max_length, n);
    else if (how == TRUNCATE_RIGHT) add_piece(c, e, sample, 0, max_length);
    else for (int64_t at = 0; at < n; at += max_length) add_piece(c, e, sample, at, at + max_length < n ? at + max_length : n);
}

void corpus_labels(const struct corpus *c, int64_t i, int32_t *labels, float *weights)
{
    const struct document *d = &c->docs[i];
    const int32_t *ids = c->ids + d->id0;
    for (int32_t t = 0; t < d->n_ids; t++) { labels[t] = -100; weights[t] = 0.0f; }
    for (int32_t k = 0; k < d->n_spans; k++) {
        struct span s = c->spans[d->span0 + k];
        for (int32_t t = s.from > 0 ? s.from : 1; t < s.to; t++) { labels[t - 1] = ids[t]; weights[t - 1] = s.weight; }
    }
}

int64_t corpus_trained(const struct corpus *c, int64_t i)
{
    int64_t n = 0;
    for (int32_t k = 0; k < c->docs[i].n_spans; k++) {
        struct span s = c->spans[c->docs[i].span0 + k];
        if (s.to > 1) n += s.to - (s.from > 0 ? s.from : 1);
    }
    return n;
}
