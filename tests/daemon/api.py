#!/usr/bin/env python3
"""The HTTP API as a client meets it: routes, conventions, refusals, safety in browsers. usage: api.py [test_name…]"""
import fcntl, http.client, json, os, re, select, shutil, signal, socket, stat, subprocess, sys, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rig import BUILD, FAKE, Reply, Skip, main


def problem(r, status, code=None):
    assert r.status == status, r
    assert r.headers["Content-Type"] == "application/problem+json", r.headers["Content-Type"]
    p = r.json
    assert {"type", "title", "status", "detail", "instance"} <= set(p) and p["status"] == status, p
    if code:
        assert p["type"].endswith(":" + code), p
    return p


def pointers(r):
    return {e["pointer"] for e in problem(r, 422)["errors"]}


def test_life_of_a_job(new):
    d = new()
    r = d.ask("POST", "/v1/jobs", d.spec(name="first", labels={"team": "a"}))
    assert r.status == 201 and r.headers["Location"] == "/v1/jobs/j1" and r.headers["ETag"], r
    assert r.json["id"] == "j1" and r.json["state"] == "queued"
    j = d.until("j1", "succeeded")
    assert j["step"] == 5 and j["max_steps"] == 5 and j["summary"]["steps"] == 5, j
    assert j["spec"]["learning_rate"] == 1e-4 and j["plan"] is not None
    ranks = d.ranks("j1")
    assert [x["rank"] for x in ranks] == [0, 1] and all(x["pid"] > 1 and x["code"] == 0 for x in ranks) and [x["peak_bytes"] for x in ranks] == [1000, 2000], ranks
    series = d.get("/v1/jobs/j1/metrics?names=loss,comm_share&max_points=10")["series"]
    assert [s["name"] for s in series] == ["loss", "comm_share"]
    assert series[0]["points"] == [[1, 5], [2, 2.5], [3, 5 / 3], [4, 1.25], [5, 1]], series[0]
    both = d.get("/v1/jobs/j1/metrics?names=peak_bytes&rank=all")["series"]
    assert [(s["rank"], s["points"][0][1]) for s in both] == [(0, 1000), (1, 2000)], both
    assert "loss" in d.get("/v1/jobs/j1/metrics/names")["items"]
    assert d.ask("GET", "/v1/jobs/j1/logs?rank=1&tail=2").body == b"rank 1 step 4\nrank 1 step 5\n"
    assert d.ask("GET", "/v1/jobs/j1/logs?rank=1&grep=step%203").body == b"rank 1 step 3\n"
    whole = d.ask("GET", "/v1/jobs/j1/logs").body
    assert whole.startswith(b"rank 0 step 1\n")
    r = d.ask("GET", "/v1/jobs/j1/logs", headers={"Range": "bytes=5-10"})
    assert r.status == 206 and r.body == whole[5:11] and r.headers["Content-Range"] == f"bytes 5-10/{len(whole)}", r
    problem(d.ask("GET", "/v1/jobs/j1/logs", headers={"Range": "bytes=99999-"}), 416)
    assert b"[rank 1] rank 1 step 5" in d.ask("GET", "/v1/jobs/j1/logs?rank=all&tail=1").body
    assert d.ask("GET", "/v1/jobs/j1/logs?since=1").body == whole and d.ask("GET", "/v1/jobs/j1/logs?rank=1&since=1&tail=1").body == b"rank 1 step 5\n"
    problem(d.ask("GET", "/v1/jobs/j1/logs?since=yesterday"), 400, "parameter")
    log = os.path.join(d.home, "jobs", "j1", "attempt-1", "rank-1.log")
    open(log + ".1", "w").write("old 1\nold 2\n")           # as after a rotation
    assert d.ask("GET", "/v1/jobs/j1/logs?rank=1&tail=6").body == b"old 2\n" + b"".join(b"rank 1 step %d\n" % i for i in range(1, 6))
    os.unlink(log)
    os.symlink("/etc/passwd", log)
    assert d.ask("GET", "/v1/jobs/j1/logs?rank=1").body == b"" and d.ask("GET", "/v1/jobs/j1/logs?rank=1&tail=1").body == b"old 2\n"
    a = d.get("/v1/jobs/j1/attempts")["items"]
    assert len(a) == 1 and a[0]["state"] == "succeeded" and a[0]["first_step"] == 1 and a[0]["last_step"] == 5, a
    kinds = [e["kind"] for e in d.get("/v1/jobs/j1/history")["items"]]
    assert kinds.count("job") >= 4 and "done" in kinds, kinds
    assert d.ask("DELETE", "/v1/jobs/j1").status == 204
    problem(d.ask("GET", "/v1/jobs/j1"), 404)
    assert not os.path.exists(os.path.join(d.home, "jobs", "j1"))


def test_logs_since(new):
    d = new(step_s=0.2)
    id = d.submit(max_steps=30, nproc_per_node=1)
    d.until_step(id, 8)
    have = d.ask("GET", f"/v1/jobs/{id}/logs").body.count(b"\n")
    middle = int(time.time() * 1000)
    d.until(id, "succeeded")
    steps = lambda query: [int(l.split()[3]) for l in d.ask("GET", f"/v1/jobs/{id}/logs?{query}").body.decode().splitlines()]
    got = steps(f"since={middle}")
    assert got == list(range(got[0], 31)) and 1 < got[0] <= have + 1, (have, got)         # whole seconds: a few lines more, none less
    assert steps(f"since={middle}&tail=2") == [29, 30] and steps(f"since={middle}&grep=step%205") == []
    assert len(steps(f"since={middle + 600000}")) <= 6
    log = os.path.join(d.home, "jobs", id, "attempt-1", "rank-0.log")       # and across a rotation
    for end in ("", ".times"):
        os.rename(log + end, log + ".1" + end)
    with open(log, "w") as f:
        f.write("rank 0 step 31\n")
    assert steps(f"since={middle}") == got + [31] and steps("since=1&tail=3") == [29, 30, 31]


def test_lists(new):
    d = new(slots=1)
    ids = [d.submit(name=f"n{i}", nproc_per_node=1, labels={"k": str(i % 2)}) for i in range(12)]
    seen, path = [], "/v1/jobs?limit=2"
    while path:
        r = d.ask("GET", path)
        seen += [j["id"] for j in r.json["items"]]
        assert r.json["server_time"].endswith("Z")
        assert bool(r.json["next"]) == ("Link" in r.headers)
        path = "/v1/jobs?limit=2&cursor=" + r.json["next"] if r.json["next"] else None
    assert seen == ids[::-1]
    assert [j["id"] for j in d.get("/v1/jobs?sort=created")["items"]] == ids
    assert [j["name"] for j in d.get("/v1/jobs?label=k:1")["items"]] == ["n11", "n9", "n7", "n5", "n3", "n1"]
    assert [j["name"] for j in d.get("/v1/jobs?name=N2")["items"]] == ["n2"]
    for id in ids:
        d.until(id, "succeeded")
    assert len(d.get("/v1/jobs?state=succeeded,failed")["items"]) == 12 and d.get("/v1/jobs?state=running")["items"] == []
    for bad in ("cursor=zzz", "cursor=2-00000000", "limit=0", "limit=201", "limit=x", "state=asleep", "unheard=1", "limit=1&limit=2", "sort=name"):
        problem(d.ask("GET", "/v1/jobs?" + bad), 400, "parameter")


