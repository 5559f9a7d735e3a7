#include "daemon/command.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/json.h"

struct command {
    command_done *done;
    void *arg;
    uv_process_t process;
    uv_pipe_t out, err;
    uv_timer_t timer;
    char *text; size_t len;
    char complaint[COMMAND_ERR_MAX]; size_t n_complaint;
    int open;                       /* handles not closed yet */
    struct command_end end;
    bool exited;
    char buf[65536];
};

/* What it wrote to stderr, fit to be shown. */
static const char *complaint(struct command *c)
{
    size_t bad, n = c->n_complaint;
    char *text = c->complaint;
    text[n] = '\0';
    if (!utf8_valid(text, n, &bad)) text[n = bad] = '\0';
    n = strlen(text);
    while (n > 0 && text[n - 1] == '\n') text[--n] = '\0';
    return text;
}

static void on_closed(uv_handle_t *h)
{
    struct command *c = h->data;
    if (--c->open > 0) return;
    c->end.out = c->text ? c->text : "";
    c->end.n_out = c->len;
    c->end.err = complaint(c);
    if (c->done) c->done(c->arg, &c->end);
    free(c->text);
    free(c);
}

static void close_once(void *handle) { if (!uv_is_closing(handle)) uv_close(handle, on_closed); }

/* The timer stays until nothing is read any more: a grandchild may hold the pipes open without end. */
static void maybe_close(struct command *c)
{
    if (!c->exited) return;
    close_once(&c->process);
    if (uv_is_closing((uv_handle_t *)&c->out) && uv_is_closing((uv_handle_t *)&c->err)) close_once(&c->timer);
}

static void on_exit_cb(uv_process_t *p, int64_t status, int sig)
{
    struct command *c = p->data;
    c->exited = true;
    c->end.code = status;
    c->end.signal = sig;
    maybe_close(c);
}

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *b) { (void)want; struct command *c = h->data; *b = uv_buf_init(c->buf, sizeof c->buf); }

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct command *c = s->data;
    if (n < 0) {
        close_once(s);
        maybe_close(c);
        return;
    }
    if (s == (uv_stream_t *)&c->err) {
        size_t room = COMMAND_ERR_MAX - 1 - c->n_complaint, take = (size_t)n < room ? (size_t)n : room;
        memcpy(c->complaint + c->n_complaint, b->base, take);
        c->n_complaint += take;
        return;
    }
    if (c->len + (size_t)n > COMMAND_OUT_MAX) { c->end.too_long = true; return; }
    c->text = xrealloc(c->text, c->len + (size_t)n + 1);
    memcpy(c->text + c->len, b->base, (size_t)n);
    c->len += (size_t)n;
    c->text[c->len] = '\0';
}

static void end_it(struct command *c)
{
    if (!c->exited) (void)uv_process_kill(&c->process, SIGKILL);
    close_once(&c->out);            /* a grandchild may hold them open */
    close_once(&c->err);
    maybe_close(c);
}

static void on_late(uv_timer_t *t)
{
    struct command *c = t->data;
    c->end.late = !c->exited;       /* else it has answered, and only what it left behind stands in the way */
    end_it(c);
}

struct command *command_run(uv_loop_t *loop, char *const argv[], char *const env[], int input, int64_t limit_ms, command_done *done, void *arg)
{
    struct command *c = xcalloc(1, sizeof *c);
    uv_pipe_t *pipes[2] = { &c->out, &c->err };
    c->done = done;
    c->arg = arg;
    for (int i = 0; i < 2; i++) { (void)uv_pipe_init(loop, pipes[i], 0); pipes[i]->data = c; }
    (void)uv_timer_init(loop, &c->timer);
    c->timer.data = c->process.data = c;
    uv_stdio_container_t io[3] = { { .flags = input >= 0 ? UV_INHERIT_FD : UV_IGNORE, .data.fd = input }, { .flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&c->out },
                                   { .flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&c->err } };
    uv_process_options_t o = { .exit_cb = on_exit_cb, .file = argv[0], .args = (char **)argv, .env = (char **)env, .stdio_count = 3, .stdio = io };
    c->open = 4;
    int e = uv_spawn(loop, &c->process, &o);
    if (e != 0) {
        c->n_complaint = (size_t)snprintf(c->complaint, COMMAND_ERR_MAX, "%s: %s", argv[0], uv_strerror(e));
        c->exited = true;
        c->end.code = 127;
        close_once(&c->out);
        close_once(&c->err);
        maybe_close(c);
        return c;
    }
    (void)uv_read_start((uv_stream_t *)&c->out, on_alloc, on_read);
    (void)uv_read_start((uv_stream_t *)&c->err, on_alloc, on_read);
    (void)uv_timer_start(&c->timer, on_late, (uint64_t)limit_ms, 0);
    return c;
}

void command_forget(struct command *c, bool kill_it)
{
    c->done = NULL;
    if (kill_it) end_it(c);
}

static bool begins_like(const char *text, const char *const list[])
{
    for (; *list; list++)
        if (strncmp(text, *list, strlen(*list)) == 0) return true;
    return false;
}

char **command_env(const char *const also[], size_t room, size_t *n)
{
    static const char *const ours[] = { "RINGMASTER_", "NOTIFY_SOCKET=", "WATCHDOG_", NULL };
    static const char *const kept[] = { "RINGMASTER_CUDA_MODULE=" /* the worker's */, "SLURM_CONF=", NULL };
    extern char **environ;
    size_t all = 0;
    while (environ[all]) all++;
    char **env = xcalloc(all + room + 1, sizeof *env);
    *n = 0;
    for (size_t i = 0; i < all; i++)
        if (begins_like(environ[i], kept) || (!begins_like(environ[i], ours) && !begins_like(environ[i], also))) env[(*n)++] = environ[i];
    return env;
}

char *command_find(const char *name)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t n = strcspn(path, ":");
        char *full = xasprintf("%.*s/%s", (int)n, path, name);
        struct stat st;
        if (*full == '/' && stat(full, &st) == 0 && S_ISREG(st.st_mode) && access(full, X_OK) == 0) return full;
        free(full);
        path += n + (path[n] == ':');
    }
    return NULL;
}
