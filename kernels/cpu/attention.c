/* attention.c - attention over spans, forward and backward. */
#include "kernels/cpu/isa.h"

enum { HEAD_MAX = 512 };

struct range { int64_t lo, hi; };

/* Keys of span p that query row t (of this rank's queries) sees, as rows of k: [lo, hi), empty when lo >= hi. */
static struct range keys_of_row(const struct attn_span *p, int64_t t, int64_t window)
{
    struct range r = { 0, 0 };
    if (t < p->q0 || t >= p->q0 + p->nq) return r;
    int64_t last = t - p->q0 + p->diag;                 /* of the span's keys: the newest one seen */
    r.hi = p->k0 + max64(0, min64(p->nk, last + 1));
    r.lo = p->k0 + (window ? max64(0, last + 1 - window) : 0);
    return r;
}

#define REAL float
#define EXP expf
#define LOG logf
#define NAME(x) x##_f32
#include "kernels/cpu/attention_plain.h"
#undef REAL
#undef EXP
#undef LOG
#undef NAME
#define REAL double
#define EXP exp
#define LOG log
#define NAME(x) x##_f64
#include "kernels/cpu/attention_plain.h"

static int bad_attention(struct stream *s, const char *op, struct attn_shape n)
{
    if (n.D < 1 || n.D > HEAD_MAX) return cpu_refuse(s, "%s: head width %lld, expected 1 to %d", op, (long long)n.D, HEAD_MAX);
    if (n.Hkv < 1 || n.H % n.Hkv != 0) return cpu_refuse(s, "%s: %lld query heads over %lld key heads, expected a multiple", op, (long long)n.H, (long long)n.Hkv);
    if (n.window < 0) return cpu_refuse(s, "%s: window %lld, expected 0 or more", op, (long long)n.window);
    return OK;
}

static int attn_fwd(struct stream *s, enum dtype dt, enum dtype dto, void *o, void *lse, const void *q, const void *k, const void *v,
                    struct attn_shape n, struct attn_spans spans, bool merge, void *ws)
{
    (void)ws;
    int rc = bad_attention(s, "attn_fwd", n);
    if (rc != OK) return rc;
    if (dt == DT_F64 && dto == DT_F64) return plain_fwd_f64(o, lse, q, k, v, n, spans, merge);
    if (dt == DT_F32 && dto == DT_F32) return plain_fwd_f32(o, lse, q, k, v, n, spans, merge);
    return cpu_refuse(s, "attn_fwd: types %s to %s are not supported", dtype_name(dt), dtype_name(dto));
}

static int attn_delta(struct stream *s, enum dtype dt, enum dtype dto, void *delta, const void *dout, const void *o, int64_t T, int64_t H, int64_t D)
{
    if (dt == DT_F64 && dto == DT_F64) { delta_f64(delta, dout, o, T, H, D); return OK; }
    if (dt == DT_F32 && dto == DT_F32) { delta_f32(delta, dout, o, T, H, D); return OK; }
    return cpu_refuse(s, "attn_delta: types %s and %s are not supported", dtype_name(dt), dtype_name(dto));
}

static int attn_bwd(struct stream *s, enum dtype dt, void *dq, void *dk, void *dv, const void *dout, const void *q, const void *k,
                    const void *v, const void *lse, const void *delta, struct attn_shape n, struct attn_spans spans, void *ws)
{
    (void)ws;
    int rc = bad_attention(s, "attn_bwd", n);
    if (rc != OK) return rc;
    if (dt == DT_F64) return plain_bwd_f64(dq, dk, dv, dout, q, k, v, lse, delta, n, spans);
    if (dt == DT_F32) return plain_bwd_f32(dq, dk, dv, dout, q, k, v, lse, delta, n, spans);
    return cpu_refuse(s, "attn_bwd: type %s is not supported", dtype_name(dt));
}

static size_t attn_ws(enum dtype dt, struct attn_shape n, int64_t max_spans)
{
    (void)dt; (void)n; (void)max_spans;
    return 0;
}

void ISA(fill_attention)(struct kernel_ops *ops)
{
    ops->attn_fwd = attn_fwd;
    ops->attn_delta = attn_delta;
    ops->attn_bwd = attn_bwd;
    ops->attn_ws = attn_ws;
}
