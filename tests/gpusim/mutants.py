#!/usr/bin/env python3
"""Plants one bug at a time in a copy of a CUDA kernel and demands that the emulated kernel test notices it: proof that the
detectors detect. usage: mutants.py SOURCE BUILD CUDA_HEADERS TEST [NAME]

With --races TEST is built for ThreadSanitizer: it must be clean itself, and name each planted race.
usage: mutants.py SOURCE BUILD CUDA_HEADERS TEST --races [NAME]"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

source, build, headers, test = (pathlib.Path(a) for a in sys.argv[1:5])
races = "--races" in sys.argv
only = sys.argv[-1] if len(sys.argv) > 5 + races else ""

# name, file, text, replacement
MUTANTS = [
    ("fwd: no wait for K", "attention_fwd.cu", "cp_async_wait<1>();\n        __syncthreads();\n\n        float s", "__syncthreads();\n\n        float s"),
    ("fwd: no wait for V", "attention_fwd.cu", "        cp_async_wait<1>();\n        __syncthreads();\n#pragma unroll\n        for (int kk = 0; kk < BN", "        __syncthreads();\n#pragma unroll\n        for (int kk = 0; kk < BN"),
    ("fwd: V overwritten early", "attention_fwd.cu", "        __syncthreads();        // V is free again\n", ""),
    ("fwd: K overwritten early", "attention_fwd.cu", "        __syncthreads();        // everybody is done with K: the next block may overwrite it\n", ""),
    ("fwd: quad maximum over two lanes only", "attention_fwd.cu", "            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));\n", ""),
    ("fwd: incoming sum counted four times", "attention_fwd.cu", "old > -CUDART_INF_F && lane % 4 == 0 ? 1.0f", "old > -CUDART_INF_F ? 1.0f"),
    ("fwd: base-2 LSE", "attention_fwd.cu", "top[r] * LN2 + logf(total)", "top[r] + log2f(total)"),
    ("fwd: mask never applied", "attention_fwd.cu", "bool edge = walk.edge();", "bool edge = false;"),
    ("bwd: masked P not zeroed", "attention_bwd.cu", "bool seen = visible(mask,", "bool seen = true || visible(mask,"),
    ("bwd: no barrier before the next Q", "attention_bwd.cu", "                __syncthreads();        // the last block's readers are done with Q, dO and the row sums\n", ""),
    ("bwd: delta not subtracted", "attention_bwd.cu", "prob * (dp[j][e] - row_delta[i])", "prob * dp[j][e]"),
    ("bwd: dQ not scaled", "attention_bwd.cu", "out[c] += dq[j][2 * r + e] * p.scale", "out[c] += dq[j][2 * r + e]"),
    ("tile: no swizzle", "tile.cuh", "((chunk ^ (row & 7)) << 4)", "(chunk << 4)"),
    ("tile: diagonal off by one", "tile.cuh", "return distance <= m.top", "return distance < m.top"),
    ("tile: window off by one", "tile.cuh", "distance > m.bottom", "distance >= m.bottom"),
    ("norm: no barrier in the sum", "common.cuh", "    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;\n    __syncthreads();\n", "    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;\n"),
    ("spans: ragged tiles lost", "spans.cu", "tiles += (rows + tile - 1) / tile", "tiles += rows / tile"),
    ("rope: unpack without the second copy", "rope.cu", "for (int64_t u = 0; u < U; u++) {\n            int64_t j = head", "for (int64_t u = 0; u < 1; u++) {\n            int64_t j = head"),
    ("loss: unlabelled rows keep their logits", "loss.cu", "            if (grad)\n                for (int64_t c = threadIdx.x; c < V; c += THREADS) zn[c] = from_float<T>(0.0f);\n", ""),
]
RACES = [
    ("norm: no barrier in the sum", "common.cuh", "    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;\n    __syncthreads();\n", "    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;\n"),
    ("fwd: incoming lse read beside its writer", "attention_fwd.cu", "    __syncwarp();               // every lane has read the incoming lse", "    // every lane has read the incoming lse"),
    ("bwd: no barrier before the next Q", "attention_bwd.cu", "                __syncthreads();        // the last block's readers are done with Q, dO and the row sums\n", ""),
    ("sumsq: blocks meet in one place", "optimizer.cu", "parts[blockIdx.x] = ", "parts[0] = "),
]
UNITS_OF = {"tile.cuh": ["attention_fwd.cu", "attention_bwd.cu"], "common.cuh": ["norm.cu"]}
FLAGS = ["-std=gnu++17", "-O1", "-DGPUSIM", "-fno-strict-aliasing", "-fno-optimize-sibling-calls", "-w", "-I", str(source / "tests/gpusim"), "-isystem", str(headers)]


def objects():
    """The test's own objects and libraries, from its link line in build.ninja."""
    text = (build / "build.ninja").read_text()
    name = os.path.relpath(test, build)
    start = text.index(f"build {name}:")
    block = text[start:text.index("\n\n", start)]
    inputs = block.split("\n")[0].split("|")[0].split(": ", 1)[1].split()[1:]
    link = next(line.split("=", 1)[1].split() for line in block.split("\n") if line.strip().startswith("LINK_ARGS"))
    return inputs, link


