/* planner.c - see planner.h. At most RUNNING processes at a time, QUEUED more wait; each has plan_timeout_ms. What differs from question to
 * question is one row of a table. */
#include "daemon/planner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/command.h"
#include "daemon/daemon.h"

enum { RUNNING = 2, QUEUED = 256, DEVICES_MS = 5000, BAD_INPUT = 2 /* exit status of a worker's verb that refuses what it was given */ };

static const struct {
    const char *name;           /* in messages */
    const char *verb, *args[4];
    const char *speaker;        /* how the worker's messages start */
} questions[] = {
    [ASK_PLAN] = { "the plan", "--plan", { "--brief" }, "ringmaster-worker: " },
    [ASK_DATASET] = { "the preview", "--dataset", { "--json", "--rows", "5" }, "ringmaster dataset: " },
};

struct run {
    struct run *next;
    struct daemon *d;
    enum question what;
    planner_done *done;
    void *arg;
    char *file;
    struct command *command;
};
struct planner { struct run *running, *waiting; int n_running, n_waiting; int64_t serial; };

static void start_next(struct daemon *d);

/* What the worker wrote to stderr, without its own name. */
static const char *complaint(const struct run *r, const struct command_end *e)
{
    size_t skip = strlen(questions[r->what].speaker);
    return strncmp(e->err, questions[r->what].speaker, skip) == 0 ? e->err + skip : e->err;
}

static void finish(void *arg, const struct command_end *e)
{
    struct run *r = arg;
    struct planner *pl = r->d->planner;
    struct problems p = { 0 };
    struct error err = { 0 };
    cJSON *json = NULL, *list;
    int rc = OK;
    struct run **at = &pl->running;
    while (*at && *at != r) at = &(*at)->next;
    if (*at) { *at = r->next; pl->n_running--; }
    (void)unlink(r->file);
    if (e->late) rc = error_set(&err, E_TIMEOUT, "%s took longer than plan_timeout_ms=%lld", questions[r->what].name, (long long)r->d->set.plan_timeout_ms);
    else if (e->too_long) rc = error_set(&err, E_INTERNAL, "%s is longer than %d bytes", questions[r->what].name, COMMAND_OUT_MAX);
    else {
        struct error why;
        rc = json_parse(&json, e->out, e->n_out, &json_limits_file, &why);
        list = json_get(json, "problems");
        if (rc == OK && cJSON_IsArray(list) && cJSON_GetArraySize(list) > 0) {
            const cJSON *item;
            cJSON_ArrayForEach(item, list) {
                const char *pointer = json_str(item, "pointer"), *code = json_str(item, "code"), *message = json_str(item, "message");
                problems_add(&p, pointer ? pointer : "", code ? code : "invalid", "%s", message ? message : "refused");
            }
            rc = E_INVALID;
        } else if (r->what != ASK_PLAN && e->code == BAD_INPUT && e->signal == 0 && *e->err)      /* a plan lists its problems instead */
            rc = error_set(&err, E_INVALID, "%.900s", complaint(r, e));
        else if (rc != OK || e->code != 0 || e->signal != 0) {
            const char *said = complaint(r, e);
            rc = error_set(&err, E_INTERNAL, "ringmaster-worker %s failed (code %lld, signal %d): %.600s", questions[r->what].verb, (long long)e->code, e->signal, *said ? said : why.text);
        }
    }
    r->done(r->arg, rc, e->out, &p, &err);
    problems_release(&p);
    cJSON_Delete(json);
    struct daemon *d = r->d;
    free(r->file);
    free(r);
    start_next(d);
}

static void start(struct run *r)
{
    struct daemon *d = r->d;
    char *args[8] = { d->worker, (char *)questions[r->what].verb, r->file };
    for (int i = 0; questions[r->what].args[i]; i++) args[3 + i] = (char *)questions[r->what].args[i];
    r->next = d->planner->running;
    d->planner->running = r;
    d->planner->n_running++;
    r->command = command_run(d->loop, args, NULL, -1, d->set.plan_timeout_ms, finish, r);
}

static void start_next(struct daemon *d)
{
    struct planner *pl = d->planner;
    while (pl->waiting && pl->n_running < RUNNING) {
        struct run *r = pl->waiting;
        pl->waiting = r->next;
        pl->n_waiting--;
        start(r);
    }
}

int planner_ask(struct daemon *d, enum question what, const char *spec, planner_done *done, void *arg, struct error *err)
{
    struct planner *pl = d->planner;
    if (d->worker == NULL) return error_set(err, E_UNSUPPORTED, "ringmaster-worker was not found beside ringmasterd; --worker names it");
    if (pl->n_waiting >= QUEUED) return error_set(err, E_TIMEOUT, "%d questions to the worker are waiting already; try again", pl->n_waiting);
    struct run *r = xcalloc(1, sizeof *r);
    r->d = d;
    r->what = what;
    r->done = done;
    r->arg = arg;
    r->file = xasprintf("%s/tmp/plan-%lld-%d.json", d->set.home, (long long)pl->serial++, (int)getpid());
    int rc = file_write(r->file, spec, strlen(spec), err);
    if (rc != OK) { free(r->file); free(r); return rc; }
    struct run **at = &pl->waiting;
    while (*at) at = &(*at)->next;
    *at = r;
    pl->n_waiting++;
    start_next(d);
    return OK;
}

int planner_start(struct daemon *d)
{
    d->planner = xcalloc(1, sizeof *d->planner);
    return OK;
}

void planner_stop(struct daemon *d)
{
    while (d->planner->running) {
        struct run *r = d->planner->running;
        d->planner->running = r->next;
        command_forget(r->command, true);
        (void)unlink(r->file);
        free(r->file);
        free(r);
    }
}

/* Before the loop runs there is nothing to block, so plain poll() with a deadline will do. */
cJSON *planner_devices(struct daemon *d)
{
    int fd[2];
    char text[65536];
    size_t len = 0;
    cJSON *out = NULL;
    if (d->worker == NULL || pipe2(fd, O_CLOEXEC) != 0) return NULL;
    uv_stdio_container_t io[3] = { { .flags = UV_IGNORE }, { .flags = UV_INHERIT_FD, .data.fd = fd[1] }, { .flags = UV_IGNORE } };
    char *args[] = { d->worker, "--devices", NULL };
    uv_process_t p;
    uv_process_options_t o = { .file = d->worker, .args = args, .stdio_count = 3, .stdio = io };
    int e = uv_spawn(d->loop, &p, &o);
    (void)close(fd[1]);
    int64_t deadline = mono_ms() + DEVICES_MS;
    while (e == 0 && len < sizeof text - 1) {
        struct pollfd w = { .fd = fd[0], .events = POLLIN };
        int64_t left = deadline - mono_ms();
        if (left <= 0 || poll(&w, 1, (int)left) <= 0) break;
        ssize_t n = read(fd[0], text + len, sizeof text - 1 - len);
        if (n <= 0) break;
        len += (size_t)n;
    }
    if (e == 0) (void)uv_process_kill(&p, SIGKILL);
    uv_close((uv_handle_t *)&p, NULL);
    (void)uv_run(d->loop, UV_RUN_NOWAIT);
    (void)close(fd[0]);
    if (e == 0) (void)waitpid(p.pid, NULL, 0);
    return len > 0 && json_parse(&out, text, len, &json_limits_request, NULL) == OK ? out : NULL;
}
