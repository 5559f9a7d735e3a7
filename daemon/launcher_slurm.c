/* launcher_slurm.c - keepers inside Slurm batch jobs: submitted with sbatch, watched with squeue, reached through files.
 *
 * The attempt is in the store before sbatch runs, its job's name and comment hold the nonce, and the number goes to the store when sbatch has
 * answered. A daemon that died in between looks for the name before it submits again; should both submissions come through, the claim in the
 * script lets one run. How an attempt ended is in its exit record, however Slurm calls it. Slurm is believed in one thing: that a job is over
 * and left no record. Not being able to ask is never an end: then the job's state is unknown, and that is said.
 *
 * The way to the keeper (keeper/mailbox.c): state.json and the spool are read, orders.json is written, on a thread of libuv's pool, for a file
 * system on the network may take its time. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/command.h"
#include "daemon/daemon.h"
#include "daemon/launcher.h"
#include "daemon/slurm.h"

enum {
    MAIL_MS = 500, CHUNK = 1 << 20, STATE_MAX = 4 << 20,
    ACK_EVERY_MS = 10000, SUBMIT_AGAIN_MS = 5000, CANCEL_AGAIN_MS = 5000,
    ABSENT_TIMES = 3,           /* answers of squeue without a job before sacct is asked */
    LOST_FACTOR = 4             /* times slurm_settle_ms: silence after which a job that Slurm does not know is lost */
};

/* One look into the attempt's folder; belongs to the thread while `busy`. */
struct mail {
    uv_work_t work;
    bool busy;
    struct place *p;
    char *dir, *orders;         /* orders: text to write, or NULL */
    bool read_spool, same_file, exit_there, orders_written;
    dev_t dev; ino_t ino;
    int64_t offset;
    char *buf, *state;
    size_t n, n_state;
};

struct place {
    struct attempt *a;          /* NULL: let go; freed when nothing is under way */
    struct mail mail;
    struct command *sbatch, *scancel, *sacct;
    int64_t id, acct_id;        /* of the batch job; 0: none known. acct_id: that sacct is asked about */
    char name[64], comment[80];
    bool searched;              /* squeue was asked for the name since this daemon started, or there is nothing to find */
    bool ran;                   /* was seen running */
    bool again;                 /* was queued anew after it ran: somebody requeued it */
    const struct slurm_state *state;
    char why[80], trouble[300];
    int absent;                 /* clean answers without it in a row */
    bool forgotten;             /* neither squeue nor sacct knows it */
    int64_t submit_ms, sent_ms, cancel_ms, acct_ms, mail_ms, acked_ms, ended_ms, heard_ms;      /* mono; heard: the state file last changed */
    int64_t beat, since_ms;     /* since: wall clock of the attempt's making */
    struct line_reader reader;
    int64_t serial, ack, checkpoints;
    char stop_mode[16], stop_reason[64];
    bool orders_new;
};

static struct {                 /* one question for all our jobs */
    struct command *squeue;
    int64_t next_ms, began_ms, failing_ms;
    char trouble[200];
    int works;                  /* mails under way */
} slurm;

static char *const no_env[] = { NULL };

/* NULL: not ours, or it was never made. */
static struct place *place_of(const struct attempt *a) { return a && a->by == &launcher_slurm ? a->place : NULL; }

static void free_place(struct place *p)
{
    if (p->a || p->mail.busy) return;
    line_reader_release(&p->reader);
    free(p->mail.dir);
    free(p->mail.orders);
    free(p->mail.buf);
    free(p->mail.state);
    free(p);
}

/* --- the environment of Slurm's programs: ours, without what is the daemon's alone, what an enclosing batch job left, and filters (SQUEUE_USERS …)
 * that would make a job of ours look gone --- */

static char **environment(void)
{
    static const char *const dropped[] = { "SLURM_", "SQUEUE_", "SACCT_", "SCANCEL_", "CUDA_VISIBLE_DEVICES=", NULL };
    size_t n;
    return command_env(dropped, 0, &n);
}

