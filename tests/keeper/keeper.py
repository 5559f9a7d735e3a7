"""The keeper's contract: numbered records, replay, fencing, rendezvous, stop and its exit record."""
import json, os, stat, time

from harness import Keeper, is_step, main


def test_normal_end(keeper):
    k = keeper(world=4).attach()
    seen = k.until(lambda m: m["t"] == "exit")
    r = k.wait()
    assert r["state"] == "succeeded" and r["reason"] == "finished" and r["last_step"] == 5, r
    assert [e["reason"] for e in r["ranks"]] == ["done"] * 4
    s = r["summary"]
    assert s["steps"] == 5 and s["loss"] == 1 and s["first_loss"] == 5 and s["sent_bytes_by_rank"] == [500] * 4
    assert s["peak_bytes_by_rank"] == [1000, 2000, 3000, 4000] and abs(s["comm_share"] - 0.1) < 1e-9
    records = [m for m in seen if m["t"] == "record"]
    assert [m["seq"] for m in records] == list(range(1, r["last_seq"] + 1))
    assert records == k.spool()
    assert k.took < 5 and not k.pids()
    hello = seen[0]
    assert hello["t"] == "hello" and hello["nonce"] == k.nonce and hello["pid"] == k.p.pid and len(hello["ranks"]) == 4
    assert hello["start_time"] > 0 and len(hello["boot_id"]) == 36


