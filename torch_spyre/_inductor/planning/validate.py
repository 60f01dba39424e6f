"""Validator of plans, run after the stages that make them (`pipeline.py`, SPYRE_VALIDATE=1).

In: a Planning. Out: nothing, or BrokenRule with the node, the rule, what was found and what is
allowed. The rules of OpSpecs by themselves are in opspec/validate.py.

Example: `buf3: layout of a buffer: found none for buf2, allowed one for every buffer`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch_spyre import _C, opfuncs
from torch_spyre._inductor.layouts.requirements import needs
from torch_spyre._inductor.operations.operation import Access, Operation
from torch_spyre._inductor.opspec.validate import validate_op_spec
from torch_spyre._inductor.planning.plan import Kernel, Planning
from torch_spyre.validation import BrokenRule

KINDS = ("pointwise", "reduction", "matmul", "copy", "gather", "scatter", "topk")


def check_operations(planning: Planning) -> None:
    """After splitting: each operation is one OpFunc over symbols that it has."""
    for op in _operations(planning):
        _check_opfunc(op)
        _check_symbols(op)
    _check_order(planning)


def check_layouts(planning: Planning) -> None:
    """After stickify: each buffer has a layout of its type, and each operation can use them."""
    check_operations(planning)
    for op in _operations(planning):
        for access in _accesses(op):
            _check_layout(op, access)
        if op.kind != "copy":  # a copy moves sticks by itself: it may be the restickify
            left = needs(op, {})
            if left:
                raise _broken(op, "layouts suit", [n.why for n in left], "no copy is missing")


def check_op_specs(planning: Planning) -> None:
    """After planning: OpSpecs are whole, and addresses lie in what is allocated."""
    for kernel in planning.plan.kernels:
        for spec in kernel.specs:
            validate_op_spec(spec)
        _check_counts(kernel)


def _operations(planning: Planning) -> Iterator[Operation]:
    return (op for kernel in planning.plan.kernels for op in kernel.operations)


def _accesses(op: Operation) -> tuple[Access, ...]:
    return (*op.inputs, *op.gather.values(), op.output)


def _broken(op: Operation, rule: str, found: object, allowed: object) -> BrokenRule:
    return BrokenRule(rule, f"{op.origin.node}, {op.opfunc}", found, allowed)


def _check_opfunc(op: Operation) -> None:
    if op.opfunc not in opfuncs.OPFUNCS:
        raise _broken(op, "OpFunc", op.opfunc, "a row of the OpFunc table")
    if op.kind not in KINDS:
        raise _broken(op, "kind", op.kind, ", ".join(KINDS))


def _check_symbols(op: Operation) -> None:
    wrong = {str(v): n for v, n in op.ranges.items() if n < 1}
    if wrong:
        raise _broken(op, "sizes of the iteration space", wrong, "1 or more")
    unknown = [v for v in op.reduced if v not in op.ranges]
    if unknown:
        raise _broken(op, "reduced symbols", unknown, list(op.ranges))
    for access in _accesses(op):
        foreign = access.index.free_symbols - {*op.ranges, *op.gather}
        if foreign:
            allowed = [*op.ranges, *op.gather]
            raise _broken(op, f"symbols of the index of {access.buffer.name}", foreign, allowed)
    kept = {v for v in op.output.index.free_symbols if v in op.reduced}
    if kept:
        raise _broken(op, "symbols of a result", kept, "kept ones")


def _check_order(planning: Planning) -> None:
    """What lives inside of a kernel is written before it is read."""
    for kernel in planning.plan.kernels:
        written: set[str] = set()
        for op in kernel.operations:
            for access in (*op.inputs, *op.gather.values()):
                name = access.buffer.name
                if name in planning.plan.internal and name not in written:
                    raise _broken(op, "order of operations", f"{name} is read first", "after it")
            written.add(op.output.buffer.name)


def _check_layout(op: Operation, access: Access) -> None:
    buffer = access.buffer
    if buffer.layout is None:
        raise _broken(op, "layout of a buffer", f"none for {buffer.name}", "one for every buffer")
    stored = _C.get_device_dtype(buffer.dtype)
    if buffer.layout.device_dtype != stored:
        raise _broken(op, f"format of {buffer.name}", buffer.layout.device_dtype, stored)


def _check_counts(kernel: Kernel) -> None:
    where = f"kernel of {kernel.nodes[0].get_name()}"
    if len(kernel.runs) != len(kernel.operations):
        count = f"{len(kernel.operations)}, one for each operation"
        raise BrokenRule("number of OpSpecs", where, len(kernel.runs), count)
    for run in kernel.runs:
        for number, arg in enumerate(run.spec.args):
            at = arg.allocation.get("pool")
            if at is not None and not 0 <= at < kernel.pool_bytes:
                place = f"{where}, operation {run.spec.op}, tensor {number}"
                raise BrokenRule("address in the pool", place, at, f"below {kernel.pool_bytes}")
