"""Seeded faults: device programs with one thing changed, and kernels to change it in.

In: a Case, a kernel with its bundle and tensors to run it on. Out, by `run_fault`: whether the
sanitizer found what was changed. A change that it does not find counts as missed only if the
program computes something else: then it is run on other inputs and other garbage without the
sanitizer, and the bits of its results are compared with those of the right program. What changes
neither a rule nor a bit is no fault (adding b to a instead of a to b) and is counted apart.

The changes are made in the steps that the back-end hands out. What the sanitizer knows beside the
program (names.json, reference.bin) stays as the right bundle gives it, as it would if the fault
were one of lowering, fusing or writing the program.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import torch_spyre._C as _C
from torch_spyre.backend import program_bytes, read_bundle, steps_of, write_checks
from torch_spyre.backend.emit.spyrecode import write_spyrecode
from torch_spyre.backend.errors import BackendError
from torch_spyre.backend.fuse.memory_regions import accesses
from torch_spyre.backend.register_allocation import LOAD, STORE
from torch_spyre.backend.sanitizer_data import CHECKED
from torch_spyre.backend.steps import (
    Address,
    Copy,
    Gather,
    Item,
    LoopBegin,
    LoopEnd,
    Matmul,
    Ring,
    Space,
    Step,
    Tile,
    Topk,
    addresses,
    with_addresses,
)


@dataclass(frozen=True)
class Argument:
    """A tensor of a kernel: how it lies, and its values, or None where the kernel only writes."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    layout: Any
    value: torch.Tensor | None

    def make(self, other_values: bool) -> torch.Tensor:
        tensor = _C._empty_spyre(self.size, self.stride, self.dtype, self.layout, 0)
        value = self.value
        if value is None:
            if other_values:  # garbage, so that unwritten bytes show
                tensor.copy_(_other(torch.zeros(self.size, dtype=self.dtype)))
            return tensor
        tensor.copy_(_other(value) if other_values else value)
        return tensor


def _other(value: torch.Tensor) -> torch.Tensor:
    """Values of the same kind that are others. Indices stay: they must be in range."""
    if value.dtype.is_floating_point:
        return value * 0.5 + torch.linspace(-1, 1, max(value.numel(), 1)).reshape(value.shape).to(
            value.dtype
        )
    return value


