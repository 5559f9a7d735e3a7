#!/usr/bin/env python3
"""Faults of the coordinator and of what it depends on (numbers: docs/faults.md). usage: daemon.py [test_name…]; RM_SOAK=1: full length."""
import concurrent.futures, http.client, json, os, random, resource, signal, socket, sqlite3, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "daemon"))
from rig import BUILD, FINAL, ROOT, SANITIZED, Skip, main

SOAK = bool(os.environ.get("RM_SOAK"))


def pids(d, id):
    return [r["pid"] for r in d.ranks(id)]


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def whole(d, id, steps, ranks=2):
    """Every step of every rank is stored exactly once."""
    for rank in range(ranks):
        assert d.steps(id, rank=rank) == list(range(1, steps + 1)), (rank, d.steps(id, rank=rank))
    rows = d.db("SELECT count(*), count(DISTINCT rank||':'||step) FROM metrics WHERE job=?", int(id[1:]))
    assert rows == [(steps * ranks, steps * ranks)], rows


def kill_loop(new, rounds, world):
    steps = rounds * 40
    d = new(step_s=0.02)
    id = d.submit(max_steps=steps, nproc_per_node=world)
    d.until(id, "running")
    before = pids(d, id)
    rng = random.Random(7)
    for _ in range(rounds):
        time.sleep(rng.uniform(0.0, 0.5))
        d.kill()
        began = time.monotonic()
        d.start()
        assert time.monotonic() - began < 5, "adopted too late"
        j = d.job(id)
        assert j["restarts"] == 0 and j["attempt"] == 1, j
        assert j["state"] in ("starting", "running", "stopping", "succeeded"), j
        if j["state"] == "running":
            assert pids(d, id) == before
    d.until(id, "succeeded", limit=120)
    assert pids(d, id) == before
    whole(d, id, steps, world)
    assert len(d.get(f"/v1/jobs/{id}/attempts")["items"]) == 1


def test_F1_daemon_killed_while_a_job_runs(new):
    kill_loop(new, 100 if SOAK else 6, 4 if SOAK else 2)


def test_F2_F3_job_ends_while_the_daemon_is_down(new):
    d = new(step_s=0.05)
    ok, bad = d.submit(max_steps=60), d.submit(max_steps=60)
    d.until(ok, "running")
    d.until(bad, "running")
    victim = pids(d, bad)[1]
    d.kill()
    os.kill(victim, signal.SIGKILL)
    time.sleep(5)
    d.start()
    assert d.until(ok, "succeeded")["reason"] == "finished"
    j = d.until(bad, "failed")
    assert j["reason"] == "rank_died" and j["ended_at"], j
    a = d.get(f"/v1/jobs/{bad}/attempts")["items"][0]
    assert a["rank"] == 1 and a["signal"] == 9, a
    whole(d, ok, 60)


def test_F4_killed_between_commit_and_spawn(new):
    d = new()
    d.kill()
    d.start(env={"RINGMASTER_FAILPOINT": "after_commit"})
    try:
        d.submit()
    except Exception:
        pass                    # it may die before the answer is out
    d.p.wait(20)
    d.start()
    jobs = d.get("/v1/jobs")["items"]
    assert len(jobs) == 1
    j = d.until(jobs[0]["id"], "succeeded")
    assert j["restarts"] == 0, j
    rows = d.get(f"/v1/jobs/{j['id']}/attempts")["items"]
    assert [a["reason"] for a in rows] == ["not_started", "finished"], rows
    whole(d, j["id"], 5)


def test_F4_killed_between_spawn_and_pid_record(new):
    d = new()
    d.kill()
    d.start(env={"RINGMASTER_FAILPOINT": "after_spawn"})
    try:
        d.submit(max_steps=60)
    except Exception:
        pass
    d.p.wait(20)
    d.start()
    id = d.get("/v1/jobs")["items"][0]["id"]
    d.until(id, "succeeded")
    assert len(d.get(f"/v1/jobs/{id}/attempts")["items"]) == 1      # the one that was started was found
    whole(d, id, 60)


