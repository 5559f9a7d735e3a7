#!/usr/bin/env python3
"""The same job at (U,R) = (1,1) (2,1) (1,2) (4,1) (1,4) (2,2): equal losses over 20 steps, equal first gradients, bytes sent as the formulas say.

usage: selfcheck.py WORKER CASE     cases: packed, odd, last (labels only on the last rank's part), batch (two rows), lora"""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from gang import Gang, read_safetensors, relative, tiny_data, tiny_model, write_spec

GRID = [(1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2)]
CASES = {       # kv_heads 2 < U = 4 everywhere
    "packed": dict(max_length=512, packing=True),
    "odd": dict(max_length=236, packing=True, truncation_strategy="right"),
    "last": dict(max_length=256, packing=False),
    "batch": dict(max_length=128, packing=True, per_device_train_batch_size=2, gradient_accumulation_steps=2),
    "dora": dict(max_length=256, packing=True, tuner_type="lora", lora_rank=4, lora_dropout=0.1, use_dora=True, modules_to_save=["embed_tokens", "lm_head"]),
    "lora": dict(max_length=256, packing=True, tuner_type="lora", lora_rank=4, lora_dropout=0.1),
}


def last_data(path):
    """A long question, a short answer: what is trained lies at the end of each row, on one rank."""
    with open(path, "w") as f:
        for i in range(30):
            ask = " ".join(f"word{(i * 7 + k * 3) % 50}" for k in range(22))
            f.write(json.dumps({"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": f"answer {i}"}]}) + "\n")
    return path


def formula(L, H, K, D, U, R, T, b=4):
    """Bytes a rank sends in one layer: docs/communication.md (forward, backward without recompute), f32 accumulators."""
    P, Kx = U * R, K if K % U == 0 else U
    n, S = T // P, T
    a2a = b * D * n * (2 * H + 2 * Kx) * (U - 1) // U
    ring_f = 2 * (Kx // U) * D * b * (S // R) * (R - 1)
    ring_b = 2 * (Kx // U) * D * (S // R) * (b * (R - 1) + 4 * R) if R > 1 else 0
    delta = 4 * n * H * (U - 1) // U
    return L * (2 * a2a + delta + ring_f + ring_b)


def all_reduce(count, size, n):
    """Reduce-scatter and all-gather over slices of ceil(count / n)."""
    return 2 * (n - 1) * ((count + n - 1) // n) * size


def main():
    worker, case = sys.argv[1:3]
    tmp = tempfile.mkdtemp(prefix="rm-selfcheck-")
    try:
        model = tiny_model(f"{tmp}/model")
        data = last_data(f"{tmp}/d.jsonl") if case == "last" else tiny_data(f"{tmp}/d.jsonl")
        base = None
        for U, R in GRID:
            P = U * R
            spec = dict(model=model, init="random", torch_dtype="float32", dataset=[data], template="chatml", tuner_type="full", learning_rate=1e-2,
                        lr_scheduler_type="constant", warmup_ratio=0, max_steps=20, seed=7, device="cpu", nproc_per_node=P, ulysses_size=U, ring_size=R,
                        threads_per_rank=1, gradient_checkpointing="none", save_only_model=True, output_dir=f"{tmp}/out-{U}-{R}", debug_dump=f"{tmp}/dump-{U}-{R}")
            spec.update(CASES[case])
            g = Gang(worker, write_spec(f"{tmp}/spec-{U}-{R}.json", **spec), P).run()
            assert g.codes == [0] * P, (U, R, g.codes, g.stderr)
            losses, grads = g.losses(), read_safetensors(f"{tmp}/dump-{U}-{R}/grads.safetensors")
            assert len(losses) == 20 and len(g.records("done")) == 1
            for r in range(1, P):
                assert g.losses(r) == losses, "ranks disagree on the loss"
            if base is None:
                base = losses, grads
                assert losses[-1] < losses[0] - 0.1, losses
            if P > 1:
                T = len(read_safetensors(f"{tmp}/dump-{U}-{R}/batch.safetensors")["input_ids"][2])
                flat = sum((len(t[2]) + 63) // 64 * 64 for t in grads.values())
                flat = (flat + 64 * P - 1) // (64 * P) * 64 * P
                want = formula(2, 4, 2, 8, U, R, T) + all_reduce(flat, 4, P) + all_reduce(6 + 2 * P, 8, P) + all_reduce(2, 8, P)   # gradients, the loss and what ranks tell of themselves, debug_dump's word
                for r in range(P):
                    sent = g.records("metrics", r)[0]["sent_bytes"]
                    assert sent == want, (U, R, r, sent, want, g.records("metrics", r)[0]["collectives"])
            off = max(abs(a - b) / abs(b) for a, b in zip(losses, base[0]))
            worst = max(((relative(grads[k][2], base[1][k][2]), k) for k in base[1]), default=(0, ""))
            print(f"{case} U={U} R={R}: losses off by {off:.1e}, gradients by {worst[0]:.1e} ({worst[1]})", flush=True)
            assert set(grads) == set(base[1])
            assert off < 1e-5 and worst[0] < 1e-5
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
