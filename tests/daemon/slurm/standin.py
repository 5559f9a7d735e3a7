#!/usr/bin/env -S python3 -S -E
"""Stands in for Slurm's programs, under whichever name it is called: sbatch squeue sacct scancel srun, and for tests requeue, node_fail, preempt,
timeout. One node, jobs run at once. Standard library only.

RM_STANDIN is its folder: jobs/ID.json are the jobs; control.json says how the programs misbehave, by name: "hang", "garbage", "huge",
"unreachable", "refuse", "lost" (sbatch submits and dies before it answers), "torn" (squeue adds half a line); "hold": true keeps jobs pending;
"accounting": true lets sacct answer; "forgets": true makes squeue forget jobs that ended."""
import fcntl, json, os, signal, subprocess, sys, time

D = os.environ["RM_STANDIN"]
ME = os.path.basename(sys.argv[0])
KILL_WAIT_S = 4


def control(name, default=None):
    try:
        return json.load(open(D + "/control.json")).get(name, default)
    except (OSError, ValueError):
        return default


class Locked:
    """The job as a dict; what is changed inside is kept."""
    def __init__(self, id):
        self.path = f"{D}/jobs/{id}.json"

    def __enter__(self):
        self.lock = open(D + "/lock", "a")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.j = json.load(open(self.path)) if os.path.exists(self.path) else {}
        return self.j

    def __exit__(self, *a):
        with open(self.path + ".tmp", "w") as f:
            json.dump(self.j, f)
        os.rename(self.path + ".tmp", self.path)
        self.lock.close()


def jobs():
    out = []
    for f in sorted(os.listdir(D + "/jobs")):
        if f.endswith(".json") and f != "last.json":
            try:
                out.append(json.load(open(f"{D}/jobs/{f}")))
            except (OSError, ValueError):
                pass
    return out


def processes(id):
    found = []
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = open(f"/proc/{p}/environ", "rb").read().split(b"\0")
            if f"SLURM_JOB_ID={id}".encode() in env and f"RM_STANDIN={D}".encode() in env and open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX":
                found.append(int(p))
        except OSError:
            pass
    return found


def signal_all(id, sig):
    for p in processes(id):
        try:
            os.kill(p, sig)
        except OSError:
            pass


def end(id, state, hard=False, again=False):
    """From outside: TERM, a while, KILL."""
    with Locked(id) as j:
        was = j["state"]
        if was not in ("PENDING", "RUNNING"):
            return
        j["ending"] = state
        if was == "PENDING":
            j["state"] = state
    signal_all(id, signal.SIGKILL if hard else signal.SIGTERM)
    until = time.monotonic() + KILL_WAIT_S
    while processes(id) and time.monotonic() < until:
        time.sleep(0.05)
    signal_all(id, signal.SIGKILL)
    if again:
        with Locked(id) as j:
            j.update(state="PENDING", ending=None, restarts=j["restarts"] + 1, why="BeginTime")
        supervise(id)


def supervise(id):
    if os.fork():
        return
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if os.fork():
        os._exit(0)
    while True:
        with Locked(id) as j:
            if j["state"] != "PENDING":
                os._exit(0)
            if not control("hold") and not (j["restarts"] and control("hold_again")):
                j.update(state="RUNNING", why="None")
                break
        time.sleep(0.05)
    env = {**os.environ, **j["env"], "SLURM_JOB_ID": str(id), "SLURM_CPUS_PER_TASK": "1"}
    if j["restarts"]:
        env["SLURM_RESTART_COUNT"] = str(j["restarts"])
    out = open(os.path.join(j["chdir"], "slurm.out"), "ab")
    code = subprocess.Popen(["/bin/bash", f"{D}/jobs/{id}.sh"], cwd=j["chdir"], env=env, stdout=out, stderr=out).wait()
    with Locked(id) as j:
        if j["state"] == "RUNNING":
            j.update(state=j.get("ending") or ("COMPLETED" if code == 0 else "FAILED"), code=code)
    os._exit(0)


def sbatch(args):
    opts = dict(a[2:].partition("=")[::2] for a in args if a.startswith("--"))
    script = [a for a in args if not a.startswith("--")][-1]
    if opts.get("partition") == "none":
        sys.exit("sbatch: error: invalid partition specified: none\nsbatch: error: Batch job submission failed: Invalid partition name specified")
    with Locked("last") as last:
        id = last["id"] = last.get("id", 0) + 1
    open(f"{D}/jobs/{id}.sh", "w").write(open(script).read())
    with Locked(id) as j:
        j.update(id=id, name=opts["job-name"], comment=opts["comment"], chdir=opts["chdir"], state="PENDING", why="Resources", restarts=0, code=0, argv=args, env={k: v for k, v in os.environ.items() if not k.startswith("SLURM_")})
    supervise(id)
    if how == "lost":
        os.kill(os.getppid() if False else os.getpid(), signal.SIGKILL)
    if how == "late":
        time.sleep(600)
    print("%d" % id)


def squeue(args):
    names = next(a for a in args if a.startswith("--name="))[7:].split(",")
    for j in jobs():
        if j.get("name") in names and not (control("forgets") and j["state"] not in ("PENDING", "RUNNING")) and j["id"] not in (control("purged") or []):
            print(f"{j['id']}|{j['state']}|{j['comment']}|{j['why']}")
    if how == "torn":
        print("17|RUNN")


def sacct(args):
    if not control("accounting"):
        sys.exit("Slurm accounting storage is disabled")
    id = next(a for a in args if a.startswith("--jobs="))[7:]
    for j in jobs():
        if str(j.get("id")) == id:
            print(f"{id}|{j['name']}|{j['state']}{' by 0' if j['state'] == 'CANCELLED' else ''}|{j['code']}:0")


def srun(args):
    while args and args[0].startswith("--"):
        args = args[1:]
    p = subprocess.Popen(args)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(p.wait() if p.returncode is None or p.returncode >= 0 else 137)


how = control(ME)
if how == "hang":
    time.sleep(600)
elif how == "garbage":
    sys.stdout.buffer.write(os.urandom(2000) + b"\n|||\n1|2|3\n99999999999999999999|RUNNING|x|y\n\0\0\n")
    sys.exit(0)
elif how == "huge":
    while True:
        sys.stdout.write("x" * 65536)
elif how == "unreachable":
    sys.exit(f"{ME}: error: slurm_receive_msg: Socket timed out on send/recv operation\n{ME}: error: Unable to contact slurm controller (connect failure)")
elif how == "refuse":
    sys.exit(f"{ME}: error: Batch job submission failed: Invalid account or account/partition combination specified")
if ME == "scancel":
    end(int(sys.argv[1]), "CANCELLED")
elif ME in ("requeue", "node_fail", "preempt", "timeout"):
    end(int(sys.argv[1]), {"requeue": "REQUEUED", "node_fail": "NODE_FAIL", "preempt": "PREEMPTED", "timeout": "TIMEOUT"}[ME], hard=ME == "node_fail", again=ME == "requeue")
else:
    {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "srun": srun}[ME](sys.argv[1:])
