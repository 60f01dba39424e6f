"""Many small programs in one graph, each compared with CPU float32.

A compilation costs more than a hundred runs, so that tests of many operations share one.

    report = together({"sum": lambda x: x.sum(0), "mean": lambda x: x.mean()}, x)
    assert not report.fallbacks
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import torch_spyre


def together(
    programs: dict[str, Callable[..., Any]], *inputs: torch.Tensor, tolerance: float = 2.0**-8
) -> torch_spyre.explanation.Explanation:
    """Compile all programs as one graph, compare every result, say what became of them.

    CPU gets the inputs as the card holds them, 16-bit floats as float32. `tolerance` is a part of
    the largest value of a result; integers and booleans have to be equal.
    """
    torch._dynamo.reset()
    there = [x.to("spyre") for x in inputs]
    here = [_wide(x.cpu()) for x in there]

    def graph(*tensors: torch.Tensor) -> dict[str, Any]:
        return {name: program(*tensors) for name, program in programs.items()}

    report = torch_spyre.explain(graph, *there)
    problems = []
    for name, program in programs.items():
        got = tree_leaves(tree_map(lambda t: t.cpu(), report.result[name]))
        expected = tree_leaves(program(*here))
        assert len(got) == len(expected), name
        problems += [
            f"{name}: {said}"
            for g, e in zip(got, expected, strict=True)
            if (said := _difference(g, e, tolerance))
        ]
    assert not problems, "\n".join(problems)
    assert not report.graph_breaks
    return report


def host_steps(report: torch_spyre.explanation.Explanation) -> list[str]:
    """The operations that the host does."""
    return sorted({step.op for step in report.fallbacks})


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _difference(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> str:
    if got.shape != expected.shape:
        return f"shape {list(got.shape)}, expected {list(expected.shape)}"
    if not expected.is_floating_point():
        same = got == expected
        return "" if bool(same.all()) else f"{int((~same).sum())} of {same.numel()} differ"
    got, expected = got.double(), expected.double()
    finite = expected[expected.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    same = (got == expected) | (got.isnan() & expected.isnan())
    same |= (got - expected).abs() <= tolerance * max(largest, 2.0**-20)
    if bool(same.all()):
        return ""
    where = tuple(torch.nonzero(~same)[0].tolist())
    return f"{int((~same).sum())} of {same.numel()} differ: {got[where]} for {expected[where]}"
