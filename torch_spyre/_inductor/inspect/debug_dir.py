"""What people can look at: records for `explain`, logs, and files of TORCH_COMPILE_DEBUG.

Beside Inductor's own files, in the debug directory of the graph:

    spyre/summary.txt               kernels and host steps in order
    spyre/stages/<stage>.txt        the program after each stage of the pipeline
    spyre/<kernel>/operations.txt   operations, their source lines and index expressions
                   layouts.txt      buffers, their layouts and places
                   restickifies.txt copies that layouts made necessary, with reasons
                   op_specs.py      what code generation got
                   sdsc_*.json      the bundle
                   bundle.mlir
                   program.txt      what the back-end made of it, and the device program
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch._inductor.virtualized import V

from torch_spyre._inductor import config, errors
from torch_spyre._inductor.capture import eager_operation
from torch_spyre._inductor.inspect import report
from torch_spyre._inductor.inspect.source_names import names_of, operations_of
from torch_spyre._inductor.operations.error_location import place_of, refuse
from torch_spyre._inductor.state import current
from torch_spyre.logs import get_logger

if TYPE_CHECKING:
    from torch_spyre._inductor.planning.plan import GraphPlan, Kernel

_log = get_logger("spyre.inductor")
_log_lowering = get_logger("spyre.inductor.lowering")
_log_stickify = get_logger("spyre.inductor.stickify")
_log_codegen = get_logger("spyre.inductor.codegen")


# ---- Records ------------------------------------------------------------------------------------


@dataclass
class KernelCall:
    """A call of a kernel in the host code."""

    name: str
    kernel: Kernel
    directory: str
    """The bundle."""


@dataclass
class Record:
    """What happened while something was compiled."""

    plans: list[GraphPlan] = field(default_factory=list)
    calls: list[KernelCall] = field(default_factory=list)


# All threads: a backward graph is compiled in one of autograd's.
_records: list[Record] = []
_lock = threading.Lock()


@contextlib.contextmanager
def listen() -> Iterator[Record]:
    """Record all compilations while the block runs."""
    record = Record()
    with _lock:
        _records.append(record)
    try:
        yield record
    finally:
        with _lock:
            _records.remove(record)


def _listeners() -> list[Record]:
    return _records if eager_operation.compiled() is None else []


@contextlib.contextmanager
def fresh_graphs() -> Iterator[dict[str, Any]]:
    """Options for Inductor without caches of whole graphs, when somebody wants to look.

    A graph from a cache has no plan, and Inductor writes no debug directory for it.
    """
    import torch._functorch.config
    import torch._inductor.config

    wanted = _records or torch._inductor.config.trace.enabled or config.print_after
    if not wanted:
        yield {}
        return
    functorch: Any = torch._functorch.config
    with functorch.patch(enable_autograd_cache=False):
        yield {"fx_graph_cache": False}


# ---- What happens -------------------------------------------------------------------------------

_Function = TypeVar("_Function", bound=Callable[..., None])


def _without_disk(function: _Function) -> _Function:
    """A full or read-only disk must not end a compilation that somebody looks at."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except OSError:
            _log.warning("no debug files: %s", traceback.format_exc())

    return wrapper  # type: ignore[return-value]


@_without_disk
def record_plan(plan: GraphPlan) -> None:
    """A graph was planned."""
    if _listeners():
        plan.graph_code = V.graph.module.code if V.graph.module is not None else ""
    for record in _listeners():
        record.plans.append(plan)
    for step in plan.fallbacks:
        shapes = ", ".join(step.shapes)
        _log_lowering.info("fallback %s %s: %s; at %s", step.op, shapes, step.reason, step.source)
    for buffer in plan.buffers.values():
        if buffer.layout is not None:
            layout = errors.describe_layout(buffer.layout)
            home = "pool" if buffer.name in plan.internal else "memory"
            _log_stickify.debug("layout of %s in %s: %s", buffer, home, layout)


@_without_disk
def record_graph(plan: GraphPlan, names: dict[int, str]) -> None:
    """The host code of a graph is complete."""
    directory = _debug_directory()
    if directory is not None:
        _write(directory / "summary.txt", report.summary(plan, names))


