"""Integer range analysis: which int64 operations the card may compute in 32 bits.

Ranges are propagated forward, one for each buffer of a graph: from the inputs, whose class is known
at compile time (csrc/hooks/integers.h), and from constants. An int64 operation whose result may
overflow 32 bits raises TooLarge and becomes a CPU fallback, which computes in 64. So do all that
read a result of a fallback that may be larger.

    positions (an input, below 2**24) + 1      at most 2**24: on the card
    positions * positions                      up to 2**48: on the host
    (positions * positions) % 7                on the host, and below 7 from there on

int32 wraps around as on the CPU. Ranges of floats matter where they are cast to integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.graph import SubgraphLowering
from torch._inductor.virtualized import V

from torch_spyre._inductor import state
from torch_spyre._inductor.capture import input_layouts
from torch_spyre._inductor.errors import TooLarge
from torch_spyre._inductor.operations.opfunc_map import Constant, DotOp, Load, PointwiseOp, Value
from torch_spyre._inductor.operations.trace import Body, trace_pointwise
from torch_spyre.dtypes import FLOAT16_MAX, FLOAT32_EXACT, FLOATS, INT32_MAX, INT32_MIN, INTEGERS
from torch_spyre.on_card import is_spyre


@dataclass(frozen=True)
class Range:
    """All values lie between the two, which may be infinite."""

    low: float
    high: float

    def __or__(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))

    @property
    def fits(self) -> bool:
        """Whether 32 bits hold them."""
        return WORD.low <= self.low and self.high <= WORD.high

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))


WORD = Range(INT32_MIN, INT32_MAX)
ANYTHING = Range(-math.inf, math.inf)
TRUTH = Range(0, 1)
# What is finite in PyTorch's float16. The card's numbers go further; as integers those have no
# value in PyTorch, where they are infinite.
HALF = Range(-FLOAT16_MAX, FLOAT16_MAX)
# The classes of csrc/hooks/integers.h.
_CLASSES = {1: TRUTH, 24: Range(1 - FLOAT32_EXACT, FLOAT32_EXACT - 1), 32: WORD, 64: ANYTHING}
CARRIED = 64


class IntRanges(dict[str, Range]):
    """Ranges of the integers of a graph, by the name of the buffer."""


def note(name: str, found: Range) -> None:
    """Remember the range of a buffer of the graph that is being compiled."""
    state.of(V.graph, IntRanges)[name] = found


def range_of(name: str, dtype: torch.dtype) -> Range:
    """The range of a buffer."""
    if dtype is torch.bool:
        return TRUTH
    known = state.of(V.graph, IntRanges).get(name)
    if known is not None:
        return known
    found = _constant_range(name)
    if found is None and dtype is torch.int64:
        found = _CLASSES[input_layouts.class_of(name) or _unknown()]
    if found is not None:
        note(name, found)
        return found
    if dtype is torch.float16:
        return HALF
    limits = None if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
    return ANYTHING if limits is None else Range(limits.min, limits.max)


def _unknown() -> int:
    """The class of an input that was not seen: one of a backward graph, or of a loop's body."""
    inside = isinstance(V.graph, SubgraphLowering)
    return CARRIED if inside or input_layouts.any_carried() else 32


def _constant_range(name: str) -> Range | None:
    constant = V.graph.constants.get(name)
    if constant is None or constant.numel() == 0 or constant.dtype not in (*FLOATS, *INTEGERS):
        return None
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        low, high = (n.item() for n in torch.aminmax(constant.detach().cpu()))
    return ANYTHING if math.isnan(low) else Range(low, high)


def check(body: Body, operation: ir.ComputedBuffer, value: Value) -> None:
    """Raise TooLarge if an integer may leave 32 bits on the way to what a node stores.

    `value` is what the body computes, in the type that it is stored in.
    """
    evaluation = _Evaluation()
    for index in body.indirect.values():
        evaluation.of(index)
    found = evaluation.of(value)
    if body.reduction:
        found = _reduced(body, found)
    if operation.get_dtype() is torch.int64 and not found.fits:
        raise _too_large(f"a {body.reduction or 'result'}")
    names = operation.get_mutation_names() or ()
    for name in names:
        found = found | range_of(name, operation.get_dtype())
    for name in (*names, operation.get_name()):
        note(name, found)


