/* sse.c - see sse.h.
 *
 * New rows are read once, formatted once and kept in a ring; clients further behind read the table. Whoever asks for an id that is
 * not there any more, or never was, gets one `reset` and goes on from now: it then fetches what it shows anew. */
#include "daemon/sse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/attempt.h"
#include "daemon/daemon.h"
#include "daemon/webhooks.h"

enum { RING = 1024, REPLAY_ROWS = 64, CHUNK_MAX = 256 * 1024, WAKE_AT_ONCE = 32 };

struct entry { int64_t id, job; char *text; size_t len; };
struct client {
    struct client *next, **link;
    struct sse *sse;
    struct stream *stream;
    int64_t job;                /* 0: all */
    int64_t after;              /* last id sent */
    int64_t figures;            /* version of the last snapshot sent */
    int64_t beat_mono_ms;
    char *out; size_t len, at;  /* one chunk being handed to MHD */
    bool greet, reset, ended, finish;
    bool due;                   /* has news, and its turn comes */
};
struct sse {
    struct daemon *d;
    struct client *clients;
    struct client *next;        /* whose turn it is; NULL: the first's */
    int n;
    struct entry ring[RING];    /* of id: ring[id % RING] */
    int64_t last_id;            /* newest published */
    uv_timer_t timer, turn;
    int64_t figures;            /* newest snapshot looked at by the tick */
};

static char *format(int64_t id, const char *kind, const char *level, const char *data, int64_t job, int64_t ms, int64_t attempt)
{
    char *when = time_text(ms), who[32] = "null", try[32] = "null";
    if (job > 0) (void)snprintf(who, sizeof who, "\"j%lld\"", (long long)job);
    if (attempt > 0) (void)snprintf(try, sizeof try, "%lld", (long long)attempt);
    char *t = xasprintf("id: %lld\nevent: %s\ndata: {\"event_id\":%lld,\"job\":%s,\"attempt\":%s,\"at\":\"%s\",\"level\":\"%s\",\"kind\":\"%s\",\"data\":%s}\n\n", (long long)id, kind,
                        (long long)id, who, try, when, level, kind, data);      /* data is one line of JSON: no newline can stand in it */
    free(when);
    return t;
}

/* kind and level may come from a rank: only plain words reach the stream. */
static void plain(char out[32], const char *in)
{
    size_t n = 0;
    for (; in && *in && n < 31; in++) if ((*in >= 'a' && *in <= 'z') || *in == '_') out[n++] = *in;
    out[n] = '\0';
    if (n == 0) (void)snprintf(out, 32, "event");
}

int event_add_seq(struct daemon *d, int64_t job, int64_t attempt, int64_t seq, int64_t ms, const char *kind, const char *level, const cJSON *data, struct error *err)
{
    char k[32], l[32], *text = json_line(data);
    plain(k, kind);
    plain(l, level);
    int rc = store_exec(d->store, err, "INSERT OR IGNORE INTO events(job,attempt,seq,ms,kind,level,data) VALUES(?,nullif(?,0),nullif(?,0),?,?,?,?)", "iiiisss", job, attempt, seq, ms, k, l, text);
    free(text);
    return rc;
}

int event_add(struct daemon *d, int64_t job, const char *kind, const char *level, cJSON *data, struct error *err)
{
    int rc = event_add_seq(d, job, 0, 0, wall_ms(), kind, level, data, err);
    const char *state = strcmp(kind, "job") == 0 ? json_str(data, "state") : NULL;
    if (rc == OK && state) {
        char *body = json_line(data);
        rc = webhooks_add(d, store_last_id(d->store), state, body, err);
        free(body);
    }
    cJSON_Delete(data);
    return rc;
}

static bool take_new(void *arg, struct store_row *r)
{
    struct sse *s = arg;
    int64_t id = row_int(r, 0);
    struct entry *e = &s->ring[id % RING];
    free(e->text);
    e->id = id;
    e->job = row_int(r, 1);
    e->text = format(id, row_text(r, 2), row_text(r, 3), row_text(r, 4), e->job, row_int(r, 5), row_int(r, 6));
    e->len = strlen(e->text);
    s->last_id = id;
    return true;
}

