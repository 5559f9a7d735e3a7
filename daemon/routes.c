/* routes.c - the API on one screen, and the order of checks before a handler runs: Host and Origin, route, token, scope, body. */
#include "daemon/routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api.h"
#include "daemon/auth.h"
#include "daemon/daemon.h"

enum { EMPTY = BODY_EMPTY, SMALL = 65536, SPEC = SPEC_MAX_BYTES };

const struct route routes[] = {
    /* method    path                                    handler             scope         body   query parameters */
    { "GET",     "/",                                    page_index,         SCOPE_NONE,   0,     "token", "The page; ?token= sets its cookie once", "200 html" },
    { "GET",     "/static/app.js",                        page_file,          SCOPE_NONE,   0,     "", "The page's program", "200 js" },
    { "GET",     "/static/style.css",                     page_file,          SCOPE_NONE,   0,     "", "The page's style", "200 css" },
    { "GET",     "/static/dygraph.min.js",                page_file,          SCOPE_NONE,   0,     "", "Charts", "200 js" },
    { "GET",     "/static/dygraph.css",                   page_file,          SCOPE_NONE,   0,     "", "Style of the charts", "200 css" },
    { "GET",     "/healthz",                             health,             SCOPE_NONE,   0,     "", "The process answers", "200 object" },
    { "GET",     "/readyz",                              ready,              SCOPE_NONE,   0,     "", "Jobs are adopted, POST is taken", "200 object" },
    { "GET",     "/version",                             version_show,       SCOPE_NONE,   0,     "", "Version and protocol", "200 object" },
    { "GET",     "/metrics",                             prometheus,         SCOPE_READ,   0,     "", "Figures in Prometheus' text format", "200 text" },
    { "GET",     "/openapi.json",                        openapi_show,       SCOPE_READ,   0,     "", "This document", "200 object" },
    { "GET",     "/v1/schema",                           schema_show,        SCOPE_READ,   0,     "", "JSON Schema of a job spec", "200 object" },
    { "GET",     "/v1/jobs",                             jobs_list,          SCOPE_READ,   0,     "state,name,label,since,sort,limit,cursor,array", "Jobs, newest first", "200 JobList" },
    { "POST",    "/v1/jobs",                             jobs_create,        SCOPE_SUBMIT, SPEC,  "dry_run", "Submit a job", "201 Job" },
    { "POST",    "/v1/jobs:validate",                    jobs_validate,      SCOPE_SUBMIT, SPEC,  "", "Check a spec and plan its memory; nothing is stored", "200 object" },
    { "POST",    "/v1/jobs:preview",                     jobs_preview,       SCOPE_SUBMIT, SPEC,  "", "The data of a spec as it will be trained: lengths, packing, first documents", "200 Preview" },
    { "POST",    "/v1/arrays",                           arrays_create,      SCOPE_SUBMIT, SPEC,  "", "Jobs over a grid or a random sample of field values", "201 object" },
    { "GET",     "/v1/arrays/{id}",                      array_show,         SCOPE_READ,   0,     "", "An array: its jobs, their values and states", "200 object" },
    { "POST",    "/v1/arrays/{id}/cancel",               array_cancel,       SCOPE_SUBMIT, EMPTY, "", "Cancel all its jobs", "202 object" },
    { "POST",    "/v1/import",                           import_post,        SCOPE_SUBMIT, SPEC,  "", "A job spec from an ms-swift command or a LLaMA-Factory file", "200 object" },
    { "GET",     "/v1/jobs/{id}",                        job_show,           SCOPE_READ,   0,     "", "One job with its spec and plan", "200 Job" },
    { "PATCH",   "/v1/jobs/{id}",                        job_patch,          SCOPE_SUBMIT, SMALL, "", "Change name, labels or priority; needs If-Match", "200 Job" },
    { "DELETE",  "/v1/jobs/{id}",                        job_delete,         SCOPE_SUBMIT, 0,     "", "Remove an ended job and its folder", "204 none" },
    { "POST",    "/v1/jobs/{id}/cancel",                 job_cancel,         SCOPE_SUBMIT, EMPTY, "", "End it at the next step", "202 Job" },
    { "POST",    "/v1/jobs/{id}/kill",                   job_kill,           SCOPE_SUBMIT, EMPTY, "", "End it at once", "202 Job" },
    { "POST",    "/v1/jobs/{id}/pause",                  job_pause,          SCOPE_SUBMIT, EMPTY, "", "Save a checkpoint, end, free the devices", "202 Job" },
    { "POST",    "/v1/jobs/{id}/resume",                 job_resume_post,    SCOPE_SUBMIT, EMPTY, "", "Queue a paused job again", "202 Job" },
    { "POST",    "/v1/jobs/{id}/requeue",                job_requeue,        SCOPE_SUBMIT, EMPTY, "", "Save, free the devices, queue again", "202 Job" },
    { "POST",    "/v1/jobs/{id}/checkpoint",             job_checkpoint_now, SCOPE_SUBMIT, EMPTY, "", "Save a checkpoint now", "202 Job" },
    { "POST",    "/v1/jobs/{id}/clone",                  job_clone,          SCOPE_SUBMIT, SPEC,  "", "A new job from this one's spec with the body's fields changed", "201 Job" },
    { "GET",     "/v1/jobs/{id}/attempts",               job_attempts,       SCOPE_READ,   0,     "", "Starts of the job and how each ended", "200 list" },
    { "GET",     "/v1/jobs/{id}/ranks",                  job_ranks,          SCOPE_READ,   0,     "attempt", "Processes and their latest figures", "200 list" },
    { "GET",     "/v1/jobs/{id}/logs",                   job_logs,           SCOPE_READ,   0,     "rank,tail,since,grep,attempt", "What a rank printed", "200 text" },
    { "GET",     "/v1/jobs/{id}/metrics",                job_metrics,        SCOPE_READ,   0,     "names,rank,from,to,max_points", "Figures over steps, thinned", "200 object" },
    { "GET",     "/v1/jobs/{id}/metrics/names",          job_metric_names,   SCOPE_READ,   0,     "", "Names of the figures it reported", "200 list" },
    { "GET",     "/v1/jobs/{id}/checkpoints",            job_checkpoints,    SCOPE_READ,   0,     "", "Checkpoints it saved", "200 list" },
    { "GET",     "/v1/jobs/{id}/artifacts",              job_artifacts,      SCOPE_READ,   0,     "", "Files in its output folder", "200 list" },
    { "GET",     "/v1/jobs/{id}/artifacts/{name*}",      job_artifact,       SCOPE_READ,   0,     "", "One of these files; Range works", "200 file" },
    { "GET",     "/v1/jobs/{id}/events",                 job_events,         SCOPE_READ,   0,     "after", "Server-sent events until the job ends", "200 stream" },
    { "GET",     "/v1/jobs/{id}/history",                job_events_list,    SCOPE_READ,   0,     "limit", "Events so far, newest first", "200 list" },
    { "GET",     "/v1/events",                           all_events,         SCOPE_READ,   0,     "after", "Server-sent events of all jobs", "200 stream" },
    { "GET",     "/v1/compare",                          compare,            SCOPE_READ,   0,     "ids,names,max_points", "Differences and curves of several jobs", "200 object" },
    { "GET",     "/v1/queue",                            queue_show,         SCOPE_READ,   0,     "", "Waiting jobs, each with its reason", "200 list" },
    { "GET",     "/v1/devices",                          devices_show,       SCOPE_READ,   0,     "", "Slots and who holds them", "200 list" },
    { "GET",     "/v1/settings",                         settings_show,      SCOPE_ADMIN,  0,     "", "Settings in force", "200 object" },
    { "GET",     "/v1/tokens",                           tokens_list,        SCOPE_ADMIN,  0,     "", "Tokens, without their secrets", "200 list" },
    { "POST",    "/v1/tokens",                           token_create,       SCOPE_ADMIN,  SMALL, "", "Make a token; the secret is shown once", "201 object" },
    { "DELETE",  "/v1/tokens/{id}",                      token_delete,       SCOPE_ADMIN,  0,     "", "Remove a token", "204 none" },
    { "GET",     "/v1/audit",                            audit_list,         SCOPE_ADMIN,  0,     "limit,cursor", "Who changed what", "200 list" },
    { "GET",     "/v1/webhooks",                         webhooks_list,      SCOPE_ADMIN,  0,     "", "Webhooks and how their deliveries go", "200 list" },
    { "POST",    "/v1/webhooks",                         webhook_create,     SCOPE_ADMIN,  SMALL, "", "Send job events to an address; the secret is shown once", "201 object" },
    { "DELETE",  "/v1/webhooks/{id}",                    webhook_delete,     SCOPE_ADMIN,  0,     "", "Remove a webhook", "204 none" },
    { "POST",    "/v1/webhooks/{id}/test",               webhook_test,       SCOPE_ADMIN,  EMPTY, "", "Send it a test delivery", "202 object" },
    { "POST",    "/v1/backups",                          backup_create,      SCOPE_ADMIN,  EMPTY, "", "Copy the database while in use", "201 object" },
};
const int n_routes = (int)(sizeof routes / sizeof routes[0]);

