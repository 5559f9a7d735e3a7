/* scheduler.h - who runs next: gangs on slots, strictly by priority, then by age.
 *
 * A job starts when all its ranks have a slot; one that does not fit yet holds back later jobs of its kind (no starving behind small
 * ones). Jobs that wait for something else (another job, a back-off) hold back nobody. Every queued job has a reason. */
#ifndef RM_DAEMON_SCHEDULER_H
#define RM_DAEMON_SCHEDULER_H

#include "api/json.h"

struct daemon;
void slots_init(struct daemon *d);
void schedule(struct daemon *d);
cJSON *queue_json(struct daemon *d);
cJSON *devices_json(struct daemon *d);
int slots_of_kind(const struct daemon *d, bool gpu);

#endif
