"""`torch_spyre.explain(fn, *args)`: compiles a function and reports every decision.

    >>> e = torch_spyre.explain(model, x)
    >>> print(e)            # kernels, operations, copies, fallbacks and graph breaks
    >>> e.fallbacks         # []: everything runs on the card
    >>> e.artifacts         # the bundle directories

The function is recompiled, specialised on the shapes of these arguments, and called once: its side
effects happen once. A backward pass inside of it counts too.

What the caller compiled before stays as it is. Dynamo keeps a further entry for the function, apart
from the caller's (`isolate_recompiles`); caches of whole graphs are neither read nor written;
bundles on disk are, as always. Compilations of other threads that happen meanwhile are
counted as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch_spyre._inductor.inspect.cost_report import OperandCost
    from torch_spyre._inductor.inspect.debug_dir import Record
    from torch_spyre._inductor.layouts.restickify import Restickify


@dataclass(frozen=True)
class Op:
    """One operation on the card."""

    graph: int
    kernel: int
    """Number of the kernel call in its graph."""
    opfunc: str
    aten: str
    shape: tuple[int, ...]
    """Sizes that the result has, one for each dimension with more than one element."""
    reduced: tuple[int, ...]
    """Sizes that are reduced."""
    formats: tuple[str, ...]
    """Of the inputs, then of the output."""
    layouts: tuple[str, ...]
    """The same: device_size / stride_map."""
    cores: int
    source: str
    reason: str
    """Why the compiler added it; empty for what the program asked for."""
    splits: dict[str, int] = field(default_factory=dict)
    """Slices of each dimension that is cut."""
    operands: tuple[OperandCost, ...] = ()
    """Its tensors: where they are, and the bytes that move."""
    device_time_us: float = 0.0
    """Modelled."""
    bound: str = ""
    """What takes longest: compute, memory, lx, ring or start."""
    ring_bytes: int = 0
    loops: tuple[int, ...] = ()
    """How often the loops around it run, outermost first. Shapes are those of one iteration, bytes
    and time those of all."""

    @property
    def hbm_bytes(self) -> int:
        """Between device memory and cores."""
        return sum(o.bytes for o in self.operands if o.place == "memory")

    @property
    def lx_bytes(self) -> int:
        """Between cores and their scratchpads."""
        return sum(o.bytes for o in self.operands if o.place == "lx")


@dataclass(frozen=True)
class Fallback:
    """A step that the host does."""

    graph: int
    op: str
    shapes: tuple[str, ...]
    """Of the inputs."""
    reason: str
    source: str
    kernels_before: int
    """How many kernel calls of the graph come before it."""


@dataclass(frozen=True)
class GraphBreak:
    """A place where Dynamo ended a graph."""

    reason: str
    source: str
    details: str = ""
    """All that Dynamo says about it."""


@dataclass
class Explanation:
    """How a function was compiled. Prints as a table."""

    graphs: list[str] = field(default_factory=list)
    """The code of each graph that was compiled for the card."""
    ops: list[Op] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    graph_breaks: list[GraphBreak] = field(default_factory=list)
    restickifies: list[Restickify] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)
    """Bundle directories."""
    kernels: list[tuple[int, str, str]] = field(default_factory=list)
    """Calls of kernels in order: graph, name, bundle directory."""
    hint: str = ""
    """What to do when there is nothing to tell."""
    result: Any = None
    """What the function returned."""
    compulsory_bytes: int = 0
    """What every plan of these kernels moves: inputs once, outputs once."""

    @property
    def hbm_bytes(self) -> int:
        """Between device memory and cores, in one run of each kernel call."""
        return sum(op.hbm_bytes for op in self.ops)

    @property
    def lx_bytes(self) -> int:
        """Between cores and their scratchpads."""
        return sum(op.lx_bytes for op in self.ops)

    @property
    def device_time_us(self) -> float:
        """Modelled time of all operations and launches."""
        from torch_spyre.card_model.cost_model import launch_us

        return sum(op.device_time_us for op in self.ops) + len(self.kernels) * launch_us()

    def draw(
        self, path: str | Path | None = None, parts: Sequence[str] = ("time", "cores", "lx")
    ) -> str:
        """A picture of the plan as SVG: the time line and the cores of each operation, and what is
        where in the scratchpads, or some of these `parts`. Written to `path` when one is given."""
        from torch_spyre.show.plan_picture import draw

        ratio = self.hbm_bytes / self.compulsory_bytes if self.compulsory_bytes else 0.0
        moved, compulsory = _megabytes(self.hbm_bytes), _megabytes(self.compulsory_bytes)
        title = (
            f"{self.device_time_us:.1f} us modelled; {moved} between device memory and cores, "
            f"{ratio:.2f} times the compulsory {compulsory}"
        )
        picture = draw(self.ops, title, parts)
        if path is not None:
            Path(path).write_text(picture)
        return picture

    def _traffic(self) -> str:
        ratio = self.hbm_bytes / self.compulsory_bytes if self.compulsory_bytes else 0.0
        return (
            f"{self.hbm_bytes} bytes of device memory, {ratio:.2f}x of the compulsory "
            f"{self.compulsory_bytes}, {self.lx_bytes} bytes of LX"
        )

    def __str__(self) -> str:
        from torch_spyre._inductor.inspect.report import counted

        counts = [
            counted(len(self.graphs), "graph"),
            counted(len(self.kernels), "kernel"),
            counted(len(self.ops), "operation"),
            counted(len(self.restickifies), "restickify"),
            counted(len(self.fallbacks), "fallback"),
            counted(len(self.graph_breaks), "graph break"),
        ]
        lines = [", ".join(counts)]
        if self.ops:
            lines += [f"on the card: {self.device_time_us:.2f} us modelled", f"  {self._traffic()}"]
        if self.hint:
            lines.append(self.hint)
        for graph in range(len(self.graphs)):
            lines += ["", f"graph {graph}", *self._graph_lines(graph)]
        lines += self._restickify_lines() + self._break_lines()
        if self.artifacts:
            lines += ["", "bundles"]
            for artifact in self.artifacts:
                lines += [f"  {artifact}", *_sharing(artifact)]
        return "\n".join(lines)

    def _graph_lines(self, graph: int) -> list[str]:
        """Kernels, operations under their source lines, and host steps, in order."""
        from torch_spyre._inductor.inspect.report import source_text, table

        numbers = [i for i, op in enumerate(self.ops) if op.graph == graph]
        texts = table([_row(i, self.ops[i]) for i in numbers], "      ")
        names = [name for g, name, _ in self.kernels if g == graph]
        steps = [f for f in self.fallbacks if f.graph == graph]
        lines: list[str] = []
        for call in range(len(names) + 1):
            for step in (s for s in steps if s.kernels_before == call):
                lines.append(f"  host: {step.op}  {' '.join(step.shapes)}".rstrip())
                lines += [f"    {source_text(step.source)}", f"      because {step.reason}"]
            if call == len(names):
                break
            lines.append(f"  kernel {names[call]}")
            previous = None
            for i, text in zip(numbers, texts):
                if self.ops[i].kernel != call:
                    continue
                if self.ops[i].source != previous:
                    previous = self.ops[i].source
                    lines.append(f"    {source_text(previous)}")
                lines.append(text)
        return lines

    def _restickify_lines(self) -> list[str]:
        from torch_spyre._inductor.inspect.report import source_text

        lines = ["", "restickifies"] if self.restickifies else []
        for r in self.restickifies:
            lines += [
                f"  {r.buffer}, {r.elements} elements: {r.reason}",
                f"    {source_text(r.source)}",
                f"    {r.source_layout} -> {r.target_layout}",
            ]
        return lines

    def _break_lines(self) -> list[str]:
        from torch_spyre._inductor.inspect.report import shorten, source_text

        lines = ["", "graph breaks"] if self.graph_breaks else []
        for b in self.graph_breaks:
            lines += [f"  {source_text(b.source)}", f"    {shorten(b.reason, 200)}"]
        return lines


def _size(count: int) -> str:
    """`1.5M` for bytes, in powers of 1024."""
    for unit in ("", "K", "M"):
        if count < 1024:
            return f"{count:.3g}{unit}"
        count /= 1024  # type: ignore[assignment]
    return f"{count:.3g}G"


def _row(number: int, op: Op) -> tuple[str, ...]:
    from torch_spyre._inductor.inspect.cost_report import loops_text
    from torch_spyre._inductor.inspect.report import aten_text, counted, formats_text, shape_text

    why = f"added: {op.reason}" if op.reason else aten_text(op.aten)
    shape = shape_text(op.shape, op.reduced)
    cores = counted(op.cores, "core").rjust(8)
    splits = " ".join(f"{name}/{count}" for name, count in op.splits.items())
    places = "".join("L" if o.place == "lx" else "M" for o in op.operands)
    cost = f"{op.device_time_us:.1f} us {op.bound}"
    return (
        f"{number:>2}", f"{loops_text(op.loops)}{op.opfunc}", shape, cores, splits, places,
        _size(op.hbm_bytes), cost, formats_text(op.formats), why,
    )  # fmt: skip


def _sharing(bundle: str) -> list[str]:
    """How operations share files, if they do: those of repeated layers."""
    text = Path(bundle, "bundle.mlir").read_text() if Path(bundle, "bundle.mlir").is_file() else ""
    runs = text.count("sdscbundle.sdsc_execute ")
    files = len(set(re.findall(r'sdsc_filename="([^"]*)"', text)))
    return [f"    {runs} operations in {files} sdsc files"] if files < runs else []


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compile `function`, call it with the arguments, and report what was compiled."""
    if not callable(function):
        raise TypeError(f"explain() takes a function and its arguments, got {function!r}")
    # Dynamo must not be imported by `import torch_spyre`.
    from torch._dynamo import output_graph

    from torch_spyre._inductor.inspect import debug_dir

    def backend(gm: Any, inputs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(gm, inputs)

    first = len(output_graph.graph_break_reasons)
    with debug_dir.listen() as record:
        # A backend of its own: nothing that Dynamo compiled for another one is taken.
        options: Any = {"backend": backend, "dynamic": False, "isolate_recompiles": True}
        compiled = torch.compile(_uncompiled(function), **options)
        value = compiled(*args, **kwargs)
    explanation = Explanation(result=value)
    _add_plans(explanation, record)
    for reason in output_graph.graph_break_reasons[first:]:
        found = _graph_break(reason)
        if found not in explanation.graph_breaks:
            explanation.graph_breaks.append(found)
    if not record.plans:
        explanation.hint = (
            "No graph with spyre tensors was compiled. Move the arguments and the model to the "
            'card with .to("spyre"), or look at the graph breaks.'
        )
    return explanation


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under torch.compile; the module under `module.compile()`."""
    while True:
        inner = getattr(function, "_orig_mod", None)
        if inner is None:
            inner = getattr(function, "_torchdynamo_orig_callable", None)
        if inner is None:
            break
        function = inner
    if isinstance(function, torch.nn.Module) and function._compiled_call_impl is not None:
        return function._call_impl
    return function


def _graph_break(reason: Any) -> GraphBreak:
    details = str(reason.reason).strip()
    lines = [line.strip() for line in details.splitlines()]
    said = next((x for x in lines if x.startswith("Explanation: ")), "")
    text = said.removeprefix("Explanation: ") or lines[0]
    source = ""
    if reason.user_stack:
        frame = reason.user_stack[-1]
        source = f"{frame.filename}:{frame.lineno}: {frame.line}"
    return GraphBreak(text, source, details)


def _add_plans(explanation: Explanation, record: Record) -> None:
    from torch_spyre._inductor.errors import describe_layout
    from torch_spyre._inductor.inspect.cost_report import compulsory_bytes, costs
    from torch_spyre._inductor.inspect.report import cores_of, sizes_of
    from torch_spyre._inductor.layouts.to_op_spec import buffers_of

    for graph, plan in enumerate(record.plans):
        explanation.graphs.append(plan.graph_code)
        own = [call for call in record.calls if any(call.kernel is k for k in plan.kernels)]
        for number, call in enumerate(own):
            kernel = call.kernel
            explanation.kernels.append((graph, call.name, call.directory))
            if call.directory not in explanation.artifacts:
                explanation.artifacts.append(call.directory)
            explanation.restickifies += kernel.restickifies
            found = costs(kernel)
            explanation.compulsory_bytes += compulsory_bytes(kernel, found)
            for op, run, cost in zip(kernel.operations, kernel.runs, found, strict=True):
                spec = run.spec
                kept, reduced = sizes_of(op)
                explanation.ops.append(
                    Op(
                        graph=graph,
                        kernel=number,
                        opfunc=op.opfunc,
                        aten=op.origin.aten,
                        shape=kept,
                        reduced=reduced,
                        formats=tuple(arg.device_dtype.name for arg in spec.args),
                        layouts=tuple(describe_layout(b.layout) for b in buffers_of(op)),
                        cores=cores_of(spec),
                        source=op.origin.source,
                        reason=op.reason,
                        splits=cost.splits,
                        operands=cost.operands,
                        device_time_us=cost.us,
                        bound=cost.bound,
                        ring_bytes=cost.ring_bytes,
                        loops=cost.loops,
                    )
                )
        written = [any(call.kernel is k for call in own) for k in plan.kernels]
        for step in plan.fallbacks:
            before = sum(written[: step.kernels_before])
            explanation.fallbacks.append(
                Fallback(graph, step.op, step.shapes, step.reason, step.source, before)
            )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
