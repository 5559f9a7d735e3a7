/* checkpoint.h - <output_dir>/checkpoint-<step>: complete or absent, under SIGKILL and a full disk.
 *
 *   adapter_model.safetensors + adapter_config.json, or model.safetensors(+index) + config.json     what PEFT, transformers, vLLM load
 *   tokenizer files, copied
 *   optimizer-<i>-of-<n>.safetensors   f32 moments and masters of a range of the flat vector; not with save_only_model
 *   trainer_state.json                 progress, and every other file with its size: written last, the mark of completeness
 * Written in .tmp-checkpoint-<step>, every file fsynced, then renamed. Optimizer ranges are by parameter position, which does not depend
 * on the number of ranks: any P, U, R resumes any checkpoint. */
#ifndef RM_WORKER_TRAIN_CHECKPOINT_H
#define RM_WORKER_TRAIN_CHECKPOINT_H

#include "worker/train/run.h"

/* Writes the checkpoint of r->progress.step and applies save_total_limit. Collective. A failure leaves nothing half-written
 * and every rank with an error; this run's own checkpoint of this step is replaced in one move. */
int checkpoint_save(struct run *r, struct error *err);
/* The degrees it was written with, 0 where it says nothing: auto keeps to them, so that a resumed run repeats to the bit. */
void checkpoint_degrees(const char *dir, int *U, int *R);
/* Weights, moments, masters, progress and data position from dir. Collective. */
int checkpoint_load(struct run *r, const char *dir, struct error *err);
/* What a plan can say about dir without a model: exists, complete, resumable, written by a run with this seed and tuner. */
int checkpoint_check(const char *dir, const struct spec *spec, struct progress *p, struct error *err);
/* Once the data is tokenized: whether dir goes on from this data set, its position translated to dp ranks; p as checkpoint_check left it. */
int checkpoint_check_data(const char *dir, const struct spec *spec, int dp, const struct loader_info *info, struct progress *p, struct error *err);
/* Removes what a killed run left aside in output_dir. Whoever calls it holds the claim. */
int checkpoint_sweep(const char *output_dir, struct error *err);

#endif
