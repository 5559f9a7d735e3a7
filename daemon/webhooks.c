#include "daemon/webhooks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/api.h"
#include "daemon/command.h"
#include "daemon/daemon.h"
#include "daemon/sha256.h"

enum { AT_ONCE = 16, CONNECT_MS = 5000, SEND_MS = 10000, SLACK_MS = 3000, TRIES = 12 };

struct sending {
    struct daemon *d;
    int64_t id, tries;
    struct command *command;
    struct sending *next;
};
struct due { int64_t id, tries; char url[1400], secret[140]; char *body; };
static struct sending *under_way;
static int n_sending;

bool webhook_url(const char *url, char host[256], char port[8], char path[1024])
{
    bool tls = strncmp(url, "https://", 8) == 0;
    if (!tls && strncmp(url, "http://", 7) != 0) return false;
    const char *p = url + (tls ? 8 : 7), *slash = p + strcspn(p, "/?#");
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
    } else (void)snprintf(port, 8, tls ? "443" : "80");
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

static void on_sent(void *arg, const struct command_end *e)
{
    struct sending *s = arg;
    struct daemon *d = s->d;
    cJSON *answer = NULL;
    int64_t status = 0, wait = INT64_C(1000) << (s->tries < 12 ? s->tries : 12);
    char why[300] = "no answer in time";
    if (!e->late && json_parse(&answer, e->out, e->n_out, &json_limits_request, NULL) == OK) {
        if (json_int(answer, "status", &status)) (void)snprintf(why, sizeof why, "answered %lld", (long long)status);
        else (void)snprintf(why, sizeof why, "%.250s", json_str(answer, "error") ? json_str(answer, "error") : "the answer is no HTTP");
    } else if (!e->late) (void)snprintf(why, sizeof why, "ringmaster-deliver failed: %.200s", e->err);
    cJSON_Delete(answer);
    utf8_scrub(why);
    if (status >= 200 && status < 300) (void)store_exec(d->store, NULL, "UPDATE deliveries SET state='delivered',tries=tries+1,last_error=NULL WHERE id=?", "i", s->id);
    else {
        (void)store_exec(d->store, NULL, "UPDATE deliveries SET state=CASE WHEN tries+1>=? THEN 'failed' ELSE 'waiting' END,tries=tries+1,last_error=?,next_ms=? WHERE id=?", "isii", (int64_t)TRIES,
                         why, wall_ms() + wait, s->id);
        log_line("warning", "webhook delivery %lld: %s", (long long)s->id, why);
    }
    for (struct sending **p = &under_way; *p; p = &(*p)->next) if (*p == s) { *p = s->next; break; }
    n_sending--;
    free(s);
}

void webhooks_stop(void)
{
    while (under_way) {
        struct sending *s = under_way;
        under_way = s->next;
        command_forget(s->command, true);
        free(s);
    }
}

/* The request as the helper reads it, from memory: neither URL nor signature stands in a process list or on disk. */
static int request_fd(const struct daemon *d, const struct due *v)
{
    char signature[65];
    int64_t now = wall_ms() / 1000;
    char *signed_text = xasprintf("%lld.%s", (long long)now, v->body);
    hmac_sha256_hex(signature, v->secret, strlen(v->secret), signed_text, strlen(signed_text));
    cJSON *o = cJSON_CreateObject(), *headers = cJSON_AddArrayToObject(o, "headers");
    char *lines[] = { xstrdup("Content-Type: application/json"), xasprintf("X-Ringmaster-Delivery: %lld", (long long)v->id), xasprintf("X-Ringmaster-Timestamp: %lld", (long long)now),
                      xasprintf("X-Ringmaster-Signature: sha256=%s", signature) };
    json_add_str(o, "url", v->url);
    json_add_str(o, "body", v->body);
    json_add_str(o, "ca", *d->set.webhook_ca ? d->set.webhook_ca : NULL);
    json_add_int(o, "connect_ms", CONNECT_MS);
    json_add_int(o, "total_ms", SEND_MS);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        (void)cJSON_AddItemToArray(headers, cJSON_CreateString(lines[i]));
        free(lines[i]);
    }
    char *text = json_line(o);
    int fd = memfd_create("webhook", MFD_CLOEXEC);
    if (fd >= 0 && (write_all(fd, text, strlen(text), NULL) != OK || lseek(fd, 0, SEEK_SET) != 0)) { (void)close(fd); fd = -1; }
    free(text);
    free(signed_text);
    cJSON_Delete(o);
    return fd;
}

static bool take_due(void *arg, struct store_row *r)
{
    struct due *v = arg;
    v->id = row_int(r, 0);
    v->tries = row_int(r, 1);
    (void)snprintf(v->url, sizeof v->url, "%s", row_text(r, 2));
    (void)snprintf(v->secret, sizeof v->secret, "%s", row_text(r, 3));
    v->body = xstrdup(row_text(r, 4));
    return false;
}

void webhooks_tick(struct daemon *d)
{
    while (n_sending < AT_ONCE) {
        struct due v = { 0 };
        /* one at a time for each target, so one that hangs holds up nobody else. 'sending' is only a mark of this process: at start such rows wait again */
        if (store_each(d->store, take_due, &v, NULL, "SELECT l.id,l.tries,w.url,w.secret,l.body FROM deliveries l JOIN webhooks w ON w.id=l.webhook WHERE l.state='waiting' AND l.next_ms<=? AND NOT EXISTS(SELECT 1 FROM deliveries s WHERE s.webhook=l.webhook AND s.state='sending') ORDER BY l.next_ms,l.id LIMIT 1",
                       "i", wall_ms()) != OK || v.id == 0) return;
        if (store_exec(d->store, NULL, "UPDATE deliveries SET state='sending' WHERE id=?", "i", v.id) != OK) { free(v.body); return; }
        struct sending *s = xcalloc(1, sizeof *s);
        char *argv[] = { d->deliver ? d->deliver : "ringmaster-deliver", NULL };
        int fd = request_fd(d, &v);
        *s = (struct sending){ .d = d, .id = v.id, .tries = v.tries, .next = under_way };
        under_way = s;
        n_sending++;
        s->command = command_run(d->loop, argv, NULL, fd, SEND_MS + SLACK_MS, on_sent, s);
        if (fd >= 0) (void)close(fd);
        free(v.body);
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
    if (url == NULL || !webhook_url(url, host, port, path)) problems_add(&p, "/url", "out_of_range", "expected https://host[:port]/path or http://");
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
