/* onednn.c - the only file that includes oneDNN's header. Primitives for bf16 are built once per shape and kept in a small table;
 * their scratchpad is the caller's, so that a step allocates nothing. */
#include "kernels/cpu/onednn.h"

#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

static void use_our_threads(void)
{
    int threads = cpu_threads(INT64_MAX);
    if (omp_get_max_threads() != threads) omp_set_num_threads(threads);
}

/* oneDNN sums x W^T of fewer than 16 rows in another order than of more. A token's result must not depend on how many a rank has, so few rows are made
 * 16 with zeros. One row alone (generation) keeps its fast way. */
enum { FEW_ROWS = 16, FEW_COLUMNS = 512 };

static int few_rows(const struct product *p, float *c, const float *a, const float *b)
{
    float t[FEW_ROWS * FEW_COLUMNS] = { 0 }, *rows = xcalloc((unsigned long)(FEW_ROWS * p->K), sizeof *rows);
    int rc = 0;
    for (int64_t m = 0; m < p->M; m++) memcpy(rows + m * p->K, a + m * p->lda, (size_t)p->K * sizeof *rows);
    for (int64_t n = 0; n < p->N && rc == 0; n += FEW_COLUMNS) {
        int64_t N = p->N - n < FEW_COLUMNS ? p->N - n : FEW_COLUMNS;
        size_t bytes = (size_t)N * sizeof *c;
        for (int64_t m = 0; m < p->M && p->beta != 0.0f; m++) memcpy(t + m * N, c + m * p->ldc + n, bytes);
        rc = (int)dnnl_sgemm('N', 'T', FEW_ROWS, N, p->K, p->alpha, rows, p->K, b + n * p->ldb, p->ldb, p->beta, t, N);
        for (int64_t m = 0; m < p->M && rc == 0; m++) memcpy(c + m * p->ldc + n, t + m * N, bytes);
    }
    free(rows);
    return rc;
}

int onednn_sgemm(const struct product *p, float *c, const float *a, const float *b)
{
    use_our_threads();
    if (!p->ta && p->tb && p->M > 1 && p->M < FEW_ROWS) return few_rows(p, c, a, b);
    return (int)dnnl_sgemm(p->ta ? 'T' : 'N', p->tb ? 'T' : 'N', p->M, p->N, p->K, p->alpha, a, p->lda, b, p->ldb, p->beta, c, p->ldc);
}

enum { SHAPES_MAX = 256 };

/* primitive NULL: oneDNN has no fast way for it. */
struct entry {
    struct product p;
    int threads;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, scratch;
    size_t scratch_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;      /* around everything below: memory handles are set per call */
static struct entry entries[SHAPES_MAX];
static int nentries, next_victim, policy = -1;
static dnnl_engine_t engine;
static dnnl_stream_t stream;

void onednn_bf16_policy(int p) { policy = p; }

static bool wanted(void)
{
    if (policy >= 0) return policy > 0;
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)dnnl_cpu_isa_avx512_core_amx) == (unsigned)dnnl_cpu_isa_avx512_core_amx;
}

static bool same_product(const struct product *x, const struct product *y)
{
    return x->dc == y->dc && x->dab == y->dab && x->ta == y->ta && x->tb == y->tb && x->M == y->M && x->N == y->N && x->K == y->K &&
           x->lda == y->lda && x->ldb == y->ldb && x->ldc == y->ldc && x->alpha == y->alpha && x->beta == y->beta;
}

static dnnl_memory_desc_t matrix(enum dtype dt, int64_t rows, int64_t cols, int64_t ld, bool turned)
{
    dnnl_memory_desc_t d;
    dnnl_dims_t dims = { rows, cols }, strides = { turned ? 1 : ld, turned ? ld : 1 };
    dnnl_memory_desc_init_by_strides(&d, 2, dims, dt == DT_F32 ? dnnl_f32 : dnnl_bf16, strides);
    return d;
}

static void release(struct entry *e)
{
    if (e->primitive) dnnl_primitive_destroy(e->primitive);
    if (e->a) dnnl_memory_destroy(e->a);
    if (e->b) dnnl_memory_destroy(e->b);
    if (e->c) dnnl_memory_destroy(e->c);
    if (e->scratch) dnnl_memory_destroy(e->scratch);
    *e = (struct entry){ 0 };
}

