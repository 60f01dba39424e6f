"""The plan of each kernel: loops, cores, scratchpads, memory, addresses.

In: a Planning with layouts. Out: the same, each kernel with OpSpecs that have all decisions made.
One function a stage; `pipeline.py` has their order.

    tile -> divide (with scratchpads) -> place_pool -> replicate_layers -> bind
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._inductor.virtualized import V

from torch_spyre._inductor import config
from torch_spyre._inductor.errors import Unsupported
from torch_spyre._inductor.hints import warn_of_unnamed
from torch_spyre._inductor.layouts.stick_layouts import default_layout
from torch_spyre._inductor.layouts.to_op_spec import buffers_of, make_spec, symbol_of
from torch_spyre._inductor.lowering import repeated_layers
from torch_spyre._inductor.operations.error_location import located, place_of_kernel
from torch_spyre._inductor.operations.operation import Buffer, Operation
from torch_spyre._inductor.operations.split import constant_of
from torch_spyre._inductor.opspec.op_spec import LoopSpec, OpSpec
from torch_spyre._inductor.planning.device_addresses import Pool, assign_addresses, lives_of
from torch_spyre._inductor.planning.divide_and_place import plan_kernel
from torch_spyre._inductor.planning.division import hints
from torch_spyre._inductor.planning.op_cost import Content
from torch_spyre._inductor.planning.plan import Kernel, Planning
from torch_spyre._inductor.planning.repeat_layers import Inside, with_left_out
from torch_spyre._inductor.planning.tiling import automatic, hinted, oversized
from torch_spyre._inductor.planning.tiling.loops import (
    Homes,
    Item,
    Loop,
    Node,
    OuterSizes,
    items_of,
    with_runs,
    with_wide_tensors,
)
from torch_spyre.constants import SEGMENT_BYTES, SEGMENTS
from torch_spyre.hardware import CARD

# ---- 1. loops ------------------------------------------------------------------------------------


def tile(planning: Planning) -> None:
    """Put operations into loops: those that the program asks for, or those that the compiler finds
    worthwhile."""
    for kernel in planning.plan.kernels:
        kernel.tree = _in_loops(kernel, planning)
        if config.chunk_large_tensors:
            kernel.tree = oversized.chunked(kernel.tree, planning.is_argument)
        kernel.numbers = _arguments(kernel.tree, planning)
        kernel.homes = Homes(kernel.tree, kernel.numbers)


def _in_loops(kernel: Kernel, planning: Planning) -> list[Node]:
    specs = [_spec(op) for op in kernel.operations]
    if _hints_hold("num_tiles_per_dim", (op.origin.tiles for op in kernel.operations), planning):
        names = [planning.dim_names(op) for op in kernel.operations]

        def constant(dtype: torch.dtype, value: float) -> Buffer:
            buffer = constant_of(planning.constants, dtype, value)
            if buffer.layout is None:
                buffer.layout = default_layout(buffer)
            return buffer

        return hinted.resolve(kernel.operations, specs, names, constant, planning.is_argument)
    items = [Item(op, spec) for op, spec in zip(kernel.operations, specs)]
    if config.own_tiling and config.lx_planning and config.work_division == "joint":
        return automatic.loops(items, planning.is_argument)
    return [*items]


def _hints_hold(
    argument: str, found: Iterable[tuple[tuple[str, Any], ...]], planning: Planning
) -> bool:
    """Whether there are hints that count: not where no dimension of the graph has a name."""
    said = [hint for hint in dict.fromkeys(found) if hint]
    if config.ignore_hints or not said:
        return False
    if planning.has_dim_names():
        return True
    for hint in said:
        warn_of_unnamed(f"{argument}={dict(hint)}")
    return False


@located
def _spec(op: Operation) -> OpSpec:
    return op.spec if op.spec is not None else make_spec(op)


def _arguments(nodes: Sequence[Node], planning: Planning) -> dict[Buffer, int]:
    """What a kernel is called with, numbered: tensors in the order of their first use, then
    constants."""
    found: dict[Buffer, int] = {}
    for item in items_of(nodes):
        for buffer in buffers_of(item.op):
            if buffer not in found and planning.is_argument(buffer):
                found[buffer] = 0
    tensors = [b for b in found if not b.is_constant]
    constants = [b for b in found if b.is_constant]
    return {buffer: i for i, buffer in enumerate((*tensors, *constants))}


# ---- 2. cores and scratchpads --------------------------------------------------------------------


def divide(planning: Planning) -> None:
    """Divide the work of each operation over the cores, and choose what stays in scratchpads."""
    for kernel in planning.plan.kernels:
        _divide(kernel, planning)


def _divide(kernel: Kernel, planning: Planning) -> None:
    homes = kernel.homes
    assert homes is not None

    def planned(run: list[Item]) -> list[Item]:
        """A run with its division over cores, what stays in scratchpads, and its loops."""
        operations = [item.op for item in run]
        specs = _in_memory(run, homes, kernel.numbers)
        sources = [item.source or item.op for item in run]
        specs, is_hinted = _hinted(operations, specs, sources, planning)
        part = plan_kernel(operations, specs, homes.shared(run), is_hinted)
        kernel.lx.update(part.lx)
        sizes = OuterSizes(run, homes)
        return [sizes.restored(op, spec, part.lx) for op, spec in zip(part.operations, part.specs)]

    kernel.tree = with_runs(kernel.tree, planned)


def _hinted(
    operations: Sequence[Operation],
    specs: Sequence[OpSpec],
    sources: Sequence[Operation],
    planning: Planning,
) -> tuple[list[OpSpec], list[bool]]:
    """Operations with the slices that the program asks for; and whether it does. `sources` are
    those before they were cut into tiles."""
    if not _hints_hold("work_div", (op.origin.hints for op in operations), planning):
        return list(specs), [False] * len(specs)
    symbols = [
        {symbol_of(op, v): name for v, name in planning.dim_names(source).items()}
        for op, source in zip(operations, sources, strict=True)
    ]
    return hints.resolve(operations, specs, symbols, config.cores, CARD.span_bytes)


def _in_memory(run: Sequence[Item], homes: Homes, arguments: Collection[Buffer]) -> list[OpSpec]:
    """Operations as if all of them were in memory, addresses still missing. Those that had one spec
    still have one, and equal ones are one: what is found out about it holds for all layers."""
    known: dict[tuple[int, tuple[bool, ...]], tuple[OpSpec, OpSpec]] = {}
    equal: dict[tuple[Content, tuple[bool, ...]], OpSpec] = {}
    specs = []
    for item in run:
        spec = with_wide_tensors(item, homes, CARD.span_bytes)
        is_argument = tuple([buffer in arguments for buffer in buffers_of(item.op)])
        key = (id(spec), is_argument)
        if key not in known:
            args = [
                replace(arg, allocation={"hbm" if outside else "pool": 0})
                for arg, outside in zip(spec.args, is_argument, strict=True)
            ]
            fresh = replace(spec, args=args)
            other = equal.setdefault((Content(fresh), is_argument), fresh)
            known[key] = spec, other if other == fresh else fresh
        specs.append(known[key][1])
    return specs


# ---- 3. device memory ----------------------------------------------------------------------------


def place_pool(planning: Planning) -> None:
    """Addresses of the intermediates that lie in device memory."""
    for kernel in planning.plan.kernels:
        assert kernel.homes is not None
        lives = lives_of(kernel.tree, kernel.homes, {*kernel.numbers, *kernel.lx})
        pool = assign_addresses(lives)
        kernel.pool_bytes, kernel.pool = pool.bytes, pool.addresses


# ---- 4. equal layers -----------------------------------------------------------------------------


def replicate_layers(planning: Planning) -> None:
    """Replicate the plan of the second layer for the layers that were not lowered."""
    found = repeated_layers.of(V.graph)
    if found is None:
        return
    for kernel in planning.plan.kernels:
        kernel.tree = _whole(kernel, kernel.tree, found, planning)
        kernel.numbers = _arguments(kernel.tree, planning)
    if all(kernel.repetition is None for kernel in planning.plan.kernels):
        raise repeated_layers.RestartLowering("no kernel has the second layer")


def _whole(
    kernel: Kernel, nodes: list[Node], found: repeated_layers.Repeats, planning: Planning
) -> list[Node]:
    """The operations with those of the replicated layers, if they are this kernel's."""

    def address(buffer: Buffer) -> tuple[str, int]:
        in_lx = kernel.lx.get(buffer)
        return ("pool", kernel.pool[buffer]) if in_lx is None else ("lx", in_lx)

    def put(buffer: Buffer, at: tuple[str, int]) -> None:
        space, byte = at
        (kernel.lx if space == "lx" else kernel.pool)[buffer] = byte

    inside = Inside(planning.is_argument, address, put, planning.find)
    nodes, kernel.repetition = with_left_out(nodes, found, inside)
    if kernel.repetition is not None:
        _check_order(kernel, found, planning)
        again = [
            e for e in kernel.restickifies if found.place_of(e.node)[0] == repeated_layers.SECOND
        ]
        kernel.restickifies += again * kernel.repetition.times
    return nodes


