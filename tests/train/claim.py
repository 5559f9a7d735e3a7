#!/usr/bin/env python3
"""An output_dir is one job's at a time, and nothing that another run or a person put there is replaced or deleted.

usage: claim.py WORKER two|kept|occupied|restart|keeper"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from gang import Gang, tiny_data, tiny_model, write_spec


def checkpoints(out):
    return sorted(int(d.split("-")[1]) for d in os.listdir(out) if d.startswith("checkpoint-"))


def run_id(checkpoint):
    with open(f"{checkpoint}/trainer_state.json") as f:
        return json.load(f)["ringmaster"]["run"]


class Bench:
    def __init__(self, worker):
        self.worker, self.tmp = worker, tempfile.mkdtemp(prefix="rm-claim-")
        self.model, self.data, self.out = tiny_model(f"{self.tmp}/model"), tiny_data(f"{self.tmp}/d.jsonl"), f"{self.tmp}/out"

    def spec(self, name="spec", **fields):
        spec = dict(model=self.model, init="random", torch_dtype="float32", dataset=[self.data], template="chatml", max_length=64, packing=True, tuner_type="full",
                    learning_rate=1e-3, max_steps=4, seed=3, device="cpu", nproc_per_node=1, threads_per_rank=1, gradient_checkpointing="none",
                    save_steps=2, output_dir=self.out)
        spec.update(fields)
        return write_spec(f"{self.tmp}/{name}.json", **spec)

    def run(self, on_message=None, job=None, **fields):
        env = {k: v for k, v in os.environ.items() if k != "RINGMASTER_JOB"}
        return Gang(self.worker, self.spec(**fields), 1, on_message=on_message, env=dict(env, RINGMASTER_JOB=job) if job else env).run()

    def ok(self, **fields):
        g = self.run(**fields)
        assert g.codes == [0], (fields, g.stderr)
        return g

    def refused(self, *words, rank_only=False, **fields):
        """By the plan, with the field, and by the rank, before a step."""
        if not rank_only:
            p = subprocess.run([self.worker, "--plan", self.spec("plan", **fields), "--brief"], capture_output=True, text=True)
            problems = json.loads(p.stdout).get("problems", [])
            assert p.returncode == 2 and [x["pointer"] for x in problems] == ["/output_dir"] and all(w in problems[0]["message"] for w in words), p.stdout
        p = subprocess.run([self.worker, "--spec", self.spec("second", **fields)], capture_output=True, text=True, timeout=60)
        assert p.returncode == 2 and all(w in p.stderr for w in words) and "step " not in p.stderr.replace("checkpoint-", ""), (p.returncode, p.stderr)


def two(b):
    """The second of two jobs is refused and changes nothing; once the first was killed, a third goes on at once."""
    def on_message(gang, rank, m):
        if m["t"] == "metrics" and m["step"] == 3:
            aside = f"{b.out}/.tmp-checkpoint-777"          # what the first might be writing
            os.mkdir(aside)
            b.refused("another job is writing to", b.out)
            assert os.path.isdir(aside), "the second job swept what the first was writing"
            gang.kill()
    g = b.run(on_message=on_message, max_steps=100000)
    assert g.codes == [-9], (g.codes, g.stderr)
    last = checkpoints(b.out)[-1]
    g = b.ok(resume_from_checkpoint=f"{b.out}/checkpoint-{last}", max_steps=last + 2)
    assert [m["step"] for m in g.records("metrics")] == [last + 1, last + 2]
    assert not [d for d in os.listdir(b.out) if d.startswith(".tmp-")], "left aside"
    with open(f"{b.out}/logging.jsonl") as f:
        steps = [json.loads(line)["step"] for line in f]
    first = steps[:-2]
    assert first == list(range(1, len(first) + 1)) and steps[-2:] == [last + 1, last + 2], "two jobs wrote one log"
    print(f"refused beside a running job; {len(first)} steps of the first undisturbed; gone on with from step {last}")


def kept(b):
    """save_total_limit counts and deletes whole checkpoints of this run and its resume chain alone."""
    b.ok(max_steps=8, save_steps=8, save_total_limit=2)
    b.ok(output_dir=f"{b.tmp}/other", max_steps=4, save_steps=1)
    first = run_id(f"{b.out}/checkpoint-8")
    shutil.copytree(f"{b.tmp}/other/checkpoint-2", f"{b.out}/checkpoint-2")         # of another run
    os.mkdir(f"{b.out}/checkpoint-3")                                               # a person's
    with open(f"{b.out}/checkpoint-3/notes.txt", "w") as f:
        f.write("mine")
    os.symlink(f"{b.out}/checkpoint-8", f"{b.out}/checkpoint-5")                    # not a folder, though its id fits
    b.ok(resume_from_checkpoint=f"{b.out}/checkpoint-8", max_steps=11, save_steps=1, save_total_limit=2)
    assert checkpoints(b.out) == [2, 3, 5, 10, 11], checkpoints(b.out)
    assert run_id(f"{b.out}/checkpoint-11") == first != run_id(f"{b.out}/checkpoint-2"), "a resumed run keeps the id"
    assert open(f"{b.out}/checkpoint-3/notes.txt").read() == "mine"
    # what appears in a running job's way stays too, and the job says so
    def on_message(gang, rank, m):
        if m["t"] == "metrics" and m["step"] == 1:
            os.mkdir(f"{b.tmp}/way/checkpoint-40")
            open(f"{b.tmp}/way/checkpoint-40/notes.txt", "w").close()
    g = b.run(on_message=on_message, output_dir=f"{b.tmp}/way", max_steps=40, save_steps=0)
    assert g.codes == [2] and "checkpoint-40" in g.stderr[0], (g.codes, g.stderr)
    assert os.listdir(f"{b.tmp}/way/checkpoint-40") == ["notes.txt"] and not [d for d in os.listdir(f"{b.tmp}/way") if d.startswith(".tmp-")]
    print("deleted: checkpoint-8 and 9 of its own; kept: another run's, a person's, a link")


def occupied(b):
    """A new run does not start where checkpoints lie; who goes on from one of them may, as far as they are of the same run."""
    b.ok()
    with open(f"{b.out}/checkpoint-4/notes.txt", "w") as f:
        f.write("mine")
    log = open(f"{b.out}/logging.jsonl").read()
    b.refused("checkpoint-2", "resume_from_checkpoint", "another output_dir")
    b.ok(output_dir=f"{b.tmp}/other")
    b.refused("checkpoint-2", "another output_dir", resume_from_checkpoint=f"{b.tmp}/other/checkpoint-2")
    assert open(f"{b.out}/checkpoint-4/notes.txt").read() == "mine" and open(f"{b.out}/logging.jsonl").read() == log and checkpoints(b.out) == [2, 4]
    shutil.copytree(f"{b.tmp}/other/checkpoint-4", f"{b.out}/checkpoint-6")
    b.refused("checkpoint-6", "move it away", resume_from_checkpoint=f"{b.out}/checkpoint-2", max_steps=8)
    shutil.rmtree(f"{b.out}/checkpoint-6")
    b.ok(resume_from_checkpoint=f"{b.out}/checkpoint-2")
    b.ok(output_dir=f"{b.tmp}/fork", resume_from_checkpoint=f"{b.out}/checkpoint-2")
    assert run_id(f"{b.tmp}/fork/checkpoint-4") == run_id(f"{b.out}/checkpoint-2") != run_id(f"{b.tmp}/other/checkpoint-2")
    print("refused beside checkpoints of another run")


def restart(b):
    """The daemon's restarts of a job: from the start where no checkpoint is trusted, over the job's own; another job's are refused."""
    b.ok(job="/home/jobs/j1")
    before = run_id(f"{b.out}/checkpoint-4")
    b.ok(job="/home/jobs/j1")
    assert run_id(f"{b.out}/checkpoint-4") == before
    for job in ("/home/jobs/j2", None, "/home/jobs/j2"):            # a refused job leaves no mark
        g = b.run(job=job)
        assert g.codes == [2] and "already holds" in g.stderr[0] and g.records("error")[0]["code"] == "conflict" and not g.records("metrics"), (job, g.codes, g.stderr)
    b.ok(job="/home/jobs/j1")
    print("restarted over its own checkpoints")


