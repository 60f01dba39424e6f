"""Works of operations, against every stick that their steps touch, one by one."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
import torch

import torch_spyre
from torch_spyre._inductor import config
from torch_spyre.backend.formats import FORMAT_OF_NUMBER
from torch_spyre.backend.lower import lower
from torch_spyre.backend.read.bundle import read_bundle
from torch_spyre.backend.register_allocation import LOAD
from torch_spyre.backend.steps import Address, Matmul, Space, Tile
from torch_spyre.card_model.cost_model import price


def places(address: Address, core: int, extents, strides):
    """Addresses of the sticks at all points of a core."""
    start = address.offsets[core]
    return {
        start + sum(i * s for i, s in zip(point, strides))
        for point in product(*(range(e) for e in extents))
    }


def touched(step):
    """For each operand, in the order of the operation: whether it is written, and the bytes that
    all cores together touch."""
    result = []
    cores = range(step.cores)
    if isinstance(step, Tile):
        loads = [(i.a, False) for i in step.code if i.opcode == LOAD]
        stores = [(i.destination, True) for i in step.code if i.opcode == 1]
        for number, writes in loads + stores:
            operand = step.operands[number]
            kept = step.kept if writes and step.reductions else step.dims
            sticks = set()
            for core in cores:
                found = places(
                    operand.address, core, step.extents[core][:kept], operand.strides[:kept]
                )
                group = operand.sticks_per_group(step.lanes)
                sticks |= {at + g * operand.sub_stride for at in found for g in range(group)}
            result.append((writes, 128 * len(sticks)))
        return result
    assert isinstance(step, Matmul)
    for side, pick, writes in (
        (step.x, lambda m, n, k: (m, sticks_of(k, step.x)), False),
        (step.y, lambda m, n, k: (k, sticks_of(n, step.y)), False),
        (step.out, lambda m, n, k: (m, sticks_of(n, step.out)), True),
    ):
        sticks = set()
        for core in cores:
            *batch, m, n, k = step.extents[core]
            sticks |= places(side.address, core, (*batch, *pick(m, n, k)), side.strides)
        result.append((writes, 128 * len(sticks)))
    return result


def sticks_of(count, side):
    return -(-count // FORMAT_OF_NUMBER[side.format].per_stick)


def operations_of(function, *args):
    told = torch_spyre.explain(function, *args)
    return [op for directory in told.artifacts for op in read_bundle(directory).operations()]


def half(*shape):
    return torch.randn(*shape, dtype=torch.float16).to("spyre")


@pytest.mark.parametrize("cores", [1, 5, 32])
@pytest.mark.parametrize(
    "function, shapes",
    [
        (lambda x: torch.softmax(x, 0), [(96, 128)]),
        (lambda x: torch.softmax(x, -1), [(96, 200)]),
        (lambda x, y: torch.nn.functional.gelu(x + y), [(64, 320), (320,)]),
        (lambda x, y: x @ y, [(40, 130), (130, 192)]),
        (lambda x, y: x @ y, [(3, 40, 128), (3, 128, 64)]),
        (lambda x, y: x @ y, [(4, 32, 128), (128, 192)]),
        (lambda x: torch.nn.functional.layer_norm(x, (256,)), [(64, 256)]),
        (lambda x: x.float() * 2, [(64, 128)]),
    ],
)
def test_works_count_exactly_the_sticks_that_steps_touch(function, shapes, cores):
    with config.patch(cores=cores, lx_planning=False):  # LX is counted for each core
        torch._dynamo.reset()
        operations = operations_of(function, *(half(*s) for s in shapes))
    assert operations
    compared = 0
    for operation in operations:
        step = lower(operation)
        if not isinstance(step, (Tile, Matmul)):
            continue
        work = step.works[0]
        assert step.time_us == price(work).us > 0
        expected = [(f.writes, f.total_bytes) for f in work.flows]
        found = touched(step)
        if isinstance(step, Tile) and any(o.limits and max(o.limits) >= 0 for o in step.operands):
            continue  # parts of sticks are skipped: the walk is longer than the tensor
        assert found == expected, operation.name
        compared += 1
    assert compared


def test_what_is_in_a_scratchpad_counts_for_each_core():
    for operation in operations_of(lambda x, y: x + y, half(64, 64), half(64, 64)):
        step = lower(operation)
        assert all(a.address.space != Space.LX for a in step.operands)
        assert step.works[0].lx_bytes == 0
        assert step.works[0].read_bytes == 2 * prod((64, 64)) * 2


@pytest.mark.parametrize("scatters", [False, True])
def test_rows_by_index_cost_a_stick_for_each_point_and_not_their_table(scatters):
    """64 rows of 256 of a table of 4096: 4 sticks each, there and back, and 2 sticks of indices."""
    table, rows = half(4096, 256), torch.arange(0, 4096, 64).to("spyre")

    def function(table, rows, values):
        if scatters:
            return table.index_copy_(0, rows, values)
        return table.index_select(0, rows)

    torch._dynamo.reset()
    with config.patch(lx_planning=False):
        operations = operations_of(function, table, rows, half(64, 256))
    works = [lower(operation).works[0] for operation in operations]
    (work,) = [w for w in works if len(w.flows) == 3]
    expected = [64 * 4 * 128, 2 * 128, 64 * 4 * 128]
    assert [f.total_bytes for f in work.flows] == expected
    assert [f.writes for f in work.flows] == [False, False, True]
    anywhere = [all(axis.stride == 0 for axis in f.axes) for f in work.flows]
    assert anywhere == [not scatters, False, scatters], "rows of the table are no bursts"
