/* http.c - libmicrohttpd on our loop; see http.h.
 *
 * A suspended connection sees neither time-outs nor its client leaving, so whoever holds one must write now and then (sse.c's
 * heartbeat). MHD's own time-out restarts with every byte; slow senders are ended here by an absolute deadline.
 * What MHD refuses itself (a request line or header it cannot read, a head over 32 KB, a broken chunk) it answers with a short HTML page and
 * closes the connection; version 0.9.75 has no hook for that. All it lets through is judged by head_fits() and answered as a problem. */
#include "daemon/http.h"

#include <arpa/inet.h>
#include <assert.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/daemon.h"
#include "daemon/routes.h"
#include "daemon/store.h"

enum { IDLE_MS = 60000, SWEEP_MS = 1000, BODY_SLACK = 1 << 20, LOG_LINES = 20 /* a minute */, STREAM_SILENT_MS = 8000 };

/* A client connection, so that the sweep finds those that never finish a request. */
struct peer {
    struct peer *next, **link;
    int fd;
    int64_t since_ms;       /* of the current phase */
    bool fresh;             /* no request finished yet, or one has begun: the short deadline */
    bool in_reply;          /* the request is complete: no deadline, the handler's business */
    bool bad_escape;        /* of the request being read: unescape() met what it cannot decode */
};

struct http {
    struct daemon *d;
    struct MHD_Daemon *mhd;
    uv_poll_t poll;
    uv_timer_t timer, sweep;
    struct peer *peers;
    int n_peers, max_peers;
    int64_t by_class[6];
    int n_held;
    bool quiet;             /* the listener is closed */
    int listen_fd;
    char *cert, *key;       /* PEM, kept while the server runs */
};

struct stream {
    struct http *http;
    struct MHD_Connection *conn;
    long (*read)(void *arg, char *buf, size_t max);
    void (*gone)(void *arg);
    void *arg;
    bool suspended;
};

struct exchange {           /* what request.impl points to */
    struct MHD_Connection *conn;
    struct MHD_Response *response;
    struct peer *peer;
    bool begun, held, suspended, refused, queued;
    size_t dropped;
    char *header[16][2];
    int n_headers;
};

static void run_later(struct http *h);
static void run_soon(struct http *h);

/* --- the loop --- */

static void on_timer(uv_timer_t *t) { struct http *h = t->data; (void)MHD_run(h->mhd); run_later(h); }

static void run_later(struct http *h)
{
    MHD_UNSIGNED_LONG_LONG ms;
    if (MHD_get_timeout(h->mhd, &ms) == MHD_YES) (void)uv_timer_start(&h->timer, on_timer, ms, 0);
    else (void)uv_timer_stop(&h->timer);
}

/* After a resume: with an external loop MHD notices it only when it runs. */
static void run_soon(struct http *h) { (void)uv_timer_start(&h->timer, on_timer, 0, 0); }

static void on_poll(uv_poll_t *p, int status, int events)
{
    (void)status; (void)events;
    struct http *h = p->data;
    (void)MHD_run(h->mhd);
    run_later(h);
}

static void on_sweep(uv_timer_t *t)
{
    struct http *h = t->data;
    int64_t now = mono_ms();
    for (struct peer *p = h->peers; p; p = p->next)
        if (!p->in_reply && now - p->since_ms > (p->fresh ? h->d->set.request_timeout_ms : IDLE_MS)) {
            (void)shutdown(p->fd, SHUT_RDWR);       /* MHD closes it when it next looks */
            p->since_ms = now;
        }
    run_soon(h);        /* out of descriptors, MHD stops to listen, and looks again only when it runs */
}

static void on_connection(void *cls, struct MHD_Connection *conn, void **socket_context, enum MHD_ConnectionNotificationCode code)
{
    struct http *h = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct peer *p = xcalloc(1, sizeof *p);
        p->fd = info->connect_fd;
        p->since_ms = mono_ms();
        p->fresh = true;
        p->next = h->peers;
        p->link = &h->peers;
        if (h->peers) h->peers->link = &p->next;
        h->peers = p;
        h->n_peers++;
        *socket_context = p;
    } else if (*socket_context) {
        struct peer *p = *socket_context;
        *p->link = p->next;
        if (p->next) p->next->link = p->link;
        h->n_peers--;
        free(p);
        *socket_context = NULL;
    }
}

/* --- replies --- */

static struct exchange *ex(struct request *q) { return q->impl; }

