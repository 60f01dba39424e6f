"""Divisions for the least modelled time, against brute force."""

from __future__ import annotations

import random
from itertools import product
from types import SimpleNamespace

import pytest
import sympy
import torch
from sympy import Mod, floor

import torch_spyre
from tests.inductor.planning.division.test_documented_rules import (
    MIB,
    add,
    matmul,
    op,
    reduction,
    rows,
    tensor,
)
from torch_spyre._inductor import config
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre._inductor.planning.division.candidates import best_divisions, modelled_us
from torch_spyre._inductor.planning.division.choose_division import Search
from torch_spyre._inductor.planning.division.documented_rules import divide, divisions, with_slices
from torch_spyre._inductor.planning.op_cost import Pricer, slices_of
from torch_spyre.backend.lower import lower
from torch_spyre.backend.read.bundle import read_bundle
from torch_spyre.card_model.core_slices import Share, core_view

c0, c1, c2, c3 = sympy.symbols("c0 c1 c2 c3")


def joint(specs, buffers=None, cores=32, **kwargs):
    buffers = buffers or [[f"{i}.{j}" for j in range(len(s.args))] for i, s in enumerate(specs)]
    return best_divisions(specs, buffers, cores=cores, max_span=256 * MIB, **kwargs)[0].specs


def shared_weight(batch, m, n, k):
    return op(
        "batchmatmul",
        {c0: batch, c1: m, c2: n, c3: k},
        tensor(0, [batch, k // 64, m, 64], [c0, floor(c3 / 64), c1, Mod(c3, 64)]),
        tensor(1, [n // 64, k, 64], rows(c3, c2)),
        tensor(2, [batch, n // 64, m, 64], [c0, floor(c2 / 64), c1, Mod(c2, 64)], True),
        reduction=True,
    )


@pytest.mark.parametrize("cores", [1, 5, 32])
@pytest.mark.parametrize(
    "spec",
    [
        matmul(128, 512, 256),
        matmul(128, 4096, 4096),
        matmul(512, 4096, 4096),
        matmul(64, 12800, 4096),
        matmul(32, 4096, 12800),
        matmul(64, 128, 8192),
        matmul(1000, 320, 448),
        shared_weight(8, 128, 512, 256),
        add(96, 640),
        reduction("sum", 4, 512),
    ],
    ids=lambda s: f"{s.op}-{'x'.join(str(n) for n, _ in s.iteration_space.values())}",
)
def test_one_operation_gets_the_cheapest_of_all_divisions(spec, cores):
    (found,) = joint([spec], cores=cores)
    pricer = Pricer(spec)
    every = []
    legal = list(divisions(spec, cores, 256 * MIB))
    sizes = [size for size, _ in spec.iteration_space.values()]
    for counts in product(*(range(1, min(size, cores) + 1) for size in sizes)):
        slices = dict(zip(spec.iteration_space, counts))
        if slices in legal:
            every.append(pricer.price(slices).us)
    assert pricer.price(slices_of(found)).us == pytest.approx(min(every), abs=1e-6)
    documented = divide(spec, cores, 256 * MIB, matmul_model=True)
    assert modelled_us([found]) <= modelled_us([documented]) + 1e-6


def test_no_division_is_refused_for_using_few_cores():
    (found,) = joint([matmul(64, 128, 8192)])
    few = sympy.prod(list(slices_of(found).values()))
    assert few < 32
    documented = divide(matmul(64, 128, 8192), 32, 256 * MIB, matmul_model=True)
    assert modelled_us([found]) < 0.7 * modelled_us([documented])


def test_batches_that_share_a_weight_read_it_once():
    spec = shared_weight(8, 128, 512, 256)
    (found,) = joint([spec])
    work = Pricer(spec).work(slices_of(found))
    assert work.flows[1].memory_bytes == 512 * 256 * 2
    assert work.rows == 8 * 128 // (slices_of(found)[c0] * slices_of(found)[c1])


def test_neighbours_divide_alike_where_their_intermediate_can_then_stay():
    """One writer and one reader, against all pairs of divisions."""
    first, second = matmul(256, 512, 512), add(256, 512)
    names = [["x", "y", "t"], ["t", "b", "z"]]
    fixed = ["x", "y", "b", "z"]
    lx_bytes = 1 << 20

    def cost(a, b):
        pa, pb = Pricer(first), Pricer(second)
        # Both cut the same axes of t in the same way: rows are c0 and columns c1 in both.
        stays = (a[c0], a[c1], a[c2]) == (b[c0], b[c1], 1)
        return (
            pa.price(a, (False, False, stays)).us + pb.price(b, (stays, False, False)).us,
            stays,
        )

    every = [
        cost(a, b)
        for a in divisions(first, 32, 256 * MIB)
        for b in divisions(second, 32, 256 * MIB)
    ]
    best, stays = min(every, key=lambda c: c[0])
    assert stays
    found = joint([first, second], names, lx_bytes=lx_bytes, fixed=fixed)
    reached, agreed = cost(*(slices_of(s) for s in found))
    assert agreed and reached == pytest.approx(best, rel=0.02)


def test_what_is_too_large_for_a_scratchpad_does_not_count_on_it():
    first, second = matmul(256, 512, 512), add(256, 512)
    names = [["x", "y", "t"], ["t", "b", "z"]]
    fixed = ["x", "y", "b", "z"]
    with_lx = joint([first, second], names, lx_bytes=1024, fixed=fixed)
    without = joint([first, second], names, fixed=fixed)
    assert modelled_us(with_lx) == pytest.approx(modelled_us(without))


def test_an_operation_with_a_hint_keeps_its_slices():
    spec = with_slices(add(128, 256), {c0: 2, c1: 4})
    (found,) = joint([spec], hinted=[True])
    assert slices_of(found) == {c0: 2, c1: 4}


def half(*shape):
    return torch.randn(*shape, dtype=torch.float16).to("spyre")


PROGRAMS = {
    "softmax": (lambda x: torch.softmax(x, 0), [(96, 128)]),
    "rows": (lambda x: torch.softmax(x, -1), [(96, 200)]),
    "bias": (lambda x, y: torch.nn.functional.gelu(x + y), [(64, 320), (320,)]),
    "matmul": (lambda x, y: x @ y, [(40, 130), (130, 192)]),
    "bmm": (lambda x, y: x @ y, [(3, 40, 128), (3, 128, 64)]),
    "shared": (lambda x, y: x @ y, [(4, 32, 128), (128, 192)]),
    "norm": (lambda x: torch.nn.functional.layer_norm(x, (256,)), [(64, 256)]),
    "cast": (lambda x: x.float() * 2, [(64, 128)]),
    "transposed": (lambda x: x.t().contiguous() + 1, [(100, 70)]),
    "reshaped": (lambda x: x.reshape(50, 140).contiguous() * 2, [(100, 70)]),
    "topk": (lambda x: torch.topk(x, 4, -1)[0], [(64, 128)]),
    "attention": (
        lambda q, k: torch.nn.functional.scaled_dot_product_attention(q, k, k),
        [(2, 4, 128, 64), (2, 4, 128, 64)],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_sides_of_the_contract_price_alike_and_joint_is_never_slower(name):
    function, shapes = PROGRAMS[name]
    args = [half(*shape) for shape in shapes]
    totals, results = {}, {}
    for mode in ("joint", "documented"):
        with config.patch(work_division=mode), debug_dir.listen() as record:
            torch._dynamo.reset()
            told = torch_spyre.explain(function, *args)
        results[mode] = told.result.cpu()
        specs = [s for plan in record.plans for kernel in plan.kernels for s in kernel.specs]
        front = [Pricer(s).work(slices_of(s)) for s in specs]
        steps = [lower(o) for d in told.artifacts for o in read_bundle(d).operations()]
        assert front and front == [step.works[0] for step in steps]
        totals[mode] = sum(step.time_us for step in steps)
    assert totals["joint"] <= totals["documented"] + 1e-6
    expected = function(*(a.cpu().float() for a in args)).float()
    for result in results.values():
        torch.testing.assert_close(result.float(), expected, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("is_written", [False, True])
def test_what_every_layer_uses_is_estimated_by_count_as_use_by_use(is_written):
    """Of twelve uses only how often which view comes counts, and which comes first."""
    whole = core_view(4, [Share(512, 512, (0, 0, 0, 0))])
    rows = core_view(4, [Share(64, 64, (0, 0, 0, 0)), Share(8, 2, (0, 1, 2, 3))])
    backwards = core_view(4, [Share(64, 64, (0, 0, 0, 0)), Share(8, 2, (3, 2, 1, 0))])
    columns = core_view(4, [Share(64, 16, (0, 1, 2, 3)), Share(8, 8, (0, 0, 0, 0))])
    views = [(view,) for view in (whole, rows, backwards, columns, None)]
    first = SimpleNamespace(
        cheapest=0, views=[(None, *view) for view in views], us=lambda candidate, in_lx: 1.0
    )
    # An operation with one tensor writes it; with two it reads the first and writes the second.
    reader = SimpleNamespace(
        cheapest=0, views=[(*view, None) for view in views], us=lambda candidate, in_lx: 1.0
    )
    options = [first if is_written else reader, *[reader] * 11]
    buffers = [["x", "shared"] if is_written else ["shared", "r0"]]
    buffers += [["shared", f"r{number}"] for number in range(1, 12)]
    search = Search(options, buffers, 16 << 10, set(), set(), True)
    (buffer,) = [b for b in search._buffers if len(b.uses) == 12]
    assert buffer.is_written == is_written
    rng = random.Random(0)
    in_scratchpads = 0
    for _ in range(300):
        choice = [rng.choice((0, 1, 1, 2, 3, 4)) for _ in options]
        seen = search._views_of(buffer, choice, {})
        found = search._estimate(buffer, seen)
        assert found == search._estimated(buffer, seen)
        in_scratchpads += 0 < sum(found.in_lx) < 12
    assert in_scratchpads > 30 and len(search._many) < len(search._estimates)
