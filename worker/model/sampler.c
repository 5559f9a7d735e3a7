/* sampler.c - see sampler.h. A chunk of new tokens goes through the layers; its keys and values join the cache, and its queries
 * see the cache through one rectangular span (diag = tokens read before). */
#include "worker/model/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/decoder.h"

struct sampler {
    struct model *m;
    int64_t max_len, len;
    void **k, **v;              /* [L] -> [max_len,Hkv,D] dt */
    float *lse;                 /* [H,chunk] */
    struct attn_span *dev_span;
    void *ws;
    float *logits;              /* host [V] */
    double *inv_freq;
};

static struct attn_shape shape(const struct sampler *s, int64_t n, int64_t layer)
{
    const struct model_config *c = s->m->c;
    bool sliding = c->window > 0 && layer >= c->window_from;
    return (struct attn_shape){ n, s->len + n, c->H, c->Hkv, c->D, (float)(1.0 / sqrt((double)c->D)), sliding ? c->window : 0 };
}

int sampler_new(struct sampler **out, struct model *m, int64_t max_len, struct arena *device, struct error *err)
{
    const struct model_config *c = m->c;
    (void)err;
    struct sampler *s = xcalloc(1, sizeof *s);
    *s = (struct sampler){ .m = m, .max_len = max_len };
    s->k = xcalloc((unsigned long)c->L, sizeof *s->k);
    s->v = xcalloc((unsigned long)c->L, sizeof *s->v);
    for (int64_t i = 0; i < c->L; i++) {
        s->k[i] = arena_take(device, MEM_ATTENTION, m->dt, max_len, c->Hkv, c->D, 0, "sample.%lld.k", (long long)i);
        s->v[i] = arena_take(device, MEM_ATTENTION, m->dt, max_len, c->Hkv, c->D, 0, "sample.%lld.v", (long long)i);
    }
    s->lse = arena_take(device, MEM_ATTENTION, DT_F32, c->H, m->max_Tl, 0, 0, "sample.lse");
    s->dev_span = arena_take(device, MEM_DATA, DT_U8, (int64_t)sizeof *s->dev_span, 0, 0, 0, "sample.span");
    struct attn_shape n = { m->max_Tl, max_len, c->H, c->Hkv, c->D, 1, 0 };
    s->ws = arena_take(device, MEM_WORKSPACE, DT_U8, (int64_t)m->ops->attn_ws(m->dt, n, 1), 0, 0, 0, "sample.ws");
    s->logits = xmalloc((unsigned long)c->V * sizeof *s->logits);
    s->inv_freq = xmalloc((unsigned long)(c->D / 2) * sizeof *s->inv_freq);
    *out = s;
    return OK;
}

void sampler_free(struct sampler *s)
{
    if (!s) return;
    free(s->k);
    free(s->v);
    free(s->logits);
    free(s->inv_freq);
    free(s);
}

static int norm(struct model *m, void *y, const void *x, const struct param *w, int64_t n, int64_t C)
{
    return model_op(m, "rmsnorm", m->ops->rmsnorm_fwd(m->s, m->dt, y, NULL, x, w->w, n, C, m->c->eps));
}

/* x2 += a Wo: the attention half on n tokens in m->d; result in m->x_out. */
static int attention(struct sampler *s, int64_t i, int64_t n)
{
    struct model *m = s->m;
    const struct model_config *c = m->c;
    struct layer *l = &m->layers[i];
    size_t at = (size_t)(s->len * c->Hkv * c->D) * dtype_size(m->dt);
    void *k = (char *)s->k[i] + at, *v = (char *)s->v[i] + at;
    int64_t zero = 0;
    TRY(norm(m, m->h, m->d, l->norm1, n, c->C));
    TRY(linear_fwd(m, &l->q, m->q, m->h, n, 0));
    TRY(linear_fwd(m, &l->k, m->k, m->h, n, 0));
    TRY(linear_fwd(m, &l->v, v, m->h, n, 0));
    if (c->qk_norm) {
        TRY(norm(m, m->dq, m->q, l->qnorm, n * c->H, c->D));
        TRY(norm(m, k, m->k, l->knorm, n * c->Hkv, c->D));
    }
    TRY(model_op(m, "rope", m->ops->rope_pack(m->s, m->dt, m->q, 0, c->qk_norm ? m->dq : m->q, m->cos, m->sin, &zero, n, c->H, c->D, 1, c->H)));
    TRY(model_op(m, "rope", m->ops->rope_pack(m->s, m->dt, k, 0, c->qk_norm ? k : m->k, m->cos, m->sin, &zero, n, c->Hkv, c->D, 1, c->Hkv)));
    struct attn_span span = { 0, n, 0, s->len + n, s->len };
    TRY(model_op(m, "copy", m->ops->copy(m->s, s->dev_span, &span, sizeof span)));
    TRY(m->ops->stream_wait(m->s, m->err));             /* span is on our stack */
    struct attn_spans spans = { &span, s->dev_span, 1 };
    TRY(model_op(m, "attention", m->ops->attn_fwd(m->s, m->dt, m->dt, m->dq, s->lse, m->q, s->k[i], s->v[i], shape(s, n, i), spans, false, s->ws)));
    TRY(linear_fwd(m, &l->o, m->x_out, m->dq, n, 0));
    return model_op(m, "add", m->ops->add(m->s, m->dt, m->x_out, m->x_out, m->d, n * c->C));
}

