#!/usr/bin/env python3
"""Records per second from ranks to the database, in a burst: keeper, socket, daemon, commit. usage: ingest.py [RECORDS] [RANKS] [FIGURES]

Each of RANKS fake ranks sends its share of RECORDS at once, each with FIGURES numbers more than five; prints when the last was received and when it was
stored, counted from the first, the CPU time of keeper and daemon for it, and how GET /v1/jobs answered meanwhile."""
import os, sqlite3, sys, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "daemon"))
import rig


def cpu(pid):
    return sum(map(int, open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def main():
    records, ranks, figures = [int(a) for a in sys.argv[1:4]] + [40000, 4, 15][len(sys.argv) - 1:]
    d = rig.Daemon(fake="*:burst", env={"RM_FAKE_RECORDS": str(records // ranks), "RM_FAKE_FIGURES": str(figures)}, step_s=0.3)
    took, over = [], threading.Event()

    def ask():
        while not over.is_set():
            t = time.monotonic()
            d.get("/v1/jobs")
            took.append(1000 * (time.monotonic() - t))
            time.sleep(0.005)
    try:
        db = sqlite3.connect(f"file:{d.home}/ringmaster.db?mode=ro", uri=True, isolation_level=None)
        received = lambda: int(next(l for l in d.ask("GET", "/metrics").body.decode().splitlines() if l.startswith("ringmaster_records_total ")).split()[1])
        id = d.submit(nproc_per_node=ranks, max_steps=10000, stall_timeout_ms=120000)
        d.until(id, "running")
        keeper = d.db("SELECT pid FROM attempts")[0][0]
        threading.Thread(target=ask, daemon=True).start()
        while received() < 4 * ranks:
            time.sleep(0.005)
        first, used = time.monotonic(), (cpu(keeper), cpu(d.p.pid))
        while received() < records:
            time.sleep(0.01)
        got = time.monotonic() - first
        while db.execute("SELECT count(*) FROM metrics").fetchone()[0] < records:
            time.sleep(0.01)
        stored = time.monotonic() - first
        used = (cpu(keeper) - used[0], cpu(d.p.pid) - used[1])
        over.set()
        d.ask("POST", f"/v1/jobs/{id}/kill")
        d.until(id, "cancelled")
        rows, distinct, burst = d.db("SELECT count(*), count(DISTINCT seq), sum(step = 2) FROM metrics")[0]
        assert rows == distinct and burst == records + ranks, (rows, distinct, burst)
        took.sort()
        print(f"{records} records of {figures + 5} figures from {ranks} ranks: all received after {got:.2f} s ({records / got:.0f}/s), all stored after {stored:.2f} s ({records / stored:.0f}/s)")
        print(f"CPU time: keeper {used[0]:.2f} s, daemon {used[1]:.2f} s, {1e6 * sum(used) / records:.0f} us a record; GET /v1/jobs meanwhile p50 {took[len(took) // 2]:.1f} ms, "
              f"p99 {took[len(took) * 99 // 100]:.1f} ms, worst {took[-1]:.1f} ms; every record stored once")
    finally:
        over.set()
        d.end()


main()
