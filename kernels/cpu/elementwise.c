/* elementwise.c - embedding, bias, residual add, SwiGLU, casts, axpy, scale, dropout.
 * Sums over rows are split by columns, so their order does not depend on the number of threads. */
#include "kernels/cpu/isa.h"
#include "kernels/random.h"

enum { COLUMNS = 64, CHAIN = 16 };                      /* columns one thread sums: whole cache lines; rows summed in f32 before f64 takes over */

static bool is_act(enum dtype dt) { return dt == DT_F32 || dt == DT_BF16; }
static bool is_real(enum dtype dt) { return is_act(dt) || dt == DT_F64; }
static int bad_type(struct stream *s, const char *op, enum dtype dt) { return cpu_refuse(s, "%s: type %s is not supported", op, dtype_name(dt)); }

/* Runs the body for blocks [at, at+len) of [0,n) on the threads. */
#define FOR_BLOCKS(n) \
    _Pragma("omp parallel for schedule(static) num_threads(cpu_threads(blocks_of(n, 8 * BLOCK)))") \
    for (int64_t at = 0; at < (n); at += BLOCK)

static int embed_fwd(struct stream *s, enum dtype dt, void *y, const void *w, const int32_t *ids, int64_t N, int64_t C, int64_t V)
{
    if (!is_act(dt)) return bad_type(s, "embed_fwd", dt);
    (void)V;
    size_t row = (size_t)C * dtype_size(dt);
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(blocks_of(N * C, 8 * BLOCK)))
    for (int64_t n = 0; n < N; n++)
        memcpy((char *)y + (size_t)n * row, (const char *)w + (size_t)ids[n] * row, row);
    return OK;
}

static int embed_bwd(struct stream *s, enum dtype dt, float *dw, const void *dy, const int32_t *ids, int64_t N, int64_t C, int64_t V)
{
    if (!is_act(dt)) return bad_type(s, "embed_bwd", dt);
    (void)V;
    int64_t parts = blocks_of(C, COLUMNS);
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(min64(parts, blocks_of(N * C, 8 * BLOCK))))
    for (int64_t p = 0; p < parts; p++) {
        int64_t c0 = p * COLUMNS, cn = min64(COLUMNS, C - c0);
        float tmp[COLUMNS];
        for (int64_t n = 0; n < N; n++) {
            const float *g = block_in(dt, tmp, dy, n * C + c0, cn);
            float *d = dw + (int64_t)ids[n] * C + c0;
            #pragma omp simd
            for (int64_t c = 0; c < cn; c++) d[c] += g[c];
        }
    }
    return OK;
}

static int bias_add(struct stream *s, enum dtype dt, void *y, const void *b, int64_t N, int64_t C)
{
    if (!is_act(dt)) return bad_type(s, "bias_add", dt);
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(blocks_of(N * C, 8 * BLOCK)))
    for (int64_t n = 0; n < N; n++) {
        for (int64_t c0 = 0; c0 < C; c0 += BLOCK) {
            int64_t cn = min64(BLOCK, C - c0), at = n * C + c0;
            float t0[BLOCK], t1[BLOCK], t2[BLOCK];
            const float *yy = block_in(dt, t0, y, at, cn), *bb = block_in(dt, t1, b, c0, cn);
            float *out = block_out(dt, t2, y, at);
            #pragma omp simd
            for (int64_t i = 0; i < cn; i++) out[i] = yy[i] + bb[i];
            block_done(dt, y, at, out, cn);
        }
    }
    return OK;
}

static int bias_bwd(struct stream *s, enum dtype dt, float *db, const void *dy, int64_t N, int64_t C)
{
    if (!is_act(dt)) return bad_type(s, "bias_bwd", dt);
    int64_t parts = blocks_of(C, COLUMNS);
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(min64(parts, blocks_of(N * C, 8 * BLOCK))))
    for (int64_t p = 0; p < parts; p++) {
        int64_t c0 = p * COLUMNS, cn = min64(COLUMNS, C - c0);
        float tmp[COLUMNS];
        double total[COLUMNS] = { 0 };
        for (int64_t n0 = 0; n0 < N; n0 += CHAIN) {     /* rows cancel (those of a key's bias nearly all): no long f32 chains */
            float sum[COLUMNS] = { 0 };
            for (int64_t n = n0; n < min64(N, n0 + CHAIN); n++) {
                const float *g = block_in(dt, tmp, dy, n * C + c0, cn);
                #pragma omp simd
                for (int64_t c = 0; c < cn; c++) sum[c] += g[c];
            }
            for (int64_t c = 0; c < cn; c++) total[c] += sum[c];
        }
        for (int64_t c = 0; c < cn; c++) db[c0 + c] = (float)(db[c0 + c] + total[c]);
    }
    return OK;
}

