// attention.cu - the attention entries of the table: checks, what no span covers, delta, and which kernel runs.
#include "kernels/cuda/attention.h"

#include <stdio.h>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/library.h"

static int check(struct stream *s, const char *op, enum dtype dt, struct attn_shape n)
{
    if (dt != DT_F32 && dt != DT_BF16) return cuda_refuse(s, "%s: type %s is not supported on CUDA", op, dtype_name(dt));
    if (n.D < 1 || n.D > 256) return cuda_refuse(s, "%s: head width %lld, expected 1 to 256", op, (long long)n.D);
    if (n.Hkv < 1 || n.H % n.Hkv != 0) return cuda_refuse(s, "%s: %lld query heads over %lld key heads, expected a multiple", op, (long long)n.H, (long long)n.Hkv);
    if (n.H > 65535) return cuda_refuse(s, "%s: %lld heads, at most 65535 are taken", op, (long long)n.H);
    if (n.Tq > INT32_MAX || n.Tk > INT32_MAX) return cuda_refuse(s, "%s: %lld and %lld rows on one rank, at most 2^31 - 1 are taken", op, (long long)n.Tq, (long long)n.Tk);
    if (n.window < 0) return cuda_refuse(s, "%s: window %lld, expected 0 or more", op, (long long)n.window);
    return OK;
}

static bool flash_takes(const struct stream *s, enum dtype dt, struct attn_shape n) { return s->attn != ATTN_EAGER && dt == DT_BF16 && n.D % 8 == 0; }

template <class OUT> static __global__ void empty_rows_kernel(OUT *o, float *lse, int64_t n_o, int64_t n_lse)
{
    GRID_STRIDE(i, n_o) o[i] = from_float<OUT>(0.0f);
    GRID_STRIDE(t, n_lse) lse[t] = -CUDART_INF_F;
}

// A warp per (t, h).
template <class T, class OUT> static __global__ void delta_kernel(float *delta, const T *dout, const OUT *o, int64_t rows, int64_t H, int64_t D)
{
    int lane = (int)threadIdx.x % 32;
    for (int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; r < rows * H; r += (int64_t)gridDim.x * (THREADS / 32)) {
        float sum = 0.0f;
        for (int64_t d = lane; d < D; d += 32) sum += to_float(dout[r * D + d]) * to_float(o[r * D + d]);
        for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (lane == 0) delta[r % H * rows + r / H] = sum;
    }
}

// A warp per (t, h). In two passes over dO, its size taken out first, so that neither tiny nor huge rows are lost.
static __global__ void project_kernel(gbf16 *out, const gbf16 *dout, const float *delta, int64_t delta_stride, int64_t rows, int64_t H, int64_t D)
{
    int lane = (int)threadIdx.x % 32;
    for (int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; r < rows * H; r += (int64_t)gridDim.x * (THREADS / 32)) {
        float most = 0.0f, sum = 0.0f;
        for (int64_t d = lane; d < D; d += 32) most = fmaxf(most, fabsf(to_float(dout[r * D + d])));
        for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
        float inv = most > 0.0f ? 1.0f / most : 0.0f;
        for (int64_t d = lane; d < D; d += 32) sum += (to_float(dout[r * D + d]) * inv) * (to_float(dout[r * D + d]) * inv);
        for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        float c = sum > 0.0f ? delta[r % H * delta_stride + r / H] * inv / sum : 0.0f;
        for (int64_t d = lane; d < D; d += 32) out[r * D + d] = from_float<gbf16>(to_float(dout[r * D + d]) * inv * c);
    }
}

extern "C" int cuda_project(struct stream *s, void *out, const void *dout, const float *delta, int64_t delta_stride, int64_t T, int64_t H, int64_t D)
{
    if (T == 0) return OK;
    return cuda_status(s, GPU_LAUNCH(project_kernel, grid_for(T * H * 32), dim3(THREADS), 0, s->q, (gbf16 *)out, (const gbf16 *)dout, delta, delta_stride, T, H, D), "attn_bwd");
}

static __global__ void add_bf16_kernel(float *y, const gbf16 *x, int64_t n)
{
    GRID_STRIDE(i, n) y[i] += to_float(x[i]);
}