def _reduced(body: Body, each: Range) -> Range:
    count = math.prod(body.reduced_ranges)
    kind = body.reduction.split(":")[0]
    if kind == "sum":
        return _widened(Range(min(each.low * count, each.low), max(each.high * count, each.high)))
    if kind in ("topkindex", "bottomkindex"):
        return Range(0, count - 1)
    if kind == "any":
        return TRUTH
    return each if kind in _CHOSEN else ANYTHING


_CHOSEN = ("max", "min", "mean", "topkvalue", "bottomkvalue")
"""Reductions whose result is one of the elements, or between them."""


class _Evaluation:
    """Ranges of the values of one body."""

    def __init__(self) -> None:
        self._known: dict[int, Range] = {}

    def of(self, value: Value) -> Range:
        found = self._known.get(id(value))
        if found is None:
            found = self._known[id(value)] = self._find(value)
        return found

    def _find(self, value: Value) -> Range:
        if isinstance(value, Load):
            found = range_of(value.name, value.dtype)
            if value.dtype is torch.int64 and not found.fits:
                raise TooLarge("a tensor has, or may have, integers that do not fit 32 bits")
            return found
        if isinstance(value, Constant):
            number = value.value
            return ANYTHING if math.isnan(number) else Range(number, number)
        if isinstance(value, DotOp):
            return ANYTHING
        assert isinstance(value, PointwiseOp)
        args = [self.of(a) for a in value.args]
        if value.dtype is torch.bool:
            return TRUTH
        if value.opfunc == "where3":
            args = args[1:]
        if value.opfunc == "clip":
            limits = dict(dict(value.info)["constants"])
            args += [Range(limits["clipMin"], limits["clipMin"])]
            args += [Range(limits["clipMax"], limits["clipMax"])]
        rule = _RULES.get(value.opfunc)
        found = ANYTHING if rule is None else rule(*args)
        if value.dtype is torch.int64 and not found.fits:
            raise _too_large(f"'{value.opfunc}'")
        if value.dtype is torch.int32:
            return found if found.fits else WORD  # it wraps around
        if value.dtype is torch.float16:
            found = _min(_max(found, Range(HALF.low, HALF.low)), Range(HALF.high, HALF.high))
        return _widened(found) if value.dtype.is_floating_point else found


def _too_large(what: str) -> TooLarge:
    return TooLarge(f"{what} of int64 may need more than 32 bits, the integers of the card")


def _widened(r: Range) -> Range:
    """What rounding to 16 bits makes of it; small integers are exact."""
    exact = r.size <= 512 and r.low == int(r.low) and r.high == int(r.high)
    more = 0.0 if exact or math.isinf(r.size) else r.size / 128
    return Range(r.low - more, r.high + more) if more else r


def _times(a: float, b: float) -> float:
    return 0 if 0 in (a, b) else a * b


def _add(a: Range, b: Range) -> Range:
    return Range(a.low + b.low, a.high + b.high)


def _neg(a: Range) -> Range:
    return Range(-a.high, -a.low)


def _mul(a: Range, b: Range) -> Range:
    ends = [_times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Range(min(ends), max(ends))


def _abs(a: Range) -> Range:
    return Range(0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high)), a.size)


def _div(a: Range, b: Range) -> Range:
    if b.low <= 0 <= b.high or math.isinf(a.size):
        return ANYTHING
    return _mul(a, Range(1 / b.high, 1 / b.low))


def _whole(a: Range) -> Range:
    """Of a float that becomes a whole number, whichever way."""
    low = a.low if math.isinf(a.low) else math.floor(a.low)
    return Range(low, a.high if math.isinf(a.high) else math.ceil(a.high))


