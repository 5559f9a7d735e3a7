/* bench_kernels - how near the CPU kernels come to this machine's limits: matrix products, attention, AdamW, in one run.
 * usage: bench_kernels [THREADS [SECONDS [matmul|attention|layers [baseline|v3|v4]]]]   (not a test: nothing here passes or fails)
 * BENCH_BF16=1 takes oneDNN's bf16 whatever the hardware, 0 never.
 * The peak is measured beside each group by a register-only multiply-add loop on the same threads, so that a shared or throttled
 * machine shows in both numbers. Best of the repeats within SECONDS per line (default 0.5). One thread: by its CPU time, so
 * that other work on the machine counts little; more: by the clock on the wall. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"

static int threads = 1;

static double now(void)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static const struct kernel_ops *ops;
static struct stream *stream;
static double seconds = 0.5, peak;

#define BEST(best, call) \
    do { \
        double end_ = now() + seconds; \
        best = 1e30; \
        for (int i_ = 0; i_ < 3 || now() < end_; i_++) { \
            double t_ = now(); \
            int rc_ = (call); \
            t_ = now() - t_; \
            if (rc_ != OK) { fprintf(stderr, "%s\n", ops->error(stream)); exit(1); } \
            if (t_ < best) best = t_; \
        } \
    } while (0)

/* Multiply-adds in registers, the widest vectors the compiler was told of. */
#if defined(__x86_64__)
__attribute__((target("avx512f"), noinline)) static float fma_loop_512(int64_t n)
{
    typedef float v __attribute__((vector_size(64)));
    v a[24], x = { 0 }, y = { 0 };
    for (int k = 0; k < 16; k++) { x[k] = 0.999f; y[k] = 1e-3f; }
    #pragma GCC unroll 24
    for (int i = 0; i < 24; i++) a[i] = y * (float)i;
    for (int64_t k = 0; k < n; k++) {
        #pragma GCC unroll 24
        for (int i = 0; i < 24; i++) a[i] = __builtin_ia32_vfmaddps512_mask(a[i], x, y, -1, 4);
    }
    float sum = 0;
    for (int i = 0; i < 24; i++) sum += a[i][0];
    return sum;
}
static int have_512(void) { return __builtin_cpu_supports("avx512f"); }
#else
static float fma_loop_512(int64_t n) { (void)n; return 0; }
static int have_512(void) { return 0; }
#endif
static volatile float sink;

static int fma_all(int64_t n)
{
    #pragma omp parallel num_threads(threads)
    sink = fma_loop_512(n);
    return OK;
}
static void measure_peak(void)
{
    enum { n = 200000 };
    double t;
    if (!have_512()) return;
    BEST(t, fma_all(n));
    peak = 2.0 * 16 * 24 * n * threads / t * 1e-9;
    printf("f32 multiply-add peak, %d thread%s: %.0f GFLOP/s\n", threads, threads > 1 ? "s" : "", peak);
}

static void report(const char *what, double flop, double t)
{
    double g = flop / t * 1e-9;
    printf("%-58s %8.3f ms %7.1f GFLOP/s", what, t * 1e3, g);
    if (peak > 0) printf("  %3.0f %% of peak", 100 * g / peak);
    printf("\n");
}

static void *zeroed(size_t bytes)
{
    void *p;
    struct error err;
    if (ops->mem_alloc(&p, bytes, &err) != OK) { fprintf(stderr, "%s\n", err.text); exit(1); }
    return p;
}
static void *random_array(enum dtype dt, int64_t n)
{
    float *x = zeroed((size_t)n * 4);
    uint32_t s = 1;
    for (int64_t i = 0; i < n; i++) { s = s * 1664525u + 1013904223u; x[i] = (float)(int32_t)s / 2147483648.0f; }
    if (dt == DT_F32) return x;
    void *y = zeroed((size_t)n * dtype_size(dt));
    ops->cast(stream, dt, y, DT_F32, x, n);
    ops->mem_free(x, (size_t)n * 4);
    return y;
}

