"""Eager operations on the card: finds or compiles the program of a single operation.

The kernel of an operation (csrc/eager/eager.cpp) looks its program up by what it is called with.
On a miss it calls `resolve`, which looks on disk and otherwise compiles the operation, as
`torch.compile` would. The result may also be a CPU fallback, which is memoised in the same way. A
hit on disk imports nothing of Inductor.

    >>> torch.spyre.reset_eager_counts()
    >>> y = x + 1
    >>> torch.spyre.eager_counts()
    {'aten::add.Tensor': 1}
"""

from __future__ import annotations

import contextvars
import hashlib
import itertools
import json
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch._C._dynamo import eval_frame as _dynamo

from torch_spyre import _C
from torch_spyre.cache.keys import (
    bundle_root,
    bundle_store,
    compiler_config,
    quick_source_hash,
    settings,
)
from torch_spyre.constants import CODE_DIRECTORY, DEVICE_NAME
from torch_spyre.logs import get_logger

_log = get_logger("spyre.execution")

FORMAT = 2
"""Of the entries on disk."""

counters: dict[str, int] = {"compiled": 0, "loaded": 0, "left_to_host": 0}
"""Signatures that this process has compiled, loaded from disk, and left to the host."""

_lock = threading.Lock()
_bundles: dict[Path, bool] = {}
"""Bundles of loaded programs, and whether they use the pool."""


# ---- For users ----------------------------------------------------------------------------------


def eager_counts() -> dict[str, int]:
    """How often each eager operation ran on the card since the last reset, most frequent first."""
    counts: dict[str, int] = _C._eager_counts()
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def reset_eager_counts() -> None:
    """Reset the counters."""
    _C._reset_eager_counts()


def get_eager() -> str:
    """Where eager operations run that the card has programs for: "card" or "host"."""
    return "card" if _C._eager_on_card() else "host"


def set_eager(place: str) -> None:
    """Run eager operations on the card, or all of them by way of the host."""
    if place not in ("card", "host"):
        raise ValueError(f"eager operations run on the 'card' or the 'host', not on {place!r}")
    _C._set_eager_on_card(place == "card")


# ---- For the kernel of an operation -------------------------------------------------------------


def resolve(
    name: str,
    overload: str,
    arguments: list[Any],
    inputs: list[Any],
    classes: list[int],
    device: int,
) -> tuple[_C._EagerProgram | None, str, bool]:
    """The program of a call, or None and why the host computes it; and whether to remember that.

    `arguments` are those of the operation; a tuple with a number stands for one of the `inputs`:
    tensors on the card, and numbers that the program takes as operands. `classes`: how large the
    integers among them are."""
    if _is_compiling():
        return None, "a graph is being compiled", False  # constants that the compiler works out
    _watch_settings()
    operation = f"{name}.{overload}" if overload else name
    with _lock:
        signature = describe(operation, arguments, inputs, classes)
        key = entry_key(signature)
        entry = read_entry(key, signature)
        if entry is not None:
            try:
                program = load(entry, device)
            except RuntimeError as problem:
                if str(bundle_root()) not in str(problem):
                    raise  # memory, not the files: those may be trimmed at any time
                _log.warning("%s is compiled again: %s", operation, problem)
            else:
                counters["loaded"] += 1
                return program, entry.get("host", ""), True
        entry = _compile(operation, arguments, inputs, classes, device)
        if entry is None:  # the host says what is wrong with them
            return None, "wrong arguments", False
        counters["compiled"] += 1
        if entry.pop("keep", True):
            write_entry(key, {**entry, "format": FORMAT, "signature": signature})
        if "host" in entry:
            counters["left_to_host"] += 1
            _log.info("%s is computed by the host: %s", operation, entry["host"])
        return load(entry, device), entry.get("host", ""), True


# Between the graphs of a function that Dynamo compiles in pieces, operations are eager: it would
# trace what the runtime calls here, too. Set by hand, as torch._dynamo takes seconds to import.
_dynamo.set_code_exec_strategy(
    resolve.__code__,
    _dynamo._FrameExecStrategy(_dynamo._FrameAction.SKIP, _dynamo._FrameAction.SKIP),
)


