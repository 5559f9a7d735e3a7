/* planner.h - asks `ringmaster-worker` about a spec, beside the loop: --plan says what the model and the data on disk allow and the memory each
 * rank needs, --dataset shows the data as it will be trained. */
#ifndef RM_DAEMON_PLANNER_H
#define RM_DAEMON_PLANNER_H

#include "api/spec.h"

struct daemon;
enum question { ASK_PLAN, ASK_DATASET };
/* answer: the worker's JSON text (borrowed) when rc is OK; else problems (E_INVALID, borrowed) or, with none of them, err says why there is no answer. */
typedef void planner_done(void *arg, int rc, const char *answer, const struct problems *p, const struct error *err);

int planner_start(struct daemon *d);
void planner_stop(struct daemon *d);
/* Answers through done, always later, never inside this call. spec: JSON text. E_TIMEOUT when too many wait already. */
int planner_ask(struct daemon *d, enum question what, const char *spec, planner_done *done, void *arg, struct error *err);
/* Devices the worker sees (`--devices`), before the loop runs: {"devices":[{"id","name","memory_bytes"}]}; NULL if none. */
cJSON *planner_devices(struct daemon *d);

#endif
