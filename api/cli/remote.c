/* remote.c - the daemon, seen from the command line: where it is, what its answers mean, and a job followed to its end. */
#include "api/cli/remote.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "api/file.h"

enum { LOST_S = 120 };          /* how long a daemon may be away while a job is followed: its jobs outlive it */

/* First line of <home>/name, or NULL. */
static char *home_file(const struct cli *c, const char *name)
{
    const char *home = c->home ? c->home : getenv("RINGMASTER_HOME"), *user = getenv("HOME");
    char *path = home ? xasprintf("%s/%s", home, name) : xasprintf("%s/.ringmaster/%s", user ? user : "", name), *text = NULL;
    size_t len;
    if (file_read(path, 4096, &text, &len, NULL) == OK) text[strcspn(text, "\r\n")] = '\0';
    free(path);
    return text;
}

struct client *remote_open(struct cli *c)
{
    const char *url = c->url ? c->url : getenv("RINGMASTER_URL"), *token = c->token ? c->token : getenv("RINGMASTER_TOKEN");
    char *home_url = url ? NULL : home_file(c, "url"), *home_token = token ? NULL : home_file(c, "token");
    if (url == NULL) url = home_url ? home_url : "http://127.0.0.1:7070";
    struct client *h = client_new(url, token ? token : home_token);
    free(home_url);
    free(home_token);
    return h;
}

static int complain_problem(struct cli *c, const struct client_reply *r, const cJSON *j)
{
    const char *detail = json_str(j, "detail"), *title = json_str(j, "title");
    const cJSON *errors = json_get(j, "errors");
    int code = r->status == 400 || r->status == 422 || r->status == 413 ? CLI_USAGE : r->status >= 500 ? CLI_FAILED : CLI_REFUSED;
    if (cJSON_GetArraySize(errors) > 0) {
        (void)cli_print_problems(c, "the daemon refuses it", errors);
        return code;
    }
    (void)cli_complain(c, code, "%s%s", detail ? detail : title ? title : "the daemon answers with an error", r->status == 401 ? "; set RINGMASTER_TOKEN, or --home to the daemon's home" : "");
    if (c->json) {
        cJSON *o = cJSON_CreateObject();
        json_add_int(o, "status", r->status);
        json_add_str(o, "error", detail ? detail : title);
        json_print(o);
    }
    return code;
}

int remote_json(struct cli *c, struct client *h, const char *method, const char *path, const char *body, const char *header, bool quiet, cJSON **out)
{
    struct client_reply r;
    struct error err = { 0 };
    cJSON *j = NULL;
    *out = NULL;
    int rc = client_call(h, method, path, body, header, &r, &err);
    if (rc != OK) {
        client_reply_release(&r);
        if (!quiet && c->json) {
            cJSON *o = cJSON_CreateObject();
            json_add_int(o, "status", 0);
            json_add_str(o, "error", err.text);
            json_print(o);
        }
        return quiet ? CLI_UNREACHABLE : cli_complain(c, CLI_UNREACHABLE, "no answer from the daemon: %s", err.text);
    }
    (void)json_parse(&j, r.body, r.len, &json_limits_file, &err);
    if (!c->json) cli_printable(j);         /* here once, for every verb that prints some of it */
    if (r.status >= 200 && r.status < 300) {
        *out = j;
        rc = j || r.status == 204 ? CLI_OK : cli_complain(c, CLI_FAILED, "the daemon's answer is no JSON: %s", err.text);
    } else if (quiet && r.status == 503) {
        rc = CLI_UNREACHABLE;
        cJSON_Delete(j);
    } else {
        rc = complain_problem(c, &r, j);
        cJSON_Delete(j);
    }
    client_reply_release(&r);
    return rc;
}

bool state_is_final(const char *s)
{
    static const char *const final[] = { "succeeded", "failed", "cancelled", "paused" };
    for (size_t i = 0; s && i < sizeof final / sizeof final[0]; i++)
        if (strcasecmp(s, final[i]) == 0) return true;
    return false;
}

int state_exit_code(const char *s)
{
    return strcasecmp(s, "succeeded") == 0 ? CLI_OK : strcasecmp(s, "failed") == 0 ? CLI_FAILED : CLI_STOPPED;
}

/* What a job waits for, or how far it is. */
static void show_progress(struct progress *p, const cJSON *job, char *before, size_t size)
{
    const cJSON *at = json_get(job, "progress"), *wait = json_get(job, "waiting");
    const char *state = json_str(job, "state"), *text = json_str(wait, "text");
    char line[300];
    double v;
    struct step_line s = { .step = (long long)json_num(job, "step", 0), .steps = (long long)json_num(job, "max_steps", 0), .loss = NAN, .tokens_per_s = NAN, .comm_share = NAN, .eta_s = NAN };
    if (strcmp(state, "running") == 0 && s.step > 0 && at) {
        if (json_number(json_get(at, "loss"), &v)) s.loss = v;
        if (json_number(json_get(at, "tokens_per_s"), &v)) s.tokens_per_s = v;
        if (json_number(json_get(at, "comm_share"), &v)) s.comm_share = v;
        if (json_number(json_get(at, "eta_s"), &v)) s.eta_s = v;
        else if (json_number(json_get(at, "step_s"), &v)) s.eta_s = v * (double)(s.steps - s.step);
        (void)snprintf(line, sizeof line, "step %lld", s.step);
        if (p->tty || strcmp(line, before) != 0) progress_step(p, &s);
    } else {
        (void)snprintf(line, sizeof line, "%s%s%s", state, text && *text ? ": " : "", text && *text ? text : "");
        if (p->tty || strcmp(line, before) != 0) progress_show(p, strcmp(line, before) != 0, "%s", line);
    }
    (void)snprintf(before, size, "%s", line);
}

int remote_watch(struct cli *c, struct client *h, const char *id, cJSON **job)
{
    struct progress p;
    char *path = xasprintf("/v1/jobs/%s", id), before[300] = "";
    double lost = -1;
    int rc;
    progress_init(&p);
    *job = NULL;
    for (;;) {
        cJSON *j;
        rc = remote_json(c, h, "GET", path, NULL, NULL, true, &j);
        if (rc == CLI_UNREACHABLE) {        /* the job goes on without it: wait for the daemon to come back */
            if (lost < 0) {
                lost = monotonic_s();
                progress_note(&p, "the daemon does not answer; waiting for it, the job's state is unknown meanwhile");
            }
            if (monotonic_s() - lost > LOST_S) {
                progress_end(&p);
                rc = cli_complain(c, CLI_UNREACHABLE, "no daemon for %d s; the job's state is unknown", LOST_S);
                break;
            }
            (void)usleep(500000);
            continue;
        }
        if (rc != CLI_OK) break;
        if (lost >= 0) progress_note(&p, "the daemon is back");
        lost = -1;
        cJSON_Delete(*job);
        *job = j;
        if (json_str(j, "state") == NULL) {
            rc = cli_complain(c, CLI_FAILED, "the daemon's answer names no state");
            break;
        }
        show_progress(&p, j, before, sizeof before);
        if (state_is_final(json_str(j, "state"))) break;
        (void)usleep(p.tty ? 300000 : 700000);
    }
    progress_end(&p);
    free(path);
    return rc;
}
