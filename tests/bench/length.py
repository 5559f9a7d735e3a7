#!/usr/bin/env python3
"""How long a row fits: a Qwen2.5-0.5B-shaped model (24 layers, hidden 896, vocabulary 151,936, random weights) trains LoRA on one long row.

usage: length.py BUILD_DIR [--tokens 65536] [--ranks 2] [--dtype bfloat16] [--policy auto] [--doc TOKENS] [--steps 1] [--method auto] [--plan]
Prints the plan's peak, the peak taken, the machine's own figure for each rank (VmHWM), seconds and tokens/s. A benchmark, not a test."""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train"))
from gang import Gang, tiny_model, write_spec

SHAPE = dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, vocab_size=151936,
             max_position_embeddings=131072, rope_theta=1000000.0, tie_word_embeddings=True, torch_dtype="bfloat16", initializer_range=0.02)


def high_water(pid):
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0


def main():
    a = argparse.ArgumentParser()
    a.add_argument("build")
    a.add_argument("--tokens", type=int, default=65536)
    a.add_argument("--ranks", type=int, default=2)
    a.add_argument("--steps", type=int, default=1)
    a.add_argument("--doc", type=int, default=0, help="tokens of a document; 0: one document fills the row")
    a.add_argument("--dtype", default="bfloat16")
    a.add_argument("--policy", default="auto")
    a.add_argument("--method", default="auto")
    a.add_argument("--plan", action="store_true", help="only plan")
    o = a.parse_args()
    tmp = tempfile.mkdtemp(prefix="rm-length-")
    try:
        tiny_model(f"{tmp}/model", **SHAPE)
        rng, doc = random.Random(1), o.doc or o.tokens
        with open(f"{tmp}/data.jsonl", "w") as f:       # one byte is one token
            for _ in range(max(1, o.tokens // doc)):
                f.write(json.dumps({"text": "".join(rng.choice("abcdefgh ijklmnop qrstuvw xyz. ") for _ in range(doc - 8))}) + "\n")
        spec = dict(model=f"{tmp}/model", init="random", torch_dtype=o.dtype, dataset=[f"{tmp}/data.jsonl"], template="none", max_length=o.tokens, packing=o.doc > 0,
                    truncation_strategy="right", tuner_type="lora", lora_rank=8, max_steps=o.steps, device="cpu", nproc_per_node=o.ranks, sequence_parallel_size=o.ranks,
                    sequence_parallel_method=o.method, gradient_checkpointing=o.policy, save_only_model=True, stall_timeout_ms=36000000, output_dir=f"{tmp}/out")
        path = write_spec(f"{tmp}/spec.json", **spec)
        plan = json.loads(subprocess.run([f"{o.build}/ringmaster-worker", "--plan", path, "--brief"], capture_output=True, text=True).stdout)
        if not plan["ok"]:
            sys.exit(plan["problems"][0]["message"])
        print(f"planned: policy {plan['policy']}, {plan['parallel']['why']}")
        for r in plan["ranks"]:
            print(f"  rank {r['rank']}: {r['peak_bytes'] / 2**30:.2f} GiB  " + "  ".join(f"{k} {v / 2**20:.0f}" for k, v in r["categories"].items() if v > 2**20) + " (MiB)")
        if o.plan:
            return
        water = [0] * o.ranks

        def on_message(gang, rank, m):
            if m["t"] in ("beat", "metrics"):
                water[rank] = max(water[rank], high_water(gang.procs[rank].pid))
        start = time.time()
        g = Gang(f"{o.build}/ringmaster-worker", path, o.ranks, on_message=on_message, timeout=36000).run()
        if set(g.codes) != {0}:
            sys.exit(f"{g.codes} {g.stderr}")
        for m in g.records("metrics"):
            print(f"step {m['step']}: loss {m['loss']:.4f}, {m['step_s']:.1f} s, forward {m['forward_s']:.1f}, backward {m['backward_s']:.1f}, {m['tokens_per_s']:.1f} tokens/s, "
                  f"communication {100 * m['comm_share']:.1f} %, sent {m['sent_bytes'] / 2**20:.0f} MiB")
        for r in range(o.ranks):
            print(f"rank {r}: took {g.records('ready', r)[0]['allocated_bytes'] / 2**30:.2f} GiB, process high water {water[r] / 2**30:.2f} GiB")
        print(f"{time.time() - start:.0f} s in all")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
