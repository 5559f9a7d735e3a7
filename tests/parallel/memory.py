#!/usr/bin/env python3
"""What grows with the row shrinks with the ranks: at 32K tokens a rank of four holds at most 0.26 of what one rank holds, under every policy, by the plan
(which is what ranks allocate: tests/train/plan_exact.py). Counted: buffers that are larger at 64K than at 32K, and those of the ring, whose pieces have a
fixed size from there on. Tiles of the MLP and the logits have a fixed size everywhere.   usage: memory.py WORKER"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "train"))
from gang import tiny_data, tiny_model, write_spec

POLICIES, SHAPES, LIMIT = ("none", "attention", "layer", "offload_host", "offload_disk"), ((4, 1), (1, 4), (2, 2)), 0.26
RING = ("attn.ring", "attn.dkv", "attn.ws")


def growing(worker, tmp, dtype, policy, U, R):
    sizes = []
    for T in (32768, 65536):
        spec = write_spec(f"{tmp}/s.json", model=f"{tmp}/model", init="random", torch_dtype=dtype, dataset=[f"{tmp}/d.jsonl"], template="chatml", max_length=T, packing=True,
                          tuner_type="full", max_steps=1, device="cpu", nproc_per_node=U * R, ulysses_size=U, ring_size=R, gradient_checkpointing=policy,
                          memory_limit_bytes=10**15, output_dir=f"{tmp}/out")
        plan = json.loads(subprocess.run([worker, "--plan", spec], capture_output=True, text=True).stdout)
        assert plan["ok"], plan
        sizes.append({b["name"]: b["bytes"] for b in plan["ranks"][0]["buffers"]})
    return sum(n for name, n in sizes[0].items() if sizes[1].get(name) != n or name in RING)


def main():
    worker, tmp = sys.argv[1], tempfile.mkdtemp(prefix="rm-memory-")
    try:
        tiny_model(f"{tmp}/model", hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=4, vocab_size=32768)
        tiny_data(f"{tmp}/d.jsonl")
        for dtype, policy in [(d, p) for d in ("float32", "bfloat16") for p in POLICIES]:
            one = growing(worker, tmp, dtype, policy, 1, 1)
            for U, R in SHAPES:
                share = growing(worker, tmp, dtype, policy, U, R) / one
                print(f"{dtype}, {policy}: {one / 2**20:.0f} MiB on one rank, U {U} R {R} holds {share:.4f} of it", flush=True)
                assert share <= LIMIT, (dtype, policy, U, R, share)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
