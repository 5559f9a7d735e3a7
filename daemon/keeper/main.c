/* main.c - the keeper of one attempt: reads the spec, takes its own session, runs the gang, leaves when its end is on disk.
 *
 * exit code 0: exit.json is written (whatever it says); 1: it could not be; 2: bad arguments or spec, nothing was started. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/cgroup.h"
#include "daemon/keeper/keeper.h"

static const char usage[] =
    "usage: ringmaster-keeper --dir DIR --spec SPEC.json --job ID --attempt N --nonce HEX [--resume CHECKPOINT] [--foreground|--mailbox]\n"
    "Runs one attempt of a job: spawns its ranks, keeps their records and output in DIR, ends them together, writes DIR/exit.json.\n"
    "  --resume CHECKPOINT  goes on from this folder, whatever the spec says\n"
    "  --foreground         stays tied to its parent: stops with a checkpoint when that dies; errors go to the terminal\n"
    "  --mailbox            reports and takes orders through files in DIR, for a daemon on another machine\n"
    "Not meant to be run by hand: `ringmaster run SPEC.json` and ringmasterd do.\n";

/* Runs inside the child, before the worker: whatever ends the keeper ends the rank. */
static int exec_rank(int argc, char **argv)
{
    if (argc < 5) return 2;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != atoi(argv[2])) return 127;         /* the keeper died before we could ask */
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {                                      /* memory runs out: a rank goes before the keeper that reports it */
        (void)!write(fd, "500", 3);
        (void)close(fd);
    }
    if (argv[3][0] == '/') cgroup_enter(argv[3]);
    (void)execv(argv[4], argv + 4);
    (void)fprintf(stderr, "exec %s: %s\n", argv[4], strerror(errno));
    return 127;
}

static bool take_args(struct keeper *k, int argc, char **argv)
{
    struct { const char *name; char **value; } strings[] = {
        { "--dir", &k->dir }, { "--spec", &k->spec_path }, { "--job", &k->job }, { "--nonce", &k->nonce }, { "--resume", &k->resume },
    };
    k->attempt = 0;
    for (int i = 1; i < argc; i++) {
        bool found = false;
        if (strcmp(argv[i], "--foreground") == 0) { k->foreground = true; continue; }
        if (strcmp(argv[i], "--mailbox") == 0) { k->mailbox = true; continue; }
        if (i + 1 == argc) return false;
        if (strcmp(argv[i], "--attempt") == 0) {
            k->attempt = atoi(argv[++i]);
            continue;
        }
        for (size_t s = 0; s < sizeof strings / sizeof strings[0] && !found; s++)
            if ((found = strcmp(argv[i], strings[s].name) == 0)) *strings[s].value = argv[i + 1];
        if (!found) return false;
        i++;
    }
    return k->dir && k->spec_path && k->job && k->nonce && k->nonce[0] && k->attempt > 0;
}

/* The spec the ranks read: the normal form, with --resume in it. */
static int write_rank_spec(struct keeper *k, struct error *err)
{
    if (k->resume) {
        free(k->spec.resume_from_checkpoint);
        k->spec.resume_from_checkpoint = xstrdup(k->resume);
    }
    char *text = spec_line(&k->spec);
    k->rank_spec = xasprintf("%s/rank-spec.json", k->dir);
    int rc = file_write(k->rank_spec, text, strlen(text), err);
    free(text);
    return rc;
}

static void on_signal(uv_signal_t *s, int sig)
{
    struct keeper *k = s->data;
    (void)sig;
    gang_stop(k, "checkpoint", "the keeper was asked to end by a signal");
}

static void to_log(const struct keeper *k)
{
    char *path = xasprintf("%s/keeper.log", k->dir);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log >= 0) {
        (void)dup2(log, 2);
        (void)close(log);
    }
    free(path);
}

/* Away from the terminal: own session, nothing on 0, messages to keeper.log. */
static void detach(const struct keeper *k)
{
    (void)setsid();
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
        (void)dup2(null, 0);
        if (!k->foreground) (void)dup2(null, 1);
        (void)close(null);
    }
    if (k->foreground) (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    else to_log(k);
}

static char *absolute(const char *path)
{
    char buf[PATH_MAX];
    return xstrdup(realpath(path, buf) ? buf : path);
}

static void on_walk(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h)) uv_close(h, NULL);
}

static void release(struct keeper *k)
{
    for (int i = 0; k->ranks && i < k->world; i++) {
        line_reader_release(&k->ranks[i].reader);
        ranklog_close(&k->ranks[i].log);
    }
    cJSON_Delete(k->exit_record);
    rendezvous_release(&k->rendezvous);
    spool_close(&k->spool);
    spec_release(&k->spec);
    free(k->ranks);
    free(k->server);
    free(k->checkpoint);
    free(k->rank_spec);
    free(k->worker);
    if (k->cgroup) (void)cgroup_remove(k->cgroup);
    free(k->cgroup);
    free(k->dir);
}

