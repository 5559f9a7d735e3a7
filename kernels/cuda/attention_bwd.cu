// attention_bwd.cu - FlashAttention-2 backward, deterministic: one kernel owns key rows and makes dK, dV, one owns query rows and
// makes dQ; each recomputes P from the final LSE (7 products instead of 5, no atomics, no extra buffer: docs/cuda.md).
//   P = e^(scale q.k - LSE)   dV += P^T dO   dS = P (dO.v - delta)   dK += scale dS^T q   dQ += scale dS k
#include "kernels/cuda/attention.h"
#include "kernels/cuda/tile.cuh"

struct bwd_args {
    const gbf16 *q, *k, *v, *dout;
    const float *lse, *delta;
    float *dq, *dk, *dv;
    span_table table;
    int64_t Tq, H, Hkv, window;
    int D;
    float scale, scale_log2;
};

// LSE in base 2; a row that saw nothing gets +inf, so that its P is 0 and not inf.
__device__ __forceinline__ float lse_base2(float lse) { return lse == -CUDART_INF_F ? CUDART_INF_F : lse * LOG2E; }

// A block owns 16 key rows per warp of one kv head and walks the query rows that see them, over all query heads of the group.
// S^T = K Q^T, so that P^T and dS^T feed the next products from registers. DK, DV: which of the two it makes (256 wide: one each).
template <int W, int BM, int WARPS, bool DK, bool DV>
static __global__ void __launch_bounds__(WARPS * 32) bwd_keys_kernel(const bwd_args p)
{
    constexpr int BN = WARPS * 16, N_THREADS = WARPS * 32;
    GPU_DYN_SHARED(char, shared);
    char *tile_k = shared, *tile_v = tile_k + BN * W * 2, *tile_q = tile_v + BN * W * 2, *tile_do = tile_q + BM * W * 2;
    float *row_lse = (float *)(tile_do + BM * W * 2), *row_delta = row_lse + BM;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, tile = (int)blockIdx.x;
    int64_t hk = blockIdx.y, group = p.H / p.Hkv, q_stride = p.H * p.D, k_stride = p.Hkv * p.D;
    span_range range = range_of(p.table, tile);
    int64_t n0 = (int64_t)(tile - range.first_tile) * BN, n1 = n0 + BN < range.rows ? n0 + BN : range.rows;

    tile_load<W, N_THREADS>(tile_k, p.k + range.row0 * k_stride + hk * p.D, k_stride, n0, range.rows, BN, p.D);
    tile_load<W, N_THREADS>(tile_v, p.v + range.row0 * k_stride + hk * p.D, k_stride, n0, range.rows, BN, p.D);
    cp_async_commit();
    float dk[DK ? W / 8 : 1][4], dv[DV ? W / 8 : 1][4];
#pragma unroll
    for (int j = 0; j < (DK ? W / 8 : 1); j++)
#pragma unroll
        for (int e = 0; e < 4; e++) dk[j][e] = 0.0f;
#pragma unroll
    for (int j = 0; j < (DV ? W / 8 : 1); j++)
#pragma unroll
        for (int e = 0; e < 4; e++) dv[j][e] = 0.0f;

    for (int x = range.first; x < range.first + range.count; x++) {
        attn_span span = p.table.spans[p.table.order[x]];
        // query rows that see any key of [n0, n1): from the diagonal of the first key to the window's end of the last
        int64_t first = n0 - span.diag > 0 ? (n0 - span.diag) / BM * BM : 0, end = span.nq;
        if (p.window && n1 - 1 - span.diag + p.window < end) end = n1 - 1 - span.diag + p.window;
        if (first >= end) continue;
        int from = (int)first, to = (int)end;      // rows of one span fit 31 bits (attention.cu)
        for (int h = (int)(hk * group); h < (int)((hk + 1) * group); h++) {
            const gbf16 *q = p.q + span.q0 * q_stride + h * p.D, *dout = p.dout + span.q0 * q_stride + h * p.D;
            for (int m0 = from; m0 < to; m0 += BM) {
                __syncthreads();        // the last block's readers are done with Q, dO and the row sums
                tile_load<W, N_THREADS>(tile_q, q, q_stride, m0, span.nq, BM, p.D);
                tile_load<W, N_THREADS>(tile_do, dout, q_stride, m0, span.nq, BM, p.D);
                cp_async_commit();
                for (int i = (int)threadIdx.x; i < BM; i += N_THREADS) {
                    bool there = m0 + i < span.nq;
                    row_lse[i] = there ? lse_base2(p.lse[h * p.Tq + span.q0 + m0 + i]) : CUDART_INF_F;
                    row_delta[i] = there ? p.delta[h * p.Tq + span.q0 + m0 + i] : 0.0f;
                }
                cp_async_wait<0>();
                __syncthreads();

                float s[BM / 8][4], dp[DK ? BM / 8 : 1][4];
#pragma unroll
                for (int j = 0; j < BM / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) s[j][e] = 0.0f;
#pragma unroll
                for (int j = 0; j < (DK ? BM / 8 : 1); j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) dp[j][e] = 0.0f;
#pragma unroll 2             /* whole, it spills on sm_86 */
                for (int kk = 0; kk < W / 16; kk++) {
                    uint32_t a[4], b[4];
                    frag_a<W>(a, tile_k, warp * 16, kk);
#pragma unroll
                    for (int j = 0; j < BM / 16; j++) {
                        frag_b<W>(b, tile_q, j * 16, kk);
                        mma_m16n8k16(s[2 * j], a, b[0], b[1]);
                        mma_m16n8k16(s[2 * j + 1], a, b[2], b[3]);
                    }
                    if (DK) {
                        frag_a<W>(a, tile_v, warp * 16, kk);
#pragma unroll
                        for (int j = 0; j < BM / 16; j++) {
                            frag_b<W>(b, tile_do, j * 16, kk);
                            mma_m16n8k16(dp[2 * j], a, b[0], b[1]);
                            mma_m16n8k16(dp[2 * j + 1], a, b[2], b[3]);
                        }
                    }
                }
                // rows beyond the ends need no test: their row_lse is +inf, and keys beyond n1 are not stored
                block_mask mask = mask_of(m0 + span.diag - n0, p.window);
#pragma unroll
                for (int j = 0; j < BM / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int i = j * 8 + 2 * (lane % 4) + e % 2;                         // query row of the block
                        bool seen = visible(mask, warp * 16 + lane / 4 + 8 * (e / 2) - i);
                        float prob = seen ? exp2_fast(s[j][e] * p.scale_log2 - row_lse[i]) : 0.0f;      // after exp too: masked is 0
                        s[j][e] = prob;
                        if (DK) dp[j][e] = prob * (dp[j][e] - row_delta[i]);
                    }
#pragma unroll
                for (int kk = 0; kk < BM / 16; kk++) {
                    uint32_t a[4], b[4];
                    if (DV) {
                        frag_pack(a, s[2 * kk], s[2 * kk + 1]);
#pragma unroll
                        for (int j = 0; j < W / 16; j++) {
                            frag_b_rows<W>(b, tile_do, kk * 16, j);
                            mma_m16n8k16(dv[2 * j], a, b[0], b[1]);
                            mma_m16n8k16(dv[2 * j + 1], a, b[2], b[3]);
                        }
                    }
                    if (DK) {
                        frag_pack(a, dp[2 * kk], dp[2 * kk + 1]);
#pragma unroll
                        for (int j = 0; j < W / 16; j++) {
                            frag_b_rows<W>(b, tile_q, kk * 16, j);
                            mma_m16n8k16(dk[2 * j], a, b[0], b[1]);
                            mma_m16n8k16(dk[2 * j + 1], a, b[2], b[3]);
                        }
                    }
                }
            }
        }
    }
    cp_async_wait<0>();
    span_range own = range_of(p.table, (int)blockIdx.x);       // looked up again: kept, it would spill
    int64_t k0 = (int64_t)((int)blockIdx.x - own.first_tile) * BN;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t key = k0 + warp * 16 + lane / 4 + 8 * r;
        if (key >= own.rows) continue;
        int64_t at = (own.row0 + key) * p.Hkv * p.D + (int64_t)blockIdx.y * p.D;
#pragma unroll
        for (int j = 0; j < W / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int c = j * 8 + 2 * (lane % 4) + e;
                if (c >= p.D) continue;
                if (DK) p.dk[at + c] += dk[j][2 * r + e] * p.scale;
                if (DV) p.dv[at + c] += dv[j][2 * r + e];
            }
    }
}

