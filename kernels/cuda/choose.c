/* choose.c - attn_choose: whether attention runs in cuDNN instead of our own kernels. Only where it is known to be right and to pay (sm_90, bf16,
 * head widths 64 and 128, runs that need not be bitwise equal), and only after it agreed with ours on small cases here and now: releases around
 * the supported ones have returned wrong gradients without an error. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/library.h"

static struct kernel_ops own;               /* the table, for the check */

/* --- the check --- */

enum { ROWS = 256, HEADS = 4, KV_HEADS = 2, CASES = 4 };
/* One document; a later block of a ring seen whole; one seen in part, with more keys than queries; logits near -120, where a sum of exponents is
 * below what f32 holds. */
static const struct { int64_t nq, nk, diag; float shift; } cases[CASES] = { { ROWS, ROWS, 0, 0 }, { ROWS, ROWS, ROWS, 0 }, { 128, ROWS, 100, 0 }, { ROWS, ROWS, 0, -120.0f } };

enum { Q, K, V, DO, O, LSE, DELTA, DQ, DK, DV, ARRAYS };
static const struct { bool bf16; int heads; } arrays[ARRAYS] = {
    [Q] = { true, HEADS }, [K] = { true, KV_HEADS }, [V] = { true, KV_HEADS }, [DO] = { true, HEADS }, [O] = { false, HEADS }, [LSE] = { false, 0 }, [DELTA] = { false, 0 },
    [DQ] = { false, HEADS }, [DK] = { false, KV_HEADS }, [DV] = { false, KV_HEADS },
};

static size_t elements(int i, int64_t D) { return arrays[i].heads ? (size_t)(ROWS * arrays[i].heads * D) : (size_t)ROWS * HEADS; }
static size_t bytes(int i, int64_t D) { return elements(i, D) * (arrays[i].bf16 ? 2 : 4); }

static void fill(void *p, int i, int64_t D, float shift, uint32_t *seed)
{
    for (size_t e = 0; e < elements(i, D); e++) {
        *seed = *seed * 1664525u + 1013904223u;
        float x = (float)(int32_t)*seed * 0x1p-31f;
        /* the first element's product is `shift` after scaling by 1/sqrt(D) */
        if (shift != 0.0f && (i == Q || i == K) && e % (size_t)D == 0) x = (i == Q ? 1.0f : shift) * sqrtf(sqrtf((float)D));
        ((bf16 *)p)[e] = f32_to_bf16(x);
    }
}

static double difference(const float *a, const float *b, size_t n)
{
    double d = 0, size = 1e-30;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)a[i] * (double)a[i];
    }
    return sqrt(d / size);                  /* NaN where either is */
}

/* Forward and backward through the table, as s stands; results to host[O…]. */
static int once(struct stream *s, char *const dev[ARRAYS], float *const host[ARRAYS], struct attn_shape n, struct attn_spans spans, void *ws)
{
    cudaError_t e = cudaSuccess;
    int rc = OK;
    for (int i = O; i < ARRAYS && e == cudaSuccess; i++) e = cudaMemsetAsync(dev[i], 0, bytes(i, n.D), s->q);
    if (e != cudaSuccess) return cuda_status(s, e, "attention check");
    rc = own.attn_fwd(s, DT_BF16, DT_F32, dev[O], dev[LSE], dev[Q], dev[K], dev[V], n, spans, false, ws);
    if (rc == OK) rc = own.attn_delta(s, DT_BF16, DT_F32, dev[DELTA], dev[DO], dev[O], n.Tq, n.H, n.D);
    if (rc == OK) rc = own.attn_bwd(s, DT_BF16, dev[DQ], dev[DK], dev[DV], dev[DO], dev[Q], dev[K], dev[V], dev[LSE], dev[DELTA], n, spans, ws);
    for (int i = O; i < ARRAYS && rc == OK; i++) rc = cuda_status(s, cudaMemcpyAsync(host[i], dev[i], bytes(i, n.D), cudaMemcpyDefault, s->q), "attention check");
    return rc == OK ? cuda_status(s, cudaStreamSynchronize(s->q), "attention check") : rc;
}

