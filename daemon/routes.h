/* routes.h - the API on one screen (routes.c), and what every request passes before its handler. */
#ifndef RM_DAEMON_ROUTES_H
#define RM_DAEMON_ROUTES_H

#include "daemon/http.h"

extern const struct route routes[];
extern const int n_routes;

void routes_head(struct daemon *d, struct request *q);      /* the header is there; may answer (refuse) */
void routes_handle(struct daemon *d, struct request *q);    /* the body is there too */
void routes_done(struct daemon *d, struct request *q);
/* True if path fits pattern ("/v1/jobs/{id}"); params get the parts for {…} (malloc). */
bool route_match(const char *pattern, const char *path, char *params[REQUEST_PARAMS]);

#endif
