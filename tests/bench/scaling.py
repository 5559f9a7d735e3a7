#!/usr/bin/env python3
"""Scaling over row length and degrees: tokens/s, memory per rank, bytes sent, exposed share; one table and one SVG. A benchmark, not a test.

usage: scaling.py BUILD_DIR [--tokens 4096,8192,…] [--degrees 1x1,2x1,1x2] [--steps 2] [--policy none] [--budget 840] [--json FILE] [--svg FILE] [--markdown FILE]
Degrees are U x R. The model: 2 layers, hidden 128, 4/2 heads, random weights, float32; each row is one document of random bytes. The last step is reported.
Every point is kept in --json when it is measured; what is there is not measured again, so a run that was cut short goes on. A point that would end after
--budget seconds, going by the row half as long, is left out and said to be. Ten minutes on two quiet cores."""
import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train"))
from gang import Gang, tiny_model, write_spec

SHAPE = dict(hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=131072)
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
            "exposed": max(m["comm_share"] for m in last), "exposed_mean": sum(m["comm_share"] for m in last) / P, "skew": last[0]["skew"],
            "hop_exposed_of_busy": max(h["exposed_s"] / h["busy_s"] if h["busy_s"] > 0 else 0 for h in hop)}


def step_of(top):
    """A round step of which three to six reach top."""
    unit = 10 ** math.floor(math.log10(top / 4))
    return next(unit * k for k in (1, 2, 2.5, 5, 10) if unit * k * 5 >= top)


def panel(rows, key, title, x0, y0, w, h, percent=False):
    """One chart of key over T (logarithmic), a line for each (U,R); later ones are dashed, so that equal ones stay visible."""
    xs = sorted({r["T"] for r in rows})
    step = step_of(max(r[key] for r in rows) or 1)
    n = max(1, math.ceil(max(r[key] for r in rows) / step))
    px = lambda t: x0 + (w * (math.log2(t) - math.log2(xs[0])) / (math.log2(xs[-1]) - math.log2(xs[0])) if len(xs) > 1 else w / 2)
    py = lambda v: y0 + h - h * v / (n * step)
    name = lambda v: f"{100 * v:.3g} %" if percent else "0" if v == 0 else f"{v / 1e9:.3g}G" if v >= 1e9 else f"{v / 1e6:.3g}M" if v >= 1e6 else f"{v / 1e3:.3g}k" if v >= 1e3 else f"{v:.3g}"
    s = [f'<text x="{x0}" y="{y0 - 12}" font-weight="bold">{title}</text>']
    for k in range(n + 1):
        v = step * k
        s.append(f'<text x="{x0 - 6}" y="{py(v) + 4:.1f}" text-anchor="end" fill="#555">{name(v)}</text><path d="M{x0} {py(v):.1f}h{w}" stroke="#eee"/>')
    s.append(f'<path d="M{x0} {y0}V{y0 + h}H{x0 + w}" fill="none" stroke="#999"/>')
    s += [f'<text x="{px(t):.1f}" y="{y0 + h + 16}" text-anchor="middle" fill="#555">{t // 1024}K</text>' for t in xs]
    for i, (U, R) in enumerate(sorted({(r["U"], r["R"]) for r in rows})):
        points = sorted((r["T"], r[key]) for r in rows if (r["U"], r["R"]) == (U, R))
        c = COLOURS[i % len(COLOURS)]
        s.append(f'<polyline points="{" ".join(f"{px(t):.1f},{py(v):.1f}" for t, v in points)}" fill="none" stroke="{c}" stroke-width="2"{" stroke-dasharray=" + chr(34) + "6 4" + chr(34) if i > 1 else ""}/>')
        s += [f'<circle cx="{px(t):.1f}" cy="{py(v):.1f}" r="3" fill="{c}"><title>U {U} R {R}, {t} tokens: {name(v)}</title></circle>' for t, v in points]
    return "\n".join(s)


