/* auth.h - who may ask: Host and Origin checks, bearer tokens, the page's cookie.
 *
 * Tokens are 256 random bits, stored as SHA-256 and looked up by that hash, so timing tells nothing about the secret. */
#ifndef RM_DAEMON_AUTH_H
#define RM_DAEMON_AUTH_H

#include "daemon/http.h"

/* Makes <home>/token (mode 0600) with an admin token at first start. */
int auth_start(struct daemon *d, struct error *err);
/* False after answering 403 (Host, Origin, cross-site, content type). Before routing, before any work. */
bool auth_gate(struct daemon *d, struct request *q);
/* Fills q->scope, who and token_id from the Authorization header or the cookie; answers 401 or 429 and returns false if neither is good. */
bool auth_token(struct daemon *d, struct request *q);
/* True if "host" or "host:port" names this daemon. */
bool auth_host_ok(const struct daemon *d, const char *host);
/* /?token=…: sets the cookie and redirects to /; true if it answered. */
bool auth_exchange(struct daemon *d, struct request *q);
/* A new token; *secret is the only copy. */
int auth_token_new(struct daemon *d, const char *name, const char *scope, const char *kind, int64_t ttl_ms, char secret[80], int64_t *id, struct error *err);
enum scope scope_parse(const char *name);       /* SCOPE_NONE if unknown */
const char *scope_name(enum scope s);
void audit(struct daemon *d, const char *who, const char *peer, const char *method, const char *path, int status, const char *note);

#endif
