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
        tokens = json.load(open(f"{saved}/trainer_state.json"))["ringmaster"]["epoch_tokens"]

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
            (dict(columns={"no/pe": "alsonope"}), "/columns/no~1pe", ["alsonope", "none of our columns"]),
            (dict(model=tiny_model(f"{tmp}/narrow", vocab_size=250)), "/model", ["258", "250"]),
            (dict(resume_from_checkpoint=saved, dataset=[tiny_data(f"{tmp}/other.jsonl", n=30)]), "/resume_from_checkpoint", [f"data set of {tokens} tokens"]),
            (dict(resume_from_checkpoint=f"{tmp}/missing"), "/resume_from_checkpoint", ["missing: no such folder"]),
            (dict(template="nope"), "/template", ["nope", "chatml"]),
            (dict(gradient_checkpointing="some"), "/gradient_checkpointing", ["some", "attention"]),
            (dict(tuner_type="lora", target_modules=["q_(proj"]), "/target_modules", ["q_(proj"]),
            (dict(tuner_type="lora", target_modules=["q_prox"]), "/target_modules", ["q_prox"]),
            (dict(tuner_type="lora", rank_pattern={"q_prox": 4}), "/rank_pattern", ["q_prox", "no layer"]),
            (dict(tuner_type="lora", rank_pattern={"q_proj": 2.5}), "/rank_pattern", ["q_proj", "whole number"]),
            (dict(tuner_type="lora", alpha_pattern={"(q_proj": 2}), "/alpha_pattern", ["(q_proj"]),
        ]
        plan_only = [       # the rank has its own words and exit codes for these, or none
            (dict(columns={"nope": "query"}), "/columns/nope", ["no record", "nope"]),
            (dict(output_dir="/proc/nope/x"), "/output_dir", ["/proc"]),
            (dict(cached_dataset=f"{tmp}/file"), "/cached_dataset", ["folder"]),
            (dict(device="cuda"), "/device", ["device cuda: "]),
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
        for fields, pointer, words in plan_only:
            p = subprocess.run([worker, "--plan", write_spec(f"{tmp}/spec.json", **dict(base, **fields)), "--brief"], capture_output=True, text=True)
            answer = json.loads(p.stdout)
            if answer["ok"] and "device" in fields:     # it is there
                continue
            assert p.returncode == 2, (fields, p.stdout)
            assert [x for x in answer["problems"] if x["pointer"] == pointer and all(w in x["message"] for w in words)], (fields, answer)
            assert "device cuda: device" not in p.stdout, answer
        assert not [n for n in os.listdir(tmp) if n.startswith(".ringmaster") or n == "out"], "a plan left something behind"

        def plan(**fields):
            p = subprocess.run([worker, "--plan", write_spec(f"{tmp}/spec.json", **dict(base, **fields)), "--brief"], capture_output=True, text=True)
            assert p.returncode == 0, p.stdout
            return json.loads(p.stdout)

        # a column that only the second file has; a source name no record has is found there, not in each file alone
        with open(f"{tmp}/renamed.jsonl", "w") as f:
            f.write('{"q": "x", "response": "y"}\n')
        plan(dataset=[data, f"{tmp}/renamed.jsonl"], columns={"q": "query"})
        # a checkpoint that does not say what it was written on is taken
        silent = model_with("silent", lambda d: None)
        state = json.load(open(f"{silent}/trainer_state.json"))
        del state["ringmaster"]["epoch_tokens"]
        json.dump(state, open(f"{silent}/trainer_state.json", "w"))
        plan(resume_from_checkpoint=silent)
        # what is left out, by cause, with the strategy that is set
        with open(f"{tmp}/long.jsonl", "w") as f:
            for ask, say in (("a", "b" * 300), ("a" * 300, "b"), ("a", "b")):
                f.write(json.dumps({"query": ask, "response": say}) + "\n")
        told = plan(dataset=[f"{tmp}/long.jsonl"], truncation_strategy="delete")["warnings"]
        assert len(told) == 1 and told[0].startswith("2 documents") and "longer" in told[0] and "strategy delete" in told[0], told
        told = plan(dataset=[f"{tmp}/long.jsonl"], truncation_strategy="right")["warnings"]
        assert len(told) == 1 and told[0].startswith("1 documents") and "nothing in them is trained" in told[0] and "strategy right" in told[0], told
        # several faults at once are all told
        p = subprocess.run([worker, "--plan", write_spec(f"{tmp}/spec.json", **dict(base, model=f"{tmp}/nowhere", dataset=[f"{tmp}/empty.jsonl"])), "--brief"], capture_output=True, text=True)
        pointers = {x["pointer"] for x in json.loads(p.stdout)["problems"]}
        assert {"/model", "/dataset/0"} <= pointers, pointers
        # the check verb knows a model that is too narrow for its tokenizer
        p = subprocess.run([worker, "--check", f"{tmp}/narrow", model], capture_output=True, text=True)
        assert p.returncode == 2 and "258" in p.stderr and "250" in p.stderr and "tokenizer: BPE" in p.stdout, (p.stdout, p.stderr)
        # over the limit: what would fit is named, and does fit
        wide = dict(base, max_length=16384, gradient_checkpointing="none")
        none = json.loads(subprocess.run([worker, "--plan", write_spec(f"{tmp}/spec.json", **wide), "--brief"], capture_output=True, text=True).stdout)
        tight = dict(wide, memory_limit_bytes=none["peak_bytes"] - 1)
        p = json.loads(subprocess.run([worker, "--plan", write_spec(f"{tmp}/spec.json", **tight), "--brief"], capture_output=True, text=True).stdout)
        assert "gradient_checkpointing attention" in p["problems"][0]["message"] and "sequence_parallel_size 2" in p["problems"][0]["message"], p
        auto = json.loads(subprocess.run([worker, "--plan", write_spec(f"{tmp}/spec.json", **dict(tight, gradient_checkpointing="auto")), "--brief"], capture_output=True, text=True).stdout)
        assert auto["ok"] and auto["policy"] == "attention" and auto["peak_bytes"] < none["peak_bytes"], auto
        print(f"{len(cases) + len(plan_only)} bad specs refused; auto takes the fastest policy that fits")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


main()
