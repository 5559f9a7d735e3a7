#!/usr/bin/env python3
"""ZeRO 1, 2 and 3 train like ZeRO 0, to the last digits: losses, gradient norms and first gradients, with accumulation, clipping and two data-parallel
rows; they send what the formulas say, hold a share of the state, and their checkpoints resume under any other stage and number of ranks.

usage: zero.py WORKER CASE      cases: full, lora, bf16, offload"""
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "train"))
from gang import Gang, read_safetensors, relative, tiny_data, tiny_model, write_spec

CASES = {
    "full": dict(tuner_type="full"),
    "lora": dict(tuner_type="lora", lora_rank=4, lora_dropout=0.1),
    "bf16": dict(tuner_type="full", torch_dtype="bfloat16"),
    "offload": dict(tuner_type="full", zero_offload_optimizer=True),
}
STEPS = 8


def run(worker, tmp, name, world, **fields):
    spec = dict(model=f"{tmp}/model", init="random", torch_dtype="float32", dataset=[f"{tmp}/d.jsonl"], template="chatml", max_length=128, packing=True,
                learning_rate=5e-3, lr_scheduler_type="constant", warmup_ratio=0, max_grad_norm=0.5, gradient_accumulation_steps=4 if world == 1 else 2,
                max_steps=STEPS, save_steps=4, seed=7, device="cpu", nproc_per_node=world, threads_per_rank=1, gradient_checkpointing="attention",
                output_dir=f"{tmp}/{name}", debug_dump=f"{tmp}/{name}-dump")
    spec.update(fields)
    g = Gang(worker, write_spec(f"{tmp}/{name}.json", **spec), world).run()
    assert g.codes == [0] * world, (name, g.codes, g.stderr)
    return g


def main():
    worker, case = sys.argv[1:3]
    tmp = tempfile.mkdtemp(prefix="rm-zero-")
    tolerance = 2e-2 if case == "bf16" else 1e-5
    try:
        tiny_model(f"{tmp}/model", num_hidden_layers=6)
        tiny_data(f"{tmp}/d.jsonl")
        base, grads = None, None
        for stage in (0, 1, 2, 3):
            g = run(worker, tmp, f"z{stage}", 4, zero_stage=stage, ulysses_size=2, **CASES[case])
            losses, norms = g.losses(), [m["grad_norm"] for m in g.records("metrics")]
            for r in range(1, 4):
                assert g.losses(r) == losses, "ranks disagree on the loss"
            first = read_safetensors(f"{tmp}/z{stage}-dump/grads.safetensors")
            m = g.records("metrics", 1)[1]                      # the second step: no dump
            if base is None:
                base, base_norms, grads = losses, norms, first
                flat = sum((len(t[2]) + 63) // 64 * 64 for t in grads.values())
                flat = (flat + 255) // 256 * 256
                memory = m["memory"]
                continue
            off = max(abs(a - b) / abs(b) for a, b in zip(losses, base))
            worst = max((relative(first[k][2], grads[k][2]), k) for k in grads)
            norm_off = max(abs(a - b) / b for a, b in zip(norms, base_norms))
            print(f"{case} stage {stage}: losses off by {off:.1e}, norms by {norm_off:.1e}, first gradients by {worst[0]:.1e} ({worst[1]})", flush=True)
            assert off < tolerance and norm_off < 10 * tolerance and worst[0] < tolerance
            size = 2 if case == "bf16" else 4
            gathered = [g.records("metrics", r)[1]["collectives"]["all_gather"]["bytes"] for r in range(4)]
            if stage < 3:                                       # the updated weights, once
                assert gathered == [3 * (flat // 4) * size] * 4, (gathered, flat)
            elif case != "lora":                                # twice in each of two micro-steps, less what still lies in a bucket
                assert 2 * 3 * flat * size <= sum(gathered) <= 4 * 3 * flat * size, (gathered, flat)
                assert m["memory"]["weights"] < memory["weights"], (m["memory"], memory)
            scattered = sum(g.records("metrics", r)[1]["collectives"]["reduce_scatter"]["bytes"] for r in range(4))
            if stage == 1:
                assert scattered == 4 * 3 * (flat // 4) * 4, (scattered, flat)
            else:                                               # per micro-step, less the padding at the end
                assert 0 <= 2 * 3 * flat * 4 - scattered <= 2 * 3 * 256 * 4, (scattered, flat)
            assert m["memory"]["optimizer"] <= memory["optimizer"] // 4 + 4096, (m["memory"], memory)
            if case == "offload" and stage >= 2:                # on the CPU all memory is the host's: the same bits
                far = run(worker, tmp, f"far{stage}", 4, zero_stage=stage, zero_offload_gradients=True, ulysses_size=2, **CASES[case])
                assert far.losses() == losses and [x["grad_norm"] for x in far.records("metrics")] == norms, (far.losses(), losses)
                assert read_safetensors(f"{tmp}/far{stage}-dump/grads.safetensors") == first and far.records("metrics", 1)[1]["memory"] == m["memory"]
        # 4 + 4 steps, resumed with other shapes
        for name, world, fields in (("r1", 1, dict(zero_stage=0)), ("r2", 2, dict(zero_stage=1)), ("r4", 4, dict(zero_stage=3, ring_size=2))):
            if case == "lora" and world != 4:
                continue
            rest = run(worker, tmp, name, world, resume_from_checkpoint=f"{tmp}/z3/checkpoint-4", **CASES[case], **fields).losses()
            off = max(abs(a - b) / abs(b) for a, b in zip(rest, base[4:]))
            print(f"{case} resumed on {world} ranks, {fields}: off by {off:.1e}", flush=True)
            assert len(rest) == STEPS - 4 and off < tolerance
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
