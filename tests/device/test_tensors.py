"""Tensors as storage: dtypes, carried tensors, views, resizing, byte-level copies, refusals."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from tests.support.dlfloat16_reference import MAGNITUDES, round_trip

TILED = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2fnuz,
]
CARRIED = [
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


def values(dtype: torch.dtype) -> torch.Tensor:
    base = torch.arange(-6, 6, dtype=torch.float32).reshape(3, 4)
    return (base.abs() if dtype.is_floating_point is False and not dtype.is_signed else base).to(
        dtype
    )


@pytest.mark.parametrize("dtype", TILED + CARRIED, ids=str)
def test_every_dtype_makes_the_round_trip(dtype):
    host = values(dtype)
    on_card = host.to("spyre")
    assert on_card.dtype == dtype and on_card.device.type == "spyre"
    assert (on_card.device_tensor_layout() is None) == (dtype in CARRIED)
    assert torch.equal(on_card.cpu().view(torch.uint8), host.view(torch.uint8))
    assert torch.equal(
        on_card[1:, ::2].cpu().contiguous().view(torch.uint8),
        host[1:, ::2].contiguous().view(torch.uint8),
    )
    assert torch.equal(
        on_card.t().clone().cpu().contiguous().view(torch.uint8),
        host.t().contiguous().view(torch.uint8),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128], ids=str)
def test_carried_dtypes_compute(dtype):
    a, b = values(dtype), values(dtype) + 1
    assert torch.equal((a.to("spyre") + b.to("spyre")).cpu(), a + b)


def test_float64_scalars_and_promotion():
    t = torch.ones(3, device="spyre")
    assert (t * torch.tensor(2.5, dtype=torch.float64)).dtype == torch.float32
    assert (t + 1e-3).cpu().tolist() == (torch.ones(3) + 1e-3).tolist()
    assert t.double().sum().item() == 3.0


def test_device_dtype_of_carried_dtypes_is_refused():
    with pytest.raises(RuntimeError, match="Spyre backend does not support dtype Double"):
        torch.spyre.get_device_dtype(torch.float64)


def test_int64_keeps_values_that_need_64_bits():
    host = torch.tensor([1, -1, 2**31 - 1, -(2**31)])
    t = host.to("spyre")
    assert t.device_tensor_layout() is not None and torch.equal(t.cpu(), host)
    t[1] = 2**40
    assert t.device_tensor_layout() is None
    assert t.cpu().tolist() == [1, 2**40, 2**31 - 1, -(2**31)]
    big = torch.tensor([[2**62, 5], [-(2**63), 7]])
    assert torch.equal(big.to("spyre").t().cpu(), big.t())
    view = (made := torch.zeros(4, 4, dtype=torch.int64, device="spyre"))[1:3]
    view += 2**33
    assert made.sum().item() == 8 * 2**33


def test_downcast_warning_once_and_silenceable(script):
    source = """
        import warnings, torch
        {}
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.tensor([1, 2]).to("spyre"), torch.tensor([3]).to("spyre")
        print(len([w for w in seen if "int64->int32" in str(w.message)]))
        """
    assert script(source.format("")) == "1"
    assert script(source.format("torch.spyre.set_downcast_warning(False)")) == "0"
    assert script(source.format(""), TORCH_SPYRE_DOWNCAST_WARN="off") == "0"


def test_all_dlfloat16_values_survive_in_float16_and_float32():
    magnitudes = torch.tensor(MAGNITUDES, dtype=torch.float64)
    both = torch.cat(
        [
            magnitudes,
            -magnitudes,
            torch.tensor([float("inf"), -float("inf"), float("nan")]).double(),
        ]
    )
    held = both.float().to("spyre", torch.float16)  # DMA converts float32 straight to DLFloat16
    back = torch.empty_like(both, dtype=torch.float32).copy_(held)
    torch.testing.assert_close(back.double(), both, rtol=0, atol=0, equal_nan=True)


def test_every_half_rounds_as_the_slow_definition_says():
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    back = halves.to("spyre").cpu()
    torch.testing.assert_close(back, round_trip(halves), rtol=0, atol=0, equal_nan=True)
    zeros = torch.tensor([0.0, -0.0]).half().to("spyre").cpu()
    assert torch.signbit(zeros).tolist() == [False, True]


def test_views_share_memory_and_stay_right():
    host = torch.randn(6, 130)
    t = host.clone().to("spyre")
    t[2:4, 60:70] = 0
    host[2:4, 60:70] = 0
    t.view(-1)[::7] += 1
    host.view(-1)[::7] += 1
    t.t()[5].mul_(3)
    host.t()[5].mul_(3)
    for a, b in (
        (t, host),
        (t.unfold(1, 3, 2), host.unfold(1, 3, 2)),
        (t.as_strided((5, 2), (1, 7), 11), host.as_strided((5, 2), (1, 7), 11)),
        (t.diagonal(1), host.diagonal(1)),
        (t[None].expand(3, 6, 130), host[None].expand(3, 6, 130)),
        (t.view(2, 3, 130).permute(2, 0, 1), host.view(2, 3, 130).permute(2, 0, 1)),
        (t.view(torch.int32), host.view(torch.int32)),
        (t.flatten()[100:200], host.flatten()[100:200]),
    ):
        assert torch.equal(a.cpu(), b), (a.shape, a.stride())


def test_reinterpreting_a_dtype_writes_through():
    host = torch.randn(8, 10).half()
    t = host.to("spyre")
    bits = t.view(torch.int16)
    expected = t.cpu().view(torch.int16).clone()
    bits[3] = 0x3C00  # 1.0
    expected[3] = 0x3C00
    assert torch.equal(t.cpu().view(torch.int16), expected)


def test_complex_views():
    host = torch.randn(4, 5, dtype=torch.complex64)
    t = host.to("spyre")
    assert torch.equal(torch.view_as_real(t).cpu(), torch.view_as_real(host))
    assert torch.equal(t.conj().cpu(), host.conj()) and torch.equal(t.imag.cpu(), host.imag)
    assert torch.equal((t.conj() * t).cpu(), host.conj() * host)
    assert torch.equal(torch.view_as_complex(torch.view_as_real(t)).cpu(), host)


def test_ranks_above_six_and_strides_with_holes():
    host = torch.randn(2, 1, 3, 2, 2, 1, 2, 3)
    assert torch.equal(host.to("spyre").cpu(), host)
    t = torch.empty_strided((4, 5), (10, 2), device="spyre")
    t.copy_(host.flatten()[:20].view(4, 5))
    assert t.stride() == (10, 2) and torch.equal(t.cpu(), host.flatten()[:20].view(4, 5))


def test_empty_and_zero_dim_tensors():
    assert torch.empty(0, 5, device="spyre").cpu().shape == (0, 5)
    assert torch.tensor(3.5, device="spyre").item() == 3.5
    assert torch.ones(3, 0, device="spyre").sum().item() == 0
    assert torch.empty(0, device="spyre").data_ptr() == 0
    assert torch.cat([torch.empty(0, device="spyre"), torch.ones(2, device="spyre")]).tolist() == [
        1,
        1,
    ]


def test_resize_keeps_elements():
    t = torch.arange(6.0).view(2, 3).to("spyre")
    t.resize_(3, 4)
    assert t.flatten()[:6].tolist() == list(range(6)) and t.shape == (3, 4)
    t.resize_(2, 2)
    assert t.tolist() == [[0, 1], [2, 3]]
    part = torch.arange(10.0).to("spyre")[4:]
    part.resize_(9)
    assert part[:6].tolist() == [4, 5, 6, 7, 8, 9]
    out = torch.empty(0, device="spyre")
    torch.add(torch.ones(4, 70, device="spyre"), 1, out=out)
    assert out.device_tensor_layout() == torch.spyre.SpyreTensorLayout([4, 70], torch.float32)


def test_storage_resize_to_zero_and_back_keeps_the_tiling():
    t = torch.ones(4, 100).half().to("spyre")
    layout = t.device_tensor_layout()
    size = t.untyped_storage().nbytes()
    assert size == 800
    t.untyped_storage().resize_(0)
    t.untyped_storage().resize_(size)
    t.fill_(2)
    assert t.device_tensor_layout() == layout and (t.cpu() == 2).all()


def test_memory_formats():
    host = torch.randn(2, 5, 3, 4)
    t = host.to("spyre").to(memory_format=torch.channels_last)
    assert t.is_contiguous(memory_format=torch.channels_last) and torch.equal(t.cpu(), host)
    assert torch.empty(2, 5, 3, 4, device="spyre", memory_format=torch.channels_last).stride() == (
        60,
        1,
        20,
        5,
    )
    turned = host.permute(3, 0, 2, 1)
    assert turned.to("spyre").stride() == turned.stride() and torch.equal(
        turned.to("spyre").cpu(), turned
    )


def test_checkpoints_hold_ordinary_tensors(tmp_path, script):
    layout = torch.spyre.SpyreTensorLayout([70, 100], [100, 1], torch.float16, [1, 0])
    host = torch.randn(70, 100).half()
    t = host.to("spyre", device_layout=layout)
    path = tmp_path / "checkpoint.pt"
    torch.save({"t": t, "rows": t[3:5], "ids": torch.arange(5, device="spyre")}, path)
    loaded = torch.load(path, map_location="cpu")
    assert torch.equal(loaded["t"], round_trip(host)) and loaded["ids"].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(loaded["rows"], round_trip(host)[3:5])
    script(
        f"""
        import torch
        assert torch.load({str(path)!r}, map_location="cpu")["t"].shape == (70, 100)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    back = torch.load(path)
    assert back["t"].device.type == "spyre" and torch.equal(back["t"].cpu(), t.cpu())
    assert back["t"].device_tensor_layout() == torch.spyre.SpyreTensorLayout(
        [70, 100], torch.float16
    )
    assert back["rows"].data_ptr() != back["t"].data_ptr()
    assert back["t"].untyped_storage().data_ptr() == back["rows"].untyped_storage().data_ptr()
    torch.save(host, path)
    assert torch.equal(torch.load(path, map_location="spyre").cpu(), round_trip(host))


