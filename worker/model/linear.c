/* linear.c - linear layers, plain and with adapters, forward and backward.
 *
 * y = x W^T + b + s drop(x) A^T B^T.  Frozen weights cost no dW. The adapter works through tiles of tokens, so that its scratch does
 * not grow with the row; t = drop(x) A^T is computed again in backward rather than kept. Dropout's mask is a function of (seed,
 * row, linear, position in the row, column): the same for any number of ranks and in forward and backward.
 * Source: Hu et al. 2106.09685; gradients: dB = s dy^T t, dt = s dy B, dA = dt^T drop(x), dx += drop'(dt A). */
#include <math.h>
#include <stdlib.h>

#include "worker/model/decoder.h"

enum { DORA_ROWS = 256 };

int model_op(struct model *m, const char *what, int rc)
{
    return rc == OK ? OK : error_set(m->err, (enum status)rc, "%s: %s", what, m->ops->error(m->s));
}

/* y[N,out] = alpha x[N,in] w[out,in]^T + beta y, all of type dt */
static int product_nt(struct model *m, enum dtype dt, void *y, const void *x, const void *w, int64_t N, int64_t out, int64_t in, float alpha, float beta)
{
    return model_op(m, "matmul", m->ops->matmul(m->s, dt, y, out, dt, x, in, false, dt, w, in, true, N, out, in, alpha, beta, m->ws, (size_t)m->ws_bytes));
}

/* dx[N,in] = alpha dy[N,out] w[out,in] + beta dx */
static int product_nn(struct model *m, enum dtype dt, void *dx, const void *dy, const void *w, int64_t N, int64_t in, int64_t out, float alpha, float beta)
{
    return model_op(m, "matmul", m->ops->matmul(m->s, dt, dx, in, dt, dy, out, false, dt, w, in, false, N, in, out, alpha, beta, m->ws, (size_t)m->ws_bytes));
}

/* dw[out,in] f32 += alpha dy[N,out]^T x[N,in] */
static int product_tn(struct model *m, enum dtype dt, float *dw, const void *dy, const void *x, int64_t out, int64_t in, int64_t N, float alpha)
{
    return model_op(m, "matmul", m->ops->matmul(m->s, DT_F32, dw, in, dt, dy, out, true, dt, x, in, false, out, in, N, alpha, 1, m->ws, (size_t)m->ws_bytes));
}

static int cast(struct model *m, enum dtype to, void *y, enum dtype from, const void *x, int64_t n)
{
    return model_op(m, "cast", m->ops->cast(m->s, to, y, from, x, n));
}

static uint64_t mix(uint64_t x)         /* splitmix64's finaliser */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* out[n,in] = dropout(x[n,in]) of the tokens from row0 on, one call for each run of neighbours in the row. */
static int drop(struct model *m, enum dtype dt, const struct linear *l, void *out, const void *x, int64_t n, int64_t row0)
{
    uint64_t seed = mix(mix((uint64_t)m->spec->seed ^ mix(m->row_key)) + l->id);
    size_t row_bytes = (size_t)l->in * dtype_size(dt);
    for (int64_t i = 0; i < n;) {
        int64_t at = m->index[row0 + i], run = 1;
        while (i + run < n && m->index[row0 + i + run] == at + run) run++;
        TRY(model_op(m, "dropout", m->ops->dropout(m->s, dt, (char *)out + (size_t)i * row_bytes, (const char *)x + (size_t)i * row_bytes,
                                                   m->dropout, seed, (uint64_t)at * (uint64_t)l->in, run * l->in)));
        i += run;
    }
    return OK;
}

static bool drops(const struct model *m) { return m->train && m->dropout > 0; }

/* --- LoRA. Adapters are f32 whatever the activations are (m->params.dt; PEFT does the same): thin products cost little, and what is
 * trained is not rounded. --- */

/* Products of the activations' type summed and left in f32: y[N,out] = alpha x w^T + beta y, dx[N,in] = alpha dy w + beta dx. */
static int product_nt_f32(struct model *m, float *y, const void *x, const void *w, int64_t N, int64_t out, int64_t in, float alpha, float beta)
{
    return model_op(m, "matmul", m->ops->matmul(m->s, DT_F32, y, out, m->dt, x, in, false, m->dt, w, in, true, N, out, in, alpha, beta, m->ws, (size_t)m->ws_bytes));
}

