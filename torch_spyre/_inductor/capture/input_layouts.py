"""Layouts of the tensors that a graph is called with.

FakeTensors carry no layout, so layouts are read from the real tensors that Dynamo passes to the
backend, and looked up by storage: the fake of a real tensor and every alias that tracing makes of
it share one fake storage. Input layouts are part of the cache keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._inductor.virtualized import V

from torch_spyre import _C
from torch_spyre._C import SpyreTensorLayout
from torch_spyre._inductor import state
from torch_spyre._inductor.capture.int64_guard import classes_of
from torch_spyre._inductor.operations.operation import Buffer
from torch_spyre._inductor.propagate_named_dims import Named, names_of_tensor
from torch_spyre.on_card import is_on_card


@dataclass(frozen=True)
class Placement:
    """The layout of a storage and the shape it was made for."""

    layout: SpyreTensorLayout
    size: tuple[int, ...]
    stride: tuple[int, ...]
    static: bool = False
    """It is a parameter."""


@dataclass
class InputLayouts:
    """What a compilation knows about the tensors that its graph is called with."""

    by_storage: dict[int, Placement] = field(default_factory=dict)
    names: dict[int, Named] = field(default_factory=dict)
    saved: dict[str, Placement] = field(default_factory=dict)
    """Of what the forward graph saved, by its name, while the backward graph is compiled."""
    wanted: list[Placement | None] = field(default_factory=list)
    """For the results of the backward graph: of the tensors that they are gradients of."""
    classes: dict[int, int] = field(default_factory=dict)
    """Of the storages of int64 tensors: how large their numbers are (csrc/hooks/integers.h)."""
    key: tuple[str, ...] = ()
    fakes: list[torch.Tensor] = field(default_factory=list)
    """Kept alive: tracing then uses the same fakes, and no storage takes another's address."""


def _known() -> InputLayouts:
    return state.current().get(InputLayouts)


def read_placement(tensor: torch.Tensor) -> Placement | None:
    """The placement of a real tensor's storage; None when it has none."""
    found = _C._get_placement(tensor)
    if found is None:
        return None
    layout, size, stride = found
    return Placement(layout, tuple(size), tuple(stride), isinstance(tensor, torch.nn.Parameter))


@contextlib.contextmanager
def recording(
    example_inputs: Sequence[Any],
    hints: tuple[str, ...] = (),
    integers: dict[int, int] | None = None,
) -> Iterator[None]:
    """Know the layouts of these tensors, and the hints, while a graph is compiled.

    `integers` says how large the numbers of int64 inputs may be; otherwise it is what they are.
    """
    if integers is None:
        integers = classes_of(example_inputs)
    found = InputLayouts(saved=_known().saved, wanted=_known().wanted)
    key = []
    mode = torch._guards.detect_fake_mode(example_inputs)
    for i, tensor in enumerate(example_inputs):
        if i in integers:
            key.append(f"{i} has integers of {integers[i]} bits")
            if mode is not None:
                fake = mode.from_tensor(tensor, static_shapes=None)
                found.fakes.append(fake)
                known = found.classes.get(_storage_key(fake), 0)
                found.classes[_storage_key(fake)] = max(known, integers[i])
        if not is_on_card(tensor):
            continue
        if isinstance(tensor, torch._subclasses.FakeTensor):
            continue
        placement = read_placement(tensor)
        names = names_of_tensor(tensor)
        key.append(f"{placement} {tensor.storage_offset()}{names or ''}")
        if mode is None or placement is None or tensor.storage_offset() != 0:
            continue
        fake = mode.from_tensor(tensor, static_shapes=None)
        found.fakes.append(fake)
        found.by_storage[_storage_key(fake)] = placement
        if names:
            found.names[_storage_key(fake)] = names
    found.key = (*key, *hints)
    with state.current().holding(found):
        yield


@contextlib.contextmanager
def knowing(saved: dict[str, Placement], wanted: list[Placement | None]) -> Iterator[None]:
    """Know the layouts of saved tensors, by their names, and those that gradients should have, in
    order, while a backward graph is compiled."""
    with state.current().holding(replace(_known(), saved=saved, wanted=wanted)):
        yield


def current_key() -> tuple[str, ...]:
    """The layouts of this compilation, for the keys of caches."""
    saved = (f"{name} {place}" for name, place in _known().saved.items())
    return (*_known().key, *saved, *map(str, _known().wanted))


def placement_of(fake: Any) -> Placement | None:
    """Of the real tensor that a fake one stands for, if it begins its storage."""
    if not is_on_card(fake):
        return None
    return _known().by_storage.get(_storage_key(fake)) if fake.storage_offset() == 0 else None


def wanted_layout(position: int, buffer: Buffer) -> SpyreTensorLayout | None:
    """The layout that a result of the graph should have."""
    place = _known().wanted[position] if position < len(_known().wanted) else None
    if place is None or (place.size, place.stride) != (buffer.size, buffer.stride):
        return None
    fits = place.layout.device_dtype == _C.get_device_dtype(buffer.dtype)
    return place.layout if fits else None


def _storage_key(fake: torch.Tensor) -> int:
    return fake.untyped_storage()._cdata


def any_carried() -> bool:
    """Whether the graph has an input that the host keeps."""
    return 64 in _known().classes.values()


def class_of(name: str) -> int:
    """How large the numbers of an int64 input are; 0 when that is not known."""
    if not _known().classes:
        return 0
    value = _value_of(name)
    return 0 if value is None else _known().classes.get(_storage_key(value), 0)


def _value_of(name: str) -> torch.Tensor | None:
    """The fake tensor of a graph input."""
    for node in V.graph.module.graph.find_nodes(op="placeholder"):
        if name in (node.name, node.target):
            value = node.meta.get("val")
            return value if isinstance(value, torch.Tensor) else None
    return None


def known_of(value: torch.Tensor, name: str) -> tuple[Any, ...]:
    """All that is known here of a graph input: where it lies, its names and how large it gets."""
    place = _known().saved.get(name) or placement_of(value)
    key = _storage_key(value)
    return place, _known().names.get(key, ()), _known().classes.get(key, 0)


def set_input_layout(buffer: Buffer) -> None:
    """Give a graph input the layout of the real tensor, if it is known and begins its storage."""
    value = _value_of(buffer.name)
    if value is None:
        return
    placement = _known().saved.get(buffer.name) or _known().by_storage.get(_storage_key(value))
    if placement is not None and value.storage_offset() == 0:
        _take(buffer, placement)
        buffer.dim_names = _known().names.get(_storage_key(value), ())


def set_constant_layout(buffer: Buffer, tensor: torch.Tensor) -> None:
    """Give a constant of the graph the layout it has."""
    placement = read_placement(tensor) if is_on_card(tensor) else None
    if placement is not None:
        _take(buffer, placement)


def _take(buffer: Buffer, placement: Placement) -> None:
    buffer.layout = placement.layout
    buffer.static = placement.static
    if (placement.size, placement.stride) != (buffer.size, buffer.stride):
        buffer.placed = (placement.size, placement.stride)
