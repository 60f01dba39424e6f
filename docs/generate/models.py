"""`python -m docs.generate.models`: run stock models on the card, write docs/models.md.

In: the models of `stock_models`. Out: a page that says for each of them which graphs and kernels it
becomes, what the host has to do, how far it is from the CPU in float32, and how fast it is.
`make models` is the same; `--only llama` prints one model and writes nothing. `--families` measures
the families of `families` and rewrites their part of the page (`make families`), `--families opt`
prints one.
"""

from __future__ import annotations

import argparse
import copy
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from docs.generate import families
from docs.generate import stock_models as stock
from docs.generate.stock_models import Agreement, Size
from torch_spyre.device.streams import Event
from torch_spyre.ops.fallbacks import fallback_counts, set_fallback_warning

if TYPE_CHECKING:
    from torch_spyre._inductor.planning.planner import GraphPlan

PAGE = Path(__file__).parents[2] / "docs" / "models.md"

SIZE = Size(layers=4, hidden=512, inner=1536, heads=8, kv_heads=4, vocabulary=8192, length=512)
PROMPT, NEW_TOKENS, TEXT, PIXELS = 64, 24, 128, 224
ROUNDS = 3
"""Measurements of each, in turns; the fastest counts."""


@dataclass
class Way:
    """What became of a model."""

    graphs: int
    kernels: int
    operations: int
    moved: int
    """Operations that only move elements because of layouts."""
    host_steps: list[str]


@dataclass
class Timing:
    """Milliseconds of one device."""

    compile: float
    first: float
    """Prefill, or one call of an encoder."""
    token: float = 0.0
    """One step of decoding."""


@dataclass
class Row:
    name: str
    way: Way
    agreement: Agreement
    allowed: float
    half_error: float
    """Of the CPU in float16, which has one fraction bit more, with the same tokens."""
    card: Timing
    cpu: Timing
    modelled: Timing
    bookkeeping: Counter[str]
    """What `generate` itself did on the host, for each token."""


# ---- Measuring ----------------------------------------------------------------------------------


def measure(name: str) -> Row:
    """Run a model on both devices."""
    return _measure_decoder(name) if name in stock.DECODERS else _measure_encoder(name)


def _measure_decoder(name: str) -> Row:
    from torch_spyre._inductor.inspect import debug_dir

    model = stock.make(name, SIZE)
    ids = torch.randint(2, SIZE.vocabulary, (1, PROMPT), generator=_seeded())
    mask = torch.ones_like(ids)

    def run(which: nn.Module, forced: torch.Tensor | None = None) -> stock.Generated:
        return stock.generate(which, ids, mask, NEW_TOKENS, forced=forced)

    expected = run(model)
    card, cpu = stock.compiled(stock.on_card(model)), stock.compiled(copy.deepcopy(model))
    with debug_dir.listen() as record:
        card_first, actual = _timed(lambda: run(card))
    cpu_first, _ = _timed(lambda: run(cpu))
    before = Counter(fallback_counts())
    on_card, on_cpu = [run(card)], [run(cpu)]
    bookkeeping = Counter(fallback_counts()) - before
    for _ in range(ROUNDS - 1):
        on_card.append(run(card))
        on_cpu.append(run(cpu))
    if not torch.equal(actual.tokens, expected.tokens):
        actual = run(card, expected.tokens)
    allowed = stock.allowed_error(SIZE.layers)
    half = run(copy.deepcopy(model).half(), expected.tokens)
    return Row(
        name,
        _way(record.plans),
        stock.compare(expected.logits, actual.logits, allowed),
        allowed,
        stock.compare(expected.logits, half.logits, allowed).error,
        _decoder_timing(card_first, on_card),
        _decoder_timing(cpu_first, on_cpu),
        _modelled_decoder(card, ids, mask),
        Counter({op: round(count / NEW_TOKENS) for op, count in bookkeeping.items()}),
    )


def _decoder_timing(first: float, runs: list[stock.Generated]) -> Timing:
    whole = min(run.times[-1] for run in runs)
    return Timing(
        compile=1e3 * max(0.0, first - whole),
        first=1e3 * min(run.prefill_seconds for run in runs),
        token=1e3 * min(run.decode_seconds for run in runs),
    )


