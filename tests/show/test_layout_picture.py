"""The pictures of layouts: the right element in every cell, and an SVG that says so."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

import pytest
import torch

from torch_spyre.show.layout_picture import Sticks, _subject, draw_layout

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Format:
    name: str
    elems: int

    def elems_per_stick(self) -> int:
        return self.elems


FP16 = Format("SEN169_FP16", 64)
FP32 = Format("IEEE_FP32", 32)


@dataclass(frozen=True)
class Layout:
    device_size: list[int]
    stride_map: list[int]
    device_dtype: Format = FP16


def device_offsets(layout: Layout, size: tuple[int, ...]) -> torch.Tensor:
    """What the module under test says: the host offset at each device position, -1 for padding."""
    sticks = Sticks(_subject(layout, size, None))
    found = [
        -1 if (offset := sticks.cell(index).offset) is None else offset
        for index in itertools.product(*map(range, layout.device_size))
    ]
    return torch.tensor(found).reshape(layout.device_size)


def host_offsets(*size: int) -> torch.Tensor:
    return torch.arange(math.prod(size)).reshape(size)


def padded(x: torch.Tensor, dim: int, multiple: int) -> torch.Tensor:
    """x with -1 appended along a dimension up to a multiple."""
    shape = list(x.shape)
    shape[dim] = -shape[dim] % multiple
    return torch.cat([x, torch.full(shape, -1)], dim)


# --- Which element lies where ---------------------------------------------------------------------


def test_a_padded_matrix_is_cut_into_column_tiles():
    expected = padded(host_offsets(5, 100), 1, 64).reshape(5, 2, 64).permute(1, 0, 2)
    assert torch.equal(device_offsets(Layout([2, 5, 64], [64, 100, 1]), (5, 100)), expected)


def test_a_transposed_order_puts_rows_along_the_stick():
    expected = padded(host_offsets(100, 7), 0, 64).reshape(2, 64, 7).permute(0, 2, 1)
    assert torch.equal(device_offsets(Layout([2, 7, 64], [448, 1, 7]), (100, 7)), expected)


def test_a_four_dimensional_tensor_has_dim_0_just_outside_the_stick():
    tiled = padded(host_offsets(2, 3, 5, 100), 3, 64).reshape(2, 3, 5, 2, 64)
    layout = Layout([3, 5, 2, 2, 64], [500, 100, 64, 1500, 1])
    assert torch.equal(device_offsets(layout, (2, 3, 5, 100)), tiled.permute(1, 2, 3, 0, 4))


def test_a_sparse_layout_holds_one_element_per_stick():
    found = device_offsets(Layout([6, 1, 4, 64], [1, -1, 6, -1]), (4, 6))
    assert torch.equal(found[:, 0, :, 0], host_offsets(4, 6).T)
    assert (found[..., 1:] == -1).all()


def test_a_folded_layout_is_host_memory_order():
    expected = padded(host_offsets(40 * 60), 0, 64).reshape(38, 64)
    assert torch.equal(device_offsets(Layout([38, 64], [64, 1]), (40, 60)), expected)


def test_an_over_allocated_axis_is_padding_beyond_the_host():
    found = device_offsets(Layout([1, 50, 64], [64, 60, 1]), (40, 60))
    assert torch.equal(found[0, :40, :60], host_offsets(40, 60))
    assert (found[0, 40:] == -1).all() and (found[0, :, 60:] == -1).all()


def test_a_split_dimension_with_remainders_holds_every_element_once():
    found = device_offsets(Layout([3, 2, 14, 64], [120, 64, 360, 1]), (4800,))
    assert torch.equal(found[found >= 0].sort().values, torch.arange(4800))
    assert found[1, 0, 2, 5] == 120 + 2 * 360 + 5


def test_a_broadcast_axis_repeats_the_data():
    found = device_offsets(Layout([1, 8, 64], [64, 0, 1]), (60,))
    assert torch.equal(found[0, :, :60], torch.arange(60).expand(8, 60))


def test_a_scalar_is_one_element_of_one_stick():
    found = device_offsets(Layout([1, 64], [-1, -1]), ())
    assert found[0, 0] == 0 and (found[0, 1:] == -1).all()


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        (Layout([2, 5, 64], [64, 100, 1]), (5, 100)),
        (Layout([8, 4, 32], [32, 256, 1], FP32), (4, 256)),
        (Layout([1, 8, 64], [64, 0, 1]), (60,)),
        (Layout([6, 1, 4, 64], [1, -1, 6, -1]), (4, 6)),
        (Layout([1, 64], [-1, -1]), ()),
    ],
)
def test_the_padding_share_is_what_counting_finds(layout, size):
    counted = (device_offsets(layout, size) == -1).double().mean().item()
    assert Sticks(_subject(layout, size, None)).padding_share == pytest.approx(counted)


# --- The picture ----------------------------------------------------------------------------------


def parse(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    return root


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def tips(root: ElementTree.Element) -> list[str]:
    return [t.text or "" for path in root.iter(f"{SVG}path") for t in path.iter(f"{SVG}title")]


def test_every_cell_names_its_device_and_host_position():
    root = parse(draw_layout(Layout([2, 5, 64], [64, 100, 1]), host_size=(5, 100)))
    found = tips(root)
    assert len(found) == 500
    for tip in found:
        match = re.fullmatch(r"device \[(\d), (\d), (\d+)\] = host \((\d), (\d+)\)", tip)
        assert match
        tile, row, i, host_row, host_column = map(int, match.groups())
        assert (host_row, host_column) == (row, 64 * tile + i)


def test_the_legend_tells_shape_layout_format_bytes_and_padding():
    root = parse(draw_layout(Layout([4, 512, 64], [64, 240, 1]), host_size=(512, 240)))
    shown = texts(root)
    for fact in ("[512, 240]", "[4, 512, 64]", "[64, 240, 1]", "host dim 1 in steps of 64"):
        assert fact in shown
    summary = next(text for text in shown if "sticks of" in text)
    for fact in ("2,048 sticks", "SEN169_FP16", "256 KiB", "6.25 % padding"):
        assert fact in summary


def test_the_middle_of_long_axes_is_marked_as_omitted():
    root = parse(
        draw_layout(Layout([8, 256, 64], [64, 512, 1]), host_size=(256, 512), max_sticks=12)
    )
    shown = texts(root)
    labels = [text for text in shown if re.fullmatch(r"\[\d+, \d+\]", text)]
    sticks = [text for text in labels if text not in ("[256, 512]", "[512, 1]")]
    assert len(sticks) <= 12
    assert sticks[0] == "[0, 0]" and sticks[-1] == "[7, 255]"
    assert any("sticks not drawn" in text for text in shown)


def test_padding_is_hatched_only_where_there_is_some():
    with_padding = draw_layout(Layout([2, 64], [64, 1]), host_size=(120,))
    without = draw_layout(Layout([2, 64], [64, 1]), host_size=(128,))
    assert "url(#padding)" in with_padding
    assert "url(#padding)" not in without and "no padding" in without


@pytest.mark.parametrize("max_sticks", [1, 2, 7, 1000])
def test_the_number_of_sticks_is_bounded(max_sticks):
    layout = Layout([3, 4, 5, 2, 2, 64], [2000, 500, 100, 64, 6000, 1])
    root = parse(draw_layout(layout, host_size=(2, 3, 4, 5, 100), max_sticks=max_sticks))
    assert 1 <= len(list(root.iter(f"{SVG}g"))) - 1 <= max_sticks


def test_an_empty_tensor_has_no_sticks():
    shown = texts(parse(draw_layout(Layout([1, 0, 64], [64, 64, 1]), host_size=(0, 64))))
    assert "no sticks: the tensor is empty" in shown


def test_a_title_is_text_and_not_markup():
    root = parse(draw_layout(Layout([1, 64], [64, 1]), host_size=(64,), title="a < b & c"))
    assert "a < b & c" in texts(root)


# --- Refusals -------------------------------------------------------------------------------------


def test_a_cpu_tensor_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match=r"got one on cpu; move it there with \.to\('spyre'\)"):
        draw_layout(torch.zeros(3))


def test_something_else_is_refused_by_its_type():
    with pytest.raises(TypeError, match="got int"):
        draw_layout(3)  # type: ignore[arg-type]


def test_a_layout_needs_its_host_size():
    with pytest.raises(ValueError, match="give host_size"):
        draw_layout(Layout([1, 64], [64, 1]))


@pytest.mark.parametrize(
    ("layout", "arguments", "message"),
    [
        (Layout([1, 64], [1]), {"host_size": (64,)}, "must have the same length"),
        (Layout([1, 32], [64, 1]), {"host_size": (64,)}, "one stick of 64 elements"),
        (Layout([1, 64], [64, 1]), {"host_size": (64,), "max_sticks": 0}, "at least 1, got 0"),
        (Layout([1, 64], [64, 1]), {"host_size": (8, 8), "host_strides": (1,)}, "differ in rank"),
    ],
)
def test_wrong_arguments_are_named(layout, arguments, message):
    with pytest.raises(ValueError, match=message):
        draw_layout(layout, **arguments)


# --- Tensors of the device ------------------------------------------------------------------------


def test_a_tensor_is_drawn_with_its_own_layout():
    x = torch.rand(512, 240, dtype=torch.float16).to("spyre")
    shown = texts(parse(draw_layout(x)))
    assert "tensor (512, 240) of torch.float16 on spyre:0" in shown
    assert "[4, 512, 64]" in shown


def test_a_view_is_drawn_inside_its_storage():
    x = torch.rand(4, 100, dtype=torch.float16).to("spyre")
    root = parse(draw_layout(x[1:3, 10:20]))
    found = tips(root)
    assert "device [0, 1, 10] = host (0, 0)" in found
    assert "device [0, 2, 19] = host (1, 9)" in found
    assert len(found) == 20
    assert "element outside this view" in texts(root)


def test_a_dtype_without_a_device_format_has_no_picture():
    with pytest.raises(ValueError, match=r"torch\.float64 tensor has no stick layout"):
        draw_layout(torch.zeros(3, dtype=torch.float64, device="spyre"))


def test_a_tensor_refuses_a_host_size():
    with pytest.raises(ValueError, match="a tensor knows its own"):
        draw_layout(torch.zeros(3), host_size=(3,))
