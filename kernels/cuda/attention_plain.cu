// attention_plain.cu - attention without tensor cores: a warp per row, online softmax, any type and width up to 256. For shapes and
// types that the flash kernels do not take, and as their judge on a device.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/tile.cuh"

enum { WARPS = THREADS / 32, PER_LANE = 8 };        // 256 columns over 32 lanes

struct plain_args {
    const float *lse_in, *delta;
    void *o;
    float *lse, *dq, *dk, *dv;
    span_table table;
    int64_t Tq, H, Hkv, window;
    int D;
    float scale;
    bool merge;
};

__device__ __forceinline__ float warp_sum(float x)
{
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

template <class T> __device__ __forceinline__ void row_load(float (&x)[PER_LANE], const T *row, int D)
{
    int lane = (int)threadIdx.x % 32;
    for (int i = 0; i < PER_LANE; i++) x[i] = lane + 32 * i < D ? to_float(row[lane + 32 * i]) : 0.0f;
}

__device__ __forceinline__ float row_dot(const float (&x)[PER_LANE], const float (&y)[PER_LANE])
{
    float sum = 0.0f;
    for (int i = 0; i < PER_LANE; i++) sum += x[i] * y[i];
    return warp_sum(sum);
}

// Keys [*from, *to) of span that query i sees.
__device__ __forceinline__ void keys_seen(const attn_span &s, int64_t i, int64_t window, int64_t *from, int64_t *to)
{
    *to = i + s.diag + 1 < s.nk ? i + s.diag + 1 : s.nk;
    *from = window && i + s.diag - window + 1 > 0 ? i + s.diag - window + 1 : 0;
}

template <class T, class OUT> static __global__ void plain_fwd_kernel(const T *q, const T *k, const T *v, const plain_args p)
{
    int lane = (int)threadIdx.x % 32;
    int64_t h = blockIdx.y, hk = h / (p.H / p.Hkv), qs = p.H * p.D, ks = p.Hkv * p.D;
    span_range range = range_of(p.table, (int)blockIdx.x);
    int64_t i = ((int64_t)blockIdx.x - range.first_tile) * WARPS + (int)threadIdx.x / 32;
    if (i >= range.rows) return;
    int64_t t = range.row0 + i;
    float x[PER_LANE], y[PER_LANE], acc[PER_LANE], top = -CUDART_INF_F, sum = 0.0f;
    row_load(x, q + t * qs + h * p.D, p.D);
    OUT *o = (OUT *)p.o + t * qs + h * p.D;
    for (int c = 0; c < PER_LANE; c++) acc[c] = 0.0f;
    if (p.merge && p.lse[h * p.Tq + t] > -CUDART_INF_F) {
        top = p.lse[h * p.Tq + t];
        sum = 1.0f;
        row_load(acc, o, p.D);
    }
    for (int n = range.first; n < range.first + range.count; n++) {
        attn_span s = p.table.spans[p.table.order[n]];
        int64_t from, to;
        keys_seen(s, i, p.window, &from, &to);
        for (int64_t j = from; j < to; j++) {
            row_load(y, k + (s.k0 + j) * ks + hk * p.D, p.D);
            float z = row_dot(x, y) * p.scale, m = fmaxf(top, z), shrink = expf(top - m), e = expf(z - m);
            row_load(y, v + (s.k0 + j) * ks + hk * p.D, p.D);
            for (int c = 0; c < PER_LANE; c++) acc[c] = acc[c] * shrink + e * y[c];
            sum = sum * shrink + e;
            top = m;
        }
    }
    float inv = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (int c = 0; c < PER_LANE; c++)
        if (lane + 32 * c < p.D) o[lane + 32 * c] = from_float<OUT>(acc[c] * inv);
    __syncwarp();               // every lane has read the incoming lse: shuffles order no memory
    if (lane == 0) p.lse[h * p.Tq + t] = sum > 0.0f ? top + logf(sum) : -CUDART_INF_F;
}

template <class T> static __global__ void plain_dq_kernel(const T *q, const T *k, const T *v, const T *dout, const plain_args p)
{
    int lane = (int)threadIdx.x % 32;
    int64_t h = blockIdx.y, hk = h / (p.H / p.Hkv), qs = p.H * p.D, ks = p.Hkv * p.D;
    span_range range = range_of(p.table, (int)blockIdx.x);
    int64_t i = ((int64_t)blockIdx.x - range.first_tile) * WARPS + (int)threadIdx.x / 32;
    if (i >= range.rows) return;
    int64_t t = range.row0 + i;
    float lse = p.lse_in[h * p.Tq + t], delta = p.delta[h * p.Tq + t];
    if (!(lse > -CUDART_INF_F)) return;
    float x[PER_LANE], g[PER_LANE], y[PER_LANE], z[PER_LANE], acc[PER_LANE];
    row_load(x, q + t * qs + h * p.D, p.D);
    row_load(g, dout + t * qs + h * p.D, p.D);
    for (int c = 0; c < PER_LANE; c++) acc[c] = 0.0f;
    for (int n = range.first; n < range.first + range.count; n++) {
        attn_span s = p.table.spans[p.table.order[n]];
        int64_t from, to;
        keys_seen(s, i, p.window, &from, &to);
        for (int64_t j = from; j < to; j++) {
            row_load(y, k + (s.k0 + j) * ks + hk * p.D, p.D);
            row_load(z, v + (s.k0 + j) * ks + hk * p.D, p.D);
            float prob = expf(row_dot(x, y) * p.scale - lse), ds = prob * (row_dot(g, z) - delta) * p.scale;
            for (int c = 0; c < PER_LANE; c++) acc[c] += ds * y[c];
        }
    }
    float *out = p.dq + t * qs + h * p.D;
    for (int c = 0; c < PER_LANE; c++)
        if (lane + 32 * c < p.D) out[lane + 32 * c] += acc[c];
}

template <class T> static __global__ void plain_dkv_kernel(const T *q, const T *k, const T *v, const T *dout, const plain_args p)
{
    int lane = (int)threadIdx.x % 32;
    int64_t hk = blockIdx.y, group = p.H / p.Hkv, qs = p.H * p.D, ks = p.Hkv * p.D;
    span_range range = range_of(p.table, (int)blockIdx.x);
    int64_t j = ((int64_t)blockIdx.x - range.first_tile) * WARPS + (int)threadIdx.x / 32;
    if (j >= range.rows) return;
    int64_t t = range.row0 + j;
    float y[PER_LANE], z[PER_LANE], x[PER_LANE], g[PER_LANE], dk[PER_LANE], dv[PER_LANE];
    row_load(y, k + t * ks + hk * p.D, p.D);
    row_load(z, v + t * ks + hk * p.D, p.D);
    for (int c = 0; c < PER_LANE; c++) dk[c] = dv[c] = 0.0f;
    for (int n = range.first; n < range.first + range.count; n++) {
        attn_span s = p.table.spans[p.table.order[n]];
        int64_t from = j - s.diag > 0 ? j - s.diag : 0, to = p.window && j - s.diag + p.window < s.nq ? j - s.diag + p.window : s.nq;
        for (int64_t h = hk * group; h < (hk + 1) * group; h++)
            for (int64_t i = from; i < to; i++) {
                float lse = p.lse_in[h * p.Tq + s.q0 + i], delta = p.delta[h * p.Tq + s.q0 + i];
                if (!(lse > -CUDART_INF_F)) continue;
                row_load(x, q + (s.q0 + i) * qs + h * p.D, p.D);
                row_load(g, dout + (s.q0 + i) * qs + h * p.D, p.D);
                float prob = expf(row_dot(x, y) * p.scale - lse), ds = prob * (row_dot(g, z) - delta) * p.scale;
                for (int c = 0; c < PER_LANE; c++) {
                    dk[c] += ds * x[c];
                    dv[c] += prob * g[c];
                }
            }
    }
    for (int c = 0; c < PER_LANE; c++)
        if (lane + 32 * c < p.D) {
            p.dk[t * ks + hk * p.D + lane + 32 * c] += dk[c];
            p.dv[t * ks + hk * p.D + lane + 32 * c] += dv[c];
        }
}

#define LAUNCH_ROWS(kernel, heads, ...) GPU_LAUNCH(kernel, dim3((unsigned)p.table.n_tiles, (unsigned)(heads)), dim3(THREADS), 0, s->q, __VA_ARGS__)

extern "C" int plain_fwd(struct stream *s, enum dtype dt, enum dtype dto, void *o, float *lse, const void *q, const void *k, const void *v,
                         struct attn_shape n, struct attn_spans spans, bool merge, void *ws)
{
    plain_args p = { NULL, NULL, o, lse, NULL, NULL, NULL, {}, n.Tq, n.H, n.Hkv, n.window, (int)n.D, n.scale, merge };
    int rc = span_table_build(s, &p.table, spans, false, WARPS, ws);
    if (rc != OK || p.table.n_tiles == 0) return rc;
    if (dt == DT_F32) return cuda_status(s, LAUNCH_ROWS((plain_fwd_kernel<float, float>), n.H, (const float *)q, (const float *)k, (const float *)v, p), "attn_fwd");
    if (dto == DT_F32) return cuda_status(s, LAUNCH_ROWS((plain_fwd_kernel<gbf16, float>), n.H, (const gbf16 *)q, (const gbf16 *)k, (const gbf16 *)v, p), "attn_fwd");
    return cuda_status(s, LAUNCH_ROWS((plain_fwd_kernel<gbf16, gbf16>), n.H, (const gbf16 *)q, (const gbf16 *)k, (const gbf16 *)v, p), "attn_fwd");
}

extern "C" int plain_bwd(struct stream *s, enum dtype dt, float *dq, float *dk, float *dv, const void *dout, const void *q, const void *k, const void *v,
                         const float *lse, const float *delta, struct attn_shape n, struct attn_spans spans, void *ws)
{
    plain_args p = { lse, delta, NULL, NULL, dq, dk, dv, {}, n.Tq, n.H, n.Hkv, n.window, (int)n.D, n.scale, false };
    int rc = span_table_build(s, &p.table, spans, true, WARPS, ws);
    if (rc != OK || p.table.n_tiles == 0) return rc;
    if (dt == DT_F32) rc = cuda_status(s, LAUNCH_ROWS((plain_dkv_kernel<float>), n.Hkv, (const float *)q, (const float *)k, (const float *)v, (const float *)dout, p), "attn_bwd");
    else rc = cuda_status(s, LAUNCH_ROWS((plain_dkv_kernel<gbf16>), n.Hkv, (const gbf16 *)q, (const gbf16 *)k, (const gbf16 *)v, (const gbf16 *)dout, p), "attn_bwd");
    if (rc == OK) rc = span_table_build(s, &p.table, spans, false, WARPS, (char *)ws + span_table_bytes(spans.n));
    if (rc != OK) return rc;
    if (dt == DT_F32) return cuda_status(s, LAUNCH_ROWS((plain_dq_kernel<float>), n.H, (const float *)q, (const float *)k, (const float *)v, (const float *)dout, p), "attn_bwd");
    return cuda_status(s, LAUNCH_ROWS((plain_dq_kernel<gbf16>), n.H, (const gbf16 *)q, (const gbf16 *)k, (const gbf16 *)v, (const gbf16 *)dout, p), "attn_bwd");
}
