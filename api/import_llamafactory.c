/* import_llamafactory.c - LLaMA-Factory's YAML as a job spec.
 *
 * The YAML read is what such files hold: "key: value" lines, comments, quotes, lists in brackets or with dashes, one level of nested
 * mappings (read as outer.inner). Anchors, tags, block texts and deeper nesting are refused, naming the line. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/import_rules.h"

static void take_stage(struct import *im, const struct flag *f)
{
    const char *v = import_text(f);
    if (import_one_of(v, "sft")) import_report(im, f, "ignored", NULL, "supervised fine-tuning is what is done");
    else if (import_one_of(v, "pt")) {
        import_set_text(im, "loss_scale", "all");
        import_set_text(im, "template", "none");
        import_report(im, f, "translated", "loss_scale", "every token is trained, no template");
    } else import_report(im, f, "unsupported", NULL, "only sft and pt");
}

static void take_tuner(struct import *im, const struct flag *f)
{
    const char *v = import_text(f);
    if (!import_one_of(v, "lora|full")) { import_report(im, f, "unsupported", "tuner_type", "only lora and full are trained here, not %.60s", v); return; }
    import_set_text(im, "tuner_type", strcmp(v, "full") == 0 ? "full" : "lora");
    import_report(im, f, "translated", "tuner_type", "called tuner_type here");
}

/* "a, b" is a list there. */
static cJSON *comma_list(const struct flag *f)
{
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < f->n; i++)
        for (const char *p = f->value[i]; *p;) {
            size_t len = strcspn(p, ",");
            const char *from = p, *to = p + len;
            while (from < to && isspace((unsigned char)*from)) from++;
            while (to > from && isspace((unsigned char)to[-1])) to--;
            char *word = xstrndup(from, (unsigned long)(to - from));
            if (*word) (void)cJSON_AddItemToArray(list, cJSON_CreateString(word));
            free(word);
            p += len + (p[len] == ',');
        }
    return list;
}

static void take_dataset(struct import *im, const struct flag *f)
{
    bool eval = strcmp(f->name, "eval_dataset") == 0;
    import_set(im, eval ? "val_dataset" : "dataset", comma_list(f));
    import_report(im, f, eval ? "translated" : "kept", eval ? "val_dataset" : "dataset",
                  "names of dataset_info.json are not looked up: put the files' paths here");
}

static void take_list(struct import *im, const struct flag *f)
{
    const char *field = import_one_of(f->name, "additional_target") ? "modules_to_save" : "target_modules";
    cJSON *list = comma_list(f);
    if (cJSON_GetArraySize(list) == 1 && strcmp(list->child->valuestring, "all") == 0) (void)cJSON_SetValuestring(list->child, "all-linear");
    import_set(im, field, list);
    import_report(im, f, "translated", field, "called %s here", field);
}

static void take_template(struct import *im, const struct flag *f)
{
    const char *v = import_text(f);
    if (import_one_of(v, "qwen|qwen2|qwen2.5|qwen3|chatml|qwen3_nothink")) import_set_text(im, "template", "chatml");
    else if (import_one_of(v, "llama3|llama3.1|llama3.2")) import_set_text(im, "template", "llama3");
    else if (import_one_of(v, "empty|default|none")) import_set_text(im, "template", "none");
    else {
        import_set_text(im, "template", "auto");
        import_report(im, f, "translated", "template", "auto: the model folder's own template");
        return;
    }
    import_report(im, f, "translated", "template", "%s", json_str(im->spec, "template"));
}

static void take_attention(struct import *im, const struct flag *f)
{
    const char *v = import_text(f), *to = import_one_of(v, "fa2|fa3|true") ? "flash" : import_one_of(v, "auto|sdpa") ? "auto" : import_one_of(v, "disabled|off|false") ? "eager" : NULL;
    if (strcmp(f->name, "use_flash_attn") == 0 && to && strcmp(to, "flash") == 0) to = "auto";
    if (to == NULL) { import_report(im, f, "unsupported", "attn_impl", "no attention is called %.60s here", v); return; }
    import_set_text(im, "attn_impl", to);
    import_report(im, f, "translated", "attn_impl", "%s", to);
}

