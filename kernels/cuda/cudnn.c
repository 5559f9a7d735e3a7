/* cudnn.c - attention through cuDNN 9's plain C backend, opened with dlopen; the only file that names its header.
 *
 * cuDNN knows attention as a graph of small operations that it recognises and fuses: Q K^T, scale, mask, softmax, P V. The graphs here have the
 * order cuDNN's own frontend gives them; others are slower or find no engine. The mask is "row + diag >= column" with diag a scalar given at
 * each call, so one plan serves every block of a ring. Plans are made per shape (about a second) and kept.
 * Backward wants O, only to form delta = dO.O, which we have, and not O: it is given O's projection on dO instead (cuda_project), whose product
 * with dO is delta. Gradients come out in bf16 and are added to ours.
 * Not here: documents of several spans, windows, rows that see nothing, merging, determinism (its deterministic backward takes memory that grows
 * with the square of the length): our own kernels have those. */
#include <cudnn.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/library.h"

typedef cudnnBackendDescriptor_t desc;

static struct {
    void *handle;
    size_t (*version)(void);
    const char *(*error_string)(cudnnStatus_t);
    void (*last_error)(char *, size_t);
    cudnnStatus_t (*create)(cudnnHandle_t *);
    cudnnStatus_t (*destroy)(cudnnHandle_t);
    cudnnStatus_t (*set_stream)(cudnnHandle_t, cudaStream_t);
    cudnnStatus_t (*desc_create)(cudnnBackendDescriptorType_t, desc *);
    cudnnStatus_t (*desc_destroy)(desc);
    cudnnStatus_t (*finalize)(desc);
    cudnnStatus_t (*set)(desc, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, const void *);
    cudnnStatus_t (*get)(desc, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, int64_t *, void *);
    cudnnStatus_t (*execute)(cudnnHandle_t, desc, desc);
} lib;

static int load(struct error *err)
{
    static const struct { const char *name; void **to; } functions[] = {
        { "cudnnGetVersion", (void **)&lib.version }, { "cudnnGetErrorString", (void **)&lib.error_string }, { "cudnnGetLastErrorString", (void **)&lib.last_error },
        { "cudnnCreate", (void **)&lib.create }, { "cudnnDestroy", (void **)&lib.destroy }, { "cudnnSetStream", (void **)&lib.set_stream },
        { "cudnnBackendCreateDescriptor", (void **)&lib.desc_create }, { "cudnnBackendDestroyDescriptor", (void **)&lib.desc_destroy },
        { "cudnnBackendFinalize", (void **)&lib.finalize }, { "cudnnBackendSetAttribute", (void **)&lib.set }, { "cudnnBackendGetAttribute", (void **)&lib.get },
        { "cudnnBackendExecute", (void **)&lib.execute },
    };
    if (lib.handle) return OK;
    void *handle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) return error_set(err, E_UNSUPPORTED, "cuDNN 9 is not installed");
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if ((*functions[i].to = dlsym(handle, functions[i].name)) == NULL) {
            (void)dlclose(handle);
            return error_set(err, E_UNSUPPORTED, "libcudnn.so.9 has no %s", functions[i].name);
        }
    lib.handle = handle;
    return OK;
}

/* --- a graph under construction: everything made is kept for release; the first failure is kept and the rest does nothing --- */

enum { DESC_MAX = 256, OPS_MAX = 32 };
/* Tensors the caller binds. */
enum { ID_NONE, ID_Q, ID_K, ID_V, ID_O, ID_LSE, ID_DO, ID_DQ, ID_DK, ID_DV, ID_DELTA, ID_DQ32, ID_SCALE, ID_LOW, ID_ONE, ID_DIAG, ID_LAST, ID_FIRST_VIRTUAL = 100 };

struct graph {
    desc made[DESC_MAX], op[OPS_MAX];
    int n_made, n_ops;
    int64_t next;
    cudnnStatus_t status;
    const char *at;
};

static bool step(struct graph *g, cudnnStatus_t s, const char *what)
{
    if (g->status != CUDNN_STATUS_SUCCESS) return false;
    g->status = s;
    g->at = what;
    return s == CUDNN_STATUS_SUCCESS;
}

static int why(const struct graph *g, struct error *err)
{
    char text[400] = "";
    lib.last_error(text, sizeof text);
    return error_set(err, E_UNSUPPORTED, "cuDNN: %s: %s%s%.200s", g->at, lib.error_string(g->status), *text ? ": " : "", text);
}

