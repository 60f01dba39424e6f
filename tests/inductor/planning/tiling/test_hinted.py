"""spyre_hint(num_tiles_per_dim=...): loops that a program asks for."""

from __future__ import annotations

import pytest
import torch

import torch_spyre
from torch_spyre._inductor import config, spyre_hint
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre._inductor.opspec.op_spec import LoopSpec
from torch_spyre._inductor.propagate_named_dims import declare_tensor_dim, name_tensor_dims

M, K, N = 128, 256, 192


def half(*shape):
    return torch.randn(*shape, dtype=torch.float16).to("spyre")


@pytest.fixture
def product():
    torch.manual_seed(0)
    for name, size in (("M", M), ("K", K), ("N", N)):
        declare_tensor_dim(name, size)
    x, w = half(M, K), half(K, N)
    name_tensor_dims(x, ["M", "K"])
    name_tensor_dims(w, ["K", "N"])
    return x, w


@pytest.fixture(autouse=True)
def term_by_term():
    """Tiles have fewer rows than the card adds by pairs, what they are compared with has more."""
    before = torch_spyre._C._adds_pairs()
    torch_spyre._C._set_adds_pairs(False)
    yield
    torch_spyre._C._set_adds_pairs(before)


def tiled(function, *dims):
    """The function in nested blocks of hints, the first one outside."""

    def wrapped(*args):
        if len(dims) == 2:
            with spyre_hint(num_tiles_per_dim=dims[0]), spyre_hint(num_tiles_per_dim=dims[1]):
                return function(*args)
        with spyre_hint(num_tiles_per_dim=dims[0]):
            return function(*args)

    return wrapped


def compiled(function, *args, **settings):
    """What it gives, checked by the sanitizer, and the specs of its kernels."""
    torch._dynamo.reset()
    with (
        config.patch(validate=True, **settings),
        debug_dir.listen() as record,
        torch.spyre.sanitizer(),
        torch._inductor.utils.fresh_inductor_cache(),
    ):
        result = torch.compile(function)(*args)
        torch.spyre.synchronize()
    return result.cpu(), [s for plan in record.plans for k in plan.kernels for s in k.specs]


def rows(x, w):
    return torch.softmax(torch.relu(x @ w), -1) + 1


# ---- Tiles of what is kept -----------------------------------------------------------------------


