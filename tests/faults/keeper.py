"""Faults of ranks and keepers: F5, F8 to F15, F20, F22, F42, F43 and bursts of records. Names say which."""
import ctypes, os, signal, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "keeper"))
from harness import BUILD, SANITIZED, Keeper, Skip, is_step, main


def test_f5_keeper_killed(keeper):
    k = keeper(world=4, max_steps=1000, fake="3:ignore_term,2:sigstop,*:ok").attach()
    k.until(is_step(0, 3))
    assert len(k.pids()) == 4
    k.p.kill()
    k.p.wait()
    for _ in range(100):
        if not k.pids():
            break
        time.sleep(0.1)
    assert not k.pids(), "ranks outlive their keeper"
    assert not os.path.exists(os.path.join(k.dir, "exit.json"))


def test_f8_rank_killed(keeper):
    k = keeper("1:kill,*:hang", world=3, grace_ms=3000).attach()
    k.until(lambda m: m["t"] == "exit")
    r = k.wait()
    assert r["state"] == "failed" and r["reason"] == "rank_died" and "rank 1" in r["detail"] and "signal 9" in r["detail"] and "step 2" in r["detail"], r
    assert r["ranks"][1]["signal"] == 9 and r["ranks"][0]["reason"] == r["ranks"][2]["reason"] == "peer_lost"
    assert k.took < 3 + 2 and not k.pids()


def test_f8_peers_that_do_not_listen(keeper):
    k = keeper("1:kill,*:deaf", world=2, grace_ms=1500)
    r = k.wait()
    assert r["reason"] == "rank_died" and r["ranks"][0]["reason"] == "killed", r
    assert k.took < 1.5 + 2.5


def test_f9_out_of_host_memory(keeper):
    base = "/sys/fs/cgroup/memory" + next((l.split(":", 2)[2].strip() for l in open("/proc/self/cgroup") if ":memory:" in l), "/none")
    group = os.path.join(base, f"rm-test-{os.getpid()}")
    try:
        os.mkdir(group)
        open(os.path.join(group, "memory.limit_in_bytes"), "w").write(str(150 << 20))
    except OSError as e:
        raise Skip(f"needs a memory cgroup of its own: {e}")
    try:
        k = keeper("1:eat,*:hang", wrap=("sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh"))
        r = k.wait(60)
        assert r["reason"] == "oom_host" and "rank 1" in r["detail"], r
    finally:
        for _ in range(50):
            try:
                os.rmdir(group)
                break
            except OSError:
                time.sleep(0.1)


def test_f10_out_of_device_memory(keeper):
    r = keeper("1:gpu_oom,*:hang").wait()
    assert r["state"] == "failed" and r["reason"] == "oom_gpu" and "rank 1" in r["detail"] and "Tried to allocate 2 GiB" in r["detail"], r


def test_f11_rank_stopped(keeper):
    k = keeper("2:sigstop,*:hang", world=3, stall_timeout_ms=5000)
    r = k.wait()
    assert r["reason"] == "heartbeat_lost" and "rank 2" in r["detail"] and "stopped by a signal" in r["detail"], r
    assert k.took < 5 + 3 and not k.pids()


def test_f11_rank_stopped_before_its_first_word(keeper):
    k = keeper("1:stopped_early,*:hang", world=3, stall_timeout_ms=4000)
    r = k.wait()
    assert r["reason"] == "heartbeat_lost" and "rank 1" in r["detail"] and "did not report" in r["detail"] and "stopped by a signal" in r["detail"], r
    assert k.took < 4 + 4 and not k.pids()


def test_f12_step_frozen(keeper):
    k = keeper("1:hang,*:slow", world=2, stall_timeout_ms=3000, env={"RM_FAKE_STEP_S": "0.5"}, max_steps=100)
    r = k.wait()
    assert r["reason"] == "stalled" and "rank 1" in r["detail"] and "sends heartbeats" in r["detail"] and "step 2" in r["detail"], r
    assert not k.pids()


def test_f12_work_is_no_hang(keeper):
    """Before all are ready one rank may work long while the others wait; later, ticks inside one step count."""
    for fake in ("0:busy_start,*:ok", "*:evaluate"):
        r = keeper(fake, world=2, stall_timeout_ms=3000, max_steps=3).wait()
        assert r["state"] == "succeeded", r


