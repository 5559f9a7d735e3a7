/* step.h - one optimizer step: the only place where data, model, reduction and optimizer meet. */
#ifndef RM_WORKER_TRAIN_STEP_H
#define RM_WORKER_TRAIN_STEP_H

#include "worker/train/run.h"

/* Trains one step and advances r->progress. Collective over all ranks; every rank gets the same *out. */
int step_run(struct run *r, struct step_result *out, struct error *err);

#endif
