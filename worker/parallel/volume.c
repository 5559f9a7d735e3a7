#include "worker/parallel/volume.h"

bool volume_splits(int64_t H, int64_t Hkv, int U) { return H % U == 0 && (Hkv % U == 0 || U % Hkv == 0); }

int64_t volume_kv_heads(int64_t Hkv, int U) { return U > Hkv ? U : Hkv; }

int64_t volume_kv_hop(struct volume_dims d, int64_t T) { return 2 * (T / d.R) * (volume_kv_heads(d.Hkv, d.U) / d.U) * d.D * d.b; }

int64_t volume_acc_hop(struct volume_dims d, int64_t T) { return volume_kv_hop(d, T) / d.b * d.b_acc; }

struct volume volume_of_layer(struct volume_dims d, int64_t T)
{
    int64_t Tl = T / d.R / d.U, kv = volume_kv_heads(d.Hkv, d.U);
    int64_t in = d.b * d.D * Tl * (d.H / d.U + 2 * (kv / d.U)) * (d.U - 1), back = d.b * d.D * Tl * (d.H / d.U) * (d.U - 1);
    struct volume v = { .fwd = in + back, .refetch = in + back, .bwd = back + in };
    if (d.R > 1) {
        v.fwd += volume_kv_hop(d, T) * (d.R - 1);
        v.bwd += volume_kv_hop(d, T) * (d.R - 1) + volume_acc_hop(d, T) * d.R;
    }
    return v;
}
