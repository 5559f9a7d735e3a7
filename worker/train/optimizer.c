#include "worker/train/optimizer.h"

#include <assert.h>
#include <stdlib.h>

enum { OFFLOAD_PIECE = 1 << 22 /* elements */ };

static void add_range(struct optimizer *o, struct opt_range r)
{
    int64_t from = r.at > o->lo ? r.at : o->lo, to = r.at + r.n < o->hi ? r.at + r.n : o->hi;
    if (from >= to) return;
    r.state = o->galore ? o->n_state : from - o->lo;
    r.at = from;
    r.n = to - from;
    if (o->galore) o->n_state += r.n;
    o->ranges = xrealloc(o->ranges, (unsigned long)(o->n_ranges + 1) * sizeof *o->ranges);
    o->ranges[o->n_ranges++] = r;
}

int optimizer_new(struct optimizer **out, const struct spec *spec, const struct kernel_ops *ops, const struct params *params, int64_t lo, int64_t hi,
                  struct arena *device, struct arena *host, struct error *err)
{
    struct arena *state = spec->zero_offload_optimizer ? host : device;
    struct optimizer *o = *out = xcalloc(1, sizeof *o);
    *o = (struct optimizer){ .ops = ops, .params = params, .lo = lo, .hi = hi, .beta1 = spec->adam_beta1, .beta2 = spec->adam_beta2,
                             .eps = spec->adam_epsilon, .decay = spec->weight_decay };
    if (spec->zero_offload_optimizer && spec->use_galore)
        return error_set(err, E_UNSUPPORTED, "zero_offload_optimizer with use_galore: GaLore projects on the device; leave one of them out");
    int rc = galore_new(&o->galore, spec, ops, params, device, err);
    if (rc != OK) return rc;
    double b_ratio = spec->lorap_lr_ratio > 0 ? spec->lorap_lr_ratio : 1;
    for (int64_t i = 0; i < params->n; i++) {
        const struct param *p = &params->v[i];
        if (p->trained && !galore_has(o->galore, i))
            add_range(o, (struct opt_range){ .at = p->at, .n = p->n, .decay = p->decay, .lr_ratio = p->lora == LORA_B ? b_ratio : 1 });
    }
    if (o->galore == NULL) o->n_state = hi - lo;
    if (params->dt != DT_F32) o->master = arena_take(state, MEM_OPTIMIZER, DT_F32, hi - lo, 0, 0, 0, "optimizer.master");
    o->m = arena_take(state, MEM_OPTIMIZER, DT_F32, o->n_state, 0, 0, 0, "optimizer.exp_avg");
    o->v = arena_take(state, MEM_OPTIMIZER, DT_F32, o->n_state, 0, 0, 0, "optimizer.exp_avg_sq");
    o->sumsq = arena_take(device, MEM_OPTIMIZER, DT_F64, 1, 0, 0, 0, "optimizer.sumsq");
    o->offload = spec->zero_offload_optimizer && ops != kernel_ops_cpu();       /* on the CPU all memory is the host's */
    o->far_gradients = spec->zero_offload_gradients && ops != kernel_ops_cpu();
    if (!o->offload && !o->far_gradients) return OK;
    o->host_ops = kernel_ops_cpu();
    if (!o->offload) return o->host_ops->stream_new(&o->host_stream, true, err);
    if (!o->far_gradients) o->g_host = arena_take(host, MEM_OPTIMIZER, DT_F32, OFFLOAD_PIECE, 0, 0, 0, "optimizer.gradient_stage");
    o->w_host = arena_take(host, MEM_OPTIMIZER, DT_F32, OFFLOAD_PIECE, 0, 0, 0, "optimizer.weight_stage");
    return o->host_ops->stream_new(&o->host_stream, true, err);
}

void optimizer_free(struct optimizer *o)
{
    if (o == NULL) return;
    galore_free(o->galore);
    if (o->host_stream) o->host_ops->stream_free(o->host_stream);
    free(o->ranges);
    free(o);
}

static int op_status(const struct optimizer *o, struct stream *s, int rc, const char *what, struct error *err)
{
    return rc == OK ? OK : error_set(err, (enum status)rc, "%s: %s", what, o->ops->error(s));
}

int optimizer_start(struct optimizer *o, struct stream *s, struct error *err)
{
    if (o->master == NULL) return OK;
    size_t size = dtype_size(o->params->dt);
    const char *w = (const char *)o->params->flat_w + (size_t)(o->lo - o->params->w_at) * size;
    for (int64_t i = 0; o->offload && i < o->hi - o->lo; i += OFFLOAD_PIECE) {
        int64_t n = o->hi - o->lo - i < OFFLOAD_PIECE ? o->hi - o->lo - i : OFFLOAD_PIECE;
        int rc = o->ops->copy(s, o->w_host, w + (size_t)i * size, (size_t)n * size);
        if (rc != OK) return op_status(o, s, rc, "optimizer masters", err);
        if ((rc = o->ops->stream_wait(s, err)) != OK) return rc;
        rc = o->host_ops->cast(o->host_stream, DT_F32, o->master + i, o->params->dt, o->w_host, n);
        if (rc != OK) return error_set(err, (enum status)rc, "optimizer masters: %s", o->host_ops->error(o->host_stream));
    }
    if (o->offload) return OK;
    return op_status(o, s, o->ops->cast(s, DT_F32, o->master, o->params->dt, w, o->hi - o->lo), "optimizer masters", err);
}

