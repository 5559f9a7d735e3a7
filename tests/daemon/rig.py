"""Runs ringmasterd with fake workers and asks it what a client would ask. Standard library only.

usage of a test file: main(globals()) runs every function test_*(new), several at once, and prints one line each; new(**flags) is a Daemon."""
import glob, http.client, json, os, signal, socket, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import runner
from runner import BUILD, ROOT, Skip

FAKE = os.path.join(HERE, "..", "keeper", "fake_worker.py")
SANITIZED = runner.sanitized("ringmasterd")
FINAL = ("succeeded", "failed", "cancelled")


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {self.body[:300]!r}>"


class Daemon:
    """fake: RM_FAKE of the workers; env: more environment; the rest are flags."""
    p = None

    def __init__(self, fake="*:ok", env=None, home=None, start=True, step_s=0.02, **flags):
        self.root = tempfile.mkdtemp(dir=ROOT)
        self.home = home or os.path.join(self.root, "home")
        self.data = os.path.join(self.root, "data")
        os.makedirs(self.data, exist_ok=True)
        self.env = {**os.environ, "RM_FAKE": fake, "RM_FAKE_STEP_S": str(step_s), **(env or {})}
        self.flags = {"port": 0, "slots": 8, "worker": FAKE, "allow_root": self.data, "backoff_ms": 100, **flags}
        self.p, self.port = None, 0
        if start:
            self.start()

    def args(self):
        out = [os.path.join(BUILD, "ringmasterd"), "--home", self.home]
        for k, v in self.flags.items():
            out += ["--" + k.replace("_", "-"), str(v)]
        return out

    def start(self, ready=True, wrap=(), env=None, extra=()):
        self.log = open(os.path.join(self.root, "daemon.log"), "ab")
        self.p = subprocess.Popen([*wrap, *self.args(), *extra], env={**self.env, **(env or {})}, stdout=subprocess.PIPE, stderr=self.log)
        line = self.p.stdout.readline().decode()
        if "listening" in line:
            self.port = int(line.rsplit(":", 1)[1])
            self.flags["port"] = self.port          # a restart keeps its address
            self.token = open(os.path.join(self.home, "token")).read().strip()
            if ready:
                self.until_ready()
        elif ready:
            raise AssertionError("did not start: " + self.log_text())
        return self

    def log_text(self):
        path = os.path.join(self.root, "daemon.log")
        return open(path, errors="replace").read() if os.path.exists(path) else ""

    def until_ready(self, limit=20):
        end = time.monotonic() + limit
        while self.ask("GET", "/readyz", token=None).status != 200:
            assert time.monotonic() < end, "not ready: " + self.log_text()
            time.sleep(0.05)

    def kill(self):
        self.p.kill()
        self.p.wait()
        self.p.stdout.close()

    def ask(self, method, path, body=None, token=True, headers=None, timeout=20):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        h = {}
        if token:
            h["Authorization"] = "Bearer " + (self.token if token is True else token)
        if body is not None:
            h["Content-Type"] = "application/json"
            body = body if isinstance(body, (bytes, str)) else json.dumps(body)
        h.update(headers or {})
        try:
            c.request(method, path, body, {k: v for k, v in h.items() if v is not None})
            r = c.getresponse()
            return Reply(r.status, r.headers, r.read())
        finally:
            c.close()

    def get(self, path, **kw):
        r = self.ask("GET", path, **kw)
        assert r.status == 200, (path, r)
        return r.json

    def spec(self, **kw):
        return {"model": self.data, "dataset": [self.data], "output_dir": os.path.join(self.data, "out"), "nproc_per_node": 2, "max_steps": 5, "device": "cpu", "grace_ms": 2000, **kw}

    def submit(self, **kw):
        r = self.ask("POST", "/v1/jobs", self.spec(**kw))
        assert r.status == 201, r
        return r.json["id"]

    def job(self, id):
        return self.get("/v1/jobs/" + id)

    patience = 30       # s

    def until(self, id, *states, limit=0):
        end = time.monotonic() + (limit or self.patience)
        while True:
            j = self.job(id)
            if j["state"] in states:
                return j
            assert time.monotonic() < end, f"{id} is {j['state']} ({j['reason']}), wanted {states}\n" + self.log_text()
            assert j["state"] not in FINAL, f"{id} ended {j['state']} ({j['reason']}: {j['detail']}), wanted {states}\n" + self.log_text()
            time.sleep(0.03)

    def until_step(self, id, step, limit=0):
        end = time.monotonic() + (limit or self.patience)
        while (self.job(id)["step"] or 0) < step:
            assert time.monotonic() < end, "step not reached\n" + self.log_text()
            time.sleep(0.03)

    def ranks(self, id):
        return self.get(f"/v1/jobs/{id}/ranks")["items"]

    def steps(self, id, name="loss", rank=0):
        s = self.get(f"/v1/jobs/{id}/metrics?names={name}&max_points=5000&rank={rank}")["series"]
        return [p[0] for p in s[0]["points"]]

    def stream(self, path="/v1/events", headers=None, rcvbuf=None):
        return Stream(self, path, headers or {}, rcvbuf)

    def db(self, sql, *args):
        import sqlite3
        c = sqlite3.connect(os.path.join(self.home, "ringmaster.db"))
        try:
            return c.execute(sql, args).fetchall()
        finally:
            c.close()

    def leftovers(self, within=8.0):
        """Everything that one of this daemon's attempts started and that does not go away by itself: a keeper stays a moment
        after its job's end, until its last record is acknowledged."""
        end = time.monotonic() + within
        while (found := self.alive_now()) and time.monotonic() < end:
            time.sleep(0.1)
        return found

    def alive_now(self):
        try:
            return runner.marked([n for n, in self.db("SELECT nonce FROM attempts")])
        except Exception:
            return []

    def end(self):
        if self.p and self.p.poll() is None:
            self.kill()
        for p in self.leftovers():
            try:
                os.kill(p, signal.SIGKILL)
            except OSError:
                pass
        for path in glob.glob(os.path.join(self.home, "jobs", "*", "attempt-*", "cgroup")):     # of keepers killed just now
            try:
                os.rmdir(open(path).read())
            except OSError:
                pass


class Stream:
    """Server-sent events: next() gives (event, id, data)."""

    def __init__(self, d, path, headers, rcvbuf=None):
        self.s = socket.socket()
        if rcvbuf:
            self.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.s.settimeout(20)
        self.s.connect(("127.0.0.1", d.port))
        lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{d.port}", f"Authorization: Bearer {d.token}"] + [f"{k}: {v}" for k, v in headers.items()]
        self.s.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self.r = http.client.HTTPResponse(self.s)
        self.r.begin()
        self.status = self.r.status
        self.beats = 0

    def next(self):
        event, id, data = None, None, []
        while True:
            line = self.r.readline().decode()
            if not line:
                return None
            line = line.rstrip("\n")
            if line.startswith(":"):
                self.beats += 1
            elif line.startswith("event: "):
                event = line[7:]
            elif line.startswith("id: "):
                id = int(line[4:])
            elif line.startswith("data: "):
                data.append(line[6:])
            elif not line and event:
                return event, id, json.loads("\n".join(data))

    def until(self, test):
        out = []
        while True:
            e = self.next()
            assert e is not None, ("the stream ended", out)
            out.append(e)
            if test(e):
                return out

    def close(self):
        self.s.close()


def judge(d):
    assert "runtime error" not in d.log_text() and "AddressSanitizer" not in d.log_text(), d.log_text()


def main(names, workers=6):
    runner.run(names, Daemon, judge, workers)
