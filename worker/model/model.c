/* model.c - a rank's decoder from the outside: layout, row, sweep. See model.h; the layers are layer.c, the loss head.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/clock.h"
#include "worker/failpoint.h"
#include "worker/model/decoder.h"

enum { MLP_TILE_BYTES = 32 << 20, MLP_TILE_MIN_ROWS = 128, LORA_TILE_BYTES = 32 << 20 };

const char *const act_policy_names[ACT_POLICIES] = {
    [ACT_NONE] = "none", [ACT_ATTENTION] = "attention", [ACT_LAYER] = "layer", [ACT_OFFLOAD_HOST] = "offload_host", [ACT_OFFLOAD_DISK] = "offload_disk",
};

enum act_policy act_policy_by_name(const char *name)
{
    int i = 0;
    while (i < ACT_POLICIES && strcmp(name, act_policy_names[i]) != 0) i++;
    return (enum act_policy)i;
}

/* --- layout --- */
static int choose_attention(struct model *m, struct arena *device, struct arena *shared, struct arena *host, struct error *err)
{
    const struct model_config *c = m->c;
    for (int64_t i = 0; i < c->L; i++) {
        bool sliding = c->window > 0 && i >= c->window_from;
        struct attn_group **g = &m->attn[sliding];
        struct attn_dims d = { .dt = m->dt, .H = c->H, .Hkv = c->Hkv, .D = c->D, .max_T = m->max_T, .max_docs = m->max_docs,
                               .window = sliding ? c->window : 0, .scale = (float)(1.0 / sqrt((double)c->D)), .overlap = m->spec->enable_sequence_overlap,
                               .exchange_limit = m->spec->exchange_limit_bytes };
        if (!*g) TRY(attn_group_new(g, m->ops, m->mesh, d, device, shared, host, err));
        m->layers[i].attn = *g;
    }
    return OK;
}

static void layout_row(struct model *m, struct arena *device, struct arena *host)
{
    int64_t N = m->max_Tl, half = m->c->D / 2;
    m->index = arena_take(host, MEM_DATA, DT_I64, N, 0, 0, 0, "row.index");
    m->h_ids = arena_take(host, MEM_DATA, DT_I32, N, 0, 0, 0, "row.ids.host");
    m->h_labels = arena_take(host, MEM_DATA, DT_I32, N, 0, 0, 0, "row.labels.host");
    m->h_pos = arena_take(host, MEM_DATA, DT_I32, N, 0, 0, 0, "row.positions.host");
    m->h_weights = arena_take(host, MEM_DATA, DT_F32, N, 0, 0, 0, "row.weights.host");
    m->ids = arena_take(device, MEM_DATA, DT_I32, N, 0, 0, 0, "row.ids");
    m->labels = arena_take(device, MEM_DATA, DT_I32, N, 0, 0, 0, "row.labels");
    m->pos = arena_take(device, MEM_DATA, DT_I32, N, 0, 0, 0, "row.positions");
    m->weights = arena_take(device, MEM_DATA, DT_F32, N, 0, 0, 0, "row.weights");
    m->cos = arena_take(device, MEM_DATA, DT_F32, N, half, 0, 0, "rope.cos");
    m->sin = arena_take(device, MEM_DATA, DT_F32, N, half, 0, 0, "rope.sin");
    m->inv_freq = arena_take(device, MEM_DATA, DT_F32, half, 0, 0, 0, "rope.inv_freq");
}

static int64_t norm_ws_bytes(const struct model *m)
{
    const struct model_config *c = m->c;
    size_t most = m->ops->rmsnorm_bwd_ws(m->max_Tl, c->C);
    size_t q = c->qk_norm ? m->ops->rmsnorm_bwd_ws(m->max_Tl * c->H, c->D) : 0;
    return (int64_t)(q > most ? q : most);
}

