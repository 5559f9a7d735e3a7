#!/usr/bin/env python3
"""Random tokenizers on random texts, beside the Python package `tokenizers`: every part, in combinations nobody would write by hand.

usage: tokenizer_random.py WORKER [SEED [COUNT]]      exits 77 without the package (0.22 is the reference: 0.23 decodes added tokens otherwise)
"""
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    from tokenizers import Tokenizer, __version__
except ImportError:
    print("SKIP: the Python package tokenizers is not here")
    sys.exit(77)

worker = sys.argv[1]
first, count = int(sys.argv[2]) if len(sys.argv) > 2 else 0, int(sys.argv[3]) if len(sys.argv) > 3 else 40

PATTERNS = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\w+|[^\w\s]+", r"[a-c]|\d", r"\s+$", r"^", r"(?<=a)b|(?i)ss", r"[^a[bc]]+", r"\p{Lu}\p{Ll}*", r"[[:punct:]]+", r"\b", r"a{,2}", r".", r"(.)\1*", r" {2,}", r"[\W_]+"]
PIECES = list("abcdeABCD  \t\n.,!?'123_-Ⅻ²½éèüßİſKﬁ中文字的かなカナ한국👍🏽🎉\u200d\u0301\u0327\u3000\u00a0\u2028א؟ा١٢\0▁<>|x") + [
    "<s>", "</s>", "<0x41>", "the ", "ing", " the", "'LL", "\r\n", "  ", "e\u0301", "ΑΣ", "Å"]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def byte_characters():
    shown, spare, out = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)], 256, []
    for b in range(256):
        out.append(chr(b if b in shown else spare))
        spare += b not in shown
    return out


BYTES = byte_characters()


def some_text(r):
    return "".join(r.choice(PIECES) for _ in range(r.choice([0, 1, 2, 5, 10, 30, 80])))


def some_pattern(r):
    return r.choice([{"String": r.choice([" ", "▁", "a", "\n", "ab"])}, {"Regex": r.choice(PATTERNS)}])


def some_wide_pattern(r):
    """One that matches no empty text: a Replace normalizer of those upsets the reference's own offsets."""
    return r.choice([{"String": r.choice([" ", "▁", "a", "\n", "ab"])}, {"Regex": r.choice([p for p in PATTERNS if p not in ("^", r"\b", "a{,2}")])}])


def some_list(r, make, depth):
    return [make(r, depth + 1) for _ in range(r.randint(0, 3 if depth < 2 else 0))]


def some_normalizer(r, depth=0):
    kind = r.choice(["NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Lowercase", "Strip", "StripAccents", "ByteLevel", "Sequence"])
    more = {"Prepend": lambda: {"prepend": r.choice(["▁", " ", "ab"])}, "Replace": lambda: {"pattern": some_wide_pattern(r), "content": r.choice(["▁", " ", "", "xx"])},
            "Strip": lambda: {"strip_left": r.random() < .5, "strip_right": r.random() < .5}, "Sequence": lambda: {"normalizers": some_list(r, some_normalizer, depth)}}
    return {"type": kind, **more.get(kind, dict)()}


def some_pre_tokenizer(r, depth=0):
    kind = r.choice(["Split", "Split", "ByteLevel", "Metaspace", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "CharDelimiterSplit", "BertPreTokenizer", "Sequence"])
    more = {"Split": lambda: {"pattern": some_pattern(r), "behavior": r.choice(BEHAVIORS), "invert": r.random() < .5},
            "ByteLevel": lambda: {"add_prefix_space": r.random() < .5, "trim_offsets": True, "use_regex": r.random() < .5},
            "Metaspace": lambda: {"replacement": "▁", "prepend_scheme": r.choice(["always", "never", "first"]), "split": r.random() < .5},
            "Digits": lambda: {"individual_digits": r.random() < .5}, "Punctuation": lambda: {"behavior": r.choice(BEHAVIORS)},
            "CharDelimiterSplit": lambda: {"delimiter": r.choice("a▁ ")}, "Sequence": lambda: {"pretokenizers": some_list(r, some_pre_tokenizer, depth)}}
    return {"type": kind, **more.get(kind, dict)()}


