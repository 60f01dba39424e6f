"""Work division hints (`spyre_hint(work_div=...)`), by names of dimensions.

In: operations, their OpSpecs and the names of their symbols. Out: the OpSpecs with the slices of
the hints, or a refusal that says what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import sympy

from torch_spyre._inductor.errors import Unsupported
from torch_spyre._inductor.operations.operation import Operation
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.planning.division.documented_rules import (
    legal_slices,
    reduced_symbols,
    widest_span,
    with_slices,
)
from torch_spyre.logs import get_logger

_log = get_logger("spyre.inductor.passes")


def resolve(
    operations: Sequence[Operation],
    specs: Sequence[OpSpec],
    names: Sequence[Mapping[sympy.Symbol, str]],
    cores: int,
    max_span: int,
) -> tuple[list[OpSpec], list[bool]]:
    """The operations with the slices that hints give them, and which ones have a hint.

    `names` has those of the symbols of each operation."""
    _check_names(operations, names)
    result, hinted = [], []
    for op, spec, own in zip(operations, specs, names, strict=True):
        hint = {n: count for n, count in op.origin.hints if n in own.values()}
        if op.reason:  # a copy that the compiler added is its own business
            hint = {}
        if hint and op.kind == "topk":
            _log.warning("the hint work_div=%s is ignored: topk runs on one core", hint)
            hint = {}
        if hint:
            slices = _slices(op, spec, own, hint, cores)
            spec = with_slices(spec, slices)
            span = widest_span(spec, slices, cores)
            if span > max_span:
                _log.warning(
                    "the hint work_div=%s lets a core address %d bytes of one tensor, more than %d",
                    hint, span, max_span,
                )  # fmt: skip
        result.append(spec)
        hinted.append(bool(hint))
    return result, hinted


def _check_names(
    operations: Sequence[Operation], names: Sequence[Mapping[sympy.Symbol, str]]
) -> None:
    """Every name of a hint must be one of some operation with that hint."""
    known: dict[tuple[tuple[str, Any], ...], set[str]] = {}
    example: dict[tuple[tuple[str, Any], ...], Operation] = {}
    for op, own in zip(operations, names, strict=True):
        if op.origin.hints:
            known.setdefault(op.origin.hints, set()).update(own.values())
            example.setdefault(op.origin.hints, op)
    for hint, present in known.items():
        unknown = [name for name, _ in hint if name not in present]
        if unknown:
            raise _refusal(
                example[hint], hint, f"no dimension is named {_quoted(unknown)}",
                f"the names {_quoted(sorted(present)) or 'of none: name the dimensions of inputs '}"
                f"{'' if present else 'with declare_tensor_dim and name_tensor_dims'}",
            )  # fmt: skip


def _slices(
    op: Operation,
    spec: OpSpec,
    names: Mapping[sympy.Symbol, str],
    hint: Mapping[str, Any],
    cores: int,
) -> dict[sympy.Symbol, int]:
    legal = legal_slices(spec, cores)
    slices = dict.fromkeys(spec.iteration_space, 1)
    for symbol, name in names.items():
        if name not in hint:
            continue
        count = hint[name]
        allowed = legal.get(symbol, [1])
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise _refusal(op, hint.items(), f"{name!r} has {count!r}", "a whole number from 1 on")
        if count > cores:
            raise _refusal(
                op, hint.items(), f"{name!r} wants {count} cores, there are {cores}",
                f"for {name!r}: {_numbers(allowed)}",
            )  # fmt: skip
        if count not in allowed:
            raise _refusal(
                op, hint.items(), f"{count} slices do not divide {name!r}",
                f"for {name!r}: {_numbers(allowed)}",
            )  # fmt: skip
        slices[symbol] = count
    reduced = [names[s] for s in reduced_symbols(spec) if slices.get(s, 1) > 1]
    if len(reduced) > 1:
        raise _refusal(
            op, hint.items(), f"{_quoted(reduced)} are reduced, and both are cut",
            "one reduced dimension with more than 1",
        )  # fmt: skip
    if prod(slices.values()) > cores:
        raise _refusal(
            op, hint.items(), f"its slices need {prod(slices.values())} cores, there are {cores}",
            f"numbers whose product is at most {cores} (SENCORES)",
        )  # fmt: skip
    return slices


def _refusal(
    op: Operation, hint: Iterable[tuple[str, Any]], what: str, allowed: str
) -> Unsupported:
    return Unsupported(
        f"the hint work_div={dict(hint)} cannot hold for {op.opfunc}: {what}; allowed: {allowed}",
        op=op.origin.aten,
        source=op.origin.source,
        hint="change the hint, or set SPYRE_INDUCTOR_IGNORE_HINTS=1",
    )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))