static struct command *run(struct daemon *d, char *const argv[], command_done *done, void *arg)
{
    char **env = environment(), *path = command_find(argv[0]);
    char *missing[] = { path ? path : argv[0], NULL };
    struct command *c;
    if (path == NULL) c = command_run(d->loop, missing, no_env, -1, d->set.slurm_timeout_ms, done, arg);
    else {
        size_t n = 0;
        while (argv[n]) n++;
        char **v = xcalloc(n + 1, sizeof *v);
        memcpy(v, argv, n * sizeof *v);
        v[0] = path;
        c = command_run(d->loop, v, env, -1, d->set.slurm_timeout_ms, done, arg);
        free(v);
    }
    free(env);
    free(path);
    return c;
}

static void why_not(char out[200], const struct command_end *e, const char *program)
{
    if (e->late) (void)snprintf(out, 200, "%s did not answer in time", program);
    else if (e->too_long) (void)snprintf(out, 200, "%s wrote more than %d bytes", program, COMMAND_OUT_MAX);
    else (void)snprintf(out, 200, "%s: %.150s", program, *e->err ? e->err : "no explanation");
    for (char *p = out; *p; p++) if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = ' ';
    utf8_scrub(out);                    /* a character may be cut in two */
}

/* --- the mailbox --- */

static void mail_work(uv_work_t *w)
{
    struct mail *m = w->data;
    char *path = xasprintf("%s/orders.json", m->dir);
    struct stat st;
    if (m->orders) m->orders_written = file_write(path, m->orders, strlen(m->orders), NULL) == OK;
    free(path);
    path = xasprintf("%s/state.json", m->dir);
    m->n = m->n_state = 0;
    free(m->state);
    m->state = NULL;
    if (stat(path, &st) == 0 && file_read(path, STATE_MAX, &m->state, &m->n_state, NULL) != OK) m->state = NULL;
    free(path);
    path = xasprintf("%s/spool", m->dir);
    int fd = m->read_spool ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    m->same_file = true;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        if (st.st_ino != m->ino || st.st_dev != m->dev || st.st_size < m->offset) {     /* first look, or the keeper dropped what is acknowledged */
            m->same_file = false;
            m->ino = st.st_ino;
            m->dev = st.st_dev;
            m->offset = 0;
        }
        if (m->buf == NULL) m->buf = xmalloc(CHUNK);
        ssize_t got = pread(fd, m->buf, CHUNK, m->offset);
        if (got > 0) { m->n = (size_t)got; m->offset += got; }
    }
    if (fd >= 0) (void)close(fd);
    free(path);
    path = xasprintf("%s/exit.json", m->dir);
    m->exit_there = access(path, F_OK) == 0;
    free(path);
}

static void on_line(void *arg, cJSON *msg)
{
    const char *t = json_str(msg, "t");
    if (t && strcmp(t, "record") == 0) attempt_hears(arg, msg);
}

static void take_id(struct place *p, int64_t id)
{
    struct attempt *a = p->a;
    if (id == p->id) return;
    p->id = id;
    p->state = NULL;                    /* what was heard is of the other batch job */
    p->why[0] = '\0';
    p->ended_ms = p->absent = 0;
    p->forgotten = false;
    if (store_exec(a->d->store, NULL, "UPDATE attempts SET slurm_job=? WHERE job=? AND n=?", "iii", id, a->j->row.id, a->n) != OK)
        log_line("warning", "j%lld: its Slurm job %lld is not stored yet; it is found by its name", (long long)a->j->row.id, (long long)id);
}