def test_F5_keeper_killed(new):
    d = new(step_s=0.05)
    id = d.submit(max_steps=100, max_restarts=1)
    d.until_step(id, 5)
    old = pids(d, id)
    os.kill(d.db("SELECT pid FROM attempts")[0][0], signal.SIGKILL)
    end = time.monotonic() + 10
    while d.job(id)["attempt"] < 2:
        assert time.monotonic() < end, d.log_text()
        time.sleep(0.05)
    assert not any(alive(p) for p in old)
    d.until(id, "running", "succeeded")
    assert d.job(id)["restarts"] == 1
    d.ask("POST", f"/v1/jobs/{id}/kill")
    d.until(id, "cancelled")


def test_F6_daemon_and_keeper_killed(new):
    d = new(step_s=0.05)
    id = d.submit(max_steps=1000)
    d.until_step(id, 3)
    keeper = d.db("SELECT pid FROM attempts")[0][0]
    d.kill()
    os.kill(keeper, signal.SIGKILL)
    d.start()
    j = d.until(id, "failed", limit=10)
    assert j["reason"] == "lost", j
    assert not d.leftovers()


def test_F7_reboot_with_reused_pids(new):
    d = new(step_s=0.05)
    id = d.submit(max_steps=1000)
    d.until(id, "running")
    d.kill()
    for p in d.leftovers():
        os.kill(p, signal.SIGKILL)
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        c = sqlite3.connect(os.path.join(d.home, "ringmaster.db"))
        c.execute("UPDATE attempts SET pid=?, start_time=1", (bystander.pid,))
        c.commit()
        c.close()
        d.start(env={"RINGMASTER_BOOT_ID": "another-boot"})
        assert d.until(id, "failed")["reason"] == "lost"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_F8_rank_killed_then_one_retry(new):
    d = new(fake="1:kill,*:ok")
    id = d.submit(max_restarts=1, max_steps=50, grace_ms=1000)
    j = d.until(id, "failed")
    assert j["reason"] == "rank_died" and j["restarts"] == 1, j
    rows = d.get(f"/v1/jobs/{id}/attempts")["items"]
    assert len(rows) == 2 and all(a["rank"] == 1 and a["signal"] == 9 and a["last_step"] >= 2 for a in rows), rows
    assert not d.leftovers()


def test_F10_no_blind_retry_when_memory_is_short(new):
    d = new(fake="0:gpu_oom,*:ok")
    j = d.until(d.submit(max_restarts=3), "failed")
    assert j["reason"] == "oom_gpu" and j["restarts"] == 0, j


def test_F13_F14_slots_are_freed_when_nothing_is_left(new):
    d = new(fake="*:grandchild", step_s=0.05, slots=2)
    first = d.submit(max_steps=1000, grace_ms=500)
    d.until_step(first, 5)
    second = d.submit(max_steps=3, grace_ms=500)
    while d.job(second)["waiting"]["reason"] == "scheduling":
        time.sleep(0.02)
    assert d.job(second)["waiting"]["reason"] == "devices", d.job(second)
    d.ask("POST", f"/v1/jobs/{first}/cancel")
    d.until(first, "cancelled")
    started = d.db("SELECT started_ms FROM attempts WHERE job=?", int(second[1:]))
    ended = d.db("SELECT ended_ms FROM jobs WHERE id=?", int(first[1:]))[0][0]
    assert not started or started[0][0] >= ended - 5
    d.until(second, "succeeded")
    assert not d.leftovers()            # also after a normal end


def test_F16_cancel_in_every_state(new):
    d = new(step_s=0.05, slots=2)
    running = d.submit(max_steps=400)
    d.until(running, "running")
    queued = d.submit()
    for id in (queued, running):
        for _ in range(2):              # repeatable without effect
            assert d.ask("POST", f"/v1/jobs/{id}/cancel").status == 202
        assert d.until(id, "cancelled")["reason"] == "cancelled"
    starting = d.submit(max_steps=400)
    while d.job(starting)["state"] == "queued":
        time.sleep(0.005)
    d.ask("POST", f"/v1/jobs/{starting}/cancel")
    d.until(starting, "cancelled")
    stopping = d.submit(max_steps=400)
    d.until(stopping, "running")
    d.ask("POST", f"/v1/jobs/{stopping}/pause")
    d.ask("POST", f"/v1/jobs/{stopping}/cancel")
    d.until(stopping, "cancelled", "paused")
    done = d.submit()
    d.until(done, "succeeded")
    assert d.ask("POST", f"/v1/jobs/{done}/cancel").json["state"] == "succeeded"
    paused = d.submit(max_steps=400)
    d.until(paused, "running")
    d.ask("POST", f"/v1/jobs/{paused}/pause")
    d.until(paused, "paused")
    d.ask("POST", f"/v1/jobs/{paused}/cancel")
    d.until(paused, "cancelled")
    assert not d.leftovers()


