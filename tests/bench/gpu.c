/* bench_gpu - what a card gives: copies, matrix products, attention at the lengths we train, other tile sizes. One JSON object a line.
 * usage: bench_gpu ceilings|attention|tiles [SECONDS A LINE]      exit 77 without a device (not a test: nothing here passes or fails)
 * Attention is causal, one document, batch 1; its operations are counted as everybody does: 2 H D T^2 forward, 2.5 times that backward,
 * whatever a kernel recomputes. Times are the device's (events), the mean of the repeats after one that warms up. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/bench/tiles.h"

const struct kernel_ops *ringmaster_cuda_ops(void);

static const struct kernel_ops *ops;
static struct stream *s;
static struct event *from, *to;
static double seconds = 0.15;

static void must(int rc, const char *what)
{
    struct error err = { 0 };
    if (rc == OK) return;
    if (ops->stream_wait(s, &err) == OK) (void)snprintf(err.text, sizeof err.text, "%s", ops->error(s));
    (void)printf("{\"name\": \"%s\", \"failed\": \"%s\"}\n", what, err.text);
    exit(1);
}

static void *device(size_t bytes)
{
    void *p = NULL;
    struct error err;
    if (ops->mem_alloc(&p, bytes, &err) == OK) return p;
    (void)fprintf(stderr, "%s\n", err.text);
    exit(1);
}

/* Milliseconds of one call. The call is an expression with a status. */
#define TIME(ms, what, call) \
    do { \
        must((call), what); \
        must(ops->stream_wait(s, NULL), what); \
        ms = 0; \
        int done_ = 0; \
        for (int batch_ = 1; ms < seconds * 1e3 && done_ < 1000; batch_ *= 2) { \
            must(ops->event_record(from, s), what); \
            for (int i_ = 0; i_ < batch_; i_++) must((call), what); \
            must(ops->event_record(to, s), what); \
            must(ops->stream_wait(s, NULL), what); \
            ms += ops->event_ms(from, to); \
            done_ += batch_; \
        } \
        ms /= done_; \
    } while (0)

static void line(const char *name, double value, const char *unit, double ms)
{
    (void)printf("{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"ms\": %.4g}\n", name, value, unit, ms);
    (void)fflush(stdout);
}

static void ceilings(void)
{
    const size_t bytes = (size_t)1 << 30;
    struct error err;
    void *a = device(bytes), *b = device(bytes), *host = NULL;
    double ms;
    char name[160];
    TIME(ms, "copy on the device", ops->copy(s, a, b, bytes));
    line("copy on the device, read + written", 2.0 * (double)bytes / ms * 1e-6, "GB/s", ms);
    if (ops->host_alloc(&host, bytes, &err) == OK) {
        TIME(ms, "copy to the device", ops->copy(s, a, host, bytes));
        line("copy to the device, pinned", (double)bytes / ms * 1e-6, "GB/s", ms);
        TIME(ms, "copy to the host", ops->copy(s, host, a, bytes));
        line("copy to the host, pinned", (double)bytes / ms * 1e-6, "GB/s", ms);
        ops->host_free(host, bytes);
    }
    TIME(ms, "add", ops->add(s, DT_BF16, a, a, b, (int64_t)(bytes / 2)));
    line("kernel add, bf16", 3.0 * (double)bytes / ms * 1e-6, "GB/s", ms);
    TIME(ms, "sumsq", ops->sumsq(s, b, a, (int64_t)(bytes / 4)));
    line("kernel sumsq", (double)bytes / ms * 1e-6, "GB/s", ms);
    ops->mem_free(a, bytes);
    ops->mem_free(b, bytes);

    static const struct { int64_t M, N, K; bool ta, tb; enum dtype dc; } products[] = {
        { 8192, 8192, 8192, false, true, DT_BF16 }, { 16384, 4096, 4096, false, true, DT_BF16 }, { 16384, 4864, 896, false, true, DT_BF16 },
        { 16384, 896, 4864, false, false, DT_BF16 }, { 4096, 4096, 16384, true, false, DT_F32 }, { 8192, 151936, 896, false, true, DT_BF16 },
    };
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        int64_t M = products[i].M, N = products[i].N, K = products[i].K;
        bool ta = products[i].ta, tb = products[i].tb;
        size_t ws_bytes = ops->matmul_ws(products[i].dc, DT_BF16, M, N, K, ta, tb), size[3] = { (size_t)(M * K) * 2, (size_t)(N * K) * 2, (size_t)(M * N) * dtype_size(products[i].dc) };
        void *x = device(size[0]), *y = device(size[1]), *z = device(size[2]), *ws = device(ws_bytes);
        (void)snprintf(name, sizeof name, "matmul bf16 to %s %lld x %lld x %lld%s%s", dtype_name(products[i].dc), (long long)M, (long long)N, (long long)K, ta ? " at" : "", tb ? " bt" : "");
        TIME(ms, name, ops->matmul(s, products[i].dc, z, N, DT_BF16, x, ta ? M : K, ta, DT_BF16, y, tb ? K : N, tb, M, N, K, 1.0f, 0.0f, ws, ws_bytes));
        line(name, 2.0 * (double)M * (double)N * (double)K / ms * 1e-9, "TFLOP/s", ms);
        ops->mem_free(x, size[0]), ops->mem_free(y, size[1]), ops->mem_free(z, size[2]), ops->mem_free(ws, ws_bytes);
    }
}