void reply_header(struct request *q, const char *name, const char *value)
{
    struct exchange *x = ex(q);
    if (x->n_headers == 16 || strpbrk(value, "\r\n")) return;
    x->header[x->n_headers][0] = xstrdup(name);
    x->header[x->n_headers++][1] = xstrdup(value);
}

static void queue(struct request *q)
{
    struct exchange *x = ex(q);
    x->queued = true;
    (void)MHD_queue_response(x->conn, (unsigned)q->status, x->response);
    MHD_destroy_response(x->response);
    x->response = NULL;
}

/* Every reply ends here: common headers, then out now or when MHD asks again. */
static void send_response(struct request *q, int status, const char *type, struct MHD_Response *r)
{
    struct exchange *x = ex(q);
    assert(x->response == NULL && !x->queued);
    q->status = status;
    q->http->by_class[status / 100 % 6]++;
    static const char *const common[][2] = {
        { "X-Content-Type-Options", "nosniff" }, { "X-Frame-Options", "DENY" }, { "Referrer-Policy", "no-referrer" },
        { "Cross-Origin-Resource-Policy", "same-origin" }, { "Cross-Origin-Opener-Policy", "same-origin" },
        { "Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'" },
    };
    bool cached = false;
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) (void)MHD_add_response_header(r, common[i][0], common[i][1]);
    if (type) (void)MHD_add_response_header(r, "Content-Type", type);
    for (int i = 0; i < x->n_headers; i++) {
        if (strcmp(x->header[i][0], "Cache-Control") == 0) cached = true;
        (void)MHD_add_response_header(r, x->header[i][0], x->header[i][1]);
    }
    if (!cached) (void)MHD_add_response_header(r, "Cache-Control", "no-store");
    x->response = r;
    if (!x->held) return;               /* access() queues it when the handler returns */
    x->held = false;
    q->http->n_held--;
    if (x->suspended) {
        x->suspended = false;
        MHD_resume_connection(x->conn);     /* access() is called again and queues it */
        run_soon(q->http);
    }
}

void reply_static(struct request *q, int status, const char *type, const void *body, size_t len)
{
    send_response(q, status, type, MHD_create_response_from_buffer(len, (void *)body, MHD_RESPMEM_PERSISTENT));
}

void reply_text(struct request *q, int status, const char *type, char *body, size_t len)
{
    send_response(q, status, type, MHD_create_response_from_buffer(len, body, MHD_RESPMEM_MUST_FREE));
}

static void reply_tree(struct request *q, int status, const char *type, cJSON *body)
{
    char *text = json_line(body);
    cJSON_Delete(body);
    size_t n = strlen(text);
    text = xrealloc(text, n + 2);
    memcpy(text + n, "\n", 2);
    reply_text(q, status, type, text, n + 1);
}

void reply_json(struct request *q, int status, cJSON *body) { reply_tree(q, status, "application/json", body); }

static const char *title_of(int status)
{
    switch (status) {
    case 400: return "Bad request";
    case 401: return "Not authenticated";
    case 403: return "Forbidden";
    case 404: return "Not found";
    case 405: return "Method not allowed";
    case 409: return "Conflict";
    case 412: return "Changed in between";
    case 413: return "Body too large";
    case 415: return "Unsupported media type";
    case 416: return "Range not satisfiable";
    case 422: return "Refused";
    case 428: return "If-Match required";
    case 429: return "Too many requests";
    case 501: return "Not built in";
    case 503: return "Not available now";
    case 507: return "Disk full";
    default: return "Internal error";
    }
}

