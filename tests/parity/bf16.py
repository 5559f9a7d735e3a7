#!/usr/bin/env python3
"""bfloat16: how far gradients and loss are from float64, Ringmaster's against torch's, on the same stored weights and input.

usage: tests/parity/bf16.py [--build DIR] [--venv DIR] [--draws N] [--write docs/parity.md] [CASE…]

For every family and tuner, N draws: random weights (rounded to bf16, adapters f32), random text. The truth is the same files computed by
transformers and PEFT in f64. The yardstick is torch as transformers and PEFT load such a model: bf16 weights and activations, SDPA
attention, adapters f32 (PEFT's default), logits f32 for the loss. For every tensor the error |g - g64| / |g64| is averaged over the
draws (a single draw of rounding errors favours either side); the case's figure is the worst tensor's ratio of the two means. Beside it,
for information, torch's autocast over f32 weights, which keeps the residual stream in f32."""
import json
import os
import random
import shutil
import sys
import tempfile

from common import ALL, ROOT, TINY, VERSIONS, backward, load_torch, off, parser, peft_name, randomise, rope, write_section

import peft
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, os.path.join(ROOT, "tests", "train"))
from gang import Gang  # noqa: E402

parser.add_argument("--draws", type=int, default=12)
parser.add_argument("--show", action="store_true", help="every tensor")
args = parser.parse_args()
torch.set_num_threads(1)                        # the models are tiny
LLAMA3 = rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
FAMILIES = {
    "qwen2, tied": dict(model_type="qwen2", tie_word_embeddings=True),
    "qwen3": dict(model_type="qwen3", head_dim=24),
    "llama, rope llama3": dict(model_type="llama", **LLAMA3),
    "mistral, window 24": dict(model_type="mistral", sliding_window=24),
}
LORA = dict(r=4, lora_alpha=8, target_modules=ALL)
TUNERS = {
    "full": None,
    "lora": LORA,
    "rslora": dict(LORA, use_rslora=True),
    "dora": dict(LORA, use_dora=True),
    "lora, modules_to_save": dict(LORA, modules_to_save=["embed_tokens", "lm_head", "norm"]),
}
WORDS = "ring token host moon water sea tide near far metal finger band circle pass high low day twice river bridge stone and or of the a".split()


def text(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n)) + rng.choice(".?!")


def prepare(work, family, lora, draw):
    rng = random.Random(draw)
    model_dir, adapter = os.path.join(work, "model"), None
    cfg = AutoConfig.for_model(**{**TINY, "hidden_size": 64, "intermediate_size": 96, **family})
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32)
    randomise(model, 100 + draw)
    model = model.bfloat16()
    model.save_pretrained(model_dir)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(ROOT, "examples", "tiny-qwen2", f), model_dir)
    if lora:
        adapter = os.path.join(work, "adapter")
        p = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **lora))
        randomise(p, 200 + draw, lambda n: "lora_A" in n or "lora_B" in n)
        with torch.no_grad():
            for n, x in p.named_parameters():
                if "magnitude" in n:
                    x.mul_(1 + 0.3 * torch.rand(x.shape, generator=torch.Generator().manual_seed(draw)))
        p.save_pretrained(adapter)
    with open(os.path.join(work, "data.jsonl"), "w") as f:
        for _ in range(rng.randint(3, 6)):
            f.write(json.dumps(dict(query=text(rng, rng.randint(1, 12)), response=text(rng, rng.randint(2, 30)))) + "\n")
    return model_dir, adapter


def ours(work, model_dir, adapter, lora):
    s = dict(model=model_dir, torch_dtype="bfloat16", dataset=[os.path.join(work, "data.jsonl")], template="chatml", max_length=512, packing=True, dataset_shuffle=False,
             tuner_type="lora" if lora else "full", max_steps=1, device="cpu", threads_per_rank=1, output_dir=os.path.join(work, "out"), debug_dump=os.path.join(work, "dump"))
    if lora:
        s.update(lora_rank=lora["r"], lora_alpha=lora["lora_alpha"], lora_dropout=0, target_modules=lora["target_modules"], adapter=adapter,
                 modules_to_save=lora.get("modules_to_save", []), use_rslora=lora.get("use_rslora", False), use_dora=lora.get("use_dora", False))
    path = os.path.join(work, "spec.json")
    with open(path, "w") as f:
        json.dump(s, f)
    g = Gang(os.path.join(args.build, "ringmaster-worker"), path, 1).run()
    if g.codes != [0]:
        raise RuntimeError(g.stderr[0][-600:])
    with open(os.path.join(work, "dump", "loss.json")) as f:
        loss = json.load(f)["loss"]
    return load_file(os.path.join(work, "dump", "batch.safetensors")), load_file(os.path.join(work, "dump", "grads.safetensors")), loss