int cuda_library_check(struct stream *s, struct attn_library *lib, int64_t D, struct error *err)
{
    static const char *const names[ARRAYS] = { [O] = "O", [LSE] = "LSE", [DELTA] = "delta", [DQ] = "dQ", [DK] = "dK", [DV] = "dV" };
    char *dev[ARRAYS] = { 0 }, *list = NULL, *ws = NULL, *in = xmalloc(bytes(Q, D));
    float *a[ARRAYS] = { 0 }, *b[ARRAYS] = { 0 };
    uint32_t seed = 1;
    int rc = OK;
    cudaError_t e = cudaMalloc((void **)&list, sizeof(struct attn_span));
    size_t ws_bytes = own.attn_ws(DT_BF16, (struct attn_shape){ ROWS, ROWS, HEADS, KV_HEADS, D, 1, 0 }, 1);
    if (e == cudaSuccess) e = cudaMalloc((void **)&ws, ws_bytes);
    for (int i = 0; i < ARRAYS && e == cudaSuccess; i++) {
        e = cudaMalloc((void **)&dev[i], bytes(i, D));
        a[i] = xmalloc(bytes(i, D)), b[i] = xmalloc(bytes(i, D));
    }
    if (e != cudaSuccess) rc = error_set(err, E_UNSUPPORTED, "no memory to check cuDNN: %s", cudaGetErrorString(e));
    for (int c = 0; c < CASES && rc == OK; c++) {
        struct attn_shape n = { cases[c].nq, cases[c].nk, HEADS, KV_HEADS, D, 1.0f / sqrtf((float)D), 0 };
        struct attn_span span = { 0, n.Tq, 0, n.Tk, cases[c].diag };
        struct attn_spans spans = { &span, (struct attn_span *)(void *)list, 1 };
        for (int i = Q; i <= DO && e == cudaSuccess; i++) {
            fill(in, i, D, cases[c].shift, &seed);
            e = cudaMemcpy(dev[i], in, bytes(i, D), cudaMemcpyDefault);
        }
        if (e == cudaSuccess) e = cudaMemcpy(list, &span, sizeof span, cudaMemcpyDefault);
        s->library = NULL;
        rc = e == cudaSuccess ? once(s, dev, a, n, spans, ws) : cuda_status(s, e, "attention check");
        s->library = lib;
        int64_t before = lib->done;
        if (rc == OK) rc = once(s, dev, b, n, spans, ws);
        if (rc != OK) error_set(err, E_UNSUPPORTED, "%.250s", s->text);
        else if (lib->done != before + 2) rc = error_set(err, E_UNSUPPORTED, "%s does not take case %d: %.200s", lib->name, c, lib->why);
        for (int i = O; i < ARRAYS && rc == OK; i++) {
            size_t count = i == O || i == DQ ? (size_t)(n.Tq * HEADS * D) : i == DK || i == DV ? (size_t)(n.Tk * KV_HEADS * D) : (size_t)(n.Tq * HEADS);
            double d = difference(a[i], b[i], count), most = i == LSE ? 1e-4 : 2e-2;
            if (!(d <= most)) rc = error_set(err, E_UNSUPPORTED, "%s gives another %s than our own kernel (case %d, width %lld: off by %.2g)", lib->name, names[i], c, (long long)D, d);
        }
    }
    for (int i = 0; i < ARRAYS; i++) {
        if (dev[i]) (void)cudaFree(dev[i]);
        free(a[i]);
        free(b[i]);
    }
    if (list) (void)cudaFree(list);
    if (ws) (void)cudaFree(ws);
    free(in);
    s->library = NULL;
    return rc;
}

/* --- the choice --- */

void cuda_library_release(struct stream *s)
{
    if (s->library) s->library->release(s->library);
    s->library = NULL;
}

static struct attn_library *open_library(struct stream *s, struct attn_shape n, struct error *err)
{
#ifdef RM_HAVE_CUDNN
    return cudnn_open(s, n, err);
#else
    (void)s;
    (void)n;
    error_set(err, E_UNSUPPORTED, "built without cuDNN's headers");
    return NULL;
#endif
}

static void attn_choose(struct stream *s, enum attn_impl impl, enum dtype dt, struct attn_shape n)
{
    struct error err = { 0 };
    int device = 0, major = 0;
    cuda_library_release(s);
    s->attn = impl;
    s->attn_why[0] = '\0';
    if (impl != ATTN_AUTO || dt != DT_BF16) return;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    struct attn_library *lib = NULL;
    if (major != 9) return;                 /* ours is as fast before Hopper; later cards: nobody has looked yet */
    if (n.D != 64 && n.D != 128) error_set(&err, E_UNSUPPORTED, "cuDNN is used for head widths 64 and 128, this is %lld", (long long)n.D);
    else if (n.window) error_set(&err, E_UNSUPPORTED, "cuDNN is not used with a sliding window");
    else if (s->deterministic) error_set(&err, E_UNSUPPORTED, "cuDNN's backward is not bitwise repeatable; deterministic false would allow it");
    else if ((lib = open_library(s, n, &err)) != NULL && cuda_library_check(s, lib, n.D, &err) != OK) {
        lib->release(lib);
        lib = NULL;
        (void)cudaGetLastError();
    }
    s->library = lib;
    if (lib == NULL) (void)snprintf(s->attn_why, sizeof s->attn_why, "flash: %.280s", err.text);
}

void cuda_fill_choose(struct kernel_ops *ops)
{
    ops->attn_choose = attn_choose;
    own = *ops;
}