def run(mutant):
    name, file, old, new = mutant
    with tempfile.TemporaryDirectory() as work:
        copy = pathlib.Path(work)
        (copy / "kernels").mkdir()
        subprocess.run(["cp", "-r", source / "kernels/cuda", copy / "kernels/"], check=True)
        for part in ("kernels.h", "random.h"):
            subprocess.run(["cp", source / "kernels" / part, copy / "kernels/"], check=True)
        target = copy / "kernels/cuda" / file
        text = target.read_text()
        if old not in text:
            return name, "the text to change is not there: bring mutants.py up to date"
        target.write_text(text.replace(old, new))
        made = []
        flags = FLAGS + (["-fsanitize=thread"] if races else [])
        for unit in UNITS_OF.get(file, [file]):
            out = copy / (unit + ".o")
            subprocess.run(["g++", *flags, "-I", str(copy), "-I", str(source), "-x", "c++", "-c", str(copy / "kernels/cuda" / unit), "-o", str(out)], check=True)
            made.append(str(out))
        program = copy / "mutant"
        inputs, link = objects()
        # the mutants come first: the library's own unit of that name is then not taken
        subprocess.run(["g++", *made, *inputs, "-o", str(program), "-Wl,--allow-multiple-definition", *link], cwd=build, check=True)
        return name, judge(program, file)


def judge(program, file):
    """Empty when the program notices that something is wrong with it."""
    part = {"CK_RUN_CASE": "attention" if file.split("_")[0].split(".")[0] in ("attention", "tile", "spans") else "local"}
    if races:
        return "" if b"data race" in emulate(program, "0", part).stderr else "not named"
    return "" if any(emulate(program, seed, part).returncode for seed in ("0", "1")) else "not noticed"


def emulate(program, seed, env={}):
    env = {**os.environ, "GPUSIM_SEED": seed, "OMP_NUM_THREADS": "1", "TSAN_OPTIONS": "halt_on_error=1", **env}
    try:
        return subprocess.run([program], env=env, capture_output=True, timeout=300)
    except subprocess.TimeoutExpired as slow:
        return subprocess.CompletedProcess(program, 124, b"", slow.stderr or b"")


failed = 0
if races:
    clean = emulate(test, "0")
    print(f"{'clean' if clean.returncode == 0 else 'RACES'}  the kernels as they are\n{clean.stderr.decode() if clean.returncode else ''}", flush=True)
    failed += clean.returncode != 0
with concurrent.futures.ThreadPoolExecutor(max(1, min(2, os.cpu_count() or 1))) as pool:
    for name, problem in pool.map(run, [m for m in (RACES if races else MUTANTS) if only in m[0]]):
        print(f"{'MISSED' if problem else 'caught'}  {name}{': ' + problem if problem else ''}", flush=True)
        failed += bool(problem)
sys.exit(1 if failed else 0)
