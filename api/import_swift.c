/* import_swift.c - ms-swift's `swift sft|pt` (and torchrun or python -m around it) as a job spec.
 *
 * The rules name what differs; equal names fall through to the spec table. Written from ms-swift's documented arguments (3.x, with the
 * spellings of 2.x). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/import_rules.h"
#include "api/import_shell.h"

static void take_tuner(struct import *im, const struct flag *f)
{
    const char *v = import_text(f);
    if (!import_one_of(v, "lora|full")) { import_report(im, f, "unsupported", "tuner_type", "only lora and full are trained here, not %.60s", v); return; }
    import_set_text(im, "tuner_type", strcmp(v, "full") == 0 ? "full" : "lora");
    bool same = strcmp(f->name, "tuner_type") == 0;
    import_report(im, f, same ? "kept" : "translated", "tuner_type", "%s", same ? "" : "called tuner_type here");
}

static void take_dtype(struct import *im, const struct flag *f)
{
    const char *v = import_text(f);
    if (import_one_of(v, "bfloat16|bf16")) import_set_text(im, "torch_dtype", "bfloat16");
    else if (import_one_of(v, "float32|fp32")) import_set_text(im, "torch_dtype", "float32");
    else if (import_one_of(v, "auto|AUTO")) { import_report(im, f, "ignored", NULL, "bfloat16 is the default here"); return; }
    else { import_report(im, f, "unsupported", "torch_dtype", "float32 or bfloat16 only: float16 needs loss scaling, which nothing here does"); return; }
    bool same = import_one_of(v, "bfloat16|float32") && strcmp(f->name, "torch_dtype") == 0;
    import_report(im, f, same ? "kept" : "translated", "torch_dtype", "%s", same ? "" : "torch_dtype here");
}

static void take_bf16(struct import *im, const struct flag *f)
{
    if (!import_true(f)) { import_report(im, f, "ignored", NULL, "torch_dtype decides"); return; }
    import_set_text(im, "torch_dtype", "bfloat16");
    import_report(im, f, "translated", "torch_dtype", "torch_dtype bfloat16");
}

static void take_fp16(struct import *im, const struct flag *f)
{
    if (!import_true(f)) import_report(im, f, "ignored", NULL, "torch_dtype decides");
    else import_report(im, f, "unsupported", "torch_dtype", "float16 needs loss scaling, which nothing here does; use bfloat16");
}

static void take_attention(struct import *im, const struct flag *f)
{
    const char *v = import_text(f);
    if (strcmp(f->name, "use_flash_attn") == 0) {
        bool auto_ = import_one_of(v, "auto"), on = import_true(f);
        import_set_text(im, "attn_impl", on || auto_ ? "auto" : "eager");
        import_report(im, f, "translated", "attn_impl", on || auto_ ? "auto takes the flash kernel where the device has it, else the plain one" : "eager");
    } else if (import_one_of(v, "flash_attn|flash_attention_2|flash_attention_3|flash")) {
        import_set_text(im, "attn_impl", "flash");
        import_report(im, f, strcmp(v, "flash") == 0 ? "kept" : "translated", "attn_impl", "flash");
    } else if (import_one_of(v, "sdpa|auto|flex_attention")) {
        import_set_text(im, "attn_impl", "auto");
        import_report(im, f, strcmp(v, "auto") == 0 ? "kept" : "translated", "attn_impl", "auto");
    } else if (import_one_of(v, "eager")) {
        import_set_text(im, "attn_impl", "eager");
        import_report(im, f, "kept", "attn_impl", "%s", "");
    } else import_report(im, f, "unsupported", "attn_impl", "no attention is called %.60s here", v);
}

static void take_deepspeed(struct import *im, const struct flag *f)
{
    static const struct { const char *name; int stage; bool offload; } presets[] = {
        { "zero0", 0, false }, { "zero1", 1, false }, { "zero2", 2, false }, { "zero3", 3, false }, { "zero2_offload", 2, true }, { "zero3_offload", 3, true },
    };
    const char *v = import_text(f), *base = strrchr(v, '/') ? strrchr(v, '/') + 1 : v;
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        size_t n = strlen(presets[i].name);
        if (strncmp(base, presets[i].name, n) != 0 || (base[n] != '\0' && strcmp(base + n, ".json") != 0)) continue;
        import_set_int(im, "zero_stage", presets[i].stage);
        if (presets[i].offload) import_set(im, "zero_offload_optimizer", cJSON_CreateTrue());
        import_report(im, f, "translated", "zero_stage", "zero_stage %d%s, without DeepSpeed", presets[i].stage, presets[i].offload ? " and zero_offload_optimizer" : "");
        return;
    }
    import_report(im, f, "unsupported", "zero_stage", "a DeepSpeed file is not read: say zero_stage (0 to 3) and zero_offload_optimizer instead");
}

static void take_ulysses(struct import *im, const struct flag *f)
{
    if (!import_true(f)) { import_report(im, f, "ignored", NULL, "off, as here"); return; }
    im->ulysses = true;
    import_report(im, f, "translated", "sequence_parallel_method", "sequence_parallel_method ulysses over all ranks of a row");
}

static void take_ring(struct import *im, const struct flag *f)
{
    if (!import_true(f)) { import_report(im, f, "ignored", NULL, "off, as here"); return; }
    im->ring = true;
    import_report(im, f, "translated", "sequence_parallel_method", "sequence_parallel_method ring over all ranks of a row");
}

static void take_ulysses_len(struct import *im, const struct flag *f)
{
    cJSON *v = import_value(im, f, spec_field("max_length"));
    if (v == NULL) return;
    (void)json_number(v, &im->ulysses_seq_len);
    cJSON_Delete(v);
    im->ulysses = true;
    import_report(im, f, "translated", "ulysses_size", "tokens per rank: ulysses_size = max_length / this");
}

static void take_checkpointing(struct import *im, const struct flag *f)
{
    const char *v = import_text(f);
    if (f->n == 0 || import_one_of(v, "true|1")) import_set_text(im, "gradient_checkpointing", "layer");
    else if (import_one_of(v, "false|0")) import_set_text(im, "gradient_checkpointing", "none");
    else {
        import_set_text(im, "gradient_checkpointing", v);
        import_report(im, f, "kept", "gradient_checkpointing", "%s", "");
        return;
    }
    import_report(im, f, "translated", "gradient_checkpointing", import_true(f) ? "layer: every layer is recomputed" : "none");
}

static void take_rope(struct import *im, const struct flag *f)
{
    if (import_text(f)[0] == '{') {
        cJSON *v = import_value(im, f, spec_field("rope_scaling"));
        if (v == NULL) return;
        import_set(im, "rope_scaling", v);
        import_report(im, f, "kept", "rope_scaling", "%s", "");
    } else if (import_one_of(import_text(f), "linear|dynamic|yarn")) {
        cJSON *v = cJSON_CreateObject();
        json_add_str(v, "rope_type", import_text(f));
        import_set(im, "rope_scaling", v);
        import_report(im, f, "translated", "rope_scaling", "the factor is max_model_len over the model's original length");
    } else import_report(im, f, "unsupported", "rope_scaling", "expected linear, dynamic, yarn or an object, e.g. {\"rope_type\":\"yarn\",\"factor\":4.0}");
}

static void take_freeze(struct import *im, const struct flag *f)
{
    if (strcmp(f->name, "freeze_llm") == 0 && import_true(f)) import_report(im, f, "unsupported", NULL, "there is nothing but the language model to train here");
    else import_report(im, f, "ignored", NULL, "text models only: there is no vision tower");
}

static void take_regex(struct import *im, const struct flag *f)
{
    cJSON *v = import_value(im, f, spec_field("target_modules"));
    if (v == NULL) return;
    import_set(im, "target_modules", v);
    import_report(im, f, "translated", "target_modules", "target_modules takes one regular expression");
}

static void take_config(struct import *im, const struct flag *f)
{
    import_report(im, f, "unsupported", NULL, "a file of further arguments is not read: import its contents");
}

static void take_optimizer(struct import *im, const struct flag *f)
{
    if (strncmp(import_text(f), "adamw", 5) == 0 && strstr(import_text(f), "8bit") == NULL && strstr(import_text(f), "4bit") == NULL)
        import_report(im, f, "ignored", NULL, "AdamW with float32 state is what there is");
    else import_report(im, f, "unsupported", NULL, "only AdamW (and GaLore around it) is built in");
}

static void take_cached(struct import *im, const struct flag *f)
{
    if (f->n != 1) { import_report(im, f, "unsupported", "cached_dataset", "one folder is taken"); return; }
    import_report(im, f, "unsupported", "cached_dataset", "caches of another tool cannot be read; give the data set itself");
}

static void take_nproc(struct import *im, const struct flag *f)
{
    cJSON *v = import_value(im, f, spec_field("nproc_per_node"));
    if (v == NULL) return;
    import_set(im, "nproc_per_node", v);
    im->nproc_given = true;
    import_report(im, f, "translated", "nproc_per_node", "nproc_per_node");
}

static void take_visible(struct import *im, const struct flag *f)
{
    int n = 0;
    for (const char *p = import_text(f); *p; p += strcspn(p, ","), p += *p == ',') n++;
    im->visible_devices = n;
    if (n == 0 || strcmp(import_text(f), "-1") == 0) {
        im->visible_devices = 0;
        import_set_text(im, "device", "cpu");
        import_report(im, f, "translated", "device", "no device is visible: device cpu");
    } else import_report(im, f, "translated", "nproc_per_node", "%d devices; which ones is the scheduler's choice, or your environment's with `ringmaster run`", n);
}

static void take_threads(struct import *im, const struct flag *f)
{
    cJSON *v = import_value(im, f, spec_field("threads_per_rank"));
    if (v == NULL) return;
    import_set(im, "threads_per_rank", v);
    import_report(im, f, "translated", "threads_per_rank", "threads_per_rank");
}

static const char hidden[] = "how data is fetched does not change what is trained";
static const char reports[] = "progress is shown by Ringmaster itself";
static const char quant[] = "quantised base weights (QLoRA) are not built in";
static const char vision[] = "text models only";
static const char plugins[] = "Python plug-ins cannot run here";

static const struct rule rules[] = {
    { "model_id_or_path", RULE_RENAME, "model", NULL, NULL },
    { "train_type|sft_type|tuner_type", RULE_CALL, NULL, NULL, take_tuner },
    { "torch_dtype|dtype", RULE_CALL, NULL, NULL, take_dtype },
    { "bf16", RULE_CALL, NULL, NULL, take_bf16 },
    { "fp16", RULE_CALL, NULL, NULL, take_fp16 },
    { "use_flash_attn|attn_impl|use_flash_attention", RULE_CALL, NULL, NULL, take_attention },
    { "deepspeed", RULE_CALL, NULL, NULL, take_deepspeed },
    { "zero2_offload_optimizer", RULE_RENAME, "zero_offload_optimizer", NULL, NULL },
    { "ulysses|use_ulysses_attn|use_ulysses|parallel.use_ulysses_attn|use_ulysses_attention", RULE_CALL, NULL, NULL, take_ulysses },
    { "ring|use_ring_attn|parallel.use_ring_attn|use_ring_attention", RULE_CALL, NULL, NULL, take_ring },
    { "ulysses_seq_len|parallel.ulysses_seq_len", RULE_CALL, NULL, NULL, take_ulysses_len },
    { "parallel.sequence_parallel_size", RULE_RENAME, "sequence_parallel_size", NULL, NULL },
    { "parallel.sequence_parallel_method", RULE_RENAME, "sequence_parallel_method", NULL, NULL },
    { "galore", RULE_RENAME, "use_galore", NULL, NULL },
    { "galore_update_interval", RULE_RENAME, "galore_update_proj_gap", NULL, NULL },
    { "galore_quantization|galore_quantize|galore_with_embedding|galore_optim_per_parameter", RULE_UNLESS, "false", "plain GaLore only", NULL },
    { "galore_target_modules", RULE_UNSUPPORTED, NULL, "GaLore projects every matrix here", NULL },
    { "gradient_checkpointing", RULE_CALL, NULL, NULL, take_checkpointing },
    { "vit_gradient_checkpointing|gradient_checkpointing_kwargs", RULE_IGNORE, NULL, "gradient_checkpointing decides", NULL },
    { "rope_scaling", RULE_CALL, NULL, NULL, take_rope },
    { "max_steps|train_iters", RULE_CALL, NULL, NULL, import_take_steps },
    { "save_strategy|eval_strategy|evaluation_strategy", RULE_CALL, NULL, NULL, import_take_strategy },
    { "lora_dropout_p", RULE_RENAME, "lora_dropout", NULL, NULL },
    { "lora_target_modules", RULE_RENAME, "target_modules", NULL, NULL },
    { "target_regex", RULE_CALL, NULL, NULL, take_regex },
    { "lora_bias", RULE_UNLESS, "none", "biases are not trained beside adapters", NULL },
    { "init_weights|init_lora_weights", RULE_UNLESS, "true|gaussian", "adapters start as PEFT's default: A random, B zero", NULL },
    { "lora_dtype", RULE_UNLESS, "float32|fp32|AUTO", "adapters are kept in float32", NULL },
    { "adapters|resume_from_adapter", RULE_RENAME, "adapter", NULL, NULL },
    { "cached_dataset", RULE_CALL, NULL, NULL, take_cached },
    { "optim|optimizer", RULE_CALL, NULL, NULL, take_optimizer },
    { "freeze_llm|freeze_vit|freeze_aligner", RULE_CALL, NULL, NULL, take_freeze },
    { "vit_lr|aligner_lr|max_pixels|min_pixels|fps_max_frames|video_max_pixels", RULE_IGNORE, NULL, vision, NULL },
    { "config", RULE_CALL, NULL, NULL, take_config },
    { "quant_method|quant_bits|quantization_bit|bnb_4bit_compute_dtype|bnb_4bit_quant_type|bnb_4bit_use_double_quant|hqq_axis", RULE_UNSUPPORTED, NULL, quant, NULL },
    { "custom_register_path|external_plugins|custom_dataset_info|callbacks|metric", RULE_UNSUPPORTED, NULL, plugins, NULL },
    { "neftune_noise_alpha", RULE_UNLESS, "0|0.0", "noise on embeddings is not built in", NULL },
    { "label_smoothing_factor", RULE_UNLESS, "0|0.0", "label smoothing is not built in", NULL },
    { "task_type", RULE_UNLESS, "causal_lm", "causal language models only", NULL },
    { "use_chat_template", RULE_UNLESS, "true", "set template to none for raw text", NULL },
    { "resume_only_model", RULE_UNLESS, "false", "give the checkpoint as model or adapter instead", NULL },
    { "fsdp|fsdp_config", RULE_UNSUPPORTED, NULL, "say zero_stage 3 instead", NULL },
    { "deepspeed_autotp_size|tensor_model_parallel_size|pipeline_model_parallel_size|expert_model_parallel_size", RULE_UNLESS, "1|0", "only the sequence is split, and state by zero_stage", NULL },
    { "nproc_per_node|nproc", RULE_CALL, NULL, NULL, take_nproc },
    { "nnodes", RULE_UNLESS, "1", "one machine: several are not built yet", NULL },
    { "use_dora", RULE_KEEP, NULL, NULL, NULL },
    { "data_seed", RULE_IGNORE, NULL, "seed decides the order of the data too", NULL },
    { "per_device_eval_batch_size|eval_accumulation_steps|prediction_loss_only|predict_with_generate|eval_use_evalscope|eval_datasets|eval_limit", RULE_IGNORE, NULL, "evaluation measures the loss, row by row", NULL },
    { "dataloader_num_workers|dataloader_pin_memory|dataloader_prefetch_factor|dataloader_persistent_workers|dataset_num_proc|dataloader_drop_last|lazy_tokenize|load_from_cache_file|strict"
      "|preprocess_num_proc|dataset_test_ratio|download_mode|packing_cache|packing_num_proc|train_dataloader_shuffle|shuffle_buffer_size|interleave_prob|stopping_strategy|group_by_length", RULE_IGNORE, NULL, hidden, NULL },
    { "report_to|logging_dir|logging_first_step|disable_tqdm|log_level|include_num_input_tokens_seen|run_name|swanlab_project|swanlab_exp_name|wandb_project|logging_strategy|logging_nan_inf_filter"
      "|log_interval|include_tokens_per_second", RULE_IGNORE, NULL, reports, NULL },
    { "add_version|create_checkpoint_symlink|overwrite_output_dir|save_safetensors|push_to_hub|hub_model_id|hub_token|hub_private_repo|check_model|load_args|use_hf|model_revision|ignore_args_error|load_best_model_at_end"
      "|metric_for_best_model|greater_is_better|model_author|model_name|self_cognition_sample|dynamic_eviction", RULE_IGNORE, NULL, "checkpoints are always whole, in Hugging Face form, under output_dir", NULL },
    { "use_liger_kernel|torch_compile|use_cpu|ddp_timeout|ddp_find_unused_parameters|ddp_backend|ddp_broadcast_buffers|acc_strategy|average_tokens_across_devices|local_rank|device_map|max_memory|tf32|full_determinism"
      "|auto_find_batch_size|low_cpu_mem_usage|padding_side|check_data|gpu_memory_fraction|use_logits_to_keep|attention_backend|sequence_parallel|recompute_granularity|use_distributed_optimizer|cross_entropy_loss_fusion"
      "|no_save_optim|no_save_rng|finetune", RULE_IGNORE, NULL, "has no counterpart here and changes no result", NULL },
    { "model_type|model_kwargs|local_repo_path|trust_remote_code|enable_channel_loss|agent_template|norm_bbox|response_prefix|template_backend|new_special_tokens|ignore_data_skip|remove_unused_columns", RULE_IGNORE, NULL,
      "the model folder says what it is", NULL },
};

/* Environment in front of the command. */
static const struct rule env_rules[] = {
    { "NPROC_PER_NODE", RULE_CALL, NULL, NULL, take_nproc },
    { "CUDA_VISIBLE_DEVICES|ASCEND_RT_VISIBLE_DEVICES", RULE_CALL, NULL, NULL, take_visible },
    { "OMP_NUM_THREADS", RULE_CALL, NULL, NULL, take_threads },
    { "NNODES", RULE_UNLESS, "1", "one machine: several are not built yet", NULL },
    { "MASTER_ADDR|MASTER_PORT|NODE_RANK|RANK|WORLD_SIZE|LOCAL_RANK", RULE_IGNORE, NULL, "ranks find each other through the keeper", NULL },
};

