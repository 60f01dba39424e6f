"""What a compilation knows of its inputs: layouts, how large integers are, and what is asked again
when they change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from torch_spyre import _C
from torch_spyre._inductor import state
from torch_spyre._inductor.capture import input_layouts
from torch_spyre._inductor.capture.input_layouts import Placement
from torch_spyre._inductor.capture.int64_guard import IntegerGuard, classes_of
from torch_spyre._inductor.layouts.stick_layouts import layout_of
from torch_spyre._inductor.operations.operation import Buffer

HALF = torch.float16


def columns(*shape: int) -> torch.Tensor:
    """A tensor with its sticks along the first dimension."""
    stride = torch.empty(shape, device="meta").stride()
    layout = layout_of(tuple(shape), stride, HALF, 0)
    return _C._empty_spyre(shape, stride, HALF, layout, 0)


def test_the_placement_of_a_tensor_is_that_of_its_storage() -> None:
    x = columns(64, 128)
    found = input_layouts.read_placement(x)
    assert found == Placement(layout_of((64, 128), (128, 1), HALF, 0), (64, 128), (128, 1))
    assert input_layouts.read_placement(x.t()) == found
    parameter = torch.nn.Parameter(x)
    assert input_layouts.read_placement(parameter) == Placement(
        found.layout, found.size, found.stride, static=True
    )


def test_a_buffer_of_another_shape_remembers_for_which_one_its_layout_was_made() -> None:
    place = Placement(layout_of((64, 128), (128, 1), HALF, 0), (64, 128), (128, 1), static=True)
    made_for = ((64, 128), (128, 1))
    for size, stride, placed in (
        ((64, 128), (128, 1), None),
        ((64, 128), (1, 64), made_for),
        ((8192,), (1,), made_for),
    ):
        buffer = Buffer("x", size, stride, HALF)
        input_layouts._take(buffer, place)
        assert (buffer.layout, buffer.static, buffer.placed) == (place.layout, True, placed)


def recorded(*tensors: torch.Tensor, **settings: Any) -> tuple[Any, list[Any], tuple[str, ...]]:
    """What is known of fakes of these tensors inside of a compilation."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(t) for t in tensors]
    with state.compiling(), torch._guards.tracing(torch._guards.TracingContext(mode)):
        with input_layouts.recording(list(tensors), **settings):
            found = [input_layouts.placement_of(f) for f in fakes]
            views = [input_layouts.placement_of(f.t()) for f in fakes]
            part = input_layouts.placement_of(fakes[0][1:])
            key = input_layouts.current_key()
        after = input_layouts.placement_of(fakes[0])
    assert after is None, "it is known for as long as the block takes"
    return (found, views, part), fakes, key


def test_fakes_and_their_aliases_have_the_layout_of_the_real_tensor() -> None:
    x, y = columns(64, 128), torch.randn(8, 8)
    (found, views, part), _, _ = recorded(x, y)
    assert found[0] == views[0] == input_layouts.read_placement(x)
    assert part is None, "it does not begin the storage"
    assert found[1] is None, "it is not on the card"


def test_the_key_changes_with_layouts_offsets_hints_and_sizes_of_integers() -> None:
    plain = torch.zeros(64, 128, dtype=HALF, device="spyre")
    wide = torch.zeros(65, 128, dtype=HALF, device="spyre")[1:]
    small = torch.zeros(4, dtype=torch.int64)
    keys = {
        recorded(plain)[2], recorded(columns(64, 128))[2], recorded(wide)[2],
        recorded(torch.nn.Parameter(plain))[2], recorded(plain, hints=("h",))[2],
        recorded(plain, small)[2], recorded(plain, small + (1 << 40))[2],
        recorded(plain, small + (1 << 30))[2],
    }  # fmt: skip
    assert len(keys) == 8 and recorded(plain)[2] == recorded(plain.clone())[2]


# ---- How large integers are ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "bits"),
    [([0, 1], 1), ([-1, 2], 24), ([(1 << 24) - 1], 24), ([1 << 24], 32), ([-(1 << 31)], 32),
     ([1 << 31], 64)],
)  # fmt: skip
def test_integers_have_a_class(numbers: list[int], bits: int) -> None:
    assert classes_of([torch.zeros(2), torch.tensor(numbers)]) == {1: bits}
    assert classes_of([torch.tensor(numbers)], {0: 32}) == {0: max(bits, 32)}
    assert classes_of([torch.tensor(numbers).int(), 3, None]) == {}


def test_larger_numbers_compile_again_and_smaller_ones_do_not() -> None:
    made: list[dict[int, int]] = []

    def again(_: Any, classes: dict[int, int]) -> Any:
        made.append(classes)
        return lambda *args: ("again", len(made), len(args))

    guard = IntegerGuard(lambda *args: ("first", 0, len(args)), {0: 1}, again)
    small, middle, large = (torch.tensor([n, 0]) for n in (1, 1000, 1 << 40))
    assert guard(small) == ("first", 0, 1) and not made
    assert guard(middle) == ("again", 1, 1) and made == [{0: 24}]
    assert guard(small) == guard(middle) == ("again", 1, 1) and len(made) == 1
    assert guard(large) == ("again", 2, 1) and made[-1] == {0: 64}


def test_tensors_that_the_graph_keeps_count_as_well() -> None:
    held = torch.tensor([5])
    made: list[dict[int, int]] = []

    def again(_: Any, classes: dict[int, int]) -> Any:
        made.append(classes)
        return lambda *args: args

    guard = IntegerGuard(lambda *args: args, {1: 24}, again, [held])
    x = torch.zeros(2)
    assert guard(x) == (x,) and not made
    held.fill_(1 << 33)
    assert guard(x) == (x,) and made == [{1: 64}]
