// attention_fwd.cu - FlashAttention-2 forward (arXiv 2307.08691): a block owns 16 query rows per warp and streams keys and values.
// The running (O, LSE) may come in from earlier blocks of a ring and goes out again; see kernels.h, attn_fwd.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/tile.cuh"

struct fwd_args {
    const gbf16 *q, *k, *v;
    void *o;
    float *lse;
    span_table table;
    int64_t Tq, H, Hkv, window;
    int D;
    float scale_log2;
    bool merge;
};

template <int W, int BN, int WARPS, class OUT>
static __global__ void __launch_bounds__(WARPS * 32, WARPS <= 4 ? 2 : 1) fwd_kernel(const fwd_args p)
{
    constexpr int BM = WARPS * 16, N_THREADS = WARPS * 32;
    GPU_DYN_SHARED(char, shared);
    char *tile_q = shared, *tile_k = tile_q + BM * W * 2, *tile_v = tile_k + BN * W * 2;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t h = blockIdx.y, hk = h / (p.H / p.Hkv), q_stride = p.H * p.D, k_stride = p.Hkv * p.D;
    // the last tiles see the most keys: they start first
    int tile = (int)(gridDim.x - 1 - blockIdx.x);
    span_range range = range_of(p.table, tile);
    int64_t m0 = (int64_t)(tile - range.first_tile) * BM, m1 = m0 + BM < range.rows ? m0 + BM : range.rows;
    const gbf16 *q = p.q + range.row0 * q_stride + h * p.D, *k = p.k + hk * p.D, *v = p.v + hk * p.D;

    float acc[W / 8][4], top[2], sum[2];    // top: running maximum of the scaled logits, base 2
    int64_t row[2];                         // of the range
#pragma unroll
    for (int r = 0; r < 2; r++) {
        row[r] = m0 + warp * 16 + lane / 4 + 8 * r;
        float old = p.merge && row[r] < m1 ? p.lse[h * p.Tq + range.row0 + row[r]] : -CUDART_INF_F;
        top[r] = old * LOG2E;
        sum[r] = old > -CUDART_INF_F && lane % 4 == 0 ? 1.0f : 0.0f;        // the quad's partial sums are added at the end
        bool have = old > -CUDART_INF_F;
        const OUT *o = (const OUT *)p.o + (range.row0 + row[r]) * q_stride + h * p.D;
#pragma unroll
        for (int j = 0; j < W / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int c = j * 8 + 2 * (lane % 4) + e;
                acc[j][2 * r + e] = have && c < p.D ? to_float(o[c]) : 0.0f;
            }
    }

    key_walk<BN> walk(&p.table, range, m0, m1, p.window);
    tile_load<W, N_THREADS>(tile_q, q, q_stride, m0, range.rows, BM, p.D);
    bool more = walk.advance();
    if (more) tile_load<W, N_THREADS>(tile_k, k + walk.span.k0 * k_stride, k_stride, walk.j, walk.span.nk, BN, p.D);
    cp_async_commit();
    while (more) {
        attn_span span = walk.span;
        int64_t j0 = walk.j;
        bool edge = walk.edge();
        block_mask mask = mask_of(m0 + span.diag - j0, p.window);
        int keys = clamp_int(span.nk - j0);
        tile_load<W, N_THREADS>(tile_v, v + span.k0 * k_stride, k_stride, j0, span.nk, BN, p.D);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();

        float s[BN / 8][4];
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] = 0.0f;
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
        }
        __syncthreads();        // everybody is done with K: the next block may overwrite it
        more = walk.advance();
        if (more) tile_load<W, N_THREADS>(tile_k, k + walk.span.k0 * k_stride, k_stride, walk.j, walk.span.nk, BN, p.D);
        cp_async_commit();

