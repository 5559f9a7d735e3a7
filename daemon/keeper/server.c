/* server.c - the socket <dir>/keeper.sock: says who we are, replays records from any number on, takes stop, checkpoint and ack.
 *
 * Records are sent straight from the spool's bytes, one chunk at a time per client, so a slow or absent reader costs no memory.
 * Anything else goes out only between two records. The same user alone may talk, and must know the attempt's nonce. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/keeper/keeper.h"
#include "daemon/keeper/process.h"

enum { CLIENTS_MAX = 32, SEND_CHUNK = 256 * 1024 };

struct client {
    struct keeper *k;
    uv_pipe_t pipe;
    uv_write_t write;
    struct line_reader reader;
    char *sending;              /* what libuv holds; NULL: may send */
    bool attached, closing, exit_told;
    int64_t offset;             /* logical, in the spool */
    int64_t acked;
    struct client *next;
};

struct server { uv_pipe_t listener; struct client *clients; int n; int dirfd; bool listening; };

static char chunk[65536];

static void on_client_closed(uv_handle_t *h)
{
    struct client *c = h->data;
    struct server *s = c->k->server;
    for (struct client **p = &s->clients; *p; p = &(*p)->next)
        if (*p == c) { *p = c->next; break; }
    s->n--;
    line_reader_release(&c->reader);
    free(c->sending);
    free(c);
}

static void drop(struct client *c)
{
    if (c->closing) return;
    c->closing = true;
    c->attached = false;
    uv_close((uv_handle_t *)&c->pipe, on_client_closed);
}

static void pump(struct client *c);

static void on_sent(uv_write_t *w, int status)
{
    struct client *c = w->data;
    free(c->sending);
    c->sending = NULL;
    if (status < 0) drop(c);
    else if (!c->closing) pump(c);
}

static void send_bytes(struct client *c, char *bytes, size_t n)     /* takes bytes */
{
    uv_buf_t b = uv_buf_init(bytes, (unsigned)n);
    c->sending = bytes;
    c->write.data = c;
    if (uv_write(&c->write, (uv_stream_t *)&c->pipe, &b, 1, on_sent) < 0) {
        c->sending = NULL;
        free(bytes);
        drop(c);
    }
}

static void send_message(struct client *c, cJSON *m)        /* takes m; the client must be free to send */
{
    size_t n;
    char *line = message_line(m, &n);
    send_bytes(c, line, n);
}

static void pump(struct client *c)
{
    struct keeper *k = c->k;
    if (c->sending || c->closing || !c->attached) return;
    if (c->offset < k->spool.base) c->offset = k->spool.base;
    if (c->offset < k->spool.end) {
        char *buf = xmalloc(SEND_CHUNK);
        long n = spool_read(&k->spool, c->offset, buf, SEND_CHUNK);
        if (n <= 0) { free(buf); drop(c); return; }     /* the spool cannot be read: let it reconnect */
        c->offset += n;
        send_bytes(c, buf, (size_t)n);
    } else if (k->phase == KEEPER_ENDED && !c->exit_told) {
        cJSON *m = cJSON_CreateObject();
        json_add_str(m, "t", "exit");
        (void)cJSON_AddItemToObject(m, "record", cJSON_Duplicate(k->exit_record, true));
        c->exit_told = true;
        send_message(c, m);
    }
}

cJSON *server_hello_json(const struct keeper *k)
{
    char boot[37];
    struct process_info self = { 0 };
    boot_id(boot);
    (void)process_info((int)getpid(), &self);
    cJSON *m = cJSON_CreateObject();
    json_add_str(m, "t", "hello");
    json_add_int(m, "protocol", MESSAGE_PROTOCOL);
    json_add_str(m, "job", k->job);
    json_add_int(m, "attempt", k->attempt);
    json_add_str(m, "nonce", k->nonce);
    json_add_int(m, "pid", getpid());
    json_add_str(m, "boot_id", boot);
    json_add_int(m, "start_time", self.start_time);
    cJSON *ranks = cJSON_AddArrayToObject(m, "ranks");
    for (int i = 0; i < k->world; i++) {
        cJSON *r = cJSON_CreateObject();
        json_add_int(r, "rank", i);
        json_add_int(r, "pid", k->ranks[i].process.pid);
        (void)cJSON_AddItemToArray(ranks, r);
    }
    json_add_int(m, "last_seq", k->spool.last_seq);
    return m;
}

static void refuse(struct client *c, const char *code, const char *text)
{
    cJSON *m = cJSON_CreateObject();
    json_add_str(m, "t", "refused");
    json_add_str(m, "code", code);
    json_add_str(m, "text", text);
    size_t n;
    char *line = message_line(m, &n);
    uv_buf_t b = uv_buf_init(line, (unsigned)n);
    (void)uv_try_write((uv_stream_t *)&c->pipe, &b, 1);
    free(line);
    drop(c);
}

void server_ack(struct keeper *k, int64_t seq)
{
    if (seq > k->acked) spool_ack(&k->spool, k->acked = seq);
}

static void on_message(void *arg, cJSON *m)
{
    struct client *c = arg;
    struct keeper *k = c->k;
    const char *t = json_str(m, "t"), *nonce = json_str(m, "nonce"), *mode = json_str(m, "mode");
    int64_t seq = 0;
    if (c->closing || t == NULL) return;
    if (strcmp(t, "attach") == 0) {
        if (nonce == NULL || strcmp(nonce, k->nonce) != 0) { refuse(c, "wrong_nonce", "this keeper serves another attempt"); return; }
        (void)json_int(m, "after_seq", &seq);
        c->offset = spool_after(&k->spool, seq);
        c->acked = seq;
        c->attached = true;
        pump(c);
    } else if (!c->attached) refuse(c, "wrong_nonce", "attach with the attempt's nonce first");
    else if (strcmp(t, "ack") == 0 && json_int(m, "seq", &seq)) {
        if (seq > c->acked) c->acked = seq;
        int64_t least = INT64_MAX;          /* what any attached client has yet to confirm stays */
        for (struct client *o = k->server->clients; o; o = o->next)
            if (o->attached && o->acked < least) least = o->acked;
        server_ack(k, least);
    } else if (strcmp(t, "stop") == 0) gang_stop(k, mode ? mode : "checkpoint", json_str(m, "reason"));
    else if (strcmp(t, "checkpoint") == 0) gang_checkpoint(k);
}

