#include "api/message.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct metric_name metric_names[] = {
    { "loss", "nats", "mean loss over the trained tokens of the step, all ranks (job)" },
    { "token_accuracy", "", "share of trained tokens predicted right, all ranks (job)" },
    { "grad_norm", "", "global gradient norm before clipping (job)" },
    { "learning_rate", "", "of this step (job)" },
    { "epoch", "epochs", "passes over the data so far (job)" },
    { "tokens", "tokens", "real tokens in this step, all ranks (job)" },
    { "tokens_per_s", "tokens/s", "real tokens of the step, all ranks / its time without evaluation and saving (job)" },
    { "step_s", "s", "wall time of the step" },
    { "data_s", "s", "waiting for rows" },
    { "forward_s", "s", "forward" },
    { "backward_s", "s", "backward" },
    { "reduce_s", "s", "gradient reduction" },
    { "optimizer_s", "s", "clip and update" },
    { "checkpoint_s", "s", "saving" },
    { "eta_s", "s", "time left, from the median recent step (job)" },
    { "comm_exposed_s", "s", "time the step waited for communication" },
    { "comm_share", "", "comm_exposed_s / step_s" },
    { "comm_share_mean", "", "share of the step, until its gradients are summed, that ranks waited for communication: mean (job)" },
    { "comm_share_max", "", "the same, of the rank that waited most (job)" },
    { "skew", "", "own work of the slowest rank until then over the mean of all; 1: even (job)" },
    { "slowest_rank", "", "which one that was (job)" },
    { "sent_bytes", "bytes", "sent to other ranks in this step, all collectives" },
    { "allocated_bytes", "bytes", "memory this rank took" },
    { "peak_bytes", "bytes", "highest fill of it" },
    { "limit_bytes", "bytes", "what a rank may take: memory_limit_bytes, or its share of the device" },
    { "eval_loss", "nats", "loss on the validation split (job)" },
    { "eval_perplexity", "", "exp(eval_loss) (job)" },
    { "gpu_utilization", "", "share of the driver's last sampling period in which a kernel ran (these gpu_ figures: where NVML is)" },
    { "gpu_power_w", "W", "power drawn by this rank's GPU" },
    { "gpu_power_limit_w", "W", "power it may draw" },
    { "gpu_temperature_c", "degC", "its temperature" },
    { "gpu_sm_clock_mhz", "MHz", "its multiprocessors' clock" },
    { "gpu_sm_clock_max_mhz", "MHz", "the highest they can have" },
    { "gpu_memory_used_bytes", "bytes", "device memory in use, all processes" },
    { "skipped_steps", "steps", "steps skipped for non-finite gradients so far (job)" },
};
const int n_metric_names = (int)(sizeof metric_names / sizeof metric_names[0]);

static const struct json_limits line_limits = { MESSAGE_MAX, 32, 20000 };

static void take_line(struct line_reader *r, const char *line, size_t n, void (*on_line)(void *, cJSON *), void *arg)
{
    cJSON *msg = NULL;
    if (n == 0) return;
    if (json_parse(&msg, line, n, &line_limits, NULL) != OK || !cJSON_IsObject(msg)) {
        r->malformed++;
        cJSON_Delete(msg);
        return;
    }
    r->line = line;
    r->line_len = n;
    on_line(arg, msg);
    cJSON_Delete(msg);
}

void line_reader_feed(struct line_reader *r, const char *data, size_t n, void (*on_line)(void *, cJSON *), void *arg)
{
    while (n > 0) {
        const char *nl = memchr(data, '\n', n);
        size_t take = nl ? (size_t)(nl - data) : n;
        if (!r->skipping && r->len + take > MESSAGE_MAX) {
            r->skipping = true;
            r->oversized++;
            r->len = 0;
        }
        if (!r->skipping) {
            if (r->len + take > r->cap) {
                r->cap = (r->len + take) * 2;
                r->buf = xrealloc(r->buf, r->cap);
            }
            if (take > 0) memcpy(r->buf + r->len, data, take);
            r->len += take;
        }
        if (nl == NULL) return;
        if (!r->skipping) {
            size_t len = r->len;
            r->len = 0;
            take_line(r, r->buf, len, on_line, arg);
        }
        r->skipping = false;
        data += take + 1;
        n -= take + 1;
    }
}

void line_reader_release(struct line_reader *r)
{
    free(r->buf);
    *r = (struct line_reader){ 0 };
}

char *message_line(cJSON *msg, size_t *len)
{
    char *text = json_line(msg);
    cJSON_Delete(msg);
    size_t n = strlen(text);
    text = xrealloc(text, n + 2);
    memcpy(text + n, "\n", 2);
    *len = n + 1;
    return text;
}

int message_socket_path(char out[64], int *dirfd, const char *dir, struct error *err)
{
    *dirfd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*dirfd < 0) {
        int e = errno;
        return error_set(err, status_of_errno(e), "open %s: %s", dir, strerror(e));
    }
    (void)snprintf(out, 64, "/proc/self/fd/%d/keeper.sock", *dirfd);
    return OK;
}

bool exit_reason_retries(const char *reason)
{
    static const char *const final[] = { "finished", "cancelled", "paused", "time_limit", "oom_gpu", "oom_host", "bad_spec", "spawn_failed", "slurm_refused", "cancelled_outside" };
    for (size_t i = 0; i < sizeof final / sizeof final[0]; i++)
        if (strcmp(reason, final[i]) == 0) return false;
    return true;
}