#pragma unroll
        for (int r = 0; r < 2; r++) {
            float m = top[r];
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float x = s[j][2 * r + e] * p.scale_log2;
                    if (edge) {
                        int key = j * 8 + 2 * (lane % 4) + e;
                        if (key >= keys || !visible(mask, key - (warp * 16 + lane / 4 + 8 * r))) x = -CUDART_INF_F;
                    }
                    s[j][2 * r + e] = x;
                    m = fmaxf(m, x);
                }
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
            float base = m == -CUDART_INF_F ? 0.0f : m, shrink = exp2_fast(top[r] - base), part = 0.0f;
            top[r] = m;
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float x = exp2_fast(s[j][2 * r + e] - base);
                    s[j][2 * r + e] = x;
                    part += x;
                }
            sum[r] = sum[r] * shrink + part;
#pragma unroll
            for (int j = 0; j < W / 8; j++) {
                acc[j][2 * r] *= shrink;
                acc[j][2 * r + 1] *= shrink;
            }
        }
        cp_async_wait<1>();
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < BN / 16; kk++) {
            uint32_t a[4], b[4];
            frag_pack(a, s[2 * kk], s[2 * kk + 1]);
#pragma unroll
            for (int j = 0; j < W / 16; j++) {
                frag_b_rows<W>(b, tile_v, kk * 16, j);
                mma_m16n8k16(acc[2 * j], a, b[0], b[1]);
                mma_m16n8k16(acc[2 * j + 1], a, b[2], b[3]);
            }
        }
        __syncthreads();        // V is free again
    }
    cp_async_wait<0>();
    __syncwarp();               // every lane has read the incoming lse: shuffles order no memory

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float total = sum[r];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (row[r] >= m1) continue;
        float inv = total > 0.0f ? 1.0f / total : 0.0f;
        if (lane % 4 == 0) p.lse[h * p.Tq + range.row0 + row[r]] = total > 0.0f ? top[r] * LN2 + logf(total) : -CUDART_INF_F;
        OUT *o = (OUT *)p.o + (range.row0 + row[r]) * q_stride + h * p.D;
#pragma unroll
        for (int j = 0; j < W / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int c = j * 8 + 2 * (lane % 4) + e;
                if (c < p.D) o[c] = from_float<OUT>(acc[j][2 * r + e] * inv);
            }
    }
}

template <int W, int BN, int WARPS, class OUT> static int launch(struct stream *s, fwd_args p, struct attn_spans spans, void *ws)
{
    constexpr int SHARED = (WARPS * 16 + 2 * BN) * W * 2;
    int rc = span_table_build(s, &p.table, spans, false, WARPS * 16, ws);
    if (rc != OK || p.table.n_tiles == 0) return rc;
    rc = cuda_status(s, cudaFuncSetAttribute(fwd_kernel<W, BN, WARPS, OUT>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED), "attn_fwd");
    if (rc != OK) return rc;
    dim3 grid((unsigned)p.table.n_tiles, (unsigned)p.H);
    return cuda_status(s, GPU_LAUNCH((fwd_kernel<W, BN, WARPS, OUT>), grid, dim3(WARPS * 32), SHARED, s->q, p), "attn_fwd");
}

#ifndef ATTENTION_KERNELS_ONLY      // tests/bench/tiles.cu makes other sizes of them
template <class OUT> static int by_width(struct stream *s, const fwd_args &p, struct attn_spans spans, void *ws)
{
    if (p.D <= 64) return launch<64, 64, 4, OUT>(s, p, spans, ws);
    if (p.D <= 128) return launch<128, 64, 4, OUT>(s, p, spans, ws);
    return launch<256, 32, 4, OUT>(s, p, spans, ws);
}

extern "C" int flash_fwd(struct stream *s, enum dtype dto, void *o, float *lse, const void *q, const void *k, const void *v, struct attn_shape n,
                         struct attn_spans spans, bool merge, void *ws)
{
    fwd_args p = { (const gbf16 *)q, (const gbf16 *)k, (const gbf16 *)v, o, lse, {}, n.Tq, n.H, n.Hkv, n.window, (int)n.D, n.scale * LOG2E, merge };
    return dto == DT_F32 ? by_width<float>(s, p, spans, ws) : by_width<gbf16>(s, p, spans, ws);
}
#endif