extern "C" int cuda_add_bf16(struct stream *s, float *y, const void *x, int64_t n)
{
    if (n == 0) return OK;
    return cuda_status(s, GPU_LAUNCH(add_bf16_kernel, grid_for(n), dim3(THREADS), 0, s->q, y, (const gbf16 *)x, n), "attn_bwd");
}

static int64_t rows_covered(struct attn_spans spans)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < spans.n; i++)
        if (i == 0 || spans.host[i].q0 != spans.host[i - 1].q0) rows += spans.host[i].nq;
    return rows;
}

// One document that is no multiple of the library's block: it gets the rows that are, our kernel the fewer than 128 that follow, which see all keys.
enum { LIBRARY_ROWS = 128 };
struct cut { struct attn_span head, tail; struct attn_spans heads, tails; };

static bool cut_document(struct cut *c, const struct attn_library *lib, struct attn_spans spans)
{
    if (spans.n != 1) return false;
    struct attn_span x = spans.host[0];
    int64_t rows = x.nq / LIBRARY_ROWS * LIBRARY_ROWS;
    if (x.diag != 0 || x.nk != x.nq || rows == 0) return false;
    c->head = { x.q0, rows, x.k0, rows, 0 };
    c->tail = { x.q0 + rows, x.nq - rows, x.k0, x.nk, rows };
    c->heads = { &c->head, NULL, 1 };           // the library reads the host's list alone
    c->tails = { &c->tail, lib->tail, 1 };
    return true;
}

// Whether the library takes spans whole (0 rows left), or its head (the rest in c); else false.
static bool library_takes(struct cut *c, const struct stream *s, enum dtype dt, enum dtype dto, struct attn_shape n, struct attn_spans spans, bool merge)
{
    const struct attn_library *lib = s->library;
    if (lib == NULL) return false;
    if (lib->takes(lib, dt, dto, n, spans, merge)) {
        c->heads = spans;
        c->tails = { NULL, NULL, 0 };
        return true;
    }
    return cut_document(c, lib, spans) && lib->takes(lib, dt, dto, n, c->heads, merge);
}

static int send_tail(struct stream *s, const struct cut *c)
{
    return cuda_status(s, cudaMemcpyAsync(s->library->tail, &c->tail, sizeof c->tail, cudaMemcpyHostToDevice, s->q), "attention");
}

static int attn_fwd(struct stream *s, enum dtype dt, enum dtype dto, void *o, void *lse, const void *q, const void *k, const void *v, struct attn_shape n,
                    struct attn_spans spans, bool merge, void *ws)
{
    int rc = check(s, "attn_fwd", dt, n);
    if (rc != OK || n.Tq == 0) return rc;
    if (dto != DT_F32 && (dto != dt || merge)) return cuda_refuse(s, "attn_fwd: types %s to %s%s are not supported", dtype_name(dt), dtype_name(dto), merge ? ", merging," : "");
    if (!merge && rows_covered(spans) != n.Tq) {
        int64_t elements = n.Tq * n.H * n.D;
        cudaError_t e = dto == DT_F32 ? GPU_LAUNCH((empty_rows_kernel<float>), grid_for(elements), dim3(THREADS), 0, s->q, (float *)o, (float *)lse, elements, n.Tq * n.H)
                                      : GPU_LAUNCH((empty_rows_kernel<gbf16>), grid_for(elements), dim3(THREADS), 0, s->q, (gbf16 *)o, (float *)lse, elements, n.Tq * n.H);
        if ((rc = cuda_status(s, e, "attn_fwd")) != OK) return rc;
    }
    if (spans.n == 0) return OK;
    struct cut c;
    if (library_takes(&c, s, dt, dto, n, spans, merge) && (rc = s->library->fwd(s->library, s, dto, o, (float *)lse, q, k, v, n, c.heads)) != E_UNSUPPORTED) {
        if (rc != OK || c.tails.n == 0) return rc;
        rc = send_tail(s, &c);
        return rc == OK ? flash_fwd(s, dto, o, (float *)lse, q, k, v, n, c.tails, false, ws) : rc;
    }
    return flash_takes(s, dt, n) ? flash_fwd(s, dto, o, (float *)lse, q, k, v, n, spans, merge, ws) : plain_fwd(s, dt, dto, o, (float *)lse, q, k, v, n, spans, merge, ws);
}