def _sub(a: Range, b: Range) -> Range:
    return _add(a, _neg(b))


def _max(a: Range, b: Range) -> Range:
    return Range(max(a.low, b.low), max(a.high, b.high))


def _min(a: Range, b: Range) -> Range:
    return Range(min(a.low, b.low), min(a.high, b.high))


def _same(a: Range) -> Range:
    return a


def _square_root(a: Range) -> Range:
    return ANYTHING if a.low < 0 or math.isinf(a.high) else Range(0, math.sqrt(a.high))


_RULES: dict[str, Any] = {
    "add": _add, "sub": _sub, "mul": _mul, "neg": _neg, "abs": _abs, "realdiv": _div,
    "maximum": _max, "minimum": _min, "where3": lambda a, b: a | b,
    "clip": lambda a, low, high: _min(_max(a, low), high),
    "relufwd": lambda a: _max(a, Range(0, 0)), "sqrt": _square_root,
    "floor": _whole, "ceil": _whole, "trunc": _whole, "round": _whole, "fptoint32": _whole,
    "int32tofp": _same, "dl16tofp32": _same, "fp32todl16": _same, "identity": _same,
    "sigmoid": lambda a: TRUTH, "tanh": lambda a: Range(-1, 1), "erf": lambda a: Range(-1, 1),
    "sin": lambda a: Range(-1, 1), "cos": lambda a: Range(-1, 1),
}  # fmt: skip


# ---- What the host computes ---------------------------------------------------------------------


def note_host_results(target: Any, args: Any, kwargs: Any, buffers: Sequence[Any]) -> None:
    """Remember how large the int64 results of a step of the host may be.

    Results that may not fit 32 bits are read by the host alone.
    """
    if not buffers:  # a view
        return
    steps = [
        b for b in buffers if not isinstance(b, ir.ComputedBuffer) and isinstance(b, ir.Buffer)
    ]
    found: Range | None = None
    for buffer in steps:
        layout = buffer.maybe_get_output_spec()
        if not isinstance(layout, ir.Layout) or not is_spyre(layout.device):
            continue
        is_cat = isinstance(buffer, ir.ConcatKernel)  # no step, but a place
        if layout.dtype is not torch.int64 and not is_cat:
            continue
        if found is None:
            found = _host_range(target, args, kwargs)
        note(buffer.get_name(), found)
    for name in _written(target, args, kwargs) if steps else ():
        note(name, ANYTHING)


def is_too_large(box: ir.TensorBox) -> bool:
    """Whether a tensor holds, or may hold, integers that the card cannot."""
    if box.get_dtype() is not torch.int64 or not _is_stored(box):
        return False
    return is_spyre(box.get_device()) and not box_range(box).fits


def _written(target: Any, args: Any, kwargs: Any) -> list[str]:
    """int64 tensors that an operation changes."""
    names = []
    for i, given in enumerate(target._schema.arguments):
        if given.alias_info is None or not given.alias_info.is_write:
            continue
        value = args[i] if i < len(args) else kwargs.get(given.name)
        for box in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(box, ir.TensorBox) and box.get_dtype() is torch.int64:
                names += [box.get_name()] if _is_stored(box) else []
    return names


