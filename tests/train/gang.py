"""A keeper in sixty lines for whole-program tests: spawns the ranks, answers their rendezvous, keeps what they say."""
import json
import os
import random
import selectors
import signal
import socket
import struct
import subprocess
import time


class Gang:
    """One run of a job. messages[rank] is every record a rank sent; codes[rank] its exit code (negative: a signal)."""

    def __init__(self, worker, spec_path, world, extra=(), on_message=None, timeout=120, env=None):
        self.messages = [[] for _ in range(world)]
        self.codes = [None] * world
        self.values, self.waiting, self.fences = {}, {}, {}
        self.sel, self.socks, self.procs, self.world = selectors.DefaultSelector(), [], [], world
        self.on_message, self.deadline = on_message, time.time() + timeout
        self.stderr = []
        for rank in range(world):
            ours, theirs = socket.socketpair()
            log = open(f"{spec_path}.rank{rank}.log", "wb")
            cmd = [worker, "--rank", str(rank), "--world", str(world), "--spec", spec_path, *extra]
            fd = theirs.fileno()
            proc = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{fd}', "bash", *cmd], pass_fds=[fd], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
            theirs.close()
            log.close()
            self.socks.append(ours)
            self.procs.append(proc)
            self.sel.register(ours, selectors.EVENT_READ, [rank, b""])

    def tell(self, rank, message):
        try:
            self.socks[rank].sendall((json.dumps(message) + "\n").encode())
        except OSError:
            pass

    def kill(self):
        for p in self.procs:
            if p.poll() is None:
                p.send_signal(signal.SIGKILL)

    def _handle(self, rank, m):
        t = m["t"]
        if t == "put":
            self.values[m["key"]] = m["value"]
            for r in self.waiting.pop(m["key"], []):
                self.tell(r, {"t": "value", "key": m["key"], "value": m["value"]})
        elif t == "get":
            if m["key"] in self.values:
                self.tell(rank, {"t": "value", "key": m["key"], "value": self.values[m["key"]]})
            else:
                self.waiting.setdefault(m["key"], []).append(rank)
        elif t == "fence":
            came = self.fences.setdefault(m["name"], [])
            came.append(rank)
            if len(came) == self.world:
                del self.fences[m["name"]]
                for r in range(self.world):
                    self.tell(r, {"t": "fence", "name": m["name"]})
        self.messages[rank].append(m)
        if self.on_message:
            self.on_message(self, rank, m)

    def run(self):
        live = self.world
        while live > 0:
            if time.time() > self.deadline:
                self.kill()
                raise AssertionError("the job did not end in time")
            for key, _ in self.sel.select(0.2):
                rank, rest = key.data
                try:
                    data = key.fileobj.recv(1 << 16)
                except OSError:
                    data = b""
                if not data:
                    self.sel.unregister(key.fileobj)
                    key.fileobj.close()
                    live -= 1
                    self.codes[rank] = self.procs[rank].wait(timeout=30)
                    if self.codes[rank] not in (0, 3):      # one rank gone: the gang ends
                        self.kill()
                    continue
                *lines, key.data[1] = (rest + data).split(b"\n")
                for line in lines:
                    self._handle(rank, json.loads(line))
        for rank in range(self.world):
            with open(f"{self.spec_path(rank)}", "rb") as f:
                self.stderr.append(f.read().decode(errors="replace"))
        return self

    def spec_path(self, rank):
        return self.procs[rank].args[self.procs[rank].args.index("--spec") + 1] + f".rank{rank}.log"

    def records(self, kind, rank=0):
        return [m for m in self.messages[rank] if m["t"] == kind]

    def losses(self, rank=0):
        return [m["loss"] for m in self.records("metrics", rank)]


def shm_names():
    """What lies in /dev/shm, less what libfaketime puts there for other tests that run beside this one."""
    return {n for n in os.listdir("/dev/shm") if "faketime" not in n}


def byte_level_tokenizer(path, specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>")):
    """The smallest byte-level BPE: one token per byte, no merges."""
    visible = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    chars, extra = {}, 0
    for b in range(256):
        if b in visible:
            chars[b] = chr(b)
        else:
            chars[b] = chr(256 + extra)
            extra += 1
    vocab = {chars[b]: b for b in range(256)}
    added = [{"id": 256 + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, s in enumerate(specials)]
    tok = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
           "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                     "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}}
    with open(f"{path}/tokenizer.json", "w") as f:
        json.dump(tok, f)
    with open(f"{path}/tokenizer_config.json", "w") as f:
        json.dump({"eos_token": specials[-1], "pad_token": specials[0], "tokenizer_class": "Qwen2Tokenizer"}, f)


def tiny_model(path, **changes):
    os.makedirs(path, exist_ok=True)
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 72, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 272, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
              "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32", "hidden_act": "silu", "initializer_range": 0.1,
              "bos_token_id": 256, "eos_token_id": 258}
    config.update(changes)
    with open(f"{path}/config.json", "w") as f:
        json.dump(config, f)
    byte_level_tokenizer(path)
    return path


def tiny_data(path, n=40, seed=1, longest=90):
    rng = random.Random(seed)
    words = "the quick brown fox jumps over lazy dogs while seven wizards brew odd potions".split()
    with open(path, "w") as f:
        for _ in range(n):
            ask = " ".join(rng.choice(words) for _ in range(rng.randint(1, 6)))
            say = " ".join(rng.choice(words) for _ in range(rng.randint(1, max(2, longest // 6))))
            f.write(json.dumps({"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": say}]}) + "\n")
    return path


def write_spec(path, **fields):
    with open(path, "w") as f:
        json.dump(fields, f)
    return path


def read_safetensors(path):
    """{name: (dtype, shape, list of numbers)} for F32 F64 I32 I64; BF16 as F32."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        body = f.read()
    code = {"F32": "f", "F64": "d", "I32": "i", "I64": "q"}
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        raw = body[t["data_offsets"][0]:t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            raw, kind = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2)), "f"
        else:
            kind = code[t["dtype"]]
        out[name] = (t["dtype"], t["shape"], list(struct.unpack(f"<{len(raw) // struct.calcsize(kind)}{kind}", raw)))
    return out


def relative(a, b):
    """|a-b| / |b| over whole tensors."""
    num = sum((x - y) ** 2 for x, y in zip(a, b)) ** 0.5
    den = sum(y * y for y in b) ** 0.5
    return num / den if den > 0 else num
