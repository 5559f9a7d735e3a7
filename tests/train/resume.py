#!/usr/bin/env python3
"""20 steps in one go are 7, kill -9, and 13 more: bit for bit; and within 1e-5 on another U x R.

usage: resume.py WORKER CASE    cases: full, lora, dora, saved, bf16, galore, reshape, refuse, skip, rope"""
import json
import os
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from gang import Gang, tiny_data, tiny_model, write_spec

CASES = {
    "full": dict(tuner_type="full", gradient_accumulation_steps=2),
    "lora": dict(tuner_type="lora", lora_rank=4, lora_dropout=0.2, modules_to_save=["lm_head"], learning_rate=1e-2),
    "dora": dict(tuner_type="lora", lora_rank=4, use_dora=True, use_rslora=True, lorap_lr_ratio=4, rank_pattern={"q_proj": 2}, alpha_pattern={"layers.0.*": 8}, torch_dtype="bfloat16", learning_rate=1e-2),
    "saved": dict(tuner_type="lora", lora_rank=4, modules_to_save=["lm_head", "norm"], torch_dtype="bfloat16", learning_rate=1e-2),
    "bf16": dict(tuner_type="full", torch_dtype="bfloat16"),
    "galore": dict(tuner_type="full", use_galore=True, galore_rank=8, galore_update_proj_gap=4, max_grad_norm=0.5),
}


def kill_after(step):
    def on_message(gang, rank, m):
        if m["t"] == "metrics" and m["step"] >= step:
            gang.kill()
    return on_message


def model_bytes(out, step):
    d = f"{out}/checkpoint-{step}"
    name = "adapter_model" if os.path.exists(f"{d}/adapter_model.safetensors") else "model"
    with open(f"{d}/{name}.safetensors", "rb") as f:
        return f.read()


class Bench:
    def __init__(self, worker):
        self.worker, self.tmp = worker, tempfile.mkdtemp(prefix="rm-resume-")
        self.model, self.data = tiny_model(f"{self.tmp}/model"), tiny_data(f"{self.tmp}/d.jsonl")

    def run(self, name, U=1, R=2, on_message=None, resume=None, **fields):
        spec = dict(model=self.model, init="random", torch_dtype="float32", dataset=[self.data], template="chatml", max_length=160, packing=True, learning_rate=5e-3,
                    lr_scheduler_type="cosine", warmup_steps=3, max_steps=20, seed=11, device="cpu", nproc_per_node=U * R, ulysses_size=U, ring_size=R,
                    threads_per_rank=1, gradient_checkpointing="none", save_steps=7, output_dir=f"{self.tmp}/{name}")
        spec.update(fields)
        if resume:
            spec["resume_from_checkpoint"] = resume
        return Gang(self.worker, write_spec(f"{self.tmp}/{name}.json", **spec), U * R, on_message=on_message).run()


def exact(b, case):
    fields = CASES[case]
    whole = b.run("whole", **fields)
    assert whole.codes == [0, 0], whole.stderr
    cut = b.run("cut", on_message=kill_after(9), **fields)
    assert -9 in cut.codes, cut.codes
    rest = b.run("cut", resume=f"{b.tmp}/cut/checkpoint-7", **fields)
    assert rest.codes == [0, 0], rest.stderr
    want = {m["step"]: (m["loss"], m["grad_norm"], m["learning_rate"]) for m in whole.records("metrics")}
    got = {m["step"]: (m["loss"], m["grad_norm"], m["learning_rate"]) for m in rest.records("metrics")}
    assert sorted(got) == list(range(8, 21)), sorted(got)
    for step, v in got.items():
        assert v == want[step], (step, v, want[step])
    assert model_bytes(f"{b.tmp}/whole", 20) == model_bytes(f"{b.tmp}/cut", 20)
    twice = b.run("twice", **fields)
    assert twice.losses() == whole.losses(), "deterministic: two runs differ"
    print(f"{case}: 20 = 7 + kill -9 + 13, bit for bit")
    return 0


