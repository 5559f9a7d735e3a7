/* http.h - requests and replies; http.c is the only file that knows libmicrohttpd.
 *
 * MHD runs on our loop: uv_poll on its epoll fd plus a timer. A handler answers at once with one reply_…(), or keeps the
 * request with request_hold() and answers later (a planner process, a commit); nothing ever blocks the loop.
 * Streams pull: MHD asks for bytes, stream_wake() says there are some. */
#ifndef RM_DAEMON_HTTP_H
#define RM_DAEMON_HTTP_H

#include <stdbool.h>

#include "api/loop.h"
#include "api/spec.h"

struct daemon;
struct http;
struct request;
struct stream;

enum scope { SCOPE_NONE, SCOPE_READ, SCOPE_SUBMIT, SCOPE_ADMIN };

struct route {
    const char *method, *pattern;               /* "/v1/jobs/{id}" */
    void (*handle)(struct daemon *d, struct request *q);
    enum scope scope;
    size_t body_max;                            /* 0: a body is refused */
    const char *params;                         /* query parameters taken, "a,b"; others are errors */
    const char *summary;                        /* for the OpenAPI document */
    const char *answer;                         /* status and kind: "200 Job", "202 Job" … (openapi.c) */
};

enum { REQUEST_PARAMS = 3, BODY_EMPTY = 65535 /* as body_max: nothing, or {} */ };
struct request {
    struct http *http;
    const char *method;
    char *path;                                 /* decoded */
    const struct route *route;
    char *param[REQUEST_PARAMS];                /* the {…} of the pattern, in order */
    char *body; size_t body_len;
    enum scope scope; char who[80];             /* of the token shown; who: its name */
    int64_t token_id;
    char peer[64];
    int64_t start_ms;
    int status;                                 /* of the reply, once there is one */
    void *impl;
};

/* Starts listening; *port is filled in when it was 0. hosts: Host names accepted besides loopback ones. */
int http_start(struct http **out, struct daemon *d, uv_loop_t *loop, const char *bind, int *port, int max_connections, struct error *err);
void http_close_listener(struct http *h);       /* no new connection; those open go on */
void http_stop(struct http *h);
int http_connections(const struct http *h);
int http_held(const struct http *h);            /* requests that wait for their reply */
int64_t http_count(const struct http *h, int klass);    /* replies 1xx … 5xx so far */

const char *request_arg(struct request *q, const char *name);       /* query parameter, NULL if absent */
/* A whole-number parameter in [lo,hi]; absent gives def; anything else answers 400 and returns false. */
bool request_int(struct request *q, const char *name, int64_t lo, int64_t hi, int64_t def, int64_t *out);
const char *request_header(struct request *q, const char *name);
void request_each_arg(struct request *q, void (*f)(void *arg, const char *name), void *arg);

/* Each takes effect once per request; the last four own nothing of the caller's but what they say. */
void reply_header(struct request *q, const char *name, const char *value);       /* before the reply; a value with CR or LF is dropped */
void reply_json(struct request *q, int status, cJSON *body);                     /* takes body */
void reply_text(struct request *q, int status, const char *type, char *body, size_t len);     /* takes body (malloc) */
void reply_static(struct request *q, int status, const char *type, const void *body, size_t len);
void reply_problem(struct request *q, int status, const char *code, const struct problems *errors, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void reply_error(struct request *q, const struct error *err);                    /* status from the code */
/* A regular file (fd is taken), honouring Range. */
void reply_file(struct request *q, int fd, const char *type, const char *download_name);
/* read: fills at most max bytes; 0 = none now (wait for stream_wake), -1 = the end. gone: the client left or the end was sent. */
struct stream *reply_stream(struct request *q, const char *type, long (*read)(void *arg, char *buf, size_t max), void (*gone)(void *arg), void *arg);
void stream_wake(struct stream *s);

/* "bytes=a-b", "bytes=a-", "bytes=-n" of size bytes into [from,to]; false if the whole is to be sent: no header, several ranges, garbage. */
bool http_range(const char *header, uint64_t size, uint64_t *from, uint64_t *to, bool *unsatisfiable);

void request_hold(struct request *q);           /* the reply comes later */

#endif
