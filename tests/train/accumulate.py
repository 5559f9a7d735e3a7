#!/usr/bin/env python3
"""Rows count the same wherever and whenever they are trained: data-parallel ranks, micro-steps, batches, tails of an epoch.

Reports behind it: gradients and losses off by a factor P or DP (DeepSpeed #5248, ms-swift), accumulation that averages means of unequal
micro-batches (unsloth #1134), an epoch's tail scaled by the full count (LLaMA-Factory #9409), steps counted with the world instead of the
data-parallel size (ms-swift #4553).   usage: accumulate.py WORKER"""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from gang import Gang, read_safetensors, relative, tiny_data, tiny_model, write_spec

SHAPES = [      # name, ranks, fields: always 4 rows in a step
    ("accumulate", 1, dict(gradient_accumulation_steps=4)),
    ("batch", 1, dict(per_device_train_batch_size=4)),
    ("both", 1, dict(per_device_train_batch_size=2, gradient_accumulation_steps=2)),
    ("dp2", 2, dict(sequence_parallel_size=1, gradient_accumulation_steps=2)),
    ("dp4", 4, dict(sequence_parallel_size=1)),
    ("dp2 x ring2", 4, dict(ring_size=2, sequence_parallel_size=2, gradient_accumulation_steps=2)),
    ("dp2 x ulysses2, batch 2", 4, dict(ulysses_size=2, sequence_parallel_size=2, per_device_train_batch_size=2)),
]


def main():
    worker, tmp = sys.argv[1], tempfile.mkdtemp(prefix="rm-accumulate-")
    try:
        model, base = tiny_model(f"{tmp}/model"), None
        data = tiny_data(f"{tmp}/d.jsonl", n=18, longest=120)      # 18 rows of unequal length: two whole steps of 4... and a tail of 2
        for name, n, fields in SHAPES:
            out = f"{tmp}/{name.replace(' ', '-')}"
            spec = dict(model=model, init="random", torch_dtype="float32", dataset=[data], template="chatml", max_length=256, packing=False, tuner_type="full",
                        learning_rate=1e-2, lr_scheduler_type="constant", warmup_ratio=0, num_train_epochs=3, seed=5, device="cpu", nproc_per_node=n, threads_per_rank=1,
                        gradient_checkpointing="none", save_only_model=True, output_dir=out, debug_dump=f"{out}/dump")
            spec.update(fields)
            g = Gang(worker, write_spec(f"{out}.json", **spec), n).run()
            assert g.codes == [0] * n, (name, g.stderr)
            losses, tokens = g.losses(), [m["tokens"] for m in g.records("metrics")]
            grads, batch = read_safetensors(f"{out}/dump/grads.safetensors"), read_safetensors(f"{out}/dump/batch.safetensors")
            trained = sum(1 for x in batch["labels"][2] if x != -100)
            assert trained == json.load(open(f"{out}/dump/loss.json"))["weight"], "every row of the step is in the dump, once"
            if base is None:
                base = losses, tokens, grads
                assert len(losses) == 15, len(losses)       # ceil(18 / 4) = 5 steps an epoch, the last of 2 rows
                for epoch in range(1, 3):                   # each row once in each epoch
                    assert sum(tokens[5 * epoch:5 * epoch + 5]) == sum(tokens[:5]), tokens
            off = max(abs(a - b) / abs(b) for a, b in zip(losses, base[0]))
            worst = max(relative(grads[k][2], base[2][k][2]) for k in grads)
            print(f"{name}: {len(losses)} steps, losses off by {off:.1e}, gradients by {worst:.1e}", flush=True)
            assert len(losses) == len(base[0]) and tokens == base[1] and off < 1e-5 and worst < 1e-5
        # ms-swift #4553 to the letter: 16 rows, 4 ranks in pairs, batch 1, accumulation 2 are 4 steps an epoch, counted by data-parallel size 2
        data = tiny_data(f"{tmp}/d16.jsonl", n=16, longest=60)
        spec.update(dataset=[data], nproc_per_node=4, sequence_parallel_size=2, ring_size=2, ulysses_size=1, per_device_train_batch_size=1, gradient_accumulation_steps=2,
                    num_train_epochs=1, output_dir=f"{tmp}/sixteen")
        del spec["debug_dump"]
        g = Gang(worker, write_spec(f"{tmp}/sixteen.json", **spec), 4).run()
        assert g.codes == [0] * 4 and [m["step"] for m in g.records("metrics")] == [1, 2, 3, 4], (g.codes, g.stderr)
        assert g.records("ready")[0]["steps"] == 4 and abs(g.records("metrics")[-1]["epoch"] - 1) < 1e-12
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