def test_F17_cancel_and_finish_race(new):
    d = new(step_s=0.005, slots=16)
    rng = random.Random(1)

    def one(_):
        id = d.submit(max_steps=3, nproc_per_node=1)
        time.sleep(rng.uniform(0.1, 0.8))
        d.ask("POST", f"/v1/jobs/{id}/cancel")
        j = d.until(id, *FINAL, limit=60)
        exits = d.get(f"/v1/jobs/{id}/attempts")["items"]
        return j["state"], exits[-1]["state"] if exits else None
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(one, range(1000 if SOAK else 24)))
    for state, record in seen:
        assert state in ("succeeded", "cancelled"), seen
        assert state != "succeeded" or record == "succeeded", seen
        assert record != "succeeded" or state == "succeeded", seen


def test_F18_F19_the_same_key_many_times(new):
    d = new()
    body = d.spec(name="once")

    def post(_):
        try:
            return d.ask("POST", "/v1/jobs", body, headers={"Idempotency-Key": "k1"})
        except OSError:
            return None
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(post, range(50)))
    assert all(r and r.status == 201 for r in replies), replies
    assert len({r.body for r in replies}) == 1 and len(d.get("/v1/jobs")["items"]) == 1
    d.kill()
    d.start()
    again = post(0)
    assert again.body == replies[0].body and again.headers["Idempotency-Replayed"] == "true"
    r = d.ask("POST", "/v1/jobs", d.spec(name="other"), headers={"Idempotency-Key": "k1"})
    assert r.status == 422, r
    assert len(d.get("/v1/jobs")["items"]) == 1


def test_F18_killed_between_the_same_keys(new):
    d = new()
    body = d.spec()
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        def post(_):
            try:
                return d.ask("POST", "/v1/jobs", body, headers={"Idempotency-Key": "k2"})
            except OSError:
                return None
        first = [pool.submit(post, i) for i in range(20)]
        time.sleep(0.25)
        d.kill()
        [f.result() for f in first]
        d.start()
        rest = list(pool.map(post, range(20)))
    assert all(r and r.status == 201 for r in rest) and len({r.json["id"] for r in rest}) == 1
    assert len(d.get("/v1/jobs")["items"]) == 1


def test_F21_disk_full_on_the_database(new):
    mnt = os.path.join(ROOT, "small")
    os.makedirs(mnt)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", mnt], stderr=subprocess.DEVNULL).returncode:
        raise Skip("needs the right to mount a tmpfs")
    try:
        d = new(home=os.path.join(mnt, "home"), step_s=0.1)
        id = d.submit(max_steps=2000)
        d.until(id, "running")
        big = os.path.join(mnt, "big")
        with open(big, "wb", 0) as f:
            try:
                while True:
                    f.write(b"x" * 4096)
            except OSError:
                pass
        end, refused = time.monotonic() + 20, None
        while refused is None and time.monotonic() < end:
            r = d.ask("POST", "/v1/jobs", d.spec(name="n" * 150))
            if r.status != 201:
                refused = r
        assert refused is not None and refused.status in (503, 507), refused
        assert d.get("/v1/jobs")["items"] and d.job(id)["state"] == "running"       # reads go on
        known = {j["id"] for j in d.get("/v1/jobs?limit=200")["items"]}
        os.unlink(big)
        assert d.ask("POST", f"/v1/jobs/{id}/cancel").status == 202
        d.until(id, "cancelled")
        assert d.ask("POST", "/v1/jobs", d.spec()).status == 201                    # recovers
        assert known <= {j["id"] for j in d.get("/v1/jobs?limit=200")["items"]}
        d.kill()
    finally:
        subprocess.run(["umount", "-l", mnt])


