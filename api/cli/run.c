/* run.c - `ringmaster run SPEC.json`: one job in the foreground, through the same keeper, without a daemon.
 *
 * Plan first, so that a bad spec starts nothing and leaves nothing behind. Then a keeper, tied to this process: Ctrl-C asks it for
 * a checkpoint and the end, a second one kills; should this process die, the keeper stops the job by itself. The result is the keeper's
 * exit record, never a guess. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api/cli/cli.h"
#include "api/file.h"
#include "api/message.h"

enum { CONNECT_MS = 20000, ACK_EVERY = 64 };

struct run {
    struct cli *c;
    struct progress progress;
    char *dir, nonce[33];
    pid_t keeper;
    int sock;
    bool hello;
    struct line_reader reader;
    struct step_line line;
    double step_s;                      /* smoothed */
    double *share; int world;           /* newest communication share of each rank */
    char phase[64];
    int64_t seq, acked;
    cJSON *record;                      /* exit.json */
    double began_s;
};

static volatile sig_atomic_t interrupts;
static int wake[2] = { -1, -1 };

static void on_signal(int sig)
{
    int e = errno;
    (void)sig;
    interrupts++;
    (void)!write(wake[1], "", 1);
    errno = e;
}

static void tell(struct run *r, cJSON *m)
{
    size_t n;
    char *line = message_line(m, &n);
    if (r->sock >= 0) (void)!send(r->sock, line, n, MSG_NOSIGNAL);
    free(line);
}

static cJSON *message_of(const char *t)
{
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "t", t);
    return o;
}

static void take_metrics(struct run *r, int64_t rank, const cJSON *m)
{
    int64_t step = 0;
    if (rank >= 0 && rank < r->world) r->share[rank] = json_num(m, "comm_share", NAN);
    if (rank != 0 || !json_int(m, "step", &step)) return;
    double sum = 0;
    int n = 0;
    for (int i = 0; i < r->world; i++)
        if (isfinite(r->share[i])) { sum += r->share[i]; n++; }
    r->line.step = step;
    if (json_get(m, "loss")) r->line.loss = json_num(m, "loss", NAN);
    r->line.tokens_per_s = json_num(m, "tokens_per_s", NAN);
    r->line.comm_share = n ? sum / n : NAN;
    r->line.eta_s = json_num(m, "eta_s", NAN);
    double took = json_num(m, "step_s", NAN);
    if (isfinite(took)) r->step_s = isfinite(r->step_s) ? 0.8 * r->step_s + 0.2 * took : took;
    if (!isfinite(r->line.eta_s) && step > 1) r->line.eta_s = (double)(r->line.steps - step) * r->step_s;     /* the rank itself waits for a steadier figure */
    progress_step(&r->progress, &r->line);
}

static void take_record(struct run *r, const cJSON *rec)
{
    int64_t rank = -1;
    const cJSON *m = json_get(rec, "m");
    const char *t = json_str(m, "t"), *text = json_str(m, "text"), *level = json_str(m, "level");
    (void)json_int(rec, "rank", &rank);
    (void)json_int(rec, "seq", &r->seq);
    if (t == NULL) return;
    if (strcmp(t, "metrics") == 0) take_metrics(r, rank, m);
    else if (strcmp(t, "checkpoint") == 0 && rank <= 0) progress_note(&r->progress, "checkpoint: %s", json_str(m, "path") ? json_str(m, "path") : "?");
    else if (strcmp(t, "event") == 0 && text && level && strcmp(level, "info") != 0) {
        if (rank >= 0) progress_note(&r->progress, "%s: rank %lld: %s", level, (long long)rank, text);
        else progress_note(&r->progress, "%s: %s", level, text);
    } else if (strcmp(t, "event") == 0 && text && rank <= 0 && r->line.step == 0) progress_show(&r->progress, true, "%s", text);
    if (r->seq - r->acked < ACK_EVERY) return;
    cJSON *ack = message_of("ack");
    json_add_int(ack, "seq", r->acked = r->seq);
    tell(r, ack);
}

static void take_beats(struct run *r, const cJSON *m)
{
    const cJSON *ranks = json_get(m, "ranks"), *first = ranks ? ranks->child : NULL;
    const char *phase = first ? json_str(first, "phase") : NULL;
    char t[HUMAN];
    if (r->line.step > 0 || phase == NULL) return;
    bool changed = strcmp(r->phase, phase) != 0;
    (void)snprintf(r->phase, sizeof r->phase, "%s", phase);
    if (changed || r->progress.tty) progress_show(&r->progress, changed, "%s … %s", phase, human_time(t, monotonic_s() - r->began_s));
}

