#!/usr/bin/env python3
"""device cuda where there is no GPU: the worker starts and says what is missing, auto means CPU, and a plan can still be made.   usage: no_gpu.py WORKER"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from gang import tiny_data, tiny_model, write_spec


def run(*args, module=None):
    env = {k: v for k, v in os.environ.items() if k != "RINGMASTER_CUDA_MODULE"}
    if module is not None:
        env["RINGMASTER_CUDA_MODULE"] = module
    return subprocess.run(args, capture_output=True, text=True, env=env)


def said(worker, module=None):
    p = run(worker, "--devices", module=module)
    assert p.returncode == 0, p.stderr
    o = json.loads(p.stdout)
    assert any(d["kind"] == "cpu" for d in o["devices"]), o
    return o["cuda"]


def main():
    worker, tmp = sys.argv[1], tempfile.mkdtemp(prefix="rm-no-gpu-")
    try:
        why = said(worker)
        if why == "available":
            print("skipped: this machine has a GPU")
            return 77
        assert why.startswith("device cuda: "), why
        assert "folder" in said(worker, tmp) or "not a regular file" in said(worker, tmp), said(worker, tmp)
        assert "No such file" in said(worker, f"{tmp}/none.so")
        open(f"{tmp}/text.so", "w").write("this is no module\n")
        assert "cannot be loaded" in said(worker, f"{tmp}/text.so")
        alone = shutil.copy(worker, f"{tmp}/ringmaster-worker")          # no module beside it
        os.makedirs(f"{tmp}/empty")
        os.environ["PATH"] = f"{tmp}/empty"
        assert "this build has no CUDA backend" in said(alone) or "no CUDA device" in said(alone), said(alone)

        base = dict(model=tiny_model(f"{tmp}/model"), init="random", torch_dtype="bfloat16", dataset=[tiny_data(f"{tmp}/d.jsonl")], template="chatml", max_length=128,
                    packing=True, tuner_type="full", max_steps=1, threads_per_rank=1, nproc_per_node=4, ulysses_size=2, ring_size=2, device="cuda", output_dir=f"{tmp}/out")
        spec = write_spec(f"{tmp}/run.json", **base)
        p = run(worker, "--plan", spec)
        problem = json.loads(p.stdout)["problems"][0]
        assert p.returncode == 2 and problem["pointer"] == "/device" and problem["message"].startswith(why), p.stdout
        p = run(worker, "--spec", write_spec(f"{tmp}/one.json", **dict(base, nproc_per_node=1, ulysses_size=1, ring_size=1)))
        assert p.returncode == 2 and why in p.stderr, (p.returncode, p.stderr)

        if "no CUDA device" not in why:
            print("no module in this build: the plan for a GPU elsewhere was not looked at")
            return 0
        assert "memory_limit_bytes" in problem["message"], problem
        limit = 4 << 30
        p = run(worker, "--plan", write_spec(f"{tmp}/plan.json", **dict(base, memory_limit_bytes=limit)))
        plan = json.loads(p.stdout)
        assert p.returncode == 0 and plan["device"] == "cuda" and plan["limit_bytes"] == limit, p.stdout
        assert any("elsewhere" in w for w in plan["warnings"]), plan["warnings"]
        lines = {x["name"]: x for x in plan["libraries"]}
        assert sorted(lines) == ["CUDA context", "NCCL buffers", "cuBLASLt workspace", "kernel modules"], lines
        for x in lines.values():
            assert x["basis"] in ("assumed", "measured") and x["source"] and x["bytes"] > 0, x
        rest = sum(x["bytes"] for x in lines.values())
        for r in plan["ranks"]:
            assert r["peak_bytes"] == sum(r["categories"].values()), r
            assert r["categories"]["workspace"] + r["categories"]["communication"] >= rest, r
        assert rest < plan["peak_bytes"] <= limit
        tight = dict(base, memory_limit_bytes=rest)                      # the libraries count: nothing is left for the job
        p = run(worker, "--plan", write_spec(f"{tmp}/tight.json", **tight))
        assert p.returncode == 2 and json.loads(p.stdout)["problems"][0]["code"] == "does_not_fit", p.stdout
        p = run(worker, "--plan", write_spec(f"{tmp}/dora.json", **dict(base, memory_limit_bytes=limit, tuner_type="lora", use_dora=True)))
        if p.returncode != 0:
            assert "use_dora: not built for cuda" in p.stdout, p.stdout
        return 0
    finally:
        shutil.rmtree(tmp)


sys.exit(main())