static void take_deepspeed(struct import *im, const struct flag *f)
{
    const char *z = strstr(import_text(f), "ds_z");
    int stage = z ? z[4] - '0' : -1;
    if (stage < 0 || stage > 3) { import_report(im, f, "unsupported", "zero_stage", "a DeepSpeed file is not read: say zero_stage (0 to 3) and zero_offload_optimizer instead"); return; }
    bool offload = strstr(z, "offload") != NULL;
    import_set_int(im, "zero_stage", stage);
    if (offload) import_set(im, "zero_offload_optimizer", cJSON_CreateTrue());
    import_report(im, f, "translated", "zero_stage", "zero_stage %d%s, without DeepSpeed", stage, offload ? " and zero_offload_optimizer" : "");
}

static void take_bf16(struct import *im, const struct flag *f)
{
    if (!import_true(f)) { import_report(im, f, "ignored", NULL, "off"); return; }
    import_set_text(im, "torch_dtype", "bfloat16");
    import_report(im, f, "translated", "torch_dtype", "torch_dtype bfloat16");
}

static void take_sp_mode(struct import *im, const struct flag *f)
{
    const char *v = import_text(f), *to = strstr(v, "ulysses") ? "ulysses" : strstr(v, "ring") ? "ring" : NULL;
    if (to == NULL) { import_report(im, f, "unsupported", "sequence_parallel_method", "expected zigzag-ring or ulysses"); return; }
    import_set_text(im, "sequence_parallel_method", to);
    import_report(im, f, "translated", "sequence_parallel_method", "%s", to);
}

static void take_ulysses(struct import *im, const struct flag *f)
{
    const char *to = strstr(f->name, "ring") ? "ring" : "ulysses";
    if (!import_true(f)) { import_report(im, f, "ignored", NULL, "off, as here"); return; }
    import_set_text(im, "sequence_parallel_method", to);
    import_report(im, f, "translated", "sequence_parallel_method", "%s", to);
}

static void take_no_checkpointing(struct import *im, const struct flag *f)
{
    bool off = import_true(f) == (strcmp(f->name, "disable_gradient_checkpointing") == 0);
    import_set_text(im, "gradient_checkpointing", off ? "none" : "layer");
    import_report(im, f, "translated", "gradient_checkpointing", off ? "none" : "layer: every layer is recomputed");
}

static void take_val_size(struct import *im, const struct flag *f)
{
    cJSON *v = import_value(im, f, spec_field("split_dataset_ratio"));
    double n = 0;
    if (v == NULL) return;
    (void)json_number(v, &n);
    if (n >= 1) {
        cJSON_Delete(v);
        import_report(im, f, "unsupported", "split_dataset_ratio", "a share is taken, not a number of samples");
        return;
    }
    import_set(im, "split_dataset_ratio", v);
    import_report(im, f, "translated", "split_dataset_ratio", "split_dataset_ratio");
}

static void take_max_samples(struct import *im, const struct flag *f)
{
    cJSON *v = import_value(im, f, spec_field("max_steps"));
    if (v == NULL) return;
    (void)json_number(v, &im->max_samples);
    cJSON_Delete(v);
    import_report(im, f, "translated", "dataset", "dataset#N");
}

static void take_train_on_prompt(struct import *im, const struct flag *f)
{
    bool prompt = strcmp(f->name, "train_on_prompt") == 0;
    if (!import_true(f)) { import_report(im, f, "ignored", NULL, "off, as here"); return; }
    import_set_text(im, "loss_scale", prompt ? "all" : "last_round");
    import_report(im, f, "translated", "loss_scale", prompt ? "all" : "last_round");
}

