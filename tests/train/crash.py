#!/usr/bin/env python3
"""Checkpoints are complete or absent: SIGKILL at random moments, a file size limit, SIGTERM.   usage: crash.py WORKER kill|full|enospc|term|asked"""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(__file__))
from gang import Gang, tiny_data, tiny_model, write_spec


def checkpoints(out):
    return sorted(int(d.split("-")[1]) for d in os.listdir(out) if d.startswith("checkpoint-"))


class Bench:
    def __init__(self, worker):
        self.worker, self.tmp = worker, tempfile.mkdtemp(prefix="rm-crash-")
        self.model, self.data, self.out = tiny_model(f"{self.tmp}/model"), tiny_data(f"{self.tmp}/d.jsonl"), f"{self.tmp}/out"

    def spec(self, **fields):
        spec = dict(model=self.model, init="random", torch_dtype="float32", dataset=[self.data], template="chatml", max_length=64, packing=True, tuner_type="full",
                    learning_rate=1e-3, max_steps=100000, seed=3, device="cpu", nproc_per_node=1, threads_per_rank=1, gradient_checkpointing="none",
                    save_steps=1, save_total_limit=2, output_dir=self.out)
        spec.update(fields)
        return write_spec(f"{self.tmp}/spec.json", **spec)


def kill(b):
    """Whatever the moment, there is a checkpoint, every checkpoint-* is whole, and the next attempt goes on from the newest."""
    rng, resume, moments = random.Random(5), None, 0
    for attempt in range(14):
        pause = rng.uniform(0, 0.2)

        def on_message(gang, rank, m):
            if m["t"] == "checkpoint" and not getattr(gang, "armed", False):
                gang.armed = True
                threading.Timer(pause, gang.kill).start()
        g = Gang(b.worker, b.spec(**({"resume_from_checkpoint": resume} if resume else {})), 1, on_message=on_message).run()
        assert g.codes == [-9], (g.codes, g.stderr)
        if resume:
            assert g.records("metrics")[0]["step"] == int(resume.rsplit("-", 1)[1]) + 1
        have = checkpoints(b.out)
        assert have, "no checkpoint is left"
        moments += any(d.startswith(".tmp-") for d in os.listdir(b.out))
        for step in have:
            p = subprocess.run([b.worker, "--plan", b.spec(resume_from_checkpoint=f"{b.out}/checkpoint-{step}"), "--brief"], capture_output=True, text=True)
            assert p.returncode == 0, p.stdout
        resume = f"{b.out}/checkpoint-{have[-1]}"
    last = Gang(b.worker, b.spec(resume_from_checkpoint=resume, max_steps=have[-1] + 2), 1).run()
    assert last.codes == [0], last.stderr
    assert not [d for d in os.listdir(b.out) if d.startswith(".tmp-")], "left aside"
    assert len(checkpoints(b.out)) == 2, checkpoints(b.out)
    print(f"14 kills, {moments} of them in the middle of a save; {have[-1]} steps; always a whole checkpoint")


def full(b):
    """A save that the disk refuses leaves nothing, is told, and the run goes on; the last one fails the job."""
    small = 12000       # bytes: room for the log, not for the weights
    g = Gang.__new__(Gang)
    resource_set = resource.getrlimit(resource.RLIMIT_FSIZE)
    ok = Gang(b.worker, b.spec(max_steps=1, output_dir=f"{b.tmp}/warm", cached_dataset=f"{b.tmp}/cache"), 1).run()      # the data set's cache, before the disk fills
    assert ok.codes == [0], ok.stderr
    resource.setrlimit(resource.RLIMIT_FSIZE, (small, resource_set[1]))
    try:
        g = Gang(b.worker, b.spec(max_steps=4, save_steps=2, cached_dataset=f"{b.tmp}/cache"), 1).run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, resource_set)
    assert g.codes[0] not in (0, 3) and g.codes[0] > 0, (g.codes, g.stderr)
    assert len(g.records("metrics")) == 4, "the run went on after the first save failed"
    assert [m for m in g.records("event") if m["code"] == "checkpoint"] and g.records("error"), g.messages
    left = [d for d in os.listdir(b.out) if "checkpoint" in d]
    assert not left, left
    print("a refused save leaves nothing:", g.records("error")[0]["text"])


def enospc(b):
    """The same on a real file system of 700 KiB: the first checkpoint fits, the second does not, the first stays whole."""
    os.makedirs(b.out)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", b.out], capture_output=True).returncode != 0:
        print("needs the right to mount a file system")
        return 77
    try:
        g = Gang(b.worker, b.spec(max_steps=5, save_steps=1, save_total_limit=0, cached_dataset=f"{b.tmp}/cache"), 1).run()
        assert g.codes == [73] and g.records("error")[0]["code"] == "disk_full", (g.codes, g.stderr)
        assert checkpoints(b.out) == [1] and not [d for d in os.listdir(b.out) if d.startswith(".tmp-")], os.listdir(b.out)
        p = subprocess.run([b.worker, "--plan", b.spec(resume_from_checkpoint=f"{b.out}/checkpoint-1"), "--brief"], capture_output=True, text=True)
        assert p.returncode == 0, p.stdout
    finally:
        subprocess.run(["umount", b.out], check=True)
    print("a full disk: what was saved stays, what was not is absent")
    return 0


def term(b):
    """SIGTERM to one of two ranks: both save the same step and leave with 3."""
    def on_message(gang, rank, m):
        if m["t"] == "metrics" and m["step"] == 3 and rank == 0:
            gang.procs[1].send_signal(signal.SIGTERM)
    g = Gang(b.worker, b.spec(nproc_per_node=2, ring_size=2, save_steps=0), 2, on_message=on_message).run()
    assert g.codes == [3, 3], (g.codes, g.stderr)
    step = g.records("metrics")[-1]["step"]
    assert checkpoints(b.out) == [step] and g.records("checkpoint")[0]["step"] == step and not g.records("done")
    print(f"stopped after step {step}, saved")


def asked(b):
    """The keeper asks one rank for a checkpoint: all save, and go on. It asks for a stop now: all leave after the same step, unsaved."""
    def on_message(gang, rank, m):
        if m["t"] == "metrics" and rank == 1 and m["step"] == 2:
            gang.tell(1, {"t": "checkpoint"})
        if m["t"] == "checkpoint":
            gang.tell(0, {"t": "stop", "mode": "now"})
    g = Gang(b.worker, b.spec(nproc_per_node=2, ring_size=2, save_steps=0), 2, on_message=on_message).run()
    assert g.codes == [3, 3], (g.codes, g.stderr)
    saved = [m["step"] for m in g.records("checkpoint")]
    last = [g.records("metrics", r)[-1]["step"] for r in range(2)]
    assert len(saved) == 1 and saved[0] >= 3 and last[0] == last[1] > saved[0] and checkpoints(b.out) == saved, (saved, last)
    print(f"saved {saved[0]} when asked, left after {last[0]}")


def main():
    b = Bench(sys.argv[1])
    try:
        sys.exit({"kill": kill, "full": full, "enospc": enospc, "term": term, "asked": asked}[sys.argv[2]](b))
    finally:
        shutil.rmtree(b.tmp, ignore_errors=True)


main()
