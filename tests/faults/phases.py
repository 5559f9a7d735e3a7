#!/usr/bin/env python3
"""kill -9 or SIGSTOP of any rank in any phase of a real job of four ranks: all other ranks are gone within 10 s, nothing is left in shared memory, and the
job goes on by itself from its last checkpoint, to the very loss of a run that nobody disturbed.

A blow falls when the rank itself has reported that it is there (worker/failpoint.h), never after a sleep. One job takes several blows, a restart
after each.   usage: phases.py [kill|stop]; RM_SOAK=1: every phase, rank, ZeRO stage and method"""
import json, os, signal, sys, time

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), d) for d in ("../daemon", "../train")]
import rig
from gang import tiny_data, tiny_model

WORLD, STEPS, SAVE, EVAL = 4, 8, 2, 3
SOAK = bool(os.environ.get("RM_SOAK"))
# phase, step, and the step of the checkpoint that the next attempt must start from (0: none)
BLOWS = {"start": (0, None), "load": (0, None), "forward": (1, 0), "data": (2, 0), "backward": (3, 2), "exchange": (4, 2), "reduce": (5, 4), "optimizer": (6, 4),
         "checkpoint": (6, 4), "evaluate": (6, 4), "compute": (8, 6)}
SHAPES = {"hybrid": dict(ulysses_size=2, ring_size=2), "ring": dict(ring_size=4), "ulysses": dict(ulysses_size=4), "dp": dict(sequence_parallel_size=1),
          "dp-ring": dict(sequence_parallel_size=2, ring_size=2)}
# shape, ZeRO stage, blows (phase, rank) in an order in which each is reached: the short list
SHORT = {"kill": [("hybrid", 0, [("load", 2), ("forward", 0), ("exchange", 3), ("optimizer", 1), ("checkpoint", 0)]),
                  ("dp-ring", 3, [("backward", 2), ("evaluate", 1)])],
         "stop": [("ring", 2, [("start", 1), ("exchange", 0), ("checkpoint", 3)])]}


def full(how):
    turn = 0
    for zero in range(4):
        for shape in SHAPES:
            for part in range(2):               # all phases, on ranks that change from job to job; few enough blows that max_restarts and patience last
                blows = []
                for phase in list(BLOWS)[part::2]:
                    blows.append((phase, turn % WORLD))
                    turn += 1
                turn += 1
                yield shape, zero, blows


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def maps(pid):
    try:
        with open(f"/proc/{pid}/maps") as f:
            return f.read().splitlines()
    except OSError:
        return []


def spool(d, id, attempt):
    with open(f"{d.home}/jobs/{id}/attempt-{attempt}/spool", "rb") as f:
        return [json.loads(line) for line in f]


def submit(d, shape, zero, out, restarts):
    return d.submit(model=f"{d.data}/model", init="random", torch_dtype="float32", dataset=[f"{d.data}/d.jsonl"], val_dataset=[f"{d.data}/v.jsonl"], template="chatml", max_length=256,
                    packing=True, tuner_type="full", learning_rate=1e-3, max_steps=STEPS, save_steps=SAVE, eval_steps=EVAL, save_total_limit=2, seed=3, nproc_per_node=WORLD,
                    threads_per_rank=1, zero_stage=zero, max_restarts=restarts, output_dir=f"{d.data}/{out}", **SHAPES[shape])


def lay(point, phase, rank):
    with open(point + ".new", "w") as f:
        f.write(f"{rank} {BLOWS[phase][0]} {phase}\n")
    os.rename(point + ".new", point)


def case(new, how, shape, zero, blows):
    name = f"{how} {shape} zero {zero} from {blows[0][0]}"        # jobs run side by side: each has its own
    point = os.path.join(rig.ROOT, name.replace(" ", "-"))
    d = new(worker=os.path.abspath(os.path.join(rig.BUILD, "ringmaster-worker")), env={"RM_FAILPOINT": point, "OMP_WAIT_POLICY": "passive"}, backoff_ms=10)
    tiny_model(f"{d.data}/model")
    tiny_data(f"{d.data}/d.jsonl")
    tiny_data(f"{d.data}/v.jsonl", n=5, seed=9)
    want = d.until(submit(d, shape, zero, "calm", 0), "succeeded", limit=120)["summary"]["loss"]
    lay(point, *blows[0])
    id = submit(d, shape, zero, "struck", len(blows))
    for i, (phase, rank) in enumerate(blows):
        end = time.monotonic() + 120
        while not os.path.exists(point + ".reached"):
            assert time.monotonic() < end and d.job(id)["state"] not in rig.FINAL, f"{name}: nobody came to {phase}: {d.job(id)['state']}\n{d.log_text()}"
            time.sleep(0.02)
        if i + 1 < len(blows):
            lay(point, *blows[i + 1])
        while len(pids := {r["rank"]: r["pid"] for r in d.ranks(id) if r["pid"]}) < WORLD:
            time.sleep(0.02)
        mapped = [line for p in pids.values() for line in maps(p) if "/dev/shm/" in line]
        assert not mapped, mapped                   # what has no name there cannot be left there; the rest goes with the last process
        at = time.monotonic()
        os.kill(pids[rank], how == "kill" and signal.SIGKILL or signal.SIGSTOP)
        os.unlink(point + ".reached")
        while left := [r for r, p in pids.items() if r != rank and running(p)]:
            assert time.monotonic() < at + 10, f"{name}: 10 s after the blow on rank {rank} in {phase}, ranks {left} are still there"
            time.sleep(0.02)
        took = time.monotonic() - at
        while running(pids[rank]) or d.job(id)["attempt"] == i + 1:
            assert time.monotonic() < at + 40, f"{name}: {phase}: no restart: {d.job(id)}\n{d.log_text()}"
            assert d.job(id)["state"] not in rig.FINAL, f"{name}: {phase}: {d.job(id)}"
            time.sleep(0.02)
        a = d.get(f"/v1/jobs/{id}/attempts")["items"][i]
        assert a["reason"] in ("rank_died", "heartbeat_lost", "rank_failed"), a
        assert how == "stop" or (a["reason"], a["rank"], a["signal"]) == ("rank_died", rank, 9), a
        print(f"{name}: rank {rank} in {phase} of step {BLOWS[phase][0]}: all others gone after {took:.2f} s; {a['reason']}: {a['detail']}", flush=True)
    j = d.until(id, "succeeded", limit=120)
    assert j["restarts"] == len(blows) and j["attempt"] == len(blows) + 1, j
    for i, (phase, rank) in enumerate(blows):
        ready = [m["m"]["step"] for m in spool(d, id, i + 2) if m["m"]["t"] == "ready"]
        wanted = max([0] + [BLOWS[p][1] for p, _ in blows[:i + 1] if BLOWS[p][1]])      # of the last attempt that got so far
        assert ready == [wanted] * len(ready), f"{name}: after {phase}: started from {ready}, expected {wanted}"
    assert j["summary"]["loss"] == want, f"{name}: loss {j['summary']['loss']}, undisturbed {want}"
    assert not d.leftovers()


hows = [a for a in sys.argv[1:] if a in ("kill", "stop")] or ["kill", "stop"]
tests = {}
for how in hows:
    for shape, zero, blows in full(how) if SOAK else SHORT[how]:
        tests[f"test_{how}_{shape}_zero{zero}_{blows[0][0]}"] = lambda new, a=(how, shape, zero, blows): case(new, *a)
sys.argv[1:] = [a for a in sys.argv[1:] if a not in ("kill", "stop")]
rig.main(tests, workers=2)
