/* layer.c - one decoder layer, forward and backward, whatever the policy kept.
 *
 *   h = norm1(x); q,k,v = h Wq,k,v; q,k = norm(q,k) (qwen3); a = attention over the group; x2 = x + a Wo
 *   h2 = norm2(x2); y = (silu(h2 Wg) * (h2 Wu)) Wd;  out = x2 + y             tiled over tokens: h2, g, u, s never stand whole
 *
 * Backward goes in two phases whose buffers overlay each other: the MLP (by tiles; the tile loop is also its recomputation, so
 * the MLP's forward runs twice in all, never three times) and attention. What the policy did not keep is computed again first. */
#include "worker/model/decoder.h"

static int norm_fwd(struct model *m, void *y, float *rstd, const void *x, const struct param *w, int64_t N, int64_t C)
{
    return model_op(m, "rmsnorm", m->ops->rmsnorm_fwd(m->s, m->dt, y, rstd, x, w->w, N, C, m->c->eps));
}

static int norm_bwd(struct model *m, void *dx, bool add, const void *dy, const void *x, const struct param *w, const float *rstd, int64_t N, int64_t C)
{
    return model_op(m, "rmsnorm gradient", m->ops->rmsnorm_bwd(m->s, m->dt, dx, add, w->g, dy, x, w->w, rstd, N, C, m->norm_ws));
}

static int add_to(struct model *m, void *y, const void *a, const void *b, int64_t n)
{
    return model_op(m, "add", m->ops->add(m->s, m->dt, y, a, b, n));
}

static void *rows(const struct model *m, const void *p, int64_t i, int64_t width)
{
    return p ? (char *)(uintptr_t)p + (size_t)(i * width) * dtype_size(m->dt) : NULL;
}

/* h, q, k, v of the layer from x, into the scratch (q_raw, k_raw: where the norm's input stays). */
static int project(struct model *m, struct layer *l)
{
    const struct model_config *c = m->c;
    int64_t N = m->Tl;
    void *q = c->qk_norm ? (l->q_raw ? l->q_raw : m->q_raw) : m->q, *k = c->qk_norm ? (l->k_raw ? l->k_raw : m->k_raw) : m->k;
    TRY(norm_fwd(m, m->h, m->rstd, l->x, l->norm1, N, c->C));
    TRY(linear_fwd(m, &l->q, q, m->h, N, 0));
    TRY(linear_fwd(m, &l->k, k, m->h, N, 0));
    TRY(linear_fwd(m, &l->v, m->v, m->h, N, 0));
    if (c->qk_norm) {
        TRY(norm_fwd(m, m->q, m->rstd_q, q, l->qnorm, N * c->H, c->D));
        TRY(norm_fwd(m, m->k, m->rstd_k, k, l->knorm, N * c->Hkv, c->D));
    }
    return OK;
}

static struct attn_kept kept_of(const struct model *m, const struct layer *l)
{
    struct attn_kept k = l->kept;       /* the layer's own where the policy keeps it, else the scratch */
    if (!k.q) k.q = m->kept.q;
    if (!k.k) k.k = m->kept.k;
    if (!k.v) k.v = m->kept.v;
    if (!k.lse) k.lse = m->kept.lse;
    return k;
}

/* x2 = x + a Wo, a from attention. */
static int attention_fwd(struct model *m, struct layer *l, void *x2, struct attn_kept *keep)
{
    void *a = l->a ? l->a : m->a;
    TRY(project(m, l));
    TRY(attn_group_fwd(l->attn, m->s, a, m->q, m->k, m->v, keep, m->err));
    TRY(linear_fwd(m, &l->o, x2, a, m->Tl, 0));
    return add_to(m, x2, x2, l->x, m->Tl * m->c->C);
}

