"""How a result of the device is compared with the result of CPU.

In: what the device returned, copied to the host, and what CPU returned for the same inputs *as the
device holds them*. Out: None when the second explains the first, else one sentence that says where
they differ. The device stores float16 as DLFloat16 (9 fraction bits), so each rounding moves a
value by at most 2^-10 of itself; how many roundings an operator makes is `count_roundings`, how far
the result may then be is `tolerance`, and no other place decides either.

    difference(torch.tensor([1.0]), torch.tensor([1.5]), Case(torch.float32))
    # 1 of 1 elements differ, first at (0,): got 1, expected 1.5 (allowed 3.9e-06)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

# Largest relative error of one rounding of a stored value: on the device, and on CPU. Rounding to f
# fraction bits is off by at most 2^-(f+1): 9 bits for DLFloat16, 10 for half precision, 7 for
# bfloat16. The device holds bfloat16 as DLFloat16 too and rounds it once more when it is read.
STORE_ERROR = {
    torch.float16: (2.0**-10, 2.0**-11),
    torch.complex32: (2.0**-10, 2.0**-11),
    torch.bfloat16: (2.0**-10 + 2.0**-8, 2.0**-8),
}

# Half precision on the host has subnormals with this step; the device rounds to it when a value is
# read back.
HALF_STEP = 2.0**-24

# A kernel that PyTorch itself composes of others for a device without its own one
# (CompositeExplicitAutograd) rounds at each inner operator; this many are assumed, since they
# cannot be seen from outside.
COMPOSITE_ROUNDINGS = 4

# float32 and wider: the kernels of CPU run underneath, only the order of a sum may differ.
WIDE_ERROR = {
    torch.float32: 1.3e-6,
    torch.complex64: 1.3e-6,
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
}


@dataclass(frozen=True)
class Tolerance:
    """How far a value may be: a part of itself, a part of its tensor's largest value, a floor."""

    relative: float
    of_largest: float
    floor: float

    def allowed(self, reference: torch.Tensor) -> torch.Tensor:
        """Return the allowed distance for each element of `reference` (float64 or complex128)."""
        size = reference.abs()
        finite = size[torch.isfinite(size)]
        largest = float(finite.max()) if finite.numel() else 0.0
        allowed = size * self.relative + largest * self.of_largest + self.floor
        return torch.where(torch.isfinite(size), allowed, torch.zeros_like(allowed))


EXACT = Tolerance(0.0, 0.0, 0.0)


def is_narrow(dtype: torch.dtype) -> bool:
    """Say whether the device stores this dtype with fewer bits than CPU does."""
    return dtype in STORE_ERROR


def was_moved(wide: torch.Tensor) -> bool:
    """Say whether the values of a result were moved and not computed, from its float32 form.

    Inputs come from the device and have 9 fraction bits. A computed float32 value has 23, and the
    last 14 of them are 0 only by chance; where they are in every element, no intermediate was
    rounded that a tolerance would have to explain. 0 and ±1 say nothing: a correlation gives them.
    """
    if wide.dtype != torch.float32 or wide.layout != torch.strided:
        return False
    telling = wide[torch.isfinite(wide) & (wide != 0) & (wide.abs() != 1)]
    extra_bits = telling.view(torch.int32) & 0x3FFF
    return telling.numel() > 0 and not bool(extra_bits.any())


@dataclass(frozen=True)
class Case:
    """What decides the tolerance: the dtype an operator is tried with, and how often it rounds."""

    dtype: torch.dtype
    roundings: int = 1


def tolerance(result: torch.dtype, case: Case) -> Tolerance:
    """Return how far a result of dtype `result` may be from the reference.

    One rounding: the result itself is rounded once on the device and once, half as coarsely, on
    CPU. Several: intermediates were rounded too, and their error is a part of the largest values
    around, not of each element; a wide result of narrow intermediates carries their error.
    """
    if result not in STORE_ERROR and result not in WIDE_ERROR:
        return EXACT
    narrow = result if is_narrow(result) else case.dtype
    if is_narrow(result) or (is_narrow(narrow) and case.roundings > 1):
        device, cpu = STORE_ERROR[narrow]
        of_largest = 0.0 if case.roundings == 1 else case.roundings * device
        return Tolerance(case.roundings * device + cpu, of_largest, HALF_STEP)
    error = WIDE_ERROR[result] * case.roundings
    return Tolerance(error, error, 0.0)


