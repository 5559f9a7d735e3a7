/* metrics.h - what a step tells about itself: times by phase, bytes and seconds of every collective, memory by category, time left. */
#ifndef RM_WORKER_TRAIN_METRICS_H
#define RM_WORKER_TRAIN_METRICS_H

#include "api/clock.h"
#include "worker/train/job.h"

enum phase { PHASE_DATA, PHASE_FORWARD, PHASE_BACKWARD, PHASE_REDUCE, PHASE_OPTIMIZER, PHASE_CHECKPOINT, PHASES };

enum { ETA_AFTER = 20 /* steps until a guess is worth telling */, ETA_WINDOW = 50 };

struct meter {
    double started, phase_s[PHASES];
    double trained_s;                   /* of the step without evaluation and saving: what tokens_per_s divides by */
    struct comm_count before[COMM_KINDS];
    double recent[ETA_WINDOW];          /* step times, a ring */
    int64_t steps;                      /* of this process */
};

/* What all ranks agree on after a step. */
struct step_result {
    int64_t step;                       /* 1 for the first */
    double loss, accuracy, grad_norm, lr, epoch;
    double weight_sum;
    int64_t tokens;                     /* real, all ranks */
    double skew, share_mean, share_most;        /* slowest rank's own work over the mean; waiting for communication, mean and highest share of all ranks */
    int slowest;                        /* rank */
    bool skipped;                       /* gradients were not finite */
    bool stop, stop_now, checkpoint;    /* some rank was asked to; stop_now: without a checkpoint */
};

void meter_start(struct meter *m, struct comm_world *w);
/* Seconds of the step so far, and those of them in which this rank waited for communication. */
void meter_so_far(const struct meter *m, struct comm_world *w, double *step_s, double *exposed_s);
/* The record of the step that ends now: names of api/message.c, plus "memory" {category: bytes} and "collectives" {kind: {calls, bytes,
 * busy_s, exposed_s}}. steps_left: for the ETA. The caller's. */
cJSON *meter_record(struct meter *m, const struct job *j, struct comm_world *w, const struct step_result *r, int64_t steps_left);

#endif