/* q k v o dout in bf16, filled with small numbers (zeros would be kinder to the power budget), gradients in f32. */
struct rig { struct tile_call c; struct attn_span span, *dev; size_t ws_bytes, size[9]; void *buf[9]; };

static void rig_new(struct rig *r, int64_t T, int64_t D)
{
    int64_t H = 2048 / D, n = T * H * D;
    *r = (struct rig){ .span = { 0, T, 0, T, 0 } };
    r->c.n = (struct attn_shape){ T, T, H, H, D, 1.0f / sqrtf((float)D), 0 };
    r->ws_bytes = ops->attn_ws(DT_BF16, r->c.n, 1);
    const size_t size[9] = { (size_t)n * 2, (size_t)n * 2, (size_t)n * 2, (size_t)n * 2, (size_t)n * 2, (size_t)n * 4, (size_t)n * 4, (size_t)n * 4, r->ws_bytes };
    bf16 *fill = malloc(size[0]);
    uint64_t x = 88172645463325252u;
    for (int64_t i = 0; i < n; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        fill[i] = f32_to_bf16((float)(x >> 40) / 8388608.0f - 1.0f);
    }
    for (int i = 0; i < 9; i++) {
        r->size[i] = size[i];
        r->buf[i] = device(size[i]);
        if (i < 4) must(ops->copy(s, r->buf[i], fill, size[i]), "fill");
    }
    must(ops->stream_wait(s, NULL), "fill");
    free(fill);
    r->c.q = r->buf[0], r->c.k = r->buf[1], r->c.v = r->buf[2], r->c.dout = r->buf[3], r->c.o = r->buf[4];
    r->c.dq = r->buf[5], r->c.dk = r->buf[6], r->c.dv = r->buf[7], r->c.ws = r->buf[8];
    r->c.lse = device((size_t)(H * T) * 4);
    r->c.delta = device((size_t)(H * T) * 4);
    r->dev = device(sizeof r->span);
    must(ops->copy(s, r->dev, &r->span, sizeof r->span), "spans");
    must(ops->stream_wait(s, NULL), "spans");
    r->c.spans = (struct attn_spans){ &r->span, r->dev, 1 };
}

static void rig_free(struct rig *r)
{
    for (int i = 0; i < 9; i++) ops->mem_free(r->buf[i], r->size[i]);
    ops->mem_free(r->c.lse, 0), ops->mem_free(r->c.delta, 0), ops->mem_free(r->dev, 0);
}

static int fwd(struct tile_call *c) { return ops->attn_fwd(s, DT_BF16, DT_BF16, c->o, c->lse, c->q, c->k, c->v, c->n, c->spans, false, c->ws); }
static int delta(struct tile_call *c) { return ops->attn_delta(s, DT_BF16, DT_BF16, c->delta, c->dout, c->o, c->n.Tq, c->n.H, c->n.D); }
static int bwd(struct tile_call *c) { return ops->attn_bwd(s, DT_BF16, c->dq, c->dk, c->dv, c->dout, c->q, c->k, c->v, c->lse, c->delta, c->n, c->spans, c->ws); }