def test_refusals_before_any_rank(new):
    d = new(env={"RM_FAKE_PLAN": "no config.json there"})
    post = lambda body, **kw: d.ask("POST", "/v1/jobs", body, **kw)
    assert pointers(post(d.spec(max_lenght=5, learning_rate="x", nproc_per_node=0))) == {"/max_lenght", "/learning_rate", "/nproc_per_node"}
    assert pointers(post({"model": d.data})) >= {"/dataset", "/output_dir"}
    assert pointers(post(d.spec(nproc_per_node=99))) == {"/nproc_per_node"}
    assert pointers(post(d.spec(after=["j77"]))) == {"/after/0"}
    assert pointers(post(d.spec())) == {"/model"}              # the worker's plan says so
    os.symlink("/etc", os.path.join(d.data, "link"))
    for field, value in (("model", "/etc"), ("output_dir", d.data + "/../.."), ("output_dir", d.data + "/link/x"), ("model", d.data + "/nothing/../../.."),
                         ("resume_from_checkpoint", "../../etc/passwd"), ("model", d.data + "2")):
        assert pointers(post(d.spec(**{field: value}))) == {"/" + field}, (field, value)
    assert pointers(post(d.spec(dataset=[d.data, "/etc/passwd#10"]))) == {"/dataset/1"}
    for text in (b"", b"{", b"[1", b'{"a":1}x', b"\xef\xbb\xbf{}", b'{"a":"\\u0000"}', b'{"a":"\xff"}', b'{"a":1,"a":2}', b'{"a":007}', b'{"a":1e999}', b'{"a":NaN}', b"[" * 5000):
        problem(post(text), 400)
    assert pointers(post(b"[]")) == {""} and pointers(post(b"null")) == {""}
    problem(post(b'{"name":"' + b"x" * (1 << 20) + b'"}'), 413)
    problem(post(json.dumps({"labels": {str(i): "" for i in range(150000)}})[:1 << 20]), 400)
    assert d.get("/v1/jobs")["items"] == [] and not os.listdir(os.path.join(d.home, "jobs")) and not os.listdir(os.path.join(d.home, "tmp"))


def test_validate_stores_nothing(new):
    d = new()
    for path in ("/v1/jobs:validate", "/v1/jobs?dry_run=1"):
        r = d.ask("POST", path, d.spec())
        assert r.status == 200 and r.json["valid"] and r.json["plan"] is not None and r.json["spec"]["nproc_per_node"] == 2, r
    assert pointers(d.ask("POST", "/v1/jobs:validate", d.spec(seed=-1))) == {"/seed"}
    assert d.get("/v1/jobs")["items"] == []


def test_planner_that_hangs_or_fails(new):
    hang = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hang.sh")
    d = new(worker=hang, plan_timeout_ms=500)
    problem(d.ask("POST", "/v1/jobs", d.spec()), 503)
    d = new(worker="/bin/false")
    p = problem(d.ask("POST", "/v1/jobs", d.spec()), 500)
    assert "--plan failed" in p["detail"], p


def test_preview_of_the_data(new):
    worker = os.path.join(BUILD, "ringmaster-worker")
    if not os.path.exists(worker):
        raise Skip("this build has no ringmaster-worker")
    d = new(worker=worker)
    shutil.copytree(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "tiny-qwen2"), os.path.join(d.data, "tiny"))
    file = os.path.join(d.data, "d.jsonl")
    with open(file, "w") as f:
        for i in range(7):
            f.write(json.dumps({"messages": [{"role": "user", "content": f"question {i}"}, {"role": "assistant", "content": "<b>answer</b> " * (i + 1)}]}) + "\n")
    spec = d.spec(model="tiny", init="random", dataset=["d.jsonl"], max_length=256, packing=True, tuner_type="full")
    r = d.ask("POST", "/v1/jobs:preview", spec, timeout=60)
    assert r.status == 200, r
    p = r.json
    assert p["documents"] == 7 and 1 <= p["rows"] < 7 and 0 < p["packing_efficiency"] <= 1 and 0 < p["tokens_trained"] < p["tokens"], p
    assert sum(b["documents"] for b in p["histogram"]) == 7 and len(p["samples"]) == 5, p
    for i, s in enumerate(p["samples"]):
        text = {flag: "".join(part["text"] for part in s["parts"] if part["trained"] is flag) for flag in (True, False)}
        assert f"question {i}" in text[False] and text[True].count("<b>answer</b>") == i + 1 and "question" not in text[True], s
        assert sum(part["tokens"] for part in s["parts"] if part["trained"]) == s["trained"] > 0, s
    schema = d.get("/openapi.json")["components"]["schemas"]["Preview"]
    assert set(schema["required"]) <= set(p) and set(schema["properties"]) == set(p), p
    with open(file, "a") as f:
        f.write("{broken\n")
    said = problem(d.ask("POST", "/v1/jobs:preview", spec, timeout=60), 422, "invalid")["detail"]
    assert "d.jsonl" in said and "8" in said and not said.startswith("ringmaster") and not said.endswith("\n"), said
    problem(d.ask("POST", "/v1/jobs:preview", {**spec, "dataset": ["nothing.jsonl"]}, timeout=60), 422)
    assert d.get("/v1/jobs")["items"] == [] and not os.listdir(os.path.join(d.home, "tmp")) and not os.path.exists(os.path.join(d.data, "out"))


def test_preview_refusals(new):
    d = new(env={"RM_FAKE_DATASET": "no such thing"})
    post = lambda body: d.ask("POST", "/v1/jobs:preview", body)
    assert problem(post(d.spec()), 422, "invalid")["detail"] == "no such thing"
    os.symlink("/etc", os.path.join(d.data, "link"))
    assert pointers(post(d.spec(dataset=[d.data, "/etc/passwd"], seed=-1))) == {"/seed"}       # the field table comes first
    assert pointers(post(d.spec(dataset=[d.data, "/etc/passwd"]))) == {"/dataset/1"}
    assert pointers(post(d.spec(dataset=[d.data + "/link/passwd"]))) == {"/dataset/0"}
    problem(post(b"{"), 400)
    read = d.ask("POST", "/v1/tokens", {"name": "read", "scope": "read"}).json["token"]
    problem(d.ask("POST", "/v1/jobs:preview", d.spec(), token=read), 403, "scope")
    d = new(worker=os.path.join(os.path.dirname(os.path.abspath(__file__)), "hang.sh"), plan_timeout_ms=500)
    assert "the preview took longer" in problem(d.ask("POST", "/v1/jobs:preview", d.spec()), 503)["detail"]
    assert not os.listdir(os.path.join(d.home, "tmp"))
    d = new(worker="/bin/false")
    assert "--dataset failed" in problem(d.ask("POST", "/v1/jobs:preview", d.spec()), 500)["detail"]


def test_patch_needs_the_version(new):
    d = new(slots=2)
    blocker = d.submit(max_steps=1000)
    id = d.submit(name="a")
    path = f"/v1/jobs/{id}"
    tag = d.ask("GET", path).headers["ETag"]
    problem(d.ask("PATCH", path, {"name": "b"}), 428)
    problem(d.ask("PATCH", path, {"name": "b"}, headers={"If-Match": '"999"'}), 412)
    r = d.ask("PATCH", path, {"name": "b", "priority": 7, "labels": {"x": "y"}}, headers={"If-Match": tag})
    assert r.status == 200 and (r.json["name"], r.json["priority"], r.json["labels"]) == ("b", 7, {"x": "y"}), r
    problem(d.ask("PATCH", path, {"name": "c"}, headers={"If-Match": tag}), 412)
    assert pointers(d.ask("PATCH", path, {"state": "x", "priority": 5000}, headers={"If-Match": "*"})) == {"/state", "/priority"}
    d.ask("POST", f"/v1/jobs/{blocker}/kill")
    d.until(id, "succeeded")
    r = d.ask("GET", path)
    assert d.ask("GET", path, headers={"If-None-Match": r.headers["ETag"]}).status == 304
    assert d.ask("PATCH", path, {"name": "late"}, headers={"If-Match": r.headers["ETag"]}).json["name"] == "late"


