#!/usr/bin/env python3
"""Encoding speed beside the Python package `tokenizers`, one thread each, in one run; and the time of ever longer words.

usage: tests/bench/tokenizer.py BENCH_TOKENIZER SHARED      (build/tests/bench/bench_tokenizer and the folder with data/)
Prints a table; exit 1 if the ids differ or a ratio is below 2. Times are CPU seconds, the best of five (Python: of three).
"""
import glob
import os
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402


def main():
    bench, shared = sys.argv[1:3]
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    datasets = os.path.join(shared, "data", "datasets")
    texts = {
        "English": [os.path.join(datasets, "tinyshakespeare", "input.txt")],
        "Chinese": sorted(glob.glob(os.path.join(datasets, "long-documents", "sanguo*.txt"))),
        "code": sorted(glob.glob(os.path.join(root, "worker", "*", "*.c"))),
    }
    bad = False
    with tempfile.TemporaryDirectory() as folder:
        for name, paths in texts.items():
            with open(os.path.join(folder, name), "wb") as f:
                for p in paths:
                    f.write(open(p, "rb").read())
        for kb in (100, 200, 400):
            with open(os.path.join(folder, "word of %d KB" % kb), "wb") as f:
                f.write((b"supercalifragilisticexpialidocious" * (kb * 30))[:kb * 1000])
        files = [*texts, *("word of %d KB" % kb for kb in (100, 200, 400))]
        print("| tokenizer | text | MB | Ringmaster MB/s | tokenizers %s MB/s | ratio |\n|---|---|---|---|---|---|" % tokenizers.__version__)
        for model in sorted(glob.glob(os.path.join(shared, "data", "tokenizers", "*", "tokenizer.json"))):
            reference = tokenizers.Tokenizer.from_file(model)
            rows = subprocess.run([bench, os.path.dirname(model), *(os.path.join(folder, f) for f in files)], capture_output=True, text=True, check=True).stdout.split("\n")
            for name, row in zip(files, rows):
                size, ids, seconds = row.split()
                text = open(os.path.join(folder, name), encoding="utf-8", newline="").read()
                best = 1e9
                for _ in range(3):
                    start = time.process_time()
                    encoded = reference.encode(text, add_special_tokens=False)
                    best = min(best, time.process_time() - start)
                ratio = best / float(seconds)
                bad |= len(encoded.ids) != int(ids) or (ratio < 2 and not name.startswith("word"))
                mb = int(size) / 1e6
                print("| %s | %s | %.2f | %.1f | %.1f | %.1f |" % (os.path.basename(os.path.dirname(model)), name, mb, mb / float(seconds), mb / best, ratio), flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
