/* model.h - one rank's decoder: weights, activations, forward and backward, written once against struct kernel_ops.
 *
 * A step:  model_zero_grads;  per micro-step: model_row, model_forward_backward;  then the trainer reduces flat_g over all
 * ranks (sum), clips, updates flat_w.  scale = 1/Nglob is passed in before, so gradients come out final.
 * Memory is taken in model_new() only, through the arenas; with recording arenas that is the plan (nothing else may be called
 * then but model_free). Nothing is allocated on the device in a step. */
#ifndef RM_WORKER_MODEL_MODEL_H
#define RM_WORKER_MODEL_MODEL_H

#include "worker/arena.h"
#include "worker/data/row.h"
#include "worker/model/config.h"
#include "worker/model/params.h"
#include "worker/parallel/mesh.h"

/* What forward keeps for backward, per layer; ordered from fastest to smallest. */
enum act_policy {
    ACT_NONE,           /* "none": keep all */
    ACT_ATTENTION,      /* "attention": layer input, attention output, LSE; backward repeats all but attention */
    ACT_LAYER,          /* "layer": layer input; backward repeats the layer, attention too */
    ACT_OFFLOAD_HOST,   /* "offload_host": as layer, inputs in host memory */
    ACT_OFFLOAD_DISK,   /* "offload_disk": as layer, inputs in a file in offload_dir */
    ACT_POLICIES
};
extern const char *const act_policy_names[ACT_POLICIES];
/* The policy by its name; ACT_POLICIES for "auto" or an unknown one. */
enum act_policy act_policy_by_name(const char *name);

struct model_options {
    const struct spec *spec;            /* borrowed until model_free, as all of these */
    const struct model_config *config;
    const struct kernel_ops *ops;
    const struct mesh *mesh;            /* connected, unless only planning */
    enum act_policy policy;             /* not auto: the plan tries them in order */
    int64_t max_T, max_docs;            /* bounds of any row (loader_bounds), over the whole sequence-parallel group */
    int64_t tile_rows;                  /* most tokens in a tile of MLP, logits and adapters; 0: by their sizes in bytes */
};

struct model;

/* Lays everything out. s: the stream all calls run on (NULL when planning). */
int model_new(struct model **m, const struct model_options *o, struct stream *s, struct arena *device, struct arena *shared,
              struct arena *host, struct error *err);
void model_free(struct model *m);
struct params *model_params(struct model *m);
/* Takes the attention kernels the spec's attn_impl asks for; what will run, for people. Valid until the next call. */
const char *model_attention(struct model *m);

/* Weights from the folder's safetensors: names, shapes and types checked before the first byte is read. LoRA parts are initialised
 * from the seed. Then spec->adapter, if given, is loaded over them. */
int model_load(struct model *m, const char *dir, struct error *err);
/* What model_load would refuse, without reading a weight: names, shapes and types of the spec's model and adapter. Works on a planned model. */
int model_check_files(const struct model *m, struct error *err);
/* N(0, initializer_range), norms 1, biases 0; from the seed alone, the same for any number of ranks. */
int model_init_random(struct model *m, uint64_t seed, struct error *err);
/* A PEFT folder (adapter_config.json, adapter_model.safetensors) over the LoRA parameters; rank, targets must agree. */
int model_load_adapter(struct model *m, const char *dir, struct error *err);
/* Weights of a checkpoint that model_save wrote (full or adapter), for resume: dir holds either. */
int model_load_checkpoint(struct model *m, const char *dir, struct error *err);
/* Into an existing folder: full: model.safetensors (or shards) and config.json; LoRA: adapter_model.safetensors and
 * adapter_config.json. Tokenizer files and the atomic rename of the folder are the caller's. */
int model_save(struct model *m, const char *dir, struct error *err);
/* Before model_save by one rank (which says keep), called by all: sharded weights that it could not read from its peers come to its host memory,
 * until model_saved. Does nothing elsewhere. */
int model_collect(struct model *m, bool keep, struct error *err);
void model_saved(struct model *m);
/* The gradients as they are now into one safetensors file, fp32, names of the parameters (debug_dump). */
int model_save_grads(struct model *m, const char *path, struct error *err);

struct model_loss {
    double loss_sum;            /* sum of weight * cross-entropy over this rank's tokens */
    double weight_sum;
    double correct, count;      /* argmax hits; labels != -100 */
    double forward_s, backward_s;       /* wall time of each sweep */
};

/* Sets the micro-batch: the whole group's row; cuts out this rank's tokens. Borrowed only during the call. Dropout's bits depend on
 * the spec's seed, row->epoch, row->index and the token's place in the row alone: not on the ranks, nor on what ran before. */
int model_row(struct model *m, const struct row *row, struct error *err);
/* Forward and backward of the current row; gradients of scale * loss_sum are added to flat_g (with
 * ZeRO 2, summed over all ranks: collective). out is added to (zero it first). */
int model_forward_backward(struct model *m, double scale, struct model_loss *out, struct error *err);
/* Forward only, no dropout; touches no gradient and no state that training sees. */
int model_eval(struct model *m, struct model_loss *out, struct error *err);
int model_zero_grads(struct model *m, struct error *err);
/* After flat_w changed (an optimizer update, a load): recomputes what depends on weights (DoRA's norms). Cheap when nothing does. */
int model_weights_changed(struct model *m, struct error *err);
/* Forward only; logits f32 [n,V] (host) of this rank's tokens [from, from+n). */
int model_logits(struct model *m, int64_t from, int64_t n, float *out, struct error *err);
/* Logits f32 [V] of document 0's last token, for sampling, on the rank that holds it (*mine). Collective over the row's ranks. */
int model_last_logits(struct model *m, float *logits, bool *mine, struct error *err);

#endif
