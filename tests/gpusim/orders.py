#!/usr/bin/env python3
"""Plants one ordering bug at a time in the transport, the device's calls or the worker, and demands that worker.py notices it on simulated GPUs: proof
that the adversarial orders of streams show a missing wait.   usage: orders.py BUILD WORKER MODULE [NAME]

With --races MODULE is built for ThreadSanitizer, which must be silent about the program as it is and name two of the bugs.
usage: orders.py BUILD WORKER MODULE --races"""
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

build, worker, module = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
races = "--races" in sys.argv
only = sys.argv[4] if len(sys.argv) > 4 and not races else ""
here = pathlib.Path(__file__).resolve().parent
source = here.parent.parent

# name, case of worker.py, file, text and replacement, or several of them
BUGS = [
    ("compute does not wait for the received block", "ring", "worker/comm/nccl.c", "    if (e == cudaSuccess) e = cudaStreamWaitEvent(s->q, x->end, 0);\n", ""),
    ("a transfer does not wait for what it sends", "ulysses", "worker/comm/nccl.c", "    if (e == cudaSuccess) e = cudaStreamWaitEvent(nc->s.q, x->before, 0);\n", ""),
    ("a hop's receive does not wait for the block's last reader", "ring", "worker/comm/nccl.c", [       # on a stream of its own, which waits for nobody
        ("static int nccl_hop_start(", "static cudaEvent_t came;\nstatic cudaStream_t side(void)\n{\n    static cudaStream_t s;\n"
         "    if (s == NULL) (void)cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), (void)cudaEventCreate(&came);\n    return s;\n}\nstatic int nccl_hop_start("),
        ("comm, nc->s.q);\n    rc = finish(c, x, end_group(c, r, \"hop\", err), err);", "comm, side());\n    rc = end_group(c, r, \"hop\", err);\n"
         "    (void)cudaEventRecord(came, side());\n    (void)cudaStreamWaitEvent(nc->s.q, came, 0);\n    rc = finish(c, x, rc, err);")]),
    ("a rank receives one byte less than was sent", "ring", "worker/comm/nccl.c", "ncclRecv(recv, (size_t)bytes, ncclInt8", "ncclRecv(recv, (size_t)bytes - (c->me == 0), ncclInt8"),
    ("a call that is still in progress counts as taken", "ring", "worker/comm/nccl.c", "return r == ncclSuccess ? OK : taken(", "return r == ncclSuccess || r == ncclInProgress ? OK : taken("),
    ("a reduction is added on the computing stream", "zero", "worker/comm/nccl.c", "c->w->ops->axpy(&nc->s,", "c->w->ops->axpy(s,"),
    ("memory is used while it is still being cleared", "one", "kernels/cuda/device.c", "    if (e == cudaSuccess) e = cudaStreamSynchronize(NULL);", "    if (e == cudaSuccess) e = cudaSuccess;"),
    ("the losses are read before they have come", "one", "worker/model/head.c", "    TRY(m->ops->stream_wait(m->s, m->err));\n    for", "    for"),
    ("a layer's input leaves before it is computed", "offload", "worker/model/offload.c", "    int rc = ops->event_wait(m->copies, m->computed);", "    int rc = OK;"),
    ("a layer's input is overwritten while it leaves", "offload", "worker/model/offload.c", "m->copies && i > 0 && i + 1 < m->c->L ? wait_for(m, (i + 1) % 2) : OK", "(void)m, (void)i, OK"),
    ("backward does not wait for a layer's input", "offload", "worker/model/offload.c", "    TRY(wait_for(m, i % 2));\n", ""),
    ("a pinned buffer is filled again before its copy ended", "disk", "worker/model/offload.c", "    TRY(m->ops->stream_wait(m->s, m->err));             /*", "    if (out) TRY(m->ops->stream_wait(m->s, m->err));    /*"),
    ("a piece of the gradients goes home before its sums are in", "gradients", "worker/parallel/zero.c", "    if (rc == OK) rc = z->ops->event_wait(z->copies, z->reached);\n", ""),
    ("sums are added before the piece has come", "gradients", "worker/parallel/zero.c", "int rc = z->ops->event_wait(s, z->here[u->bucket]);", "int rc = OK;"),
    ("gradients are used before the last piece is home", "gradients", "worker/parallel/zero.c", "rc == OK ? z->ops->event_wait(s, z->left) : rc", "rc"),
    ("gradients are read on the host before they have come", "offload", "worker/train/optimizer.c",
     "        if (rc != OK) return op_status(o, s, rc, \"offloaded adamw\", err);\n        if ((rc = o->ops->stream_wait(s, err)) != OK) return rc;\n        float", "        float"),
]
RACES = ["compute does not wait for the received block", "memory is used while it is still being cleared"]
UNITS = json.loads((build / "compile_commands.json").read_text())


def compile_line(target, file):
    """How ninja makes this target's object of the file."""
    for unit in UNITS:
        if (build / unit["file"]).resolve() == source / file and unit["output"].startswith(target):
            return shlex.split(unit["command"]), unit["output"], unit["file"]
    raise SystemExit(f"{file} is not part of {target}: bring orders.py up to date")


def plant(bug, work):
    """The worker and the module, one of them with the bug; or what is wrong with orders.py."""
    _, _, file, *texts = bug
    in_worker = file.startswith("worker/") and "comm/nccl" not in file
    program = worker if in_worker else module
    text = (source / file).read_text()
    for old, new in texts[0] if isinstance(texts[0], list) else [texts]:
        if old not in text:
            return "the text to change is not there: bring orders.py up to date"
        text = text.replace(old, new)
    changed, made = work / pathlib.Path(file).name, work / "changed.o"
    changed.write_text(text)
    command, output, unit = compile_line("worker/" if in_worker else os.path.relpath(program, build), file)
    command = [str(changed) if a == unit else str(made) if a == output else a for a in command] + ["-w"]
    subprocess.run(command, cwd=build, check=True)
    name = os.path.relpath(program, build)
    link = shlex.split(subprocess.run(["ninja", "-C", build, "-t", "commands", "-s", name], capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    planted = work / program.name
    link = [str(planted) if a == name else str(made) if a == output else a for a in link]
    if in_worker:                               # first: the library's own unit of that name is then not taken
        link += ["-Wl,--allow-multiple-definition"]
        at = next(i for i, a in enumerate(link) if a.endswith(".o"))
        link.insert(at, str(made))
    subprocess.run(link, cwd=build, check=True)
    return (planted, module) if in_worker else (worker, planted)


def check(programs, case, timeout):
    done = subprocess.run([sys.executable, here / "worker.py", *programs, case, str(timeout)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


failed = 0
if races:
    code, said = check((worker, module), "races", 240)
    print("clean  the program as it is" if code == 0 else f"RACES  the program as it is\n{said}", flush=True)
    failed += code != 0
for bug in BUGS:
    if bug[0] not in RACES if races else only not in bug[0]:
        continue
    with tempfile.TemporaryDirectory(prefix="rm-orders-") as work:
        programs = plant(bug, pathlib.Path(work))
        problem, why = programs if isinstance(programs, str) else "", ""
        if not problem:
            code, said = check(programs, "races" if races else bug[1], 240 if races else 60)
            problem = "" if ("data race" in said if races else code != 0) else "not noticed"
            lines = [line for line in said.splitlines() if line.strip()]
            why = next((line for line in lines if "gpusim:" in line and "sent" not in line), lines[-1] if lines else "")
    print(f"{'MISSED' if problem else 'caught'}  {bug[0]}: {problem or why[:160]}", flush=True)
    failed += bool(problem)
sys.exit(1 if failed else 0)