int optimizer_sumsq(struct optimizer *o, struct stream *s, double *sum, struct error *err)
{
    int rc;
    if (o->far_gradients) {
        if ((rc = o->ops->stream_wait(s, err)) != OK) return rc;        /* they are on their way */
        *sum = 0;
        rc = o->host_ops->sumsq(o->host_stream, sum, o->params->flat_g + (o->lo - o->params->g_at), o->hi - o->lo);
        return rc == OK ? OK : error_set(err, (enum status)rc, "gradient norm: %s", o->host_ops->error(o->host_stream));
    }
    rc = o->ops->zero(s, o->sumsq, sizeof *o->sumsq);
    if (rc == OK) rc = o->ops->sumsq(s, o->sumsq, o->params->flat_g + (o->lo - o->params->g_at), o->hi - o->lo);
    if (rc != OK) return op_status(o, s, rc, "gradient norm", err);
    rc = o->ops->stream_wait(s, err);           /* first: a copy into memory that is not pinned waits without watching the peers */
    if (rc != OK) return rc;
    rc = o->ops->copy(s, sum, o->sumsq, sizeof *sum);
    return rc == OK ? o->ops->stream_wait(s, err) : op_status(o, s, rc, "gradient norm", err);
}

/* One range: gradients come to the host, weights go back. */
static int offloaded_step(struct optimizer *o, struct stream *s, const struct opt_range *r, float gscale, double lr, struct error *err)
{
    const struct params *p = o->params;
    size_t size = dtype_size(p->dt);
    for (int64_t i = 0; i < r->n; i += OFFLOAD_PIECE) {
        int64_t n = r->n - i < OFFLOAD_PIECE ? r->n - i : OFFLOAD_PIECE, at = r->at + i;
        char *w = (char *)p->flat_w + (size_t)(at - p->w_at) * size;
        const float *g = o->far_gradients ? p->flat_g + (at - p->g_at) : o->g_host;
        int rc = o->far_gradients ? OK : o->ops->copy(s, o->g_host, p->flat_g + (at - p->g_at), (size_t)n * sizeof(float));
        if (rc == OK && o->master == NULL) rc = o->ops->copy(s, o->w_host, w, (size_t)n * size);
        if (rc != OK) return op_status(o, s, rc, "offloaded adamw", err);
        if ((rc = o->ops->stream_wait(s, err)) != OK) return rc;
        float *w32 = o->master ? o->master + (at - o->lo) : o->w_host;
        rc = o->host_ops->adamw(o->host_stream, w32, o->master ? (bf16 *)(void *)o->w_host : NULL, o->m + r->state + i, o->v + r->state + i, g, n, gscale, lr,
                                o->beta1, o->beta2, o->eps, r->decay ? o->decay : 0, o->t);
        if (rc != OK) return error_set(err, (enum status)rc, "offloaded adamw: %s", o->host_ops->error(o->host_stream));
        rc = o->ops->copy(s, w, o->w_host, (size_t)n * size);
        if (rc != OK) return op_status(o, s, rc, "offloaded adamw", err);
        if ((rc = o->ops->stream_wait(s, err)) != OK) return rc;        /* the staging is used again */
    }
    return OK;
}

/* One range, on the device; gradients from the host come a piece at a time. */
static int near_step(struct optimizer *o, struct stream *s, const struct opt_range *r, float gscale, double lr, struct error *err)
{
    const struct params *p = o->params;
    int64_t most = o->far_gradients ? p->n_g_stage : r->n;
    assert(most > 0);
    for (int64_t i = 0; i < r->n; i += most) {
        int64_t n = r->n - i < most ? r->n - i : most, at = r->at + i;
        float *w32 = o->master ? o->master + (at - o->lo) : (float *)p->flat_w + (at - p->w_at), *g = p->flat_g + (at - p->g_at);
        bf16 *w16 = o->master ? (bf16 *)p->flat_w + (at - p->w_at) : NULL;
        int rc = o->far_gradients ? o->ops->copy(s, p->g_stage, g, (size_t)n * sizeof *g) : OK;
        if (rc == OK) rc = o->ops->adamw(s, w32, w16, o->m + r->state + i, o->v + r->state + i, o->far_gradients ? p->g_stage : g, n, gscale, lr, o->beta1, o->beta2, o->eps,
                                         r->decay ? o->decay : 0, o->t);
        if (rc != OK) return op_status(o, s, rc, "adamw", err);
    }
    return OK;
}

int optimizer_step(struct optimizer *o, struct stream *s, float gscale, double lr, struct error *err)
{
    const struct params *p = o->params;
    o->t++;
    for (int64_t i = 0; i < o->n_ranges; i++) {
        const struct opt_range *r = &o->ranges[i];
        int rc = (o->offload ? offloaded_step : near_step)(o, s, r, gscale, lr * r->lr_ratio, err);
        if (rc != OK) return rc;
    }
    for (int64_t k = 0; o->galore && k < o->galore->n; k++) {
        const struct param *x = &p->v[o->galore->v[k].param];
        struct galore_rates rates = { lr, o->beta1, o->beta2, o->eps, x->decay ? o->decay : 0, gscale, o->t };
        float *w32 = o->master ? o->master + x->at : (float *)p->flat_w + x->at;
        int rc = galore_step(o->galore, s, k, w32, o->master ? (bf16 *)p->flat_w + x->at : NULL, p->flat_g + x->at, &rates, err);
        if (rc != OK) return rc;
    }
    return OK;
}
