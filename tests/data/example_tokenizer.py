#!/usr/bin/env python3
"""The committed tokenizer of examples/tiny-qwen2 is what examples/make_tokenizer.py makes of the committed text.
usage: example_tokenizer.py SOURCE_ROOT"""
import os
import subprocess
import sys
import tempfile

examples = os.path.join(sys.argv[1], "examples")
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, os.path.join(examples, "make_tokenizer.py"), "--out", folder], check=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        with open(os.path.join(folder, name), "rb") as made, open(os.path.join(examples, "tiny-qwen2", name), "rb") as kept:
            if made.read() != kept.read():
                sys.exit(name + " differs: run examples/make_tokenizer.py and commit what it writes")