static void take_state(struct place *p, const char *text, size_t n)
{
    static const struct json_limits limits = { STATE_MAX, 8, 200000 };
    struct attempt *a = p->a;
    cJSON *m = NULL;
    int64_t beat = 0, started = 0, id = 0, taken = 0;
    const char *nonce, *batch;
    if (json_parse(&m, text, n, &limits, NULL) != OK || (nonce = json_str(m, "nonce")) == NULL || strcmp(nonce, a->nonce) != 0 || !json_int(m, "beat", &beat)) {
        cJSON_Delete(m);        /* half of one over a slow file system, or somebody else's */
        return;
    }
    if (json_int(m, "orders", &taken) && taken > p->serial && taken < INT64_C(1) << 52) p->serial = taken;      /* of a daemon before us whose clock was ahead */
    bool news = beat != p->beat;
    if (news) p->heard_ms = mono_ms();
    p->beat = beat;
    batch = json_str(m, "slurm_job");
    if (batch && slurm_parse_id(batch, strlen(batch), &id)) take_id(p, id);     /* the one that runs, should there be two */
    if (!a->greeted) {
        int64_t now = wall_ms();
        if (json_int(m, "started_ms", &started) && started <= now && started >= p->since_ms) a->begun_mono_ms = mono_ms() - (now - started);
        p->ran = true;
        attempt_hears(a, m);
    }
    if (a->greeted && news) {           /* the same words again are no sign of life */
        cJSON_DeleteItemFromObjectCaseSensitive(m, "t");
        json_add_str(m, "t", "beats");
        attempt_hears(a, m);
    }
    cJSON_Delete(m);
}

static char *orders(struct place *p)
{
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "nonce", p->a->nonce);
    json_add_int(o, "serial", p->serial);
    json_add_int(o, "ack", p->ack);
    json_add_int(o, "checkpoints", p->checkpoints);
    if (p->stop_mode[0]) {
        cJSON *s = cJSON_AddObjectToObject(o, "stop");
        json_add_str(s, "mode", p->stop_mode);
        json_add_str(s, "reason", p->stop_reason);
    }
    char *text = json_line(o);
    cJSON_Delete(o);
    return text;
}

static void mail_done(uv_work_t *w, int status)
{
    struct mail *m = w->data;
    struct place *p = m->p;
    struct attempt *a = p->a;
    m->busy = false;
    slurm.works--;
    if (m->orders && (!m->orders_written || status != 0)) p->orders_new = true;
    free(m->orders);
    m->orders = NULL;
    if (a == NULL) { free_place(p); return; }
    if (status != 0) return;
    if (m->state) take_state(p, m->state, m->n_state);
    if (!m->same_file) line_reader_release(&p->reader);         /* the beginning of a line of the file before */
    if (m->n > 0) {
        int64_t before = p->reader.oversized + p->reader.malformed;
        line_reader_feed(&p->reader, m->buf, m->n, on_line, a);
        attempt_bad_frames(a, p->reader.oversized + p->reader.malformed - before);
    }
    p->mail_ms = m->n == CHUNK ? 0 : mono_ms() + MAIL_MS;       /* counted from here: on a slow file system judge() must find a moment without one under way */
    if (m->exit_there && a->exit == NULL && attempt_read_exit(a)) attempt_read_spool(a);
}

static void mail(struct place *p)
{
    struct attempt *a = p->a;
    struct mail *m = &p->mail;
    int64_t now = mono_ms();
    if (m->busy || (now < p->mail_ms && !p->orders_new)) return;
    p->mail_ms = now + MAIL_MS;
    m->read_spool = a->greeted && a->n_q <= PENDING_MAX;
    if (p->orders_new) m->orders = orders(p);
    p->orders_new = false;
    m->work.data = m;
    m->busy = uv_queue_work(a->d->loop, &m->work, mail_work, mail_done) == 0;
    slurm.works += m->busy;
}

/* The next look writes the orders as they are then. */
static void order(struct place *p)
{
    int64_t now = wall_ms();
    p->serial = now > p->serial ? now : p->serial + 1;      /* rises over restarts of the daemon too */
    p->orders_new = true;
}

