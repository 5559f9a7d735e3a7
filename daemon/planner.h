/* planner.h - runs `ringmaster-worker --plan` beside the loop: what the model and the data on disk allow, and the memory each rank needs. */
#ifndef RM_DAEMON_PLANNER_H
#define RM_DAEMON_PLANNER_H

#include "api/spec.h"

struct daemon;
/* plan: the worker's JSON text (borrowed) when rc is OK; else problems (E_INVALID, borrowed) or err says why there is no plan. */
typedef void planner_done(void *arg, int rc, const char *plan, const struct problems *p, const struct error *err);

int planner_start(struct daemon *d);
void planner_stop(struct daemon *d);
/* Answers through done, always later, never inside this call. spec: JSON text. E_LIMIT when too many wait already. */
int plan_run(struct daemon *d, const char *spec, planner_done *done, void *arg, struct error *err);
/* Devices the worker sees (`--devices`), before the loop runs: {"devices":[{"id","name","memory_bytes"}]}; NULL if none. */
cJSON *planner_devices(struct daemon *d);

#endif
