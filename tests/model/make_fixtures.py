#!/usr/bin/env python3
"""Makes tests/model/fixtures: tiny random models with what Hugging Face computes for them, in float64.

Run by hand, in an environment with torch, transformers and peft; the result is committed.  usage: make_fixtures.py [CASE…]

Each case is a folder: config.json and model.safetensors as transformers saves them (adapters: adapter_config.json and
adapter_model.safetensors as PEFT saves them, over another case's model), and case.safetensors: the batch (input_ids, labels
already shifted, loss_weights, position_ids, cu_seqlens), logits, loss and grad.NAME. Documents go through the model one at a time,
so a packed row has to equal separate sequences."""
import json
import os
import shutil
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
TINY = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=None)
DOCS = [19, 7, 1, 21]


def rope(**kw):
    return dict(rope_parameters=dict(rope_theta=10000.0, **kw))


MODELS = {
    "qwen2-tied": dict(model_type="qwen2", tie_word_embeddings=True),
    "qwen2-untied": dict(model_type="qwen2", tie_word_embeddings=False, num_key_value_heads=1),
    "qwen2-window": dict(model_type="qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3": dict(model_type="qwen3", head_dim=6, tie_word_embeddings=True),
    "llama": dict(model_type="llama", attention_bias=True, mlp_bias=True, pad_token_id=16),
    "llama-old": dict(model_type="llama", old=True, **rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)),
    "mistral": dict(model_type="mistral", sliding_window=6, head_dim=8),
    "qwen2-bf16": dict(model_type="qwen2", bf16=True, hidden_size=32, head_dim=None),
    "rope-linear": dict(model_type="llama", num_hidden_layers=1, **rope(rope_type="linear", factor=2.5)),
    "rope-dynamic": dict(model_type="llama", num_hidden_layers=1, max_position_embeddings=8, **rope(rope_type="dynamic", factor=2.0)),
    "rope-yarn": dict(model_type="qwen2", num_hidden_layers=1, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    "rope-yarn-mscale": dict(model_type="qwen2", num_hidden_layers=1, old=True, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=8, beta_slow=0.5,
                                                                                        mscale=0.7, mscale_all_dim=1.0)),
}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "lora": ("qwen2-tied", dict(r=4, lora_alpha=8, target_modules=ALL)),
    "lora-rs-some": ("qwen2-untied", dict(r=3, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "mlp.down_proj"])),
    "lora-save": ("qwen2-untied", dict(r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["lm_head", "embed_tokens", "input_layernorm"])),
    "lora-save-tied": ("qwen2-tied", dict(r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["lm_head"])),
    **{f"lora-bf16-{k}": ("qwen2-bf16", dict(seed=k, r=4, lora_alpha=8, target_modules=ALL)) for k in range(1, 6)},
    "lora-patterns": ("qwen2-tied", dict(r=4, lora_alpha=8, target_modules=ALL, rank_pattern={"layers.0.self_attn.q_proj": 6, "q_proj": 2, r"layers\.1\.mlp\.(up|down)_proj": 5},
                                         alpha_pattern={r".*layers\.0.*": 20, "v_proj": 3})),
    "dora-bf16": ("qwen2-bf16", dict(seed=6, r=4, lora_alpha=8, use_dora=True, target_modules=ALL)),
    "save-bf16": ("qwen2-bf16", dict(seed=7, r=4, lora_alpha=8, target_modules=ALL, modules_to_save=["lm_head", "embed_tokens", "norm"])),
    "dora": ("qwen2-untied", dict(r=3, lora_alpha=6, use_dora=True, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])),
}


def batch(seed, docs, vocab):
    g = torch.Generator().manual_seed(seed)
    n = sum(docs)
    ids = torch.randint(3, vocab, (n,), generator=g)
    labels = torch.full((n,), -100)
    weights = torch.zeros(n)
    positions, cu, at = [], [0], 0
    for k, d in enumerate(docs):
        for t in range(d - 1):
            if k != 1 and (torch.rand(1, generator=g) < 0.7).item():        # document 1 is a prompt without an answer
                labels[at + t] = ids[at + t + 1]
                weights[at + t] = [1.0, 0.5, 2.0][(at + t) % 3]
        positions += range(d)
        at += d
        cu.append(at)
    return dict(input_ids=ids.int(), labels=labels.int(), loss_weights=weights, position_ids=torch.tensor(positions).int(), cu_seqlens=torch.tensor(cu))


def forget_lengths(model):
    """Dynamic RoPE remembers the longest sequence it saw; every document must start without that memory."""
    for m in model.modules():
        if getattr(m, "rope_type", "") == "dynamic":
            m.max_seq_len_cached = m.original_max_seq_len
            m.register_buffer("inv_freq", m.original_inv_freq.clone(), persistent=False)


def run(model, b, dtype=torch.float64):
    """Loss and gradients, in float64 unless told otherwise; returns what a case expects."""
    (model.to(dtype) if dtype else model).train()
    cu = b["cu_seqlens"].tolist()
    total = b["loss_weights"].double().sum()
    logits, loss = [], 0.0
    for s, e in zip(cu[:-1], cu[1:]):
        forget_lengths(model)
        z = model(input_ids=b["input_ids"][s:e].long()[None], use_cache=False).logits[0].double()
        ce = torch.nn.functional.cross_entropy(z, b["labels"][s:e].long(), reduction="none", ignore_index=-100)
        part = (ce * b["loss_weights"][s:e].double()).sum() / total
        if part.requires_grad:
            part.backward()
        loss += part.item()
        logits.append(z.detach())
    return dict(logits=torch.cat(logits).float(), loss=torch.tensor([loss], dtype=torch.float64))


