"""Models of real sizes: `python -m benchmarks.sizes [--only 1.1,3.2] [--folder DIR]`.

In: shapes of Llama models with random weights, written as a checkpoint of safetensors shards. Out:
docs/performance/sizes.md. Two processes for each: with empty caches, and with those that it left.
Each reads the checkpoint straight onto the card, computes a prompt and some tokens, and says what
that took; the programs are those of `make chat`. A token reads all weights once, so its time is
compared with that of reading as many bytes of host memory.

The checkpoints (16 GB for the largest) are kept in the folder for the next run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.processes import environment
from benchmarks.results import machine

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance" / "sizes.md"
SHARD = "1GB"
PROMPT, TOKENS = 64, 16

_HIDDEN = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_LLAMA = (*_HIDDEN, "num_key_value_heads", "vocab_size")
SIZES: dict[str, dict[str, int]] = {
    "1.1": dict(zip(_LLAMA, (2048, 5632, 22, 32, 4, 32000))),
    "3.2": dict(zip(_LLAMA, (3072, 8192, 28, 24, 8, 128256))),
    "8.0": dict(zip(_LLAMA, (4096, 14336, 32, 32, 8, 128256))),
}
"""Billions of weights, and the shape of the model that has them."""

_WRITE = """
import json, sys, torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.initialization import no_init_weights
folder, shard, config = sys.argv[1], sys.argv[2], LlamaConfig(**json.loads(sys.argv[3]))
with no_init_weights():
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float16)
deviation = config.hidden_size ** -0.5 / 74  # of integers from -128 to 127
for p in model.parameters():
    for row in p.data.view(-1, p.shape[-1]).split(4096):
        row.copy_(torch.randint(-128, 128, row.shape, dtype=torch.int8).half() * deviation
                  if p.dim() > 1 else torch.ones_like(row))
model.save_pretrained(folder, max_shard_size=shard)
"""

_RUN = """
import json, sys, threading, time, warnings
import torch
warnings.simplefilter("ignore")
import transformers
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
from examples.chat.decoder import Decoder
from examples.chat.programs import programs
from examples.chat.weights import store

def private():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))

folder, prompt, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.zeros(1, device="spyre")
before, most, done = private(), 0, False

def watch():
    global most
    while not done:
        most = max(most, private())
        time.sleep(0.005)

watcher = threading.Thread(target=watch)
watcher.start()
began = time.perf_counter()
model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float16, device_map="spyre").eval()
torch.spyre.synchronize()
read = time.perf_counter() - began
done = True
watcher.join()
weights = torch.spyre.memory_allocated()
largest = max(2 * p.numel() for p in model.parameters())
decoder = Decoder(model, 1024)
with torch.no_grad():
    began = time.perf_counter()
    made = programs(decoder, store(), lambda text: None)
    ready = time.perf_counter() - began
    decoder.prefill, decoder.decode = made.prefill, made.decode
    ids = torch.randint(0, model.config.vocab_size, (prompt,),
                        generator=torch.Generator().manual_seed(0)).tolist()
    began = time.perf_counter()
    token = int(decoder.next(ids).argmax())
    first = time.perf_counter() - began
    times = []
    for _ in range(tokens):
        ids.append(token)
        began = time.perf_counter()
        token = int(decoder.next(ids).argmax())
        times.append(time.perf_counter() - began)
block = torch.ones(1 << 28, dtype=torch.int32)
stream = []
for _ in range(5):
    began = time.perf_counter()
    block.max()
    stream.append(time.perf_counter() - began)
print(json.dumps({
    "weights": weights, "read": read, "beyond": most - before - weights, "largest": largest,
    "ready": ready, "first": first, "compiled": made.compiled, "token": min(times),
    "stream": block.nbytes / min(stream), "allocated": torch.spyre.max_memory_allocated(),
}))
"""

_ABOUT = """\
# Real sizes