static void on_message(void *arg, cJSON *m)
{
    struct run *r = arg;
    const char *t = json_str(m, "t");
    if (t == NULL) return;
    if (strcmp(t, "hello") == 0 && !r->hello) {
        cJSON *a = message_of("attach");
        r->hello = true;
        json_add_str(a, "nonce", r->nonce);
        json_add_int(a, "after_seq", 0);
        tell(r, a);
    } else if (strcmp(t, "record") == 0) take_record(r, m);
    else if (strcmp(t, "beats") == 0) take_beats(r, m);
    else if (strcmp(t, "exit") == 0 && r->record == NULL) {
        cJSON *ack = message_of("ack");
        json_add_int(ack, "seq", r->seq);
        tell(r, ack);
        r->record = cJSON_Duplicate(json_get(m, "record"), true);
    }
}

static int start_keeper(struct run *r, const char *spec_path)
{
    char *program = sibling_program("ringmaster-keeper");
    if (program == NULL) return cli_complain(r->c, CLI_FAILED, "ringmaster-keeper was found neither beside this program nor in its libexec folder nor in PATH");
    (void)fflush(NULL);
    r->keeper = fork();
    if (r->keeper == 0) {
        (void)execl(program, program, "--dir", r->dir, "--spec", spec_path, "--job", "run", "--attempt", "1", "--nonce", r->nonce, "--foreground", (char *)NULL);
        _exit(127);
    }
    free(program);
    return r->keeper > 0 ? CLI_OK : cli_complain(r->c, CLI_FAILED, "fork: %s", strerror(errno));
}

/* -1 while the keeper is not there yet. */
static int try_connect(const struct run *r)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    char path[64];
    int dirfd, fd = -1;
    if (message_socket_path(path, &dirfd, r->dir, NULL) != OK) return -1;
    memcpy(a.sun_path, path, sizeof path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
        (void)close(fd);
        fd = -1;
    }
    (void)close(dirfd);
    return fd;
}

static bool keeper_left(struct run *r, int *status)
{
    return r->keeper > 0 && waitpid(r->keeper, status, WNOHANG) == r->keeper && (r->keeper = 0, true);
}

/* Until the exit record is here or the keeper is gone. */
static void follow(struct run *r)
{
    int told = 0, status;
    char buf[65536];
    double since = monotonic_s();
    while (r->record == NULL) {
        if (r->sock < 0 && (r->sock = try_connect(r)) < 0) {
            if (keeper_left(r, &status) || monotonic_s() - since > CONNECT_MS / 1000.0) return;
        }
        struct pollfd p[2] = { { .fd = wake[0], .events = POLLIN }, { .fd = r->sock, .events = POLLIN } };
        if (poll(p, 2, r->sock < 0 ? 20 : 1000) < 0 && errno != EINTR) return;
        if (p[0].revents & POLLIN) (void)!read(wake[0], buf, sizeof buf);
        if (interrupts > told && r->hello) {
            cJSON *m = message_of("stop");
            json_add_str(m, "mode", interrupts > 1 ? "kill" : "checkpoint");
            json_add_str(m, "reason", "interrupted at the terminal");
            tell(r, m);
            told = interrupts;
            progress_note(&r->progress, told > 1 ? "killing the ranks" : "stopping with a checkpoint; press Ctrl-C again to kill");
        }
        if (r->sock >= 0 && (p[1].revents & (POLLIN | POLLHUP | POLLERR))) {
            ssize_t n = read(r->sock, buf, sizeof buf);
            if (n > 0) line_reader_feed(&r->reader, buf, (size_t)n, on_message, r);
            else if (n == 0 || errno != EINTR) break;       /* the keeper closed: its record is on disk, or it is dead */
        }
    }
}

/* A keeper that was killed leaves the ranks' control group behind, empty: its name is in the job's folder (daemon/cgroup.h). */
static void remove_group(const struct run *r)
{
    char *path = xasprintf("%s/cgroup", r->dir), *group = NULL, *name;
    size_t n;
    if (file_read(path, 4096, &group, &n, NULL) == OK && (name = strrchr(group, '/')) != NULL && strncmp(name, "/ringmaster-", 12) == 0) (void)rmdir(group);
    free(group);
    free(path);
}

static void read_record(struct run *r)
{
    int status;
    if (r->sock >= 0) (void)close(r->sock);
    r->sock = -1;
    if (r->keeper > 0)
        while (waitpid(r->keeper, &status, 0) < 0 && errno == EINTR) { }
    remove_group(r);
    if (r->record) return;
    char *path = xasprintf("%s/exit.json", r->dir);
    (void)json_parse_file(&r->record, path, &json_limits_request, NULL);
    free(path);
}