static void take_packing(struct import *im, const struct flag *f)
{
    import_set(im, "packing", import_true(f) ? cJSON_CreateTrue() : cJSON_CreateFalse());
    if (strcmp(f->name, "packing") == 0) import_report(im, f, "kept", "packing", "documents in a row never see each other here (neat_packing)");
    else import_report(im, f, "translated", "packing", "packing: documents in a row never see each other");
}

static const struct rule rules[] = {
    { "model_name_or_path", RULE_RENAME, "model", NULL, NULL },
    { "stage", RULE_CALL, NULL, NULL, take_stage },
    { "do_train", RULE_UNLESS, "true", "a job here trains", NULL },
    { "do_eval|do_predict|predict_with_generate", RULE_UNLESS, "false", "evaluation runs beside training: eval_steps", NULL },
    { "finetuning_type", RULE_CALL, NULL, NULL, take_tuner },
    { "dataset|eval_dataset", RULE_CALL, NULL, NULL, take_dataset },
    { "lora_target|additional_target", RULE_CALL, NULL, NULL, take_list },
    { "template", RULE_CALL, NULL, NULL, take_template },
    { "flash_attn|use_flash_attn", RULE_CALL, NULL, NULL, take_attention },
    { "deepspeed", RULE_CALL, NULL, NULL, take_deepspeed },
    { "bf16|pure_bf16", RULE_CALL, NULL, NULL, take_bf16 },
    { "fp16", RULE_UNLESS, "false", "float16 needs loss scaling, which nothing here does; use bf16", NULL },
    { "sequence_parallel_mode", RULE_CALL, NULL, NULL, take_sp_mode },
    { "parallel.sequence_parallel_size", RULE_RENAME, "sequence_parallel_size", NULL, NULL },
    { "parallel.use_ulysses_attn|parallel.use_ring_attn|use_ulysses_attn|use_ring_attn", RULE_CALL, NULL, NULL, take_ulysses },
    { "disable_gradient_checkpointing|gradient_checkpointing", RULE_CALL, NULL, NULL, take_no_checkpointing },
    { "val_size", RULE_CALL, NULL, NULL, take_val_size },
    { "max_samples", RULE_CALL, NULL, NULL, take_max_samples },
    { "eval_strategy|evaluation_strategy|save_strategy", RULE_CALL, NULL, NULL, import_take_strategy },
    { "train_on_prompt|mask_history", RULE_CALL, NULL, NULL, take_train_on_prompt },
    { "max_steps", RULE_CALL, NULL, NULL, import_take_steps },
    { "packing|neat_packing", RULE_CALL, NULL, NULL, take_packing },
    { "loraplus_lr_ratio", RULE_RENAME, "lorap_lr_ratio", NULL, NULL },
    { "galore_update_interval", RULE_RENAME, "galore_update_proj_gap", NULL, NULL },
    { "default_system", RULE_RENAME, "system", NULL, NULL },
    { "galore_target|galore_layerwise", RULE_UNLESS, "all|false", "GaLore projects every matrix here, step by step", NULL },
    { "use_badam|use_apollo|use_adam_mini|use_muon|pissa_init|use_llama_pro|shift_attn|mixture_of_depths|use_unsloth_gc|upcast_layernorm|create_new_adapter|compute_accuracy|efficient_eos|freeze_vision_tower"
      "|freeze_multi_modal_projector|train_mm_proj_only|resize_vocab|use_dft_loss|enable_thinking|fp8", RULE_UNLESS, "false", "not built in", NULL },
    { "quantization_bit|quantization_method|double_quantization", RULE_UNSUPPORTED, NULL, "quantised base weights (QLoRA) are not built in", NULL },
    { "neftune_noise_alpha|label_smoothing_factor", RULE_UNLESS, "0|0.0", "not built in", NULL },
    { "rope_scaling", RULE_UNSUPPORTED, NULL, "its factor depends on the model; write rope_scaling out in the spec, e.g. {\"rope_type\":\"yarn\",\"factor\":4.0}", NULL },
    { "optim", RULE_UNLESS, "adamw_torch|adamw_torch_fused|adamw_hf", "only AdamW (and GaLore around it) is built in", NULL },
    { "reward_model|ref_model|pref_beta|pref_loss", RULE_UNSUPPORTED, NULL, "only sft and pt", NULL },
    { "dataset_dir|media_dir", RULE_IGNORE, NULL, "give the files' paths in dataset", NULL },
    { "overwrite_cache|preprocessing_num_workers|dataloader_num_workers|dataloader_pin_memory|preprocessing_batch_size|tokenized_path|buffer_size|group_by_length|ignore_pad_token_for_loss|data_shared_file_system"
      "|dataloader_prefetch_factor|dataloader_drop_last", RULE_IGNORE, NULL, "how data is fetched does not change what is trained", NULL },
    { "plot_loss|report_to|run_name|logging_dir|logging_strategy|log_level|disable_tqdm|include_num_input_tokens_seen|include_effective_tokens_per_second|swanlab_project|use_swanlab|swanlab_run_name|wandb_project", RULE_IGNORE, NULL,
      "progress is shown by Ringmaster itself", NULL },
    { "overwrite_output_dir|save_safetensors|push_to_hub|hub_model_id|hf_hub_token|ms_hub_token|trust_remote_code|model_revision|cache_dir|use_fast_tokenizer|split_special_tokens|load_best_model_at_end|print_param_status",
      RULE_IGNORE, NULL, "has no counterpart here", NULL },
    { "ddp_timeout|ddp_find_unused_parameters|ddp_backend|enable_liger_kernel|use_unsloth|per_device_eval_batch_size|tf32|torch_compile|use_cache|low_cpu_mem_usage|ray_run_name|ray_num_workers|use_ray|disable_shuffling"
      "|data_seed|device_map", RULE_IGNORE, NULL, "changes no result here", NULL },
};