/* What ms-swift takes where nothing is said and we would take something else. */
static void settle(struct import *im)
{
    double max_length = json_num(im->spec, "max_length", 0), n = json_num(im->spec, "nproc_per_node", 1), sp = json_num(im->spec, "sequence_parallel_size", 0);
    if (!im->nproc_given && im->visible_devices > 1) {
        n = im->visible_devices;
        import_default(im, "nproc_per_node", cJSON_CreateNumber(n), "one rank for each visible device");
    }
    if (!json_get(im->spec, "nproc_per_node") && sp > 1) {
        n = sp;
        import_default(im, "nproc_per_node", cJSON_CreateNumber(n), "sequence_parallel_size needs so many ranks");
    }
    if (im->ulysses || im->ring) {
        double degree = im->ulysses_seq_len > 0 && max_length > 0 ? max_length / im->ulysses_seq_len : sp > 0 ? sp : n;
        if (im->ulysses && im->ring) import_set_text(im, "sequence_parallel_method", "hybrid");
        else {
            import_set_text(im, "sequence_parallel_method", im->ring ? "ring" : "ulysses");
            if (degree == floor(degree) && degree >= 1) import_set_int(im, im->ring ? "ring_size" : "ulysses_size", (int64_t)degree);
        }
        if (degree != floor(degree) || degree < 1) {
            struct flag f = { "ulysses_seq_len", "--ulysses_seq_len", NULL, 0 };
            import_report(im, &f, "unsupported", NULL, "max_length %.0f is no multiple of %.0f tokens per rank", max_length, im->ulysses_seq_len);
        }
        if (!json_get(im->spec, "nproc_per_node")) import_default(im, "nproc_per_node", cJSON_CreateNumber(degree), "max_length / ulysses_seq_len");
        if (degree > n && n >= 1 && json_get(im->spec, "nproc_per_node")) n = degree;
        if (sp == 0) sp = degree;
    }
    const char *tuner = json_str(im->spec, "tuner_type");
    if (tuner && strcmp(tuner, "full") == 0) import_default(im, "learning_rate", cJSON_CreateNumber(1e-5), "ms-swift's default for full tuning");
    if (json_num(im->spec, "max_steps", 0) <= 0) import_default(im, "num_train_epochs", cJSON_CreateNumber(3), "ms-swift's default");
    import_default(im, "warmup_ratio", cJSON_CreateNumber(0), "ms-swift's default");
    import_default(im, "save_steps", cJSON_CreateNumber(500), "ms-swift's default");
    import_default(im, "logging_steps", cJSON_CreateNumber(5), "ms-swift's default");
    double batch = json_num(im->spec, "per_device_train_batch_size", 1), replicas = n / (sp >= 1 ? sp : 1);
    if (batch >= 1 && replicas >= 1)
        import_default(im, "gradient_accumulation_steps", cJSON_CreateNumber(ceil(16 / (batch * replicas))), "ms-swift's default: at least 16 rows in a step");
    import_default(im, "output_dir", cJSON_CreateString("output"), "ms-swift's default");
}