def _host_range(target: Any, args: Any, kwargs: Any) -> Range:
    """What a step of the host can give; anything where nothing is known about the operation."""
    leaves = torch.utils._pytree.tree_leaves(
        (args, kwargs), is_leaf=lambda x: isinstance(x, ir.TensorBox)
    )
    boxes = [x for x in leaves if isinstance(x, ir.TensorBox)]
    if not isinstance(target, torch._ops.OpOverload) or not all(map(_is_fixed, boxes)):
        return ANYTHING
    count = max((math.prod(int(n) for n in x.get_size()) for x in boxes), default=0)
    given = [r for r in map(_leaf_range, leaves) if r is not None]
    name = target._schema.name.split("::")[1].strip("_")
    all_of = Range(0, 0)
    for each in given:
        all_of = all_of | each
    most = all_of.size
    if name in _INDICES:
        return Range(-1, count)
    if name in ("randint", "randperm"):
        return all_of
    if name in _CHOICES and not _adds_up(target, leaves):
        return all_of | Range(-1, count)
    if name in ("sum", "cumsum"):
        return _mul(given[0], Range(min(1, count), count))
    if name.startswith("bitwise_") and "shift" not in name and not math.isinf(most):
        bits = max(int(all_of.high).bit_length(), int(all_of.low).bit_length())
        return Range(-(1 << bits), (1 << bits) - 1)
    if name in ("remainder", "fmod") and len(given) == 2:
        return Range(-given[1].size, given[1].size)
    if name == "floor_divide" or (name == "div" and kwargs.get("rounding_mode")):
        return Range(-given[0].size, given[0].size)
    if name in ("neg", "abs"):
        return Range(-most, most)
    if name in ("add", "sub") and len(given) == 2:  # and no alpha
        return Range(-given[0].size - given[1].size, given[0].size + given[1].size)
    if name == "mul" and len(given) == 2:
        return _mul(*given)
    return ANYTHING


def _adds_up(target: torch._ops.OpOverload, leaves: list[Any]) -> bool:
    """scatter(reduce="add"), index_put(accumulate=True)."""
    return "reduce" in target._overloadname or any(
        x is True or x == "add" for x in leaves if isinstance(x, (bool, str))
    )


def _leaf_range(leaf: Any) -> Range | None:
    if isinstance(leaf, ir.TensorBox):
        return box_range(leaf)
    if type(leaf) in (int, float):
        return ANYTHING if math.isnan(leaf) else Range(leaf, leaf)
    return None


_INDICES = {"argmax", "argmin", "argsort", "nonzero", "searchsorted", "bucketize", "multinomial",
            "count_nonzero", "bincount"}  # fmt: skip
_CHOICES = {
    "adaptive_max_pool2d", "amax", "amin", "cat", "clamp", "clamp_max", "clamp_min", "clone",
    "constant_pad_nd", "copy_from_d2d", "cummax", "cummin", "device_put", "embedding", "fill",
    "flip", "full_like", "gather", "index", "index_copy", "index_fill", "index_put",
    "index_select", "kthvalue", "masked_fill", "masked_scatter", "masked_select", "max",
    "max_dim_int64_fallback", "max_pool2d_with_indices", "max_pool3d_with_indices", "maximum",
    "median", "min", "min_dim_int64_fallback", "minimum", "mode", "nanmedian", "relu", "repeat",
    "repeat_interleave", "reshape_via_cpu", "roll", "scatter", "select_scatter", "sign",
    "slice_scatter", "sort", "stack", "take", "topk", "tril", "triu", "unfold", "unique2",
    "unique_consecutive", "unique_dim", "unsafe_index", "where",
}  # fmt: skip


def box_range(box: ir.TensorBox) -> Range:
    """The range of a tensor of the graph that is being compiled."""
    dtype = box.get_dtype()
    if _is_stored(box):
        return range_of(box.get_name(), dtype)
    data = box.data
    while isinstance(data, (ir.BaseView, ir.StorageBox)):
        data = data.data
    if isinstance(data, ir.Pointwise) and not data.inner_fn_opcount().read_buffers:
        value = trace_pointwise(data)
        if isinstance(value, Constant) and not math.isnan(value.value):
            return Range(value.value, value.value)
    return ANYTHING


def _is_stored(box: ir.TensorBox) -> bool:
    data = box.data
    while isinstance(data, (ir.BaseView, ir.StorageBox)):
        data = data.data
    return isinstance(data, (ir.Buffer, ir.InputBuffer))


def _is_fixed(box: ir.TensorBox) -> bool:
    return all(isinstance(n, int) or n.is_number for n in box.get_size())