def test_F23_fsync_fails(new):
    if subprocess.run(["sh", "-c", "command -v strace"], stdout=subprocess.DEVNULL).returncode:
        raise Skip("needs strace")
    d = new()
    d.until(d.submit(), "succeeded")
    tracer = subprocess.Popen(["strace", "-qq", "-f", "-p", str(d.p.pid), "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:error=EIO", "-o", "/dev/null"], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 10
        while "TracerPid:\t0" in open(f"/proc/{d.p.pid}/status").read():
            if tracer.poll() is not None or time.monotonic() > end:
                raise Skip("strace may not attach here")
            time.sleep(0.05)
        r = d.ask("POST", "/v1/jobs", d.spec(name="unsafe"))
        assert r.status >= 500, r
    finally:
        tracer.terminate()
        tracer.wait()
    assert len(d.get("/v1/jobs")["items"]) == 1, d.get("/v1/jobs")
    d.until(d.submit(), "succeeded")


def test_F25_a_checkpoint_that_cannot_be_loaded(new):
    d = new(step_s=0.05)
    id = d.submit(max_steps=1000, max_restarts=3)
    saved = []
    for older in (True, False):
        beyond = int(saved[0].rsplit("-", 1)[1]) if saved else 0        # the fake worker counts from 1 again
        end = time.monotonic() + 60
        while min([r["step"] for r in d.ranks(id)] or [0]) < beyond + 3:
            assert time.monotonic() < end, d.log_text()
            time.sleep(0.05)
        d.ask("POST", f"/v1/jobs/{id}/pause")
        saved.append(d.until(id, "paused", limit=60)["checkpoint"])
        if older:
            d.ask("POST", f"/v1/jobs/{id}/resume")
            d.until(id, "running")
    d.kill()
    d.start(env={"RM_FAKE": "*:exit_early"})
    d.ask("POST", f"/v1/jobs/{id}/resume")
    d.until(id, "failed")
    tried = [a["resumed_from"] for a in d.get(f"/v1/jobs/{id}/attempts")["items"]][2:]
    steps = [d.db("SELECT max(step) FROM checkpoints WHERE path=?", p)[0][0] if p else 0 for p in tried]
    assert tried[0] == tried[1] == saved[1] and steps[2] < steps[1], (tried, saved)
    bad = {c["path"]: c["bad"] for c in d.get(f"/v1/jobs/{id}/checkpoints")["items"]}
    assert bad[saved[1]] is True and bad[tried[2]] is (tried[2] == tried[3]), (bad, tried)
    told = [e["data"]["text"] for e in d.get(f"/v1/jobs/{id}/history?limit=1000")["items"] if e["data"].get("code") == "bad_checkpoint"]
    assert told and saved[1] in told[-1] and tried[2] in told[-1], told


def test_F25_a_lost_machine_is_not_the_checkpoint(new):
    d = new(step_s=0.05)
    id = d.submit(max_steps=1000, max_restarts=4)
    d.until_step(id, 3)
    d.ask("POST", f"/v1/jobs/{id}/pause")
    saved = d.until(id, "paused")["checkpoint"]
    d.kill()
    d.start(env={"RM_FAKE_STEP_S": "60"})         # attempts that come no further, but for another reason
    d.ask("POST", f"/v1/jobs/{id}/resume")
    for n in (2, 3, 4):
        end = time.monotonic() + 20
        while (d.job(id)["attempt"], d.job(id)["state"]) != (n, "running"):
            assert time.monotonic() < end, d.log_text()
            time.sleep(0.05)
        keeper = d.db("SELECT pid FROM attempts WHERE n=?", n)[0][0]
        os.kill(keeper, signal.SIGKILL)
    end = time.monotonic() + 20
    while d.job(id)["attempt"] < 5:
        assert time.monotonic() < end, d.log_text()
        time.sleep(0.05)
    rows = d.get(f"/v1/jobs/{id}/attempts")["items"]
    assert [a["resumed_from"] for a in rows[1:]] == [saved] * 4 and {a["reason"] for a in rows[1:4]} == {"lost"}, rows
    assert d.get(f"/v1/jobs/{id}/checkpoints")["items"][0]["bad"] is False


def test_F26_before_the_first_own_checkpoint(new):
    """A job that was given a checkpoint and fails before its own first starts again from the one given, not from nothing."""
    d = new(fake="1:kill,*:ok")
    given = os.path.join(d.data, "checkpoint-700")
    os.makedirs(given)
    id = d.submit(resume_from_checkpoint=given, max_restarts=2, grace_ms=1000, max_steps=50)
    d.until(id, "failed")
    rows = d.get(f"/v1/jobs/{id}/attempts")["items"]
    assert [a["resumed_from"] for a in rows] == [given] * 3, rows
    for n in (1, 2, 3):
        assert json.load(open(os.path.join(d.home, "jobs", id, f"attempt-{n}", "spec.json")))["resume_from_checkpoint"] == given


def test_F28_database_locked_by_somebody_else(new):
    d = new(step_s=0.05)
    id = d.submit(max_steps=60)
    d.until(id, "running")
    c = sqlite3.connect(os.path.join(d.home, "ringmaster.db"), isolation_level=None)
    c.execute("BEGIN EXCLUSIVE")
    cpu = lambda: sum(map(int, open(f"/proc/{d.p.pid}/stat").read().rsplit(")", 1)[1].split()[11:13]))
    used = cpu()
    r = d.ask("POST", "/v1/jobs", d.spec())
    assert r.status == 503 and "Retry-After" in r.headers, r
    assert d.job(id)["state"] == "running"
    time.sleep(2)
    assert cpu() - used < 150, "busy loop"
    c.execute("ROLLBACK")
    c.close()
    d.until(id, "succeeded")
    whole(d, id, 60)
    assert d.ask("POST", "/v1/jobs", d.spec()).status == 201


def test_F29_damaged_database(new):
    d = new()
    d.until(d.submit(), "succeeded")
    d.p.terminate()
    d.p.wait(10)
    path = os.path.join(d.home, "ringmaster.db")
    with open(path, "r+b") as f:
        f.seek(4096 * 2)
        f.write(os.urandom(4096 * 4))
    d.start(ready=False)
    assert d.p.wait(10) == 1
    assert "damaged" in d.log_text() and "restore" in d.log_text(), d.log_text()
    assert os.path.getsize(path) > 4096


def test_F30_long_readers_and_the_log(new):
    """Clients that read a long answer slowly pin nothing; another process that does is named, and the log is cut when it has ended."""
    limit = 1 << 20
    d = new(fake="*:burst", env={"RM_FAKE_RECORDS": "6000"}, slots=8, wal_bytes=limit)
    first = d.submit(max_steps=3, nproc_per_node=2)
    d.until(first, "succeeded")
    slow = []
    for _ in range(5):
        s = socket.create_connection(("127.0.0.1", d.port))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall(f"GET /v1/jobs/{first}/metrics?max_points=5000&names=loss,i,step_s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {d.token}\r\n\r\n".encode())
        s.recv(100)                 # and no more
        slow.append(s)
    size = lambda: os.path.getsize(os.path.join(d.home, "ringmaster.db-wal"))
    largest = 0
    for id in [d.submit(max_steps=3) for _ in range(4)]:
        while d.job(id)["state"] not in FINAL:
            largest = max(largest, size())
            time.sleep(0.05)
    end = time.monotonic() + 5
    while size() > limit:
        assert time.monotonic() < end, size()
        time.sleep(0.1)
    assert largest < 8 << 20 and "read transaction" not in d.log_text(), (largest, d.log_text())
    c = sqlite3.connect(os.path.join(d.home, "ringmaster.db"), isolation_level=None)
    c.execute("BEGIN")
    c.execute("SELECT count(*) FROM jobs").fetchone()
    for id in [d.submit(max_steps=3) for _ in range(3)]:
        d.until(id, "succeeded")
    end = time.monotonic() + 10
    while "read transaction" not in d.log_text():
        assert time.monotonic() < end, size()
        time.sleep(0.1)
    c.execute("ROLLBACK")
    c.close()
    end = time.monotonic() + 10
    while size() > limit:
        assert time.monotonic() < end, size()
        time.sleep(0.1)
    [s.close() for s in slow]


def test_F31_newer_schema(new):
    d = new()
    d.p.terminate()
    d.p.wait(10)
    c = sqlite3.connect(os.path.join(d.home, "ringmaster.db"))
    c.execute("PRAGMA user_version=99")
    c.commit()
    c.close()
    d.start(ready=False)
    assert d.p.wait(10) == 1 and "newer ringmasterd" in d.log_text(), d.log_text()


def test_F31_migration_makes_a_copy_first(new):
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "migrations")
    d = new(start=False)
    os.makedirs(d.home)
    path = os.path.join(d.home, "ringmaster.db")
    c = sqlite3.connect(path)
    c.executescript(open(os.path.join(here, "0001_init.sql")).read())
    c.execute("INSERT INTO jobs(id,name,priority,spec,state,desired,ranks,device,created_ms,ended_ms) VALUES(5,'old',0,'{}','succeeded','run',1,'cpu',1,2)")
    c.execute("PRAGMA user_version=1")
    c.commit()
    c.close()
    d.start()
    assert d.get("/v1/jobs")["items"][0]["name"] == "old"
    newest = sum(f.endswith(".sql") for f in os.listdir(here))
    assert d.db("PRAGMA user_version") == [(newest,)]
    c = sqlite3.connect(f"{path}.before-{newest}")
    assert c.execute("SELECT name FROM jobs").fetchall() == [("old",)] and c.execute("PRAGMA user_version").fetchone() == (1,)
    c.close()


