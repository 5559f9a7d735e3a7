#include "tests/parallel/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/random.h"

static double epsilon;

static double get(enum dtype dt, const void *x, int64_t i)
{
    return dt == DT_F64 ? ((const double *)x)[i] : dt == DT_F32 ? (double)((const float *)x)[i] : (double)bf16_to_f32(((const bf16 *)x)[i]);
}

static void put(enum dtype dt, void *y, int64_t i, double v)
{
    if (dt == DT_F64) ((double *)y)[i] = v;
    else if (dt == DT_F32) ((float *)y)[i] = (float)v;
    else ((bf16 *)y)[i] = f32_to_bf16((float)v);
}

static const struct kernel_ops *cpu;

enum { NOTES = 512 };
static struct { const float *g; double squares; } notes[NOTES];
static int n_notes;

enum { CALLS = 64 };
static struct { double got[2], parts[2]; } calls[CALLS];
static int n_calls;

double exact_attention_loss(int i, int n, bool k)
{
    double got = 0, parts = 0;
    for (; i < n_calls; i += n) got += calls[i].got[k], parts += calls[i].parts[k];
    return got > 0 ? sqrt(parts / got) : 1;
}

static void note(const float *g, double squares)
{
    int i = 0;
    while (i < n_notes && notes[i].g != g) i++;
    if (i == NOTES) abort();
    if (i == n_notes) notes[n_notes++].g = g, notes[i].squares = 0;
    notes[i].squares += squares;
}

double exact_summands(const float *g)
{
    for (int i = 0; i < n_notes; i++)
        if (notes[i].g == g) return notes[i].squares;
    return 0;
}

static double square(enum dtype dt, const void *x, int64_t at, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += get(dt, x, at + i) * get(dt, x, at + i);
    return sum;
}

/* What the last product a b was made of, row by row: an adapter's dt = dy B, whose terms cancel too, goes straight into dA. */
enum { ROWS = 512 };
static struct { const void *c; double parts[ROWS]; } last;

static void remember(const void *c, enum dtype da, const void *a, int64_t lda, enum dtype db, const void *b, int64_t ldb, int64_t M, int64_t N, int64_t K, float alpha)
{
    if (M > ROWS) abort();
    last.c = c;
    for (int64_t m = 0; m < M; m++) {
        last.parts[m] = 0;
        for (int64_t k = 0; k < K; k++) last.parts[m] += (double)alpha * (double)alpha * pow(get(da, a, m * lda + k), 2) * square(db, b, k * ldb, N);
    }
}

static void note_product(const float *g, enum dtype da, const void *a, int64_t lda, enum dtype db, const void *b, int64_t ldb, int64_t M, int64_t N, int64_t K, float alpha)
{
    for (int64_t k = 0; k < K; k++)
        note(g, (double)alpha * (double)alpha * (a == last.c ? fmax(last.parts[k], square(da, a, k * lda, M)) : square(da, a, k * lda, M)) * square(db, b, k * ldb, N));
    last.c = NULL;
}

static int matmul(struct stream *s, enum dtype dc, void *c, int64_t ldc, enum dtype da, const void *a, int64_t lda, bool ta, enum dtype db, const void *b, int64_t ldb, bool tb,
                  int64_t M, int64_t N, int64_t K, float alpha, float beta, void *ws, size_t ws_bytes)
{
    (void)s, (void)ws, (void)ws_bytes;
    if (ta) note_product(c, da, a, lda, db, b, ldb, M, N, K, alpha);
    else if (!tb) remember(c, da, a, lda, db, b, ldb, M, N, K, alpha);
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++) sum += get(da, a, ta ? k * lda + m : m * lda + k) * get(db, b, tb ? n * ldb + k : k * ldb + n);
            put(dc, c, m * ldc + n, (double)alpha * sum + (beta != 0 ? (double)beta * get(dc, c, m * ldc + n) : 0));
        }
    return OK;
}

static size_t matmul_ws(enum dtype dc, enum dtype da, int64_t M, int64_t N, int64_t K, bool ta, bool tb)
{
    return da == DT_F64 ? 0 : cpu->matmul_ws(dc, da, M, N, K, ta, tb);
}

static int embed_fwd(struct stream *s, enum dtype dt, void *y, const void *w, const int32_t *ids, int64_t N, int64_t C, int64_t V)
{
    (void)s, (void)V;
    for (int64_t n = 0; n < N; n++) memcpy((char *)y + (size_t)(n * C) * dtype_size(dt), (const char *)w + (size_t)(ids[n] * C) * dtype_size(dt), (size_t)C * dtype_size(dt));
    return OK;
}

