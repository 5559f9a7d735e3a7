#!/usr/bin/env python3
"""How much of the ring's communication hides behind arithmetic: its busy and its exposed share of the step, with enable_sequence_overlap and without.
A benchmark, not a test: run it on a quiet machine with at least as many cores as ranks.

usage: overlap.py BUILD_DIR [--tokens 32768] [--ranks 2] [--runs 3] [--steps 2] [--json FILE]
The first step of every run is not counted. Prints one line a run, then median and spread; exit code 1 if with overlap the exposed share is above a third of
the busy share. The model: 2 layers, hidden 256, 4/2 heads of 64, random weights, float32; a row is one document. Seven minutes on two quiet cores."""
import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train"))
from gang import Gang, tiny_model, write_spec

SHAPE = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=131072)


def run(o, tmp, overlap):
    out = f"{tmp}/out"
    shutil.rmtree(out, ignore_errors=True)
    spec = write_spec(f"{tmp}/s.json", model=f"{tmp}/model", init="random", torch_dtype="float32", dataset=[f"{tmp}/d.jsonl"], template="none", max_length=o.tokens,
                      truncation_strategy="right", tuner_type="full", max_steps=o.steps + 1, seed=1, device="cpu", nproc_per_node=o.ranks, ring_size=o.ranks, threads_per_rank=1,
                      gradient_checkpointing="none", save_only_model=True, enable_sequence_overlap=overlap, output_dir=out)
    g = Gang(f"{o.build}/ringmaster-worker", spec, o.ranks, timeout=3600).run()
    if any(g.codes):
        sys.exit(f"{g.codes}\n{g.stderr[0][-2000:]}")
    shares = {"busy": [], "exposed": [], "late": [], "step": []}
    for rank in range(o.ranks):
        for m in g.records("metrics", rank)[1:]:
            hop = m["collectives"]["hop"]
            for name in ("busy", "exposed", "late"):
                shares[name].append(hop[name + "_s"] / m["step_s"])
            shares["step"].append(m["step_s"])
    return {name: statistics.mean(v) for name, v in shares.items()}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("build")
    a.add_argument("--tokens", type=int, default=32768)
    a.add_argument("--ranks", type=int, default=2)
    a.add_argument("--runs", type=int, default=3)
    a.add_argument("--steps", type=int, default=2)
    a.add_argument("--json")
    o = a.parse_args()
    cores = len(os.sched_getaffinity(0))
    if o.ranks > cores:
        print(f"note: {o.ranks} ranks on {cores} cores: nothing can overlap", file=sys.stderr)
    tmp, rows = tempfile.mkdtemp(prefix="rm-overlap-"), []
    try:
        tiny_model(f"{tmp}/model", **SHAPE)
        rng = random.Random(o.tokens)
        with open(f"{tmp}/d.jsonl", "w") as f:
            for _ in range(o.steps + 1):
                f.write(json.dumps({"text": "".join(rng.choice("abcdefghijklmnop qrstuvwxyz. ") for _ in range(o.tokens + 8))}) + "\n")
        print(f"{o.tokens} tokens, ring of {o.ranks}, {cores} cores, load {os.getloadavg()[0]:.1f}")
        print("| run | overlap | step, s | ring busy, of the step | of it late peers | exposed | exposed / busy |\n|---|---|---|---|---|---|---|")
        for i in range(o.runs):
            for overlap in (True, False):
                r = run(o, tmp, overlap)
                rows.append({**r, "overlap": overlap, "ratio": r["exposed"] / r["busy"] if r["busy"] > 0 else 0})
                print(f"| {i + 1} | {'yes' if overlap else 'no'} | {r['step']:.2f} | {100 * r['busy']:.2f} % | {100 * r['late']:.2f} % | {100 * r['exposed']:.3f} % | {rows[-1]['ratio']:.3f} |",
                      flush=True)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    for overlap in (True, False):
        v = sorted(r["ratio"] for r in rows if r["overlap"] == overlap)
        print(f"{'with' if overlap else 'without'} overlap: exposed / busy {statistics.median(v):.3f} (median of {len(v)}, {v[0]:.3f} to {v[-1]:.3f})")
    if o.json:
        with open(o.json, "w") as f:
            json.dump(rows, f, indent=1)
    sys.exit(statistics.median(r["ratio"] for r in rows if r["overlap"]) > 1 / 3)


main()
