#!/usr/bin/env python3
"""How the coordinator answers under load: p50/p99 of GET /v1/jobs, idle and with watchers and frames. usage: coordinator.py [CLIENTS] [FRAMES_PER_S] [SECONDS]"""
import os, selectors, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "daemon"))
import http.client
import rig


def percentiles(d, seconds):
    c, took = http.client.HTTPConnection("127.0.0.1", d.port), []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        t = time.monotonic()
        c.request("GET", "/v1/jobs", headers={"Authorization": "Bearer " + d.token})
        r = c.getresponse()
        r.read()
        assert r.status == 200
        took.append(1000 * (time.monotonic() - t))
        time.sleep(0.01)
    took.sort()
    return took[len(took) // 2], took[len(took) * 99 // 100], took[-1], len(took)


def watch(port, token, n):
    """A process of its own, so that reading does not slow the measuring down: opens n streams, reads what comes, prints bytes."""
    import resource, socket
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    sel, total = selectors.DefaultSelector(), 0
    for _ in range(n):
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        s.setblocking(False)
        sel.register(s, selectors.EVENT_READ)
    print("open", flush=True)
    while True:
        for k, _ in sel.select(1):
            try:
                data = k.fileobj.recv(65536)
            except BlockingIOError:
                continue
            if not data:
                sel.unregister(k.fileobj)


def main():
    clients, rate, seconds = [int(a) for a in sys.argv[1:4]] + [500, 1000, 10][len(sys.argv) - 1:]
    ranks = 4
    d = rig.Daemon(step_s=ranks / rate, env={"RM_FAKE_PACED": "1"})
    try:
        for _ in range(20):
            d.until(d.submit(nproc_per_node=1, max_steps=2), *rig.FINAL)
        idle = percentiles(d, seconds / 2)
        watcher = subprocess.Popen([sys.executable, __file__, "--watch", str(d.port), d.token, str(clients)], stdout=subprocess.PIPE)
        watcher.stdout.readline()
        id = d.submit(nproc_per_node=ranks, max_steps=10 ** 7)
        d.until(id, "running")
        before, t = d.ask("GET", "/metrics").body.decode(), time.monotonic()
        figure = lambda text, name: int([l for l in text.splitlines() if l.startswith(name + " ")][0].split()[1])
        records = lambda text: figure(text, "ringmaster_records_total")
        assert figure(before, "ringmaster_event_streams") == clients, before
        cpu = lambda: sum(map(int, open(f"/proc/{d.p.pid}/stat").read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")
        used = cpu()
        load = percentiles(d, seconds)
        spent = time.monotonic() - t
        got = (records(d.ask("GET", "/metrics").body.decode()) - records(before)) / spent
        rss = int(open(f"/proc/{d.p.pid}/statm").read().split()[1]) * 4
        print(f"idle: p50 {idle[0]:.1f} ms, p99 {idle[1]:.1f} ms ({idle[3]} requests)")
        print(f"{clients} watchers, {got:.0f} records/s: p50 {load[0]:.1f} ms, p99 {load[1]:.1f} ms, worst {load[2]:.1f} ms ({load[3]} requests); "
              f"p99 ratio {load[1] / idle[1]:.1f}; daemon {100 * (cpu() - used) / spent:.0f} % of a core, {rss} kB")
        watcher.kill()
        watcher.wait()
        fds = lambda: len(os.listdir(f"/proc/{d.p.pid}/fd"))
        t = time.monotonic()
        while fds() > 40 and time.monotonic() - t < 30:
            time.sleep(0.1)
        print(f"after the watchers were killed: {fds()} descriptors, {time.monotonic() - t:.1f} s later")
    finally:
        d.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--watch"]:
        watch(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        main()
