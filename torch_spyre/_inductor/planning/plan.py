"""The plan of a graph: which nodes become which kernels, with which layouts and addresses.

`Planning` is the mutable state that the planning stages share; `GraphPlan` is their result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch._inductor.scheduler import BaseSchedulerNode, Scheduler
from torch._inductor.virtualized import V

from torch_spyre._inductor.layouts.restickify import Restickify
from torch_spyre._inductor.lowering.fallback_rules import HostStep
from torch_spyre._inductor.operations.operation import Buffer, Operation
from torch_spyre._inductor.opspec import text
from torch_spyre._inductor.opspec.loops import Run, runs_of
from torch_spyre._inductor.opspec.op_spec import LoopSpec, OpSpec
from torch_spyre._inductor.planning.graph_buffers import make_buffer
from torch_spyre._inductor.planning.named_dims import propagate
from torch_spyre._inductor.planning.repeat_layers import Repetition
from torch_spyre._inductor.planning.tiling.loops import Homes, Node


@dataclass
class Kernel:
    """A bundle: the operations of a stretch of nodes."""

    nodes: list[BaseSchedulerNode] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    arguments: list[Buffer] = field(default_factory=list)
    constants: list[Buffer] = field(default_factory=list)
    specs: list[OpSpec | LoopSpec] = field(default_factory=list)
    """The operations with all decisions made. Those in loops are in LoopSpecs."""
    pool_bytes: int = 0
    pool: dict[Buffer, int] = field(default_factory=dict)
    """Addresses in the pool."""
    lx: dict[Buffer, int] = field(default_factory=dict)
    """Addresses in the scratchpads of what stays there."""
    repetition: Repetition | None = None
    """Operations that stand for several layers."""
    tree: list[Node] = field(default_factory=list)
    """The operations in their loops, while they are planned."""
    homes: Homes | None = None
    """Where the tensors of the tree live, before anything of it is placed."""
    numbers: dict[Buffer, int] = field(default_factory=dict)
    """What the kernel is called with, numbered."""
    restickifies: list[Restickify] = field(default_factory=list)
    stream: int = 0
    """Inductor's number of the stream on which the program wants it; 0: the current one."""

    @property
    def runs(self) -> list[Run]:
        """The OpSpec of each operation, with the loops around it."""
        return runs_of(self.specs)

    @property
    def place(self) -> tuple[torch.device | None, int]:
        """The card and the stream on which it runs."""
        return (self.nodes[0].get_device() if self.nodes else None, self.stream)

    def text(self) -> str:
        """The OpSpecs as Python."""
        return text.dump(self.specs)


@dataclass
class GraphPlan:
    """All kernels of a graph."""

    kernels: list[Kernel]
    kernel_of: dict[str, Kernel]
    """By the name of the scheduler's node."""
    buffers: dict[str, Buffer]
    internal: set[str]
    """Buffers that live inside of one kernel and are never allocated."""
    fallbacks: list[HostStep] = field(default_factory=list)
    """Steps that the host does."""
    graph_code: str = ""
    names: dict[int, str] = field(default_factory=dict)
    """Names of kernels in the host code, by their id; known once they are written."""

    real_names: Mapping[str, str] = field(default_factory=dict)
    """Of what is mutated, by the names that Inductor gives to mutations."""

    @property
    def pool_bytes(self) -> int:
        return max((k.pool_bytes for k in self.kernels), default=0)

    def placed(self, name: str) -> Buffer | None:
        """The buffer that begins with what has this name, with its layout; None: not known."""
        name = self.real_names.get(name, name)
        if name not in self.buffers and name in V.graph.graph_inputs:
            return make_buffer(name)
        return self.buffers.get(name)


@dataclass
class Planning:
    """The plan of a graph while it is made."""

    scheduler: Scheduler
    plan: GraphPlan
    constants: dict[tuple[str, Any], Buffer] = field(default_factory=dict)
    _dim_names: dict[Operation, dict[sympy.Symbol, str]] | None = None

    def is_argument(self, buffer: Buffer) -> bool:
        """Whether a kernel gets a buffer from outside."""
        if buffer.is_constant or buffer.hoisted is not None:
            return True
        return buffer.name in self.plan.buffers and buffer.name not in self.plan.internal

    def find(self, name: str) -> Buffer:
        """The buffer of a name; names of mutations are those of what is mutated."""
        name = self.scheduler.mutation_real_name.get(name, name)
        if name not in self.plan.buffers:
            self.plan.buffers[name] = make_buffer(name)
        return self.plan.buffers[name]

    def dim_names(self, op: Operation) -> Mapping[sympy.Symbol, str]:
        """Names of the symbols of an operation; what the compiler added has none."""
        return self._names_by_operation().get(op, {})

    def has_dim_names(self) -> bool:
        """Whether any dimension of the graph has a name."""
        return any(self._names_by_operation().values())

    def _names_by_operation(self) -> dict[Operation, dict[sympy.Symbol, str]]:
        if self._dim_names is None:
            operations = [op for k in self.plan.kernels for op in k.operations]
            self._dim_names = dict(zip(operations, propagate(operations), strict=True))
        return self._dim_names
