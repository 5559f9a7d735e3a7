#include "worker/train/batch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SHORTEST_DOC = 2 };      /* one token predicts nothing: the data side drops it */

void batch_bounds(const struct spec *spec, int sp, int64_t *max_T, int64_t *max_docs)
{
    int64_t row = (spec->max_length + sp - 1) / sp * sp, rows = spec->per_device_train_batch_size;
    int64_t docs = spec->packing ? row / SHORTEST_DOC + 1 : 2;      /* + padding */
    *max_T = row * rows;
    *max_docs = docs * rows;
}

void batch_init(struct batch *b, int64_t cap, int64_t max_T, int64_t max_docs, struct arena *host)
{
    *b = (struct batch){ .cap = cap, .max_T = max_T, .max_docs = max_docs, .rows = xcalloc((unsigned long)cap, sizeof *b->rows) };
    for (int64_t i = 0; i < cap; i++) {
        b->rows[i].ids = arena_take(host, MEM_DATA, DT_I32, max_T, 0, 0, 0, "batch.%lld.ids", (long long)i);
        b->rows[i].labels = arena_take(host, MEM_DATA, DT_I32, max_T, 0, 0, 0, "batch.%lld.labels", (long long)i);
        b->rows[i].positions = arena_take(host, MEM_DATA, DT_I32, max_T, 0, 0, 0, "batch.%lld.positions", (long long)i);
        b->rows[i].weights = arena_take(host, MEM_DATA, DT_F32, max_T, 0, 0, 0, "batch.%lld.weights", (long long)i);
        b->rows[i].cu = arena_take(host, MEM_DATA, DT_I64, max_docs + 1, 0, 0, 0, "batch.%lld.cu", (long long)i);
    }
}

void batch_release(struct batch *b)
{
    free(b->rows);
    *b = (struct batch){ 0 };
}

static void copy_row(struct row *to, const struct row *from)
{
    size_t T = (size_t)from->T;
    struct row kept = *to;
    *to = *from;
    to->ids = memcpy(kept.ids, from->ids, T * sizeof *from->ids);
    to->labels = memcpy(kept.labels, from->labels, T * sizeof *from->labels);
    to->positions = memcpy(kept.positions, from->positions, T * sizeof *from->positions);
    to->weights = memcpy(kept.weights, from->weights, T * sizeof *from->weights);
    to->cu = memcpy(kept.cu, from->cu, (size_t)(from->n_docs + 1) * sizeof *from->cu);
}

int batch_fill(struct batch *b, struct loader *l, int64_t per_epoch, struct error *err)
{
    b->n = 0;
    b->weight_sum = 0;
    b->tokens_real = b->tokens_trained = 0;
    do {
        const struct row *row;
        int rc = loader_next(l, &row, err);
        if (rc != OK) return rc;
        if (row->T > b->max_T || row->n_docs > b->max_docs)
            return error_set(err, E_LIMIT, "row %lld of the data has %lld tokens in %lld documents, more than the %lld in %lld that memory was planned for",
                             (long long)row->index, (long long)row->T, (long long)row->n_docs, (long long)b->max_T, (long long)b->max_docs);
        copy_row(&b->rows[b->n++], row);
        b->weight_sum += row->weight_sum;
        b->tokens_real += row->tokens_real;
        b->tokens_trained += row->tokens_trained;
        b->epoch = row->epoch;
    } while (b->n < b->cap && loader_position(l) % per_epoch != 0);
    return OK;
}
