/* The cluster formulas against published figures. Each row states the error it was found to have; a change that moves a row by more than two points
 * fails, so docs/cluster.md's table stays true. RM_PRINT=1 prints the table. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/parallel/cluster.h"
#include "tests/suite.h"

enum { LLAMA_8B, QWEN3_8B, QWEN3_32B, LLAMA_70B };
static const struct workload models[] = {
    [LLAMA_8B] = { .L = 32, .C = 4096, .F = 14336, .V = 128256, .H = 32, .Hkv = 8, .D = 128 },
    [QWEN3_8B] = { .L = 36, .C = 4096, .F = 12288, .V = 151936, .H = 32, .Hkv = 8, .D = 128 },
    [QWEN3_32B] = { .L = 64, .C = 5120, .F = 25600, .V = 151936, .H = 64, .Hkv = 8, .D = 128 },
    [LLAMA_70B] = { .L = 80, .C = 8192, .F = 28672, .V = 128256, .H = 64, .Hkv = 8, .D = 128 },
};
enum { FA2 = 1, H200 = 2, OPT = 4, WEIGHTS = 8, RAW_MLP = 16, RAW_LOSS = 32, RING_BASIC = 64 };

static const struct row {
    const char *source;
    int model, world, U, R, flags;
    enum recompute keep;
    int64_t T;
    double seconds, gb;             /* published; 0: not given */
    double seconds_off, gb_off;     /* found, % */
} rows[] = {
    { "ALST 8xH100 baseline 32K",            LLAMA_8B, 8, 1, 1, FA2 | OPT | RAW_MLP | RAW_LOSS, KEEP_LAYER_INPUTS, 32768, 17, 0, 21, 0 },
    { "ALST 1xH100 baseline 32K",            LLAMA_8B, 1, 1, 1, FA2 | OPT | RAW_MLP | RAW_LOSS, KEEP_LAYER_INPUTS, 32768, 26, 0, -19, 0 },
    { "ALST 8xH100 + tiled loss 160K",       LLAMA_8B, 8, 1, 1, FA2 | OPT | RAW_MLP, KEEP_LAYER_INPUTS, 163840, 123, 0, 3, 0 },
    { "ALST 8xH100 + Ulysses 1.1M",          LLAMA_8B, 8, 8, 1, FA2 | OPT | RAW_MLP, KEEP_LAYER_INPUTS, 1100000, 564, 0, 1, 0 },
    { "ALST 8xH100 + tiled MLP 1.2M",        LLAMA_8B, 8, 8, 1, FA2 | OPT, KEEP_LAYER_INPUTS, 1200000, 703, 0, -4, 0 },
    { "ALST 8xH100 + offload 2.4M",          LLAMA_8B, 8, 8, 1, FA2 | OPT | RAW_MLP, OFFLOAD_LAYER_INPUTS, 2400000, 2610, 0, 1, 0 },
    { "ALST 8xH100 everything 3.7M",         LLAMA_8B, 8, 8, 1, FA2 | OPT, OFFLOAD_LAYER_INPUTS, 3700000, 6455, 80, -4, 2 },
    { "ALST 1xH100 everything 500K",         LLAMA_8B, 1, 1, 1, FA2 | OPT, OFFLOAD_LAYER_INPUTS, 500000, 1010, 80, -5, 1 },
    { "ALST 32xH100 everything 15M",         LLAMA_8B, 32, 32, 1, FA2 | OPT, OFFLOAD_LAYER_INPUTS, 15000000, 26709, 0, -5, 0 },
    { "ArcticTraining 32xH100 Qwen3-32B 7M", QWEN3_32B, 32, 32, 1, FA2 | OPT, OFFLOAD_LAYER_INPUTS, 7000000, 0, 71.6, 0, -3 },
    { "ArcticTraining 64xH100 Llama-70B 10M", LLAMA_70B, 64, 64, 1, FA2 | OPT, OFFLOAD_LAYER_INPUTS, 10000000, 0, 53.8, 0, 30 },
    { "ArcticTraining 1xH200 65K",           LLAMA_8B, 1, 1, 1, H200 | OPT | WEIGHTS | RAW_MLP | RAW_LOSS, KEEP_LAYER_INPUTS, 65536, 0, 137.4, 0, -14 },
    { "ArcticTraining 1xH200 300K",          LLAMA_8B, 1, 1, 1, H200 | OPT | WEIGHTS | RAW_MLP, KEEP_LAYER_INPUTS, 300000, 0, 135.0, 0, 3 },
    { "ArcticTraining 1xH200 650K",          LLAMA_8B, 1, 1, 1, H200 | OPT | WEIGHTS | RAW_MLP, OFFLOAD_LAYER_INPUTS, 650000, 0, 126.8, 0, 5 },
    { "ArcticTraining 1xH200 1.2M",          LLAMA_8B, 1, 1, 1, H200 | OPT | WEIGHTS, OFFLOAD_LAYER_INPUTS, 1200000, 0, 136.2, 0, 7 },
    { "TRL 8xH100 Qwen3-8B 1.05M",           QWEN3_8B, 8, 8, 1, OPT, KEEP_LAYER_INPUTS, 1048576, 380, 56, -11, 19 },
    { "UPipe 8xH100 128K",                   LLAMA_8B, 8, 8, 1, 0, KEEP_LAYER_INPUTS, 131072, 7.19, 21.1, -16, 40 },
    { "torchtitan 4xH100 ring 128K",         LLAMA_8B, 4, 1, 4, FA2 | RING_BASIC | RAW_MLP | RAW_LOSS, KEEP_LAYER_INPUTS, 131072, 30.6, 0, 4, 0 },
    { "torchtitan 8xH100 ring 256K",         LLAMA_8B, 8, 1, 8, FA2 | RING_BASIC | RAW_MLP | RAW_LOSS, KEEP_LAYER_INPUTS, 262144, 59.8, 84.5, 1, -8 },
};