/* Some of the clients with news, then whoever else waits at the loop has a turn: five hundred at once would hold up a request by 25 ms.
 * The next turn goes on where this one ended, or news that do not stop would never reach the last ones. */
static void on_turn(uv_timer_t *t)
{
    struct sse *s = t->data;
    int left = WAKE_AT_ONCE;
    for (int i = s->n; i > 0 && left > 0; i--) {
        struct client *c = s->next ? s->next : s->clients;
        s->next = c->next;
        if (!c->due) continue;
        c->due = false;
        stream_wake(c->stream);
        left--;
    }
    if (left == 0) (void)uv_timer_start(t, on_turn, 1, 0);
}

static void wake(struct client *c)
{
    c->due = true;
    if (!uv_is_active((uv_handle_t *)&c->sse->turn)) (void)uv_timer_start(&c->sse->turn, on_turn, 0, 0);
}

void events_publish(struct daemon *d)
{
    struct sse *s = d->sse;
    if (s == NULL) return;
    int64_t before = s->last_id;
    (void)store_each(d->store, take_new, s, NULL, "SELECT id,job,kind,level,data,ms,ifnull(attempt,0) FROM events WHERE id>? ORDER BY id", "i", s->last_id);
    if (s->last_id == before) return;
    for (struct client *c = s->clients; c; c = c->next) wake(c);
}

static void append(struct client *c, const char *text, size_t n)
{
    c->out = xrealloc(c->out, c->len + n);
    memcpy(c->out + c->len, text, n);
    c->len += n;
}

static bool take_old(void *arg, struct store_row *r)
{
    struct client *c = arg;
    c->after = row_int(r, 0);
    char *t = format(c->after, row_text(r, 2), row_text(r, 3), row_text(r, 4), row_int(r, 1), row_int(r, 5), row_int(r, 6));
    append(c, t, strlen(t));
    free(t);
    return c->len < CHUNK_MAX;
}

/* Puts what the client has not seen into its chunk. */
static void fill(struct client *c)
{
    struct sse *s = c->sse;
    c->len = c->at = 0;
    if (c->greet) {
        char *hello = xasprintf("retry: 3000\nid: %lld\nevent: hello\ndata: {\"last_event_id\":%lld}\n\n", (long long)c->after, (long long)c->after);
        if (c->reset) {
            free(hello);
            hello = xasprintf("retry: 3000\nid: %lld\nevent: reset\ndata: {\"last_event_id\":%lld}\n\n", (long long)c->after, (long long)c->after);
        }
        append(c, hello, strlen(hello));
        free(hello);
        c->greet = c->reset = false;
    }
    while (c->after < s->last_id && c->len < CHUNK_MAX) {
        int64_t next = c->after + 1;
        const struct entry *e = &s->ring[next % RING];
        if (e->id == next) {
            if (c->job == 0 || c->job == e->job) append(c, e->text, e->len);
            c->after = next;
            continue;
        }
        int64_t before = c->after;
        size_t had = c->len;
        if (c->job == 0)
            (void)store_each(s->d->store, take_old, c, NULL, "SELECT id,job,kind,level,data,ms,ifnull(attempt,0) FROM events WHERE id>? ORDER BY id LIMIT 64", "i", c->after);
        else
            (void)store_each(s->d->store, take_old, c, NULL, "SELECT id,job,kind,level,data,ms,ifnull(attempt,0) FROM events WHERE id>? AND job=? ORDER BY id LIMIT 64", "ii", c->after, c->job);
        if (c->after == before || c->len == had) c->after = s->last_id;         /* nothing more of this job */
    }
    int64_t newest = c->figures;
    for (struct job *j = s->d->jobs; j && c->len < CHUNK_MAX; j = j->next) {
        int64_t seen = c->figures;
        if (c->job != 0 && c->job != j->row.id) continue;
        const char *data = attempt_metrics_event(j, &seen);
        if (data == NULL) continue;
        append(c, "event: metrics\ndata: ", 21);
        append(c, data, strlen(data));
        append(c, "\n\n", 2);
        if (seen > newest) newest = seen;
    }
    c->figures = newest;
    if (c->ended && c->after >= s->last_id && !c->finish) {
        append(c, "event: end\ndata: {}\n\n", 21);
        c->finish = true;
    }
    int64_t now = mono_ms();
    if (c->len == 0 && now - c->beat_mono_ms >= SSE_HEARTBEAT_MS) append(c, ": beat\n\n", 8);
    if (c->len > 0) c->beat_mono_ms = now;
}

