#!/usr/bin/env python3
"""launcher slurm: against a stand-in of Slurm's programs that also misbehaves (slurm/standin.py), and, named test_real_…, against a cluster of its own
where Debian's slurm-wlm and munge are installed and this is root. usage: slurm.py [stand-in | real | test_name…]"""
import json, os, shutil, signal, subprocess, sys, tempfile, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "slurm"))
from cluster import Cluster
from rig import BUILD, HERE, ROOT, Daemon, Skip, main

WORKER = BUILD
Daemon.patience = 90        # each poll starts a Python; the machine may be busy
# Programs of the stand-in take seconds to start on a busy machine: only tests of what hangs have a short patience.
FAST = {"slurm_poll_ms": 400, "slurm_settle_ms": 2000, "slurm_timeout_ms": 15000}
HASTY = {**FAST, "slurm_timeout_ms": 2000}


class Standin:
    def __init__(self, **control):
        self.d = tempfile.mkdtemp(dir=ROOT)
        os.makedirs(self.d + "/jobs")
        os.makedirs(self.d + "/bin")
        for name in ("sbatch", "squeue", "sacct", "scancel", "srun", "requeue", "node_fail", "preempt", "timeout"):
            os.symlink(os.path.join(HERE, "slurm", "standin.py"), f"{self.d}/bin/{name}")
        self.control = {}
        self.set(**control)
        self.env = {"RM_STANDIN": self.d, "PATH": f"{self.d}/bin:{os.environ['PATH']}"}

    def set(self, **control):
        self.control.update(control)
        with open(self.d + "/control.tmp", "w") as f:
            json.dump(self.control, f)
        os.rename(self.d + "/control.tmp", self.d + "/control.json")

    def run(self, name, *args):
        return subprocess.run([f"{self.d}/bin/{name}", *map(str, args)], env={**os.environ, **self.env}, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)

    def jobs(self):
        out = []
        for f in os.listdir(self.d + "/jobs"):
            if f.endswith(".json") and f != "last.json":
                out.append(json.load(open(f"{self.d}/jobs/{f}")))
        return sorted(out, key=lambda j: j["id"])


def started(new, s, steps=60, flags=FAST, **kw):
    d = new(env=s.env, step_s=0.05, **flags)
    id = d.submit(launcher="slurm", max_steps=steps, **kw)
    return d, id


def batch(d, id, attempt=-1):
    return d.get(f"/v1/jobs/{id}/attempts")["items"][attempt]["slurm_job"]


def attempts(d, id):
    return d.get(f"/v1/jobs/{id}/attempts")["items"]


def once(d, id, steps, ranks=2):
    """Each step of each rank was made and stored exactly once."""
    for r in range(ranks):
        assert d.steps(id, rank=r) == list(range(1, steps + 1)), (r, d.steps(id, rank=r))


def wait(test, what, limit=60):
    end = time.monotonic() + limit
    while not test():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.05)


def test_a_job_from_submission_to_success(new):
    s = Standin()
    d, id = started(new, s, steps=40)
    j = d.until(id, "succeeded")
    assert j["reason"] == "finished" and j["summary"]["steps"] == 40, j
    once(d, id, 40)
    a = attempts(d, id)
    assert len(a) == 1 and a[0]["slurm_job"] == 1 and a[0]["slots"] == [], a
    argv = s.jobs()[0]["argv"]
    assert "--no-requeue" in argv and "--nodes=1" in argv and "--ntasks=1" in argv and not any(x.startswith("--gpus") for x in argv), argv
    assert d.ask("GET", f"/v1/jobs/{id}/logs?rank=1").body.count(b"rank 1 step") == 40
    assert not any(k.startswith("RINGMASTER_") for k in s.jobs()[0]["env"]), "nothing of the daemon's own goes along"
    wait(lambda: s.jobs()[0]["state"] == "COMPLETED", "the batch job does not end")


