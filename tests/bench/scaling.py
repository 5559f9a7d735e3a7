#!/usr/bin/env python3
"""Scaling over row length and degrees: tokens/s, memory per rank, bytes sent, exposed share; one table and one SVG. A benchmark, not a test.

usage: scaling.py BUILD_DIR [--tokens 4096,8192,…] [--degrees 1x1,2x1,1x2] [--steps 3] [--policy none] [--svg FILE]
Degrees are U x R. The model: 4 layers, hidden 256, 8/4 heads, random weights; each row is one document of random bytes."""
import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train"))
from gang import Gang, tiny_model, write_spec

SHAPE = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=131072)
COLOURS = ["#1f6f8b", "#c8553d", "#588157", "#7b2d8b", "#b8860b", "#444444"]


def measure(build, tmp, T, U, R, steps, policy):
    P, out = U * R, f"{tmp}/out"
    shutil.rmtree(out, ignore_errors=True)
    rng = random.Random(T)
    with open(f"{tmp}/d.jsonl", "w") as f:
        for _ in range(steps + 1):
            f.write(json.dumps({"text": "".join(rng.choice("abcdefghijklmnop qrstuvwxyz. ") for _ in range(T + 8))}) + "\n")
    spec = write_spec(f"{tmp}/s.json", model=f"{tmp}/model", init="random", torch_dtype="float32", dataset=[f"{tmp}/d.jsonl"], template="none", max_length=T, packing=False,
                      truncation_strategy="right", tuner_type="full", max_steps=steps, seed=1, device="cpu", nproc_per_node=P, ulysses_size=U, ring_size=R,
                      gradient_checkpointing=policy, save_only_model=True, output_dir=out)
    g = Gang(f"{build}/ringmaster-worker", spec, P, timeout=3600).run()
    if any(g.codes):
        sys.exit(f"T={T} U={U} R={R}: {g.codes}\n{g.stderr[0][-2000:]}")
    last = [g.records("metrics", r)[-1] for r in range(P)]
    hop = [m["collectives"].get("hop", {"busy_s": 0, "exposed_s": 0}) for m in last]
    return {"T": T, "U": U, "R": R, "tokens_per_s": last[0]["tokens_per_s"], "bytes_per_rank": max(m["peak_bytes"] for m in last), "sent": max(m["sent_bytes"] for m in last),
            "exposed": max(m["comm_exposed_s"] / m["step_s"] for m in last), "skew": max(m["step_s"] - m["comm_exposed_s"] for m in last) / min(m["step_s"] - m["comm_exposed_s"] for m in last),
            "hop_exposed_of_busy": max(h["exposed_s"] / h["busy_s"] if h["busy_s"] > 0 else 0 for h in hop)}


def panel(rows, key, title, x0, y0, w, h, percent=False):
    """One chart of key over T (logarithmic), a line for each (U,R)."""
    xs = sorted({r["T"] for r in rows})
    top = max(r[key] for r in rows) * 1.1 or 1
    px = lambda t: x0 + (w * (math.log2(t) - math.log2(xs[0])) / max(1e-9, math.log2(xs[-1]) - math.log2(xs[0])) if len(xs) > 1 else w / 2)
    py = lambda v: y0 + h - h * v / top
    name = lambda v: f"{100 * v:.1f} %" if percent else f"{v / 1e9:.2f}G" if v >= 1e9 else f"{v / 1e6:.0f}M" if v >= 1e6 else f"{v / 1e3:.1f}k" if v >= 1e3 else f"{v:.2g}"
    s = [f'<text x="{x0}" y="{y0 - 12}" font-weight="bold">{title}</text>', f'<path d="M{x0} {y0}V{y0 + h}H{x0 + w}" fill="none" stroke="#999"/>']
    for k in range(5):
        v = top * k / 4
        s.append(f'<text x="{x0 - 6}" y="{py(v) + 4:.1f}" text-anchor="end" fill="#555">{name(v)}</text><path d="M{x0} {py(v):.1f}h{w}" stroke="#eee"/>')
    s += [f'<text x="{px(t):.1f}" y="{y0 + h + 16}" text-anchor="middle" fill="#555">{t // 1024}K</text>' for t in xs]
    for i, (U, R) in enumerate(sorted({(r["U"], r["R"]) for r in rows})):
        line = sorted((r["T"], r[key]) for r in rows if (r["U"], r["R"]) == (U, R))
        c = COLOURS[i % len(COLOURS)]
        s.append(f'<polyline points="{" ".join(f"{px(t):.1f},{py(v):.1f}" for t, v in line)}" fill="none" stroke="{c}" stroke-width="2"/>')
        s += [f'<circle cx="{px(t):.1f}" cy="{py(v):.1f}" r="3" fill="{c}"><title>U {U} R {R}, {t} tokens: {name(v)}</title></circle>' for t, v in line]
    return "\n".join(s)


def svg(rows):
    legend = "".join(f'<rect x="{70 + i * 110}" y="10" width="12" height="12" fill="{COLOURS[i % len(COLOURS)]}"/><text x="{88 + i * 110}" y="20">U {U} R {R}</text>'
                     for i, (U, R) in enumerate(sorted({(r["U"], r["R"]) for r in rows})))
    charts = [("tokens_per_s", "tokens per second", False), ("bytes_per_rank", "bytes per rank", False), ("sent", "bytes sent per rank and step", False),
              ("exposed", "exposed communication, share of the step", True)]
    body = "\n".join(panel(rows, k, title, 70 + (i % 2) * 430, 70 + (i // 2) * 290, 340, 210, pc) for i, (k, title, pc) in enumerate(charts))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 640" font-family="sans-serif" font-size="11"><rect width="880" height="640" fill="white"/>\n{legend}\n{body}\n</svg>\n')


def main():
    a = argparse.ArgumentParser()
    a.add_argument("build")
    a.add_argument("--tokens", default="4096,8192,16384,32768,65536")
    a.add_argument("--degrees", default="1x1,2x1,1x2")
    a.add_argument("--steps", type=int, default=3)
    a.add_argument("--policy", default="none")
    a.add_argument("--svg", default="scaling.svg")
    o = a.parse_args()
    tmp, rows = tempfile.mkdtemp(prefix="rm-scaling-"), []
    try:
        tiny_model(f"{tmp}/model", **SHAPE)
        print("|      T | U x R | tokens/s | MB per rank | MB sent | exposed | skew | ring: exposed/busy |\n|---|---|---|---|---|---|---|---|")
        for T in map(int, o.tokens.split(",")):
            for d in o.degrees.split(","):
                U, R = map(int, d.split("x"))
                r = measure(o.build, tmp, T, U, R, o.steps, o.policy)
                rows.append(r)
                print(f"| {T:6d} | {U} x {R} | {r['tokens_per_s']:8.0f} | {r['bytes_per_rank'] / 1e6:.1f} | {r['sent'] / 1e6:.1f} | {100 * r['exposed']:.2f} % | {r['skew']:.3f} | "
                      f"{r['hop_exposed_of_busy']:.2f} |", flush=True)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
        if rows:
            with open(o.svg, "w") as f:
                f.write(svg(rows))


main()
