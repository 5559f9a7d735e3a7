/* plan.h - what a job will allocate, exactly, before it starts; and everything else that can be refused before a rank runs.
 *
 * plan_make() runs job_layout() on recording arenas for every rank: the same code that hands the memory out, so the same numbers.
 * gradient_checkpointing auto takes the fastest policy that fits the limit: memory_limit_bytes, else what the device has (on the CPU: the
 * machine's memory over its ranks). */
#ifndef RM_WORKER_TRAIN_PLAN_H
#define RM_WORKER_TRAIN_PLAN_H

#include "worker/train/job.h"

struct plan {
    enum act_policy policy;
    int world;
    struct job *ranks;                  /* [world], recorded */
    int64_t shared_bytes;               /* most any rank takes from the transport */
    int64_t peak_bytes, limit_bytes;    /* of the largest rank, as far as it counts against the limit */
};

/* The backend for spec->device: auto takes CUDA where it works. */
int plan_device(const struct spec *spec, const struct kernel_ops **ops, struct error *err);
/* To plan for a GPU that is not here: the CUDA table for a spec that says device cuda and memory_limit_bytes; NULL: no such wish, or no module. */
const struct kernel_ops *plan_device_elsewhere(const struct spec *spec);
/* E_LIMIT when nothing fits: err lists what would. Other errors: heads that cannot be split, a policy not built, … */
int plan_make(struct plan *p, const struct spec *spec, const struct model_config *config, const struct kernel_ops *ops, int world, struct error *err);
void plan_release(struct plan *p);

/* `ringmaster-worker --plan SPEC`: checks spec, model, tokenizer, data, output and resume folders, then plans; prints the JSON object of
 * api/message.h on stdout. Returns the exit code, 0 or 2. */
int plan_command(const char *spec_path, bool brief);

#endif
