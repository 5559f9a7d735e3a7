/* cluster.h - what a training step would take on GPUs we do not have: memory, time, exposed communication, the best degrees.
 *
 * Formulas only (docs/cluster.md): nothing is measured or allocated. For this machine the exact plan is worker/train/plan.h; here its
 * terms are kept in closed form, so that 4,096 GPUs are a loop and not a run. tests/parallel/cluster.c holds them against published figures. */
#ifndef RM_WORKER_PARALLEL_CLUSTER_H
#define RM_WORKER_PARALLEL_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "api/json.h"

struct cluster {
    char name[64];
    int gpus_per_node;
    double memory_bytes, reserve_bytes;         /* of a GPU; context, NCCL and fragmentation */
    double link_Bps, net_Bps, host_Bps;         /* bytes/s per GPU and direction: inside a node, between nodes, to host memory */
    double gemm_flops, attn_fwd_flops, attn_bwd_flops;     /* what kernels reach, FLOP/s per GPU */
    double peak_flops;                          /* for MFU */
    double ring_efficiency;                     /* of attention in ring blocks, against one kernel on whole documents */
    double host_adam_params;                    /* parameters a node's CPUs update per second */
};

enum recompute { KEEP_ALL, KEEP_ATTENTION, KEEP_LAYER_INPUTS, OFFLOAD_LAYER_INPUTS, RECOMPUTES };
extern const char *const recompute_names[RECOMPUTES];      /* as in spec.gradient_checkpointing */

struct workload {
    int64_t L, C, F, V, H, Hkv, D, T;           /* T: tokens of one row */
    bool tied;
    int64_t n_lora;                             /* parameters of the adapters; 0: all are trained */
    int zero;
    bool offload_optimizer, offload_grads, offload_weights;
    int grad_bytes;                             /* of a parameter's gradient: 4 here, 2 elsewhere */
    bool untiled_mlp, untiled_loss;             /* only to compare with systems that do not tile */
    enum recompute keep;
};

struct estimate {
    int world, dp, U, R;
    enum recompute keep;
    bool fits;
    double bytes, state_bytes, kept_bytes, live_bytes, logits_bytes;        /* per GPU; their sum and reserve are bytes */
    double step_s, compute_s, exposed_s, optimizer_s;
    double tokens_per_s_gpu, mfu;               /* mfu: causal model FLOPs, no recompute */
};

/* Parameters of the model; of its layers alone. */
double cluster_params(const struct workload *w);
/* One optimizer step of dp rows, a row on U x R GPUs. U * R must divide world. */
struct estimate cluster_estimate(const struct cluster *c, const struct workload *w, int world, int U, int R);
/* The fastest degrees and policy that fit (keep is tried too when any_keep); !fits: the one that lacks least. */
struct estimate cluster_best(const struct cluster *c, const struct workload *w, int world, bool any_keep);
/* {"name","gpus_per_node","memory_gb",…}: every field of docs/cluster.md; unknown ones are refused. */
int cluster_read(struct cluster *c, const cJSON *json, struct error *err);

#endif