def test_plain_pickle():
    layout = torch.spyre.SpyreTensorLayout([7, 100], [100, 1], torch.float16, [1, 0])
    for t in (
        torch.randn(7, 100).half().to("spyre", device_layout=layout),
        torch.arange(5, device="spyre") + 2**40,
        torch.randn(3, 4, dtype=torch.complex64, device="spyre"),
    ):
        back = pickle.loads(pickle.dumps(t))
        assert back.device.type == "spyre" and torch.equal(back.cpu(), t.cpu())


def test_scripting_with_the_patched_factory():
    def make(n: int):
        return torch.empty([n, 2])

    assert torch.jit.script(make)(3).shape == (3, 2)


def test_deepcopy_and_clone():
    layout = torch.spyre.SpyreTensorLayout([70, 100], [100, 1], torch.float16, [1, 0])
    t = torch.randn(70, 100).half().to("spyre", device_layout=layout)
    twin = copy.deepcopy(t)
    assert twin.device_tensor_layout() == layout and torch.equal(twin.cpu(), t.cpu())
    twin.zero_()
    assert t.cpu().abs().sum() > 0
    assert torch.equal(t.clone().cpu(), t.cpu())


def test_untyped_storage_bytes_are_the_hosts():
    host = torch.randn(5, 7)
    storage = host.to("spyre").untyped_storage()
    assert bytes(storage.cpu()) == bytes(host.untyped_storage())