static int product_nn_f32(struct model *m, float *dx, const void *dy, const void *w, int64_t N, int64_t in, int64_t out, float alpha, float beta)
{
    return model_op(m, "matmul", m->ops->matmul(m->s, DT_F32, dx, in, m->dt, dy, out, false, m->dt, w, in, false, N, in, out, alpha, beta, m->ws, (size_t)m->ws_bytes));
}

/* x as the adapter reads it: in its type, dropped; x itself when there is nothing to do. l_dx is scratch. */
static int adapter_input(struct model *m, const struct linear *l, const void **xa, const void *x, int64_t n, int64_t row0)
{
    enum dtype at = m->params.dt;
    *xa = x;
    if (at != m->dt) {
        TRY(cast(m, at, drops(m) ? m->l_dx : m->l_x, m->dt, x, n * l->in));
        *xa = drops(m) ? m->l_dx : m->l_x;
    }
    if (!drops(m)) return OK;
    TRY(drop(m, at, l, m->l_x, *xa, n, row0));
    *xa = m->l_x;
    return OK;
}

static int add_f32(struct model *m, float *y, const float *x, float a, int64_t n) { return model_op(m, "axpy", m->ops->axpy(m->s, DT_F32, y, DT_F32, x, a, n)); }

/* dx = sum (f32), or += when add; l_y is scratch. */
static int store_dx(struct model *m, void *dx, bool add, float *sum, int64_t n)
{
    if (add) {
        TRY(cast(m, DT_F32, m->l_y, m->dt, dx, n));
        TRY(add_f32(m, sum, m->l_y, 1, n));
    }
    return cast(m, m->dt, dx, DT_F32, sum, n);
}

/* --- DoRA: y = c (xd W^T + s xd A^T B^T) + (x - xd) W^T + b, c = mag / |W + s B A| by row, xd = drop(x), the norm held constant; all
 * of it in f32 but for the products with W, which take the activations' type.
 * Source: Liu et al. 2402.09353 §4.3, as PEFT computes it. --- */
static int scale_columns(struct model *m, float *y, const float *x, const float *c, int64_t n, int64_t C)
{
    return model_op(m, "DoRA scale", m->ops->col_scale(m->s, DT_F32, y, x, c, n, C));
}

/* l_t = xd A^T, l_y = xd W^T + s l_t B^T; *xa = xd in f32, in l_x or x itself. Uses l_dx. minus: if given, loses xd W^T on the way. */
static int dora_inner(struct model *m, const struct linear *l, const void **xa, const void *x, float *minus, int64_t n, int64_t row0)
{
    TRY(adapter_input(m, l, xa, x, n, row0));
    TRY(product_nt(m, DT_F32, m->l_t, *xa, l->A->w, n, l->r, l->in, 1, 0));
    const void *xd = drops(m) ? *xa : x;                /* as the product with W takes it */
    if (drops(m) && m->dt != DT_F32) {
        TRY(cast(m, m->dt, m->l_dx, DT_F32, *xa, n * l->in));
        xd = m->l_dx;
    }
    TRY(product_nt_f32(m, m->l_y, xd, l->w->w, n, l->out, l->in, 1, 0));
    if (minus) TRY(add_f32(m, minus, m->l_y, -1, n * l->out));
    return product_nt(m, DT_F32, m->l_y, m->l_t, l->B->w, n, l->out, l->r, l->scale, 1);
}

/* With dropout y holds x W^T; without, it is not read. */
static int dora_fwd(struct model *m, const struct linear *l, void *y, const void *x, int64_t n, int64_t row0)
{
    const void *xa;
    if (drops(m)) TRY(cast(m, DT_F32, m->l_w, m->dt, y, n * l->out));
    TRY(dora_inner(m, l, &xa, x, drops(m) ? m->l_w : NULL, n, row0));
    TRY(scale_columns(m, m->l_y, m->l_y, l->c, n, l->out));
    if (drops(m)) TRY(add_f32(m, m->l_y, m->l_w, 1, n * l->out));
    return cast(m, m->dt, y, DT_F32, m->l_y, n * l->out);
}