def describe(operation: str, arguments: list[Any], inputs: list[Any], classes: list[int]) -> str:
    """All that a program depends on, as text."""
    forms = [
        f"{t.dtype} {tuple(t.shape)} {t.stride()} {t.storage_offset()} {_C._get_placement(t)}"
        if isinstance(t, torch.Tensor)
        else "number"
        for t in inputs
    ]
    return f"{operation} {arguments} {forms} {classes}"


# ---- Settings of the compiler -------------------------------------------------------------------

_epochs: dict[tuple[Any, ...], int] = {}
_numbers = itertools.count(1)
_epoch: contextvars.ContextVar[int | None] = contextvars.ContextVar("epoch", default=None)
"""Of this context, which has settings of its own; None: not known since they were changed. It is
asked for in each call: comparing all settings takes five times as long as the rest of a call."""
_watched = False


def find_epoch() -> int:
    """A number for the settings as they are now, 0 for those of the environment."""
    epoch = _epochs.setdefault(settings(), next(_numbers))
    _epoch.set(epoch)
    return epoch


def _watch_settings() -> None:
    """Programs are valid for the settings that they were compiled with. Until a process changes
    those of the environment, no comparison is needed."""
    global _watched
    if _watched:
        return
    _watched = True
    config: Any = compiler_config()
    defaults = {name: entry.default for name, entry in config._config.items()}
    _epochs[tuple(sorted((n, repr(v)) for n, v in defaults.items()))] = 0
    if find_epoch() != 0:
        _C._ask_for_eager_epoch(_epoch)
    kind: Any = type(config)
    stock = kind.__setattr__

    def watched(self: Any, name: str, value: Any) -> None:
        stock(self, name, value)
        _epoch.set(None)
        _C._ask_for_eager_epoch(_epoch)

    kind.__setattr__ = watched


def _extensions() -> tuple[Any, ...]:
    """What users have added to the compiler; nothing as long as it is not loaded."""
    hooks = sys.modules.get("torch_spyre._inductor.host.inductor_hooks")
    return () if hooks is None else hooks.extensions()


# ---- Entries on disk ----------------------------------------------------------------------------

PROGRAM = "program.json"
TABLES = "tables.pt"
"""The values of an entry's tables."""


def entry_key(signature: str) -> str:
    """A hash of all that an entry is made from."""
    what = repr((signature, quick_source_hash(), settings(), _extensions()))
    return hashlib.sha256(what.encode()).hexdigest()


def read_entry(key: str, signature: str) -> dict[str, Any] | None:
    """An entry whose kernels are all there; None otherwise: it is compiled again."""
    directory = bundle_store().find(_name(key), key)
    if directory is None:
        return None
    try:
        entry: dict[str, Any] = json.loads((directory / PROGRAM).read_bytes())
    except OSError:  # gone by now
        return None
    if entry["format"] != FORMAT or entry["signature"] != signature:
        return None
    kernels = entry.get("kernels", ())
    if not all(bundle_store().find(*kernel["bundle"]) for kernel in kernels):
        return None
    if entry.get("tables"):
        try:
            tables = torch.load(directory / TABLES, weights_only=True)
        except OSError:
            return None
        for table, values in zip(entry["tables"], tables, strict=True):
            table["values"] = values
    return entry


def write_entry(key: str, entry: dict[str, Any]) -> None:
    """A disk that cannot be written costs the next process a compilation."""

    tables = entry.get("tables", ())
    forms = [{"form": table["form"]} for table in tables]

    def fill(work: Path) -> None:
        (work / PROGRAM).write_text(json.dumps({**entry, "tables": forms}))
        if tables:
            torch.save([table["values"] for table in tables], work / TABLES)

    try:
        bundle_store().publish(_name(key), key, fill)
    except OSError as problem:
        _log.warning("programs of eager operations are not kept: %s", problem)