// A block owns 16 query rows per warp of one head and walks the keys they see.
template <int W, int BN, int WARPS>
static __global__ void __launch_bounds__(WARPS * 32) bwd_queries_kernel(const bwd_args p)
{
    constexpr int BM = WARPS * 16, N_THREADS = WARPS * 32;
    GPU_DYN_SHARED(char, shared);
    char *tile_q = shared, *tile_do = tile_q + BM * W * 2, *tile_k = tile_do + BM * W * 2, *tile_v = tile_k + BN * W * 2;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, tile = (int)(gridDim.x - 1 - blockIdx.x);
    int64_t h = blockIdx.y, hk = h / (p.H / p.Hkv), q_stride = p.H * p.D, k_stride = p.Hkv * p.D;
    span_range range = range_of(p.table, tile);
    int64_t m0 = (int64_t)(tile - range.first_tile) * BM, m1 = m0 + BM < range.rows ? m0 + BM : range.rows;

    tile_load<W, N_THREADS>(tile_q, p.q + range.row0 * q_stride + h * p.D, q_stride, m0, range.rows, BM, p.D);
    tile_load<W, N_THREADS>(tile_do, p.dout + range.row0 * q_stride + h * p.D, q_stride, m0, range.rows, BM, p.D);
    cp_async_commit();
    int64_t row[2];
    float row_lse[2], row_delta[2], dq[W / 8][4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        row[r] = m0 + warp * 16 + lane / 4 + 8 * r;
        bool there = row[r] < m1;
        row_lse[r] = there ? lse_base2(p.lse[h * p.Tq + range.row0 + row[r]]) : CUDART_INF_F;
        row_delta[r] = there ? p.delta[h * p.Tq + range.row0 + row[r]] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < W / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) dq[j][e] = 0.0f;

    key_walk<BN> walk(&p.table, range, m0, m1, p.window);
    while (walk.advance()) {
        attn_span span = walk.span;
        int64_t j0 = walk.j;
        __syncthreads();        // the last block's readers are done with K and V
        tile_load<W, N_THREADS>(tile_k, p.k + span.k0 * k_stride + hk * p.D, k_stride, j0, span.nk, BN, p.D);
        tile_load<W, N_THREADS>(tile_v, p.v + span.k0 * k_stride + hk * p.D, k_stride, j0, span.nk, BN, p.D);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        float s[BN / 8][4], dp[BN / 8][4];
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] = dp[j][e] = 0.0f;
#pragma unroll
        for (int kk = 0; kk < W / 16; kk++) {
            uint32_t a[4], b[4];
            frag_a<W>(a, tile_q, warp * 16, kk);
#pragma unroll
            for (int j = 0; j < BN / 16; j++) {
                frag_b<W>(b, tile_k, j * 16, kk);
                mma_m16n8k16(s[2 * j], a, b[0], b[1]);
                mma_m16n8k16(s[2 * j + 1], a, b[2], b[3]);
            }
            frag_a<W>(a, tile_do, warp * 16, kk);
#pragma unroll
            for (int j = 0; j < BN / 16; j++) {
                frag_b<W>(b, tile_v, j * 16, kk);
                mma_m16n8k16(dp[2 * j], a, b[0], b[1]);
                mma_m16n8k16(dp[2 * j + 1], a, b[2], b[3]);
            }
        }
        block_mask mask = mask_of(m0 + span.diag - j0, p.window);
        int keys = clamp_int(span.nk - j0);
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int key = j * 8 + 2 * (lane % 4) + e % 2;
                bool seen = key < keys && visible(mask, key - (warp * 16 + lane / 4 + 8 * (e / 2)));
                float prob = seen ? exp2_fast(s[j][e] * p.scale_log2 - row_lse[e / 2]) : 0.0f;
                dp[j][e] = prob * (dp[j][e] - row_delta[e / 2]);
            }