static int report(struct run *r)
{
    if (r->record == NULL) {
        if (r->c->json) {
            cJSON *o = cJSON_CreateObject();
            json_add_str(o, "state", "failed");
            json_add_str(o, "reason", "lost");
            json_print(o);
        }
        char *log = xasprintf("%s/keeper.log", r->dir);
        int rc = cli_complain(r->c, CLI_FAILED, "the keeper ended without an exit record; see %s", access(log, F_OK) == 0 ? log : "what it said above");
        free(log);
        return rc;
    }
    if (!r->c->json) cli_printable(r->record);
    const char *state = json_str(r->record, "state");
    struct ending e = { .state = state ? state : "failed", .reason = json_str(r->record, "reason"), .detail = json_str(r->record, "detail"), .job_dir = r->dir,
        .checkpoint = json_str(r->record, "checkpoint"), .summary = json_get(r->record, "summary"), .seconds = monotonic_s() - r->began_s };
    return cli_report(r->c, &e);
}

static int make_job_dir(struct run *r, const char *output_dir, const cJSON *normal, char **spec_path)
{
    struct error err;
    unsigned char random[16];
    char stamp[32];
    time_t now = time(NULL);
    struct tm tm;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) abort();
    for (int i = 0; i < 16; i++) (void)snprintf(r->nonce + 2 * i, 3, "%02x", random[i]);
    (void)strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", gmtime_r(&now, &tm));
    r->dir = xasprintf("%s/.ringmaster/run-%s-%.6s", output_dir, stamp, r->nonce);
    *spec_path = xasprintf("%s/spec.json", r->dir);
    int rc = make_dirs(r->dir, &err);
    if (rc == OK) {
        char *text = json_line(normal);
        rc = file_write(*spec_path, text, strlen(text), &err);
        free(text);
    }
    return rc == OK ? CLI_OK : cli_complain(r->c, CLI_FAILED, "%s", err.text);
}

int verb_run(struct cli *c)
{
    struct run r = { .c = c, .sock = -1, .began_s = monotonic_s(), .step_s = NAN, .line = { .loss = NAN, .tokens_per_s = NAN, .comm_share = NAN, .eta_s = NAN } };
    struct spec s = { 0 };
    struct problems p = { 0 };
    cJSON *json = NULL, *normal = NULL, *plan = NULL;
    char *spec_path = NULL;
    const char *where = c->n_args ? c->args[0] : "spec";
    int rc = cli_spec_json(c, &json);
    if (rc != CLI_OK) return rc;
    int read = spec_from_json(&s, json, &p);
    if (read == OK && strcmp(s.launcher, "local") != 0)
        problems_add(&p, "/launcher", "unsupported", "run trains on this machine, without the daemon that knows Slurm; use submit, or --launcher local");
    if (p.n > 0) {
        cJSON *list = problems_json(&p);
        rc = cli_print_problems(c, where, list);
        cJSON_Delete(list);
        goto out;
    }
    normal = spec_json(&s);
    progress_init(&r.progress);
    if (r.progress.tty) progress_show(&r.progress, true, "checking the data and planning the memory …");
    rc = cli_plan(c, normal, true, &plan);
    progress_clear(&r.progress);
    if (rc == CLI_USAGE) (void)cli_print_problems(c, where, json_get(plan, "problems"));
    if (rc != CLI_OK) goto out;

    if (s.after.n > 0) progress_note(&r.progress, "warning: /after is ignored: run starts at once, without the daemon that knows other jobs; use submit to wait for them");
    if (s.max_restarts > 0) progress_note(&r.progress, "warning: /max_restarts is ignored: run ends with its first attempt; use submit for a job that starts again by itself");
    const cJSON *warnings = json_get(plan, "warnings");
    for (const cJSON *w = warnings ? warnings->child : NULL; w; w = w->next)
        if (cJSON_IsString(w)) progress_note(&r.progress, "warning: %s", w->valuestring);
    r.line.steps = (long long)json_num(plan, "steps", (double)s.max_steps);
    r.world = (int)s.nproc_per_node;
    r.share = xcalloc((unsigned long)r.world, sizeof *r.share);
    for (int i = 0; i < r.world; i++) r.share[i] = NAN;
    if ((rc = make_job_dir(&r, s.output_dir, normal, &spec_path)) != CLI_OK) goto out;
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) < 0) abort();
    struct sigaction sa = { .sa_handler = on_signal };
    (void)sigaction(SIGINT, &sa, NULL);
    (void)sigaction(SIGTERM, &sa, NULL);
    if ((rc = start_keeper(&r, spec_path)) != CLI_OK) goto out;
    follow(&r);
    read_record(&r);
    progress_end(&r.progress);
    rc = report(&r);
out:
    line_reader_release(&r.reader);
    problems_release(&p);
    cJSON_Delete(r.record);
    cJSON_Delete(plan);
    cJSON_Delete(normal);
    cJSON_Delete(json);
    spec_release(&s);
    free(spec_path);
    free(r.share);
    free(r.dir);
    return rc;
}