static int read_options(struct model *m, const struct model_options *o, struct error *err)
{
    const struct spec *s = o->spec;
    const struct mesh *mesh = o->mesh;
    *m = (struct model){ .spec = s, .c = o->config, .ops = o->ops, .mesh = mesh, .policy = o->policy, .dt = spec_dtype(s), .max_T = o->max_T,
                         .max_docs = o->max_docs, .P = (int64_t)mesh->R * mesh->U, .offload_fd = -1 };
    m->lora = s->tuner_type && strcmp(s->tuner_type, "lora") == 0;
    m->dora = m->lora && s->use_dora;
    m->max_r = 1;
    m->dropout = m->lora ? (float)s->lora_dropout : 0;
    if (m->dora && !m->ops->col_scale) return error_set(err, E_UNSUPPORTED, "use_dora: not built for %s; use device cpu", m->ops->name);
    m->max_Tl = (m->max_T + m->P - 1) / m->P;
    m->max_T = m->max_Tl * m->P;
    m->mlp_tile = MLP_TILE_BYTES / (m->c->F * (int64_t)dtype_size(m->dt));
    if (m->mlp_tile < MLP_TILE_MIN_ROWS) m->mlp_tile = MLP_TILE_MIN_ROWS;
    m->lora_tile = LORA_TILE_BYTES / (4 * (m->c->F > m->c->H * m->c->D ? m->c->F : m->c->H * m->c->D));
    if (m->lora_tile < MLP_TILE_MIN_ROWS) m->lora_tile = MLP_TILE_MIN_ROWS;
    m->z_tile = head_tile_rows(m);
    int64_t *const tiles[] = { &m->mlp_tile, &m->lora_tile, &m->z_tile };
    for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; i++) {
        if (o->tile_rows > 0 && *tiles[i] > o->tile_rows) *tiles[i] = o->tile_rows;
        if (*tiles[i] > m->max_Tl) *tiles[i] = m->max_Tl;
    }
    return OK;
}

int model_new(struct model **out, const struct model_options *o, struct stream *s, struct arena *device, struct arena *shared, struct arena *host, struct error *err)
{
    struct model *m = xcalloc(1, sizeof *m);
    int rc = read_options(m, o, err);
    *out = m;
    if (rc != OK) goto out;
    m->s = s;
    m->planning = device->base == NULL;
    m->layers = xcalloc((unsigned long)m->c->L, sizeof *m->layers);
    if ((rc = params_build(m, device, shared, host, err)) != OK) goto out;
    if ((rc = choose_attention(m, device, shared, host, err)) != OK) goto out;
    layout_row(m, device, host);
    linear_layout(m, device);
    m->norm_ws = arena_take(device, MEM_WORKSPACE, DT_U8, norm_ws_bytes(m), 0, 0, 0, "norm.workspace");
    layer_layout(m, device, host);
    head_layout(m, device, host);
    arena_settle(device);               /* what others take next must not lie over the scratch */
    if (!m->planning) rc = offload_open(m, err);
out:
    if (rc != OK) { model_free(m); *out = NULL; }
    return rc;
}

void model_free(struct model *m)
{
    if (!m) return;
    attn_group_free(m->attn[0]);
    attn_group_free(m->attn[1]);
    layout_release(&m->layout);
    offload_close(m);
    params_release(&m->params);
    cJSON_Delete(m->peft);
    zero_free(m->zero);
    zero_weights_free(m->shards);
    free(m->unit_first);
    free(m->layers);
    free(m);
}

struct params *model_params(struct model *m) { return &m->params; }

/* Full and sliding layers differ in their spans, not in the kernel. */
const char *model_attention(struct model *m)
{
    const char *wish = m->spec->attn_impl;
    return attn_group_choose(m->attn[m->attn[0] ? 0 : 1], m->s, strcmp(wish, "eager") == 0 ? ATTN_EAGER : strcmp(wish, "flash") == 0 ? ATTN_FLASH : ATTN_AUTO);
}

/* --- the row --- */
static int cut_row(struct model *m, const struct row *row)
{
    const struct model_config *c = m->c;
    m->weight_sum = m->count = 0;
    m->last_real = row->cu[1] - 1;
    for (int64_t i = 0; i < m->Tl; i++) {
        int64_t t = m->index[i];
        if (row->ids[t] < 0 || row->ids[t] >= c->V || row->labels[t] >= c->V)
            return error_set(m->err, E_INVALID, "row %lld of epoch %lld: token %lld has id %d, label %d; the model's vocabulary has %lld entries", (long long)row->index,
                             (long long)row->epoch, (long long)t, row->ids[t], row->labels[t], (long long)c->V);
        m->h_ids[i] = row->ids[t];
        m->h_labels[i] = row->labels[t] < 0 ? -100 : row->labels[t];
        m->h_pos[i] = row->positions[t];
        m->h_weights[i] = row->labels[t] < 0 ? 0 : row->weights[t];
        m->weight_sum += (double)m->h_weights[i];
        m->count += row->labels[t] >= 0;
    }
    return OK;
}