/* Gate and up of tokens [i, i+n): from x2 unless kept; h2 always. */
static int mlp_tile_fwd(struct model *m, struct layer *l, const void *x2, int64_t i, int64_t n, void **g, void **u, bool have)
{
    const struct model_config *c = m->c;
    *g = l->g ? rows(m, l->g, i, c->F) : m->t_g;
    *u = l->u ? rows(m, l->u, i, c->F) : m->t_u;
    TRY(norm_fwd(m, m->t_h, m->rstd, rows(m, x2, i, c->C), l->norm2, n, c->C));
    if (have && l->g) return OK;
    TRY(linear_fwd(m, &l->gate, *g, m->t_h, n, i));
    return linear_fwd(m, &l->up, *u, m->t_h, n, i);
}

int layer_fwd(struct model *m, struct layer *l, void *x_out)
{
    const struct model_config *c = m->c;
    void *x2 = l->x2 ? l->x2 : m->x2, *g, *u;
    struct attn_kept keep = m->mesh->R > 1 ? kept_of(m, l) : l->kept;       /* the ring reads k and v there */
    TRY(attention_fwd(m, l, x2, &keep));
    for (int64_t i = 0; i < m->Tl; i += m->mlp_tile) {
        int64_t n = m->Tl - i < m->mlp_tile ? m->Tl - i : m->mlp_tile;
        TRY(mlp_tile_fwd(m, l, x2, i, n, &g, &u, false));
        TRY(model_op(m, "swiglu", m->ops->swiglu_fwd(m->s, m->dt, m->t_s, g, u, n * c->F)));
        TRY(linear_fwd(m, &l->down, rows(m, x_out, i, c->C), m->t_s, n, i));
        TRY(add_to(m, rows(m, x_out, i, c->C), rows(m, x_out, i, c->C), rows(m, x2, i, c->C), n * c->C));
    }
    return OK;
}

/* What backward needs and forward did not keep. */
static int recompute(struct model *m, struct layer *l, void *x2, struct attn_kept *kept)
{
    if (l->x2) return OK;                       /* everything is there */
    if (!l->a) return attention_fwd(m, l, x2, kept);
    TRY(linear_fwd(m, &l->o, x2, l->a, m->Tl, 0));      /* attention's output is kept: no attention again */
    return add_to(m, x2, x2, l->x, m->Tl * m->c->C);
}

static int mlp_bwd(struct model *m, struct layer *l, const void *x2)
{
    const struct model_config *c = m->c;
    void *g, *u;
    for (int64_t i = 0; i < m->Tl; i += m->mlp_tile) {
        int64_t n = m->Tl - i < m->mlp_tile ? m->Tl - i : m->mlp_tile;
        void *d = rows(m, m->d, i, c->C);
        TRY(mlp_tile_fwd(m, l, x2, i, n, &g, &u, true));
        TRY(model_op(m, "swiglu", m->ops->swiglu_fwd(m->s, m->dt, m->t_s, g, u, n * c->F)));
        TRY(linear_bwd(m, &l->down, m->t_ds, false, d, m->t_s, n, i));
        TRY(model_op(m, "swiglu gradient", m->ops->swiglu_bwd(m->s, m->dt, g, u, m->t_ds, g, u, n * c->F)));    /* dg over g, du over u */
        TRY(linear_bwd(m, &l->gate, m->t_dh, false, g, m->t_h, n, i));
        TRY(linear_bwd(m, &l->up, m->t_dh, true, u, m->t_h, n, i));
        TRY(norm_bwd(m, d, true, m->t_dh, rows(m, x2, i, c->C), l->norm2, m->rstd, n, c->C));
    }
    return OK;
}

/* h, q_raw, k_raw, rstd of both norms, and kept q, k, v: what the attention half of backward reads besides a, o and lse. */
static int refetch(struct model *m, struct layer *l, struct attn_kept *kept)
{
    const struct model_config *c = m->c;
    bool have_qkv = l->kept.q || !l->a;                 /* kept, or just recomputed whole */
    if (!have_qkv) {
        TRY(project(m, l));
        return attn_group_refetch(l->attn, m->s, m->q, m->k, m->v, kept, m->err);
    }
    if (c->qk_norm && !l->q_raw) return project(m, l);  /* the scratch was overlaid by the MLP's */
    TRY(norm_fwd(m, m->h, m->rstd, l->x, l->norm1, m->Tl, c->C));
    if (!c->qk_norm) return OK;
    TRY(norm_fwd(m, m->q, m->rstd_q, l->q_raw, l->qnorm, m->Tl * c->H, c->D));
    return norm_fwd(m, m->k, m->rstd_k, l->k_raw, l->knorm, m->Tl * c->Hkv, c->D);
}

