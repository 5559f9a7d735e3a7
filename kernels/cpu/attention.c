/* attention.c - the attention entries of the table: checks, then the f64 rows or the f32 tiles. */
#include "kernels/cpu/attention.h"

static int bad_attention(struct stream *s, const char *op, struct attn_shape n)
{
    if (n.D < 1 || n.D > ATTN_HEAD_MAX) return cpu_refuse(s, "%s: head width %lld, expected 1 to %d", op, (long long)n.D, ATTN_HEAD_MAX);
    if (n.Hkv < 1 || n.H % n.Hkv != 0) return cpu_refuse(s, "%s: %lld query heads over %lld key heads, expected a multiple", op, (long long)n.H, (long long)n.Hkv);
    if (!(n.scale > 0.0f && isfinite(n.scale))) return cpu_refuse(s, "%s: scale %g, expected a positive number", op, (double)n.scale);
    if (n.window < 0) return cpu_refuse(s, "%s: window %lld, expected 0 or more", op, (long long)n.window);
    return OK;
}

static int attn_fwd(struct stream *s, enum dtype dt, enum dtype dto, void *o, void *lse, const void *q, const void *k, const void *v,
                    struct attn_shape n, struct attn_spans spans, bool merge, void *ws)
{
    int rc = bad_attention(s, "attn_fwd", n);
    if (rc != OK) return rc;
    bool types_ok = dt == DT_F64 ? dto == DT_F64 : (dt == DT_F32 && dto == DT_F32) || (dt == DT_BF16 && (dto == DT_F32 || (dto == DT_BF16 && !merge)));
    if (!types_ok) return cpu_refuse(s, "attn_fwd: types %s to %s%s are not supported", dtype_name(dt), dtype_name(dto), merge ? ", merging," : "");
    if (dt == DT_F64) ISA(attn_fwd_f64)(o, lse, q, k, v, n, spans, merge);
    else ISA(attn_fwd_tiles)(dt, dto, o, lse, q, k, v, n, spans, merge, ws);
    return OK;
}

static int attn_delta(struct stream *s, enum dtype dt, enum dtype dto, void *delta, const void *dout, const void *o, int64_t T, int64_t H, int64_t D)
{
    bool types_ok = dt == DT_F64 ? dto == DT_F64 : (dt == DT_F32 || dt == DT_BF16) && (dto == DT_F32 || dto == dt);
    if (!types_ok) return cpu_refuse(s, "attn_delta: types %s and %s are not supported", dtype_name(dt), dtype_name(dto));
    if (dt == DT_F64) {
        ISA(attn_delta_f64)(delta, dout, o, T, H, D);
        return OK;
    }
    float *out = delta;
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(blocks_of(T * H * D, 8 * BLOCK)))
    for (int64_t t = 0; t < T; t++) {
        for (int64_t h = 0; h < H; h++) {
            float t0[BLOCK], t1[BLOCK];
            double total = 0.0;                         /* backward subtracts it from a sum of the same size */
            for (int64_t d0 = 0; d0 < D; d0 += BLOCK) {
                int64_t len = min64(BLOCK, D - d0), at = (t * H + h) * D + d0;
                const float *a = block_in(dt, t0, dout, at, len), *b = block_in(dto, t1, o, at, len);
                double sum = 0.0;
                #pragma omp simd reduction(+:sum)
                for (int64_t d = 0; d < len; d++) sum += (double)a[d] * (double)b[d];
                total += sum;
            }
            out[h * T + t] = (float)total;
        }
    }
    return OK;
}

static int attn_bwd(struct stream *s, enum dtype dt, void *dq, void *dk, void *dv, const void *dout, const void *q, const void *k,
                    const void *v, const void *lse, const void *delta, struct attn_shape n, struct attn_spans spans, void *ws)
{
    int rc = bad_attention(s, "attn_bwd", n);
    if (rc != OK) return rc;
    if (dt != DT_F64 && dt != DT_F32 && dt != DT_BF16) return cpu_refuse(s, "attn_bwd: type %s is not supported", dtype_name(dt));
    if (dt == DT_F64) ISA(attn_bwd_f64)(dq, dk, dv, dout, q, k, v, lse, delta, n, spans);
    else ISA(attn_bwd_tiles)(dt, dq, dk, dv, dout, q, k, v, lse, delta, n, spans, ws);
    return OK;
}

static size_t attn_ws(enum dtype dt, struct attn_shape n, int64_t max_spans)
{
    return dt == DT_F64 ? 0 : ISA(attn_ws_tiles)(n, max_spans);
}

/* One kernel for every choice: it is tiled, and exact. */
static void attn_choose(struct stream *s, enum attn_impl impl, enum dtype dt, struct attn_shape n) { (void)s, (void)impl, (void)dt, (void)n; }

static const char *attn_name(struct stream *s, enum dtype dt, struct attn_shape n)
{
    (void)s, (void)n;
    return dt == DT_F64 ? "rows in float64" : "tiled";
}

void ISA(fill_attention)(struct kernel_ops *ops)
{
    ops->attn_fwd = attn_fwd;
    ops->attn_delta = attn_delta;
    ops->attn_bwd = attn_bwd;
    ops->attn_ws = attn_ws;
    ops->attn_choose = attn_choose;
    ops->attn_name = attn_name;
}
