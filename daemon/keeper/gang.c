/* gang.c - the ranks of one attempt: spawned together, judged together, ended together.
 *
 *   RUNNING --stop, verdict or a rank's bad end--> ENDING --every rank reaped--> SWEEPING --process tree seen empty--> PUBLISHING -> ENDED
 *        \--every rank left by itself-------------------------------------------/
 *
 * A rank is spawned through `ringmaster-keeper --exec-rank`, which sets the parent-death signal and execs the worker: whatever
 * kills the keeper kills the ranks. Each rank has its own session, so one kill() reaches what it forked; what left the session is
 * found through /proc, because the keeper is everyone's subreaper.
 * Judging who hangs: a rank that says nothing at all is frozen whole (SIGSTOP, D state); a rank whose heartbeats come while its step
 * stands still is stuck. When one rank is stopped its peers stand still too, waiting for it, so silence is judged first. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/cgroup.h"
#include "daemon/keeper/keeper.h"
#include "daemon/keeper/process.h"

static char chunk[65536];       /* one loop, one reader at a time */

int64_t wall_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int64_t now_ms(const struct keeper *k) { return (int64_t)uv_now(k->loop); }

void keeper_record(struct keeper *k, int rank, cJSON *m)
{
    char *text = json_line(m);
    (void)spool_append(&k->spool, rank, wall_ms(), text, strlen(text), false);
    cJSON_Delete(m);
    free(text);
    server_records(k);
}

void keeper_event(struct keeper *k, const char *level, const char *code, const char *fmt, ...)
{
    char text[900];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)fprintf(stderr, "%s %s: %s\n", level, code, text);
    cJSON *m = cJSON_CreateObject();
    json_add_str(m, "t", "event");
    json_add_str(m, "level", level);
    json_add_str(m, "code", code);
    json_add_str(m, "text", text);
    keeper_record(k, -1, m);
}

/* --- to the ranks --- */

struct sending { uv_write_t w; char *line; };

static void on_sent(uv_write_t *w, int status)
{
    struct sending *s = (struct sending *)w;
    (void)status;               /* a rank that cannot be told is judged by its silence or its exit */
    free(s->line);
    free(s);
}

void gang_send(struct rank *r, cJSON *msg)
{
    size_t n;
    char *line = message_line(msg, &n);
    if (!r->link_open) { free(line); return; }
    struct sending *s = xcalloc(1, sizeof *s);
    s->line = line;
    uv_buf_t b = uv_buf_init(line, (unsigned)n);
    if (uv_write(&s->w, (uv_stream_t *)&r->link, &b, 1, on_sent) < 0) { free(line); free(s); }
}

static cJSON *message_of(const char *t)
{
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "t", t);
    return o;
}

static void signal_rank(struct rank *r, int sig)
{
    if (!r->spawned || r->exited) return;
    if (sig == SIGKILL) r->killed = true;
    (void)kill(-r->process.pid, sig);       /* its session's group … */
    (void)uv_process_kill(&r->process, sig);/* … and itself, had it not yet become leader */
}

static void signal_all(struct keeper *k, int sig)
{
    for (int i = 0; i < k->world; i++) signal_rank(&k->ranks[i], sig);
}

/* The end begins: `deadline` ms until SIGKILL, `term` ms until SIGTERM (0: no SIGTERM). An earlier deadline is never put off. */
static void begin_end(struct keeper *k, int64_t deadline, int64_t term)
{
    int64_t now = now_ms(k);
    if (k->phase == KEEPER_RUNNING) k->phase = KEEPER_ENDING;
    if (k->deadline_ms == 0 || now + deadline < k->deadline_ms) k->deadline_ms = now + deadline;
    if (term > 0 && k->term_ms == 0) k->term_ms = now + term;
}

