/* dump.c - see dump.h. Rows of other data-parallel ranks come as sums over the group of f64 slots, each zero but on its owner: slow, and
 * good enough for a debugging aid; i32 and f32 survive f64 unchanged. */
#include "worker/train/dump.h"

#include <stdlib.h>
#include <string.h>

#include "api/file.h"
#include "worker/model/safetensors.h"

struct rows {
    int64_t n, n_docs;          /* tokens, documents */
    int32_t *ids, *labels, *positions, *cu;
    float *weights;
};

static void rows_release(struct rows *d)
{
    free(d->ids);
    free(d->labels);
    free(d->positions);
    free(d->cu);
    free(d->weights);
}

static int sum_over_dp(struct run *r, double *v, int64_t n, struct error *err)
{
    for (int64_t i = 0; i < n; i += SCALARS_MAX) {
        int rc = run_sum(r, r->job.mesh.dpg, v + i, (int)(n - i < SCALARS_MAX ? n - i : SCALARS_MAX), err);
        if (rc != OK) return rc;
    }
    return OK;
}

/* All rows of the step; the same on every rank. */
static int gather(struct run *r, struct rows *d, struct error *err)
{
    const struct batch *b = &r->job.batch;
    int dp = r->job.mesh.dp, me = r->job.mesh.dp_rank, rc = OK;
    double *sizes = xcalloc((unsigned long)dp * 2, sizeof *sizes), *v = NULL;
    for (int64_t i = 0; i < b->n; i++) {
        sizes[2 * me] += (double)b->rows[i].T;
        sizes[2 * me + 1] += (double)b->rows[i].n_docs;
    }
    if (dp > 1) rc = sum_over_dp(r, sizes, 2 * dp, err);
    if (rc != OK) goto out;
    int64_t token0 = 0, doc0 = 0;
    for (int k = 0; k < dp; k++) {
        if (k == me) {
            token0 = d->n;
            doc0 = d->n_docs;
        }
        d->n += (int64_t)sizes[2 * k];
        d->n_docs += (int64_t)sizes[2 * k + 1];
    }
    int64_t n = d->n, total = 4 * n + d->n_docs;      /* ids, labels, positions, weights; ends of documents */
    v = xcalloc((unsigned long)total, sizeof *v);
    for (int64_t i = 0; i < b->n; i++) {
        const struct row *row = &b->rows[i];
        for (int64_t t = 0; t < row->T; t++) {
            v[token0 + t] = row->ids[t];
            v[n + token0 + t] = row->labels[t];
            v[2 * n + token0 + t] = row->positions[t];
            v[3 * n + token0 + t] = (double)row->weights[t];
        }
        for (int64_t k = 0; k < row->n_docs; k++) v[4 * n + doc0 + k] = (double)(token0 + row->cu[k + 1]);
        token0 += row->T;
        doc0 += row->n_docs;
    }
    if (dp > 1) rc = sum_over_dp(r, v, total, err);
    if (rc != OK) goto out;
    d->ids = xcalloc((unsigned long)n, sizeof *d->ids);
    d->labels = xcalloc((unsigned long)n, sizeof *d->labels);
    d->positions = xcalloc((unsigned long)n, sizeof *d->positions);
    d->weights = xcalloc((unsigned long)n, sizeof *d->weights);
    d->cu = xcalloc((unsigned long)d->n_docs + 1, sizeof *d->cu);
    for (int64_t t = 0; t < n; t++) {
        d->ids[t] = (int32_t)v[t];
        d->labels[t] = (int32_t)v[n + t];
        d->positions[t] = (int32_t)v[2 * n + t];
        d->weights[t] = (float)v[3 * n + t];
    }
    for (int64_t k = 0; k < d->n_docs; k++) d->cu[k + 1] = (int32_t)v[4 * n + k];
out:
    free(sizes);
    free(v);
    return rc;
}

