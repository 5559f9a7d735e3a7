/* sample.h - sample_prompts: greedy continuations during training, so that people see what is being learnt. */
#ifndef RM_WORKER_TRAIN_SAMPLE_H
#define RM_WORKER_TRAIN_SAMPLE_H

#include "worker/train/run.h"

/* Continues every prompt; rank 0 appends {"step","prompt","text"} to <output_dir>/samples.jsonl and tells it as an event. Collective over the first
 * data-parallel group; the others do the same for nothing with ZeRO 3 (weights are gathered from all), else nothing. Changes nothing training can see. */
int sample_log(struct run *r, struct error *err);

#endif
