"""Cases for every operation of the OpFunc table: shapes, views, references and allowed errors.

Nothing here is typed by hand for one operation: what an operation takes and means is in the table.
A graph holds many cases at once, because compiling one costs more than running a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torch_spyre.opfuncs import OPFUNCS, OpFunc

SHAPES: tuple[tuple[int, ...], ...] = (
    (), (1,), (63,), (64,), (65,), (100,), (129,), (256,),
    (1, 1), (1, 129), (64, 1), (63, 65), (100, 64), (129, 100), (65, 256),
    (2, 63, 65), (3, 1, 64), (65, 2, 100), (1, 64, 1), (63, 3, 1),
    (2, 3, 65, 63), (3, 1, 2, 129), (2, 2, 1, 3, 65), (1, 2, 3, 1, 2, 63), (2, 1, 2, 3, 2, 64),
)  # fmt: skip


@dataclass(frozen=True)
class View:
    """How the tensor of a case is seen: `base` is the shape that is stored."""

    name: str
    base: Callable[[tuple[int, ...]], tuple[int, ...]]
    apply: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
    rank: int = 0
    """Smallest rank it makes sense for."""


def _sliced(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] + 5)


VIEWS: tuple[View, ...] = (
    View("contiguous", lambda s: s, lambda t, s: t),
    View("transposed", lambda s: (*s[:-2], s[-1], s[-2]), lambda t, s: t.transpose(-1, -2), 2),
    View("sliced", _sliced, lambda t, s: t[..., 3 : 3 + s[-1]], 1),
    View("rows", lambda s: (s[0] + 2, *s[1:]), lambda t, s: t[1 : 1 + s[0]], 2),
    View("expanded", lambda s: (1, *s[1:]), lambda t, s: t.expand(s), 1),
    View("column", lambda s: (*s[:-1], 1), lambda t, s: t.expand(s), 1),
)


@dataclass
class Case:
    """One use of an operation: stored tensors, and what to compute from them."""

    name: str
    stored: list[torch.Tensor]
    compute: Callable[[list[torch.Tensor]], torch.Tensor]
    reduced: int = 1
    """How many elements make one of the result."""
    scale: float = 0.0
    """Magnitude of what is summed up; 0: that of the result."""


def values(shape: tuple[int, ...], domain: str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random input that an operation makes sense for."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    if domain == "positive":
        x = x.abs() + 0.1
    elif domain == "nonzero":
        x = torch.where(x < 0, x - 0.2, x + 0.2)
    elif domain == "small":
        x = x.clamp(-8, 8)
    elif domain == "unit":
        x = torch.tanh(x)
    if dtype in (torch.float16, torch.bfloat16):
        # What the card can hold exactly: 9 fraction bits.
        x = x.to(torch.float16).view(torch.int16).bitwise_and(-2).view(torch.float16)
    return x.to(dtype)


def pointwise_cases(row: OpFunc, dtype: torch.dtype) -> Iterator[Case]:
    """Every shape with every view; the inputs of one case have different views."""
    constants = {"clipMin": -0.5, "clipMax": 0.75, "softplusBeta": 2.0, "softplusThresh": 15.0}
    given = {name: constants[name] for name in row.constants}
    for s, shape in enumerate(SHAPES):
        for v, view in enumerate(VIEWS):
            if len(shape) < view.rank or (v > 0 and s % 3 != v % 3 and len(shape) < 6):
                continue
            views = [view, *(VIEWS[(v + i) % len(VIEWS)] for i in range(1, row.arity))]
            views = [w if len(shape) >= w.rank else VIEWS[0] for w in views]
            stored = [
                values(w.base(shape), row.domain, dtype, 7 * s + i) for i, w in enumerate(views)
            ]
            if row.name == "where3":
                stored[0] = stored[0] > 0

            def compute(
                tensors: list[torch.Tensor],
                shape: tuple[int, ...] = shape,
                views: list[View] = views,
            ) -> torch.Tensor:
                seen = [w.apply(t, shape) for t, w in zip(tensors, views, strict=True)]
                assert row.reference is not None
                return row.reference(torch, *seen, **given)

            names = ",".join(w.name for w in views)
            yield Case(f"{row.name}{list(shape)} {names}", stored, compute)


def reduction_cases(row: OpFunc, dtype: torch.dtype) -> Iterator[Case]:
    """Every shape, several sets of dimensions, with and without keepdim, every view."""
    count = 0
    for s, shape in enumerate(SHAPES):
        rank = len(shape)
        sets = {(d,) for d in range(rank)} | {
            (0, rank - 1),
            (rank - 2, rank - 1),
            tuple(range(rank)),
        }
        for dims in sorted(d for d in sets if d and len(set(d)) == len(d) and min(d) >= 0):
            if row.name == "prod" and len(dims) > 1:
                continue  # PyTorch's prod takes one dimension
            for keepdim in (False, True):
                count += 1
                view = VIEWS[count % len(VIEWS)]
                view = view if rank >= view.rank else VIEWS[0]
                domain = "unit" if row.name == "prod" else "any"
                x = values(view.base(shape), domain, dtype, s)
                n = math.prod(shape[d] for d in dims)

                def compute(
                    tensors: list[torch.Tensor],
                    shape: tuple[int, ...] = shape,
                    view: View = view,
                    dims: Any = dims,
                    keepdim: bool = keepdim,
                ) -> torch.Tensor:
                    assert row.reference is not None
                    where = dims[0] if row.name == "prod" else list(dims)
                    return row.reference(torch, view.apply(tensors[0], shape), where, keepdim)

                total = row.name in ("sum", "mean")
                scale = (
                    float(x.float().abs().max()) * (n if row.name == "sum" else 1) if total else 0
                )
                yield Case(f"{row.name}{list(shape)} over {dims} keepdim={keepdim} {view.name}",
                           [x], compute, n, scale)  # fmt: skip


MATMULS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1, 1), (1, 1)), ((1, 64), (64, 1)), ((63, 65), (65, 100)), ((64, 129), (129, 64)),
    ((1, 256), (256, 129)), ((100, 1), (1, 65)), ((65, 64), (64, 256)),
    ((3, 63, 64), (3, 64, 65)), ((2, 1, 100), (2, 100, 129)), ((2, 65, 63), (2, 63, 1)),
    ((2, 3, 65, 64), (2, 3, 64, 100)), ((2, 3, 1, 63), (2, 3, 63, 65)), ((2, 3, 7, 80), (3, 80, 7)),
    ((2, 65, 100), (100, 64)), ((2, 3, 4, 65), (65, 63)),
)  # fmt: skip


def matmul_cases(row: OpFunc, dtype: torch.dtype) -> Iterator[Case]:
    """Odd sizes and batches, each operand plain, transposed and sliced."""
    for s, (left, right) in enumerate(MATMULS):
        for v, (a, b) in enumerate(((0, 0), (1, 0), (0, 1), (1, 1), (2, 3))):
            if v > 0 and (s + v) % 2:
                continue
            views = [VIEWS[a], VIEWS[b]]
            stored = [
                values(w.base(shape), "any", dtype, s + i)
                for i, (w, shape) in enumerate(zip(views, (left, right), strict=True))
            ]

            def compute(
                tensors: list[torch.Tensor],
                shapes: tuple[tuple[int, ...], ...] = (left, right),
                views: list[View] = views,
            ) -> torch.Tensor:
                x, y = (w.apply(t, n) for w, t, n in zip(views, tensors, shapes, strict=True))
                return torch.matmul(x, y)

            k = left[-1]
            scale = float(stored[0].float().abs().max() * stored[1].float().abs().max()) * k
            yield Case(f"matmul{list(left)}@{list(right)} {views[0].name},{views[1].name}",
                       stored, compute, k, scale)  # fmt: skip


def cases(row: OpFunc, dtype: torch.dtype) -> list[Case]:
    """All cases of a row."""
    makers = {"pointwise": pointwise_cases, "reduction": reduction_cases, "matmul": matmul_cases}
    return list(makers[row.kind](row, dtype))


def rows_under_test() -> list[OpFunc]:
    """Rows with a meaning in PyTorch that take plain tensors."""
    kinds = ("pointwise", "reduction", "matmul")
    rows = [r for r in OPFUNCS.values() if r.kind in kinds and r.reference is not None]
    return [r for r in rows if r.name != "batchmatmulfp8"]


def allowed_error(case: Case, expected: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What rounding explains: one rounding of the result, and float32 inside of the operation."""
    half_ulp = 2.0**-10 if dtype in (torch.float16, torch.bfloat16) else 2.0**-24
    if dtype is torch.bfloat16:
        half_ulp += 2.0**-9  # read back into 8 fraction bits
    inside = 2.0**-20 * (1 + math.sqrt(case.reduced))
    magnitude = torch.clamp(expected.abs(), min=case.scale / max(case.reduced, 1) ** 0.5)
    tiny = 2.0**-24 if dtype is torch.float16 else 2.0**-31
    return expected.abs() * half_ulp * 1.01 + magnitude * inside + tiny


