"""The table of OpFuncs: the primitives of the card.

Read by the front-end (which names exist, which constants they take), by the back-end (how a name
becomes instructions of the tile machine), by the timing model, by the page of supported operations
and by the tests, which generate their cases from it. An operation of the documented system has
`extension=False`; what goes beyond it, and would not run on a card today, has `extension=True`.

Adding a pointwise operation: one row here and one method on `SpyreOpFuncs`. If its instruction does
not exist yet, also one opcode in `csrc/card` (docs/formats/program.md lists them).

Example: `OPFUNCS["add"].arity` is 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FP16 = "SEN169_FP16"
FP32 = "IEEE_FP32"
FP8 = "SEN143_FP8"
INT32 = "IEEE_INT32"
UINT32 = "SENUINT32"
FLOATS = (FP16, FP32)
ANY = (FP16, FP32, INT32)

# Opcodes of the tile machine; csrc/card/tile/tile.h has the same numbers (a test compares them).
TILE_OPCODES: dict[str, int] = {
    "load": 0, "store": 1, "round": 2, "spread": 3,
    "abs": 10, "neg": 11, "exp": 12, "log": 13, "sqrt": 14, "rsqrt": 15, "reciprocal": 16,
    "sigmoid": 17, "tanh": 18, "silu": 19, "gelu": 20, "gelu_tanh": 21, "relu": 22, "floor": 23,
    "ceil": 24, "trunc": 25, "round_even": 26, "sin": 27, "cos": 28, "erf": 29, "log1p": 30,
    "expm1": 31, "isnan": 32, "copy": 33,
    "add": 40, "sub": 41, "mul": 42, "div": 43, "max": 44, "min": 45, "eq": 46, "ne": 47, "lt": 48,
    "le": 49, "gt": 50, "ge": 51, "pow": 52,
    "where": 60, "clip": 61, "softplus": 62, "constant": 63, "add_imm": 64, "mul_imm": 65,
    "widen": 70, "narrow": 71, "int_to_float": 72, "float_to_int": 73, "constant_bits": 74,
    "int_abs": 80, "int_neg": 81, "int_add": 82, "int_sub": 83, "int_mul": 84, "int_max": 85,
    "int_min": 86, "int_eq": 87, "int_ne": 88, "int_lt": 89, "int_le": 90, "int_gt": 91,
    "int_ge": 92,
    "short_exp": 100, "short_sigmoid": 101, "short_tanh": 102, "short_silu": 103,
    "short_gelu": 104, "short_gelu_tanh": 105,
}  # fmt: skip


@dataclass(frozen=True)
class OpFunc:
    """One operation of the card. `kind` says which form its SuperDSC has:

    pointwise   one element of each input makes one element of the output
    cast        pointwise, with another format on the output
    reduction   `<name>` when the stick is reduced, `<name>nonstick` when it survives
    matmul      batchmatmul and its relatives
    copy        moves elements: identity, restickify, relayout
    topk        values or indices of the largest, or of the smallest
    """

    name: str
    kind: str
    arity: int
    tile: str | tuple[tuple[str, ...], ...] = ""
    """Name of the opcode, or a small program over x0, x1, ... (inputs), t (temporary), out."""
    int_tile: str = ""
    """Opcode for int32 inputs."""
    constants: tuple[str, ...] = ()
    """Names in op_info["constants"], in the order of the opcode's immediates."""
    formats: tuple[str, ...] = FLOATS
    """Formats of the (first) input."""
    unit: str = "sfp"
    cost: str = "simple"
    """simple: one pass of the SFP; special: a transcendental function; data: bytes alone."""
    extension: bool = False
    reference: Callable[..., Any] | None = None
    """The meaning in PyTorch: called with the torch module, the inputs, and constants by name."""
    domain: str = "any"
    """Inputs that make sense: any, positive, nonzero, unit (|x| <= 1), small (|x| <= 8), bool."""
    result: str = "same"
    """same: format of the first input; bool: 0 or 1 in SEN169_FP16; float: any float;
    else the name of a format."""
    doc: str = ""