static bool build(struct entry *e)
{
    const struct product *p = &e->p;
    dnnl_memory_desc_t a = matrix(p->dab, p->M, p->K, p->lda, p->ta), b = matrix(p->dab, p->K, p->N, p->ldb, p->tb), c = matrix(p->dc, p->M, p->N, p->ldc, false);
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t post = NULL;
    dnnl_primitive_desc_t pd = NULL;
    const char *how = "";
    bool ok = dnnl_primitive_attr_create(&attr) == dnnl_success && dnnl_post_ops_create(&post) == dnnl_success &&
              dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success &&
              (p->alpha == 1.0f || dnnl_primitive_attr_set_output_scales(attr, 1, 0, &p->alpha) == dnnl_success) &&
              (p->beta == 0.0f || (dnnl_post_ops_append_sum(post, p->beta) == dnnl_success && dnnl_primitive_attr_set_post_ops(attr, post) == dnnl_success)) &&
              dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c) == dnnl_success &&
              dnnl_primitive_desc_create(&pd, &desc, attr, engine, NULL) == dnnl_success;
    ok = ok && dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&how) == dnnl_success && !strstr(how, "ref");   /* "ref" is 100 times slower */
    if (ok) {
        const dnnl_memory_desc_t *s = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        e->scratch_bytes = s ? dnnl_memory_desc_get_size(s) : 0;
        ok = dnnl_primitive_create(&e->primitive, pd) == dnnl_success && dnnl_memory_create(&e->a, &a, engine, DNNL_MEMORY_NONE) == dnnl_success &&
             dnnl_memory_create(&e->b, &b, engine, DNNL_MEMORY_NONE) == dnnl_success && dnnl_memory_create(&e->c, &c, engine, DNNL_MEMORY_NONE) == dnnl_success &&
             (e->scratch_bytes == 0 || dnnl_memory_create(&e->scratch, s, engine, DNNL_MEMORY_NONE) == dnnl_success);
    }
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (post) dnnl_post_ops_destroy(post);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return ok;
}

/* The entry of this shape, built when new; NULL without bf16 hardware. Call with the lock held. */
static struct entry *find(const struct product *p)
{
    if (!wanted()) return NULL;
    if (!engine && (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success || dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) != dnnl_success))
        return NULL;
    use_our_threads();
    int threads = omp_get_max_threads();
    for (int i = 0; i < nentries; i++)
        if (entries[i].threads == threads && same_product(&entries[i].p, p)) return entries[i].primitive ? entries + i : NULL;
    struct entry *e = entries + (nentries < SHAPES_MAX ? nentries++ : next_victim++ % SHAPES_MAX);
    release(e);
    e->p = *p;
    e->threads = threads;
    if (!build(e)) {
        release(e);
        e->p = *p;                                      /* remembered as not to be had */
        e->threads = threads;
        return NULL;
    }
    return e;
}

size_t onednn_bf16_ws(const struct product *p)
{
    struct product dense = *p;
    dense.lda = p->ta ? p->M : p->K;
    dense.ldb = p->tb ? p->K : p->N;
    dense.ldc = p->N;
    dense.alpha = 1.0f;
    dense.beta = p->dc == DT_F32 ? 1.0f : 0.0f;
    pthread_mutex_lock(&lock);
    const struct entry *e = find(&dense);
    size_t bytes = e ? e->scratch_bytes : 0;
    pthread_mutex_unlock(&lock);
    return bytes;
}

bool onednn_bf16(const struct product *p, void *c, const bf16 *a, const bf16 *b, void *ws, size_t ws_bytes)
{
    pthread_mutex_lock(&lock);
    struct entry *e = find(p);
    bool ok = e && e->scratch_bytes <= ws_bytes;
    if (ok) {
        dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, e->a }, { DNNL_ARG_WEIGHTS, e->b }, { DNNL_ARG_DST, e->c }, { DNNL_ARG_SCRATCHPAD, e->scratch } };
        dnnl_memory_set_data_handle(e->a, (void *)(uintptr_t)a);
        dnnl_memory_set_data_handle(e->b, (void *)(uintptr_t)b);
        dnnl_memory_set_data_handle(e->c, c);
        if (e->scratch) dnnl_memory_set_data_handle(e->scratch, ws);
        ok = dnnl_primitive_execute(e->primitive, stream, e->scratch ? 4 : 3, args) == dnnl_success && dnnl_stream_wait(stream) == dnnl_success;
    }
    pthread_mutex_unlock(&lock);
    return ok;
}
