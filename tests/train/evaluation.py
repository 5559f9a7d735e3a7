#!/usr/bin/env python3
"""Evaluation sees the same loss at every degree of parallelism and training does not see it; best and last checkpoints stay.

usage: evaluation.py WORKER invisible|parallel|limit"""
import json
import math
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from gang import Gang, tiny_data, tiny_model, write_spec


class Bench:
    def __init__(self, worker):
        self.worker, self.tmp = worker, tempfile.mkdtemp(prefix="rm-eval-")
        self.model, self.data, self.val = tiny_model(f"{self.tmp}/model"), tiny_data(f"{self.tmp}/d.jsonl"), tiny_data(f"{self.tmp}/v.jsonl", n=9, seed=77)

    def run(self, name, n=1, **fields):
        spec = dict(model=self.model, init="random", torch_dtype="float32", dataset=[self.data], template="chatml", max_length=160, packing=True, tuner_type="full",
                    learning_rate=5e-3, max_steps=8, seed=11, device="cpu", nproc_per_node=n, threads_per_rank=1, gradient_checkpointing="none", save_only_model=True,
                    output_dir=f"{self.tmp}/{name}")
        spec.update(fields)
        g = Gang(self.worker, write_spec(f"{self.tmp}/{name}.json", **spec), n).run()
        assert g.codes == [0] * n, g.stderr
        return g


def invisible(b):
    lora = dict(tuner_type="lora", lora_rank=4, lora_dropout=0.3, val_dataset=[b.val])
    plain = b.run("plain", **lora)
    looked = b.run("looked", eval_steps=2, sample_prompts=["the quick brown", "seven"], **lora)
    assert plain.losses() == looked.losses()
    with open(f"{b.tmp}/plain/checkpoint-8/adapter_model.safetensors", "rb") as x, open(f"{b.tmp}/looked/checkpoint-8/adapter_model.safetensors", "rb") as y:
        assert x.read() == y.read()
    evals = [m for m in looked.records("metrics") if "eval_loss" in m]
    assert [m["step"] for m in evals] == [2, 4, 6, 8]
    for m in evals:
        assert abs(m["eval_perplexity"] - math.exp(m["eval_loss"])) < 1e-9 * m["eval_perplexity"]
    assert evals[-1]["eval_loss"] < evals[0]["eval_loss"]
    with open(f"{b.tmp}/looked/samples.jsonl") as f:
        samples = [json.loads(line) for line in f]
    assert [(s["step"], s["prompt"]) for s in samples] == [(k, p) for k in (2, 4, 6, 8) for p in ("the quick brown", "seven")], samples
    fields = dict(n=2, ring_size=2, torch_dtype="bfloat16", val_dataset=[b.val], max_steps=4)        # llm.c #663: a buffer that validation leaves behind
    plain, looked = b.run("plain2", **fields), b.run("looked2", eval_steps=1, sample_prompts=["seven"], **fields)
    assert plain.losses() == looked.losses()
    with open(f"{b.tmp}/plain2/checkpoint-4/model.safetensors", "rb") as x, open(f"{b.tmp}/looked2/checkpoint-4/model.safetensors", "rb") as y:
        assert x.read() == y.read()
    texts = []
    for name, n, fields in [("s1", 1, {}), ("s4", 4, dict(ulysses_size=2, ring_size=2)), ("sdp", 2, dict(sequence_parallel_size=1, zero_stage=3))]:
        b.run(name, n, eval_steps=1, max_steps=1, learning_rate=0, val_dataset=[b.val], sample_prompts=["the quick brown", "x"], **fields)
        with open(f"{b.tmp}/{name}/samples.jsonl") as f:
            texts.append(f.read())
    assert texts[0] == texts[1] == texts[2] and texts[0].count("\n") == 2, texts
    print("training is bit-identical with and without evaluation; samples:", repr(samples[-1]["text"][:40]))


def parallel(b):
    """ms-swift #9152: a numerator summed over ranks over a local count. axolotl #3026: a rank without a trained token contributes 0, not NaN."""
    last = f"{b.tmp}/last.jsonl"            # a long question, a short answer: all that is trained lies on the last rank
    with open(last, "w") as f:
        for i in range(5):
            f.write(json.dumps({"messages": [{"role": "user", "content": f"word{i} " * 16}, {"role": "assistant", "content": "yes"}]}) + "\n")
    want = None
    for name, n, fields in [("last-one", 1, {}), ("last-uly", 4, dict(ulysses_size=4)), ("last-hybrid", 4, dict(ring_size=2, ulysses_size=2))]:
        g = b.run(name, n, eval_steps=1, max_steps=1, learning_rate=0, packing=False, val_dataset=[last], **fields)
        loss = g.records("metrics")[0]["eval_loss"]
        want = want or loss
        assert math.isfinite(loss) and abs(loss - want) < 1e-6 * want, (name, loss, want)
    want = None
    for name, n, fields in [("one", 1, {}), ("uly", 2, dict(ulysses_size=2)), ("ring", 4, dict(ring_size=4)), ("dp", 2, dict(sequence_parallel_size=1)),
                            ("dp-sp", 4, dict(ring_size=2, sequence_parallel_size=2)),
                            ("dp-zero3", 4, dict(sequence_parallel_size=1, zero_stage=3))]:
        g = b.run(name, n, eval_steps=1, max_steps=1, learning_rate=0, val_dataset=[b.val], **fields)
        loss = g.records("metrics")[0]["eval_loss"]
        want = want or loss
        assert abs(loss - want) < 1e-6 * want, (name, loss, want)
    print(f"eval_loss {want} at every shape")


def limit(b):
    """save_total_limit keeps the newest and the best."""
    g = b.run("out", eval_steps=1, save_steps=1, save_total_limit=2, max_steps=10, learning_rate=2.0, lr_scheduler_type="constant", warmup_ratio=0, max_grad_norm=0,
              split_dataset_ratio=0.2)
    evals = [m["eval_loss"] for m in g.records("metrics")]
    best = evals.index(min(evals)) + 1
    left = sorted(int(d.split("-")[1]) for d in os.listdir(f"{b.tmp}/out") if d.startswith("checkpoint-"))
    assert best < 9 and left == [best, 10], (left, best, evals)
    state = json.load(open(f"{b.tmp}/out/checkpoint-10/trainer_state.json"))
    assert state["best_model_checkpoint"].endswith(f"checkpoint-{best}") and state["best_metric"] == min(evals)
    print(f"kept {left}, best {best}")


def main():
    b = Bench(sys.argv[1])
    try:
        {"invisible": invisible, "parallel": parallel, "limit": limit}[sys.argv[2]](b)
    finally:
        shutil.rmtree(b.tmp, ignore_errors=True)


main()
