/* sse.h - events for watchers: rows of the events table by rising id, and coalesced figures between them.
 *
 * A client is only a cursor into the table, so a slow reader costs no memory and loses no state change; figures it gets as the
 * newest snapshot, not as a backlog. A comment every HEARTBEAT_MS finds clients that are gone (nothing else would). */
#ifndef RM_DAEMON_SSE_H
#define RM_DAEMON_SSE_H

#include "daemon/http.h"

enum { SSE_HEARTBEAT_MS = 5000, SSE_TICK_MS = 500 };

int sse_start(struct daemon *d, struct error *err);
void sse_stop(struct daemon *d);
void sse_open(struct daemon *d, struct request *q, int64_t job);       /* job 0: all */
int sse_clients(const struct daemon *d);
/* Adds a row inside the current transaction; takes data. Watchers hear of it at events_publish(), after the commit. */
int event_add(struct daemon *d, int64_t job, const char *kind, const char *level, cJSON *data, struct error *err);
int event_add_seq(struct daemon *d, int64_t job, int64_t attempt, int64_t seq, int64_t ms, const char *kind, const char *level, const cJSON *data, struct error *err);
void events_publish(struct daemon *d);
void sse_job_ended(struct daemon *d, int64_t job);

#endif