/* cos and sin of tokens [i, i+n), with the frequencies of a document of `longest` tokens. */
static int rotate_as(struct model *m, int64_t longest, int64_t i, int64_t n)
{
    int64_t half = m->c->D / 2;
    double factor, *f64 = xmalloc((unsigned long)half * sizeof *f64);
    float *f32 = xmalloc((unsigned long)half * sizeof *f32);
    model_config_rope(m->c, longest, f64, &factor);
    for (int64_t k = 0; k < half; k++) f32[k] = (float)f64[k];
    int rc = model_op(m, "copy", m->ops->copy(m->s, m->inv_freq, f32, (size_t)half * sizeof *f32));
    if (rc == OK) rc = model_op(m, "rope table", m->ops->rope_table(m->s, m->cos + i * half, m->sin + i * half, m->pos + i, m->inv_freq, n, m->c->D, (float)factor));
    if (rc == OK) rc = m->ops->stream_wait(m->s, m->err);       /* f32 goes away */
    free(f64);
    free(f32);
    return rc;
}

/* Dynamic scaling looks at a sequence's length, and a packed row must equal its documents one by one: each longer than the
 * original length has frequencies of its own. */
static int rotate_long_documents(struct model *m, const struct row *row)
{
    for (int64_t i = 0, d = 0; i < m->Tl;) {
        while (row->cu[d + 1] <= m->index[i]) d++;              /* local order is ascending */
        int64_t n = 1, len = row->cu[d + 1] - row->cu[d];
        while (i + n < m->Tl && m->index[i + n] < row->cu[d + 1]) n++;
        if (len > m->c->max_positions) TRY(rotate_as(m, len, i, n));
        i += n;
    }
    return OK;
}

static int send_row(struct model *m, const struct row *row)
{
    int64_t N = m->Tl;
    struct { void *dst; const void *src; } copies[] = { { m->ids, m->h_ids }, { m->labels, m->h_labels }, { m->pos, m->h_pos }, { m->weights, m->h_weights } };
    for (size_t i = 0; i < sizeof copies / sizeof copies[0]; i++)
        TRY(model_op(m, "copy", m->ops->copy(m->s, copies[i].dst, copies[i].src, (size_t)N * 4)));
    TRY(rotate_as(m, 0, 0, N));
    return m->c->rope.type == ROPE_DYNAMIC ? rotate_long_documents(m, row) : OK;
}

int model_row(struct model *m, const struct row *row, struct error *err)
{
    m->err = err;
    if (row->T > m->max_T || row->n_docs > m->max_docs || row->T % m->P != 0)
        return error_set(err, E_INTERNAL, "row of %lld tokens in %lld documents; buffers are for %lld in %lld, a multiple of %lld", (long long)row->T, (long long)row->n_docs,
                         (long long)m->max_T, (long long)m->max_docs, (long long)m->P);
    layout_release(&m->layout);
    TRY(layout_build(&m->layout, row->cu, row->n_docs, row->T, m->mesh->R, m->mesh->U, err));
    m->T = row->T;
    m->Tl = row->T / m->P;
    m->row_key = (uint64_t)row->epoch << 40 ^ (uint64_t)row->index;
    layout_index(&m->layout, m->mesh->r, m->mesh->u, m->index);
    TRY(cut_row(m, row));
    TRY(send_row(m, row));
    for (int i = 0; i < 2; i++) if (m->attn[i]) TRY(attn_group_row(m->attn[i], m->s, &m->layout, m->cos, m->sin, err));
    return OK;
}

/* --- the sweep --- */
static int forward(struct model *m)
{
    const struct model_config *c = m->c;
    TRY(params_open(m, 0, 1));
    TRY(model_op(m, "embedding", m->ops->embed_fwd(m->s, m->dt, m->layers[0].x, m->embed->w, m->ids, m->Tl, c->C, c->V)));
    params_close(m, 0);
    for (int64_t i = 0; i < c->L; i++) {
        if (i == c->L / 2) failpoint("forward");
        TRY(params_open(m, i + 1, i + 2));
        if (m->train) TRY(offload_make_room(m, i));
        TRY(layer_fwd(m, &m->layers[i], i + 1 < c->L ? m->layers[i + 1].x : m->x_out));
        params_close(m, i + 1);
        if (m->train) TRY(offload_put(m, i));
    }
    return OK;
}

