#!/usr/bin/env python3
"""A straggler is told of in the record of its very step: which rank, and how far from the mean.   usage: skew.py WORKER"""
import os
import shutil
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "train"))
from gang import Gang, tiny_data, tiny_model, write_spec

WORLD, SLOW, STEP, HELD_S = 4, 2, 3, 3.0


def main():
    worker, tmp = sys.argv[1], tempfile.mkdtemp(prefix="rm-skew-")
    try:
        for mesh in (dict(ring_size=2, ulysses_size=2), dict(sequence_parallel_size=1, zero_stage=2)):
            point = f"{tmp}/point"
            with open(point, "w") as f:
                f.write(f"{SLOW} {STEP} forward\n")
            held = threading.Event()

            def hold():                         # the rank itself says when it stands in forward (worker/failpoint.h)
                while not os.path.exists(point + ".reached"):
                    time.sleep(0.01)
                time.sleep(HELD_S)
                os.unlink(point + ".reached")
                held.set()

            threading.Thread(target=hold, daemon=True).start()
            spec = write_spec(f"{tmp}/s.json", model=tiny_model(f"{tmp}/model"), init="random", torch_dtype="float32", dataset=[tiny_data(f"{tmp}/d.jsonl")], template="chatml",
                              max_length=256, packing=True, tuner_type="full", max_steps=5, seed=3, device="cpu", nproc_per_node=WORLD, threads_per_rank=1, save_only_model=True,
                              output_dir=f"{tmp}/out", **mesh)
            g = Gang(worker, spec, WORLD, env={**os.environ, "RM_FAILPOINT": point}).run()
            assert g.codes == [0] * WORLD and held.is_set(), g.stderr
            rows = [g.records("metrics", r) for r in range(WORLD)]
            names = ("skew", "slowest_rank", "comm_share_mean", "comm_share_max")
            for step in range(5):
                one = rows[0][step]
                assert all(rows[r][step][n] == one[n] for r in range(WORLD) for n in names), "all ranks say the same of all"
                assert 1 <= one["skew"] <= WORLD and 0 <= one["comm_share_mean"] <= one["comm_share_max"] <= 1, one
            m = rows[0][STEP - 1]
            print({n: m[n] for n in names}, flush=True)
            assert m["slowest_rank"] == SLOW and m["skew"] > 1.5, m
            assert m["comm_share_max"] > 0.5, m                             # the others waited for it
            assert rows[SLOW][STEP - 1]["comm_share"] < 0.5, rows[SLOW][STEP - 1]
            shutil.rmtree(f"{tmp}/out")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