def test_what_a_job_may_ask_of_slurm(new):
    s = Standin(hold=True)
    d = new(env=s.env, **FAST)
    for field, value, at in (("slurm_options", ["--wrap=id"], "/slurm_options/0"), ("slurm_options", ["--output=/etc/x"], "/slurm_options/0"), ("slurm_options", ["--qos=a b"], "/slurm_options/0"),
                             ("slurm_options", ["--qos=$(id)"], "/slurm_options/0"), ("slurm_options", ["--qos='x'"], "/slurm_options/0"), ("slurm_options", ["-p", "x"], "/slurm_options/0"),
                             ("slurm_options", ["--qos=a\nb"], "/slurm_options/0"), ("slurm_options", ["--requeue"], "/slurm_options/0"), ("slurm_options", ["--nodelist=/etc/passwd"], "/slurm_options/0"), ("slurm_options", ["--qos=x", "--exclude=./x"], "/slurm_options/1"), ("slurm_options", ["--mem=1G"] * 33, "/slurm_options"),
                             ("slurm_partition", "--uid=0", "/slurm_partition"), ("slurm_partition", "a b", "/slurm_partition"), ("slurm_account", "x;y", "/slurm_account"),
                             ("slurm_partition", "", "/slurm_partition"), ("nodes", 2, "/nodes"), ("slurm_gpus_per_node", 2, "/slurm_gpus_per_node")):
        r = d.ask("POST", "/v1/jobs", d.spec(launcher="slurm", **{field: value}))
        assert r.status == 422 and r.json["errors"][0]["pointer"] == at, (field, value, r)
    r = d.ask("POST", "/v1/jobs", d.spec(slurm_partition="x"))
    assert r.status == 422 and r.json["errors"][0]["pointer"] == "/slurm_partition", r
    id = d.submit(launcher="slurm", slurm_partition="long", slurm_account="lab-1", slurm_options=["--qos=high", "--mem=4G", "--exclusive", "--nodelist=n[1-3],m2"], time_limit_s=3600, threads_per_rank=2)
    wait(lambda: s.jobs(), "not submitted")
    argv = s.jobs()[0]["argv"]
    for want in ("--partition=long", "--account=lab-1", "--qos=high", "--mem=4G", "--exclusive", "--time=64"):
        assert want in argv, (want, argv)
    assert not any(a.startswith("--cpus-per-task") for a in argv), argv
    d.ask("POST", f"/v1/jobs/{id}/cancel")
    d.until(id, "cancelled")


def test_more_jobs_than_slots_but_no_more_than_slurm_jobs(new):
    s = Standin(hold=True)
    d = new(env=s.env, slots=1, slurm_jobs=2, **FAST)
    ids = [d.submit(launcher="slurm", nproc_per_node=3, max_steps=3) for _ in range(3)]
    wait(lambda: len(s.jobs()) == 2, "two are submitted")
    wait(lambda: d.job(ids[2]).get("waiting", {}).get("reason") == "slurm", lambda: d.job(ids[2]))
    time.sleep(0.5)
    assert len(s.jobs()) == 2
    s.set(hold=False)
    for id in ids:
        assert d.until(id, "succeeded")["reason"] == "finished"


def test_no_slurm_here(new):
    d = new(env={"PATH": "/nonexistent"}, **FAST) if os.path.exists("/usr/bin/python3") else None
    r = d.ask("POST", "/v1/jobs:validate", d.spec(launcher="slurm"))
    assert r.status == 422 and r.json["errors"][0]["pointer"] == "/launcher" and "sbatch is not in the PATH" in r.json["errors"][0]["message"], r


def test_waits_with_a_reason_and_is_cancelled_in_the_queue(new):
    s = Standin(hold=True)
    d, id = started(new, s)
    wait(lambda: "PENDING: Resources" in d.job(id).get("waiting", {}).get("text", ""), lambda: d.job(id))
    j = d.job(id)
    assert j["state"] == "starting" and j["slurm"]["state"] == "PENDING" and j["run_ms"] < 1000, j
    assert any(q["id"] == id and q["reason"] == "slurm" for q in d.get("/v1/queue")["items"])
    d.ask("POST", f"/v1/jobs/{id}/cancel")
    j = d.until(id, "cancelled")
    assert j["reason"] == "cancelled", j
    assert s.jobs()[0]["state"] == "CANCELLED"