static int embed_bwd(struct stream *s, enum dtype dt, float *dw, const void *dy, const int32_t *ids, int64_t N, int64_t C, int64_t V)
{
    (void)s;
    double *sum = xcalloc((unsigned long)(V * C) + 1, sizeof *sum);
    note(dw, square(dt, dy, 0, N * C));
    for (int64_t n = 0; n < N; n++)
        for (int64_t c = 0; c < C; c++) sum[ids[n] * C + c] += get(dt, dy, n * C + c);
    for (int64_t i = 0; i < V * C; i++) dw[i] = (float)((double)dw[i] + sum[i]);
    free(sum);
    return OK;
}

static double rstd_of(enum dtype dt, const void *x, int64_t at, int64_t C)
{
    double sum = 0;
    for (int64_t c = 0; c < C; c++) sum += get(dt, x, at + c) * get(dt, x, at + c);
    return 1 / sqrt(sum / (double)C + epsilon);
}

static int rmsnorm_fwd(struct stream *s, enum dtype dt, void *y, float *rstd, const void *x, const void *w, int64_t N, int64_t C, float eps)
{
    (void)s, (void)eps;
    for (int64_t n = 0; n < N; n++) {
        double r = rstd_of(dt, x, n * C, C);
        if (rstd) rstd[n] = (float)r;
        for (int64_t c = 0; c < C; c++) put(dt, y, n * C + c, get(dt, x, n * C + c) * r * get(dt, w, c));
    }
    return OK;
}

static int rmsnorm_bwd(struct stream *s, enum dtype dt, void *dx, bool add, float *dw, const void *dy, const void *x, const void *w, const float *rstd, int64_t N, int64_t C, void *ws)
{
    (void)s, (void)rstd, (void)ws;
    double *sum = xcalloc((unsigned long)C, sizeof *sum);
    for (int64_t n = 0; n < N; n++) {
        double r = rstd_of(dt, x, n * C, C), mean = 0;
        for (int64_t c = 0; c < C; c++) {
            double h = get(dt, x, n * C + c) * r, d = get(dt, dy, n * C + c);
            mean += d * get(dt, w, c) * h / (double)C;
            sum[c] += d * h;
            if (dw) note(dw, d * d * h * h);
        }
        for (int64_t c = 0; c < C; c++) {
            double d = r * (get(dt, dy, n * C + c) * get(dt, w, c) - get(dt, x, n * C + c) * r * mean);
            put(dt, dx, n * C + c, d + (add ? get(dt, dx, n * C + c) : 0));
        }
    }
    for (int64_t c = 0; c < C && dw; c++) dw[c] = (float)((double)dw[c] + sum[c]);
    free(sum);
    return OK;
}

static int bias_add(struct stream *s, enum dtype dt, void *y, const void *b, int64_t N, int64_t C)
{
    (void)s;
    for (int64_t i = 0; i < N * C; i++) put(dt, y, i, get(dt, y, i) + get(dt, b, i % C));
    return OK;
}

static int bias_bwd(struct stream *s, enum dtype dt, float *db, const void *dy, int64_t N, int64_t C)
{
    (void)s;
    note(db, square(dt, dy, 0, N * C));
    for (int64_t c = 0; c < C; c++) {
        double sum = (double)db[c];
        for (int64_t n = 0; n < N; n++) sum += get(dt, dy, n * C + c);
        db[c] = (float)sum;
    }
    return OK;
}

static int swiglu_fwd(struct stream *s, enum dtype dt, void *y, const void *gate, const void *up, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++) put(dt, y, i, get(dt, gate, i) / (1 + exp(-get(dt, gate, i))) * get(dt, up, i));
    return OK;
}

static int swiglu_bwd(struct stream *s, enum dtype dt, void *dgate, void *dup, const void *dy, const void *gate, const void *up, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++) {
        double d = get(dt, dy, i), g = get(dt, gate, i), u = get(dt, up, i), sig = 1 / (1 + exp(-g));
        put(dt, dgate, i, d * u * (sig + g * sig * (1 - sig)));
        put(dt, dup, i, d * g * sig);
    }
    return OK;
}

