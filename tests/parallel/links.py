#!/usr/bin/env python3
"""sequence_parallel_method auto: with deterministic false the ranks measure their links, decide alike and say so; else nothing is measured; a given speed is not measured; a resumed run keeps its degrees.
usage: links.py WORKER"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "train"))
from gang import Gang, tiny_data, tiny_model, write_spec

WORLD = 4


def main():
    worker, tmp = sys.argv[1], tempfile.mkdtemp(prefix="rm-links-")
    try:
        base = dict(model=tiny_model(f"{tmp}/model"), init="random", torch_dtype="float32", dataset=[tiny_data(f"{tmp}/d.jsonl")], template="chatml", max_length=256, packing=True,
                    tuner_type="full", max_steps=2, seed=3, device="cpu", nproc_per_node=WORLD, sequence_parallel_size=WORLD, threads_per_rank=1, output_dir=f"{tmp}/out")

        def run(extra=(), **fields):
            shutil.rmtree(f"{tmp}/out", ignore_errors=True) if not extra else None
            g = Gang(worker, write_spec(f"{tmp}/s.json", **{**base, **fields}), WORLD, extra=extra).run()
            assert g.codes == [0] * WORLD, g.stderr
            whys = {m["parallel"] for r in range(WORLD) for m in g.records("ready", r)}
            assert len(whys) == 1, whys
            events = [m["text"] for m in g.records("event") if m["code"] == "parallel"]
            return g, whys.pop(), events

        def plan(**fields):
            out = subprocess.run([worker, "--plan", write_spec(f"{tmp}/p.json", **{**base, **fields, "output_dir": f"{tmp}/other"})], capture_output=True, text=True)
            return json.loads(out.stdout)["parallel"]

        _, why, events = run()                              # deterministic: as planned, whatever the machine does meanwhile
        assert "(assumed: deterministic)" in why and why == plan()["why"] and not events, (why, events)

        g, why, events = run(deterministic=False)
        print(why)
        speed = float(re.search(r"at ([0-9.e+]+) GB/s between ranks \(measured\)", why).group(1))
        assert speed > 0 and len(events) == 1 and events[0].startswith(why), events
        assert "(assumed)" in plan(deterministic=False)["why"]

        g, why, events = run(link_speed_gb_s=0.0001)        # so slow that sending less is all that counts
        print(why)
        kinds = {k for m in g.records("metrics") for k in m["collectives"]}
        slow = plan(link_speed_gb_s=0.0001)
        assert "(given)" in why and not events and slow["why"] == why and slow["ring"] * slow["ulysses"] == WORLD
        assert ("hop" in kinds) == (slow["ring"] > 1) and ("all_to_all" in kinds) == (slow["ulysses"] > 1), (kinds, slow)
        assert plan(link_speed_gb_s=1000)["ulysses"] == WORLD

        _, why, events = run(measure_links=False)
        assert "(assumed)" in why and not events, (why, events)

        run(link_speed_gb_s=0.0001, max_length=16384, packing=False, sequence_parallel_size=2)       # whatever it is now …
        state = json.load(open(f"{tmp}/out/checkpoint-2/trainer_state.json"))["ringmaster"]
        other = {1: 2, 2: 1}
        state_path = f"{tmp}/out/checkpoint-2/trainer_state.json"
        whole = json.load(open(state_path))
        whole["ringmaster"].update(ulysses=other[state["ulysses"]], ring=other[state["ring"]])       # … a resumed run goes by the checkpoint
        json.dump(whole, open(state_path, "w"))
        _, why, _ = run(extra=("--resume", f"{tmp}/out/checkpoint-2"), max_steps=3, max_length=16384, packing=False, sequence_parallel_size=2)
        print(why)
        assert why == f"auto: ulysses x {other[state['ulysses']]}, ring x {other[state['ring']]}, as in the checkpoint"
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
