/* params.h - the parameter table: every tensor of the model, in one fixed order, from config and spec alone.
 *
 * What is trained lies in one flat vector, each parameter at `at` (elements; a multiple of 64), the whole padded to a multiple of
 * 64 * world, padding zero. So clipping, reduction and the optimizer work on flat_w [n_flat] (type dt: f32 beside adapters, else that of the activations) and flat_g
 * [n_flat] (f32) and shard by plain ranges; f32 masters and moments are the optimizer's, same indexing. Frozen tensors have
 * at = -1 and no gradient. */
#ifndef RM_WORKER_MODEL_PARAMS_H
#define RM_WORKER_MODEL_PARAMS_H

#include "worker/arena.h"
#include "worker/model/config.h"

enum lora_role { LORA_NONE, LORA_A, LORA_B, LORA_MAGNITUDE };
enum param_init { INIT_NORMAL, INIT_ZERO, INIT_ONE, INIT_KAIMING /* LoRA A: U(-1/sqrt(in), 1/sqrt(in)) */, INIT_COPY /* of `source` */, INIT_DORA };

struct param {
    char *name;                 /* "model.layers.0.self_attn.q_proj.weight"; adapters: "base_model.model.….lora_A.weight" */
    int ndim;
    int64_t dim[2], n;          /* [out,in] or [n] */
    enum dtype dt;
    void *w;                    /* device, of type dt; NULL when only planned */
    float *master;              /* its place in flat_w where that is of another type: w is a copy, made anew by model_weights_changed; else NULL */
    float *g;                   /* f32 gradient; NULL when frozen */
    int64_t at;                 /* in the flat vector; -1 frozen */
    int64_t shard_at;           /* with ZeRO 3: in the vector of weights that is sharded, and w is there while its unit is open; else -1 */
    bool trained;
    bool decay;                 /* weight decay applies: not for biases and norm weights (as in Hugging Face and ms-swift) */
    bool adapter;               /* belongs to adapter_model.safetensors */
    enum lora_role lora;        /* LORA_B takes lorap_lr_ratio */
    enum param_init init;
    int64_t source;             /* INIT_COPY, INIT_DORA: index of the base tensor; else -1 */
};

struct params {
    struct param *v;
    int64_t n;
    enum dtype dt;
    int64_t n_flat, n_trained, n_total;     /* n_trained, n_total: elements without padding */
    void *flat_w;               /* [n_flat] dt */
    float *flat_g;              /* [n_g] f32: elements g_at … of the vector; all of it, or with ZeRO 2 this rank's shard */
    int64_t g_at, n_g;
    float *g_stage;             /* [n_g_stage] device memory for a piece of flat_g that lies in host memory, free between sweeps (zero_offload_gradients) */
    int64_t n_g_stage;
    int64_t w_at, n_w;          /* the same of flat_w: a shard with ZeRO 3 when everything is trained */
};

struct param *params_find(const struct params *p, const char *name);    /* NULL if there is none */

#endif