def test_pause_and_resume(new):
    s = Standin()
    d, id = started(new, s, steps=400)
    d.until_step(id, 5)
    d.ask("POST", f"/v1/jobs/{id}/pause")
    d.until(id, "paused")
    wait(lambda: s.jobs()[0]["state"] == "COMPLETED", "the batch job ends with it")
    d.ask("POST", f"/v1/jobs/{id}/resume")
    d.until(id, "running")
    assert batch(d, id) == 2
    d.ask("POST", f"/v1/jobs/{id}/cancel")
    j = d.until(id, "cancelled")
    assert j["reason"] == "cancelled", j
    d.leftovers()


def test_a_rank_dies_and_one_more_attempt_is_a_new_batch_job(new):
    s = Standin()
    d = new(env=s.env, fake="1:kill", step_s=0.05, **FAST)
    id = d.submit(launcher="slurm", max_steps=20, max_restarts=1)
    j = d.until(id, "failed")
    assert j["reason"] == "rank_died" and j["restarts"] == 1, j
    a = attempts(d, id)
    assert [x["slurm_job"] for x in a] == [1, 2] and a[0]["rank"] == 1 and a[0]["signal"] == 9, a


def test_the_time_limit_begins_when_it_runs(new):
    s = Standin(hold=True)
    d, id = started(new, s, steps=4000, time_limit_s=2)
    time.sleep(3)
    assert d.job(id)["state"] == "starting"
    s.set(hold=False)
    j = d.until(id, "failed")
    assert j["reason"] == "time_limit", j


def test_time_in_the_queue_is_no_running_time_over_a_restart_either(new):
    s = Standin(hold=True)
    d, id = started(new, s, steps=100, time_limit_s=8)
    wait(lambda: s.jobs(), "not submitted")
    time.sleep(6)
    s.set(hold=False)
    d.until_step(id, 3)
    d.kill()
    d.start()
    j = d.until(id, "succeeded")
    assert j["run_ms"] < 12000, j


def test_an_attempt_given_up_is_told_to_end(new):
    """Its node was only cut off: the keeper that comes back finds the order to end its ranks at once."""
    s = Standin()
    d, id = started(new, s, steps=4000)
    d.until_step(id, 3)
    wait(lambda: attempts(d, id)[0]["pid"], "no pid yet")
    keeper, ranks = attempts(d, id)[0]["pid"], [r["pid"] for r in d.ranks(id)]
    assert keeper > 1 and len(ranks) == 2
    s.set(purged=[1])
    os.kill(keeper, signal.SIGSTOP)
    j = d.until(id, "failed")
    assert j["reason"] == "lost", j
    os.kill(keeper, signal.SIGCONT)
    path = f"{d.home}/jobs/{id}/attempt-1/exit.json"
    wait(lambda: os.path.exists(path), "the old keeper goes on")
    assert json.load(open(path))["state"] == "cancelled"
    assert not any(os.path.exists(f"/proc/{p}/cwd") and os.path.exists(f"/proc/{p}/exe") for p in ranks)
    assert d.job(id)["state"] == "failed", "the end stands"


def test_refused_by_slurm(new):
    s = Standin(sbatch="refuse")
    d, id = started(new, s, max_restarts=3)
    j = d.until(id, "failed")
    assert j["reason"] == "slurm_refused" and "Invalid account" in j["detail"] and j["restarts"] == 0, j


# --- F4 for Slurm: the daemon dies between sbatch and the store

def dies_after_sbatch(new, keep_waiting):
    s = Standin(hold=keep_waiting)
    d = new(env=s.env, step_s=0.05, **FAST)
    d.kill()
    d.start(env={"RINGMASTER_FAILPOINT": "after_sbatch"})
    try:
        id = d.submit(launcher="slurm", max_steps=40)
    except (OSError, Exception):
        id = "j1"
    d.p.wait(60)
    d.p.stdout.close()
    assert len(s.jobs()) == 1
    d.start()
    s.set(hold=False)
    j = d.until(id, "succeeded")
    assert j["attempt"] == 1 and len(s.jobs()) == 1, (j, s.jobs())
    once(d, id, 40)


