"""Families of models, two layers each: do they compile without host steps, and are they right?

In: a name of `family_table`, whose model has its own config class, random weights and the sizes
given there. Out: a row with its graphs, graph breaks, the steps that the host does with their
reasons, the error of the compiled model in float16 against the CPU in float32, and times. `models`
makes a part of docs/models.md of them.

    measure("mixtral").host_steps       # Counter()
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from docs.generate import stock_models as stock
from docs.generate.family_table import BINS, FAMILIES, FRAMES, PIXELS, START, WAVES
from torch_spyre.constants import DEVICE_NAME

BATCH, LENGTH, NEW_TOKENS = 2, 23, 3
"""Of a prompt; neither is a multiple of anything."""
CALLS = 3
"""That are measured, when all is compiled."""

# ---- Models and inputs --------------------------------------------------------------------------


def make(name: str) -> nn.Module:
    """A model on the CPU, in float32, for inference."""
    family, package = FAMILIES[name], stock.library()
    config = package.AutoConfig.for_model(family.type or name, **copy.deepcopy(family.config))
    torch.manual_seed(family.seed)
    model: nn.Module = getattr(
        package, f"AutoModel{family.head and f'For{family.head}'}"
    ).from_config(config)
    return model.eval()


def inputs(name: str) -> dict[str, torch.Tensor]:
    """What a family is called with, on the host."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(2, 490, (BATCH, LENGTH), generator=generator)
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    kinds: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
        "text": lambda: text,
        "text and start": lambda: {**text, "decoder_input_ids": ids[:, :START].contiguous()},
        "picture": lambda: {"pixel_values": _noise(BATCH, 3, PIXELS, PIXELS)},
        "text and picture": lambda: {**text, "pixel_values": _noise(BATCH, 3, PIXELS, PIXELS)},
        "spectrum and start": lambda: {
            "input_features": _noise(BATCH, BINS, FRAMES),
            "decoder_input_ids": ids[:, :START].contiguous(),
        },
        "waves": lambda: {"input_values": _noise(BATCH, WAVES)},
    }
    return kinds[FAMILIES[name].inputs]()


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def call(model: nn.Module, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The first floating-point result, on the host."""
    parameter = next(model.parameters())
    placed = {
        key: t.to(parameter.device, parameter.dtype if t.is_floating_point() else t.dtype)
        for key, t in given.items()
    }
    found = model(**placed)
    return next(t for t in found.to_tuple() if torch.is_tensor(t)).cpu().float()


# ---- Measuring ----------------------------------------------------------------------------------


@dataclass
class FamilyRow:
    name: str
    graphs: int = 0
    operations: int = 0
    breaks: list[str] = field(default_factory=list)
    """Why Dynamo cut the model into several graphs."""
    host_steps: Counter[str] = field(default_factory=Counter)
    """Of all graphs, with their reasons."""
    error: float = 0.0
    half_error: float = 0.0
    """Of the CPU in the same type."""
    compile_seconds: float = 0.0
    """Of all graphs, with their first calls."""
    call_seconds: float = 0.0
    """Of one call with the prompt or the picture, the fastest of some."""
    token_seconds: float | None = None
    """Of one more token, with what `generate` does around it; None for what does not decode."""


def measure(name: str) -> FamilyRow:
    """Compile a family for the card, run it, and compare."""
    from torch._dynamo import output_graph

    from torch_spyre._inductor.inspect import debug_dir

    model, row = make(name), FamilyRow(name)
    given = inputs(name)
    decodes, dtype = FAMILIES[name].decodes, FAMILIES[name].dtype

    def run(which: nn.Module) -> torch.Tensor:
        once = call(which, given)
        if not decodes:
            return once
        ids, mask = given["input_ids"], given["attention_mask"]
        logits = stock.generate(which, ids, mask, NEW_TOKENS, forced=tokens).logits
        return torch.cat([once.flatten(), logits.flatten()])

    tokens = torch.randint(2, 490, (BATCH, NEW_TOKENS), generator=torch.Generator().manual_seed(4))
    expected = run(model)
    card = copy.deepcopy(model).to(dtype).to(DEVICE_NAME)
    card.compile()
    first = len(output_graph.graph_break_reasons)
    began = time.perf_counter()
    with debug_dir.listen() as record:
        actual = run(card)
    row.compile_seconds = time.perf_counter() - began
    row.call_seconds = min(_seconds(lambda: call(card, given)) for _ in range(CALLS))
    if decodes:
        ids, mask = given["input_ids"], given["attention_mask"]
        row.token_seconds = min(
            stock.generate(card, ids, mask, NEW_TOKENS, forced=tokens).decode_seconds
            for _ in range(CALLS)
        )
    row.breaks = [_first_line(r.reason) for r in output_graph.graph_break_reasons[first:]]
    row.graphs = len(record.plans)
    row.operations = sum(len(k.operations) for p in record.plans for k in p.kernels)
    row.host_steps = Counter(f"{s.op}: {s.reason}" for p in record.plans for s in p.fallbacks)
    size = expected.pow(2).mean().sqrt()
    half = run(copy.deepcopy(model).to(dtype))
    row.error = float((actual - expected).pow(2).mean().sqrt() / size)
    row.half_error = float((half - expected).pow(2).mean().sqrt() / size)
    return row


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _first_line(reason: object) -> str:
    return str(reason).strip().splitlines()[0]


# ---- The part of the page -----------------------------------------------------------------------

HEADING = "## Families\n"

_INTRODUCTION = """\
{count} families of `transformers` {version}, each with two layers, random weights, float16 and a
prompt of {batch} x {length}: one graph. Decoders also generate {new} tokens with a static cache:
two more. *Error* is the root mean square over all results against the CPU in float32, relative to
that of the results; *ratio* is how often that of the CPU in the same type it is: {most} at most is
what is expected, as the card keeps one bit less than float16. *Compile* is what the first calls of
all graphs took, with caches that have only what the families above left; *call* is one call with
the prompt, picture or sound, *token* one token of `generate` with all that it does around it, with
{threads} threads. {clean} of them have neither a host step nor a graph break. `make families`
measures them again.
"""

MOST = 3
_HEADS_OF_TABLE = (
    "family", "graphs", "graph breaks", "host steps", "error", "ratio", "compile s", "call ms",
    "token ms",
)  # fmt: skip


def part(rows: Sequence[FamilyRow]) -> str:
    """The part of docs/models.md about families."""
    clean = sum(not row.host_steps and not row.breaks for row in rows)
    lines = [
        HEADING,
        _INTRODUCTION.format(
            count=len(rows), version=stock.library().__version__, batch=BATCH, length=LENGTH,
            new=NEW_TOKENS, most=MOST, clean=clean,
            threads=torch.get_num_threads(),
        ),
        f"| {' | '.join(_HEADS_OF_TABLE)} |",
        f"| {' | '.join('---' for _ in _HEADS_OF_TABLE)} |",
    ]  # fmt: skip
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    left = [
        f"- {FAMILIES[row.name].title}: `{step.split(': ', 1)[0]}` ({count}), "
        f"{step.split(': ', 1)[1]}"
        for row in rows
        for step, count in row.host_steps.items()
    ]
    left += [
        f"- {FAMILIES[row.name].title}: graph break ({count}), {reason}"
        for row in rows
        for reason, count in Counter(row.breaks).items()
    ]
    if left:
        lines += ["", "What the host does or what cuts a graph, how often, and why:", "", *left]
    return "\n".join(lines) + "\n"


def _cells(row: FamilyRow) -> tuple[str, ...]:
    numbers = (row.graphs, len(row.breaks), row.host_steps.total())
    ratio = row.error / row.half_error
    return (
        FAMILIES[row.name].title, *map(str, numbers), f"{100 * row.error:.2f} %", f"{ratio:.1f}",
        f"{row.compile_seconds:.1f}", f"{1e3 * row.call_seconds:.2f}",
        "" if row.token_seconds is None else f"{1e3 * row.token_seconds:.2f}",
    )  # fmt: skip


def replaced(page: str, rows: Sequence[FamilyRow]) -> str:
    """A page with the part of these rows in place of the one that it has."""
    before, found, after = page.partition(HEADING)
    if not found:
        raise ValueError(f"the page has no part {HEADING.strip()!r}")
    begin = after.find("\n## ")
    return before + part(rows) + (after[begin:] if begin >= 0 else "")


def described(row: FamilyRow) -> str:
    """One line, and one for each kind of step that is not the card's."""
    ratio = row.error / row.half_error if row.half_error else 0.0
    lines = [
        f"{row.name}: {row.graphs} graphs, {row.operations} operations, {len(row.breaks)} breaks, "
        f"{row.host_steps.total()} host steps, error {row.error:.5f} ({ratio:.1f} x float16), "
        f"{row.compile_seconds:.1f} s"
    ]
    lines += [f"    {count} {step}" for step, count in row.host_steps.items()]
    lines += [f"    break: {reason}" for reason in row.breaks]
    return "\n".join(lines)