def test_queue_reasons_and_order(new):
    d = new(slots=2)
    first = d.submit(max_steps=100000)
    d.until(first, "running")
    low, high = d.submit(name="low"), d.submit(name="high", priority=5)
    dep = d.submit(after=[low], nproc_per_node=1)
    time.sleep(0.4)
    q = {x["id"]: x for x in d.get("/v1/queue")["items"]}
    assert q[high]["reason"] == "devices" and q[high]["position"] == 1, q
    assert q[low]["reason"] == "priority" and high in q[low]["text"], q
    assert q[dep]["reason"] == "dependency" and low in q[dep]["text"], q
    devices = d.get("/v1/devices")["items"]
    assert [x["job"] for x in devices] == [first] * 2, devices
    d.ask("POST", f"/v1/jobs/{first}/kill")
    assert d.until(first, "cancelled")["reason"] == "killed"
    for id in (high, low, dep):
        d.until(id, "succeeded")
    t = [x["started_at"] for x in (d.job(high), d.job(low), d.job(dep))]
    assert t == sorted(t), t
    bad = d.submit(max_steps=100000)
    after = d.submit(after=[bad])
    d.ask("POST", f"/v1/jobs/{bad}/kill")
    j = d.until(after, "cancelled")
    assert j["reason"] == "dependency_failed", j


def test_pause_resume_requeue_clone(new):
    d = new(step_s=0.05)
    id = d.submit(max_steps=60)
    d.until_step(id, 3)
    assert d.ask("POST", f"/v1/jobs/{id}/pause").status == 202
    j = d.until(id, "paused")
    assert j["checkpoint"].startswith("/ckpt/checkpoint-") and all(x["job"] is None for x in d.get("/v1/devices")["items"]), j
    assert j["checkpoint_step"] in [c["step"] for c in d.get(f"/v1/jobs/{id}/checkpoints")["items"]]
    time.sleep(0.3)
    assert d.job(id)["state"] == "paused"
    assert d.ask("POST", f"/v1/jobs/{id}/resume").status == 202
    d.until(id, "running")
    spec = json.load(open(os.path.join(d.home, "jobs", id, "attempt-2", "spec.json")))
    assert spec["resume_from_checkpoint"] == j["checkpoint"]
    d.ask("POST", f"/v1/jobs/{id}/requeue")
    end = time.monotonic() + 20
    while d.job(id)["attempt"] < 3:
        assert time.monotonic() < end
        time.sleep(0.05)
    d.until(id, "succeeded")
    assert d.job(id)["restarts"] == 0
    r = d.ask("POST", f"/v1/jobs/{id}/clone", {"max_steps": 3, "name": "again"})
    assert r.status == 201 and r.json["cloned_from"] == id and r.json["spec"]["max_steps"] == 3, r
    d.until(r.json["id"], "succeeded")
    problem(d.ask("POST", f"/v1/jobs/{id}/pause"), 409)


def test_time_limit(new):
    d = new(step_s=0.05)
    j = d.until(d.submit(max_steps=10000, time_limit_s=1, max_restarts=3), "failed")
    assert j["reason"] == "time_limit" and j["restarts"] == 0, j


def test_tokens_and_scopes(new):
    d = new()
    for path in ("token", "ringmaster.db", "lock"):
        mode = stat.S_IMODE(os.stat(os.path.join(d.home, path)).st_mode)
        assert mode == 0o600, (path, oct(mode))
    assert stat.S_IMODE(os.stat(d.home).st_mode) == 0o700
    problem(d.ask("GET", "/v1/jobs", token=None), 401)
    problem(d.ask("GET", "/nothing/here", token=None), 401)
    problem(d.ask("GET", "/v1/jobs", token="rm_" + "0" * 64), 401)
    make = lambda scope: d.ask("POST", "/v1/tokens", {"name": scope, "scope": scope}).json["token"]
    read, submit = make("read"), make("submit")
    assert d.ask("GET", "/v1/jobs", token=read).status == 200
    problem(d.ask("POST", "/v1/jobs", d.spec(), token=read), 403, "scope")
    assert d.ask("POST", "/v1/jobs", d.spec(), token=submit).status == 201
    problem(d.ask("GET", "/v1/tokens", token=submit), 403, "scope")
    listed = d.get("/v1/tokens")["items"]
    assert {t["name"] for t in listed} == {"first", "read", "submit"} and not any("hash" in t or "token" in t for t in listed)
    assert d.ask("DELETE", f"/v1/tokens/{[t['id'] for t in listed if t['name'] == 'read'][0]}").status == 204
    problem(d.ask("GET", "/v1/jobs", token=read), 401)
    audit = d.get("/v1/audit")["items"]
    assert any(a["who"] == "submit" and a["method"] == "POST" and a["path"] == "/v1/jobs" and a["status"] == 201 for a in audit), audit
    assert any(a["status"] == 401 for a in audit)
    codes = [d.ask("GET", "/v1/jobs", token="wrong" * 10).status for _ in range(80)]
    assert codes[-1] == 429 and d.ask("GET", "/v1/jobs").status == 200
    d.kill()
    everything = open(os.path.join(d.home, "ringmaster.db"), "rb").read() + open(os.path.join(d.home, "ringmaster.db-wal"), "rb").read() + d.log_text().encode()
    for secret in (d.token, read, submit):
        assert secret.encode() not in everything
    d.start()
    assert d.ask("GET", "/v1/jobs").status == 200


def test_the_page_and_its_cookie(new):
    d = new()
    r = d.ask("GET", "/", token=None)
    assert r.status == 200 and b"<script" in r.body and "default-src 'self'" in r.headers["Content-Security-Policy"], r
    assert "unsafe-eval" not in r.headers["Content-Security-Policy"] and not re.search(rb"<script>|\son[a-z]+=", r.body)
    assert r.headers["X-Content-Type-Options"] == "nosniff" and "frame-ancestors 'none'" in r.headers["Content-Security-Policy"]
    named = re.findall(r'(?:src|href)="/([^"]+)"', r.body.decode())
    assert sorted(named) == ["static/app.js", "static/dygraph.css", "static/dygraph.min.js", "static/style.css"], named
    for f in named:
        r = d.ask("GET", "/" + f, token=None)
        assert r.status == 200, f
        assert d.ask("GET", "/" + f, token=None, headers={"If-None-Match": r.headers["ETag"]}).status == 304
        assert d.ask("GET", "/" + f, token=None, headers={"Accept-Encoding": "gzip"}).headers["Content-Encoding"] == "gzip"
    problem(d.ask("GET", "/?token=wrong", token=None), 401)
    r = d.ask("GET", "/?token=" + d.token, token=None)
    cookie = r.headers["Set-Cookie"]
    assert r.status == 303 and r.headers["Location"] == "/" and "HttpOnly" in cookie and "SameSite=Strict" in cookie and d.token not in cookie, cookie
    jar = {"Cookie": cookie.split(";")[0]}
    here = f"http://127.0.0.1:{d.port}"
    assert d.ask("GET", "/v1/jobs", token=None, headers=jar).status == 200
    problem(d.ask("POST", "/v1/jobs", d.spec(), token=None, headers=jar), 403)
    assert d.ask("POST", "/v1/jobs", d.spec(), token=None, headers={**jar, "Origin": here}).status == 201
    assert d.ask("POST", "/v1/jobs", d.spec(), token=None, headers={**jar, "Sec-Fetch-Site": "same-origin"}).status == 201