static void tell(struct attempt *a, cJSON *msg)
{
    struct place *p = a->place;
    const char *t = json_str(msg, "t"), *mode = json_str(msg, "mode"), *reason = json_str(msg, "reason");
    if (p && t) {
        if (strcmp(t, "ack") == 0) (void)json_int(msg, "seq", &p->ack);
        else if (strcmp(t, "stop") == 0 && mode) {
            (void)snprintf(p->stop_mode, sizeof p->stop_mode, "%s", mode);
            (void)snprintf(p->stop_reason, sizeof p->stop_reason, "%s", reason ? reason : "");
        }
        /* an acknowledgement alone can wait for a spool that is worth cutting: each order is a file written and fsynced */
        if (strcmp(t, "ack") != 0 || mono_ms() - p->acked_ms > ACK_EVERY_MS) order(p);
        if (strcmp(t, "ack") == 0 && p->orders_new) p->acked_ms = mono_ms();
        if (strcmp(t, "checkpoint") == 0) p->checkpoints = p->serial;      /* the keeper saves when it rises, whichever daemon asked before */
    }
    cJSON_Delete(msg);
}

/* --- what Slurm says --- */

static void note(struct place *p, const struct slurm_state *s, const char *why)
{
    struct attempt *a = p->a;
    if (s->phase == SLURM_PENDING && p->ran) p->again = true;
    if (s->phase == SLURM_ALIVE) p->ran = true;
    if (s->phase == SLURM_ENDED && p->ended_ms == 0) p->ended_ms = mono_ms();
    if (s->phase != SLURM_ENDED) p->ended_ms = 0;
    if (s != p->state) log_line("info", "j%lld: Slurm job %lld is %s%s%s", (long long)a->j->row.id, (long long)p->id, s->name, *why ? ": " : "", why);
    p->state = s;
    (void)snprintf(p->why, sizeof p->why, "%s", strcmp(why, "None") == 0 ? "" : why);
}

static void scancel(struct place *p, int64_t id);

static void on_queue_line(void *arg, const struct slurm_line *l)
{
    struct daemon *d = arg;
    for (struct job *j = d->jobs; j; j = j->next) {
        struct place *p = place_of(j->attempt);
        if (p == NULL || strcmp(p->comment, l->comment) != 0) continue;
        if (p->id == 0) {
            take_id(p, l->id);
            log_line("info", "j%lld: found its Slurm job %lld by its name", (long long)j->row.id, (long long)l->id);
        }
        if (l->id == p->id) {
            p->absent = -1;             /* seen: counted up below to 0 */
            p->forgotten = false;
            note(p, l->state, l->why);
        } else if (l->state->phase == SLURM_PENDING) scancel(p, l->id);     /* submitted twice: the answer to the first was lost */
        return;
    }
}

static void unreachable(const char *why)
{
    if (slurm.failing_ms == 0) {
        slurm.failing_ms = mono_ms();
        log_line("warning", "Slurm does not answer, the state of its jobs is unknown: %s", why);
    }
    (void)snprintf(slurm.trouble, sizeof slurm.trouble, "%s", why);
}

static void on_queue(void *arg, const struct command_end *e)
{
    struct daemon *d = arg;
    char why[200];
    slurm.squeue = NULL;
    if (e->late || e->too_long || e->code != 0 || e->signal != 0) {
        why_not(why, e, "squeue");
        unreachable(why);
        return;
    }
    int bad = slurm_parse_queue(e->out, e->n_out, on_queue_line, d);
    if (bad > 0) {                      /* what could be read was taken; what is missing may be among the rest */
        (void)snprintf(why, sizeof why, "squeue wrote %d lines that make no sense", bad);
        unreachable(why);
    } else if (slurm.failing_ms) {
        log_line("info", "Slurm answers again after %.0f s", (double)(mono_ms() - slurm.failing_ms) / 1000);
        slurm.failing_ms = 0;
    }
    for (struct job *j = d->jobs; j; j = j->next) {
        struct place *p = place_of(j->attempt);
        if (p == NULL) continue;
        if (bad == 0 && p->sent_ms < slurm.began_ms) p->searched = true;    /* an answer to a question from before sbatch ended finds nothing it sent */
        if (p->absent < 0) p->absent = 0;
        else if (bad == 0 && p->id && p->sent_ms < slurm.began_ms) p->absent++;
    }
}

