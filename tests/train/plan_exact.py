#!/usr/bin/env python3
"""`--plan` predicts what every rank takes, byte for byte and by category, under every policy at 1, 2 and 4 ranks; and no policy changes
what is trained.   usage: plan_exact.py WORKER TUNER"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from gang import Gang, tiny_data, tiny_model, write_spec

POLICIES = ["none", "attention", "layer", "offload_host", "offload_disk"]
BF16 = dict(torch_dtype="bfloat16")
TUNERS = {
    "full": dict(tuner_type="full"),
    "full-bf16": dict(BF16, tuner_type="full"),
    "lora": dict(tuner_type="lora", lora_rank=3, modules_to_save=["lm_head"]),
    "lora-bf16": dict(BF16, tuner_type="lora", lora_rank=3, use_rslora=True, lorap_lr_ratio=4, rank_pattern={"q_proj": 5, "layers.1.mlp.up_proj": 1}),
    "dora": dict(BF16, tuner_type="lora", lora_rank=3, use_dora=True, modules_to_save=["norm"]),
    "galore": dict(tuner_type="full", use_galore=True, galore_rank=4),
    "zero": dict(BF16, tuner_type="full", zero_stage=3),
    "batch": dict(tuner_type="full", gradient_accumulation_steps=3, per_device_train_batch_size=2),
}
SHAPES = [(1, 1, 1), (2, 1, 2), (2, 2, 1), (4, 2, 2), (2, 1, 1)]    # ranks, ulysses, ring; the last: two data-parallel ranks


def main():
    worker, tuner, tmp, checked = sys.argv[1], sys.argv[2], tempfile.mkdtemp(prefix="rm-plan-"), 0
    try:
        model, data = tiny_model(f"{tmp}/model"), tiny_data(f"{tmp}/d.jsonl")
        losses = {}
        for policy in POLICIES:
            for n, U, R in SHAPES if tuner == "full" else SHAPES[:2] + SHAPES[3:4]:
                spec = dict(model=model, init="random", torch_dtype="float32", dataset=[data], template="chatml", max_length=200, packing=True, max_steps=2, device="cpu",
                            nproc_per_node=n, ulysses_size=U, ring_size=R, threads_per_rank=1, gradient_checkpointing=policy, save_only_model=True,
                            offload_dir=f"{tmp}/off", output_dir=f"{tmp}/out")
                spec.update(TUNERS[tuner])
                shutil.rmtree(f"{tmp}/out", ignore_errors=True)             # a new run wants a folder without checkpoints
                path = write_spec(f"{tmp}/spec.json", **spec)
                p = subprocess.run([worker, "--plan", path], capture_output=True, text=True)
                plan = json.loads(p.stdout)
                assert p.returncode == 0 and plan["policy"] == policy, p.stdout
                g = Gang(worker, path, n).run()
                assert g.codes == [0] * n, (spec, g.codes, g.stderr)
                got = g.losses(), g.records("metrics")[-1]["grad_norm"]
                assert losses.setdefault((n, U, R), got) == got, (spec, got, losses)
                for r in range(n):
                    want, ready, last = plan["ranks"][r], g.records("ready", r)[0], g.records("metrics", r)[-1]
                    assert want["peak_bytes"] == ready["peak_bytes"] == ready["allocated_bytes"] == last["peak_bytes"] == last["allocated_bytes"], (spec, want["peak_bytes"], ready)
                    assert want["categories"] == last["memory"], (spec, want["categories"], last["memory"])
                    assert sum(want["categories"].values()) == want["peak_bytes"]
                    assert sum(b["bytes"] for b in want["buffers"] if not b["scratch"]) <= want["peak_bytes"] <= sum(b["bytes"] for b in want["buffers"])
                    checked += 1
        print(f"{tuner}: {checked} ranks took exactly what was planned")
        assert checked >= 35
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
