/* Importing other tools' commands: what becomes of each flag. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/import.h"
#include "tests/suite.h"

static cJSON *r;
static struct error err;

static const cJSON *flag(const char *name)
{
    const cJSON *list = json_get(r, "flags");
    for (const cJSON *f = list->child; f; f = f->next)
        if (strcmp(json_str(f, "flag"), name) == 0) return f;
    return NULL;
}

static void expect(const char *name, const char *status)
{
    const cJSON *f = flag(name);
    ck_assert_msg(f != NULL, "%s is not reported", name);
    ck_assert_msg(strcmp(json_str(f, "status"), status) == 0, "%s is %s (%s), expected %s", name, json_str(f, "status"), json_str(f, "why"), status);
    if (strcmp(status, "ignored") == 0 || strcmp(status, "unsupported") == 0) ck_assert_msg(*json_str(f, "why"), "%s: no reason", name);
}

static const char *text(const char *field) { const char *s = json_str(json_get(r, "spec"), field); return s ? s : "(absent)"; }
static double num(const char *field) { return json_num(json_get(r, "spec"), field, -1); }

START_TEST(swift_line)
{
    static const char line[] = "NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 swift sft --model /m/Qwen2.5-7B --dataset 'd.jsonl#2000' --train_type lora --ulysses true --ulysses_seq_len 16384 "
        "--max_length 32768 --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --learning_rate 2e-4 --lora_rank 16 --output_dir out --torch_dtype bfloat16 --deepspeed zero2 "
        "--use_flash_attn true --zero2_offload_optimizer true --dataloader_num_workers 4";
    ck_assert_int_eq(import_swift(&r, line, sizeof line - 1, &err), OK);
    ck_assert(json_bool(r, "supported", false));
    ck_assert_str_eq(text("sequence_parallel_method"), "ulysses");
    ck_assert_double_eq(num("ulysses_size"), 2);
    ck_assert_double_eq(num("nproc_per_node"), 2);
    ck_assert_double_eq(num("zero_stage"), 2);
    ck_assert_double_eq(num("learning_rate"), 2e-4);
    ck_assert(json_bool(json_get(r, "spec"), "zero_offload_optimizer", false));
    expect("--model", "kept");
    expect("--train_type", "translated");
    expect("--ulysses_seq_len", "translated");
    expect("--deepspeed", "translated");
    expect("--zero2_offload_optimizer", "translated");
    expect("--dataloader_num_workers", "ignored");
    expect("NPROC_PER_NODE", "translated");
    cJSON_Delete(r);
}
END_TEST

START_TEST(swift_script)
{
    static const char script[] = "#!/bin/bash\n# 2 * 40GiB\nset -e\nexport OMP_NUM_THREADS=3 WANDB_MODE=offline\nMODEL=\"/m/a model\"\r\nLEN=${LEN:-8192}\n"
        "torchrun --nproc_per_node=4 --master_port 29500 $SWIFT/swift/cli/sft.py \\\n    --model \"$MODEL\" \\\n    --dataset a.jsonl \\\n              'b c.jsonl' \\\n"
        "    # --lora_rank 64 \\\n    --train_type=full --galore true --galore_rank 64 --galore_update_interval 200 --max-length $LEN \\\n"
        "    --gradient_checkpointing false --weight_decay .1 --system \"say \\\"hi\\\" # not a comment\" --packing > log 2>&1 &\necho done; swift infer --model x\n";
    ck_assert_int_eq(import_swift(&r, script, sizeof script - 1, &err), OK);
    ck_assert_str_eq(text("model"), "/m/a model");
    ck_assert_str_eq(text("tuner_type"), "full");
    ck_assert_str_eq(text("gradient_checkpointing"), "none");
    ck_assert_str_eq(text("system"), "say \"hi\" # not a comment");
    ck_assert_double_eq(num("max_length"), 8192);
    ck_assert_double_eq(num("nproc_per_node"), 4);
    ck_assert_double_eq(num("threads_per_rank"), 3);
    ck_assert_double_eq(num("galore_update_proj_gap"), 200);
    ck_assert_double_eq(num("weight_decay"), 0.1);
    ck_assert_double_eq(num("lora_rank"), -1);
    ck_assert_double_eq(num("learning_rate"), 1e-5);        /* ms-swift's default for full tuning */
    ck_assert_int_eq(cJSON_GetArraySize(json_get(json_get(r, "spec"), "dataset")), 2);
    ck_assert(json_bool(json_get(r, "spec"), "packing", false));
    expect("WANDB_MODE", "ignored");
    expect("--master_port", "ignored");
    expect("(another command)", "ignored");
    ck_assert(json_bool(r, "supported", false));
    cJSON_Delete(r);
}
END_TEST

