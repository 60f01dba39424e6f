"""Random programs: line by line, each line tried on intervals before it is kept.

In: a seed. Out: a Program of 3 to 25 lines, the same for the same seed. A line that overflows,
divides by 0 or depends on an order of equal numbers is thrown away, so is one whose result is so
uncertain that comparing would say nothing (`MOST_OPEN`). What is left means the same everywhere.

    generate(17).source()
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.fuzz.intervals import Interval, OutOfScope
from tests.fuzz.programs import DTYPES, NAMESPACE, Input, Program

SIZES = (
    1,
    1,
    2,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    31,
    32,
    33,
    63,
    64,
    65,
    70,
    96,
    100,
    127,
    128,
    130,
    192,
    256,
)
MOST_ELEMENTS = 6000
# An element is open where its bounds are further apart than a sixteenth of it; as many may be.
MOST_OPEN = 0.05
NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = (torch.float16, torch.float32)
NUMBERS = (*FLOATS, torch.int64)


@dataclass
class Builder:
    """A program while it grows: its lines, and what is known of each variable."""

    rng: random.Random
    inputs: list[Input] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    known: dict[str, Interval] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)
    """Storages of which it is open whether a variable is a view: nothing writes to them."""

    # ---- variables

    def pick(self, *dtypes: torch.dtype, where: Callable[[Interval], bool] | None = None) -> str:
        """A variable, late ones rather than early ones."""
        names = [n for n, x in self.known.items()
                 if (not dtypes or x.dtype in dtypes) and (where is None or where(x))]  # fmt: skip
        if not names:
            raise OutOfScope("no variable of this kind")
        if self.rng.random() < 0.5:
            return names[-1 - min(int(self.rng.expovariate(0.5)), len(names) - 1)]
        return self.rng.choice(names)

    def new_input(self, shape: tuple[int, ...], dtype: str, values: str, **how: Any) -> str:
        name = f"v{len(self.known)}"
        given = Input(name, shape, dtype, values, self.rng.randrange(1000), **how)
        self.inputs.append(given)
        stored = Interval.exact(given.stored(), DTYPES[dtype])
        self.known[name] = given.seen(stored)
        return name

    def beside(self, name: str, *dtypes: torch.dtype) -> str:
        """Something that broadcasts with a variable: another one, a new input, or a number."""
        x = self.known[name]
        dtypes = dtypes or (x.dtype,)

        def fits(y: Interval) -> bool:
            try:
                return len(torch.broadcast_shapes(x.shape, y.shape)) <= 5
            except RuntimeError:
                return False

        if self.rng.random() < 0.7:
            try:
                return self.pick(*dtypes, where=fits)
            except OutOfScope:
                pass
        if self.rng.random() < 0.5 and x.dtype is not torch.bool:
            return self.number(x)
        shape = [n if self.rng.random() < 0.7 else 1 for n in x.shape]
        shape = shape[self.rng.randrange(len(shape) + 1) if self.rng.random() < 0.3 else 0 :]
        dtype = NAMES[self.rng.choice(dtypes)]
        return self.new_input(tuple(shape), dtype, self.rng.choice(("whole", "quarters", "normal")))

    def number(self, x: Interval) -> str:
        if x.dtype is torch.int64 and self.rng.random() < 0.8:
            return str(self.rng.choice((-3, -1, 1, 2, 3, 5)))
        return str(self.rng.choice((-2, -1, 2, 3, 0.5, -0.25, 1.5, 0.1, 0.3)))

    def dim(self, name: str) -> int:
        rank = self.known[name].ndim
        if not rank:
            raise OutOfScope("no dimension")
        return self.rng.randrange(-rank, rank)

    # ---- lines

    def add(self, text: str, maybe_view: str = "") -> None:
        """Keep `text` as the next line if its result makes sense; a value gets a name."""
        space = {**NAMESPACE, **DTYPES, **self.known}
        is_statement = text.startswith("!")
        text = text.removeprefix("!")
        written = self.known.items() if is_statement else ()
        before = {n: (x.lo.clone(), x.hi.clone()) for n, x in written}
        try:
            if is_statement:
                exec(text, space)
                for value in self.known.values():
                    _sensible(value)
                self.lines.append(text)
            else:
                value = eval(text, space)
                _sensible(value)
                name = f"v{len(self.known)}"
                self.known[name] = value
                self.lines.append(f"{name} = {text}")
                if maybe_view:
                    self.shared |= {_storage(value), _storage(self.known[maybe_view])}
        except (OutOfScope, RuntimeError, IndexError):
            for n, (lo, hi) in before.items():
                _restore(self.known[n], lo, hi)
            raise OutOfScope("rejected") from None
        self.used |= set(re.findall(r"\bv\d+\b", text))

    def writable(self, name: str) -> bool:
        x = self.known[name]
        overlaps = any(s == 0 and n > 1 for s, n in zip(x.lo.stride(), x.shape, strict=True))
        return not overlaps and _storage(x) not in self.shared and not _self_overlapping(x.lo)


def _storage(x: Interval) -> int:
    return x.lo.untyped_storage().data_ptr()


def _self_overlapping(x: torch.Tensor) -> bool:
    seen = torch.zeros(x.untyped_storage().nbytes() // 8, dtype=torch.int64)
    places = torch.zeros(x.shape, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        steps = (torch.arange(size) * stride).reshape([-1] + [1] * (x.ndim - dim - 1))
        places = places + steps
    ones = torch.ones(places.numel(), dtype=torch.int64)
    return bool((seen.index_add(0, places.flatten(), ones) > 1).any()) if x.numel() else False


def _restore(x: Interval, lo: torch.Tensor, hi: torch.Tensor) -> None:
    for end, old in ((x.lo, lo), (x.hi, hi)):
        if not torch.equal(end, old):
            end.copy_(old)


def _sensible(value: Any) -> None:
    if not isinstance(value, Interval) or value.ndim > 5 or value.numel() > MOST_ELEMENTS:
        raise OutOfScope("not a tensor, or too large")
    if bool(value.lo.isnan().any()) or bool((value.lo > value.hi).any()):
        raise OutOfScope("no number")
    wide = (value.hi - value.lo) > value.magnitude().clamp(min=2.0**-6) / 16
    if value.numel() and float(wide.double().mean()) > MOST_OPEN:
        raise OutOfScope("too uncertain")


# -------------------------------------------------------------------------------------------------
# Kinds of lines. Each returns its text; a text that begins with ! is a statement.

Maker = Callable[[Builder], "str | tuple[str, str]"]


def _unary(b: Builder) -> str:
    name = b.pick(*FLOATS)
    function = b.rng.choice((
        "torch.neg", "torch.abs", "torch.relu", "torch.exp", "torch.log", "torch.sqrt",
        "torch.rsqrt", "torch.reciprocal", "torch.sigmoid", "torch.tanh", "F.silu", "F.gelu",
        "torch.floor", "torch.ceil", "torch.round", "torch.trunc", "torch.sin", "torch.cos",
        "torch.erf", "torch.sign", "torch.square", "F.softplus", "F.leaky_relu", "torch.expm1",
        "torch.log1p",
    ))  # fmt: skip
    positive = ("torch.log", "torch.sqrt", "torch.rsqrt", "torch.reciprocal", "torch.log1p")
    if function in positive and b.rng.random() < 0.6:
        return f"{function}(torch.abs({name}) + {b.rng.choice((0.5, 1, 2))})"
    return f"{function}({name})"


def _int_unary(b: Builder) -> str:
    return f"torch.{b.rng.choice(('neg', 'abs', 'square', 'sign'))}({b.pick(torch.int64)})"


def _with_number(b: Builder) -> str:
    name = b.pick(*NUMBERS)
    number = b.number(b.known[name])
    return b.rng.choice((
        f"{name} + {number}", f"{name} * {number}", f"{number} - {name}", f"{name} / {number}",
        f"torch.clamp({name}, -2, 3)", f"torch.clamp({name}, min={number})",
        f"torch.pow({name}, {b.rng.choice((2, 3))})", f"torch.maximum({name}, {name} * {number})",
    ))  # fmt: skip


def _binary(b: Builder) -> str:
    name = b.pick(*NUMBERS)
    kinds = FLOATS if b.known[name].dtype in FLOATS and b.rng.random() < 0.8 else NUMBERS
    other = b.beside(name, *kinds)
    kind = b.rng.choice(("add", "sub", "mul", "div", "maximum", "minimum", "alpha", "rsub"))
    if kind == "alpha":
        return f"torch.add({name}, {other}, alpha=2)"
    if kind in ("maximum", "minimum", "rsub") and not other.startswith("v"):
        kind = "mul"
    if kind == "rsub":
        return f"{other} - {name}"
    if kind == "div" and other.startswith("v"):
        return f"{name} / (torch.abs({other}) + 1)"
    return f"torch.{kind}({name}, {other})"


def _int_binary(b: Builder) -> str:
    name = b.pick(torch.int64)
    other = b.beside(name)
    kind = b.rng.choice(("floor_divide", "remainder", "bitwise_and", "bitwise_or", "bitwise_xor"))
    if "." in other:
        other = "3"
    if kind in ("floor_divide", "remainder") and other.startswith("v"):
        other = f"torch.abs({other}) + 1"
    return f"torch.{kind}({name}, {other})"


def _compare(b: Builder) -> str:
    name = b.pick()
    other = b.beside(name) if b.known[name].dtype is not torch.bool else b.beside(name, torch.bool)
    return f"torch.{b.rng.choice(('eq', 'ne', 'lt', 'le', 'gt', 'ge'))}({name}, {other})"


def _logical(b: Builder) -> str:
    name = b.pick(torch.bool)
    kind = b.rng.choice(("and", "or", "xor", "not", "invert"))
    if kind == "not":
        return f"torch.logical_not({name})"
    if kind == "invert":
        return f"~{name}"
    return f"torch.logical_{kind}({name}, {b.beside(name, torch.bool)})"


def _where(b: Builder) -> str:
    name = b.pick(*NUMBERS)
    mask = b.beside(name, torch.bool) if b.rng.random() < 0.7 else f"{name} > 0"
    if not mask.startswith("v"):
        mask = f"{name} > 0"
    if b.rng.random() < 0.4:
        value = b.rng.choice((0, 2, -1))
        return f"{name}.masked_fill({mask}, {value})"
    return f"torch.where({mask}, {name}, {b.beside(name)})"


def _cast(b: Builder) -> tuple[str, str]:
    name = b.pick()
    return f"{name}.to({b.rng.choice(('F16', 'F16', 'F32', 'F32', 'I64', 'BOOL'))})", name


# ---- views


def _turn(b: Builder) -> str:
    name = b.pick(where=lambda x: x.ndim >= 2)
    rank = b.known[name].ndim
    if b.rng.random() < 0.5:
        return f"{name}.transpose({b.dim(name)}, {b.dim(name)})"
    order = list(range(rank))
    b.rng.shuffle(order)
    return f"{name}.permute({', '.join(map(str, order))})"


def _one(b: Builder) -> str:
    name = b.pick()
    if b.rng.random() < 0.5:
        return f"{name}.unsqueeze({b.rng.randrange(b.known[name].ndim + 1)})"
    ones = [d for d, n in enumerate(b.known[name].shape) if n == 1]
    return f"{name}.squeeze({b.rng.choice(ones)})" if ones else f"{name}.unsqueeze(0)"


def _index_text(b: Builder, name: str) -> str:
    """Slices, steps and single places, of some dimensions."""
    shape = b.known[name].shape
    if not shape:
        raise OutOfScope("no dimension")
    parts = []
    for size in shape[: b.rng.randrange(1, len(shape) + 1)]:
        kind = b.rng.random()
        if kind < 0.35 or size == 0:
            parts.append(":")
        elif kind < 0.5:
            parts.append(str(b.rng.randrange(-size, size)))
        else:
            start = b.rng.randrange(size)
            stop = b.rng.randrange(start, size) + (b.rng.random() < 0.95)
            step = b.rng.choice(("", "", "", ":2", ":3"))
            parts.append(f"{start}:{stop}{step}")
    if b.rng.random() < 0.2 and len(parts) < len(shape):
        parts = ["...", *parts]
    return ", ".join(parts)


def _slice(b: Builder) -> str:
    name = b.pick()
    return f"{name}[{_index_text(b, name)}]"


def _reshape(b: Builder) -> tuple[str, str]:
    name = b.pick(where=lambda x: x.numel() > 0)
    x = b.known[name]
    kind = b.rng.random()
    if kind < 0.3 and x.ndim >= 2:
        first = b.rng.randrange(x.ndim - 1)
        return f"{name}.flatten({first}, {b.rng.randrange(first + 1, x.ndim)})", name
    if kind < 0.6 and x.ndim:
        dim = b.rng.randrange(x.ndim)
        parts = [n for n in range(1, x.shape[dim] + 1) if x.shape[dim] % n == 0]
        part = b.rng.choice(parts)
        return f"{name}.unflatten({dim}, ({part}, {x.shape[dim] // part}))", name
    rest, shape = x.numel(), []
    for _ in range(b.rng.randrange(4)):
        part = b.rng.choice([n for n in range(1, rest + 1) if rest % n == 0])
        shape.append(part)
        rest //= part
    shape.append(rest)
    b.rng.shuffle(shape)
    return f"{name}.reshape({', '.join(map(str, shape))})", name


def _expand(b: Builder) -> str:
    name = b.pick(where=lambda x: x.numel() < 500)
    shape = [b.rng.choice((2, 3, 5, 33)) if n == 1 and b.rng.random() < 0.7 else n
             for n in b.known[name].shape]  # fmt: skip
    if b.rng.random() < 0.4:
        shape = [b.rng.choice((1, 2, 3)), *shape]
    if not shape:
        raise OutOfScope("no dimension")
    return f"{name}.expand({', '.join(map(str, shape))})"


def _other_view(b: Builder) -> str | tuple[str, str]:
    name = b.pick(where=lambda x: x.ndim >= 1 and x.numel() > 0)
    x, dim = b.known[name], b.dim(name)
    size = x.shape[dim]
    kind = b.rng.choice(("chunk", "unbind", "movedim", "diagonal", "unfold", "split"))
    if kind == "chunk":
        count = b.rng.randrange(1, 4)
        return f"torch.chunk({name}, {count}, {dim})[{b.rng.randrange(-1, 1)}]"
    if kind == "split":
        return f"torch.split({name}, {b.rng.randrange(1, size + 1)}, {dim})[0]"
    if kind == "unbind":
        return f"torch.unbind({name}, {dim})[{b.rng.randrange(size)}]"
    if kind == "diagonal" and x.ndim >= 2:
        return f"{name}.diagonal({b.rng.randrange(-1, 2)}, 0, 1)"
    if kind == "unfold" and x.ndim <= 3 and size >= 2:
        width, step = b.rng.randrange(1, min(size, 5) + 1), b.rng.choice((1, 2))
        # PyTorch takes a write to such a view for one to all that it is a view of (2.13).
        return f"{name}.unfold({dim}, {width}, {step})", name
    return f"{name}.movedim({dim}, {b.dim(name)})"


# ---- copies


def _copy(b: Builder) -> str | tuple[str, str]:
    name = b.pick(where=lambda x: x.ndim >= 1)
    x, dim = b.known[name], b.dim(name)
    kind = b.rng.choice(("clone", "contiguous", "flip", "roll", "repeat", "interleave", "pad",
                         "tri", "pad", "cat", "cat", "stack"))  # fmt: skip
    if kind == "contiguous":
        return f"{name}.contiguous()", name
    if kind == "flip":
        return f"{name}.flip({dim})"
    if kind == "roll":
        return f"{name}.roll({b.rng.randrange(-3, 4)}, {dim})"
    if kind == "repeat":
        times = [b.rng.choice((1, 1, 2, 3)) for _ in x.shape]
        return f"{name}.repeat({', '.join(map(str, times))})"
    if kind == "interleave":
        return f"{name}.repeat_interleave(2, {dim})"
    if kind == "tri" and x.ndim >= 2:
        return f"{name}.{b.rng.choice(('tril', 'triu'))}({b.rng.randrange(-1, 2)})"
    if kind == "pad" and x.dtype is not torch.bool:
        amounts = [
            b.rng.choice((0, 1, 2, 5, -1)) for _ in range(2 * b.rng.randrange(1, x.ndim + 1))
        ]
        return f"F.pad({name}, {amounts}, value={b.rng.choice((0, 0, 1, -2))})"
    if kind == "cat":
        parts = [name]
        for _ in range(b.rng.randrange(1, 3)):
            parts.append(b.pick(x.dtype, where=lambda y: _same_but(x, y, dim)))
        return f"torch.cat([{', '.join(parts)}], {dim})"
    if kind == "stack" and x.ndim < 5:
        other = b.pick(x.dtype, where=lambda y: y.shape == x.shape)
        return f"torch.stack([{name}, {other}], {dim})"
    return f"{name}.clone()"


def _same_but(x: Interval, y: Interval, dim: int) -> bool:
    same = [a == c for a, c in zip(x.shape, y.shape, strict=False)]
    if x.ndim != y.ndim:
        return False
    same[dim] = True
    return all(same)


# ---- reductions


def _dims_text(b: Builder, name: str) -> str:
    rank = b.known[name].ndim
    if not rank:
        raise OutOfScope("no dimension")
    dims = sorted(b.rng.sample(range(rank), b.rng.choice((1, 1, 1, min(2, rank), rank))))
    return str(dims[0]) if len(dims) == 1 else str(tuple(dims))


def _reduce(b: Builder) -> str:
    name = b.pick()
    kinds = {torch.bool: ("any", "all", "sum"), torch.int64: ("sum", "amax", "amin", "any")}
    kind = b.rng.choice(kinds.get(b.known[name].dtype, ("sum", "sum", "mean", "amax", "amin")))
    return f"torch.{kind}({name}, {_dims_text(b, name)}, keepdim={b.rng.random() < 0.5})"


def _reduce_one(b: Builder) -> str:
    name = b.pick(*FLOATS)
    dim, keep = b.dim(name), b.rng.random() < 0.5
    return b.rng.choice((
        f"torch.softmax({name}, {dim})", f"F.log_softmax({name}, {dim})",
        f"torch.logsumexp({name}, {dim}, keepdim={keep})",
        f"torch.var({name}, {dim}, correction={b.rng.randrange(2)}, keepdim={keep})",
        f"torch.argmax({name}, {dim}, keepdim={keep})",
        f"torch.argmin({name}, {dim}, keepdim={keep})",
        f"torch.max({name}, {dim}, keepdim={keep})[0]",
        f"torch.min({name}, {dim}, keepdim={keep})[0]",
        f"torch.prod({name}, {dim})", f"torch.cumsum({name}, {dim})",
        f"torch.sort({name}, {dim}, descending={keep})[0]",
        f"torch.topk({name}, 1, {dim}, largest={keep})[0]",
    ))  # fmt: skip


def _reduce_int(b: Builder) -> str:
    name = b.pick(torch.int64)
    dim = b.dim(name)
    return b.rng.choice((
        f"torch.cumsum({name}, {dim})", f"torch.argmax({name}, {dim})",
        f"torch.max({name}, {dim})[0]", f"torch.sort({name}, {dim})[0]",
        f"torch.prod({name}, {dim})",
    ))  # fmt: skip


def _layer_norm(b: Builder) -> str:
    name = b.pick(*FLOATS, where=lambda x: x.ndim >= 1 and x.shape[-1] > 1)
    x = b.known[name]
    size = x.shape[-1]
    if b.rng.random() < 0.5:
        return f"F.layer_norm({name}, ({size},))"
    weight, bias = (b.new_input((size,), NAMES[x.dtype], "quarters") for _ in range(2))
    return f"F.layer_norm({name}, ({size},), {weight}, {bias})"


def _matmul(b: Builder) -> str:
    name = b.pick(*FLOATS, where=lambda x: 2 <= x.ndim <= 4 and x.numel() > 0)
    x = b.known[name]
    columns = b.rng.choice((1, 2, 5, 16, 64, 65, 70))
    kind = b.rng.random()
    if kind < 0.3:

        def fits(y: Interval) -> bool:
            same = y.shape[:-2] == x.shape[:-2]
            return 2 <= y.ndim <= 4 and same and y.shape[-2] == x.shape[-1]

        other = b.pick(x.dtype, where=fits)
        return f"{name} @ {other}"
    if kind < 0.5:
        return f"{name} @ {name}.transpose(-1, -2)"
    if kind < 0.7:
        weight = b.new_input((columns, x.shape[-1]), NAMES[x.dtype], "quarters")
        return f"F.linear({name}, {weight})"
    batch = tuple(x.shape[:-2]) if b.rng.random() < 0.5 else ()
    other = b.new_input((*batch, x.shape[-1], columns), NAMES[x.dtype], "quarters")
    if x.ndim == 2 and b.rng.random() < 0.5:
        bias = b.new_input((columns,), NAMES[x.dtype], "quarters")
        return f"torch.addmm({bias}, {name}, {other})"
    return f"{name} @ {other}"


# ---- indexing


def _gather(b: Builder) -> str:
    name = b.pick(where=lambda x: x.ndim >= 1 and x.numel() > 0)
    x, dim = b.known[name], b.dim(name)
    size, count = x.shape[dim], b.rng.choice((1, 2, 5, 33, 70))
    kind = b.rng.choice(("select", "index", "gather", "embedding", "along", "two", "computed"))
    if kind == "gather" or kind == "along":
        shape = list(x.shape)
        shape[dim] = b.rng.randrange(1, 6)
        index = b.new_input(tuple(shape), "I64", f"index{size}")
        call = "gather({0}, {1}, {2})" if kind == "gather" else "take_along_dim({0}, {2}, {1})"
        return "torch." + call.format(name, dim, index)
    if kind == "two" and x.ndim >= 2:
        first = b.new_input((count,), "I64", f"index{x.shape[0]}")
        second = b.new_input((count,), "I64", f"index{x.shape[1]}")
        return f"{name}[{first}, {second}]"
    if kind == "embedding":
        index = b.new_input((count, 2), "I64", f"index{x.shape[0]}")
        return f"{name}[{index}]"
    if kind == "computed":
        index = b.pick(torch.int64, where=lambda y: y.ndim == 1)
        return f"torch.index_select({name}, {dim}, torch.remainder({index}, {size}))"
    index = b.new_input((count,), "I64", f"index{size}")
    if kind == "index":
        before = ":, " * (dim % x.ndim)
        return f"{name}[{before}{index}]"
    return f"torch.index_select({name}, {dim}, {index})"


def _scatter(b: Builder) -> str:
    """Functional writes through indices; no place is written twice but where sums are made."""
    name = b.pick(*NUMBERS, where=lambda x: x.ndim >= 1 and x.numel() > 0)
    x, dim = b.known[name], b.dim(name)
    size = x.shape[dim]
    count = b.rng.randrange(1, min(size, 8) + 1)
    shape = list(x.shape)
    shape[dim] = count
    source = b.new_input(tuple(shape), NAMES[x.dtype], "quarters")
    kind = b.rng.choice(("index_add", "index_copy", "scatter"))
    if kind == "index_add":
        index = b.new_input((count,), "I64", f"index{size}")
        return f"{name}.index_add({dim}, {index}, {source})"
    if kind == "index_copy":
        index = b.new_input((1,), "I64", f"index{size}")
        return f"{name}.index_copy({dim}, {index}, {source}.narrow({dim}, 0, 1))"
    index = b.new_input(tuple(1 if d == dim % x.ndim else n for d, n in enumerate(shape)),
                        "I64", f"index{size}")  # fmt: skip
    return f"{name}.scatter({dim}, {index}, {source})"


# ---- writing


def _in_place(b: Builder) -> str:
    name = b.pick(*NUMBERS)
    if not b.writable(name):
        raise OutOfScope("not writable")
    x = b.known[name]
    index = f"[{_index_text(b, name)}]" if x.ndim and b.rng.random() < 0.6 else ""
    part = eval("x" + index, {"x": x}) if index else x
    if not isinstance(part, Interval):
        raise OutOfScope("not a tensor")
    kind = b.rng.choice(("add", "mul", "set", "fill", "clamp", "masked", "copy", "zero", "relu"))
    if kind in ("add", "mul", "set", "copy"):
        value = b.rng.choice(("2", "-1"))
        if b.rng.random() < 0.7:
            shape = part.shape
            try:
                value = b.pick(x.dtype, where=lambda y: (
                    _storage(y) != _storage(x) and _goes_into(y.shape, shape)))  # fmt: skip
            except OutOfScope:
                value = b.new_input(tuple(shape), NAMES[x.dtype], "quarters")
        if kind == "set" and index:
            return f"!{name}{index} = {value}"
        if kind == "copy" and value.startswith("v"):
            return f"!{name}{index}.copy_({value})"
        return f"!{name}{index}.{'mul' if kind == 'mul' else 'add'}_({value})"
    if kind == "masked":
        return f"!{name}{index}.masked_fill_({name}{index} > 1, 1)"
    if kind == "relu" and x.dtype in FLOATS:
        return f"!{name}{index}.relu_()"
    if kind == "clamp":
        return f"!{name}{index}.clamp_(-2, 2)"
    return f"!{name}{index}.fill_({b.rng.choice((0, 1, -2))})"


def _write_part(b: Builder) -> str:
    """A write to a slice that Inductor may do in place or not: through a view, of another part of
    the same tensor, or into a new one."""
    name = b.pick(*NUMBERS, where=lambda x: x.ndim >= 1 and x.numel() > 0)
    x, dim = b.known[name], b.dim(name) % b.known[name].ndim
    size = x.shape[dim]
    start = b.rng.randrange(size)
    width = b.rng.randrange(1, size - start + 1)
    kind = b.rng.choice(("through", "through", "same", "new"))
    if kind == "new":
        step = b.rng.choice((1, 1, 2))
        shape = list(x.shape)
        shape[dim] = -(-width // step)
        if b.rng.random() < 0.3:
            del shape[dim]
            source = b.new_input(tuple(shape), NAMES[x.dtype], "quarters")
            return f"{name}.select_scatter({source}, {dim}, {start})"
        source = b.new_input(tuple(shape), NAMES[x.dtype], "quarters")
        return f"{name}.slice_scatter({source}, {dim}, {start}, {start + width}, {step})"
    if not b.writable(name):
        raise OutOfScope("not writable")
    if kind == "same":
        before = ":, " * dim
        origin = b.rng.randrange(size - width + 1)
        source = f"{name}[{before}{origin}:{origin + width}]"
        apart = origin + width <= start or start + width <= origin
        if not apart or b.rng.random() < 0.3:
            source += ".clone()"
        return f"!{name}[{before}{start}:{start + width}] = {source}"
    views = [".unsqueeze(0)[0]", f".movedim({dim}, 0)", f".chunk(2, {dim})[0]", ".diagonal()"]
    views += [f".unbind({dim})[{start}]", ".flatten()"]
    view = b.rng.choice([v for v in views if x.ndim >= 2 or v != ".diagonal()"])
    part = eval("x" + view, {"x": x})
    if _storage(part) != _storage(x) or not part.ndim or not part.shape[0]:
        raise OutOfScope("a copy, or nothing to slice")
    first = b.rng.randrange(part.shape[0])
    last = b.rng.randrange(first, part.shape[0]) + 1
    how, number = b.rng.choice(("=", "+=", "*=")), b.rng.choice((-2, -1, 2, 3))
    return f"!{name}{view}[{first}:{last}] {how} {number}"


def _goes_into(shape: torch.Size, target: torch.Size) -> bool:
    try:
        return torch.broadcast_shapes(shape, target) == target
    except RuntimeError:
        return False


MAKERS: tuple[tuple[Maker, float], ...] = (
    (_unary, 3.0), (_int_unary, 0.4), (_with_number, 2.0), (_binary, 4.0), (_int_binary, 0.6),
    (_compare, 1.0), (_logical, 0.7), (_where, 1.2), (_cast, 1.5), (_turn, 1.6), (_one, 0.6),
    (_slice, 1.8), (_reshape, 1.5), (_expand, 0.8), (_other_view, 0.8), (_copy, 1.8),
    (_reduce, 2.0), (_reduce_one, 1.4), (_reduce_int, 0.3), (_layer_norm, 0.4), (_matmul, 1.2),
    (_gather, 0.9), (_scatter, 0.4), (_in_place, 1.2), (_write_part, 0.8),
)  # fmt: skip


# -------------------------------------------------------------------------------------------------


def _first_inputs(b: Builder) -> None:
    rank = b.rng.choice((0, 1, 2, 2, 2, 3, 3, 4, 5))
    shape: list[int] = []
    for _ in range(rank):
        room = MOST_ELEMENTS // max(1, torch.Size(shape).numel())
        shape.append(b.rng.choice([n for n in SIZES if n <= room]))
    if rank and b.rng.random() < 0.03:
        shape[b.rng.randrange(rank)] = 0
    b.rng.shuffle(shape)
    for _ in range(b.rng.randrange(1, 4)):
        some = list(shape)
        if some and b.rng.random() < 0.4:
            some[b.rng.randrange(rank)] = 1
        if some and b.rng.random() < 0.2:
            some = some[1:]
        dtype = b.rng.choice(("F16", "F16", "F16", "F16", "F32", "F32", "I64", "BOOL"))
        values = b.rng.choice(("whole", "whole", "quarters", "normal", "positive"))
        stored, view, stick = list(some), "", None
        kind = b.rng.random()
        if kind < 0.15 and len(some) >= 2:
            stored[-1], stored[-2], view = stored[-2], stored[-1], ".transpose(-1, -2)"
        elif kind < 0.25 and some:
            dim = b.rng.randrange(len(some))
            stored[dim] += 3
            view = f".narrow({dim}, {b.rng.randrange(4)}, {some[dim]})"
        elif kind < 0.32 and some:
            dim = b.rng.randrange(len(some))
            stored[dim] = 2 * some[dim]
            view = f"[{':, ' * dim}::2]"
        elif kind < 0.37 and some:
            dim = b.rng.randrange(len(some))
            stored[dim], view = 1, f".expand({', '.join(map(str, some))})"
        elif kind < 0.5 and len(some) >= 2:
            stick = b.rng.randrange(len(some))
        if torch.Size(stored).numel() > 2 * MOST_ELEMENTS:
            stored, view = some, ""
        b.new_input(tuple(stored), dtype, values, view=view, stick=stick)


def generate(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(f"program {seed}")
    b = Builder(rng)
    _first_inputs(b)
    makers = [m for m, _ in MAKERS]
    weights = [w for _, w in MAKERS]
    wanted = rng.randrange(3, 26)
    for _ in range(60 * wanted):
        if len(b.lines) >= wanted:
            break
        inputs, known = list(b.inputs), dict(b.known)
        try:
            made = rng.choices(makers, weights)[0](b)
            text, maybe_view = made if isinstance(made, tuple) else (made, "")
            b.add(text, maybe_view)
        except OutOfScope:
            b.inputs, b.known = inputs, known
    made_here = [n for n in b.known if n not in {x.name for x in b.inputs}]
    outputs = [n for n in made_here if n not in b.used or rng.random() < 0.25]
    return Program(tuple(b.inputs), tuple(b.lines), tuple(outputs or made_here[-1:]))
