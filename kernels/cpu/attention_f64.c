/* attention_f64.c - attention row by row in f64: slow and simple, for tests of what is composed from it.
 *
 * Each (query row, head) is one piece of work forward and for dq, each (key row, kv head) one for dk and dv, so nothing is
 * summed across threads. */
#include "kernels/cpu/attention.h"

static const double *row(const double *x, int64_t t, int64_t h, int64_t H, int64_t D) { return x + (t * H + h) * D; }

static double dot(const double *a, const double *b, int64_t D)
{
    double sum = 0;
    for (int64_t d = 0; d < D; d++) sum += a[d] * b[d];
    return sum;
}

static void row_fwd(double *o, double *lse, const double *q, const double *k, const double *v, struct attn_shape n, struct attn_spans spans,
                    bool merge, int64_t t, int64_t h)
{
    int64_t D = n.D, hk = h / (n.H / n.Hkv);
    double acc[ATTN_HEAD_MAX] = { 0 }, m = -INFINITY, l = 0;
    if (merge && *lse > -INFINITY) {
        m = *lse;
        l = 1;
        memcpy(acc, o, (size_t)D * sizeof *acc);
    }
    bool seen = !merge;
    for (int64_t p = 0; p < spans.n; p++) {
        struct range r = keys_of_row(spans.host + p, t, n.window);
        for (int64_t j = r.lo; j < r.hi; j++) {
            seen = true;
            double s = dot(row(q, t, h, n.H, D), row(k, j, hk, n.Hkv, D), D) * (double)n.scale;
            double up = s > m ? s : m, old = m == -INFINITY ? 0 : exp(m - up), w = exp(s - up);
            const double *vj = row(v, j, hk, n.Hkv, D);
            for (int64_t d = 0; d < D; d++) acc[d] = acc[d] * old + w * vj[d];
            l = l * old + w;
            m = up;
        }
    }
    if (!seen) return;
    *lse = l > 0 ? m + log(l) : -(double)INFINITY;
    for (int64_t d = 0; d < D; d++) o[d] = l > 0 ? acc[d] / l : 0;
}

void ISA(attn_fwd_f64)(double *o, double *lse, const double *q, const double *k, const double *v, struct attn_shape n, struct attn_spans spans, bool merge)
{
    #pragma omp parallel for collapse(2) schedule(dynamic, 16) num_threads(cpu_threads(n.H * n.Tq))
    for (int64_t h = 0; h < n.H; h++)
        for (int64_t t = 0; t < n.Tq; t++) row_fwd(o + (t * n.H + h) * n.D, lse + h * n.Tq + t, q, k, v, n, spans, merge, t, h);
}

void ISA(attn_delta_f64)(double *delta, const double *dout, const double *o, int64_t T, int64_t H, int64_t D)
{
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < H; h++) delta[h * T + t] = dot(row(dout, t, h, H, D), row(o, t, h, H, D), D);
}

struct operands { const double *dout, *q, *k, *v, *lse, *delta; struct attn_shape n; };

/* P and dS of one (query t, key j, head h); zeros for a query that saw no key at all. */
static void pair(double *P, double *dS, const struct operands *x, int64_t t, int64_t j, int64_t h)
{
    struct attn_shape n = x->n;
    int64_t hk = h / (n.H / n.Hkv), at = h * n.Tq + t;
    *P = *dS = 0;
    if (x->lse[at] == -(double)INFINITY) return;
    *P = exp(dot(row(x->q, t, h, n.H, n.D), row(x->k, j, hk, n.Hkv, n.D), n.D) * (double)n.scale - x->lse[at]);
    *dS = *P * (dot(row(x->dout, t, h, n.H, n.D), row(x->v, j, hk, n.Hkv, n.D), n.D) - x->delta[at]) * (double)n.scale;
}

static void row_dq(double *dq, const struct operands *x, struct attn_spans spans, int64_t t, int64_t h)
{
    struct attn_shape n = x->n;
    for (int64_t p = 0; p < spans.n; p++) {
        struct range r = keys_of_row(spans.host + p, t, n.window);
        for (int64_t j = r.lo; j < r.hi; j++) {
            double P, dS;
            pair(&P, &dS, x, t, j, h);
            const double *kj = row(x->k, j, h / (n.H / n.Hkv), n.Hkv, n.D);
            for (int64_t d = 0; d < n.D; d++) dq[d] += dS * kj[d];
        }
    }
}

static void row_dkv(double *dk, double *dv, const struct operands *x, struct attn_spans spans, int64_t j, int64_t hk)
{
    struct attn_shape n = x->n;
    int64_t G = n.H / n.Hkv;
    for (const struct attn_span *sp = spans.host; sp < spans.host + spans.n; sp++) {
        if (j < sp->k0 || j >= sp->k0 + sp->nk) continue;
        for (int64_t t = sp->q0; t < sp->q0 + sp->nq; t++) {
            struct range r = keys_of_row(sp, t, n.window);
            if (j < r.lo || j >= r.hi) continue;
            for (int64_t h = hk * G; h < (hk + 1) * G; h++) {
                double P, dS;
                pair(&P, &dS, x, t, j, h);
                const double *g = row(x->dout, t, h, n.H, n.D), *qi = row(x->q, t, h, n.H, n.D);
                for (int64_t d = 0; d < n.D; d++) { dv[d] += P * g[d]; dk[d] += dS * qi[d]; }
            }
        }
    }
}

void ISA(attn_bwd_f64)(double *dq, double *dk, double *dv, const double *dout, const double *q, const double *k, const double *v,
                       const double *lse, const double *delta, struct attn_shape n, struct attn_spans spans)
{
    struct operands x = { dout, q, k, v, lse, delta, n };
    #pragma omp parallel for collapse(2) schedule(dynamic, 16) num_threads(cpu_threads(n.H * n.Tq))
    for (int64_t h = 0; h < n.H; h++)
        for (int64_t t = 0; t < n.Tq; t++) row_dq(dq + (t * n.H + h) * n.D, &x, spans, t, h);
    #pragma omp parallel for collapse(2) schedule(dynamic, 16) num_threads(cpu_threads(n.Hkv * n.Tk))
    for (int64_t hk = 0; hk < n.Hkv; hk++)
        for (int64_t j = 0; j < n.Tk; j++) row_dkv(dk + (j * n.Hkv + hk) * n.D, dv + (j * n.Hkv + hk) * n.D, &x, spans, j, hk);
}