static void matmul_line(enum dtype dt, int64_t M, int64_t N, int64_t K)
{
    static const struct { const char *name; bool ta, tb; } forms[] = { { "y = x W'", false, true }, { "dx = dy W", false, false }, { "dW += dy' x", true, false } };
    for (int f = 0; f < 3; f++) {
        int64_t m = f == 2 ? N : M, n = f == 0 ? N : K, k = f == 0 ? K : f == 1 ? N : M;
        enum dtype dc = f == 2 ? DT_F32 : dt;
        bool ta = forms[f].ta, tb = forms[f].tb;
        void *a = random_array(dt, m * k), *b = random_array(dt, n * k), *c = zeroed((size_t)(m * n) * dtype_size(dc));
        size_t bytes = ops->matmul_ws(dc, dt, m, n, k, ta, tb);
        void *ws = zeroed(bytes);
        double t;
        char what[100];
        BEST(t, ops->matmul(stream, dc, c, n, dt, a, ta ? m : k, ta, dt, b, tb ? k : n, tb, m, n, k, 1.0f, f == 2 ? 1.0f : 0.0f, ws, bytes));
        snprintf(what, sizeof what, "matmul %s %s  tokens %lld, %lld x %lld", dtype_name(dt), forms[f].name, (long long)M, (long long)N, (long long)K);
        report(what, 2.0 * (double)m * (double)n * (double)k, t);
        ops->mem_free(a, (size_t)(m * k) * dtype_size(dt));
        ops->mem_free(b, (size_t)(n * k) * dtype_size(dt));
        ops->mem_free(c, (size_t)(m * n) * dtype_size(dc));
        ops->mem_free(ws, bytes);
    }
}

/* FLOPs counted over visible pairs: 4 D forward, 10 D backward. */
static void attention_line(enum dtype dt, int64_t T, int64_t H, int64_t Hkv, int64_t D, bool causal)
{
    struct attn_shape n = { T, T, H, Hkv, D, 0.125f, 0 };
    struct attn_span span = { 0, T, 0, T, causal ? 0 : T };
    struct attn_spans spans = { &span, &span, 1 };
    double pairs = (causal ? (double)T * (double)(T + 1) / 2 : (double)T * (double)T) * (double)H, t;
    void *q = random_array(dt, T * H * D), *k = random_array(dt, T * Hkv * D), *v = random_array(dt, T * Hkv * D), *g = random_array(dt, T * H * D);
    float *o = zeroed((size_t)(T * H * D) * 4), *lse = zeroed((size_t)(H * T) * 4), *delta = zeroed((size_t)(H * T) * 4);
    float *dq = zeroed((size_t)(T * H * D) * 4), *dk = zeroed((size_t)(T * Hkv * D) * 4), *dv = zeroed((size_t)(T * Hkv * D) * 4);
    size_t bytes = ops->attn_ws(dt, n, 1);
    void *ws = zeroed(bytes);
    char what[100];
    const char *mask = causal ? "causal" : "full";
    BEST(t, ops->attn_fwd(stream, dt, DT_F32, o, lse, q, k, v, n, spans, false, ws));
    snprintf(what, sizeof what, "attention %s forward  T %lld H %lld/%lld D %lld %s", dtype_name(dt), (long long)T, (long long)H, (long long)Hkv, (long long)D, mask);
    report(what, pairs * 4 * (double)D, t);
    ops->attn_delta(stream, dt, DT_F32, delta, g, o, T, H, D);
    BEST(t, ops->attn_bwd(stream, dt, dq, dk, dv, g, q, k, v, lse, delta, n, spans, ws));
    snprintf(what, sizeof what, "attention %s backward T %lld H %lld/%lld D %lld %s", dtype_name(dt), (long long)T, (long long)H, (long long)Hkv, (long long)D, mask);
    report(what, pairs * 10 * (double)D, t);
}

static void adamw_line(int64_t n)
{
    float *w = random_array(DT_F32, n), *m = zeroed((size_t)n * 4), *v = zeroed((size_t)n * 4), *g = random_array(DT_F32, n);
    double t;
    BEST(t, ops->adamw(stream, w, NULL, m, v, g, n, 1.0f, 1e-3, 0.9, 0.999, 1e-8, 0.1, 10));
    printf("adamw %lld parameters%*s %8.3f ms %7.2f G parameters/s, %.1f GB/s\n", (long long)n, 37, "", t * 1e3, (double)n / t * 1e-9, 28.0 * (double)n / t * 1e-9);
}

static void bytes_line(const char *what, double bytes, double t) { printf("%-58s %8.3f ms %7.1f GB/s\n", what, t * 1e3, bytes / t * 1e-9); }

