/* kernels.h - every operation the model is written against, as one table of plain functions per backend.
 *
 * kernel_ops_cpu() and the CUDA module fill a struct kernel_ops. The model calls ops->rmsnorm_fwd(…) and never knows which.
 * Conventions, said once:
 *   - Tensors are contiguous and row-major, slowest axis first. Axis letters: docs and worker/README.md (T H Hkv D C F V N).
 *   - `dt` is the type of activations and of the weights they meet: DT_F32 or DT_BF16 (attention also DT_F64 on the CPU).
 *     Sums are fp32 (fp64 for DT_F64). Gradients of parameters, statistics, masters and moments are always f32.
 *   - Sizes are int64_t and count elements; no product of sizes is ever formed in 32 bits.
 *   - Outputs overlap no input unless "in place" is said. "+=" means the output is read and added to.
 *   - Calls are asynchronous on `s` (the CPU is done on return), allocate nothing, borrow every pointer until s has run.
 *   - N = 0 is legal everywhere and does nothing.
 *   - Return OK, E_INVALID (shape not supported; nothing launched) or E_CUDA; the text is kept in the stream: ops->error(s).
 *   - Every op is deterministic: same inputs, same thread count, same bits. Where that costs, a flag in the stream says
 *     whether the fast, not reproducible form may be used. */
#ifndef RM_KERNELS_KERNELS_H
#define RM_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/error.h"