void gang_stop(struct keeper *k, const char *mode, const char *reason)
{
    bool kill_now = strcmp(mode, "kill") == 0, harder = kill_now || (strcmp(mode, "now") == 0 && strcmp(k->stop_mode, "checkpoint") == 0);
    if (k->phase > KEEPER_ENDING || (k->stop_mode[0] && !harder)) return;
    if (k->stop_mode[0] == '\0') (void)snprintf(k->stop_reason, sizeof k->stop_reason, "%s", reason && *reason ? reason : "cancelled");
    (void)snprintf(k->stop_mode, sizeof k->stop_mode, "%s", kill_now ? "kill" : strcmp(mode, "now") == 0 ? "now" : "checkpoint");
    keeper_event(k, "info", "stop", "asked to stop (%s, %s)", k->stop_mode, k->stop_reason);
    begin_end(k, kill_now ? 0 : k->spec.grace_ms, 0);
    for (int i = 0; i < k->world && !kill_now; i++) {
        cJSON *m = message_of("stop");
        json_add_str(m, "mode", k->stop_mode);
        gang_send(&k->ranks[i], m);
    }
    if (kill_now) signal_all(k, SIGKILL);
}

void gang_checkpoint(struct keeper *k)
{
    for (int i = 0; i < k->world; i++) gang_send(&k->ranks[i], message_of("checkpoint"));
}

/* One rank is lost: the others cannot go on. */
static void end_peers(struct keeper *k, int lost, const char *text)
{
    if (k->phase != KEEPER_RUNNING && k->term_ms != 0) return;
    begin_end(k, k->spec.grace_ms, TERM_MS);
    for (int i = 0; i < k->world; i++) {
        if (i == lost || k->ranks[i].exited) continue;
        cJSON *m = message_of("peer_lost");
        json_add_int(m, "rank", lost);
        json_add_str(m, "text", text);
        gang_send(&k->ranks[i], m);
    }
}

/* --- from the ranks --- */

static void tell_value(void *arg, int rank, const char *key, const char *value)
{
    struct keeper *k = arg;
    cJSON *m = message_of("value");
    json_add_str(m, "key", key);
    json_add_str(m, "value", value);
    gang_send(&k->ranks[rank], m);
}

static void tell_fence(void *arg, int rank, const char *name, const char *unused)
{
    struct keeper *k = arg;
    (void)unused;
    cJSON *m = message_of("fence");
    json_add_str(m, "name", name);
    gang_send(&k->ranks[rank], m);
}