static struct cluster cluster_of(int flags)
{
    struct cluster c;
    struct error err;
    cJSON *empty = cJSON_CreateObject();
    ck_assert_int_eq(cluster_read(&c, empty, &err), OK);
    cJSON_Delete(empty);
    if (flags & FA2) c.attn_fwd_flops = 335e12, c.attn_bwd_flops = 322e12;
    if (flags & H200) c.memory_bytes = 141e9;
    if (flags & RING_BASIC) c.ring_efficiency = 0.539;
    return c;
}

START_TEST(published)
{
    const struct row *r = &rows[_i];
    struct cluster c = cluster_of(r->flags);
    struct workload w = models[r->model];
    w.T = r->T / (r->U * r->R) * (r->U * r->R);
    w.zero = 3, w.grad_bytes = 2, w.keep = r->keep;
    w.offload_optimizer = w.offload_grads = r->flags & OPT, w.offload_weights = r->flags & WEIGHTS, w.untiled_mlp = r->flags & RAW_MLP, w.untiled_loss = r->flags & RAW_LOSS;
    struct estimate e = cluster_estimate(&c, &w, r->world, r->U, r->R);
    double s = r->seconds > 0 ? 100 * (e.step_s / r->seconds - 1) : 0, m = r->gb > 0 ? 100 * (e.bytes / 1e9 / r->gb - 1) : 0;
    if (getenv("RM_PRINT"))
        (void)printf("| %s | %.4g | %.4g | %+.0f %% | %.4g | %.4g | %+.0f %% |\n", r->source, r->seconds, e.step_s, s, r->gb, e.bytes / 1e9, m);
    ck_assert_msg(fabs(s - r->seconds_off) <= 2, "%s: %.4g s, published %.4g: %+.1f %%, stated %+.0f %%", r->source, e.step_s, r->seconds, s, r->seconds_off);
    ck_assert_msg(fabs(m - r->gb_off) <= 2, "%s: %.1f GB, published %.1f: %+.1f %%, stated %+.0f %%", r->source, e.bytes / 1e9, r->gb, m, r->gb_off);
}
END_TEST

/* From 8 to 4,096 GPUs: degrees multiply to the world, memory per GPU does not grow, what fits keeps fitting. */
START_TEST(scales)
{
    struct cluster c = cluster_of(0);
    struct workload w = models[LLAMA_8B];
    w.T = 1 << 20, w.zero = 3, w.grad_bytes = 4;
    bool fitted = false;
    for (int world = 8; world <= 4096; world *= 2) {
        struct estimate e = cluster_best(&c, &w, world, true);
        ck_assert_int_eq(e.dp * e.U * e.R, world);
        ck_assert(e.fits || !fitted);
        fitted = e.fits;
        ck_assert(e.exposed_s >= 0 && e.exposed_s < e.step_s && e.mfu > 0 && e.mfu < 0.623 + 0.01);     /* attention's own rate over the peak */
        ck_assert_double_eq_tol(e.state_bytes + e.kept_bytes + e.live_bytes + e.logits_bytes + c.reserve_bytes, e.bytes, 1);
    }
    ck_assert(fitted);
}
END_TEST

/* Slow links between nodes: the ring, which hides, goes across them; Ulysses stays inside. */
START_TEST(slow_network)
{
    struct cluster c = cluster_of(0);
    struct workload w = models[LLAMA_8B];
    w.T = 4 << 20, w.zero = 3, w.grad_bytes = 4, w.keep = OFFLOAD_LAYER_INPUTS;
    struct estimate across = cluster_estimate(&c, &w, 32, 32, 1), hybrid = cluster_estimate(&c, &w, 32, 8, 4);
    ck_assert_double_gt(across.exposed_s, hybrid.exposed_s);
    c.net_Bps = 1e9;
    across = cluster_estimate(&c, &w, 32, 32, 1);
    ck_assert_double_gt(across.exposed_s / across.step_s, 0.2);
}
END_TEST

static const struct { const char *text, *says; } bad[] = {
    { "[]", "object" }, { "{\"gpus\":8}", "/gpus" }, { "{\"gpus_per_node\":0}", "/gpus_per_node" }, { "{\"gpus_per_node\":2.5}", "/gpus_per_node" },
    { "{\"link_gb_s\":-1}", "/link_gb_s" }, { "{\"memory_gb\":\"80\"}", "/memory_gb" }, { "{\"ring_efficiency\":2}", "/ring_efficiency" },
};
START_TEST(refused)
{
    struct cluster c;
    struct error err = { 0 };
    cJSON *j = NULL;
    ck_assert_int_eq(json_parse(&j, bad[_i].text, strlen(bad[_i].text), &json_limits_file, &err), OK);
    ck_assert_int_eq(cluster_read(&c, j, &err), E_INVALID);
    ck_assert_msg(strstr(err.text, bad[_i].says) != NULL, "%s", err.text);
    cJSON_Delete(j);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cluster");
    TCase *t = tcase_create("cluster");
    tcase_add_loop_test(t, published, 0, (int)(sizeof rows / sizeof rows[0]));
    tcase_add_test(t, scales);
    tcase_add_test(t, slow_network);
    tcase_add_loop_test(t, refused, 0, (int)(sizeof bad / sizeof bad[0]));
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
