/* auth.c - see auth.h. */
#include "daemon/auth.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/daemon.h"
#include "daemon/sha256.h"

enum { WRONG_PER_MINUTE = 60 };
#define SESSION_MS (INT64_C(30) * 24 * 3600 * 1000)

static const char *const scopes[] = { [SCOPE_NONE] = "none", [SCOPE_READ] = "read", [SCOPE_SUBMIT] = "submit", [SCOPE_ADMIN] = "admin" };
const char *scope_name(enum scope s) { return scopes[s]; }

enum scope scope_parse(const char *name)
{
    for (int i = SCOPE_READ; i <= SCOPE_ADMIN; i++) if (strcmp(scopes[i], name) == 0) return (enum scope)i;
    return SCOPE_NONE;
}

void audit(struct daemon *d, const char *who, const char *peer, const char *method, const char *path, int status, const char *note)
{
    (void)store_exec(d->store, NULL, "INSERT INTO audit(ms,who,peer,method,path,status,note) VALUES(?,?,?,?,?,?,?)", "issssis", wall_ms(), who, peer, method, path, (int64_t)status, note);
}

int auth_token_new(struct daemon *d, const char *name, const char *scope, const char *kind, int64_t ttl_ms, char secret[80], int64_t *id, struct error *err)
{
    char hash[65];
    (void)snprintf(secret, 80, "rm_");
    random_hex(secret + 3, 32);
    sha256_hex(hash, secret, strlen(secret));
    int64_t now = wall_ms();
    int rc = store_exec(d->store, err, "INSERT INTO tokens(name,hash,scope,kind,created_ms,expires_ms) VALUES(?,?,?,?,?,nullif(?,0))", "ssssii", name, hash, scope, kind, now, ttl_ms ? now + ttl_ms : 0);
    if (rc == OK && id) *id = store_last_id(d->store);
    return rc;
}

int auth_start(struct daemon *d, struct error *err)
{
    char *path = xasprintf("%s/token", d->set.home), *text = NULL, secret[80], hash[65];
    size_t len = 0;
    int rc = file_read(path, 4096, &text, &len, NULL);
    if (rc == OK) {         /* a token written by hand, or a database restored without it: the file counts */
        while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == ' ')) text[--len] = '\0';
        if (len < 16) {
            rc = error_set(err, E_INVALID, "%s holds no token; remove the file to get a new one", path);
            goto out;
        }
        sha256_hex(hash, text, len);
        rc = store_exec(d->store, err, "INSERT OR IGNORE INTO tokens(name,hash,scope,kind,created_ms) VALUES('first',?,'admin','token',?)", "si", hash, wall_ms());
        if (chmod(path, 0600) < 0) log_line("warning", "%s: cannot set mode 0600", path);
        goto out;
    }
    if (rc != E_NOTFOUND) { rc = error_set(err, E_IO, "%s cannot be read", path); goto out; }
    if ((rc = auth_token_new(d, "first", "admin", "token", 0, secret, NULL, err)) != OK) goto out;
    mode_t old = umask(077);
    (void)snprintf(hash, sizeof hash, "%s", "");
    char *line = xasprintf("%s\n", secret);
    rc = file_write(path, line, strlen(line), err);
    free(line);
    (void)umask(old);
out:
    free(text);
    free(path);
    return rc;
}

bool auth_host_ok(const struct daemon *d, const char *host)
{
    static const char *const loopback[] = { "localhost", "127.0.0.1", "[::1]" };
    const char *colon = strrchr(host, ':'), *bracket = strchr(host, ']');
    size_t n = colon && (!bracket || colon > bracket) ? (size_t)(colon - host) : strlen(host);
    if (colon && (!bracket || colon > bracket)) {
        if (colon[1] == '\0') return false;
        for (const char *p = colon + 1; *p; p++) if (*p < '0' || *p > '9') return false;
    }
    for (size_t i = 0; i < sizeof loopback / sizeof loopback[0]; i++)
        if (strlen(loopback[i]) == n && strncasecmp(host, loopback[i], n) == 0) return true;
    if (strcmp(d->set.bind, "0.0.0.0") != 0 && strlen(d->set.bind) == n && strncasecmp(host, d->set.bind, n) == 0) return true;
    for (int i = 0; i < d->set.allow_host.n; i++)
        if (strlen(d->set.allow_host.v[i]) == n && strncasecmp(host, d->set.allow_host.v[i], n) == 0) return true;
    return false;
}

/* "http://host:port" of a page that may talk to us: same host list, and our own port unless a proxy stands in front. */
static bool origin_ok(const struct daemon *d, const struct request *q, const char *origin, const char *host)
{
    (void)q;
    const char *at = strstr(origin, "://");
    if (at == NULL || !auth_host_ok(d, at + 3)) return false;
    return host && strcasecmp(at + 3, host) == 0;       /* same origin as the Host it asks */
}

