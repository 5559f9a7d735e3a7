#!/usr/bin/env python3
"""Trains the byte-level BPE of examples/tiny-qwen2 on examples/data/*.txt and writes its tokenizer.json and tokenizer_config.json.

usage: examples/make_tokenizer.py [--vocab N] [--out DIR] [TEXT…]

Needs Python alone. The same text always gives the same files: words are counted, the most frequent adjacent pair becomes one token
(ties: the pair whose spelling sorts first), until the vocabulary is full.
"""
import argparse
import collections
import glob
import heapq
import json
import os
import re
import unicodedata

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")


def byte_characters():
    """GPT-2's spelling of the 256 bytes as printable characters."""
    shown = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelling, spare = {}, 256
    for b in range(256):
        spelling[b] = chr(b if b in shown else spare)
        spare += b not in shown
    return spelling


def words_of(text):
    """Counts of the words that PATTERN cuts: \\p{L} and \\p{N}, which Python's re lacks, become the text's own letters and digits."""
    text = unicodedata.normalize("NFC", text)
    used = sorted(set(text))
    letters = "".join(re.escape(c) for c in used if unicodedata.category(c)[0] == "L")
    digits = "".join(re.escape(c) for c in used if unicodedata.category(c)[0] == "N")
    pattern = PATTERN
    for name, members in (("L", letters), ("N", digits)):
        pattern = pattern.replace(r"]?\p{%s}+" % name, "]?[%s]+" % members).replace(r"|\p{%s}|" % name, "|[%s]|" % members)
        pattern = pattern.replace(r"\p{%s}" % name, members)
    return collections.Counter(re.findall(pattern, text))


def train(counts, size):
    """Merges until there are size tokens: the list of (left, right)."""
    spelling = byte_characters()
    words = [[spelling[b] for b in w.encode()] for w in counts]
    freq = list(counts.values())
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, w in enumerate(words):
        for pair in zip(w, w[1:]):
            pairs[pair] += freq[i]
            where[pair].add(i)
    heap = [(-n, pair) for pair, n in pairs.items()]
    heapq.heapify(heap)
    tokens, merges = set(spelling.values()), []
    while len(tokens) < size and heap:
        n, pair = heapq.heappop(heap)
        if pairs[pair] != -n:                       # counted anew since
            continue
        if -n < 2:
            break
        merges.append(pair)
        tokens.add("".join(pair))
        changed = set()
        for i in sorted(where.pop(pair)):
            w = words[i]
            for old in zip(w, w[1:]):
                pairs[old] -= freq[i]
                changed.add(old)
            k, new = 0, []
            while k < len(w):
                both = k + 1 < len(w) and (w[k], w[k + 1]) == pair
                new.append(w[k] + w[k + 1] if both else w[k])
                k += 2 if both else 1
            words[i] = new
            for fresh in zip(new, new[1:]):
                pairs[fresh] += freq[i]
                where[fresh].add(i)
                changed.add(fresh)
        for c in changed:
            if pairs[c] > 0:
                heapq.heappush(heap, (-pairs[c], c))
    return merges


def write(path, value, indent=None):
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        json.dump(value, f, ensure_ascii=False, indent=indent, separators=None if indent else (",", ":"))
        f.write("\n")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--out", default=os.path.join(here, "tiny-qwen2"))
    parser.add_argument("text", nargs="*")
    args = parser.parse_args()
    counts = collections.Counter()
    for path in args.text or sorted(glob.glob(os.path.join(here, "data", "*.txt"))):
        with open(path, encoding="utf-8", newline="") as f:
            counts += words_of(f.read())
    merges = train(counts, args.vocab - len(SPECIAL))
    vocab = {}
    for token in SPECIAL + sorted(byte_characters().values()) + ["".join(m) for m in merges]:
        vocab.setdefault(token, len(vocab))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    write(os.path.join(args.out, "tokenizer.json"), {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": vocab[t], "content": t, **flags} for t in SPECIAL],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": [" ".join(m) for m in merges]}})
    write(os.path.join(args.out, "tokenizer_config.json"), {
        "add_bos_token": False, "add_prefix_space": False,
        "added_tokens_decoder": {str(vocab[t]): {"content": t, **flags} for t in SPECIAL},
        "bos_token": None, "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
        "errors": "replace", "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}, indent=2)


if __name__ == "__main__":
    main()
