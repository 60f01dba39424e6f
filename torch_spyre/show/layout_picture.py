"""Pictures of tensors in card memory: which element lies where, and what is padding.

In: a spyre tensor, or any layout object with a host size. Out: a standalone SVG text. Sticks are
drawn in the order of their addresses, one bar each; a cell's colour says which host element it
holds (hue: row, lightness: column), hatching says that it holds none.

    x = torch.rand(512, 240, dtype=torch.float16).to("spyre")
    pathlib.Path("x.svg").write_text(torch_spyre.draw_layout(x))

Three steps: `_subject` finds out what is to be drawn, `Sticks` says which host element each
device position holds, `Page` (layout_svg.py) draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from torch_spyre.on_card import is_on_card


class LayoutLike(Protocol):
    """What a layout must offer to be drawn; `SpyreTensorLayout` does."""

    @property
    def device_size(self) -> Sequence[int]: ...
    @property
    def stride_map(self) -> Sequence[int]: ...
    @property
    def device_dtype(self) -> Any: ...


def draw_layout(
    tensor_or_layout: torch.Tensor | LayoutLike,
    *,
    host_size: Sequence[int] | None = None,
    host_strides: Sequence[int] | None = None,
    max_sticks: int = 24,
    title: str | None = None,
) -> str:
    """Draw how a tensor lies in sticks and return the picture as SVG text.

    Args:
        tensor_or_layout: a spyre tensor, or a layout such as `SpyreTensorLayout`. Of a view, the
            whole storage is drawn and what the view does not select is grey.
        host_size: the host shape that a layout is for; needed with a layout, refused with a tensor.
        host_strides: its strides in elements, row-major if not given.
        max_sticks: how many sticks to draw at most; the middle of long axes is omitted.
        title: the heading; by default the kind and shape of what is drawn.

    Raises:
        TypeError: for a CPU tensor, or something that is neither tensor nor layout.
        ValueError: for a tensor whose elements lie untiled in card memory, or wrong arguments.
    """
    if max_sticks < 1:
        raise ValueError(f"max_sticks must be at least 1, got {max_sticks}")
    subject = _subject(tensor_or_layout, host_size, host_strides)
    from torch_spyre.show.layout_svg import Page  # only who draws pays for it

    return Page(Sticks(subject), max_sticks, title or subject.title).svg()


# --- 1. What is to be drawn -----------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A layout, the storage it was made for and the view of it that gives the cells their names."""

    title: str
    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    format_name: str
    arrangement: str
    extent: int  # the storage's elements have offsets 0 ... extent - 1
    filled: int  # how many elements the storage has
    size: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def is_view(self) -> bool:
        return math.prod(self.size) != self.filled


def _subject(
    source: torch.Tensor | LayoutLike,
    host_size: Sequence[int] | None,
    host_strides: Sequence[int] | None,
) -> Subject:
    if isinstance(source, torch.Tensor):
        if host_size is not None or host_strides is not None:
            raise ValueError("host_size and host_strides are for layouts; a tensor knows its own")
        return _subject_of_tensor(source)
    if not all(hasattr(source, name) for name in ("device_size", "stride_map", "device_dtype")):
        raise TypeError(
            "draw_layout needs a spyre tensor or a layout (device_size, stride_map, device_dtype), "
            f"got {type(source).__name__}"
        )
    if host_size is None:
        raise ValueError("a layout does not know its host tensor: give host_size")
    size = tuple(host_size)
    strides = _row_major(size) if host_strides is None else tuple(host_strides)
    if len(strides) != len(size):
        raise ValueError(f"host_size {list(size)} and host_strides {list(strides)} differ in rank")
    numel = math.prod(size)
    extent = 1 + sum((n - 1) * s for n, s in zip(size, strides)) if numel else 0
    return _make_subject(f"layout for {shape_text(size)}", source, extent, numel, size, strides, 0)


def _subject_of_tensor(tensor: torch.Tensor) -> Subject:
    if not is_on_card(tensor):
        raise TypeError(
            f"draw_layout needs a spyre tensor, got one on {tensor.device}; "
            "move it there with .to('spyre')"
        )
    layout: LayoutLike | None = tensor.device_tensor_layout()  # type: ignore[attr-defined]
    if layout is None:
        raise ValueError(
            f"this {tensor.dtype} tensor has no stick layout: its elements lie untiled in card "
            "memory, because the dtype has no device format or an int64 value needs all 64 bits"
        )
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    size, strides = tuple(tensor.shape), tuple(tensor.stride())
    what = "tensor" if tensor.numel() == elements else "view"
    title = f"{what} {shape_text(size)} of {tensor.dtype} on {tensor.device}"
    offset = int(tensor.storage_offset())
    return _make_subject(title, layout, elements, elements, size, strides, offset)


