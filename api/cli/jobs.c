/* jobs.c - verbs on jobs at the daemon: submit, list, show, logs, watch, cancel and its kin. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "api/cli/remote.h"

static char *job_path(const char *id, const char *more)
{
    char *e = client_escape(id), *p = xasprintf("/v1/jobs/%s%s", e, more);
    free(e);
    return p;
}

static int report_job(struct cli *c, const cJSON *job)
{
    double ms = json_num(job, "run_ms", -1);
    struct ending e = { .id = json_str(job, "id"), .state = json_str(job, "state"), .reason = json_str(job, "reason"), .detail = json_str(job, "detail"),
        .checkpoint = json_str(job, "checkpoint"), .summary = json_get(job, "summary"), .seconds = ms >= 0 ? ms / 1000 : -1 };
    return cli_report(c, &e);
}

static int wait_for(struct cli *c, struct client *h, const char *id)
{
    cJSON *job = NULL;
    int rc = remote_watch(c, h, id, &job);
    if (rc == CLI_OK) rc = report_job(c, job);
    cJSON_Delete(job);
    return rc;
}

/* A made job's answer: its id, or followed to its end. */
static int created(struct cli *c, struct client *h, cJSON **answer)
{
    const char *id = json_str(*answer, "id");
    if (id == NULL) return cli_complain(c, CLI_FAILED, "the daemon's answer names no id");
    if (c->wait) {
        char *text = printable(id, strlen(id), false);      /* with --json the answer is as it came */
        (void)fprintf(stderr, "%s\n", text);
        free(text);
        return wait_for(c, h, id);
    }
    if (c->json) { json_print(*answer); *answer = NULL; }
    else (void)printf("%s\n", id);
    return CLI_OK;
}

/* POST with an Idempotency-Key, which makes a second try after a cut connection safe. */
static int post_once(struct cli *c, struct client *h, const char *path, const char *body, cJSON **answer)
{
    char nonce[33], *key;
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) abort();
    for (int i = 0; i < 16; i++) (void)snprintf(nonce + 2 * i, 3, "%02x", random[i]);
    key = xasprintf("Idempotency-Key: %s", c->key ? c->key : nonce);
    int rc = remote_json(c, h, "POST", path, body, key, true, answer);
    if (rc == CLI_UNREACHABLE) {
        (void)usleep(500000);
        rc = remote_json(c, h, "POST", path, body, key, false, answer);
    }
    free(key);
    return rc;
}

static int submit_array(struct cli *c, struct client *h, cJSON *spec)
{
    cJSON *o = cJSON_CreateObject(), *answer;
    (void)cJSON_AddItemToObject(o, "spec", cJSON_Duplicate(spec, true));
    (void)cJSON_AddItemToObject(o, c->random ? "random" : "grid", cJSON_Duplicate(c->axes, true));
    if (c->count) (void)cJSON_AddItemToObject(o, "count", cli_field_value(spec_field("max_steps"), c->count));
    if (c->sample_seed) (void)cJSON_AddItemToObject(o, "seed", cli_field_value(spec_field("seed"), c->sample_seed));
    char *body = json_line(o);
    int rc = c->wait ? cli_complain(c, CLI_USAGE, "an array is not waited for; watch its jobs")
           : c->dry_run ? cli_complain(c, CLI_USAGE, "an array is checked whole before any of it is stored; --dry_run is for single jobs")
           : c->random && c->count == NULL ? cli_complain(c, CLI_USAGE, "--random needs --count N, the number of jobs") : remote_json(c, h, "POST", "/v1/arrays", body, NULL, false, &answer);
    if (rc == CLI_OK && c->json) json_print(answer);
    else if (rc == CLI_OK) {
        const cJSON *jobs = json_get(answer, "jobs");
        (void)printf("%s", json_str(answer, "id") ? json_str(answer, "id") : "?");
        for (const cJSON *j = jobs ? jobs->child : NULL; j; j = j->next)
            if (cJSON_IsString(j)) (void)printf(" %s", j->valuestring);
        (void)printf("\n");
        cJSON_Delete(answer);
    }
    cJSON_Delete(o);
    free(body);
    return rc;
}

