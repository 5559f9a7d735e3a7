/* loader.h - rows in training order: dataset -> template -> tokens and labels -> packing -> shuffled rows, ahead on a thread.
 *
 * The order of rows depends on (seed, epoch) only, never on the number of ranks: data-parallel rank d of D takes rows
 * d, d+D, d+2D … of the global order, so 1 x D micro-steps on one rank see the same rows as D ranks. */
#ifndef RM_WORKER_DATA_LOADER_H
#define RM_WORKER_DATA_LOADER_H

#include <stdbool.h>

#include "api/spec.h"
#include "worker/data/row.h"

struct loader;

struct loader_info {
    int64_t documents, documents_dropped;       /* of the training split; dropped: the two that follow, together */
    int64_t dropped_long, dropped_untrained;    /* longer than max_length with truncation delete; with nothing to train (split: pieces) */
    int64_t rows_per_epoch;                     /* packed rows of the whole data set, all data-parallel ranks together */
    int64_t micro_per_epoch;                    /* micro-batches in an epoch of EVERY data-parallel rank: ceil(rows_per_epoch / (dp_size * batch)). Streaming: 2^40, and
                                                 * documents counts samples; rows, tokens, longest are 0: not known */
    int64_t tokens, tokens_trained;             /* of one epoch, without padding */
    int64_t longest;                            /* tokens of the longest document */
    double packing_efficiency;                  /* real tokens / (rows * max_length) */
    int64_t val_rows;
    int32_t pad_id, eos_id;
};

/* Reads spec->dataset and the tokenizer of spec->model; tokenizes, packs. dp_rank/dp_size: this rank's data-parallel place;
 * multiple: T of every row is a multiple of it (the sequence-parallel size). A progress callback may be NULL. */
int loader_open(struct loader **l, const struct spec *spec, int dp_rank, int dp_size, int multiple,
                void (*progress)(void *arg, const char *what, int64_t done, int64_t total), void *arg, struct error *err);
void loader_info(const struct loader *l, struct loader_info *out);
/* Largest T and n_docs any micro-batch of this data set has: what the plan sizes buffers by. */
void loader_bounds(const struct loader *l, int64_t *max_T, int64_t *max_docs);
/* The next micro-batch (spec->per_device_train_batch_size rows). Valid until the next call. Never ends: epoch follows epoch;
 * the last micro-batch of an epoch may hold fewer rows; where a rank has none left it is one of padding alone (T = multiple, nothing
 * trained), so that all ranks count the same micro-batches per epoch. Streaming joins the epochs: every micro-batch is full. */
int loader_next(struct loader *l, const struct row **row, struct error *err);
/* Row i of the validation split, for evaluation. */
int loader_val(struct loader *l, int64_t i, const struct row **row, struct error *err);
/* Micro-batches handed out so far; loader_seek makes the next loader_next return micro-batch number n of the same order. */
int64_t loader_position(const struct loader *l);
int loader_seek(struct loader *l, int64_t n, struct error *err);
/* For previews: the training documents as tokenized, and the tokenizer. They belong to l. */
struct corpus;
struct tokenizer;
const struct corpus *loader_documents(const struct loader *l);
const struct tokenizer *loader_tokenizer(const struct loader *l);
void loader_close(struct loader *l);

#endif