static void poll_queue(struct daemon *d)
{
    int64_t now = mono_ms();
    if (slurm.squeue || now < slurm.next_ms) return;
    char *names = xstrdup("--name=");       /* slurm_jobs is bounded so that all fit into one argument, which may have 128 KiB */
    int n = 0;
    for (struct job *j = d->jobs; j; j = j->next) {
        struct place *p = place_of(j->attempt);
        if (p == NULL) continue;
        char *longer = xasprintf("%s%s%s", names, n++ ? "," : "", p->name);
        free(names);
        names = longer;
    }
    char *argv[] = { "squeue", "--noheader", "--states=all", names, SLURM_QUEUE_FORMAT, NULL };
    slurm.next_ms = now + d->set.slurm_poll_ms;
    slurm.began_ms = now;
    if (n > 0) slurm.squeue = run(d, argv, on_queue, d);
    free(names);
}

static void on_acct(void *arg, const struct command_end *e)
{
    struct place *p = arg;
    char code[16];
    p->sacct = NULL;
    if (p->acct_id != p->id) return;
    const struct slurm_state *s = !e->late && !e->too_long && e->code == 0 && e->signal == 0 ? slurm_parse_acct(e->out, e->n_out, p->id, p->name, code) : NULL;
    if (s) note(p, s, code);
    else p->forgotten = true;           /* squeue does not list it, and there is no accounting that knows it */
}

static void ask_acct(struct place *p)
{
    struct daemon *d = p->a->d;
    char jobs[40];
    int64_t now = mono_ms();
    if (p->sacct || now < p->acct_ms) return;
    p->acct_ms = now + d->set.slurm_settle_ms;
    p->acct_id = p->id;
    (void)snprintf(jobs, sizeof jobs, "--jobs=%lld", (long long)p->id);
    char *argv[] = { "sacct", "--noheader", "--parsable2", "--allocations", jobs, SLURM_ACCT_FORMAT, NULL };
    p->sacct = run(d, argv, on_acct, p);
}

static void on_cancelled(void *arg, const struct command_end *e)
{
    struct place *p = arg;
    char why[200];
    p->scancel = NULL;
    slurm.next_ms = 0;                  /* look at once what became of it */
    if (e->code == 0 && !e->late) return;
    why_not(why, e, "scancel");
    log_line("warning", "j%lld: %s", (long long)p->a->j->row.id, why);
}

static void scancel(struct place *p, int64_t id)
{
    char text[24];
    int64_t now = mono_ms();
    if (p->scancel || id == 0 || now < p->cancel_ms) return;
    p->cancel_ms = now + CANCEL_AGAIN_MS;
    (void)snprintf(text, sizeof text, "%lld", (long long)id);
    char *argv[] = { "scancel", text, NULL };
    p->scancel = run(p->a->d, argv, on_cancelled, p);
}

/* --- submitting --- */

static void on_submitted(void *arg, const struct command_end *e)
{
    struct place *p = arg;
    struct attempt *a = p->a;
    char why[200];
    int64_t id;
    p->sbatch = NULL;
    p->sent_ms = mono_ms();
    slurm.next_ms = 0;
    if (!e->late && e->code == 0 && e->signal == 0 && slurm_parse_id(e->out, e->n_out, &id)) {
        failpoint("after_sbatch");
        take_id(p, id);
        p->trouble[0] = '\0';
        log_line("info", "j%lld: attempt %lld is Slurm job %lld", (long long)a->j->row.id, (long long)a->n, (long long)id);
        return;
    }
    if (!e->late && e->code == 0 && e->signal == 0) (void)snprintf(why, sizeof why, "sbatch answered something that is no job number");
    else why_not(why, e, "sbatch");
    (void)snprintf(p->trouble, sizeof p->trouble, "%s", why);
    if (!e->late && e->signal == 0 && e->code != 0 && !slurm_unreachable(e->err)) {
        a->exit = attempt_verdict(a, "failed", "slurm_refused", "%.300s", why);
        return;
    }
    p->searched = false;                /* it may have come through all the same: looked for before it is sent again */
    p->submit_ms = mono_ms() + SUBMIT_AGAIN_MS;
    log_line("warning", "j%lld: %s; tried again", (long long)a->j->row.id, why);
}

