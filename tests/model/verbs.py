#!/usr/bin/env python3
"""merge and sample as a person runs them.  usage: verbs.py BUILD SOURCE"""
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

build, source = sys.argv[1:3]
fixtures = os.path.join(source, "tests", "model", "fixtures")


def worker(*argv):
    r = subprocess.run([os.path.join(build, "ringmaster-worker"), *argv], capture_output=True, text=True, timeout=60)
    return r.returncode, r.stdout, r.stderr


def check(ok, what):
    if not ok:
        sys.exit(f"failed: {what}")


def header(path):
    with open(path, "rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def random_tensors(path, shapes):
    rng, head, data = random.Random(1), {}, b""
    for name, shape in shapes.items():
        n = shape[0] * (shape[1] if len(shape) == 2 else 1)
        raw = struct.pack(f"<{n}f", *(1.0 if "norm" in name else rng.gauss(0, 0.5) for _ in range(n)))
        head[name] = dict(dtype="F32", shape=shape, data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def random_adapter(folder, base):
    prefix = "base_model.model.model.layers.0.mlp.up_proj."
    random_tensors(os.path.join(folder, "adapter_model.safetensors"), {prefix + "lora_A.weight": [2, 16], prefix + "lora_B.weight": [24, 2]})
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump(dict(peft_type="LORA", base_model_name_or_path=base, r=2, lora_alpha=40, target_modules=["up_proj"], lora_dropout=0.1, bias="none"), f)


def random_model(folder):
    """A qwen2 of width 16 with the example's vocabulary, written without any library."""
    c = dict(model_type="qwen2", hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, vocab_size=4096,
             max_position_embeddings=256, tie_word_embeddings=True, torch_dtype="float32")
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [4096, 16], "model.norm.weight": [16], layer + "input_layernorm.weight": [16], layer + "post_attention_layernorm.weight": [16]}
    for name, out, width in (("self_attn.q_proj", 16, 16), ("self_attn.k_proj", 8, 16), ("self_attn.v_proj", 8, 16), ("self_attn.o_proj", 16, 16),
                             ("mlp.gate_proj", 24, 16), ("mlp.up_proj", 24, 16), ("mlp.down_proj", 16, 24)):
        shapes[layer + name + ".weight"] = [out, width]
        if name[-6] in "qkv" and "attn" in name:
            shapes[layer + name + ".bias"] = [out]
    random_tensors(os.path.join(folder, "model.safetensors"), shapes)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(source, "examples", "tiny-qwen2", name), folder)


with tempfile.TemporaryDirectory() as tmp:
    out = os.path.join(tmp, "merged")
    rc, _, err = worker("--merge", os.path.join(fixtures, "lora-save-tied"), out)
    check(rc == 2 and "--base" not in err and "name the base model" in err, f"a base that is not here is asked for: {rc} {err}")
    rc, said, err = worker("--merge", os.path.join(fixtures, "lora-save-tied"), out, "--base", os.path.join(fixtures, "qwen2-tied"))
    check(rc == 0 and said.strip() == out, f"merge: {rc} {err}")
    with open(os.path.join(out, "config.json")) as f:
        check(json.load(f)["tie_word_embeddings"] is False, "a head trained apart comes out untied")
    check("lm_head.weight" in header(os.path.join(out, "model.safetensors")), "and has its own tensor")
    rc, _, err = worker("--merge", os.path.join(fixtures, "lora-save-tied"), out, "--base", os.path.join(fixtures, "qwen2-tied"))
    check(rc == 2 and "already there" in err, f"nothing is overwritten: {rc} {err}")
    rc, _, err = worker("--merge", os.path.join(fixtures, "lora"), os.path.join(tmp, "wrong"), "--base", os.path.join(fixtures, "qwen3"))
    check(rc == 2 and os.listdir(tmp) == ["merged"], f"a base that does not fit leaves nothing behind: {rc} {err} {os.listdir(tmp)}")

    model = os.path.join(tmp, "model")
    os.mkdir(model)
    random_model(model)
    say = ["--sample", model, "--prompt", "The quick brown fox", "--max_new_tokens", "8"]
    rc, first, err = worker(*say)
    check(rc == 0 and first.startswith("The quick brown fox") and len(first) > len("The quick brown fox") + 1, f"sample: {rc} {first!r} {err}")
    check(worker(*say)[1] == first, "greedy is repeatable")
    warm = [worker(*say, "--temperature", "2", "--seed", str(seed))[1] for seed in (1, 1, 2)]
    check(warm[0] == warm[1] and warm[0] != warm[2], f"a seed is a continuation: {warm}")
    adapter, merged = os.path.join(tmp, "adapter"), os.path.join(tmp, "adapted")
    os.mkdir(adapter)
    random_adapter(adapter, model)
    rc, adapted, err = worker("--sample", adapter, *say[2:])
    check(rc == 0 and adapted != first, f"an adapter changes the text: {rc} {adapted!r} {err}")
    said = json.loads(worker(*say, "--json")[1])
    check(said["prompt"] + said["text"] + "\n" == first and 0 < said["tokens"] <= 8, f"as JSON: {said}")
    check(worker("--sample", model, "--prompt", "--json", "--max_new_tokens", "2")[1].startswith("--json"), "a prompt may be --json")
    check(json.loads(worker("--merge", "--json", adapter, merged + "-too")[1]) == {"output": merged + "-too"}, "merge as JSON")
    check(worker("--merge", adapter, merged)[0] == 0 and worker("--sample", merged, *say[2:])[1] == adapted, "the merged model says what the adapter says")
    for bad, word in ((["--sample", model], "--prompt"), (["--sample", tmp, "--prompt", "x"], "config.json"), (say[:-1] + ["0"], "max_new_tokens"), (["--sample"], "usage")):
        rc, _, err = worker(*bad)
        check(rc == 2 and word in err, f"{bad} is refused: {rc} {err}")
