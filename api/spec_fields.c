/* spec_fields.c - the table of job fields (see spec.h). One row each; groups appear in the form in this order. */
#include "api/spec.h"

#define AT(m) offsetof(struct spec, m)
#define INT(n, lo, hi, d, u, g, h, al) { #n, FIELD_INT, AT(n), lo, hi, d, NULL, u, g, h, al, "0.1" }
#define REAL(n, lo, hi, d, u, g, h, al) { #n, FIELD_REAL, AT(n), lo, hi, d, NULL, u, g, h, al, "0.1" }
#define BOOL(n, d, g, h, al) { #n, FIELD_BOOL, AT(n), 0, 1, d, NULL, "", g, h, al, "0.1" }
#define STR(n, hi, d, g, h, al) { #n, FIELD_STRING, AT(n), 0, hi, d, NULL, "", g, h, al, "0.1" }
#define PATH(n, d, g, h, al) { #n, FIELD_PATH, AT(n), 0, 4095, d, NULL, "", g, h, al, "0.1" }
#define ENUM(n, c, d, g, h, al) { #n, FIELD_ENUM, AT(n), 0, 0, d, c, "", g, h, al, "0.1" }
#define STRS(n, hi, d, g, h, al) { #n, FIELD_STRINGS, AT(n), 0, hi, d, NULL, "", g, h, al, "0.1" }
#define PATHS(n, d, g, h, al) { #n, FIELD_PATHS, AT(n), 0, 4095, d, NULL, "", g, h, al, "0.1" }
#define OBJ(n, d, g, h, al) { #n, FIELD_OBJECT, AT(n), 0, 0, d, NULL, "", g, h, al, "0.1" }
#define BIG 9007199254740991.0      /* 2^53 - 1: what JSON numbers carry exactly */

