/* batch.h - the rows of one optimizer step, read ahead of it.
 *
 * The normaliser of a step is the trained weight of all its micro-steps on all ranks, and it must be known before the first
 * forward sweep. So the rows of all micro-steps are copied here first; host memory, taken from the arena once. */
#ifndef RM_WORKER_TRAIN_BATCH_H
#define RM_WORKER_TRAIN_BATCH_H

#include "worker/arena.h"
#include "worker/data/loader.h"

struct batch {
    struct row *rows;           /* [cap]; their arrays lie in the arena */
    int64_t n, cap;             /* micro-steps held now; gradient_accumulation_steps */
    int64_t max_T, max_docs;
    double weight_sum;          /* this data-parallel rank's */
    int64_t tokens_real, tokens_trained;
    int64_t epoch;              /* of its rows */
};

/* Rows any micro-batch of this spec can have: T and documents, from max_length and the batch size alone, so that a plan needs no data. */
void batch_bounds(const struct spec *spec, int sp, int64_t *max_T, int64_t *max_docs);
void batch_init(struct batch *b, int64_t cap, int64_t max_T, int64_t max_docs, struct arena *host);
void batch_release(struct batch *b);
/* Takes the next micro-batches: `cap` of them, fewer at the end of an epoch (per_epoch micro-batches; position counts them from the
 * start of training), as an optimizer step never spans two epochs. */
int batch_fill(struct batch *b, struct loader *l, int64_t per_epoch, struct error *err);

#endif
