/* webhooks.h - job events go to other programs: signed, at least once, retried with back-off.
 *
 * A delivery is a row written in the transaction of its event, so none is lost and none is sent for what was rolled back. Each try is a
 * process of its own (deliver.c, which knows TLS): the coordinator never speaks with a stranger itself. */
#ifndef RM_DAEMON_WEBHOOKS_H
#define RM_DAEMON_WEBHOOKS_H

#include <stdbool.h>

#include "api/error.h"

struct daemon;
/* Inside the event's transaction. state: of the job. */
int webhooks_add(struct daemon *d, long long event, const char *state, const char *body, struct error *err);
void webhooks_tick(struct daemon *d);       /* sends what is due */
void webhooks_stop(void);                   /* the daemon leaves: tries under way are ended, and made again at the next start */
/* "http://host[:port]/path" or https into its parts; false if it is anything else. */
bool webhook_url(const char *url, char host[256], char port[8], char path[1024]);

#endif
