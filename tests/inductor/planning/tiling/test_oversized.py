"""config.chunk_large_tensors: loops around what no division over cores makes small enough."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.utils import fresh_inductor_cache

from torch_spyre._inductor import config
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre._inductor.opspec.loops import runs_of
from torch_spyre._inductor.opspec.op_spec import LoopSpec
from torch_spyre._inductor.planning import divide_and_place, planner
from torch_spyre._inductor.planning.division.documented_rules import widest_span
from torch_spyre._inductor.planning.op_cost import slices_of
from torch_spyre._inductor.planning.tiling import automatic, oversized
from torch_spyre._inductor.planning.tiling.loops import in_memory
from torch_spyre.hardware import CARD

CORES = 4
LIMIT = 1 << 14
"""Bytes that a core can address of a tensor, in place of 256 MB."""


@pytest.fixture(autouse=True)
def small_card(monkeypatch):
    for module in (automatic, planner, divide_and_place, oversized):
        monkeypatch.setattr(module, "CARD", CARD._replace(span_bytes=LIMIT))


def half(*shape):
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float16)


def compiled(function, *args, **settings):
    """What it gives, and the specs of its kernels."""
    torch._dynamo.reset()
    with (
        config.patch({"cores": CORES, "validate": True, **settings}),
        debug_dir.listen() as record,
        torch.spyre.sanitizer(),
        fresh_inductor_cache(),
    ):
        result = torch.compile(function)(*(x.to("spyre") for x in args)).cpu()
    return result, [s for plan in record.plans for k in plan.kernels for s in k.specs]


def spans(specs):
    return [
        widest_span(in_memory(s), slices_of(s), CORES) for s in (run.spec for run in runs_of(specs))
    ]


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x + 1, (512, 256)),
        (lambda x: x + 1, (511, 250)),
        (lambda x: torch.relu(x) * x, (6, 100, 256)),
        (lambda x: x.t().contiguous(), (256, 512)),
    ],
    ids=["rows", "odd sizes", "three dimensions", "transposed"],
)
def test_large_operations_run_in_chunks_that_cores_can_address(function, shape):
    x = half(*shape)
    plain, before = compiled(function, x, chunk_large_tensors=False)
    chunks, after = compiled(function, x, chunk_large_tensors=True)
    assert torch.equal(chunks, plain)
    assert max(spans(before)) > LIMIT and not any(isinstance(s, LoopSpec) for s in before)
    assert max(spans(after)) <= LIMIT and any(isinstance(s, LoopSpec) for s in after)


def test_what_cores_can_address_is_left_alone():
    x = half(128, 128)
    _, specs = compiled(lambda x: x + 1, x, chunk_large_tensors=True)
    assert not any(isinstance(s, LoopSpec) for s in specs) and max(spans(specs)) <= LIMIT


def test_reductions_and_products_are_left_alone():
    x = half(256, 512)
    plain, before = compiled(lambda x: x.sum(-1), x, chunk_large_tensors=False)
    chunks, after = compiled(lambda x: x.sum(-1), x, chunk_large_tensors=True)
    assert torch.equal(chunks, plain) and after == before


def test_one_core_has_chunks_too():
    x = half(256, 256)
    plain, _ = compiled(lambda x: x + 1, x, cores=1)
    chunks, specs = compiled(lambda x: x + 1, x, cores=1, chunk_large_tensors=True)
    assert torch.equal(chunks, plain)
    assert any(isinstance(s, LoopSpec) for s in specs) and max(spans(specs)) <= LIMIT