class _RoundingCounter(TorchDispatchMode):
    """Counts the operators that store a new narrow tensor while a CPU program runs."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        stored = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor)]
        if not func.is_view and any(is_narrow(x.dtype) for x in stored):
            self.count += COMPOSITE_ROUNDINGS if _is_composite(func.name()) else 1
        return result


def _is_composite(name: str) -> bool:
    """Say whether PyTorch composes an operator of others on a device without a kernel for it."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(name, "CompositeExplicitAutograd") or not has_kernel(name, "CPU")


def count_roundings(program: Callable[[], Any]) -> int:
    """Run a CPU program and return how many roundings its result on the device is off by at most.

    One for the result itself. Those of the n intermediates are independent of each other, so their
    errors add up like a random walk, to sqrt(n) times one.
    """
    with _RoundingCounter() as counter:
        program()
    return 1 + math.ceil(math.sqrt(max(counter.count - 1, 0)))


@dataclass(frozen=True)
class After:
    """All that a call can change: what it returned, and its tensor inputs afterwards."""

    result: Any
    inputs: list[torch.Tensor]


def after_difference(
    got: After, expected: After, case: Case, wide: After | None = None
) -> str | None:
    """Compare what a call returned and what it did to its inputs."""
    wide = wide or After(None, [])
    said = difference(got.result, expected.result, case, wide.result)
    if said:
        return said
    said = difference(got.inputs, expected.inputs, case, wide.inputs)
    return f"inputs after the call: {said}" if said else None


def difference(got: Any, expected: Any, case: Case, wide: Any = None) -> str | None:
    """Compare two results of the same structure and describe the first difference, if any.

    `wide` is the same result computed in float32 instead of half precision, when there is one:
    CPU rounds too, so a value between both references is as good as either.
    """
    got_leaves, leaves = tree_flatten(got)[0], tree_flatten(expected)[0]
    if len(got_leaves) != len(leaves):
        return f"returned {len(got_leaves)} values, expected {len(leaves)}"
    wide_leaves = tree_flatten(wide)[0] if wide is not None else []
    if len(wide_leaves) != len(leaves):
        wide_leaves = [None] * len(leaves)
    for index, (one, other, wider) in enumerate(zip(got_leaves, leaves, wide_leaves, strict=True)):
        said = _leaf_difference(one, other, wider, case)
        if said:
            return said if len(leaves) == 1 else f"result {index}: {said}"
    return None


def form_difference(got: Any, expected: Any, device: torch.device) -> str | None:
    """Compare only what a result looks like: structure, dtype, shape and the device it lives on."""
    got_leaves, got_tree = tree_flatten(got)
    leaves, tree = tree_flatten(expected)
    if type(got) is not type(expected) and not isinstance(expected, torch.Tensor):
        return f"returned {type(got).__name__}, expected {type(expected).__name__}"
    if len(got_leaves) != len(leaves):
        return f"returned {len(got_leaves)} values, expected {len(leaves)}"
    for index, (one, other) in enumerate(zip(got_leaves, leaves, strict=True)):
        said = _form(one, other, device)
        if said:
            return said if len(leaves) == 1 else f"result {index}: {said}"
    return None if got_tree == tree else "the results are nested differently"


