#!/usr/bin/env python3
"""kill -9 or SIGSTOP of any rank while it trains, in whatever phase: all others leave by themselves within 10 s saying which rank was lost, nothing
stays in /dev/shm, and the job goes on from its last checkpoint.   usage: lost_rank.py WORKER kill|stop"""
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "train"))
from gang import Gang, shm_names, tiny_data, tiny_model, write_spec

WORLD, STEPS = 4, 400


class Unwatched(Gang):
    """Nobody ends the others: they must notice by themselves."""
    def kill(self):
        if time.time() > self.deadline:
            super().kill()


def strike(worker, tmp, how, victim, after_s, fields):
    """Returns the seconds the last survivor took."""
    struck = {}

    def on_message(gang, rank, m):
        now = time.time()
        if m["t"] == "metrics" and rank == victim and "first" not in struck:
            struck["first"] = now
        if "first" in struck and "at" not in struck and now > struck["first"] + after_s:
            gang.procs[victim].send_signal(how)
            struck["at"] = now

    out = f"{tmp}/out"
    shutil.rmtree(out, ignore_errors=True)
    g = Unwatched(worker, write_spec(f"{tmp}/s.json", output_dir=out, **fields), WORLD, on_message=on_message, timeout=60)
    pids = [p.pid for p in g.procs]

    def watch():                                # when are the others gone? then the stopped one is ended too
        while time.time() < g.deadline and any(running(p) for i, p in enumerate(pids) if i != victim):
            time.sleep(0.02)
        struck["left"] = time.time()
        if running(pids[victim]):
            os.kill(pids[victim], signal.SIGKILL)

    watcher = threading.Thread(target=watch)
    watcher.start()
    g.run()
    watcher.join()
    assert "at" in struck, "the job ended before the blow"
    survivors = [i for i in range(WORLD) if i != victim]
    assert all(g.codes[i] == 72 for i in survivors), (g.codes, g.stderr)
    assert all(f"rank {victim}" in g.stderr[i] for i in survivors), g.stderr
    return struck["left"] - struck["at"]


def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "gone"


def running(pid):
    return state(pid) not in ("gone", "Z", "X")


def main():
    worker, how = sys.argv[1], {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[sys.argv[2]]
    tmp = tempfile.mkdtemp(prefix="rm-lost-")
    rng = random.Random(5)
    before = shm_names()
    try:
        fields = dict(model=tiny_model(f"{tmp}/model"), init="random", torch_dtype="float32", dataset=[tiny_data(f"{tmp}/d.jsonl")], template="chatml", max_length=256,
                      packing=True, tuner_type="full", learning_rate=1e-3, max_steps=STEPS, save_steps=5, save_total_limit=2, seed=3, device="cpu", nproc_per_node=WORLD,
                      threads_per_rank=1)
        for case in range(3):
            mesh = [dict(ulysses_size=2, ring_size=2), dict(ring_size=4, zero_stage=2), dict(ulysses_size=4, zero_stage=3)][case]
            victim, after = rng.randrange(WORLD), 0.5 + rng.random()
            took = strike(worker, tmp, how, victim, after, {**fields, **mesh})
            print(f"{sys.argv[2]} rank {victim} {mesh}: all others gone after {took:.1f} s", flush=True)
            assert took < 10
            assert shm_names() <= before, shm_names()
        last = max((int(d.split("-")[1]) for d in os.listdir(f"{tmp}/out") if d.startswith("checkpoint-")), default=0)
        assert last > 0
        spec = write_spec(f"{tmp}/again.json", output_dir=f"{tmp}/out", **{**fields, **mesh, "max_steps": last + 2})
        g = Gang(worker, spec, WORLD, extra=("--resume", f"{tmp}/out/checkpoint-{last}")).run()
        assert g.codes == [0] * WORLD and [m["step"] for m in g.records("metrics")] == [last + 1, last + 2], (g.codes, g.stderr)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
