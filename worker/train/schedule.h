/* schedule.h - the learning rate of a step: Hugging Face's formulas, so that curves lie on top of each other. */
#ifndef RM_WORKER_TRAIN_SCHEDULE_H
#define RM_WORKER_TRAIN_SCHEDULE_H

#include "api/spec.h"

struct schedule {
    enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_CONSTANT_WITH_WARMUP, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_COSINE_WITH_MIN_LR } kind;
    double peak, min_ratio;
    int64_t warmup, total;      /* steps */
};

/* total: optimizer steps of the whole run. warmup_steps above 0 wins over warmup_ratio, whose share is rounded up. */
void schedule_init(struct schedule *s, const struct spec *spec, int64_t total);
/* Rate of step number `step`, counted from 0: with warm-up the first step's rate is 0, as in Hugging Face. */
double schedule_lr(const struct schedule *s, int64_t step);

#endif