def test_f13_rank_ignores_stop_and_term(keeper):
    k = keeper("*:ignore_term", max_steps=1000, grace_ms=1000).attach()
    k.until(is_step(0, 2))
    began = time.monotonic()
    k.send("stop", mode="checkpoint", reason="cancelled")
    k.until(lambda m: m["t"] == "exit")
    assert time.monotonic() - began < 1 + 2
    r = k.wait()
    assert r["state"] == "cancelled" and "grace_ms" in r["detail"], r


def test_f14_grandchild_after_cancel_and_after_end(keeper):
    for steps, cancel in ((500, True), (5, False)):
        k = keeper("*:grandchild", max_steps=steps).attach()
        k.until(is_step(0, 3))
        k.until(is_step(1, 3))
        left = [int(open(os.path.join(k.dir, f"grandchild-{r}")).read()) for r in (0, 1)]
        if cancel:
            assert all(os.path.exists(f"/proc/{p}") for p in left)
            k.send("stop", mode="checkpoint", reason="cancelled")
        k.until(lambda m: m["t"] == "exit")
        # the record is the moment devices are freed: nothing may live by then
        assert not [p for p in k.pids() if p != k.p.pid]
        assert k.wait()["state"] == ("cancelled" if cancel else "succeeded")


def test_f14_processes_that_fork_without_end(keeper):
    """/proc cannot catch them; the ranks' control group can, where one may be made."""
    k = keeper("1:hydra,*:hang", grace_ms=500).attach()
    path = os.path.join(k.dir, "cgroup")
    for _ in range(100):
        if os.path.exists(path) or os.path.exists(os.path.join(k.dir, "rank-1.log")):
            break
        time.sleep(0.05)
    time.sleep(0.2)
    if not os.path.exists(path):
        k.send("stop", mode="kill", reason="x")
        k.wait(90)
        raise Skip("no control group may be made here (needs cgroup v2, delegated, and Linux 5.14)")
    group = open(path).read()
    assert os.path.basename(group) == "ringmaster-" + k.nonce
    k.until(lambda m: m["t"] == "exit")
    assert "populated 0" in open(group + "/cgroup.events").read() if os.path.exists(group) else True
    r = k.wait()
    assert r["reason"] == "rank_failed" and k.took < 20, (r["reason"], k.took)
    assert not os.path.exists(group) and not k.pids()


def test_f15_grandchild_holds_stdout(keeper):
    k = keeper("*:grandchild_stdout")
    assert k.wait()["state"] == "succeeded"
    assert k.took < 4


def test_f20_disk_full_on_checkpoint(keeper):
    r = keeper("0:disk_full,*:hang").wait()
    assert r["reason"] == "disk_full" and "No space left" in r["detail"], r


def test_f22_disk_full_on_spool(keeper):
    where = tempfile.mkdtemp()
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.mount(b"tmpfs", where.encode(), b"tmpfs", 0, b"size=1m") != 0:
        os.rmdir(where)
        raise Skip("needs to mount a small tmpfs")
    try:
        k = keeper("0:flood,*:ok", dir=where, max_steps=60, env={"RM_FAKE_MB": "4"}, output_dir="/tmp").attach()
        seen = k.until(lambda m: m["t"] == "beats" and m["ranks"][0]["log_dropped_bytes"] > 0)
        assert seen
        k.until(lambda m: m["t"] == "exit")
        r = k.wait()
        assert r["state"] == "succeeded" and r["last_step"] == 60, r
        assert r["ranks"][0]["log_dropped_bytes"] > 1 << 20 and r["spool_dropped"] > 0
        records = k.spool()         # no torn line, no gap
        assert [m["seq"] for m in records] == list(range(1, len(records) + 1))
    finally:
        k.end()
        libc.umount2(where.encode(), 2)
        os.rmdir(where)