def _name(key: str) -> str:
    return f"eager_{key[:24]}"


# ---- Programs -----------------------------------------------------------------------------------


def load(entry: dict[str, Any], device: int) -> _C._EagerProgram | None:
    """The program of an entry, ready on a card; None for one that the host computes."""
    if "host" in entry:
        return None
    calls = []
    for kernel in entry["kernels"]:
        code = _code(kernel)
        _bundles[code.parent] = kernel["pool"]
        if _C._is_sanitizing() or _C._settings()["sanitize"]:
            _write_checks(code.parent, kernel["pool"])
        with torch.spyre.device(device):  # type: ignore[attr-defined]
            plan = _C.prepare_kernel(str(code))
        constants = [(value, _dtype(name)) for value, name in kernel["constants"]]
        calls.append((plan, kernel["arguments"], constants))
    inputs = [
        (
            _dtype(given["number"]) if "number" in given else None,
            _form(given["relaid"]) if "relaid" in given else None,
            given.get("written", False),
        )
        for given in entry["inputs"]
    ]
    made = [_form(form) for form in entry["made"]]
    tables = [_table(table, device) for table in entry["tables"]]
    return _C._EagerProgram(device, inputs, made, tables, calls, entry["results"])


def _table(table: dict[str, Any], device: int) -> torch.Tensor:
    size, stride, dtype, layout = _form(table["form"])
    tensor: torch.Tensor = _C._output(size, stride, dtype, layout, device)()
    tensor.as_strided(table["values"].shape, stride).copy_(table["values"])
    return tensor


def _code(kernel: dict[str, Any]) -> Path:
    return bundle_root() / str(kernel["bundle"][0]) / CODE_DIRECTORY


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype


def _form(form: list[Any]) -> tuple[Any, ...]:
    size, stride, dtype, layout = form
    if layout is not None:
        device_size, stride_map, device_dtype, arrangement = layout
        layout = _C.SpyreTensorLayout(
            device_size,
            stride_map,
            getattr(_C.DataFormats, device_dtype),
            getattr(_C.ElementArrangement, arrangement),
        )
    return size, stride, _dtype(dtype), layout


def write_checks_of_all() -> None:
    """The sanitizer is switched on: for the programs that are loaded."""
    with _lock:
        known = dict(_bundles)
    for bundle, pool in known.items():
        if bundle.is_dir():
            _write_checks(bundle, pool)


def _write_checks(bundle: Path, pool: bool) -> None:
    from torch_spyre import backend

    fuse = compiler_config().backend_fusion
    backend.write_checks(bundle, str(bundle / CODE_DIRECTORY), fuse=fuse, pool=pool)


# ---- Compiling ----------------------------------------------------------------------------------


class _Thread(threading.local):
    compiles = False


_thread = _Thread()


def _is_compiling() -> bool:
    """Whether this thread is inside of a compilation."""
    if _thread.compiles:
        return True
    if torch._guards.TracingContext.try_get() is not None:
        return True
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    return dynamo is not None and dynamo.compile_lock._is_owned()


def _compile(
    operation: str, arguments: list[Any], inputs: list[Any], classes: list[int], device: int
) -> dict[str, Any] | None:
    """In a thread of its own: the caller is in the middle of an operation, with modes, excluded
    dispatch keys and whatever else PyTorch keeps by thread. Settings of the compiler go along."""
    outcome: list[Any] = []

    def work() -> None:
        _thread.compiles = True
        try:
            from torch_spyre._inductor.host import single_op

            with torch.spyre.device(device):  # type: ignore[attr-defined]
                outcome.append(
                    single_op.compile_operation(operation, arguments, inputs, classes, device)
                )
        except BaseException as problem:  # handed to the thread that waits
            outcome.append(problem)

    _log.info("%s is compiled for the card", operation)
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name=f"{DEVICE_NAME} eager")
    thread.start()
    thread.join()
    found: Any = outcome[0]
    if isinstance(found, BaseException):
        raise found
    return found
