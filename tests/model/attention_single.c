/* attention_single.c - the group's attention on one rank, written plainly: stands in for worker/parallel in these tests. */
#include <stdlib.h>
#include <string.h>

#include "worker/parallel/attention.h"

struct attn_group { const struct kernel_ops *ops; struct attn_dims d; struct attn_span *spans; int64_t n_spans, T; const float *cos, *sin; };

int attn_group_new(struct attn_group **g, const struct kernel_ops *ops, const struct mesh *m, struct attn_dims d, struct arena *device, struct arena *shared, struct arena *host, struct error *err)
{
    (void)m; (void)device; (void)shared; (void)host; (void)err;
    *g = xcalloc(1, sizeof **g);
    (*g)->ops = ops;
    (*g)->d = d;
    return OK;
}
void attn_group_free(struct attn_group *g) { if (g) free(g->spans); free(g); }
void attn_kept_shape(const struct attn_group *g, int64_t *Tr, int64_t *hq, int64_t *hk) { *Tr = g->d.max_T; *hq = g->d.H; *hk = g->d.Hkv; }
int attn_group_row(struct attn_group *g, struct stream *s, const struct layout *l, const float *cos, const float *sin, struct error *err)
{
    (void)s; (void)err;
    g->n_spans = layout_spans(l, 0, 0, g->d.window, NULL);
    g->spans = xrealloc(g->spans, (unsigned long)(g->n_spans + 1) * sizeof *g->spans);
    (void)layout_spans(l, 0, 0, g->d.window, g->spans);
    g->T = l->T;
    g->cos = cos;
    g->sin = sin;
    return OK;
}
static struct attn_shape shape(const struct attn_group *g) { return (struct attn_shape){ g->T, g->T, g->d.H, g->d.Hkv, g->d.D, g->d.scale, g->d.window }; }
static struct attn_spans spans(const struct attn_group *g) { return (struct attn_spans){ g->spans, g->spans, g->n_spans }; }
int attn_group_refetch(struct attn_group *g, struct stream *s, const void *q, const void *k, const void *v, struct attn_kept *kp, struct error *err)
{
    (void)err;
    int64_t zero = 0, D = g->d.D;
    g->ops->rope_pack(s, g->d.dt, kp->q, 0, q, g->cos, g->sin, &zero, g->T, g->d.H, D, 1, g->d.H);
    g->ops->rope_pack(s, g->d.dt, kp->k, 0, k, g->cos, g->sin, &zero, g->T, g->d.Hkv, D, 1, g->d.Hkv);
    memcpy(kp->v, v, (size_t)(g->T * g->d.Hkv * D) * dtype_size(g->d.dt));
    return OK;
}
int attn_group_fwd(struct attn_group *g, struct stream *s, void *out, const void *q, const void *k, const void *v, struct attn_kept *keep, struct error *err)
{
    int64_t nq = g->T * g->d.H * g->d.D, nk = g->T * g->d.Hkv * g->d.D;
    void *own[5] = { NULL };
    struct attn_kept kp = keep ? *keep : (struct attn_kept){ 0 };
    if (!kp.q) kp.q = own[0] = xmalloc((unsigned long)nq * 4);
    if (!kp.k) kp.k = own[1] = xmalloc((unsigned long)nk * 4);
    if (!kp.v) kp.v = own[2] = xmalloc((unsigned long)nk * 4);
    if (!kp.o) kp.o = own[3] = xmalloc((unsigned long)nq * 4);
    if (!kp.lse) kp.lse = own[4] = xmalloc((unsigned long)(g->T * g->d.H) * 4);
    attn_group_refetch(g, s, q, k, v, &kp, err);
    int rc = g->ops->attn_fwd(s, g->d.dt, g->d.dt, kp.o, kp.lse, kp.q, kp.k, kp.v, shape(g), spans(g), false, NULL);
    memcpy(out, kp.o, (size_t)nq * dtype_size(g->d.dt));
    for (int i = 0; i < 5; i++) free(own[i]);
    return rc == OK ? OK : error_set(err, E_INVALID, "%s", g->ops->error(s));
}
int attn_group_bwd(struct attn_group *g, struct stream *s, void *dq, void *dk, void *dv, const void *dout, const struct attn_kept *kp, struct error *err)
{
    int64_t nq = g->T * g->d.H * g->d.D, nk = g->T * g->d.Hkv * g->d.D, zero = 0, D = g->d.D;
    float *delta = xcalloc((unsigned long)(g->T * g->d.H), 4), *q = xcalloc((unsigned long)nq, 4), *k = xcalloc((unsigned long)nk, 4), *v = xcalloc((unsigned long)nk, 4);
    g->ops->attn_delta(s, g->d.dt, g->d.dt, delta, dout, kp->o, g->T, g->d.H, D);
    int rc = g->ops->attn_bwd(s, g->d.dt, q, k, v, dout, kp->q, kp->k, kp->v, kp->lse, delta, shape(g), spans(g), NULL);
    g->ops->rope_unpack(s, g->d.dt, dq, DT_F32, q, 0, g->cos, g->sin, &zero, g->T, g->d.H, D, 1, g->d.H);
    g->ops->rope_unpack(s, g->d.dt, dk, DT_F32, k, 0, g->cos, g->sin, &zero, g->T, g->d.Hkv, D, 1, g->d.Hkv);
    g->ops->rope_unpack(s, g->d.dt, dv, DT_F32, v, 0, NULL, NULL, &zero, g->T, g->d.Hkv, D, 1, g->d.Hkv);
    free(delta); free(q); free(k); free(v);
    return rc == OK ? OK : error_set(err, E_INVALID, "%s", g->ops->error(s));
}
void attn_group_bytes(const struct attn_group *g, int64_t T, int64_t *fwd, int64_t *refetch, int64_t *bwd) { (void)g; (void)T; *fwd = *refetch = *bwd = 0; }
