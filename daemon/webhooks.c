#include "daemon/webhooks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api.h"
#include "daemon/daemon.h"
#include "daemon/sha256.h"

enum { AT_ONCE = 16, SEND_MS = 10000, TRIES = 12 };

struct sending {
    struct daemon *d;
    int64_t id, tries;
    uv_getaddrinfo_t resolve;
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    uv_timer_t timer;
    char *request, answer[512], why[200];
    size_t n_answer;
    int open;
    bool tcp_open, done, ok;
    char host[256], port[8], path[1024];
};
static int n_sending;

bool webhook_url(const char *url, char host[256], char port[8], char path[1024])
{
    if (strncmp(url, "http://", 7) != 0) return false;
    const char *p = url + 7, *slash = p + strcspn(p, "/?#");
    size_t n = (size_t)(slash - p);
    char at[300];
    for (const char *c = url; *c; c++) if ((unsigned char)*c <= 0x20 || *c == 0x7f || *c == '"' || *c == '\\') return false;
    if (n == 0 || n >= 256 || memchr(p, '@', n) || strchr(url, '#') || strlen(slash) >= 1023) return false;
    memcpy(at, p, n);
    at[n] = '\0';
    char *colon = strrchr(at, ':');
    if (at[0] == '[') {
        char *end = strchr(at, ']');
        if (end == NULL || (end[1] && end[1] != ':')) return false;
        colon = end[1] ? end + 1 : NULL;
        *end = '\0';
        memmove(at, at + 1, strlen(at));
    } else if (colon && strchr(at, ':') != colon) return false;
    if (colon) {
        if (colon[1] == '\0' || strlen(colon + 1) > 5 || strspn(colon + 1, "0123456789") != strlen(colon + 1) || atoi(colon + 1) > 65535 || atoi(colon + 1) == 0) return false;
        (void)snprintf(port, 8, "%.5s", colon + 1);
        if (at[0] != '\0' && colon > at) *colon = '\0';
    } else (void)snprintf(port, 8, "80");
    if (at[0] == '\0') return false;
    (void)snprintf(host, 256, "%.255s", at);
    (void)snprintf(path, 1024, "%s%.1000s", *slash == '/' ? "" : "/", slash);
    return true;
}

int webhooks_add(struct daemon *d, long long event, const char *state, const char *body, struct error *err)
{
    return store_exec(d->store, err, "INSERT OR IGNORE INTO deliveries(webhook,event,body,next_ms) SELECT id,?,?,? FROM webhooks WHERE active=1 AND (kinds='*' OR instr(','||kinds||',',','||?||','))",
                      "isis", (int64_t)event, body, wall_ms(), state);
}

static void on_closed(uv_handle_t *h)
{
    struct sending *s = h->data;
    if (--s->open > 0) return;
    int64_t wait = INT64_C(1000) << (s->tries < 12 ? s->tries : 12);
    if (s->ok) (void)store_exec(s->d->store, NULL, "UPDATE deliveries SET state='delivered',tries=tries+1,last_error=NULL WHERE id=?", "i", s->id);
    else {
        (void)store_exec(s->d->store, NULL, "UPDATE deliveries SET state=CASE WHEN tries+1>=? THEN 'failed' ELSE 'waiting' END,tries=tries+1,last_error=?,next_ms=? WHERE id=?", "isii", (int64_t)TRIES,
                         s->why, wall_ms() + wait, s->id);
        log_line("warning", "webhook delivery %lld: %s", (long long)s->id, s->why);
    }
    n_sending--;
    free(s->request);
    free(s);
}

static void finish(struct sending *s, bool ok, const char *why)
{
    if (s->done) return;
    s->done = true;
    s->ok = ok;
    (void)snprintf(s->why, sizeof s->why, "%s", why);
    if (s->tcp_open && !uv_is_closing((uv_handle_t *)&s->tcp)) uv_close((uv_handle_t *)&s->tcp, on_closed);
    if (!uv_is_closing((uv_handle_t *)&s->timer)) uv_close((uv_handle_t *)&s->timer, on_closed);
}

static void on_late(uv_timer_t *t)
{
    struct sending *s = t->data;
    if (!s->tcp_open && uv_cancel((uv_req_t *)&s->resolve) != 0) { (void)uv_timer_start(t, on_late, 1000, 0); return; }    /* the resolver still holds it */
    if (s->tcp_open) finish(s, false, "no answer in time");
}

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *b)
{
    static char sink[65536];        /* one thread: read at once, never kept */
    (void)want; (void)h;
    *b = uv_buf_init(sink, sizeof sink);
}