def test_a_checkpoint_is_asked_for_by_one_daemon_and_by_the_next(new):
    s = Standin()
    d, id = started(new, s, steps=4000)
    d.until(id, "running")
    asked = lambda: d.ask("GET", f"/v1/jobs/{id}/logs?rank=0&grep=asked").body.count(b"asked to save")
    for n in (1, 2):
        r = d.ask("POST", f"/v1/jobs/{id}/checkpoint")
        assert r.status == 202, r
        wait(lambda: asked() == n, lambda: f"{asked()} of {n} checkpoints")
        if n == 1:
            d.kill()
            d.start()
            d.until(id, "running")
            wait(lambda: d.job(id)["progress"]["connected"], lambda: d.job(id))
    d.ask("POST", f"/v1/jobs/{id}/kill")
    d.until(id, "cancelled")


def test_F4_dies_between_sbatch_and_the_store_and_it_waits(new):
    dies_after_sbatch(new, True)


def test_F4_dies_between_sbatch_and_the_store_and_it_runs(new):
    dies_after_sbatch(new, False)


def test_F4_dies_before_sbatch(new):
    s = Standin()
    d = new(env=s.env, **FAST)
    d.kill()
    d.start(env={"RINGMASTER_FAILPOINT": "after_commit"})
    try:
        d.submit(launcher="slurm", max_steps=5)
    except Exception:
        pass
    d.p.wait(60)
    d.p.stdout.close()
    d.start()
    j = d.until("j1", "succeeded")
    assert j["attempt"] == 1 and len(s.jobs()) == 1, j


def the_answer_is(new, how):
    s = Standin(sbatch=how)
    d, id = started(new, s, steps=30, flags=HASTY)
    j = d.until(id, "succeeded")
    assert len(s.jobs()) == 1 and j["attempt"] == 1, s.jobs()
    once(d, id, 30)


def test_sbatch_dies_after_it_submitted(new):
    the_answer_is(new, "lost")


def test_sbatch_hangs_after_it_submitted(new):
    the_answer_is(new, "late")


def sbatch_is(new, how):
    s = Standin(sbatch=how)
    d, id = started(new, s, steps=5, flags=HASTY)
    wait(lambda: "sbatch" in d.job(id).get("waiting", {}).get("text", ""), lambda: d.job(id))
    s.set(sbatch=None)
    j = d.until(id, "succeeded")
    assert len(s.jobs()) == 1 and j["restarts"] == 0, j


def test_sbatch_cannot_reach_slurm_for_a_while(new):
    sbatch_is(new, "unreachable")


def test_sbatch_answers_garbage(new):
    sbatch_is(new, "garbage")


def test_sbatch_hangs(new):
    sbatch_is(new, "hang")


def test_daemon_killed_while_it_waits_and_while_it_runs(new):
    s = Standin(hold=True)
    d, id = started(new, s, steps=80)
    wait(lambda: s.jobs(), "not submitted")
    for _ in range(2):
        d.kill()
        d.start()
        assert d.job(id)["state"] == "starting"
    s.set(hold=False)
    d.until(id, "running")
    before = [r["pid"] for r in d.ranks(id)]
    for _ in range(2):
        time.sleep(0.3)
        d.kill()
        d.start()
    d.until(id, "succeeded")
    assert [r["pid"] for r in d.ranks(id)] == before and len(s.jobs()) == 1
    once(d, id, 80)


def test_ends_while_the_daemon_is_down_and_slurm_has_forgotten_it(new):
    s = Standin(forgets=True)
    d, id = started(new, s, steps=100)
    d.until_step(id, 3)
    d.kill()
    wait(lambda: s.jobs()[0]["state"] == "COMPLETED", "ends")
    s.set(squeue="unreachable")
    d.start()
    assert d.until(id, "succeeded")["reason"] == "finished"
    once(d, id, 100)


# --- F56: Slurm does not answer, or not sensibly: never a verdict

def while_squeue_is(new, how):
    s = Standin()
    d, id = started(new, s, steps=300, flags=HASTY)
    d.until_step(id, 3)
    s.set(squeue=how, sacct=how)
    wait(lambda: d.job(id)["slurm"]["state"] == "unknown", lambda: d.job(id))
    time.sleep(2)
    j = d.job(id)
    assert j["state"] == "running" and j["slurm"]["trouble"], j
    began = time.monotonic()
    d.get("/v1/jobs")
    assert time.monotonic() - began < 1, "the coordinator waits for nobody"
    s.set(squeue=None, sacct=None)
    d.until(id, "succeeded")
    once(d, id, 300)
    assert len(s.jobs()) == 1


