"""Wrapper codegen: the Python module that allocates tiled buffers, calls kernels, runs fallbacks.

What stock Inductor writes, with three differences: buffers on spyre get their layout and the index
of their card, kernels are SuperDSC kernels, and intermediates of kernels live in one pool.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.stream_utils import DEFAULT_STREAM, get_stream_name
from torch._inductor.virtualized import V

from torch_spyre._inductor.capture import backward_layouts
from torch_spyre._inductor.host import single_op
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre._inductor.layouts.stick_layouts import default_layout
from torch_spyre._inductor.operations.operation import Buffer
from torch_spyre._inductor.pipeline import plan_of
from torch_spyre._inductor.planning.plan import Kernel
from torch_spyre.on_card import is_spyre


class _SpyreLines:
    """Shared by the wrapper of a graph and that of a subgraph."""

    def make_buffer_allocation(self: Any, buffer: Any) -> str:
        device = buffer.get_device()
        if not is_spyre(device):
            return super().make_buffer_allocation(buffer)  # type: ignore[misc]
        name = buffer.get_name()
        planned = plan_of(V.graph).buffers.get(name)
        shape = self.codegen_python_shape_tuple(tuple(buffer.get_size()))
        stride = self.codegen_python_shape_tuple(tuple(buffer.get_stride()))
        layout = None if planned is None else planned.layout
        if planned is not None and layout is None:
            layout = default_layout(planned)
        maker = self.maker(shape, stride, buffer.get_dtype(), layout, device.index or 0)
        return f"{name} = {maker}()"

    def make_allocation(self: Any, name: str, device: Any, dtype: Any, shape: Any, stride: Any,
                        allocation_shape: Any = None, is_pinned: bool = False) -> str:  # fmt: skip
        if not is_spyre(device):
            return super().make_allocation(  # type: ignore[misc]
                name, device, dtype, shape, stride, allocation_shape, is_pinned
            )
        size = self.codegen_python_shape_tuple(tuple(shape))
        strides = self.codegen_python_shape_tuple(tuple(stride))
        return f"{name} = {self.maker(size, strides, dtype, None, device.index or 0)}()"

    def constant(self: Any, prefix: str, text: str) -> str:
        """A name in the module for what an expression gives; the same one for the same text."""
        known = _root(self).__dict__.setdefault("_spyre_constants", {}).setdefault(prefix, {})
        if text not in known:
            known[text] = f"{prefix}{len(known)}"
            _root(self).header.writeline(f"{known[text]} = {text}")
        return str(known[text])

    def layout_constant(self: Any, layout: Any) -> str:
        """A name in the module for a layout."""
        return "None" if layout is None else self.constant("layout", repr(layout))

    def maker(self: Any, size: str, stride: str, dtype: Any, layout: Any, index: int) -> str:
        """A name in the module for what makes tensors of a kind."""
        place = f"{self.layout_constant(layout)}, {index}"
        return self.constant("empty", f"spyre_output({size}, {stride}, {dtype}, {place})")

    def define_spyre_kernel(self: Any, name: str, text: str, kernel: Kernel) -> None:
        """The definition of a kernel: its OpSpecs and what it expects of its arguments."""
        arguments = []
        for buffer in kernel.arguments:
            size, stride = buffer.placed or (buffer.size, buffer.stride)
            layout = self.layout_constant(buffer.layout)
            arguments.append(f"    ArgumentSpec({layout}, {size}, {stride}, {buffer.written}),")
        constants = [f"({_number(b.value)}, {b.dtype})" for b in kernel.constants]
        body = "\n".join(
            [
                f"spyre_compile.sdsc({name!r}, '''\n{text}''',",
                "  arguments=[",
                *arguments,
                "  ],",
                f"  constants=[{', '.join(constants)}],",
                f"  pool_bytes={kernel.pool_bytes})",
            ]
        )
        self.define_kernel(name, body, gpu=False)

    def argument(self: Any, buffer: Buffer) -> str:
        """What is handed to a kernel for a buffer."""
        copy = buffer.hoisted
        if copy is None:
            return buffer.name
        layout = self.layout_constant(buffer.layout)
        view = f"{copy.size}, {copy.stride}, {copy.offset}"
        # One for each parameter: it remembers the copy of the tensor that it saw last.
        text = f"HoistedCopy({view}, {layout})  # of {copy.source.name}"
        return f"{self.constant('hoisted', text)}({copy.source.name})"

    def call_spyre_kernel(
        self: Any, name: str, kernel: Kernel, pool_bytes: int, comment: str
    ) -> None:
        """The call of a kernel."""
        device = kernel.nodes[0].get_device()
        index = 0 if device is None else device.index or 0
        arguments = [self.argument(b) for b in kernel.arguments]
        if kernel.pool_bytes:
            pool = f"_pool{index}" if index else "_pool"
            if kernel.stream:
                pool += f"_stream{kernel.stream}"  # kernels of two streams may run at once
            written = self.__dict__.setdefault("_spyre_pools", set())
            if pool not in written:
                written.add(pool)
                size, stride = f"({pool_bytes // 2},)", "(1,)"  # opaque bytes
                maker = self.maker(size, stride, torch.float16, None, index)
                self.writeline(f"{pool} = {maker}()")
            arguments.insert(0, pool)
        self.writeline(f"# {comment}")
        self.writeline(f"{name}.run({', '.join(arguments)})")


def _root(wrapper: Any) -> Any:
    while getattr(wrapper, "parent_wrapper", None) is not None:
        wrapper = wrapper.parent_wrapper
    return wrapper


def _number(value: Any) -> str:
    text = repr(value)
    return f"float('{text}')" if text in ("inf", "-inf", "nan") else text


class SpyreWrapperCodegen(_SpyreLines, PythonWrapperCodegen):
    """Host code of a graph."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: Any,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        if is_subgraph:
            assert subgraph_name is not None
            return SpyreSubgraphWrapperCodegen(subgraph_name, parent_wrapper, partition_signatures)
        return SpyreWrapperCodegen()

    def generate(self, is_inference: bool) -> Any:
        plan = plan_of(V.graph)
        debug_dir.record_graph(plan, plan.names)
        single_op.note_plan(plan)
        self._name_streams()
        if not is_inference and not V.graph.is_backward:
            self._write_places_of_outputs()
        return super().generate(is_inference)

    def _write_places_of_outputs(self) -> None:
        """For the backward graph that will be compiled next."""
        texts = []
        for place in backward_layouts.places_of_outputs(plan_of(V.graph).placed):
            if place is None:
                texts.append("None")
            else:
                layout, size, stride = place
                texts.append(f"({self.layout_constant(layout)}, {size}, {stride})")
        self.header.writeline(f"{backward_layouts.NAME} = [{', '.join(texts)}]")

    def _name_streams(self) -> None:
        """Inductor enters streams by names, which it defines where a device has a guard."""
        numbers = V.graph.scheduler.stream_idx_to_user_obj_idx
        if numbers:
            streams = [
                f"{get_stream_name(i)} = get_external_object_by_index({number})"
                for i, number in numbers.items()
            ]
            self.imports.writeline(
                "from torch._dynamo.graph_bytecode_inputs import get_external_object_by_index"
            )
            current = f"{DEFAULT_STREAM} = torch.spyre.current_stream()"
            self.lines[:0] = [current, *streams]

    def write_header(self) -> None:
        super().write_header()
        self.imports.splice(
            """
                from torch_spyre._C import DataFormats, ElementArrangement, SpyreTensorLayout
                from torch_spyre._C import _output as spyre_output
                from torch_spyre._inductor.host import async_compile as spyre_compile
                from torch_spyre._inductor.host.async_compile import ArgumentSpec, HoistedCopy
            """,
            strip=True,
        )


class SpyreSubgraphWrapperCodegen(_SpyreLines, SubgraphPythonWrapperCodegen):
    """Host code of a branch or loop body."""
