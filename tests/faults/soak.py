#!/usr/bin/env python3
"""F58 in short: one small job after the other; memory, descriptors, database and zombies must stay flat. usage: soak.py [MINUTES]"""
import os, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "daemon"))
import rig


def look(d, n):
    d.get("/v1/jobs")
    rows = {"jobs": n, "rss_kb": int(open(f"/proc/{d.p.pid}/statm").read().split()[1]) * 4, "fds": len(os.listdir(f"/proc/{d.p.pid}/fd")),
            "db_kb": sum(os.path.getsize(os.path.join(d.home, f)) for f in os.listdir(d.home) if f.startswith("ringmaster.db")) // 1024,
            "children": sum(1 for p in filter(str.isdigit, os.listdir("/proc")) if parent(p) == d.p.pid)}
    print("  ".join(f"{k} {v}" for k, v in rows.items()), flush=True)
    return rows


def parent(p):
    try:
        return int(open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def main():
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 20
    d = rig.Daemon(step_s=0.005)
    try:
        end, n, seen = time.monotonic() + 60 * minutes, 0, []
        mark = time.monotonic()
        while time.monotonic() < end:
            id = d.submit(nproc_per_node=1, max_steps=5)
            if n % 5 == 4:
                d.ask("POST", f"/v1/jobs/{id}/cancel")
            d.until(id, *rig.FINAL)
            assert d.ask("DELETE", "/v1/jobs/" + id).status == 204
            n += 1
            if time.monotonic() > mark:
                seen.append(look(d, n))
                mark += 60 * minutes / 20
        seen.append(look(d, n))
        first, last = seen[len(seen) // 4], seen[-1]
        assert last["rss_kb"] - first["rss_kb"] < 4096, "memory grows"
        assert last["fds"] <= first["fds"] + 4 and last["children"] <= 1, "descriptors or children stay"
    finally:
        d.end()
    print("flat")


main()
