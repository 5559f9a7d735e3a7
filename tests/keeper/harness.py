"""Runs keepers with fake workers and talks to them as the daemon does. Standard library only.

usage of a test file: main(globals()) runs every function test_* (several at once: they mostly wait), prints one line each."""
import json, os, signal, socket, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import runner
from runner import BUILD, ROOT, Skip

FAKE = os.path.join(HERE, "fake_worker.py")
SANITIZED = runner.sanitized("ringmaster-keeper")


class Keeper:
    """One attempt. Keyword arguments go into the spec; fake: RM_FAKE; env: more environment; wrap: a command in front."""
    p = sock = None

    def __init__(self, fake="*:ok", world=2, env=None, foreground=False, dir=None, wrap=(), **spec):
        self.root = dir or tempfile.mkdtemp(dir=ROOT)
        self.dir = os.path.join(self.root, "attempt-1")
        self.nonce = os.urandom(16).hex()
        path = os.path.join(tempfile.mkdtemp(dir=ROOT), "spec.json")
        full = {"model": "/m", "dataset": ["/d"], "output_dir": self.root, "nproc_per_node": world, "max_steps": 5, "grace_ms": 2000, "stall_timeout_ms": 4000, **spec}
        json.dump(full, open(path, "w"))
        args = [*wrap, os.path.join(BUILD, "ringmaster-keeper"), "--dir", self.dir, "--spec", path, "--job", "j1", "--attempt", "1", "--nonce", self.nonce]
        self.began = time.monotonic()
        self.p = subprocess.Popen(args + (["--foreground"] if foreground else []), env={**os.environ, "RM_WORKER": FAKE, "RM_FAKE": fake, **(env or {})},
                                  stderr=subprocess.PIPE)
        self.sock = None

    def connect(self):
        for _ in range(400):
            try:
                s = socket.socket(socket.AF_UNIX)
                old = os.open(self.dir, os.O_PATH)
                try:
                    s.connect(f"/proc/self/fd/{old}/keeper.sock")
                finally:
                    os.close(old)
                self.sock, self.buf = s, b""
                s.settimeout(20)
                return self
            except OSError:
                s.close()
                assert self.p.poll() is None, "the keeper left: " + self.p.stderr.read().decode()
                time.sleep(0.02)
        raise AssertionError("no socket")

    def send(self, t, **m):
        self.sock.sendall(json.dumps({"t": t, **m}).encode() + b"\n")

    def attach(self, after=0, nonce=None):
        self.connect()
        self.send("attach", nonce=nonce or self.nonce, after_seq=after)
        return self

    def read(self):
        """The next message, or None at the end."""
        while b"\n" not in self.buf:
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self.buf += data
        line, self.buf = self.buf.split(b"\n", 1)
        return json.loads(line)

    def until(self, test):
        """Reads until test(message); returns all messages read."""
        out = []
        while True:
            m = self.read()
            assert m is not None, "connection ended; last: %r" % out[-1:]
            out.append(m)
            if test(m):
                return out

    def wait(self, limit=30):
        """Until the keeper left; its exit record."""
        if self.sock:       # acknowledge everything, so that it need not linger
            try:
                self.send("ack", seq=1 << 50)
            except OSError:
                pass
        assert self.p.wait(limit) == 0, (self.p.returncode, self.p.stderr.read().decode())     # a sanitizer's finding shows here
        self.took = time.monotonic() - self.began
        return self.record()

    def record(self):
        return json.load(open(os.path.join(self.dir, "exit.json")))

    def spool(self):
        return [json.loads(l) for l in open(os.path.join(self.dir, "spool"), "rb")]

    def pids(self):
        """Everything alive that inherited this attempt's mark."""
        return runner.marked([self.nonce])

    def end(self):
        if self.sock:
            self.sock.close()
        if self.p is None:
            return
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait()
        self.p.stderr.close()
        for p in self.pids():
            os.kill(p, signal.SIGKILL)
        try:                            # the group of a keeper that was killed: a daemon would remove it
            os.rmdir(open(os.path.join(self.dir, "cgroup")).read())
        except OSError:
            pass


def is_step(rank, step):
    return lambda m: m["t"] == "record" and m["rank"] == rank and m["m"]["t"] == "metrics" and m["m"]["step"] >= step


def main(names):
    runner.run(names, Keeper)