/* m->d = x2 + MLP(x2) of m->x_out. */
static int mlp(struct model *m, struct layer *l, int64_t n)
{
    const struct model_config *c = m->c;
    for (int64_t i = 0; i < n; i += m->mlp_tile) {
        int64_t k = n - i < m->mlp_tile ? n - i : m->mlp_tile;
        size_t at = (size_t)(i * c->C) * dtype_size(m->dt);
        TRY(norm(m, m->t_h, (char *)m->x_out + at, l->norm2, k, c->C));
        TRY(linear_fwd(m, &l->gate, m->t_g, m->t_h, k, 0));
        TRY(linear_fwd(m, &l->up, m->t_u, m->t_h, k, 0));
        TRY(model_op(m, "swiglu", m->ops->swiglu_fwd(m->s, m->dt, m->t_s, m->t_g, m->t_u, k * c->F)));
        TRY(linear_fwd(m, &l->down, (char *)m->d + at, m->t_s, k, 0));
        TRY(model_op(m, "add", m->ops->add(m->s, m->dt, (char *)m->d + at, (char *)m->d + at, (char *)m->x_out + at, k * c->C)));
    }
    return OK;
}

/* Reads n <= max_Tl tokens; s->logits: after the last one. */
static int feed(struct sampler *s, const int32_t *ids, int64_t n)
{
    struct model *m = s->m;
    const struct model_config *c = m->c;
    double factor;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= c->V) return error_set(m->err, E_INVALID, "prompt: id %d is not in the model's vocabulary of %lld", ids[i], (long long)c->V);
        m->h_ids[i] = ids[i];
        m->h_pos[i] = (int32_t)(s->len + i);
    }
    model_config_rope(c, s->max_len, s->inv_freq, &factor);
    float *f32 = xmalloc((unsigned long)(c->D / 2) * sizeof *f32);
    for (int64_t i = 0; i < c->D / 2; i++) f32[i] = (float)s->inv_freq[i];
    int rc = model_op(m, "copy", m->ops->copy(m->s, m->ids, m->h_ids, (size_t)n * 4));
    if (rc == OK) rc = model_op(m, "copy", m->ops->copy(m->s, m->pos, m->h_pos, (size_t)n * 4));
    if (rc == OK) rc = model_op(m, "copy", m->ops->copy(m->s, m->inv_freq, f32, (size_t)(c->D / 2) * 4));
    if (rc == OK) rc = m->ops->stream_wait(m->s, m->err);
    free(f32);
    TRY(rc);
    TRY(model_op(m, "rope table", m->ops->rope_table(m->s, m->cos, m->sin, m->pos, m->inv_freq, n, c->D, (float)factor)));
    TRY(model_op(m, "embedding", m->ops->embed_fwd(m->s, m->dt, m->d, m->embed->w, m->ids, n, c->C, c->V)));
    for (int64_t i = 0; i < c->L; i++) {
        TRY(attention(s, i, n));
        TRY(mlp(m, &m->layers[i], n));
    }
    s->len += n;
    return head_logits(m, m->d, n - 1, 1, s->logits);
}

static int feed_all(struct sampler *s, const int32_t *ids, int64_t n)
{
    s->len = 0;
    s->m->train = false;
    if (n < 1 || n > s->max_len) return error_set(s->m->err, E_LIMIT, "a prompt of %lld tokens, expected 1 to %lld", (long long)n, (long long)s->max_len);
    for (int64_t i = 0; i < n; i += s->m->max_Tl) TRY(feed(s, ids + i, n - i < s->m->max_Tl ? n - i : s->m->max_Tl));
    return OK;
}

int sampler_logits(struct sampler *s, const int32_t *prompt, int64_t n, float *logits, struct error *err)
{
    s->m->err = err;
    TRY(feed_all(s, prompt, n));
    memcpy(logits, s->logits, (size_t)s->m->c->V * sizeof *logits);
    return OK;
}

static double uniform(uint64_t *state)          /* splitmix64, (0,1) */
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return ((double)((x ^ x >> 31) >> 11) + 0.5) * 0x1p-53;
}

static int32_t pick(const float *z, int64_t V, double temperature, uint64_t *state)
{
    int64_t best = 0;
    for (int64_t i = 1; i < V; i++) if (z[i] > z[best]) best = i;
    if (temperature <= 0) return (int32_t)best;
    double sum = 0;
    for (int64_t i = 0; i < V; i++) sum += exp(((double)z[i] - (double)z[best]) / temperature);
    double left = uniform(state) * sum;
    for (int64_t i = 0; i < V; i++) if ((left -= exp(((double)z[i] - (double)z[best]) / temperature)) <= 0) return (int32_t)i;
    return (int32_t)best;
}

int sampler_run(struct sampler *s, const int32_t *prompt, int64_t n, const struct sample_options *o, int32_t *out, int64_t *n_out, struct error *err)
{
    uint64_t state = o->seed;
    s->m->err = err;
    *n_out = 0;
    TRY(feed_all(s, prompt, n));
    while (*n_out < o->max_new) {
        int32_t id = pick(s->logits, s->m->c->V, o->temperature, &state);
        for (int64_t i = 0; i < o->n_stop; i++) if (o->stop[i] == id) return OK;
        out[(*n_out)++] = id;
        if (s->len == s->max_len) return OK;
        if (*n_out < o->max_new) TRY(feed(s, &id, 1));
    }
    return OK;
}