#pragma unroll
        for (int kk = 0; kk < BN / 16; kk++) {
            uint32_t a[4], b[4];
            frag_pack(a, dp[2 * kk], dp[2 * kk + 1]);
#pragma unroll
            for (int j = 0; j < W / 16; j++) {
                frag_b_rows<W>(b, tile_k, kk * 16, j);
                mma_m16n8k16(dq[2 * j], a, b[0], b[1]);
                mma_m16n8k16(dq[2 * j + 1], a, b[2], b[3]);
            }
        }
    }
    cp_async_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row[r] >= m1) continue;
        float *out = p.dq + (range.row0 + row[r]) * q_stride + h * p.D;
#pragma unroll
        for (int j = 0; j < W / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int c = j * 8 + 2 * (lane % 4) + e;
                if (c < p.D) out[c] += dq[j][2 * r + e] * p.scale;
            }
    }
}

template <int W, int BM, int WARPS, bool DK, bool DV> static int keys(struct stream *s, const bwd_args &p)
{
    constexpr int SHARED = (2 * WARPS * 16 + 2 * BM) * W * 2 + 2 * BM * 4;
    int rc = cuda_status(s, cudaFuncSetAttribute(bwd_keys_kernel<W, BM, WARPS, DK, DV>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED), "attn_bwd");
    if (rc != OK) return rc;
    dim3 grid((unsigned)p.table.n_tiles, (unsigned)p.Hkv);
    return cuda_status(s, GPU_LAUNCH((bwd_keys_kernel<W, BM, WARPS, DK, DV>), grid, dim3(WARPS * 32), SHARED, s->q, p), "attn_bwd");
}