static void attention(void)
{
    for (int64_t D = 64; D <= 128; D *= 2)
        for (int64_t T = 4096; T <= 65536; T *= 2)
            for (int impl = 0; impl < 2; impl++) {
                struct rig r;
                double ms, flops = 2.0 * 2048 * (double)T * (double)T;
                char name[200];
                rig_new(&r, T, D);
                ops->attn_choose(s, impl ? ATTN_AUTO : ATTN_FLASH, DT_BF16, r.c.n);
                const char *kernel = ops->attn_name(s, DT_BF16, r.c.n);
                if (impl && strncmp(kernel, "flash", 5) == 0) {     /* ours again: say why, once */
                    if (D == 64 && T == 4096) (void)printf("{\"name\": \"auto takes\", \"text\": \"%s\"}\n", kernel);
                } else {
                    char which[64];
                    (void)snprintf(which, sizeof which, "%.60s", kernel);
                    TIME(ms, "attention forward", fwd(&r.c));
                    (void)snprintf(name, sizeof name, "attention %s fwd D %lld T %lld", which, (long long)D, (long long)T);
                    line(name, flops / ms * 1e-9, "TFLOP/s", ms);
                    must(delta(&r.c), "delta");
                    TIME(ms, "attention backward", bwd(&r.c));
                    (void)snprintf(name, sizeof name, "attention %s bwd D %lld T %lld", which, (long long)D, (long long)T);
                    line(name, 2.5 * flops / ms * 1e-9, "TFLOP/s", ms);
                }
                ops->attn_choose(s, ATTN_FLASH, DT_BF16, r.c.n);
                rig_free(&r);
            }
}

static void sweep(void)
{
    for (int64_t D = 64; D <= 128; D *= 2) {
        struct rig r;
        const int64_t T = 16384;
        rig_new(&r, T, D);
        must(fwd(&r.c), "attention forward");
        must(delta(&r.c), "delta");
        for (int i = 0; i < n_tiles; i++) {
            char name[160];
            double ms;
            if (tiles[i].width != D) continue;
            (void)snprintf(name, sizeof name, "tile %s D %lld block %d warps %d", tiles[i].pass, (long long)D, tiles[i].block, tiles[i].warps);
            TIME(ms, name, tiles[i].run(s, &r.c));
            line(name, 2.0 * 2048 * (double)T * (double)T * (strcmp(tiles[i].pass, "fwd") == 0 ? 1 : strcmp(tiles[i].pass, "dq") == 0 ? 1.5 : 2) / ms * 1e-9, "TFLOP/s", ms);
        }
        rig_free(&r);
    }
}

int main(int argc, char **argv)
{
    struct error err;
    struct device_info d;
    if (argc < 2) return fputs("usage: bench_gpu ceilings|attention|tiles [SECONDS A LINE]\n", stderr), 2;
    if (argc > 2) seconds = atof(argv[2]);
    ops = ringmaster_cuda_ops();
    if (ops->device_info(0, &d, &err) != OK || ops->device_open(0, &err) != OK || ops->stream_new(&s, false, &err) != OK || ops->event_new(&from, &err) != OK || ops->event_new(&to, &err) != OK)
        return fprintf(stderr, "skipped: %s\n", err.text), 77;
    (void)printf("{\"device\": \"%s\", \"compute_capability\": \"%d.%d\", \"total_bytes\": %lld}\n", d.name, d.cc_major, d.cc_minor, (long long)d.total_bytes);
    if (strcmp(argv[1], "ceilings") == 0) ceilings();
    else if (strcmp(argv[1], "attention") == 0) attention();
    else if (strcmp(argv[1], "tiles") == 0) sweep();
    else return fputs("usage: bench_gpu ceilings|attention|tiles [SECONDS A LINE]\n", stderr), 2;
    return 0;
}
