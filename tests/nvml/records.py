#!/usr/bin/env python3
"""What NVML says arrives where people look: in each record, as an event when a card is slowed down, in --devices; and nowhere without the library.
The order that it gives to GPUs is the same for all ranks, also where it fails in rank 0 alone.
The GPUs are simulated (tests/gpusim), the library is the stand-in.   usage: records.py WORKER MODULE FOLDER_OF_THE_STAND_IN"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "train"))
from gang import Gang, tiny_data, tiny_model, write_spec

worker, module, folder = sys.argv[1:4]
tmp = tempfile.mkdtemp(prefix="rm-nvml-")
elsewhere = ":".join(p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p and os.path.realpath(p) != os.path.realpath(folder))     # meson adds the folder by itself
base = {**os.environ, "LD_LIBRARY_PATH": elsewhere, "RINGMASTER_CUDA_MODULE": module, "GPUSIM_DEVICES": "2", "OMP_NUM_THREADS": "1"}
with_nvml = {**base, "LD_LIBRARY_PATH": folder + ":" + elsewhere, "NVML_STANDIN": "any"}
try:
    tiny_model(f"{tmp}/model")
    tiny_data(f"{tmp}/d.jsonl")
    for name, env in (("with", with_nvml), ("without", base)):
        spec = write_spec(f"{tmp}/{name}.json", model=f"{tmp}/model", init="random", torch_dtype="bfloat16", dataset=[f"{tmp}/d.jsonl"], template="chatml", max_length=64, packing=True,
                          tuner_type="lora", max_steps=2, nproc_per_node=1, threads_per_rank=1, save_only_model=True, output_dir=f"{tmp}/{name}", device="cuda")
        g = Gang(worker, spec, 1, timeout=120, env=env).run()
        assert g.codes == [0], (g.codes, g.stderr)
        records = g.records("metrics", 0)
        slow = [e["text"] for e in g.records("event", 0) if e["code"] == "throttled"]
        devices = [d for d in json.loads(subprocess.run([worker, "--devices"], env=env, capture_output=True, text=True, check=True).stdout)["devices"] if d["kind"] == "cuda"]
        assert len(records) == 2 and len(devices) == 2, (records, devices)
        if name == "with":
            for m in records:
                assert (m["gpu_utilization"], m["gpu_power_w"], m["gpu_temperature_c"], m["gpu_memory_used_bytes"]) == (0.41, 651.5, 64, 5000000000), m
                assert m["gpu_throttle"] == "power limit, too hot (hardware)", m
            assert slow == ["the GPU of rank 0 is slowed down: power limit, too hot (hardware)"], slow      # once, not each step
            assert all(d["power_w"] == 651.5 and d["sm_clock_mhz"] == 1755 for d in devices), devices
        else:
            assert not slow and not [k for m in records for k in m if k.startswith("gpu_")] and not [k for d in devices for k in d if k == "power_w"], (records, devices)
    with open(f"{tmp}/worker", "w") as f:       # rank 0 may have an NVML of its own
        f.write('#!/bin/sh\n[ "$2" = 0 ] && NVML_STANDIN=$OF_RANK_0\nexec "$WORKER" "$@"\n')
    os.chmod(f"{tmp}/worker", 0o755)
    for mode, cards in (("last", [0.40, 0.42, 0.41, 0.43]), ("down", [None, 0.41, 0.42, 0.43])):      # utilization names the card; neighbours are wired 0 - 2 - 1 - 3
        env = {**with_nvml, "GPUSIM_DEVICES": "4", "NVML_STANDIN": "last", "OF_RANK_0": mode, "WORKER": worker}
        spec = write_spec(f"{tmp}/{mode}.json", model=f"{tmp}/model", init="random", torch_dtype="bfloat16", dataset=[f"{tmp}/d.jsonl"], template="chatml", max_length=64, packing=True,
                          tuner_type="lora", max_steps=1, nproc_per_node=4, threads_per_rank=1, save_only_model=True, output_dir=f"{tmp}/{mode}", device="cuda")
        g = Gang(f"{tmp}/worker", spec, 4, timeout=120, env=env).run()
        assert g.codes == [0] * 4, (g.codes, g.stderr)
        seen = [g.records("metrics", rank)[0].get("gpu_utilization") for rank in range(4)]
        assert seen == cards, (mode, seen)
finally:
    shutil.rmtree(tmp, ignore_errors=True)
print("ok")