static void settle(struct import *im)
{
    double sp = json_num(im->spec, "sequence_parallel_size", 0), rank = json_num(im->spec, "lora_rank", 8);
    if (im->max_samples > 0) {
        cJSON *list = json_get(im->spec, "dataset");
        for (int i = 0; i < cJSON_GetArraySize(list); i++) {
            cJSON *v = cJSON_GetArrayItem(list, i);
            if (!cJSON_IsString(v) || strchr(v->valuestring, '#')) continue;
            char *text = xasprintf("%s#%.0f", v->valuestring, im->max_samples);
            (void)cJSON_SetValuestring(v, text);
            free(text);
        }
    }
    if (sp > 1) import_default(im, "nproc_per_node", cJSON_CreateNumber(sp), "sequence_parallel_size needs so many ranks");
    import_default(im, "lora_alpha", cJSON_CreateNumber(2 * rank), "LLaMA-Factory's default: twice lora_rank");
    import_default(im, "lora_dropout", cJSON_CreateNumber(0), "LLaMA-Factory's default");
    import_default(im, "max_length", cJSON_CreateNumber(2048), "LLaMA-Factory's default cutoff_len");
    import_default(im, "learning_rate", cJSON_CreateNumber(5e-5), "LLaMA-Factory's default");
    import_default(im, "lr_scheduler_type", cJSON_CreateString("linear"), "LLaMA-Factory's default");
    import_default(im, "warmup_ratio", cJSON_CreateNumber(0), "LLaMA-Factory's default");
    import_default(im, "weight_decay", cJSON_CreateNumber(0), "LLaMA-Factory's default");
    import_default(im, "adam_beta2", cJSON_CreateNumber(0.999), "LLaMA-Factory's default");
    import_default(im, "per_device_train_batch_size", cJSON_CreateNumber(8), "LLaMA-Factory's default");
    if (json_num(im->spec, "max_steps", 0) <= 0) import_default(im, "num_train_epochs", cJSON_CreateNumber(3), "LLaMA-Factory's default");
    import_default(im, "save_steps", cJSON_CreateNumber(500), "LLaMA-Factory's default");
    import_default(im, "logging_steps", cJSON_CreateNumber(500), "LLaMA-Factory's default");
    import_default(im, "truncation_strategy", cJSON_CreateString("right"), "LLaMA-Factory cuts long samples");
}