def test_pinned_memory():
    host = torch.randn(100).pin_memory()
    assert host.is_pinned() and not torch.randn(3).is_pinned() and host[50:].is_pinned()
    assert torch.equal(host.to("spyre", non_blocking=True).cpu(), host)
    loader = torch.utils.data.DataLoader(
        list(torch.arange(8.0)), batch_size=4, pin_memory=True, num_workers=1
    )
    batches = [batch.to("spyre", non_blocking=True).cpu() for batch in loader]
    assert torch.cat(batches).tolist() == list(range(8))
    with pytest.raises(RuntimeError, match="Pin memory can only be on CPU"):
        torch.empty(3, device="spyre", pin_memory=True)


def test_printing_reads_the_host_copy():
    torch.spyre.reset_fallback_counts()
    t = torch.tensor([1.0, 2.5]).to("spyre")
    assert repr(t) == "tensor([1.0000, 2.5000], device='spyre:0')"
    assert "device='spyre:0', dtype=torch.float16, requires_grad=True)" in repr(
        torch.ones(2).half().to("spyre").requires_grad_()
    )
    assert torch.spyre.fallback_counts() == {}


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (lambda t: t.numpy(), TypeError, "cpu"),
        (lambda t: torch.utils.dlpack.to_dlpack(t), BufferError, "DLPack"),
        (lambda t: torch.from_dlpack(t), BufferError, "DLPack"),
        (lambda t: t + torch.ones(4), RuntimeError, "spyre:0 and cpu"),
        (lambda t: torch.empty(2**62, 4, device="spyre"), RuntimeError, "overflow"),
        (lambda t: torch.empty(-1, device="spyre"), RuntimeError, "negative"),
        (
            lambda t: torch.empty(2, device="spyre", layout=torch.sparse_coo),
            RuntimeError,
            "(?i)sparse|strided",
        ),
        (lambda t: t.to_sparse(), NotImplementedError, "(?i)sparse"),
        (
            lambda t: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], device="spyre"),
            NotImplementedError,
            "sparse tensors do not exist on spyre; keep them on the cpu",
        ),
        (
            lambda t: t + torch.eye(4).to_sparse(),
            NotImplementedError,
            "aten::add: sparse tensors do not exist on spyre; keep them on the cpu",
        ),
        (
            lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.quint8),
            NotImplementedError,
            "quantized",
        ),
        (lambda t: t.to("meta").to("spyre"), (RuntimeError, NotImplementedError), "meta"),
    ],
)
def test_refusals_say_what_to_do(action, error, message):
    with pytest.raises(error, match=message):
        action(torch.ones(4, device="spyre"))