@pytest.mark.parametrize("unroll", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_tiles_of_rows_give_the_same_bits_as_no_tiles(product, unroll, fused):
    plain, _ = compiled(rows, *product)
    settings = {"unroll_loops": unroll, "backend_fusion": fused}
    result, specs = compiled(tiled(rows, {"M": 4}), *product, **settings)
    assert torch.equal(result, plain)
    (loop,) = specs
    assert isinstance(loop, LoopSpec) and loop.count == 4
    x = loop.body[0].args[0]
    (symbol,) = loop.body[0].tiled_symbols
    assert x.device_size == [4, M, 64], "the whole tensor"
    assert loop.body[0].iteration_space[symbol][0] == M // 4, "a tile of the iteration space"


@pytest.mark.parametrize("dims", [({"N": 3},), ({"M": 2}, {"N": 3}), ({"N": 3}, {"M": 2})])
def test_tiles_of_sticks_and_of_two_dimensions_give_the_same_bits(product, dims):
    def f(x, w):
        return torch.relu(x @ w) * 2

    plain, _ = compiled(f, *product)
    result, (loop,) = compiled(tiled(f, *dims), *product, unroll_loops=False)
    assert torch.equal(result, plain)
    assert loop.count == next(iter(dims[0].values()))
    assert len(dims) == 1 or loop.body[0].count == next(iter(dims[1].values()))


def test_what_is_used_only_in_a_loop_has_the_size_of_a_tile(product):
    _, (loop,) = compiled(tiled(rows, {"M": 4}), *product)
    matmul, relu = [part for part in loop.body if part.op != "ringmove"][:2]
    assert matmul.args[-1].device_size == [N // 64, M // 4, 64] and matmul.args[-1].per_tile_fixed
    assert relu.args[0].device_size == [N // 64, M // 4, 64] and relu.args[0].per_tile_fixed
    assert loop.body[-1].args[-1].device_size == [N // 64, M, 64]


def test_an_operation_that_needs_all_tiles_comes_after_the_loop(product):
    def f(x, w):
        y = torch.relu(x)
        return y @ y.t()  # rows of all tiles

    torch.manual_seed(1)
    plain, _ = compiled(lambda x, w: f(x, w), *product)
    result, specs = compiled(tiled(f, {"M": 2}), *product)
    assert torch.equal(result, plain)
    assert isinstance(specs[0], LoopSpec) and len(specs) > 1


def test_operations_without_the_dimension_do_not_run_again_and_again(product):
    def f(x, w):
        return x @ torch.exp(w * 0.1)

    plain, _ = compiled(f, *product)
    result, specs = compiled(tiled(f, {"M": 4}), *product)
    assert torch.equal(result, plain)
    assert [getattr(s, "op", "loop") for s in specs] == ["mul", "exp", "loop"]


def test_the_card_counts_loops_as_often_as_they_run(product):
    x, w = product
    function = tiled(lambda x, w: x @ w, {"M": 8})
    for unroll in (True, False):
        with config.patch(unroll_loops=unroll):
            found = torch_spyre.explain(function, x, w)
            torch.spyre.synchronize()
            torch.spyre.reset_counters()
            torch.compile(function)(x, w)
            torch.spyre.synchronize()
        counters = torch.spyre.counters()
        again = 7 * K * N * 2
        once = (M * K + K * N + M * N) * 2
        assert counters["hbm_read_bytes"] + counters["hbm_write_bytes"] == once + again
        assert found.hbm_bytes == once + again and found.compulsory_bytes == once
        assert found.ops[0].loops == (8,)
        torch._dynamo.reset()


# ---- Tiles of what is reduced --------------------------------------------------------------------


@pytest.mark.parametrize(
    "function, dims",
    [
        (lambda x, w: x @ w, ({"K": 2},)),
        (lambda x, w: torch.relu(x @ w) + 1, ({"M": 2}, {"K": 4})),
        (lambda x, w: x @ w, ({"K": 4}, {"N": 3})),
        (lambda x, w: (x * 2).sum(0), ({"M": 4},)),
        (lambda x, w: x.amax(1), ({"K": 2},)),
        (lambda x, w: x.amin(0) + 1, ({"M": 8},)),
        (lambda x, w: x.mean(1), ({"K": 4},)),
        (lambda x, w: torch.softmax(x, 0), ({"M": 4},)),
    ],
    ids=["matmul", "rows and depth", "depth and columns", "sum", "max of sticks", "min", "mean",
         "softmax"],
)  # fmt: skip
def test_partial_results_of_tiles_add_up(product, function, dims):
    result, specs = compiled(tiled(function, *dims), *product, unroll_loops=False)
    x, w = (t.cpu().float() for t in product)
    torch.testing.assert_close(result.float(), function(x, w), atol=0.15, rtol=0.01)
    assert any(isinstance(s, LoopSpec) for s in specs)


def test_loops_and_written_out_loops_give_the_same_bits_for_reductions(product):
    f = tiled(lambda x, w: torch.relu(x @ w), {"M": 2}, {"K": 2})
    kept, _ = compiled(f, *product, unroll_loops=False)
    written, _ = compiled(f, *product, unroll_loops=True)
    assert torch.equal(kept, written)


# ---- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function, dims, words",
    [
        (rows, {"Q": 2}, ["no dimension is named 'Q'", "'K', 'M', 'N'"]),
        (rows, {"M": 3}, ["3 tiles do not divide 'M'", "1, 2, 4, 8, 16, 32, 64, 128"]),
        (lambda x, w: x @ w, {"N": 2}, ["inside of sticks of 64", "for 'N': 1, 3"]),
        (lambda x, w: torch.nn.functional.layer_norm(x, (K,)), {"K": 2}, ["cannot be combined"]),
    ],
    ids=["unknown", "does not divide", "inside of sticks", "exx2"],
)
def test_a_hint_that_cannot_hold_is_refused_with_what_is_allowed(product, function, dims, words):
    with pytest.raises(Exception) as refusal:
        compiled(tiled(function, dims), *product)
    text = str(refusal.value)
    for word in [*words, "num_tiles_per_dim=", "allowed:", "test_hinted.py"]:
        assert word in text


def test_two_reduced_dimensions_are_refused(product):
    with pytest.raises(Exception, match="'M' and 'K' are reduced, and both are cut; allowed"):
        compiled(tiled(lambda x, w: x.sum(), {"M": 2}, {"K": 2}), *product)


def test_several_dimensions_are_nested_loops_the_first_one_outside(product):
    def f(x, w):
        return torch.relu(x @ w)

    for outer, inner in (({"M": 4}, {"K": 2}), ({"K": 2}, {"M": 4})):
        nested, loops = compiled(tiled(f, outer, inner), *product, unroll_loops=False)
        at_once, others = compiled(tiled(f, {**outer, **inner}), *product, unroll_loops=False)
        assert torch.equal(at_once, nested) and others == loops
        assert any(isinstance(s, LoopSpec) for s in loops)


def test_hints_without_dimensions_or_with_odd_numbers_are_refused_where_they_stand():
    with pytest.raises(ValueError, match="names no dimension, allowed: one or more"):
        spyre_hint(num_tiles_per_dim={})
    with pytest.raises(ValueError, match="'M' has 0 tiles"):
        spyre_hint(num_tiles_per_dim={"K": 2, "M": 0})
    with pytest.raises(KeyError, match="declare_tensor_dim"):
        spyre_hint(named_dims=["nobody declared this"])
    with pytest.raises(TypeError, match="needs work_div"):
        spyre_hint()


@pytest.mark.parametrize("alias", ["tiles", "slices"])
def test_old_names_still_work_with_a_warning(product, alias):
    def f(x, w):
        with spyre_hint(**{alias: {"M": 2}}):
            return torch.relu(x)

    with pytest.warns(FutureWarning, match="num_tiles_per_dim"):
        _, (loop,) = compiled(f, *product)
    assert loop.count == 2


def test_tiles_can_be_ignored_and_one_tile_is_no_loop(product):
    _, specs = compiled(tiled(rows, {"M": 4}), *product, ignore_hints=True)
    assert not any(isinstance(s, LoopSpec) for s in specs)
    _, specs = compiled(tiled(rows, {"M": 1}), *product)
    assert not any(isinstance(s, LoopSpec) for s in specs)


def test_named_dims_name_what_a_program_makes_out_of_nothing(product):
    def f(y):
        with spyre_hint(named_dims=["M", "N"]):
            mask = torch.full((M, N), 2.0, dtype=torch.float16, device="spyre").triu(1)
        with spyre_hint(num_tiles_per_dim={"N": 3}):
            return y + mask

    y = half(M, N)  # without names
    result, specs = compiled(f, y)
    expected = y.cpu() + torch.full((M, N), 2.0).triu(1).half()
    torch.testing.assert_close(result, expected, atol=0.02, rtol=0.01)
    assert [s.count for s in specs] == [3]


def test_dimensions_that_a_product_flattens_have_a_joined_name():
    for name, size in (("B", 4), ("M", M), ("K", K)):
        declare_tensor_dim(name, size)
    x, w = half(4, M, K), half(K, N)
    name_tensor_dims(x, ["B", "M", "K"])
    plain, _ = compiled(lambda x, w: torch.relu(x @ w), x, w)
    f = tiled(lambda x, w: torch.relu(x @ w), {"B*M": 4})
    result, specs = compiled(f, x, w, own_tiling=False)
    assert torch.equal(result, plain)
    assert isinstance(specs[0], LoopSpec) and specs[0].count == 4