def reshape(b):
    """Written by 1 x 2, gone on with by one rank, by 2 x 1, by 2 x 2, and by two data-parallel ranks that share the accumulation."""
    fields = dict(tuner_type="full", gradient_accumulation_steps=2)
    whole = b.run("whole", **fields)
    assert whole.codes == [0, 0], whole.stderr
    want = whole.losses()
    for name, U, R, extra in [("one", 1, 1, {}), ("uly", 2, 1, {}), ("both", 2, 2, {}), ("zero1", 2, 1, dict(zero_stage=1)), ("zero3", 1, 4, dict(zero_stage=3)),
                              ("dp", 1, 1, dict(nproc_per_node=2, gradient_accumulation_steps=1))]:
        spec = dict(fields, **extra)
        n = spec.pop("nproc_per_node", U * R)
        g = b.run(name, U=U, R=R, resume=f"{b.tmp}/whole/checkpoint-7", **spec) if n == U * R else run_dp(b, name, n, spec)
        assert set(g.codes) == {0}, (name, g.stderr)
        off = max(abs(x - y) / abs(y) for x, y in zip(g.losses(), want[7:]))
        print(f"resumed as {name}: losses off by {off:.1e}")
        assert len(g.losses()) == 13 and off < 1e-5
    lora = dict(tuner_type="lora", lora_rank=4, lora_dropout=0.2, use_dora=True, learning_rate=1e-2)           # dropout's bits are the row's, not the rank's
    whole_lora = b.run("lora", **lora)
    for name, U, R in [("lora-one", 1, 1), ("lora-uly", 2, 1), ("lora-both", 2, 2)]:
        g = b.run(name, U=U, R=R, resume=f"{b.tmp}/lora/checkpoint-7", **lora)
        off = max(abs(x - y) / abs(y) for x, y in zip(g.losses(), whole_lora.losses()[7:]))
        print(f"DoRA with dropout resumed as {name}: losses off by {off:.1e}")
        assert set(g.codes) == {0} and len(g.losses()) == 13 and off < 1e-5
    shards = b.run("shards", U=1, R=4, zero_stage=3, **fields)              # and written in shards, gone on with by one rank
    assert shards.codes == [0] * 4 and len([f for f in os.listdir(f"{b.tmp}/shards/checkpoint-7") if f.startswith("optimizer-")]) == 4, shards.stderr
    g = b.run("joined", U=1, R=1, resume=f"{b.tmp}/shards/checkpoint-7", **fields)
    off = max(abs(x - y) / abs(y) for x, y in zip(g.losses(), want[7:]))
    print(f"four shards resumed by one rank: losses off by {off:.1e}")
    assert g.codes == [0] and len(g.losses()) == 13 and off < 1e-5
    return 0


def run_dp(b, name, n, fields):
    spec = dict(model=b.model, init="random", torch_dtype="float32", dataset=[b.data], template="chatml", max_length=160, packing=True, learning_rate=5e-3,
                lr_scheduler_type="cosine", warmup_steps=3, max_steps=20, seed=11, device="cpu", nproc_per_node=n, sequence_parallel_size=1, threads_per_rank=1,
                gradient_checkpointing="none", output_dir=f"{b.tmp}/{name}", resume_from_checkpoint=f"{b.tmp}/whole/checkpoint-7")
    spec.update(fields)
    return Gang(b.worker, write_spec(f"{b.tmp}/{name}.json", **spec), n).run()


def refuse(b):
    """What cannot be resumed says why, before a step; a finished job resumes to its end at once; save_only_model keeps no state."""
    g = b.run("a", U=1, R=1, tuner_type="full", max_steps=8, save_steps=4)
    assert g.codes == [0], g.stderr
    dir = f"{b.tmp}/a/checkpoint-4"
    for fields, what in [(dict(seed=12), "seed"), (dict(tuner_type="lora"), "tuner_type"), (dict(max_length=80), "data set"),
                         (dict(dataset=[tiny_data(f"{b.tmp}/other.jsonl", n=41)]), "data set")]:
        g = b.run("r", U=1, R=1, resume=dir, **dict(dict(tuner_type="full", max_steps=8), **fields))
        assert g.codes == [2] and what in g.stderr[0] and not g.records("metrics"), (fields, g.codes, g.stderr)
    g = b.run("d", U=1, R=1, resume=f"{b.tmp}/a/checkpoint-8", tuner_type="full", max_steps=8)
    assert g.codes == [0] and not g.records("metrics") and g.records("done")
    g = b.run("o", U=1, R=1, tuner_type="full", max_steps=2, save_only_model=True)
    assert g.codes == [0] and not [f for f in os.listdir(f"{b.tmp}/o/checkpoint-2") if f.startswith("optimizer")]
    g = b.run("r", U=1, R=1, resume=f"{b.tmp}/o/checkpoint-2", tuner_type="full", max_steps=8)
    assert g.codes == [2] and "save_only_model" in g.stderr[0], g.stderr
    for damage in ["cut", "gone", "unmarked"]:
        bad = f"{b.tmp}/bad-{damage}"
        shutil.copytree(dir, bad)
        if damage == "cut":
            os.truncate(f"{bad}/model.safetensors", 1000)
        elif damage == "gone":
            os.remove(f"{bad}/optimizer-00001-of-00001.safetensors")
        else:
            os.remove(f"{bad}/trainer_state.json")
        g = b.run("r", U=1, R=1, resume=bad, tuner_type="full", max_steps=8)
        assert g.codes == [2] and bad in g.stderr[0], (damage, g.codes, g.stderr)
    print("refusals say why")
    return 0