def test_F56_slurmctld_is_down(new):
    while_squeue_is(new, "unreachable")


def test_F56_squeue_hangs(new):
    while_squeue_is(new, "hang")


def test_F56_squeue_writes_garbage(new):
    while_squeue_is(new, "garbage")


def test_F56_squeue_writes_without_end(new):
    while_squeue_is(new, "huge")


def test_F56_down_while_it_waits(new):
    s = Standin(hold=True)
    d, id = started(new, s, steps=5, flags=HASTY)
    wait(lambda: s.jobs(), "not submitted")
    s.set(squeue="hang")
    wait(lambda: "does not answer" in d.job(id).get("waiting", {}).get("text", ""), lambda: d.job(id))
    time.sleep(4)
    assert d.job(id)["state"] == "starting", "silence is no end"
    s.set(squeue=None, hold=False)
    d.until(id, "succeeded")


def test_F56_purged_from_memory_while_it_runs(new):
    s = Standin(purged=[1])
    d, id = started(new, s, steps=120)
    d.until(id, "succeeded")
    once(d, id, 120)


def test_F56_purged_with_accounting(new):
    s = Standin(purged=[1], accounting=True)
    d, id = started(new, s, steps=4000)
    d.until_step(id, 3)
    s.run("node_fail", 1)
    j = d.until(id, "failed")
    assert j["reason"] == "node_failed", j


def test_a_keeper_that_says_nothing_new_shows_its_age(new):
    s = Standin()
    d, id = started(new, s, steps=4000)
    d.until_step(id, 3)
    pid = lambda: d.db("SELECT ifnull(pid,0) FROM attempts")[0][0]
    wait(lambda: pid() > 1, "the keeper's pid is not stored")
    keeper = pid()
    os.kill(keeper, signal.SIGSTOP)
    try:
        wait(lambda: d.ranks(id)[0]["heartbeat_age_s"] > 4, lambda: d.ranks(id))
    finally:
        os.kill(keeper, signal.SIGCONT)
    wait(lambda: d.ranks(id)[0]["heartbeat_age_s"] < 4, lambda: d.ranks(id))
    d.ask("POST", f"/v1/jobs/{id}/kill")
    d.until(id, "cancelled")


def test_F56_gone_without_a_trace(new):
    s = Standin()
    d, id = started(new, s, steps=4000)
    d.until_step(id, 3)
    s.set(purged=[1])
    s.run("node_fail", 1)
    began = time.monotonic()
    j = d.until(id, "failed")
    assert j["reason"] == "lost" and time.monotonic() - began > 4, (j, "not before slurm_settle_ms x 4 of silence")


def test_F56_scancel_does_not_work(new):
    s = Standin(hold=True)
    d, id = started(new, s)
    wait(lambda: s.jobs(), "not submitted")
    s.set(scancel="unreachable")
    d.ask("POST", f"/v1/jobs/{id}/cancel")
    time.sleep(2)
    assert d.job(id)["state"] == "stopping", "it is not known to be gone"
    s.set(scancel=None)
    d.until(id, "cancelled")
    assert s.jobs()[0]["state"] == "CANCELLED"


# --- F57: somebody else ended it

def ended_by(new, program, steps=4000, **kw):
    s = Standin()
    d, id = started(new, s, steps=steps, **kw)
    d.until_step(id, 3)
    threading.Thread(target=s.run, args=(program, 1)).start()
    return s, d, id


def test_F57_node_lost(new):
    s, d, id = ended_by(new, "node_fail", steps=240, max_restarts=1)
    j = d.until(id, "succeeded")
    a = attempts(d, id)
    assert [x["reason"] for x in a] == ["node_failed", "finished"] and j["restarts"] == 1, a
    assert len(s.jobs()) == 2


def test_F57_cancelled_outside(new):
    s, d, id = ended_by(new, "scancel", max_restarts=3)
    j = d.until(id, "cancelled")
    assert j["reason"] == "cancelled_outside" and len(s.jobs()) == 1, j


def test_F57_cancelled_outside_while_it_waits(new):
    s = Standin(hold=True)
    d, id = started(new, s, max_restarts=3)
    wait(lambda: s.jobs(), "not submitted")
    s.run("scancel", 1)
    j = d.until(id, "cancelled")
    assert j["reason"] == "cancelled_outside" and "never ran" in j["detail"], j