static long client_read(void *arg, char *buf, size_t max)
{
    struct client *c = arg;
    if (c->at == c->len) {
        if (c->finish) return -1;
        fill(c);
    }
    size_t n = c->len - c->at < max ? c->len - c->at : max;
    if (n > 0) memcpy(buf, c->out + c->at, n);
    c->at += n;
    if (c->at == c->len && c->len > 4096) { free(c->out); c->out = NULL; c->at = c->len = 0; }
    return (long)n;
}

static void client_gone(void *arg)
{
    struct client *c = arg;
    if (c->sse->next == c) c->sse->next = c->next;
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    c->sse->n--;
    free(c->out);
    free(c);
}

static void on_tick(uv_timer_t *t)
{
    struct sse *s = t->data;
    int64_t now = mono_ms(), newest = s->figures;
    for (struct job *j = s->d->jobs; j; j = j->next) {
        int64_t seen = s->figures;
        if (s->n > 0) (void)attempt_metrics_event(j, &seen);
        if (seen > newest) newest = seen;
    }
    bool news = newest > s->figures;
    s->figures = newest;
    for (struct client *c = s->clients; c; c = c->next)
        if (news || now - c->beat_mono_ms >= SSE_HEARTBEAT_MS) wake(c);
}

int sse_clients(const struct daemon *d) { return d->sse->n; }

void sse_job_ended(struct daemon *d, int64_t job)
{
    for (struct client *c = d->sse ? d->sse->clients : NULL; c; c = c->next)
        if (c->job == job) { c->ended = true; wake(c); }
}

void sse_open(struct daemon *d, struct request *q, int64_t job)
{
    struct sse *s = d->sse;
    const char *last = request_header(q, "Last-Event-ID");
    int64_t oldest = store_int(d->store, 1, "SELECT min(id) FROM events", "");
    if (last == NULL || !*last) last = request_arg(q, "after");
    if (s->n >= d->set.max_streams) {
        reply_problem(q, 503, "streams", NULL, "%d event streams are open, at most that many are served", s->n);
        return;
    }
    struct client *c = xcalloc(1, sizeof *c);
    *c = (struct client){ .sse = s, .job = job, .after = s->last_id, .greet = true, .beat_mono_ms = mono_ms() };
    if (last) {
        char *end;
        long long id = strtoll(last, &end, 10);
        if (*last < '0' || *last > '9' || *end || id > s->last_id || (id < oldest - 1)) c->reset = true;
        else c->after = id;
    }
    if (job != 0 && job_find(d, job) == NULL) c->ended = true;
    c->next = s->clients;
    c->link = &s->clients;
    if (s->clients) s->clients->link = &c->next;
    s->clients = c;
    s->n++;
    c->stream = reply_stream(q, "text/event-stream", client_read, client_gone, c);
}

int sse_start(struct daemon *d, struct error *err)
{
    (void)err;
    d->sse = xcalloc(1, sizeof *d->sse);
    d->sse->d = d;
    d->sse->last_id = store_int(d->store, 0, "SELECT max(id) FROM events", "");
    (void)uv_timer_init(d->loop, &d->sse->timer);
    (void)uv_timer_init(d->loop, &d->sse->turn);
    d->sse->timer.data = d->sse->turn.data = d->sse;
    return uv_timer_start(&d->sse->timer, on_tick, SSE_TICK_MS, SSE_TICK_MS) == 0 ? OK : E_INTERNAL;
}

void sse_stop(struct daemon *d)
{
    if (d->sse == NULL) return;
    for (int i = 0; i < RING; i++) free(d->sse->ring[i].text);
    d->sse->last_id = 0;
}
