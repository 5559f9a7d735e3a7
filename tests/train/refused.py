#!/usr/bin/env python3
"""Bad input is refused by `--plan` and by the rank itself, naming the field or file and what was expected.   usage: refused.py WORKER"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from gang import tiny_data, tiny_model, write_spec


def main():
    worker, tmp = sys.argv[1], tempfile.mkdtemp(prefix="rm-refused-")
    try:
        model, data = tiny_model(f"{tmp}/model"), tiny_data(f"{tmp}/d.jsonl")
        base = dict(model=model, init="random", torch_dtype="float32", dataset=[data], template="chatml", max_length=128, packing=True, tuner_type="full", max_steps=2,
                    device="cpu", threads_per_rank=1, output_dir=f"{tmp}/out")
        first = subprocess.run([worker, "--spec", write_spec(f"{tmp}/ok.json", **dict(base, output_dir=f"{tmp}/first"))], capture_output=True, text=True)
        assert first.returncode == 0, first.stderr
        saved = f"{tmp}/first/checkpoint-2"

        def model_with(name, change):
            d = f"{tmp}/{name}"
            shutil.copytree(saved, d)
            change(d)
            return d

        def cut(d):
            os.truncate(f"{d}/model.safetensors", os.path.getsize(f"{d}/model.safetensors") - 7)

        def bend(d):        # a shape that does not fit the bytes
            with open(f"{d}/model.safetensors", "r+b") as f:
                (n,) = struct.unpack("<Q", f.read(8))
                head = json.loads(f.read(n))
                head["model.norm.weight"]["shape"] = [31]
                text = json.dumps(head, separators=(",", ":")).encode()
                f.seek(8)
                f.write(text + b" " * (n - len(text)))

        def lose(d):
            os.remove(f"{d}/model.safetensors")

        def alien(d):
            config = json.load(open(f"{d}/config.json"))
            config["model_type"] = "rwkv"
            json.dump(config, open(f"{d}/config.json", "w"))

        def no_tokenizer(d):
            os.remove(f"{d}/tokenizer.json")

        def wider(d):
            config = json.load(open(f"{d}/config.json"))
            config["intermediate_size"] = 80
            json.dump(config, open(f"{d}/config.json", "w"))

        open(f"{tmp}/empty.jsonl", "w").close()
        with open(f"{tmp}/broken.jsonl", "w") as f:
            f.write('{"messages": [{"role": "user", "content": "x"}]\n')
        open(f"{tmp}/file", "w").close()
        cases = [   # fields, pointer, words of the message
            (dict(learning_rat=1), "/learning_rat", ["unknown"]),
            (dict(max_steps="many"), "/max_steps", ["whole number"]),
            (dict(model=f"{tmp}/nowhere"), "/model", ["nowhere", "config.json"]),
            (dict(init="pretrained", model=model_with("cut", cut)), "/model", ["model.safetensors"]),
            (dict(init="pretrained", model=model_with("bent", bend)), "/model", ["model.safetensors"]),
            (dict(init="pretrained", model=model_with("lost", lose)), "/model", ["safetensors"]),
            (dict(model=model_with("alien", alien)), "/model", ["rwkv", "qwen2"]),
            (dict(init="pretrained", model=model_with("wide", wider)), "/model", ["mlp", "72", "80"]),
            (dict(adapter=saved), "", ["tuner_type is not lora"]),
            (dict(model=model_with("mute", no_tokenizer)), "/model", ["tokenizer.json"]),
            (dict(dataset=[f"{tmp}/empty.jsonl"]), "/dataset", ["empty.jsonl"]),
            (dict(dataset=[f"{tmp}/none.jsonl"]), "/dataset", ["none.jsonl"]),
            (dict(dataset=[f"{tmp}/broken.jsonl"]), "/dataset", ["broken.jsonl"]),
            (dict(nproc_per_node=3, ulysses_size=3, max_length=129), "/", ["heads"]),
            (dict(memory_limit_bytes=200000), "/memory_limit_bytes", ["limit", "bytes"]),
            (dict(output_dir=f"{tmp}/file/out"), "/output_dir", ["file"]),
            (dict(resume_from_checkpoint=f"{tmp}/model"), "/resume_from_checkpoint", ["trainer_state.json"]),
            (dict(use_galore=True, galore_rank=4, zero_stage=1), "", ["zero_stage"]),
        ]
        for fields, pointer, words in cases:
            path = write_spec(f"{tmp}/spec.json", **dict(base, **fields))
            p = subprocess.run([worker, "--plan", path, "--brief"], capture_output=True, text=True)
            answer = json.loads(p.stdout)
            assert p.returncode == 2 and answer["ok"] is False, (fields, p.returncode, p.stdout)
            hit = [x for x in answer["problems"] if x["pointer"].startswith(pointer) and all(w in x["message"] or w in x["code"] for w in words)]
            assert hit, (fields, answer)
            assert not os.path.exists(f"{tmp}/out"), "a plan left something behind"
            p = subprocess.run([worker, "--spec", path], capture_output=True, text=True)
            assert p.returncode == 2 and p.stderr.strip(), (fields, p.returncode, p.stderr)
            assert not os.path.exists(f"{tmp}/out") or not [d for d in (os.listdir(f"{tmp}/out") if os.path.isdir(f"{tmp}/out") else []) if "checkpoint" in d or d == "logging.jsonl"]
            shutil.rmtree(f"{tmp}/out", ignore_errors=True)
        # several faults at once are all told
        p = subprocess.run([worker, "--plan", write_spec(f"{tmp}/spec.json", **dict(base, model=f"{tmp}/nowhere", dataset=[f"{tmp}/empty.jsonl"])), "--brief"], capture_output=True, text=True)
        pointers = {x["pointer"] for x in json.loads(p.stdout)["problems"]}
        assert {"/model", "/dataset/0"} <= pointers, pointers
        # over the limit: what would fit is named, and does fit
        wide = dict(base, max_length=16384, gradient_checkpointing="none")
        none = json.loads(subprocess.run([worker, "--plan", write_spec(f"{tmp}/spec.json", **wide), "--brief"], capture_output=True, text=True).stdout)
        tight = dict(wide, memory_limit_bytes=none["peak_bytes"] - 1)
        p = json.loads(subprocess.run([worker, "--plan", write_spec(f"{tmp}/spec.json", **tight), "--brief"], capture_output=True, text=True).stdout)
        assert "gradient_checkpointing attention" in p["problems"][0]["message"] and "sequence_parallel_size 2" in p["problems"][0]["message"], p
        auto = json.loads(subprocess.run([worker, "--plan", write_spec(f"{tmp}/spec.json", **dict(tight, gradient_checkpointing="auto")), "--brief"], capture_output=True, text=True).stdout)
        assert auto["ok"] and auto["policy"] == "attention" and auto["peak_bytes"] < none["peak_bytes"], auto
        print(f"{len(cases)} bad specs refused; auto takes the fastest policy that fits")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
