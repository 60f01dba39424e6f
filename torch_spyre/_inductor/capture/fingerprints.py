"""The identity of the compiler and of what users added to it, for the keys of caches."""

from __future__ import annotations

import functools
import hashlib
import types
from functools import cache
from pathlib import Path
from typing import Any

from torch_spyre.cache.keys import settings, source_hash

__all__ = ["fingerprint", "is_foreign", "settings", "source_hash"]

PACKAGE = "torch_spyre"


# ---- Functions that users added -----------------------------------------------------------------


def is_foreign(function: Any) -> bool:
    """Whether a function does not belong to this package."""
    module = getattr(function, "__module__", None) or ""
    return module != PACKAGE and not module.startswith(PACKAGE + ".")


def fingerprint(function: Any) -> str:
    """A hash of a function, stable across processes, which changes with its code.

    Covers the file it stands in, its code, defaults, and numbers and functions it closes over. An
    object may say what it is with a method `uuid`, as Inductor's own passes do. What a function
    reads from elsewhere while it runs is not seen.
    """
    return _hash(*_parts(function, set()))


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _parts(value: Any, seen: set[int]) -> list[str]:
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, functools.partial):
        return [
            *_parts(value.func, seen),
            *(p for argument in value.args for p in _parts(argument, seen)),
            *(p for k, v in sorted(value.keywords.items()) for p in (k, *_parts(v, seen))),
        ]
    if callable(getattr(value, "uuid", None)) and not isinstance(value, type):
        return [repr(value.uuid())]
    if isinstance(value, types.MethodType):
        return _parts(value.__func__, seen)
    if isinstance(value, types.FunctionType):
        parts = [value.__module__ or "", value.__qualname__, _file_hash(value.__code__.co_filename)]
        parts += _code_parts(value.__code__)
        for cell in value.__closure__ or ():
            parts += _parts(cell.cell_contents, seen)
        for default in (value.__defaults__ or (), sorted((value.__kwdefaults__ or {}).items())):
            parts += _parts(tuple(default), seen)
        return parts
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *(p for v in value for p in _parts(v, seen))]
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return [repr(value)]
    kind = value if isinstance(value, type) else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    call = getattr(kind, "__call__", None)  # noqa: B004
    if isinstance(call, types.FunctionType):
        return [name, *_parts(call, seen)]
    text = repr(value)
    return [name] if " at 0x" in text else [name, text]


def _code_parts(code: types.CodeType) -> list[str]:
    parts = [code.co_code.hex(), repr(code.co_names), repr(code.co_varnames)]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            parts += _code_parts(constant)
        elif isinstance(constant, frozenset):
            parts.append(repr(sorted(map(repr, constant))))
        else:
            parts.append(repr(constant))
    return parts


@cache
def _file_hash(path: str) -> str:
    file = Path(path)
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