@_without_disk
def record_kernel(name: str, kernel: Kernel, text: str, bundle: str) -> None:
    """The call of a kernel was written."""
    for record in _listeners():
        record.calls.append(KernelCall(name, kernel, bundle))
    current().get(PlannedKernels)[text.strip()] = kernel
    _log_codegen.info(
        "kernel %s: %s, %s, %d bytes of pool", name,
        report.counted(len(kernel.operations), "operation"),
        report.counted(len(kernel.arguments), "argument"), kernel.pool_bytes,
    )  # fmt: skip
    if _log_codegen.isEnabledFor(10):
        for op, run in zip(kernel.operations, kernel.runs, strict=True):
            row = "  ".join(report.operation_row(op, run.spec))
            _log_codegen.debug("    %s; at %s", row, op.origin.source.partition(": ")[0])
    directory = _debug_directory()
    if directory is not None:
        folder = directory / name
        _write(folder / "operations.txt", report.operations(kernel))
        _write(folder / "layouts.txt", report.layouts(kernel))
        _write(folder / "restickifies.txt", report.restickifies(kernel))
        (folder / "op_specs.py").write_text(text)
        if (Path(bundle) / "bundle.mlir").is_file():
            _copy_bundle(Path(bundle), folder)


@_without_disk
def record_bundle(name: str, bundle: str, how: str) -> None:
    """The bundle of a kernel is there. `how` it came is for the log."""
    _log_codegen.info("bundle of %s, %s: %s", name, how, bundle)
    directory = _debug_directory()
    if directory is not None and not (directory / name / "program.txt").exists():
        _copy_bundle(Path(bundle), directory / name)


# ---- Files --------------------------------------------------------------------------------------


def _debug_directory() -> Path | None:
    """Where Inductor writes about the graph that is being compiled, if it does."""
    path = getattr(V.debug, "_path", None)
    return Path(path) / "spyre" if path else None


@_without_disk
def write_stage(name: str, lines: Callable[[], list[str]]) -> None:
    """The program after a stage of the pipeline."""
    directory = _debug_directory()
    if directory is not None:
        _write(directory / "stages" / f"{name}.txt", lines())


def _write(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def _copy_bundle(bundle: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(bundle.iterdir()):
        if file.is_file():
            shutil.copy(file, folder / file.name)
    _write(folder / "program.txt", _program(bundle))


def _program(bundle: Path) -> list[str]:
    """As `python -m torch_spyre.backend --disassemble` shows it."""
    from torch_spyre import backend
    from torch_spyre.backend.emit.spyrecode import read_spyrecode
    from torch_spyre.backend.report import describe_bundle, describe_steps, disassemble

    found = backend.read_bundle(bundle)
    lines = [*describe_bundle(found), ""]
    lines += [*describe_steps(backend.steps_of(found, fuse=config.backend_fusion)), ""]
    return [*lines, disassemble(read_spyrecode(bundle / backend.OUTPUT))]


# ---- Bundles that fail --------------------------------------------------------------------------


class PlannedKernels(dict[str, "Kernel"]):
    """Kernels of a compilation by the text of their OpSpecs, which is all that host code has."""


def known_names(text: str) -> dict[str, Any] | None:
    """What tensors of the kernel with these OpSpecs are called and which lines its operations come
    from, if this compilation has planned it."""
    kernel = current().get(PlannedKernels).get(text.strip())
    return None if kernel is None else names_of(kernel)


def refuse_bundle(name: str, text: str, work: Path, problem: Exception) -> Exception:
    """A refusal for a bundle that cannot be made, with the operation it is about."""
    from torch_spyre._inductor.codegen.bundle import FailedOperation

    files = sorted(work.glob("sdsc_*.json"))
    named = re.match(r"sdsc_(\d+)\.json", str(problem))
    number = int(named[1]) if named else -1  # a file has the number of its first operation
    if isinstance(problem, FailedOperation) and isinstance(problem.__cause__, Exception):
        number, problem = problem.index, problem.__cause__
    kernel = current().get(PlannedKernels).get(text.strip())
    known = [] if kernel is None else operations_of(kernel)
    place = errors.Place(f"kernel {name}")
    if 0 <= number < len(known):
        place = place_of(known[number])
    directory = _debug_directory()
    if directory is not None:
        folder = directory / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in (*files, *work.glob("bundle.mlir")):
            shutil.copy(file, folder / file.name)
    return refuse(problem, lambda: place)
