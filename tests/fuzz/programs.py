"""A program of the fuzzer: inputs, lines of PyTorch, results. It is text, so that it can be shown.

In: nothing but data. Out: the source of a Python function, and its inputs for each of the places
where it runs: the card, the CPU, intervals. In the lines, `F16` is float16 on the card and in
intervals, and float32 on the CPU, which then computes what the card would without rounding.

    Program((Input("v0", (5, 70), "F16", "whole", 3),), ("v1 = v0.t() + 1",), ("v1",)).source()
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import torch_spyre
from tests.fuzz.intervals import Interval, to_dlfloat16
from torch_spyre import _C

DTYPES = {
    "F16": torch.float16,
    "F32": torch.float32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
NAMESPACE: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}


@dataclass(frozen=True)
class Input:
    """A tensor that is stored with `shape`, and seen through `view`, the text of a view of it.

    values: whole (-4 ... 4), quarters (of -2 ... 2), normal, positive, or index<n> (0 ... n - 1).
    stick: the dimension that sticks go along, for one that is not stored in the plain layout.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: str = "whole"
    seed: int = 0
    view: str = ""
    stick: int | None = None

    def stored(self) -> torch.Tensor:
        """The values on the host, in float64: all of them numbers that the card can hold."""
        generator = torch.Generator().manual_seed(self.seed)
        if self.values.startswith("index"):
            high = int(self.values.removeprefix("index"))
            return torch.randint(0, high, self.shape, generator=generator).double()
        if self.dtype == "BOOL":
            return torch.randint(0, 2, self.shape, generator=generator).double()
        if self.values in ("whole", "quarters") or self.dtype == "I64":
            x = torch.randint(-4, 5, self.shape, generator=generator).double()
            x = x + 4 * torch.randint(-1, 2, self.shape, generator=generator)
            return x / 4 if self.values == "quarters" and self.dtype != "I64" else x
        x = torch.randn(self.shape, generator=generator, dtype=torch.float32).double()
        if self.values == "positive":
            x = (x.abs() + 0.25).float().double()
        # Half precision has fewer bits below 2^-14.
        return to_dlfloat16(x) * (x.abs() >= 2.0**-14) if self.dtype == "F16" else x

    def on_card(self) -> torch.Tensor:
        host = self.stored().to(DTYPES[self.dtype])
        if self.stick is None:
            return host.to("spyre")
        order = [d for d in range(host.ndim) if d != self.stick] + [self.stick]
        strides = list(host.stride())
        layout = _C.SpyreTensorLayout(list(host.shape), strides, host.dtype, order)
        return host.to("spyre", device_layout=layout)

    def seen(self, stored: Any) -> Any:
        return eval("x" + self.view, {"x": stored, **NAMESPACE}) if self.view else stored


@dataclass(frozen=True)
class Program:
    """Lines that are run one after another; what they make, and what they change, is compared."""

    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]

    def source(self, name: str = "program") -> str:
        names = ", ".join(x.name for x in self.inputs)
        body = "".join(f"    {line}\n" for line in self.lines)
        ends = ", ".join(self.outputs) + ("," if len(self.outputs) == 1 else "")
        return f"def {name}({names}):\n{body}    return ({ends})\n"

    def function(self, half: torch.dtype = torch.float16) -> Callable[..., tuple[Any, ...]]:
        """The program as a function; `half` is what F16 means in it."""
        source = self.source()
        file = f"<fuzz {abs(hash(source)):x}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        made: dict[str, Any] = {**NAMESPACE, **DTYPES, "F16": half}
        exec(compile(source, file, "exec"), made)
        return made["program"]


@dataclass
class Run:
    """What a program made, and its inputs as they are stored afterwards."""

    outputs: list[Any]
    stored: list[Any]

    def values(self) -> list[Any]:
        return [*self.outputs, *self.stored]


def run_intervals(program: Program) -> Run:
    stored = [Interval.exact(x.stored(), DTYPES[x.dtype]) for x in program.inputs]
    seen = [x.seen(s) for x, s in zip(program.inputs, stored, strict=True)]
    return Run(list(program.function()(*seen)), stored)


def run_cpu(program: Program) -> Run:
    """On the CPU with float32 in place of float16."""
    kinds = {**DTYPES, "F16": torch.float32}
    stored = [x.stored().to(kinds[x.dtype]) for x in program.inputs]
    seen = [x.seen(s) for x, s in zip(program.inputs, stored, strict=True)]
    return Run(list(program.function(torch.float32)(*seen)), stored)


def quiet() -> None:
    """Say nothing about what the host computes: here that is not news."""
    torch.spyre.set_fallback_warning(False)
    torch.spyre.set_downcast_warning(False)


assert torch_spyre is not None  # imported for the device
