"""Dumps of the program after each stage of the pipeline.

SPYRE_PRINT_AFTER=stickify,bind prints it after these stages; in a debug directory
(TORCH_COMPILE_DEBUG=1) it is written after every stage, as `spyre/stages/<form>_<stage>.txt`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torch_spyre._inductor import config
from torch_spyre._inductor.inspect.debug_dir import write_stage
from torch_spyre._inductor.operations.operation import Operation
from torch_spyre._inductor.opspec import text
from torch_spyre._inductor.planning.plan import Kernel, Planning
from torch_spyre._inductor.planning.tiling.loops import Loop, Node


def after(stage: str, takes: str, program: Any) -> None:
    """A stage has run."""
    if stage in config.print_after.split(","):
        print(f"---- after {stage} ({takes}) ----")
        print("\n".join(lines_of(program)))
    write_stage(f"{takes.replace(' ', '_')}_{stage}", lambda: lines_of(program))


def lines_of(program: Any) -> list[str]:
    """A program in any of the forms that stages take."""
    if isinstance(program, torch.fx.Graph):
        return str(program.python_code("self").src).splitlines()
    if isinstance(program, Planning):
        kernels = enumerate(program.plan.kernels)
        return [line for number, kernel in kernels for line in _kernel(number, kernel)]
    return [str(item) for item in program]


def _kernel(number: int, kernel: Kernel) -> Iterator[str]:
    yield f"kernel {number}: {len(kernel.operations)} operations"
    if kernel.specs:
        yield from text.dump(kernel.specs).splitlines()
    elif kernel.tree:
        yield from _tree(kernel.tree, 1)
    else:
        yield from (f"  {_operation(op)}" for op in kernel.operations)


def _tree(nodes: list[Node], depth: int) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Loop):
            yield f"{'  ' * depth}loop of {node.count}:"
            yield from _tree(node.body, depth + 1)
        else:
            slices = {str(s): n for s, (_, n) in node.spec.iteration_space.items() if n > 1}
            yield f"{'  ' * depth}{_operation(node.op)}  slices {slices}"


def _operation(op: Operation) -> str:
    ranges = {str(v): n for v, n in op.ranges.items()}
    inputs = ", ".join(map(repr, (*op.inputs, *op.gather.values())))
    layout = op.output.buffer.layout
    lies = "" if layout is None else f" as {list(layout.device_size)} / {list(layout.stride_map)}"
    return f"{op.opfunc} {ranges} {inputs} -> {op.output!r}{lies}"
