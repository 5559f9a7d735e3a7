/* attention_plain.h - attention row by row, written once for f32 and f64: included with REAL, EXP, LOG and NAME() set.
 *
 * Each (query row, head) is one piece of work forward and for dq, each (key row, kv head) one for dk and dv, so nothing is
 * summed across threads. Slow and simple: the f64 path, and what the fast kernels are compared with. */

/* Keys of span p that query row t sees, as rows of k: [*lo, *hi). */
static void NAME(row_fwd)(REAL *o, REAL *lse, const REAL *q, const REAL *k, const REAL *v, struct attn_shape n, struct attn_spans spans,
                          bool merge, int64_t t, int64_t h)
{
    int64_t D = n.D, hk = h / (n.H / n.Hkv);
    REAL acc[HEAD_MAX], m = -INFINITY, l = 0;
    for (int64_t d = 0; d < D; d++) acc[d] = 0;
    if (merge && lse[h * n.Tq + t] > -INFINITY) {
        m = lse[h * n.Tq + t];
        l = 1;
        for (int64_t d = 0; d < D; d++) acc[d] = o[(t * n.H + h) * D + d];
    }
    bool seen = !merge;
    for (int64_t p = 0; p < spans.n; p++) {
        struct range r = keys_of_row(spans.host + p, t, n.window);
        for (int64_t j = r.lo; j < r.hi; j++) {
            seen = true;
            const REAL *kj = k + (j * n.Hkv + hk) * D, *vj = v + (j * n.Hkv + hk) * D, *qi = q + (t * n.H + h) * D;
            REAL dot = 0;
            for (int64_t d = 0; d < D; d++) dot += qi[d] * kj[d];
            dot *= (REAL)n.scale;
            REAL up = dot > m ? dot : m, old = m == -INFINITY ? 0 : EXP(m - up), w = EXP(dot - up);
            for (int64_t d = 0; d < D; d++) acc[d] = acc[d] * old + w * vj[d];
            l = l * old + w;
            m = up;
        }
    }
    if (!seen) return;
    lse[h * n.Tq + t] = l > 0 ? m + LOG(l) : -(REAL)INFINITY;
    for (int64_t d = 0; d < D; d++) o[(t * n.H + h) * D + d] = l > 0 ? acc[d] / l : 0;
}

static void NAME(delta)(REAL *delta, const REAL *dout, const REAL *o, int64_t T, int64_t H, int64_t D)
{
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < H; h++) {
            REAL sum = 0;
            for (int64_t d = 0; d < D; d++) sum += dout[(t * H + h) * D + d] * o[(t * H + h) * D + d];
            delta[h * T + t] = sum;
        }
}

/* P and dS of one (query t, key j, head h). */
static void NAME(pair)(REAL *P, REAL *dS, const REAL *dout, const REAL *q, const REAL *k, const REAL *v, const REAL *lse, const REAL *delta,
                       struct attn_shape n, int64_t t, int64_t j, int64_t h)
{
    int64_t D = n.D, hk = h / (n.H / n.Hkv);
    const REAL *kj = k + (j * n.Hkv + hk) * D, *vj = v + (j * n.Hkv + hk) * D, *qi = q + (t * n.H + h) * D, *gi = dout + (t * n.H + h) * D;
    REAL dot = 0, dp = 0;
    for (int64_t d = 0; d < D; d++) dot += qi[d] * kj[d];
    for (int64_t d = 0; d < D; d++) dp += gi[d] * vj[d];
    *P = EXP(dot * (REAL)n.scale - lse[h * n.Tq + t]);
    *dS = *P * (dp - delta[h * n.Tq + t]) * (REAL)n.scale;
}

static void NAME(row_dq)(REAL *dq, const REAL *dout, const REAL *q, const REAL *k, const REAL *v, const REAL *lse, const REAL *delta,
                         struct attn_shape n, struct attn_spans spans, int64_t t, int64_t h)
{
    if (lse[h * n.Tq + t] == -(REAL)INFINITY) return;
    for (int64_t p = 0; p < spans.n; p++) {
        struct range r = keys_of_row(spans.host + p, t, n.window);
        for (int64_t j = r.lo; j < r.hi; j++) {
            REAL P, dS;
            NAME(pair)(&P, &dS, dout, q, k, v, lse, delta, n, t, j, h);
            for (int64_t d = 0; d < n.D; d++) dq[(t * n.H + h) * n.D + d] += dS * k[(j * n.Hkv + h / (n.H / n.Hkv)) * n.D + d];
        }
    }
}

static void NAME(row_dkv)(REAL *dk, REAL *dv, const REAL *dout, const REAL *q, const REAL *k, const REAL *v, const REAL *lse, const REAL *delta,
                          struct attn_shape n, struct attn_spans spans, int64_t j, int64_t hk)
{
    int64_t G = n.H / n.Hkv, at = (j * n.Hkv + hk) * n.D;
    for (int64_t p = 0; p < spans.n; p++) {
        const struct attn_span *sp = spans.host + p;
        if (j < sp->k0 || j >= sp->k0 + sp->nk) continue;
        for (int64_t t = sp->q0; t < sp->q0 + sp->nq; t++) {
            struct range r = keys_of_row(sp, t, n.window);
            if (j < r.lo || j >= r.hi) continue;
            for (int64_t h = hk * G; h < (hk + 1) * G; h++) {
                if (lse[h * n.Tq + t] == -(REAL)INFINITY) continue;
                REAL P, dS;
                NAME(pair)(&P, &dS, dout, q, k, v, lse, delta, n, t, j, h);
                for (int64_t d = 0; d < n.D; d++) {
                    dv[at + d] += P * dout[(t * n.H + h) * n.D + d];
                    dk[at + d] += dS * q[(t * n.H + h) * n.D + d];
                }
            }
        }
    }
}

static int NAME(plain_fwd)(REAL *o, REAL *lse, const REAL *q, const REAL *k, const REAL *v, struct attn_shape n, struct attn_spans spans, bool merge)
{
    #pragma omp parallel for collapse(2) schedule(dynamic, 16) num_threads(cpu_threads(n.H * n.Tq))
    for (int64_t h = 0; h < n.H; h++)
        for (int64_t t = 0; t < n.Tq; t++) NAME(row_fwd)(o, lse, q, k, v, n, spans, merge, t, h);
    return OK;
}

static int NAME(plain_bwd)(REAL *dq, REAL *dk, REAL *dv, const REAL *dout, const REAL *q, const REAL *k, const REAL *v, const REAL *lse,
                           const REAL *delta, struct attn_shape n, struct attn_spans spans)
{
    #pragma omp parallel for collapse(2) schedule(dynamic, 16) num_threads(cpu_threads(n.H * n.Tq))
    for (int64_t h = 0; h < n.H; h++)
        for (int64_t t = 0; t < n.Tq; t++) NAME(row_dq)(dq, dout, q, k, v, lse, delta, n, spans, t, h);
    #pragma omp parallel for collapse(2) schedule(dynamic, 16) num_threads(cpu_threads(n.Hkv * n.Tk))
    for (int64_t hk = 0; hk < n.Hkv; hk++)
        for (int64_t j = 0; j < n.Tk; j++) NAME(row_dkv)(dk, dv, dout, q, k, v, lse, delta, n, spans, j, hk);
    return OK;
}