int verb_submit(struct cli *c)
{
    cJSON *spec = NULL, *answer = NULL;
    int rc = cli_spec_json(c, &spec);
    if (rc != CLI_OK) return rc;
    struct client *h = remote_open(c);
    char *body = json_line(spec);
    if (c->axes) rc = submit_array(c, h, spec);
    else if (c->count || c->sample_seed) rc = cli_complain(c, CLI_USAGE, "--count and --sample_seed go with --random");
    else if (c->dry_run) {
        rc = remote_json(c, h, "POST", "/v1/jobs:validate", body, NULL, false, &answer);
        if (rc == CLI_OK && c->json) { json_print(answer); answer = NULL; }
        else if (rc == CLI_OK) (void)printf("the daemon would take it\n");
    } else {
        rc = post_once(c, h, "/v1/jobs", body, &answer);
        if (rc == CLI_OK) rc = created(c, h, &answer);
    }
    cJSON_Delete(answer);
    cJSON_Delete(spec);
    client_free(h);
    free(body);
    return rc;
}

int verb_clone(struct cli *c)
{
    cJSON *answer = NULL;
    char cwd[4096];
    struct client *h = remote_open(c);
    if (getcwd(cwd, sizeof cwd)) cli_absolute_paths(c->fields, cwd);
    char *body = c->fields ? json_line(c->fields) : xstrdup("{}"), *path = job_path(c->args[0], "/clone");
    int rc = post_once(c, h, path, body, &answer);
    if (rc == CLI_OK) rc = created(c, h, &answer);
    cJSON_Delete(answer);
    client_free(h);
    free(body);
    free(path);
    return rc;
}

int verb_list(struct cli *c)
{
    cJSON *answer;
    struct client *h = remote_open(c);
    char *state = client_escape(c->state ? c->state : ""), *name = client_escape(c->name ? c->name : ""), *limit = client_escape(c->limit ? c->limit : "50");
    char *path = xasprintf("/v1/jobs?limit=%s%s%s%s%s", limit, *state ? "&state=" : "", state, *name ? "&name=" : "", name);
    int rc = remote_json(c, h, "GET", path, NULL, NULL, false, &answer);
    if (rc == CLI_OK && c->json) {
        json_print(answer);
        answer = NULL;
    } else if (rc == CLI_OK) {
        (void)printf("%-8s %-10s %-16s %-20s %-10s %s\n", "JOB", "STATE", "STEP", "CREATED", "LOSS", "NAME");
        const cJSON *items = json_get(answer, "items");
        for (const cJSON *j = items ? items->child : NULL; j; j = j->next) {
            char step[48], loss[24] = "-";
            double v;
            const char *created = json_str(j, "created_at"), *n = json_str(j, "name"), *reason = json_str(j, "reason"), *s = json_str(j, "state");
            (void)snprintf(step, sizeof step, "%.0f/%.0f", json_num(j, "step", 0), json_num(j, "max_steps", 0));
            if (json_number(json_get(json_get(j, "progress"), "loss"), &v) || json_number(json_get(j, "loss"), &v) || json_number(json_get(json_get(j, "summary"), "loss"), &v)) (void)snprintf(loss, sizeof loss, "%.4f", v);
            (void)printf("%-8s %-10s %-16s %-20.19s %-10s %s%s%s%s\n", json_str(j, "id") ? json_str(j, "id") : "?", s ? s : "?", step, created ? created : "", loss, n ? n : "",
                         reason && *reason && s && strcasecmp(s, "failed") == 0 ? "  (" : "", reason && *reason && s && strcasecmp(s, "failed") == 0 ? reason : "",
                         reason && *reason && s && strcasecmp(s, "failed") == 0 ? ")" : "");
        }
        if (json_str(answer, "next")) (void)printf("… there are more; --limit shows up to 200\n");
    }
    cJSON_Delete(answer);
    client_free(h);
    free(path);
    free(state);
    free(name);
    free(limit);
    return rc;
}

/* Members of a job that people look for, in order; objects and lists are left to --json. */
static void print_members(const cJSON *j, const char *const *names, int n)
{
    for (int i = 0; i < n; i++) {
        const cJSON *v = json_get(j, names[i]);
        double d;
        if (cJSON_IsString(v) && *v->valuestring) (void)printf("%-14s %s\n", names[i], v->valuestring);
        else if (json_number(v, &d)) (void)printf("%-14s %.10g\n", names[i], d);
    }
}

