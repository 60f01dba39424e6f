"""CPU fallbacks: reporting them, and registering more.

The C++ boxed path runs every operation without a kernel for the device on the host, counts it and
calls `warn_fallback` once per operation. `register_fallback` is the same for a custom operator
whose own function must not see spyre tensors:

    @register_fallback(torch.ops.mylib.median_of_integers)
    def median_of_integers(x): return x.median()          # x is a CPU tensor

`register_fallback_default([torch.ops.mylib.a, torch.ops.mylib.b])` is that for operators whose own
CPU kernels do it.

Silence the warnings with `torch.spyre.set_fallback_warning(False)`, SPYRE_FALLBACK_WARN=0, or a
filter for `FallbackWarning`.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_spyre import _C
from torch_spyre.logs import get_logger
from torch_spyre.on_card import is_on_card, is_spyre

_log = get_logger("spyre.execution")


class FallbackWarning(UserWarning):
    """An operation on spyre tensors was computed on the host."""


def warn_fallback(
    op: str, why: str, to_host: int, to_card: int, milliseconds: float, frames: int = 1
) -> None:
    """Warn that an operation falls back: why, and what the call cost that was just computed. The
    runtime calls it, once per operation. `frames` of Python lie between here and the caller's."""
    text = (
        f"{op} is falling back to cpu: {why}. This call copied {_bytes(to_host)} to the host and "
        f"{_bytes(to_card)} back and took {milliseconds:.3g} ms. Further calls are counted in "
        "torch.spyre.fallback_counts(); torch.spyre.set_fallback_warning(False) silences this"
    )
    _log.info("%s", text)
    warnings.warn(text, FallbackWarning, stacklevel=frames + 1)


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1e3:.3g} kB" if count < 1e6 else f"{count / 1e6:.3g} MB"


def fallback_counts() -> dict[str, int]:
    """How often each operation ran on the host since the last reset, most frequent first."""
    with _registered_lock:
        counts = Counter(_C.fallback_counts()) + _registered_counts
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def reset_fallback_counts() -> None:
    """Forget the counts. Operations that were warned about are not warned about again."""
    _C.reset_fallback_counts()
    with _registered_lock:
        _registered_counts.clear()


def get_fallback_warning() -> bool:
    """Whether fallbacks warn."""
    return _C.get_fallback_warning()


def set_fallback_warning(enabled: bool) -> None:
    """Switch the warnings on or off."""
    _C.set_fallback_warning(enabled)


# ---- Custom operators ---------------------------------------------------------------------------

_registered_lock = threading.Lock()
_registered_counts: Counter[str] = Counter()
_warned: set[str] = set()
_libraries: dict[str, torch.library.Library] = {}
"""Kept alive: a registration ends with its library."""


def register_fallback(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compute an operator on the host when its tensors are on spyre, with the decorated function.

    `op` is an operator (`torch.ops.mylib.name`, with or without its overload) or what
    `torch.library.custom_op` returns. The function gets CPU copies and returns CPU tensors; what
    the schema says is written is copied back. Calls are counted and reported like every other
    fallback, also inside of compiled graphs.
    """
    overload = _overload(op)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            return _run_on_host(overload, function, args, kwargs)

        library = _libraries.get(overload.namespace)
        if library is None:
            library = torch.library.Library(overload.namespace, "FRAGMENT")
            _libraries[overload.namespace] = library
        library.impl(overload, run, "PrivateUse1")
        return function

    return register


def register_fallback_default(ops: Any) -> None:
    """Compute operators on the host with their own CPU kernels when their tensors are on spyre.

    `ops` is one operator or several. Those of ATen have that already, or a program for the card:
    naming one changes nothing.
    """
    several = isinstance(ops, Iterable) and not isinstance(ops, torch._ops.OpOverloadPacket)
    for op in list(ops) if several else [ops]:
        overload = _overload(op)
        if overload.namespace != "aten":
            register_fallback(overload)(overload)


def _overload(op: Any) -> torch._ops.OpOverload:
    op = getattr(op, "_opoverload", op)  # of a CustomOpDef
    if isinstance(op, torch._ops.OpOverloadPacket):
        names = op.overloads()
        if len(names) != 1:
            raise ValueError(f"{op} has several overloads, name one of: {', '.join(names)}")
        op = getattr(op, names[0])
    if not isinstance(op, torch._ops.OpOverload):
        raise TypeError(
            f"a fallback is for an operator such as torch.ops.mylib.name.default, got {op!r}"
        )
    return op


def _count(op: torch._ops.OpOverload) -> bool:
    """Count a call. True for the first one that is to be warned about."""
    name = op.name().removesuffix(".default")
    with _registered_lock:
        _registered_counts[name] += 1
        first = name not in _warned and get_fallback_warning()
        if first:
            _warned.add(name)
    return first


def _run_on_host(
    op: torch._ops.OpOverload, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    first = _count(op)
    begin = time.perf_counter()
    twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    device: torch.device | None = None
    to_card = 0

    def to_host(value: Any) -> Any:
        nonlocal device
        if is_on_card(value):
            device = value.device
            if id(value) not in twins:  # the same tensor twice is the same copy twice
                twins[id(value)] = (value, value.cpu())
            return twins[id(value)][1]
        if isinstance(value, torch.device) and is_spyre(value):
            device = value
            return torch.device("cpu")
        return value

    host_args, host_kwargs = pytree.tree_map(to_host, (args, kwargs))
    result = function(*host_args, **host_kwargs)
    for original in _written(op, args, kwargs):
        original.copy_(twins[id(original)][1])
        to_card += original.nbytes

    def to_device(value: Any) -> Any:
        nonlocal to_card
        if isinstance(value, torch.Tensor) and value.device.type == "cpu":
            to_card += value.nbytes
            return value.to(device)
        return value

    results = pytree.tree_map(to_device, result)
    if first:
        read = sum(original.nbytes for original, _ in twins.values())
        name = op.name().removesuffix(".default")
        took = (time.perf_counter() - begin) * 1e3
        warn_fallback(name, "it is registered to run there", read, to_card, took, frames=3)
    return results


def _written(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Spyre tensors among the arguments that the schema says are written."""
    found = []
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            found += [t for t in pytree.tree_leaves(value) if is_on_card(t)]
    return found
