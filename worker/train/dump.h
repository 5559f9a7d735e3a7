/* dump.h - debug_dump: the first step, the whole group together, for comparison with another implementation.
 *
 *   batch.safetensors   input_ids, labels (shifted already, -100: not trained), position_ids i32 [N], loss_weights f32 [N],
 *                       cu_seqlens i32 [docs+1]: all micro-steps' rows of all data-parallel ranks one after another
 *   grads.safetensors   f32, summed over all ranks, before clipping; Hugging Face's names, LoRA ones PEFT's
 *   loss.json           loss, weight, token_accuracy, world, ring, ulysses */
#ifndef RM_WORKER_TRAIN_DUMP_H
#define RM_WORKER_TRAIN_DUMP_H

#include "worker/train/run.h"

/* After the reduction of step 1. Collective over all ranks. */
int dump_step(struct run *r, const struct step_result *result, double weight, struct error *err);

#endif