def compare(case: Case, actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> str:
    """What is wrong with a result; empty when nothing is."""
    if actual.shape != expected.shape:
        return f"{case.name}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    if actual.dtype is torch.bool or expected.dtype is torch.bool:
        wrong = actual.bool() != expected.bool()
        return f"{case.name}: {int(wrong.sum())} of {wrong.numel()} differ" if wrong.any() else ""
    actual, expected = actual.double(), expected.double()
    error = (actual - expected).abs()
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    if dtype is torch.float16:
        same |= (expected.abs() > 65504) & actual.isinf()
    error = torch.where(same, torch.zeros_like(error), error)
    excess = error / allowed_error(case, expected, dtype)
    bad = ~(excess <= 1)
    if not bad.any():
        return ""
    worst = (
        torch.where(excess.isnan(), torch.full_like(excess, math.inf), excess).flatten().argmax()
    )
    return (
        f"{case.name}: {int(bad.sum())} of {bad.numel()} outside; worst "
        f"{actual.flatten()[worst]:.6g} for {expected.flatten()[worst]:.6g} "
        f"({excess.flatten()[worst]:.1f} times what rounding explains)"
    )


def run_cases(all_cases: list[Case], dtype: torch.dtype, chunk: int = 60) -> list[str]:
    """Compile and run cases, many in a graph; what is wrong with each that fails."""
    problems = []
    for start in range(0, len(all_cases), chunk):
        part = all_cases[start : start + chunk]

        def graph(*stored: torch.Tensor, part: list[Case] = part) -> list[torch.Tensor]:
            tensors = list(stored)
            results = []
            for case in part:
                own, tensors = tensors[: len(case.stored)], tensors[len(case.stored) :]
                results.append(case.compute(own))
            return results

        torch._dynamo.reset()
        on_card = [t.to("spyre") for case in part for t in case.stored]
        results = torch.compile(graph, dynamic=False)(*on_card)
        for case, result in zip(part, results, strict=True):
            stored = [t.double() if t.is_floating_point() else t for t in case.stored]
            problem = compare(case, result.cpu(), case.compute(stored), dtype)
            if problem:
                problems.append(problem)
    return problems
