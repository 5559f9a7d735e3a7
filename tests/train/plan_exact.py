#!/usr/bin/env python3
"""`--plan` predicts what every rank takes, byte for byte and by category; and no policy changes what is trained.   usage: plan_exact.py WORKER"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from gang import Gang, tiny_data, tiny_model, write_spec

POLICIES = ["none", "attention", "layer", "offload_host", "offload_disk"]
TUNERS = [dict(tuner_type="full"), dict(tuner_type="lora", lora_rank=3, modules_to_save=["lm_head"]), dict(tuner_type="full", torch_dtype="bfloat16"),
          dict(tuner_type="full", use_galore=True, galore_rank=4), dict(tuner_type="full", torch_dtype="bfloat16", zero_stage=3),
          dict(tuner_type="full", gradient_accumulation_steps=3, per_device_train_batch_size=2)]
SHAPES = [(1, 1, 1), (2, 1, 2), (4, 2, 2), (2, 1, 1)]       # ranks, ulysses, ring; the last: two data-parallel ranks


def main():
    worker, tmp, checked = sys.argv[1], tempfile.mkdtemp(prefix="rm-plan-"), 0
    try:
        model, data = tiny_model(f"{tmp}/model"), tiny_data(f"{tmp}/d.jsonl")
        losses = {}
        for policy in POLICIES:
            for i, tuner in enumerate(TUNERS):
                if i > 0 and policy in ("attention", "offload_disk"):
                    continue
                for n, U, R in SHAPES if i < 1 else SHAPES[2:3]:
                    spec = dict(model=model, init="random", torch_dtype="float32", dataset=[data], template="chatml", max_length=200, packing=True, max_steps=2, device="cpu",
                                nproc_per_node=n, ulysses_size=U, ring_size=R, threads_per_rank=1, gradient_checkpointing=policy, save_only_model=True,
                                offload_dir=f"{tmp}/off", output_dir=f"{tmp}/out")
                    spec.update(tuner)
                    shutil.rmtree(f"{tmp}/out", ignore_errors=True)         # a new run wants a folder without checkpoints
                    path = write_spec(f"{tmp}/spec.json", **spec)
                    p = subprocess.run([worker, "--plan", path], capture_output=True, text=True)
                    plan = json.loads(p.stdout)
                    assert p.returncode == 0 and plan["policy"] == policy, p.stdout
                    g = Gang(worker, path, n).run()
                    assert g.codes == [0] * n, (spec, g.codes, g.stderr)
                    got = g.losses(), g.records("metrics")[-1]["grad_norm"]
                    assert losses.setdefault((i, n, U, R), got) == got, (spec, got, losses)
                    for r in range(n):
                        want, ready, last = plan["ranks"][r], g.records("ready", r)[0], g.records("metrics", r)[-1]
                        assert want["peak_bytes"] == ready["peak_bytes"] == ready["allocated_bytes"] == last["peak_bytes"] == last["allocated_bytes"], (spec, want["peak_bytes"], ready)
                        assert want["categories"] == last["memory"], (spec, want["categories"], last["memory"])
                        assert sum(want["categories"].values()) == want["peak_bytes"]
                        assert sum(b["bytes"] for b in want["buffers"] if not b["scratch"]) <= want["peak_bytes"] <= sum(b["bytes"] for b in want["buffers"])
                        checked += 1
        print(f"{checked} ranks took exactly what was planned")
        assert checked > 80
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