static desc make(struct graph *g, cudnnBackendDescriptorType_t type, const char *what)
{
    desc d = NULL;
    if (g->status != CUDNN_STATUS_SUCCESS) return NULL;
    if (g->n_made == DESC_MAX) g->status = CUDNN_STATUS_INTERNAL_ERROR, g->at = what;
    else if (step(g, lib.desc_create(type, &d), what)) g->made[g->n_made++] = d;
    return d;
}

static void set(struct graph *g, desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n, const void *value, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS) (void)step(g, lib.set(d, name, type, n, value), what);
}
#define SET1(d, name, type, value) set(g, d, name, type, 1, &(value), #name)
#define SET_DESC(d, name, value) set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &(value), #name)

static void finish(struct graph *g, desc d, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS) (void)step(g, lib.finalize(d), what);
}

static void graph_release(struct graph *g)
{
    while (g->n_made > 0) (void)lib.desc_destroy(g->made[--g->n_made]);
}

/* --- tensors and operations --- */

struct dims { int64_t size[4], stride[4]; };

static desc tensor(struct graph *g, int64_t id, cudnnDataType_t type, const struct dims *x)
{
    desc t = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
    bool yes = true;
    int64_t unique = id ? id : ID_FIRST_VIRTUAL + g->next++, align = id == ID_LSE ? 4 : 16;      /* lse's rows begin anywhere */
    SET1(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, x->size, "tensor sizes");
    set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, x->stride, "tensor strides");
    SET1(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, unique);
    SET1(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, align);
    if (id == ID_NONE) SET1(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, yes);
    if (id >= ID_SCALE && id < ID_LAST) SET1(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, yes);
    finish(g, t, "tensor");
    return t;
}

static desc dense(struct graph *g, cudnnDataType_t type, int64_t h, int64_t q, int64_t k)
{
    struct dims x = { { 1, h, q, k }, { h * q * k, q * k, k, 1 } };
    return tensor(g, ID_NONE, type, &x);
}
static desc scalar(struct graph *g, int64_t id, cudnnDataType_t type)
{
    static const struct dims one = { { 1, 1, 1, 1 }, { 1, 1, 1, 1 } };
    return tensor(g, id, type, &one);
}

static void add_op(struct graph *g, desc op, const char *what)
{
    finish(g, op, what);
    if (g->n_ops < OPS_MAX) g->op[g->n_ops++] = op;
    else g->status = CUDNN_STATUS_INTERNAL_ERROR, g->at = what;
}