static int attn_delta(struct stream *s, enum dtype dt, enum dtype dto, void *delta, const void *dout, const void *o, int64_t T, int64_t H, int64_t D)
{
    if (T == 0) return OK;
    dim3 grid = grid_for(T * H * 32);
    if (dt == DT_BF16 && dto == DT_BF16)
        return cuda_status(s, GPU_LAUNCH((delta_kernel<gbf16, gbf16>), grid, dim3(THREADS), 0, s->q, (float *)delta, (const gbf16 *)dout, (const gbf16 *)o, T, H, D), "attn_delta");
    if (dto != DT_F32) return cuda_refuse(s, "attn_delta: types %s and %s are not supported", dtype_name(dt), dtype_name(dto));
    return BY_TYPE(s, "attn_delta", dt,
                   GPU_LAUNCH((delta_kernel<float, float>), grid, dim3(THREADS), 0, s->q, (float *)delta, (const float *)dout, (const float *)o, T, H, D),
                   GPU_LAUNCH((delta_kernel<gbf16, float>), grid, dim3(THREADS), 0, s->q, (float *)delta, (const gbf16 *)dout, (const float *)o, T, H, D));
}

static int attn_bwd(struct stream *s, enum dtype dt, void *dq, void *dk, void *dv, const void *dout, const void *q, const void *k, const void *v,
                    const void *lse, const void *delta, struct attn_shape n, struct attn_spans spans, void *ws)
{
    int rc = check(s, "attn_bwd", dt, n);
    if (rc != OK || n.Tq == 0 || spans.n == 0) return rc;
    struct cut c;
    if (library_takes(&c, s, dt, DT_F32, n, spans, false) &&
        (rc = s->library->bwd(s->library, s, (float *)dq, (float *)dk, (float *)dv, dout, q, k, v, (const float *)lse, (const float *)delta, n, c.heads)) != E_UNSUPPORTED) {
        if (rc != OK || c.tails.n == 0) return rc;
        rc = send_tail(s, &c);
        return rc == OK ? flash_bwd(s, (float *)dq, (float *)dk, (float *)dv, dout, q, k, v, (const float *)lse, (const float *)delta, n, c.tails, ws) : rc;
    }
    if (flash_takes(s, dt, n)) return flash_bwd(s, (float *)dq, (float *)dk, (float *)dv, dout, q, k, v, (const float *)lse, (const float *)delta, n, spans, ws);
    return plain_bwd(s, dt, (float *)dq, (float *)dk, (float *)dv, dout, q, k, v, (const float *)lse, (const float *)delta, n, spans, ws);
}

static size_t attn_ws(enum dtype dt, struct attn_shape n, int64_t max_spans)
{
    (void)dt;
    (void)n;
    return 2 * span_table_bytes(max_spans);
}

static void attn_choose(struct stream *s, enum attn_impl impl, enum dtype dt, struct attn_shape n)
{
    (void)dt;
    (void)n;
    s->attn = impl;
}

static const char *attn_name(struct stream *s, enum dtype dt, struct attn_shape n)
{
    if (s->library && dt == DT_BF16) {
        (void)snprintf(s->attn_text, sizeof s->attn_text, "%s for rows of one document, flash for the others", s->library->name);
        return s->attn_text;
    }
    if (flash_takes(s, dt, n)) return s->attn_why[0] ? s->attn_why : "flash";
    if (s->attn == ATTN_EAGER) return "plain";
    (void)snprintf(s->attn_text, sizeof s->attn_text, "plain: flash takes bfloat16 and head widths that are multiples of 8, this is %s and %lld", dtype_name(dt), (long long)n.D);
    return s->attn_text;
}

extern "C" void cuda_fill_attention(struct kernel_ops *ops)
{
    ops->attn_choose = attn_choose;
    ops->attn_name = attn_name;
    ops->attn_fwd = attn_fwd;
    ops->attn_delta = attn_delta;
    ops->attn_bwd = attn_bwd;
    ops->attn_ws = attn_ws;
}
