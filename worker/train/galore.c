#include "worker/train/galore.h"

#include <stdlib.h>
#include <string.h>

#include "worker/train/eigen.h"

static void sides(struct galore_matrix *x, const char *type)
{
    bool tall = x->rows >= x->cols;
    if (strcmp(type, "full") == 0) x->left = x->right = true;
    else if (strcmp(type, "left") == 0) x->left = true;
    else if (strcmp(type, "right") == 0) x->right = true;
    else if (strcmp(type, "reverse_std") == 0) x->left = tall, x->right = !tall;
    else x->right = tall, x->left = !tall;
}

/* Linear layers of the decoder: not embeddings, heads or vectors, and only where the projection is one. */
static bool projects(const struct param *p, int64_t rank)
{
    return p->trained && p->ndim == 2 && p->lora == LORA_NONE && p->dim[0] > rank && p->dim[1] > rank && strstr(p->name, "layers.") != NULL;
}

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

int galore_new(struct galore **out, const struct spec *spec, const struct kernel_ops *ops, const struct params *params, struct arena *device, struct error *err)
{
    *out = NULL;
    if (!spec->use_galore) return OK;
    if (spec->zero_stage > 0)
        return error_set(err, E_UNSUPPORTED, "use_galore with zero_stage %lld: GaLore projects whole gradient matrices, which sharding cuts; set zero_stage to 0",
                         (long long)spec->zero_stage);
    struct galore *g = *out = xcalloc(1, sizeof *g);
    *g = (struct galore){ .ops = ops, .gap = spec->galore_update_proj_gap, .scale = (float)spec->galore_scale };
    int64_t most_low = 0, most_half = 0;
    for (int64_t i = 0; i < params->n; i++) {
        const struct param *p = &params->v[i];
        if (!projects(p, spec->galore_rank)) continue;
        g->v = xrealloc(g->v, (unsigned long)(g->n + 1) * sizeof *g->v);
        struct galore_matrix *x = &g->v[g->n++];
        *x = (struct galore_matrix){ .param = i, .rows = p->dim[0], .cols = p->dim[1], .r = spec->galore_rank };
        sides(x, spec->galore_proj_type);
        x->n_low = x->left && x->right ? x->r * x->r : x->left ? x->r * x->cols : x->rows * x->r;
        g->n_state += (x->left ? x->r * x->rows : 0) + (x->right ? x->r * x->cols : 0) + 2 * x->n_low;
        most_low = max64(most_low, x->n_low);
        if (x->left && x->right) most_half = max64(most_half, x->r * x->cols);
        size_t need = ops->matmul_ws(DT_F32, DT_F32, x->rows, x->r, x->cols, false, true);
        size_t back = ops->matmul_ws(DT_F32, DT_F32, x->rows, x->cols, x->r, false, false);
        g->ws_bytes = need > g->ws_bytes ? need : g->ws_bytes;
        g->ws_bytes = back > g->ws_bytes ? back : g->ws_bytes;
    }
    g->state = arena_take(device, MEM_OPTIMIZER, DT_F32, g->n_state, 0, 0, 0, "galore.state");
    g->low = arena_take(device, MEM_OPTIMIZER, DT_F32, most_low, 0, 0, 0, "galore.low");
    g->delta = arena_take(device, MEM_OPTIMIZER, DT_F32, most_low, 0, 0, 0, "galore.delta");
    g->half = arena_take(device, MEM_OPTIMIZER, DT_F32, most_half, 0, 0, 0, "galore.half");
    g->ws = arena_take(device, MEM_WORKSPACE, DT_U8, (int64_t)g->ws_bytes, 0, 0, 0, "galore.ws");
    float *at = g->state;
    for (int64_t k = 0; k < g->n && at; k++) {
        struct galore_matrix *x = &g->v[k];
        if (x->left) x->basis_left = at, at += x->r * x->rows;
        if (x->right) x->basis_right = at, at += x->r * x->cols;
        x->m = at, at += x->n_low;
        x->v = at, at += x->n_low;
    }
    return OK;
}

void galore_free(struct galore *g)
{
    if (g == NULL) return;
    free(g->v);
    free(g);
}

bool galore_has(const struct galore *g, int64_t param)
{
    for (int64_t k = 0; g && k < g->n; k++)
        if (g->v[k].param == param) return true;
    return false;
}

static int status(const struct galore *g, struct stream *s, int rc, struct error *err)
{
    return rc == OK ? OK : error_set(err, (enum status)rc, "galore: %s", g->ops->error(s));
}