/* An array of jobs: one line for each member. */
static int show_array(struct cli *c)
{
    cJSON *a;
    struct client *h = remote_open(c);
    char *id = client_escape(c->args[0]), *path = xasprintf("/v1/arrays/%s", id);
    int rc = remote_json(c, h, "GET", path, NULL, NULL, false, &a);
    if (rc == CLI_OK && c->json) { json_print(a); a = NULL; }
    else if (rc == CLI_OK) {
        const cJSON *jobs = json_get(a, "jobs");
        for (const cJSON *j = jobs ? jobs->child : NULL; j; j = j->next) {
            char *values = json_line(json_get(j, "values"));
            double loss;
            (void)printf("%-8s %-10s %4.0f/%-6.0f", json_str(j, "id"), json_str(j, "state"), json_num(j, "step", 0), json_num(j, "max_steps", 0));
            if (json_number(json_get(json_get(j, "summary"), "loss"), &loss)) (void)printf(" loss %.4f", loss);
            (void)printf("  %s\n", values);
            free(values);
        }
    }
    cJSON_Delete(a);
    client_free(h);
    free(id);
    free(path);
    return rc;
}

int verb_show(struct cli *c)
{
    if (c->args[0][0] == 'a') return show_array(c);

    static const char *const about[] = { "id", "name", "state", "desired", "reason", "detail", "step", "max_steps", "attempt", "restarts", "ranks", "device", "priority",
        "created_at", "started_at", "ended_at", "checkpoint", "output_dir" };
    static const char *const now[] = { "loss", "tokens_per_s", "comm_share", "skew", "eta_s", "grad_norm", "learning_rate" };
    cJSON *job, *list = NULL;
    struct client *h = remote_open(c);
    char *path = job_path(c->args[0], ""), *ranks = job_path(c->args[0], "/ranks"), *attempts = job_path(c->args[0], "/attempts");
    int rc = remote_json(c, h, "GET", path, NULL, NULL, false, &job);
    if (rc == CLI_OK && c->json) {
        json_print(job);
        job = NULL;
    } else if (rc == CLI_OK) {
        print_members(job, about, sizeof about / sizeof about[0]);
        const cJSON *wait = json_get(job, "waiting");
        if (json_str(wait, "text")) (void)printf("%-14s %s (position %.0f)\n", "waiting", json_str(wait, "text"), json_num(wait, "position", 0));
        print_members(json_get(job, "progress"), now, sizeof now / sizeof now[0]);
        if (remote_json(c, h, "GET", attempts, NULL, NULL, true, &list) == CLI_OK) {
            const cJSON *items = json_get(list, "items");
            for (const cJSON *a = items ? items->child : NULL; a; a = a->next)
                (void)printf("attempt %.0f      %s%s%s  steps %.0f to %.0f  %s\n", json_num(a, "attempt", 0), json_str(a, "state") ? json_str(a, "state") : "?", json_str(a, "reason") ? " " : "",
                             json_str(a, "reason") ? json_str(a, "reason") : "", json_num(a, "first_step", 0), json_num(a, "last_step", 0), json_str(a, "detail") ? json_str(a, "detail") : "");
        }
        cJSON_Delete(list);
        list = NULL;
        if (remote_json(c, h, "GET", ranks, NULL, NULL, true, &list) == CLI_OK) {
            const cJSON *items = json_get(list, "items");
            for (const cJSON *r = items ? items->child : NULL; r; r = r->next)
                (void)printf("rank %-9.0f pid %.0f  %s  step %.0f\n", json_num(r, "rank", 0), json_num(r, "pid", 0), json_str(r, "state") ? json_str(r, "state") : "?", json_num(r, "step", 0));
        }
    }
    cJSON_Delete(list);
    cJSON_Delete(job);
    client_free(h);
    free(path);
    free(ranks);
    free(attempts);
    return rc;
}

int verb_watch(struct cli *c)
{
    struct client *h = remote_open(c);
    int rc = wait_for(c, h, c->args[0]);
    client_free(h);
    return rc;
}