def test_F57_preempted_costs_no_restart(new):
    s, d, id = ended_by(new, "preempt", steps=240)
    j = d.until(id, "succeeded")
    assert [x["reason"] for x in attempts(d, id)] == ["preempted", "finished"] and j["restarts"] == 0, attempts(d, id)


def test_F57_slurms_time_limit(new):
    s, d, id = ended_by(new, "timeout")
    j = d.until(id, "failed")
    assert j["reason"] == "slurm_time_limit", j


def test_F57_warned_of_the_time_limit(new):
    s = Standin()
    d, id = started(new, s, steps=4000)
    d.until_step(id, 3)
    open(f"{d.home}/jobs/{id}/attempt-1/warned", "w").close()         # what the batch script does at USR1
    j = d.until(id, "failed")
    assert j["reason"] == "slurm_time_limit", j


def test_F57_requeued_by_an_administrator(new):
    s, d, id = ended_by(new, "requeue", steps=240)
    j = d.until(id, "succeeded")
    a = attempts(d, id)
    assert [x["reason"] for x in a] == ["requeued", "finished"] and j["restarts"] == 0, a
    time.sleep(1)
    first = [x for x in s.jobs() if x["id"] == 1][0]
    assert first["state"] in ("CANCELLED", "FAILED"), first            # its second run came to nothing
    text = open(f"{d.home}/jobs/{id}/attempt-1/slurm.out").read() if first["state"] == "FAILED" else "started before"
    assert "started before" in text, text


def test_F57_the_batch_job_ends_but_its_ranks_go_on(new):
    """slurmstepd killed: Slurm says COMPLETED, the ranks finish unattended."""
    s = Standin()
    d, id = started(new, s, steps=100)
    d.until_step(id, 3)
    path = f"{s.d}/jobs/1.json"
    j = json.load(open(path))
    json.dump({**j, "state": "COMPLETED"}, open(path + ".x", "w"))
    os.rename(path + ".x", path)
    j = d.until(id, "succeeded")
    assert j["attempt"] == 1
    once(d, id, 100)


def test_a_state_of_a_newer_slurm_is_that_jobs_alone(new):
    s = Standin()
    d, id = started(new, s, steps=300)
    other = d.submit(launcher="slurm", max_steps=300)
    d.until_step(id, 2), d.until_step(other, 2)
    path = f"{s.d}/jobs/{batch(d, id)}.json"
    j = json.load(open(path))
    json.dump({**j, "state": "DREAMING"}, open(path + ".x", "w"))
    os.rename(path + ".x", path)
    wait(lambda: d.job(id)["slurm"]["state"] == "unknown", lambda: d.job(id))
    assert d.job(id)["slurm"]["why"] == "DREAMING" and d.job(other)["slurm"]["state"] == "RUNNING" and d.job(other)["slurm"]["trouble"] == "", d.job(other)
    assert d.job(id)["state"] == d.job(other)["state"] == "running"
    d.until(id, "succeeded"), d.until(other, "succeeded")
    assert d.job(id)["attempt"] == d.job(other)["attempt"] == 1


def test_two_submissions_of_one_attempt_run_once(new):
    s = Standin()
    d, id = started(new, s, steps=60)
    d.until_step(id, 2)
    r = subprocess.run(["/bin/bash", f"{d.home}/jobs/{id}/attempt-1/job.sh"], env={**os.environ, **s.env}, capture_output=True, text=True, timeout=20)
    assert r.returncode == 4 and "started before" in r.stderr, r
    d.until(id, "succeeded")
    once(d, id, 60)


# --- the real one

def real(new, test, **kw):
    if Cluster.missing():
        raise Skip(Cluster.missing())
    with Cluster(tempfile.mkdtemp(dir=ROOT)) as c:
        d = new(env=c.env, step_s=0.05, **{**FAST, "slurm_timeout_ms": 5000, **kw})
        try:
            test(c, d)
        except AssertionError:
            print(d.log_text())
            raise