void reply_problem(struct request *q, int status, const char *code, const struct problems *errors, const char *fmt, ...)
{
    char detail[1200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    size_t bad;
    utf8_scrub(detail);
    cJSON *o = cJSON_CreateObject();
    char *type = xasprintf("urn:ringmaster:%s", code);
    json_add_str(o, "type", type);
    free(type);
    json_add_str(o, "title", title_of(status));
    json_add_int(o, "status", status);
    json_add_str(o, "detail", detail);
    json_add_str(o, "instance", q->path && utf8_valid(q->path, strlen(q->path), &bad) ? q->path : "");
    if (errors && errors->n > 0) (void)cJSON_AddItemToObject(o, "errors", problems_json(errors));
    if (status == 401) reply_header(q, "WWW-Authenticate", "Bearer realm=\"ringmaster\"");
    if (status == 503 || status == 429) reply_header(q, "Retry-After", "2");
    reply_tree(q, status, "application/problem+json", o);
}

void reply_error(struct request *q, const struct error *err)
{
    static const int statuses[STATUS_COUNT] = {
        [E_INVALID] = 422, [E_UNSUPPORTED] = 501, [E_NOTFOUND] = 404, [E_DISK_FULL] = 507, [E_LIMIT] = 413, [E_TIMEOUT] = 503, [E_NOMEM] = 503,
        [E_CONFLICT] = 409 };
    int status = (unsigned)err->code < STATUS_COUNT && statuses[err->code] ? statuses[err->code] : 500;
    if (status >= 500) (void)fprintf(stderr, "ringmasterd: %s %s: %s\n", q->method, q->path, err->text);
    reply_problem(q, status, status_name(err->code), NULL, "%s", err->text);
}

bool http_range(const char *h, uint64_t size, uint64_t *from, uint64_t *to, bool *unsatisfiable)
{
    *unsatisfiable = false;
    if (h == NULL || strncmp(h, "bytes=", 6) != 0 || strchr(h, ',')) return false;
    const char *p = h + 6;
    char *end;
    if (*p == '-') {
        if (p[1] < '0' || p[1] > '9') return false;
        uint64_t n = strtoull(p + 1, &end, 10);
        if (*end) return false;
        if (n == 0 || size == 0) { *unsatisfiable = true; return false; }
        *from = n > size ? 0 : size - n;
        *to = size - 1;
        return true;
    }
    if (*p < '0' || *p > '9') return false;
    *from = strtoull(p, &end, 10);
    if (*end++ != '-') return false;
    *to = size - 1;
    if (*end) {
        if (*end < '0' || *end > '9') return false;
        uint64_t last = strtoull(end, &end, 10);
        if (*end || last < *from) return false;
        if (last < *to) *to = last;
    }
    if (*from >= size) { *unsatisfiable = true; return false; }
    return true;
}

void reply_file(struct request *q, int fd, const char *type, const char *download_name)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd);
        reply_problem(q, 404, "not_found", NULL, "no such file");
        return;
    }
    uint64_t size = (uint64_t)st.st_size, from = 0, to = 0;
    bool bad, part = http_range(request_header(q, "Range"), size, &from, &to, &bad);
    char text[120];
    if (bad) {
        (void)close(fd);
        (void)snprintf(text, sizeof text, "bytes */%llu", (unsigned long long)size);
        reply_header(q, "Content-Range", text);
        reply_problem(q, 416, "range", NULL, "the file has %llu bytes", (unsigned long long)size);
        return;
    }
    reply_header(q, "Accept-Ranges", "bytes");
    if (download_name) {        /* names come from disk: only plain characters reach the header */
        char safe[140] = "attachment; filename=\"";
        size_t n = strlen(safe);
        for (const char *p = download_name; *p && n < 130; p++)
            safe[n++] = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || strchr("._-", *p) ? *p : '_';
        safe[n++] = '"';
        safe[n] = '\0';
        reply_header(q, "Content-Disposition", safe);
    }
    if (part) {
        (void)snprintf(text, sizeof text, "bytes %llu-%llu/%llu", (unsigned long long)from, (unsigned long long)to, (unsigned long long)size);
        reply_header(q, "Content-Range", text);
        send_response(q, 206, type, MHD_create_response_from_fd_at_offset64(to - from + 1, fd, from));
    } else send_response(q, 200, type, MHD_create_response_from_fd_at_offset64(size, fd, 0));
}

static ssize_t stream_read(void *cls, uint64_t pos, char *buf, size_t max)
{
    (void)pos;
    struct stream *s = cls;
    long n = s->read(s->arg, buf, max);
    if (n < 0) return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == 0) {
        s->suspended = true;
        MHD_suspend_connection(s->conn);
    }
    return n;
}

static void stream_free(void *cls)
{
    struct stream *s = cls;
    s->gone(s->arg);
    free(s);
}

struct stream *reply_stream(struct request *q, const char *type, long (*read)(void *, char *, size_t), void (*gone)(void *), void *arg)
{
    struct stream *s = xcalloc(1, sizeof *s);
    *s = (struct stream){ q->http, ex(q)->conn, read, gone, arg, false };
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(s->conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    unsigned silent_ms = STREAM_SILENT_MS;      /* else TCP tries for a quarter of an hour to reach a client whose network is gone */
    if (info) (void)setsockopt(info->connect_fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof silent_ms);
    reply_header(q, "X-Accel-Buffering", "no");
    send_response(q, 200, type, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, stream_read, s, stream_free));
    return s;
}

