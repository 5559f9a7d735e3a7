/* remote.h - what the verbs that talk to the daemon share. */
#ifndef RM_CLI_REMOTE_H
#define RM_CLI_REMOTE_H

#include "api/cli/cli.h"
#include "api/client.h"

/* Address and token from flags, environment, or the daemon's home (files url and token). NULL: complained. */
struct client *remote_open(struct cli *c);
/* One call. *out: the JSON of a 2xx answer, the caller's (NULL if it is no JSON). Else complains, with every problem of a problem document,
 * and returns the exit code. Without --json every string in it is printable. quiet: no word about an unreachable daemon (CLI_UNREACHABLE is returned). */
int remote_json(struct cli *c, struct client *h, const char *method, const char *path, const char *body, const char *header, bool quiet, cJSON **out);
bool state_is_final(const char *state);         /* nothing runs any more; paused counts */
int state_exit_code(const char *state);
/* Follows a job to its end on stderr; *job is its last state. */
int remote_watch(struct cli *c, struct client *h, const char *id, cJSON **job);

#endif