static void submit(struct place *p)
{
    struct attempt *a = p->a;
    struct daemon *d = a->d;
    struct error err;
    char job[24];
    (void)snprintf(job, sizeof job, "j%lld", (long long)a->j->row.id);
    struct slurm_ask q = { a->dir, p->name, p->comment, a->nonce, d->keeper, *d->set.worker ? d->worker : NULL, job, a->n };
    char *path = xasprintf("%s/job.sh", a->dir), *text = slurm_script(&q), **argv = slurm_args(&q, &a->j->spec, "sbatch", path);
    int rc = file_write(path, text, strlen(text), &err);
    if (rc == OK) p->sbatch = run(d, argv, on_submitted, p);
    else {
        (void)snprintf(p->trouble, sizeof p->trouble, "%.250s", err.text);
        utf8_scrub(p->trouble);
        p->submit_ms = mono_ms() + SUBMIT_AGAIN_MS;
    }
    slurm_args_free(argv);
    free(text);
    free(path);
}

static struct place *place_new(struct attempt *a)
{
    struct place *p = xcalloc(1, sizeof *p);
    p->a = a;
    p->mail.p = p;
    p->mail.dir = xstrdup(a->dir);
    (void)snprintf(p->name, sizeof p->name, "rm-j%lld-a%lld-%.8s", (long long)a->j->row.id, (long long)a->n, a->nonce);
    (void)snprintf(p->comment, sizeof p->comment, "j%lld.a%lld.%s", (long long)a->j->row.id, (long long)a->n, a->nonce);
    a->place = p;
    return p;
}

static int start(struct attempt *a, struct error *err)
{
    if (a->d->keeper == NULL) return error_set(err, E_NOTFOUND, "ringmaster-keeper was not found beside ringmasterd; --keeper names it");
    struct place *p = place_new(a);
    p->searched = true;
    p->since_ms = wall_ms();
    return OK;                          /* the first look submits it */
}

static void adopt(struct attempt *a, const cJSON *row)
{
    struct place *p = place_new(a);
    (void)json_int(row, "slurm_job", &p->id);
    (void)json_int(row, "started_ms", &p->since_ms);
    p->heard_ms = mono_ms();
    a->settled = true;                  /* its own daemon is Slurm: readiness does not wait for that to answer */
}

/* --- while it lives --- */

/* An administrator's requeue: seen in squeue, or told by the script when it was run again. */
static void look_for_requeue(struct place *p)
{
    char *path = xasprintf("%s/requeued", p->a->dir);
    p->again |= access(path, F_OK) == 0;
    free(path);
}

static const char *ended_as(const struct place *p) { return p->again ? "REQUEUED" : p->state ? p->state->name : "unknown to Slurm"; }

/* The attempt is over for Slurm and left no record. */
static void end_without_record(struct place *p, const char *reason)
{
    struct attempt *a = p->a;
    enum job_want want = a->j->row.want;
    char detail[300];
    bool seen = a->greeted || a->last_seq > 0;
    look_for_requeue(p);
    if (p->again) reason = "requeued";
    (void)snprintf(detail, sizeof detail, "Slurm job %lld was %s%s%s; %s", (long long)p->id, ended_as(p), *p->why ? ": " : "", p->why,
                   seen ? "its keeper left no exit record" : p->ran ? "its keeper never reported: is the folder of this coordinator's jobs on a file system that the nodes share?" : "it never ran");
    if (want == WANT_PAUSE || want == WANT_REQUEUE) a->exit = attempt_verdict(a, "paused", "paused", "%s", detail);
    else if (want == WANT_CANCEL || want == WANT_KILL) a->exit = attempt_verdict(a, "cancelled", seen ? "keeper_hung" : "cancelled", "%s", detail);
    else a->exit = attempt_verdict(a, strcmp(reason, "cancelled_outside") == 0 ? "cancelled" : "failed", reason, "%s", detail);
    attempt_read_spool(a);
    (void)snprintf(p->stop_mode, sizeof p->stop_mode, "kill");          /* should it live all the same, cut off with its node: not beside another attempt */
    (void)snprintf(p->stop_reason, sizeof p->stop_reason, "the coordinator gave this attempt up");
    order(p);
    mail(p);
}