void stream_wake(struct stream *s)
{
    if (!s->suspended) return;
    s->suspended = false;
    MHD_resume_connection(s->conn);
    run_soon(s->http);
}

void request_hold(struct request *q) { ex(q)->held = true; q->http->n_held++; }
int http_held(const struct http *h) { return h->n_held; }

/* --- requests --- */

const char *request_arg(struct request *q, const char *name) { return MHD_lookup_connection_value(ex(q)->conn, MHD_GET_ARGUMENT_KIND, name); }
const char *request_header(struct request *q, const char *name) { return MHD_lookup_connection_value(ex(q)->conn, MHD_HEADER_KIND, name); }

bool request_int(struct request *q, const char *name, int64_t lo, int64_t hi, int64_t def, int64_t *out)
{
    const char *t = request_arg(q, name);
    *out = def;
    if (t == NULL) return true;
    char *end;
    long long v = strtoll(t, &end, 10);
    if (*t == '\0' || strlen(t) > 18 || *end || !((*t >= '0' && *t <= '9') || *t == '-') || v < lo || v > hi) {
        reply_problem(q, 400, "parameter", NULL, "%s: expected a whole number from %lld to %lld, got \"%.40s\"", name, (long long)lo, (long long)hi, t);
        return false;
    }
    *out = v;
    return true;
}

struct arg_walk { void (*f)(void *, const char *); void *arg; };
static enum MHD_Result walk(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    (void)kind; (void)value;
    struct arg_walk *w = cls;
    w->f(w->arg, key);
    return MHD_YES;
}

void request_each_arg(struct request *q, void (*f)(void *arg, const char *name), void *arg)
{
    struct arg_walk w = { f, arg };
    (void)MHD_get_connection_values(ex(q)->conn, MHD_GET_ARGUMENT_KIND, walk, &w);
}

static void peer_text(struct request *q)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(ex(q)->conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info ? info->client_addr : NULL;
    if (a && a->sa_family == AF_INET) (void)inet_ntop(AF_INET, &((const struct sockaddr_in *)a)->sin_addr, q->peer, sizeof q->peer);
    else if (a && a->sa_family == AF_INET6) (void)inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)a)->sin6_addr, q->peer, sizeof q->peer);
}

static int hex(char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1; }

/* Decodes the path, or a name or value of the query, in place. A broken escape, a NUL (text would end there) and what is no UTF-8 are
 * remembered and refused in access_cb(): a path or name must not mean one thing here and another to who reads it next. */
static size_t unescape(void *cls, struct MHD_Connection *conn, char *text)
{
    (void)cls;
    char *to = text;
    size_t bad;
    bool ok = true;
    for (const char *p = text; *p; p++) {
        int hi = *p == '%' ? hex(p[1]) : -1, lo = hi >= 0 ? hex(p[2]) : -1;
        if (*p == '%' && (lo < 0 || hi * 16 + lo == 0)) ok = false;
        if (lo < 0) { *to++ = *p; continue; }
        *to++ = (char)(hi * 16 + lo);
        p += 2;
    }
    *to = '\0';
    if (!utf8_valid(text, (size_t)(to - text), &bad)) ok = false;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct peer *peer = info ? info->socket_context : NULL;
    if (!ok && peer) peer->bad_escape = true;
    return (size_t)(to - text);
}

struct head { const char *odd, *twice; unsigned seen; };       /* seen: bits of once[] */

static enum MHD_Result look_at_header(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    static const char *const once[] = { "Host", "Content-Length", "Transfer-Encoding", "Content-Type", "Authorization", "Origin", "Sec-Fetch-Site" };
    (void)kind; (void)value;
    struct head *h = cls;
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f || strchr("\"(),/:;<=>?@[\\]{}", *p)) h->odd = name;
    for (size_t i = 0; i < sizeof once / sizeof once[0]; i++) {
        if (strcasecmp(name, once[i]) != 0) continue;
        if (h->seen >> i & 1) h->twice = once[i];
        h->seen |= 1u << i;
    }
    return MHD_YES;
}