#ifdef __cplusplus
extern "C" {
#endif

enum dtype { DT_F32, DT_BF16, DT_F64, DT_F16, DT_I32, DT_I64, DT_U8, DTYPE_COUNT };
size_t dtype_size(enum dtype dt);                       /* bytes of one element */
const char *dtype_name(enum dtype dt);                  /* "float32", "bfloat16", … */

typedef struct { uint16_t bits; } bf16;
float bf16_to_f32(bf16 x);
bf16 f32_to_bf16(float x);                              /* round to nearest even; NaN stays NaN */

struct stream;                                          /* a queue of work on one device */
struct event;                                           /* a point in a stream, with a time */

/* A rectangle of attention inside one document: query rows [q0, q0+nq) of this rank's queries against key rows
 * [k0, k0+nk) of the block at hand. Key j (0 <= j < nk) is seen by query i (0 <= i < nq) iff
 *     j <= i + diag   and   (window == 0 or j > i + diag - window).
 * diag = global position of query row q0 less that of key row k0; it may be negative or beyond nk.
 * In a list: sorted by (q0, k0); the query ranges of two spans are equal or disjoint, so are their key ranges. */
struct attn_span { int64_t q0, nq, k0, nk, diag; };
struct attn_spans {
    const struct attn_span *host;   /* n spans the host can read */
    const struct attn_span *dev;    /* the same n in device memory (CPU: == host) */
    int64_t n;
};

struct attn_shape {
    int64_t Tq, Tk;                 /* rows of q; rows of k and v */
    int64_t H, Hkv, D;              /* H % Hkv == 0; query head h reads kv head h / (H/Hkv) */
    float scale;                    /* 1/sqrt(D) unless the family says otherwise */
    int64_t window;                 /* sliding window in tokens, 0 = none */
};

/* attn_impl of the job spec. AUTO may take the vendor's library, FLASH takes our own kernel, EAGER the plain one. */
enum attn_impl { ATTN_AUTO, ATTN_FLASH, ATTN_EAGER };

struct device_info {
    char name[128], uuid[64];       /* "cpu" / the card's name */
    int64_t total_bytes, free_bytes;    /* free: known of the device that is open, of others the total is said */
    int cc_major, cc_minor;         /* compute capability; 0 on the CPU */
};

struct kernel_ops {
    const char *name;                                   /* "cpu" | "cuda" */

    /* --- device, memory, streams, events --- */
    int  (*device_open)(int device, struct error *err);             /* once per process, before anything else */
    int  (*device_info)(int device, struct device_info *out, struct error *err);
    int  (*mem_alloc)(void **p, size_t bytes, struct error *err);   /* zeroed, 4 KiB aligned */
    void (*mem_free)(void *p, size_t bytes);
    int  (*host_alloc)(void **p, size_t bytes, struct error *err);  /* pinned where that exists; zeroed */
    void (*host_free)(void *p, size_t bytes);
    int  (*stream_new)(struct stream **s, bool deterministic, struct error *err);
    void (*stream_free)(struct stream *s);
    int  (*stream_wait)(struct stream *s, struct error *err);       /* host waits until s is empty */
    const char *(*error)(struct stream *s);                         /* why the last call on s failed */
    int  (*event_new)(struct event **e, struct error *err);
    void (*event_free)(struct event *e);
    int  (*event_record)(struct event *e, struct stream *s);
    int  (*event_wait)(struct stream *s, struct event *e);          /* s goes on only after e */
    double (*event_ms)(struct event *from, struct event *to);       /* both must have passed; ms */
    int  (*copy)(struct stream *s, void *dst, const void *src, size_t bytes);   /* any of host and device */
    int  (*zero)(struct stream *s, void *dst, size_t bytes);

    /* --- matrix products --- */
    /* c[M,N] = alpha * op(a) op(b) + beta * c.  op(a) is [M,K]: a is [M,K], or [K,M] when ta. op(b) is [K,N]: b is [K,N],
     * or [N,K] when tb. lda, ldb, ldc: elements between rows of a, b, c as stored. beta 0 never reads c.
     * A linear layer y = x W^T is (ta 0, tb 1); dx = dy W is (0, 0); dW += dy^T x is (1, 0) with dtc DT_F32, beta 1.
     * Types: da == db, in {F32, BF16}; dc == da or F32. Sums in fp32. ws: matmul_ws bytes, may be NULL when that is 0. */
    int  (*matmul)(struct stream *s, enum dtype dc, void *c, int64_t ldc, enum dtype da, const void *a, int64_t lda, bool ta,
                   enum dtype db, const void *b, int64_t ldb, bool tb, int64_t M, int64_t N, int64_t K,
                   float alpha, float beta, void *ws, size_t ws_bytes);
    size_t (*matmul_ws)(enum dtype dc, enum dtype da, int64_t M, int64_t N, int64_t K, bool ta, bool tb);

    /* --- token-local layers --- */
    /* y[n,:] = w[ids[n],:]; ids outside [0,V) are the caller's bug. */
    int  (*embed_fwd)(struct stream *s, enum dtype dt, void *y, const void *w, const int32_t *ids, int64_t N, int64_t C, int64_t V);
    /* dw[ids[n],:] += dy[n,:] in ascending n for each row. */
    int  (*embed_bwd)(struct stream *s, enum dtype dt, float *dw, const void *dy, const int32_t *ids, int64_t N, int64_t C, int64_t V);
    /* y[n,:] = x[n,:] * rstd[n] * w, rstd[n] = 1/sqrt(mean(x[n,:]^2) + eps). q/k norm is this with N = T*H, C = D. rstd may be NULL. */
    int  (*rmsnorm_fwd)(struct stream *s, enum dtype dt, void *y, float *rstd, const void *x, const void *w, int64_t N, int64_t C, float eps);
    /* dx = (or += when add) gradient by x; dw f32 [C] += gradient by w (NULL: not wanted). dx may be dy when !add.
     * ws: rmsnorm_bwd_ws(N, C) bytes. */
    int  (*rmsnorm_bwd)(struct stream *s, enum dtype dt, void *dx, bool add, float *dw, const void *dy, const void *x, const void *w,
                        const float *rstd, int64_t N, int64_t C, void *ws);
    size_t (*rmsnorm_bwd_ws)(int64_t N, int64_t C);
    int  (*bias_add)(struct stream *s, enum dtype dt, void *y, const void *b, int64_t N, int64_t C);       /* y[n,:] += b */
    int  (*bias_bwd)(struct stream *s, enum dtype dt, float *db, const void *dy, int64_t N, int64_t C);    /* db[:] += sum_n dy[n,:] */
    int  (*add)(struct stream *s, enum dtype dt, void *y, const void *a, const void *b, int64_t n);        /* y = a + b; y may be a or b */
    int  (*swiglu_fwd)(struct stream *s, enum dtype dt, void *y, const void *gate, const void *up, int64_t n); /* silu(gate)*up; y may be gate or up */
    /* dgate, dup may be dy, gate or up (each its own). */
    int  (*swiglu_bwd)(struct stream *s, enum dtype dt, void *dgate, void *dup, const void *dy, const void *gate, const void *up, int64_t n);
    /* By column, for DoRA. NULL in a backend that does not have them yet. */
    /* y[n,:] = x[n,:] * c (f32 [C]); y may be x. */
    int  (*col_scale)(struct stream *s, enum dtype dt, void *y, const void *x, const float *c, int64_t N, int64_t C);
    /* out[:] f32 += c * sum_n a[n,:] * b[n,:]. */
    int  (*col_dot)(struct stream *s, enum dtype dt, float *out, const void *a, const void *b, const float *c, int64_t N, int64_t C);
    /* cos, sin f32 [N,D/2] of pos[n] * inv_freq[i] (computed in f64), times `factor` (YaRN's attention factor, else 1). */
    int  (*rope_table)(struct stream *s, float *cos, float *sin, const int32_t *pos, const float *inv_freq, int64_t N, int64_t D, float factor);
    /* Rotates (Hugging Face half-split convention) and writes destination-major in one pass:
     *   out[u,n,j,:] = rot(in[n, head0[u]+j, :]) for u < U, j < Hu;  in [N,H,D] -> out [U,N,Hu,D].
     * head0 (host array of U) may repeat heads (replicated KV). U = 1, Hu = H, head0 = {0} is plain RoPE; then out may be in.
     * cos == NULL: no rotation (values, or the exchange alone). out_stride_u: elements between out[u] and out[u+1]. */
    int  (*rope_pack)(struct stream *s, enum dtype dt, void *out, int64_t out_stride_u, const void *in, const float *cos, const float *sin,
                      const int64_t *head0, int64_t N, int64_t H, int64_t D, int64_t U, int64_t Hu);
    /* The transpose of rope_pack: in [U,N,Hu,D] of type din (dt or F32) -> out [N,H,D]: out[n,h,:] = unrot(sum over (u,j) with
     * head0[u]+j == h of in[u,n,j,:]), summed in f32 in ascending u. Heads no (u,j) names become 0. */
    int  (*rope_unpack)(struct stream *s, enum dtype dt, void *out, enum dtype din, const void *in, int64_t in_stride_u, const float *cos,
                        const float *sin, const int64_t *head0, int64_t N, int64_t H, int64_t D, int64_t U, int64_t Hu);

    /* --- attention (FlashAttention-2, arXiv 2307.08691 §3; never a [Tq,Tk] matrix) --- */
    /* Merges the spans' keys into a running result.
     *   q [Tq,H,D] dt; k, v [Tk,Hkv,D] dt
     *   o   [Tq,H,D] of type dto (DT_F32, DT_F64 for dt F64; or dt itself when !merge)   in/out when merge
     *   lse [H,Tq] f32 (f64 for dt F64): natural-log sum-exp of the scaled logits        in/out when merge
     * merge false: o and lse are written whole: rows in no span, or seeing no key, get o = 0, lse = -inf.
     * merge true:  lse' = log(e^lse + sum e^S), o' = e^(lse-lse') o + sum e^(S-lse') v; rows that see no key keep both.
     * ws: attn_ws bytes (one bound for fwd and bwd). */
    int  (*attn_fwd)(struct stream *s, enum dtype dt, enum dtype dto, void *o, void *lse, const void *q, const void *k, const void *v,
                     struct attn_shape n, struct attn_spans spans, bool merge, void *ws);
    /* delta[h,t] = sum_d dout[t,h,d] * o[t,h,d]; o of type dto; delta like lse. */
    int  (*attn_delta)(struct stream *s, enum dtype dt, enum dtype dto, void *delta, const void *dout, const void *o, int64_t T, int64_t H, int64_t D);
    /* dq, dk, dv f32 (f64) += gradients of the spans, given the FINAL lse and delta of the whole row (never the block's own:
     * reference: Liu et al. 2023, arXiv 2310.01889). Rows with lse -inf contribute 0. Deterministic. */
    int  (*attn_bwd)(struct stream *s, enum dtype dt, void *dq, void *dk, void *dv, const void *dout, const void *q, const void *k,
                     const void *v, const void *lse, const void *delta, struct attn_shape n, struct attn_spans spans, void *ws);
    size_t (*attn_ws)(enum dtype dt, struct attn_shape n, int64_t max_spans);
    /* Chooses among the kernels `s` has, once, before the first step; without it `s` does as ATTN_FLASH. n: the largest shape to come. ATTN_AUTO
     * on CUDA may open cuDNN: only where docs/cuda.md says it is eligible and after it agreed with our own kernel on small cases; its memory
     * is taken here. Never an error: what cannot be had falls back, and attn_name says to what and why. */
    void (*attn_choose)(struct stream *s, enum attn_impl impl, enum dtype dt, struct attn_shape n);
    /* What would run for this shape, for the log and the page: "flash", "cudnn 9.19.0", "plain: flash takes bfloat16 and …". Valid until the
     * next call on s. */
    const char *(*attn_name)(struct stream *s, enum dtype dt, struct attn_shape n);

    /* --- loss --- */
    /* For each row: loss[n] = weight[n] * (logsumexp(z) - z[label]); 0 when label < 0. correct[n] = 1 if argmax(z) == label and label >= 0,
     * else 0 (NULL: not wanted). When grad: z is replaced in place by scale * weight[n] * (softmax(z) - onehot), 0 rows when label < 0. */
    int  (*cross_entropy)(struct stream *s, enum dtype dt, float *loss, uint8_t *correct, void *z, const int32_t *labels, const float *weight,
                          float scale, bool grad, int64_t N, int64_t V);

    /* --- parameters --- */
    /* out[0] (f64, device) += sum of squares of x f32[n], in a fixed order. */
    int  (*sumsq)(struct stream *s, double *out, const float *x, int64_t n);
    /* AdamW, decoupled decay, torch semantics: m,v moments; w32 the f32 master (or the weights when w16 is NULL); w16 bf16 copy.
     *   g' = g * gscale; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2; w -= lr*wd*w; w -= lr * (m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps) */
    int  (*adamw)(struct stream *s, float *w32, bf16 *w16, float *m, float *v, const float *g, int64_t n, float gscale,
                  double lr, double b1, double b2, double eps, double wd, int64_t t);
    int  (*axpy)(struct stream *s, enum dtype dy, void *y, enum dtype dx, const void *x, float a, int64_t n);   /* y += a x */
    int  (*scale)(struct stream *s, enum dtype dt, void *y, float a, int64_t n);                                /* y *= a */
    int  (*cast)(struct stream *s, enum dtype dy, void *y, enum dtype dx, const void *x, int64_t n);            /* F32, BF16, F64 */
    /* LoRA dropout: y = x * keep / (1-p), keep from a counter-based generator of (seed, offset + i): the same bits on every backend. */
    int  (*dropout)(struct stream *s, enum dtype dt, void *y, const void *x, float p, uint64_t seed, uint64_t offset, int64_t n);
};

/* The CPU table best for this processor (AVX-512, AVX2 or plain, chosen once at run time). */
const struct kernel_ops *kernel_ops_cpu(void);
/* Opens the CUDA module; NULL and err (which library, driver or device is missing) where it cannot be used. */
const struct kernel_ops *kernel_ops_cuda(struct error *err);
/* The module's table whether or not a device answers: enough to plan a job for GPUs on a machine that has none. */
const struct kernel_ops *kernel_ops_cuda_module(struct error *err);
/* Another function of the open module by its name: what is no kernel (the transport). NULL: the module has none, or is not open. */
void *kernel_cuda_symbol(const char *name);
/* Threads of the CPU backend in this process (default: cores / local ranks, set by the worker). */
void kernel_cpu_threads(int n);

#ifdef __cplusplus
}
#endif
#endif