/* --- the YAML --- */

struct values { char **v; int n; };

static void values_add(struct values *l, const char *s, size_t n)
{
    while (n > 0 && isspace((unsigned char)*s)) { s++; n--; }
    while (n > 0 && isspace((unsigned char)s[n - 1])) n--;
    if (n >= 2 && (*s == '"' || *s == '\'') && s[n - 1] == *s) { s++; n -= 2; }
    l->v = xrealloc(l->v, (unsigned long)(l->n + 1) * sizeof *l->v);
    l->v[l->n++] = xstrndup(s, n);
}

static void values_clear(struct values *l)
{
    for (int i = 0; i < l->n; i++) free(l->v[i]);
    free(l->v);
    *l = (struct values){ 0 };
}

/* Length of the line without its comment: # at the start or after a blank, outside quotes. */
static size_t without_comment(const char *s, size_t n)
{
    char quote = 0;
    for (size_t i = 0; i < n; i++) {
        if (quote) quote = s[i] == quote ? 0 : quote;
        else if ((s[i] == '"' || s[i] == '\'') && (i == 0 || strchr(" \t[,{:", s[i - 1]))) quote = s[i];
        else if (s[i] == '#' && (i == 0 || isspace((unsigned char)s[i - 1]))) return i;
    }
    return n;
}

struct yaml { struct import *im; char *outer, *key; struct values list; bool open; };

static void take_pair(struct yaml *y, const char *outer, const char *key, size_t key_len, const struct values *v)
{
    char *name = outer ? xasprintf("%s.%.*s", outer, (int)key_len, key) : xstrndup(key, key_len);
    struct flag f = { name, name, v->v, v->n };
    if (v->n == 0) import_report(y->im, &f, "ignored", NULL, "no value: the default is taken");
    else import_flag(y->im, &f);
    free(name);
}

/* A key without a value on its line: what follows may be a list (taken when it ends) or a nested mapping. */
static void close_key(struct yaml *y)
{
    if (y->key) take_pair(y, y->outer, y->key, strlen(y->key), &y->list);
    free(y->key);
    y->key = NULL;
    values_clear(&y->list);
}

static int flow_map(struct yaml *y, const char *key, const char *s, size_t n, int line, struct error *err)
{
    for (size_t i = 1; i + 1 < n;) {
        size_t len = 0;
        while (i + len + 1 < n && s[i + len] != ',') len++;
        const char *colon = memchr(s + i, ':', len);
        if (colon == NULL) {
            bool blank = true;
            for (size_t k = 0; k < len; k++) blank &= isspace((unsigned char)s[i + k]) != 0;
            if (!blank) return error_set(err, E_INVALID, "line %d: expected {key: value, …}", line);
        } else {
            const char *from = s + i;
            struct values v = { 0 };
            while (from < colon && isspace((unsigned char)*from)) from++;
            values_add(&v, colon + 1, (size_t)(s + i + len - colon - 1));
            take_pair(y, key, from, (size_t)(colon - from), &v);
            values_clear(&v);
        }
        i += len + 1;
    }
    return OK;
}