def test_real_run_cancel_pause(new):
    def test(c, d):
        ok, bad = d.submit(launcher="slurm", max_steps=60), d.submit(launcher="slurm", max_steps=4000)
        d.until(ok, "succeeded", limit=60)
        once(d, ok, 60)
        d.until_step(bad, 2)
        d.ask("POST", f"/v1/jobs/{bad}/pause")
        d.until(bad, "paused")
        d.ask("POST", f"/v1/jobs/{bad}/resume")
        d.until(bad, "running")
        d.ask("POST", f"/v1/jobs/{bad}/cancel")
        assert d.until(bad, "cancelled")["reason"] == "cancelled"
        r = d.submit(launcher="slurm", slurm_partition="nowhere")
        j = d.until(r, "failed")
        assert j["reason"] == "slurm_refused" and "partition" in j["detail"], j
        w = d.submit(launcher="slurm", slurm_options=["--begin=now+1hour"])
        wait(lambda: "BeginTime" in d.job(w).get("waiting", {}).get("text", ""), lambda: d.job(w))
        d.ask("POST", f"/v1/jobs/{w}/cancel")
        d.until(w, "cancelled")
    real(new, test)


def test_real_training_of_a_small_model(new):
    """The worker itself, four CPU ranks over shared memory, inside a batch job: the same losses as outside."""
    examples = os.path.join(HERE, "..", "..", "examples")
    if not os.path.exists(os.path.join(WORKER, "ringmaster-worker")):
        raise Skip("no worker")

    def test(c, d):
        shutil.copytree(examples, d.data + "/examples")
        spec = {**json.load(open(examples + "/hybrid.json")), "max_steps": 4, "threads_per_rank": 1, "model": "examples/tiny-qwen2", "dataset": ["examples/data/long-documents.jsonl"]}
        losses = []
        for launcher in ("local", "slurm"):
            r = d.ask("POST", "/v1/jobs", {**spec, "launcher": launcher, "output_dir": os.path.join(d.data, launcher)}, timeout=60)
            assert r.status == 201, r
            j = d.until(r.json["id"], "succeeded", limit=120)
            assert j["summary"]["steps"] == 4, j
            s = d.get(f"/v1/jobs/{j['id']}/metrics?names=loss&max_points=50&rank=0")["series"][0]["points"]
            losses.append([p[-1] for p in s])
            assert os.path.exists(os.path.join(d.data, launcher, "checkpoint-4")), os.listdir(os.path.join(d.data, launcher))
        assert len(losses[0]) == 4 and losses[0] == losses[1], losses
    real(new, test, worker=os.path.join(WORKER, "ringmaster-worker"))


def test_real_F56_slurmctld_killed_and_the_daemon_too(new):
    def test(c, d):
        id = d.submit(launcher="slurm", max_steps=240)
        d.until_step(id, 3)
        c.kill("slurmctld")
        wait(lambda: d.job(id)["slurm"]["state"] == "unknown", lambda: d.job(id))
        d.kill()
        d.start()
        time.sleep(2)
        assert d.job(id)["state"] == "running", d.job(id)
        c.start_controller()
        d.until(id, "succeeded", limit=60)
        once(d, id, 240)
        assert len(attempts(d, id)) == 1
    real(new, test)


def test_real_F57_scancel_and_requeue(new):
    def test(c, d):
        out, again = d.submit(launcher="slurm", max_steps=4000), d.submit(launcher="slurm", max_steps=200)
        d.until_step(out, 2)
        d.until_step(again, 2)
        assert c.run("scontrol", "requeue", str(batch(d, again))).returncode == 1, "--no-requeue stands in the way"
        c.run("scontrol", "update", f"jobid={batch(d, again)}", "requeue=1")
        assert c.run("scontrol", "requeue", str(batch(d, again))).returncode == 0
        c.run("scancel", str(batch(d, out)))
        j = d.until(out, "cancelled", limit=40)
        assert j["reason"] == "cancelled_outside", j
        d.until(again, "succeeded", limit=60)
        assert [a["reason"] for a in attempts(d, again)] == ["requeued", "finished"], attempts(d, again)
    real(new, test)


if __name__ == "__main__":
    kind = sys.argv[1] if len(sys.argv) == 2 and sys.argv[1] in ("stand-in", "real") else None
    if kind:
        del sys.argv[1]
    main({n: f for n, f in globals().items() if kind is None or n.startswith("test_real_") == (kind == "real")}, workers=10)