def torchs(model, b, autocast=False):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = backward(model, b)
    return {peft_name(n): p.grad for n, p in model.named_parameters() if p.requires_grad}, loss


def one_draw(family, lora, draw):
    """Errors by tensor, "loss" among them, of Ringmaster, torch, torch's autocast."""
    work = tempfile.mkdtemp(prefix="parity-")
    try:
        model_dir, adapter = prepare(work, family, lora, draw)
        b, mine, my_loss = ours(work, model_dir, adapter, lora)
        want, loss = torchs(load_torch(model_dir, adapter).double(), b)
        sides = [(mine, my_loss), torchs(load_torch(model_dir, adapter, torch.bfloat16, "sdpa"), b), torchs(load_torch(model_dir, adapter, attention="sdpa"), b, True)]
        assert set(mine) == set(want), set(mine) ^ set(want)
        return [dict({n: off(g[n], want[n]) for n in want}, loss=abs(x - loss) / loss) for g, x in sides]
    finally:
        shutil.rmtree(work, ignore_errors=True)


def short(name):
    return name.replace("base_model.model.", "").replace("model.layers.", "").replace(".weight", "").replace("self_attn.", "").replace("mlp.", "")


def case(family, lora):
    draws = [one_draw(family, lora, d) for d in range(args.draws)]
    mean = [{n: sum(d[side][n] for d in draws) / len(draws) for n in draws[0][0]} for side in range(3)]
    ratio = {n: mean[0][n] / max(mean[1][n], 1e-30) for n in mean[0]}
    if args.show:
        for n in sorted(ratio, key=ratio.get):
            print(f"    {ratio[n]:6.2f} {mean[0][n]:.2e} {mean[1][n]:.2e} {mean[2][n]:.2e} {n}")
    loss = ratio.pop("loss")
    worst = max(ratio, key=ratio.get)
    ordered = sorted(ratio.values())
    sums = [sum(m[n] for n in ratio) for m in mean]
    single = max(d[0][n] / max(d[1][n], 1e-30) for d in draws for n in ratio)
    ok = ratio[worst] <= 2 and loss <= 2
    return ok, [str(len(ratio)), f"{ratio[worst]:.2f} ({short(worst)})", f"{ordered[len(ordered) // 2]:.2f}", f"{sums[0]:.3g} / {sums[1]:.3g} / {sums[2]:.3g}",
                f"{mean[0]['loss']:.1e} / {mean[1]['loss']:.1e}", f"{single:.2f}"]


lines, bad = [], 0
for family in FAMILIES:
    for tuner in TUNERS:
        name = f"{family}; {tuner}"
        if args.cases and not any(c in name for c in args.cases):
            continue
        try:
            ok, cells = case(FAMILIES[family], TUNERS[tuner])
        except Exception as e:
            ok, cells = False, [str(e)[-300:]] + [""] * 5
        bad += not ok
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {'yes' if ok else 'NO'} |")
        print(lines[-1], flush=True)

if args.write:
    write_section(args.write, "bfloat16", f"""Made by `tests/parity/bf16.py --write docs/parity.md`; {VERSIONS}, CPU, {args.draws} draws of weights and text for each case.

The truth: the same stored weights (bf16; adapters f32) computed in f64. The yardstick: torch as transformers and PEFT load such a model, bf16 weights and
activations, SDPA attention, adapters f32. A tensor's error is |g - g64| / |g64|, averaged over the draws, because one draw of rounding errors
favours either side. Worst: the tensor with the largest ratio of Ringmaster's mean to torch's; limit 2, for the loss too. Median: of those ratios over tensors. Sums of the
means over all tensors: Ringmaster / torch / torch's autocast over f32 weights (which keeps the residual stream in f32; for information). Single: the largest ratio of
any tensor in any single draw, for information.

| case | tensors | worst tensor | median | sums of errors | loss error | single | within limits |
|---|---|---|---|---|---|---|---|
""" + "\n".join(lines))
sys.exit(1 if bad else 0)
