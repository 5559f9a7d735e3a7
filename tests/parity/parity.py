#!/usr/bin/env python3
"""Ringmaster against torch, transformers and PEFT, whole programs on both sides.

usage: tests/parity/parity.py [--build DIR] [--venv DIR] [--write docs/parity.md] [CASE…]

Makes a virtual environment with current torch, transformers and peft from the Python package index unless it runs in one. For every
case: a tiny random model saved by transformers (and an adapter by PEFT) is trained for ten steps by `ringmaster run` and by torch on
the batch that Ringmaster dumped. Compared are the loss and every gradient of the first step, the weights after ten, the checkpoint as
transformers and PEFT load it, and the merged model. Not part of scripts/test; --write commits the last table."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

from common import ALL, ROOT, TINY, VERSIONS, backward, forget_lengths, load_torch, off, parser, peft_name, randomise, rope, write_section

import peft
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

args = parser.parse_args()
torch.set_num_threads(1)                        # the models are tiny
STEPS, LR = 10, 2e-3
#      name: (model, PEFT configuration or None, further spec fields)
CASES = {
    "qwen2 tied, full": (dict(model_type="qwen2", tie_word_embeddings=True), None, {}),
    "qwen2 untied, full": (dict(model_type="qwen2", tie_word_embeddings=False), None, {}),
    "qwen2 upper-layer window, full": (dict(model_type="qwen2", use_sliding_window=True, sliding_window=20, max_window_layers=1), None, {}),
    "qwen3, full": (dict(model_type="qwen3", head_dim=16, tie_word_embeddings=True), None, {}),
    "llama with biases, full": (dict(model_type="llama", attention_bias=True, mlp_bias=True), None, {}),
    "mistral window, full": (dict(model_type="mistral", sliding_window=24, head_dim=16), None, {}),
    "rope linear, full": (dict(model_type="llama", num_hidden_layers=1, **rope(rope_type="linear", factor=2.5)), None, {}),
    "rope dynamic, full": (dict(model_type="llama", num_hidden_layers=1, **rope(rope_type="dynamic", factor=2.0), max_position_embeddings=32), None, {}),
    "rope yarn, full": (dict(model_type="qwen2", num_hidden_layers=1, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)), None, {}),
    "rope yarn, mscale, full": (dict(model_type="qwen2", num_hidden_layers=1, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=8, beta_slow=0.5, mscale=0.7, mscale_all_dim=1.0)), None, {}),
    "rope llama3, full": (dict(model_type="llama", num_hidden_layers=1, **rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)), None, {}),
}
FAMILIES = {
    "qwen2 tied": dict(model_type="qwen2", tie_word_embeddings=True),
    "qwen2": dict(model_type="qwen2"),
    "qwen3": dict(model_type="qwen3", head_dim=16),
    "llama": dict(model_type="llama"),
    "mistral": dict(model_type="mistral", sliding_window=24),
}
LORA = dict(r=4, lora_alpha=8, target_modules=ALL)
PATTERNS = dict(rank_pattern={"layers.0.self_attn.q_proj": 6, r"layers\.1\.mlp\.(up|down)_proj": 5, "q_proj": 2}, alpha_pattern={r".*layers\.0.*": 20, "v_proj": 3})
for family, over in FAMILIES.items():
    CASES[f"{family}, lora"] = (over, LORA, {})
    CASES[f"{family}, rslora, lora+"] = (over, dict(LORA, use_rslora=True), dict(lorap_lr_ratio=4))
    CASES[f"{family}, dora"] = (over, dict(LORA, use_dora=True), {})
    CASES[f"{family}, lora, modules_to_save"] = (over, dict(LORA, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head", "norm"]), {})
for name in [n for n in CASES if n.startswith("rope ")]:
    CASES[name.replace("full", "lora")] = (CASES[name][0], LORA, {})
CASES.update({
    "llama, lora by regular expression": (FAMILIES["llama"], dict(LORA, target_modules=r".*\.(q|v)_proj"), {}),
    "qwen2 tied, lora, head saved": (FAMILIES["qwen2 tied"], dict(LORA, target_modules=["q_proj"], modules_to_save=["lm_head"]), {}),
    "qwen3, lora, rank and alpha patterns": (FAMILIES["qwen3"], dict(LORA, **PATTERNS), {}),
    "qwen2, rsdora, rank and alpha patterns": (FAMILIES["qwen2"], dict(LORA, use_dora=True, use_rslora=True, **PATTERNS), {}),
})
TEXT = [("What is a ring?", "A closed band, often of metal, worn on a finger; or a circle of hosts that pass a token on."),
        ("Say yes.", "Yes."),
        ("How do tides arise?", "The moon pulls the near side of the sea more than the earth, and the earth more than the far side, so the water stands high twice a day."),
        ("Name two rivers.", "The Danube and the Elbe.")]


def groups(model, ratio):
    by = {}
    for n, p in model.named_parameters():
        if p.requires_grad:
            decay = not (n.endswith(".bias") or "norm.weight" in n or "norm.modules_to_save" in n or "layernorm" in n)
            by.setdefault((decay, "lora_B" in n), []).append(p)
    return [dict(params=p, weight_decay=0.1 if decay else 0.0, lr=LR * (ratio if b and ratio else 1)) for (decay, b), p in by.items()]


def ringmaster(*argv):
    r = subprocess.run([os.path.join(args.build, "ringmaster"), *argv], capture_output=True, text=True, timeout=600)
    if r.returncode != 0:
        raise RuntimeError(f"ringmaster {argv[0]}: {r.stderr.strip()[-600:]}")
    return r.stdout


def prepare(work, over, lora):
    model_dir, adapter = os.path.join(work, "model"), None
    cfg = AutoConfig.for_model(**{**TINY, **over})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32)
    randomise(model, 1)
    model.save_pretrained(model_dir)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(ROOT, "examples", "tiny-qwen2", f), model_dir)
    if lora:
        adapter = os.path.join(work, "adapter")
        p = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **lora))
        randomise(p, 2, lambda n: "lora_A" in n or "lora_B" in n)
        p.save_pretrained(adapter)
    with open(os.path.join(work, "data.jsonl"), "w") as f:
        for q, a in TEXT:
            f.write(json.dumps(dict(query=q, response=a)) + "\n")
    return model_dir, adapter


def spec_for(work, model_dir, adapter, lora, extra):
    s = dict(model=model_dir, torch_dtype="float32", dataset=[os.path.join(work, "data.jsonl")], template="chatml", max_length=256, packing=True, dataset_shuffle=False,
             tuner_type="lora" if lora else "full", learning_rate=LR, lr_scheduler_type="constant", warmup_ratio=0, max_steps=STEPS, weight_decay=0.1, max_grad_norm=1.0,
             device="cpu", threads_per_rank=1, output_dir=os.path.join(work, "out"), debug_dump=os.path.join(work, "dump"), **extra)
    if lora:
        t = lora["target_modules"]
        s.update(lora_rank=lora["r"], lora_alpha=lora["lora_alpha"], lora_dropout=0, target_modules=[t] if isinstance(t, str) else t, adapter=adapter,
                 modules_to_save=lora.get("modules_to_save", []), use_rslora=lora.get("use_rslora", False), use_dora=lora.get("use_dora", False))
    path = os.path.join(work, "spec.json")
    with open(path, "w") as f:
        json.dump(s, f)
    return path


def one(name, over, lora, extra):
    work = tempfile.mkdtemp(prefix="parity-")
    try:
        model_dir, adapter = prepare(work, over, lora)
        ringmaster("run", spec_for(work, model_dir, adapter, lora, extra), "--json")
        b = load_file(os.path.join(work, "dump", "batch.safetensors"))
        ours = load_file(os.path.join(work, "dump", "grads.safetensors"))
        with open(os.path.join(work, "dump", "loss.json")) as f:
            our_loss = json.load(f)["loss"]
        model = load_torch(model_dir, adapter)
        opt = torch.optim.AdamW(groups(model, extra.get("lorap_lr_ratio", 0)), lr=LR, betas=(0.9, 0.95), eps=1e-8)
        worst = 0.0
        for step in range(STEPS):
            opt.zero_grad()
            loss = backward(model, b)
            if step == 0:
                theirs = {peft_name(n): p.grad for n, p in model.named_parameters() if p.requires_grad}
                assert set(theirs) == set(ours), (set(theirs) ^ set(ours))
                worst = max(off(ours[n], g) for n, g in theirs.items())
                first = abs(our_loss - loss) / loss
            torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
            opt.step()
        done = os.path.join(work, "out", f"checkpoint-{STEPS}")
        again = load_torch(model_dir if lora else done, done if lora else None)
        mine, want = dict(again.named_parameters()), dict(model.named_parameters())
        weights = max(off(mine[n], p) for n, p in want.items() if p.requires_grad)
        with torch.no_grad():
            ids = b["input_ids"][: b["cu_seqlens"][1]].long()[None]
            forget_lengths(model)
            reloaded = off(again.eval()(ids).logits, model.eval()(ids).logits)
            merged = None
            if lora:
                out = os.path.join(work, "merged")
                ringmaster("merge", done, out, "--base", model_dir)
                m = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
                merged = off(m(ids).logits, again(ids).logits)
        return first, worst, weights, reloaded, merged
    finally:
        shutil.rmtree(work, ignore_errors=True)


LIMITS = (1e-5, 1e-4, 1e-4, 1e-4, 1e-4)
lines, bad = [], 0
for name, (over, lora, extra) in CASES.items():
    if args.cases and not any(c in name for c in args.cases):
        continue
    try:
        r = one(name, over, lora, extra)
        ok = all(x is None or x <= limit for x, limit in zip(r, LIMITS))
        cells = ["-" if x is None else f"{x:.1e}" for x in r]
    except Exception as e:
        ok, cells = False, [str(e)[:300]] + [""] * 4
    bad += not ok
    line = f"| {name} | " + " | ".join(cells) + f" | {'yes' if ok else 'NO'} |"
    print(line, flush=True)
    lines.append(line)

if args.write:
    write_section(args.write, None, f"""# Parity with torch, transformers and PEFT

Made by `tests/parity/parity.py --write docs/parity.md`; {VERSIONS}, fp32, CPU.

Each row: a tiny random model saved by transformers (with an adapter saved by PEFT), trained for {STEPS} steps by `ringmaster run` and by
torch on the same packed row, documents one at a time there. Errors are relative (norm of the difference over norm); for gradients and
weights of the worst tensor. Checkpoint: logits of Ringmaster's checkpoint loaded by transformers or PEFT against torch's own trained model. Merged:
`ringmaster merge` loaded by transformers against the unmerged adapter in PEFT. Limits: loss 1e-5, the rest 1e-4.

| case | first loss | gradients | weights after {STEPS} steps | checkpoint | merged | within limits |
|---|---|---|---|---|---|---|
""" + "\n".join(lines) + "\n")
sys.exit(1 if bad else 0)
