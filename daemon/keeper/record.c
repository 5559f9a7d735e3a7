/* record.c - exit.json: how the attempt ended and whose fault it was. Written before anyone is told; success is this record.
 *
 * Who is to blame: the keeper's own verdict first; then the rank that a signal ended which we did not send; then a rank that left
 * with an error of its own; then one that left early without a word; last one that only says that a peer was lost. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/keeper/keeper.h"
#include "daemon/keeper/process.h"

enum { RESERVE_BYTES = 512 * 1024 };

static char *reserve_path(const struct keeper *k) { return xasprintf("%s/exit.reserve", k->dir); }

int record_reserve(struct keeper *k, struct error *err)
{
    char *path = reserve_path(k);
    int rc = OK, fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || (rc = posix_fallocate(fd, 0, RESERVE_BYTES)) != 0) {
        int e = fd < 0 ? errno : rc;
        rc = error_set(err, status_of_errno(e), "set aside %d bytes in %s: %s", RESERVE_BYTES, k->dir, strerror(e));
    }
    if (fd >= 0) (void)close(fd);
    free(path);
    return rc;
}

int record_write(struct keeper *k, cJSON *record, struct error *err)
{
    char *reserve = reserve_path(k), *path = xasprintf("%s/exit.json", k->dir), *text = json_line(record);
    (void)unlink(reserve);
    int rc = file_write(path, text, strlen(text), err);
    free(reserve);
    free(path);
    free(text);
    return rc;
}

static bool mentions(const char *text, const char *word) { return strcasestr(text, word) != NULL; }

static bool device_memory_text(const char *s)
{
    static const char *const signs[] = { "CUDA out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "CUBLAS_STATUS_ALLOC_FAILED" };
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        if (mentions(s, signs[i])) return true;
    return false;
}

/* The reason for one rank's own end. */
static const char *rank_reason(const struct keeper *k, const struct rank *r)
{
    static const struct { const char *code, *reason; } codes[] = {
        { "disk_full", "disk_full" }, { "invalid", "bad_spec" }, { "unsupported", "bad_spec" }, { "not_found", "bad_spec" }, { "limit", "bad_spec" },
        { "conflict", "bad_spec" },
        { "out_of_memory", "oom_host" }, { "peer_lost", "peer_lost" }, { "stopped", "stopped" },
    };
    char tail[sizeof r->log.tail + 1];
    memcpy(tail, r->log.tail, r->log.tail_len);
    tail[r->log.tail_len] = '\0';
    for (size_t i = 0; i < r->log.tail_len; i++)
        if (tail[i] == '\0') tail[i] = ' ';
    if (!r->spawned) return "not_started";
    if (k->verdict[0] && k->verdict_rank == r->index) return k->verdict;
    if (r->done && r->code == 0 && r->signal == 0) return "done";
    if (r->killed) return "killed";
    if (r->signal == SIGKILL && k->oom_kills >= 0 && oom_kill_count() > k->oom_kills) return "oom_host";
    if (r->signal == SIGTERM && k->phase != KEEPER_RUNNING && k->term_ms == INT64_MAX) return "terminated";
    if (device_memory_text(r->error_text) || (r->code != 0 && device_memory_text(tail))) return "oom_gpu";
    if (r->signal) return "rank_died";
    if (r->error_text[0])
        for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
            if (strcmp(codes[i].code, r->error_code) == 0) return codes[i].reason;
    if (r->code == 0 && k->stop_mode[0]) return "stopped";
    return "rank_failed";
}

static int blame(const struct keeper *k, const struct rank *r)
{
    const char *reason = rank_reason(k, r);
    if (strcmp(reason, "done") == 0 || strcmp(reason, "stopped") == 0 || strcmp(reason, "killed") == 0 || strcmp(reason, "terminated") == 0) return 0;
    if (strcmp(reason, "peer_lost") == 0) return 1;
    if (r->signal) return 4;
    return r->error_text[0] ? 3 : 2;
}

static void rank_detail(const struct keeper *k, const struct rank *r, char *out, size_t n)
{
    char *last = ranklog_last_line(&r->log);
    const char *why = r->error_text[0] ? r->error_text : r->signal ? "" : last;
    if (!r->spawned) (void)snprintf(out, n, "was not started");
    else if (k->verdict[0] && k->verdict_rank == r->index) (void)snprintf(out, n, "%s", k->verdict_text);
    else if (r->signal) (void)snprintf(out, n, "rank %d was ended by signal %d (%s) at step %lld%s%s", r->index, r->signal, strsignal(r->signal), (long long)r->last_step, *why ? ": " : "", why);
    else if (r->done && r->code == 0) *out = '\0';
    else (void)snprintf(out, n, "rank %d left with code %d at step %lld%s%s", r->index, r->code, (long long)r->last_step, *why ? ": " : "", why);
    free(last);
}