def test_closed_descriptors(keeper):
    for foreground in (True, False):
        k = keeper(foreground=foreground, max_steps=20, wrap=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")).attach()
        k.until(is_step(0, 1))
        at = [os.readlink(f"/proc/{k.p.pid}/fd/{fd}") for fd in range(3)]
        assert at == ["/dev/null", "/dev/null", os.path.realpath(os.path.join(k.dir, "keeper.log"))], at
        k.until(lambda m: m["t"] == "exit")
        r = k.wait()
        assert r["state"] == "succeeded" and r["last_step"] == 20, r


def test_files_are_private(keeper):
    k = keeper(max_steps=200).attach()
    k.until(is_step(0, 1))              # the socket is there before the ranks' logs
    assert stat.S_IMODE(os.stat(k.dir).st_mode) == 0o700
    for name in ("keeper.sock", "spool", "rank-0.log"):
        assert stat.S_IMODE(os.stat(os.path.join(k.dir, name)).st_mode) & 0o077 == 0, name


def test_replay_from_any_number(keeper):
    k = keeper(max_steps=60).attach()
    k.until(is_step(0, 10))
    k.sock.close()
    k.attach(after=7)
    seen = k.until(lambda m: m["t"] == "exit")
    seqs = [m["seq"] for m in seen if m["t"] == "record"]
    assert seqs == list(range(8, k.wait()["last_seq"] + 1))


def test_nobody_watches(keeper):
    k = keeper()
    assert k.wait()["state"] == "succeeded"
    assert k.took < 5


def test_wrong_nonce_is_refused(keeper):
    k = keeper(max_steps=100).attach(nonce="00")
    seen = k.until(lambda m: m["t"] == "refused")
    assert seen[-1]["code"] == "wrong_nonce" and k.read() is None
    k.connect()
    k.send("stop", mode="kill")
    assert k.until(lambda m: m["t"] == "refused")
    assert not os.path.exists(os.path.join(k.dir, "exit.json"))


def test_garbage_on_the_socket(keeper):
    k = keeper(max_steps=40).connect()
    k.sock.sendall(b"\0\xff{]\n" + b"y" * 300000 + b"\n{\"t\":5}\n[]\n")
    k.send("attach", nonce=k.nonce, after_seq=-5)
    k.send("ack", seq=-1)
    k.send("stop", mode="dance", reason="x" * 1000)     # unknown modes are the mild one
    k.until(lambda m: m["t"] == "exit")
    assert k.wait()["state"] == "cancelled"


def test_cancel_saves_and_pause_pauses(keeper):
    for reason, state in (("cancelled", "cancelled"), ("paused", "paused")):
        k = keeper(max_steps=500).attach()
        k.until(is_step(1, 3))
        k.send("stop", mode="checkpoint", reason=reason)
        k.until(lambda m: m["t"] == "exit")
        r = k.wait()
        assert r["state"] == state and r["reason"] == state, r
        assert r["checkpoint"].startswith("/ckpt/checkpoint-") and r["checkpoint_step"] >= 3
        assert [e["reason"] for e in r["ranks"]] == ["stopped"] * 2


def test_kill_has_no_grace(keeper):
    k = keeper("*:ignore_term", max_steps=500, grace_ms=60000).attach()
    k.until(is_step(0, 2))
    began = time.monotonic()
    k.send("stop", mode="kill", reason="cancelled")
    k.until(lambda m: m["t"] == "exit")
    assert time.monotonic() - began < 3
    assert k.wait()["state"] == "cancelled"


def test_time_limit(keeper):
    k = keeper(max_steps=500, time_limit_s=1)
    r = k.wait()
    assert r["state"] == "failed" and r["reason"] == "time_limit" and r["checkpoint"], r


def test_an_attempt_runs_once(keeper):
    k = keeper()
    assert k.wait()["state"] == "succeeded"
    again = keeper(dir=k.root)
    assert again.p.wait(10) == 2 and b"already run" in open(os.path.join(k.dir, "keeper.log"), "rb").read()


def test_bad_spec_starts_nothing(keeper):
    k = keeper(max_length="long")
    assert k.p.wait(10) == 2 and not os.path.exists(os.path.join(k.dir, "exit.json"))


def test_worker_missing(keeper):
    k = keeper(env={"RM_WORKER": "/no/such/worker"})
    r = k.wait()
    assert r["state"] == "failed" and r["ranks"][0]["code"] == 127 and "no/such/worker" in r["detail"], r


def test_left_without_done(keeper):
    r = keeper("0:no_done,*:hang").wait()
    assert r["reason"] == "rank_failed" and r["ranks"][0]["code"] == 0 and r["last_step"] == 2, r


def test_last_words(keeper):
    r = keeper("1:exit_early,*:ok").wait()
    assert r["reason"] == "rank_failed" and "rank 1 left with code 9" in r["detail"] and "Traceback: no such thing" in r["detail"], r


def test_long_folder_names(keeper):
    root = os.path.join(keeper().root, *["d" * 60] * 4)
    os.makedirs(root)
    k = keeper(dir=root).attach()
    k.until(lambda m: m["t"] == "exit")
    assert k.wait()["state"] == "succeeded"


def test_parent_of_foreground_dies(keeper):
    import subprocess, signal
    k = keeper(max_steps=5)
    k.wait()
    # a parent that starts a foreground keeper and is killed
    spec = json.load(open(os.path.join(k.dir, "rank-spec.json")))
    spec["max_steps"] = 1000
    path = os.path.join(k.root, "long.json")
    json.dump(spec, open(path, "w"))
    d = os.path.join(k.root, "attempt-2")
    program, fake = k.p.args[0], os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_worker.py")
    code = "import os,subprocess,time; p=subprocess.Popen(%r); time.sleep(60)" % [program, "--dir", d, "--spec", path, "--job", "j", "--attempt", "2", "--nonce", k.nonce, "--foreground"]
    p = subprocess.Popen(["python3", "-c", code], env={**os.environ, "RM_WORKER": fake, "RM_FAKE": "*:ok"})
    for _ in range(200):
        if os.path.exists(os.path.join(d, "rank-1.log")) and os.path.getsize(os.path.join(d, "rank-1.log")) > 10:
            break
        time.sleep(0.05)
    p.send_signal(signal.SIGKILL)
    p.wait()
    for _ in range(200):
        if os.path.exists(os.path.join(d, "exit.json")):
            break
        time.sleep(0.05)
    assert json.load(open(os.path.join(d, "exit.json")))["state"] == "cancelled"


main(globals())