*Made by `python -m benchmarks.sizes`; do not edit.*

Llama models with random weights, read from a checkpoint of safetensors shards (of {shard} each)
straight onto the card: `from_pretrained(folder, dtype=torch.float16, device_map="spyre")`. The
programs for 64 tokens of a prompt and for one token are those of [`make
chat`](../user_guide/chat.md). Measured on {machine}.

- *beyond the weights* is private memory of the host at the height of reading, without the weights,
  which are in the memory of the emulated card.
- *programs* are then compiled (cold) or found (warm), which includes 2 to 3 seconds in which the
  process imports the compiler.
- *prompt* is what {prompt} tokens then take to the first one of the answer.
- *token* is the fastest of {tokens}. It reads all weights but the table of embeddings; *of the
  stream* compares that with what all threads read of a large tensor of the host, in the same
  process. On a machine that is shared both vary by a third; more than 1 says just that.

"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", type=lambda text: text.split(","), default=[*SIZES])
    parser.add_argument("--folder", type=Path, default=Path("build/sizes"))
    parser.add_argument("--output", type=Path, default=PAGE, help="the page to write")
    given = parser.parse_args()
    if unknown := [name for name in given.only if name not in SIZES]:
        parser.error(f"there is no size {unknown[0]}: choose from {', '.join(SIZES)}")
    rows = [row for name in given.only for row in _measure(name, given.folder / name)]
    facts = machine()
    about = _ABOUT.format(
        shard=SHARD.replace("GB", " GB"), prompt=PROMPT, tokens=TOKENS, machine=_described(facts)
    )
    text = about + "\n".join(_table(rows)) + "\n"
    print(text)
    given.output.write_text(text, encoding="utf-8")


def _described(facts: Any) -> str:
    return f"{facts['processor']}, {facts['threads']} threads"


def _measure(name: str, checkpoint: Path) -> list[tuple[str, ...]]:
    if not (checkpoint / "config.json").is_file():
        print(f"sizes: writing {checkpoint}", file=sys.stderr)
        _python(_WRITE, str(checkpoint), SHARD, json.dumps(SIZES[name]))
    with tempfile.TemporaryDirectory() as caches:
        cold, warm = (_one_run(checkpoint, caches) for _ in range(2))
    embeddings = 2 * SIZES[name]["hidden_size"] * SIZES[name]["vocab_size"]
    rate = (warm["weights"] - embeddings) / warm["token"]
    return [(
        f"{name} billion", f"{warm['weights'] / 1e9:.1f} GB", f"{warm['read']:.1f} s",
        f"{warm['beyond'] / 1e6:.0f} MB", f"{cold['ready']:.1f} s", f"{warm['ready']:.1f} s",
        f"{warm['first']:.2f} s",
        f"{1e3 * warm['token']:.0f} ms", f"{rate / 1e9:.1f} of {warm['stream'] / 1e9:.1f} GB/s",
        f"{rate / warm['stream']:.2f}",
    )]  # fmt: skip


def _one_run(checkpoint: Path, caches: str) -> dict[str, Any]:
    print(f"sizes: running {checkpoint}", file=sys.stderr)
    out = _python(_RUN, str(checkpoint), str(PROMPT), str(TOKENS), TORCHINDUCTOR_CACHE_DIR=caches)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    print(found, file=sys.stderr)
    return found


def _python(source: str, *arguments: str, **variables: str) -> str:
    """What a process of its own prints."""
    around = {**environment("spyre"), "HF_HUB_OFFLINE": "1", **variables}
    command = [sys.executable, "-W", "ignore", "-c", source, *arguments]
    done = subprocess.run(command, env=around, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    heads = (
        "weights", "in memory", "reading", "beyond the weights", "programs, cold",
        "programs, warm", "prompt", "token", "bytes read", "of the stream",
    )  # fmt: skip
    lines = [heads, tuple("---" for _ in heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


if __name__ == "__main__":
    main()