def _rows() -> list[OpFunc]:
    def unary(name: str, tile: str, **kw: Any) -> OpFunc:
        return OpFunc(name, "pointwise", 1, tile, **kw)

    def binary(name: str, tile: str, **kw: Any) -> OpFunc:
        return OpFunc(name, "pointwise", 2, tile, int_tile=kw.pop("int_tile", "int_" + tile), **kw)

    def compare(name: str, tile: str, **kw: Any) -> OpFunc:
        return binary(name, tile, result="bool", formats=ANY, **kw)

    special: Any = {"cost": "special"}
    return [
        # ---- arithmetic
        unary("abs", "abs", int_tile="int_abs", formats=ANY, reference=lambda t, x: t.abs(x)),
        unary("neg", "neg", int_tile="int_neg", formats=ANY, reference=lambda t, x: -x),
        binary("add", "add", formats=ANY, reference=lambda t, x, y: x + y),
        binary("sub", "sub", formats=ANY, reference=lambda t, x, y: x - y),
        binary("mul", "mul", formats=ANY, reference=lambda t, x, y: x * y),
        binary("realdiv", "div", int_tile="", reference=lambda t, x, y: x / y, domain="nonzero"),
        binary("maximum", "max", formats=ANY, reference=lambda t, x, y: t.maximum(x, y)),
        binary("minimum", "min", formats=ANY, reference=lambda t, x, y: t.minimum(x, y)),
        unary("floor", "floor", reference=lambda t, x: t.floor(x)),
        unary("sqrt", "sqrt", reference=lambda t, x: t.sqrt(x), domain="positive", **special),
        unary("rsqrt", "rsqrt", reference=lambda t, x: t.rsqrt(x), domain="positive", **special),
        unary("reciprocal", "reciprocal", reference=lambda t, x: t.reciprocal(x), domain="nonzero",
              **special),
        # ---- functions
        unary("exp", "exp", reference=lambda t, x: t.exp(x), domain="small", **special),
        unary("log", "log", reference=lambda t, x: t.log(x), domain="positive", **special),
        unary("sigmoid", "sigmoid", reference=lambda t, x: t.sigmoid(x), **special),
        unary("tanh", "tanh", reference=lambda t, x: t.tanh(x), **special),
        unary("silu", "silu", reference=lambda t, x: t.nn.functional.silu(x), **special),
        unary("relufwd", "relu", reference=lambda t, x: t.relu(x)),
        unary("gelufwd", "gelu", reference=lambda t, x: t.nn.functional.gelu(x), **special),
        OpFunc("clip", "pointwise", 1, "clip", constants=("clipMin", "clipMax"),
               reference=lambda t, x, clipMin, clipMax: t.clamp(x, clipMin, clipMax)),
        OpFunc("softplus", "pointwise", 1, "softplus",
               constants=("softplusBeta", "softplusThresh"), cost="special",
               reference=lambda t, x, softplusBeta, softplusThresh: t.nn.functional.softplus(
                   x, softplusBeta, softplusThresh)),
        # ---- comparison and choice
        compare("equal", "eq", reference=lambda t, x, y: x == y),
        compare("notequal", "ne", reference=lambda t, x, y: x != y),
        compare("lesserthan", "lt", reference=lambda t, x, y: x < y),
        compare("lesserequal", "le", reference=lambda t, x, y: x <= y),
        compare("greaterthan", "gt", reference=lambda t, x, y: x > y),
        compare("greaterequal", "ge", reference=lambda t, x, y: x >= y),
        OpFunc("where3", "pointwise", 3, "where", int_tile="where", formats=ANY,
               reference=lambda t, c, x, y: t.where(c != 0, x, y), domain="bool"),
        # ---- layer normalisation
        OpFunc("layernormscale", "pointwise", 1, (("add_imm", "t", "x0", "eps"),
                                                  ("rsqrt", "out", "t")),
               constants=("eps",), cost="special",
               doc="1 / sqrt(variance + eps) of an exx2 result"),
        OpFunc("layernormnorm", "pointwise", 5,
               (("sub", "t", "x0", "x1"), ("mul", "t", "t", "x2"), ("mul", "t", "t", "x3"),
                ("add", "out", "t", "x4")),
               doc="(x - mean) * scale * weight + bias; mean is an exx2 result; 3 to 5 inputs"),
        # ---- copies and casts
        OpFunc("identity", "copy", 1, "copy", formats=(FP16, FP32, FP8, INT32), cost="data",
               reference=lambda t, x: x.clone(), doc="copy, slice, expand, cat, pad"),
        OpFunc("ReStickifyOpHBM", "copy", 1, formats=(FP16, FP32, INT32), cost="data",
               doc="moves the stick to another dimension"),
        OpFunc("relayout", "copy", 1, formats=(FP16, FP32, FP8, INT32), cost="data", extension=True,
               doc="any view into any layout, across sticks"),
        OpFunc("ringmove", "copy", 1, formats=(FP16, FP32, FP8, INT32), cost="data", extension=True,
               doc="a tensor in scratchpads to other cores' scratchpads, over the ring"),
        OpFunc("dl16tofp32", "cast", 1, "copy", formats=(FP16,), result=FP32,
               reference=lambda t, x: x.float()),
        OpFunc("fp32todl16", "cast", 1, "copy", formats=(FP32,), result=FP16,
               reference=lambda t, x: x.half()),
        OpFunc("fp8todl16", "cast", 1, "copy", formats=(FP8,), result="float",
               reference=lambda t, x: x.half()),
        OpFunc("qfp8ch", "cast", 1, "copy", formats=(FP16,), result=FP8,
               reference=lambda t, x: x.to(t.float8_e4m3fn)),
        OpFunc("int32tofp", "cast", 1, "int_to_float", formats=(INT32,), result="float",
               extension=True, reference=lambda t, x: x.float()),
        OpFunc("fptoint32", "cast", 1, "float_to_int", formats=FLOATS, result=INT32, extension=True,
               reference=lambda t, x: x.to(t.int64)),
        # ---- reductions
        OpFunc("sum", "reduction", 1, "sum", reference=lambda t, x, d, k: t.sum(x, d, k)),
        OpFunc("max", "reduction", 1, "max", reference=lambda t, x, d, k: t.amax(x, d, k)),
        OpFunc("min", "reduction", 1, "min", reference=lambda t, x, d, k: t.amin(x, d, k)),
        OpFunc("mean", "reduction", 1, "sum", constants=("scaling_factor",),
               reference=lambda t, x, d, k: t.mean(x, d, k)),
        OpFunc("exx2", "reduction", 1, "exx2", constants=("exx2scale", "useZeroMean"),
               doc="mean and variance over the stick dimension, for layer normalisation"),
        OpFunc("prod", "reduction", 1, "prod", extension=True,
               reference=lambda t, x, d, k: t.prod(x, d, k)),
        # ---- the largest
        OpFunc("topkvalue", "topk", 1, formats=ANY,
               reference=lambda t, x, k, d: t.topk(x, k, d)[0]),
        OpFunc("topkindex", "topk", 1, formats=ANY, result=INT32,
               reference=lambda t, x, k, d: t.topk(x, k, d)[1]),
        OpFunc("bottomkvalue", "topk", 1, formats=ANY, extension=True,
               reference=lambda t, x, k, d: t.topk(x, k, d, largest=False)[0],
               doc="the smallest; NaN is larger than all numbers"),
        OpFunc("bottomkindex", "topk", 1, formats=ANY, extension=True, result=INT32,
               reference=lambda t, x, k, d: t.topk(x, k, d, largest=False)[1]),
        # ---- matrix products
        OpFunc("batchmatmul", "matmul", 2, unit="pt", cost="matmul",
               reference=lambda t, x, y: t.matmul(x, y)),
        OpFunc("batchmatmulfp8", "matmul", 2, unit="pt", cost="matmul", formats=(FP8,),
               result="float", reference=lambda t, x, y: t.matmul(x.float(), y.float())),
        # ---- beyond the documented system
        unary("ceil", "ceil", extension=True, reference=lambda t, x: t.ceil(x)),
        unary("trunc", "trunc", extension=True, reference=lambda t, x: t.trunc(x)),
        unary("round", "round_even", extension=True, reference=lambda t, x: t.round(x)),
        unary("sin", "sin", extension=True, reference=lambda t, x: t.sin(x), **special),
        unary("cos", "cos", extension=True, reference=lambda t, x: t.cos(x), **special),
        unary("erf", "erf", extension=True, reference=lambda t, x: t.erf(x), **special),
        unary("log1p", "log1p", extension=True, reference=lambda t, x: t.log1p(x),
              domain="positive", **special),
        unary("expm1", "expm1", extension=True, reference=lambda t, x: t.expm1(x), domain="small",
              **special),
        unary("isnan", "isnan", extension=True, result="bool", reference=lambda t, x: t.isnan(x)),
        unary("gelutanh", "gelu_tanh", extension=True, **special,
              reference=lambda t, x: t.nn.functional.gelu(x, approximate="tanh")),
        binary("pow", "pow", int_tile="", extension=True, domain="positive",
               reference=lambda t, x, y: t.pow(x, y), **special),
    ]  # fmt: skip


OPFUNCS: dict[str, OpFunc] = {row.name: row for row in _rows()}

NONSTICK = "nonstick"
"""Suffix of a reduction whose reduced dimensions do not include the stick."""


def find(name: str) -> OpFunc | None:
    """The row of a name as it stands in a SuperDSC, e.g. `find("sumnonstick").name == "sum"`."""
    if name in OPFUNCS:
        return OPFUNCS[name]
    base = OPFUNCS.get(name.removesuffix(NONSTICK)) if name.endswith(NONSTICK) else None
    return base if base is not None and base.kind == "reduction" else None