@dataclass(frozen=True)
class Case:
    name: str
    directory: Path
    """The bundle."""
    pool_bytes: int
    arguments: tuple[Argument, ...]
    fuse: bool = True

    def items(self) -> list[Item]:
        return list(_items(self.directory, self.fuse))

    def launch(self, code: Path, other_values: bool = False) -> list[torch.Tensor]:
        """Run a program on fresh tensors; what they hold afterwards."""
        tensors = [argument.make(other_values) for argument in self.arguments]
        pool = []
        if self.pool_bytes:
            pool = [torch.empty(self.pool_bytes // 4, dtype=torch.float32, device="spyre")]
            if other_values:
                pool[0].copy_(torch.full((self.pool_bytes // 4,), 3.75))
        plan = _C.prepare_kernel(str(code))
        _C.launch_jobplan(plan, [*pool, *tensors])
        torch.spyre.synchronize()
        return [t.cpu() for t in tensors]


@cache
def _items(directory: Path, fuse: bool) -> tuple[Item, ...]:
    return tuple(steps_of(read_bundle(directory), fuse=fuse))


def write_code(case: Case, items: list[Item], code: Path) -> None:
    """A SpyreCode directory with other steps, and the side data of the right ones."""
    code.mkdir(parents=True, exist_ok=True)
    write_spyrecode(code, program_bytes(items))
    right = case.directory / f"checks-{case.fuse}"
    if not right.is_dir():
        right.mkdir()
        write_checks(case.directory, right, fuse=case.fuse, pool=False)
    for file in right.iterdir():
        if file.name != CHECKED:  # the right program on scratchpads: the changed one is checked
            shutil.copy(file, code / file.name)


# ---- Faults --------------------------------------------------------------------------------------

Fault = Callable[[list[Item], random.Random], list[Item] | None]
STICK = 128


def _steps(items: Sequence[Item]) -> list[int]:
    return [i for i, item in enumerate(items) if not isinstance(item, (LoopBegin, LoopEnd))]


def _replaced(items: Sequence[Item], at: int, step: Step) -> list[Item]:
    return [*items[:at], step, *items[at + 1 :]]


def _with_address(step: Step, number: int, address: Address) -> Step:
    changed = list(addresses(step))
    changed[number] = address
    return with_addresses(step, tuple(changed))


def shift_address(items: list[Item], rng: random.Random) -> list[Item] | None:
    """An operand begins some sticks earlier or later, on one core or on all."""
    at = rng.choice(_steps(items))
    step: Any = items[at]
    number = rng.randrange(len(addresses(step)))
    address = addresses(step)[number]
    by = STICK * rng.choice([1, 2, 3, 8, 64, -1, -2])
    core = rng.randrange(step.cores)
    everywhere = rng.random() < 0.5
    offsets = tuple(o + by if everywhere or c == core else o for c, o in enumerate(address.offsets))
    return _replaced(items, at, _with_address(step, number, replace(address, offsets=offsets)))


def overlap_slices(items: list[Item], rng: random.Random) -> list[Item] | None:
    """A core does the slice of another one, or one row too many."""
    at = rng.choice(_steps(items))
    step: Any = items[at]
    if step.cores < 2:
        return None
    first, second = rng.sample(range(step.cores), 2)
    number = rng.randrange(len(addresses(step)))
    address = addresses(step)[number]
    if rng.random() < 0.5 or isinstance(step, Copy):
        offsets = list(address.offsets)
        if offsets[first] == offsets[second]:
            return None
        offsets[first] = offsets[second]
        changed = _with_address(step, number, replace(address, offsets=tuple(offsets)))
        return _replaced(items, at, changed)
    return _extended(items, at, first, 1, rng)


def _extended(
    items: list[Item], at: int, core: int, by: int, rng: random.Random, *, everywhere: bool = False
) -> list[Item] | None:
    """One dimension of a core's points is longer or shorter."""
    step: Any = items[at]
    if isinstance(step, Ring):
        return _sent_otherwise(items, at, by, rng)
    if isinstance(step, Copy):
        side = step.source_side
        dims = len(side.view_strides)
        if dims == 0:
            return None
        dim = rng.randrange(dims)

        def cut(views: Any) -> Any:
            return tuple(
                tuple(
                    max(0, v + by) if i == dim + 1 and (everywhere or c == core) else v
                    for i, v in enumerate(view)
                )
                for c, view in enumerate(views)
            )

        changed: Any = replace(
            step,
            source_side=replace(side, views=cut(side.views)),
            destination=replace(step.destination, views=cut(step.destination.views)),
        )
        return _replaced(items, at, changed)
    extents = [list(e) for e in step.extents]
    if not extents[core]:
        return None
    dim = rng.randrange(len(extents[core]))
    for c, own in enumerate(extents):
        if everywhere or c == core or (getattr(step, "groups", ()) and step.groups[c]
                                       == step.groups[core]):  # fmt: skip
            own[dim] = max(0, own[dim] + by)
    return _replaced(items, at, replace(step, extents=tuple(tuple(e) for e in extents)))


def _sent_otherwise(items: list[Item], at: int, by: int, rng: random.Random) -> list[Item] | None:
    """Of a move over the ring one transfer is missing, or ends where another one does."""
    step: Any = items[at]
    if len(step.transfers) < 2:
        return None
    first, second = rng.sample(range(len(step.transfers)), 2)
    transfers = list(step.transfers)
    if by < 0:
        del transfers[first]
    else:
        other = transfers[second]
        transfers[first] = transfers[first]._replace(
            target=other.target, target_offset=other.target_offset
        )
    return _replaced(items, at, replace(step, transfers=tuple(transfers)))


def shorten_loop(items: list[Item], rng: random.Random) -> list[Item] | None:
    """A loop ends one turn early: one of the program, or one over the points of a core."""
    loops = [i for i, item in enumerate(items) if isinstance(item, LoopBegin)]
    if loops and rng.random() < 0.5:
        at = rng.choice(loops)
        loop = items[at]
        assert isinstance(loop, LoopBegin)
        return [*items[:at], LoopBegin(loop.count - 1), *items[at + 1 :]]
    at = rng.choice(_steps(items))
    step: Any = items[at]
    if isinstance(step, Topk) and rng.random() < 0.5 and step.count > step.k:
        return _replaced(items, at, replace(step, count=step.count - 1))
    core = rng.randrange(step.cores)
    return _extended(items, at, core, -1, rng, everywhere=rng.random() < 0.5)


def _writes(step: Step) -> set[int]:
    """Numbers of the addresses that a step writes."""
    if isinstance(step, Tile):
        return {i.destination for i in step.code if i.opcode == STORE}
    if isinstance(step, Matmul):
        stored = {i.destination + 2 for i in step.epilogue if i.opcode == STORE}
        return stored or {2}
    return {2} if isinstance(step, Gather) else {1}


def _reads(step: Step) -> set[int]:
    if isinstance(step, Tile):
        return {i.a for i in step.code if i.opcode == LOAD}
    if isinstance(step, Matmul):
        return {0, 1} | {i.a + 2 for i in step.epilogue if i.opcode == LOAD}
    return {0, 1} if isinstance(step, Gather) else {0}


def reuse_too_early(items: list[Item], rng: random.Random) -> list[Item] | None:
    """An intermediate is placed, by its writer and all readers, where another one still lives."""
    places: dict[Any, list[tuple[int, int, bool]]] = {}
    for at in _steps(items):
        step: Any = items[at]
        for number, address in enumerate(addresses(step)):
            is_pool = address.space == Space.ARGUMENT and address.argument == 0
            if address.space == Space.LX or is_pool:
                key = (address.space, address.offsets[0])
                places.setdefault(key, []).append((at, number, number in _writes(step)))
    live = []
    for key, uses in places.items():
        writers = [at for at, _, writes in uses if writes]
        readers = [at for at, _, writes in uses if not writes]
        if len(writers) == 1 and readers:
            live.append((key, writers[0], max(readers), uses))
    pairs = [
        (a, b)
        for a in live
        for b in live
        if a is not b and a[0][0] == b[0][0] and a[1] < b[1] < a[2]
    ]
    if not pairs:
        return None
    (kept, _, _, _), (key, _, _, uses) = rng.choice(pairs)
    by = kept[1] - key[1]
    changed = list(items)
    for at, number, _ in uses:
        step = changed[at]
        address = addresses(step)[number]
        offsets = tuple(o + by for o in address.offsets)
        changed[at] = _with_address(step, number, replace(address, offsets=offsets))
    return changed


def drop_restickify(items: list[Item], rng: random.Random) -> list[Item] | None:
    """A copy between layouts, or a move between scratchpads, is omitted."""
    copies = [at for at in _steps(items) if isinstance(items[at], (Copy, Ring))]
    if not copies:
        return None
    at = rng.choice(copies)
    return [*items[:at], *items[at + 1 :]]


def drop_mask(items: list[Item], rng: random.Random) -> list[Item] | None:
    """Padding takes part: in a reduction over lanes, or in the depth of a product."""
    found = []
    for at in _steps(items):
        step: Any = items[at]
        if isinstance(step, Tile) and step.reduces_lanes:
            full = (1 << step.lanes) - 1
            if any(tail != full for tail in step.tails):
                found.append((at, replace(step, tails=(full,) * step.cores)))
        if isinstance(step, Matmul):
            per_stick = 64
            depths = [e[-1] for e in step.extents]
            if any(d % per_stick for d in depths):
                extents = tuple((*e[:-1], -(-e[-1] // per_stick) * per_stick) for e in step.extents)
                found.append((at, replace(step, extents=extents)))
    if not found:
        return None
    at, changed = rng.choice(found)
    return _replaced(items, at, changed)


def swap_operands(items: list[Item], rng: random.Random) -> list[Item] | None:
    """Two operands of a step have each other's address."""
    at = rng.choice(_steps(items))
    step: Any = items[at]
    places = list(addresses(step))
    if len(places) < 2:
        return None
    first, second = rng.sample(range(len(places)), 2)
    if places[first] == places[second]:
        return None
    places[first], places[second] = places[second], places[first]
    return _replaced(items, at, with_addresses(step, tuple(places)))


FAULTS: dict[str, Fault] = {
    "shifted address": shift_address,
    "overlapping slices": overlap_slices,
    "too early reuse": reuse_too_early,
    "dropped restickify": drop_restickify,
    "dropped mask": drop_mask,
    "shortened loop": shorten_loop,
    "swapped operands": swap_operands,
}


# ---- Running them --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    fault: str
    case: str
    seed: int
    found: bool
    """By the sanitizer."""
    by_memory: bool
    """Without the comparison with the operations of the bundle."""
    refused: bool
    """The card's own reader refused the program."""
    changes: bool
    """The results are others; not asked where it was found."""
    message: str = ""

    @property
    def counts(self) -> bool:
        return self.found or self.changes

    def __str__(self) -> str:
        return f"{self.fault} in {self.case}, seed {self.seed}"


def seeds(cases: Sequence[Case], count: int) -> Iterator[tuple[Case, str, int, list[Item]]]:
    """Changed programs, no two the same, the kinds of faults in turn while there are places for
    them: only so many masks can be dropped."""
    kinds = list(FAULTS)
    made: set[tuple[str, str]] = set()
    seed = turn = 0
    while len(made) < count:
        kind = kinds[turn % len(kinds)]
        for _ in range(200):
            rng = random.Random(seed := seed + 1)
            case = cases[rng.randrange(len(cases))]
            items = FAULTS[kind](case.items(), rng)
            if items is None or (case.name, repr(items)) in made:
                continue
            made.add((case.name, repr(items)))
            turn += 1
            yield case, kind, seed, items
            break
        else:
            kinds.remove(kind)


def run_fault(case: Case, kind: str, seed: int, items: list[Item], code: Path) -> Outcome:
    """Run a changed program under the sanitizer, and if it finds nothing, look at the results."""
    try:
        write_code(case, items, code)
    except BackendError as error:
        return Outcome(kind, case.name, seed, False, False, True, False, str(error))
    message, refused = run_checked(case, code)
    if refused:
        return Outcome(kind, case.name, seed, False, False, True, False, message)
    by_memory = bool(message)
    if message:
        operations_only = "than the bundle says" in message or "its operations" in message
        by_memory = not operations_only
        return Outcome(kind, case.name, seed, True, by_memory, False, True, message)
    right = code.parent / f"{code.name}-right"
    write_code(case, case.items(), right)
    differ = False
    for other_values in (False, True):
        pairs = zip(case.launch(right, other_values), case.launch(code, other_values))
        differ |= any(not torch.equal(_bits(a), _bits(b)) for a, b in pairs)
    return Outcome(kind, case.name, seed, False, False, False, differ)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def run_checked(case: Case, code: Path) -> tuple[str, bool]:
    """What the sanitizer says; and whether the program was refused before it came to run."""
    try:
        with torch.spyre.sanitizer():
            case.launch(code)
    except torch.spyre.SanitizerError as error:
        return str(error), False
    except RuntimeError as error:
        if "malformed" in str(error) or "out of bounds for dimension" in str(error):
            return str(error), True
        raise
    return "", False


def read_arguments(directory: Path) -> set[int]:
    """Numbers of the arguments that a bundle reads before it writes them."""
    found: set[int] = set()
    written: set[int] = set()
    for item in steps_of(read_bundle(directory), fuse=False):
        if isinstance(item, (LoopBegin, LoopEnd)):
            continue
        touched = accesses(item, (1,) * len(addresses(item)[0].loop_strides))
        touched = [a for a in touched if a.region.space == Space.ARGUMENT]
        found |= {a.region.argument for a in touched if not a.writes} - written
        written |= {a.region.argument for a in touched if a.writes}
    return found
