"""Printer and parser of OpSpecs: a Python list of constructors, one tensor per line.

In: OpSpecs, LoopSpecs, UnimplementedOps. Out: deterministic text, and the parser for it. Generated
wrappers and debug directories contain it, and it is a cache key. Parsed symbols have no
assumptions, which nothing depends on.

Example: `parse(dump([op])) == [op]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

import sympy

from torch_spyre._C import DataFormats
from torch_spyre._inductor.opspec.loops import Spec
from torch_spyre._inductor.opspec.op_spec import (
    IndirectAccess,
    LoopSpec,
    OpSpec,
    TensorArg,
    UnimplementedOp,
)

_MOST_KNOWN = 16
_known: dict[str, list[Spec]] = {}
"""What was written last, by its text: who compiles a graph reads the text of its kernels next."""

# ---- Out -----------------------------------------------------------------------------------------


def dump(specs: Sequence[Spec]) -> str:
    """The list as Python text."""
    lines = ["["]
    writer = _Writer()
    for spec in specs:
        writer.add(spec, "    ", lines)
    lines.append("]")
    text = "\n".join(lines)
    while len(_known) >= _MOST_KNOWN:
        del _known[next(iter(_known))]
    _known[text] = list(specs)
    return text + "\n"


class _Writer:
    """Writes a list of specs. Those of layers that are alike have their sizes and coordinates in
    common, as objects: what is written of one is known for the others."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._args: dict[tuple[Any, ...], tuple[str, str]] = {}

    def add(self, spec: Spec, indent: str, lines: list[str]) -> None:
        if isinstance(spec, UnimplementedOp):
            lines.append(f"{indent}UnimplementedOp(op={spec.op!r}),")
            return
        inner, deeper = indent + "    ", indent + "        "
        if isinstance(spec, LoopSpec):
            lines += [f"{indent}LoopSpec(", f"{inner}count={spec.count},", f"{inner}body=["]
            for part in spec.body:
                self.add(part, deeper, lines)
        else:
            lines += [
                f"{indent}OpSpec(",
                f"{inner}op={spec.op!r},",
                f"{inner}is_reduction={spec.is_reduction},",
                f"{inner}iteration_space={self._text(spec.iteration_space)},",
                f"{inner}args=[",
            ]
            lines += [f"{deeper}{self._arg(arg)}," for arg in spec.args]
        lines.append(f"{inner}],")
        if isinstance(spec, OpSpec) and spec.op_info:
            lines.append(f"{inner}op_info={self._text(spec.op_info)},")
        if spec.tiled_symbols:
            lines.append(f"{inner}tiled_symbols={_value(spec.tiled_symbols)},")
        lines.append(f"{indent}),")

    def _text(self, value: Any) -> str:
        """Of a part of a spec, which lives as long as this does."""
        if id(value) not in self._texts:
            self._texts[id(value)] = _value(value)
        return self._texts[id(value)]

    def _arg(self, arg: TensorArg) -> str:
        key = (
            id(arg.device_size), id(arg.device_coordinates), id(arg.stride_map), arg.device_dtype,
            arg.per_tile_fixed, arg.name, arg.element_arrangement, arg.fixed_loops,
        )  # fmt: skip
        if key not in self._args:
            self._args[key] = _around_allocation(arg)
        before, after = self._args[key]
        return (
            f"TensorArg(is_input={arg.is_input}, arg_index={arg.arg_index}, {before}, "
            f"allocation={_value(arg.allocation)}{after})"
        )


def _around_allocation(arg: TensorArg) -> tuple[str, str]:
    """The fields of a tensor before its allocation and after it."""
    before = (
        f"device_dtype={_value(arg.device_dtype)}, device_size={_value(arg.device_size)}, "
        f"device_coordinates={_value(arg.device_coordinates)}"
    )
    fields = [""]
    if arg.stride_map is not None:
        fields.append(f"stride_map={_value(arg.stride_map)}")
    if arg.per_tile_fixed:
        fields.append("per_tile_fixed=True")
    if arg.name is not None:
        fields.append(f"name={arg.name!r}")
    if arg.element_arrangement != "STANDARD":
        fields.append(f"element_arrangement={arg.element_arrangement!r}")
    if arg.fixed_loops:
        fields.append(f"fixed_loops={arg.fixed_loops}")
    return before, ", ".join(fields)


def _value(value: Any) -> str:
    kind = type(value)
    if kind is int or kind is bool or kind is str or kind is float or value is None:
        return repr(value)
    if isinstance(value, sympy.Basic):
        return f"sympify({_expr_text(value)!r})"
    if isinstance(value, Mapping):
        return "{" + ", ".join([f"{_value(k)}: {_value(v)}" for k, v in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ", ".join([_value(v) for v in value]) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join([_value(v) for v in value]) + (",)" if len(value) == 1 else ")")
    if isinstance(value, (Enum, DataFormats)):
        return f"{kind.__name__}.{value.name}"
    raise TypeError(f"{value!r} of type {kind.__name__} has no text form in an OpSpec")


@lru_cache(maxsize=1 << 16)
def _expr_text(expr: sympy.Basic) -> str:
    return str(expr)


# ---- In ------------------------------------------------------------------------------------------

_FUNCTIONS = {"floor": sympy.floor, "Mod": sympy.Mod, "IndirectAccess": IndirectAccess}


@lru_cache(maxsize=1 << 16)
def sympify(text: str) -> sympy.Expr:
    """The expression of a text, every name a plain symbol. sympy's own takes a millisecond each."""
    names = {name: sympy.Symbol(name) for name in re.findall(r"[A-Za-z_]\w*", text)}
    return sympy.sympify(eval(text, {"__builtins__": {}}, {**names, **_FUNCTIONS}))


_NAMES = {
    "__builtins__": {},
    "OpSpec": OpSpec,
    "LoopSpec": LoopSpec,
    "TensorArg": TensorArg,
    "UnimplementedOp": UnimplementedOp,
    "DataFormats": DataFormats,
    "sympify": sympify,
    "inf": float("inf"),
    "nan": float("nan"),
}


def parse(text: str) -> list[Spec]:
    """The list that `dump` wrote."""
    known = _known.get(text.strip())
    return read(text) if known is None else list(known)


def read(text: str) -> list[Spec]:
    """The same from the text alone."""
    specs: list[Spec] = eval(text, dict(_NAMES))
    return specs
