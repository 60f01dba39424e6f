"""spyre_hint(work_div=...) and the names of dimensions it goes by."""

from __future__ import annotations

import pytest
import torch

from torch_spyre._inductor import config, spyre_hint
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre._inductor.planning.division import hints as division_hints
from torch_spyre._inductor.propagate_named_dims import declare_tensor_dim, name_tensor_dims

M, K, N = 128, 256, 512


def half(*shape):
    return torch.randn(*shape, dtype=torch.float16).to("spyre")


@pytest.fixture
def product():
    for name, size in (("M", M), ("K", K), ("N", N)):
        declare_tensor_dim(name, size)
    x, w = half(M, K), half(K, N)
    name_tensor_dims(x, ["M", "K"])
    name_tensor_dims(w, ["K", "N"])
    return x, w


def compiled(function, *args):
    """What it gives, and for each operation its OpFunc with slices by size of the dimension."""
    torch._dynamo.reset()
    with debug_dir.listen() as record:
        result = torch.compile(function)(*args)
    specs = [s for plan in record.plans for kernel in plan.kernels for s in kernel.specs]
    return result.cpu(), [
        (s.op, {size: n for size, n in s.iteration_space.values() if size > 1}) for s in specs
    ]


def test_a_hint_divides_the_operations_of_its_block_and_no_other(product):
    def f(x, w):
        with spyre_hint(work_div={"M": 4, "K": 2}):
            y = x @ w
        return torch.relu(y)

    result, ops = compiled(f, *product)
    asked_for = [op for op in ops if op[0] != "ringmove"]  # sums travel to relu
    assert asked_for[0] == ("batchmatmul", {M: 4, N: 1, K: 2})
    assert asked_for[1][0] == "relufwd" and asked_for[1][1] != {M: 4, N: 1}
    x, w = (t.cpu().float() for t in product)
    torch.testing.assert_close(result.float(), torch.relu(x @ w), atol=0.3, rtol=0.02)


@pytest.mark.parametrize("mode", ["joint", "documented"])
def test_hints_count_in_both_modes_and_one_slice_is_a_hint_too(product, mode):
    def f(x, w):
        with spyre_hint(work_div={"M": 1}):
            return x @ w

    with config.patch(work_division=mode):
        _, ops = compiled(f, *product)
    assert ops == [("batchmatmul", {M: 1, N: 1, K: 1})]


def test_names_go_through_views_and_inner_blocks_come_first(product):
    def f(x, w):
        with spyre_hint(work_div={"M": 8}):
            y = (x @ w).t().reshape(2, N // 2, M)
            with spyre_hint(work_div={"M": 2}):
                return torch.relu(y)

    _, ops = compiled(f, *product)
    assert ops[0][1][M] == 8
    assert ops[-1] == ("relufwd", {2: 1, N // 2: 1, M: 2})


def test_flattened_dimensions_have_the_names_of_their_parts():
    declare_tensor_dim("B", 4)
    declare_tensor_dim("S", 32)
    declare_tensor_dim("H", 192)
    x = half(128, 192)
    name_tensor_dims(x, ["B", "S", "H"])

    def f(x):
        with spyre_hint(work_div={"B*S": 16, "H": 1}):
            return x + 1

    _, ops = compiled(f, x)
    assert ops == [("add", {128: 16, 192: 1})]


def test_hints_can_be_ignored(product):
    def f(x, w):
        with spyre_hint(work_div={"Q": 3}):
            return x @ w

    with config.patch(ignore_hints=True):
        _, ops = compiled(f, *product)
    assert ops[0][0] == "batchmatmul"


@pytest.mark.parametrize(
    "work_div, reason, allowed",
    [
        ({"Q": 2}, "no dimension is named 'Q'", "the names 'K', 'M', 'N'"),
        ({"M": 3}, "3 slices do not divide 'M'", "for 'M': 1, 2, 4, 8, 16, 32"),
        ({"K": 8}, "8 slices do not divide 'K'", "for 'K': 1, 2, 4"),
        ({"M": 64}, "'M' wants 64 cores, there are 32", "for 'M': 1, 2, 4, 8, 16, 32"),
        ({"M": 8, "N": 8}, "its slices need 64 cores", "product is at most 32"),
        ({"M": 0}, "'M' has 0", "a whole number from 1 on"),
        ({"M": True}, "'M' has True", "a whole number from 1 on"),
        ({"M": 2.0}, "'M' has 2.0", "a whole number from 1 on"),
    ],
)
def test_a_hint_that_cannot_hold_is_refused_with_what_could(product, work_div, reason, allowed):
    def f(x, w):
        with spyre_hint(work_div=work_div):
            return x @ w

    torch._dynamo.reset()
    with pytest.raises(Exception, match="cannot hold for batchmatmul") as caught:
        torch.compile(f)(*product)
    text = str(caught.value)
    assert reason in text and f"allowed: {allowed}" in text.replace("numbers whose ", "")
    assert "test_hints.py" in text and "SPYRE_INDUCTOR_IGNORE_HINTS=1" in text


def test_two_reduced_dimensions_cannot_both_be_cut():
    declare_tensor_dim("A", 8)
    declare_tensor_dim("R", 16)
    declare_tensor_dim("C", 128)
    x = half(8, 16, 128)
    name_tensor_dims(x, ["A", "R", "C"])

    def f(x):
        with spyre_hint(work_div={"A": 2, "R": 2}):
            return x.sum((0, 1))

    with pytest.raises(Exception, match="'A', 'R' are reduced, and both are cut; allowed: one"):
        compiled(f, x)


def test_topk_runs_on_one_core_whatever_a_hint_says(monkeypatch):
    declare_tensor_dim("rows", 64)
    declare_tensor_dim("columns", 128)
    x = half(64, 128)
    name_tensor_dims(x, ["rows", "columns"])

    def f(x):
        with spyre_hint(work_div={"rows": 2}):
            return torch.topk(x, 4, -1)[0]

    said = []
    monkeypatch.setattr(
        division_hints._log, "warning", lambda text, *args: said.append(text % args)
    )
    _, ops = compiled(f, x)
    slices = [s for name, s in ops if name.startswith("topk")]
    assert slices and all(n == 1 for s in slices for n in s.values())
    assert "the hint work_div={'rows': 2} is ignored: topk runs on one core" in said


def test_changed_hints_and_names_recompile(product):
    found = []
    for count in (2, 4):

        def f(x, w, count=count):
            with spyre_hint(work_div={"M": count}):
                return x @ w

        found.append(compiled(f, *product)[1][0][1][M])
    assert found == [2, 4]


def test_names_are_declared_first_and_fit():
    x = half(8, 64)
    with pytest.raises(KeyError, match="declare_tensor_dim"):
        name_tensor_dims(x, ["never declared", "nor this"])
    declare_tensor_dim("eight", 8)
    declare_tensor_dim("sixty four", 64)
    with pytest.raises(ValueError, match="do not fit a tensor of shape"):
        name_tensor_dims(x, ["sixty four", "eight"])
    with pytest.raises(ValueError, match="left over"):
        name_tensor_dims(x, ["eight", "sixty four", "eight"])
    with pytest.raises(ValueError, match="from 1 on"):
        declare_tensor_dim("none", 0)