def test_F48_other_sites(new):
    d = new()
    cookie = d.ask("GET", "/?token=" + d.token, token=None).headers["Set-Cookie"].split(";")[0]
    before = len(d.get("/v1/jobs")["items"])
    id = d.submit()
    d.until(id, "succeeded")
    here = f"127.0.0.1:{d.port}"
    for auth in ({"Cookie": cookie}, {"Authorization": "Bearer " + d.token}):
        for method, path, body, headers in (
                ("POST", "/v1/jobs", json.dumps(d.spec()), {"Origin": "http://evil.example"}),
                ("POST", "/v1/jobs", json.dumps(d.spec()), {"Origin": "null"}),
                ("POST", "/v1/jobs", json.dumps(d.spec()), {"Origin": "http://127.0.0.1:1"}),
                ("POST", "/v1/jobs", json.dumps(d.spec()), {"Sec-Fetch-Site": "cross-site"}),
                ("DELETE", "/v1/jobs/" + id, None, {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"}),
                ("DELETE", "/v1/jobs/" + id, None, {"Sec-Fetch-Site": "same-site"}),
                ("GET", "/v1/jobs", None, {"Host": "evil.example"}),
                ("GET", "/v1/jobs", None, {"Host": "127.0.0.1.evil.example:" + str(d.port)}),
                ("GET", "/v1/jobs", None, {"Host": "localhost@evil.example"}),
                ("GET", "/v1/jobs", None, {"Host": "127.0.0.1:80:80"}),
                ("GET", "/v1/jobs", None, {"Origin": "http://evil.example"}),
                ("GET", "/", None, {"Host": "rebound.example"}),
                ("GET", "/healthz", None, {"Host": ""}),
                ("OPTIONS", "/v1/jobs", None, {"Origin": "http://evil.example", "Access-Control-Request-Method": "DELETE"})):
            r = d.ask(method, path, body, token=None, headers={**auth, **headers})
            assert r.status == 403, (method, path, headers, r)
            assert "Access-Control-Allow-Origin" not in r.headers
    # what a page may send to other sites unasked, with a right token and from nowhere in particular: refused by its type alone
    for kind in ("text/plain", "text/plain;charset=UTF-8", "TEXT/PLAIN", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml", "application/jsonx",
                 "text/plain, application/json", ""):
        for path in ("/v1/jobs", "/v1/jobs:validate", f"/v1/jobs/{id}/cancel"):
            problem(d.ask("POST", path, json.dumps(d.spec()), headers={"Content-Type": kind}), 415, "content_type")
    problem(d.ask("POST", "/v1/jobs", json.dumps(d.spec()), headers={"Content-Type": None}), 415)
    assert d.ask("POST", "/v1/jobs:validate", json.dumps(d.spec()), headers={"Content-Type": "application/json; charset=utf-8"}).status == 200
    assert d.ask("GET", "/v1/jobs", headers={"Host": "localhost:1234"}).status == 200
    assert d.ask("GET", "/v1/jobs", headers={"Host": "LOCALHOST"}).status == 200 and d.ask("GET", "/v1/jobs", headers={"Host": here}).status == 200
    assert len(d.get("/v1/jobs")["items"]) == before + 1
    other = new(allow_host="train.example")
    assert other.ask("GET", "/v1/jobs", headers={"Host": "train.example:8000"}).status == 200


def raw(d, data, limit=5):
    """What comes back for these very bytes: status, headers, body; ends when the server closes or has answered."""
    with socket.create_connection(("127.0.0.1", d.port)) as s:
        s.settimeout(limit)
        s.sendall(data)
        r = http.client.HTTPResponse(s)
        r.begin()
        return Reply(r.status, r.headers, r.read())


def test_requests_that_two_programs_could_read_differently(new):
    d = new()
    host, auth = f"Host: 127.0.0.1:{d.port}\r\n", f"Authorization: Bearer {d.token}\r\n"
    post = lambda *lines, body="{}": ("POST /v1/jobs:validate HTTP/1.1\r\n" + host + auth + "Content-Type: application/json\r\n" + "".join(l + "\r\n" for l in lines) + "\r\n" + body).encode()
    chunked = "2\r\n{}\r\n0\r\n\r\n"
    assert raw(d, post("Content-Length: 2")).status == 422 and raw(d, post("Transfer-Encoding: chunked", body=chunked)).status == 422       # read, and refused for what {} lacks
    for lines, body in ((("Content-Length: 2", "Transfer-Encoding: chunked"), chunked), (("Content-Length: 2", "Content-Length: 3"), "{}"), (("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), chunked),
                        (("Content-Length: 2", "Host: evil.example"), "{}"), (("Content-Length: 2", "Content-Type: text/plain"), "{}"), (("Content-Length: 2", "X-Odd : 1"), "{}")):
        r = raw(d, post(*lines, body=body))
        problem(r, 400, "header")
        assert r.headers["Connection"] == "close", r.headers
    problem(raw(d, post("Transfer-Encoding: gzip, chunked", body=chunked)), 501, "header")
    problem(raw(d, b"GET /healthz HTTP/1.1\r\n\r\n"), 403, "host")
    # What the library refuses by itself it says as HTML; the status is right, and the connection ends.
    for data, status in ((b"GET /\r\n" + host.encode() + b"\r\n", 400), (b"GET / HTTP/9.9\r\n\r\n", 505), (post("Content-Length: -5"), 400), (post("Content-Length: " + "9" * 30), 413),
                         (b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 40000 + b"\r\n\r\n", 431)):
        with socket.create_connection(("127.0.0.1", d.port)) as s:
            s.settimeout(5)
            s.sendall(data)
            got = b"".join(iter(lambda: s.recv(65536), b""))        # to the end
            assert got.startswith(b"HTTP/1.1 %d " % status) and b"<html>" in got, (data, got)
    for _ in range(100):
        raw(d, b"GET / HTTP/9.9\r\n\r\n")
    assert d.log_text().count("http: ") < 50         # and nobody fills the log this way


def test_no_token_where_others_can_read_it(new):
    """Process lists, environments of what the daemon starts, log, and everything in its home but the token file itself."""
    d = new(step_s=0.05, env={"RINGMASTER_TOKEN": "", "RM_FAKE_COMM": "0.1"})
    d.kill()
    d.start(env={"RINGMASTER_TOKEN": d.token})      # as in the shell of somebody who uses the client, too
    made = d.ask("POST", "/v1/tokens", {"name": "ci", "scope": "submit"}).json["token"]
    hook = d.ask("POST", "/v1/webhooks", {"url": "http://127.0.0.1:1/"}).json["secret"]
    cookie = d.ask("GET", "/?token=" + d.token, token=None).headers["Set-Cookie"].split(";")[0].split("=")[1]
    id = d.submit(max_steps=2000)
    d.until_step(id, 3)
    mine = d.alive_now()
    assert len(mine) >= 3, mine         # keeper and two ranks
    secrets = [s.encode() for s in (d.token, made, cookie)]
    for p in [d.p.pid, *mine]:
        shown = open(f"/proc/{p}/cmdline", "rb").read() + (open(f"/proc/{p}/environ", "rb").read() if p != d.p.pid else b"")
        assert not any(s in shown for s in secrets + [hook.encode()]), (p, shown)
    d.ask("POST", f"/v1/jobs/{id}/kill")
    d.until(id, "cancelled")
    d.ask("GET", "/v1/jobs", token="rm_" + "1" * 64)
    d.ask("GET", "/?token=rm_" + "2" * 64, token=None)
    d.p.terminate()
    d.p.wait(10)
    text = d.log_text().encode() + d.p.stdout.read()
    for folder, _, files in os.walk(d.home):
        for f in files:
            if f != "token":
                text += open(os.path.join(folder, f), "rb").read()
    assert len(text) > 20000
    for s in secrets + [b"rm_" + b"1" * 64, b"rm_" + b"2" * 64]:
        assert s not in text, s


def operations(d, id):
    """(method, path) of the whole API, with something real in the braces where there is."""
    fill = {"/v1/jobs/{id}": f"/v1/jobs/{id}", "{name}": "nothing", "{id}": "1"}
    for path, ops in d.get("/openapi.json")["paths"].items():
        for a, b in fill.items():
            path = path.replace(a, b)
        for method in ops:
            yield method.upper(), path


def test_every_change_needs_proof(new):
    """Each route that is not GET, one after the other: no token, a cookie without a word of where it comes from, other sites, other types."""
    d = new()
    id = d.submit()
    d.until(id, "succeeded")
    cookie = {"Cookie": d.ask("GET", "/?token=" + d.token, token=None).headers["Set-Cookie"].split(";")[0]}
    before = tables(d)
    changes = [(m, p) for m, p in operations(d, id) if m != "GET"]
    assert len(changes) > 15 and {m for m, _ in changes} == {"POST", "PATCH", "DELETE"}, changes
    ask = lambda m, p, token=None, **h: d.ask(m, p, "{}" if m != "DELETE" else None, token=token, headers={k.replace("_", "-"): v for k, v in h.items()})
    for m, p in changes:
        problem(ask(m, p), 401)
        problem(ask(m, p, **cookie), 403, "cross_site")
        for token in (None, True):
            problem(ask(m, p, token, **cookie, Origin="http://evil.example"), 403, "origin")
            problem(ask(m, p, token, **cookie, Origin="null"), 403, "origin")
            problem(ask(m, p, token, **cookie, Sec_Fetch_Site="cross-site"), 403, "cross_site")
            problem(ask(m, p, token, **cookie, Sec_Fetch_Site="same-site"), 403, "cross_site")
            problem(ask(m, p, token, **cookie, Host="rebound.example"), 403, "host")
            if m != "DELETE":
                problem(ask(m, p, token, **cookie, Content_Type="text/plain", Origin=f"http://127.0.0.1:{d.port}"), 415, "content_type")
    for m in ("PUT", "TRACE", "OPTIONS", "PROPFIND", "get"):        # not on the list of methods: never run
        assert ask(m, "/v1/jobs", True).status in (400, 403, 405), m
    after = tables(d)
    assert {k: v for k, v in after.items() if k != "audit"} == {k: v for k, v in before.items() if k != "audit"}, (before, after)


def tables(d):
    names = [n for n, in d.db("SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%'")]
    return {n: d.db(f"SELECT * FROM {n} ORDER BY 1, 2") for n in names}


def test_reading_changes_nothing_and_every_reply_is_guarded(new):
    d = new()
    id = d.submit(output_dir=os.path.join(d.data, "o"))
    d.until(id, "succeeded")
    os.makedirs(os.path.join(d.data, "o"), exist_ok=True)
    open(os.path.join(d.data, "o", "nothing"), "w").write("<script>")
    before, seen = tables(d), set()
    for m, path in operations(d, id):
        if m != "GET" or path.endswith("/events"):
            continue
        for method in ("GET", "HEAD"):
            for token in (True, None):
                r = d.ask(method, path + ("?ids=j1,j1" if path == "/v1/compare" else ""), token=token)
                seen.add(r.status)
                assert r.headers["X-Content-Type-Options"] == "nosniff" and r.headers["X-Frame-Options"] == "DENY" and r.headers["Referrer-Policy"] == "no-referrer", (path, r.headers)
                assert r.headers["Content-Security-Policy"].startswith("default-src 'self'; ") and "frame-ancestors 'none'" in r.headers["Content-Security-Policy"], path
                assert not [h for h in r.headers if h.lower().startswith("access-control-")] and (path == "/" or path.startswith("/static/") or r.headers["Cache-Control"] == "no-store"), path
    assert {200, 401} <= seen and tables(d) == before
    s = d.stream()
    assert s.r.headers["X-Content-Type-Options"] == "nosniff" and s.r.headers["Cache-Control"] == "no-store" and "Access-Control-Allow-Origin" not in s.r.headers
    s.close()


def test_only_this_machine_unless_told(new):
    d = new()
    inode = {os.readlink(f"/proc/{d.p.pid}/fd/{f}")[8:-1] for f in os.listdir(f"/proc/{d.p.pid}/fd") if os.readlink(f"/proc/{d.p.pid}/fd/{f}").startswith("socket:")}
    listens = [l.split()[1] for name in ("tcp", "tcp6") for l in open(f"/proc/net/{name}").read().splitlines()[1:] if l.split()[3] == "0A" and l.split()[9] in inode]
    assert listens == [f"0100007F:{d.port:04X}"], listens
    for address in ("0.0.0.0", "::", "10.1.2.3"):
        r = subprocess.run([d.args()[0], "--home", os.path.join(d.root, "other"), "--port", "0", "--bind", address], capture_output=True, timeout=20)
        assert r.returncode == 2 and b"--remote" in r.stderr, r
    other = new()
    assert re.fullmatch(r"rm_[0-9a-f]{64}", d.token) and re.fullmatch(r"rm_[0-9a-f]{64}", other.token) and d.token != other.token
    import hashlib
    assert d.db("SELECT hash FROM tokens") == [(hashlib.sha256(d.token.encode()).hexdigest(),)]


def test_methods_and_paths(new):
    d = new()
    r = d.ask("PUT", "/v1/jobs", {})
    problem(r, 405)
    assert set(r.headers["Allow"].split(", ")) == {"GET", "HEAD", "POST"}
    for path in ("/v1", "/v1/jobs/", "/v1/jobs/j1/x", "//v1/jobs", "/v1/jobs/j0", "/v1/jobs/j01", "/v1/jobs/1", "/v1/jobs/j99999999999999999999", "/v1/jobs/..%2f..%2fetc"):
        problem(d.ask("GET", path), 404)
    for path in ("/v1/jobs/%ff", "/v1/jobs/j1%00", "/v1/jobs/%zz", "/v1/jobs/%", "/v1/jobs/%4", "/v1/jobs?name=%zz", "/v1/jobs?name=a%", "/v1/jobs?name=a%00b", "/v1/jobs?name=%c3%28", "/v1/jobs?%zz=1"):
        problem(d.ask("GET", path), 400, "escape")
    assert d.ask("GET", "/v1/jobs?name=%C3%a4+%2B").status == 200
    assert d.ask("HEAD", "/v1/jobs").status == 200
    r = d.ask("GET", "/version", token=None).json
    assert r["name"] == "ringmaster"
    assert d.get("/healthz") == {"status": "ok"}


def test_openapi_matches_the_routes_both_ways(new):
    d = new()
    doc = d.get("/openapi.json")
    assert doc["openapi"] == "3.1.0"
    source = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "daemon", "routes.c")).read()
    table = set(re.findall(r'\{ "([A-Z]+)",\s+"(/[^"]*)",', source))
    there = {(m.upper(), p) for p, ops in doc["paths"].items() for m in ops}
    assert {(m, p.replace("*", "")) for m, p in table} == there, (table ^ there)
    names = [op["operationId"] for ops in doc["paths"].values() for op in ops.values()]
    assert len(names) == len(set(names))
    text = json.dumps(doc)
    for ref in set(re.findall(r"#/components/schemas/(\w+)", text)):
        assert ref in doc["components"]["schemas"], ref
    for path, ops in doc["paths"].items():          # what needs no body and no id answers as the document says
        if "get" not in ops or "{" in path or path.endswith("/events") or path == "/v1/compare":
            continue
        r = d.ask("GET", path)
        assert str(r.status) in ops["get"]["responses"], (path, r)
        kinds = ops["get"]["responses"][str(r.status)].get("content", {})
        assert r.headers["Content-Type"].split(";")[0] in kinds or "application/octet-stream" in kinds, (path, r.headers["Content-Type"])
    assert set(doc["components"]["schemas"]["Spec"]["properties"]) == set(d.get("/v1/schema")["properties"])


def test_files_of_a_job(new):
    d = new()
    id = d.submit(output_dir=os.path.join(d.data, "o"))
    d.until(id, "succeeded")
    base = os.path.join(d.data, "o")
    os.makedirs(os.path.join(base, "checkpoint-5"), exist_ok=True)
    open(os.path.join(base, "checkpoint-5", 'a"\r\nb.bin'), "wb").write(b"odd")
    open(os.path.join(base, "checkpoint-5", "model.safetensors"), "wb").write(bytes(range(256)))
    os.symlink("/etc/passwd", os.path.join(base, "leak"))
    os.symlink("/etc", os.path.join(base, "dir"))
    os.mkfifo(os.path.join(base, "fifo"))
    names = {f["name"] for f in d.get(f"/v1/jobs/{id}/artifacts")["items"]}
    assert "checkpoint-5/model.safetensors" in names and not {"leak", "fifo"} & names, names
    get = lambda n, **h: d.ask("GET", f"/v1/jobs/{id}/artifacts/{n}", headers=h)
    r = get("checkpoint-5/model.safetensors", Range="bytes=-2")
    assert r.status == 206 and r.body == b"\xfe\xff" and 'filename="model.safetensors"' in r.headers["Content-Disposition"], r
    r = get("checkpoint-5/a%22%0d%0ab.bin")
    assert r.status == 200 and r.body == b"odd" and r.headers["Content-Disposition"] == 'attachment; filename="a___b.bin"', r.headers
    for bad in ("leak", "dir/passwd", "fifo", "../home/token", "..%2f..%2fhome%2ftoken", "%2fetc%2fpasswd", "checkpoint-5", "checkpoint-5/../../x", "./checkpoint-5/model.safetensors", "nothing"):
        problem(get(bad), 404)


def test_names_are_only_data(new):
    d = new()
    name = "<script>alert(1)</script>\r\nX-Evil: 1\n\ndata: x\u202e\U0001f600\"'"
    id = d.submit(name=name, labels={name: name})
    j = d.until(id, "succeeded")
    assert j["name"] == name and j["labels"] == {name: name}
    r = d.ask("GET", "/v1/jobs/" + id)
    assert "X-Evil" not in r.headers
    assert "\nX-Evil" not in d.log_text()
    s = d.stream("/v1/events", {"Last-Event-ID": "0"})
    assert s.next()[0] in ("hello", "reset")
    event, _, data = s.next()
    assert event == "job" and data["data"]["name"] == name
    s.close()


def test_F47_the_page_writes_text_only(new):
    """Nothing from outside becomes markup: the page's program has no way to write any."""
    d = new()
    source = d.ask("GET", "/static/app.js", token=None).body.decode()
    assert "textContent" in source or "createTextNode" in source or ".append(" in source
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "createContextualFragment", "srcdoc", "eval(", "new Function", "setTimeout('", 'setTimeout("', "javascript:"):
        assert way not in source, way


class Browser:
    """A headless Chromium, spoken to over its debugging pipe: one JSON object, one NUL."""

    def __init__(self, program, folder):
        (a, self.to), (self.frm, b) = os.pipe(), os.pipe()
        args = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--user-data-dir=" + folder, "about:blank"]

        def pipes():                    # its ends are descriptors 3 and 4, whatever ours are
            x, y = fcntl.fcntl(a, fcntl.F_DUPFD, 100), fcntl.fcntl(b, fcntl.F_DUPFD, 100)
            os.dup2(x, 3), os.dup2(y, 4)
        self.p = subprocess.Popen(args, preexec_fn=pipes, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(a), os.close(b)
        self.n, self.buf, self.session = 0, b"", None

    def call(self, method, limit=30, **params):
        self.n += 1
        try:
            os.write(self.to, json.dumps({"id": self.n, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}).encode() + b"\0")
        except OSError as e:
            raise Skip(f"chromium does not run here: {e}")
        end = time.monotonic() + limit
        while True:
            while b"\0" not in self.buf:
                if not select.select([self.frm], [], [], max(0, end - time.monotonic()))[0] or not (data := os.read(self.frm, 1 << 16)):
                    raise Skip("chromium does not run here")
                self.buf += data
            one, self.buf = self.buf.split(b"\0", 1)
            m = json.loads(one)
            if m.get("id") == self.n:
                return m.get("result", {})          # an error while the page changes: nothing yet

    def open(self, url):
        self.session = None
        target = self.call("Target.createTarget", url=url)["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def ask(self, script):
        return self.call("Runtime.evaluate", expression=script, returnByValue=True).get("result", {}).get("value")

    def end(self):
        os.killpg(self.p.pid, signal.SIGKILL)
        self.p.wait()
        os.close(self.to), os.close(self.frm)


def test_F47_hostile_names_in_a_browser(new):
    """Chromium opens the list and the job's page: the name is there as text, no element came of it, nothing ran."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        raise Skip("needs chromium")
    d = new()
    name = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">\u202e\U0001f600" + "n" * 60
    id = d.submit(name=name, labels={"<b>k</b>": "<i>v</i>"})
    d.until(id, "succeeded")
    b = Browser(program, os.path.join(d.root, "browser"))
    try:
        for view in ("#/", f"#/job/{id}"):
            b.open(f"http://127.0.0.1:{d.port}/?token={d.token}{view}")
            end = time.monotonic() + 40
            while name not in (text := b.ask("document.body.innerText") or ""):
                assert time.monotonic() < end, (view, text)
                time.sleep(0.2)
            assert b.ask("document.title") != "run" and b.ask("document.querySelectorAll('main img, main script, main i:not([style])').length") == 0, b.ask("document.body.innerHTML")
            assert "token" not in b.ask("location.href"), "the token stays in the address"
    finally:
        b.end()


def test_compare(new):
    d = new()
    a, b = d.submit(learning_rate=1e-3), d.submit(learning_rate=2e-3, max_steps=3)
    d.until(a, "succeeded"), d.until(b, "succeeded")
    c = d.get(f"/v1/compare?ids={a},{b}&names=loss")
    assert c["differences"]["learning_rate"] == [0.001, 0.002] and set(c["differences"]) == {"learning_rate", "max_steps"}, c["differences"]
    assert [len(j["series"][0]["points"]) for j in c["jobs"]] == [5, 3]
    problem(d.ask("GET", "/v1/compare?ids=" + a), 400)
    problem(d.ask("GET", f"/v1/compare?ids={a},j99"), 404)


def test_arrays(new):
    d = new(slots=4)
    body = {"spec": d.spec(name="g", max_steps=3), "grid": {"learning_rate": [1e-4, 1e-3], "seed": [1, 2, 3]}}
    r = d.ask("POST", "/v1/arrays", body)
    assert r.status == 201 and len(r.json["jobs"]) == 6 and r.headers["Location"] == "/v1/arrays/" + r.json["id"], r
    for id in r.json["jobs"]:
        d.until(id, "succeeded")
    a = d.get("/v1/arrays/" + r.json["id"])
    assert a["states"] == {"succeeded": 6} and {(j["values"]["learning_rate"], j["values"]["seed"]) for j in a["jobs"]} == {(l, s) for l in (1e-4, 1e-3) for s in (1, 2, 3)}, a
    assert len({d.job(j)["output_dir"] for j in r.json["jobs"]}) == 6 and len(d.get("/v1/jobs?array=" + r.json["id"])["items"]) == 6
    rand = {"spec": d.spec(max_steps=100000), "random": {"learning_rate": {"min": 1e-5, "max": 1e-2, "log": True}, "lora_rank": [4, 8]}, "count": 4, "seed": 9}
    r = d.ask("POST", "/v1/arrays", rand)
    a = d.get("/v1/arrays/" + r.json["id"])
    values = [j["values"] for j in a["jobs"]]
    assert len(values) == 4 and all(1e-5 <= v["learning_rate"] <= 1e-2 and v["lora_rank"] in (4, 8) for v in values), values
    again = d.ask("POST", "/v1/arrays", rand).json["id"]
    assert [j["values"] for j in d.get("/v1/arrays/" + again)["jobs"]] == values
    for id in (r.json["id"], again):
        assert d.ask("POST", f"/v1/arrays/{id}/cancel").status == 202
        for j in d.get("/v1/arrays/" + id)["jobs"]:
            d.until(j["id"], "cancelled")
    draws = {"spec": d.spec(max_steps=1), "random": {"seed": {"min": 1, "max": 3}}, "count": 24, "seed": 5}    # whole numbers: the ends as often as the middle
    r = d.ask("POST", "/v1/arrays", draws)
    state, expected = 5, []
    for _ in range(24):                 # splitmix64
        state = state + 0x9E3779B97F4A7C15 & 2**64 - 1
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
        z = (z ^ z >> 27) * 0x94D049BB133111EB & 2**64 - 1
        expected.append(1 + int(((z ^ z >> 31) >> 11) / 2**53 * 3))
    got = {j["id"]: j["values"]["seed"] for j in d.get("/v1/arrays/" + r.json["id"])["jobs"]}
    assert [got[j] for j in r.json["jobs"]] == expected and len(set(expected)) == 3, (got, expected)
    for j in r.json["jobs"]:
        d.until(j, "succeeded")
    many = list(range(1, 201))          # lists to draw from: their product is no number of jobs
    r = d.ask("POST", "/v1/arrays", {"spec": d.spec(max_steps=1), "random": {"seed": many, "lora_rank": many, "warmup_steps": many}, "count": 1})
    assert r.status == 201 and len(r.json["jobs"]) == 1, r
    d.until(r.json["jobs"][0], "succeeded")
    before = len(d.get("/v1/jobs?limit=200")["items"])
    for bad, ptr in (({"spec": d.spec(), "grid": {"lerning_rate": [1]}}, "/grid/lerning_rate"), ({"spec": d.spec(), "grid": {"seed": []}}, "/grid/seed"), ({"spec": d.spec()}, "/grid"),
                     ({"spec": d.spec(), "grid": {"seed": list(range(150)), "lora_rank": [1, 2]}}, "/grid"), ({"spec": d.spec(), "grid": {"seed": [1, -1]}}, "/seed"),
                     ({"grid": {"seed": [1]}}, "/spec"), ({"spec": d.spec(), "random": {"seed": {"min": 2, "max": 1}}, "count": 2}, "/random/seed"),
                     ({"spec": d.spec(), "random": {"seed": {"min": 1.2, "max": 1.8}}, "count": 2}, "/random/seed"), ({"spec": d.spec(), "random": {"seed": [1]}}, "/count"),
                     ({"spec": d.spec(), "grid": {"seed": [1, 2]}, "count": 3}, "/count"), ({"spec": d.spec(), "grid": {"seed": [1, 2]}, "seed": 3}, "/seed")):
        assert ptr in pointers(d.ask("POST", "/v1/arrays", bad)), bad
    assert len(d.get("/v1/jobs?limit=200")["items"]) == before
    problem(d.ask("GET", "/v1/arrays/a99"), 404)


def test_F50_webhooks(new):
    import hashlib, hmac, http.server, threading
    got, mode = [], {"fail": 1}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, dict(self.headers), body))
            if mode["fail"]:
                mode["fail"] -= 1
                self.send_response(500)
            elif self.path == "/redirect":
                self.send_response(307)
                self.send_header("Location", f"http://127.0.0.1:{server.server_address[1]}/hook")
            else:
                self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x" * 300000)

        def log_message(self, *a):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    at = f"http://127.0.0.1:{server.server_address[1]}"
    quiet = socket.create_server(("127.0.0.1", 0))          # accepts, never answers
    try:
        d = new()
        r = d.ask("POST", "/v1/webhooks", {"url": at + "/hook", "states": ["succeeded", "failed"]})
        assert r.status == 201, r
        secret = r.json["secret"]
        d.ask("POST", "/v1/webhooks", {"url": f"http://127.0.0.1:{quiet.getsockname()[1]}/"})
        d.ask("POST", "/v1/webhooks", {"url": "http://127.0.0.1:1/"})
        id = d.submit(name="hooked")
        d.until(id, "succeeded")
        end = time.monotonic() + 20
        while d.get("/v1/webhooks")["items"][0]["delivered"] < 1:
            assert time.monotonic() < end, d.get("/v1/webhooks")
            time.sleep(0.1)
        assert len(got) == 2 and got[0][1]["X-Ringmaster-Delivery"] == got[1][1]["X-Ringmaster-Delivery"]      # retried after the 500
        for path, h, body in got:
            want = hmac.new(secret.encode(), h["X-Ringmaster-Timestamp"].encode() + b"." + body, hashlib.sha256).hexdigest()
            assert h["X-Ringmaster-Signature"] == "sha256=" + want
            assert json.loads(body)["state"] == "succeeded" and json.loads(body)["id"] == id
        items = d.get("/v1/webhooks")["items"]
        assert items[2]["delivered"] == 0 and "refused" in items[2]["last_error"] and not any("secret" in x for x in items), items
        got.clear()
        hook = d.ask("POST", "/v1/webhooks", {"url": at + "/redirect"}).json["id"]
        assert d.ask("POST", f"/v1/webhooks/{hook}/test").status == 202
        time.sleep(1)
        assert [g[0] for g in got] == ["/redirect"]                   # redirects are not followed
        for bad in ("https://", "https://a@b/", "https://x:0/", "HTTPS://x/", "file:///etc/passwd", "ftp://x", "http://", "http://a@b/", "http://x:0/", "http://x:99999/", "http://x/\r\nEvil: 1", "http://x y/", "x"):
            assert "/url" in pointers(d.ask("POST", "/v1/webhooks", {"url": bad})), bad
        assert d.ask("DELETE", f"/v1/webhooks/{hook}").status == 204
        problem(d.ask("DELETE", f"/v1/webhooks/{hook}"), 404)
    finally:
        server.shutdown()
        quiet.close()


def certificates(folder):
    """A CA of our own; a server certificate of it, one for another name, one that is over, and one that nobody signed."""
    def run(*a):
        subprocess.run(["openssl", *a], check=True, capture_output=True, cwd=folder)
    run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=Test CA", "-addext", "basicConstraints=critical,CA:TRUE", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem")
    for name, san, days in (("good", "IP:127.0.0.1", "2"), ("other", "DNS:elsewhere.example", "2"), ("over", "IP:127.0.0.1", "-1")):
        run("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=" + name, "-keyout", name + ".key", "-out", name + ".csr")
        open(os.path.join(folder, name + ".ext"), "w").write("subjectAltName=" + san)
        run("x509", "-req", "-in", name + ".csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", days, "-extfile", name + ".ext", "-out", name + ".pem")
    run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=self", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-keyout", "self.key", "-out", "self.pem")


def test_F50_webhooks_over_https(new):
    import hashlib, hmac, http.server, shutil, ssl, threading
    if not shutil.which("openssl"):
        raise Skip("no openssl")
    got, servers = [], {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(302 if self.path == "/redirect" else 200)
            if self.path == "/redirect":
                self.send_header("Location", "/hook")
            self.end_headers()

        def log_message(self, *a):
            pass
    d = new(start=False)
    certificates(d.root)
    for name in ("good", "other", "over", "self"):
        servers[name] = s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        s.handle_error = lambda *a: None                    # handshakes fail here on purpose
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.path.join(d.root, name + ".pem"), os.path.join(d.root, name + ".key"))
        s.socket = context.wrap_socket(s.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=s.serve_forever, daemon=True).start()
    mute = socket.create_server(("127.0.0.1", 0))           # no handshake ever
    ports = {**{n: s.server_address[1] for n, s in servers.items()}, "mute": mute.getsockname()[1]}
    try:
        d.flags["webhook_ca"] = os.path.join(d.root, "ca.pem")
        d.start()
        made = {n: d.ask("POST", "/v1/webhooks", {"url": f"https://127.0.0.1:{p}/hook", "states": ["succeeded"]}).json for n, p in ports.items()}
        id = d.submit()
        d.until(id, "succeeded")

        def hook(name):
            return next(h for h in d.get("/v1/webhooks")["items"] if h["id"] == made[name]["id"])
        end = time.monotonic() + 40
        while hook("good")["delivered"] < 1 or not all(hook(n)["last_error"] for n in ("other", "over", "self", "mute")):
            assert time.monotonic() < end, d.get("/v1/webhooks")
            time.sleep(0.1)
        assert len(got) == 1, got                           # the others were never sent anything
        path, h, body = got[0]
        want = hmac.new(made["good"]["secret"].encode(), h["X-Ringmaster-Timestamp"].encode() + b"." + body, hashlib.sha256).hexdigest()
        assert h["X-Ringmaster-Signature"] == "sha256=" + want and json.loads(body)["id"] == id
        for name, sign in (("other", "subject name"), ("over", "certificate has expired"), ("self", "self-signed"), ("mute", "time")):
            assert sign in hook(name)["last_error"] and hook(name)["delivered"] == 0, hook(name)
        again = d.ask("POST", "/v1/webhooks", {"url": f"https://127.0.0.1:{ports['good']}/redirect", "states": ["failed"]}).json["id"]
        d.ask("POST", f"/v1/webhooks/{again}/test")
        while len(got) < 2:
            assert time.monotonic() < end
            time.sleep(0.1)
        d.kill()                                            # without webhook_ca the system's certificates count, and ours is not among them
        del d.flags["webhook_ca"]
        d.start()
        before = hook("good")["last_error"]
        d.ask("POST", f"/v1/webhooks/{made['good']['id']}/test")
        end = time.monotonic() + 40
        while hook("good")["last_error"] == before:
            assert time.monotonic() < end, hook("good")
            time.sleep(0.1)
        assert "certificate" in hook("good")["last_error"], hook("good")
        assert [g[0] for g in got] == ["/hook", "/redirect"], got
    finally:
        for s in servers.values():
            s.shutdown()
        mute.close()


def test_advice(new):
    d = new(env={"RM_FAKE_COMM": "0.5"})
    id = d.submit(max_steps=40)
    d.until(id, "succeeded")
    advice = [e["data"] for e in d.get(f"/v1/jobs/{id}/history?limit=1000")["items"] if e["kind"] == "advice"]
    assert [a["code"] for a in advice] == ["comm_share"] and "50 %" in advice[0]["text"], advice


def test_degrees_as_the_ranks_decided(new):
    why = 'auto: ulysses x 2, "measured" \u2192 \'so\''
    d = new(env={"RM_FAKE_PARALLEL": why})
    id = d.submit()
    d.until(id, "succeeded")
    plan = d.job(id)["plan"]
    assert plan["parallel"] == {"why": why, "ulysses": 2, "ring": 1} and plan["ok"] is True, plan


def test_import(new):
    d = new()
    r = d.ask("POST", "/v1/import", {"format": "swift", "text": "NPROC_PER_NODE=2 swift sft --model /m --dataset /d --train_type lora --lora_rank 16 --max_length 32768"})
    assert r.status == 200 and r.json["spec"]["lora_rank"] == 16 and r.json["spec"]["nproc_per_node"] == 2, r
    problem(d.ask("POST", "/v1/import", {"format": "swift", "text": "ls -l"}), 422)
    problem(d.ask("POST", "/v1/import", {"format": "other", "text": "x"}), 422)


def test_prometheus_backup_settings(new):
    d = new()
    d.until(d.submit(), "succeeded")
    r = d.ask("GET", "/metrics")
    text = r.body.decode()
    assert r.headers["Content-Type"].startswith("text/plain; version=0.0.4") and 'ringmaster_jobs{state="succeeded"} 1' in text
    for line in text.splitlines():
        assert re.match(r'^(# (HELP|TYPE) .+|[a-z_]+(\{[a-z]+="[^"]*"\})? -?[0-9.e+-]+)$', line), line
    r = d.ask("POST", "/v1/backups")
    import sqlite3
    c = sqlite3.connect(r.json["path"])
    assert c.execute("SELECT count(*) FROM jobs").fetchone() == (1,) and c.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    c.close()
    assert d.get("/v1/settings")["slots"] == 8
    d.until(d.submit(), "succeeded")
    busy = subprocess.run(d.args() + ["--restore", r.json["path"]], capture_output=True, timeout=30)
    assert busy.returncode == 1 and b"another ringmasterd" in busy.stderr, busy
    d.p.terminate()
    d.p.wait(10)
    bad = subprocess.run(d.args() + ["--restore", "/etc/hostname"], capture_output=True, timeout=30)
    assert bad.returncode == 1 and b"/etc/hostname" in bad.stderr, bad
    assert subprocess.run(d.args() + ["--restore", r.json["path"]], timeout=30, stdout=subprocess.DEVNULL).returncode == 0
    d.start()
    assert len(d.get("/v1/jobs")["items"]) == 1 and d.token and any(".replaced-" in f for f in os.listdir(d.home))


def test_settings_from_everywhere(new):
    d = new(start=False)
    os.makedirs(d.home)
    run = lambda *a, **env: subprocess.run([d.args()[0], "--home", d.home, *a], capture_output=True, env={**os.environ, **env}, timeout=30)
    r = run("--check", "--worker", FAKE, "--slots", "3", "--allow-root", d.data, "/tmp")
    assert r.returncode == 0 and b"slots 3" in r.stdout, r
    json.dump({"slots": 5, "allow_root": [d.data]}, open(os.path.join(d.home, "config.json"), "w"))
    assert b"slots 5" in run("--check").stdout
    assert b"slots 6" in run("--check", RINGMASTER_SLOTS="6").stdout
    assert b"slots 7" in run("--check", "--slots=7", RINGMASTER_SLOTS="6").stdout
    r = run("--check", "--slots", "x", "--unheard", "--port", "70000", "--bind", "0.0.0.0")
    assert r.returncode == 2 and all(w in r.stderr for w in (b"--slots", b"--unheard", b"--port", b"--remote")), r
    json.dump({"slots": True, "slotz": 1}, open(os.path.join(d.home, "config.json"), "w"))
    r = run("--check")
    assert r.returncode == 2 and b"slotz" in r.stderr and b"config.json: slots" in r.stderr, r
    assert b"--allow-root" in run("--help").stdout


def test_tls(new):
    import http.client, shutil, ssl
    if not shutil.which("openssl"):
        return
    d = new(start=False)
    cert, key = os.path.join(d.root, "c.pem"), os.path.join(d.root, "k.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-keyout", key, "-out", cert], check=True, capture_output=True)
    half = subprocess.run(d.args() + ["--tls-cert", cert], capture_output=True, timeout=20)
    assert half.returncode == 2 and b"tls_key" in half.stderr, half
    wrong = subprocess.run(d.args() + ["--tls-cert", key, "--tls-key", cert], capture_output=True, timeout=20)
    assert wrong.returncode == 1 and b"tls_cert" in wrong.stderr, wrong
    d.flags.update(tls_cert=cert, tls_key=key)
    d.start(ready=False)
    assert open(os.path.join(d.home, "url")).read().startswith("https://")
    c = http.client.HTTPSConnection("127.0.0.1", d.port, timeout=20, context=ssl.create_default_context(cafile=cert))
    c.request("GET", "/healthz")
    assert c.getresponse().read() == b'{"status":"ok"}\n'
    c.request("GET", "/?token=" + d.token)
    r = c.getresponse()
    assert r.status == 303 and "; Secure;" in r.headers["Set-Cookie"]


def test_F35_slow_and_broken_clients(new):
    d = new(request_timeout_ms=2000)
    drips = []
    for i in range(30):
        s = socket.create_connection(("127.0.0.1", d.port))
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" if i % 2 else b"G")
        drips.append(s)
    for garbage in (b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 100 + b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost 127\r\n\r\n", b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
                    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: " + b"y" * 100000 + b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"):
        s = socket.create_connection(("127.0.0.1", d.port))
        try:
            s.sendall(garbage)
            s.settimeout(0.2)
            s.recv(1000)
        except OSError:
            pass
        s.close()
    began = time.monotonic()
    assert d.ask("GET", "/healthz", token=None).status == 200 and time.monotonic() - began < 2
    end = time.monotonic() + 12         # the deadline holds, whatever drips in
    for i, s in enumerate(drips):
        s.setblocking(False)
    alive = set(range(30))
    while alive and time.monotonic() < end:
        for i in list(alive):
            try:
                drips[i].send(b"x" if i % 2 else b"E")
                if drips[i].recv(100) == b"":
                    alive.discard(i)
            except BlockingIOError:
                pass
            except OSError:
                alive.discard(i)
        time.sleep(0.5)
    assert not alive, len(alive)
    assert d.ask("GET", "/healthz", token=None).status == 200


if __name__ == "__main__":
    main(globals())
