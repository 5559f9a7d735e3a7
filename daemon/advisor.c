#include "daemon/advisor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define COMM_LIMIT 0.30         /* the share at which the articles say: change the method */
#define SKEW_LIMIT 1.25         /* slowest rank's own work over the mean */
#define MEMORY_LIMIT 0.92
#define DROP_LIMIT 0.70         /* of the best mean over ADVICE_STEPS */

static const char *say(struct advisor *a, enum advice what, const char *code)
{
    if (a->said[what]) return NULL;
    a->said[what] = true;
    return code;
}

static const char *on_comm(struct advisor *a, const struct spec *s, const cJSON *m, char text[600])
{
    double share = json_num(m, "comm_share", 0);
    a->comm_steps = share > COMM_LIMIT ? a->comm_steps + 1 : 0;
    if (a->comm_steps < ADVICE_STEPS) return NULL;
    bool ring = json_get(json_get(m, "collectives"), "hop") != NULL || s->ring_size > 1 || strcmp(s->sequence_parallel_method, "ring") == 0;     /* auto may have chosen one */
    (void)snprintf(text, 600, "ranks wait for communication during %.0f %% of the step, for %d steps now. %s", 100 * share, ADVICE_STEPS,
                   !ring ? "Ring attention (sequence_parallel_method ring) hides its transfers behind arithmetic; or use fewer ranks per sequence, or longer rows"
                   : !s->enable_sequence_overlap ? "Set enable_sequence_overlap true, so that the next block travels during arithmetic"
                   : "Use fewer ranks per sequence, longer rows, or a faster link between the ranks");
    return say(a, ADVICE_COMM, "comm_share");
}

static const char *on_skew(struct advisor *a, int rank, double busy, char text[600])
{
    if (rank >= ADVICE_RANKS || a->ranks < 2 || !(busy > 0)) return NULL;
    a->busy_s[rank] = a->busy_s[rank] > 0 ? 0.8 * a->busy_s[rank] + 0.2 * busy : busy;
    if (rank != a->ranks - 1 && rank != ADVICE_RANKS - 1) return NULL;      /* once a step */
    double sum = 0, most = 0;
    int n = 0, slow = 0;
    for (int r = 0; r < a->ranks && r < ADVICE_RANKS; r++) {
        if (!(a->busy_s[r] > 0)) return NULL;
        sum += a->busy_s[r];
        n++;
        if (a->busy_s[r] > most) { most = a->busy_s[r]; slow = r; }
    }
    double others = n > 1 ? (sum - most) / (n - 1) : sum;
    a->skew_steps = most > SKEW_LIMIT * others ? a->skew_steps + 1 : 0;
    if (a->skew_steps < ADVICE_STEPS) return NULL;
    (void)snprintf(text, 600, "rank %d works %.2f times as long per step as the others (%.3f s against %.3f s), so they wait for it. Look at what else runs on its device, at its "
                   "clock and temperature, and at threads_per_rank", slow, most / others, most, others);
    return say(a, ADVICE_SKEW, "skew");
}

static const char *on_rate(struct advisor *a, double rate, char text[600])
{
    if (!(rate > 0)) return NULL;
    a->rate[a->n_rate++ % ADVICE_STEPS] = rate;
    if (a->n_rate < ADVICE_STEPS) return NULL;
    double mean = 0;
    for (int i = 0; i < ADVICE_STEPS; i++) mean += a->rate[i] / ADVICE_STEPS;
    if (mean > a->best) a->best = mean;
    if (a->n_rate < 2 * ADVICE_STEPS || mean >= DROP_LIMIT * a->best) return NULL;
    (void)snprintf(text, 600, "throughput fell to %.0f tokens/s over the last %d steps, from %.0f at best. Look for another job on the same devices, throttling, or a slow disk under the data",
                   mean, ADVICE_STEPS, a->best);
    return say(a, ADVICE_THROUGHPUT, "throughput_drop");
}

const char *advisor_step(struct advisor *a, const struct spec *s, int rank, const cJSON *m, char text[600])
{
    const char *code = NULL;
    double loss, step_s = json_num(m, "step_s", 0), peak = json_num(m, "peak_bytes", 0);
    const cJSON *l = json_get(m, "loss");
    a->ranks = (int)s->nproc_per_node;
    bool bad_loss = l && (cJSON_IsNull(l) || (json_number(l, &loss) && !isfinite(loss)));
    if (bad_loss) {
        int64_t step = 0;
        (void)json_int(m, "step", &step);
        (void)snprintf(text, 600, "the loss is not finite at step %lld. Lower learning_rate (now %g), raise warmup_steps, or clip harder (max_grad_norm, now %g); bfloat16 sums are already float32",
                       (long long)step, s->learning_rate, s->max_grad_norm);
        if ((code = say(a, ADVICE_LOSS, "loss_not_finite")) != NULL) return code;
    }
    double limit = s->memory_limit_bytes > 0 ? (double)s->memory_limit_bytes : json_num(m, "limit_bytes", 0);       /* else of the device, as the rank says */
    if (limit > 0 && peak > MEMORY_LIMIT * limit) {
        (void)snprintf(text, 600, "rank %d fills %.1f %% of its memory limit (%.0f of %.0f bytes). A longer document may not fit: use more ranks per sequence, a stronger gradient_checkpointing, or LoRA",
                       rank, 100 * peak / limit, peak, limit);
        if ((code = say(a, ADVICE_MEMORY, "memory_near_limit")) != NULL) return code;
    }
    if (rank == 0 && (code = on_comm(a, s, m, text)) != NULL) return code;
    if ((code = on_skew(a, rank, step_s - json_num(m, "comm_exposed_s", 0), text)) != NULL) return code;
    return rank == 0 ? on_rate(a, json_num(m, "tokens_per_s", 0), text) : NULL;
}