def test_device_addresses_are_not_host_pointers():
    t = torch.ones(4, device="spyre")
    assert t.data_ptr() >> 48 == 0x59


def test_set_grows_the_storage():
    b = torch.arange(3.0).to("spyre")
    grown = torch.empty(0, device="spyre").set_(b.untyped_storage(), 0, (300,))
    assert grown.shape == (300,) and grown[:3].tolist() == [0, 1, 2]
    assert b.untyped_storage().nbytes() == 1200
    grown.fill_(2)
    assert b.tolist() == [2, 2, 2]


def test_shrunk_storage_is_not_read_beyond_its_end():
    t = torch.ones(64, device="spyre")
    t.untyped_storage().resize_(8)
    others = [torch.zeros(32, device="spyre") for _ in range(20)]
    with pytest.raises(RuntimeError, match="beyond its storage"):
        t.fill_(7.0)
    assert all(o.sum().item() == 0 for o in others)
    assert t[:2].tolist() == [1, 1]
    t.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="beyond its storage"):
        t.cpu()


def test_conjugates_copy_into_host_tensors():
    t = torch.tensor([1j, 2j], device="spyre")
    assert torch.zeros(2, dtype=torch.cfloat).copy_(t.conj()).tolist() == [-1j, -2j]
    lazily = torch.zeros(2, dtype=torch.cfloat).conj()
    assert lazily.copy_(t).tolist() == [1j, 2j]


def test_copies_into_expanded_tensors_are_refused():
    for target, source in (("spyre", "cpu"), ("cpu", "spyre"), ("spyre", "spyre")):
        with pytest.raises(RuntimeError, match="more than one element"):
            torch.zeros(1, device=target).expand(4).copy_(torch.arange(4.0).to(source))


def test_a_second_storage_of_the_same_memory_cannot_leave_it():
    t = torch.arange(128, device="spyre").view(2, 64)
    layout = torch.spyre.SpyreTensorLayout([2, 64], torch.int64)
    again = torch.spyre.as_strided_with_layout(t, [2, 64], [64, 1], None, layout)
    assert t.device_tensor_layout() != again.device_tensor_layout()
    with pytest.raises(RuntimeError, match="second storage"):
        again[0, 1] = 2**40


def test_threads_that_need_64_bits_at_once_lose_nothing():
    from concurrent.futures import ThreadPoolExecutor

    for _ in range(40):
        t = torch.zeros(4000, dtype=torch.int64, device="spyre")

        def work(i, t=t):
            for k in range(5):
                t[i * 1000 + k * 7] = 2**40 + i

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert int((t.cpu() > 2**39).sum()) == 20