def svg(rows):
    legend = "".join(f'<rect x="{70 + i * 110}" y="10" width="12" height="12" fill="{COLOURS[i % len(COLOURS)]}"/><text x="{88 + i * 110}" y="20">U {U} R {R}</text>'
                     for i, (U, R) in enumerate(sorted({(r["U"], r["R"]) for r in rows})))
    charts = [("tokens_per_s", "tokens per second", False), ("bytes_per_rank", "bytes per rank", False), ("sent", "bytes sent per rank and step", False),
              ("exposed", "exposed communication, share of the step", True)]
    body = "\n".join(panel(rows, k, title, 70 + (i % 2) * 430, 70 + (i // 2) * 290, 340, 210, pc) for i, (k, title, pc) in enumerate(charts))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 640" font-family="sans-serif" font-size="11"><rect width="880" height="640" fill="white"/>\n{legend}<text x="810" y="20" text-anchor="end" fill="#555">over tokens in a row</text>\n{body}\n</svg>\n')


HEAD = "| T | U x R | tokens/s | MB per rank | MB sent a step | exposed, highest rank | skew | ring: exposed / busy |\n|---|---|---|---|---|---|---|---|"


def line(r):
    return (f"| {r['T'] // 1024}K | {r['U']} x {r['R']} | {r['tokens_per_s']:.0f} | {r['bytes_per_rank'] / 1e6:.1f} | {r['sent'] / 1e6:.2f} | {100 * r['exposed']:.2f} % | {r['skew']:.3f} | "
            f"{format(r['hop_exposed_of_busy'], '.2f') if r['R'] > 1 else '–'} |")


def numbers(text):
    return [tuple(map(int, x.split("x"))) if "x" in x else int(x) for x in text.split(",")]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("build")
    a.add_argument("--tokens", type=numbers, default="4096,8192,16384,32768,65536")
    a.add_argument("--degrees", type=numbers, default="1x1,2x1,1x2")
    a.add_argument("--steps", type=int, default=2)
    a.add_argument("--policy", default="none")
    a.add_argument("--budget", type=float, default=840)
    a.add_argument("--json", default="scaling.json")
    a.add_argument("--svg", default="scaling.svg")
    a.add_argument("--markdown")
    o = a.parse_args()
    tmp, began, took, left_out = tempfile.mkdtemp(prefix="rm-scaling-"), time.monotonic(), {}, []
    rows = json.load(open(o.json)) if os.path.exists(o.json) else []
    have = {(r["T"], r["U"], r["R"]): r for r in rows}
    points = [(T, U, R) for T in sorted(o.tokens) for U, R in o.degrees]
    try:
        tiny_model(f"{tmp}/model", **SHAPE)
        for k, (T, U, R) in enumerate(points):
            if (T, U, R) in have:
                took[T, U, R] = have[T, U, R].get("took_s", 0)
                continue
            spent, guess = time.monotonic() - began, 4 * took.get((T // 2, U, R), 0)
            if spent + guess > o.budget:
                left_out.append(f"{T // 1024}K at {U} x {R} (about {guess:.0f} s)")
                continue
            print(f"[{k + 1}/{len(points)}] {T // 1024}K, U {U} R {R}; {spent:.0f} of {o.budget:.0f} s spent" + (f", this one about {guess:.0f} s" if guess else ""), file=sys.stderr, flush=True)
            at = time.monotonic()
            r = measure(o.build, tmp, T, U, R, o.steps, o.policy)
            took[T, U, R] = r["took_s"] = time.monotonic() - at
            rows.append(r)
            with open(o.json + ".new", "w") as f:
                json.dump(rows, f, indent=1)
            os.rename(o.json + ".new", o.json)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
        rows.sort(key=lambda r: (r["T"], r["U"], r["R"]))
        table = HEAD + "\n" + "\n".join(map(line, rows))
        print(table + ("\nnot measured: " + ", ".join(left_out) if left_out else ""))
        if o.markdown:
            with open(o.markdown, "w") as f:
                f.write(table + "\n")
        if rows:
            with open(o.svg, "w") as f:
                f.write(svg(rows))


main()
