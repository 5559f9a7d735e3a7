/* launcher_local.c - keepers on this machine: spawned detached, reached through <attempt dir>/keeper.sock.
 *
 * RINGMASTER_ATTEMPT=<nonce> is in the environment of everything a keeper starts: what is left of an attempt is found by that in /proc. */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/cgroup.h"
#include "daemon/command.h"
#include "daemon/daemon.h"
#include "daemon/launcher.h"
#include "daemon/proc.h"

enum { CONNECT_EVERY_MS = 100, KILL_EVERY_MS = 300, RAISED_WAIT_MS = 2000, ADOPT_MS = 5000 };

struct conn {                       /* lives until libuv has closed it, maybe longer than the attempt */
    uv_pipe_t pipe;
    struct attempt *a;              /* NULL: let go */
    struct line_reader reader;
    bool paused;
    char buf[16384];                /* libuv reads up to 32 of these before others have their turn */
};

static void on_closed(uv_handle_t *h)
{
    struct conn *c = h->data;
    line_reader_release(&c->reader);
    free(c);
}

static void drop(struct attempt *a)
{
    struct conn *c = a->place;
    if (c == NULL) return;
    c->a = NULL;
    if (!uv_is_closing((uv_handle_t *)&c->pipe)) uv_close((uv_handle_t *)&c->pipe, on_closed);
    a->place = NULL;
    a->greeted = false;
}

static void on_written(uv_write_t *w, int status) { (void)status; free(w->data); free(w); }

static void tell(struct attempt *a, cJSON *msg)
{
    struct conn *c = a->place;
    size_t len;
    char *line = message_line(msg, &len);
    if (c == NULL) { free(line); return; }
    uv_write_t *w = xcalloc(1, sizeof *w);
    uv_buf_t b = uv_buf_init(line, (unsigned)len);
    w->data = line;
    if (uv_write(w, (uv_stream_t *)&c->pipe, &b, 1, on_written) != 0) { free(line); free(w); }
}

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *b)
{
    (void)want;
    struct conn *c = h->data;
    *b = uv_buf_init(c->buf, sizeof c->buf);
}

static void on_line(void *arg, cJSON *msg)
{
    struct conn *c = arg;
    if (c->a) attempt_hears(c->a, msg);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct conn *c = s->data;
    if (c->a == NULL) return;
    if (n < 0) {                    /* the keeper left or died; attempt_tick finds out which */
        c->a->look_mono_ms = mono_ms();
        drop(c->a);
        return;
    }
    int64_t before = c->reader.oversized + c->reader.malformed;
    line_reader_feed(&c->reader, b->base, (size_t)n, on_line, c);
    if (c->a == NULL) return;
    int64_t bad = c->reader.oversized + c->reader.malformed - before;
    attempt_bad_frames(c->a, bad);
    if (c->a->n_q > PENDING_MAX && !c->paused) {    /* the store does not take them now; the keeper's spool holds the rest */
        c->paused = true;
        (void)uv_read_stop(s);
    }
}

static bool try_connect(struct attempt *a)
{
    struct sockaddr_un un = { .sun_family = AF_UNIX };
    int dir, fd = -1;
    bool ok = false;
    char path[64];
    if (message_socket_path(path, &dir, a->dir, NULL) != OK) return false;
    (void)snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&un, sizeof un) == 0) {
        struct conn *c = xcalloc(1, sizeof *c);
        (void)uv_pipe_init(a->d->loop, &c->pipe, 0);
        c->pipe.data = c;
        c->a = a;
        a->place = c;
        if (uv_pipe_open(&c->pipe, fd) == 0) {
            fd = -1;
            ok = true;
            attempt_awaits_replay(a);
            cJSON *m = cJSON_CreateObject();
            json_add_str(m, "t", "attach");
            json_add_str(m, "nonce", a->nonce);
            json_add_int(m, "after_seq", a->last_seq);
            tell(a, m);
            (void)uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read);
        } else drop(a);
    }
    if (fd >= 0) (void)close(fd);
    (void)close(dir);
    return ok;
}