static void on_alloc(uv_handle_t *h, size_t size, uv_buf_t *b)
{
    (void)h;
    (void)size;
    *b = uv_buf_init(chunk, sizeof chunk);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct client *c = s->data;
    if (n > 0) line_reader_feed(&c->reader, b->base, (size_t)n, on_message, c);
    else if (n < 0) drop(c);
}

static bool same_user(const uv_pipe_t *p)
{
    struct ucred who;
    socklen_t len = sizeof who;
    uv_os_fd_t fd;
    if (uv_fileno((const uv_handle_t *)p, &fd) < 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0) return false;
    return who.uid == geteuid() || who.uid == 0;
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct keeper *k = listener->data;
    if (status < 0) return;
    struct client *c = xcalloc(1, sizeof *c);
    c->k = k;
    c->next = k->server->clients;
    k->server->clients = c;
    k->server->n++;
    (void)uv_pipe_init(k->loop, &c->pipe, 0);
    c->pipe.data = c;
    if (uv_accept(listener, (uv_stream_t *)&c->pipe) < 0 || k->server->n > CLIENTS_MAX) { drop(c); return; }
    if (!same_user(&c->pipe)) { refuse(c, "wrong_user", "only the user who runs this keeper may talk to it"); return; }
    (void)uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read);
    send_message(c, server_hello_json(k));
}

int server_start(struct keeper *k, struct error *err)
{
    char path[64];
    struct server *s = k->server = xcalloc(1, sizeof *s);
    if (k->mailbox) return OK;          /* its reader may be on another machine: files instead (mailbox.c) */
    int rc = message_socket_path(path, &s->dirfd, k->dir, err);
    if (rc != OK) return rc;
    (void)unlink(path);
    (void)uv_pipe_init(k->loop, &s->listener, 0);
    s->listener.data = k;
    mode_t old = umask(0177);
    int e = uv_pipe_bind(&s->listener, path);
    (void)umask(old);
    if (e == 0) e = uv_listen((uv_stream_t *)&s->listener, 16, on_connection);
    s->listening = true;
    return e == 0 ? OK : error_set(err, E_IO, "listen on %s/keeper.sock: %s", k->dir, uv_strerror(e));
}

void server_records(struct keeper *k)
{
    for (struct client *c = k->server->clients, *next; c; c = next) {
        next = c->next;
        pump(c);
    }
}

void server_exit(struct keeper *k) { server_records(k); }

cJSON *server_beats_json(struct keeper *k)
{
    cJSON *ranks = cJSON_CreateArray();
    for (int i = 0; i < k->world; i++) {
        const struct rank *r = &k->ranks[i];
        struct process_info p = { 0 };
        cJSON *o = cJSON_CreateObject();
        if (!r->exited) (void)process_info(r->process.pid, &p);
        json_add_int(o, "rank", i);
        json_add_int(o, "pid", r->process.pid);
        json_add_int(o, "step", r->step);
        json_add_str(o, "phase", r->exited ? "ended" : r->phase);
        json_add_int(o, "silent_ms", r->exited ? 0 : (int64_t)uv_now(k->loop) - r->heard_ms);
        json_add_int(o, "rss_bytes", p.rss_bytes);
        json_add_num(o, "cpu", r->exited ? 0 : r->cpu);
        json_add_int(o, "malformed", r->reader.malformed + r->unknown);
        json_add_int(o, "oversized", r->reader.oversized);
        json_add_int(o, "backward", r->backward);
        json_add_int(o, "repeated", r->repeated);
        json_add_int(o, "log_dropped_bytes", r->log.dropped_bytes);
        (void)cJSON_AddItemToArray(ranks, o);
    }
    return ranks;
}

void server_beats(struct keeper *k)
{
    bool any = false;
    for (struct client *c = k->server->clients; c; c = c->next) any |= c->attached && !c->sending && c->offset == k->spool.end;
    if (!any || k->phase >= KEEPER_PUBLISHING) return;
    cJSON *m = cJSON_CreateObject();
    json_add_str(m, "t", "beats");
    json_add_int(m, "ms", wall_ms());
    (void)cJSON_AddItemToObject(m, "ranks", server_beats_json(k));
    json_add_int(m, "spool_dropped", k->spool.dropped);
    for (struct client *c = k->server->clients; c; c = c->next)
        if (c->attached && !c->closing && !c->sending && c->offset == k->spool.end) send_message(c, cJSON_Duplicate(m, true));
    cJSON_Delete(m);
}

bool server_all_told(const struct keeper *k)
{
    for (const struct client *c = k->server->clients; c; c = c->next)
        if (c->attached && (!c->exit_told || c->sending || c->acked < k->spool.last_seq)) return false;
    return true;
}

void server_close(struct keeper *k)
{
    char path[64];
    if (!k->server->listening) return;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d/keeper.sock", k->server->dirfd);
    (void)unlink(path);
    uv_close((uv_handle_t *)&k->server->listener, NULL);
    for (struct client *c = k->server->clients; c; c = c->next) drop(c);
}