static void judge(struct place *p)
{
    struct attempt *a = p->a;
    int64_t now = mono_ms(), settle = a->d->set.slurm_settle_ms;
    if (p->mail.busy) return;           /* what it brings may say otherwise; and the last order must get out */
    bool ended = p->state && p->state->phase == SLURM_ENDED && p->ended_ms;
    bool silent = now - p->heard_ms > (p->ran || a->greeted ? settle : settle / 4);
    if (p->again && p->state && p->state->phase == SLURM_PENDING) scancel(p, p->id);       /* a second run of one attempt is never wanted; the claim would end it too */
    if (ended && now - p->ended_ms > (p->ran || a->greeted ? settle : settle / 4) && silent) end_without_record(p, p->state->reason);
    else if (!ended && p->absent >= ABSENT_TIMES) {
        ask_acct(p);
        if (p->forgotten && now - p->heard_ms > settle * LOST_FACTOR) end_without_record(p, "lost");
    }
}

static void look(struct attempt *a)
{
    struct place *p = a->place;
    int64_t now = mono_ms();
    enum job_want want = a->j->row.want;
    if (p == NULL) return;
    if (!a->greeted) a->begun_mono_ms = now;        /* waiting in Slurm's queue is not running: no limit, no running time until the keeper says since when */
    mail(p);
    if (a->exit) return;
    poll_queue(a->d);
    if (p->id == 0 && p->sbatch == NULL && p->searched) {
        if (want != WANT_RUN) a->exit = attempt_verdict(a, want == WANT_PAUSE || want == WANT_REQUEUE ? "paused" : "cancelled", want == WANT_PAUSE || want == WANT_REQUEUE ? "paused" : "", "%s", "it was not submitted to Slurm yet");
        else if (now >= p->submit_ms) submit(p);
    }
    if (p->id == 0 || a->exit) return;
    if (want != WANT_RUN && !p->ran && !a->greeted) scancel(p, p->id);
    judge(p);
}

static void late(struct attempt *a)
{
    if (a->place) scancel(a->place, ((struct place *)a->place)->id);      /* its end is seen in squeue */
}

static bool override_fits(const struct attempt *a)
{
    const char *state = json_str(a->exit, "state"), *reason = json_str(a->exit, "reason");
    return a->j->row.want == WANT_RUN && state && reason && (strcmp(state, "cancelled") == 0 || strcmp(reason, "rank_died") == 0) && strcmp(reason, "cancelled_outside") != 0;
}

/* A record that says the ranks were told to end, when nobody here did, leaves it to Slurm who it was. */
static void explain(struct place *p)
{
    struct attempt *a = p->a;
    look_for_requeue(p);
    const char *reason = p->again ? "requeued" : p->state && p->state->phase == SLURM_ENDED && p->state->outside ? p->state->reason : NULL;
    char text[120];
    if (reason == NULL || !override_fits(a)) return;
    (void)snprintf(text, sizeof text, "Slurm job %lld was %s", (long long)p->id, ended_as(p));
    cJSON_DeleteItemFromObjectCaseSensitive(a->exit, "state");
    cJSON_DeleteItemFromObjectCaseSensitive(a->exit, "reason");
    cJSON_DeleteItemFromObjectCaseSensitive(a->exit, "detail");
    json_add_str(a->exit, "state", strcmp(reason, "cancelled_outside") == 0 ? "cancelled" : "failed");
    json_add_str(a->exit, "reason", reason);
    json_add_str(a->exit, "detail", text);
}

/* The record was written when no process of the attempt was left. A success needs no more; otherwise the batch job is seen to be over first, for
 * another attempt may follow, and for who ended it. */