struct child { uv_process_t process; struct daemon *d; int64_t job, n; struct child *next; };
static struct child *children;      /* keepers this process started and has not reaped */

static void on_child_closed(uv_handle_t *h)
{
    for (struct child **p = &children; *p; p = &(*p)->next)
        if (*p == h->data) { *p = (*p)->next; break; }
    free(h->data);
}

static void on_keeper_exit(uv_process_t *p, int64_t status, int sig)
{
    struct child *c = p->data;
    struct job *j = job_find(c->d, c->job);
    if (j && j->attempt && j->attempt->n == c->n && j->attempt->exit == NULL)
        log_line("warning", "j%lld: its keeper ended (code %lld, signal %d)", (long long)c->job, (long long)status, sig);
    uv_close((uv_handle_t *)p, on_child_closed);
}

static int start(struct attempt *a, struct error *err)
{
    struct daemon *d = a->d;
    char job[24], n[24], env_nonce[80], *spec = xasprintf("%s/spec.json", a->dir), *log = xasprintf("%s/keeper.log", a->dir), gpus[4096] = "CUDA_VISIBLE_DEVICES=";
    (void)snprintf(job, sizeof job, "j%lld", (long long)a->j->row.id);
    (void)snprintf(n, sizeof n, "%lld", (long long)a->n);
    (void)snprintf(env_nonce, sizeof env_nonce, "RINGMASTER_ATTEMPT=%s", a->nonce);
    char *args[] = { d->keeper, "--dir", a->dir, "--spec", spec, "--job", job, "--attempt", n, "--nonce", a->nonce, NULL };
    const char *dropped[] = { a->j->gpu ? "CUDA_VISIBLE_DEVICES=" : NULL, NULL };
    size_t k, at = strlen(gpus);
    char **env = command_env(dropped, 3, &k), *worker = xasprintf("RM_WORKER=%s", d->worker ? d->worker : "");
    env[k++] = env_nonce;
    if (*d->set.worker) env[k++] = worker;
    if (a->j->gpu) {
        for (int i = 0; i < d->n_slots; i++)
            if (d->slots[i].job == a->j->row.id) at += (size_t)snprintf(gpus + at, sizeof gpus - at, "%s%s", gpus[at - 1] == '=' ? "" : ",", d->slots[i].id);
        env[k++] = gpus;
    }
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600), rc = OK;
    uv_stdio_container_t io[3] = { { .flags = UV_IGNORE }, { .flags = fd >= 0 ? UV_INHERIT_FD : UV_IGNORE, .data.fd = fd }, { .flags = fd >= 0 ? UV_INHERIT_FD : UV_IGNORE, .data.fd = fd } };
    struct child *c = xcalloc(1, sizeof *c);
    *c = (struct child){ .d = d, .job = a->j->row.id, .n = a->n };
    c->process.data = c;
    uv_process_options_t o = { .exit_cb = on_keeper_exit, .file = d->keeper, .args = args, .env = env, .cwd = a->dir, .flags = UV_PROCESS_DETACHED, .stdio_count = 3, .stdio = io };
    int e = d->keeper ? uv_spawn(d->loop, &c->process, &o) : UV_ENOENT;
    if (e != 0) {
        rc = error_set(err, E_IO, "cannot start ringmaster-keeper: %s", uv_strerror(e));
        if (d->keeper) uv_close((uv_handle_t *)&c->process, on_child_closed);
        else free(c);
    } else {
        c->next = children;
        children = c;
        a->pid = c->process.pid;
        a->start_time = proc_start_time(a->pid);
    }
    if (fd >= 0) (void)close(fd);
    free(env);
    free(worker);
    free(spec);
    free(log);
    return rc;
}

