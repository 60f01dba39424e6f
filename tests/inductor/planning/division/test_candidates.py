"""Divisions that are offered for a complete plan: which they are, and in what order."""

from __future__ import annotations

import itertools
from math import prod

import pytest
import sympy

from tests.support.operations import buffer, matmul, pointwise
from torch_spyre._inductor.layouts.to_op_spec import make_spec
from torch_spyre._inductor.operations.operation import Operation
from torch_spyre._inductor.opspec.op_spec import OpSpec
from torch_spyre._inductor.planning.division.candidates import (
    best_divisions,
    candidates_of,
    modelled_us,
    rank,
)
from torch_spyre._inductor.planning.division.documented_rules import divide, with_slices
from torch_spyre._inductor.planning.op_cost import Pricer, slices_of
from torch_spyre.card_model.cost_model import Price
from torch_spyre.hardware import CARD

LX = 1_677_721


def spec_of(op: Operation, places: str = "hbm") -> OpSpec:
    spec = make_spec(op)
    for arg in spec.args:
        arg.allocation = {places: 0}
    return spec


def product(m: int, n: int, k: int) -> OpSpec:
    x, y, z = buffer("x", (m, k), 1), buffer("y", (k, n), 1), buffer("z", (m, n), 1)
    return spec_of(matmul(x, y, z, m, n, k))


def exp(m: int, n: int) -> OpSpec:
    x, z = buffer("x", (m, n), 1), buffer("z", (m, n), 1)
    return spec_of(pointwise("exp", [x], z, (m, n)))


def every_division(spec: OpSpec, cores: int) -> list[dict[sympy.Symbol, int]]:
    """That cut each dimension into equal parts, sticks into whole ones."""
    sticks = {s for a in spec.args for s in a.device_coordinates[-1].free_symbols}
    counts = []
    for symbol, (size, _) in spec.iteration_space.items():
        units = -(-size // 64) if symbol in sticks else size
        counts.append([n for n in range(1, cores + 1) if units % n == 0])
    found = itertools.product(*counts)
    return [dict(zip(spec.iteration_space, c)) for c in found if prod(c) <= cores]


@pytest.mark.parametrize("spec", [exp(96, 256), product(64, 128, 256), exp(7, 100)])
@pytest.mark.parametrize("with_lx", [False, True])
def test_the_cheapest_divisions_are_among_the_candidates(spec: OpSpec, with_lx: bool) -> None:
    """In memory, and where scratchpads are planned, with all tensors in them, too."""
    found = candidates_of(spec, 32, CARD.span_bytes, with_lx, True)
    pricer, every = Pricer(spec), every_division(spec, 32)
    offered = [c.slices for c in found.candidates]
    places = [(False,) * len(spec.args)] + [(True,) * len(spec.args)] * with_lx
    for in_lx in places:
        least = min(pricer.price(s, in_lx).us for s in every)
        assert min(pricer.price(s, in_lx).us for s in offered) == pytest.approx(least)
    cheapest = found.us(found.cheapest, (False,) * len(spec.args))
    assert cheapest == pytest.approx(min(pricer.price(s).us for s in every))
    assert offered[0] == slices_of(divide(spec, 32, CARD.span_bytes, matmul_model=True))
    assert len({tuple(s.items()) for s in offered}) == len(offered)


def test_without_scratchpads_no_tensor_has_a_part_on_a_core() -> None:
    found = candidates_of(exp(96, 256), 32, CARD.span_bytes, False, True)
    assert all(view is None for c in found.candidates for view in c.views)
    found = candidates_of(exp(96, 256), 32, CARD.span_bytes, True, True)
    assert all(view is not None for c in found.candidates for view in c.views)


def test_a_sum_over_slices_stays_on_a_core_only_where_it_can_be_moved() -> None:
    spec = product(64, 64, 2048)
    for moves in (True, False):
        found = candidates_of(spec, 32, CARD.span_bytes, True, True, moves=moves)
        *_, k = spec.iteration_space
        split = [c for c in found.candidates if c.slices[k] > 1]
        assert split and all((c.views[-1] is not None) == moves for c in split)


def test_a_division_that_is_kept_is_the_only_candidate() -> None:
    spec = exp(96, 256)
    row, column = spec.iteration_space
    kept = with_slices(spec, {row: 3, column: 2})
    found = candidates_of(kept, 32, CARD.span_bytes, True, True, keep=True)
    assert [c.slices for c in found.candidates] == [{row: 3, column: 2}]


def test_the_documented_division_is_always_offered_and_marked() -> None:
    specs = [product(512, 512, 512), exp(512, 512)]
    buffers = [["x", "y", "z"], ["z", "out"]]
    for lx_bytes in (0, LX):
        found = best_divisions(specs, buffers, cores=32, max_span=CARD.span_bytes,
                               lx_bytes=lx_bytes, fixed={"x", "y", "out"})  # fmt: skip
        documented = [slices_of(divide(s, 32, CARD.span_bytes, matmul_model=True)) for s in specs]
        marked = [d for d in found if d.is_documented]
        if lx_bytes or any([slices_of(s) for s in d.specs] == documented for d in found):
            assert [[slices_of(s) for s in d.specs] for d in marked] == [documented]
        others = [d for d in found if not d.is_documented]
        assert all([slices_of(s) for s in d.specs] != documented for d in others)


def test_the_first_division_is_the_best_by_the_estimate() -> None:
    specs = [product(512, 512, 512), exp(512, 512)]
    buffers = [["x", "y", "z"], ["z", "out"]]
    found = best_divisions(specs, buffers, cores=32, max_span=CARD.span_bytes, lx_bytes=LX,
                           fixed={"x", "y", "out"})  # fmt: skip
    assert found[0].us == min(d.us for d in found)
    assert all(d.floor <= d.us + 1e-9 for d in found)
    in_memory = best_divisions(specs, buffers, cores=32, max_span=CARD.span_bytes)
    assert in_memory[0].us == pytest.approx(modelled_us(in_memory[0].specs))


def test_without_time_to_spare_there_is_one_division() -> None:
    found = best_divisions([exp(512, 512)], [["x", "y"]], cores=32, max_span=CARD.span_bytes,
                           lx_bytes=LX, thorough=False)  # fmt: skip
    assert len(found) == 1


def test_operations_that_share_a_spec_share_its_division() -> None:
    spec = exp(512, 512)
    (first, *_) = best_divisions([spec, spec, spec], [["a", "b"], ["b", "c"], ["c", "d"]],
                                 cores=32, max_span=CARD.span_bytes, lx_bytes=LX,
                                 fixed={"a", "d"})  # fmt: skip
    same = [s for s in first.specs if slices_of(s) == slices_of(first.specs[0])]
    assert len(same) == 3 and len({id(s) for s in same}) == 1


def test_of_equal_times_that_without_partial_sums_is_better_then_that_with_less_work() -> None:
    def cost(**parts: float) -> Price:
        given = dict.fromkeys(("lx_us", "pt_us", "sfp_us", "ring_us", "start_us"), 0.0)
        return Price(**{**given, "memory_us": 5.0, **parts})

    assert rank(cost()) < rank(cost(memory_us=6.0))
    assert rank(cost(sfp_us=1.0)) < rank(cost(memory_us=4.0, ring_us=1.0))
    assert rank(cost(sfp_us=1.0)) < rank(cost(sfp_us=2.0))
