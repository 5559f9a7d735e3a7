#include "worker/train/metrics.h"

#include <stdlib.h>
#include <string.h>

void meter_start(struct meter *m, struct comm_world *w)
{
    memset(m->phase_s, 0, sizeof m->phase_s);
    comm_counts(w, m->before);
    m->started = monotonic_s();
}

void meter_so_far(const struct meter *m, struct comm_world *w, double *step_s, double *exposed_s)
{
    struct comm_count now[COMM_KINDS];
    comm_counts(w, now);
    *step_s = monotonic_s() - m->started;
    *exposed_s = 0;
    for (int k = 0; k < COMM_KINDS; k++) *exposed_s += now[k].exposed_s - m->before[k].exposed_s;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median shrugs off the odd slow step (a checkpoint, a neighbour's job). */
static double median(const double *v, int n)
{
    double sorted[ETA_WINDOW];
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

cJSON *meter_record(struct meter *m, const struct job *j, struct comm_world *w, const struct step_result *r, int64_t steps_left)
{
    static const char *const phase_names[PHASES] = { "data_s", "forward_s", "backward_s", "reduce_s", "optimizer_s", "checkpoint_s" };
    struct comm_count now[COMM_KINDS];
    double step_s = monotonic_s() - m->started, exposed_s = 0;
    int64_t sent = 0, category[MEM_CATEGORIES];

    m->recent[m->steps++ % ETA_WINDOW] = step_s;
    cJSON *o = cJSON_CreateObject(), *memory = cJSON_CreateObject(), *kinds = cJSON_CreateObject();
    json_add_str(o, "t", "metrics");
    json_add_int(o, "step", r->step);
    json_add_num(o, "loss", r->loss);
    json_add_num(o, "token_accuracy", r->accuracy);
    json_add_num(o, "grad_norm", r->grad_norm);
    json_add_num(o, "learning_rate", r->lr);
    json_add_num(o, "epoch", r->epoch);
    json_add_int(o, "tokens", r->tokens);
    json_add_num(o, "tokens_per_s", m->trained_s > 0 ? (double)r->tokens / m->trained_s : 0);
    json_add_num(o, "step_s", step_s);
    for (int i = 0; i < PHASES; i++) json_add_num(o, phase_names[i], m->phase_s[i]);
    if (m->steps >= ETA_AFTER)
        json_add_num(o, "eta_s", median(m->recent, m->steps < ETA_WINDOW ? (int)m->steps : ETA_WINDOW) * (double)steps_left);

    comm_counts(w, now);
    for (int k = 0; k < COMM_KINDS; k++) {
        const struct comm_count *a = &m->before[k], *b = &now[k];
        struct comm_count d = { .calls = b->calls - a->calls, .bytes = b->bytes - a->bytes, .busy_s = b->busy_s - a->busy_s,
                                .exposed_s = b->exposed_s - a->exposed_s, .late_s = b->late_s - a->late_s };
        sent += d.bytes;
        exposed_s += d.exposed_s;
        if (d.calls == 0) continue;
        cJSON *kind = cJSON_CreateObject();
        json_add_int(kind, "calls", d.calls);
        json_add_int(kind, "bytes", d.bytes);
        json_add_num(kind, "busy_s", d.busy_s);
        json_add_num(kind, "exposed_s", d.exposed_s);
        json_add_num(kind, "late_s", d.late_s);
        (void)cJSON_AddItemToObject(kinds, comm_kind_names[k], kind);
    }
    json_add_num(o, "comm_exposed_s", exposed_s);
    json_add_num(o, "comm_share_mean", r->share_mean);
    json_add_num(o, "comm_share_max", r->share_most);
    json_add_num(o, "skew", r->skew);
    json_add_int(o, "slowest_rank", r->slowest);
    json_add_num(o, "comm_share", step_s > 0 ? exposed_s / step_s : 0);
    json_add_int(o, "sent_bytes", sent);
    json_add_int(o, "peak_bytes", job_peak(j));
    job_by_category(j, category);
    for (int c = 0; c < MEM_CATEGORIES; c++) json_add_int(memory, mem_category_names[c], category[c]);
    (void)cJSON_AddItemToObject(o, "memory", memory);
    (void)cJSON_AddItemToObject(o, "collectives", kinds);
    return o;
}
