#!/usr/bin/env python3
"""Makes data/long-documents.jsonl from data/persuasion.txt (Jane Austen, 1817, public domain).

Each chapter gives a few documents of unequal length: the beginning of a passage as the prompt, what follows as the answer.
Standard library only; the same text always gives the same file. usage: examples/make_dataset.py"""
import json
import pathlib
import re

here = pathlib.Path(__file__).resolve().parent
text = (here / "data/persuasion.txt").read_text(encoding="ascii")
chapters = re.split(r"(?m)^Chapter \d+\n", text)[1:]
sizes = [3000, 9000, 5500, 1500, 7000, 12000, 2200]     # characters; unequal, so that packing has something to do
rows, k = [], 0
for number, chapter in enumerate(chapters, 1):
    paragraphs = [" ".join(p.split()) for p in chapter.split("\n\n") if p.strip()]
    passage = ""
    for paragraph in paragraphs:
        passage += paragraph + "\n\n"
        if len(passage) >= sizes[k % len(sizes)]:
            cut = passage.index(" ", len(passage) // 3)
            rows.append({"instruction": f"Continue this passage from chapter {number} of Persuasion.",
                         "input": passage[:cut], "output": passage[cut:].strip()})
            passage, k = "", k + 1
with open(here / "data/long-documents.jsonl", "w", encoding="ascii") as f:
    for row in rows:
        f.write(json.dumps(row) + "\n")
print(f"{len(rows)} documents, {sum(len(r['input']) + len(r['output']) for r in rows)} characters")