bool route_match(const char *pattern, const char *path, char *params[REQUEST_PARAMS])
{
    int n = 0;
    for (;;) {
        if (*pattern == '{') {
            size_t len = strcspn(path, "/");
            bool rest = strncmp(pattern + strcspn(pattern, "*}"), "*", 1) == 0;
            if (rest) len = strlen(path);
            if (len == 0 || n == REQUEST_PARAMS) break;
            params[n++] = xstrndup(path, len);
            path += len;
            pattern += strcspn(pattern, "}") + 1;
        } else if (*pattern != *path) break;
        else if (*pattern == '\0') return true;
        else { pattern++; path++; }
    }
    while (n > 0) { free(params[--n]); params[n] = NULL; }
    return false;
}

static bool is_public(const struct route *r) { return r->scope == SCOPE_NONE; }

struct arg_check { const char *allowed; char bad[60]; const char *seen[16]; int n; };

static void check_arg(void *arg, const char *name)
{
    struct arg_check *c = arg;
    size_t n = strlen(name);
    bool twice = false, ok = false;
    for (int i = 0; i < c->n; i++) twice |= strcmp(c->seen[i], name) == 0;
    if (c->n < 16) c->seen[c->n++] = name;
    for (const char *p = c->allowed; *p && !ok;) {
        size_t len = strcspn(p, ",");
        ok = len == n && memcmp(p, name, n) == 0;
        p += len + (p[len] == ',');
    }
    if ((!ok || twice) && !c->bad[0]) (void)snprintf(c->bad, sizeof c->bad, "%.50s", *name ? name : "(empty)");
}