static int dora_bwd(struct model *m, const struct linear *l, void *dx, bool add, const void *dy, const void *x, int64_t n, int64_t row0)
{
    const void *xa, *cdy = m->l_y;
    TRY(dora_inner(m, l, &xa, x, NULL, n, row0));
    TRY(cast(m, DT_F32, m->l_dx, m->dt, dy, n * l->out));
    TRY(model_op(m, "DoRA gradient", m->ops->col_dot(m->s, DT_F32, l->mag->g, m->l_dx, m->l_y, l->inv_norm, n, l->out)));
    TRY(scale_columns(m, m->l_y, m->l_dx, l->c, n, l->out));
    TRY(product_tn(m, DT_F32, l->B->g, m->l_y, m->l_t, l->out, l->r, n, l->scale));
    TRY(product_nn(m, DT_F32, m->l_dt, m->l_y, l->B->w, n, l->r, l->out, l->scale, 0));
    TRY(product_tn(m, DT_F32, l->A->g, m->l_dt, xa, l->r, l->in, n, 1));
    if (!dx) return OK;
    if (m->dt != DT_F32) {                              /* x is used up */
        TRY(cast(m, m->dt, m->l_x, DT_F32, m->l_y, n * l->out));
        cdy = m->l_x;
    }
    TRY(product_nn(m, DT_F32, m->l_dx, m->l_dt, l->A->w, n, l->in, l->r, 1, 0));
    TRY(product_nn_f32(m, m->l_dx, cdy, l->w->w, n, l->in, l->out, 1, 1));
    float *sum = m->l_dx;
    if (drops(m)) {
        TRY(product_nn_f32(m, m->l_dx, dy, l->w->w, n, l->in, l->out, -1, 1));
        TRY(drop(m, DT_F32, l, m->l_x, m->l_dx, n, row0));
        TRY(product_nn_f32(m, m->l_x, dy, l->w->w, n, l->in, l->out, 1, 1));
        sum = m->l_x;
    }
    return store_dx(m, dx, add, sum, n * l->in);
}

/* inv_norm and c of one linear, from the weights as they are now. */
int dora_refresh(struct model *m, struct linear *l, bool init_mag)
{
    const struct kernel_ops *ops = m->ops;
    int64_t rows = m->dora_rows, in = l->in, r = l->r;
    size_t size = dtype_size(m->dt), ws = (size_t)m->ws_bytes, bytes = (size_t)l->out * sizeof(float);
    float *inv = xmalloc(3 * bytes), *c = inv + l->out, *mag = c + l->out;
    int rc = OK;
    for (int64_t o = 0; o < l->out && rc == OK; o += rows) {
        int64_t n = l->out - o < rows ? l->out - o : rows;
        rc = ops->cast(m->s, DT_F32, m->l_w, m->dt, (char *)l->w->w + (size_t)(o * in) * size, n * in);
        if (rc == OK) rc = ops->matmul(m->s, DT_F32, m->l_w, in, DT_F32, (float *)l->B->w + o * r, r, false, DT_F32, l->A->w, in, false, n, in, r, l->scale, 1, m->ws, ws);
        if (rc == OK) rc = ops->rmsnorm_fwd(m->s, DT_F32, m->l_wy, l->inv_norm + o, m->l_w, m->ones, n, in, 0);
    }
    if (rc == OK) rc = ops->copy(m->s, inv, l->inv_norm, bytes);
    if (rc == OK && !init_mag) rc = ops->copy(m->s, mag, l->mag->w, bytes);
    rc = model_op(m, "DoRA norm", rc);
    if (rc == OK) rc = ops->stream_wait(m->s, m->err);
    for (int64_t o = 0; o < l->out && rc == OK; o++) {
        inv[o] = isfinite(inv[o]) ? inv[o] / sqrtf((float)in) : 0;              /* 1 / norm; a row of zeros stays zero */
        if (init_mag) mag[o] = inv[o] > 0 ? 1 / inv[o] : 0;
        c[o] = mag[o] * inv[o];
    }
    if (rc == OK) rc = model_op(m, "copy", ops->copy(m->s, l->inv_norm, inv, bytes));
    if (rc == OK) rc = model_op(m, "copy", ops->copy(m->s, l->c, c, bytes));
    if (rc == OK && init_mag) rc = model_op(m, "copy", ops->copy(m->s, l->mag->w, mag, bytes));
    if (rc == OK) rc = ops->stream_wait(m->s, m->err);
    free(inv);
    return rc;
}

static int adapter_fwd(struct model *m, const struct linear *l, void *y, const void *x, int64_t n, int64_t row0)
{
    enum dtype at = m->params.dt;
    const void *xa;
    if (l->mag) return dora_fwd(m, l, y, x, n, row0);
    TRY(adapter_input(m, l, &xa, x, n, row0));
    TRY(product_nt(m, at, m->l_t, xa, l->A->w, n, l->r, l->in, 1, 0));
    if (at == m->dt) return product_nt(m, at, y, m->l_t, l->B->w, n, l->out, l->r, l->scale, 1);
    TRY(product_nt_f32(m, m->l_y, x, l->w->w, n, l->out, l->in, 1, 0));
    TRY(product_nt(m, at, m->l_y, m->l_t, l->B->w, n, l->out, l->r, l->scale, 1));
    return cast(m, m->dt, y, at, m->l_y, n * l->out);
}

