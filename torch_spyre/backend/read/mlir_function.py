"""What bundle.mlir says: the files that run, in loops, with the addresses of their symbols."""

from __future__ import annotations

from dataclasses import dataclass

POOL_PARAMETER = "pool_base_addr"


@dataclass(frozen=True)
class Value:
    """base + constant + sum of strides[i] * counter of loop i."""

    base: int | None = None
    """Number of the parameter."""
    constant: int = 0
    strides: tuple[int, ...] = ()
    """One for each loop around the operation, outermost first; shorter means zeros."""

    @property
    def is_constant(self) -> bool:
        return self.base is None and not any(self.strides)


@dataclass(frozen=True)
class Execute:
    """One run of an sdsc file. `symbols` maps its symbol ids to addresses."""

    file: str
    symbols: tuple[tuple[int, Value], ...]
    line: int


@dataclass(frozen=True)
class Loop:
    count: int
    body: tuple[Execute | Loop, ...]


Node = Execute | Loop


@dataclass(frozen=True)
class Function:
    """What bundle.mlir says."""

    parameters: tuple[str, ...]
    body: tuple[Node, ...]

    @property
    def has_pool(self) -> bool:
        return bool(self.parameters) and self.parameters[0] == POOL_PARAMETER