void routes_head(struct daemon *d, struct request *q)
{
    char allow[120] = "";
    const char *method = strcmp(q->method, "HEAD") == 0 ? "GET" : q->method, *length = request_header(q, "Content-Length");
    const struct route *found = NULL;
    size_t bad;
    if (!auth_gate(d, q)) return;
    if (!utf8_valid(q->path, strlen(q->path), &bad)) { reply_problem(q, 400, "path", NULL, "the path is no valid UTF-8"); return; }
    for (int i = 0; i < n_routes && !found; i++) {
        char *params[REQUEST_PARAMS] = { NULL };
        if (!route_match(routes[i].pattern, q->path, params)) continue;
        if (strcmp(routes[i].method, method) == 0) { found = &routes[i]; memcpy(q->param, params, sizeof params); break; }
        for (int k = 0; k < REQUEST_PARAMS; k++) free(params[k]);
        size_t n = strlen(allow);
        (void)snprintf(allow + n, sizeof allow - n, "%s%s", n ? ", " : "", routes[i].method);
        if (strcmp(routes[i].method, "GET") == 0) { n = strlen(allow); (void)snprintf(allow + n, sizeof allow - n, ", HEAD"); }
    }
    if ((found == NULL || !is_public(found)) && !auth_token(d, q)) return;
    if (found == NULL && allow[0]) {
        reply_header(q, "Allow", allow);
        reply_problem(q, 405, "method", NULL, "%.20s is not taken here; allowed: %s", q->method, allow);
        return;
    }
    if (found == NULL) { reply_problem(q, 404, "not_found", NULL, "there is nothing at this path; /openapi.json lists what is"); return; }
    if (q->scope < found->scope) {
        reply_problem(q, 403, "scope", NULL, "this needs a token with scope %s, yours has %s", scope_name(found->scope), scope_name(q->scope));
        return;
    }
    struct arg_check c = { found->params, "", { NULL }, 0 };
    request_each_arg(q, check_arg, &c);
    if (c.bad[0] && utf8_valid(c.bad, strlen(c.bad), &bad)) {
        reply_problem(q, 400, "parameter", NULL, "query parameter \"%s\" is unknown here or given twice; taken: %s", c.bad, *found->params ? found->params : "none");
        return;
    } else if (c.bad[0]) { reply_problem(q, 400, "parameter", NULL, "a query parameter is no valid UTF-8"); return; }
    if (length && (strlen(length) > 15 || strtoull(length, NULL, 10) > found->body_max)) {
        reply_problem(q, 413, "body_too_large", NULL, "the body has %.20s bytes, at most %zu are taken here", length, found->body_max);
        return;
    }
    bool changes = strcmp(method, "GET") != 0;
    if (changes && !d->ready) { reply_problem(q, 503, "starting", NULL, "running jobs are being adopted; try again shortly"); return; }
    if (changes && d->draining && found->scope == SCOPE_SUBMIT && strcmp(method, "POST") == 0 && found->body_max == SPEC) { reply_problem(q, 503, "draining", NULL, "the coordinator is going down"); return; }
    q->route = found;
}

void routes_handle(struct daemon *d, struct request *q)
{
    const char *type = request_header(q, "Content-Type");
    if (q->body_len > 0 && type == NULL) {
        reply_problem(q, 415, "content_type", NULL, "send Content-Type: application/json with a body");
        return;
    }
    if (q->route->body_max == EMPTY && q->body_len > 0) {
        cJSON *o = body_object(q);
        if (o == NULL) return;
        bool empty = o->child == NULL;
        cJSON_Delete(o);
        if (!empty) { reply_problem(q, 422, "body", NULL, "this takes no fields"); return; }
    }
    q->route->handle(d, q);
}

void routes_done(struct daemon *d, struct request *q)
{
    if (strcmp(q->method ? q->method : "GET", "GET") == 0 || strcmp(q->method, "HEAD") == 0 || q->scope == SCOPE_NONE || d->store == NULL) return;
    audit(d, q->who, q->peer, q->method, q->path, q->status, NULL);
}