def skip(b):
    """Gradients that are not finite change nothing but the count, which a resume goes on with."""
    g = b.run("a", U=1, R=1, tuner_type="full", max_steps=1)
    assert g.codes == [0], g.stderr
    sick = f"{b.tmp}/sick"
    shutil.copytree(f"{b.tmp}/a/checkpoint-1", sick)
    with open(f"{sick}/model.safetensors", "r+b") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        at = json.loads(f.read(n))["model.norm.weight"]["data_offsets"][0]
        f.seek(8 + n + at)
        f.write(struct.pack("<f", float("nan")))
    with open(f"{sick}/model.safetensors", "rb") as f:
        before = f.read()
    for dtype in ["float32", "bfloat16"]:
        g = b.run("s" + dtype, U=2, R=1, tuner_type="full", model=sick, init="pretrained", max_steps=3, save_steps=2, torch_dtype=dtype)
        assert g.codes == [0, 0], g.stderr
        assert [m["skipped_steps"] for m in g.records("metrics")] == [1, 2, 3] and g.records("metrics")[0]["grad_norm"] is None
        assert len([m for m in g.records("event") if m["code"] == "skipped_step"]) == 3
    assert model_bytes(f"{b.tmp}/sfloat32", 3) == before, "a skipped step changed the weights"
    g = b.run("r", U=2, R=1, tuner_type="full", model=sick, init="pretrained", max_steps=4, resume=f"{b.tmp}/sfloat32/checkpoint-2")
    assert [m["skipped_steps"] for m in g.records("metrics")] == [3, 4]
    print("skipped, counted, told")
    return 0


def rope(b):
    """LLaMA-Factory #9588: a factor multiplied again on every load, because it was computed from an already scaled config."""
    for scaling in [{"rope_type": "linear", "factor": 4.0}, {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}]:
        kind, losses, model, init = scaling["rope_type"], [], b.model, "random"
        for generation in range(3):
            g = b.run(f"{kind}{generation}", U=1, R=1, tuner_type="full", max_steps=1, learning_rate=0, model=model, init=init, rope_scaling=scaling, max_length=128)
            assert g.codes == [0], g.stderr
            losses.append(g.losses()[0])
            model, init = f"{b.tmp}/{kind}{generation}/checkpoint-1", "pretrained"
            config = json.load(open(f"{model}/config.json"))
            saved = config.get("rope_scaling") or config.get("rope_parameters")
            assert saved["factor"] == scaling["factor"], saved
        plain = b.run(f"{kind}-file", U=1, R=1, tuner_type="full", max_steps=1, learning_rate=0, model=model, init=init, max_length=128)     # as config.json says it
        assert plain.codes == [0], plain.stderr
        assert losses[0] == losses[1] == losses[2] == plain.losses()[0], (kind, losses, plain.losses())
        print(f"{kind}: the same after three loads: {losses[0]}")
    return 0


def main():
    b, case = Bench(sys.argv[1]), sys.argv[2]
    try:
        sys.exit({"reshape": reshape, "refuse": refuse, "skip": skip, "rope": rope}[case](b) if case not in CASES else exact(b, case))
    finally:
        shutil.rmtree(b.tmp, ignore_errors=True)


main()
