/* evaluate.h - loss on the validation split, with training's normaliser; leaves nothing behind that training could see. */
#ifndef RM_WORKER_TRAIN_EVALUATE_H
#define RM_WORKER_TRAIN_EVALUATE_H

#include "worker/train/run.h"

/* *loss = sum of weight * cross-entropy / sum of weight over the whole split. Collective. NaN when the split has no trained token. */
int evaluate(struct run *r, double *loss, struct error *err);

#endif
