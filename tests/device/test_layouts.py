"""SpyreTensorLayout: the documented rule, its worked examples, and round trips through the card."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_spyre._C as _C
from tests.support.dlfloat16_reference import round_trip
from torch_spyre._C import DataFormats, ElementArrangement, SpyreTensorLayout

FP16 = torch.float16

# (host size, host strides or None for row-major, dim order or None, dtype, device_size, stride_map)
WORKED_EXAMPLES = [
    ([], None, None, FP16, [1, 64], [-1, -1]),
    ([120], None, None, FP16, [2, 64], [64, 1]),
    ([128], None, None, FP16, [2, 64], [64, 1]),
    ([512, 240], None, None, FP16, [4, 512, 64], [64, 240, 1]),
    ([1, 100], None, None, FP16, [2, 1, 64], [64, -1, 1]),
    ([4, 1], None, None, FP16, [1, 4, 64], [-1, 1, -1]),
    ([512, 8, 240], None, None, FP16, [8, 4, 512, 64], [240, 64, 1920, 1]),
    ([1, 8, 256], None, None, FP16, [8, 4, 1, 64], [256, 64, -1, 1]),
    ([2, 3, 5, 100], None, None, FP16, [3, 5, 2, 2, 64], [500, 100, 64, 1500, 1]),
    ([2, 3, 4, 5, 100], None, None, FP16, [3, 4, 5, 2, 2, 64], [2000, 500, 100, 64, 6000, 1]),
    ([512, 256], [256, 1], [1, 0], FP16, [8, 256, 64], [16384, 1, 256]),
    ([512, 8, 256], None, [0, 2, 1], FP16, [256, 1, 512, 64], [1, 16384, 2048, 256]),
    ([512, 8, 256], None, [1, 0, 2], FP16, [512, 4, 8, 64], [2048, 64, 256, 1]),
    ([512, 8, 256], None, [1, 2, 0], FP16, [256, 8, 8, 64], [1, 131072, 256, 2048]),
    ([512, 8, 256], None, [2, 0, 1], FP16, [512, 1, 256, 64], [2048, 16384, 1, 256]),
    ([512, 8, 256], None, [2, 1, 0], FP16, [8, 8, 256, 64], [256, 131072, 1, 2048]),
    ([512, 256], None, [0, 1, -1], FP16, [256, 1, 512, 64], [1, -1, 256, -1]),
    ([512, 256, 1], None, [0, 1, 2], FP16, [256, 1, 512, 64], [1, -1, 256, -1]),
    ([128, 256], None, None, torch.float32, [8, 128, 32], [32, 256, 1]),
    ([128, 256], None, None, torch.int64, [8, 128, 32], [32, 256, 1]),
    ([128, 256], None, None, torch.bool, [4, 128, 64], [64, 256, 1]),
]

# Raw layouts that the copy path accepts: (host size, device_size, stride_map)
RAW_EXAMPLES = [
    ([40, 60], [1, 512, 64], [64, 60, 1]),  # over-allocated
    ([60], [1, 512, 64], [64, 0, 1]),  # broadcast
    ([40, 60], [38, 64], [64, 1]),  # folded
    ([40, 60], [1, 1, 40, 64], [-1, -1, 60, 1]),  # leading ones
    ([4800], [3, 2, 14, 64], [120, 64, 360, 1]),  # split with remainder
    ([40, 60], [24, 1, 2, 64], [60, 64, 1440, 1]),
]


def row_major(size: list[int]) -> list[int]:
    return list(torch.empty(size, device="meta").stride())


def layout_of(size, strides, order, dtype) -> SpyreTensorLayout:
    if order is None:
        return SpyreTensorLayout(size, dtype)
    return SpyreTensorLayout(size, strides or row_major(size), dtype, order)


def host_values(size: list[int] | tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(size) * 7 + sum(size))
    if dtype == torch.bool:
        return torch.rand(size, generator=generator) > 0.5
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator).mul_(3).to(dtype)
    info = torch.iinfo(dtype)
    low, high = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
    return torch.randint(low, high, size, generator=generator).to(dtype)


def expected_back(host: torch.Tensor) -> torch.Tensor:
    return round_trip(host) if host.dtype in (torch.float16, torch.bfloat16) else host


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("size", "strides", "order", "dtype", "device_size", "stride_map"), WORKED_EXAMPLES
)
def test_worked_example_of_the_rule(size, strides, order, dtype, device_size, stride_map):
    layout = layout_of(size, strides, order, dtype)
    assert layout.device_size == device_size
    assert layout.stride_map == stride_map


@pytest.mark.parametrize(
    ("size", "strides", "order", "dtype", "device_size", "stride_map"), WORKED_EXAMPLES
)
def test_worked_example_survives_the_round_trip(
    size, strides, order, dtype, device_size, stride_map
):
    host = host_values(size, dtype)
    layout = layout_of(size, strides, order, dtype)
    on_card = host.to("spyre", device_layout=layout)
    assert on_card.device_tensor_layout() == layout
    assert_same(on_card.cpu(), expected_back(host))


@pytest.mark.parametrize("size", [r[0] for r in WORKED_EXAMPLES if r[2] is None and r[3] is FP16])
def test_plain_to_gives_the_default_layout(size):
    assert torch.empty(
        size, dtype=FP16, device="spyre"
    ).device_tensor_layout() == SpyreTensorLayout(size, FP16)
    assert host_values(size, FP16).to("spyre").device_tensor_layout() == SpyreTensorLayout(
        size, FP16
    )


@pytest.mark.parametrize(("size", "device_size", "stride_map"), RAW_EXAMPLES)
def test_raw_layout_survives_the_round_trip(size, device_size, stride_map):
    host = host_values(size, FP16)
    layout = SpyreTensorLayout(device_size, stride_map, DataFormats.SEN169_FP16)
    on_card = host.to("spyre", device_layout=layout)
    assert on_card.device_tensor_layout() == layout
    assert_same(on_card.cpu(), expected_back(host))


def test_host_slice_with_offset_and_permuted_strides_survive():
    base = host_values([30, 40, 50], FP16)
    for host in (base[3:20, 5:, 7:29], base.permute(2, 0, 1), base.transpose(0, 1)[:, 2:9]):
        layout = SpyreTensorLayout(list(host.size()), list(host.stride()), FP16, [0, 1, 2])
        assert_same(host.to("spyre", device_layout=layout).cpu(), expected_back(host))
        assert_same(host.to("spyre").cpu(), expected_back(host))


SIZES = st.one_of(st.sampled_from([0, 1, 2, 63, 64, 65, 100, 129]), st.integers(1, 9))


LARGE = st.one_of(SIZES, st.sampled_from([1000, 1023, 1025]))


@st.composite
def shapes(draw, max_rank: int = 6) -> list[int]:
    """Up to a few thousand elements; a dimension of size 0 leaves no room for larger other ones."""
    size: list[int] = []
    room = 3000
    for _ in range(draw(st.integers(0, max_rank))):
        sizes = LARGE if room >= 1025 else SIZES if room >= 129 else st.integers(0, min(room, 4))
        size.append(draw(sizes))
        room //= max(size[-1], 1)
    return size


DTYPES = st.sampled_from(
    [
        FP16,
        torch.bfloat16,
        torch.float32,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    ]
)


@st.composite
def hosts(draw) -> torch.Tensor:
    """A host tensor that may be a permuted slice of a larger one."""
    size = draw(shapes())
    dtype = draw(DTYPES)
    permutation = draw(st.permutations(range(len(size))))
    margins = [draw(st.integers(0, 2)) for _ in size]
    base = host_values([n + 2 * m for n, m in zip(size, margins, strict=True)], dtype)
    view = (
        base[tuple(slice(m, m + n) for n, m in zip(size, margins, strict=True))] if size else base
    )
    return view.permute(permutation)


@settings(max_examples=300, deadline=None)
@given(host=hosts())
def test_any_host_tensor_survives_the_default_layout(host):
    assert_same(host.to("spyre").cpu(), expected_back(host))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_dim_order_survives_and_touches_nothing_else(data):
    size = [n for n in data.draw(shapes()) if n > 0] or [5]
    dtype = data.draw(DTYPES)
    order = list(data.draw(st.permutations(range(len(size)))))
    if len(order) < 6 and data.draw(st.booleans()):
        order.append(-1)  # sparse
    layout = SpyreTensorLayout(size, row_major(size), dtype, order)
    host = host_values(size, dtype)
    before = torch.full((1024,), 7.0, device="spyre")
    on_card = host.to("spyre", device_layout=layout)
    after = torch.full((1024,), 9.0, device="spyre")
    assert_same(on_card.cpu(), expected_back(host))
    # Overwriting one element changes that element alone.
    index = tuple(data.draw(st.integers(0, n - 1)) for n in size)
    on_card[index] = 1
    expected = expected_back(host).clone()
    expected[index] = 1
    assert_same(on_card.cpu(), expected)
    assert (before.cpu() == 7).all() and (after.cpu() == 9).all()


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_over_allocated_axes_survive(data):
    size = [n for n in data.draw(shapes(4)) if n > 0] or [3]
    rule = SpyreTensorLayout(size, FP16)
    grown = [n + data.draw(st.integers(0, 3)) for n in rule.device_size[:-1]] + [64]
    strides = [s if s != -1 else 0 for s in rule.stride_map[:-1]] + [rule.stride_map[-1]]
    layout = SpyreTensorLayout(grown, strides, DataFormats.SEN169_FP16)
    host = host_values(size, FP16)
    assert_same(host.to("spyre", device_layout=layout).cpu(), expected_back(host))


def test_equality_hash_and_repr():
    a, b = (
        SpyreTensorLayout([512, 240], FP16),
        SpyreTensorLayout([4, 512, 64], [64, 240, 1], DataFormats.SEN169_FP16),
    )
    assert a == b and hash(a) == hash(b)
    assert a != SpyreTensorLayout([512, 241], FP16) and a != "layout"
    assert a.with_element_arrangement(ElementArrangement.EXX2) != a
    assert repr(a) == (
        "SpyreTensorLayout(device_size=[4, 512, 64], stride_map =[64, 240, 1], "
        "device_dtype=DataFormats.SEN169_FP16)"
    )
    names = {
        "SpyreTensorLayout": SpyreTensorLayout,
        "DataFormats": DataFormats,
        "ElementArrangement": ElementArrangement,
    }
    for layout in (a, a.with_element_arrangement(ElementArrangement.EXX2)):
        assert eval(repr(layout), names) == layout


def test_pickle_and_the_older_versions():
    layout = SpyreTensorLayout([512, 240], FP16).with_element_arrangement(ElementArrangement.QFP8CH)
    assert pickle.loads(pickle.dumps(layout)) == layout and copy.deepcopy(layout) == layout
    plain = SpyreTensorLayout([512, 240], FP16)
    for state in (
        (2, [4, 512, 64], [64, 240, 1], DataFormats.SEN169_FP16),
        (1, [4, 512, 64], [1, 0, 1], [64, 240, 1], DataFormats.SEN169_FP16),
    ):
        old = SpyreTensorLayout.__new__(SpyreTensorLayout)
        old.__setstate__(state)
        assert old == plain
    with pytest.raises(ValueError, match="version 9"):
        SpyreTensorLayout.__new__(SpyreTensorLayout).__setstate__((9, 1))


def test_formats_table():
    eps = {f.name: f.elems_per_stick() for f in DataFormats.__members__.values()}
    assert eps["SEN169_FP16"] == 64 and eps["IEEE_FP32"] == 32 and eps["SEN143_FP8"] == 128
    assert eps["IEEE_INT32"] == 32 and eps["SENINT8"] == 128 and eps["INVALID"] == 0
    assert [int(f.value) for f in DataFormats.__members__.values()] == list(range(19))
    assert _C.get_device_dtype(torch.bool) == DataFormats.SEN169_FP16
    assert _C.get_device_dtype(torch.uint8) == DataFormats.SENUINT32
    assert _C.get_elem_in_stick(torch.int64) == 32


def test_encode_constant():
    assert _C.encode_constant(1.0, DataFormats.IEEE_FP32) == 0x3F800000
    assert _C.encode_constant(1.0, DataFormats.SEN169_FP16) == 31 << 9
    assert _C.encode_constant(-2.5, DataFormats.SENINT8) == 0x8000 | 32 << 9 | 128


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpyreTensorLayout([1] * 7, FP16), "Unsupported tensor rank: 7"),
        (
            lambda: SpyreTensorLayout([4, 4], [4, 1], FP16, [0]),
            "Incompatible host_size and dim_order",
        ),
        (
            lambda: SpyreTensorLayout([4, 4], torch.float64),
            "Spyre backend does not support dtype Double",
        ),
        (lambda: SpyreTensorLayout([4, 64], [64], DataFormats.SEN169_FP16), "stride_map"),
        (lambda: SpyreTensorLayout([4, 32], [32, 1], DataFormats.SEN169_FP16), "64"),
        (lambda: SpyreTensorLayout([4, 64], [-3, 1], DataFormats.SEN169_FP16), "-3"),
    ],
)
def test_impossible_layouts_are_refused(make, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        make()


def test_layout_that_does_not_fit_the_tensor_is_refused():
    small = SpyreTensorLayout([4, 64], FP16)
    with pytest.raises(ValueError, match="too small"):
        torch.ones(8, 64, dtype=FP16).to("spyre", device_layout=small)
    with pytest.raises(ValueError, match="cannot hold dtype"):
        torch.ones(4, 64).to("spyre", device_layout=small)
    with pytest.raises(ValueError, match="spyre device"):
        torch.ones(4, 64, dtype=FP16).to("cpu", device_layout=small)


def test_empty_with_layout():
    layout = SpyreTensorLayout([4, 100], [100, 1], FP16, [1, 0])
    t = torch.empty(4, 100, dtype=FP16, device="spyre", device_layout=layout)
    assert t.device_tensor_layout() == layout and t.shape == (4, 100)
    assert torch.empty((4, 100), dtype=FP16, device_layout=layout).device.type == "spyre"
    assert torch.empty(3, device_layout=None).device.type == "cpu"


def test_layout_belongs_to_the_storage():
    layout = SpyreTensorLayout([8, 100], [100, 1], FP16, [1, 0])
    base = host_values([8, 100], FP16).to("spyre", device_layout=layout)
    for view in (
        base[2:],
        base.t(),
        base.view(-1),
        base.detach(),
        torch.nn.Parameter(base),
        base.data,
        base[:, 3],
    ):
        assert view.device_tensor_layout() == layout
    assert torch.ones(2).device_tensor_layout() is None


def test_to_another_layout_on_the_card_keeps_values():
    host = host_values([70, 130], FP16)
    default = host.to("spyre")
    turned = SpyreTensorLayout([70, 130], [130, 1], FP16, [1, 0])
    moved = default.to("spyre", device_layout=turned)
    assert moved.device_tensor_layout() == turned and moved.data_ptr() != default.data_ptr()
    assert_same(moved.cpu(), default.cpu())
    assert moved.to("spyre", device_layout=turned) is moved
    assert moved.to("spyre", device_layout=turned, copy=True) is not moved
    _C.set_spyre_tensor_layout(moved, SpyreTensorLayout([70, 130], FP16))
    assert_same(moved.cpu(), default.cpu())


def test_reinterpreting_views():
    host = host_values([4, 128], FP16)
    t = host.to("spyre")
    assert_same(_C.reinterpret_tensor(t, [128], [1], 128).cpu(), expected_back(host[1]))
    same = _C.as_strided_with_layout(t, [4, 64], [128, 1], 64, t.device_tensor_layout())
    assert_same(same.cpu(), expected_back(host[:, 64:]))
    # [2, 4, 64] sticks read as one row after another: the first 64 columns of all rows come first.
    flat = _C.as_strided_with_layout(t, [512], [1], None, SpyreTensorLayout([512], FP16))
    expected = torch.cat([host[:, :64].reshape(-1), host[:, 64:].reshape(-1)])
    assert_same(flat.cpu(), expected_back(expected))
    with pytest.raises(ValueError, match="bytes"):
        _C.as_strided_with_layout(t, [4096], [1], None, SpyreTensorLayout([4096], FP16))


def test_linear_weights_get_the_matmul_layout():
    model = torch.nn.Sequential(
        torch.nn.Linear(100, 70), torch.nn.LayerNorm(70), torch.nn.Linear(70, 3)
    ).half()
    expected = [m.weight.detach().clone() for m in (model[0], model[2])]
    assert model.to("spyre") is model
    assert model[0].weight.device_tensor_layout() == SpyreTensorLayout(
        [70, 100], [100, 1], FP16, [1, 0]
    )
    assert model[1].weight.device_tensor_layout() == SpyreTensorLayout([70], FP16)
    for module, weight in zip((model[0], model[2]), expected, strict=True):
        assert_same(module.weight.cpu().detach(), round_trip(weight))
    with pytest.raises(ValueError, match="float64"):
        model.to("spyre", torch.float64)


def _made_on_the_card(weight: torch.Tensor) -> torch.nn.Linear:
    module = torch.nn.Linear(100, 70, dtype=FP16, device="spyre")
    with torch.no_grad():
        module.weight.copy_(weight)
    return module


def _made_in_a_context(weight: torch.Tensor) -> torch.nn.Linear:
    with torch.device("spyre"):
        module = torch.nn.Linear(100, 70, dtype=FP16)
    with torch.no_grad():
        module.weight.copy_(weight)
    return module


def _assigned(weight: torch.Tensor) -> torch.nn.Linear:
    module = torch.nn.Linear(100, 70, bias=False, dtype=FP16, device="meta")
    module.load_state_dict({"weight": weight.to("spyre")}, assign=True)
    return module


@pytest.mark.parametrize("make", [_made_on_the_card, _made_in_a_context, _assigned])
def test_linear_weights_that_come_to_the_card_by_themselves_get_it_too(
    make: Callable[[torch.Tensor], torch.nn.Linear],
) -> None:
    weight = torch.randn(70, 100, dtype=FP16)
    module = make(weight)
    layout = SpyreTensorLayout([70, 100], [100, 1], FP16, [1, 0])
    assert module.weight.device_tensor_layout() == layout
    assert_same(module.weight.cpu().detach(), round_trip(weight))
    before = module.weight.data_ptr()
    torch.nn.Linear(100, 70).weight = module.weight  # registered once more: it stays where it is
    assert module.weight.data_ptr() == before


def test_who_shares_a_weight_sees_it_in_its_new_layout() -> None:
    weight = torch.randn(70, 100, dtype=FP16)
    shared = weight.to("spyre")
    column = shared[:, 3]
    module = torch.nn.Linear(100, 70, bias=False, device="meta")
    module.weight = torch.nn.Parameter(shared)
    assert shared.data_ptr() == module.weight.data_ptr()
    assert_same(column.cpu(), round_trip(weight)[:, 3])
    with torch.no_grad():
        module.weight[:, 3] = 1
    assert_same(column.cpu(), torch.ones(70, dtype=FP16))


def test_layouts_of_weights_that_someone_has_chosen_stay() -> None:
    folded = SpyreTensorLayout([64, 128], [128, 1], FP16, [0, 1, -1])
    weight = torch.randn(64, 128, dtype=FP16).to("spyre", device_layout=folded)
    module = torch.nn.Linear(128, 64, bias=False, device="meta")
    module.weight = torch.nn.Parameter(weight)
    assert module.weight.device_tensor_layout() == folded
    part = torch.randn(3, 64, 128, dtype=FP16).to("spyre")
    module.weight = torch.nn.Parameter(part[1])
    assert module.weight.device_tensor_layout() == SpyreTensorLayout([3, 64, 128], FP16)


def test_only_what_is_a_whole_storage_is_laid_out_again() -> None:
    t = torch.randn(4, 128, dtype=FP16).to("spyre")
    with pytest.raises(RuntimeError, match=r"whole storage.* found one of 128 elements at 128"):
        _C._lay_out(t[1], SpyreTensorLayout([128], FP16))
