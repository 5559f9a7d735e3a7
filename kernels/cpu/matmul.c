/* matmul.c - matrix products, through oneDNN (the only file with its header).
 *
 * f32: dnnl_sgemm. bf16: cast to f32 in chunks that stay in L2, then dnnl_sgemm; right on every processor, and where there is no
 * AMX also the fastest way (vdpbf16ps runs at half the f32 rate; measured). */
#include <dnnl.h>
#include <omp.h>

#include "kernels/cpu/isa.h"

enum { CHUNK_M = 256, CHUNK_N = 256, CHUNK_K = 1024 };

static int sgemm(struct stream *s, float *c, int64_t ldc, const float *a, int64_t lda, bool ta, const float *b, int64_t ldb, bool tb,
                 int64_t M, int64_t N, int64_t K, float alpha, float beta)
{
    int threads = cpu_threads(INT64_MAX);
    if (omp_get_max_threads() != threads) omp_set_num_threads(threads);
    dnnl_status_t rc = dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', M, N, K, alpha, a, lda, b, ldb, beta, c, ldc);
    if (rc != dnnl_success) return cpu_refuse(s, "matmul %lld x %lld x %lld: oneDNN status %d", (long long)M, (long long)N, (long long)K, (int)rc);
    return OK;
}

/* x[r0..r0+rows) x [c0..c0+cols) of op(x) as stored, to dense f32. */
static void gather(const struct kernel_ops *ops, struct stream *s, float *y, const bf16 *x, int64_t ld, int64_t r0, int64_t rows, int64_t c0, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++) ops->cast(s, DT_F32, y + r * cols, DT_BF16, x + (r0 + r) * ld + c0, cols);
}

static int matmul_chunks(struct stream *s, enum dtype dc, void *c, int64_t ldc, const bf16 *a, int64_t lda, bool ta, const bf16 *b, int64_t ldb,
                         bool tb, int64_t M, int64_t N, int64_t K, float alpha, float beta, float *ws)
{
    const struct kernel_ops *ops = kernel_ops_cpu();
    float *wa = ws, *wb = wa + CHUNK_M * CHUNK_K, *wc = wb + CHUNK_N * CHUNK_K;
    for (int64_t n0 = 0; n0 < N; n0 += CHUNK_N) {
        int64_t nn = min64(CHUNK_N, N - n0);
        for (int64_t m0 = 0; m0 < M; m0 += CHUNK_M) {
            int64_t mm = min64(CHUNK_M, M - m0);
            float *out = dc == DT_F32 ? (float *)c + m0 * ldc + n0 : wc;
            int64_t ldo = dc == DT_F32 ? ldc : nn;
            if (dc != DT_F32 && beta != 0.0f) gather(ops, s, wc, c, ldc, m0, mm, n0, nn);
            for (int64_t k0 = 0; k0 < K; k0 += CHUNK_K) {
                int64_t kk = min64(CHUNK_K, K - k0);
                if (ta) gather(ops, s, wa, a, lda, k0, kk, m0, mm);
                else gather(ops, s, wa, a, lda, m0, mm, k0, kk);
                if (tb) gather(ops, s, wb, b, ldb, n0, nn, k0, kk);
                else gather(ops, s, wb, b, ldb, k0, kk, n0, nn);
                int rc = sgemm(s, out, ldo, wa, ta ? mm : kk, ta, wb, tb ? kk : nn, tb, mm, nn, kk, alpha, k0 ? 1.0f : beta);
                if (rc != OK) return rc;
            }
            if (dc != DT_F32)
                for (int64_t r = 0; r < mm; r++) ops->cast(s, DT_BF16, (bf16 *)c + (m0 + r) * ldc + n0, DT_F32, wc + r * nn, nn);
        }
    }
    return OK;
}

static size_t matmul_ws(enum dtype dc, enum dtype da, int64_t M, int64_t N, int64_t K, bool ta, bool tb)
{
    (void)dc; (void)M; (void)N; (void)K; (void)ta; (void)tb;
    return da == DT_F32 ? 0 : sizeof(float) * ((CHUNK_M + CHUNK_N) * (size_t)CHUNK_K + CHUNK_M * (size_t)CHUNK_N);
}

/* K = 0: c = beta c, without reading c when beta is 0. */
static void only_beta(enum dtype dc, void *c, int64_t ldc, int64_t M, int64_t N, float beta)
{
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            if (dc == DT_F32) { float *p = (float *)c + m * ldc + n; *p = beta == 0.0f ? 0.0f : beta * *p; }
            else { bf16 *p = (bf16 *)c + m * ldc + n; *p = beta == 0.0f ? (bf16){ 0 } : f32_to_bf16(beta * bf16_to_f32(*p)); }
        }
}

static int matmul(struct stream *s, enum dtype dc, void *c, int64_t ldc, enum dtype da, const void *a, int64_t lda, bool ta,
                  enum dtype db, const void *b, int64_t ldb, bool tb, int64_t M, int64_t N, int64_t K,
                  float alpha, float beta, void *ws, size_t ws_bytes)
{
    if (da != db || (da != DT_F32 && da != DT_BF16) || (dc != da && dc != DT_F32))
        return cpu_refuse(s, "matmul: types %s = %s x %s are not supported", dtype_name(dc), dtype_name(da), dtype_name(db));
    if (M < 0 || N < 0 || K < 0 || lda < (ta ? M : K) || ldb < (tb ? K : N) || ldc < N)
        return cpu_refuse(s, "matmul: M %lld N %lld K %lld with row strides %lld %lld %lld", (long long)M, (long long)N, (long long)K,
                          (long long)lda, (long long)ldb, (long long)ldc);
    if (M == 0 || N == 0) return OK;
    if (K == 0) { only_beta(dc, c, ldc, M, N, beta); return OK; }
    if (ws_bytes < matmul_ws(dc, da, M, N, K, ta, tb))
        return cpu_refuse(s, "matmul: %zu bytes of workspace, expected %zu", ws_bytes, matmul_ws(dc, da, M, N, K, ta, tb));
    if (da == DT_F32) return sgemm(s, c, ldc, a, lda, ta, b, ldb, tb, M, N, K, alpha, beta);
    return matmul_chunks(s, dc, c, ldc, a, lda, ta, b, ldb, tb, M, N, K, alpha, beta, ws);
}

void cpu_fill_matmul(struct kernel_ops *ops)
{
    ops->matmul = matmul;
    ops->matmul_ws = matmul_ws;
}