/* False after a 4xx: a head that another program on the way could read differently, or that cannot be decoded. */
static bool head_fits(struct request *q)
{
    struct exchange *x = ex(q);
    struct head h = { 0 };
    const char *coding = request_header(q, "Transfer-Encoding");
    bool escape = x->peer && x->peer->bad_escape;
    if (x->peer) x->peer->bad_escape = false;
    (void)MHD_get_connection_values(x->conn, MHD_HEADER_KIND, look_at_header, &h);
    bool both = coding && request_header(q, "Content-Length"), strange = coding && strcasecmp(coding, "chunked") != 0;
    if (h.odd || h.twice || both || strange) reply_header(q, "Connection", "close");      /* where this request ends is not certain */
    if (h.odd) reply_problem(q, 400, "header", NULL, "\"%.60s\" is no name of a header", h.odd);
    else if (h.twice) reply_problem(q, 400, "header", NULL, "the header %s may stand there once", h.twice);
    else if (both) reply_problem(q, 400, "header", NULL, "send Content-Length or Transfer-Encoding, not both");
    else if (strange) reply_problem(q, 501, "header", NULL, "Transfer-Encoding %.40s is not known here, only chunked", coding);
    else if (escape) reply_problem(q, 400, "escape", NULL, "the path or the query holds a broken %% escape, a NUL or bytes that are no UTF-8");
    else return true;
    return false;
}

static enum MHD_Result access_cb(void *cls, struct MHD_Connection *conn, const char *url, const char *method, const char *version,
                                 const char *data, size_t *n, void **con_cls)
{
    (void)version;
    struct http *h = cls;
    struct request *q = *con_cls;
    if (q == NULL) {            /* the header is complete */
        q = xcalloc(1, sizeof *q);
        struct exchange *x = xcalloc(1, sizeof *x);
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        q->http = h;
        q->impl = x;
        q->path = xstrdup(url);
        q->start_ms = mono_ms();
        x->conn = conn;
        x->peer = info ? info->socket_context : NULL;
        if (x->peer) { x->peer->fresh = true; x->peer->since_ms = q->start_ms; }
        *con_cls = q;
        q->method = method;
        peer_text(q);
        if (head_fits(q)) {
            if (h->n_peers > h->max_peers) reply_problem(q, 503, "connections", NULL, "too many connections; try again shortly");
            else routes_head(h->d, q);
        }
        if (x->response) queue(q);      /* refused before its body was read */
        return MHD_YES;
    }
    struct exchange *x = q->impl;
    q->method = method;
    if (*n > 0) {
        size_t max = q->route ? q->route->body_max : 0;
        if (x->queued) { *n = 0; return MHD_YES; }
        if (q->body_len + *n > max) {
            x->refused = true;
            x->dropped += *n;
            if (x->dropped > BODY_SLACK) return MHD_NO;        /* closes the connection */
        } else {
            q->body = xrealloc(q->body, q->body_len + *n + 1);
            memcpy(q->body + q->body_len, data, *n);
            q->body_len += *n;
            q->body[q->body_len] = '\0';
        }
        *n = 0;
        return MHD_YES;
    }
    if (x->queued) return MHD_YES;
    if (x->response) { queue(q); return MHD_YES; }      /* woken from a hold */
    if (x->begun) return MHD_YES;
    x->begun = true;
    if (x->peer) x->peer->in_reply = true;
    if (x->refused) reply_problem(q, 413, "body_too_large", NULL, "the body has more than the %zu bytes taken here", q->route->body_max);
    else routes_handle(h->d, q);
    if (x->response) queue(q);
    else if (x->held) {
        x->suspended = true;
        MHD_suspend_connection(conn);
    } else {
        reply_problem(q, 500, "internal", NULL, "no answer was made for this request");
        queue(q);
    }
    return MHD_YES;
}

static void on_done(void *cls, struct MHD_Connection *conn, void **con_cls, enum MHD_RequestTerminationCode code)
{
    (void)conn; (void)code;
    struct http *h = cls;
    struct request *q = *con_cls;
    if (q == NULL) return;
    struct exchange *x = q->impl;
    routes_done(h->d, q);
    if (x->peer) { x->peer->in_reply = false; x->peer->fresh = false; x->peer->since_ms = mono_ms(); }
    if (x->response) MHD_destroy_response(x->response);
    for (int i = 0; i < x->n_headers; i++) { free(x->header[i][0]); free(x->header[i][1]); }
    for (int i = 0; i < REQUEST_PARAMS; i++) free(q->param[i]);
    free(q->body);
    free(q->path);
    free(x);
    free(q);
    *con_cls = NULL;
}

/* Anybody who reaches the port can make MHD complain: a few lines a minute tell enough. */
static void mhd_log(void *cls, const char *fmt, va_list ap)
{
    static int64_t minute, lines;
    (void)cls;
    if (mono_ms() / 60000 != minute) {
        if (lines > LOG_LINES) log_line("warning", "http: %lld more lines like these", (long long)lines - LOG_LINES);
        minute = mono_ms() / 60000;
        lines = 0;
    }
    if (++lines > LOG_LINES) return;
    (void)fputs("ringmasterd: http: ", stderr);
    (void)vfprintf(stderr, fmt, ap);
}

