// blas.cc - the cuBLASLt calls kernels/cuda/matmul.c makes, through the CPU table's product: bf16 or fp32 in, fp32 sums, as tensor
// cores do. cuBLASLt counts columns first: its D[m,n] is our row-major [n,m], so d = op(B)^T op(A)^T.
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "kernels/kernels.h"
#include "tests/gpusim/device.h"

using namespace gpusim;

enum : size_t { WORKSPACE = 16 << 10 };     // what every algorithm says it needs, and spoils

struct description { cublasComputeType_t compute; cudaDataType_t scale; cublasOperation_t ta, tb; };
struct layout { cudaDataType_t type; uint64_t rows, cols; int64_t ld; };
struct preference { size_t most; };
struct cublasLtContext { int alive; };

static int elements(cudaDataType_t t) { return t == CUDA_R_16BF || t == CUDA_R_32F; }
static enum dtype type_of(cudaDataType_t t) { return t == CUDA_R_16BF ? DT_BF16 : DT_F32; }
static bool sound(const layout *x) { return elements(x->type) && x->rows > 0 && x->cols > 0 && x->ld >= (int64_t)x->rows; }
static size_t bytes_of(const layout *x) { return dtype_size(type_of(x->type)) * ((size_t)x->ld * (x->cols - 1) + x->rows); }

static bool reachable(const void *p, size_t bytes) { return any_pointer_allowed || is_device(p, bytes); }

struct sizes { int64_t m, n, k; };

static bool fits(const description *d, const layout *a, const layout *b, const layout *c, sizes *s)
{
    if (!sound(a) || !sound(b) || !sound(c) || a->type != b->type || (c->type != a->type && c->type != CUDA_R_32F)) return false;
    if (d->compute != CUBLAS_COMPUTE_32F || d->scale != CUDA_R_32F) return false;
    bool ta = d->ta != CUBLAS_OP_N, tb = d->tb != CUBLAS_OP_N;
    *s = { (int64_t)(ta ? a->cols : a->rows), (int64_t)(tb ? b->rows : b->cols), (int64_t)(ta ? a->rows : a->cols) };
    return (uint64_t)s->k == (tb ? b->cols : b->rows) && (uint64_t)s->m == c->rows && (uint64_t)s->n == c->cols;
}

static struct stream *cpu_stream()
{
    static struct stream *s;
    if (!s) {
        kernel_cpu_threads(1);
        if (kernel_ops_cpu()->stream_new(&s, true, nullptr) != OK) die("no CPU stream for matrix products");
    }
    return s;
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = (cublasLtHandle_t) new cublasLtContext{ 1 };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    delete (cublasLtContext *)h;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t e)
{
    return e == CUBLAS_STATUS_SUCCESS ? "success" : e == CUBLAS_STATUS_INVALID_VALUE ? "invalid value" : e == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "failed";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale)
{
    *d = (cublasLtMatmulDesc_t) new description{ compute, scale, CUBLAS_OP_N, CUBLAS_OP_N };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete (description *)d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
    if (bytes != sizeof(cublasOperation_t)) return CUBLAS_STATUS_INVALID_VALUE;
    if (what == CUBLASLT_MATMUL_DESC_TRANSA) memcpy(&((description *)d)->ta, value, bytes);
    else if (what == CUBLASLT_MATMUL_DESC_TRANSB) memcpy(&((description *)d)->tb, value, bytes);
    else return CUBLAS_STATUS_NOT_SUPPORTED;        // epilogues and the like: taught here when the product uses them
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *x, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld)
{
    *x = (cublasLtMatrixLayout_t) new layout{ type, rows, cols, ld };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t x)
{
    delete (layout *)x;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = (cublasLtMatmulPreference_t) new preference{ 0 };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete (preference *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t what, const void *value, size_t bytes)
{
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof(uint64_t)) memcpy(&((preference *)p)->most, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t *out, int *found)
{
    sizes s;
    *found = 0;
    if (wanted < 1 || !fits((description *)d, (layout *)a, (layout *)b, (layout *)c, &s)) return CUBLAS_STATUS_INVALID_VALUE;
    memset(out, 0, sizeof *out);
    out->workspaceSize = ((preference *)p)->most < WORKSPACE ? ((preference *)p)->most : WORKSPACE;
    memcpy(&out->algo, &out->workspaceSize, sizeof out->workspaceSize);     // cublasLtMatmul demands the same again
    out->state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t description_, const void *alpha, const void *A, cublasLtMatrixLayout_t a_, const void *B,
                              cublasLtMatrixLayout_t b_, const void *beta, const void *C, cublasLtMatrixLayout_t c_, void *D, cublasLtMatrixLayout_t d_,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const description d = *(description *)description_;
    const layout a = *(layout *)a_, b = *(layout *)b_, c = *(layout *)c_, out = *(layout *)d_;
    sizes s;
    size_t needed;
    memcpy(&needed, algo, sizeof needed);
    if (!h || !((cublasLtContext *)h)->alive || !fits(&d, &a, &b, &out, &s) || C != D || memcmp(&c, &out, sizeof c) != 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_bytes < needed || (needed && !reachable(workspace, needed))) return CUBLAS_STATUS_INVALID_VALUE;
    if (!reachable(A, bytes_of(&a)) || !reachable(B, bytes_of(&b)) || !reachable(D, bytes_of(&out)))
        die("cublasLtMatmul: an operand is not wholly in device memory (A %p, B %p, D %p)", A, B, D);
    float al = *(const float *)alpha, be = *(const float *)beta;
    op o;
    o.poll = [=](bool *) {
        const struct kernel_ops *cpu = kernel_ops_cpu();
        bool ta = d.tb != CUBLAS_OP_N, tb = d.ta != CUBLAS_OP_N;
        enum dtype dt = type_of(a.type), dto = type_of(out.type);
        std::vector<char> ws(cpu->matmul_ws(dto, dt, s.n, s.m, s.k, ta, tb) + 64);
        tsan_read(A, bytes_of(&a), __builtin_return_address(0));
        tsan_read(B, bytes_of(&b), __builtin_return_address(0));
        tsan_write(D, bytes_of(&out), __builtin_return_address(0));
        if (needed) {
            tsan_write(workspace, needed, __builtin_return_address(0));
            memset(workspace, 0xff, needed);
        }
        if (cpu->matmul(cpu_stream(), dto, D, out.ld, dt, B, b.ld, ta, dt, A, a.ld, tb, s.n, s.m, s.k, al, be, ws.data(), ws.size()) != OK)
            die("cublasLtMatmul %lld x %lld x %lld: %s", (long long)s.m, (long long)s.n, (long long)s.k, cpu->error(cpu_stream()));
        return true;
    };
    enqueue(stream, std::move(o));
    return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
