#!/usr/bin/env python3
"""ringmaster-worker --tokenize: JSONL in, JSONL out, one line for one line; every bad line is one message and exit status 2.

usage: tokenize_verb.py WORKER SOURCE_ROOT      with RM_SHARED set also the real end-to-end records
"""
import json
import os
import subprocess
import sys

worker, root = sys.argv[1:3]
tiny = os.path.join(root, "examples", "tiny-qwen2")
wrong = 0


def run(data, *args, model=tiny):
    p = subprocess.run([worker, "--tokenize", "--model", model, *args], input=data, capture_output=True)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def check(what, ok, detail=""):
    global wrong
    if not ok:
        wrong += 1
        print("FAILED:", what, detail)


texts = ["Hello, Sir Walter!", "", "NUL \0 and \u2028 and 😀", "<|im_start|>user\n<|im_end|>", "tab\tand \"quotes\" \\ \r\n"]
rc, out, err = run("".join(json.dumps({"text": t}) + "\n" for t in texts).encode())
rows = [json.loads(line) for line in out.split("\n")[:-1]]
check("texts are encoded", rc == 0 and len(rows) == len(texts), err)
check("special tokens are found in the text", rows[3]["ids"][0] == 1 and rows[3]["ids"][-1] == 2, rows[3])
rc, out, err = run(out.encode(), "--decode", "--no-special")
skipped = [json.loads(line)["text"] for line in out.split("\n")[:-1]]
check("and decoded again", rc == 0 and skipped[:3] == texts[:3] and skipped[3] == "user\n" and skipped[4] == texts[4], skipped)
rc, out, err = run((json.dumps({"ids": rows[3]["ids"]})).encode(), "--decode")        # no newline at the end of the input
check("special tokens are shown without --no-special", rc == 0 and json.loads(out)["text"] == texts[3], out)

messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Anne."}]
rc, out, err = run((json.dumps({"messages": messages}) + "\r\n").encode())
check("a conversation is encoded", rc == 0, err)
row = json.loads(out)
first = next(i for i, label in enumerate(row["labels"]) if label != -100)
_, answer, _ = run(json.dumps({"ids": row["ids"][first:]}).encode(), "--decode")
check("the answer and its end are trained, nothing before", json.loads(answer)["text"].startswith("Anne.<|im_end|>")
      and all(label in (-100, i) for label, i in zip(row["labels"], row["ids"])) and len(row["labels"]) == len(row["ids"]), answer)

good = b'{"text": "a"}\n'
bad = {
    "text: expected a string": b'{"text": 5}', "expected an object": b"[1]", "not valid UTF-8": b'{"text": "\xff"}', "byte order mark": b'\xef\xbb\xbf{"text": "a"}',
    "appears twice": b'{"text": "a", "text": "b"}', "nested too deep": b'{"text": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "control character": b'{"text": "a\x01"}', "unexpected end": b"", "lone": b'{"text": "\\ud800"}', "text after the end": b'{"text": "a"} {"text": "b"}',
    "expected a value": b'{"text": NaN}', "longer than": b'{"text": "' + b"a" * (65 << 20) + b'"}',
}
for says, line in bad.items():
    rc, out, err = run(good + line + b"\n" + good)
    check(says, rc == 2 and out.count("\n") == 1 and "line 2" in err and says in err and err.count("\n") == 1, (rc, out[:100], err[:300]))
for says, line in {"ids: expected a list": b'{"text": "a"}', "ids[1]": b'{"ids": [1, "x"]}', "is no token": b'{"ids": [99999]}', "ids[0]": b'{"ids": [-1]}'}.items():
    rc, out, err = run(line, "--decode")
    check(says, rc == 2 and says in err and "line 1" in err, (rc, err))
rc, out, err = run(good, model="/nonexistent")
check("a missing model is named", rc == 2 and "/nonexistent" in err, (rc, err))
rc, out, err = run(good, "--bogus")
check("an unknown option is named", rc == 2 and "--bogus" in err, (rc, err))

shared = os.path.join(os.environ.get("RM_SHARED", "/nonexistent"), "data")
for name in ("minimind", "qwen2.5", "qwen3"):
    path = os.path.join(shared, "end-to-end", name + ".jsonl")
    if not os.path.exists(path):
        print("skipped:", name, "end to end: not under RM_SHARED")
        continue
    with open(path, encoding="utf-8") as f:
        records = [json.loads(line) for line in f]
    rc, out, err = run("".join(json.dumps({"messages": r["messages"]}) + "\n" for r in records).encode(), model=os.path.join(shared, "tokenizers", name))
    got = [json.loads(line)["ids"] for line in out.split("\n")[:-1]]
    check(name + " end to end", rc == 0 and got == [r["ids"] for r in records], err)
sys.exit(wrong > 0)
