"""Hints: work division, tiling and dimension names that a program asks for (`spyre_hint`).

    from torch_spyre._inductor import spyre_hint
    from torch_spyre._inductor.propagate_named_dims import declare_tensor_dim, name_tensor_dims

    declare_tensor_dim("M", 512)
    declare_tensor_dim("K", 4096)
    name_tensor_dims(x, ["M", "K"])

    @torch.compile
    def f(x, w):
        with spyre_hint(work_div={"M": 4, "K": 2}):
            return x @ w

`num_tiles_per_dim={"M": 4}` tiles a dimension: a loop over four tiles
(planning/tiling/hinted.py), `{"M": 4, "K": 2}` is that loop around one over two tiles of K;
`named_dims=["M", "K"]` names the result of an operation without inputs.

A hint is written into the metadata of the FX nodes traced inside the block; tracing, autograd and
decompositions propagate it. It is looked up when work is divided
(planning/division/hints.py): by name of the dimension, for each operation of the block that has it.
A hint that cannot be followed raises an error. In a graph in which no dimension has a name there is
nothing that it could be about: then it does not count, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.fx.traceback import annotate

from torch_spyre._inductor.propagate_named_dims import check_declared

_PREFIX = "_hint_"


def spyre_hint(
    *,
    work_div: Mapping[str, int] | None = None,
    num_tiles_per_dim: Mapping[str, int] | None = None,
    named_dims: Sequence[str] | None = None,
    tiles: Mapping[str, int] | None = None,
    slices: Mapping[str, int] | None = None,
) -> AbstractContextManager[None]:
    """What holds for the operations of the block, by names of dimensions.

    work_div           into how many slices, for cores, dimensions are cut
    num_tiles_per_dim  into how many tiles dimensions are cut, one after the other; several are
                       nested loops, the first one outside. So are nested blocks, the outer one
                       outside
    named_dims         names of the result of an operation without inputs, outermost first
    tiles, slices      old names of num_tiles_per_dim
    """
    for alias, value in (("tiles", tiles), ("slices", slices)):
        if value is not None:
            _warn_alias(alias)
            num_tiles_per_dim = value
    said: dict[str, Any] = {}
    if work_div is not None:
        said[f"{_PREFIX}{work_div!r}"] = {"work_div": dict(work_div)}
    if num_tiles_per_dim is not None:
        check_tiles(num_tiles_per_dim)
        said[f"{_PREFIX}tiles {num_tiles_per_dim!r}"] = {"tiles": dict(num_tiles_per_dim)}
    if named_dims is not None:
        check_declared(named_dims)
        said[f"{_PREFIX}named_dims"] = {"named_dims": tuple(named_dims)}
    if not said:
        raise TypeError("spyre_hint() needs work_div, num_tiles_per_dim or named_dims")
    return annotate(said)


def check_tiles(tiles: Mapping[str, int]) -> None:
    """Refuse what cannot be a number of tiles of a dimension."""
    if not tiles:
        raise ValueError("num_tiles_per_dim={} names no dimension, allowed: one or more")
    for name, count in tiles.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name!r} has {count!r} tiles, allowed: a whole number from 1 on")


@torch.compiler.assume_constant_result
def _warn_alias(alias: str) -> bool:
    warnings.warn(
        f"spyre_hint({alias}=...) is an old name: use num_tiles_per_dim=",
        FutureWarning,
        stacklevel=3,
    )
    return True


def _said(node: torch.fx.Node | None) -> list[Mapping[str, Any]]:
    """The hints of the blocks around a node, outermost first."""
    if node is None:
        return []
    custom = node.meta.get("custom") or {}
    return [hint for key, hint in custom.items() if key.startswith(_PREFIX)]


def hints_of(node: torch.fx.Node | None) -> tuple[tuple[str, Any], ...]:
    """The division that a node of the FX graph asks for; of nested blocks the inner one counts."""
    found: dict[str, Any] = {}
    for hint in _said(node):
        found.update(hint.get("work_div", {}))
    return tuple(found.items())


def tiles_of(node: torch.fx.Node | None) -> tuple[tuple[str, int], ...]:
    """The loops that a node asks for: dimension and number of tiles, the outermost first."""
    return tuple(item for hint in _said(node) for item in hint.get("tiles", {}).items())


def named_dims_of(node: torch.fx.Node | None) -> tuple[str, ...]:
    """Names that the program gives to what a node makes."""
    return next((hint["named_dims"] for hint in _said(node)[::-1] if "named_dims" in hint), ())


def warn_of_unnamed(hint: str) -> None:
    """Warn that a hint does not count, as no dimension of its graph has a name."""
    warnings.warn(
        f"the hint {hint} does not count: no dimension of the graph has a name; name those of "
        "inputs with declare_tensor_dim and name_tensor_dims before it is compiled",
        stacklevel=2,
    )


def fingerprint(model: Any) -> tuple[str, ...]:
    """All hints of a graph, for the keys of caches: metadata is not part of them."""
    if not isinstance(model, torch.fx.GraphModule):
        return ()
    hints = [(node.name, _said(node)) for node in model.graph.nodes]
    return tuple(f"{name} {said}" for name, said in hints if said)
