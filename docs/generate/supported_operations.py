"""`python -m docs.generate.supported_operations`: write docs/supported_operations.md.

In: the OpFunc table and what is registered with the compiler. Out: a page. With `--check` nothing
is written, and the exit code is 1 when the page is not what it should be; a test does that.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from docs.generate.page import run
from torch_spyre.opfuncs import OPFUNCS, OpFunc

PAGE = Path(__file__).parents[2] / "docs" / "supported_operations.md"

_INTRODUCTION = """\
# Supported operations

*Made by `python -m docs.generate.supported_operations`; do not edit.*

Everything that PyTorch can do runs on the device. This page is about what a compiled graph does on
the card itself. On its way there an ATen operation goes through four tables, in this order:

1. [Decompositions](#decompositions) rewrite it as simpler operations while the graph is traced.
2. [Lowerings](#lowerings) of this package turn it into loops over the card's operations.
3. For all others PyTorch's own decompositions and lowerings do that. What they write must be made
   of [functions that the card has](#functions-in-loops).
4. Each function in a loop becomes one [OpFunc](#opfuncs), the operation that the card executes.

What does not get through is a *fallback*: a step of the graph that the host does, with the reason
in `torch_spyre.explain(...).fallbacks` and in `TORCH_LOGS="spyre.inductor"`. Always on the host are

- operations that store single elements or sums through index tensors: {scatters}, and `index_put`
  where it accumulates, indexes dimensions that are not neighbours, or writes along the sticks of a
  vector;
- random numbers, which are those of eager PyTorch;
- types that have no form on the card: {types}.
"""

_OPFUNCS = """\
## OpFuncs

The table is `torch_spyre/opfuncs.py`. *Formats* are those of the inputs; `F` is `SEN169_FP16`
(float16, bfloat16, bool) and `IEEE_FP32`, `I` is `IEEE_INT32` (int64, int32), `F8` is `SEN143_FP8`.
An operation with a ★ goes beyond the documented system. In the meanings `d` are dimensions and `k`
is `keepdim`, or for the largest values how many of them.
"""

_FUNCTIONS = """\
## Functions in loops

The names are those that Inductor's loops call, methods of `SpyreOpFuncs` here. A loop that calls
anything else is a fallback.

"""

_LOWERINGS = """\
## Lowerings

ATen operations, and operations of the namespace `spyre`, that this package lowers itself.

"""

_DECOMPOSITIONS = """\
## Decompositions

ATen operations that this package takes apart for tensors on the card. Where one does not apply
(another type, say), PyTorch's own follows.

"""

_KINDS = {
    "pointwise": "Pointwise: an element of each input makes an element of the output",
    "cast": "Casts: pointwise, with another format on the output",
    "reduction": "Reductions: `<name>` along the sticks, `<name>nonstick` along other dimensions",
    "matmul": "Matrix products",
    "topk": "The largest",
    "copy": "Copies",
}


def page() -> str:
    """The whole page."""
    from torch_spyre import _inductor
    from torch_spyre._inductor.fx import decompositions
    from torch_spyre._inductor.lowering import direct_mapping, registry

    _inductor.register()
    direct_mapping.register()
    parts = [_INTRODUCTION.format(scatters=_scatters(), types=_types_without_form()), _OPFUNCS]
    for kind, title in _KINDS.items():
        rows = [_opfunc_row(row) for row in OPFUNCS.values() if row.kind == kind]
        header = ("OpFunc", "meaning", "formats", "constants", "unit")
        parts.append(f"### {title}\n\n{_table(header, rows)}")
    parts.append(_FUNCTIONS + _table(("function", "OpFunc"), _function_rows()))
    parts.append(_LOWERINGS + _names(map(str, registry.lowerings())))
    parts.append(_DECOMPOSITIONS + _names(map(str, decompositions._DECOMPOSITIONS)))
    return "\n".join(parts)


# ---- The pieces ---------------------------------------------------------------------------------


def _scatters() -> str:
    from torch_spyre._inductor.lowering import fallback_rules

    return ", ".join(f"`{name}`" for name in fallback_rules._SCATTERS)


def _types_without_form() -> str:
    import torch

    from torch_spyre.dtypes import NATIVE_TYPES

    known = (torch.float64, torch.uint8, torch.int8, torch.int16, torch.complex64, torch.complex128,
             torch.float8_e5m2)  # fmt: skip
    missing = [str(t).removeprefix("torch.") for t in known if t not in NATIVE_TYPES]
    return ", ".join(f"`{name}`" for name in missing) + " and the like"


def _opfunc_row(row: OpFunc) -> tuple[str, ...]:
    name = f"`{row.name}`" + (" ★" if row.extension else "")
    constants = ", ".join(f"`{c}`" for c in row.constants)
    return name, _meaning(row), _formats(row), constants, row.unit.upper()


def _formats(row: OpFunc) -> str:
    names = list(row.formats)
    text = []
    if {"SEN169_FP16", "IEEE_FP32"} <= set(names):
        names = [n for n in names if n not in ("SEN169_FP16", "IEEE_FP32")]
        text.append("F")
    text += [{"IEEE_INT32": "I", "SEN143_FP8": "F8"}.get(n, f"`{n}`") for n in names]
    result = {"same": "", "bool": " → bool", "float": " → F", "IEEE_INT32": " → I"}
    return ", ".join(text) + result.get(row.result, f" → `{row.result}`")


class _Text:
    """Stands for a value, or for torch; what is done with it becomes text."""

    def __init__(self, text: str, atom: bool = True) -> None:
        self.text = text if atom else f"({text})"
        self.plain = text

    def __getattr__(self, name: str) -> _Text:
        return _Text(f"{self.text}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> _Text:
        given = [_plain(a) for a in args] + [f"{k}={_plain(v)}" for k, v in kwargs.items()]
        return _Text(f"{self.text}({', '.join(given)})")

    def __neg__(self) -> _Text:
        return _Text(f"-{self.text}", atom=False)

    def __getitem__(self, index: Any) -> _Text:
        return _Text(f"{self.text}[{index}]")


def _operator(sign: str) -> Any:
    return lambda self, other: _Text(f"{self.text} {sign} {getattr(other, 'text', other)}", False)


for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "eq": "==", "ne": "!=",
                     "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():  # fmt: skip
    setattr(_Text, f"__{_name}__", _operator(_sign))


def _plain(value: Any) -> str:
    return value.plain if isinstance(value, _Text) else repr(value)


def _meaning(row: OpFunc) -> str:
    """What the OpFunc computes, as PyTorch would write it."""
    if row.reference is None:
        return row.doc
    names = list(inspect.signature(row.reference).parameters)
    values = [_Text("torch"), *(_Text(name) for name in names[1:])]
    text = f"`{row.reference(*values).plain}`"
    return f"{text}; {row.doc}" if row.doc else text


def _function_rows() -> list[tuple[str, ...]]:
    from torch_spyre._inductor.operations.opfunc_map import SpyreOpFuncs

    names = [name for name in dir(SpyreOpFuncs) if not name.startswith("_")]
    uses: dict[str, list[str]] = {}
    for name in names:
        found = _opfunc_of(getattr(SpyreOpFuncs, name))
        uses.setdefault(found, []).append(f"`{name}`")
    rows = []
    for found, methods in uses.items():
        rows.append((", ".join(methods), f"`{found}`" if found else "none: nothing is computed"))
    return sorted(rows)


def _opfunc_of(method: Any) -> str:
    """The OpFunc that the outermost step of a function is."""
    import sympy
    import torch

    from torch_spyre._inductor.errors import Unsupported
    from torch_spyre._inductor.operations.opfunc_map import Load, PointwiseOp

    # Some take booleans only, and some do not say how many values they take.
    for dtype, number in itertools.product((torch.float16, torch.bool), (1, 2)):
        value = Load(dtype, "x", sympy.S.Zero)
        args: list[Any] = []
        for parameter in inspect.signature(method).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                args += [value] * number
            else:
                args.append(1.0 if str(parameter.annotation) == "float" else value)
        try:
            result = method(*args)
        except (Unsupported, TypeError):
            continue
        return result.opfunc if isinstance(result, PointwiseOp) else ""
    return ""


# ---- Markdown -----------------------------------------------------------------------------------


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    lines += [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _names(names: Iterable[str]) -> str:
    """All names, by namespace, overloads in one entry: `add` (Tensor, Scalar)."""
    packets: dict[str, dict[str, list[str]]] = {}
    for name in sorted(names):
        namespace, packet, overload = name.rsplit(".", 2)
        packets.setdefault(namespace, {}).setdefault(packet, []).append(overload)
    lines = []
    for namespace, entries in packets.items():
        texts = [_entry(packet, overloads) for packet, overloads in entries.items()]
        lines.append(f"{namespace}\n: {', '.join(texts)}\n")
    return "\n".join(lines)


def _entry(packet: str, overloads: list[str]) -> str:
    return f"`{packet}`" if overloads == ["default"] else f"`{packet}` ({', '.join(overloads)})"


def main(arguments: Sequence[str] | None = None) -> int:
    return run("docs.generate.supported_operations", page, PAGE, arguments)


if __name__ == "__main__":
    sys.exit(main())