static int attention_bwd(struct model *m, struct layer *l, void *dh, struct attn_kept *kept)
{
    const struct model_config *c = m->c;
    int64_t N = m->Tl;
    void *da = m->q, *dk = m->k, *dv = m->v;            /* their forward values are used up by now */
    TRY(refetch(m, l, kept));
    const void *a = l->a ? l->a : m->a;
    TRY(linear_bwd(m, &l->o, da, false, m->d, a, N, 0));
    TRY(attn_group_bwd(l->attn, m->s, m->dq, dk, dv, da, a, kept, m->err));
    if (c->qk_norm) {
        TRY(norm_bwd(m, m->dq, false, m->dq, l->q_raw ? l->q_raw : m->q_raw, l->qnorm, m->rstd_q, N * c->H, c->D));
        TRY(norm_bwd(m, dk, false, dk, l->k_raw ? l->k_raw : m->k_raw, l->knorm, m->rstd_k, N * c->Hkv, c->D));
    }
    TRY(linear_bwd(m, &l->q, dh, false, m->dq, m->h, N, 0));
    TRY(linear_bwd(m, &l->k, dh, true, dk, m->h, N, 0));
    TRY(linear_bwd(m, &l->v, dh, true, dv, m->h, N, 0));
    return norm_bwd(m, m->d, true, dh, l->x, l->norm1, m->rstd, N, c->C);
}

int layer_bwd(struct model *m, struct layer *l)
{
    void *x2 = l->x2 ? l->x2 : m->x2;
    struct attn_kept kept = kept_of(m, l);
    TRY(recompute(m, l, x2, &kept));
    TRY(mlp_bwd(m, l, x2));
    return attention_bwd(m, l, x2, &kept);              /* x2 is used up: its memory takes dh */
}

/* --- memory --- */
static void *take(struct arena *a, const struct model *m, enum mem_category c, int64_t width, const char *name, int64_t i)
{
    return i < 0 ? arena_take(a, c, m->dt, m->max_Tl, width, 0, 0, "%s", name)
                 : arena_take(a, c, m->dt, m->max_Tl, width, 0, 0, "layers.%lld.%s", (long long)i, name);
}

static void take_qkv(struct arena *a, const struct model *m, struct attn_kept *k, int64_t i)
{
    int64_t Tr, hq, hk, D = m->c->D;
    attn_kept_shape(m->layers[i < 0 ? 0 : i].attn, &Tr, &hq, &hk);
    k->q = arena_take(a, MEM_ACTIVATIONS, m->dt, Tr, hq, D, 0, "layers.%lld.attn.q", (long long)i);
    k->k = arena_take(a, MEM_ACTIVATIONS, m->dt, Tr, hk, D, 0, "layers.%lld.attn.k", (long long)i);
    k->v = arena_take(a, MEM_ACTIVATIONS, m->dt, Tr, hk, D, 0, "layers.%lld.attn.v", (long long)i);
}

/* Attention's output as the projection reads it, and what backward needs beside it. */
static void take_o(struct arena *a, const struct model *m, struct attn_kept *k, void **out, int64_t i)
{
    int64_t Tr, hq, hk;
    attn_kept_shape(m->layers[i < 0 ? 0 : i].attn, &Tr, &hq, &hk);
    *out = take(a, m, MEM_ACTIVATIONS, m->c->H * m->c->D, "attn.out", i);
    k->lse = arena_take(a, MEM_ACTIVATIONS, m->dt == DT_F64 ? DT_F64 : DT_F32, hq, Tr, 0, 0, "layers.%lld.attn.lse", (long long)i);
}

