#!/usr/bin/env python3
"""Compiles the attention kernels for each architecture and holds ptxas's numbers against the budget file: registers, and no spills
at head widths 64 and 128. No GPU needed. usage: ptxas.py SOURCE NVCC"""
import pathlib
import re
import subprocess
import sys
import tempfile

source, nvcc = pathlib.Path(sys.argv[1]), sys.argv[2]
budget = {}
for line in (source / "tests/gpusim/registers.txt").read_text().splitlines():
    if line and not line.startswith("#"):
        kernel, width, registers, spills = line.split()
        budget[kernel, int(width)] = int(registers), int(spills)

bad, seen = [], set()
with tempfile.TemporaryDirectory() as work:
    for arch in ("80", "86", "90"):
        for unit in ("attention_fwd", "attention_bwd"):
            done = subprocess.run([nvcc, "-std=c++17", "-O3", f"-arch=sm_{arch}", "-Xptxas", "-v", "-I", str(source), "-cubin", "-o", f"{work}/x.cubin",
                                   str(source / f"kernels/cuda/{unit}.cu")], capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            for name, width, spills, registers in re.findall(
                    r"Compiling entry function '\S*?\d+((?:fwd|bwd)\w*?_kernel)ILi(\d+)E\S*'.*?(\d+) bytes spill stores.*?Used (\d+) registers", done.stderr, re.S):
                width, spills, registers = int(width), int(spills), int(registers)
                seen.add((name, width))
                most, most_spills = budget.get((name, width), (0, 0))
                mark = "" if registers <= most and spills <= most_spills else "   OVER"
                print(f"sm_{arch} {name} {width}: {registers} registers (budget {most}), {spills} bytes spilled (budget {most_spills}){mark}")
                if mark:
                    bad.append((arch, name, width))
missing = set(budget) - seen
if missing:
    print("in the budget but not compiled:", missing)
sys.exit(1 if bad or missing or not seen else 0)