/* torch's Embedding takes no gradient into its padding row; what the head gives a tied row still counts. */
static int mute_padding(struct model *m)
{
    size_t row = (size_t)m->c->C * dtype_size(m->dt);
    for (int64_t i = 0; i < m->Tl;) {
        int64_t n = 0;
        while (i + n < m->Tl && m->h_ids[i + n] == m->c->pad_id) n++;
        if (n > 0) TRY(model_op(m, "zero", m->ops->zero(m->s, (char *)m->d + (size_t)i * row, (size_t)n * row)));
        i += n > 0 ? n : 1;
    }
    return OK;
}

/* The final norm and the head, which may be the embedding. */
static int open_head(struct model *m)
{
    TRY(params_open(m, m->c->L + 1, -1));
    return m->head == m->embed ? params_open(m, 0, -1) : OK;
}

static void close_head(struct model *m)
{
    params_close(m, m->c->L + 1);
    if (m->head == m->embed) params_close(m, 0);
}

int model_forward_backward(struct model *m, double scale, struct model_loss *out, struct error *err)
{
    const struct model_config *c = m->c;
    m->err = err;
    m->train = true;
    double start = monotonic_s();
    TRY(forward(m));
    bool tied = m->head == m->embed;
    TRY(params_open_grads(m, c->L + 1));
    if (tied) TRY(params_open_grads(m, 0));
    TRY(open_head(m));
    TRY(head_run(m, m->x_out, scale, true, out));
    close_head(m);
    TRY(params_close_grads(m, c->L + 1));
    double middle = monotonic_s();
    for (int64_t i = c->L; i-- > 0;) {
        if (i == c->L / 2) failpoint("backward");
        TRY(offload_get(m, i));
        TRY(params_open_grads(m, i + 1));
        TRY(params_open(m, i + 1, i > 0 ? i : -1));
        TRY(layer_bwd(m, &m->layers[i]));
        params_close(m, i + 1);
        TRY(params_close_grads(m, i + 1));
    }
    if (!tied) TRY(params_open_grads(m, 0));
    if (m->embed->g) TRY(mute_padding(m));
    if (m->embed->g) TRY(model_op(m, "embedding gradient", m->ops->embed_bwd(m->s, m->dt, m->embed->g, m->d, m->ids, m->Tl, c->C, c->V)));
    TRY(params_close_grads(m, 0));
    if (m->zero) TRY(zero_finish(m->zero, m->s, err));
    TRY(m->ops->stream_wait(m->s, err));
    out->forward_s += middle - start;
    out->backward_s += monotonic_s() - middle;
    return OK;
}

int model_eval(struct model *m, struct model_loss *out, struct error *err)
{
    m->err = err;
    m->train = false;
    TRY(forward(m));
    TRY(open_head(m));
    TRY(head_run(m, m->x_out, 0, false, out));
    close_head(m);
    return OK;
}

int model_logits(struct model *m, int64_t from, int64_t n, float *out, struct error *err)
{
    m->err = err;
    m->train = false;
    TRY(forward(m));
    TRY(open_head(m));
    TRY(head_logits(m, m->x_out, from, n, out));
    close_head(m);
    return OK;
}

int model_last_logits(struct model *m, float *logits, bool *mine, struct error *err)
{
    int64_t at = 0;
    while (at < m->Tl && m->index[at] != m->last_real) at++;
    *mine = at < m->Tl;
    m->err = err;
    m->train = false;
    TRY(forward(m));
    TRY(open_head(m));
    if (*mine) TRY(head_logits(m, m->x_out, at, 1, logits));
    close_head(m);
    return OK;
}

int model_zero_grads(struct model *m, struct error *err)
{
    m->err = err;
    return m->zero ? zero_clear(m->zero, m->s, err) : model_op(m, "zero", m->ops->zero(m->s, m->params.flat_g, (size_t)m->params.n_g * sizeof(float)));
}

int model_weights_changed(struct model *m, struct error *err)
{
    m->err = err;
    if (m->shards) TRY(zero_weights_changed(m->shards, m->s, err));
    TRY(params_refresh(m));
    for (int64_t i = 0; m->dora && i < m->c->L; i++) {
        for (int k = 0; k < LAYER_LINEARS; k++) {
            struct linear *l = layer_linear(&m->layers[i], k);
            if (l->mag) TRY(dora_refresh(m, l, false));
        }
    }
    return OK;
}

int model_collect(struct model *m, bool keep, struct error *err)
{
    m->err = err;
    return m->shards && !m->lora ? zero_weights_collect(m->shards, m->s, keep, err) : OK;      /* with adapters, what is sharded is not saved */
}

void model_saved(struct model *m)
{
    if (m->shards) zero_weights_drop(m->shards);
}
