/* ranks.h - for tests: forked ranks with a communication world and no keeper. */
#ifndef RM_TESTS_COMM_RANKS_H
#define RM_TESTS_COMM_RANKS_H

#include <sys/types.h>

#include "worker/comm/transport.h"

/* What a rank runs; its return value is the child's exit status (0: fine). */
typedef int rank_body(struct comm_world *w, int rank, void *arg);

/* Forks n ranks, opens a world of shm with them, runs body in each. Returns how many did not exit with 0. The children share
 * nothing with the parent but what arg points to in shared mappings. A rank that needs more than 300 s is killed. */
int ranks_run(int n, const struct kernel_ops *ops, int64_t shared_bytes, int deadline_ms, rank_body *body, void *arg);
/* The same in two halves, for tests that kill ranks in between: pids[n]; status[n] as waitpid gives it. */
void ranks_start(int n, const struct kernel_ops *ops, int64_t shared_bytes, int deadline_ms, rank_body *body, void *arg, pid_t *pids);
int ranks_wait(int n, const pid_t *pids, int *status);
/* Zeroed memory that forked children share. */
void *ranks_shared(size_t bytes);

#endif