/* Layers that move more than they compute: bytes read and written, each once. */
static void layer_lines(enum dtype dt)
{
    const int64_t N = 2048, C = 896, F = 4864, V = 32000, NV = 256;
    double z = (double)dtype_size(dt), t;
    char what[100];
    void *x = random_array(dt, N * F), *y = random_array(dt, N * F), *g = random_array(dt, N * F), *w = random_array(dt, F);
    float *rstd = zeroed((size_t)N * 4), *dw = zeroed((size_t)F * 4), *loss = zeroed((size_t)N * 4), *weight = zeroed((size_t)N * 4), *ws = zeroed(ops->rmsnorm_bwd_ws(N, F));
    float *cosines = zeroed((size_t)(N * 32) * 4), *sines = zeroed((size_t)(N * 32) * 4);
    int32_t *labels = zeroed((size_t)N * 4);
    int64_t head0 = 0;
    BEST(t, ops->rmsnorm_fwd(stream, dt, y, rstd, x, w, N, C, 1e-6f));
    snprintf(what, sizeof what, "rmsnorm %s forward  %lld x %lld", dtype_name(dt), (long long)N, (long long)C);
    bytes_line(what, 2 * z * (double)(N * C), t);
    BEST(t, ops->rmsnorm_bwd(stream, dt, y, true, dw, g, x, w, rstd, N, C, ws));
    snprintf(what, sizeof what, "rmsnorm %s backward %lld x %lld", dtype_name(dt), (long long)N, (long long)C);
    bytes_line(what, 4 * z * (double)(N * C), t);
    BEST(t, ops->swiglu_fwd(stream, dt, y, x, g, N * F));
    snprintf(what, sizeof what, "swiglu %s forward  %lld x %lld", dtype_name(dt), (long long)N, (long long)F);
    bytes_line(what, 3 * z * (double)(N * F), t);
    BEST(t, ops->swiglu_bwd(stream, dt, x, g, y, x, g, N * F));
    snprintf(what, sizeof what, "swiglu %s backward %lld x %lld", dtype_name(dt), (long long)N, (long long)F);
    bytes_line(what, 5 * z * (double)(N * F), t);
    BEST(t, ops->rope_pack(stream, dt, y, 0, x, cosines, sines, &head0, N, 14, 64, 1, 14));
    snprintf(what, sizeof what, "rope %s %lld x 14 x 64", dtype_name(dt), (long long)N);
    bytes_line(what, 2 * z * (double)(N * 14 * 64), t);
    BEST(t, ops->cross_entropy(stream, dt, loss, NULL, x, labels, weight, 1.0f, true, NV, V));
    snprintf(what, sizeof what, "cross-entropy %s with gradient  %lld x %lld", dtype_name(dt), (long long)NV, (long long)V);
    bytes_line(what, 2 * z * (double)(NV * V), t);
}

int main(int argc, char **argv)
{
    if (argc > 1) threads = atoi(argv[1]);
    if (argc > 2) seconds = atof(argv[2]);
    const char *only = argc > 3 ? argv[3] : "";
    ops = argc > 4 ? kernel_ops_cpu_isa(argv[4]) : kernel_ops_cpu();
    if (threads < 1 || !ops || ops->stream_new(&stream, true, NULL) != OK) return 2;
    kernel_cpu_threads(threads);
    if (getenv("BENCH_BF16")) onednn_bf16_policy(atoi(getenv("BENCH_BF16")));
    measure_peak();
    if (!*only || strcmp(only, "matmul") == 0) {
        for (int t = 0; t < 2; t++) {
            matmul_line(t ? DT_BF16 : DT_F32, 512, 512, 512);
            matmul_line(t ? DT_BF16 : DT_F32, 2048, 1408, 512);
            matmul_line(t ? DT_BF16 : DT_F32, 1024, 4864, 896);
        }
    }
    measure_peak();
    if (!*only || strcmp(only, "attention") == 0) {
        for (int t = 0; t < 2; t++) {
            attention_line(t ? DT_BF16 : DT_F32, 1024, 8, 8, 64, true);
            attention_line(t ? DT_BF16 : DT_F32, 4096, 14, 2, 64, true);
            attention_line(t ? DT_BF16 : DT_F32, 2048, 8, 2, 128, false);
        }
    }
    if (!*only || strcmp(only, "layers") == 0) {
        layer_lines(DT_F32);
        layer_lines(DT_BF16);
        adamw_line(8 << 20);
    }
    ops->stream_free(stream);
    return 0;
}