/* One name for all attempts of a job, by which a restart may write over what an earlier attempt of it saved (worker/train/claim.h): the
 * folder of the attempts. A job in the foreground is never restarted. */
static void set_job(const struct keeper *k)
{
    char *job = xstrdup(k->dir), *slash = strrchr(job, '/');
    if (slash) *slash = '\0';
    if (k->foreground) (void)unsetenv("RINGMASTER_JOB");
    else (void)setenv("RINGMASTER_JOB", job, 1);
    free(job);
}

/* Under Slurm the job's own group is Slurm's to end. */
static void make_cgroup(struct keeper *k)
{
    if (k->mailbox || (k->cgroup = cgroup_make(k->nonce)) == NULL) return;
    char *path = xasprintf("%s/cgroup", k->dir);
    (void)file_write(path, k->cgroup, strlen(k->cgroup), NULL);
    free(path);
}

/* Everything up to the first rank; on failure nothing was started. */
static int prepare(struct keeper *k, struct error *err)
{
    const char *worker = getenv("RM_WORKER");           /* tests put their own in the worker's place */
    k->worker = worker ? xstrdup(worker) : sibling_program("ringmaster-worker");
    if (k->worker == NULL) return error_set(err, E_NOTFOUND, "ringmaster-worker was found neither beside this program nor in its libexec folder nor in PATH");
    char *ended = xasprintf("%s/exit.json", k->dir);
    int rc = access(ended, F_OK) == 0 ? error_set(err, E_CONFLICT, "%s exists: this attempt has already run", ended) : OK;
    free(ended);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    set_job(k);
    (void)setenv("RINGMASTER_ATTEMPT", k->nonce, 0);    /* all that we start inherits it: leftovers can be told */
    if (rc == OK) rc = write_rank_spec(k, err);
    if (rc == OK) rc = record_reserve(k, err);
    if (rc == OK) rc = spool_open(&k->spool, k->dir, err);
    if (rc == OK) rc = server_start(k, err);
    if (rc == OK) make_cgroup(k);
    return rc;
}

int main(int argc, char **argv)
{
    open_standard_fds();
    if (argc > 1 && strcmp(argv[1], "--exec-rank") == 0) return exec_rank(argc, argv);
    struct keeper k = { .verdict_rank = -1, .spool = { .fd = -1 } };
    struct error err = { 0 };
    struct problems problems = { 0 };
    if (!take_args(&k, argc, argv)) {
        (void)fputs(usage, stderr);
        return 2;
    }
    if (make_dirs(k.dir, &err) != OK) {
        (void)fprintf(stderr, "ringmaster-keeper: %s\n", err.text);
        return 2;
    }
    k.dir = absolute(k.dir);
    (void)chmod(k.dir, 0700);
    detach(&k);
    if (spec_read(&k.spec, k.spec_path, &problems) != OK) {
        for (int i = 0; i < problems.n; i++)
            (void)fprintf(stderr, "ringmaster-keeper: %s%s: %s\n", k.spec_path, problems.v[i].pointer, problems.v[i].message);
        problems_release(&problems);
        release(&k);
        return 2;
    }
    k.world = (int)k.spec.nproc_per_node;
    if ((k.loop = uv_default_loop()) == NULL) {
        (void)fputs("ringmaster-keeper: no event loop: out of file descriptors or memory\n", stderr);
        release(&k);
        return 2;
    }
    if (prepare(&k, &err) != OK) {
        (void)fprintf(stderr, "ringmaster-keeper: %s\n", err.text);
        uv_walk(k.loop, on_walk, NULL);
        (void)uv_run(k.loop, UV_RUN_DEFAULT);
        (void)uv_loop_close(k.loop);
        release(&k);
        return 2;
    }
    uv_signal_t *signals[] = { &k.term, &k.interrupt };
    const int numbers[] = { SIGTERM, SIGINT };
    for (int i = 0; i < 2; i++) {
        (void)uv_signal_init(k.loop, signals[i]);
        signals[i]->data = &k;
        (void)uv_signal_start(signals[i], on_signal, numbers[i]);
    }
    if (k.foreground) to_log(&k);           /* whoever is at the terminal hears of events over the socket */
    (void)gang_start(&k, &err);             /* a failure is the record's business from here on */
    (void)uv_run(k.loop, UV_RUN_DEFAULT);

    uv_walk(k.loop, on_walk, NULL);
    (void)uv_run(k.loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(k.loop);
    char *path = xasprintf("%s/exit.json", k.dir);
    bool written = access(path, F_OK) == 0;
    free(path);
    release(&k);
    return written ? 0 : 1;
}
