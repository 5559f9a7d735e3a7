/* metrics.h - figures of steps: packed into the store, read back as series, thinned so that spikes stay. */
#ifndef RM_DAEMON_METRICS_H
#define RM_DAEMON_METRICS_H

#include "daemon/store.h"

struct point { int64_t step; double v; };

/* Every number of a metrics record (nested objects as "a.b"; null with "_nonfinite" as NaN or Inf) under the key (job, rank, attempt, seq);
 * a repeat is ignored. Inside the caller's transaction. */
int metrics_store(struct store *s, int64_t job, int rank, int64_t attempt, int64_t seq, int64_t ms, const cJSON *m, struct error *err);
/* Calls f for each number as metrics_store would see it. */
void metrics_each(const cJSON *m, void (*f)(void *arg, const char *name, double v), void *arg);
/* At most max points, in order: the first and the last, and the least and greatest of each bucket of steps; non-finite ones are kept
 * in place (at most max/4 of them). Works in place, returns the new count. max >= 4. */
size_t points_thin(struct point *p, size_t n, size_t max);
/* {"series":[{"name","rank","unit","points":[[step,value|null],…],"nonfinite":[[step,"nan"],…],"restarts":[step,…]}]}. Steps repeated by a later
 * attempt appear once, as the later attempt had them. rank -1: all ranks. */
int metrics_series(struct store *s, int64_t job, char **names, int n_names, int rank, int64_t from, int64_t to, int64_t max_points, cJSON **out,
                   struct error *err);
/* Adds the figures of a rank's last record to o. */
void metrics_last(struct store *s, int64_t job, int rank, int64_t attempt, cJSON *o);
int metrics_names(struct store *s, int64_t job, cJSON **out, struct error *err);

#endif