static void look(struct attempt *a)
{
    struct daemon *d = a->d;
    int64_t now = mono_ms();
    if (a->place || now < a->look_mono_ms) return;
    a->look_mono_ms = now + CONNECT_EVERY_MS;
    if (try_connect(a)) { a->gone_mono_ms = 0; return; }
    bool alive = a->pid > 0 ? a->start_time > 0 && proc_start_time(a->pid) == a->start_time : proc_of_attempt(a->nonce, 0, 0, NULL) > 0;
    if (attempt_read_exit(a)) attempt_read_spool(a);
    else if (!alive) {
        if (a->gone_mono_ms == 0) a->gone_mono_ms = now;
        if (now - a->gone_mono_ms < RAISED_WAIT_MS / 4) return;     /* looked at again: it might have been between fork and exec */
        attempt_read_spool(a);
        bool never = a->pid == 0 && a->n_q == 0 && a->last_seq == 0;
        a->exit = never ? attempt_verdict(a, "failed", "not_started", "%s", "the coordinator died before the keeper was started")
                        : attempt_verdict(a, "failed", "lost", "the keeper is gone and left no exit record%s", "");
    } else if (now - a->begun_mono_ms > d->set.start_timeout_ms && a->seen_seq == 0 && a->j->row.state == JOB_STARTING) {
        (void)proc_of_attempt(a->nonce, 0, SIGKILL, NULL);
        a->exit = attempt_verdict(a, "failed", "start_timeout", "the keeper did not answer within start_timeout_ms%s", "");
    } else if (now - a->begun_mono_ms > ADOPT_MS) a->settled = true;     /* alive, silent: readiness does not wait for it */
}

static void more(struct attempt *a)
{
    struct conn *c = a->place;
    if (c == NULL || !c->paused) return;
    c->paused = false;
    (void)uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read);
}

static void late(struct attempt *a)
{
    (void)proc_of_attempt(a->nonce, 0, SIGKILL, NULL);
    a->exit = attempt_verdict(a, a->j->row.want >= WANT_CANCEL ? "cancelled" : "failed", "keeper_hung", "the keeper did not end the ranks in time; everything was killed%s", "");
}

/* The ranks' group of a keeper that died before it could end and remove it. True when nothing of it is left. */
static bool cgroup_gone(struct attempt *a)
{
    char *path = xasprintf("%s/cgroup", a->dir), *dir = NULL;
    size_t n;
    bool gone = true;
    if (a->place == NULL && access(path, F_OK) == 0 && file_read(path, PATH_MAX, &dir, &n, NULL) == OK && cgroup_is_of(dir, a->nonce)) {
        if (cgroup_populated(dir)) {
            cgroup_kill(dir);
            gone = false;
        } else (void)cgroup_remove(dir);
    }
    free(dir);
    free(path);
    return gone;
}

static bool empty(struct attempt *a)
{
    int64_t now = mono_ms(), first = 0, keeper = a->place ? a->pid : 0;      /* a keeper that waits for our ack is no leftover */
    if (now < a->kill_mono_ms) return false;
    if (proc_of_attempt(a->nonce, keeper, SIGKILL, &first) == 0 && cgroup_gone(a)) return true;
    if (a->kill_mono_ms == 0) log_line("warning", "j%lld: process %lld was left of attempt %lld; killed", (long long)a->j->row.id, (long long)first, (long long)a->n);
    a->kill_mono_ms = now + KILL_EVERY_MS;
    return false;
}

static void adopt(struct attempt *a, const cJSON *row)
{
    const char *boot = json_str(row, "boot_id");
    if (a->exit || boot == NULL || strcmp(boot, a->d->boot_id) == 0) return;   /* else the machine restarted: pids mean nothing, nothing can live */
    attempt_read_spool(a);
    a->exit = attempt_verdict(a, "failed", "lost", "the machine restarted while the job ran%s", "");
}

void launcher_local_stop(void)
{
    for (struct child *c = children; c; c = c->next)
        if (!uv_is_closing((uv_handle_t *)&c->process)) uv_close((uv_handle_t *)&c->process, on_child_closed);
}

const struct launcher launcher_local = { "local", true, start, adopt, look, tell, more, late, empty, drop, NULL };
