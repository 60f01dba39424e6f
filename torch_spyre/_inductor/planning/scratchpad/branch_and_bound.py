"""Exact scratchpad allocation for few buffers: branch and bound over residents, then addresses.

Residents are chosen from the most valuable candidate on; the bound is the sum of what is left, and
the live bytes at each time prune first. Addresses are tried in ascending order: every allocation
can be compacted until each stay rests on another one or on address 0, so it is enough to try each
next stay on top of those below it. Stays that share bytes (in-place results) are packed as one.

With the extra `plan` (OR-Tools) CP-SAT solves the same problem, also for more buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from torch_spyre._inductor.planning.scratchpad.candidates import (
    Candidate,
    candidates_of,
    with_stays,
)
from torch_spyre._inductor.planning.scratchpad.greedy import aligned
from torch_spyre._inductor.planning.scratchpad.lifetimes import LifetimeBoundBuffer, Stay

MOST_STEPS = 2_000_000


class TooLarge(Exception):
    """More steps than allowed; what was found until then is legal, but may not be the best."""


def exact(
    buffers: Sequence[LifetimeBoundBuffer], limit: int, alignment: int, *, evict: bool = True
) -> list[LifetimeBoundBuffer]:
    """The layout with the least traffic, without moves."""
    found = candidates_of(buffers, limit, evict)
    chosen = _cp_sat(found, limit, alignment)
    if chosen is None:
        solver = BranchAndBound(found, limit, alignment, MOST_STEPS)
        chosen = solver.solve()
        if not solver.is_proven:
            raise TooLarge(
                f"found {len(buffers)} buffers with {len(found)} candidates, more than branch and "
                "bound can prove; install the extra 'plan' (OR-Tools), or use the solver 'search'"
            )
    return with_stays(buffers, stays_of(found, chosen))


def stays_of(candidates: Sequence[Candidate], chosen: dict[int, int]) -> dict[int, list[Stay]]:
    stays: dict[int, list[Stay]] = {}
    for number, address in chosen.items():
        c = candidates[number]
        stays.setdefault(c.buffer, []).append(Stay(c.first, c.last, address))
    return stays


class BranchAndBound:
    """Addresses by number of a candidate; `is_proven` when all was looked at."""

    def __init__(
        self, candidates: Sequence[Candidate], limit: int, alignment: int, steps: int
    ) -> None:
        self.limit = limit
        self.alignment = alignment
        self.steps = steps
        self.order = sorted(candidates, key=lambda c: (-c.value, c.number))
        self.by_number = {c.number: c for c in candidates}
        self.best: dict[int, int] = {}
        self.best_value = 0
        self.is_proven = True
        # No layout of the rest saves more than the best candidates of each life together.
        self.rest = [0] * (len(self.order) + 1)
        for at in range(len(self.order) - 1, -1, -1):
            self.rest[at] = self.rest[at + 1] + self.order[at].value

    def solve(self) -> dict[int, int]:
        try:
            self._choose(0, [], 0)
        except TooLarge:
            self.is_proven = False
        return self.best

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise TooLarge

    def _choose(self, at: int, chosen: list[Candidate], value: int) -> None:
        self._step()
        if value + self._bound(at, chosen) <= self.best_value:
            return
        if at == len(self.order):
            placed = self.place(chosen)
            if placed is not None:
                self.best, self.best_value = placed, value
            return
        c = self.order[at]
        if not any(c.excludes(other) for other in chosen) and self._may_fit([*chosen, c]):
            self._choose(at + 1, [*chosen, c], value + c.value)
        self._choose(at + 1, chosen, value)

    def _bound(self, at: int, chosen: list[Candidate]) -> int:
        if self.rest[at] <= self.best_value:
            return self.rest[at]
        return sum(
            c.value for c in self.order[at:] if not any(c.excludes(other) for other in chosen)
        )

    def _may_fit(self, chosen: list[Candidate]) -> bool:
        """The bytes at the time at which the last one begins, or something else in its time."""
        new = chosen[-1]
        for time in {c.first for c in chosen if new.first <= c.first <= new.last} | {new.first}:
            live = [c for c in chosen if c.first <= time <= c.last]
            parents = {p for c in live for p in c.parents if c.first == time}
            # A place that is taken over counts once.
            free = sum(aligned(c.size, self.alignment) for c in live if c.number not in parents)
            if free - self.alignment >= self.limit:
                return False
        return True

    # ---- Where ----

    def place(self, chosen: list[Candidate]) -> dict[int, int] | None:
        """Addresses for all of them, or None when there are none."""
        numbers = {c.number for c in chosen}
        choices = []
        for c in chosen:
            parents = [p for p in c.parents if p in numbers]
            if parents:
                choices.append([(c.number, p) for p in (*parents, None)])
        for taken in product(*choices):
            parent_of = {child: p for child, p in taken if p is not None}
            if len(set(parent_of.values())) < len(parent_of):
                continue  # two children of one parent
            placed = self._stack(_pieces(chosen, parent_of), {}, -1)
            if placed is not None:
                return placed
        return None

    def _stack(
        self, left: list[list[Candidate]], placed: dict[int, int], floor: int
    ) -> dict[int, int] | None:
        """Pieces on top of those that are placed, none below the last one."""
        self._step()
        if not left:
            return placed
        tried = set()
        for i, piece in enumerate(left):
            shape = tuple((c.first, c.last, c.size) for c in piece)
            if shape in tried:
                continue  # one just like it
            tried.add(shape)
            address = 0
            for number, at in placed.items():
                below = self.by_number[number]
                if any(below.overlaps(c) for c in piece):
                    address = max(address, aligned(at + below.size, self.alignment))
            if address < floor:
                continue  # it was tried before the last one
            if any(address + c.size > self.limit for c in piece):
                return None  # and it only gets higher
            deeper = {**placed, **{c.number: address for c in piece}}
            found = self._stack(left[:i] + left[i + 1 :], deeper, address)
            if found is not None:
                return found
        return None


def _pieces(chosen: list[Candidate], parent_of: dict[int, int]) -> list[list[Candidate]]:
    """Candidates that take one another's place together, the others alone."""
    pieces: dict[int, list[Candidate]] = {}
    for c in sorted(chosen, key=lambda c: (c.first, c.last)):
        root = c.number
        while root in parent_of:
            root = parent_of[root]
        pieces.setdefault(root, []).append(c)
    return sorted(pieces.values(), key=lambda p: -max(c.size for c in p))