int verb_action(struct cli *c)
{
    cJSON *answer;
    struct client *h = remote_open(c);
    char *more = xasprintf("/%s", c->verb->name), *path = job_path(c->args[0], more);
    int rc = remote_json(c, h, "POST", path, "{}", NULL, false, &answer);
    if (rc == CLI_OK && c->wait) {
        cJSON *job = NULL;
        rc = remote_watch(c, h, c->args[0], &job);
        if (rc == CLI_OK) {     /* the wish was that it end: that it did is success */
            (void)report_job(c, job);
            rc = CLI_OK;
        }
        cJSON_Delete(job);
    } else if (rc == CLI_OK && c->json) {
        json_print(answer);
        answer = NULL;
    } else if (rc == CLI_OK) (void)printf("%s %s\n", json_str(answer, "id") ? json_str(answer, "id") : c->args[0], json_str(answer, "state") ? json_str(answer, "state") : "?");
    cJSON_Delete(answer);
    client_free(h);
    free(path);
    free(more);
    return rc;
}

/* --- logs --- */

/* Progress bars redraw by \r: each state becomes a line. A log may hold anything: control characters are spelled out, also in a pipe, which may end
 * at a terminal; the bytes themselves are in the job's folder. */
static void put_log(char *s, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\r' && (i + 1 == n || s[i + 1] == '\n')) continue;
        s[to++] = s[i] == '\r' ? '\n' : s[i];
    }
    char *text = printable(s, to, true);
    (void)fputs(text, stdout);
    free(text);
}

/* How much of a piece can be shown before the next is seen: a character cut in two waits, so does a last \r. All, if there is nothing else. */
static size_t whole(const char *s, size_t n)
{
    size_t keep = n;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)s[n - back];
        if ((c & 0xC0) == 0x80) continue;
        if ((c == '\r' && back == 1) || (c >= 0xC0 && back < (c >= 0xF0 ? 4u : c >= 0xE0 ? 3u : 2u))) keep = n - back;
        break;
    }
    return keep > 0 ? keep : n;
}

struct tailing { char *path; long long at; };

/* Prints what the file has grown by; returns an exit code. */
static int follow_one(struct cli *c, struct client *h, struct tailing *t, bool *got)
{
    struct client_reply r;
    struct error err;
    char range[64];
    *got = false;
    (void)snprintf(range, sizeof range, "Range: bytes=%lld-%lld", t->at, t->at + (1 << 20) - 1);
    if (client_call(h, "GET", t->path, NULL, range, &r, &err) != OK) { client_reply_release(&r); return CLI_UNREACHABLE; }
    int rc = CLI_OK;
    if (r.status == 206 || (r.status == 200 && t->at == 0)) {
        size_t n = whole(r.body, r.len);
        put_log(r.body, n);
        t->at += (long long)n;
        *got = r.len > 0;
        if (r.status == 200) *got = false;
    } else if (r.status == 416) {
        if (r.total >= 0 && r.total < t->at) t->at = 0;         /* it was rotated: go on with the new file */
    } else if (r.status != 200 && r.status != 503) {
        cJSON *j = NULL;
        (void)json_parse(&j, r.body, r.len, &json_limits_request, NULL);
        rc = cli_complain(c, r.status == 400 ? CLI_USAGE : CLI_REFUSED, "%s", json_str(j, "detail") ? json_str(j, "detail") : "the daemon refuses");
        cJSON_Delete(j);
    }
    client_reply_release(&r);
    return rc;
}