def _form(got: Any, expected: Any, device: torch.device) -> str | None:
    """Describe how one returned value differs in kind from the expected one."""
    if not isinstance(expected, torch.Tensor):
        same = type(got) is type(expected)
        return (
            None if same else f"returned {type(got).__name__}, expected {type(expected).__name__}"
        )
    if not isinstance(got, torch.Tensor):
        return f"returned {type(got).__name__}, expected a tensor"
    if got.device.type != device.type:
        return f"the result is on {got.device.type}, expected {device.type}"
    if got.dtype != expected.dtype:
        return f"dtype {_name(got.dtype)}, expected {_name(expected.dtype)}"
    if got.shape != expected.shape:
        return f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    if got.layout != expected.layout:
        return f"layout {got.layout}, expected {expected.layout}"
    return None


def _leaf_difference(got: Any, expected: Any, wide: Any, case: Case) -> str | None:
    """Compare two returned values whose form is already known to agree."""
    if isinstance(expected, torch.Tensor):
        if is_narrow(expected.dtype) and isinstance(wide, torch.Tensor) and was_moved(wide):
            case = replace(case, roundings=1)
        limit = tolerance(expected.dtype, case)
        got, expected = _plain(got), _plain(expected)
        wide = None if not isinstance(wide, torch.Tensor) else _plain(wide)
    elif isinstance(expected, bool | int | float | complex):
        narrow = case.dtype if is_narrow(case.dtype) else torch.float32
        limit = EXACT if isinstance(expected, bool | int) else tolerance(narrow, case)
        got, expected = torch.as_tensor(got), torch.as_tensor(expected)
        wide = torch.as_tensor(wide) if isinstance(wide, bool | int | float | complex) else None
    else:
        return None if got == expected else f"returned {got!r}, expected {expected!r}"
    if got.shape != expected.shape:
        return f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    if wide is not None and wide.shape != expected.shape:
        wide = None
    return _tensor_difference(got, expected, wide, limit)


def _tensor_difference(
    got: torch.Tensor, expected: torch.Tensor, wide: torch.Tensor | None, limit: Tolerance
) -> str | None:
    """Compare the elements of dense host tensors."""
    if not (expected.is_floating_point() or expected.is_complex()):
        good = got == expected
        if wide is not None:
            good |= got == wide.to(expected.dtype)
        return _describe(got, expected, good, torch.zeros((), dtype=torch.float64))
    kind = torch.complex128 if expected.is_complex() else torch.float64
    shown = wide.to(expected.dtype).to(kind) if wide is not None else None
    got, expected = got.to(kind), expected.to(kind)
    allowed = limit.allowed(expected)
    good = _near(got, expected, allowed)
    if shown is not None:
        allowed = torch.maximum(allowed, limit.allowed(shown))
        good |= _near(got, shown, allowed)
        if not got.is_complex():
            low, high = torch.minimum(expected, shown), torch.maximum(expected, shown)
            between = (got >= low - allowed) & (got <= high + allowed)
            good |= between & torch.isfinite(low) & torch.isfinite(high)
    return _describe(got, expected, good, allowed)


def _near(got: torch.Tensor, reference: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Say for each element whether it is equal (NaN equals NaN) or within what is allowed."""
    distance = (got - reference).abs()
    return (got == reference) | (got.isnan() & reference.isnan()) | (distance <= allowed)


def _describe(
    got: torch.Tensor, expected: torch.Tensor, good: torch.Tensor, allowed: torch.Tensor
) -> str | None:
    """Say how many elements differ and show the first of them; None when all are good."""
    bad = torch.nonzero(~good)
    if not len(bad):
        return None
    where = tuple(bad[0].tolist())
    one, other = got[where].item(), expected[where].item()
    margin = allowed.expand(expected.shape)[where].item()
    within = f" (allowed {margin:.2g})" if margin else ""
    return (
        f"{len(bad)} of {good.numel()} elements differ, first at {where}: "
        f"got {_short(one)}, expected {_short(other)}{within}"
    )


def _plain(x: torch.Tensor) -> torch.Tensor:
    """Return a dense host tensor with the values of `x`."""
    x = x.detach()
    if x.layout != torch.strided:
        x = x.to_dense()
    return x.cpu().resolve_conj().resolve_neg()


def _short(value: Any) -> str:
    """Write a number with as many digits as help."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without the module."""
    return str(dtype).removeprefix("torch.")