static char *flag_name(const char *word, size_t n)
{
    while (n > 0 && *word == '-') { word++; n--; }
    char *s = xstrndup(word, n);
    for (char *p = s; *p; p++)
        if (*p == '-') *p = '_';
    return s;
}

static bool is_flag(const char *w) { return w[0] == '-' && w[1] == '-' && w[2] != '\0'; }

/* Flags from word[i]: --name value… or --name=value. */
static void take_flags(struct import *im, int n, char *const *word, int i)
{
    while (i < n) {
        if (!is_flag(word[i])) {
            struct flag stray = { word[i], word[i], NULL, 0 };
            import_report(im, &stray, "unsupported", NULL, "a word that belongs to no flag");
            i++;
            continue;
        }
        const char *eq = strchr(word[i], '=');
        size_t len = eq ? (size_t)(eq - word[i]) : strlen(word[i]);
        char *name = flag_name(word[i], len), *shown = xstrndup(word[i], len), *one = NULL, **value;
        int from = i + 1;
        struct flag f = { name, shown, NULL, 0 };
        if (eq) {
            one = xstrdup(eq + 1);
            value = &one;
            f.value = value;
            f.n = 1;
            i++;
        } else {
            for (i = from; i < n && !is_flag(word[i]); i++) { }
            f.value = (char **)word + from;
            f.n = i - from;
        }
        import_flag(im, &f);
        free(one);
        free(name);
        free(shown);
    }
}