static bool empty(struct attempt *a)
{
    struct place *p = a->place;
    const char *state = json_str(a->exit, "state");
    int64_t now = mono_ms();
    if (p == NULL || (state && strcmp(state, "succeeded") == 0) || (p->id == 0 && p->searched)) return p == NULL || p->sbatch == NULL;
    poll_queue(a->d);
    bool over = (p->state && p->state->phase == SLURM_ENDED) || p->absent >= ABSENT_TIMES;
    if (a->gone_mono_ms == 0) a->gone_mono_ms = now;
    if (!over && p->again) scancel(p, p->id);
    if (!over && now - a->gone_mono_ms > a->d->set.slurm_settle_ms) scancel(p, p->id);
    if (!over && now - a->gone_mono_ms < 3 * a->d->set.slurm_settle_ms) return false;
    explain(p);
    return true;
}

static void drop(struct attempt *a)
{
    struct place *p = a->place;
    if (p == NULL) return;
    struct command *left[] = { p->sbatch, p->scancel, p->sacct };
    for (size_t i = 0; i < 3; i++) if (left[i]) command_forget(left[i], false);    /* it finishes by itself */
    p->a = NULL;
    a->place = NULL;
    free_place(p);
}

static void more(struct attempt *a) { (void)a; }

bool launcher_slurm_waits(const struct attempt *a, char *text, size_t n)
{
    const struct place *p = place_of(a);
    if (p == NULL || a->greeted || a->j->row.state != JOB_STARTING) return false;
    if (slurm.failing_ms) (void)snprintf(text, n, "Slurm does not answer for %.0f s, the job's state is unknown: %.120s", (double)(mono_ms() - slurm.failing_ms) / 1000, slurm.trouble);
    else if (p->trouble[0]) (void)snprintf(text, n, "%.200s", p->trouble);
    else if (p->id == 0) (void)snprintf(text, n, "it is being submitted to Slurm");
    else (void)snprintf(text, n, "Slurm job %lld is %s%s%s", (long long)p->id, p->state ? p->state->name : "submitted", *p->why ? ": " : "", p->why);
    utf8_scrub(text);
    return true;
}

static void live_json(struct attempt *a, cJSON *o)
{
    struct place *p = a->place;
    if (p == NULL) return;
    cJSON *s = cJSON_AddObjectToObject(o, "slurm");
    json_add_str(s, "job", NULL);
    if (p->id) {
        cJSON_DeleteItemFromObjectCaseSensitive(s, "job");
        json_add_int(s, "job", p->id);
    }
    json_add_str(s, "state", slurm.failing_ms ? "unknown" : p->state ? p->state->name : NULL);
    json_add_str(s, "why", p->why);
    json_add_str(s, "trouble", slurm.failing_ms ? slurm.trouble : p->trouble);
    char text[240];
    if (!launcher_slurm_waits(a, text, sizeof text)) return;
    cJSON *w = cJSON_AddObjectToObject(o, "waiting");
    json_add_str(w, "reason", "slurm");
    json_add_str(w, "text", text);
    json_add_int(w, "position", 0);
}

bool launcher_slurm_there(const char **missing)
{
    static const char *const programs[] = { "sbatch", "squeue", "scancel" };
    for (size_t i = 0; i < 3; i++) {
        char *path = command_find(programs[i]);
        *missing = programs[i];
        if (path == NULL) return false;
        free(path);
    }
    return true;
}

/* Looks into folders that are under way end first, within a second: what they hold is freed in the loop. */
void launcher_slurm_stop(struct daemon *d)
{
    if (slurm.squeue) command_forget(slurm.squeue, true);
    slurm.squeue = NULL;
    for (int i = 0; i < 100 && slurm.works > 0; i++) {
        (void)uv_run(d->loop, UV_RUN_NOWAIT);
        if (slurm.works > 0) (void)usleep(10000);
    }
}

const struct launcher launcher_slurm = { "slurm", false, start, adopt, look, tell, more, late, empty, drop, live_json };