static void layout_kept(struct model *m, struct layer *l, int64_t i, struct arena *a)
{
    const struct model_config *c = m->c;
    if (m->policy >= ACT_OFFLOAD_HOST) return;
    l->x = take(a, m, MEM_ACTIVATIONS, c->C, "x", i);
    if (m->policy == ACT_LAYER) return;
    take_o(a, m, &l->kept, &l->a, i);
    if (m->policy == ACT_ATTENTION) return;
    take_qkv(a, m, &l->kept, i);
    l->x2 = take(a, m, MEM_ACTIVATIONS, c->C, "x2", i);
    l->g = take(a, m, MEM_ACTIVATIONS, c->F, "mlp.gate", i);
    l->u = take(a, m, MEM_ACTIVATIONS, c->F, "mlp.up", i);
    if (!c->qk_norm) return;
    l->q_raw = take(a, m, MEM_ACTIVATIONS, c->H * c->D, "attn.q_raw", i);
    l->k_raw = take(a, m, MEM_ACTIVATIONS, c->Hkv * c->D, "attn.k_raw", i);
}

void layer_layout(struct model *m, struct arena *a, struct arena *host)
{
    const struct model_config *c = m->c;
    for (int64_t i = 0; i < c->L; i++) layout_kept(m, &m->layers[i], i, a);
    if (m->policy >= ACT_OFFLOAD_HOST) offload_layout(m, a, host);
    bool keeps_x2 = m->policy == ACT_NONE;
    m->x_out = take(a, m, MEM_ACTIVATIONS, c->C, "x_out", -1);
    m->d = take(a, m, MEM_ACTIVATIONS, c->C, "dx", -1);
    m->rstd = arena_take(a, MEM_ACTIVATIONS, DT_F32, m->max_Tl, 0, 0, 0, "rstd");
    if (!keeps_x2) m->x2 = take(a, m, MEM_ACTIVATIONS, c->C, "x2", -1);
    if (m->policy >= ACT_LAYER) {       /* recomputed whole before the MLP's backward: must outlive its tiles */
        take_qkv(a, m, &m->kept, -1);
        take_o(a, m, &m->kept, &m->a, -1);
    }

    struct arena_mark mark = arena_mark(a);
    if (m->policy == ACT_ATTENTION) take_qkv(a, m, &m->kept, -1);
    m->h = take(a, m, MEM_ATTENTION, c->C, "attn.h", -1);
    m->q = take(a, m, MEM_ATTENTION, c->H * c->D, "attn.q_local", -1);
    m->k = take(a, m, MEM_ATTENTION, c->Hkv * c->D, "attn.k_local", -1);
    m->v = take(a, m, MEM_ATTENTION, c->Hkv * c->D, "attn.v_local", -1);
    m->dq = take(a, m, MEM_ATTENTION, c->H * c->D, "attn.dq", -1);
    if (c->qk_norm) {
        m->rstd_q = arena_take(a, MEM_ATTENTION, DT_F32, m->max_Tl, c->H, 0, 0, "attn.rstd_q");
        m->rstd_k = arena_take(a, MEM_ATTENTION, DT_F32, m->max_Tl, c->Hkv, 0, 0, "attn.rstd_k");
        if (m->policy != ACT_NONE) {
            m->q_raw = take(a, m, MEM_ATTENTION, c->H * c->D, "attn.q_raw", -1);
            m->k_raw = take(a, m, MEM_ATTENTION, c->Hkv * c->D, "attn.k_raw", -1);
        }
    }
    arena_release(a, mark);

    mark = arena_mark(a);
    m->t_h = arena_take(a, MEM_MLP, m->dt, m->mlp_tile, c->C, 0, 0, "mlp.h");
    m->t_dh = arena_take(a, MEM_MLP, m->dt, m->mlp_tile, c->C, 0, 0, "mlp.dh");
    m->t_g = arena_take(a, MEM_MLP, m->dt, m->mlp_tile, c->F, 0, 0, "mlp.g");
    m->t_u = arena_take(a, MEM_MLP, m->dt, m->mlp_tile, c->F, 0, 0, "mlp.u");
    m->t_s = arena_take(a, MEM_MLP, m->dt, m->mlp_tile, c->F, 0, 0, "mlp.s");
    m->t_ds = arena_take(a, MEM_MLP, m->dt, m->mlp_tile, c->F, 0, 0, "mlp.ds");
    arena_release(a, mark);
}