def _check_order(kernel: Kernel, found: repeated_layers.Repeats, planning: Planning) -> None:
    """Inputs of replicated layers must be written after the kernel, or at its end: the scheduler
    does not know that these layers read them."""
    inputs = {other for names in found.inputs for other in names.values()}
    position = {node: i for i, node in enumerate(planning.scheduler.nodes)}
    real = planning.scheduler.mutation_real_name
    for node in planning.scheduler.nodes:
        if planning.plan.kernel_of.get(node.get_name()) is kernel:
            continue  # in a kernel, operations are in the order of layers
        names = {name for output in node.get_outputs() for name in output.get_mutations()}
        changed = inputs.intersection(real.get(name, name) for name in names)
        if changed and position[node] < position[kernel.nodes[-1]]:
            raise repeated_layers.RestartLowering(
                f"{sorted(changed)} change before the kernel has read them"
            )


# ---- 5. addresses --------------------------------------------------------------------------------


def bind(planning: Planning) -> None:
    """OpSpecs with the places of their tensors, in their loops."""
    for kernel in planning.plan.kernels:
        kernel.operations = [item.op for item in items_of(kernel.tree)]
        kernel.arguments = [b for b in kernel.numbers if not b.is_constant]
        kernel.constants = [b for b in kernel.numbers if b.is_constant]
        _check_segments(kernel, list(kernel.numbers))
        pool = Pool(kernel.pool, kernel.pool_bytes)
        kernel.specs = _specs(kernel.tree, kernel.numbers, kernel.lx, pool)
        kernel.tree, kernel.homes = [], None


