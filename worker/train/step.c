/* step.c - a rank's step, top to bottom (DESIGN.md).
 *
 * All rows of the step are read first, because every gradient is scaled by one number: 1 / (trained weight of all micro-steps on all
 * ranks). So gradients are final when backward ends, and the reduction is a plain sum over all ranks: sequence-parallel ones hold
 * different tokens of the same row, data-parallel ones different rows. No mean over a shard anywhere. */
#include "worker/train/step.h"

#include <math.h>
#include <string.h>

#include "worker/train/dump.h"

/* What the step is divided by, and what it holds; the same on all ranks. */
struct totals { double weight, tokens; };

static int read_rows(struct run *r, struct totals *t, struct error *err)
{
    struct job *j = &r->job;
    int rc = batch_fill(&j->batch, r->loader, r->per_epoch, err);
    double v[2] = { j->batch.weight_sum, (double)j->batch.tokens_real };
    if (rc == OK && j->mesh.dp > 1) rc = run_sum(r, j->mesh.dpg, v, 2, err);    /* one row is the same on all its ranks: count it once */
    *t = (struct totals){ v[0], v[1] };
    return rc;
}

static int sweep(struct run *r, double scale, struct model_loss *loss, struct error *err)
{
    struct job *j = &r->job;
    int rc = model_zero_grads(j->model, err);
    for (int64_t i = 0; i < j->batch.n && rc == OK; i++) {
        rc = model_row(j->model, &j->batch.rows[i], err);
        if (rc == OK) rc = model_forward_backward(j->model, scale, loss, err);
    }
    return rc;
}

/* With ZeRO 2 backward has done it; with ZeRO 1 only this rank's shard needs the sums, unless all of them are to be written. */
static int reduce_grads(struct run *r, bool whole, struct error *err)
{
    struct job *j = &r->job;
    const struct params *p = model_params(j->model);
    int64_t stage = j->spec->zero_stage, n = j->opt->hi - j->opt->lo;
    if (j->mesh.world == 1 || stage >= 2) return OK;
    if (stage == 0 || whole) return comm_all_reduce(j->mesh.all, j->stream, DT_F32, p->flat_g, p->n_flat, err);
    return comm_reduce_scatter(j->mesh.all, j->stream, DT_F32, p->flat_g + j->opt->lo, p->flat_g, n, err);
}

/* Every rank has updated its shard of the weights; now all have all of them. */
static int gather_weights(struct run *r, struct error *err)
{
    struct job *j = &r->job;
    const struct params *p = model_params(j->model);
    if (j->mesh.world == 1 || j->spec->zero_stage == 0 || p->n_w < p->n_flat) return OK;
    const char *mine = (const char *)p->flat_w + (size_t)j->opt->lo * dtype_size(p->dt);
    return comm_all_gather(j->mesh.all, j->stream, p->dt, p->flat_w, mine, j->opt->hi - j->opt->lo, err);
}

/* own: each rank's seconds of work so far in the step; share: of waiting. The sum over ranks has put each into its place. */
static void judge_ranks(const double *own, const double *share, int world, struct step_result *out)
{
    double sum = 0, waited = 0;
    out->share_most = 0;
    out->slowest = 0;
    for (int p = 0; p < world; p++) {
        sum += own[p];
        waited += share[p];
        if (own[p] > own[out->slowest]) out->slowest = p;
        if (share[p] > out->share_most) out->share_most = share[p];
    }
    out->skew = sum > 0 ? own[out->slowest] * world / sum : 1;
    out->share_mean = waited / world;
}

