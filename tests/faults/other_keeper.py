#!/usr/bin/env python3
"""Stands in for a keeper of another version (F55): RM_KEEPER=old says the least that any keeper ever said; new says it in protocol 9, with
members and messages that nobody knows yet. It starts no ranks: it reports five steps of each, writes its exit record and leaves."""
import json, os, signal, socket, sys

args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
new = os.environ["RM_KEEPER"] == "new"
signal.signal(signal.SIGHUP, signal.SIG_IGN)
spec = json.load(open(args["--spec"]))
ranks = range(spec["nproc_per_node"])
os.chdir(args["--dir"])
listener = socket.socket(socket.AF_UNIX)
listener.bind("keeper.sock")
listener.listen(4)
records = [json.dumps({"t": "record", "seq": 1 + step * len(ranks) + r, "rank": r, "ms": 1760000000000 + step, "m": {"t": "metrics", "step": step + 1, "loss": 2.0, **({"mood": {"x": [1]}} if new else {})}})
           for step in range(5) for r in ranks]
record = {"nonce": args["--nonce"], "state": "succeeded", "reason": "finished", "last_step": 5, "ranks": [{"rank": r, "code": 0} for r in ranks]}
odd = ['{"t":"weather","wind":3}', '{"t":"beats","ms":1,"ranks":[{"rank":99},{"rank":0,"pid":"x"},7]}', '{"no":"t"}', '{"t":"record","seq":"x"}'] if new else []
exited = False
while True:
    s, _ = listener.accept()
    f = s.makefile("rw")
    attach = json.loads(f.readline())
    assert attach["t"] == "attach" and attach["nonce"] == args["--nonce"], attach
    hello = {"t": "hello", "nonce": args["--nonce"]}
    if new:
        hello.update(protocol=9, job=args["--job"], pid=os.getpid(), flavour="new", ranks=[{"rank": r, "pid": None} for r in ranks], last_seq=len(records))
    print(json.dumps(hello), *odd, *records[attach["after_seq"]:], sep="\n", file=f, flush=True)
    if not exited:
        with open("exit.json.tmp", "w") as e:
            json.dump({**record, **({"verdicts": [1, 2]} if new else {})}, e)
        os.rename("exit.json.tmp", "exit.json")
        exited = True
    if new:
        print(json.dumps({"t": "exit", "record": record}), file=f, flush=True)
    for line in f:              # an old one just goes when all is acknowledged: exit.json tells the rest
        m = json.loads(line)
        if m["t"] == "ack" and m["seq"] >= len(records):
            sys.exit(0)
