/* client.h - HTTP to somebody's server; the only file that names libcurl's header is client.c.
 *
 * One call, one answer, bounded in time and size. Redirects are not followed. Tokens go into a header and nowhere else. */
#ifndef RM_API_CLIENT_H
#define RM_API_CLIENT_H

#include <stddef.h>

#include "api/error.h"

enum { CLIENT_BODY_MAX = 64 << 20 };

struct client;
/* base: "http://127.0.0.1:7070"; token may be NULL. Both are copied. */
struct client *client_new(const char *base, const char *token);
void client_free(struct client *c);

struct client_reply {
    long status;                /* 0: no answer came */
    char *body; size_t len;     /* NUL after its end */
    long long total;            /* of Content-Range: size of the whole file; -1 if absent */
};
/* path: "/v1/jobs"; body NULL: none, else JSON; header: one more "Name: value" or NULL. Returns OK for any HTTP status; E_IO when no
 * answer came (unreachable, cut, timed out), E_LIMIT beyond CLIENT_BODY_MAX. */
int client_call(struct client *c, const char *method, const char *path, const char *body, const char *header, struct client_reply *r, struct error *err);
void client_reply_release(struct client_reply *r);
/* One POST to a stranger: certificates are checked (against the file ca, if given, else the system's), redirects are not followed, proxies of the
 * environment not asked, and of the answer only the status is kept. headers: NULL-terminated "Name: value". Returns OK with *status for any
 * answer; E_IO when none came. */
struct client_push { const char *url, *body, *ca; const char *const *headers; long connect_ms, total_ms; };
int client_push(const struct client_push *p, long *status, struct error *err);
/* text as it may stand in a URL; the caller frees. */
char *client_escape(const char *text);

#endif