def some_decoder(r, depth=0):
    kind = r.choice(["ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "Sequence", "BPEDecoder"])
    more = {"ByteLevel": lambda: {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}, "Replace": lambda: {"pattern": some_pattern(r), "content": r.choice(["▁", "", "xx"])},
            "Strip": lambda: {"content": r.choice(" a▁"), "start": r.randint(0, 2), "stop": 0}, "BPEDecoder": lambda: {"suffix": r.choice(["a", "</w>"])},
            "Metaspace": lambda: {"replacement": "▁", "prepend_scheme": r.choice(["always", "never", "first"]), "split": True}, "Sequence": lambda: {"decoders": some_list(r, some_decoder, depth)}}
    return {"type": kind, **more.get(kind, dict)()}


def some_tokenizer(r):
    of_bytes = r.random() < .5
    base = [c for c in BYTES if r.random() < 1.01 - .1 * (r.random() < .05)] if of_bytes else sorted({c for p in PIECES for c in p if r.random() < .8})
    tokens = ["<unk>"] * (r.random() < .6) + (["<0x%02X>" % b for b in range(256)] if r.random() < .5 else []) + base
    tokens = list(dict.fromkeys(tokens))
    have, merges = set(tokens), []
    for _ in range(r.choice([0, 60, 300])):                                 # pairs that occur, and pairs of anything
        text = some_text(r)
        chars = [BYTES[b] for b in text.encode()] if of_bytes else list(text)
        pairs = list(zip(chars, chars[1:])) + [(r.choice(tokens), r.choice(tokens))]
        left, right = r.choice(pairs)
        if left in have and right in have and len(left + right) < 24:
            merges.append((left, right))
            if left + right not in have:
                have.add(left + right)
                tokens.append(left + right)
    vocab = {t: i for i, t in enumerate(tokens)}
    added, free = [], len(vocab)
    for content in r.sample(["<s>", "</s>", "<mask>", "the", "ing", "ab", "a", " a", "<|x", "<|", "▁▁", "é", "E", "123"], r.choice([0, 0, 2, 5])):
        added.append({"id": vocab.get(content, free), "content": content, "special": r.random() < .5,
                      **{flag: r.random() < .3 for flag in ("single_word", "lstrip", "rstrip", "normalized")}})
        free += content not in vocab
    post = None
    if added and r.random() < .5:
        a = added[0]
        post = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": a["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {a["content"]: {"id": a["content"], "ids": [a["id"]], "tokens": [a["content"]]}}}
    pre = some_pre_tokenizer(r) if r.random() < .9 else None
    if of_bytes and r.random() < .8:
        pre = {"type": "Sequence", "pretokenizers": [pre] * (pre is not None) + [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": r.random() < .3}]}
    spelled = r.random() < .5 and not any(" " in a + b for a, b in merges)
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": some_normalizer(r) if r.random() < .6 else None, "pre_tokenizer": pre,
            "post_processor": post, "decoder": some_decoder(r) if r.random() < .8 else None,
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>" if "<unk>" in vocab else None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": r.random() < .5, "byte_fallback": r.random() < .5, "ignore_merges": r.random() < .3, "vocab": vocab,
                      "merges": [" ".join(m) for m in merges] if spelled else [list(m) for m in merges]}}


def ask(folder, rows, *args):
    p = subprocess.run([worker, "--tokenize", "--model", folder, *args], input="".join(json.dumps(row) + "\n" for row in rows).encode(), capture_output=True)
    return p.returncode, [json.loads(line) for line in p.stdout.decode().split("\n")[:-1]], p.stderr.decode()


def answer(ask_it, *args, **options):
    try:
        return ask_it(*args, **options)
    except BaseException as e:                                              # the reference itself panics at some offsets
        if isinstance(e, KeyboardInterrupt):
            raise
        return None


def compare(seed, folder):
    r = random.Random(seed)
    file = some_tokenizer(r)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(file, f)
    reference = Tokenizer.from_str(json.dumps(file))
    known = [(t, answer(reference.encode, t)) for t in (some_text(r) for _ in range(30))]
    texts, want = [t for t, e in known if e is not None], [e.ids for _, e in known if e is not None]
    rc, rows, err = ask(folder, [{"text": t} for t in texts])
    if rc != 0 and "is empty once normalized" in err:
        return True                                                         # refused on purpose
    parts = {k: file[k] for k in ("added_tokens", "normalizer", "pre_tokenizer", "decoder")}
    if rc != 0 or [row["ids"] for row in rows] != want:
        print("seed", seed, err, json.dumps(parts), next(((t, w, row["ids"]) for t, w, row in zip(texts, want, rows) if w != row["ids"]), None))
        return False
    decoded = [answer(reference.decode, ids, skip_special_tokens=False) for ids in want]
    rc, rows, err = ask(folder, [{"ids": ids} for ids in want], "--decode")
    if rc != 0 or (__version__.startswith("0.22") and any(w not in (None, row["text"]) for w, row in zip(decoded, rows))):
        print("seed", seed, "decoding:", err, json.dumps(parts), next(((w, row["text"]) for w, row in zip(decoded, rows) if w not in (None, row["text"])), None))
        return False
    return True


with tempfile.TemporaryDirectory() as folder:
    wrong = sum(not compare(seed, folder) for seed in range(first, first + count))
print("%d tokenizers, %d wrong" % (count, wrong))
sys.exit(wrong > 0)
