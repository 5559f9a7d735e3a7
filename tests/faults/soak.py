#!/usr/bin/env python3
"""F58: small jobs one after the other, on four lanes; memory, descriptors, threads, database and children of the coordinator must stay flat.

usage: soak.py [MINUTES]      prints one line per sample, then for each figure its slope per 1,000 jobs over the last two thirds of the run
with two standard errors (least squares), and fails where a slope is above its limit by more than these. Figures: rss_kb; heap_kb, allocated
and not freed, without what SQLite holds; sqlite_kb, its page cache above all (it grows with the database, up to 2 MB); db_kb, database and
write-ahead log; open descriptors, threads, children, zombies. Samples are taken between jobs: what a running job holds is no leak. Only 2,000
events and audit entries are kept (keep_events), and a job that never starts fills these first, so that the database has its full size soon."""
import os, sqlite3, sys, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "daemon"))
import rig

LANES, SAMPLES, WARM_UP = 4, 60, 1100
# Above this rise per 1,000 jobs a figure is not flat. 100 kB: 1 MB over the 10,000 jobs of three days.
LIMIT = {"rss_kb": 100, "heap_kb": 10, "sqlite_kb": 100, "db_kb": 200, "fds": 0.5, "threads": 0.1, "children": 0.5, "zombies": 0.5}


def children(parent):
    """States of the processes whose parent this is."""
    found = []
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, ppid = open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if int(ppid) == parent:
            found.append(state)
    return found


def look(d):
    lines = [l.split() for l in d.ask("GET", "/metrics").body.decode().splitlines() if not l.startswith("#")]
    m = {l[0]: float(l[1]) for l in lines}
    kids, proc = children(d.p.pid), f"/proc/{d.p.pid}"
    files = [os.path.join(d.home, f) for f in ("ringmaster.db", "ringmaster.db-wal")]
    return {"rss_kb": m["process_resident_memory_bytes"] / 1024, "heap_kb": (m["ringmaster_heap_bytes"] - m["ringmaster_store_heap_bytes"]) / 1024,
            "sqlite_kb": m["ringmaster_store_heap_bytes"] / 1024, "db_kb": sum(os.path.getsize(f) for f in files if os.path.exists(f)) / 1024,
            "fds": len(os.listdir(proc + "/fd")), "threads": len(os.listdir(proc + "/task")), "children": len(kids), "zombies": kids.count("Z")}


def slope(x, y):
    """Least squares: rise of y per x, and its standard error."""
    n, mx, my = len(x), sum(x) / len(x), sum(y) / len(y)
    sxx = sum((a - mx) ** 2 for a in x)
    b = sum((a - mx) * (c - my) for a, c in zip(x, y)) / sxx
    rest = sum((c - my - b * (a - mx)) ** 2 for a, c in zip(x, y))
    return b, (rest / (n - 2) / sxx) ** 0.5


def fill(d):
    """Events and audit entries, until old ones are removed."""
    never = d.submit(max_steps=10 ** 6, nproc_per_node=1)
    waits = d.submit(after=[never])
    for _ in range(WARM_UP):
        d.ask("POST", f"/v1/jobs/{waits}/pause")
        d.ask("POST", f"/v1/jobs/{waits}/resume")
    for id in (waits, never):
        d.ask("POST", f"/v1/jobs/{id}/kill")
        d.until(id, "cancelled")
    d.kill()                # from here on ids have one length: kept events would grow by a digit otherwise
    c = sqlite3.connect(os.path.join(d.home, "ringmaster.db"))
    c.execute("UPDATE sqlite_sequence SET seq=seq+1000000 WHERE name IN ('jobs', 'events')")
    c.commit()
    c.close()
    d.start()


def lane(d, k, busy, run, over, done, wrong):
    n = 0
    while not over.is_set():
        run.wait()
        try:
            with busy:
                id = d.submit(nproc_per_node=1, max_steps=5, name=f"lane {k}")
                if n % 5 == 4:
                    d.ask("POST", f"/v1/jobs/{id}/cancel")
                d.until(id, *rig.FINAL, limit=120)
                assert d.ask("DELETE", "/v1/jobs/" + id).status == 204
        except BaseException as e:
            wrong.append(repr(e)[:500])
            return
        n += 1
        done[k] = n


def main():
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 20
    d = rig.Daemon(step_s=0.005, keep_events=2000, env={"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"})       # what is cached per thread counts as allocated
    done, wrong, samples, over, run = [0] * LANES, [], [], threading.Event(), threading.Event()
    busy = [threading.Lock() for _ in range(LANES)]
    lanes = [threading.Thread(target=lane, args=(d, k, busy[k], run, over, done, wrong), daemon=True) for k in range(LANES)]
    try:
        fill(d)
        [t.start() for t in lanes]
        began = time.monotonic()
        for i in range(SAMPLES + 1):
            run.clear()
            for b in busy:          # each lane ends its job
                b.acquire()
                b.release()
            while d.alive_now():    # a keeper stays a moment longer than its job
                time.sleep(0.05)
            s = {"min": round((time.monotonic() - began) / 60, 2), "jobs": sum(done), **look(d)}
            samples.append(s)
            print("  ".join(f"{k} {v:g}" if k == "min" else f"{k} {v:.0f}" for k, v in s.items()), flush=True)
            run.set()
            if wrong:
                break
            time.sleep(max(0, began + minutes * 60 * (i + 1) / SAMPLES - time.monotonic()) if i < SAMPLES else 0)
        over.set()
        [t.join() for t in lanes]
        assert not wrong, wrong
    finally:
        over.set()
        run.set()
        d.end()
    late = samples[len(samples) // 3:]
    bad = []
    print(f"{samples[-1]['jobs']} jobs in {minutes:g} minutes; from minute {late[0]['min']:g} on, per 1,000 jobs:")
    for name, limit in LIMIT.items():
        b, e = slope([s["jobs"] / 1000 for s in late], [s[name] for s in late])
        verdict = "rises" if b - 2 * e > limit else "flat" if b + 2 * e <= limit else "not decided: too short"
        bad += [name] if verdict == "rises" else []
        print(f"  {name:10} {late[0][name]:8.0f} -> {late[-1][name]:8.0f}   slope {b:+8.2f} +- {2 * e:.2f}   limit {limit:g}   {verdict}")
    assert not bad, f"not flat: {bad}"


main()
