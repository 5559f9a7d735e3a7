#!/usr/bin/env python3
"""Stands in for ringmaster-worker: speaks api/message.h on descriptor 3 and then behaves as RM_FAKE says.

RM_FAKE is a list "rank:behaviour,…"; rank * means every other. Behaviours: ok, and those in BEHAVIOURS below."""
import json, os, signal, socket, sys, threading, time

if "--plan" in sys.argv:
    bad = os.environ.get("RM_FAKE_PLAN")
    print(json.dumps({"ok": False, "problems": [{"pointer": "/model", "code": "not_found", "message": bad}]} if bad else
                     {"ok": True, "ranks": [], "steps": json.load(open(sys.argv[sys.argv.index("--plan") + 1]))["max_steps"] or 5, "warnings": []}))
    sys.exit(2 if bad else 0)
if "--dataset" in sys.argv:
    bad = os.environ.get("RM_FAKE_DATASET")
    if bad:
        print("ringmaster dataset:", bad, file=sys.stderr)
        sys.exit(2)
    print(json.dumps({"documents": 1, "rows": 1, "tokens": 2, "tokens_trained": 1, "packing_efficiency": 1, "histogram": [], "samples": []}))
    sys.exit(0)
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
rank, world = int(args["--rank"]), int(args["--world"])
spec = json.load(open(args["--spec"]))
steps = spec["max_steps"] or 5
plan = dict(p.split(":", 1) for p in os.environ.get("RM_FAKE", "*:ok").split(","))
what = plan.get(str(rank), plan.get("*", "ok"))
step_s = float(os.environ.get("RM_FAKE_STEP_S", "0.02"))

sock = socket.socket(fileno=3)
state = {"step": 0, "phase": "start", "stop": None, "beat": True, "ticks": 0}
lock = threading.Lock()
inbox, arrived = [], threading.Condition()

def raw(data):
    with lock:
        sock.sendall(data)

def say(t, **m):
    raw(json.dumps({"t": t, **m}).encode() + b"\n")

def listen():
    buf = b""
    while True:
        data = sock.recv(65536)
        if not data:
            os._exit(70)
        buf += data
        while b"\n" in buf:
            line, buf = buf.split(b"\n", 1)
            m = json.loads(line)
            if m["t"] == "stop":
                state["stop"] = m["mode"]
            if m["t"] == "checkpoint":
                os.write(1, b"asked to save\n")
            if m["t"] == "peer_lost":
                if what != "deaf":
                    say("error", code="peer_lost", text=m["text"])
                    os._exit(3)
            with arrived:
                inbox.append(m)
                arrived.notify_all()

def wait_for(test):
    with arrived:
        while not any(test(m) for m in inbox):
            arrived.wait(10)
        return next(m for m in inbox if test(m))

def beat():
    while True:
        time.sleep(1)
        if state["beat"]:
            say("beat", step=state["step"], phase=state["phase"], ticks=state["ticks"])

def finish():
    say("done", step=steps, loss=5.0 / steps)      # as its last metrics record
    time.sleep(0.05)
    sys.stdout.flush()
    os._exit(0)

if what == "exit_early":
    print("Traceback: no such thing", file=sys.stderr)
    os._exit(9)