int galore_resume(struct galore *g, struct stream *s, struct error *err)
{
    for (int64_t k = 0; k < g->n; k++) {
        struct galore_matrix *x = &g->v[k];
        const float *basis = x->left ? x->basis_left : x->basis_right;
        int64_t n = x->left ? x->rows : x->cols;
        float *row = xmalloc((unsigned long)n * sizeof *row);      /* of unit length once there is a projection */
        int rc = status(g, s, g->ops->copy(s, row, basis, (size_t)n * sizeof *row), err);
        if (rc == OK) rc = g->ops->stream_wait(s, err);
        x->have = false;
        for (int64_t i = 0; i < n && rc == OK; i++) x->have |= row[i] != 0;
        free(row);
        if (rc != OK) return rc;
    }
    return OK;
}

/* New bases from the gradient, on the host. A failure is counted and leaves the old ones. */
static int new_bases(struct galore *g, struct stream *s, struct galore_matrix *x, const float *grad, struct error *err)
{
    int64_t n = x->rows * x->cols;
    float *host = xmalloc((unsigned long)(n + x->r * (x->rows + x->cols)) * sizeof *host), *left = host + n, *right = left + x->r * x->rows;
    int rc = status(g, s, g->ops->copy(s, host, grad, (size_t)n * sizeof *host), err);
    if (rc == OK) rc = g->ops->stream_wait(s, err);
    if (rc == OK) {
        bool ok = (!x->left || singular_vectors(left, host, x->rows, x->cols, true, x->r, NULL) == OK) &&
                  (!x->right || singular_vectors(right, host, x->rows, x->cols, false, x->r, NULL) == OK);
        if (!ok) g->failures++;
        if (ok && x->left) rc = g->ops->copy(s, x->basis_left, left, (size_t)(x->r * x->rows) * sizeof *left);
        if (ok && x->right && rc == OK) rc = g->ops->copy(s, x->basis_right, right, (size_t)(x->r * x->cols) * sizeof *right);
        rc = status(g, s, rc, err);
        if (rc == OK) rc = g->ops->stream_wait(s, err);         /* host is freed below */
        x->have |= ok;
    }
    free(host);
    return rc;
}

static int mm(const struct galore *g, struct stream *s, float *c, const float *a, bool ta, const float *b, bool tb, int64_t M, int64_t N, int64_t K, float alpha)
{
    return g->ops->matmul(s, DT_F32, c, N, DT_F32, a, ta ? M : K, ta, DT_F32, b, tb ? K : N, tb, M, N, K, alpha, 0, g->ws, g->ws_bytes);
}

static int project(struct galore *g, struct stream *s, const struct galore_matrix *x, const float *grad)
{
    if (!x->left) return mm(g, s, g->low, grad, false, x->basis_right, true, x->rows, x->r, x->cols, 1);
    if (!x->right) return mm(g, s, g->low, x->basis_left, false, grad, false, x->r, x->cols, x->rows, 1);
    int rc = mm(g, s, g->half, x->basis_left, false, grad, false, x->r, x->cols, x->rows, 1);
    return rc == OK ? mm(g, s, g->low, g->half, false, x->basis_right, true, x->r, x->r, x->cols, 1) : rc;
}

static int project_back(struct galore *g, struct stream *s, const struct galore_matrix *x, float *full)
{
    if (!x->left) return mm(g, s, full, g->delta, false, x->basis_right, false, x->rows, x->cols, x->r, g->scale);
    if (!x->right) return mm(g, s, full, x->basis_left, true, g->delta, false, x->rows, x->cols, x->r, g->scale);
    int rc = mm(g, s, g->half, g->delta, false, x->basis_right, false, x->r, x->cols, x->r, 1);
    return rc == OK ? mm(g, s, full, x->basis_left, true, g->half, false, x->rows, x->cols, x->r, g->scale) : rc;
}

int galore_step(struct galore *g, struct stream *s, int64_t k, float *w32, bf16 *w16, float *grad, const struct galore_rates *a, struct error *err)
{
    struct galore_matrix *x = &g->v[k];
    int64_t n = x->rows * x->cols;
    int rc = OK;
    if (!x->have || (a->t - 1) % g->gap == 0) rc = new_bases(g, s, x, grad, err);
    if (rc != OK || !x->have) return rc;
    rc = project(g, s, x, grad);
    if (rc == OK) rc = g->ops->zero(s, g->delta, (size_t)x->n_low * sizeof *g->delta);
    if (rc == OK) rc = g->ops->adamw(s, g->delta, NULL, x->m, x->v, g->low, x->n_low, a->gscale, a->lr, a->beta1, a->beta2, a->eps, 0, a->t);
    if (rc == OK) rc = project_back(g, s, x, grad);
    if (rc == OK && a->decay > 0) rc = g->ops->scale(s, DT_F32, w32, (float)(1 - a->lr * a->decay), n);
    if (rc == OK) rc = g->ops->axpy(s, DT_F32, w32, DT_F32, grad, 1, n);
    if (rc == OK && w16) rc = g->ops->cast(s, DT_BF16, w16, DT_F32, w32, n);
    return status(g, s, rc, err);
}
