/* slurm.h - what a job may ask of Slurm: every word is checked here, before it becomes an argument of sbatch. */
#ifndef RM_API_SLURM_H
#define RM_API_SLURM_H

#include "api/spec.h"

/* The launch fields of a spec against each other; problems name the field. */
void slurm_check(const struct spec *s, struct problems *p);
/* GPUs to ask for on a node; 0: none. */
int64_t slurm_gpus(const struct spec *s);
/* True if slurm_options name this one ("cpus-per-task"). */
bool slurm_option_given(const struct spec *s, const char *name);

#endif
