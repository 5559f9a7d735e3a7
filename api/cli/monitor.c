/* monitor.c - live tables: `monitor` shows the ranks of a job, `top` the devices, running jobs and the queue.
 *
 * Each refresh is built whole and written at once: on a terminal over the old one (so nothing flickers, also over SSH), in a pipe one
 * line per rank (monitor) or a table (top) per interval. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "api/cli/remote.h"

struct screen { char *text; size_t len, cap, line; int rows; bool tty; };     /* line: where the current one starts */

static void put(struct screen *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(struct screen *s, const char *fmt, ...)
{
    char line[600];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    if ((size_t)n >= sizeof line) n = sizeof line - 1;
    if (s->len + (size_t)n + 8 > s->cap) s->text = xrealloc(s->text, s->cap = (s->len + (size_t)n + 8) * 2);
    memcpy(s->text + s->len, line, (size_t)n);
    s->len += (size_t)n;
}

/* On a terminal a line is cut at the edge and the table at the last row: what wraps or scrolls cannot be drawn over. */
static void end_line(struct screen *s)
{
    struct winsize w = { 0 };
    if (s->tty && (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_col == 0)) w = (struct winsize){ .ws_col = 80, .ws_row = 24 };
    if (s->tty) {
        size_t at = s->line;
        for (int columns = 0; at < s->len; at++)
            if (((unsigned char)s->text[at] & 0xC0) != 0x80 && ++columns >= w.ws_col) break;
        s->len = at;
        if (s->rows >= w.ws_row - 1) s->len = s->line;
    }
    if (!s->tty || s->rows < w.ws_row - 1) {
        put(s, s->tty ? "\033[K\n" : "\n");
        s->rows++;
    }
    s->line = s->len;
}

static const char *text_or_none(const char *s) { return s ? s : ""; }

static void show(struct screen *s, int *before)
{
    if (s->tty && *before > 0) (void)printf("\033[%dA\r", *before);
    (void)fwrite(s->text, 1, s->len, stdout);
    if (s->tty) (void)printf("\033[J");
    (void)fflush(stdout);
    *before = s->rows;
    s->rows = 0;
    s->len = s->line = 0;
}

static bool number(const cJSON *o, const char *name, double *v) { return json_number(json_get(o, name), v); }

static const char *percent(char buf[16], const cJSON *o, const char *name, double scale)
{
    double v;
    if (number(o, name, &v)) (void)snprintf(buf, 16, "%.1f%%", 100 * v * scale);
    else (void)snprintf(buf, 16, "-");
    return buf;
}

static const char *bytes(char buf[HUMAN], const cJSON *o, const char *name)
{
    double v;
    if (number(o, name, &v)) return human_bytes(buf, v);
    (void)snprintf(buf, HUMAN, "-");
    return buf;
}

static const char *seconds(char buf[HUMAN], const cJSON *o, const char *name)
{
    double v;
    if (!number(o, name, &v)) (void)snprintf(buf, HUMAN, "-");
    else if (v < 1) (void)snprintf(buf, HUMAN, "%.0f ms", 1000 * v);
    else (void)snprintf(buf, HUMAN, "%.2f s", v);
    return buf;
}

/* Utilisation of a GPU where the rank reports it, else of the CPU cores it keeps busy. */
static const char *utilisation(char buf[16], const cJSON *r)
{
    double v;
    if (number(r, "gpu_utilization", &v)) (void)snprintf(buf, 16, "%.0f%%", 100 * v);
    else if (number(r, "cpu", &v)) (void)snprintf(buf, 16, "%.0f%%", 100 * v);
    else (void)snprintf(buf, 16, "-");
    return buf;
}

static void put_job(struct screen *s, const cJSON *job)
{
    char a[HUMAN], b[HUMAN], pc[16], sk[16], loss[24] = "-";
    double v, eta = NAN, step = json_num(job, "step", 0), steps = json_num(job, "max_steps", 0);
    const cJSON *p = json_get(job, "progress");
    const char *id = json_str(job, "id"), *state = json_str(job, "state"), *reason = json_str(job, "reason"), *detail = json_str(job, "detail");
    if (number(p, "loss", &v)) (void)snprintf(loss, sizeof loss, "%.4f", v);
    if (number(p, "eta_s", &v)) eta = v;
    else if (number(p, "step_s", &v)) eta = v * (steps - step);
    put(s, "%s  %s  %s", id ? id : "?", state ? state : "?", text_or_none(json_str(job, "name")));
    if (reason && *reason) put(s, "  (%s)", reason);
    end_line(s);
    if (detail && *detail && strlen(detail) < 400) { put(s, "%s", detail); end_line(s); }
    put(s, "step %.0f/%.0f (%.0f%%)  loss %s  %s tokens/s  communication %s  skew %s  ETA %s", step, steps, steps > 0 ? 100 * step / steps : 0, loss,
        human_count(a, json_num(p, "tokens_per_s", NAN)), percent(pc, p, "comm_share", 1), number(p, "skew", &v) ? ((void)snprintf(sk, sizeof sk, "%.2f", v), sk) : "-", human_time(b, eta));
    end_line(s);
}

static void put_ranks(struct screen *s, const cJSON *ranks)
{
    const cJSON *items = json_get(ranks, "items");
    put(s, "%4s %8s %-10s %8s %11s %11s %6s %7s %9s %9s", "RANK", "PID", "PHASE", "STEP", "MEMORY", "PEAK", "UTIL", "COMM", "WAIT", "STEP TIME");
    end_line(s);
    for (const cJSON *r = items ? items->child : NULL; r; r = r->next) {
        char m[HUMAN], pk[HUMAN], w[HUMAN], t[HUMAN], u[16], c[16];
        const char *phase = json_str(r, "phase");
        double age;
        bool silent = number(r, "heartbeat_age_s", &age) && age > 3;
        put(s, "%4.0f %8.0f %-10.10s %8.0f %11s %11s %6s %7s %9s %9s%s", json_num(r, "rank", 0), json_num(r, "pid", 0), text_or_none(phase ? phase : json_str(r, "state")),
            json_num(r, "step", 0), json_get(r, "allocated_bytes") ? bytes(m, r, "allocated_bytes") : bytes(m, r, "rss_bytes"), bytes(pk, r, "peak_bytes"), utilisation(u, r),
            percent(c, r, "comm_share", 1), seconds(w, r, "comm_exposed_s"), seconds(t, r, "step_s"), silent ? "  SILENT" : "");
        end_line(s);
    }
}

/* The newest job that runs; NULL if none. */
static char *newest_running(struct cli *c, struct client *h, int *rc)
{
    cJSON *list;
    char *id = NULL;
    *rc = remote_json(c, h, "GET", "/v1/jobs?state=running,starting,stopping&limit=1", NULL, NULL, false, &list);
    if (*rc == CLI_OK) {
        const cJSON *items = json_get(list, "items");
        const char *s = items && items->child ? json_str(items->child, "id") : NULL;
        if (s) id = xstrdup(s);
        else *rc = cli_complain(c, CLI_FAILED, "no job is running; name one: ringmaster monitor JOB");
    }
    cJSON_Delete(list);
    return id;
}

static double interval_of(const struct cli *c)
{
    double v = c->interval ? strtod(c->interval, NULL) : 1;
    return v >= 0.1 && v <= 3600 ? v : 1;
}

int verb_monitor(struct cli *c)
{
    struct client *h = remote_open(c);
    struct screen s = { .tty = isatty(STDOUT_FILENO) && !c->once };
    int rc = CLI_OK, before = 0;
    char *id = c->n_args ? xstrdup(c->args[0]) : newest_running(c, h, &rc);
    for (bool last = false; id && !last;) {
        char *e = client_escape(id), *job_at = xasprintf("/v1/jobs/%s", e), *ranks_at = xasprintf("/v1/jobs/%s/ranks", e);
        cJSON *job = NULL, *ranks = NULL;
        rc = remote_json(c, h, "GET", job_at, NULL, NULL, false, &job);
        if (rc == CLI_OK) rc = remote_json(c, h, "GET", ranks_at, NULL, NULL, false, &ranks);
        free(e);
        free(job_at);
        free(ranks_at);
        last = rc != CLI_OK || c->once || state_is_final(json_str(job, "state"));
        if (rc == CLI_OK && c->json) {
            cJSON *o = cJSON_CreateObject();
            (void)cJSON_AddItemToObject(o, "job", job);
            (void)cJSON_AddItemToObject(o, "ranks", cJSON_DetachItemFromObjectCaseSensitive(ranks, "items"));
            cJSON_DeleteItemFromObjectCaseSensitive(job, "spec");
            cJSON_DeleteItemFromObjectCaseSensitive(job, "plan");
            json_print(o);
            (void)fflush(stdout);
            job = NULL;
        } else if (rc == CLI_OK) {
            put_job(&s, job);
            put_ranks(&s, ranks);
            if (!s.tty && !last) end_line(&s);
            show(&s, &before);
        }
        cJSON_Delete(job);
        cJSON_Delete(ranks);
        if (!last) (void)usleep((useconds_t)(interval_of(c) * 1e6));
    }
    free(id);
    free(s.text);
    client_free(h);
    return rc;
}

int verb_top(struct cli *c)
{
    struct client *h = remote_open(c);
    struct screen s = { .tty = isatty(STDOUT_FILENO) && !c->once };
    int rc = CLI_OK, before = 0;
    do {
        static const char *const paths[] = { "/v1/devices", "/v1/jobs?state=running,starting,stopping&limit=50", "/v1/queue" };
        static const char *const names[] = { "devices", "running", "queue" };
        cJSON *v[3] = { NULL, NULL, NULL };
        for (int i = 0; i < 3 && rc == CLI_OK; i++) rc = remote_json(c, h, "GET", paths[i], NULL, NULL, false, &v[i]);
        if (rc == CLI_OK && c->json) {
            cJSON *o = cJSON_CreateObject();
            for (int i = 0; i < 3; i++) (void)cJSON_AddItemToObject(o, names[i], cJSON_DetachItemFromObjectCaseSensitive(v[i], "items"));
            json_print(o);
            (void)fflush(stdout);
        } else if (rc == CLI_OK) {
            const cJSON *devices = json_get(v[0], "items"), *running = json_get(v[1], "items"), *queue = json_get(v[2], "items");
            char a[HUMAN], pc[16];
            int busy = 0;
            for (const cJSON *d = devices ? devices->child : NULL; d; d = d->next) busy += json_str(d, "job") != NULL;
            put(&s, "%d of %d devices busy, %d jobs running, %d waiting", busy, cJSON_GetArraySize(devices), cJSON_GetArraySize(running), cJSON_GetArraySize(queue));
            end_line(&s);
            put(&s, "%-10s %-6s %-24s %s", "DEVICE", "KIND", "NAME", "JOB");
            end_line(&s);
            for (const cJSON *d = devices ? devices->child : NULL; d; d = d->next) {
                put(&s, "%-10.10s %-6s %-24.24s %s", json_str(d, "id") ? json_str(d, "id") : "?", json_str(d, "kind") ? json_str(d, "kind") : "?", text_or_none(json_str(d, "name")),
                    json_str(d, "job") ? json_str(d, "job") : "-");
                end_line(&s);
            }
            put(&s, "%-8s %-9s %-13s %10s %7s %s", "JOB", "STATE", "STEP", "TOKENS/S", "COMM", "NAME");
            end_line(&s);
            for (const cJSON *j = running ? running->child : NULL; j; j = j->next) {
                const cJSON *p = json_get(j, "progress");
                char step[40];
                (void)snprintf(step, sizeof step, "%.0f/%.0f", json_num(j, "step", 0), json_num(j, "max_steps", 0));
                put(&s, "%-8s %-9s %-13s %10s %7s %s", json_str(j, "id") ? json_str(j, "id") : "?", json_str(j, "state") ? json_str(j, "state") : "?", step,
                    human_count(a, json_num(p, "tokens_per_s", NAN)), percent(pc, p, "comm_share", 1), text_or_none(json_str(j, "name")));
                end_line(&s);
            }
            for (const cJSON *j = queue ? queue->child : NULL; j; j = j->next) {
                put(&s, "%-8s %-9s #%-3.0f %s  %s", json_str(j, "id") ? json_str(j, "id") : "?", "queued", json_num(j, "position", 0), text_or_none(json_str(j, "name")), text_or_none(json_str(j, "text")));
                end_line(&s);
            }
            if (!s.tty && !c->once) end_line(&s);
            show(&s, &before);
        }
        for (int i = 0; i < 3; i++) cJSON_Delete(v[i]);
        if (rc == CLI_OK && !c->once) (void)usleep((useconds_t)(interval_of(c) * 1e6));
    } while (rc == CLI_OK && !c->once);
    free(s.text);
    client_free(h);
    return rc;
}
