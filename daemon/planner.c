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
#include "daemon/daemon.h"

enum { RUNNING = 2, QUEUED = 256, OUT_MAX = 4 << 20, ERR_MAX = 8192, DEVICES_MS = 5000, BAD_INPUT = 2 /* exit status of a worker's verb that refuses what it was given */ };

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
    uv_process_t process;
    uv_pipe_t out, err;
    uv_timer_t timer;
    char *text; size_t len;
    char complaint[ERR_MAX]; size_t n_complaint;
    int open;                   /* handles not closed yet */
    int64_t code; int signal;
    bool exited, started, late, too_long;
    char buf[65536];
};
struct planner { struct run *running, *waiting; int n_running, n_waiting; int64_t serial; };

static void start_next(struct daemon *d);

/* What the worker wrote to stderr, fit to be shown: UTF-8, without its own name and the last line's end. */
static const char *complaint(struct run *r)
{
    size_t bad, n = r->n_complaint, skip = strlen(questions[r->what].speaker);
    char *text = r->complaint;
    text[n] = '\0';
    if (!utf8_valid(text, n, &bad)) text[n = bad] = '\0';
    n = strlen(text);
    while (n > 0 && text[n - 1] == '\n') text[--n] = '\0';
    return strncmp(text, questions[r->what].speaker, skip) == 0 ? text + skip : text;
}

static void finish(struct run *r)
{
    struct planner *pl = r->d->planner;
    struct problems p = { 0 };
    struct error err = { 0 };
    cJSON *json = NULL, *list;
    int rc = OK;
    struct run **at = &pl->running;
    while (*at && *at != r) at = &(*at)->next;
    if (*at) { *at = r->next; pl->n_running--; }
    (void)unlink(r->file);
    if (r->late) rc = error_set(&err, E_TIMEOUT, "%s took longer than plan_timeout_ms=%lld", questions[r->what].name, (long long)r->d->set.plan_timeout_ms);
    else if (r->too_long) rc = error_set(&err, E_INTERNAL, "%s is longer than %d bytes", questions[r->what].name, OUT_MAX);
    else {
        struct error why;
        rc = json_parse(&json, r->text ? r->text : "", r->len, &json_limits_file, &why);
        list = json_get(json, "problems");
        if (rc == OK && cJSON_IsArray(list) && cJSON_GetArraySize(list) > 0) {
            const cJSON *item;
            cJSON_ArrayForEach(item, list) {
                const char *pointer = json_str(item, "pointer"), *code = json_str(item, "code"), *message = json_str(item, "message");
                problems_add(&p, pointer ? pointer : "", code ? code : "invalid", "%s", message ? message : "refused");
            }
            rc = E_INVALID;
        } else if (r->what != ASK_PLAN && r->code == BAD_INPUT && r->signal == 0 && r->n_complaint > 0)      /* a plan lists its problems instead */
            rc = error_set(&err, E_INVALID, "%.900s", complaint(r));
        else if (rc != OK || r->code != 0 || r->signal != 0) {
            const char *said = complaint(r);
            rc = error_set(&err, E_INTERNAL, "ringmaster-worker %s failed (code %lld, signal %d): %.600s", questions[r->what].verb, (long long)r->code, r->signal, *said ? said : why.text);
        }
    }
    if (r->done) r->done(r->arg, rc, r->text, &p, &err);
    problems_release(&p);
    cJSON_Delete(json);
    struct daemon *d = r->d;
    free(r->text);
    free(r->file);
    free(r);
    start_next(d);
}

static void on_closed(uv_handle_t *h)
{
    struct run *r = h->data;
    if (--r->open == 0) finish(r);
}

static void close_once(struct run *r, void *handle) { (void)r; if (!uv_is_closing(handle)) uv_close(handle, on_closed); }

static void maybe_close(struct run *r)
{
    if (!r->exited) return;
    close_once(r, &r->timer);
    close_once(r, &r->process);
}

static void on_exit_cb(uv_process_t *p, int64_t status, int sig)
{
    struct run *r = p->data;
    r->exited = true;
    r->code = status;
    r->signal = sig;
    maybe_close(r);
}

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *b) { (void)want; struct run *r = h->data; *b = uv_buf_init(r->buf, sizeof r->buf); }

static void on_out(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct run *r = s->data;
    if (n < 0) { close_once(r, s); return; }
    if (s == (uv_stream_t *)&r->err) {
        size_t room = ERR_MAX - 1 - r->n_complaint, take = (size_t)n < room ? (size_t)n : room;
        memcpy(r->complaint + r->n_complaint, b->base, take);
        r->n_complaint += take;
        return;
    }
    if (r->len + (size_t)n > OUT_MAX) { r->too_long = true; return; }
    r->text = xrealloc(r->text, r->len + (size_t)n + 1);
    memcpy(r->text + r->len, b->base, (size_t)n);
    r->len += (size_t)n;
    r->text[r->len] = '\0';
}

static void on_late(uv_timer_t *t)
{
    struct run *r = t->data;
    r->late = true;
    (void)uv_process_kill(&r->process, SIGKILL);
    close_once(r, &r->out);         /* a grandchild may hold them open */
    close_once(r, &r->err);
}

static void start(struct run *r)
{
    struct daemon *d = r->d;
    char *args[8] = { d->worker, (char *)questions[r->what].verb, r->file };
    for (int i = 0; questions[r->what].args[i]; i++) args[3 + i] = (char *)questions[r->what].args[i];
    uv_pipe_t *pipes[2] = { &r->out, &r->err };
    for (int i = 0; i < 2; i++) { (void)uv_pipe_init(d->loop, pipes[i], 0); pipes[i]->data = r; }
    (void)uv_timer_init(d->loop, &r->timer);
    r->timer.data = r->process.data = r;
    uv_stdio_container_t io[3] = { { .flags = UV_IGNORE }, { .flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&r->out },
                                   { .flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&r->err } };
    uv_process_options_t o = { .exit_cb = on_exit_cb, .file = d->worker, .args = args, .stdio_count = 3, .stdio = io };
    r->open = 4;
    r->next = d->planner->running;
    d->planner->running = r;
    d->planner->n_running++;
    int e = uv_spawn(d->loop, &r->process, &o);
    if (e != 0) {
        r->n_complaint = (size_t)snprintf(r->complaint, ERR_MAX, "%s: %s", d->worker, uv_strerror(e));
        r->exited = true;
        r->code = 127;
        close_once(r, &r->out);
        close_once(r, &r->err);
        maybe_close(r);
        return;
    }
    (void)uv_read_start((uv_stream_t *)&r->out, on_alloc, on_out);
    (void)uv_read_start((uv_stream_t *)&r->err, on_alloc, on_out);
    (void)uv_timer_start(&r->timer, on_late, (uint64_t)d->set.plan_timeout_ms, 0);
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
    for (struct run *r = d->planner->running; r; r = r->next) {
        r->done = NULL;
        if (!r->exited) (void)uv_process_kill(&r->process, SIGKILL);
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