static int reduce_loss(struct run *r, const struct model_loss *loss, const struct totals *t, struct step_result *out, struct error *err)
{
    enum { OWN = 6, RANKS_MAX = 4096 };                     /* nproc_per_node's largest */
    enum link_stop stop = link_stop_wanted(r->link);
    int world = r->job.mesh.world, me = r->job.mesh.rank;
    double v[OWN + 2 * RANKS_MAX], step_s, exposed_s;
    memset(v, 0, (size_t)(OWN + 2 * world) * sizeof *v);
    v[0] = loss->loss_sum, v[1] = loss->correct, v[2] = loss->count;
    v[3] = stop != LINK_GO || run_stop_requested(), v[4] = stop == LINK_STOP_NOW, v[5] = link_checkpoint_wanted(r->link);
    meter_so_far(&r->meter, r->world, &step_s, &exposed_s);
    v[OWN + me] = step_s - exposed_s;
    v[OWN + world + me] = step_s > 0 ? exposed_s / step_s : 0;
    int rc = run_sum(r, r->job.mesh.all, v, OWN + 2 * world, err);
    judge_ranks(v + OWN, v + OWN + world, world, out);
    out->loss = t->weight > 0 ? v[0] / t->weight : 0;
    out->accuracy = v[2] > 0 ? v[1] / v[2] : 0;
    out->stop = v[3] > 0;
    out->stop_now = v[4] > 0;
    out->checkpoint = v[5] > 0;
    return rc;
}

/* Clips to max_grad_norm and updates; gradients that are not finite are thrown away, and so is a step without a trained token. */
static int update(struct run *r, const struct totals *t, struct step_result *out, struct error *err)
{
    struct job *j = &r->job;
    double sumsq = 0, max_norm = r->spec->max_grad_norm;
    int rc = optimizer_sumsq(j->opt, j->stream, &sumsq, err);
    if (rc == OK && j->spec->zero_stage > 0) rc = run_sum(r, j->mesh.all, &sumsq, 1, err);
    if (rc != OK) return rc;
    out->grad_norm = sqrt(sumsq);
    out->skipped = !isfinite(out->grad_norm) || t->weight <= 0;
    if (out->skipped) {
        r->progress.skipped++;
        return OK;
    }
    double clip = max_norm > 0 ? fmin(1.0, max_norm / (out->grad_norm + 1e-6)) : 1.0;      /* as torch.nn.utils.clip_grad_norm_ */
    rc = optimizer_step(j->opt, j->stream, (float)clip, out->lr, err);
    if (rc == OK) rc = gather_weights(r, err);
    if (rc == OK) rc = model_weights_changed(j->model, err);
    if (rc == OK) rc = j->ops->stream_wait(j->stream, err);
    return rc;
}

int step_run(struct run *r, struct step_result *out, struct error *err)
{
    struct meter *m = &r->meter;
    struct model_loss loss = { 0 };
    struct totals t;
    double at[4];
    *out = (struct step_result){ .step = r->progress.step + 1, .lr = schedule_lr(&r->schedule, r->progress.step) };

    link_step(r->link, out->step, "data");
    meter_start(m, r->world);
    at[0] = monotonic_s();
    int rc = read_rows(r, &t, err);
    at[1] = monotonic_s();

    link_step(r->link, out->step, "compute");
    if (rc == OK) rc = sweep(r, t.weight > 0 ? 1.0 / t.weight : 0, &loss, err);
    at[2] = monotonic_s();

    link_step(r->link, out->step, "reduce");
    bool dump = r->spec->debug_dump && out->step == 1;
    if (rc == OK) rc = reduce_grads(r, dump, err);
    if (rc == OK) rc = reduce_loss(r, &loss, &t, out, err);
    at[3] = monotonic_s();
    if (rc == OK && dump) rc = dump_step(r, out, t.weight, err);

    link_step(r->link, out->step, "optimizer");
    double before = monotonic_s();
    if (rc == OK) rc = update(r, &t, out, err);
    if (rc != OK) return rc;

    m->phase_s[PHASE_DATA] = at[1] - at[0];
    m->phase_s[PHASE_FORWARD] = loss.forward_s;
    m->phase_s[PHASE_BACKWARD] = loss.backward_s;
    m->phase_s[PHASE_REDUCE] = at[3] - at[2];
    m->phase_s[PHASE_OPTIMIZER] = monotonic_s() - before;
    m->trained_s = monotonic_s() - m->started;
    out->weight_sum = t.weight;
    out->tokens = (int64_t)t.tokens;
    r->tokens += out->tokens;
    r->progress.step = out->step;
    r->progress.position = loader_position(r->loader);
    r->progress.loss = out->loss;
    r->progress.epoch = out->epoch = (double)r->progress.position / (double)r->per_epoch;
    return OK;
}