def _specs(
    nodes: Sequence[Node], arguments: dict[Buffer, int], lx: dict[Buffer, int], pool: Pool
) -> list[OpSpec | LoopSpec]:
    """All operations with the places of their tensors, in their loops."""
    return [
        LoopSpec(node.count, [*_specs(node.body, arguments, lx, pool)])
        if isinstance(node, Loop)
        else _with_addresses(node, arguments, lx, pool)
        for node in nodes
    ]


def _with_addresses(
    item: Item, arguments: dict[Buffer, int], lx: dict[Buffer, int], pool: Pool
) -> OpSpec:
    """The operation with the places of its tensors."""
    args = []
    for arg, buffer, begin in zip(item.spec.args, buffers_of(item.op), item.begins, strict=True):
        if buffer in lx:
            args.append(replace(arg, arg_index=-1, allocation={"lx": lx[buffer]}))
        elif buffer in arguments:
            number = arguments[buffer]
            segment = number + 1 if pool.bytes else number
            at = segment * SEGMENT_BYTES + begin
            args.append(replace(arg, arg_index=number, allocation={"hbm": at}))
        else:
            at = pool.addresses[buffer] + begin
            args.append(replace(arg, arg_index=-1, allocation={"pool": at}))
    return replace(item.spec, args=args)


def _check_segments(kernel: Kernel, arguments: list[Buffer]) -> None:
    count = len(arguments) + (1 if kernel.pool_bytes else 0)
    if not config.symbolic_args and count > SEGMENTS:
        raise Unsupported(
            f"a bundle with concrete addresses has at most {SEGMENTS} tensors, this one {count}"
            + (", the pool included" if kernel.pool_bytes else ""),
            hint="leave BUNDLE_SYMBOLIC_ARGS at 1, or set SPYRE_INDUCTOR_ENABLE_FUSION=0: then "
            "each node is a bundle of its own",
        ).at(place_of_kernel(kernel.operations, arguments))
