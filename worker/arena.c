#include "worker/arena.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };       /* what CUDA's vector loads, oneDNN and NCCL all like */

const char *const mem_category_names[MEM_CATEGORIES] = {
    [MEM_WEIGHTS] = "weights", [MEM_GRADIENTS] = "gradients", [MEM_OPTIMIZER] = "optimizer", [MEM_ACTIVATIONS] = "activations",
    [MEM_ATTENTION] = "attention", [MEM_MLP] = "mlp", [MEM_LOGITS] = "logits", [MEM_COMMUNICATION] = "communication", [MEM_DATA] = "data",
    [MEM_WORKSPACE] = "workspace",
};

void arena_init(struct arena *a, enum mem_place place, void *base, int64_t capacity)
{
    *a = (struct arena){ .place = place, .base = base, .capacity = capacity };
}

void arena_release_all(struct arena *a)
{
    free(a->buffers);
    *a = (struct arena){ 0 };
}

void *arena_take(struct arena *a, enum mem_category c, enum dtype dt, int64_t d0, int64_t d1, int64_t d2, int64_t d3, const char *fmt, ...)
{
    int64_t dim[4] = { d0, d1, d2, d3 }, bytes = (int64_t)dtype_size(dt);
    int ndim = 0;
    while (ndim < 4 && dim[ndim] > 0) {
        assert(bytes <= INT64_MAX / 2 / dim[ndim]);
        bytes *= dim[ndim++];
    }
    if (ndim == 0) bytes = 0;
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;

    int64_t at = a->used;
    a->used += bytes;
    a->now_by_category[c] += bytes;
    if (a->used > a->peak) {
        a->peak = a->used;
        memcpy(a->peak_by_category, a->now_by_category, sizeof a->peak_by_category);
    }
    if (a->base) {
        assert(a->used <= a->capacity);         /* the plan walked the same code */
        return a->base + at;
    }
    if (a->n_buffers == a->cap_buffers) {
        a->cap_buffers = a->cap_buffers ? a->cap_buffers * 2 : 64;
        a->buffers = xrealloc(a->buffers, (unsigned long)a->cap_buffers * sizeof *a->buffers);
    }
    struct arena_buffer *b = &a->buffers[a->n_buffers++];
    *b = (struct arena_buffer){ .category = c, .dtype = dt, .ndim = ndim, .offset = at, .bytes = bytes };
    memcpy(b->dim, dim, sizeof dim);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(b->name, sizeof b->name, fmt, ap);
    va_end(ap);
    return NULL;
}

struct arena_mark arena_mark(const struct arena *a)
{
    struct arena_mark m = { .used = a->used };
    memcpy(m.by_category, a->now_by_category, sizeof m.by_category);
    return m;
}

void arena_release(struct arena *a, struct arena_mark m)
{
    assert(m.used <= a->used);
    for (int64_t i = a->n_buffers; i-- > 0 && a->buffers[i].offset >= m.used;) a->buffers[i].scratch = true;
    a->used = m.used;
    memcpy(a->now_by_category, m.by_category, sizeof a->now_by_category);
}

void arena_settle(struct arena *a)
{
    a->used = a->peak;
    memcpy(a->now_by_category, a->peak_by_category, sizeof a->now_by_category);
}
