/* matmul.c - matrix products through cuBLASLt; the only file that names its header.
 *
 * cuBLASLt counts columns first, so c = op(a) op(b) row-major is asked for as c^T = op(b)^T op(a)^T. Descriptors are cheap and made
 * per call; the algorithm is looked up once per shape and kept. The workspace is the caller's, from the plan. */
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/backend.h"

enum { WORKSPACE = 32 << 20, KEPT = 256 };

struct shape { int64_t M, N, K, lda, ldb, ldc; int da, dc, ta, tb; };
struct known { struct shape shape; cublasLtMatmulAlgo_t algo; size_t ws; };
struct blas { cublasLtHandle_t handle; struct known known[KEPT]; int n; };

int cuda_matmul_prepare(struct stream *s, struct error *err)
{
    struct blas *b = xcalloc(1, sizeof *b);
    cublasStatus_t e = cublasLtCreate(&b->handle);
    if (e != CUBLAS_STATUS_SUCCESS) {
        free(b);
        return error_set(err, E_CUDA, "cuBLASLt: %s", cublasLtGetStatusString(e));
    }
    s->blas = b;
    return OK;
}

void cuda_matmul_release(struct stream *s)
{
    struct blas *b = s->blas;
    if (b == NULL) return;
    (void)cublasLtDestroy(b->handle);
    free(b);
    s->blas = NULL;
}

static cudaDataType_t type_of(enum dtype dt) { return dt == DT_F32 ? CUDA_R_32F : CUDA_R_16BF; }

struct call {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t preference;
};

static void call_release(struct call *x)
{
    if (x->preference) (void)cublasLtMatmulPreferenceDestroy(x->preference);
    if (x->c) (void)cublasLtMatrixLayoutDestroy(x->c);
    if (x->b) (void)cublasLtMatrixLayoutDestroy(x->b);
    if (x->a) (void)cublasLtMatrixLayoutDestroy(x->a);
    if (x->op) (void)cublasLtMatmulDescDestroy(x->op);
}

/* In cuBLASLt's order the first operand is our b, the second our a. */
static cublasStatus_t describe(struct call *x, const struct shape *n, size_t ws_bytes)
{
    cublasOperation_t first = n->tb ? CUBLAS_OP_T : CUBLAS_OP_N, second = n->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t e = cublasLtMatmulDescCreate(&x->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (e == CUBLAS_STATUS_SUCCESS) e = cublasLtMatmulDescSetAttribute(x->op, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (e == CUBLAS_STATUS_SUCCESS) e = cublasLtMatmulDescSetAttribute(x->op, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (e == CUBLAS_STATUS_SUCCESS) e = cublasLtMatrixLayoutCreate(&x->a, type_of((enum dtype)n->da), (uint64_t)(n->tb ? n->K : n->N), (uint64_t)(n->tb ? n->N : n->K), n->ldb);
    if (e == CUBLAS_STATUS_SUCCESS) e = cublasLtMatrixLayoutCreate(&x->b, type_of((enum dtype)n->da), (uint64_t)(n->ta ? n->M : n->K), (uint64_t)(n->ta ? n->K : n->M), n->lda);
    if (e == CUBLAS_STATUS_SUCCESS) e = cublasLtMatrixLayoutCreate(&x->c, type_of((enum dtype)n->dc), (uint64_t)n->N, (uint64_t)n->M, n->ldc);
    if (e == CUBLAS_STATUS_SUCCESS) e = cublasLtMatmulPreferenceCreate(&x->preference);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmulPreferenceSetAttribute(x->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws_bytes, sizeof ws_bytes);
    return e;
}

static cublasStatus_t algorithm(struct blas *b, struct call *x, const struct shape *n, struct known **out)
{
    for (int i = 0; i < b->n; i++)
        if (memcmp(&b->known[i].shape, n, sizeof *n) == 0) { *out = &b->known[i]; return CUBLAS_STATUS_SUCCESS; }
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t e = cublasLtMatmulAlgoGetHeuristic(b->handle, x->op, x->a, x->b, x->c, x->c, x->preference, 1, &found, &count);
    if (e == CUBLAS_STATUS_SUCCESS && count == 0) e = CUBLAS_STATUS_NOT_SUPPORTED;
    if (e != CUBLAS_STATUS_SUCCESS) return e;
    struct known *k = &b->known[b->n < KEPT ? b->n++ : KEPT - 1];
    *k = (struct known){ *n, found.algo, found.workspaceSize };
    *out = k;
    return e;
}

static int matmul(struct stream *s, enum dtype dc, void *c, int64_t ldc, enum dtype da, const void *a, int64_t lda, bool ta, enum dtype db, const void *b,
                  int64_t ldb, bool tb, int64_t M, int64_t N, int64_t K, float alpha, float beta, void *ws, size_t ws_bytes)
{
    if (da != db || (da != DT_F32 && da != DT_BF16) || (dc != da && dc != DT_F32))
        return cuda_refuse(s, "matmul: types %s x %s -> %s are not supported", dtype_name(da), dtype_name(db), dtype_name(dc));
    if (M == 0 || N == 0) return OK;
    struct shape n;
    memset(&n, 0, sizeof n);                /* compared as bytes */
    n.M = M, n.N = N, n.K = K, n.lda = lda, n.ldb = ldb, n.ldc = ldc;
    n.da = da, n.dc = dc, n.ta = ta, n.tb = tb;
    struct call x = { 0 };
    struct known *k = NULL;
    struct blas *blas = s->blas;
    cublasStatus_t e = describe(&x, &n, ws ? ws_bytes : 0);
    if (e == CUBLAS_STATUS_SUCCESS) e = algorithm(blas, &x, &n, &k);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmul(blas->handle, x.op, &alpha, b, x.a, a, x.b, &beta, c, x.c, c, x.c, &k->algo, ws, k->ws, s->q);
    call_release(&x);
    if (e == CUBLAS_STATUS_SUCCESS) return OK;
    (void)snprintf(s->text, sizeof s->text, "matmul %lld x %lld x %lld: cuBLASLt: %s", (long long)M, (long long)N, (long long)K, cublasLtGetStatusString(e));
    return E_CUDA;
}

static size_t matmul_ws(enum dtype dc, enum dtype da, int64_t M, int64_t N, int64_t K, bool ta, bool tb)
{
    (void)dc, (void)da, (void)M, (void)N, (void)K, (void)ta, (void)tb;
    return WORKSPACE;                       /* what NVIDIA recommends for Hopper; smaller cards use part of it */
}

void cuda_fill_matmul(struct kernel_ops *ops)
{
    ops->matmul = matmul;
    ops->matmul_ws = matmul_ws;
}
