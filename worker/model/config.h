/* config.h - what a model is, read from a Hugging Face config.json.
 *
 * One decoder serves every family; a table (config.c) says how they differ. Both spellings are read (rope_scaling and
 * rope_parameters, torch_dtype and dtype). Every number is bounded and every refusal names the file and the key. */
#ifndef RM_WORKER_MODEL_CONFIG_H
#define RM_WORKER_MODEL_CONFIG_H

#include "api/spec.h"
#include "kernels/kernels.h"

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_YARN, ROPE_LLAMA3, ROPE_TYPES };
extern const char *const rope_type_names[ROPE_TYPES];

struct rope_config {
    enum rope_type type;
    double theta, factor;
    int64_t original_max;               /* original_max_position_embeddings */
    double attention_factor;            /* yarn: multiplies cos and sin; below 0: not given */
    double beta_fast, beta_slow, mscale, mscale_all_dim; bool truncate;    /* yarn */
    double low_freq_factor, high_freq_factor;                              /* llama3 */
};

struct model_config {
    char model_type[32];                /* "qwen2", "qwen3", "llama", "mistral" */
    int64_t L, C, F, V, H, Hkv, D;      /* layers, width, MLP width, vocabulary, heads, kv heads, head width */
    int64_t max_positions;
    int64_t pad_id;                     /* Hugging Face keeps gradients from this row of the embedding; -1: none */
    int64_t window, window_from;        /* sliding window in tokens (0: none), of layers window_from and up */
    float eps, initializer_range;
    bool tied, qkv_bias, o_bias, mlp_bias, qk_norm;
    enum dtype stored_dtype;            /* what the file says; DT_F32 if it says nothing */
    struct rope_config rope;
    cJSON *json;                        /* the file as read; what we do not use is written back unchanged */
};

/* Reads dir/config.json and applies the spec's rope_scaling and max_model_len. Errors: E_INVALID, E_UNSUPPORTED (a family or
 * a feature not built, by name), E_NOTFOUND. */
int model_config_read(struct model_config *c, const char *dir, const struct spec *spec, struct error *err);
void model_config_release(struct model_config *c);
/* The config.json to save: the one read, with dtype, rope and tied as they are now. The caller frees. */
char *model_config_text(const struct model_config *c, enum dtype dt, bool tied);
/* inv_freq [D/2] for a document of `length` tokens (dynamic depends on it) and the factor of cos and sin. In f64. */
void model_config_rope(const struct model_config *c, int64_t length, double *inv_freq, double *factor);
/* DT_F32 or DT_BF16 from the spec's torch_dtype. */
enum dtype spec_dtype(const struct spec *spec);

#endif
