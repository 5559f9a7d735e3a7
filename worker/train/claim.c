#include "worker/train/claim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "api/file.h"
#include "api/json.h"

enum {
    PATIENCE_MS = 5000,         /* a rank that was killed a moment ago may still be giving its memory back */
    TEXT_MAX = 8192
};

int64_t claim_step(const char *name)
{
    char *end;
    if (strncmp(name, "checkpoint-", 11) != 0 || name[11] < '0' || name[11] > '9') return -1;
    errno = 0;
    long long n = strtoll(name + 11, &end, 10);
    return *end == '\0' && errno == 0 ? n : -1;
}

/* "" where dir is no complete checkpoint, or one without an id. */
static void read_run(const char *dir, char run[RUN_ID])
{
    struct stat st;
    cJSON *o = NULL;
    char *path = xasprintf("%s/trainer_state.json", dir);
    run[0] = '\0';
    if (lstat(dir, &st) == 0 && S_ISDIR(st.st_mode) && json_parse_file(&o, path, &json_limits_file, NULL) == OK) {
        const char *id = json_str(json_get(o, "ringmaster"), "run");
        if (id && strlen(id) == RUN_ID - 1) memcpy(run, id, RUN_ID);
    }
    cJSON_Delete(o);
    free(path);
}

bool claim_owns(const char *dir, const char *run)
{
    char of[RUN_ID];
    read_run(dir, of);
    return run[0] && strcmp(of, run) == 0;
}

/* --- the lock file: {"run", "job"} of who wrote here last --- */

/* One name for all attempts of a job of the daemon; NULL for `ringmaster run`, which is never restarted. */
static const char *this_job(void)
{
    const char *job = getenv("RINGMASTER_JOB");
    return job && *job ? job : NULL;
}

/* The id that an earlier attempt of this very job left; false: there was none. */
static bool read_lock(int fd, char run[RUN_ID])
{
    char text[TEXT_MAX];
    cJSON *o = NULL;
    ssize_t n = pread(fd, text, sizeof text, 0);
    bool same = false;
    if (this_job() && n > 0 && json_parse(&o, text, (size_t)n, &json_limits_file, NULL) == OK) {
        const char *id = json_str(o, "run"), *job = json_str(o, "job");
        same = id && job && strlen(id) == RUN_ID - 1 && strcmp(job, this_job()) == 0;
        if (same) memcpy(run, id, RUN_ID);
    }
    cJSON_Delete(o);
    return same;
}

/* A failure costs only this: should the job be restarted without a checkpoint to go on from, it is refused. */
static void write_lock(int fd, const char *run)
{
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "run", run);
    json_add_str(o, "job", this_job());
    char *text = json_line(o);
    size_t n = strlen(text);
    if (n < TEXT_MAX && pwrite(fd, text, n, 0) == (ssize_t)n) (void)!ftruncate(fd, (off_t)n);
    free(text);
    cJSON_Delete(o);
}

/* --- what is there already --- */

static bool lies_in(const char *resume, const char *output_dir)
{
    char a[PATH_MAX], b[PATH_MAX];
    char *up = xasprintf("%s/..", resume);
    bool is = realpath(up, a) && realpath(output_dir, b) && strcmp(a, b) == 0;
    free(up);
    return is;
}

static int64_t step_of(const char *checkpoint)
{
    char at[PATH_MAX];
    const char *name = realpath(checkpoint, at) ? strrchr(at, '/') : NULL;
    return name ? claim_step(name + 1) : -1;
}

/* Refuses what would be replaced. A fresh run wants a folder without checkpoints; one that goes on inside the folder, or starts the same
 * job again, may write over its own run's later ones. */
static int check_room(const char *output_dir, const char *resume, bool again, const char *run, struct error *err)
{
    bool inside = resume && lies_in(resume, output_dir);
    int64_t from = inside ? step_of(resume) : -1, first = -1, n = 0, foreign = -1;
    DIR *d = opendir(output_dir);
    if (d == NULL) return errno == ENOENT || errno == ENOTDIR ? OK : error_set(err, status_of_errno(errno), "%s: %s", output_dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        int64_t step = claim_step(e->d_name);
        if (step < 0) continue;
        n++;
        if (first < 0 || step < first) first = step;
        if (step <= from || (foreign >= 0 && step > foreign)) continue;
        char *path = xasprintf("%s/%s", output_dir, e->d_name);
        if (!claim_owns(path, run)) foreign = step;
        free(path);
    }
    (void)closedir(d);
    if (n == 0) return OK;
    if (!inside && !again)
        return error_set(err, E_CONFLICT, "%s already holds checkpoint-%" PRId64 "%s of another run: choose another output_dir, or go on from a checkpoint there with "
                         "resume_from_checkpoint", output_dir, first, n > 1 ? " and others" : "");
    if (foreign >= 0)
        return error_set(err, E_CONFLICT, "%s/checkpoint-%" PRId64 " was not written by the run that goes on here, and would be replaced: move it away, or choose another "
                         "output_dir", output_dir, foreign);
    return OK;
}

static int busy(const char *output_dir, struct error *err)
{
    return error_set(err, E_CONFLICT, "another job is writing to %s: choose another output_dir, or wait for it to end", output_dir);
}

int claim_check(const char *output_dir, const char *resume, struct error *err)
{
    char run[RUN_ID] = "", *path = xasprintf("%s/.ringmaster/lock", output_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), rc = OK;
    bool again = false;
    if (fd >= 0) {
        if (flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK) rc = busy(output_dir, err);       /* shared: two looks do not meet */
        else again = read_lock(fd, run);
    }
    if (rc == OK && resume) {
        char of[RUN_ID];
        read_run(resume, of);
        if (of[0]) memcpy(run, of, RUN_ID);
    }
    if (rc == OK) rc = check_room(output_dir, resume, again, run, err);
    if (fd >= 0) (void)close(fd);
    free(path);
    return rc;
}

static int lock(struct claim *c, const char *output_dir, struct error *err)
{
    for (int waited = 0;; waited += 50) {
        if (flock(c->fd, LOCK_EX | LOCK_NB) == 0) {
            c->locked = true;
            return OK;
        }
        if (errno != EWOULDBLOCK) return OK;            /* no locks here */
        if (waited >= PATIENCE_MS) return busy(output_dir, err);
        (void)nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    }
}

int claim_take(struct claim *c, const char *output_dir, const char *resume, struct error *err)
{
    unsigned char random[RUN_ID / 2];
    char *dir = xasprintf("%s/.ringmaster", output_dir), *path = xasprintf("%s/lock", dir);
    *c = (struct claim){ .fd = -1 };
    int rc = make_dirs(dir, err);
    if (rc == OK && (c->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644)) < 0)
        rc = error_set(err, status_of_errno(errno), "%s: %s", path, strerror(errno));
    if (rc == OK) rc = lock(c, output_dir, err);
    if (rc == OK) {
        bool again = read_lock(c->fd, c->run);
        char of[RUN_ID] = "";
        if (resume) read_run(resume, of);
        if (of[0]) memcpy(c->run, of, RUN_ID);
        rc = check_room(output_dir, resume, again, c->run, err);
    }
    if (rc == OK && c->run[0] == '\0') {
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) abort();
        for (size_t i = 0; i < sizeof random; i++) (void)snprintf(c->run + 2 * i, 3, "%02x", random[i]);
    }
    if (rc == OK) write_lock(c->fd, c->run);
    else claim_release(c);
    free(path);
    free(dir);
    return rc;
}

void claim_release(struct claim *c)
{
    if (c->fd >= 0) (void)close(c->fd);
    *c = (struct claim){ .fd = -1 };
}
