#include "worker/parallel/cluster.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "worker/parallel/volume.h"

const char *const recompute_names[RECOMPUTES] = {
    [KEEP_ALL] = "none", [KEEP_ATTENTION] = "attention", [KEEP_LAYER_INPUTS] = "layer", [OFFLOAD_LAYER_INPUTS] = "offload_host",
};

#define LOGITS_TILED 2e9            /* bytes: a tile of logits, its gradient and the softmax */
#define MLP_TILE_ROWS 8192.0
enum { B = 2 };                     /* bytes of an activation */

static double layer_params(const struct workload *w)
{
    return (double)w->C * (double)w->D * (double)(2 * w->H + 2 * w->Hkv) + 3.0 * (double)w->C * (double)w->F;
}

double cluster_params(const struct workload *w) { return (double)w->L * layer_params(w) + (double)w->V * (double)w->C * (w->tied ? 1 : 2); }

/* Weights, gradients, optimizer: reference table 7. */
static double state_bytes(const struct workload *w, int world)
{
    double N = cluster_params(w), t = w->n_lora > 0 ? (double)w->n_lora : N, W = world;
    double weights = 2 * N / (w->zero >= 3 ? W : 1), grads = w->grad_bytes * t / (w->zero >= 2 ? W : 1), adam = 12 * t / (w->zero >= 1 ? W : 1);
    if (w->offload_weights) weights = 0;
    if (w->offload_optimizer) adam = 0;
    if (w->offload_grads) grads = 2 * w->grad_bytes * layer_params(w);      /* a layer's, and one on its way */
    double gathered = w->zero >= 3 || w->offload_weights ? 2 * 2 * layer_params(w) : 0;     /* a layer at work, the next one coming */
    return weights + grads + adam + gathered;
}

static double kept_bytes(const struct workload *w, double n, int U)
{
    double L = (double)w->L, x = n * (double)w->C * B, hd = (double)(w->H * w->D), kd = (double)(w->Hkv * w->D);
    switch (w->keep) {
    case OFFLOAD_LAYER_INPUTS: return 2 * x;
    case KEEP_LAYER_INPUTS: return L * x;
    case KEEP_ATTENTION: return L * (x + n * (hd * B + 4 * (double)w->H));
    default: return L * (2 * x + n * (((U > 1 ? 3 : 2) * hd + 2 * kd + 2 * (double)w->F) * B + 4 * (double)w->H));
    }
}

/* The largest of attention and MLP of one layer, with gradients, and the residual stream. */
static double live_bytes(const struct workload *w, double n, int U, int R)
{
    double C = (double)w->C, hd = (double)(w->H * w->D), kd = (double)(w->Hkv * w->D), kx = (double)(volume_kv_heads(w->Hkv, U) * w->D);
    double attention = 2 * n * B * (2 * C + 2 * hd + 2 * kd);
    if (U > 1) attention += n * B * 2 * (2 * hd + 2 * kx);
    if (R > 1) attention += n * (2 * kx * B + 8 * hd + 2 * 2 * kx * 4);
    double rows = w->untiled_mlp ? n : fmin(n, MLP_TILE_ROWS), mlp = rows * B * (C + 5 * (double)w->F);
    return 3 * n * C * B + fmax(attention, mlp);
}

/* Seconds to send `bytes` among `ranks` GPUs that stand `stride` apart: inside a node over its links, else what leaves the node over the network. */
static double exchange_s(const struct cluster *c, double bytes, int ranks, int stride)
{
    int inside = c->gpus_per_node / stride;
    if (ranks <= inside) return bytes / c->link_Bps;
    double outside = inside < 1 ? 1 : (double)(ranks - inside) / (double)(ranks - 1);
    return fmax(bytes * outside / c->net_Bps, bytes * (1 - outside) / c->link_Bps);
}

struct estimate cluster_estimate(const struct cluster *c, const struct workload *w, int world, int U, int R)
{
    int P = U * R;
    double T = (double)w->T, n = T / P, L = (double)w->L, hd = (double)(w->H * w->D), N = cluster_params(w), layers = L * layer_params(w), head = (double)w->V * (double)w->C;
    struct estimate e = { .world = world, .dp = world / P, .U = U, .R = R, .keep = w->keep };