if what in ("deaf", "ignore_term"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if what == "stopped_early":         # before its first word
    os.kill(os.getpid(), signal.SIGSTOP)
say("hello", rank=rank, pid=os.getpid(), protocol=2 if what == "new_protocol" else 1)
threading.Thread(target=listen, daemon=True).start()
threading.Thread(target=beat, daemon=True).start()
if rank == 0:
    say("put", key="id", value="abc")
say("get", key="id")
assert wait_for(lambda m: m["t"] == "value" and m["key"] == "id")["value"] == "abc"
if what == "busy_start":            # cutting data: longer than any stall limit, but at work
    end = time.monotonic() + 5
    while time.monotonic() < end:
        sum(range(10000))
say("fence", name="start")
wait_for(lambda m: m["t"] == "fence" and m["name"] == "start")
say("ready", peak_bytes=1000 * (rank + 1), device="fake", **({"parallel": os.environ["RM_FAKE_PARALLEL"], "ulysses": 2, "ring": 1} if "RM_FAKE_PARALLEL" in os.environ else {}))
state["phase"] = "train"

def grandchild(keep_stdout):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not keep_stdout:
            for fd in (1, 2):
                os.dup2(os.open("/dev/null", os.O_WRONLY), fd)
        os.close(3)
        open(os.path.join(args["--job-dir"], f"grandchild-{rank}"), "w").write(str(os.getpid()))
        time.sleep(600)
        os._exit(0)

said = os.environ.get("RM_FAKE_SAY", "")        # what a hostile data set or model might make a worker print
if said:
    os.write(1, said.encode("latin-1") + b"\n")
burst = b""
if what == "burst":                 # made beforehand: sent, it is as quick as the other end
    n, more = int(os.environ.get("RM_FAKE_RECORDS", "10000")), {f"figure_{k}": 1.0 / (k + 3) for k in range(int(os.environ.get("RM_FAKE_FIGURES", "0")))}
    burst = b"".join(json.dumps({"t": "metrics", "step": 2, "loss": 1.5, "i": i, "step_s": 0.01, "sent_bytes": 1, **more}).encode() + b"\n" for i in range(n))
paced, began = bool(os.environ.get("RM_FAKE_PACED")), time.monotonic()      # paced: a late step does not make all later ones late
for step in range(1, steps + 1):
    time.sleep(max(0.0, began + step * step_s - time.monotonic()) if paced else step_s)
    state["step"] = step
    print(f"rank {rank} step {step}", flush=True)
    say("metrics", step=step, loss=5.0 / step, tokens=4096, step_s=step_s, tokens_per_s=4096 / step_s, comm_exposed_s=step_s / 10, comm_share=float(os.environ.get("RM_FAKE_COMM", "0.1")),
        sent_bytes=100, peak_bytes=1000 * (rank + 1), allocated_bytes=900, eta_s=(steps - step) * step_s)
    if step == 2:
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "sigstop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif what == "evaluate":
            for _ in range(50):
                time.sleep(0.1)
                state["ticks"] += 1
        elif what in ("hang", "deaf"):
            while True:
                time.sleep(1)
        elif what == "grandchild":
            grandchild(False)
        elif what == "grandchild_stdout":
            grandchild(True)
        elif what == "hydra":           # leaves processes that fork and end faster than anybody can list them
            for _ in range(3):
                if os.fork() == 0:
                    os.setsid()
                    for fd in (1, 2):
                        os.dup2(os.open("/dev/null", os.O_WRONLY), fd)
                    os.close(3)
                    end = time.monotonic() + 60         # should nobody end it, it ends itself
                    while time.monotonic() < end:
                        if os.fork():
                            os._exit(0)
            os._exit(9)
        elif what == "eat":
            hog = []
            while True:
                hog.append(bytearray(os.urandom(1 << 20)) * 8)
        elif what == "gpu_oom":
            print("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB", file=sys.stderr)
            os._exit(1)
        elif what == "disk_full":
            say("error", code="disk_full", text="write checkpoint-2: No space left on device" + said)
            os._exit(4)
        elif what == "no_done":
            os._exit(0)
        elif what == "flood":
            mb = int(os.environ.get("RM_FAKE_MB", "64"))
            block = (b"\x00\xff\r 55%|####" * 100000)[:1 << 20]
            for _ in range(mb):
                os.write(1, block)
        elif what == "frames":
            raw(b'{"t":"metrics","step":7' + b"\n")                         # torn
            raw(b"x" * 400000 + b"\n")                                      # oversized
            raw(b'{"t":"metrics","step":1,"loss":1.0}\n')                   # backward
            raw(b'{"t":"metrics","step":2,"loss":1.0}\n' * 2)               # repeated
            raw(b'{"t":"metrics","step":2,"loss":NaN}\n')                   # not JSON
            raw(b'{"t":"unheard"}\n{"no":"t"}\n[1]\n{"t":7}\n\n')
            raw(b'{"t":"metrics","step":2,"loss":null,"loss_nonfinite":"nan"}\n')
        elif what == "burst":
            raw(burst)
    if state["stop"] and what not in ("ignore_term",):
        if state["stop"] == "checkpoint":
            say("checkpoint", step=step, path=f"/ckpt/checkpoint-{step}")
            time.sleep(0.05)
        os._exit(0)
if what == "ignore_term":
    time.sleep(600)
finish()
