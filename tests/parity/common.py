"""What the comparisons share: the virtual environment (importing this enters it), tiny random models, a row's loss, names."""
import argparse
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
parser = argparse.ArgumentParser()
parser.add_argument("--build", default=os.path.join(ROOT, "build"))
parser.add_argument("--venv", default=os.path.join(ROOT, "build", "parity-venv"))
parser.add_argument("--write", help="the page whose section is replaced by the table of this run")
parser.add_argument("cases", nargs="*")


def enter_venv(path):
    try:
        import peft  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
        return
    except ImportError:
        pass
    python = os.path.join(path, "bin", "python")
    if not os.path.exists(python):
        print("making", path, flush=True)
        subprocess.run([sys.executable, "-m", "venv", path], check=True)
        subprocess.run([python, "-m", "pip", "install", "torch", "transformers", "peft"], check=True)
    os.execv(python, [python] + sys.argv)


enter_venv(parser.parse_known_args()[0].venv)

import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
VERSIONS = f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}"
TINY = dict(vocab_size=4096, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=None)
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def rope(**kw):
    return dict(rope_parameters=dict(rope_theta=10000.0, **kw))


def randomise(model, seed, only=lambda n: True):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if only(n):
                p.copy_(torch.randn(p.shape, generator=g) * (0.15 if p.dim() > 1 else 0.1) + (1.0 if "norm" in n and n.endswith("weight") else 0.0))


def peft_name(n):
    n = n.replace(".default.weight", "") if "magnitude" in n else n.replace(".default.weight", ".weight")
    return n.replace(".default", "").replace(".modules_to_save", "")


def load_torch(folder, adapter, dtype=torch.float32, attention="eager"):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
    if adapter:
        model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)
    return model.train()


def forget_lengths(model):
    """Dynamic RoPE remembers the longest sequence it saw; every document must start without that memory."""
    for m in model.modules():
        if getattr(m, "rope_type", "") == "dynamic":
            m.max_seq_len_cached = m.original_max_seq_len
            m.register_buffer("inv_freq", m.original_inv_freq.clone(), persistent=False)


def losses(model, b):
    """Sum over documents of weight * cross-entropy over the sum of weights, one document at a time; in f32, or f64 for an f64 model."""
    cu, total = b["cu_seqlens"].tolist(), b["loss_weights"].sum()
    for s, e in zip(cu[:-1], cu[1:]):
        if b["loss_weights"][s:e].sum() == 0:
            continue
        forget_lengths(model)
        z = model(input_ids=b["input_ids"][s:e].long()[None], use_cache=False).logits[0]
        z = z if z.dtype == torch.float64 else z.float()
        ce = torch.nn.functional.cross_entropy(z, b["labels"][s:e].long(), reduction="none", ignore_index=-100)
        yield (ce * b["loss_weights"][s:e]).sum() / total


def backward(model, b):
    loss = 0.0
    for part in losses(model, b):
        part.backward()
        loss += part.item()
    return loss


def off(a, b):
    a, b = a.double(), b.double()
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


def write_section(path, title, text):
    """Replaces the page's part under "## title", up to the next such heading, or appends it; title None: all before the first."""
    page = open(path).read() if os.path.exists(path) else ""
    head, *rest = ("\n" + page).split("\n## ")
    if title is None:
        head = "\n" + text.rstrip("\n") + "\n"
    else:
        new = f"{title}\n\n{text.rstrip()}\n"
        at = [i for i, r in enumerate(rest) if r.split("\n")[0] == title]
        rest[at[0] if at else len(rest):at[0] + 1 if at else len(rest)] = [new]
    with open(path, "w") as f:
        f.write("\n## ".join([head.rstrip("\n") + "\n", *[r.rstrip("\n") + "\n" for r in rest]])[1:])