static int follow_logs(struct cli *c, struct client *h, const char *id, const char *rank)
{
    bool ended = false;
    char *job_at = job_path(id, ""), *more = xasprintf("/logs?rank=%s", rank);
    struct tailing t = { job_path(id, more), 0 };
    int rc = CLI_OK;
    double lost = monotonic_s();
    if (c->tail) {              /* where the last lines begin is found in the last MiB */
        struct client_reply r;
        if (client_call(h, "GET", t.path, NULL, "Range: bytes=-1048576", &r, NULL) == OK && (r.status == 206 || r.status == 200)) {
            long long want = atoll(c->tail);
            size_t from = r.len;
            t.at = r.total >= 0 ? r.total : (long long)r.len;
            for (long long lines = 0; from > 0; from--)
                if (r.body[from - 1] == '\n' && from < r.len && ++lines == want) break;
            if (want > 0) put_log(r.body + from, r.len - from);
        }
        client_reply_release(&r);
    }
    while (rc == CLI_OK || rc == CLI_UNREACHABLE) {
        bool got;
        cJSON *job;
        rc = follow_one(c, h, &t, &got);
        (void)fflush(stdout);
        if (rc == CLI_OK) lost = monotonic_s();
        else if (rc == CLI_UNREACHABLE && monotonic_s() - lost > 120) { rc = cli_complain(c, CLI_UNREACHABLE, "the daemon does not answer"); break; }
        if (got) continue;
        if (ended) break;
        if (remote_json(c, h, "GET", job_at, NULL, NULL, true, &job) == CLI_OK) ended = state_is_final(json_str(job, "state"));
        cJSON_Delete(job);
        if (!ended) (void)usleep(300000);
    }
    free(t.path);
    free(job_at);
    free(more);
    return rc;
}

/* "90s", "10m", "2h", "3d" ago as ms since 1970; -1: none of these. */
static long long moment(const char *ago)
{
    static const struct { char unit; long long ms; } units[] = { { 's', 1000 }, { 'm', 60000 }, { 'h', 3600000 }, { 'd', 86400000 } };
    struct timespec now;
    char *end;
    long long n = strtoll(ago, &end, 10);
    if (*ago < '0' || *ago > '9' || n > 1000000 || *end == '\0' || end[1] != '\0') return -1;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (units[i].unit == *end) {
            long long then = (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000 - n * units[i].ms;
            return then > 1 ? then : 1;
        }
    return -1;
}

int verb_logs(struct cli *c)
{
    long long since = c->since ? moment(c->since) : 0;
    if (since < 0) return cli_complain(c, CLI_USAGE, "--since %.40s: expected how long ago, as 90s, 10m, 2h or 3d", c->since);

    struct client *h = remote_open(c);
    struct client_reply r;
    struct error err;
    int rc = CLI_OK;
    char *rank = client_escape(c->rank ? c->rank : "0");
    if (c->follow && c->grep == NULL && c->since == NULL) {
        if (strcmp(rank, "all") == 0) rc = cli_complain(c, CLI_USAGE, "-f follows one rank: --rank R");
        else rc = follow_logs(c, h, c->args[0], rank);
    } else if (c->follow) rc = cli_complain(c, CLI_USAGE, "-f does not go with --grep or --since; pipe through grep, or use --tail");
    else {
        char *grep = client_escape(c->grep ? c->grep : ""), *tail = client_escape(c->tail ? c->tail : "");
        char *from = since ? xasprintf("&since=%lld", since) : xstrdup("");
        char *more = xasprintf("/logs?rank=%s%s%s%s%s%s", rank, *tail ? "&tail=" : "", tail, *grep ? "&grep=" : "", grep, from), *path = job_path(c->args[0], more);
        if (client_call(h, "GET", path, NULL, NULL, &r, &err) != OK) rc = cli_complain(c, CLI_UNREACHABLE, "no answer from the daemon: %s", err.text);
        else if (r.status != 200) {
            cJSON *j = NULL;
            (void)json_parse(&j, r.body, r.len, &json_limits_request, NULL);
            rc = cli_complain(c, r.status == 400 ? CLI_USAGE : CLI_REFUSED, "%s", json_str(j, "detail") ? json_str(j, "detail") : "the daemon refuses");
            cJSON_Delete(j);
        } else if (c->json) {
            cJSON *o = cJSON_CreateObject(), *lines = cJSON_AddArrayToObject(o, "lines");
            for (char *save = NULL, *p = strtok_r(r.body, "\n", &save); p; p = strtok_r(NULL, "\n", &save)) {
                utf8_scrub(p);
                (void)cJSON_AddItemToArray(lines, cJSON_CreateString(p));
            }
            json_print(o);
        } else put_log(r.body, r.len);
        client_reply_release(&r);
        free(path);
        free(more);
        free(from);
        free(grep);
        free(tail);
    }
    free(rank);
    client_free(h);
    return rc;
}