static int col_scale(struct stream *s, enum dtype dt, void *y, const void *x, const float *c, int64_t N, int64_t C)
{
    if (!is_act(dt)) return bad_type(s, "col_scale", dt);
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(blocks_of(N * C, 8 * BLOCK)))
    for (int64_t n = 0; n < N; n++) {
        for (int64_t c0 = 0; c0 < C; c0 += BLOCK) {
            int64_t cn = min64(BLOCK, C - c0), at = n * C + c0;
            float t0[BLOCK], t1[BLOCK];
            const float *xx = block_in(dt, t0, x, at, cn);
            float *out = block_out(dt, t1, y, at);
            #pragma omp simd
            for (int64_t i = 0; i < cn; i++) out[i] = xx[i] * c[c0 + i];
            block_done(dt, y, at, out, cn);
        }
    }
    return OK;
}

static int col_dot(struct stream *s, enum dtype dt, float *out, const void *a, const void *b, const float *c, int64_t N, int64_t C)
{
    if (!is_act(dt)) return bad_type(s, "col_dot", dt);
    int64_t parts = blocks_of(C, COLUMNS);
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(min64(parts, blocks_of(N * C, 8 * BLOCK))))
    for (int64_t p = 0; p < parts; p++) {
        int64_t c0 = p * COLUMNS, cn = min64(COLUMNS, C - c0);
        float ta[COLUMNS], tb[COLUMNS];
        double total[COLUMNS] = { 0 };
        for (int64_t n0 = 0; n0 < N; n0 += CHAIN) {     /* as in bias_bwd */
            float sum[COLUMNS] = { 0 };
            for (int64_t n = n0; n < min64(N, n0 + CHAIN); n++) {
                const float *x = block_in(dt, ta, a, n * C + c0, cn), *y = block_in(dt, tb, b, n * C + c0, cn);
                #pragma omp simd
                for (int64_t i = 0; i < cn; i++) sum[i] += x[i] * y[i];
            }
            for (int64_t i = 0; i < cn; i++) total[i] += sum[i];
        }
        for (int64_t i = 0; i < cn; i++) out[c0 + i] = (float)(out[c0 + i] + c[c0 + i] * total[i]);
    }
    return OK;
}

static int add(struct stream *s, enum dtype dt, void *y, const void *a, const void *b, int64_t n)
{
    if (!is_real(dt)) return bad_type(s, "add", dt);
    if (dt == DT_F64) {
        double *yy = y;
        const double *aa = a, *bb = b;
        for (int64_t i = 0; i < n; i++) yy[i] = aa[i] + bb[i];
        return OK;
    }
    FOR_BLOCKS(n) {
        int64_t len = min64(BLOCK, n - at);
        float t0[BLOCK], t1[BLOCK], t2[BLOCK];
        const float *aa = block_in(dt, t0, a, at, len), *bb = block_in(dt, t1, b, at, len);
        float *out = block_out(dt, t2, y, at);
        #pragma omp simd
        for (int64_t i = 0; i < len; i++) out[i] = aa[i] + bb[i];
        block_done(dt, y, at, out, len);
    }
    return OK;
}

static int swiglu_fwd(struct stream *s, enum dtype dt, void *y, const void *gate, const void *up, int64_t n)
{
    if (!is_act(dt)) return bad_type(s, "swiglu_fwd", dt);
    FOR_BLOCKS(n) {
        int64_t len = min64(BLOCK, n - at);
        float t0[BLOCK], t1[BLOCK], t2[BLOCK];
        const float *g = block_in(dt, t0, gate, at, len), *u = block_in(dt, t1, up, at, len);
        float *out = block_out(dt, t2, y, at);
        #pragma omp simd
        for (int64_t i = 0; i < len; i++) out[i] = g[i] * sigmoid_f32(g[i]) * u[i];
        block_done(dt, y, at, out, len);
    }
    return OK;
}

/* d silu(g)/dg = sig + g sig (1 - sig). Reads the whole block before it writes: any output may be any input. */
static int swiglu_bwd(struct stream *s, enum dtype dt, void *dgate, void *dup, const void *dy, const void *gate, const void *up, int64_t n)
{
    if (!is_act(dt)) return bad_type(s, "swiglu_bwd", dt);
    FOR_BLOCKS(n) {
        int64_t len = min64(BLOCK, n - at);
        float t0[BLOCK], t1[BLOCK], t2[BLOCK], dg[BLOCK], du[BLOCK];
        const float *d = block_in(dt, t0, dy, at, len), *g = block_in(dt, t1, gate, at, len), *u = block_in(dt, t2, up, at, len);
        #pragma omp simd
        for (int64_t i = 0; i < len; i++) {
            float sig = sigmoid_f32(g[i]);
            dg[i] = d[i] * u[i] * (sig + g[i] * sig * (1.0f - sig));
            du[i] = d[i] * (g[i] * sig);
        }
        if (dt == DT_F32) {
            memcpy((float *)dgate + at, dg, (size_t)len * sizeof(float));
            memcpy((float *)dup + at, du, (size_t)len * sizeof(float));
        } else {
            narrow((bf16 *)dgate + at, dg, len);
            narrow((bf16 *)dup + at, du, len);
        }
    }
    return OK;
}

