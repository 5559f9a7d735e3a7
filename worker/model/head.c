/* head.c - final norm, logits and cross-entropy, tile by tile over tokens: [Tl,V] never stands whole.
 *
 * A tile's logits become their own gradient in place, times scale = 1/Nglob, which is known before; so dx and dW come out with
 * the same, final scale in one sweep. Tiles without a trained token are skipped: their dx is zero.
 * Source: reference ALST's tiled loss (2506.13996) with its scaling repaired. */
#include <stdlib.h>

#include "worker/model/decoder.h"

enum { TILE_BYTES = 128 << 20, TILE_MIN_ROWS = 32 };

static bool any_trained(const int32_t *labels, int64_t n)
{
    for (int64_t i = 0; i < n; i++) if (labels[i] >= 0) return true;
    return false;
}

/* m->z [n,V] of x [n,C]; leaves the normed rows in z_h. */
static int logits(struct model *m, const void *x, int64_t n)
{
    const struct model_config *c = m->c;
    TRY(model_op(m, "rmsnorm", m->ops->rmsnorm_fwd(m->s, m->dt, m->z_h, m->rstd, x, m->norm->w, n, c->C, c->eps)));
    return model_op(m, "logits", m->ops->matmul(m->s, m->dt, m->z, c->V, m->dt, m->z_h, c->C, false, m->dt, m->head->w, c->C, true, n, c->V, c->C, 1, 0, m->ws, (size_t)m->ws_bytes));
}

static int tile(struct model *m, const char *x, char *dx, int64_t i, int64_t n, double scale, bool grad)
{
    const struct model_config *c = m->c;
    const struct kernel_ops *ops = m->ops;
    size_t ws = (size_t)m->ws_bytes;
    TRY(logits(m, x, n));
    TRY(model_op(m, "cross-entropy", ops->cross_entropy(m->s, m->dt, m->loss + i, m->correct + i, m->z, m->labels + i, m->weights + i, (float)scale, grad, n, c->V)));
    if (!grad) return OK;
    TRY(model_op(m, "logits gradient", ops->matmul(m->s, m->dt, m->z_dh, c->C, m->dt, m->z, c->V, false, m->dt, m->head->w, c->C, false, n, c->C, c->V, 1, 0, m->ws, ws)));
    if (m->head->g)
        TRY(model_op(m, "head gradient", ops->matmul(m->s, DT_F32, m->head->g, c->C, m->dt, m->z, c->V, true, m->dt, m->z_h, c->C, false, c->V, c->C, n, 1, 1, m->ws, ws)));
    return model_op(m, "rmsnorm gradient", ops->rmsnorm_bwd(m->s, m->dt, dx, false, m->norm->g, m->z_dh, x, m->norm->w, m->rstd, n, c->C, m->norm_ws));
}

int head_run(struct model *m, const void *x, double scale, bool grad, struct model_loss *out)
{
    size_t row = (size_t)m->c->C * dtype_size(m->dt);
    for (int64_t i = 0; i < m->Tl; i += m->z_tile) {
        int64_t n = m->Tl - i < m->z_tile ? m->Tl - i : m->z_tile;
        if (any_trained(m->h_labels + i, n)) {
            TRY(tile(m, (const char *)x + (size_t)i * row, (char *)m->d + (size_t)i * row, i, n, scale, grad));
            continue;
        }
        TRY(model_op(m, "zero", m->ops->zero(m->s, m->loss + i, (size_t)n * sizeof *m->loss)));
        TRY(model_op(m, "zero", m->ops->zero(m->s, m->correct + i, (size_t)n)));
        if (grad) TRY(model_op(m, "zero", m->ops->zero(m->s, (char *)m->d + (size_t)i * row, (size_t)n * row)));
    }
    TRY(model_op(m, "copy", m->ops->copy(m->s, m->h_loss, m->loss, (size_t)m->Tl * sizeof *m->loss)));
    TRY(model_op(m, "copy", m->ops->copy(m->s, m->h_correct, m->correct, (size_t)m->Tl)));
    TRY(m->ops->stream_wait(m->s, m->err));
    for (int64_t i = 0; i < m->Tl; i++) {
        out->loss_sum += (double)m->h_loss[i];
        out->correct += m->h_correct[i];
    }
    out->weight_sum += m->weight_sum;
    out->count += m->count;
    return OK;
}

int head_logits(struct model *m, const void *x, int64_t from, int64_t n, float *out)
{
    const struct model_config *c = m->c;
    size_t size = dtype_size(m->dt);
    void *host = xmalloc((size_t)(m->z_tile * c->V) * size);
    int rc = OK;
    for (int64_t i = 0; i < n && rc == OK; i += m->z_tile) {
        int64_t k = n - i < m->z_tile ? n - i : m->z_tile;
        rc = logits(m, (const char *)x + (size_t)((from + i) * c->C) * size, k);
        if (rc == OK) rc = m->ops->stream_wait(m->s, m->err);       /* host is not pinned: the copy would wait without watching the peers */
        if (rc == OK) rc = model_op(m, "copy", m->ops->copy(m->s, host, m->z, (size_t)(k * c->V) * size));
        if (rc == OK) rc = m->ops->stream_wait(m->s, m->err);
        for (int64_t j = 0; j < k * c->V && rc == OK; j++) out[i * c->V + j] = m->dt == DT_BF16 ? bf16_to_f32(((bf16 *)host)[j]) : ((float *)host)[j];
    }
    free(host);
    return rc;
}

int64_t head_tile_rows(const struct model *m)
{
    int64_t r = TILE_BYTES / (m->c->V * (int64_t)dtype_size(m->dt));
    return r < TILE_MIN_ROWS ? TILE_MIN_ROWS : r;
}

void head_layout(struct model *m, struct arena *device, struct arena *host)
{
    const struct model_config *c = m->c;
    m->loss = arena_take(device, MEM_LOGITS, DT_F32, m->max_Tl, 0, 0, 0, "head.loss");
    m->correct = arena_take(device, MEM_LOGITS, DT_U8, m->max_Tl, 0, 0, 0, "head.correct");
    m->h_loss = arena_take(host, MEM_LOGITS, DT_F32, m->max_Tl, 0, 0, 0, "head.loss.host");
    m->h_correct = arena_take(host, MEM_LOGITS, DT_U8, m->max_Tl, 0, 0, 0, "head.correct.host");
    struct arena_mark mark = arena_mark(device);
    m->z = arena_take(device, MEM_LOGITS, m->dt, m->z_tile, c->V, 0, 0, "head.logits");
    m->z_h = arena_take(device, MEM_LOGITS, m->dt, m->z_tile, c->C, 0, 0, "head.h");
    m->z_dh = arena_take(device, MEM_LOGITS, m->dt, m->z_tile, c->C, 0, 0, "head.dh");
    arena_release(device, mark);
}
