"""The boxed path: any operation, right for views, in-place, out=, lists, generators and aliases."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

from tests.support.dlfloat16_reference import round_trip


def both(function, *hosts: torch.Tensor) -> None:
    """Run on the card and on the CPU with the same float32 inputs: the results are equal."""
    cpu = [h.clone() for h in hosts]
    card = [h.clone().to("spyre") for h in hosts]
    expected, actual = function(*cpu), function(*card)
    assert_equal(actual, expected)
    for c, h in zip(card, cpu, strict=True):
        assert torch.equal(c.cpu(), h), "operands differ afterwards"


def assert_equal(actual, expected) -> None:
    if isinstance(expected, torch.Tensor):
        assert actual.device.type == "spyre" and actual.dtype == expected.dtype
        assert torch.equal(actual.cpu(), expected)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_equal(a, e)
    else:
        assert actual == expected


X = torch.randn(6, 10, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: x.add_(2),
        lambda x: x[2:4].mul_(3),
        lambda x: x.t()[1:3].sub_(x.t()[4:6]),
        lambda x: x[1:].copy_(x[:-1].clone()),
        lambda x: torch.add(x[0:2], x[2:4], out=x[4:6]),
        lambda x: torch.mul(x, 2, out=x),
        lambda x: x.unbind(0),
        lambda x: torch.split(x, 4),
        lambda x: torch.topk(x, 3),
        lambda x: torch.max(x, dim=1),
        lambda x: x.sort(dim=0, descending=True),
        lambda x: x[x > 0],
        lambda x: x.masked_fill_(x > 0, -1),
        lambda x: x.index_put_((torch.tensor([0, 1]),), torch.tensor(5.0)),
        lambda x: x[[3, 1]],
        lambda x: x[torch.tensor([3, 1])],
        lambda x: x.expand(3, 6, 10).sum(0),
        lambda x: torch._foreach_add_([x[0], x[1]], 1.0),
        lambda x: torch._foreach_mul([x, x.t()], 2.0),
        lambda x: torch.linalg.svdvals(x),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: torch.fft.rfft(x).abs(),
        lambda x: F.conv1d(x.view(1, 6, 10), x.view(10, 6, 1)),
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
        lambda x: x.unique(),
        lambda x: x.nonzero(),
        lambda x: x.item() if x.numel() == 1 else x.tolist(),
        lambda x: torch.where(x > 0, x, torch.tensor(0.0)),
        lambda x: x.cumsum(1).cummax(0),
        lambda x: torch.broadcast_tensors(x, x[0])[1] * 2,
        lambda x: x.scatter_add_(1, (x > 0).long(), x.clone()),
        lambda x: F.embedding(torch.tensor([1, 2], device=x.device), x),
        lambda x: F.pad(x, (1, 2)),
        lambda x: F.layer_norm(x, (10,)),
        lambda x: x.to(torch.float64).to(torch.int32),
        lambda x: torch.histc(x, bins=4),
        lambda x: x.resize_(3, 4) + 1,
    ],
)
def test_operation_equals_cpu(function):
    both(function, X)


def test_overlapping_views_of_one_storage():
    both(lambda x: torch.add(x[1:], x[:-1], out=x[1:].clone()), X)
    both(lambda x: x.view(-1)[1::2].add_(x.view(-1)[0::2]), X)

    def same_storage_other_dtype(x):
        return x.view(torch.int32)[1:].bitwise_and_(x.view(torch.int32)[0])

    both(same_storage_other_dtype, X)


def test_writing_to_an_expanded_tensor_is_refused_as_on_cpu():
    with pytest.raises(RuntimeError, match="more than one element"):
        torch.ones(1, 3, device="spyre").expand(4, 3).add_(1)


def test_out_is_resized_and_kept():
    out = torch.empty(0, device="spyre")
    result = torch.mm(X.to("spyre"), X.t().to("spyre"), out=out)
    assert result is out and torch.equal(out.cpu(), X @ X.t())


def test_float16_results_are_rounded_once():
    a = round_trip(torch.randn(50, 70).half())
    on_card = a.to("spyre")
    assert torch.equal((on_card * on_card).cpu(), round_trip(a * a))


def test_mixed_devices():
    card = X.to("spyre")
    assert torch.equal((card + torch.tensor(2.0)).cpu(), X + 2)
    with pytest.raises(RuntimeError, match="at least two devices, spyre:0 and cpu"):
        card + X
    with pytest.raises(RuntimeError, match="at least two devices"):
        torch.cat([card, X])


def test_counts_and_warnings():
    torch.spyre.set_fallback_warning(True)
    try:
        torch.spyre.reset_fallback_counts()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(3):
                torch.special.bessel_j0(X.to("spyre"))
        (mine,) = [w for w in seen if issubclass(w.category, torch.spyre.FallbackWarning)]
        assert mine.filename == __file__
        said = str(mine.message)
        assert said.startswith("aten::special_bessel_j0 is falling back to cpu: the card has no ")
        size = X.nbytes
        assert f"copied {size} bytes to the host and {size} bytes back and took" in said
        assert "torch.spyre.set_fallback_warning(False) silences this" in said
        assert torch.spyre.fallback_counts() == {"aten::special_bessel_j0": 3}
        torch.spyre.reset_fallback_counts()
        assert torch.spyre.fallback_counts() == {}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(torch.spyre.FallbackWarning):
                torch.special.bessel_j1(X.to("spyre"))
        assert torch.special.bessel_j1(X.to("spyre")).device.type == "spyre"
    finally:
        torch.spyre.set_fallback_warning(False)


def test_dtype_conversion_on_the_card_is_reported(script):
    out = script(
        """
        import warnings, torch
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            x = torch.ones(3).to("spyre")
            y = x.to("spyre", torch.float16).float()
        print([str(w.message).split(" (")[0] for w in seen], torch.spyre.fallback_counts())
        """
    )
    assert out == (
        "['D2D dtype conversion between spyre tensors takes the CPU as intermediate'] "
        "{'aten::_copy_from': 2}"
    )


def test_copies_and_views_are_not_fallbacks():
    torch.spyre.reset_fallback_counts()
    t = X.to("spyre").view(-1)[3:9].view(2, 3).t()
    t.cpu(), t.clone(), t.contiguous()
    torch.spyre.synchronize()
    assert torch.spyre.fallback_counts() == {}


def test_seeds_give_the_cpu_sequence():
    for make in (
        lambda device: torch.rand(5, device=device),
        lambda device: torch.randn(7, device=device),
        lambda device: torch.randint(0, 100, (9,), device=device),
        lambda device: torch.randperm(20, device=device),
        lambda device: torch.bernoulli(torch.full((20,), 0.5, device=device)),
        lambda device: torch.multinomial(torch.ones(10, device=device), 4),
        lambda device: F.dropout(torch.ones(30, device=device)),
        lambda device: torch.empty(11, device=device).normal_(),
        lambda device: torch.rand_like(torch.ones(3, device=device)),
    ):
        torch.manual_seed(5)
        expected = make("cpu")
        torch.manual_seed(5)
        assert torch.equal(make("spyre").cpu(), expected)


def test_random_ops_leave_the_cpu_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    torch.rand(4, device="spyre")
    torch.native_dropout(torch.ones(4, device="spyre"), 0.5, True)
    assert torch.equal(torch.rand(2), expected)


def test_integers_are_counted_into_bins_as_on_other_accelerators():
    ids = torch.tensor([0, 3, 1, 3, 3, 7, -1], dtype=torch.int32)
    counts = torch.histc(ids.to("spyre"), bins=4, min=0, max=3)
    assert counts.dtype == torch.int32  # and -1 and 7 are in no bin
    assert counts.tolist() == [1, 1, 0, 3]
    out = torch.empty(0, dtype=torch.int32, device="spyre")
    assert torch.histc(ids.to("spyre"), bins=4, min=0, max=3, out=out).tolist() == [1, 1, 0, 3]
    halves = torch.tensor([0.5, 1.5, 1.5])
    assert torch.histc(halves.to("spyre"), bins=2, min=0, max=2).tolist() == [1, 2]


def test_generators():
    g = torch.Generator(device="spyre")
    g.manual_seed(11)
    state = g.get_state()
    first = torch.rand(4, generator=g, device="spyre").cpu()
    assert torch.equal(first, torch.rand(4, generator=torch.Generator().manual_seed(11)))
    g.set_state(state)
    assert torch.equal(torch.rand(4, generator=g, device="spyre").cpu(), first)
    twin = g.clone_state() if hasattr(g, "clone_state") else None
    assert twin is None or twin.device.type == "spyre"
    assert g.device == torch.device("spyre:0")
    saved = torch.spyre.get_rng_state()
    a = torch.rand(3, device="spyre")
    torch.spyre.set_rng_state(saved, "spyre:0")
    assert torch.equal(torch.rand(3, device="spyre").cpu(), a.cpu())
    torch.spyre.manual_seed(9)
    assert torch.spyre.initial_seed() == 9 and torch.spyre.default_generators[0].initial_seed() == 9
    with torch.random.fork_rng(device_type="spyre"):
        torch.rand(5, device="spyre")
    torch.spyre.seed_all()
    with pytest.raises(ValueError, match="out of range"):
        torch.spyre.manual_seed(2**70)


def test_threads_compute_at_once():
    from concurrent.futures import ThreadPoolExecutor

    def work(i: int) -> float:
        t = torch.full((100,), float(i), device="spyre")
        with torch.spyre.Stream():
            for _ in range(20):
                t = t + 1
        return t.sum().item()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(8))) == [100.0 * (i + 20) for i in range(8)]


def test_errors_come_from_the_operation():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.ones(2, 3, device="spyre") @ torch.ones(2, 3, device="spyre")
    with pytest.raises(IndexError):
        torch.ones(2, device="spyre")[5]


def test_threads_share_a_generator_without_repeating_numbers():
    from concurrent.futures import ThreadPoolExecutor

    def draw(_: int) -> list[tuple[float, ...]]:
        return [tuple(torch.rand(8, device="spyre").tolist()) for _ in range(300)]

    with ThreadPoolExecutor(4) as pool:
        drawn = [row for rows in pool.map(draw, range(4)) for row in rows]
    assert len(set(drawn)) == len(drawn)


def test_random_operations_in_another_thread_leave_the_cpu_sequence_alone():
    import threading

    torch.manual_seed(0)
    expected = [torch.rand(4) for _ in range(1000)]
    x, stop = torch.ones(2000, device="spyre"), threading.Event()

    def work() -> None:
        while not stop.is_set():
            torch.native_dropout(x, 0.5, True)

    torch.manual_seed(0)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        drawn = [torch.rand(4) for _ in range(1000)]
    finally:
        stop.set()
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))
