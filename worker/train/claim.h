/* claim.h - whose output_dir it is: one job at a time writes there, and only over what its own run wrote.
 *
 * Rank 0 holds an exclusive flock on <output_dir>/.ringmaster/lock while it lives; the kernel drops it with the process, however that
 * ends. A run has an id, which trainer_state.json keeps; who resumes a checkpoint takes its id over. Folders checkpoint-<step> with
 * another id, or none, are never replaced or deleted. */
#ifndef RM_WORKER_TRAIN_CLAIM_H
#define RM_WORKER_TRAIN_CLAIM_H

#include "api/spec.h"

enum { RUN_ID = 33 };           /* 32 hex digits and the NUL */

struct claim {
    char run[RUN_ID];
    int fd;                     /* of the lock file; -1: none */
    bool locked;                /* false where the file system knows no locks: nothing that others may be writing is removed then */
};

/* Takes output_dir, which exists, and chooses the run's id. resume: the checkpoint gone on from, or NULL. E_CONFLICT: another job
 * writes there, or there are checkpoints that this run would replace. On failure *c is empty. */
int claim_take(struct claim *c, const char *output_dir, const char *resume, struct error *err);
void claim_release(struct claim *c);
/* Whether claim_take would succeed now; output_dir may be absent. Writes nothing. */
int claim_check(const char *output_dir, const char *resume, struct error *err);
/* Whether dir is a complete checkpoint of the run. */
bool claim_owns(const char *dir, const char *run);
/* The number in checkpoint-<step>; -1: no such name. */
int64_t claim_step(const char *name);

#endif