def _make_subject(
    title: str,
    layout: LayoutLike,
    extent: int,
    filled: int,
    size: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> Subject:
    device_size, stride_map = tuple(layout.device_size), tuple(layout.stride_map)
    if not device_size or len(device_size) != len(stride_map):
        raise ValueError(
            f"device_size {list(device_size)} and stride_map {list(stride_map)} must have the same "
            "length, one or more"
        )
    elems = layout.device_dtype.elems_per_stick()
    if device_size[-1] != elems:
        raise ValueError(
            f"the last device axis must be one stick of {elems} elements "
            f"({layout.device_dtype.name}), got {device_size[-1]}"
        )
    arrangement = getattr(getattr(layout, "element_arrangement", None), "name", "STANDARD")
    return Subject(
        title,
        device_size,
        stride_map,
        layout.device_dtype.name,
        arrangement,
        extent,
        filled,
        size,
        strides,
        offset,
    )


def shape_text(values: Sequence[Any]) -> str:
    return "(" + ", ".join(map(str, values)) + ("," if len(values) == 1 else "") + ")"


def _row_major(size: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


# --- 2. Which element lies where ------------------------------------------------------------------

Coordinates = tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """A device position: a host element, an element outside the view, or padding."""

    offset: int | None  # element of the storage, None for padding
    at: Coordinates | None  # its coordinates in the view, None if it is not in the view


PADDING = Cell(None, None)


class Sticks:
    """Answers, for every device position, which host element it holds."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        axes = [j for j, n in enumerate(subject.device_size) if n > 1 and subject.stride_map[j] > 0]
        self._axes = sorted(axes, key=lambda j: subject.stride_map[j])
        # Walking the axes from small to large strides, a sum must stay below the next stride.
        limits = [subject.stride_map[j] for j in self._axes[1:]] + [subject.extent]
        self._limits = [min(limit, subject.extent) for limit in limits]
        dims = [d for d, n in enumerate(subject.size) if n > 1 and subject.strides[d] > 0]
        self._dims = sorted(dims, key=lambda d: -subject.strides[d])

    def cell(self, index: Sequence[int]) -> Cell:
        """What lies at a device position."""
        subject = self.subject
        if subject.extent == 0:
            return PADDING
        if any(i > 0 and s == -1 for i, s in zip(index, subject.stride_map)):
            return PADDING
        offset = 0
        for j, limit in zip(self._axes, self._limits):
            offset += index[j] * subject.stride_map[j]
            if offset >= limit:
                return PADDING
        return Cell(offset, self._coordinates(offset))

    def _coordinates(self, offset: int) -> Coordinates | None:
        subject = self.subject
        rest = offset - subject.offset
        if rest < 0 or 0 in subject.size:
            return None
        at = [0] * len(subject.size)
        for d in self._dims:
            at[d], rest = divmod(rest, subject.strides[d])
            if at[d] >= subject.size[d]:
                return None
        return tuple(at) if rest == 0 else None

    def stick(self, index: Sequence[int]) -> list[Cell]:
        """The cells of one stick; `index` names it by the axes outside the stick."""
        return [self.cell([*index, i]) for i in range(self.subject.device_size[-1])]

    @property
    def count(self) -> int:
        return math.prod(self.subject.device_size[:-1])

    @property
    def padding_share(self) -> float:
        """The part of the device positions that hold no element."""
        subject = self.subject
        copies = math.prod(n for n, s in zip(subject.device_size, subject.stride_map) if s == 0)
        positions = math.prod(subject.device_size)
        return 1.0 - subject.filled * copies / positions if positions else 0.0

    def walks(self, axis: int) -> str:
        """In words: through what a step along a device axis moves."""
        subject = self.subject
        n, stride = subject.device_size[axis], subject.stride_map[axis]
        if n == 1:
            return "does not move"
        if stride == 0:
            return "repeats the same data"
        if stride < 0:
            return "holds data at index 0 only"
        if subject.is_view:
            return "the storage" if stride == 1 else f"the storage in steps of {stride}"
        for d in self._dims:
            host, extent = subject.strides[d], subject.strides[d] * subject.size[d]
            if host <= stride < extent and stride % host == 0:
                step = stride // host
                reach = min(n * stride, self._limits[self._axes.index(axis)])
                words = f"host dim {d}" + (f" in steps of {step}" if step > 1 else "")
                if reach <= extent:
                    return words
                return "host memory order" if stride == 1 else f"{words}, then on"
        return "host memory order" if stride == 1 else f"every {stride}th host element"