static void on_read(uv_stream_t *st, ssize_t n, const uv_buf_t *b)
{
    struct sending *s = st->data;
    if (n > 0) {
        size_t room = sizeof s->answer - 1 - s->n_answer, take = (size_t)n < room ? (size_t)n : room;
        memcpy(s->answer + s->n_answer, b->base, take);
        s->n_answer += take;
        s->answer[s->n_answer] = '\0';
        if (!strstr(s->answer, "\r\n") && room > take) return;
    }
    int code = 0;
    char why[80];
    if (sscanf(s->answer, "HTTP/1.%*1d %3d", &code) != 1) { finish(s, false, n < 0 ? "the connection ended without an answer" : "the answer is no HTTP"); return; }
    (void)snprintf(why, sizeof why, "answered %d", code);
    finish(s, code >= 200 && code < 300, why);
}

static void on_written(uv_write_t *w, int status)
{
    struct sending *s = w->data;
    if (status < 0) finish(s, false, uv_strerror(status));
    else if (!s->done) (void)uv_read_start((uv_stream_t *)&s->tcp, on_alloc, on_read);
}

static void on_connected(uv_connect_t *c, int status)
{
    struct sending *s = c->data;
    if (status < 0) { finish(s, false, uv_strerror(status)); return; }
    uv_buf_t b = uv_buf_init(s->request, (unsigned)strlen(s->request));
    s->write.data = s;
    if (!s->done && uv_write(&s->write, (uv_stream_t *)&s->tcp, &b, 1, on_written) != 0) finish(s, false, "cannot write");
}

static void on_resolved(uv_getaddrinfo_t *g, int status, struct addrinfo *list)
{
    struct sending *s = g->data;
    if (status < 0 || list == NULL) finish(s, false, status < 0 ? uv_strerror(status) : "no address");
    else {
        (void)uv_tcp_init(s->d->loop, &s->tcp);
        s->tcp.data = s->connect.data = s;
        s->tcp_open = true;
        s->open++;
        int e = uv_tcp_connect(&s->connect, &s->tcp, list->ai_addr, on_connected);
        if (e < 0) finish(s, false, uv_strerror(e));
    }
    uv_freeaddrinfo(list);
}

struct due { int64_t id, tries, webhook; char url[1400], secret[140]; char *body; };

static bool take_due(void *arg, struct store_row *r)
{
    struct due *v = arg;
    v->id = row_int(r, 0);
    v->tries = row_int(r, 1);
    v->webhook = row_int(r, 2);
    (void)snprintf(v->url, sizeof v->url, "%s", row_text(r, 3));
    (void)snprintf(v->secret, sizeof v->secret, "%s", row_text(r, 4));
    v->body = xstrdup(row_text(r, 5));
    return false;
}

void webhooks_tick(struct daemon *d)
{
    while (n_sending < AT_ONCE) {
        struct due v = { 0 };
        /* one at a time for each target, so one that hangs holds up nobody else. 'sending' is only a mark of this process: at start such rows wait again */
        if (store_each(d->store, take_due, &v, NULL, "SELECT l.id,l.tries,w.id,w.url,w.secret,l.body FROM deliveries l JOIN webhooks w ON w.id=l.webhook WHERE l.state='waiting' AND l.next_ms<=? AND NOT EXISTS(SELECT 1 FROM deliveries s WHERE s.webhook=l.webhook AND s.state='sending') ORDER BY l.next_ms,l.id LIMIT 1",
                       "i", wall_ms()) != OK || v.id == 0) return;
        if (store_exec(d->store, NULL, "UPDATE deliveries SET state='sending' WHERE id=?", "i", v.id) != OK) { free(v.body); return; }
        struct sending *s = xcalloc(1, sizeof *s);
        char signature[65], *signed_text;
        int64_t now = wall_ms() / 1000;
        s->d = d;
        s->id = v.id;
        s->tries = v.tries;
        (void)webhook_url(v.url, s->host, s->port, s->path);
        signed_text = xasprintf("%lld.%s", (long long)now, v.body);
        hmac_sha256_hex(signature, v.secret, strlen(v.secret), signed_text, strlen(signed_text));
        s->request = xasprintf("POST %s HTTP/1.1\r\nHost: %s:%s\r\nUser-Agent: ringmaster/" RM_VERSION "\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n"
                               "X-Ringmaster-Delivery: %lld\r\nX-Ringmaster-Timestamp: %lld\r\nX-Ringmaster-Signature: sha256=%s\r\n\r\n%s",
                               s->path, s->host, s->port, strlen(v.body), (long long)v.id, (long long)now, signature, v.body);
        free(signed_text);
        free(v.body);
        n_sending++;
        s->open = 1;
        (void)uv_timer_init(d->loop, &s->timer);
        s->timer.data = s->resolve.data = s;
        (void)uv_timer_start(&s->timer, on_late, SEND_MS, 0);
        struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
        int e = uv_getaddrinfo(d->loop, &s->resolve, on_resolved, s->host, s->port, &hints);
        if (e < 0) finish(s, false, uv_strerror(e));
    }
}

/* --- the API --- */