static const struct { const char *args, *flag, *status; bool supported; } cases[] = {
    { "--quant_bits 4", "--quant_bits", "unsupported", false },
    { "--no_such_flag 1", "--no_such_flag", "unsupported", false },
    { "--train_type adalora", "--train_type", "unsupported", false },
    { "--torch_dtype float16", "--torch_dtype", "unsupported", false },
    { "--deepspeed ./my.json", "--deepspeed", "unsupported", false },
    { "--deepspeed zero3_offload", "--deepspeed", "translated", true },
    { "--lora_bias none", "--lora_bias", "ignored", true },
    { "--lora_bias all", "--lora_bias", "unsupported", false },
    { "--max_length none", "--max_length", "ignored", true },
    { "--max_length long", "--max_length", "unsupported", false },
    { "--max_length 3", "--max_length", "unsupported", false },          /* out of range: the spec table says so */
    { "--lr_scheduler_type polynomial", "--lr_scheduler_type", "unsupported", false },
    { "--galore true", "--galore", "unsupported", false },               /* with LoRA */
    { "--max_steps -1", "--max_steps", "ignored", true },
    { "--attn_impl flash_attention_2", "--attn_impl", "translated", true },
    { "--report_to tensorboard", "--report_to", "ignored", true },
    { "--rope_scaling yarn --max_model_len 65536", "--rope_scaling", "translated", true },
    { "--rope_scaling longrope", "--rope_scaling", "unsupported", false },
    { "--rope_scaling '{\"rope_type\":\"yarn\",\"factor\":4.0}'", "--rope_scaling", "kept", true },
    { "--max_length 32768 --ulysses_seq_len 10000", "--ulysses_seq_len", "translated", false },
    { "stray", "--output_dir", "unsupported", false },
    { "--sequence_parallel_size 4", "--sequence_parallel_size", "kept", true },
    { "--columns '{\"a\":\"query\"}'", "--columns", "kept", true },
    { "--fp16 true", "--fp16", "unsupported", false },
    { "--target_regex '^model.*q_proj$'", "--target_regex", "translated", true },
};

START_TEST(swift_flags)
{
    char line[500];
    (void)snprintf(line, sizeof line, "swift sft --model /m --dataset d.jsonl --output_dir o %s", cases[_i].args);
    ck_assert_msg(import_swift(&r, line, strlen(line), &err) == OK, "%s", err.text);
    expect(cases[_i].flag, cases[_i].status);
    ck_assert_msg(json_bool(r, "supported", !cases[_i].supported) == cases[_i].supported, "%s", cases[_i].args);
    cJSON_Delete(r);
}
END_TEST

static const char *const refused[] = { "", "echo hello", "swift", "swift sft --model 'x", "\xff\xfe swift sft" };

START_TEST(swift_refuses)
{
    ck_assert_int_ne(import_swift(&r, refused[_i], strlen(refused[_i]), &err), OK);
    ck_assert_ptr_null(r);
    ck_assert(err.text[0]);
}
END_TEST

START_TEST(other_stages_are_not_trained)
{
    static const char line[] = "swift rlhf --rlhf_type dpo --model m --dataset d";
    ck_assert_int_eq(import_swift(&r, line, sizeof line - 1, &err), OK);
    expect("rlhf", "unsupported");
    expect("--rlhf_type", "unsupported");
    cJSON_Delete(r);
}
END_TEST

START_TEST(llamafactory)
{
    static const char yaml[] = "### model\nmodel_name_or_path: /m/llama  # here\ntrust_remote_code: true\n---\nstage: sft\ndo_train: true\nfinetuning_type: lora\nlora_target:\n  - q_proj\n  - 'v_proj'\n"
        "parallel:\n  sequence_parallel_size: 4\n  use_ring_attn: true\ndataset: one, two\nmax_samples: 10\ntemplate: llama3\ncutoff_len: 2048\nnum_train_epochs: 3.0\nlearning_rate: 1.0e-4\n"
        "output_dir: \"saves/a b\"\nbf16: true\ndeepspeed: examples/deepspeed/ds_z3_offload_config.json\nquantization_bit: 4\nplot_loss: true\nnobody_knows: [1, 2]\nresume_from_checkpoint: null\nval_size: 0.1\n";
    ck_assert_msg(import_llamafactory(&r, yaml, sizeof yaml - 1, &err) == OK, "%s", err.text);
    ck_assert_str_eq(text("model"), "/m/llama");
    ck_assert_str_eq(text("output_dir"), "saves/a b");
    ck_assert_str_eq(text("sequence_parallel_method"), "ring");
    ck_assert_double_eq(num("sequence_parallel_size"), 4);
    ck_assert_double_eq(num("nproc_per_node"), 4);
    ck_assert_double_eq(num("zero_stage"), 3);
    ck_assert_double_eq(num("lora_alpha"), 16);
    ck_assert_double_eq(num("split_dataset_ratio"), 0.1);
    ck_assert_str_eq(json_get(json_get(r, "spec"), "dataset")->child->next->valuestring, "two#10");
    ck_assert_int_eq(cJSON_GetArraySize(json_get(json_get(r, "spec"), "target_modules")), 2);
    expect("quantization_bit", "unsupported");
    expect("nobody_knows", "unsupported");
    expect("plot_loss", "ignored");
    expect("resume_from_checkpoint", "ignored");
    ck_assert(!json_bool(r, "supported", true));
    cJSON_Delete(r);
}
END_TEST

static const char *const bad_yaml[] = { "", "just words\n", "a: &x 1\n", "a: |\n  text\n", "- x\n", "\tq: 1\n", "a: 1\n   b: 2\n", "a: {b: 1\n", "a: [1\n" };

START_TEST(llamafactory_refuses)
{
    ck_assert_msg(import_llamafactory(&r, bad_yaml[_i], strlen(bad_yaml[_i]), &err) != OK, "%s", bad_yaml[_i]);
    ck_assert(err.text[0]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("import");
    TCase *t = tcase_create("import");
    tcase_add_test(t, swift_line);
    tcase_add_test(t, swift_script);
    tcase_add_loop_test(t, swift_flags, 0, (int)(sizeof cases / sizeof cases[0]));
    tcase_add_loop_test(t, swift_refuses, 0, (int)(sizeof refused / sizeof refused[0]));
    tcase_add_test(t, other_stages_are_not_trained);
    tcase_add_test(t, llamafactory);
    tcase_add_loop_test(t, llamafactory_refuses, 0, (int)(sizeof bad_yaml / sizeof bad_yaml[0]));
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
