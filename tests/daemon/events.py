#!/usr/bin/env python3
"""Event streams: replay, order, slow and dead readers. usage: events.py [test_name…]"""
import os, resource, socket, struct, sys, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rig import SANITIZED, main


def fds(d):
    return len(os.listdir(f"/proc/{d.p.pid}/fd"))


def rss(d):
    return int(open(f"/proc/{d.p.pid}/statm").read().split()[1]) * 4096


def test_order_replay_and_end(new):
    d = new(step_s=0.1)
    s = d.stream()
    assert s.next()[0] == "hello"
    id = d.submit(max_steps=15)
    one = d.stream(f"/v1/jobs/{id}/events")
    seen = s.until(lambda e: e[0] == "job" and e[2]["data"]["state"] == "succeeded")
    s.close()
    ids = [i for _, i, _ in seen if i is not None]
    assert ids == sorted(set(ids)), ids
    states = [e[2]["data"]["state"] for e in seen if e[0] == "job"]
    assert states == ["queued", "starting", "running", "stopping", "succeeded"], states
    figures = [e for e in seen if e[0] == "metrics"]
    assert figures and all(e[1] is None and len(e[2]["ranks"]) >= 1 for e in figures)
    assert one.until(lambda e: e[0] == "end") and one.next() is None
    # from any point on: the same events, none twice, none missing; also after a restart
    d.kill()
    d.start()
    for at in (ids[0], ids[len(ids) // 2], ids[-2]):
        r = d.stream(headers={"Last-Event-ID": str(at)})
        assert r.next()[0] == "hello"
        got = []
        while not got or got[-1] < ids[-1]:
            got.append(r.next()[1])
        assert got == [i for i in ids if i > at], (at, got)
        r.close()
    again = d.stream(f"/v1/jobs/{id}/events?after={ids[0]}")
    got = again.until(lambda e: e[0] == "end")
    assert [e[2]["data"]["state"] for e in got if e[0] == "job"] == states[1:], got
    for odd in ("999999", "garbage", "-1", "18446744073709551616", "1e3"):
        r = d.stream(headers={"Last-Event-ID": odd})
        assert r.next()[0] == "reset", odd
        r.close()


def test_heartbeats_and_dead_readers(new):
    d = new(max_streams=300)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    d.get("/v1/jobs")
    base = fds(d)
    streams = [d.stream() for _ in range(200)]
    for s in streams:
        assert s.next()[0] == "hello"
    assert fds(d) >= base + 195, (fds(d), base)
    full = rss(d)
    for i, s in enumerate(streams):
        if i % 2:
            s.s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))     # RST
        s.r.close()
        s.close()
    end = time.monotonic() + 17          # three heartbeats
    while fds(d) > base + 5:
        assert time.monotonic() < end, (fds(d), base)
        time.sleep(0.2)
    more = [d.stream() for _ in range(200)]
    for s in more:
        s.next()
    assert SANITIZED or rss(d) - full < 8 << 20, "memory grows with every round"
    quiet = more[0]
    quiet.s.settimeout(12)
    d.submit(nproc_per_node=1)
    quiet.until(lambda e: e[0] == "job" and e[2]["data"]["state"] == "succeeded")
    for s in more:
        s.r.close()
        s.close()


def test_too_many_streams(new):
    d = new(max_streams=3)
    open_ = [d.stream() for _ in range(3)]
    r = d.ask("GET", "/v1/events")
    assert r.status == 503 and r.headers["Retry-After"], r
    assert d.ask("GET", "/v1/jobs").status == 200
    [s.close() for s in open_]


def test_F37_reader_that_never_reads(new):
    d = new(step_s=0.002)
    lazy = d.stream(rcvbuf=4096)
    before = rss(d)
    eager = d.stream()
    ids = [d.submit(max_steps=300, name="x" * 190) for _ in range(4)]
    for id in ids:
        d.until(id, "succeeded")
    eager.until(lambda e: e[0] == "job" and e[2]["data"]["state"] == "succeeded")
    assert SANITIZED or rss(d) - before < 32 << 20
    lazy.close()
    eager.close()


if __name__ == "__main__":
    main(globals())