void webhooks_list(struct daemon *d, struct request *q)
{
    struct error err;
    cJSON *rows;
    if (store_rows(d->store, &rows, &err, "SELECT id,url,kinds AS states,active AS \"b:active\",created_ms AS \"t:created_at\",(SELECT count(*) FROM deliveries WHERE webhook=webhooks.id AND state='delivered') AS delivered,"
                                          "(SELECT count(*) FROM deliveries WHERE webhook=webhooks.id AND state IN ('waiting','sending')) AS waiting,(SELECT count(*) FROM deliveries WHERE webhook=webhooks.id AND state='failed') AS failed,"
                                          "(SELECT last_error FROM deliveries WHERE webhook=webhooks.id AND last_error IS NOT NULL ORDER BY id DESC LIMIT 1) AS last_error FROM webhooks ORDER BY id", "") != OK) reply_error(q, &err);
    else reply_list(q, rows, NULL);
}

void webhook_create(struct daemon *d, struct request *q)
{
    struct error err;
    struct problems p = { 0 };
    char host[256], port[8], path[1024], secret[140], states[200] = "*";
    cJSON *body = body_object(q);
    if (body == NULL) return;
    const char *url = json_str(body, "url"), *given = json_str(body, "secret");
    const cJSON *list = json_get(body, "states"), *v;
    if (url && strncmp(url, "https://", 8) == 0) problems_add(&p, "/url", "unsupported", "https is not spoken here; point it at a relay on this machine");
    else if (url == NULL || !webhook_url(url, host, port, path)) problems_add(&p, "/url", "out_of_range", "expected http://host[:port]/path");
    if (json_get(body, "secret") && (given == NULL || strlen(given) < 16 || strlen(given) > 128)) problems_add(&p, "/secret", "out_of_range", "expected 16 to 128 bytes");
    if (list) {
        states[0] = '\0';
        if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) == 0 || cJSON_GetArraySize(list) > JOB_STATES) problems_add(&p, "/states", "wrong_type", "expected a list of job states");
        else cJSON_ArrayForEach(v, list) {
            enum job_state s;
            if (!cJSON_IsString(v) || !job_state_parse(v->valuestring, &s)) { problems_add(&p, "/states", "out_of_range", "expected job states like \"succeeded\""); break; }
            size_t n = strlen(states);
            (void)snprintf(states + n, sizeof states - n, "%s%s", n ? "," : "", v->valuestring);
        }
    }
    for (v = body->child; v; v = v->next)
        if (strcmp(v->string, "url") != 0 && strcmp(v->string, "secret") != 0 && strcmp(v->string, "states") != 0) problems_add(&p, "", "unknown_field", "unknown field \"%.60s\"", v->string);
    if (given) (void)snprintf(secret, sizeof secret, "%s", given);
    else random_hex(secret, 32);
    if (p.n > 0) reply_problem(q, 422, "invalid", &p, "the webhook is refused");
    else if (store_exec(d->store, &err, "INSERT INTO webhooks(url,secret,kinds,created_ms) VALUES(?,?,?,?)", "sssi", url, secret, states, wall_ms()) != OK) reply_error(q, &err);
    else {
        cJSON *o = cJSON_CreateObject();
        json_add_int(o, "id", store_last_id(d->store));
        json_add_str(o, "url", url);
        json_add_str(o, "states", states);
        json_add_str(o, "secret", secret);      /* shown once */
        reply_json(q, 201, o);
    }
    problems_release(&p);
    cJSON_Delete(body);
}

void webhook_delete(struct daemon *d, struct request *q)
{
    struct error err;
    int64_t id;
    if (!path_number(q, &id)) return;
    int rc = store_begin(d->store, &err);
    if (rc == OK) {
        rc = store_exec(d->store, &err, "DELETE FROM deliveries WHERE webhook=?", "i", id);
        if (rc == OK) rc = store_exec(d->store, &err, "DELETE FROM webhooks WHERE id=?", "i", id);
        bool there = store_changes(d->store) > 0;
        if (rc == OK) rc = store_commit(d->store, &err);
        else store_rollback(d->store);
        if (rc == OK && !there) { reply_problem(q, 404, "not_found", NULL, "there is no webhook %lld", (long long)id); return; }
    }
    if (rc != OK) reply_error(q, &err);
    else reply_static(q, 204, NULL, "", 0);
}

void webhook_test(struct daemon *d, struct request *q)
{
    struct error err;
    int64_t id;
    if (!path_number(q, &id)) return;
    if (store_exec(d->store, &err, "INSERT INTO deliveries(webhook,event,body,next_ms) SELECT id,-(SELECT ifnull(max(id),0)+1 FROM deliveries),'{\"test\":true}',? FROM webhooks WHERE id=?", "ii", wall_ms(), id) != OK) reply_error(q, &err);
    else if (store_changes(d->store) == 0) reply_problem(q, 404, "not_found", NULL, "there is no webhook %lld", (long long)id);
    else {
        cJSON *o = cJSON_CreateObject();
        json_add_int(o, "delivery", store_last_id(d->store));
        webhooks_tick(d);
        reply_json(q, 202, o);
    }
}