static int cross_entropy(struct stream *s, enum dtype dt, float *loss, uint8_t *correct, void *z, const int32_t *labels, const float *weight, float scale, bool grad, int64_t N, int64_t V)
{
    (void)s;
    for (int64_t n = 0; n < N; n++) {
        double most = -INFINITY, sum = 0, w = labels[n] < 0 ? 0 : (double)weight[n];
        int64_t best = 0;
        for (int64_t v = 0; v < V; v++)
            if (get(dt, z, n * V + v) > most) most = get(dt, z, n * V + v), best = v;
        for (int64_t v = 0; v < V; v++) sum += exp(get(dt, z, n * V + v) - most);
        loss[n] = labels[n] < 0 ? 0 : (float)(w * (log(sum) + most - get(dt, z, n * V + labels[n])));
        if (correct) correct[n] = labels[n] >= 0 && best == labels[n];
        for (int64_t v = 0; v < V && grad; v++) put(dt, z, n * V + v, labels[n] < 0 ? 0 : (double)scale * w * (exp(get(dt, z, n * V + v) - most) / sum - (v == labels[n])));
    }
    return OK;
}

static int dropout(struct stream *s, enum dtype dt, void *y, const void *x, float p, uint64_t seed, uint64_t offset, int64_t n)
{
    (void)s;
    double keep = (double)(1.0f / (1.0f - p));
    for (int64_t i = 0; i < n; i++) put(dt, y, i, random_bits(seed, offset + (uint64_t)i) < random_threshold(p) ? 0 : get(dt, x, i) * keep);
    return OK;
}

/* --- attention is the table's own in f64; here it is only looked at --- */
static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void note_attention(const double *dout, const double *q, const double *k, const double *v, const double *lse, const double *delta, struct attn_shape n, struct attn_spans spans)
{
    if (n_calls == CALLS) abort();
    double parts[2] = { 0 };
    for (int64_t p = 0; p < spans.n; p++) {
        struct attn_span sp = spans.host[p];
        for (int64_t i = 0; i < sp.nq; i++)
            for (int64_t j = 0; j < sp.nk; j++) {
                if (j > i + sp.diag || (n.window > 0 && j <= i + sp.diag - n.window)) continue;
                for (int64_t h = 0; h < n.H; h++) {
                    const double *qi = q + ((sp.q0 + i) * n.H + h) * n.D, *kj = k + ((sp.k0 + j) * n.Hkv + h / (n.H / n.Hkv)) * n.D;
                    const double *vj = v + (kj - k), *g = dout + (qi - q);
                    int64_t at = h * n.Tq + sp.q0 + i;
                    double P = exp(dot(qi, kj, n.D) * (double)n.scale - lse[at]) * (double)n.scale, dP = dot(g, vj, n.D), both = P * P * (dP * dP + delta[at] * delta[at]);
                    parts[0] += both * dot(kj, kj, n.D);
                    parts[1] += both * dot(qi, qi, n.D);
                }
            }
    }
    calls[n_calls].parts[0] = parts[0];
    calls[n_calls++].parts[1] = parts[1];
}

/* Squared norm of the difference of x, after a call, from what it was before. */
static double moved(const double *x, const double *before, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (x[i] - before[i]) * (x[i] - before[i]);
    return sum;
}

static double *copy_of(const double *x, int64_t n)
{
    double *y = xmalloc((unsigned long)n * sizeof *y);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

static int attn_bwd(struct stream *s, enum dtype dt, void *dq, void *dk, void *dv, const void *dout, const void *q, const void *k, const void *v, const void *lse, const void *delta,
                    struct attn_shape n, struct attn_spans spans, void *ws)
{
    int64_t nq = n.Tq * n.H * n.D, nk = n.Tk * n.Hkv * n.D;
    note_attention(dout, q, k, v, lse, delta, n, spans);
    double *old_q = copy_of(dq, nq), *old_k = copy_of(dk, nk);
    int rc = cpu->attn_bwd(s, dt, dq, dk, dv, dout, q, k, v, lse, delta, n, spans, ws);
    calls[n_calls - 1].got[0] = moved(dq, old_q, nq);
    calls[n_calls - 1].got[1] = moved(dk, old_k, nk);
    free(old_q);
    free(old_k);
    return rc;
}

const struct kernel_ops *exact_ops(double eps)
{
    static struct kernel_ops ops;
    cpu = kernel_ops_cpu();
    epsilon = eps;
    n_notes = n_calls = 0;
    ops = *cpu;
    ops.matmul = matmul, ops.matmul_ws = matmul_ws;
    ops.rmsnorm_fwd = rmsnorm_fwd, ops.rmsnorm_bwd = rmsnorm_bwd;
    ops.swiglu_fwd = swiglu_fwd, ops.swiglu_bwd = swiglu_bwd, ops.dropout = dropout;
    ops.cross_entropy = cross_entropy;
    ops.embed_fwd = embed_fwd, ops.embed_bwd = embed_bwd, ops.bias_add = bias_add, ops.bias_bwd = bias_bwd;
    ops.attn_bwd = attn_bwd;
    return &ops;
}