template <int W, int BN, int WARPS> static int queries(struct stream *s, const bwd_args &p)
{
    constexpr int SHARED = (2 * WARPS * 16 + 2 * BN) * W * 2;
    int rc = cuda_status(s, cudaFuncSetAttribute(bwd_queries_kernel<W, BN, WARPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED), "attn_bwd");
    if (rc != OK) return rc;
    dim3 grid((unsigned)p.table.n_tiles, (unsigned)p.H);
    return cuda_status(s, GPU_LAUNCH((bwd_queries_kernel<W, BN, WARPS>), grid, dim3(WARPS * 32), SHARED, s->q, p), "attn_bwd");
}

#ifndef ATTENTION_KERNELS_ONLY      // tests/bench/tiles.cu makes other sizes of them
enum { KEY_WARPS = 8, QUERY_WARPS = 4 };

extern "C" int flash_bwd(struct stream *s, float *dq, float *dk, float *dv, const void *dout, const void *q, const void *k, const void *v, const float *lse,
                         const float *delta, struct attn_shape n, struct attn_spans spans, void *ws)
{
    bwd_args p = { (const gbf16 *)q, (const gbf16 *)k, (const gbf16 *)v, (const gbf16 *)dout, lse, delta, dq, dk, dv, {}, n.Tq, n.H, n.Hkv, n.window, (int)n.D,
                   n.scale, n.scale * LOG2E };
    int key_warps = n.D <= 128 ? KEY_WARPS : 4;
    int rc = span_table_build(s, &p.table, spans, true, key_warps * 16, ws);
    if (rc != OK || p.table.n_tiles == 0) return rc;
    if (n.D <= 64) rc = keys<64, 64, KEY_WARPS, true, true>(s, p);
    else if (n.D <= 128) rc = keys<128, 32, KEY_WARPS, true, true>(s, p);
    else if ((rc = keys<256, 32, 4, true, false>(s, p)) == OK) rc = keys<256, 32, 4, false, true>(s, p);
    if (rc != OK) return rc;
    rc = span_table_build(s, &p.table, spans, false, QUERY_WARPS * 16, (char *)ws + span_table_bytes(spans.n));
    if (rc != OK) return rc;
    if (n.D <= 64) return queries<64, 64, QUERY_WARPS>(s, p);
    if (n.D <= 128) return queries<128, 64, QUERY_WARPS>(s, p);
    return queries<256, 32, QUERY_WARPS>(s, p);
}
#endif
