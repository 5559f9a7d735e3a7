// tile.cuh - shared-memory tiles of bf16 rows and the fragments read from them; what attention's kernels have in common.
//
// A tile has rows of W columns (64, 128 or 256), in 16-byte chunks; chunk c of row r lies at c ^ (r & 7), so that the eight rows
// an ldmatrix phase reads are in eight different bank groups. Columns from D to W are zero: any head width that is a multiple of 8
// runs on the next larger W.
#ifndef RM_KERNELS_CUDA_TILE_CUH
#define RM_KERNELS_CUDA_TILE_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/prims.cuh"
#include "kernels/cuda/spans.h"

constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

template <int W> __device__ __forceinline__ char *tile_at(char *tile, int row, int chunk) { return tile + row * (W * 2) + ((chunk ^ (row & 7)) << 4); }

// Starts copying rows [row0, row0+n) of g (stride elements between rows, D columns each) into the tile; rows from `rows` on are 0.
template <int W, int N_THREADS>
__device__ __forceinline__ void tile_load(char *tile, const gbf16 *g, int64_t stride, int64_t row0, int64_t rows, int n, int D)
{
    constexpr int CHUNKS = W / 8;
    for (int i = (int)threadIdx.x; i < n * CHUNKS; i += N_THREADS) {
        int r = i / CHUNKS, c = i % CHUNKS;
        bool there = row0 + r < rows && c * 8 < D;
        cp_async16(tile_at<W>(tile, r, c), there ? g + (row0 + r) * stride + c * 8 : g, there ? 16 : 0);
    }
}

// A operand: 16 rows from `row`, columns [16 kk, 16 kk + 16).
template <int W> __device__ __forceinline__ void frag_a(uint32_t (&a)[4], char *tile, int row, int kk)
{
    int lane = (int)threadIdx.x % 32;
    ldmatrix_x4(a, tile_at<W>(tile, row + lane % 16, kk * 2 + lane / 16));
}

// B operands of two neighbouring 8-wide column tiles, from rows [row, row+16) as columns of B (B = tile^T): b[0..1], b[2..3].
template <int W> __device__ __forceinline__ void frag_b(uint32_t (&b)[4], char *tile, int row, int kk)
{
    int lane = (int)threadIdx.x % 32;
    ldmatrix_x4(b, tile_at<W>(tile, row + lane % 8 + lane / 16 * 8, kk * 2 + lane / 8 % 2));
}

// B operands from rows [row, row+16) as rows of B, columns [16 j, 16 j + 16).
template <int W> __device__ __forceinline__ void frag_b_rows(uint32_t (&b)[4], char *tile, int row, int j)
{
    int lane = (int)threadIdx.x % 32;
    ldmatrix_x4_trans(b, tile_at<W>(tile, row + lane % 16, j * 2 + lane / 16));
}

// C fragments of two neighbouring column tiles, packed as the A operand of the next product.
__device__ __forceinline__ void frag_pack(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4])
{
    a[0] = pack_bf16(left[0], left[1]);
    a[1] = pack_bf16(left[2], left[3]);
    a[2] = pack_bf16(right[0], right[1]);
    a[3] = pack_bf16(right[2], right[3]);
}

// The range a tile belongs to.
__device__ __forceinline__ span_range range_of(const span_table &t, int tile)
{
    int low = 0, high = t.n_ranges - 1;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (t.ranges[mid].first_tile <= tile) low = mid;
        else high = mid - 1;
    }
    return t.ranges[low];
}

// The mask of one block of keys against one block of queries, in 32 bits: key c and query i, counted from their blocks' first rows,
// see each other iff bottom < c - i <= top. ahead = (global place of the first query) - (that of the first key).
struct block_mask { int top, bottom; };
__device__ __forceinline__ int clamp_int(int64_t x) { return x > (1 << 20) ? 1 << 20 : x < -(1 << 20) ? -(1 << 20) : (int)x; }
__device__ __forceinline__ block_mask mask_of(int64_t ahead, int64_t window)
{
    block_mask m = { clamp_int(ahead), window ? clamp_int(ahead - window) : -(1 << 21) };
    return m;
}
__device__ __forceinline__ bool visible(block_mask m, int distance) { return distance <= m.top && distance > m.bottom; }

// Walks the key blocks of N rows that rows [m0, m1) of a query range can see, span after span.
template <int N> struct key_walk {
    const span_table *t;
    int64_t m0, m1, window;
    int next, end;              // spans still to come: order[next, end)
    attn_span span;
    int64_t j, stop;            // key block [j, j+N) of span, up to stop

    __device__ __forceinline__ key_walk(const span_table *table, const span_range &r, int64_t from, int64_t to, int64_t w)
        : t(table), m0(from), m1(to), window(w), next(r.first), end(r.first + r.count), j(0), stop(0) {}

    __device__ __forceinline__ bool advance()
    {
        j += N;
        while (j >= stop) {
            if (next == end) return false;
            span = t->spans[t->order[next++]];
            int64_t last = m1 - 1 + span.diag, first = window ? m0 + span.diag - window + 1 : 0;
            stop = last + 1 < span.nk ? last + 1 : span.nk;
            j = first > 0 ? first / N * N : 0;
        }
        return true;
    }
    __device__ __forceinline__ bool edge() const { return j + N > span.nk || j + N - 1 > m0 + span.diag || (window && j <= m1 - 1 + span.diag - window); }
};

#endif
