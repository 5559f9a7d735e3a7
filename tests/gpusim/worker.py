#!/usr/bin/env python3
"""The whole worker on simulated GPUs (RINGMASTER_CUDA_MODULE is the module on the stand-ins), against the CPU backend.

usage: worker.py WORKER MODULE CASE [TIMEOUT]
  one, ulysses, ring, hybrid, zero, offload, disk
              the tiny model trained: first-step gradients within 2x the error that bf16 makes on the CPU against fp32, losses with them, the same bits
              in every order of streams; each rank sends what the CPU's ranks send, and the stand-in for NCCL counts the same bytes of hops and exchanges
  gradients   zero_offload_gradients under ZeRO 2 and 3, two micro-steps, beside the optimizer's offload and without: bit for bit the job that keeps its
              shard on the device, in every order of streams; the device holds the shard less, as planned
  kill        kill -9 of a rank: the others leave within 15 s, told by the keeper or not, and nothing stays behind
  memory      a device that is too small is a clear refusal
  races       MODULE is the one for ThreadSanitizer: it has nothing to report, within kernels and between streams"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "train"))
from gang import Gang, read_safetensors, relative, shm_names, tiny_data, tiny_model, write_spec

CASES = {       # ranks, fields, orders of the streams
    "one": (1, dict(), ["lazy", "greedy"]),
    "ulysses": (2, dict(sequence_parallel_size=2, ulysses_size=2), ["lazy", "greedy"]),
    "ring": (4, dict(sequence_parallel_size=4, ring_size=4), ["lazy", "greedy", "random:1"]),
    "hybrid": (4, dict(sequence_parallel_size=4, ulysses_size=2, ring_size=2), ["lazy", "greedy"]),
    "zero": (2, dict(sequence_parallel_size=1, zero_stage=3), ["lazy", "greedy"]),
    "offload": (2, dict(sequence_parallel_size=2, ring_size=2, gradient_checkpointing="offload_host", zero_offload_optimizer=True, zero_stage=1), ["lazy", "greedy"]),
    "disk": (1, dict(gradient_checkpointing="offload_disk"), ["lazy", "greedy"]),
}
WORKER, MODULE = sys.argv[1:3]
TIMEOUT = int(sys.argv[4]) if len(sys.argv) > 4 else 120


class Unwatched(Gang):
    """A keeper that at most tells of a death, and ends nobody."""
    def kill(self):
        if time.time() > self.deadline:
            super().kill()


def run(tmp, name, ranks, gang=Gang, worker=WORKER, on_message=None, env={}, **fields):
    spec = dict(model=f"{tmp}/model", init="random", torch_dtype="bfloat16", dataset=[f"{tmp}/d.jsonl"], template="chatml", max_length=128, packing=True,
                tuner_type="full", learning_rate=1e-2, lr_scheduler_type="constant", warmup_ratio=0, max_steps=2, seed=5, nproc_per_node=ranks, threads_per_rank=1,
                gradient_checkpointing="none", save_only_model=True, output_dir=f"{tmp}/{name}", device="cuda", debug_dump=f"{tmp}/{name}-dump")
    spec.update(fields)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RINGMASTER_CUDA_MODULE": MODULE, "GPUSIM_DEVICES": str(ranks), **env}
    return gang(worker, write_spec(f"{tmp}/{name}.json", **{k: v for k, v in spec.items() if v is not None}), ranks, on_message=on_message, timeout=TIMEOUT, env=env).run()


def trained(tmp, name, ranks, **more):
    g = run(tmp, name, ranks, **more)
    assert g.codes == [0] * ranks, (name, g.codes, g.stderr)
    for r in range(ranks):
        assert g.losses(r) == g.losses(), f"{name}: ranks disagree on the loss"
    return g, {k: v[2] for k, v in read_safetensors(f"{tmp}/{name}-dump/grads.safetensors").items()}


def sent(gang, rank):
    return [{kind: (c["calls"], c["bytes"]) for kind, c in m["collectives"].items()} for m in gang.records("metrics", rank)]


def flat(grads):
    return [x for k in sorted(grads) for x in grads[k]]


def train_case(tmp, case):
    ranks, fields, orders = CASES[case]
    _, exact = trained(tmp, "f32", ranks, device="cpu", torch_dtype="float32", **fields)
    cpu, plain = trained(tmp, "bf16", ranks, device="cpu", **fields)
    allowed = {k: 3 * relative(plain[k], exact[k]) for k in exact}        # of one tensor, where few numbers decide
    whole = 2 * relative(flat(plain), flat(exact))
    first = None
    for order in orders:
        t0 = time.time()
        g, grads = trained(tmp, order.replace(":", ""), ranks, env={"GPUSIM_STREAMS": order, "GPUSIM_REPORT": "1"}, **fields)
        error = {k: relative(grads[k], exact[k]) for k in exact}
        worst = max(exact, key=lambda k: error[k] / allowed[k])
        off = max(abs(a - b) / b for a, b in zip(g.losses(), cpu.losses()))
        print(f"{case} {order}: gradients {relative(flat(grads), flat(exact)):.1e} from fp32, {whole:.1e} allowed; worst {worst}: {error[worst]:.1e} of {allowed[worst]:.1e}; "
              f"losses off by {off:.1e}; {time.time() - t0:.1f} s", flush=True)
        assert relative(flat(grads), flat(exact)) <= whole
        assert error[worst] <= allowed[worst], (worst, error[worst], allowed[worst])
        assert off < 1e-2, (g.losses(), cpu.losses())
        if first is None:
            first = g.losses(), grads
        assert first == (g.losses(), grads), "another order of streams gave other bits"
        for r in range(ranks):
            until = -1 if fields.get("zero_stage") == 3 else None       # the last step saves: through shm a rank reads its peers' shares in place
            assert sent(g, r)[:until] == sent(cpu, r)[:until], (r, sent(g, r), sent(cpu, r))
            counted = sum(s[kind][1] for s in sent(g, r) for kind in ("hop", "all_to_all") if kind in s)
            carried = sum(int(n) for n in re.findall(r"sent (\d+) bytes by send/recv", g.stderr[r]))
            assert carried == counted, f"rank {r}: {counted} bytes counted, {carried} carried"


def plan(tmp, name):
    with open(f"{tmp}/{name}.json") as f:
        spec = json.load(f)
    spec["output_dir"] += "-plan"               # the other holds the run's checkpoint
    with open(f"{tmp}/{name}.json", "w") as f:
        json.dump(spec, f)
    p = subprocess.run([WORKER, "--plan", f"{tmp}/{name}.json"], capture_output=True, text=True, env={**os.environ, "RINGMASTER_CUDA_MODULE": MODULE, "GPUSIM_DEVICES": "2"})
    assert p.returncode == 0, (p.stdout, p.stderr)
    return json.loads(p.stdout)


def gradients_case(tmp):
    # A small max_grad_norm: the norm, summed on the host, decides what every step does.
    common = dict(sequence_parallel_size=2, ring_size=2, max_length=64, gradient_accumulation_steps=2, max_steps=2, max_grad_norm=0.05, save_only_model=False)

    def result(name, ranks=2, order="lazy", **fields):
        g, grads = trained(tmp, name, ranks, env={"GPUSIM_STREAMS": order}, **{**common, **fields})
        p, states = plan(tmp, name), []
        for r, want in enumerate(p["ranks"]):
            assert want["peak_bytes"] == g.records("ready", r)[0]["allocated_bytes"] and want["categories"] == g.records("metrics", r)[-1]["memory"], (name, want)
        folder = f"{tmp}/{name}/checkpoint-2"
        for f in sorted(os.listdir(folder)):
            if f.endswith(".safetensors"):
                with open(f"{folder}/{f}", "rb") as file:
                    states.append((f, file.read()))
        assert len(states) > 1, os.listdir(folder)
        return p, ([(m["loss"], m["grad_norm"]) for m in g.records("metrics")], grads, states)

    def held(p, r, place):
        return sum(b["bytes"] for b in p["ranks"][r]["buffers"] if b["place"] == place and b["name"].startswith("gradients."))

    for stage, optimizer, orders in ((2, False, ["lazy", "random:1"]), (3, True, ["greedy"])):
        name = f"z{stage}{'o' if optimizer else ''}"
        near, want = result(name, zero_stage=stage, zero_offload_optimizer=optimizer)
        for order in orders:
            far, got = result(f"{name}-far-{order.replace(':', '')}", order=order, zero_stage=stage, zero_offload_optimizer=optimizer, zero_offload_gradients=True)
            print(f"zero_stage {stage}, optimizer {'on the host' if optimizer else 'on the device'}, {order}: device {near['peak_bytes']} -> {far['peak_bytes']} bytes", flush=True)
            for (loss, norm), (loss_near, norm_near) in zip(got[0], want[0], strict=True):     # the host sums squares in another order, in float64 too
                assert loss == loss_near and abs(norm - norm_near) <= 1e-12 * norm_near, (got[0], want[0])
            assert got[1] == want[1], "other gradients"
            assert got[2] == want[2], "another checkpoint"
        saved = []
        for r in range(2):
            shard = next(b["bytes"] for b in near["ranks"][r]["buffers"] if b["name"] == "gradients.shard")
            stages = sum(b["bytes"] for b in far["ranks"][r]["buffers"] if b["place"] == "device" and re.match(r"gradients\.stage", b["name"]))
            saved.append(shard - stages)
            assert held(far, r, "host") == shard and held(near, r, "host") == 0
            assert held(near, r, "device") == shard and held(far, r, "device") <= stages
        assert min(saved) > 0 and min(saved) <= near["peak_bytes"] - far["peak_bytes"] <= max(saved), (saved, near["peak_bytes"], far["peak_bytes"])


def kill_case(tmp):
    before = shm_names()
    for ranks, told in ((4, True), (2, False)):
        struck = {}

        def on_message(gang, rank, m):
            if m["t"] == "metrics" and rank == 1 and "at" not in struck:
                gang.procs[1].send_signal(signal.SIGKILL)
                struck["at"] = time.time()
                for r in range(ranks):
                    if told and r != 1:
                        gang.tell(r, {"t": "peer_lost", "rank": 1, "text": "rank 1 was killed"})

        g = run(tmp, f"kill{ranks}", ranks, gang=Unwatched, on_message=on_message, max_steps=500, debug_dump=None, sequence_parallel_size=ranks, ring_size=ranks,
                stall_timeout_ms=300000 if told else 5000)
        took = time.time() - struck["at"]
        print(f"{ranks} ranks, {'told' if told else 'not told'}: gone after {took:.1f} s, codes {g.codes}", flush=True)
        assert took < 15 and g.codes == [72 if r != 1 else -signal.SIGKILL for r in range(ranks)], (took, g.codes, g.stderr)
        assert all("lost" in g.stderr[r] for r in range(ranks) if r != 1), g.stderr
        assert all(p.poll() is not None for p in g.procs) and shm_names() <= before


def memory_case(tmp):
    """Too small for the plan: refused before anything is made. Taken by somebody else after the plan: an error that says what was wanted."""
    for env, code, text in (({"GPUSIM_MEMORY": "3000000"}, 2, r"the limit is .* \(memory of the device\)"),
                            ({"GPUSIM_TAKEN": str((16 << 30) - 3000000)}, 71, r"allocate \d+ bytes of device memory")):
        g = run(tmp, "memory", 1, env=env)
        print(g.codes, g.stderr[0].strip(), flush=True)
        assert g.codes == [code] and re.search(text, g.stderr[0]) and not g.records("metrics"), (g.codes, g.stderr)


def races_case(tmp):
    """The worker is not instrumented, so the sanitizer's library is loaded before it; not by the shell that starts it, which would not survive that."""
    library = subprocess.run(["g++", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True).stdout.strip()
    with open(f"{tmp}/worker", "w") as f:
        f.write(f'#!/bin/sh\nLD_PRELOAD={library} TSAN_OPTIONS=halt_on_error=1 exec {WORKER} "$@"\n')
    os.chmod(f"{tmp}/worker", 0o755)
    g = run(tmp, "races", 2, worker=f"{tmp}/worker", sequence_parallel_size=2, ring_size=2)
    for text in g.stderr:
        assert "data race" not in text, text[:4000]
    assert g.codes == [0, 0], (g.codes, g.stderr)


def main():
    case, tmp = sys.argv[3], tempfile.mkdtemp(prefix="rm-gpusim-")
    try:
        tiny_model(f"{tmp}/model", num_hidden_layers={"offload": 4, "disk": 4, "gradients": 6}.get(case, 2))
        tiny_data(f"{tmp}/d.jsonl")
        if case in CASES:
            train_case(tmp, case)
        else:
            {"gradients": gradients_case, "kill": kill_case, "memory": memory_case, "races": races_case}[case](tmp)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