@torch.no_grad()
def _modelled_decoder(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> Timing:
    """Device time of the calls of the model that one more `generate` makes, without transfers."""
    times: list[float] = []
    stock_call = model._compiled_call_impl
    assert stock_call is not None

    def timed(*args: object, **kwargs: object) -> object:
        start, end = Event(enable_timing=True), Event(enable_timing=True)
        start.record()
        result = stock_call(*args, **kwargs)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
        return result

    model._compiled_call_impl = timed
    try:
        stock.generate(model, ids, mask, NEW_TOKENS)
    finally:
        model._compiled_call_impl = stock_call
    return Timing(0.0, times[0], min(times[1:]))


def _measure_encoder(name: str) -> Row:
    from torch_spyre._inductor.inspect import debug_dir

    size = SIZE._replace(length=PIXELS) if name == "vit" else SIZE
    model = stock.make(name, size)
    inputs: tuple[torch.Tensor, ...]
    if name == "vit":
        inputs = (torch.randn(1, 3, PIXELS, PIXELS, generator=_seeded()),)
    else:
        ids = torch.randint(2, size.vocabulary, (1, TEXT), generator=_seeded())
        inputs = (ids, torch.ones_like(ids))
    expected = stock.encode(model, *inputs)
    card, cpu = stock.compiled(stock.on_card(model)), stock.compiled(copy.deepcopy(model))
    with debug_dir.listen() as record:
        card_first, actual = _timed(lambda: stock.encode(card, *inputs))
    cpu_first, _ = _timed(lambda: stock.encode(cpu, *inputs))
    on_card, on_cpu = [], []
    for _ in range(3 * ROUNDS):
        on_card.append(_timed(lambda: stock.encode(card, *inputs))[0])
        on_cpu.append(_timed(lambda: stock.encode(cpu, *inputs))[0])
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    start.record()
    stock.encode(card, *inputs)
    end.record()
    end.synchronize()
    allowed = stock.allowed_error(size.layers)
    return Row(
        name,
        _way(record.plans),
        stock.compare(expected, actual, allowed),
        allowed,
        stock.compare(expected, stock.encode(model.half(), *inputs), allowed).error,
        Timing(1e3 * (card_first - min(on_card)), 1e3 * min(on_card)),
        Timing(1e3 * (cpu_first - min(on_cpu)), 1e3 * min(on_cpu)),
        Timing(0.0, start.elapsed_time(end)),
        Counter(),
    )


_Result = TypeVar("_Result")


def _timed(function: Callable[[], _Result]) -> tuple[float, _Result]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _way(plans: Sequence[GraphPlan]) -> Way:
    kernels = [kernel for plan in plans for kernel in plan.kernels]
    operations = [op for kernel in kernels for op in kernel.operations]
    return Way(
        graphs=len(plans),
        kernels=len(kernels),
        operations=len(operations),
        moved=sum(bool(op.reason) and "scratchpads" not in op.reason for op in operations),
        host_steps=[f"{s.op}: {s.reason}" for plan in plans for s in plan.fallbacks],
    )


# ---- The page -----------------------------------------------------------------------------------

_TITLES = {
    "granite": "Granite", "llama": "Llama", "mistral": "Mistral", "qwen3": "Qwen3",
    "gpt2": "GPT-2", "bert": "BERT", "vit": "ViT",
}  # fmt: skip

_INTRODUCTION = """\
# Models

*Made by `make models` (`python -m docs.generate.models`); do not edit.*

Models of `transformers` as they are, with their own config classes, at a size that two CPU cores
can measure, and random weights: there is no hub behind this page. What is measured is the way
through the compiler and the card, not what the models know.

```python
from transformers import AutoModelForCausalLM, GraniteConfig

model = AutoModelForCausalLM.from_config(GraniteConfig(...)).half().to("spyre").eval()
model.compile(fullgraph=True)
model.generate(ids.to("spyre"), max_new_tokens=64, do_sample=False, cache_implementation="static")
```

`model.compile()` is PyTorch's own method of every module: it compiles the model in place, and
`generate` calls what it compiled, for the prompt and for each token. `model.forward =
torch.compile(model.forward)` does the same. Left alone, `generate` compiles by itself on the
devices of a list that spyre is not on; a `CompileConfig` whose `_compile_all_devices` is True,
given as `compile_config`, takes that way too, but then only decoding is compiled and the prompt is
computed eagerly, on the host.

A static cache is what makes decoding one graph: its tensors keep their size, and the position of
the new token is a tensor. Keys and values are stored by a
[scatter of sticks](formats/program.md#scatter-kind-8) straight into the cache, without copying it.
For its product with the queries the keys' part of the cache is turned once in each step, because
the card wants the second operand with its sticks along the result's columns.

A large model goes to the card as it is read: `AutoModelForCausalLM.from_pretrained(folder,
dtype=torch.float16, device_map="spyre")` never has more of it on the host than the tensors that are
being copied, and its weights get the layout that products want when their modules get them
([figures](performance/sizes.md)).
"""

_PATHS = """\
## Kernels, fallbacks and errors

{sizes}.
Decoders are two graphs: the prompt, and one token. *Moved* are operations that only change layouts
(what is moved between scratchpads, or into them, is not counted),
among the native ones. The error is the root mean square over all logits against the CPU in float32,
relative to that of the logits; {allowed} is what 12 independent roundings to 9 fraction bits in
each layer explain. *In float16* is the error of the CPU in that format, which keeps one bit more:
twice that is what the format alone costs a model. *Tokens* are those chosen as on the CPU; *clear*
are the choices where the two largest logits are further apart than the first bound allows, and how
many of them are the same.
{beyond}"""

_FIGURES = """\
## How fast they are

With {threads} threads here, in one run and in turns with `torch.compile` on the CPU in float32; the
fastest of several rounds. Compiling begins with empty caches; what a model shares with those above
it in the table is found there. Prompt and text are {prompt} and {text} tokens in one batch, the
picture is {pixels} x {pixels}. `generate` is measured with everything it does. *On a card* is the
modelled device time of the model's calls.
"""

_BOOKKEEPING = """\
## What `generate` does on the host

The model's calls leave nothing to the host. Between them `generate` counts tokens, makes the mask
of the next step and asks whether it is done, eagerly, with small tensors on the device of the
prompt; on spyre such operations
[are computed by the host](user_guide/eager_execution.md). For each token of {name} that was,
rounded:

{operations}
"""

_REST = """\
## Mistral and other sliding windows

While a window is not full its cache is like any other: one graph for all tokens. Once it is full
`transformers` stores in another way, which is a third graph, without host steps too: it shifts the
whole cache for each token from there on.

## ibm-fms

`ibm-fms` 1.13.1 imports with torch 2.13. The forward pass of its Granite (`fms.models.granite`) is
one graph, one kernel and no host step, with an error like those above; after `.to("spyre")` its
`base_model.post_init()` has to be called, as `fms` itself does when it loads a model, because its
table of rotations is kept for each device. Its `generate` with a cache and `contiguous_cache=True`
is two graphs without host steps, the prompt and one token: the cache grows by concatenation, `fms`
marks that dimension as dynamic, and one graph with open sizes serves all lengths. (Without
`contiguous_cache` the cache of the prompt has other strides, on any device, and the first token is
a graph of its own.) Between the calls it chooses tokens eagerly, on the host. Its paged attention
consists of custom operations that exist for the CPU and CUDA alone.
`tests/models/test_fms.py` runs both.
"""


def page(rows: Sequence[Row]) -> str:
    """The text of docs/models.md."""
    size = (
        f"{SIZE.layers} layers, {SIZE.hidden} wide, {SIZE.heads} heads of {SIZE.head_dim} "
        f"({SIZE.kv_heads} for keys and values where a model has groups), "
        f"{SIZE.inner} inside, {SIZE.vocabulary} tokens"
    )
    parts = [
        _INTRODUCTION,
        _PATHS.format(
            sizes=size, allowed=_percent(rows[0].allowed), beyond="".join(map(_beyond, rows))
        ),
        _table(_PATH_HEADS, [_path_cells(row) for row in rows]),
        _host_steps(rows),
        _FIGURES.format(threads=torch.get_num_threads(), prompt=PROMPT, text=TEXT, pixels=PIXELS),
        _table(_FIGURE_HEADS, [_figure_cells(row) for row in rows]),
    ]
    decoder = next((row for row in rows if row.bookkeeping), None)
    if decoder is not None:
        counts = {op: n for op, n in decoder.bookkeeping.most_common() if n}
        operations = ", ".join(f"`{op.removeprefix('aten::')}` {n}" for op, n in counts.items())
        parts.append(_BOOKKEEPING.format(name=_TITLES[decoder.name], operations=operations + "."))
    parts.append(_REST)
    return "\n".join(part for part in parts if part)


_PATH_HEADS = ("model", "graphs", "kernels", "native operations", "moved", "host steps", "error",
               "in float16", "tokens", "clear")  # fmt: skip
_FIGURE_HEADS = ("model", "compile s, CPU", "prompt ms, CPU", "ratio", "token ms, CPU", "ratio",
                 "tokens/s, CPU", "on a card: prompt, token")  # fmt: skip


def _path_cells(row: Row) -> tuple[str, ...]:
    way, found = row.way, row.agreement
    return (
        _TITLES[row.name], str(way.graphs), str(way.kernels), str(way.operations),
        str(way.moved), str(len(way.host_steps)), _percent(found.error),
        _percent(row.half_error), f"{found.equal} of {found.choices}",
        f"{found.clear_and_equal} of {found.clear}",
    )  # fmt: skip


def _figure_cells(row: Row) -> tuple[str, ...]:
    card, cpu, model = row.card, row.cpu, row.modelled
    cells = [
        _TITLES[row.name],
        f"{card.compile / 1e3:.1f}, {cpu.compile / 1e3:.1f}",
        f"{card.first:.1f}, {cpu.first:.1f}",
        f"{card.first / cpu.first:.2f}",
    ]
    if not card.token:
        return (*cells, "", "", "", f"{model.first * 1e3:.0f} us")
    return (
        *cells,
        f"{card.token:.2f}, {cpu.token:.2f}",
        f"{card.token / cpu.token:.2f}",
        f"{1e3 / card.token:.0f}, {1e3 / cpu.token:.0f}",
        f"{model.first * 1e3:.0f} us, {model.token * 1e3:.0f} us",
    )


def _beyond(row: Row) -> str:
    """A sentence about a model whose error the count of roundings does not explain."""
    if row.agreement.error <= row.allowed:
        return ""
    ratio = row.agreement.error / row.half_error
    return (
        f"\n**{_TITLES[row.name]} is beyond that bound**: {_percent(row.agreement.error)}, which "
        f"is {ratio:.1f} times the error of the CPU in float16.\n"
    )


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _host_steps(rows: Sequence[Row]) -> str:
    lines = [
        f"- {_TITLES[row.name]}: {step} ({count})"
        for row in rows
        for step, count in Counter(row.way.host_steps).items()
    ]
    return "\n".join(["Host steps:", "", *lines, ""]) if lines else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(heads), " | ".join("---" for _ in heads)]
    lines += [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    from torch._inductor.utils import fresh_cache

    parser = argparse.ArgumentParser(prog="python -m docs.generate.models")
    names = (*stock.DECODERS, *stock.ENCODERS)
    parser.add_argument("--only", choices=names, help="measure one model and print its part")
    parser.add_argument(
        "--families",
        nargs="*",
        choices=[*families.FAMILIES],
        metavar="FAMILY",
        help="measure these and print them; all, and rewrite their part of the page",
    )
    parser.add_argument("--output", type=Path, default=PAGE, help="the page to write")
    options = parser.parse_args(arguments)
    stock.library()
    set_fallback_warning(False)
    if options.families is not None:
        with fresh_cache():
            found = [_measured_family(name) for name in options.families or families.FAMILIES]
        if not options.families:
            _write(options.output, families.replaced(options.output.read_text("utf-8"), found))
        return 0
    with fresh_cache():  # times to compile depend on no earlier run
        rows = []
        for name in (options.only,) if options.only else names:
            print(f"models: {name}", file=sys.stderr, flush=True)
            rows.append(measure(name))
            torch._dynamo.reset()
            gc.collect()
    text = page(rows)
    if options.only:
        print(text)
        return 0
    if PAGE.is_file():  # families are measured for themselves
        _, heading, part = PAGE.read_text("utf-8").partition(families.HEADING)
        text += f"\n{heading}{part}" if heading else ""
    _write(options.output, text)
    return 0


def _measured_family(name: str) -> families.FamilyRow:
    row = families.measure(name)
    print(families.described(row), file=sys.stderr, flush=True)
    torch._dynamo.reset()
    gc.collect()
    return row


def _write(page: Path, text: str) -> None:
    """A new file takes the place of the old one at once: an interruption leaves the old page."""
    fresh = page.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(page)
    print(f"models: {page}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