static int take_line(struct yaml *y, const char *s, size_t n, int line, struct error *err)
{
    size_t indent = 0;
    n = without_comment(s, n);
    while (n > 0 && isspace((unsigned char)s[n - 1])) n--;
    while (indent < n && s[indent] == ' ') indent++;
    if (indent == n || (indent == 0 && n >= 3 && memcmp(s, "---", 3) == 0)) return OK;
    if (s[indent] == '\t') return error_set(err, E_INVALID, "line %d: YAML is not indented by tabs", line);
    if (s[indent] == '-' && (indent + 1 == n || s[indent + 1] == ' ')) {
        if (y->key == NULL) return error_set(err, E_INVALID, "line %d: a list entry without a key", line);
        values_add(&y->list, s + indent + 1, n - indent - 1);
        return OK;
    }
    if (indent > 0 && y->outer == NULL) {
        if (y->key == NULL || y->list.n > 0) return error_set(err, E_INVALID, "line %d: unexpected indentation", line);
        y->outer = y->key;          /* the key before opens a nested mapping */
        y->key = NULL;
    } else close_key(y);
    if (indent == 0) {
        free(y->outer);
        y->outer = NULL;
    }
    const char *colon = NULL;
    for (const char *p = s + indent; p < s + n && !colon; p++)
        if (*p == ':' && (p + 1 == s + n || p[1] == ' ' || p[1] == '\t')) colon = p;
    if (colon == NULL) return error_set(err, E_INVALID, "line %d: expected key: value", line);
    const char *key = s + indent, *v = colon + 1;
    size_t key_len = (size_t)(colon - key), v_len = (size_t)(s + n - v);
    while (key_len > 0 && isspace((unsigned char)key[key_len - 1])) key_len--;
    if (key_len >= 2 && (*key == '"' || *key == '\'') && key[key_len - 1] == *key) { key++; key_len -= 2; }
    while (v_len > 0 && isspace((unsigned char)*v)) { v++; v_len--; }
    if (key_len == 0 || key_len > 200) return error_set(err, E_INVALID, "line %d: expected key: value", line);
    if (v_len == 0) {
        y->key = xstrndup(key, key_len);
        return OK;
    }
    if (strchr("&*!|>", *v)) return error_set(err, E_UNSUPPORTED, "line %d: anchors, tags and block texts of YAML are not read", line);
    if (*v == '{') {
        char *outer = xstrndup(key, key_len);
        int rc = v[v_len - 1] != '}' ? error_set(err, E_INVALID, "line %d: expected {key: value, …} on one line", line) : flow_map(y, outer, v, v_len, line, err);
        free(outer);
        return rc;
    }
    struct values list = { 0 };
    if (*v == '[') {
        if (v[v_len - 1] != ']') return error_set(err, E_INVALID, "line %d: expected [a, b] on one line", line);
        for (size_t i = 1; i + 1 < v_len;) {
            size_t len = 0;
            while (i + len + 1 < v_len && v[i + len] != ',') len++;
            values_add(&list, v + i, len);
            i += len + 1;
        }
    } else values_add(&list, v, v_len);
    take_pair(y, y->outer, key, key_len, &list);
    values_clear(&list);
    return OK;
}

int import_llamafactory(cJSON **out, const char *yaml, size_t len, struct error *err)
{
    struct import im;
    struct yaml y = { .im = &im };
    size_t bad;
    int rc = OK, line = 0;
    *out = NULL;
    if (len > IMPORT_MAX_BYTES) return error_set(err, E_LIMIT, "a file of %zu bytes, at most %d are read", len, IMPORT_MAX_BYTES);
    if (!utf8_valid(yaml, len, &bad)) return error_set(err, E_INVALID, "byte %zu of the file is no UTF-8", bad);
    if (memchr(yaml, '\0', len)) return error_set(err, E_INVALID, "the file holds a NUL byte");
    import_begin(&im, rules, (int)(sizeof rules / sizeof rules[0]));
    for (const char *p = yaml, *end = yaml + len; p < end && rc == OK;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = nl ? (size_t)(nl - p) : (size_t)(end - p);
        if (++line > 10000) rc = error_set(err, E_LIMIT, "more than 10000 lines");
        else rc = take_line(&y, p, n, line, err);
        p += n + 1;
    }
    if (rc == OK) close_key(&y);
    if (rc == OK && cJSON_GetArraySize(im.flags) == 0) rc = error_set(err, E_INVALID, "expected key: value lines, as in model_name_or_path: …");
    free(y.outer);
    free(y.key);
    values_clear(&y.list);
    if (rc != OK) {
        cJSON_Delete(im.spec);
        cJSON_Delete(im.flags);
        cJSON_Delete(im.defaults);
        return rc;
    }
    settle(&im);
    import_end(&im, out);
    return OK;
}