READERS = """
import os, resource, socket, struct, sys
host, port, token, n = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
open_ = []
for _ in range(n):
    s = socket.create_connection((host, port), timeout=20)
    s.sendall(f"GET /v1/events HTTP/1.1\\r\\nHost: localhost\\r\\nAuthorization: Bearer {token}\\r\\n\\r\\n".encode())
    assert s.recv(65536).startswith(b"HTTP/1.1 200")
    open_.append(s)
print("open", flush=True)
for line in sys.stdin:
    for s in [open_.pop() for _ in range(int(line.split()[1]))]:
        if line.startswith("rst"):
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    print("closed", flush=True)
"""


def test_F36_event_readers_that_die(new):
    """By RST, by FIN, and silently (their network's link goes down): descriptors come back within three heartbeats, memory stays."""
    import shutil
    n = 999 if SOAK else 150
    if not shutil.which("ip"):
        raise Skip("needs ip(8)")
    name, mine, theirs = f"rm{os.getpid()}", f"rma{os.getpid()}", f"rmb{os.getpid()}"
    net = f"10.213.{os.getpid() % 250}."
    ip = lambda *a: subprocess.run(["ip", *a], stderr=subprocess.DEVNULL).returncode == 0
    if not ip("netns", "add", name):
        raise Skip("needs the right to make a network namespace")
    try:
        if not (ip("link", "add", mine, "type", "veth", "peer", "name", theirs, "netns", name) and ip("addr", "add", net + "1/30", "dev", mine) and ip("link", "set", mine, "up") and
                ip("-n", name, "addr", "add", net + "2/30", "dev", theirs) and ip("-n", name, "link", "set", theirs, "up")):
            raise Skip("needs the right to make a veth pair")
        d = new(start=False, bind="0.0.0.0", max_streams=n + 50, max_connections=n + 100)
        d.start(extra=["--remote"])
        fds = lambda: len(os.listdir(f"/proc/{d.p.pid}/fd"))
        rss = lambda: int(open(f"/proc/{d.p.pid}/statm").read().split()[1]) * 4
        d.get("/v1/jobs")
        base, memory, slowest, empty = fds(), [], 0.0, rss()
        for _ in range(5 if SOAK else 2):
            ip("link", "set", mine, "up")
            r = subprocess.Popen(["ip", "netns", "exec", name, sys.executable, "-c", READERS, net + "1", str(d.port), d.token, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                assert r.stdout.readline() == "open\n"
                memory.append(rss())
                assert fds() >= base + n - 5, (fds(), base, n, d.log_text())
                for how in ("rst", "fin"):
                    r.stdin.write(f"{how} {n // 3}\n")
                    r.stdin.flush()
                    assert r.stdout.readline() == "closed\n"
                assert ip("link", "set", mine, "down")
                began = time.monotonic()
                while fds() > base + 5:
                    assert time.monotonic() - began < 3 * 5 + 3, (fds(), base)
                    time.sleep(0.1)
                slowest = max(slowest, time.monotonic() - began)
            finally:
                r.kill()
                r.wait()
                r.stdin.close(), r.stdout.close()
        assert SANITIZED or memory[-1] - memory[len(memory) // 2 if SOAK else 0] < (memory[0] - empty) / (5 if SOAK else 2), (empty, memory)     # the first rounds leave the heap in pieces
        print(f"     F36: {len(memory)} times {n} streams ({n // 3} reset, closed and cut off each); descriptors back after {slowest:.1f} s at most; memory with all open {memory} kB, then {rss()} kB")
    finally:
        ip("netns", "del", name)
        ip("link", "del", mine)


def test_F38_reconnect_storm(new):
    d = new(step_s=0.01)
    id = d.submit(max_steps=20)
    d.until(id, "succeeded")
    newest = d.db("SELECT max(id) FROM events")[0][0]
    rng = random.Random(3)

    def one(_):
        at = rng.choice([str(rng.randint(0, newest)), str(newest + rng.randint(1, 99)), "", "x", "-5", "9" * 40, "1;2", "0x1"])
        s = d.stream(headers={"Last-Event-ID": at})
        kind = s.next()[0]
        if at.isdigit() and int(at) <= newest:
            assert kind == "hello", (at, kind)
            got = [s.next()[1] for _ in range(newest - int(at))]
            assert got == list(range(int(at) + 1, newest + 1)), (at, got)
        elif at:
            assert kind == "reset", (at, kind)
        s.close()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(150)))


def test_F39_no_descriptors_left(new):
    d = new(start=False, step_s=0.05)
    d.start(wrap=["prlimit", "--nofile=48:48"])
    id = d.submit(max_steps=60)
    d.until(id, "running")
    crowd = []
    for _ in range(80):
        s = socket.create_connection(("127.0.0.1", d.port))
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: x")
        crowd.append(s)
    time.sleep(0.5)
    cpu = lambda: sum(map(int, open(f"/proc/{d.p.pid}/stat").read().rsplit(")", 1)[1].split()[11:13]))
    used = cpu()
    time.sleep(2)
    assert cpu() - used < 100, "spins on accept"
    for s in crowd:
        s.close()
    d.until(id, "succeeded")
    whole(d, id, 60)


def test_F40_keeper_cannot_be_started(new):
    d = new(keeper="/nonexistent/keeper", slots=2)
    for _ in range(3):
        j = d.until(d.submit(max_restarts=0), "failed")
        assert j["reason"] == "spawn_failed" and "ringmaster-keeper" in j["detail"], j
    assert all(x["job"] is None for x in d.get("/v1/devices")["items"])
    d = new(keeper="/bin/true", slots=2)            # starts, and is gone at once
    j = d.until(d.submit(), "failed")
    assert j["reason"] == "lost", j
    assert all(x["job"] is None for x in d.get("/v1/devices")["items"])


def test_F40_memory(new):
    """The n-th malloc of the coordinator fails: it ends, and the next start finds every job that was answered for, and runs it once."""
    if SANITIZED:
        raise Skip("the sanitizers have their own malloc")
    died = 0
    for n in (300, 2000, 4000, 6000, 9000, 13000):
        d = new(start=False)
        env = {"LD_PRELOAD": os.path.join(BUILD, "tests", "faults", "failing-malloc.so"), "RM_FAIL": f"malloc:{n}", "RM_FAIL_ONLY": "ringmasterd"}
        d.start(ready=False, env=env)
        ids = []
        try:
            d.until_ready(5)
            for _ in range(4):
                r = d.ask("POST", "/v1/jobs", d.spec(nproc_per_node=1))
                assert r.status in (201, 400, 500, 503), r
                ids += [r.json["id"]] if r.status == 201 else []
            for id in ids:
                d.until(id, "succeeded")
        except (OSError, AttributeError, http.client.HTTPException):    # it ended, perhaps before it had a port or a token
            pass
        died += d.p.poll() is not None or not ids
        d.p.poll() is None and d.kill()
        d.start()
        for id in ids:
            d.until(id, "succeeded")
            a = [x["reason"] for x in d.get(f"/v1/jobs/{id}/attempts")["items"]]
            assert a.count("finished") == 1 and set(a) <= {"finished", "not_started", "lost"}, a
    assert died, "no malloc failed where it mattered"


def test_F40_answers_too_large_for_the_memory(new):
    """What a request asked for is refused when there is no room for it; the coordinator and its job go on."""
    if SANITIZED:
        raise Skip("the sanitizers want all the address space")
    d = new(step_s=0.05)
    id = d.submit(max_steps=60, nproc_per_node=1)
    d.until(id, "running")
    log = os.path.join(d.home, "jobs", id, "attempt-1", "rank-0.log")
    with open(log, "a") as f:
        f.write("a line\n" * 1000000)
    with open(log + ".1", "w") as f:
        f.write("an older line\n" * 500000)
    used = int(open(f"/proc/{d.p.pid}/statm").read().split()[0]) * 4096
    resource.prlimit(d.p.pid, resource.RLIMIT_AS, (used + (3 << 20), resource.RLIM_INFINITY))
    for query in ("tail=1000000", "rank=all&tail=1000000", "grep=line", "since=1"):
        r = d.ask("GET", f"/v1/jobs/{id}/logs?{query}")
        assert r.status == 503 and r.json["type"].endswith(":memory"), r
    assert d.job(id)["state"] == "running"
    resource.prlimit(d.p.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for query in ("tail=1000000", "rank=all&tail=1000000", "grep=line"):
        assert len(d.ask("GET", f"/v1/jobs/{id}/logs?{query}").body) > 6000000
    d.until(id, "succeeded")


def test_F41_wall_clock_jumps(new):
    if not any(os.path.exists(p + "/faketime") for p in os.environ["PATH"].split(":")):
        raise Skip("needs faketime")
    if SANITIZED:
        raise Skip("faketime and the sanitizer both want to come first")
    d = new(start=False)
    d.start(wrap=["faketime", "-f", "-1h"])
    try:
        id = d.submit(max_steps=10)
        j = d.until(id, "succeeded")
        assert 0 <= j["run_ms"] < 60000, j
    finally:                # faketime is its parent: to end that one would leave it behind
        for p in filter(str.isdigit, os.listdir("/proc")):
            try:
                if int(open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[1]) == d.p.pid:
                    os.kill(int(p), signal.SIGKILL)
            except OSError:
                pass
        d.p.wait(20)


def test_F53_sigterm_leaves_jobs_running(new):
    d = new(step_s=0.05, start=False)
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)      # as systemd: Type=notify
    manager.bind(os.path.join(d.root, "notify"))
    manager.settimeout(20)
    d.start(env={"NOTIFY_SOCKET": os.path.join(d.root, "notify")})
    d.told = [manager.recv(100)]
    id = d.submit(max_steps=100)
    d.until(id, "running")
    before, s = pids(d, id), d.stream()
    assert d.told[:1] == [b"READY=1"], d.told
    began = time.monotonic()
    d.p.terminate()
    assert d.p.wait(30) == 0 and (SANITIZED or time.monotonic() - began < 5)
    s.close()
    assert all(alive(p) for p in before)
    while b"STOPPING=1" not in d.told:
        d.told.append(manager.recv(100))
    manager.close()
    d.start()
    assert pids(d, id) == before
    d.until(id, "succeeded")
    whole(d, id, 100)


def test_F54_second_daemon_on_the_same_home(new):
    d = new()
    second = subprocess.run(d.args()[:3] + ["--port", "0"], capture_output=True, timeout=20)
    assert second.returncode == 1 and b"another ringmasterd" in second.stderr, second
    d.until(d.submit(), "succeeded")


def test_F55_keepers_of_other_versions(new):
    """What both sides know is used: an attempt of an older or newer keeper runs and ends right; what only one side knows is counted."""
    keeper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "other_keeper.py")
    for kind in ("old", "new"):
        d = new(keeper=keeper, env={"RM_KEEPER": kind})
        id = d.submit(max_restarts=0)
        j = d.until(id, "succeeded")
        assert j["reason"] == "finished" and j["step"] == 5, j
        whole(d, id, 5)
        assert ("speaks protocol 9" in d.log_text()) == (kind == "new"), d.log_text()
        assert not d.leftovers()
        d.kill()
        d.start()
        j = d.until(d.submit(max_restarts=0), "succeeded")
        bad = d.get(f"/v1/jobs/{id}/attempts")["items"][0]["bad_frames"]
        assert (bad >= 2) == (kind == "new"), bad        # counted, and nothing else


if __name__ == "__main__":
    main(globals())
