/* link.h - the worker's side of its pipe to the keeper (fd 3), on a thread with its own libuv loop.
 *
 * The thread sends a heartbeat each second with the current step, so "alive but stuck" and "dead" look different, and
 * answers nothing else by itself. Without a keeper (fd < 0, tests, world 1) put/get/fence work inside the process. */
#ifndef RM_WORKER_LINK_H
#define RM_WORKER_LINK_H

#include "api/json.h"

struct link;
enum link_stop { LINK_GO = 0, LINK_STOP_CHECKPOINT /* save, then leave */, LINK_STOP_NOW /* leave at the next step border */ };

int link_open(struct link **l, int fd, int rank, int world, struct error *err);
/* Queues one record (takes ownership); never blocks the step. `t` says the kind: api/message.h. */
void link_send(struct link *l, cJSON *record);
/* What the heartbeat tells; phase is a literal. Call it again in long loops inside one phase: every call counts as progress to the keeper. */
void link_step(struct link *l, int64_t step, const char *phase);
/* Rendezvous through the keeper: small strings by key; every call ends within timeout_ms. */
int link_put(struct link *l, const char *key, const char *value, struct error *err);
int link_get(struct link *l, const char *key, char **value, int timeout_ms, struct error *err);   /* waits until somebody put it */
int link_fence(struct link *l, const char *name, int timeout_ms, struct error *err);              /* until all ranks came */
enum link_stop link_stop_wanted(const struct link *l);
bool link_checkpoint_wanted(struct link *l);                                 /* true once per request */
bool link_peer_lost(const struct link *l);                                   /* the keeper said a rank died */
/* Flushes what is queued (at most 2 s), ends the thread. */
void link_close(struct link *l);

#endif
