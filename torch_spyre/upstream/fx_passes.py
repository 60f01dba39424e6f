"""Inductor's passes over FX graphs: patterns that are not for the card or cannot match, values of
nodes that are known already, updates in place that are not safe."""

from __future__ import annotations

import copy
import dataclasses
import functools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._inductor.pattern_matcher import CallFunction, MultiOutputPattern, PatternMatcherPass

from torch_spyre._inductor.fx import reinplace as spyre_reinplace
from torch_spyre._inductor.state import is_compiling
from torch_spyre.on_card import is_on_card

_Function = Callable[..., Any]


def scaled_softmax(passes: list[Any]) -> list[Any]:
    """softmax(x * number) becomes a dozen operations that take the largest value before the
    scaling. Loops that are fused hide that; here each is an operation of the card."""
    from torch._inductor.fx_passes import joint_graph

    return _not_for_spyre(passes, joint_graph._other_is_broadcasted_in_dim)


def products_with_bias(passes: list[Any]) -> list[Any]:
    """mm + bias becomes addmm, which our decomposition takes apart again: the graph as it was, for
    a trace of each product."""
    from torch._inductor.fx_passes import post_grad

    return _not_for_spyre(passes, post_grad.is_valid_addmm_fusion)


def _not_for_spyre(passes: list[Any], check: Callable[[Any], Any]) -> list[Any]:
    """Patterns with a given check do not apply to tensors on the card."""
    elsewhere = functools.partial(_elsewhere, check)
    for known in passes:
        for entry in (e for entries in known.patterns.values() for e in entries):
            if entry.extra_check is check:
                entry.extra_check = elsewhere
    return passes


def _elsewhere(stock: Callable[[Any], Any], match: Any) -> Any:
    return not is_on_card(match.output_node().meta["val"]) and stock(match)


def safe_updates(known: dict[Any, Any]) -> dict[Any, Any]:
    """Updates in place change results where something else reads what is updated; see
    _inductor/fx/reinplace.py."""
    from torch._inductor.fx_passes import reinplace

    checks = {
        torch.ops.aten.index_put.default: spyre_reinplace.also,
        torch.ops.aten._unsafe_index_put.default: spyre_reinplace.also,
        reinplace._generalized_scatter: spyre_reinplace.instead,
    }
    safe = {
        op: dataclasses.replace(known[op], extra_check=check(known[op].extra_check))
        for op, check in checks.items()
    }
    rows = torch.ops.spyre.put_rows, torch.ops.spyre.put_rows_
    ours = reinplace.InplaceableOp(rows[1].default, 0, spyre_reinplace.is_safe)
    return {**known, **safe, rows[0].default: ours}


Needs = tuple[frozenset[Any], ...]
"""Of each of these sets the graph must have one operation."""

_needs: weakref.WeakKeyDictionary[Any, Needs] = weakref.WeakKeyDictionary()


def possible_ones(stock: _Function) -> _Function:
    """Inductor compares each node with every pattern that ends in its operation; most are forms of
    attention, and most need an operation that the graph does not have. What a pattern needs is the
    same for all graphs, and the operations of a graph are collected once:

        div(softmax(bmm(x, y)), number)    needs div, softmax and bmm somewhere in the graph

    Replacements may bring operations that the graph did not have. They stand where the match ended,
    and Inductor goes from the last node to the first: none is part of what is compared afterwards.
    """

    def apply(self: PatternMatcherPass, gm: Any) -> int:
        return stock(possible(self, _operations(gm)) if is_compiling() else self, gm)

    return apply


def possible(patterns: PatternMatcherPass, operations: set[Any]) -> PatternMatcherPass:
    """The same pass with the patterns that can match in a graph with these operations."""
    few = copy.copy(patterns)
    few.patterns = defaultdict(list)
    for place, entries in patterns.patterns.items():
        if place[0] == "call_function" and place[1] not in operations:
            continue
        kept = [entry for entry in entries if _can_match(entry.pattern, operations)]
        if kept:
            few.patterns[place] = kept
    return few


def _operations(graph: Any) -> set[Any]:
    nodes = graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else graph.nodes
    return {node.target for node in nodes if node.op == "call_function"}


def _can_match(pattern: Any, operations: set[Any]) -> bool:
    needs = _needs.get(pattern)
    if needs is None:
        needs = _needs[pattern] = tuple(set(_needed(pattern)))
    return not any(operations.isdisjoint(choice) for choice in needs)


def _needed(pattern: Any) -> Iterator[frozenset[Any]]:
    """Operations that must be there; of kinds of patterns that are not known here: none."""
    parts, seen = [pattern], set[int]()
    while parts:
        part = parts.pop()
        if id(part) in seen:
            continue  # what is used twice is there once
        seen.add(id(part))
        if isinstance(part, MultiOutputPattern):
            parts += part.outputs
        elif type(part) is CallFunction:
            yield frozenset(part.fns)
            parts += part.flat_args_kwargs[0]