    e.state_bytes = state_bytes(w, world);
    e.kept_bytes = kept_bytes(w, n, U);
    e.live_bytes = live_bytes(w, n, U, R);
    e.logits_bytes = w->untiled_loss ? n * (double)w->V * 10 : fmin(LOGITS_TILED, n * (double)w->V * 10);
    e.bytes = e.state_bytes + e.kept_bytes + e.live_bytes + e.logits_bytes + c->reserve_bytes;
    e.fits = e.bytes <= c->memory_bytes;

    bool again = w->keep >= KEEP_LAYER_INPUTS, linear_again = w->keep >= KEEP_ATTENTION, full = w->n_lora == 0;
    double linear = 2 * n * layers * (1 + (linear_again ? 1 : 0) + 1 + (full ? 1 : 0)) + 2 * n * head * (full ? 3 : 2);
    double pairs = 2 * T * n * hd * L, slow = R > 1 ? c->ring_efficiency : 1;       /* causal forward FLOPs of this GPU */
    double attn = (pairs * (again ? 2 : 1) / c->attn_fwd_flops + 2.5 * pairs / c->attn_bwd_flops) / slow;
    e.compute_s = linear / c->gemm_flops + attn;

    struct volume_dims d = { w->H, w->Hkv, w->D, B, 4, U, R }, flat = d;
    flat.R = 1;
    struct volume a2a = volume_of_layer(flat, w->T / R);                            /* the exchange alone, of a ring place's tokens */
    double exchanges = (double)a2a.fwd + (double)a2a.bwd + (w->keep >= KEEP_LAYER_INPUTS ? (double)a2a.fwd : w->keep == KEEP_ATTENTION ? (double)a2a.refetch : 0);
    double exposed = U > 1 ? L * exchange_s(c, exchanges, U, 1) : 0;
    if (R > 1) {                                                                    /* a hop hides behind its block */
        double kv = exchange_s(c, (double)volume_kv_hop(d, w->T), R, U), sums = exchange_s(c, (double)volume_acc_hop(d, w->T), R, U);
        double fwd = pairs / L / R / c->attn_fwd_flops / slow, bwd = 2.5 * pairs / L / R / c->attn_bwd_flops / slow;
        exposed += L * (R - 1) * ((again ? 2 : 1) * fmax(0, kv - fwd) + fmax(0, kv + sums - bwd)) + L * fmax(0, sums - bwd / 2);
    }
    double t = full ? N : (double)w->n_lora, share = world > 1 ? (double)(world - 1) / world : 0, zero = 0;
    if (w->zero >= 2) zero = w->grad_bytes * t * share;
    else if (world > 1) zero = 2 * w->grad_bytes * t * share;
    if (w->zero >= 3) zero += (again ? 3 : 2) * 2 * N * share;
    else if (w->zero >= 1) zero += 2 * t * share;
    double zero_s = exchange_s(c, zero, world, 1);
    if (w->offload_weights) zero_s += 2 * 2 * N / c->host_Bps;
    exposed += fmax(0, zero_s - 0.5 * e.compute_s);                                 /* overlaps with backward and the next layer */
    if (w->keep == OFFLOAD_LAYER_INPUTS) exposed += fmax(0, 2 * L * n * (double)w->C * B / c->host_Bps - 0.9 * e.compute_s);
    e.exposed_s = exposed;

    double mine = w->zero >= 1 ? t / world : t;
    int local = world < c->gpus_per_node ? world : c->gpus_per_node;
    e.optimizer_s = w->offload_optimizer ? mine * local / c->host_adam_params + mine * (w->grad_bytes + 2) / c->host_Bps : mine * 28 / 2.5e12;    /* HBM */
    e.step_s = e.compute_s + e.exposed_s + e.optimizer_s;
    e.tokens_per_s_gpu = T * e.dp / e.step_s / world;
    e.mfu = (n * ((full ? 6 : 4) * (layers + head)) + 3 * pairs) / e.step_s / c->peak_flops;
    return e;
}

