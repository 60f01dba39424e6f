"""Symbol table of a bundle: addresses that are bound when the kernel is launched.

In: addresses, as a base, an offset and strides of loop counters. Out: negative numbers that stand
for them in the sdsc files; `bundle.mlir` computes and passes each.

Example: the first core's slice of kernel argument 0 is Address(0, 0), symbol -1.
"""

from __future__ import annotations

from typing import NamedTuple

POOL = -1
LX = -2


class Address(NamedTuple):
    """base + offset + sum of strides times loop counters."""

    base: int
    """Number of the kernel argument, POOL, or LX, which is no symbol: the offset says it all."""
    offset: int
    strides: tuple[int, ...] = ()
    """Bytes per iteration of the innermost loops, outer before inner."""


class SymbolTable:
    """Numbers all addresses of a bundle. A file names each of its addresses once; two files never
    share a number."""

    def __init__(self) -> None:
        self.files: dict[int, dict[Address, int]] = {}
        self._last = 0

    def id(self, file: int, address: Address) -> int:
        """The symbol of an address in a file: -1, -2, ..."""
        known = self.files.setdefault(file, {})
        if address not in known:
            self._last -= 1
            known[address] = self._last
        return known[address]