/* y = mode(x, b); t selects. axis: of GEN_INDEX. NULL and -1: not given. */
static desc point(struct graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision, desc x, desc b, desc t, desc y, int64_t axis)
{
    desc p = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "pointwise");
    SET1(p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    SET1(p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, precision);
    if (axis >= 0) SET1(p, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
    finish(g, p, "pointwise");
    desc op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise operation");
    SET_DESC(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    SET_DESC(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) SET_DESC(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t) SET_DESC(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    SET_DESC(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(g, op, "pointwise operation");
    return y;
}

static desc reduce(struct graph *g, cudnnReduceTensorOp_t how, desc x, desc y)
{
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    desc r = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "reduction");
    SET1(r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, f32);
    SET1(r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, how);
    finish(g, r, "reduction");
    desc op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "reduction operation");
    SET_DESC(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, r);
    SET_DESC(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    SET_DESC(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(g, op, "reduction operation");
    return y;
}

static desc product(struct graph *g, desc a, desc b, desc c)
{
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    desc m = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, "matmul");
    SET1(m, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, f32);
    finish(g, m, "matmul");
    desc op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "matmul operation");
    SET_DESC(op, CUDNN_ATTR_OPERATION_MATMUL_DESC, m);
    SET_DESC(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    SET_DESC(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    SET_DESC(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    add_op(g, op, "matmul operation");
    return c;
}

static desc reshape(struct graph *g, desc x, desc y)
{
    desc op = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "reshape");
    SET_DESC(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    SET_DESC(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(g, op, "reshape");
    return y;
}

/* --- attention --- */

enum mask { MASK_NONE, MASK_DIAGONAL, MASK_SHIFTED };
struct key { bool backward; enum dtype dto; enum mask mask; int64_t nq, nk, lse_stride, H, Hkv, D; };

static enum mask mask_of(int64_t diag, int64_t nk) { return diag >= nk - 1 ? MASK_NONE : diag == 0 ? MASK_DIAGONAL : MASK_SHIFTED; }

/* Keys beyond the diagonal get -inf: row (+ diag) >= column keeps. */
static desc masked(struct graph *g, const struct key *n, desc s)
{
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT, i32 = CUDNN_DATA_INT32, yes = CUDNN_DATA_BOOLEAN;
    int64_t h = n->H, q = n->nq, k = n->nk;
    if (n->mask == MASK_NONE) return s;
    desc row = point(g, CUDNN_POINTWISE_GEN_INDEX, f32, s, NULL, NULL, dense(g, i32, h, q, k), 2);
    desc col = point(g, CUDNN_POINTWISE_GEN_INDEX, f32, s, NULL, NULL, dense(g, i32, h, q, k), 3);
    if (n->mask == MASK_SHIFTED) row = point(g, CUDNN_POINTWISE_ADD, i32, row, scalar(g, ID_DIAG, i32), NULL, dense(g, i32, h, q, k), -1);
    desc keep = point(g, CUDNN_POINTWISE_CMP_GE, yes, row, col, NULL, dense(g, yes, h, q, k), -1);
    return point(g, CUDNN_POINTWISE_BINARY_SELECT, f32, s, scalar(g, ID_LOW, f32), keep, dense(g, f32, h, q, k), -1);
}

struct shapes { struct dims rows_q, rows_k, turned_k, lse; };     /* [1,H,nq,D], [1,Hkv,nk,D], the latter's transpose, [1,H,nq,1] over our layouts */

static struct shapes shapes_of(const struct key *n)
{
    int64_t q_row = n->H * n->D, k_row = n->Hkv * n->D;
    return (struct shapes){
        .rows_q = { { 1, n->H, n->nq, n->D }, { n->nq * q_row, n->D, q_row, 1 } },
        .rows_k = { { 1, n->Hkv, n->nk, n->D }, { n->nk * k_row, n->D, k_row, 1 } },
        .turned_k = { { 1, n->Hkv, n->D, n->nk }, { n->nk * k_row, n->D, 1, k_row } },
        .lse = { { 1, n->H, n->nq, 1 }, { n->H * n->lse_stride, n->lse_stride, 1, 1 } },
    };
}

static void build_forward(struct graph *g, const struct key *n)
{
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT, b16 = CUDNN_DATA_BFLOAT16;
    struct shapes x = shapes_of(n);
    int64_t h = n->H, q = n->nq, k = n->nk;
    desc Q = tensor(g, ID_Q, b16, &x.rows_q), K = tensor(g, ID_K, b16, &x.turned_k), V = tensor(g, ID_V, b16, &x.rows_k);
    desc O = tensor(g, ID_O, n->dto == DT_F32 ? f32 : b16, &x.rows_q), lse = tensor(g, ID_LSE, f32, &x.lse);
    desc s = product(g, Q, K, dense(g, f32, h, q, k));
    s = point(g, CUDNN_POINTWISE_MUL, f32, s, scalar(g, ID_SCALE, f32), NULL, dense(g, f32, h, q, k), -1);
    s = masked(g, n, s);
    desc top = reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, dense(g, f32, h, q, 1));
    s = point(g, CUDNN_POINTWISE_SUB, f32, s, top, NULL, dense(g, f32, h, q, k), -1);
    s = point(g, CUDNN_POINTWISE_EXP, f32, s, NULL, NULL, dense(g, f32, h, q, k), -1);
    desc sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, s, dense(g, f32, h, q, 1));
    desc log_sum = point(g, CUDNN_POINTWISE_LOG, f32, sum, NULL, NULL, dense(g, f32, h, q, 1), -1);
    (void)point(g, CUDNN_POINTWISE_ADD, f32, top, log_sum, NULL, lse, -1);
    s = point(g, CUDNN_POINTWISE_DIV, f32, s, sum, NULL, dense(g, b16, h, q, k), -1);
    (void)product(g, s, V, O);
}

/* a^T b over the queries, for every query head; then summed over the heads of a group. */
static void to_keys(struct graph *g, const struct key *n, desc a, desc b, desc out)
{
    const cudnnDataType_t b16 = CUDNN_DATA_BFLOAT16;
    struct dims turned = { { 1, n->H, n->nk, n->nq }, { n->H * n->nq * n->nk, n->nq * n->nk, 1, n->nk } };
    a = reshape(g, a, tensor(g, ID_NONE, b16, &turned));
    if (n->H == n->Hkv) (void)product(g, a, b, out);
    else (void)reduce(g, CUDNN_REDUCE_TENSOR_ADD, product(g, a, b, dense(g, b16, n->H, n->nk, n->D)), out);
}

static void build_backward(struct graph *g, const struct key *n)
{
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT, b16 = CUDNN_DATA_BFLOAT16;
    struct shapes x = shapes_of(n);
    int64_t h = n->H, q = n->nq, k = n->nk, d = n->D;
    struct dims packed_lse = { { 1, h, q, 1 }, { h * q, q, 1, 1 } }, packed_q = { { 1, h, q, d }, { h * q * d, q * d, d, 1 } };
    desc Q = tensor(g, ID_Q, b16, &x.rows_q), K = tensor(g, ID_K, b16, &x.turned_k), V = tensor(g, ID_V, b16, &x.turned_k);
    desc O = tensor(g, ID_O, b16, &x.rows_q), dO = tensor(g, ID_DO, b16, &x.rows_q), lse = tensor(g, ID_LSE, f32, &x.lse);
    desc dQ = tensor(g, ID_DQ, b16, &x.rows_q), dK = tensor(g, ID_DK, b16, &x.rows_k), dV = tensor(g, ID_DV, b16, &x.rows_k), scale = scalar(g, ID_SCALE, f32);
    desc delta = reduce(g, CUDNN_REDUCE_TENSOR_ADD, point(g, CUDNN_POINTWISE_MUL, f32, dO, O, NULL, dense(g, f32, h, q, d), -1), dense(g, f32, h, q, 1));
    delta = point(g, CUDNN_POINTWISE_MUL, f32, delta, scalar(g, ID_ONE, f32), NULL, tensor(g, ID_DELTA, f32, &packed_lse), -1);

    desc s = product(g, Q, K, dense(g, f32, h, q, k));
    s = point(g, CUDNN_POINTWISE_MUL, f32, s, scale, NULL, dense(g, f32, h, q, k), -1);
    s = point(g, CUDNN_POINTWISE_SUB, f32, s, lse, NULL, dense(g, f32, h, q, k), -1);
    s = masked(g, n, s);
    desc p = point(g, CUDNN_POINTWISE_EXP, f32, s, NULL, NULL, dense(g, f32, h, q, k), -1);
    to_keys(g, n, p, dO, dV);
    desc dp = product(g, dO, V, dense(g, f32, h, q, k));
    dp = point(g, CUDNN_POINTWISE_SUB, f32, dp, delta, NULL, dense(g, f32, h, q, k), -1);
    dp = point(g, CUDNN_POINTWISE_MUL, f32, dp, p, NULL, dense(g, f32, h, q, k), -1);
    desc ds = point(g, CUDNN_POINTWISE_MUL, f32, dp, scale, NULL, dense(g, b16, h, q, k), -1);
    to_keys(g, n, ds, Q, dK);
    desc rows_k = reshape(g, K, tensor(g, ID_NONE, b16, &x.rows_k));
    desc sum = product(g, ds, rows_k, tensor(g, ID_DQ32, f32, &packed_q));        /* blocks of keys add to it in any order */
    (void)point(g, CUDNN_POINTWISE_IDENTITY, f32, sum, NULL, NULL, dQ, -1);
}

/* --- from a graph to something that runs --- */

/* The first engine that makes a plan. handle NULL: for the described device; then loading the kernel is where it ends (*compiled). */
static desc plan_of(struct graph *g, cudnnHandle_t handle, const char *device_json, int64_t *workspace, bool *compiled)
{
    enum { CONFIGS = 8 };
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    desc ops = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "graph"), device = NULL, config[CONFIGS], plan = NULL;
    if (handle) SET1(ops, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
    set(g, ops, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->op, "operations");
    finish(g, ops, "operation graph");
    if (!handle) {
        device = make(g, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "device description");
        set(g, device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(device_json), device_json, "device description");
        finish(g, device, "device description");
    }
    desc heuristic = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristics");
    SET_DESC(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, ops);
    SET1(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
    if (device) SET_DESC(heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
    finish(g, heuristic, "heuristics");
    int64_t n = 0, got = 0;
    for (int i = 0; i < CONFIGS; i++) config[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine");
    if (g->status == CUDNN_STATUS_SUCCESS)
        (void)step(g, lib.get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &n, config), "engines");
    if (g->status == CUDNN_STATUS_SUCCESS && n == 0) (void)step(g, CUDNN_STATUS_NOT_SUPPORTED, "no engine takes this attention");
    for (int64_t i = 0; i < n && i < CONFIGS && g->status == CUDNN_STATUS_SUCCESS; i++) {
        (void)lib.get(config[i], CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &got, workspace);
        plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan");
        if (handle) SET1(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
        SET_DESC(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config[i]);
        if (device) SET_DESC(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
        finish(g, plan, "plan");
        if (g->status == CUDNN_STATUS_SUCCESS) {
            (void)step(g, lib.get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &got, workspace), "workspace");
            break;
        }
        char text[600] = "";
        if (device) lib.last_error(text, sizeof text);
        if (compiled && strstr(text, "cuLibraryLoadData")) { *compiled = true; break; }
        if (i + 1 < n && i + 1 < CONFIGS) g->status = CUDNN_STATUS_SUCCESS, plan = NULL;      /* the next engine */
    }
    return plan;
}

int cudnn_try(const char *device_json, bool backward, enum dtype dto, struct attn_shape n, int64_t diag, int64_t *workspace, struct error *err)
{
    int rc = load(err);
    if (rc != OK) return rc;
    struct graph g = { 0 };
    int64_t nq = n.Tq / 128 * 128, nk = n.Tk / 128 * 128;       /* as takes() would have them */
    struct key key = { backward, dto, mask_of(diag, nk), nq, nk, n.Tq, n.H, n.Hkv, n.D };
    bool compiled = false;
    if (backward) build_backward(&g, &key);
    else build_forward(&g, &key);
    (void)plan_of(&g, NULL, device_json, workspace, &compiled);
    if (g.status != CUDNN_STATUS_SUCCESS && !compiled) rc = why(&g, err);
    graph_release(&g);
    return rc;
}

/* --- the library as attn_choose hands it out --- */

enum { PLANS = 12 };
struct plan { struct key key; struct graph g; desc plan; int64_t workspace; bool usable; };

struct cudnn {
    struct attn_library base;
    cudnnHandle_t handle;
    struct plan plans[PLANS];
    int n_plans;
    char *mem;                  /* of backward: O's projection, dq dk dv in bf16, dq and delta in f32; then the plan's workspace */
    size_t mem_bytes;
};

static size_t up(size_t n) { return (n + 255) / 256 * 256; }
struct places { size_t o, dq, dk, dv, dq32, delta, workspace; };

static struct places places_of(int64_t nq, int64_t nk, int64_t H, int64_t Hkv, int64_t D)
{
    struct places p = { 0 };
    size_t q = (size_t)(nq * H * D), k = (size_t)(nk * Hkv * D);
    p.dq = up(q * 2);
    p.dk = p.dq + up(q * 2);
    p.dv = p.dk + up(k * 2);
    p.dq32 = p.dv + up(k * 2);
    p.delta = p.dq32 + up(q * 4);
    p.workspace = p.delta + up((size_t)(nq * H) * 4);
    return p;
}

static bool takes(const struct attn_library *l, enum dtype dt, enum dtype dto, struct attn_shape n, struct attn_spans spans, bool merge)
{
    const struct cudnn *c = (const struct cudnn *)l;
    if (dt != DT_BF16 || (dto != DT_BF16 && dto != DT_F32) || merge || spans.n != 1 || n.window || (n.D != 64 && n.D != 128)) return false;
    struct attn_span x = spans.host[0];
    if (x.nq % 128 || x.nk % 128 || x.nq == 0 || x.nk == 0 || x.diag < 0 || x.diag > INT32_MAX) return false;
    return places_of(x.nq, x.nk, n.H, n.Hkv, n.D).workspace <= c->mem_bytes;
}

static struct plan *plan_for(struct cudnn *c, const struct key *key)
{
    for (int i = 0; i < c->n_plans; i++)
        if (memcmp(&c->plans[i].key, key, sizeof *key) == 0) return &c->plans[i];
    if (c->n_plans == PLANS) return NULL;
    struct plan *p = &c->plans[c->n_plans++];
    p->key = *key;
    if (key->backward) build_backward(&p->g, key);
    else build_forward(&p->g, key);
    p->plan = plan_of(&p->g, c->handle, NULL, &p->workspace, NULL);
    size_t before = key->backward ? places_of(key->nq, key->nk, key->H, key->Hkv, key->D).workspace : 0;
    p->usable = p->g.status == CUDNN_STATUS_SUCCESS && p->plan && before + (size_t)p->workspace <= c->mem_bytes;
    struct error err = { 0 };
    if (p->g.status != CUDNN_STATUS_SUCCESS) (void)why(&p->g, &err);
    else if (!p->usable) error_set(&err, E_UNSUPPORTED, "the plan wants %lld bytes of workspace", (long long)p->workspace);
    (void)snprintf(c->base.why, sizeof c->base.why, "%.299s", err.text);
    return p;
}

struct binding { int64_t id; const void *at; };

static int run(struct cudnn *c, struct stream *s, struct plan *p, const struct binding *bind, int n, void *workspace)
{
    struct graph pack = { 0 }, *g = &pack;
    int64_t id[16];
    const void *at[16];
    desc v = make(g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "arguments");
    for (int i = 0; i < n; i++) id[i] = bind[i].id, at[i] = bind[i].at;
    set(g, v, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, id, "arguments");
    set(g, v, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, at, "arguments");
    SET1(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
    finish(g, v, "arguments");
    if (g->status == CUDNN_STATUS_SUCCESS) (void)step(g, lib.execute(c->handle, p->plan, v), "execute");
    struct error err = { 0 };
    int rc = g->status == CUDNN_STATUS_SUCCESS ? OK : E_CUDA;
    c->base.done += rc == OK;
    if (rc != OK) {
        (void)why(g, &err);
        (void)snprintf(s->text, sizeof s->text, "attention: %.280s", err.text);
    }
    graph_release(g);
    return rc;
}

static struct key key_of(bool backward, enum dtype dto, struct attn_shape n, struct attn_span x)
{
    struct key key;
    memset(&key, 0, sizeof key);            /* compared as bytes */
    key.backward = backward;
    key.dto = dto;
    key.mask = mask_of(x.diag, x.nk);
    key.nq = x.nq, key.nk = x.nk, key.lse_stride = n.Tq;
    key.H = n.H, key.Hkv = n.Hkv, key.D = n.D;
    return key;
}

static const float one = 1.0f, low = -INFINITY;

static int forward(struct attn_library *l, struct stream *s, enum dtype dto, void *o, float *lse, const void *q, const void *k, const void *v, struct attn_shape n, struct attn_spans spans)
{
    struct cudnn *c = (struct cudnn *)l;
    struct attn_span x = spans.host[0];
    struct key key = key_of(false, dto, n, x);
    struct plan *p = plan_for(c, &key);
    if (p == NULL || !p->usable) return E_UNSUPPORTED;
    int32_t diag = (int32_t)x.diag;
    size_t q_at = (size_t)(x.q0 * n.H * n.D), k_at = (size_t)(x.k0 * n.Hkv * n.D);
    const struct binding bind[] = {
        { ID_Q, (const bf16 *)q + q_at }, { ID_K, (const bf16 *)k + k_at }, { ID_V, (const bf16 *)v + k_at }, { ID_O, (char *)o + q_at * dtype_size(dto) },
        { ID_LSE, lse + x.q0 }, { ID_SCALE, &n.scale }, { ID_LOW, &low }, { ID_DIAG, &diag },
    };
    return run(c, s, p, bind, key.mask == MASK_SHIFTED ? 8 : key.mask == MASK_DIAGONAL ? 7 : 6, c->mem);
}

static int backward(struct attn_library *l, struct stream *s, float *dq, float *dk, float *dv, const void *dout, const void *q, const void *k, const void *v, const float *lse,
                    const float *delta, struct attn_shape n, struct attn_spans spans)
{
    struct cudnn *c = (struct cudnn *)l;
    struct attn_span x = spans.host[0];
    struct key key = key_of(true, DT_BF16, n, x);
    struct plan *p = plan_for(c, &key);
    if (p == NULL || !p->usable) return E_UNSUPPORTED;
    struct places at = places_of(x.nq, x.nk, n.H, n.Hkv, n.D);
    int32_t diag = (int32_t)x.diag;
    size_t q_at = (size_t)(x.q0 * n.H * n.D), k_at = (size_t)(x.k0 * n.Hkv * n.D);
    const bf16 *d16 = (const bf16 *)dout + q_at;
    int rc = cuda_project(s, c->mem + at.o, d16, delta + x.q0, n.Tq, x.nq, n.H, n.D);
    if (rc == OK) rc = cuda_status(s, cudaMemsetAsync(c->mem + at.dq32, 0, (size_t)(x.nq * n.H * n.D) * 4, s->q), "attn_bwd");
    if (rc != OK) return rc;
    const struct binding bind[] = {
        { ID_Q, (const bf16 *)q + q_at }, { ID_K, (const bf16 *)k + k_at }, { ID_V, (const bf16 *)v + k_at }, { ID_O, c->mem + at.o }, { ID_DO, d16 }, { ID_LSE, lse + x.q0 },
        { ID_DQ, c->mem + at.dq }, { ID_DK, c->mem + at.dk }, { ID_DV, c->mem + at.dv }, { ID_DELTA, c->mem + at.delta }, { ID_DQ32, c->mem + at.dq32 },
        { ID_SCALE, &n.scale }, { ID_ONE, &one }, { ID_LOW, &low }, { ID_DIAG, &diag },
    };
    rc = run(c, s, p, bind, key.mask == MASK_SHIFTED ? 15 : key.mask == MASK_DIAGONAL ? 14 : 13, c->mem + at.workspace);
    if (rc == OK) rc = cuda_add_bf16(s, dq + q_at, c->mem + at.dq, x.nq * n.H * n.D);
    if (rc == OK) rc = cuda_add_bf16(s, dk + k_at, c->mem + at.dk, x.nk * n.Hkv * n.D);
    if (rc == OK) rc = cuda_add_bf16(s, dv + k_at, c->mem + at.dv, x.nk * n.Hkv * n.D);
    return rc;
}

static void release(struct attn_library *l)
{
    struct cudnn *c = (struct cudnn *)l;
    for (int i = 0; i < c->n_plans; i++) graph_release(&c->plans[i].g);
    if (c->mem) (void)cudaFree(c->mem);
    if (c->base.tail) (void)cudaFree(c->base.tail);
    if (c->handle) (void)lib.destroy(c->handle);
    free(c);
}

struct attn_library *cudnn_open(struct stream *s, struct attn_shape n, struct error *err)
{
    enum { MARGIN = 512 << 20 };            /* left free beside it, for what nobody counts */
    if (load(err) != OK) return NULL;
    struct cudnn *c = xcalloc(1, sizeof *c);
    c->base = (struct attn_library){ .tail = NULL, .takes = takes, .fwd = forward, .bwd = backward, .release = release };
    size_t version = lib.version(), free_bytes = 0, total = 0;
    (void)snprintf(c->base.name, sizeof c->base.name, "cudnn %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    cudnnStatus_t e = lib.create(&c->handle);
    if (e != CUDNN_STATUS_SUCCESS) {
        error_set(err, E_UNSUPPORTED, "cuDNN: %s", lib.error_string(e));
        goto fail;
    }
    if ((e = lib.set_stream(c->handle, s->q)) != CUDNN_STATUS_SUCCESS) {
        error_set(err, E_UNSUPPORTED, "cuDNN: %s", lib.error_string(e));
        goto fail;
    }
    /* what the plans were seen to ask for: keys and values of all query heads once more where heads share them, and a little */
    int64_t nq = (n.Tq + 127) / 128 * 128, nk = (n.Tk + 127) / 128 * 128;
    c->mem_bytes = places_of(nq, nk, n.H, n.Hkv, n.D).workspace + (n.H == n.Hkv ? 0 : 2 * (size_t)(nk * n.H * n.D) * 2) + (16 << 20);
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess || c->mem_bytes + MARGIN > free_bytes || cudaMalloc((void **)&c->mem, c->mem_bytes) != cudaSuccess ||
        cudaMalloc((void **)&c->base.tail, sizeof *c->base.tail) != cudaSuccess) {
        (void)cudaGetLastError();
        error_set(err, E_UNSUPPORTED, "cuDNN needs %zu MiB of memory for %lld x %lld rows, %zu are free", c->mem_bytes >> 20, (long long)n.Tq, (long long)n.Tk, free_bytes >> 20);
        goto fail;
    }
    return &c->base;
fail:
    release(&c->base);
    return NULL;
}