/* One element of any real type, in f64: only for the pairs that no hot path uses. */
static double get(enum dtype dt, const void *x, int64_t i)
{
    return dt == DT_F64 ? ((const double *)x)[i] : dt == DT_F32 ? (double)((const float *)x)[i] : (double)from_bf16(((const bf16 *)x)[i]);
}
static void put(enum dtype dt, void *y, int64_t i, double v)
{
    if (dt == DT_F64) ((double *)y)[i] = v;
    else if (dt == DT_F32) ((float *)y)[i] = (float)v;
    else ((bf16 *)y)[i] = to_bf16((float)v);
}

static int cast(struct stream *s, enum dtype dy, void *y, enum dtype dx, const void *x, int64_t n)
{
    if (!is_real(dx)) return bad_type(s, "cast from", dx);
    if (!is_real(dy)) return bad_type(s, "cast to", dy);
    if (dx == DT_F64 || dy == DT_F64) {
        FOR_BLOCKS(n) for (int64_t i = at; i < min64(n, at + BLOCK); i++) put(dy, y, i, get(dx, x, i));
        return OK;
    }
    size_t sx = dtype_size(dx), sy = dtype_size(dy);
    FOR_BLOCKS(n) {
        int64_t len = min64(BLOCK, n - at);
        if (dx == dy) memmove((char *)y + (size_t)at * sy, (const char *)x + (size_t)at * sx, (size_t)len * sx);
        else if (dy == DT_F32) widen((float *)y + at, (const bf16 *)x + at, len);
        else narrow((bf16 *)y + at, (const float *)x + at, len);
    }
    return OK;
}

static int axpy(struct stream *s, enum dtype dy, void *y, enum dtype dx, const void *x, float a, int64_t n)
{
    if (!is_real(dx)) return bad_type(s, "axpy x", dx);
    if (!is_real(dy)) return bad_type(s, "axpy y", dy);
    if (dx == DT_F64 || dy == DT_F64) {
        FOR_BLOCKS(n) for (int64_t i = at; i < min64(n, at + BLOCK); i++) put(dy, y, i, get(dy, y, i) + (double)a * get(dx, x, i));
        return OK;
    }
    FOR_BLOCKS(n) {
        int64_t len = min64(BLOCK, n - at);
        float t0[BLOCK], t1[BLOCK], t2[BLOCK];
        const float *xx = block_in(dx, t0, x, at, len), *yy = block_in(dy, t1, y, at, len);
        float *out = block_out(dy, t2, y, at);
        #pragma omp simd
        for (int64_t i = 0; i < len; i++) out[i] = yy[i] + a * xx[i];
        block_done(dy, y, at, out, len);
    }
    return OK;
}

static int scale(struct stream *s, enum dtype dt, void *y, float a, int64_t n)
{
    if (!is_real(dt)) return bad_type(s, "scale", dt);
    FOR_BLOCKS(n) {
        int64_t len = min64(BLOCK, n - at);
        if (dt == DT_F64) {
            for (int64_t i = at; i < at + len; i++) ((double *)y)[i] *= (double)a;
            continue;
        }
        float t0[BLOCK], t1[BLOCK];
        const float *yy = block_in(dt, t0, y, at, len);
        float *out = block_out(dt, t1, y, at);
        #pragma omp simd
        for (int64_t i = 0; i < len; i++) out[i] = a * yy[i];
        block_done(dt, y, at, out, len);
    }
    return OK;
}

static int dropout(struct stream *s, enum dtype dt, void *y, const void *x, float p, uint64_t seed, uint64_t offset, int64_t n)
{
    if (!is_act(dt)) return bad_type(s, "dropout", dt);
    if (!(p >= 0.0f && p < 1.0f)) return cpu_refuse(s, "dropout: p %g, expected 0 <= p < 1", (double)p);
    uint32_t threshold = random_threshold(p);
    float keep = 1.0f / (1.0f - p);
    FOR_BLOCKS(n) {
        int64_t len = min64(BLOCK, n - at);
        float t0[BLOCK], t1[BLOCK];
        const float *xx = block_in(dt, t0, x, at, len);
        float *out = block_out(dt, t1, y, at);
        uint64_t first = offset + (uint64_t)at;
        #pragma omp simd
        for (int64_t i = 0; i < len; i++)
            out[i] = random_bits(seed, first + (uint64_t)i) < threshold ? 0.0f : xx[i] * keep;
        block_done(dt, y, at, out, len);
    }
    return OK;
}

void ISA(fill_elementwise)(struct kernel_ops *ops)
{
    ops->embed_fwd = embed_fwd;
    ops->embed_bwd = embed_bwd;
    ops->bias_add = bias_add;
    ops->bias_bwd = bias_bwd;
    ops->col_scale = col_scale;
    ops->col_dot = col_dot;
    ops->add = add;
    ops->swiglu_fwd = swiglu_fwd;
    ops->swiglu_bwd = swiglu_bwd;
    ops->cast = cast;
    ops->axpy = axpy;
    ops->scale = scale;
    ops->dropout = dropout;
}