static void give_verdict(struct keeper *k, int rank, const char *reason, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* The keeper's own judgement: recorded once, ends the gang, kills the rank it names. */
static void give_verdict(struct keeper *k, int rank, const char *reason, const char *fmt, ...)
{
    if (k->verdict[0] || k->phase > KEEPER_ENDING) return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(k->verdict_text, sizeof k->verdict_text, fmt, ap);
    va_end(ap);
    (void)snprintf(k->verdict, sizeof k->verdict, "%s", reason);
    k->verdict_rank = rank;
    keeper_event(k, "error", reason, "%s", k->verdict_text);
    char text[100];
    (void)snprintf(text, sizeof text, "rank %d: %s", rank, reason);
    end_peers(k, rank, text);
    if (rank >= 0) signal_rank(&k->ranks[rank], SIGKILL);
}

/* The very bytes of the rank's last figures again: a repeat that a torn write or a confused rank sends, never news. */
static bool repeats(struct rank *r)
{
    uint64_t h = 0xcbf29ce484222325u;       /* FNV-1a */
    for (size_t i = 0; i < r->reader.line_len; i++) h = (h ^ (unsigned char)r->reader.line[i]) * 0x100000001b3u;
    bool same = h == r->last_line_hash && r->reader.line_len == r->last_line_len;
    r->last_line_hash = h;
    r->last_line_len = r->reader.line_len;
    return same;
}

static void take_metrics(struct rank *r, const cJSON *m, int64_t step)
{
    struct keeper *k = r->k;
    if (step < r->last_step) r->backward++;
    else r->last_step = step;
    r->step_s += json_num(m, "step_s", 0);
    r->exposed_s += json_num(m, "comm_exposed_s", 0);
    r->sent_bytes += json_num(m, "sent_bytes", 0);
    double peak = json_num(m, "peak_bytes", 0);
    if (peak > r->peak_bytes) r->peak_bytes = peak;
    if (step > k->last_step) k->last_step = step;
    double loss = json_num(m, "loss", 0), tokens = json_num(m, "tokens", 0);
    if (json_get(m, "loss") && !cJSON_IsNull(json_get(m, "loss"))) {
        if (!k->have_first_loss) k->first_loss = loss;
        k->have_first_loss = true;
        k->loss = loss;
        k->have_loss = true;
    }
    if (r->index == 0 && tokens > 0) {
        k->tokens += tokens;
        k->tokens_s += json_num(m, "step_s", 0);
    }
}

static void take_done(struct rank *r, const cJSON *m)
{
    struct keeper *k = r->k;
    int64_t step;
    double v;
    r->done = true;
    r->done_ms = now_ms(k);
    if (json_int(m, "step", &step)) {
        if (step > r->last_step) r->last_step = step;
        if (step > k->last_step) k->last_step = step;
    }
    if (json_number(json_get(m, "sent_bytes"), &v)) r->sent_bytes = v;
    if (json_number(json_get(m, "peak_bytes"), &v) && v > r->peak_bytes) r->peak_bytes = v;
    if (r->index != 0) return;
    const char *detail = json_str(m, "detail");
    if (detail) (void)snprintf(k->done_detail, sizeof k->done_detail, "%s", detail);
    if (json_number(json_get(m, "loss"), &v)) { k->loss = v; k->have_loss = true; }
    if (json_number(json_get(m, "tokens_per_s"), &v)) { k->tokens_per_s = v; k->have_tokens_per_s = true; }
    if (json_number(json_get(m, "comm_share"), &v)) { k->comm_share = v; k->have_comm_share = true; }
}

static void take_beat(struct rank *r, const cJSON *m)
{
    int64_t step = r->step, ticks = r->ticks;
    const char *phase = json_str(m, "phase");
    (void)json_int(m, "step", &step);
    (void)json_int(m, "ticks", &ticks);
    if (step != r->step || ticks != r->ticks || (phase && strncmp(phase, r->phase, sizeof r->phase - 1) != 0)) r->moved_ms = r->heard_ms;
    r->step = step;
    r->ticks = ticks;
    if (phase) (void)snprintf(r->phase, sizeof r->phase, "%s", phase);
}

static void take_hello(struct rank *r, const cJSON *m)
{
    int64_t protocol = 0, rank = -1;
    (void)json_int(m, "protocol", &protocol);
    (void)json_int(m, "rank", &rank);
    r->hello = true;
    if (protocol != MESSAGE_PROTOCOL)
        give_verdict(r->k, r->index, "internal", "rank %d speaks protocol %lld, this keeper %d: worker and keeper are of different versions",
                     r->index, (long long)protocol, MESSAGE_PROTOCOL);
    else if (rank != r->index) give_verdict(r->k, r->index, "internal", "rank %d calls itself %lld", r->index, (long long)rank);
}

static void on_message(void *arg, cJSON *m)
{
    struct rank *r = arg;
    struct keeper *k = r->k;
    struct error err;
    const char *t = json_str(m, "t"), *key = json_str(m, "key"), *value = json_str(m, "value"), *name = json_str(m, "name"), *s;
    int64_t step = 0;
    int rc = OK;
    bool metrics = false;
    r->heard_ms = now_ms(k);
    if (t == NULL) { r->unknown++; return; }
    if (strcmp(t, "beat") == 0) { take_beat(r, m); return; }
    r->moved_ms = r->heard_ms;      /* anything else is progress */
    if (strcmp(t, "put") == 0 && key && value) rc = rendezvous_put(&k->rendezvous, key, value, tell_value, k, &err);
    else if (strcmp(t, "get") == 0 && key) rc = rendezvous_get(&k->rendezvous, r->index, key, tell_value, k, &err);
    else if (strcmp(t, "fence") == 0 && name) rc = rendezvous_fence(&k->rendezvous, r->index, name, tell_fence, k, &err);
    else {
        if (strcmp(t, "hello") == 0) take_hello(r, m);
        else if (strcmp(t, "ready") == 0) r->ready = true;
        else if (strcmp(t, "metrics") == 0) {
            if (!json_int(m, "step", &step)) { r->unknown++; return; }
            if (repeats(r)) { r->repeated++; return; }
            take_metrics(r, m, step);
            metrics = true;
        } else if (strcmp(t, "checkpoint") == 0) {
            if (json_int(m, "step", &step) && (s = json_str(m, "path")) != NULL && (k->checkpoint == NULL || step >= k->checkpoint_step)) {
                char *path = xstrdup(s);
                free(k->checkpoint);
                k->checkpoint = path;
                k->checkpoint_step = step;
            }
        } else if (strcmp(t, "error") == 0) {
            if (r->error_text[0] == '\0') {
                (void)snprintf(r->error_code, sizeof r->error_code, "%s", (s = json_str(m, "code")) ? s : "internal");
                (void)snprintf(r->error_text, sizeof r->error_text, "%s", (s = json_str(m, "text")) ? s : "");
            }
        } else if (strcmp(t, "done") == 0) take_done(r, m);
        else if (strcmp(t, "event") != 0) { r->unknown++; return; }
        if (r->reader.line_len > MESSAGE_MAX - 256) { r->reader.oversized++; return; }    /* its record would not fit a line */
        (void)spool_append(&k->spool, r->index, wall_ms(), r->reader.line, r->reader.line_len, metrics);
    }
    if (rc != OK) keeper_event(k, "error", "rendezvous", "rank %d: %s", r->index, err.text);
}

static void on_alloc(uv_handle_t *h, size_t size, uv_buf_t *b)
{
    (void)h;
    (void)size;
    *b = uv_buf_init(chunk, sizeof chunk);
}

static void on_closed_pipe(uv_handle_t *h) { (void)h; }

static void close_link(struct rank *r)
{
    if (!r->link_open) return;
    r->link_open = false;
    uv_close((uv_handle_t *)&r->link, on_closed_pipe);
}

static void close_out(struct rank *r)
{
    if (!r->out_open) return;
    r->out_open = false;
    uv_close((uv_handle_t *)&r->out, on_closed_pipe);
}

static void on_link(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct rank *r = s->data;
    if (n > 0) {
        line_reader_feed(&r->reader, b->base, (size_t)n, on_message, r);
        server_records(r->k);
    } else if (n < 0) close_link(r);
}

static void on_out(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct rank *r = s->data;
    if (n > 0) ranklog_write(&r->log, b->base, (size_t)n);
    else if (n < 0) close_out(r);
}

/* --- exits --- */

static void on_process_closed(uv_handle_t *h) { (void)h; }

static void on_exit_rank(uv_process_t *p, int64_t code, int sig)
{
    struct rank *r = p->data;
    struct keeper *k = r->k;
    r->exited = true;
    r->code = (int)code;
    r->signal = sig;
    r->exit_order = ++k->exits;
    k->live--;
    (void)kill(-p->pid, SIGKILL);               /* what it leaves in its session has nobody to serve */
    uv_close((uv_handle_t *)p, on_process_closed);
    bool asked = k->stop_mode[0] || k->verdict[0];
    if (code == 0 && sig == 0 && (r->done || asked)) {  /* as it should be */
    } else if (r->killed || (asked && k->phase == KEEPER_ENDING && k->term_ms == INT64_MAX)) {  /* our own doing */
    } else {
        char text[100];
        if (sig) (void)snprintf(text, sizeof text, "rank %d was ended by signal %d (%s)", r->index, sig, strsignal(sig));
        else (void)snprintf(text, sizeof text, "rank %d left with code %d before the training was done", r->index, (int)code);
        keeper_event(k, k->phase == KEEPER_RUNNING ? "error" : "info", "rank_exit", "%s%s%s", text, r->error_text[0] ? ": " : "", r->error_text);
        end_peers(k, r->index, text);
    }
    if (k->live == 0) {
        k->phase = KEEPER_SWEEPING;
        k->phase_ms = now_ms(k);
        (void)uv_timer_start(&k->tick, k->tick.timer_cb, 0, 20);
    }
}

/* --- time passes --- */

static const char *state_text(int pid)
{
    struct process_info p;
    if (!process_info(pid, &p)) return "its state cannot be read";
    switch (p.state) {
    case 'T': case 't': return "it is stopped by a signal (SIGSTOP or a debugger)";
    case 'D': return "it is stuck inside the kernel (disk, network file system or device)";
    case 'Z': return "it is dead and not yet reaped";
    default: return "its process runs, but the thread that sends heartbeats does not";
    }
}

static bool is_stopped(int pid)
{
    struct process_info p;
    return process_info(pid, &p) && (p.state == 'T' || p.state == 't');
}

static void judge(struct keeper *k, int64_t now)
{
    int64_t limit = k->spec.stall_timeout_ms, silence = limit < SILENCE_MS ? limit : SILENCE_MS;
    if (silence < SILENCE_MIN_MS) silence = SILENCE_MIN_MS;
    int64_t newest = 0;         /* until all are ready they wait for whoever works: nobody hangs while one of them moves */
    struct rank *stuck = NULL;
    bool somebody_quiet = false, all_ready = true;
    for (int i = 0; i < k->world; i++) {
        all_ready &= k->ranks[i].ready || k->ranks[i].exited;
        if (!k->ranks[i].exited && k->ranks[i].moved_ms > newest) newest = k->ranks[i].moved_ms;
    }
    for (int i = 0; i < k->world; i++) {
        struct rank *r = &k->ranks[i];
        int64_t quiet = now - r->heard_ms;
        if (r->exited) continue;
        if (!r->hello) {
            if (quiet > silence && is_stopped(r->process.pid))          /* loading may take its time, but this one does nothing */
                give_verdict(k, i, "heartbeat_lost", "rank %d (pid %d) did not report within %.1f s of its start; %s", i, r->process.pid, (double)quiet / 1000, state_text(r->process.pid));
            else if (quiet > START_MS) give_verdict(k, i, "start_timeout", "rank %d (pid %d) did not report within %d s of its start; %s", i, r->process.pid, START_MS / 1000, state_text(r->process.pid));
            continue;
        }
        if (r->done) {
            if (now - r->done_ms > LEAVE_MS) give_verdict(k, i, "stalled", "rank %d (pid %d) said it was done but did not leave within %d s", i, r->process.pid, LEAVE_MS / 1000);
            continue;
        }
        if (quiet > silence) {
            give_verdict(k, i, "heartbeat_lost", "rank %d (pid %d) has sent no heartbeat for %.1f s, at step %lld (%s); %s",
                         i, r->process.pid, (double)quiet / 1000, (long long)r->step, r->phase, state_text(r->process.pid));
            return;
        }
        somebody_quiet |= quiet > 2 * BEAT_MS + BEAT_MS / 2;
        if (now - r->moved_ms > limit && (stuck == NULL || r->step < stuck->step || (r->step == stuck->step && r->moved_ms < stuck->moved_ms))) stuck = r;
    }
    if (stuck && !somebody_quiet && (all_ready || now - newest > limit))
        give_verdict(k, stuck->index, "stalled", "rank %d (pid %d) sends heartbeats but has been at step %lld (%s) for %.1f s, longer than stall_timeout_ms %lld",
                     stuck->index, stuck->process.pid, (long long)stuck->step, stuck->phase, (double)(now - stuck->moved_ms) / 1000, (long long)limit);
}

static void publish(struct keeper *k, int64_t now)
{
    struct error err;
    if (k->exit_record == NULL) {
        for (int i = 0; i < k->world; i++) {
            if (k->ranks[i].log.fd >= 0) (void)fdatasync(k->ranks[i].log.fd);
        }
        spool_sync(&k->spool);
        k->exit_record = record_build(k);
    }
    if (record_write(k, k->exit_record, &err) != OK) {
        if (now - k->warned_ms >= 1000) (void)fprintf(stderr, "error exit_record: %s\n", err.text);
        k->warned_ms = now;
        if (now - k->phase_ms < PUBLISH_MS) return;     /* tried again at the next tick */
    }
    k->phase = KEEPER_ENDED;
    k->phase_ms = now;
    server_exit(k);
}

static void sweep(struct keeper *k, int64_t now)
{
    int pids[512], n = process_descendants((int)getpid(), pids, 512);
    bool reading = false;
    if (k->cgroup && cgroup_populated(k->cgroup)) {
        cgroup_kill(k->cgroup);
        if (n == 0) return;         /* born between two looks into /proc */
    }
    for (int i = 0; i < n; i++) (void)kill(pids[i], SIGKILL);
    process_reap(NULL, 0);
    for (int i = 0; i < k->world; i++) reading |= k->ranks[i].out_open || k->ranks[i].link_open;
    if (n > 0 && now - k->phase_ms > 5000 && now - k->warned_ms > 10000) {
        k->warned_ms = now;
        keeper_event(k, "warning", "not_empty", "%d processes of this attempt do not end, first pid %d: %s", n, pids[0], state_text(pids[0]));
    }
    if (n > 0 || (reading && now - k->phase_ms < DRAIN_MS)) return;
    for (int i = 0; i < k->world; i++) {
        close_out(&k->ranks[i]);
        close_link(&k->ranks[i]);
    }
    k->phase = KEEPER_PUBLISHING;
    k->phase_ms = now;
    publish(k, now);
}

static void on_tick(uv_timer_t *t)
{
    struct keeper *k = t->data;
    int64_t now = now_ms(k);
    if (now - k->tick_ms > 2000)            /* we were stopped or the machine slept: nobody else is to blame for the gap */
        for (int i = 0; i < k->world; i++) {
            k->ranks[i].heard_ms += now - k->tick_ms;
            k->ranks[i].moved_ms += now - k->tick_ms;
        }
    k->tick_ms = now;
    switch (k->phase) {
    case KEEPER_RUNNING:
        if (k->spec.time_limit_s > 0 && now - k->began_ms > k->spec.time_limit_s * 1000 && !k->limit_hit) {
            k->limit_hit = true;
            gang_stop(k, "checkpoint", "time_limit");
            break;
        }
        judge(k, now);
        break;
    case KEEPER_ENDING:
        if (k->term_ms && now >= k->term_ms) {
            k->term_ms = INT64_MAX;
            signal_all(k, SIGTERM);
        }
        if (k->deadline_ms && now >= k->deadline_ms) signal_all(k, SIGKILL);
        break;
    case KEEPER_SWEEPING: sweep(k, now); break;
    case KEEPER_PUBLISHING: publish(k, now); break;
    case KEEPER_ENDED:
        if (server_all_told(k) || now - k->phase_ms > LINGER_MS) {
            server_close(k);
            uv_stop(k->loop);
        }
        break;
    }
}

static void on_beat(uv_timer_t *t)
{
    struct keeper *k = t->data;
    double hz = (double)sysconf(_SC_CLK_TCK) * BEAT_MS / 1000;
    for (int i = 0; i < k->world; i++) {
        struct rank *r = &k->ranks[i];
        struct process_info p;
        if (r->exited) continue;
        ranklog_check(&r->log);
        if (!r->spawned || !process_info(r->process.pid, &p)) continue;
        r->cpu = (double)(p.cpu_ticks - r->cpu_ticks) / hz;
        r->cpu_ticks = p.cpu_ticks;
        if (!r->ready && r->cpu > 0.1) r->moved_ms = now_ms(k);     /* reading and cutting data may take an hour; it is no hang while it works */
    }
    server_beats(k);
    if (k->mailbox) mailbox_tick(k);
}

/* --- the start --- */

static int spawn_rank(struct keeper *k, struct rank *r, struct error *err)
{
    char rank[16], world[16], parent[16];
    int out[2] = { -1, -1 };
    (void)snprintf(rank, sizeof rank, "%d", r->index);
    (void)snprintf(world, sizeof world, "%d", k->world);
    (void)snprintf(parent, sizeof parent, "%d", (int)getpid());
    char *args[] = { "ringmaster-keeper", "--exec-rank", parent, k->cgroup ? k->cgroup : "-", k->worker, "--rank", rank, "--world", world, "--spec", k->rank_spec, "--job-dir", k->dir, NULL };
    (void)uv_pipe_init(k->loop, &r->link, 0);
    (void)uv_pipe_init(k->loop, &r->out, 0);
    r->link.data = r->out.data = r->process.data = r;
    r->link_open = r->out_open = true;
    if (pipe2(out, O_CLOEXEC) < 0) {
        int e = errno;
        return error_set(err, E_IO, "pipe for the output of rank %d: %s", r->index, strerror(e));
    }
    /* One pipe for both streams keeps their order; libuv makes the child's ends blocking. */
    uv_stdio_container_t io[LINK_FD + 1] = {
        { .flags = UV_IGNORE },
        { .flags = UV_INHERIT_FD, .data.fd = out[1] }, { .flags = UV_INHERIT_FD, .data.fd = out[1] },
        { .flags = UV_CREATE_PIPE | UV_READABLE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&r->link },
    };
    uv_process_options_t o = { .exit_cb = on_exit_rank, .file = "/proc/self/exe", .args = args, .flags = UV_PROCESS_DETACHED, .stdio_count = LINK_FD + 1, .stdio = io };
    int rc = uv_spawn(k->loop, &r->process, &o);
    (void)close(out[1]);
    if (rc < 0) {
        (void)close(out[0]);
        uv_close((uv_handle_t *)&r->process, NULL);
        return error_set(err, E_IO, "start rank %d (%s): %s", r->index, k->worker, uv_strerror(rc));
    }
    r->spawned = true;
    r->exited = false;
    k->live++;
    r->heard_ms = r->moved_ms = now_ms(k);
    (void)uv_pipe_open(&r->out, out[0]);
    (void)uv_read_start((uv_stream_t *)&r->out, on_alloc, on_out);
    (void)uv_read_start((uv_stream_t *)&r->link, on_alloc, on_link);
    return OK;
}

int gang_start(struct keeper *k, struct error *err)
{
    const char *limit = getenv("RINGMASTER_LOG_LIMIT");
    int64_t log_limit = limit && atoll(limit) > 0 ? atoll(limit) : 32LL << 20;
    int rc = OK;
    k->started_ms = wall_ms();
    k->tick_ms = k->began_ms = now_ms(k);
    k->oom_kills = oom_kill_count();
    rendezvous_init(&k->rendezvous, k->world);
    k->ranks = xcalloc((unsigned long)k->world, sizeof *k->ranks);
    for (int i = 0; i < k->world; i++) {
        struct rank *r = &k->ranks[i];
        r->k = k;
        r->index = i;
        r->exited = true;       /* until spawned */
        (void)snprintf(r->phase, sizeof r->phase, "start");
        ranklog_open(&r->log, k->dir, i, log_limit);
    }
    k->tick.data = k->beat.data = k;
    (void)uv_timer_init(k->loop, &k->tick);
    (void)uv_timer_init(k->loop, &k->beat);
    (void)uv_timer_start(&k->tick, on_tick, TICK_MS, TICK_MS);
    (void)uv_timer_start(&k->beat, on_beat, BEAT_MS, BEAT_MS);
    for (int i = 0; i < k->world && rc == OK; i++) rc = spawn_rank(k, &k->ranks[i], err);
    if (rc != OK) {             /* all or none */
        give_verdict(k, -1, "spawn_failed", "%s", err ? err->text : "");
        signal_all(k, SIGKILL);
        if (k->live == 0) k->phase = KEEPER_SWEEPING;
    }
    return rc;
}