static void take_env(struct import *im, const char *word, bool listed)
{
    const char *eq = strchr(word, '=');
    char *name = xstrndup(word, (unsigned long)(eq - word)), *value = xstrdup(eq + 1);
    struct flag f = { name, name, &value, 1 };
    const struct rule *keep = im->rules;
    int keep_n = im->n_rules;
    bool known = false;
    for (size_t i = 0; i < sizeof env_rules / sizeof env_rules[0]; i++) known |= import_one_of(name, env_rules[i].names);
    im->rules = env_rules;
    im->n_rules = (int)(sizeof env_rules / sizeof env_rules[0]);
    if (known) import_flag(im, &f);
    else if (listed) import_report(im, &f, "ignored", NULL, "environment of the other tool");
    im->rules = keep;
    im->n_rules = keep_n;
    free(name);
    free(value);
}

static bool is_assignment(const char *w)
{
    const char *eq = strchr(w, '=');
    if (eq == NULL || eq == w || (w[0] >= '0' && w[0] <= '9')) return false;
    return strspn(w, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == (size_t)(eq - w);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static const char *subcommand(const char *w)
{
    const char *slash = strrchr(w, '/');
    const char *b = slash ? slash + 1 : w, *dot = strrchr(w, '.');
    if (ends_with(w, ".py")) return import_one_of(b, "sft.py") ? "sft" : import_one_of(b, "pt.py") ? "pt" : NULL;
    if (dot && strncmp(w, "swift.cli.", 10) == 0) return dot + 1;
    return NULL;
}

/* Where the arguments of a training command start; 0: none. *what: the subcommand; *launcher_end: launcher flags lie in [1, here). */
static int find_training(int n, char *const *w, const char **what)
{
    for (int i = 0; i < n; i++) {
        const char *b = strrchr(w[i], '/') ? strrchr(w[i], '/') + 1 : w[i], *sub;
        if ((strcmp(b, "swift") == 0 || strcmp(b, "megatron") == 0) && i + 1 < n && w[i + 1][0] != '-') {
            *what = w[i + 1];
            return i + 2;
        }
        if ((sub = subcommand(w[i])) != NULL) {
            *what = sub;
            return i + 1;
        }
    }
    return 0;
}

static void take_command(struct import *im, int n, char *const *w)
{
    const char *what = NULL;
    int start = find_training(n, w, &what), i = strcmp(w[0], "export") == 0;
    for (; i < start && is_assignment(w[i]); i++) take_env(im, w[i], true);
    for (; i < start; i++) {                        /* launchers: torchrun --nproc_per_node 4 … */
        const char *eq = strchr(w[i], '=');
        size_t len = eq ? (size_t)(eq - w[i]) : strlen(w[i]);
        char *name = flag_name(w[i], len), *shown = xstrndup(w[i], len), *value = eq ? xstrdup(eq + 1) : i + 1 < start && is_flag(w[i]) && w[i + 1][0] != '-' ? xstrdup(w[i + 1]) : NULL;
        struct flag f = { name, shown, &value, value ? 1 : 0 };
        if (is_flag(w[i]) && import_one_of(name, "nproc_per_node|num_processes|num_gpus|nnodes|num_machines")) {
            if (strcmp(name, "num_processes") == 0 || strcmp(name, "num_gpus") == 0) f.name = "nproc_per_node";
            if (strcmp(name, "num_machines") == 0) f.name = "nnodes";
            import_flag(im, &f);
            if (!eq) i++;
        } else if (is_flag(w[i])) {
            import_report(im, &f, "ignored", NULL, "the launcher's own: the keeper starts the ranks");
            if (!eq && value) i++;
        }
        free(value);
        free(name);
        free(shown);
    }
    if (!import_one_of(what, "sft|pt")) {
        struct flag f = { what, what, NULL, 0 };
        import_report(im, &f, "unsupported", NULL, "only supervised fine-tuning (sft) and continued pre-training (pt) are done here");
    }
    if (strcmp(what, "pt") == 0) {
        import_default(im, "loss_scale", cJSON_CreateString("all"), "swift pt trains every token");
        import_default(im, "template", cJSON_CreateString("none"), "swift pt reads raw text");
    }
    take_flags(im, n, w, start);
}

int import_swift_words(cJSON **out, int n, char *const *words, struct error *err)
{
    struct import im;
    const char *what = NULL;
    *out = NULL;
    if (n == 0 || find_training(n, words, &what) == 0)
        return error_set(err, E_INVALID, "expected a training command of ms-swift, as in: swift sft --model … --dataset …");
    import_begin(&im, rules, (int)(sizeof rules / sizeof rules[0]));
    take_command(&im, n, words);
    settle(&im);
    import_end(&im, out);
    return OK;
}

int import_swift(cJSON **out, const char *text, size_t len, struct error *err)
{
    struct script s;
    struct import im;
    const char *what = NULL;
    size_t bad;
    *out = NULL;
    if (len > IMPORT_MAX_BYTES) return error_set(err, E_LIMIT, "a script of %zu bytes, at most %d are read", len, IMPORT_MAX_BYTES);
    if (!utf8_valid(text, len, &bad)) return error_set(err, E_INVALID, "byte %zu of the script is no UTF-8", bad);
    int rc = script_read(&s, text, len, err);
    if (rc != OK) return rc;
    import_begin(&im, rules, (int)(sizeof rules / sizeof rules[0]));
    int found = 0;
    for (int i = 0; i < s.n; i++) {
        struct command *c = &s.v[i];
        bool training = find_training(c->n, c->word, &what) > 0;
        int first = strcmp(c->word[0], "export") == 0;
        if (training && found++ == 0) {
            take_command(&im, c->n, c->word);
            /* flags after a comment in the middle of a continued command: the shell would lose them, their writer did not mean to */
            while (i + 1 < s.n && is_flag(s.v[i + 1].word[0])) { i++; take_flags(&im, s.v[i].n, s.v[i].word, 0); }
        } else if (training) {
            struct flag f = { "", "(another command)", NULL, 0 };
            import_report(&im, &f, "ignored", NULL, "one job is made of the first training command; import the others by themselves");
        } else if (found == 0)
            for (int k = first; k < c->n && is_assignment(c->word[k]); k++) take_env(&im, c->word[k], first == 1);
    }
    if (found == 0) {
        cJSON_Delete(im.spec);
        cJSON_Delete(im.flags);
        cJSON_Delete(im.defaults);
        rc = error_set(err, E_INVALID, "no training command of ms-swift was found (swift sft …, swift pt …)");
    } else {
        settle(&im);
        import_end(&im, out);
    }
    script_release(&s);
    return rc;
}