# ---- CP-SAT --------------------------------------------------------------------------------------


def _cp_sat(candidates: Sequence[Candidate], limit: int, alignment: int) -> dict[int, int] | None:
    """The same by OR-Tools; None when it is not installed or does not prove its answer."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        return None
    model: Any = cp_model.CpModel()
    chosen, address = {}, {}
    for c in candidates:
        n = c.number
        chosen[n] = model.new_bool_var(f"chosen{n}")
        address[n] = model.new_int_var(0, (limit - c.size) // alignment, f"address{n}")
    for i, a in enumerate(candidates):
        for b in candidates[:i]:
            if a.excludes(b):
                model.add(chosen[a.number] + chosen[b.number] <= 1)
            elif a.overlaps(b):
                _apart(model, a, b, chosen, address, alignment)
    model.maximize(sum(c.value * chosen[c.number] for c in candidates))
    solver: Any = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    if solver.solve(model) != cp_model.OPTIMAL:
        return None
    return {n: solver.value(address[n]) * alignment for n in chosen if solver.value(chosen[n])}


def _apart(
    model: Any, a: Candidate, b: Candidate, chosen: Any, address: Any, alignment: int
) -> None:
    """Two that are chosen do not share bytes, unless one takes the place of the other."""
    both = [chosen[a.number], chosen[b.number]]
    below, above = model.new_bool_var(""), model.new_bool_var("")
    sizes = {c.number: aligned(c.size, alignment) // alignment for c in (a, b)}
    model.add(address[a.number] + sizes[a.number] <= address[b.number]).only_enforce_if(below)
    model.add(address[b.number] + sizes[b.number] <= address[a.number]).only_enforce_if(above)
    ways = [below, above]
    if a.number in b.parents or b.number in a.parents:
        same = model.new_bool_var("")
        model.add(address[a.number] == address[b.number]).only_enforce_if(same)
        ways.append(same)
    model.add_bool_or(ways).only_enforce_if(both)