static int listen_on(const char *addr, int *port, struct error *err)
{
    struct sockaddr_in a4 = { .sin_family = AF_INET, .sin_port = htons((uint16_t)*port) };
    struct sockaddr_in6 a6 = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)*port) };
    struct sockaddr *a = (struct sockaddr *)&a4;
    socklen_t len = sizeof a4;
    if (inet_pton(AF_INET, addr, &a4.sin_addr) != 1) {
        if (inet_pton(AF_INET6, addr, &a6.sin6_addr) != 1) return error_set(err, E_INVALID, "bind=%s: expected an IPv4 or IPv6 address", addr), -1;
        a = (struct sockaddr *)&a6;
        len = sizeof a6;
    }
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
    if (fd < 0) { (void)error_set(err, E_IO, "socket: %m"); return -1; }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a, len) < 0 || listen(fd, 1024) < 0) {
        (void)error_set(err, E_IO, "listen on %s port %d: %m", addr, *port);
        (void)close(fd);
        return -1;
    }
    if (getsockname(fd, a, &len) == 0) *port = ntohs(a->sa_family == AF_INET ? a4.sin_port : a6.sin6_port);
    return fd;
}

int http_start(struct http **out, struct daemon *d, uv_loop_t *loop, const char *addr, int *port, int max_connections, struct error *err)
{
    *out = NULL;
    int fd = listen_on(addr, port, err);
    if (fd < 0) return err->code;
    struct http *h = xcalloc(1, sizeof *h);
    const struct settings *set = &d->set;
    bool tls = *set->tls_cert != '\0';
    size_t len;
    if (tls && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) (void)error_set(err, E_UNSUPPORTED, "this libmicrohttpd was built without TLS");
    else if (!tls || (file_read(set->tls_cert, 1 << 20, &h->cert, &len, err) == OK && file_read(set->tls_key, 1 << 20, &h->key, &len, err) == OK)) err->code = OK;
    if (err->code != OK) { (void)close(fd); free(h->cert); free(h); return err->code; }
    struct MHD_OptionItem tls_items[] = { { MHD_OPTION_HTTPS_MEM_CERT, 0, h->cert }, { MHD_OPTION_HTTPS_MEM_KEY, 0, h->key }, { MHD_OPTION_END, 0, NULL } };
    h->d = d;
    h->max_peers = max_connections;
    h->listen_fd = fd;
    h->mhd = MHD_start_daemon((tls ? MHD_USE_TLS : 0) | MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, access_cb, h,
        MHD_OPTION_EXTERNAL_LOGGER, mhd_log, NULL,
        MHD_OPTION_ARRAY, tls ? tls_items : &tls_items[2], MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, on_done, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)(max_connections + 64), MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)32768,
        MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_CONNECTION_TIMEOUT, 60u, MHD_OPTION_END);
    if (h->mhd == NULL) {
        (void)close(fd);
        free(h);
        return error_set(err, E_IO, "cannot start the server on port %d%s", *port, tls ? ": look at tls_cert and tls_key" : "");
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    (void)uv_poll_init(loop, &h->poll, info->epoll_fd);
    (void)uv_timer_init(loop, &h->timer);
    (void)uv_timer_init(loop, &h->sweep);
    h->poll.data = h->timer.data = h->sweep.data = h;
    (void)uv_poll_start(&h->poll, UV_READABLE, on_poll);
    (void)uv_timer_start(&h->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
    *out = h;
    return OK;
}

int http_connections(const struct http *h) { return h->n_peers; }
int64_t http_count(const struct http *h, int klass) { return h->by_class[klass]; }

void http_close_listener(struct http *h)
{
    if (h->quiet) return;
    h->quiet = true;
    MHD_socket fd = MHD_quiesce_daemon(h->mhd);
    if (fd != MHD_INVALID_SOCKET) (void)close(fd);
}

void http_stop(struct http *h)
{
    if (h == NULL) return;
    (void)uv_poll_stop(&h->poll);
    (void)uv_timer_stop(&h->timer);
    (void)uv_timer_stop(&h->sweep);
    /* No MHD_stop_daemon(): it aborts when a connection is suspended, as every event stream is. The process ends now anyway. */
}