bool auth_gate(struct daemon *d, struct request *q)
{
    const char *host = request_header(q, "Host"), *origin = request_header(q, "Origin"), *site = request_header(q, "Sec-Fetch-Site"), *type = request_header(q, "Content-Type");
    bool reads = strcmp(q->method, "GET") == 0 || strcmp(q->method, "HEAD") == 0;
    if (host == NULL || !auth_host_ok(d, host)) {
        reply_problem(q, 403, "host", NULL, "Host \"%.100s\" is not served here; --allow-host adds names", host ? host : "");
        return false;
    }
    if (origin && !origin_ok(d, q, origin, host)) {
        reply_problem(q, 403, "origin", NULL, "Origin \"%.100s\" may not use this API", origin);
        return false;
    }
    if (site && strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0 && !(reads && strcmp(q->path, "/") == 0)) {
        reply_problem(q, 403, "cross_site", NULL, "requests from other sites are refused");
        return false;
    }
    if (!reads && type) {
        /* Above all the three types that any page may send here unasked: text/plain and the two of forms. */
        if (strncasecmp(type, "application/json", 16) != 0 || (type[16] != '\0' && type[16] != ';' && type[16] != ' ')) {
            reply_problem(q, 415, "content_type", NULL, "Content-Type %.60s is not taken: send application/json", type);
            return false;
        }
    }
    return true;
}

static bool take_token(void *arg, struct store_row *r)
{
    struct request *q = arg;
    q->token_id = row_int(r, 0);
    (void)snprintf(q->who, sizeof q->who, "%s", row_text(r, 1));
    q->scope = scope_parse(row_text(r, 2));
    return false;
}

static bool known(struct daemon *d, struct request *q, const char *secret, size_t len)
{
    char hash[65];
    if (len < 16 || len > 200) return false;
    sha256_hex(hash, secret, len);
    (void)store_each(d->store, take_token, q, NULL, "SELECT id,name,scope FROM tokens WHERE hash=? AND (expires_ms IS NULL OR expires_ms>?)", "si", hash, wall_ms());
    return q->scope != SCOPE_NONE;
}

static const char *cookie(struct daemon *d, struct request *q, size_t *len)
{
    const char *c = request_header(q, "Cookie");
    char name[40];
    size_t n = (size_t)snprintf(name, sizeof name, "ringmaster_%d=", d->port);      /* cookies are shared by all ports of a host */
    while (c && *c) {
        while (*c == ' ' || *c == ';') c++;
        size_t len1 = strcspn(c, ";");
        if (len1 > n && strncmp(c, name, n) == 0) { *len = len1 - n; return c + n; }
        c += len1;
    }
    return NULL;
}

bool auth_token(struct daemon *d, struct request *q)
{
    static int64_t window_ms, wrong;
    const char *h = request_header(q, "Authorization"), *c;
    size_t len;
    bool reads = strcmp(q->method, "GET") == 0 || strcmp(q->method, "HEAD") == 0, shown = false;
    if (h && strncasecmp(h, "Bearer ", 7) == 0) {
        shown = true;
        if (known(d, q, h + 7, strlen(h + 7))) return true;
    } else if (h == NULL && (c = cookie(d, q, &len)) != NULL) {
        if (known(d, q, c, len)) {
            const char *site = request_header(q, "Sec-Fetch-Site"), *origin = request_header(q, "Origin");
            if (reads || origin || (site && strcmp(site, "same-origin") == 0)) return true;    /* origin was checked at the gate */
            reply_problem(q, 403, "cross_site", NULL, "a change by cookie needs an Origin header of this site; use a bearer token outside the browser");
            return false;
        }
    }
    if (shown) {
        int64_t now = mono_ms();
        if (now - window_ms > 60000) {
            if (wrong > 1) { char note[60]; (void)snprintf(note, sizeof note, "%lld wrong tokens in the last minute", (long long)wrong); audit(d, "", q->peer, q->method, q->path, 401, note); }
            window_ms = now;
            wrong = 0;
        }
        if (wrong++ == 0) audit(d, "", q->peer, q->method, q->path, 401, "wrong token");
        if (wrong > WRONG_PER_MINUTE) {
            reply_problem(q, 429, "too_many_wrong_tokens", NULL, "too many wrong tokens; good ones are still taken");
            return false;
        }
    }
    reply_problem(q, 401, "token", NULL, shown ? "this token is not known" : "send `Authorization: Bearer TOKEN`; the first token is in <home>/token");
    return false;
}

bool auth_exchange(struct daemon *d, struct request *q)
{
    const char *t = request_arg(q, "token");
    struct error err;
    char secret[80], head[220];
    if (t == NULL) return false;
    if (!known(d, q, t, strlen(t))) {
        audit(d, "", q->peer, q->method, "/", 401, "wrong token in the page's address");
        reply_problem(q, 401, "token", NULL, "this token is not known");
        return true;
    }
    char name[90];
    (void)snprintf(name, sizeof name, "%s (page)", q->who);
    if (auth_token_new(d, name, scope_name(q->scope), "session", SESSION_MS, secret, NULL, &err) != OK) { reply_error(q, &err); return true; }
    (void)snprintf(head, sizeof head, "ringmaster_%d=%s; Path=/; HttpOnly; SameSite=Strict;%s Max-Age=%lld", d->port, secret, *d->set.tls_cert ? " Secure;" : "", (long long)(SESSION_MS / 1000));
    reply_header(q, "Set-Cookie", head);
    reply_header(q, "Location", "/");
    reply_static(q, 303, "text/plain", "", 0);
    return true;
}
