"""Runs the functions test_* of a file, several at once (they mostly wait), and prints one line each. Standard library only.

What the tests are given, and how it is put away, is the business of tests/daemon/rig.py (a coordinator) and tests/keeper/harness.py (a keeper)."""
import atexit, concurrent.futures, os, shutil, sys, tempfile, traceback

ROOT = tempfile.mkdtemp(prefix="rm-tests-")     # of all that this process writes; gone when it ends
atexit.register(shutil.rmtree, ROOT, ignore_errors=True)
BUILD = os.environ.get("RM_BUILD") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build")


class Skip(Exception):
    """Raised by a test that lacks what it needs; says what."""


def sanitized(program):
    """Then memory and times mean nothing, and nothing may come first in the process."""
    return b"__asan_init" in open(os.path.join(BUILD, program), "rb").read()


def marked(nonces):
    """Everything alive that inherited one of these attempts' marks."""
    marks, found = {b"RINGMASTER_ATTEMPT=" + n.encode() for n in nonces}, []
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = set(open(f"/proc/{p}/environ", "rb").read().split(b"\0"))
            state = open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if env & marks and state not in "ZX":
            found.append(int(p))
    return found


def run(names, make, judge=lambda thing: None, workers=6):
    """names: a module's globals(), of which those named on the command line, or all. Each test gets a function that makes things with
    make(...); each thing made is judged if the test went well, and ended in any case. Exit status 77: all were skipped."""
    only = sys.argv[1:]
    tests = [(n, f) for n, f in names.items() if n.startswith("test_") and (not only or n in only)]
    failed = skipped = 0

    def one(f):
        live = []

        def new(*a, **kw):
            thing = make.__new__(make)
            live.append(thing)          # before it starts: it is ended also if that fails
            thing.__init__(*a, **kw)
            return thing
        try:
            f(new)
            for thing in live:
                judge(thing)
            return None
        except BaseException as e:
            try:
                for thing in live:
                    judge(thing)        # what a sanitizer found says more than what broke because of it
            except BaseException as cause:
                return cause
            return e
        finally:
            for thing in live:
                thing.end()

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for name, job in [(n, pool.submit(one, f)) for n, f in tests]:
            e = job.result()
            if e is None:
                print("ok  ", name)
            elif isinstance(e, Skip):
                skipped += 1
                print("skip", name, "-", e)
            else:
                failed += 1
                print("FAIL", name)
                traceback.print_exception(e)
            sys.stdout.flush()
    print(f"{len(tests) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed or not tests else 77 if skipped == len(tests) else 0)
