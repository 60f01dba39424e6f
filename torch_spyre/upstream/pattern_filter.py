"""Inductor's patterns that can match at all.

Inductor compares each node with every pattern that ends in its operation; most are forms of
attention, and most need an operation that the graph does not have. What a pattern needs is the same
for all graphs: with the operations of a graph collected once, `possible` leaves out the others.

    div(softmax(bmm(x, y)), number)    needs div, softmax and bmm somewhere in the graph
"""

from __future__ import annotations

import copy
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._inductor.pattern_matcher import CallFunction, MultiOutputPattern, PatternMatcherPass

Needs = tuple[frozenset[Any], ...]
"""Of each of these sets the graph must have one operation."""

_needs: weakref.WeakKeyDictionary[Any, Needs] = weakref.WeakKeyDictionary()


def apply(stock: Callable[..., int], patterns: PatternMatcherPass, graph: Any) -> int:
    """What `PatternMatcherPass.apply` does.

    Replacements may bring operations that the graph did not have. They stand where the match ended,
    and Inductor goes from the last node to the first: none is part of what is compared afterwards.
    """
    return stock(possible(patterns, _operations(graph)), graph)


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