static bool better(const struct estimate *a, const struct estimate *b)
{
    if (a->fits != b->fits) return a->fits;
    return a->fits ? a->tokens_per_s_gpu > b->tokens_per_s_gpu * 1.0001 : a->bytes < b->bytes;
}

struct estimate cluster_best(const struct cluster *c, const struct workload *w, int world, bool any_keep)
{
    struct estimate best = { 0 };
    for (int P = 1; P <= world; P++) {
        if (world % P != 0 || w->T % P != 0) continue;
        for (int U = 1; U <= P; U++) {
            if (P % U != 0 || !volume_splits(w->H, w->Hkv, U)) continue;
            for (int k = any_keep ? 0 : (int)w->keep; k < (any_keep ? RECOMPUTES : (int)w->keep + 1); k++) {
                struct workload v = *w;
                v.keep = (enum recompute)k;
                struct estimate e = cluster_estimate(c, &v, world, U, P / U);
                if (best.world == 0 || better(&e, &best)) best = e;
            }
        }
    }
    return best;
}

int cluster_read(struct cluster *c, const cJSON *json, struct error *err)
{
    /* H100 SXM: FlashAttention-3 and cuBLAS as published, NVLink 4 at 80 %, one 400 Gb/s port per GPU */
    *c = (struct cluster){ .name = "cluster", .gpus_per_node = 8, .memory_bytes = 80e9, .reserve_bytes = 4e9, .link_Bps = 360e9, .net_Bps = 45e9, .host_Bps = 50e9,
                           .gemm_flops = 600e12, .attn_fwd_flops = 616e12, .attn_bwd_flops = 561e12, .peak_flops = 989e12, .ring_efficiency = 0.9,
                           .host_adam_params = 0.6e9 };
    const struct { const char *name; double *to; double unit, lo, hi; } fields[] = {
        { "memory_gb", &c->memory_bytes, 1e9, 0.001, 1e6 }, { "reserve_gb", &c->reserve_bytes, 1e9, 0, 1e6 }, { "link_gb_s", &c->link_Bps, 1e9, 1e-3, 1e6 },
        { "net_gb_s", &c->net_Bps, 1e9, 1e-3, 1e6 }, { "host_gb_s", &c->host_Bps, 1e9, 1e-3, 1e6 }, { "gemm_tflops", &c->gemm_flops, 1e12, 1e-4, 1e6 },
        { "attention_forward_tflops", &c->attn_fwd_flops, 1e12, 1e-4, 1e6 }, { "attention_backward_tflops", &c->attn_bwd_flops, 1e12, 1e-4, 1e6 },
        { "peak_tflops", &c->peak_flops, 1e12, 1e-4, 1e6 }, { "ring_efficiency", &c->ring_efficiency, 1, 0.01, 1 },
        { "host_adam_params_s", &c->host_adam_params, 1, 1, 1e15 },
    };
    if (!cJSON_IsObject(json)) return error_set(err, E_INVALID, "a cluster is a JSON object");
    for (const cJSON *m = json->child; m; m = m->next) {
        size_t k = 0, n = sizeof fields / sizeof fields[0];
        double v = 0;
        if (strcmp(m->string, "name") == 0 && cJSON_IsString(m)) {
            (void)snprintf(c->name, sizeof c->name, "%s", m->valuestring);
            continue;
        }
        if (strcmp(m->string, "gpus_per_node") == 0) {
            v = json_num(json, m->string, 0);
            if (!(v >= 1 && v <= 4096 && v == floor(v))) return error_set(err, E_INVALID, "/gpus_per_node: expected a whole number from 1 to 4096");
            c->gpus_per_node = (int)v;
            continue;
        }
        while (k < n && strcmp(fields[k].name, m->string) != 0) k++;
        if (k == n) return error_set(err, E_INVALID, "/%.60s: no such field of a cluster; see docs/cluster.md", m->string);
        v = json_num(json, m->string, -1);
        if (!(v >= fields[k].lo && v <= fields[k].hi))
            return error_set(err, E_INVALID, "/%s: expected a number from %g to %g", fields[k].name, fields[k].lo, fields[k].hi);
        *fields[k].to = v * fields[k].unit;
    }
    return OK;
}