def test_f42_flood(keeper):
    mb = int(os.environ.get("RM_SOAK_MB", "200"))
    k = keeper("0:flood,*:ok", env={"RM_FAKE_MB": str(mb), "RINGMASTER_LOG_LIMIT": str(4 << 20)}, max_steps=300, stall_timeout_ms=60000).attach()
    gaps, last, over = [], None, False
    while not over:
        m = k.read()
        if m["t"] == "beats":
            now = time.monotonic()
            if last:
                gaps.append(now - last)
            last = now
        over = m["t"] == "exit"
    r = k.wait()
    assert r["state"] == "succeeded", r
    assert r["ranks"][0]["log_rotations"] >= mb // 5 and r["ranks"][0]["log_dropped_bytes"] == 0
    size = sum(os.path.getsize(os.path.join(k.dir, f)) for f in ("rank-0.log", "rank-0.log.1"))
    assert size <= 2 * (4 << 20) + (1 << 17), size
    assert r["ranks"][1]["last_step"] == 300


FAILING = os.path.join(BUILD, "tests", "faults", "failing.so")


def failing(what):
    assert os.path.exists(FAILING)
    # ASan would rather be the first library; nothing of it is intercepted here
    return {"LD_PRELOAD": FAILING, "RM_FAIL": what, "RM_FAIL_ONLY": "ringmaster-keeper",
            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


def test_f23_fsync_fails(keeper):
    """A failed fsync is a failed write: exit.json is written again, whole, never taken for written."""
    for n in range(1, 8):
        k = keeper(env=failing(f"fsync:{n}"))
        if k.p.wait(20) == 2:           # one of the first: nothing was started
            assert n <= 2 and not os.path.exists(os.path.join(k.dir, "exit.json"))
            continue
        assert k.record()["state"] == "succeeded" and k.record()["last_seq"] == len(k.spool()), n
        assert not [f for f in os.listdir(k.dir) if ".tmp" in f], os.listdir(k.dir)


def test_f23_rename_fails(keeper):
    for n in range(1, 4):
        k = keeper(env=failing(f"rename:{n}"))
        rc = k.p.wait(20)
        assert rc == 2 and not os.path.exists(os.path.join(k.dir, "exit.json")) if rc else k.record()["state"] == "succeeded"


def test_f40_spawning_fails(keeper):
    for what in ("fork", "pipe2"):
        for n in range(1 if what == "fork" else 2, 7):      # the first pipe is libuv's own, which aborts without it
            k = keeper(world=4, env=failing(f"{what}:{n}"))
            rc = k.p.wait(20)
            if rc == 2:
                assert not os.path.exists(os.path.join(k.dir, "exit.json"))
                continue
            r = k.record()
            assert rc == 0 and not k.pids(), (what, n, rc)
            assert r["state"] == "succeeded" or r["reason"] == "spawn_failed" and "rank" in r["detail"], (what, n, r)
            if what == "fork" and n <= 4:
                assert r["reason"] == "spawn_failed" and len([e for e in r["ranks"] if e["reason"] == "not_started"]) == 5 - n, r


def test_f40_memory(keeper):
    """The n-th malloc fails: the keeper ends at once and its ranks with it, or nobody notices; never half a record."""
    if SANITIZED:
        raise Skip("the sanitizers have their own malloc")
    seen = set()
    for n in (1, 20, 60, 100, 140, 180, 220, 260, 320, 400, 600, 900, 1400):
        k = keeper(max_steps=8, env={**failing(f"malloc:{n}"), "LD_PRELOAD": FAILING.replace(".so", "-malloc.so")})
        rc = k.p.wait(20)
        said = k.p.stderr.read().decode()
        seen.add(rc)
        assert rc in (0, 1, 2, -signal.SIGABRT), (n, rc, said)
        path, log = os.path.join(k.dir, "exit.json"), os.path.join(k.dir, "keeper.log")
        if rc == 0:
            assert k.record()["state"] in ("succeeded", "failed"), k.record()
        elif os.path.exists(path):
            k.record()                          # whole, or not there
        end = time.monotonic() + 10
        while k.pids():
            assert time.monotonic() < end, "ranks outlive their keeper"
            time.sleep(0.05)
    assert {0, -signal.SIGABRT} <= seen, seen


def test_f45_planted_links_and_pipes(keeper):
    """Symbolic links and FIFOs in the attempt's folder are neither followed nor waited for."""
    root = tempfile.mkdtemp(dir=keeper().root)
    target = os.path.join(root, "victim")
    open(target, "w").write("precious")
    for name, refused in (("rank-0.log", False), ("spool", True), ("exit.reserve", True), ("rank-spec.json", False), ("exit.json.tmp", False)):
        d = os.path.join(root, name)
        os.makedirs(os.path.join(d, "attempt-1"))
        os.symlink(target, os.path.join(d, "attempt-1", name))
        k = keeper(dir=d)
        assert k.p.wait(20) == (2 if refused else 0), name
        assert refused or k.record()["state"] == "succeeded"
        assert open(target).read() == "precious", name
    d = os.path.join(root, "fifo")
    os.makedirs(os.path.join(d, "attempt-1"))
    os.mkfifo(os.path.join(d, "attempt-1", "rank-0.log"))
    k = keeper(dir=d)
    assert k.p.wait(20) == 0 and k.record()["state"] == "succeeded" and k.record()["ranks"][0]["log_dropped_bytes"] > 0


def test_f43_other_protocol(keeper):
    r = keeper("1:new_protocol,*:hang").wait()
    assert r["state"] == "failed" and r["reason"] == "internal" and "protocol 2" in r["detail"], r


def test_f41_clock_jumps(keeper):
    """Limits run on the monotonic clock: a job with a time limit of a minute survives a day's jump of the wall clock."""
    k = keeper(time_limit_s=60, max_steps=20, env=failing("clock_gettime:5+"))
    r = k.wait()
    assert r["state"] == "succeeded" and 0 <= r["run_ms"] < 30000 and r["ended_ms"] - r["started_ms"] > 80000000, r


def test_log_deleted_from_outside(keeper):
    k = keeper(max_steps=200).attach()
    k.until(is_step(0, 5))
    os.unlink(os.path.join(k.dir, "rank-0.log"))
    k.until(lambda m: m["t"] == "exit")
    assert k.wait()["state"] == "succeeded"
    assert "step 200" in open(os.path.join(k.dir, "rank-0.log")).read()


def test_f43_bad_frames(keeper):
    k = keeper("0:frames,*:ok").attach()
    seen = k.until(lambda m: m["t"] == "exit")
    r = k.wait()
    assert r["state"] == "succeeded", r
    e = r["ranks"][0]
    assert e["oversized"] == 1 and e["backward"] == 1 and e["repeated"] == 1 and e["malformed"] == 6, e      # torn, NaN, [1]; and three that say nothing known
    marks = [m["m"] for m in seen if m["t"] == "record" and "loss_nonfinite" in m["m"]]
    assert marks == [{"t": "metrics", "step": 2, "loss": None, "loss_nonfinite": "nan"}]


def test_burst_of_records(keeper):
    n = int(os.environ.get("RM_SOAK_RECORDS", "6000" if SANITIZED else "20000"))
    k = keeper("*:burst", env={"RM_FAKE_RECORDS": str(n // 2)}, max_steps=3, stall_timeout_ms=60000).attach()
    seen = []
    while (m := k.read()) is not None and m["t"] != "exit":
        seen.append(m)
    r = k.wait(60)          # it lingers 5 s for a slow reader like this one; the rest is in the spool, as for the daemon
    last = seen[-1]["seq"] if m is None else 1 << 60
    seen += [m for m in k.spool() if m["seq"] > last]
    got = [m["m"]["i"] for m in seen if m["t"] == "record" and m["rank"] == 1 and "i" in m["m"]]
    assert r["state"] == "succeeded" and got == list(range(n // 2)) and r["spool_dropped"] == 0


def test_reader_that_never_reads(keeper):
    k = keeper("*:burst", env={"RM_FAKE_RECORDS": "5000"}, max_steps=3).attach()
    started = time.monotonic()
    k.p.wait(25)                    # it lingers for the acknowledgement, then leaves
    assert k.record()["state"] == "succeeded" and time.monotonic() - started < 20
    assert len(k.spool()) == k.record()["last_seq"] > 10000


def test_two_readers_and_one_dies(keeper):
    k = keeper(max_steps=100).attach()
    first = k.sock
    k.until(is_step(0, 5))
    k.attach()
    first.close()
    seen = k.until(lambda m: m["t"] == "exit")
    assert [m["seq"] for m in seen if m["t"] == "record"] == list(range(1, k.wait()["last_seq"] + 1))


main(globals())
