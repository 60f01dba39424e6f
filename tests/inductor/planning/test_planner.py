"""The planner's stages on plans built by hand: arguments, segments, pool, loops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.operations import P, buffer, matmul, pointwise, reduction
from torch_spyre._inductor import config
from torch_spyre._inductor.errors import Unsupported
from torch_spyre._inductor.operations.operation import Buffer, Operation
from torch_spyre._inductor.operations.split import constant_of
from torch_spyre._inductor.opspec.loops import runs_of
from torch_spyre._inductor.opspec.op_spec import LoopSpec, OpSpec
from torch_spyre._inductor.planning import planner, validate
from torch_spyre._inductor.planning.op_cost import slices_of
from torch_spyre._inductor.planning.plan import GraphPlan, Kernel, Planning
from torch_spyre._inductor.planning.scratchpad.lifetimes import budget
from torch_spyre._inductor.planning.tiling.loops import Loop, items_of

p0, p1, *_ = P
GIB_16 = 1 << 34


def planning(operations: list[Operation], internal: tuple[str, ...] = ()) -> Planning:
    buffers = {a.buffer.name: a.buffer for op in operations for a in (*op.inputs, op.output)
               if not a.buffer.is_constant}  # fmt: skip
    node: Any = SimpleNamespace(get_name=lambda: "op0", get_device=lambda: None)
    scheduler: Any = SimpleNamespace(mutation_real_name={}, nodes=[node])
    kernel = Kernel(nodes=[node], operations=operations)
    return Planning(scheduler, GraphPlan([kernel], {}, buffers, set(internal)))


def planned(operations: list[Operation], *internal: str) -> Kernel:
    """The stages of the planner, and what they leave."""
    made = planning(operations, internal)
    for stage in (planner.tile, planner.divide, planner.place_pool, planner.bind):
        stage(made)
    validate.check_op_specs(made)
    (kernel,) = made.plan.kernels
    return kernel


def specs_of(kernel: Kernel) -> list[OpSpec]:
    return [run.spec for run in runs_of(kernel.specs)]


def chain(n: int = 1024) -> tuple[list[Operation], dict[str, Buffer]]:
    """b = exp(a), c = sqrt(b) + b"""
    named = {name: buffer(name, (n, n), 1) for name in "abdc"}
    a, b, d, c = named.values()
    size = (n, n)
    return [pointwise("exp", [a], b, size), pointwise("sqrt", [b], d, size),
            pointwise("add", [d, b], c, size)], named  # fmt: skip


# ---- Arguments -----------------------------------------------------------------------------------


def test_arguments_are_numbered_in_the_order_of_their_first_use_constants_behind_them() -> None:
    a, b, c, d = (buffer(name, (64, 128), 1) for name in "abcd")
    two = constant_of({}, torch.float16, 2.0)
    two.layout = buffer("two", (), -1).layout
    ops = [pointwise("mul", [b, (two, 0)], c, (64, 128)), pointwise("add", [c, a], d, (64, 128))]
    kernel = planned(ops, "c")
    assert kernel.arguments == [b, a, d] and kernel.constants == [two]
    first, last = specs_of(kernel)
    assert [x.arg_index for x in first.args] == [0, 3, -1]
    assert [x.arg_index for x in last.args] == [-1, 1, 2]


def test_a_buffer_of_the_graph_is_an_argument_unless_it_is_internal() -> None:
    ops, named = chain(64)
    made = planning(ops, ("b",))
    is_argument = {name: made.is_argument(b) for name, b in named.items()}
    assert is_argument == {"a": True, "b": False, "d": True, "c": True}
    assert not made.is_argument(buffer("a copy", (64, 64), 1))


# ---- Addresses -----------------------------------------------------------------------------------


def addresses(kernel: Kernel) -> list[dict[str, int]]:
    return [arg.allocation for spec in specs_of(kernel) for arg in spec.args]


def test_each_argument_is_a_segment_of_16_gib() -> None:
    ops, _ = chain(64)
    with config.patch(lx_planning=False):
        kernel = planned(ops)
    assert not kernel.pool_bytes
    numbers = [[a.arg_index for a in s.args] for s in specs_of(kernel)]
    assert numbers == [[0, 1], [1, 2], [2, 1, 3]]
    assert addresses(kernel) == [{"hbm": n * GIB_16} for spec in numbers for n in spec]


def test_with_a_pool_the_arguments_move_up_by_one_segment() -> None:
    ops, named = chain(64)
    with config.patch(lx_planning=False):
        kernel = planned(ops, "b", "d")
    size = 64 * 128
    assert kernel.pool_bytes == 2 * size and set(kernel.pool) == {named["b"], named["d"]}
    assert sorted(kernel.pool.values()) == [0, size]
    exp, _, add = specs_of(kernel)
    assert exp.args[0].allocation == {"hbm": GIB_16} and add.args[-1].allocation == {
        "hbm": 2 * GIB_16
    }
    assert exp.args[1].allocation == {"pool": kernel.pool[named["b"]]}


def test_seven_concrete_segments_are_all_there_are() -> None:
    tensors = [buffer(f"x{i}", (64, 64), 1) for i in range(8)]
    size = (64, 64)
    ops = [pointwise("exp", [tensors[i]], tensors[i + 1], size) for i in range(0, 8, 2)]
    with config.patch(symbolic_args=False, lx_planning=False):
        with pytest.raises(Unsupported, match="at most 7 tensors, this one 8"):
            planned(ops)
        planned(ops[:3])
        a, b, c = chain(64)[0]
        more = [*ops[:2], a, b, c]  # 4 of the first two, a and c of the others, and the pool: 7
        planned(more, "b", "d")
        with pytest.raises(Unsupported, match="the pool included"):
            planned([*ops[:3], a, b, c], "b", "d")
    planned(ops)


# ---- Scratchpads and cores -----------------------------------------------------------------------


def test_what_lives_inside_of_a_kernel_stays_in_scratchpads() -> None:
    ops, named = chain()
    kernel = planned(ops, "b", "d")
    assert not kernel.pool_bytes and {named["b"], named["d"]} <= set(kernel.lx)
    for spec in specs_of(kernel):
        assert slices_of(spec) and all("pool" not in a.allocation for a in spec.args)
    for buffer_, address in kernel.lx.items():
        size = buffer_.elements * 2 // 32
        assert address % 128 == 0 and address + size <= budget(config.lx_reserved)


def test_no_work_is_divided_over_more_cores_than_there_are() -> None:
    x, y, z = buffer("x", (512, 512), 1), buffer("y", (512, 512), 1), buffer("z", (512, 512), 1)
    for cores in (1, 4, 32):
        with config.patch(cores=cores):
            (spec,) = specs_of(planned([matmul(x, y, z, 512, 512, 512)]))
        used = 1
        for n in slices_of(spec).values():
            used *= n
        assert used <= cores and (cores == 1 or used > 1)


# ---- Loops ---------------------------------------------------------------------------------------


def softmax(rows: int, columns: int) -> list[Operation]:
    """The steps of a softmax over columns; e, s and d live inside."""
    x, e, d, y = (buffer(n, (rows, columns), 1) for n in "xedy")
    s = buffer("s", (rows,), -1)
    size = (rows, columns)
    return [pointwise("exp", [x], e, size), reduction("sum", e, s, (rows,), columns),
            pointwise("realdiv", [e, (s, p0)], d, size),
            pointwise("abs", [d], y, size)]  # fmt: skip


def test_what_does_not_fit_is_computed_in_a_loop_and_what_fits_is_not() -> None:
    with config.patch(cores=32, lx_reserved=0.9):
        (loop,) = planned(softmax(8192, 512), "e", "s", "d").specs
        assert isinstance(loop, LoopSpec) and loop.count > 1
        assert not any(isinstance(s, LoopSpec) for s in planned(softmax(512, 512), "e", "s",
                                                               "d").specs)  # fmt: skip


@pytest.mark.parametrize(
    "settings", [{"own_tiling": False}, {"lx_planning": False}, {"work_division": "documented"}]
)
def test_each_switch_leaves_the_operations_without_loops(settings: dict[str, object]) -> None:
    with config.patch(cores=32, lx_reserved=0.9, **settings):
        made = planning(softmax(8192, 512), ("e", "s", "d"))
        planner.tile(made)
    assert not any(isinstance(node, Loop) for node in made.plan.kernels[0].tree)


def test_a_tile_moves_over_arguments_and_not_over_what_lives_inside() -> None:
    with config.patch(cores=32, lx_reserved=0.9):
        kernel = planned(softmax(8192, 512), "e", "s", "d")
    for spec in specs_of(kernel):
        for arg in spec.args:
            assert arg.per_tile_fixed == (arg.arg_index < 0)


def test_operations_that_share_a_spec_still_share_one_when_they_are_in_memory() -> None:
    """What is found out about it is found out once for all layers."""
    size = (128, 128)
    names = [buffer(f"x{i}", size, 1) for i in range(5)]
    ops = [pointwise("exp", [names[i]], names[i + 1], size) for i in range(4)]
    made = planning(ops, ("x1", "x2", "x3"))
    planner.tile(made)
    kernel = made.plan.kernels[0]
    assert kernel.homes is not None
    specs = planner._in_memory(list(items_of(kernel.tree)), kernel.homes, kernel.numbers)
    places = [[next(iter(a.allocation)) for a in s.args] for s in specs]
    assert places == [["hbm", "pool"], ["pool", "pool"], ["pool", "pool"], ["pool", "hbm"]]
    assert specs[1] is specs[2] and len({id(s) for s in specs}) == 3