/* In f32 dx holds dy W already. */
static int adapter_bwd(struct model *m, const struct linear *l, void *dx, bool add, const void *dy, const void *x, int64_t n, int64_t row0)
{
    enum dtype at = m->params.dt;
    const void *xa, *dya = dy;
    TRY(adapter_input(m, l, &xa, x, n, row0));
    if (at != m->dt) {
        TRY(cast(m, at, m->l_y, m->dt, dy, n * l->out));
        dya = m->l_y;
    }
    TRY(product_nt(m, at, m->l_t, xa, l->A->w, n, l->r, l->in, 1, 0));
    TRY(product_tn(m, at, l->B->g, dya, m->l_t, l->out, l->r, n, l->scale));
    TRY(product_nn(m, at, m->l_dt, dya, l->B->w, n, l->r, l->out, l->scale, 0));
    TRY(product_tn(m, at, l->A->g, m->l_dt, xa, l->r, l->in, n, 1));
    if (!dx) return OK;
    if (!drops(m) && at == m->dt) return product_nn(m, at, dx, m->l_dt, l->A->w, n, l->in, l->r, 1, 1);
    float *sum = m->l_dx;                               /* what the adapter gives to dx */
    TRY(product_nn(m, at, sum, m->l_dt, l->A->w, n, l->in, l->r, 1, 0));
    if (drops(m)) {
        TRY(drop(m, at, l, m->l_x, sum, n, row0));
        sum = m->l_x;                                   /* x is used up */
    }
    if (at == m->dt) return model_op(m, "add", m->ops->add(m->s, at, dx, dx, sum, n * l->in));
    TRY(product_nn_f32(m, sum, dy, l->w->w, n, l->in, l->out, 1, 1));
    return store_dx(m, dx, add, sum, n * l->in);
}

/* Does the product with W go through the adapter's tiles, to be summed with the adapter's part in f32 and rounded once? */
static bool in_tiles(const struct model *m, const struct linear *l) { return l->A && (l->mag || m->params.dt != m->dt); }

int linear_fwd(struct model *m, const struct linear *l, void *y, const void *x, int64_t N, int64_t row0)
{
    if (!in_tiles(m, l) || (l->mag && drops(m))) TRY(product_nt(m, m->dt, y, x, l->w->w, N, l->out, l->in, 1, 0));
    size_t size = dtype_size(m->dt);
    for (int64_t i = 0; l->A && i < N; i += m->lora_tile) {
        int64_t n = N - i < m->lora_tile ? N - i : m->lora_tile;
        TRY(adapter_fwd(m, l, (char *)y + (size_t)(i * l->out) * size, (const char *)x + (size_t)(i * l->in) * size, n, row0 + i));
    }
    return l->b ? model_op(m, "bias", m->ops->bias_add(m->s, m->dt, y, l->b->w, N, l->out)) : OK;
}

int linear_bwd(struct model *m, const struct linear *l, void *dx, bool add, const void *dy, const void *x, int64_t N, int64_t row0)
{
    if (l->w->g) TRY(product_tn(m, m->dt, l->w->g, dy, x, l->out, l->in, N, 1));
    if (l->b && l->b->g) TRY(model_op(m, "bias gradient", m->ops->bias_bwd(m->s, m->dt, l->b->g, dy, N, l->out)));
    if (dx && !in_tiles(m, l)) TRY(product_nn(m, m->dt, dx, dy, l->w->w, N, l->in, l->out, 1, add ? 1 : 0));
    size_t size = dtype_size(m->dt);
    for (int64_t i = 0; l->A && i < N; i += m->lora_tile) {
        int64_t n = N - i < m->lora_tile ? N - i : m->lora_tile;
        void *dxi = dx ? (char *)dx + (size_t)(i * l->in) * size : NULL;
        const void *dyi = (const char *)dy + (size_t)(i * l->out) * size, *xi = (const char *)x + (size_t)(i * l->in) * size;
        TRY(l->mag ? dora_bwd(m, l, dxi, add, dyi, xi, n, row0 + i) : adapter_bwd(m, l, dxi, add, dyi, xi, n, row0 + i));
    }
    return OK;
}

