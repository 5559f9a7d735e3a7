"""The client as people and scripts use it: run without a daemon, the verbs with one. Workers are fake (tests/keeper)."""
import json, os, re, signal, subprocess, sys, tempfile, time, urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "keeper"))
from harness import BUILD, FAKE, ROOT, main

R = os.path.abspath(os.path.join(BUILD, "ringmaster"))
OK, FAILED, USAGE, STOPPED, UNREACHABLE, REFUSED = range(6)


def place(**spec):
    d = tempfile.mkdtemp(dir=ROOT)
    os.mkdir(os.path.join(d, "model"))
    open(os.path.join(d, "d.jsonl"), "w").close()
    full = {"name": "t", "model": "model", "dataset": ["d.jsonl"], "output_dir": "out", "nproc_per_node": 2, "max_steps": 4, "grace_ms": 2000, "stall_timeout_ms": 5000, **spec}
    path = os.path.join(d, "spec.json")
    json.dump(full, open(path, "w"))
    return path


def run(*args, env=None, **kw):
    p = subprocess.run([R, *args], env={**os.environ, "RM_WORKER": FAKE, "RINGMASTER_HOME": "/nonexistent", **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, **kw)
    return p.returncode, p.stdout, p.stderr


def test_run_succeeds(keeper):
    spec = place()
    code, out, err = run("run", spec, "--json", cwd="/")
    s = json.loads(out)
    assert code == OK and s["state"] == "succeeded", (code, out, err)
    for name in ("state", "steps", "loss", "tokens_per_s", "peak_bytes_by_rank", "comm_share", "sent_bytes_by_rank", "output_dir"):
        assert name in s, name
    assert s["output_dir"] == os.path.join(os.path.dirname(spec), "out")      # relative to the spec's folder
    assert "step 4/4" in err and "\033" not in err and "\r" not in err
    code, out, err = run("run", spec)
    assert code == OK and out.startswith("succeeded") and "rank   peak memory" in out


def test_run_flags(keeper):
    spec = place()
    d = tempfile.mkdtemp(dir=ROOT)
    code, out, err = run("run", "--max_steps", "2", "--set", "seed=7", "--packing", spec, "--output_dir=here", "--json", cwd=d)
    s = json.loads(out)
    assert code == OK and s["steps"] == 2 and s["output_dir"] == os.path.join(d, "here"), (out, err)
    used = json.load(open(os.path.join(s["job_dir"], "spec.json")))
    assert used["seed"] == 7 and used["packing"] is True and used["model"] == os.path.join(os.path.dirname(spec), "model")
    code, out, err = run("run", "--model", "m", "--dataset", "a.jsonl", "b.jsonl", "--output_dir", "o", "--max-steps", "1", "--json", cwd=d)
    used = json.load(open(os.path.join(json.loads(out)["job_dir"], "spec.json")))
    assert used["dataset"] == [d + "/a.jsonl", d + "/b.jsonl"], used


def test_run_refuses_and_leaves_nothing(keeper):
    spec = place(max_length="long", no_such_field=1)
    code, out, err = run("run", spec, "--json")
    at = {p["pointer"] for p in json.loads(out)["problems"]}
    assert code == USAGE and at == {"/max_length", "/no_such_field"}, (code, out)
    assert "/max_length" in err and not os.path.exists(os.path.join(os.path.dirname(spec), "out"))
    spec = place()
    code, out, err = run("run", spec, "--json", env={"RM_FAKE_PLAN": "there is no such folder"})
    assert code == USAGE and json.loads(out)["problems"][0]["pointer"] == "/model" and "no such folder" in err
    assert not os.path.exists(os.path.join(os.path.dirname(spec), "out"))
    for bad in (["run"], ["run", "/no/such/file"], ["run", spec, "extra"], ["run", spec, "--bogus"], ["run", spec, "--set", "x"], ["run", spec, "--set", "x=1"], ["dance"], ["show"]):
        code, out, err = run(*bad)
        assert code == USAGE and err and not out, (bad, code, out, err)


def test_run_fails(keeper):
    code, out, err = run("run", place(), "--json", env={"RM_FAKE": "1:kill,*:hang"})
    s = json.loads(out)
    assert code == FAILED and s["state"] == "failed" and s["reason"] == "rank_died" and "rank 1" in s["detail"], (out, err)
    assert "rank 1 was ended by signal 9" in err


def test_interrupts(keeper):
    for signals, fake in ((1, "*:ok"), (2, "*:ignore_term")):
        p = subprocess.Popen([R, "run", place(max_steps=1000, grace_ms=60000), "--json"], env={**os.environ, "RM_WORKER": FAKE, "RM_FAKE": fake}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in p.stderr:
            if line.startswith("step"):
                break
        for i in range(signals):
            p.send_signal(signal.SIGINT)
            time.sleep(0.5)
        out, err = p.communicate(timeout=30)
        s = json.loads(out)
        assert p.returncode == STOPPED and s["state"] == "cancelled", (out, err)
        assert (s["checkpoint"] or "").startswith("/ckpt/") == (signals == 1)


def test_plan_schema_help(keeper):
    assert run("plan", place())[0] == OK
    code, out, err = run("plan", place(), "--json", env={"RM_FAKE_PLAN": "no"})
    assert code == USAGE and json.loads(out)["problems"]
    code, out, _ = run("schema", "--json")
    assert code == OK and "max_length" in json.loads(out)["properties"]
    for args in ([], ["help"], ["help", "run"], ["help", "exit-codes"], ["run", "--help"], ["schema"], ["version"]):
        code, out, err = run(*args)
        assert code == (OK if args else USAGE) and (out if args else err)
    verbs = re.findall(r"^  (\w+) ", run("help")[1], re.M)
    assert len(verbs) > 20
    for v in verbs:
        code, out, _ = run("help", v)
        assert code == OK and not re.match(r"usage: ringmaster \w+ …", out), (v, out)
        assert "ringmaster-worker" not in out
    real = {"RM_WORKER": os.path.join(BUILD, "ringmaster-worker")}
    assert json.loads(run("devices", "--json", env=real)[1])["devices"][0]["kind"] == "cpu"
    for v in ("check", "tokenize", "render", "dataset", "devices", "merge", "sample"):
        assert run(v, "--help") == run("help", v)
        code, out, err = run(v, "--bogus", env=real)
        assert code == USAGE and f"ringmaster {v}" in err and "ringmaster-worker" not in err, (v, err)


def test_mistakes_are_told(keeper):
    code, out, err = run("run", place(after=["j1"], max_steps=1))
    assert code == OK and "warning: /after is ignored" in err, err
    code, out, err = run("run", place(max_restarts=2), "--json")
    assert code == OK and "warning: /max_restarts is ignored" in err, err
    assert "after" not in run("run", place(max_steps=1))[2]
    cluster = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "h100-cluster.json")
    code, out, err = run("plan", cluster)
    assert code == USAGE and f"--cluster {cluster}" in err, err
    assert "expected 0 to 0.999999999, got 1\n" in run("plan", place(adam_beta2=1))[2]


def test_keeper_killed(keeper):
    p = subprocess.Popen([R, "run", place(max_steps=1000)], env={**os.environ, "RM_WORKER": FAKE}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in p.stderr:
        if line.startswith("step"):
            break
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            name, rest = open(f"/proc/{pid}/stat").read().split("(", 1)[1].rsplit(") ", 1)
        except OSError:
            continue
        if int(rest.split()[1]) == p.pid:
            os.kill(int(pid), signal.SIGKILL)
    out, err = p.communicate(timeout=30)
    found = re.search(r"without an exit record; see (/.*/keeper\.log)$", err, re.M)
    assert p.returncode == FAILED and found and os.path.exists(found[1]), err


def test_closed_descriptors(keeper):
    model = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "tiny-qwen2")
    for args in ([R, "import", "swift", "-"], [os.path.join(BUILD, "ringmaster-worker"), "--tokenize", "--model", model]):
        p = subprocess.Popen(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *args], stdin=subprocess.PIPE)      # waits for its input
        try:
            for _ in range(100):
                try:
                    at = [os.readlink(f"/proc/{p.pid}/fd/{fd}") for fd in (1, 2)]
                except OSError:
                    at = None
                if at == ["/dev/null"] * 2:
                    break
                time.sleep(0.05)
            assert at == ["/dev/null"] * 2, (args, at)
        finally:
            p.stdin.close()
            p.wait(20)
    assert subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", R, "run", place(max_steps=2)], env={**os.environ, "RM_WORKER": FAKE}, timeout=30).returncode == OK
    with Daemon(wrap=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")) as d:
        assert [os.readlink(f"/proc/{d.p.pid}/fd/{fd}") for fd in range(3)] == ["/dev/null"] * 3
        assert d("submit", place(max_steps=2), "--wait")[0] == OK


def test_completion(keeper):
    script = run("completion")[1]
    code = script + '\nCOMP_WORDS=(ringmaster run --max_l) COMP_CWORD=2; _ringmaster; echo "${COMPREPLY[*]}"; COMP_WORDS=(ringmaster mon) COMP_CWORD=1; _ringmaster; echo "${COMPREPLY[*]}"'
    out = subprocess.run(["bash", "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert out == "--max_length\nmonitor\n", out


def test_import(keeper):
    code, out, _ = run("import", "swift", "--json", "--", "swift", "sft", "--model", "/m", "--dataset", "a b.jsonl", "--quant_bits", "4")
    r = json.loads(out)
    assert code == FAILED and not r["supported"] and r["spec"]["dataset"] == ["a b.jsonl"] and {f["flag"]: f["status"] for f in r["flags"]}["--quant_bits"] == "unsupported"
    path = os.path.join(tempfile.mkdtemp(dir=ROOT), "x.yaml")
    open(path, "w").write("model_name_or_path: /m\ndataset: d\noutput_dir: o\n")
    code, out, err = run("import", "llamafactory", path)
    assert code == OK and json.loads(out)["model"] == "/m" and "translated" in err
    assert run("import", "swift", "-", input="swift sft --model /m --dataset d")[0] == OK
    assert run("import", "axolotl", path)[0] == USAGE and run("import", "swift", "--", "echo")[0] == USAGE


class Daemon:
    def __init__(self, port=0, home=None, fake="*:ok", step_s="0.1", say="", wrap=()):
        self.home = home or tempfile.mkdtemp(dir=ROOT)
        self.env = {**os.environ, "RM_WORKER": FAKE, "RM_FAKE": fake, "RM_FAKE_STEP_S": step_s, "RM_FAKE_SAY": say}
        self.wrap = wrap
        self.start(port)

    def start(self, port):
        self.log = open(os.path.join(self.home, "log"), "a")
        self.p = subprocess.Popen([*self.wrap, os.path.join(BUILD, "ringmasterd"), "--home", self.home, "--port", str(port), "--allow-root", ROOT, "--slots", "4", "--worker", FAKE],
                                  env=self.env, stdout=self.log, stderr=self.log)
        for _ in range(200):
            try:
                self.url = open(os.path.join(self.home, "url")).read().strip()
                urllib.request.urlopen(self.url + "/readyz", timeout=5)
                return
            except OSError:
                assert self.p.poll() is None, open(self.log.name).read()
                time.sleep(0.05)
        raise AssertionError("the daemon is not ready")

    def stop(self, kill=False):
        (self.p.kill if kill else self.p.terminate)()
        self.p.wait(20)

    def __call__(self, *args, **kw):
        return run(*args, env={"RINGMASTER_HOME": self.home}, **kw)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self("kill", "j1"), self("kill", "j2")
        time.sleep(0.3)
        self.stop()
        self.log.close()


def test_daemon_verbs(keeper):
    with Daemon() as d:
        code, out, err = d("submit", place(max_steps=3), "--wait", "--json")
        s = json.loads(out)
        assert code == OK and s["state"] == "succeeded" and s["steps"] == 3 and s["id"] == "j1" and s["sent_bytes_by_rank"] == [300, 300], (out, err)
        code, out, err = d("submit", place(max_steps=400, name="long <one>"))
        assert (code, out) == (OK, "j2\n"), (out, err)
        for _ in range(100):
            if json.loads(d("show", "j2", "--json")[1])["step"] > 2:
                break
            time.sleep(0.1)
        code, out, err = d("monitor", "--once")
        assert code == OK and out.startswith("j2  running  long <one>") and "RANK" in out and "\033" not in out, out
        assert len(json.loads(d("monitor", "j2", "--once", "--json")[1])["ranks"]) == 2
        code, out, err = d("top", "--once")
        assert "2 of 4 devices busy, 1 jobs running" in out, out
        assert [j["id"] for j in json.loads(d("list", "--json")[1])["items"]] == ["j2", "j1"]
        assert "j1" in d("list", "--state", "succeeded")[1] and "j2" not in d("list", "--state", "succeeded")[1]
        assert "state          running" in d("show", "j2")[1]
        assert d("logs", "j1", "--rank", "1", "--tail", "1")[1] == "rank 1 step 3\n"
        assert d("logs", "j1", "-f", "--tail", "2")[1] == "rank 0 step 2\nrank 0 step 3\n"
        assert d("logs", "j1", "-f")[1].count("\n") == 3
        assert d("logs", "j1", "--grep", "step 2")[1] == "rank 0 step 2\n"
        assert d("logs", "j1", "--since", "1h") == d("logs", "j1")
        for bad in ("yesterday", "5", "-5m", "5w", "5mm", ""):
            assert d("logs", "j1", "--since", bad)[0] == USAGE, bad
        code, out, err = d("pause", "j2", "--wait", "--json")
        assert code == OK and json.loads(out)["state"] == "paused" and json.loads(out)["checkpoint"], (out, err)
        assert d("watch", "j2")[0] == STOPPED
        assert d("cancel", "j2", "--wait")[0] == OK
        assert d("watch", "j1")[0] == OK
        code, out, err = d("submit", place(), "--model", "/etc")
        assert code == USAGE and "/model" in err, err
        assert d("show", "j77")[0] == REFUSED and d("resume", "j1")[0] == REFUSED
        assert run("list", "--url", d.url, "--token", "nonsense")[0] == REFUSED
        same = place(max_steps=1)
        assert d("submit", same, "--key", "k1")[1] == d("submit", same, "--key", "k1")[1]
        assert run("list", "--url", "http://127.0.0.1:1")[0] == UNREACHABLE


def test_daemon_resources(keeper):
    with Daemon(step_s="0.02") as d:
        spec = place(max_steps=3)
        assert d("submit", spec, "--wait")[0] == OK
        code, out, err = d("clone", "j1", "--max_steps", "5", "--output_dir", os.path.join(os.path.dirname(spec), "two"), "--wait", "--json")
        assert code == OK and json.loads(out)["steps"] == 5, (out, err)
        assert re.search(r"max_steps +3 +5", d("compare", "j1", "j2")[1]), d("compare", "j1", "j2")
        assert d("metrics", "j2", "--names", "loss")[1].splitlines()[-1] == "5\t1"
        code, out, err = d("metrics", "j2", "--names", "loss,nope")
        assert code == USAGE and not out and "nope" in err and "tokens_per_s" in err, (code, out, err)
        listed = d("list")[1]               # the fake worker's loss is 5 / step
        assert re.search(r"^j1 .* 1\.6667 ", listed, re.M) and re.search(r"^j2 .* 1\.0000 ", listed, re.M), listed
        assert "succeeded" in d("attempts", "j1")[1] and "ended" in d("ranks", "j1")[1]
        os.makedirs(os.path.join(os.path.dirname(spec), "out", "a b"))
        open(os.path.join(os.path.dirname(spec), "out", "a b", "f"), "w").write("hello")
        assert "a b/f" in d("artifacts", "j1")[1] and d("artifacts", "j1", "a b/f")[1] == "hello"
        assert d("artifacts", "j1", "../spec.json")[0] == REFUSED
        assert d("checkpoints", "j1")[0] == OK and d("queue")[0] == OK and "succeeded" in d("events", "j1")[1]
        code, out, err = d("token", "create", "ci", "read")
        assert code == OK and len(out) > 20, (out, err)
        secret = out.strip()
        assert run("list", "--url", d.url, "--token", secret)[0] == OK
        assert run("cancel", "j1", "--url", d.url, "--token", secret)[0] == REFUSED
        assert "ci" in d("token")[1] and secret not in d("audit")[1]
        path = d("backup")[1].strip()
        assert os.path.getsize(path) > 1000
        assert d("delete", "j1")[0] == OK and d("show", "j1")[0] == REFUSED


def test_no_escape_reaches_the_terminal(keeper):
    bad = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
    name = "é日\x1b]0;owned\x07\x7f\u009b31m\r"
    with Daemon(fake="0:disk_full", step_s="0.02", say="\x1b[2J\x9b31m\x7f\r\x08 50%\rend") as d:
        code, out, err = d("submit", place(name=name, labels={"k\x1b": "v\x1b"}, max_restarts=0), "--wait")
        assert code == FAILED and not bad.search(out + err) and "\\x1b[2J" in out, (out, err)
        for args in ("list", "show j1", "watch j1", "monitor j1 --once", "top --once", "logs j1", "logs j1 -f", "logs j1 -f --tail 3", "events j1", "attempts j1", "ranks j1", "compare j1 j1",
                     "cancel j1", "audit", "queue"):
            code, out, err = d(*args.split())
            assert out + err and not bad.search(out + err), (args, out, err)
        assert "é日\\x1b]0;owned\\x07\\x7f\\u009b31m" in d("list")[1] and "\\x1b" in d("show", "j1")[1]
        for args in (["logs", "j1"], ["logs", "j1", "-f"]):
            assert d(*args)[1].startswith("\\x1b[2J\\x9b31m\\x7f\n\\x08 50%\nend\nrank 0 step 1\n"), d(*args)
        assert json.loads(d("show", "j1", "--json")[1])["name"] == name
        code, out, err = d("submit", place(max_length="\x1b[2J"))
        assert code == USAGE and not bad.search(err), err
    code, out, err = run("run", place(), env={"RM_FAKE": "0:disk_full", "RM_FAKE_SAY": "\x1b[2J"})
    assert code == FAILED and "\\x1b[2J" in out and not bad.search(out + err), (out, err)


EXAMPLES = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples"))
REAL = {"RM_WORKER": os.path.abspath(os.path.join(BUILD, "ringmaster-worker"))}


def test_arrays(keeper):
    with Daemon(step_s="0.01") as d:
        spec = place(max_steps=2, name="sweep")
        code, out, err = d("submit", spec, "--grid", "learning_rate=[1e-4,2e-4]", "--grid", "lora_rank=4,8")
        assert code == OK and out == "a1 j1 j2 j3 j4\n", (out, err)
        for j in ("j1", "j2", "j3", "j4"):
            assert d("watch", j)[0] == OK
        specs = [json.loads(d("show", j, "--json")[1])["spec"] for j in ("j1", "j2", "j3", "j4")]
        assert sorted((s["learning_rate"], s["lora_rank"]) for s in specs) == [(1e-4, 4), (1e-4, 8), (2e-4, 4), (2e-4, 8)]
        assert len({s["output_dir"] for s in specs}) == 4
        shown = d("show", "a1")[1]
        assert shown.count("succeeded") >= 4 and "j3" in shown, shown
        draws = []
        for seed in ("7", "7", "8"):
            code, out, err = d("submit", spec, "--random", "learning_rate=1e-6..1e-2:log", "--random", "lora_rank=4,8,16", "--random", "warmup_steps=0..3", "--count", "4", "--sample_seed", seed, "--json")
            answer = json.loads(out)
            assert code == OK and len(answer["jobs"]) == 4, (out, err)
            members = [json.loads(d("show", j, "--json")[1])["spec"] for j in answer["jobs"]]
            assert all(1e-6 <= s["learning_rate"] <= 1e-2 and s["lora_rank"] in (4, 8, 16) and s["warmup_steps"] in (0, 1, 2, 3) for s in members), members
            assert len({s["learning_rate"] for s in members}) == 4
            draws.append([(s["learning_rate"], s["lora_rank"], s["warmup_steps"]) for s in members])
            for j in answer["jobs"]:
                d("kill", j)
        assert draws[0] == draws[1] != draws[2]
        for bad, says in ((["--grid", "no_field=1,2"], "--grid FIELD"), (["--random", "learning_rate=0..1"], "--count"), (["--random", "learning_rate=2..1", "--count", "2"], "min < max"),
                          (["--random", "learning_rate=0..1:log", "--count", "2"], "above 0 with log"), (["--random", "seed=1..5", "--grid", "lora_rank=1,2", "--count", "2"], "either --grid or --random"),
                          (["--count", "3"], "--random"), (["--grid", "output_dir=a,b"], "own folder"), (["--grid", "max_length=[16,\"x\"]"], "member 1"), (["--grid", "lora_rank=1,2", "--wait"], "not waited for"),
                          (["--random", "learning_rate=0..1", "--count", "many"], "/count"), (["--random", "learning_rate=0..1", "--count", "201"], "/count")):
            code, out, err = d("submit", spec, *bad)
            assert code == USAGE and says in err and not out, (bad, code, out, err)


def test_webhooks_of_the_command_line(keeper):
    import http.server, threading
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *a):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Daemon(step_s="0.01") as d:
        code, secret, err = d("webhook", "create", f"http://127.0.0.1:{server.server_address[1]}/hook")
        assert code == OK and len(secret.strip()) >= 32, (secret, err)
        listed = d("webhook")[1]
        assert "/hook" in listed and secret.strip() not in listed and d("webhook", "list")[1] == listed
        assert d("webhook", "test", "1")[0] == OK
        assert d("submit", place(max_steps=1), "--wait")[0] == OK
        for _ in range(200):
            if len(got) >= 4:
                break
            time.sleep(0.1)
        assert json.loads(got[0]) == {"test": True} and json.loads(got[-1])["id"] == "j1", got
        made = json.loads(d("webhook", "create", "https://hooks.example/x", "--json")[1])
        assert made["id"] == 2 and made["secret"]
        assert d("webhook", "delete", "2") == (OK, "", "") and json.loads(d("webhook", "delete", "1", "--json")[1]) == {}
        assert json.loads(d("webhook", "list", "--json")[1])["items"] == []
        assert d("webhook", "delete", "2")[0] == REFUSED and d("webhook", "create", "gopher://x")[0] == USAGE
        for bad in (["create"], ["make", "x"], ["delete"], ["list", "1"]):
            if bad != ["list", "1"]:
                assert d("webhook", *bad)[0] == USAGE, bad
    server.shutdown()


def test_backup_and_restore(keeper):
    with Daemon(step_s="0.01") as d:
        assert d("submit", place(max_steps=2), "--wait")[0] == OK
        path = d("backup")[1].strip()
        assert os.stat(path).st_mode & 0o777 == 0o600
        other = json.loads(d("backup", "--json")[1])["path"]
        assert other != path
        assert d("submit", place(max_steps=2), "--wait")[0] == OK
        code, out, err = d("restore", path)                     # never under a daemon's feet
        assert code == FAILED and "another ringmasterd" in err, (code, out, err)
        port = int(d.url.rsplit(":", 1)[1])
        d.stop()
        junk = os.path.join(d.home, "junk")
        open(junk, "w").write("this is no database" * 1000)
        code, out, err = d("restore", junk)
        assert code == FAILED and "junk" in err, (code, out, err)
        assert json.loads(d("restore", "/no/such/file", "--json")[1])["restored"] is False
        assert json.loads(d("restore", path, "--json")[1]) == {"restored": True, "file": path}
        d.start(port)
        assert [j["id"] for j in json.loads(d("list", "--json")[1])["items"]] == ["j1"]
        assert any(".replaced-" in f for f in os.listdir(d.home))


def test_every_verb_speaks_json(keeper):
    text = run("help")[1]
    verbs = re.findall(r"^  (\w+) ", text, re.M)
    listed = json.loads(run("help", "--json")[1])
    assert [v["name"] for v in listed["verbs"]] == verbs and listed["exit_codes"]["3"].startswith("the job was cancelled")
    assert json.loads(run("help", "run", "--json")[1])["verbs"][0]["takes_fields"] is True
    exact = re.findall(r"^\| (\d) \| (.*) \|$", open(os.path.join(os.path.dirname(EXAMPLES), "docs", "cli.md")).read(), re.M)
    assert [n for n, _ in exact] == list(listed["exit_codes"]), exact        # documented, all of them
    with Daemon(step_s="0.02") as d:
        spec, more = place(max_steps=3), os.path.join(ROOT, "more")
        assert d("submit", spec, "--wait")[0] == OK
        model = os.path.join(EXAMPLES, "tiny-qwen2")
        args = {"run": [place(max_steps=1)], "plan": [spec], "submit": [spec, "--output_dir", more + "1"], "clone": ["j1", "--output_dir", more + "2"], "compare": ["j1", "j1"], "monitor": ["j1", "--once"], "top": ["--once"],
                "import": ["swift", "--json", "--", "swift", "sft", "--model", "/m", "--dataset", "a.jsonl"], "restore": ["/nonexistent"], "tokenize": ["--model", model], "check": [model], "dataset": [EXAMPLES + "/single.json"],
                "token": ["create", "x", "read"], "webhook": ["create", "http://127.0.0.1:1/x"], "render": ["--model", model], "logs": ["j1"], "metrics": ["j1"]}
        other = {"completion", "merge", "sample", "delete"}           # merge and sample: tests/model/verbs.py; completion: a script, refused with --json
        for v in [v for v in verbs if v not in other] + ["delete"]:
            usage = run("help", v)[1].splitlines()[0]
            a = args.get(v, ["j1"] if "JOB" in usage else [])
            local = v in ("tokenize", "check", "dataset", "devices", "render")
            env = REAL if local else {"RINGMASTER_HOME": d.home}
            given = {"tokenize": '{"text":"a b"}\n', "render": '{"messages":[{"role":"user","content":"x"}]}\n'}.get(v, "")
            code, out, err = run(v, *a, *([] if v == "import" else ["--json"]), env=env, input=given)
            assert out.strip(), (v, code, out, err)
            for line in out.splitlines():
                json.loads(line)
            if code == OK and v in ("show", "attempts", "list"):
                assert "j1" in out or "attempt" in out
        assert run("completion", "--json")[0] == USAGE
        code, out, err = run("list", "--json", "--url", "http://127.0.0.1:1")
        assert code == UNREACHABLE and json.loads(out)["error"] and err
        code, out, err = d("show", "j99", "--json")
        assert code == REFUSED and json.loads(out)["status"] == 404
        code, out, err = d("submit", "--json", place(max_length="x"))
        assert code == USAGE and json.loads(out)["problems"][0]["pointer"] == "/max_length"


def test_completion_of_every_verb(keeper):
    script = run("completion")[1]
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    listed = json.loads(run("help", "--json")[1])["verbs"]
    ask = "\n".join(f'COMP_WORDS=(ringmaster {v["name"]} -) COMP_CWORD=2; _ringmaster; echo "{v["name"]}: ${{COMPREPLY[*]}}"' for v in listed)
    out = subprocess.run(["bash", "-c", script + "\n" + ask], stdout=subprocess.PIPE, text=True, check=True).stdout
    offered = {line.split(": ")[0]: set(line.split(": ", 1)[1].split()) for line in out.splitlines()}
    for v in listed:
        assert set(v["flags"]) <= offered[v["name"]], (v, offered[v["name"]])
        assert ("--max_length" in offered[v["name"]]) == v["takes_fields"], v
    d = tempfile.mkdtemp(dir=ROOT)
    open(os.path.join(d, "spec one.json"), "w").close()
    out = subprocess.run(["bash", "-c", script + '\nCOMP_WORDS=(ringmaster plan sp) COMP_CWORD=2; _ringmaster; printf "%s\n" "${COMPREPLY[@]}"; COMP_WORDS=(ringmaster help su) COMP_CWORD=2; _ringmaster; printf "%s\n" "${COMPREPLY[@]}"'],
                         stdout=subprocess.PIPE, text=True, cwd=d).stdout
    assert "spec" in out and "submit" in out, out


def test_a_spec_from_stdin(keeper):
    spec = place()
    folder, text = os.path.dirname(spec), open(spec).read()
    code, out, err = run("run", "-", "--json", input=text, cwd=folder)
    assert code == OK and json.loads(out)["output_dir"] == os.path.join(folder, "out"), (out, err)      # relative to the current folder
    assert run("plan", "-", input=text, cwd=folder)[0] == OK
    with Daemon(step_s="0.01") as d:
        code, out, err = d("submit", "-", "--wait", "--output_dir", os.path.join(folder, "two"), input=text, cwd=folder)
        assert code == OK, (out, err)
    for bad, says in (("", "standard input"), ("{", "standard input"), ("[1]", "JSON object"), ("\ufeff" + text, "byte order mark"), ("{}" + " " * (2 << 20), "at most")):
        code, out, err = run("plan", "-", input=bad, cwd=folder)
        assert code == USAGE and says in err and not out, (bad[:20], code, err)


def test_data_verbs_show_nothing_a_terminal_obeys(keeper):
    bad = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
    d = tempfile.mkdtemp(dir=ROOT)
    name = os.path.join(d, "a\x1b]0;owned\x07.jsonl")
    open(name, "w").write('{"text": "plain \\u001b[2J \\u009b31m \\u007f text"}\n')
    broken = os.path.join(d, "b\x1b[2J.jsonl")
    open(broken, "w").write("{nope\n")
    spec = {"model": os.path.join(EXAMPLES, "tiny-qwen2"), "dataset": [name], "output_dir": os.path.join(d, "o"), "max_length": 64}
    path = os.path.join(d, "spec.json")
    json.dump(spec, open(path, "w"))
    for args in (["check", name], ["check", broken], ["dataset", path], ["check", os.path.join(d, "no\x1b[31m")], ["merge", d + "/\x1b[2J", d + "/out"], ["tokenize", "--model", "\x1b[2J"], ["sample", "\x1b[2J", "--prompt", "x"]):
        code, out, err = run(*args, env=REAL, stdin=subprocess.DEVNULL)
        assert out + err and not bad.search(out + err), (args, out, err)
        assert "\\x1b" in out + err, (args, out, err)
    json.dump({**spec, "dataset": [broken]}, open(path, "w"))
    code, out, err = run("dataset", path, env=REAL)
    assert code == USAGE and not bad.search(out + err) and "\\x1b" in err, (out, err)
    for rows in ("-1", "x", "", "1e3", "99999999999"):
        code, out, err = run("dataset", path, "--rows", rows, env=REAL)
        assert code == USAGE and "--rows" in err and not out, (rows, code, out, err)
    marked = os.path.join(d, "m.jsonl")
    open(marked, "w", encoding="utf-8-sig").write('{"text": "one"}\n{"text": "two"}\n')
    code, out, err = run("check", marked, "--json", env=REAL)
    assert code == OK and json.loads(out) == {"path": marked, "ok": True, "summary": "dataset: 2 plain texts"}, (out, err)


def test_followed_over_a_restart(keeper):
    with Daemon(step_s="0.05") as d:
        p = subprocess.Popen([R, "submit", place(max_steps=120), "--wait", "--json"], env={**os.environ, "RINGMASTER_HOME": d.home}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 60
        while "running" not in d("list")[1]:
            assert time.monotonic() < end and p.poll() is None
            time.sleep(0.1)
        port = int(d.url.rsplit(":", 1)[1])
        d.stop(kill=True)
        time.sleep(1)
        d.start(port)
        out, err = p.communicate(timeout=60)
        s = json.loads(out)
        assert p.returncode == OK and s["state"] == "succeeded" and s["steps"] == 120, (out, err)
        assert "waiting for it" in err and "is back" in err, err


main(globals())
