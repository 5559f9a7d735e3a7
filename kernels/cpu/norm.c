/* norm.c - RMSNorm. The weight gradient is summed in parts of fixed row counts, then over the parts in order:
 * the same bits for any number of threads. A part adds up short chains, since q/k norm has a row for every head and token. */
#include "kernels/cpu/isa.h"

enum { PARTS_MAX = 64, PART_ROWS_MIN = 16, CHAIN = 64 };

static float sum_squares(enum dtype dt, const void *x, int64_t at, int64_t C)
{
    float tmp[BLOCK], total = 0.0f;
    for (int64_t c0 = 0; c0 < C; c0 += BLOCK) {
        int64_t cn = min64(BLOCK, C - c0);
        const float *v = block_in(dt, tmp, x, at + c0, cn);
        float sum = 0.0f;
        #pragma omp simd reduction(+:sum)
        for (int64_t c = 0; c < cn; c++) sum += v[c] * v[c];
        total += sum;
    }
    return total;
}

static int rmsnorm_fwd(struct stream *s, enum dtype dt, void *y, float *rstd, const void *x, const void *w, int64_t N, int64_t C, float eps)
{
    if (dt != DT_F32 && dt != DT_BF16) return cpu_refuse(s, "rmsnorm_fwd: type %s is not supported", dtype_name(dt));
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(blocks_of(N * C, 8 * BLOCK)))
    for (int64_t n = 0; n < N; n++) {
        float r = 1.0f / sqrtf(sum_squares(dt, x, n * C, C) / (float)C + eps);
        if (rstd) rstd[n] = r;
        for (int64_t c0 = 0; c0 < C; c0 += BLOCK) {
            int64_t cn = min64(BLOCK, C - c0), at = n * C + c0;
            float t0[BLOCK], t1[BLOCK], t2[BLOCK];
            const float *v = block_in(dt, t0, x, at, cn), *ww = block_in(dt, t1, w, c0, cn);
            float *out = block_out(dt, t2, y, at);
            #pragma omp simd
            for (int64_t c = 0; c < cn; c++) out[c] = v[c] * r * ww[c];
            block_done(dt, y, at, out, cn);
        }
    }
    return OK;
}

static int64_t parts_of(int64_t N) { return min64(PARTS_MAX, blocks_of(N, PART_ROWS_MIN)); }
static size_t rmsnorm_bwd_ws(int64_t N, int64_t C) { return 2 * (size_t)parts_of(N) * (size_t)C * sizeof(float); }      /* sums, then chains */

/* With h = x rstd:  dx = rstd (dy w - h mean(dy w h)),  dw += dy h.  One row: */
static void row_bwd(enum dtype dt, void *dx, bool add, float *dw, const void *dy, const void *x, const void *w, float r, int64_t at, int64_t C)
{
    float t0[BLOCK], t1[BLOCK], t2[BLOCK], t3[BLOCK], t4[BLOCK], mean = 0.0f;
    for (int64_t c0 = 0; c0 < C; c0 += BLOCK) {
        int64_t cn = min64(BLOCK, C - c0);
        const float *d = block_in(dt, t0, dy, at + c0, cn), *v = block_in(dt, t1, x, at + c0, cn), *ww = block_in(dt, t2, w, c0, cn);
        float sum = 0.0f;
        #pragma omp simd reduction(+:sum)
        for (int64_t c = 0; c < cn; c++) sum += d[c] * ww[c] * v[c];
        mean += sum;
        if (!dw) continue;
        #pragma omp simd
        for (int64_t c = 0; c < cn; c++) dw[c0 + c] += d[c] * v[c] * r;
    }
    mean *= r / (float)C;
    for (int64_t c0 = 0; c0 < C; c0 += BLOCK) {
        int64_t cn = min64(BLOCK, C - c0);
        const float *d = block_in(dt, t0, dy, at + c0, cn), *v = block_in(dt, t1, x, at + c0, cn), *ww = block_in(dt, t2, w, c0, cn);
        float *out = block_out(dt, t3, dx, at + c0);
        if (add) {
            const float *old = block_in(dt, t4, dx, at + c0, cn);
            #pragma omp simd
            for (int64_t c = 0; c < cn; c++) out[c] = old[c] + r * (d[c] * ww[c] - v[c] * r * mean);
        } else {
            #pragma omp simd
            for (int64_t c = 0; c < cn; c++) out[c] = r * (d[c] * ww[c] - v[c] * r * mean);
        }
        block_done(dt, dx, at + c0, out, cn);
    }
}

static int rmsnorm_bwd(struct stream *s, enum dtype dt, void *dx, bool add, float *dw, const void *dy, const void *x, const void *w,
                       const float *rstd, int64_t N, int64_t C, void *ws)
{
    if (dt != DT_F32 && dt != DT_BF16) return cpu_refuse(s, "rmsnorm_bwd: type %s is not supported", dtype_name(dt));
    int64_t parts = parts_of(N), rows = parts ? blocks_of(N, parts) : 0;
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(parts))
    for (int64_t p = 0; p < parts; p++) {
        float *part = dw ? (float *)ws + p * C : NULL, *chain = dw ? (float *)ws + (parts + p) * C : NULL;
        int64_t end = min64(N, (p + 1) * rows);
        if (part) memset(part, 0, (size_t)C * sizeof(float));
        for (int64_t n0 = p * rows; n0 < end; n0 += CHAIN) {
            if (chain) memset(chain, 0, (size_t)C * sizeof(float));
            for (int64_t n = n0; n < min64(end, n0 + CHAIN); n++) row_bwd(dt, dx, add, chain, dy, x, w, rstd[n], n * C, C);
            #pragma omp simd
            for (int64_t c = 0; c < (part ? C : 0); c++) part[c] += chain[c];
        }
    }
    if (!dw) return OK;
    for (int64_t c0 = 0; c0 < C; c0 += BLOCK) {
        int64_t cn = min64(BLOCK, C - c0);
        double sum[BLOCK] = { 0 };
        for (int64_t p = 0; p < parts; p++) {
            const float *part = (const float *)ws + p * C + c0;
            #pragma omp simd
            for (int64_t c = 0; c < cn; c++) sum[c] += (double)part[c];
        }
        for (int64_t c = 0; c < cn; c++) dw[c0 + c] = (float)((double)dw[c0 + c] + sum[c]);
    }
    return OK;
}

void ISA(fill_norm)(struct kernel_ops *ops)
{
    ops->rmsnorm_fwd = rmsnorm_fwd;
    ops->rmsnorm_bwd = rmsnorm_bwd;
    ops->rmsnorm_bwd_ws = rmsnorm_bwd_ws;
}
