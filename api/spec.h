/* spec.h - a job spec: one table describes every field.
 *
 * From the rows of spec_fields come parsing, validation (every problem at once, each with its JSON pointer), defaults, the JSON
 * Schema, the web form, the CLI's flags and help and the reference page. A new field is one row, one member and its use.
 * Names are ms-swift's, so that its users know them. What needs the model or the data on disk is checked by the worker's
 * plan (worker/plan), not here. */
#ifndef RM_API_SPEC_H
#define RM_API_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/json.h"

enum { SPEC_MAX_BYTES = 1 << 20 };

struct strlist { char **v; int n; };

struct spec {
    char *name; cJSON *labels;
    char *model, *init, *torch_dtype, *attn_impl; cJSON *rope_scaling; int64_t max_model_len;
    struct strlist dataset, val_dataset; double split_dataset_ratio;
    int64_t max_length; char *truncation_strategy, *template, *system, *loss_scale; cJSON *columns;
    bool packing, padding_free, dataset_shuffle, streaming;
    char *cached_dataset;
    char *tuner_type;
    double learning_rate; char *lr_scheduler_type; double warmup_ratio; int64_t warmup_steps; double min_lr_ratio;
    double num_train_epochs; int64_t max_steps, per_device_train_batch_size, gradient_accumulation_steps;
    double max_grad_norm, weight_decay, adam_beta1, adam_beta2, adam_epsilon;
    int64_t seed; bool deterministic;
    int64_t lora_rank; double lora_alpha, lora_dropout; cJSON *rank_pattern, *alpha_pattern; struct strlist target_modules, modules_to_save;
    bool use_rslora, use_dora; double lorap_lr_ratio; char *adapter;
    bool use_galore; int64_t galore_rank, galore_update_proj_gap; double galore_scale; char *galore_proj_type;
    char *device; int64_t nproc_per_node, sequence_parallel_size; char *sequence_parallel_method; int64_t ulysses_size, ring_size;
    bool enable_sequence_overlap, measure_links; double link_speed_gb_s; int64_t exchange_limit_bytes, zero_stage; bool zero_offload_optimizer, zero_offload_gradients; int64_t threads_per_rank;
    char *gradient_checkpointing; char *offload_dir; int64_t memory_limit_bytes;
    int64_t eval_steps; struct strlist sample_prompts;
    char *output_dir; int64_t save_steps, save_total_limit; bool save_only_model; char *resume_from_checkpoint;
    int64_t logging_steps; char *debug_dump;
    int64_t priority, max_restarts, time_limit_s, grace_ms, stall_timeout_ms; struct strlist after;
    char *launcher; int64_t nodes, slurm_gpus_per_node; char *slurm_partition, *slurm_account; struct strlist slurm_options;
};

enum field_type { FIELD_INT, FIELD_REAL, FIELD_BOOL, FIELD_STRING, FIELD_PATH, FIELD_ENUM, FIELD_STRINGS, FIELD_PATHS, FIELD_OBJECT };

struct field {
    const char *name;
    enum field_type type;
    size_t offset;              /* of the member in struct spec */
    double min, max;            /* INT, REAL: inclusive; STRING(S): longest value in bytes is max */
    const char *def;            /* as in JSON: "1e-4", "true", "\"auto\"", "[]"; NULL: required; "null": absent */
    const char *choices;        /* ENUM: "a|b|c" */
    const char *unit;           /* "tokens", "ms", "" … */
    const char *group;          /* heading in the form and the reference page */
    const char *help;           /* one sentence */
    const char *aliases;        /* older spellings, "a|b"; only import accepts them */
    const char *since;
};
extern const struct field spec_fields[];
extern const int n_spec_fields;
const struct field *spec_field(const char *name);       /* NULL if unknown */

struct problem { char *pointer, *code, *message; };     /* code: unknown_field wrong_type out_of_range required conflict … */
struct problems { struct problem *v; int n; };
void problems_add(struct problems *p, const char *pointer, const char *code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void problems_release(struct problems *p);
cJSON *problems_json(const struct problems *p);         /* [{"pointer","code","message"}] */

/* Fills *s from text. Returns OK with every default set, or E_INVALID with at least one problem (s is then released). A text that is
 * no JSON at all is one problem at "". */
int spec_parse(struct spec *s, const char *text, size_t len, struct problems *p);
int spec_from_json(struct spec *s, const cJSON *json, struct problems *p);
/* As spec_parse, from a file; relative paths in it are taken from the file's own folder. */
int spec_read(struct spec *s, const char *path, struct problems *p);
/* All fields, defaults included, in table order: the normal form that is stored and shown. */
cJSON *spec_json(const struct spec *s);
char *spec_line(const struct spec *s);          /* the same as one line; the caller frees */
void spec_release(struct spec *s);
/* JSON Schema 2020-12 of a spec, with x-unit, x-group, x-order for the form. */
cJSON *spec_schema(void);

#endif
