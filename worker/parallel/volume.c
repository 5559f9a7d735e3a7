#include "worker/parallel/volume.h"

#include <math.h>

bool volume_splits(int64_t H, int64_t Hkv, int U) { return H % U == 0 && (Hkv % U == 0 || U % Hkv == 0); }

int64_t volume_kv_heads(int64_t Hkv, int U) { return U > Hkv ? U : Hkv; }

int64_t volume_kv_hop(struct volume_dims d, int64_t T) { return 2 * (T / d.R) * (volume_kv_heads(d.Hkv, d.U) / d.U) * d.D * d.b; }

int64_t volume_acc_hop(struct volume_dims d, int64_t T) { return volume_kv_hop(d, T) / d.b * d.b_acc; }

struct volume volume_of_layer(struct volume_dims d, int64_t T)
{
    int64_t Tl = T / d.R / d.U, kv = volume_kv_heads(d.Hkv, d.U);
    int64_t in = d.b * d.D * Tl * (d.H / d.U + 2 * (kv / d.U)) * (d.U - 1), back = d.b * d.D * Tl * (d.H / d.U) * (d.U - 1);
    int64_t delta = d.b_acc * Tl * (d.H / d.U) * (d.U - 1);
    struct volume v = { .fwd = in + back, .refetch = in, .bwd = delta + back + in };
    if (d.R > 1) {
        v.fwd += volume_kv_hop(d, T) * (d.R - 1);
        v.bwd += volume_kv_hop(d, T) * (d.R - 1) + volume_acc_hop(d, T) * d.R;
    }
    return v;
}

#define RING_LOSS 0.033             /* of a kernel's speed, each time the ring doubles: 10 % at 8 (zhuzilin/ring-flash-attention, zigzag; USP) */
#define TRANSFER_S 30e-6            /* launch, meet, wait: why rings do not pay on short rows (vllm-omni #5092) */

static double above(double x, double hidden) { return x > hidden ? x - hidden : 0; }

double volume_seconds(struct volume_dims d, int64_t T, double link_Bps, double attn_flops, bool overlap, double *exposed)
{
    int P = d.U * d.R, R = d.R;
    struct volume_dims flat = d;
    flat.R = 1;                                             /* the exchange alone: T tokens of one ring place */
    struct volume a2a = volume_of_layer(flat, T / R);
    double pairs = (double)T * (double)T / 2 / P, eff = 1 - RING_LOSS * log2(R);
    double fwd = 4 * (double)(d.D * d.H) * pairs / (attn_flops * eff), bwd = 2.5 * fwd, wait = d.U > 1 ? (double)(a2a.fwd + a2a.bwd) / link_Bps + 4 * TRANSFER_S : 0;
    if (R > 1) {
        double kv = (double)volume_kv_hop(d, T) / link_Bps, acc = (double)volume_acc_hop(d, T) / link_Bps;
        wait += (3 * R - 2) * TRANSFER_S;
        wait += (R - 1) * above(kv, overlap ? fwd / R : 0) + (R - 1) * above(kv + acc, overlap ? bwd / R : 0) + above(acc, overlap ? bwd / R / 2 : 0);
    }
    *exposed = wait;
    return fwd + bwd + wait;
}