const struct field spec_fields[] = {
    STR (name, 200, "\"\"", "job", "A name for people; any text.", ""),
    OBJ (labels, "null", "job", "Your own key/value strings, to find the job by.", ""),
    INT (priority, -1000, 1000, "0", "", "job", "Higher starts first.", ""),
    STRS(after, 64, "[]", "job", "Ids of jobs that must succeed before this one starts.", ""),
    INT (max_restarts, 0, 100, "0", "restarts", "job", "How often a failed attempt starts again from its last checkpoint.", ""),
    INT (time_limit_s, 0, BIG, "0", "s", "job", "The job is stopped after this time; 0 means no limit.", ""),
    INT (grace_ms, 0, 600000, "10000", "ms", "job", "From the request to stop until ranks are killed.", ""),
    INT (stall_timeout_ms, 1000, 86400000, "600000", "ms", "job", "A rank whose step does not move for this long counts as hung.", ""),

    PATH(model, NULL, "model", "Folder with config.json, tokenizer.json and safetensors in Hugging Face form.", "model_id_or_path|model_name_or_path"),
    ENUM(init, "pretrained|random", "\"pretrained\"", "model", "pretrained loads the weights; random makes them from config.json and the seed.", ""),
    ENUM(torch_dtype, "float32|bfloat16", "\"bfloat16\"", "model", "Type of weights and activations; sums and optimizer state are always float32.", "dtype"),
    ENUM(attn_impl, "auto|flash|eager", "\"auto\"", "model", "Attention kernel; auto takes the fastest that the device supports.", "use_flash_attn"),
    OBJ (rope_scaling, "null", "model", "Overrides config.json's rope_scaling, e.g. {\"rope_type\":\"yarn\",\"factor\":4}.", ""),
    INT (max_model_len, 0, BIG, "0", "tokens", "model", "Length the scaled RoPE is prepared for; 0 takes the model's own.", ""),

    PATHS(dataset, NULL, "data", "Files or folders: .json .jsonl .csv .txt; path#N takes N samples.", ""),
    PATHS(val_dataset, "[]", "data", "Files for evaluation.", ""),
    REAL(split_dataset_ratio, 0, 0.9, "0", "", "data", "Share of the training documents set aside for evaluation.", ""),
    INT (max_length, 16, 1 << 27, "4096", "tokens", "data", "Tokens in one row, over all ranks of the sequence-parallel group.", "cutoff_len"),
    ENUM(truncation_strategy, "delete|left|right|split", "\"delete\"", "data", "What happens to documents longer than max_length.", ""),
    BOOL(packing, "false", "data", "Pack several documents into each row, kept apart by masks.", ""),
    BOOL(padding_free, "false", "data", "Changes nothing: rows are never padded to max_length. Taken for ms-swift's sake.", ""),
    STR (template, 64, "\"auto\"", "data", "Chat template: auto takes the model folder's own; or chatml, llama3, none.", ""),
    STR (system, 65536, "null", "data", "System message for conversations that bring none.", ""),
    ENUM(loss_scale, "default|last_round|all|ignore_empty_think", "\"default\"", "data", "Which tokens of a conversation are trained.", ""),
    OBJ (columns, "null", "data", "Renames columns of the data set: {\"their name\":\"our name\"}.", ""),
    BOOL(dataset_shuffle, "true", "data", "Shuffle by seed and epoch.", ""),
    BOOL(streaming, "false", "data", "Read the data set as it is needed instead of tokenizing it first.", ""),
    PATH(cached_dataset, "null", "data", "Folder for tokenized data sets; null keeps them under the output folder.", ""),

    ENUM(tuner_type, "full|lora", "\"lora\"", "training", "Train all weights, or low-rank adapters.", "train_type|sft_type|finetuning_type"),
    REAL(learning_rate, 0, 10, "1e-4", "", "training", "Learning rate after warm-up.", ""),
    ENUM(lr_scheduler_type, "cosine|linear|constant|constant_with_warmup|cosine_with_min_lr", "\"cosine\"", "training", "How the learning rate falls.", ""),
    REAL(warmup_ratio, 0, 1, "0.05", "", "training", "Share of all steps used for warm-up.", ""),
    INT (warmup_steps, 0, BIG, "0", "steps", "training", "Steps of warm-up; above 0 it wins over warmup_ratio.", ""),
    REAL(min_lr_ratio, 0, 1, "0", "", "training", "For cosine_with_min_lr: lowest rate as a share of learning_rate.", ""),
    REAL(num_train_epochs, 0, 1e6, "1", "epochs", "training", "Passes over the data, when max_steps is 0.", ""),
    INT (max_steps, 0, BIG, "0", "steps", "training", "Optimizer steps; 0 means num_train_epochs decides.", ""),
    INT (per_device_train_batch_size, 1, 4096, "1", "rows", "training", "Rows in one micro-step of a data-parallel rank.", ""),
    INT (gradient_accumulation_steps, 1, 65536, "1", "micro-steps", "training", "Micro-steps in one optimizer step.", ""),
    REAL(max_grad_norm, 0, 1e9, "1.0", "", "training", "Gradients are scaled down to this global norm; 0 does not clip.", ""),
    REAL(weight_decay, 0, 10, "0.1", "", "training", "AdamW's decoupled decay.", ""),
    REAL(adam_beta1, 0, 0.999999, "0.9", "", "training", "AdamW beta 1.", ""),
    REAL(adam_beta2, 0, 0.999999999, "0.95", "", "training", "AdamW beta 2.", ""),
    REAL(adam_epsilon, 0, 1, "1e-8", "", "training", "AdamW epsilon.", ""),
    INT (seed, 0, BIG, "42", "", "training", "Decides initial weights, order of data and dropout.", ""),
    BOOL(deterministic, "true", "training", "Bitwise equal runs.", ""),
    INT (eval_steps, 0, BIG, "0", "steps", "training", "Evaluate every so many steps; 0 means never.", ""),
    STRS(sample_prompts, 65536, "[]", "training", "Prompts whose greedy continuations are logged at every evaluation.", ""),
    INT (logging_steps, 1, BIG, "1", "steps", "training", "Write a line to logging.jsonl every so many steps.", ""),

    INT (lora_rank, 1, 4096, "8", "", "lora", "Rank of the adapters.", ""),
    REAL(lora_alpha, 0, 1e6, "32", "", "lora", "Adapters are scaled by alpha / rank.", ""),
    OBJ (rank_pattern, "null", "lora", "Other ranks for some layers, as in PEFT: {\"q_proj\":16}; absent: the adapter's own, if one is named.", ""),
    OBJ (alpha_pattern, "null", "lora", "Other alphas for some layers, as in PEFT: {\"layers\\\\.0\\\\..*\":64}.", ""),
    REAL(lora_dropout, 0, 0.95, "0.05", "", "lora", "Dropout in front of the adapters.", "lora_dropout_p"),
    STRS(target_modules, 1024, "[\"all-linear\"]", "lora", "Layers that get adapters: names, one regular expression, or all-linear.", "lora_target_modules|lora_target"),
    STRS(modules_to_save, 1024, "[]", "lora", "Modules trained whole beside the adapters (embed_tokens, lm_head, norms).", ""),
    BOOL(use_rslora, "false", "lora", "Scale by alpha / sqrt(rank).", ""),
    BOOL(use_dora, "false", "lora", "Weight-decomposed adapters.", ""),
    REAL(lorap_lr_ratio, 0, 1e4, "0", "", "lora", "LoRA+: learning rate of B over that of A; 0 is off.", ""),
    PATH(adapter, "null", "lora", "Adapter folder in PEFT's form to start from.", "adapters|adapter_name_or_path"),

    BOOL(use_galore, "false", "galore", "Project gradients to low rank for the optimizer (full tuning only).", "galore"),
    INT (galore_rank, 1, 65536, "128", "", "galore", "Rank of the projection.", ""),
    INT (galore_update_proj_gap, 1, BIG, "50", "steps", "galore", "Steps between new projections.", "galore_update_interval"),
    REAL(galore_scale, 0, 1e6, "1.0", "", "galore", "Scale of the projected update.", ""),
    ENUM(galore_proj_type, "std|reverse_std|right|left|full", "\"std\"", "galore", "Side of the projection.", ""),

    ENUM(device, "auto|cpu|cuda", "\"auto\"", "parallel", "auto takes GPUs where they are usable, else CPU ranks.", ""),
    INT (nproc_per_node, 1, 4096, "1", "ranks", "parallel", "Ranks: one process per device.", "num_processes"),
    INT (sequence_parallel_size, 0, 4096, "0", "ranks", "parallel", "Ranks that share one row; 0: ulysses_size x ring_size, or 1.", ""),
    ENUM(sequence_parallel_method, "auto|ulysses|ring|hybrid", "\"auto\"", "parallel", "How attention is shared among them.", ""),
    INT (ulysses_size, 0, 4096, "0", "ranks", "parallel", "Ulysses degree (heads are split); 0 chooses.", ""),
    INT (ring_size, 0, 4096, "0", "ranks", "parallel", "Ring degree (tokens stay split, keys and values travel); 0 chooses.", "cp_size|context_parallel_size"),
    BOOL(enable_sequence_overlap, "true", "parallel", "Send the next ring block while the current one is computed.", ""),
    BOOL(measure_links, "true", "parallel", "auto measures the speed between CPU ranks (not when deterministic), and reads how GPUs are wired; false: it assumes one.", ""),
    REAL(link_speed_gb_s, 0, 1e6, "0", "GB/s", "parallel", "Speed between two ranks in one direction, for auto; 0: measured or assumed.", ""),
    INT (exchange_limit_bytes, 0, BIG, "67108864", "bytes", "parallel", "Most a rank sends in one Ulysses exchange; longer ones go in pieces. 0: no limit.", ""),
    INT (zero_stage, 0, 3, "0", "", "parallel", "What is sharded over the ranks: 1 optimizer, 2 and gradients, 3 and weights.", "deepspeed"),
    BOOL(zero_offload_optimizer, "false", "parallel", "Keep optimizer state in host memory.", "zero2_offload_optimizer"),
    BOOL(zero_offload_gradients, "false", "parallel", "Keep this rank's share of the gradients in host memory (zero_stage 2 and 3).", ""),
    INT (threads_per_rank, 0, 1024, "0", "threads", "parallel", "CPU threads of a rank; 0: cores / ranks.", ""),

    STR (gradient_checkpointing, 32, "\"auto\"", "memory", "What backward recomputes: auto, none, attention, layer, offload_host, offload_disk.", ""),
    PATH(offload_dir, "null", "memory", "Folder for offload_disk.", ""),
    INT (memory_limit_bytes, 0, BIG, "0", "bytes", "memory", "Most a rank may allocate; 0: what the device or machine has.", ""),

    PATH(output_dir, NULL, "output", "Folder for checkpoints and logs; made if absent.", ""),
    INT (save_steps, 0, BIG, "0", "steps", "output", "Checkpoint every so many steps; the last step is always saved.", ""),
    INT (save_total_limit, 0, 1000000, "0", "checkpoints", "output", "Newest checkpoints kept; 0 keeps all.", ""),
    BOOL(save_only_model, "false", "output", "Leave optimizer state out; such a checkpoint cannot be resumed exactly.", ""),
    PATH(resume_from_checkpoint, "null", "output", "Checkpoint folder to go on from.", ""),
    PATH(debug_dump, "null", "output", "Folder for the first step's batch, gradients and loss.", ""),

    ENUM(launcher, "local|slurm", "\"local\"", "launch", "local: on the coordinator's machine; slurm: as a batch job of the Slurm cluster it can reach.", ""),
    INT (nodes, 1, 4096, "1", "nodes", "launch", "Machines; more than one is not built yet.", ""),
    STR (slurm_partition, 64, "null", "launch", "Slurm partition; null takes the cluster's default.", ""),
    STR (slurm_account, 64, "null", "launch", "Slurm account; null takes the user's default.", ""),
    INT (slurm_gpus_per_node, 0, 1024, "0", "GPUs", "launch", "GPUs asked of Slurm; 0: one for each rank with device cuda, else none.", ""),
    STRS(slurm_options, 200, "[]", "launch", "More of sbatch's options as --name=value: qos, constraint, mem, cpus-per-task, reservation, exclude, gres, nice and such.", ""),
};
const int n_spec_fields = (int)(sizeof spec_fields / sizeof spec_fields[0]);