def keeper(b):
    """Through the client and the keeper: refused with code 2 and nothing made; a job resumed at its end says that there is nothing to do."""
    client = os.path.join(os.path.dirname(b.worker), "ringmaster")

    def ask(*args):
        env = {k: v for k, v in os.environ.items() if k not in ("RM_WORKER", "RINGMASTER_JOB")}
        p = subprocess.run([client, "run", *args], capture_output=True, text=True, timeout=60, env=env)
        return p.returncode, p.stdout, p.stderr
    code, out, err = ask(b.spec())
    assert code == 0 and "(from " in out, (code, out, err)
    runs = os.listdir(f"{b.out}/.ringmaster")
    code, out, err = ask(b.spec())
    assert code == 2 and "output_dir" in err and "already holds checkpoint-2" in err, (code, out, err)
    assert os.listdir(f"{b.out}/.ringmaster") == runs, "a refused job left something behind"
    for steps in (4, 3):
        code, out, err = ask(b.spec(resume_from_checkpoint=f"{b.out}/checkpoint-4", max_steps=steps))
        assert code == 0 and f"nothing left to do: the checkpoint is at step 4 of {steps}" in out and "loss" not in out, (code, out, err)
    code, out, err = ask(b.spec(resume_from_checkpoint=f"{b.out}/checkpoint-4"), "--json")
    answer = json.loads(out)
    assert code == 0 and answer["detail"].startswith("nothing left to do") and answer["first_loss"] is None, answer
    print("refused by the client; a finished job says so")


def main():
    b = Bench(os.path.abspath(sys.argv[1]))
    try:
        sys.exit({"two": two, "kept": kept, "occupied": occupied, "restart": restart, "keeper": keeper}[sys.argv[2]](b))
    finally:
        shutil.rmtree(b.tmp, ignore_errors=True)


main()