static cJSON *summary(const struct keeper *k)
{
    cJSON *s = cJSON_CreateObject();
    double step_s = 0, exposed = 0;
    cJSON *peak = cJSON_CreateObject(), *sent = cJSON_CreateObject();
    for (int i = 0; i < k->world; i++) {
        const struct rank *r = &k->ranks[i];
        char key[16];
        (void)snprintf(key, sizeof key, "%d", i);
        json_add_int(peak, key, (int64_t)r->peak_bytes);
        json_add_int(sent, key, (int64_t)r->sent_bytes);
        step_s += r->step_s;
        exposed += r->exposed_s;
    }
    json_add_int(s, "steps", k->last_step);
    if (k->have_loss) json_add_num(s, "loss", k->loss);
    else json_add_str(s, "loss", NULL);
    if (k->have_first_loss) json_add_num(s, "first_loss", k->first_loss);
    else json_add_str(s, "first_loss", NULL);           /* no step was made: the job was resumed at its end */
    json_add_num(s, "tokens_per_s", k->have_tokens_per_s ? k->tokens_per_s : k->tokens_s > 0 ? k->tokens / k->tokens_s : 0);
    json_add_num(s, "comm_share", k->have_comm_share ? k->comm_share : step_s > 0 ? exposed / step_s : 0);
    /* lists, rank by rank */
    const struct { const char *name; cJSON *by; } lists[] = { { "peak_bytes_by_rank", peak }, { "sent_bytes_by_rank", sent } };
    for (int i = 0; i < 2; i++) {
        cJSON *list = cJSON_AddArrayToObject(s, lists[i].name);
        while (lists[i].by->child) {
            cJSON *v = cJSON_DetachItemViaPointer(lists[i].by, lists[i].by->child);
            free(v->string);
            v->string = NULL;
            (void)cJSON_AddItemToArray(list, v);
        }
        cJSON_Delete(lists[i].by);
    }
    json_add_str(s, "output_dir", k->spec.output_dir);
    return s;
}

static bool paused(const struct keeper *k)
{
    return !k->limit_hit && (strcmp(k->stop_reason, "paused") == 0 || strcmp(k->stop_reason, "pause") == 0);
}

cJSON *record_build(struct keeper *k)
{
    const char *state = "failed", *reason = "internal";
    char detail[1200] = "";
    bool all_done = true;
    const struct rank *worst = NULL;
    for (int i = 0; i < k->world; i++) {
        const struct rank *r = &k->ranks[i];
        int b = blame(k, r), w = worst ? blame(k, worst) : 0;
        all_done &= r->spawned && r->done && r->code == 0 && r->signal == 0;
        if (b > w || (b > 0 && b == w && r->exit_order < worst->exit_order)) worst = r;
    }
    if (all_done) {
        state = "succeeded";
        reason = "finished";
        (void)snprintf(detail, sizeof detail, "%s", k->done_detail);
    }
    else if (k->verdict[0]) {
        reason = k->verdict;
        (void)snprintf(detail, sizeof detail, "%s", k->verdict_text);
    } else if (k->stop_mode[0] && !(worst && paused(k))) {      /* a cancelled job is cancelled, however its ranks took it */
        bool killed = false;
        for (int i = 0; i < k->world; i++) killed |= k->ranks[i].killed;
        if (k->limit_hit) reason = "time_limit";
        else if (strcmp(k->stop_reason, "slurm_time_limit") == 0) reason = "slurm_time_limit";
        else state = reason = paused(k) ? "paused" : "cancelled";
        if (killed && strcmp(k->stop_mode, "kill") != 0)
            (void)snprintf(detail, sizeof detail, "ranks did not leave within grace_ms %lld and were killed", (long long)k->spec.grace_ms);
        else if (k->limit_hit) (void)snprintf(detail, sizeof detail, "time_limit_s %lld was reached", (long long)k->spec.time_limit_s);
        else if (worst) rank_detail(k, worst, detail, sizeof detail);
        else if (!paused(k)) (void)snprintf(detail, sizeof detail, "%s", k->stop_reason);
    } else if (worst) {
        reason = rank_reason(k, worst);
        if (strcmp(reason, "peer_lost") == 0) reason = "rank_failed";
        rank_detail(k, worst, detail, sizeof detail);
    } else {        /* blame found nobody, yet not all were done: name the first that left early */
        for (int i = 0; i < k->world && !detail[0]; i++)
            if (!k->ranks[i].done) rank_detail(k, &k->ranks[i], detail, sizeof detail);
        reason = "rank_failed";
    }

    cJSON *o = cJSON_CreateObject();
    json_add_int(o, "protocol", MESSAGE_PROTOCOL);
    json_add_str(o, "job", k->job);
    json_add_int(o, "attempt", k->attempt);
    json_add_str(o, "nonce", k->nonce);
    json_add_str(o, "state", state);
    json_add_str(o, "reason", reason);
    json_add_str(o, "detail", detail);
    json_add_int(o, "last_step", k->last_step);
    json_add_str(o, "checkpoint", k->checkpoint);
    if (k->checkpoint) json_add_int(o, "checkpoint_step", k->checkpoint_step);
    json_add_int(o, "started_ms", k->started_ms);
    json_add_int(o, "ended_ms", wall_ms());
    json_add_int(o, "run_ms", (int64_t)uv_now(k->loop) - k->began_ms);
    json_add_int(o, "last_seq", k->spool.last_seq);
    json_add_int(o, "spool_dropped", k->spool.dropped);
    cJSON *ranks = cJSON_AddArrayToObject(o, "ranks");
    for (int i = 0; i < k->world; i++) {
        const struct rank *r = &k->ranks[i];
        cJSON *e = cJSON_CreateObject();
        char text[1000];
        rank_detail(k, r, text, sizeof text);
        json_add_int(e, "rank", i);
        json_add_int(e, "pid", r->process.pid);
        json_add_int(e, "code", r->code);
        json_add_int(e, "signal", r->signal);
        json_add_int(e, "last_step", r->last_step);
        json_add_str(e, "reason", rank_reason(k, r));
        json_add_str(e, "detail", text);
        json_add_int(e, "log_dropped_bytes", r->log.dropped_bytes);
        json_add_int(e, "log_rotations", r->log.rotations);
        json_add_int(e, "malformed", r->reader.malformed + r->unknown);
        json_add_int(e, "oversized", r->reader.oversized);
        json_add_int(e, "backward", r->backward);
        json_add_int(e, "repeated", r->repeated);
        (void)cJSON_AddItemToArray(ranks, e);
    }
    (void)cJSON_AddItemToObject(o, "summary", summary(k));
    return o;
}