static int write_files(struct run *r, const struct rows *d, const struct step_result *s, double weight, struct error *err)
{
    const char *dir = r->spec->debug_dump;
    const struct mesh *m = &r->job.mesh;
    struct st_source t[] = {
        { .name = "cu_seqlens", .dt = DT_I32, .ndim = 1, .dim = { d->n_docs + 1 }, .data = d->cu },
        { .name = "input_ids", .dt = DT_I32, .ndim = 1, .dim = { d->n }, .data = d->ids },
        { .name = "labels", .dt = DT_I32, .ndim = 1, .dim = { d->n }, .data = d->labels },
        { .name = "loss_weights", .dt = DT_F32, .ndim = 1, .dim = { d->n }, .data = d->weights },
        { .name = "position_ids", .dt = DT_I32, .ndim = 1, .dim = { d->n }, .data = d->positions },
    };
    int rc = make_dirs(dir, err);
    char *batch = xasprintf("%s/batch.safetensors", dir), *grads = xasprintf("%s/grads.safetensors", dir), *loss = xasprintf("%s/loss.json", dir);
    cJSON *o = cJSON_CreateObject();
    json_add_num(o, "loss", s->loss);
    json_add_num(o, "weight", weight);
    json_add_num(o, "token_accuracy", s->accuracy);
    json_add_int(o, "world", m->world);
    json_add_int(o, "dp", m->dp);
    json_add_int(o, "ring", m->R);
    json_add_int(o, "ulysses", m->U);
    char *text = json_line(o);
    if (rc == OK) rc = safetensors_write(batch, t, (int64_t)(sizeof t / sizeof t[0]), NULL, err);
    if (rc == OK) rc = model_save_grads(r->job.model, grads, err);
    if (rc == OK) rc = file_write(loss, text, strlen(text), err);
    if (rc != OK) (void)error_prefix(err, "debug_dump");
    cJSON_Delete(o);
    free(text);
    free(batch);
    free(grads);
    free(loss);
    return rc;
}

/* Gradients in shards (ZeRO 2) are brought together, in memory of the device that no plan lists, for as long as they are written. */
static int gather_grads(struct run *r, float **whole, struct error *err)
{
    struct params *p = model_params(r->job.model);
    void *memory = NULL;
    const struct job *j = &r->job;
    bool host = j->spec->zero_offload_gradients;
    if (j->spec->zero_stage < 2 || (j->mesh.world == 1 && (!host || j->ops == kernel_ops_cpu()))) return OK;
    int rc = run_agree(r, r->job.ops->mem_alloc(&memory, (size_t)p->n_flat * sizeof **whole, err), err);
    *whole = memory;
    const float *mine = p->flat_g;
    if (rc == OK && host) {                     /* through the device: a transport need not read host memory */
        mine = *whole + p->g_at;
        rc = j->ops->copy(j->stream, *whole + p->g_at, p->flat_g, (size_t)p->n_g * sizeof *mine);
        if (rc != OK) return error_set(err, (enum status)rc, "gradients: %s", j->ops->error(j->stream));
    }
    if (rc == OK) rc = comm_all_gather(r->job.mesh.all, r->job.stream, DT_F32, *whole, mine, p->n_g, err);
    if (rc != OK) return rc;
    for (int64_t i = 0; i < p->n; i++)
        if (p->v[i].trained) p->v[i].g = *whole + p->v[i].at;
    return rc;
}

static void scatter_grads(struct run *r, float *whole)
{
    struct params *p = model_params(r->job.model);
    for (int64_t i = 0; i < p->n && whole; i++) p->v[i].g = NULL;
    if (whole) r->job.ops->mem_free(whole, (size_t)p->n_flat * sizeof *whole);
}

int dump_step(struct run *r, const struct step_result *result, double weight, struct error *err)
{
    struct rows d = { 0 };
    float *whole = NULL;
    int rc = gather(r, &d, err);
    if (rc == OK) rc = gather_grads(r, &whole, err);
    if (rc == OK && r->job.mesh.rank == 0) rc = write_files(r, &d, result, weight, err);
    scatter_grads(r, whole);
    rows_release(&d);
    return run_agree(r, rc, err);
}
