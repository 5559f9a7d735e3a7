/* row.h - one micro-batch: what the data side hands to the engine, already shifted, with documents explicit.
 *
 *   label[t]    = id[t+1] if t+1 is in the same document and trained, else -100      (shift first, cut afterwards)
 *   weight[t]   = loss weight of the token predicted at t; 0 where label is -100
 *   position[t] = index inside its document; restarts at 0
 *   cu          = document boundaries [n_docs+1], cu[0] = 0, cu[n_docs] = T; never derived from positions
 * Padding is the last document: label -100, weight 0, ids pad_id, its own cu entry, seen by no real token.
 * T is a multiple of the sequence-parallel size. per_device_train_batch_size rows stand one after another in one row: documents
 * keep them apart, so the engine never sees a batch axis. All ranks of one sequence-parallel group get the same row. */
#ifndef RM_WORKER_DATA_ROW_H
#define RM_WORKER_DATA_ROW_H

#include <stdint.h>

struct row {
    int64_t T;                  /* tokens, padding included */
    int64_t n_docs;             /* padding included */
    int64_t tokens_real;        /* without padding */
    int64_t tokens_trained;     /* labels != -100 */
    double weight_sum;
    int32_t *ids, *labels, *positions;  /* [T] */
    float *weights;                     /* [T] */
    int64_t *cu;                        /* [n_docs+1] */
    int64_t epoch, index;               /* which row of which epoch; for tests and logs */
};

#endif
