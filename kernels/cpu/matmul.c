/* matmul.c - matrix products. f32 is oneDNN's. bf16 is oneDNN's where it has AMX; elsewhere bf16 is cast to f32 in chunks, then f32:
 * right on every processor, and without AMX also the fastest way (vdpbf16ps runs at half the rate of f32 multiply-adds; measured),
 * since a cast costs little beside a product 512 wide. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/onednn.h"

enum { CHUNK = 512, CHUNK_K = 1024 };

/* y[rows,cols] = x at row stride ld, and back. */
static void widen_chunk(float *y, const bf16 *x, int64_t ld, int64_t rows, int64_t cols)
{
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(blocks_of(rows * cols, 32 * BLOCK)))
    for (int64_t r = 0; r < rows; r++) widen(y + r * cols, x + r * ld, cols);
}
static void narrow_chunk(bf16 *y, int64_t ld, const float *x, int64_t rows, int64_t cols)
{
    #pragma omp parallel for schedule(static) num_threads(cpu_threads(blocks_of(rows * cols, 32 * BLOCK)))
    for (int64_t r = 0; r < rows; r++) narrow(y + r * ld, x + r * cols, cols);
}

static size_t chunks_ws(const struct product *p)
{
    size_t m = (size_t)min64(CHUNK, p->M), n = (size_t)min64(CHUNK, p->N), k = (size_t)min64(CHUNK_K, p->K);
    return sizeof(float) * ((m + n) * k + (p->dc == DT_F32 ? 0 : m * n));
}

static int by_chunks(const struct product *p, void *c, const bf16 *a, const bf16 *b, float *ws)
{
    float *wa = ws, *wb = wa + min64(CHUNK, p->M) * min64(CHUNK_K, p->K), *wc = wb + min64(CHUNK, p->N) * min64(CHUNK_K, p->K);
    bool direct = p->dc == DT_F32;
    for (int64_t n0 = 0; n0 < p->N; n0 += CHUNK) {
        int64_t nn = min64(CHUNK, p->N - n0);
        for (int64_t m0 = 0; m0 < p->M; m0 += CHUNK) {
            int64_t mm = min64(CHUNK, p->M - m0);
            float *out = direct ? (float *)c + m0 * p->ldc + n0 : wc;
            if (!direct && p->beta != 0.0f) widen_chunk(wc, (const bf16 *)c + m0 * p->ldc + n0, p->ldc, mm, nn);
            for (int64_t k0 = 0; k0 < p->K; k0 += CHUNK_K) {
                int64_t kk = min64(CHUNK_K, p->K - k0);
                if (p->ta) widen_chunk(wa, a + k0 * p->lda + m0, p->lda, kk, mm);
                else widen_chunk(wa, a + m0 * p->lda + k0, p->lda, mm, kk);
                bool have_b = m0 > 0 && p->K <= CHUNK_K;
                if (!have_b && p->tb) widen_chunk(wb, b + n0 * p->ldb + k0, p->ldb, nn, kk);
                else if (!have_b) widen_chunk(wb, b + k0 * p->ldb + n0, p->ldb, kk, nn);
                struct product f32 = { DT_F32, DT_F32, p->ta, p->tb, mm, nn, kk, p->ta ? mm : kk, p->tb ? kk : nn, direct ? p->ldc : nn, p->alpha, k0 ? 1.0f : p->beta };
                int rc = onednn_sgemm(&f32, out, wa, wb);
                if (rc != 0) return rc;
            }
            if (!direct) narrow_chunk((bf16 *)c + m0 * p->ldc + n0, p->ldc, wc, mm, nn);
        }
    }
    return 0;
}

static size_t matmul_ws(enum dtype dc, enum dtype da, int64_t M, int64_t N, int64_t K, bool ta, bool tb)
{
    struct product p = { .dc = dc, .dab = da, .ta = ta, .tb = tb, .M = M, .N = N, .K = K };
    if (da == DT_F32 || M <= 0 || N <= 0 || K <= 0) return 0;
    size_t chunks = chunks_ws(&p), whole = onednn_bf16_ws(&p);
    return chunks > whole ? chunks : whole;
}

/* K = 0: c = beta c, without reading c when beta is 0. */
static void only_beta(const struct product *p, void *c)
{
    for (int64_t m = 0; m < p->M; m++)
        for (int64_t n = 0; n < p->N; n++) {
            float *f = (float *)c + m * p->ldc + n;
            bf16 *h = (bf16 *)c + m * p->ldc + n;
            if (p->dc == DT_F32) *f = p->beta == 0.0f ? 0.0f : p->beta * *f;
            else *h = p->beta == 0.0f ? (bf16){ 0 } : to_bf16(p->beta * from_bf16(*h));
        }
}

static int matmul(struct stream *s, enum dtype dc, void *c, int64_t ldc, enum dtype da, const void *a, int64_t lda, bool ta,
                  enum dtype db, const void *b, int64_t ldb, bool tb, int64_t M, int64_t N, int64_t K,
                  float alpha, float beta, void *ws, size_t ws_bytes)
{
    struct product p = { dc, da, ta, tb, M, N, K, lda, ldb, ldc, alpha, beta };
    if (da != db || (da != DT_F32 && da != DT_BF16) || (dc != da && dc != DT_F32))
        return cpu_refuse(s, "matmul: types %s = %s x %s are not supported", dtype_name(dc), dtype_name(da), dtype_name(db));
    if (M < 0 || N < 0 || K < 0 || lda < (ta ? M : K) || ldb < (tb ? K : N) || ldc < N)
        return cpu_refuse(s, "matmul: M %lld N %lld K %lld with row strides %lld %lld %lld", (long long)M, (long long)N, (long long)K,
                          (long long)lda, (long long)ldb, (long long)ldc);
    if (M == 0 || N == 0) return OK;
    if (K == 0) {
        only_beta(&p, c);
        return OK;
    }
    if (da == DT_BF16 && ws_bytes < chunks_ws(&p)) return cpu_refuse(s, "matmul: %zu bytes of workspace, expected at least %zu", ws_bytes, chunks_ws(&p));
    int rc = 0;
    if (da == DT_F32) rc = onednn_sgemm(&p, c, a, b);
    else if (!onednn_bf16(&p, c, a, b, ws, ws_bytes)) rc = by_chunks(&p, c, a, b, ws);
    if (rc != 0) return cpu_refuse(s, "matmul %lld x %lld x %lld: oneDNN status %d", (long long)M, (long long)N, (long long)K, rc);
    return OK;
}

void ISA(fill_matmul)(struct kernel_ops *ops)
{
    ops->matmul = matmul;
    ops->matmul_ws = matmul_ws;
}