/* --- memory --- */
static void need(struct model *m, enum dtype dc, enum dtype da, int64_t M, int64_t N, int64_t K, bool ta, bool tb)
{
    int64_t bytes = (int64_t)m->ops->matmul_ws(dc, da, M, N, K, ta, tb);
    if (bytes > m->ws_bytes) m->ws_bytes = bytes;
}

static void need_linear(struct model *m, enum dtype dt, int64_t rows, int64_t out, int64_t in)
{
    need(m, dt, dt, rows, out, in, false, true);
    need(m, dt, dt, rows, in, out, false, false);
    need(m, DT_F32, dt, out, in, rows, true, false);
}

struct linear *layer_linear(struct layer *l, int i)
{
    struct linear *const all[LAYER_LINEARS] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };
    return all[i];
}

static void layout_dora(struct model *m, struct arena *device, int64_t widest)
{
    m->dora_rows = DORA_ROWS;
    m->widest = widest;
    int64_t rows = m->dropout > 0 && m->lora_tile > m->dora_rows ? m->lora_tile : m->dora_rows;       /* dora_fwd puts a tile there */
    m->l_w = arena_take(device, MEM_WORKSPACE, DT_F32, rows, widest, 0, 0, "dora.w");
    m->l_wy = arena_take(device, MEM_WORKSPACE, DT_F32, m->dora_rows, widest, 0, 0, "dora.w_scaled");
    m->ones = arena_take(device, MEM_WORKSPACE, DT_F32, widest, 0, 0, 0, "dora.ones");
    for (int64_t i = 0; i < m->c->L; i++) {
        for (int k = 0; k < LAYER_LINEARS; k++) {
            struct linear *l = layer_linear(&m->layers[i], k);
            if (!l->mag) continue;
            l->inv_norm = arena_take(device, MEM_WEIGHTS, DT_F32, l->out, 0, 0, 0, "layers.%lld.%d.inv_norm", (long long)i, k);
            l->c = arena_take(device, MEM_WEIGHTS, DT_F32, l->out, 0, 0, 0, "layers.%lld.%d.dora", (long long)i, k);
        }
    }
}

void linear_layout(struct model *m, struct arena *device)
{
    const struct model_config *c = m->c;
    int64_t widest = c->C > c->F ? c->C : c->F;
    if (c->H * c->D > widest) widest = c->H * c->D;
    const int64_t sides[][2] = { { c->H * c->D, c->C }, { c->Hkv * c->D, c->C }, { c->C, c->H * c->D }, { c->F, c->C }, { c->C, c->F } };
    for (size_t i = 0; i < sizeof sides / sizeof sides[0]; i++) {
        need_linear(m, m->dt, m->max_Tl, sides[i][0], sides[i][1]);
        need_linear(m, m->dt, m->mlp_tile, sides[i][0], sides[i][1]);
        if (!m->lora) continue;
        need(m, DT_F32, m->dt, m->lora_tile, sides[i][0], sides[i][1], false, true);
        need(m, DT_F32, m->dt, m->lora_tile, sides[i][1], sides[i][0], false, false);
    }
    need_linear(m, m->dt, m->z_tile, c->V, c->C);
    if (m->lora) {
        enum dtype at = m->params.dt;
        bool other = at != m->dt;                       /* the adapter's type: inputs and outputs are cast for it */
        need_linear(m, at, m->lora_tile, m->max_r, widest);
        need_linear(m, at, m->lora_tile, widest, m->max_r);
        m->l_t = arena_take(device, MEM_WORKSPACE, at, m->lora_tile, m->max_r, 0, 0, "lora.t");
        m->l_dt = arena_take(device, MEM_WORKSPACE, at, m->lora_tile, m->max_r, 0, 0, "lora.dt");
        if (m->dropout > 0 || other || m->dora) {
            m->l_x = arena_take(device, MEM_WORKSPACE, at, m->lora_tile, widest, 0, 0, "lora.x");
            m->l_dx = arena_take(device, MEM_WORKSPACE, at, m->lora_tile, widest, 0, 0, "lora.dx");
        }
        if (m->dora || other) m->l_y = arena_take(device, MEM_WORKSPACE, at, m->lora_tile, widest, 0, 0, "lora.y");
        if (m->dora) layout_dora(m, device, widest);
    }
    m->ws = arena_take(device, MEM_WORKSPACE, DT_U8, m->ws_bytes, 0, 0, 0, "matmul.workspace");
}