def randomise(model, seed, only=lambda n: True):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if only(n):
                p.copy_(torch.randn(p.shape, generator=g) * (0.25 if p.dim() > 1 else 0.2) + (1.0 if "norm" in n and n.endswith("weight") else 0.0))


def old_spelling(path):
    with open(path) as f:
        c = json.load(f)
    r = c.pop("rope_parameters")
    c["rope_theta"] = r.pop("rope_theta")
    r["type"] = r.pop("rope_type")
    c["rope_scaling"] = r
    c["torch_dtype"] = c.pop("dtype", "float32")
    with open(path, "w") as f:
        json.dump(c, f, indent=2)


def make_model(name, over):
    over = dict(over)
    old, docs, bf16 = over.pop("old", False), over.pop("docs", DOCS), over.pop("bf16", False)
    over = {k: v for k, v in over.items() if v is not None}
    cfg = AutoConfig.for_model(**{**TINY, **over})
    cfg._attn_implementation = "eager"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32)
    randomise(model, len(name))
    out = os.path.join(HERE, name)
    if bf16:
        model = model.bfloat16()
    model.save_pretrained(out)
    if os.path.exists(os.path.join(out, "generation_config.json")):
        os.remove(os.path.join(out, "generation_config.json"))
    if old:
        old_spelling(os.path.join(out, "config.json"))
    b = batch(1, docs, cfg.vocab_size)
    assert cfg.pad_token_id is None or cfg.pad_token_id in b["input_ids"]
    low = {}
    if bf16:                                    # what torch's bf16 makes of the same weights
        rough = run(model, b, torch.bfloat16)
        low = {n: p.grad.double() for n, p in model.named_parameters()}
        model.zero_grad()
        model = model.double()
    r = run(model, b)
    if bf16:
        low = {"bf16." + n: torch.tensor([((g - p.grad).norm() / p.grad.norm()).item()]) for (n, g), p in zip(low.items(), model.parameters())}
        low["bf16.loss"] = (rough["loss"] - r["loss"]).abs() / r["loss"]
    grads = {"grad." + n: p.grad.float() for n, p in model.named_parameters()}
    save_file({**b, **r, **grads, **low}, os.path.join(out, "case.safetensors"))
    print(name, r["loss"].item())


def file_name(n):
    """A trained parameter's name in PEFT's file."""
    n = n.replace(".default.weight", ".weight") if "magnitude" not in n else n.replace(".default.weight", "")
    return n.replace(".default", "").replace(".modules_to_save", "")


def make_adapter(name, base, kw):
    kw = dict(kw)
    seed = kw.pop("seed", 0)
    low = {}
    model = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, base), dtype=torch.bfloat16 if "bf16" in base else torch.float32, attn_implementation="eager")
    peft = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **kw))
    randomise(peft, 7 + seed, lambda n: "lora_A" in n or "lora_B" in n or "modules_to_save" in n)
    if kw.get("use_dora"):
        with torch.no_grad():
            for n, p in peft.named_parameters():
                if "magnitude" in n:
                    p.mul_(1 + 0.3 * torch.rand(p.shape, generator=torch.Generator().manual_seed(3)))
    out = os.path.join(HERE, name)
    peft.save_pretrained(out)
    if os.path.exists(os.path.join(out, "README.md")):
        os.remove(os.path.join(out, "README.md"))
    path = os.path.join(out, "adapter_config.json")
    with open(path) as f:
        c = json.load(f)
    c["base_model_name_or_path"] = base
    if isinstance(c["target_modules"], list):
        c["target_modules"].sort()
    with open(path, "w") as f:
        json.dump(c, f, indent=2, sort_keys=True)
    b = batch(2 + seed, DOCS, 40)
    if "bf16" in base:                          # PEFT keeps the adapter itself in float32
        rough = run(peft, b, None)
        low = {n: p.grad.double() for n, p in peft.named_parameters() if p.requires_grad}
        peft.zero_grad()
    r = run(peft, b)
    if low:
        low = {"bf16." + file_name(n): torch.tensor([((g - dict(peft.named_parameters())[n].grad).norm() / dict(peft.named_parameters())[n].grad.norm()).item()]) for n, g in low.items()}
        low["bf16.loss"] = (rough["loss"] - r["loss"]).abs() / r["loss"]
    grads = {}
    for n, p in peft.named_parameters():
        if p.requires_grad:
            grads["grad." + file_name(n)] = p.grad.float()
    if low:
        r.pop("logits")
    save_file({**b, **r, **grads, **low}, os.path.join(out, "case.safetensors"))
    print(name, r["loss"].item(), len(grads))


wanted = sys.argv[1:]
os.makedirs(HERE, exist_ok=True)
for case, spec in MODELS.items():
    if not wanted or case in wanted:
        shutil.rmtree(os.path.join(HERE, case), ignore_errors=True)
        make_model(case, spec)
for case, (on, spec) in ADAPTERS.items():
    if not wanted or case in wanted:
        shutil.rmtree(os.path.join(HERE, case), ignore_errors=True)
        make_adapter(case, on, spec)
