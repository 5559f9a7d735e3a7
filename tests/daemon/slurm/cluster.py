"""A private Slurm cluster of one node, from Debian's packages slurm-wlm and munge: root, loopback, no systemd. Standard library only.

with Cluster(folder) as c: c.env is what its programs need; Cluster.missing() says what is not installed."""
import os, random, shutil, socket, subprocess, threading, time

CONF = """ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={d}/munge/sock,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={port}
SrunPortRange={srun}-{srun_end}
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool
SlurmctldPidFile={d}/run/slurmctld.pid
SlurmdPidFile={d}/run/slurmd.pid
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1
EnforcePartLimits=ALL
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=5
MinJobAge=300
JobRequeue=1
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={node} CPUs=4 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=n1 Default=YES MaxTime=1:00:00 State=UP
PartitionName=down Nodes=n1 MaxTime=1:00:00 State=INACTIVE
"""
PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "srun", "sinfo", "scontrol")


def ports(n):
    """n free ports side by side, below the kernel's range of its own."""
    for _ in range(200):
        first = random.randrange(12000, 32000 - n)
        held = []
        try:
            for p in range(first, first + n):
                s = socket.socket()
                held.append(s)
                s.bind(("127.0.0.1", p))
            return first
        except OSError:
            continue
        finally:
            for s in held:
                s.close()
    raise RuntimeError("no ports")


class Cluster:
    starting = threading.Lock()         # ports are looked for, then taken: one at a time

    @staticmethod
    def missing():
        if os.getuid() != 0:
            return "a cluster of its own needs root"
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        gone = [p for p in PROGRAMS if not shutil.which(p, path=path)]
        return "not installed: " + " ".join(gone) + " (packages slurm-wlm, munge)" if gone else None

    def __init__(self, folder):
        self.d = os.path.abspath(folder)
        self.p = {}
        self.env = {**os.environ, "SLURM_CONF": self.d + "/etc/slurm.conf", "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}

    def run(self, *a, **kw):
        return subprocess.run(a, env=self.env, capture_output=True, text=True, timeout=30, **kw)

    def spawn(self, name, *a):
        log = open(f"{self.d}/log/{name}.out", "ab")
        self.p[name] = subprocess.Popen(a, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def until(self, test, what, limit=20):
        end = time.monotonic() + limit
        while not test():
            if time.monotonic() > end:
                logs = "".join(open(f"{self.d}/log/{f}", errors="replace").read()[-1500:] for f in os.listdir(self.d + "/log"))
                raise AssertionError(f"Slurm: {what}\n{logs}")
            time.sleep(0.1)

    def __enter__(self):
        for f in ("etc", "munge", "spool", "state", "log", "run"):
            os.makedirs(f"{self.d}/{f}", exist_ok=True)
        os.chmod(self.d, 0o755)
        os.chmod(self.d + "/munge", 0o755)
        with open(os.open(self.d + "/munge/key", os.O_WRONLY | os.O_CREAT, 0o400), "wb") as f:
            f.write(os.urandom(1024))
        with Cluster.starting:
            return self.up()

    def up(self):
        first = ports(24)
        with open(self.d + "/etc/slurm.conf", "w") as f:
            f.write(CONF.format(d=self.d, port=first, node=first + 1, srun=first + 2, srun_end=first + 23))
        try:
            self.spawn("munged", "munged", "-F", "--force", f"--key-file={self.d}/munge/key", f"--socket={self.d}/munge/sock", f"--pid-file={self.d}/run/munged.pid", f"--log-file={self.d}/log/munged.log",
                       f"--seed-file={self.d}/munge/seed")
            self.until(lambda: self.run("munge", "-S", self.d + "/munge/sock", "-n").returncode == 0, "munged does not answer")
            self.start_controller()
            self.spawn("slurmd", "slurmd", "-D", "-N", "n1")
            self.until(lambda: len(self.run("sinfo", "-h", "-N", "-t", "idle", "-p", "main").stdout.splitlines()) == 1, "the node is not idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_controller(self):
        self.spawn("slurmctld", "slurmctld", "-D")
        self.until(lambda: self.run("scontrol", "ping").returncode == 0, "slurmctld does not answer")

    def kill(self, name):
        p = self.p.pop(name)
        p.kill()
        p.wait()

    def __exit__(self, *a):
        if "slurmctld" in self.p:
            try:
                self.run("scancel", "--user=root")
                self.until(lambda: not self.run("squeue", "-h").stdout.strip(), "jobs stay")
            except Exception:
                pass
        for name in reversed(list(self.p)):
            self.p[name].terminate()
            try:
                self.p[name].wait(8)
            except subprocess.TimeoutExpired:
                self.p[name].kill()
                self.p[name].wait()
