#!/usr/bin/env python3
"""scripts/gpu-check's own rules, without a device: a step that fails, hangs or has a bug is a row and the next one still runs; the files are whole
after every step; without a GPU the script leaves with 77 and touches nothing. usage: gpu_check.py SCRIPT"""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

script = sys.argv[1]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("gpu_check", script)
g = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(g)

with tempfile.TemporaryDirectory() as work:
    report = g.Report(work)
    report.about = {"card": "none"}
    seen = []

    def good(r, until):
        r.row("good", "a figure", 12.345678, "GB/s")

    def fails(r, until):
        g.run(["sh", "-c", "echo half; echo the reason >&2; exit 3"], until)

    def hangs(r, until):
        g.run(["sh", "-c", "echo begun; sleep 60 & sleep 60"], until)

    def buggy(r, until):
        {}["nothing"]

    def skips(r, until):
        raise g.Skipped("not here")

    def looks(r, until):
        seen.append(json.loads((pathlib.Path(work) / "gpu-check.json").read_text()))

    started = time.time()
    failed = g.run_steps(report, [("good", 5, good), ("fails", 5, fails), ("hangs", 1.5, hangs), ("buggy", 5, buggy), ("skips", 5, skips), ("looks", 5, looks)], time.time() + 60)
    report.write()
    assert failed == 3, failed
    assert time.time() - started < 20, "the step that hangs was waited for"
    rows = {r["name"]: r["value"] for r in json.loads((pathlib.Path(work) / "gpu-check.json").read_text())["rows"]}
    assert rows["a figure"] == 12.345678
    assert rows["fails"].startswith("failed: sh ended with 3") and "the reason" in rows["fails"], rows
    assert rows["hangs"].startswith("failed: sh ran past its time; last: begun"), rows
    assert rows["buggy"] == "failed: KeyError: 'nothing'", rows
    assert rows["skips"] == "skipped: not here", rows
    assert len(seen) == 1 and any(r["name"] == "skips" for r in seen[0]["rows"]), "the file did not have the steps before"
    table = (pathlib.Path(work) / "gpu-check.txt").read_text()
    assert "12.35 GB/s" in table and "failed: KeyError" in table, table

    late = g.run_steps(g.Report(work), [("never", 5, good)], time.time() + 1)
    assert late == 1

    done = subprocess.run([script, "--out", work + "/none"], capture_output=True, text=True)
    if done.returncode == 77:
        assert "--dry" in done.stderr and not os.path.exists(work + "/none"), done
    else:
        print("a GPU is here: what happens without one was not looked at")
print("ok")
