"""Bounds of reductions, of what is made of them, and of products: see intervals.py."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.fuzz.element_rules import add, div, mul, square, sub
from tests.fuzz.intervals import (
    BOOL,
    F16,
    I64,
    RULES,
    UNIT,
    Interval,
    OutOfScope,
    Rule,
    cast,
    checked,
    plain_index,
    rule_for,
    stored,
)

# ---- reductions


def _grid(values: torch.Tensor) -> float:
    """The largest power of 2 that all values are multiples of, down to 2^-12; 0: there is none."""
    if not bool((values * 2.0**12 == (values * 2.0**12).round()).all()):
        return 0.0
    for bits in range(13):
        if bool((values * 2.0**bits == (values * 2.0**bits).round()).all()):
            return 2.0**-bits
    return 0.0


def _summed(terms: torch.Tensor, total: torch.Tensor, size: torch.Tensor, count: int) -> Any:
    """How far float32 sums of `count` terms may be off: not at all if partial sums are exact."""
    grid = _grid(terms)
    exact = grid > 0 and bool((size <= grid * 2.0**24).all()) if size.numel() else True
    return torch.zeros_like(total) if exact else size * (count * UNIT)


def _dims(x: Interval, dim: Any) -> list[int]:
    if dim is None or dim == ():
        return list(range(x.ndim))
    return [d % max(x.ndim, 1) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))]


def _count(x: Interval, dim: Any) -> int:
    return math.prod(x.shape[d] for d in _dims(x, dim)) if x.ndim else 1


@rule_for("sum")
def _sum(x: Interval, dim: Any = None, keepdim: bool = False) -> Interval:
    dtype = x.dtype if x.dtype.is_floating_point else I64
    dims = _dims(x, dim)
    lo, hi = x.lo.sum(dims, keepdim), x.hi.sum(dims, keepdim)
    if dtype is I64:
        return checked(Interval(lo, hi, I64))
    size = x.magnitude().sum(dims, keepdim)
    off = _summed(torch.cat([x.lo.flatten(), x.hi.flatten()]), lo, size, _count(x, dim))
    return stored(lo - off, hi + off, dtype)


@rule_for("mean")
def _mean(x: Interval, dim: Any = None, keepdim: bool = False) -> Interval:
    count = _count(x, dim)
    if count == 0:
        raise OutOfScope("mean of nothing")
    dims = _dims(x, dim)
    lo, hi = x.lo.sum(dims, keepdim), x.hi.sum(dims, keepdim)
    size = x.magnitude().sum(dims, keepdim)
    off = _summed(torch.cat([x.lo.flatten(), x.hi.flatten()]), lo, size, count)
    # The sum may be rounded before it is divided, where mean is taken apart.
    total = stored(lo - off, hi + off, x.dtype)
    return stored(total.lo / count, total.hi / count, x.dtype, 4 * UNIT)


def _running_mean(x: Interval, dim: int) -> Interval:
    """As CPU does it for a variance: corrected element by element, so never exact."""
    mean = _mean(x, dim, True)
    off = x.magnitude().amax(dim, keepdim=True) * (8 * UNIT)
    return Interval(mean.lo - off, mean.hi + off, x.dtype)


def _extreme(name: str) -> Rule:
    def rule(x: Interval, dim: Any = None, keepdim: bool = False) -> Interval:
        if _count(x, dim) == 0:
            raise OutOfScope(f"{name} of nothing")
        compute = getattr(torch, name)
        dims = _dims(x, dim)
        if not x.ndim:
            return x
        return Interval(compute(x.lo, dims, keepdim), compute(x.hi, dims, keepdim), x.dtype)

    return rule


RULES["amax"], RULES["amin"] = _extreme("amax"), _extreme("amin")


@rule_for("any")
def _any(x: Interval, dim: Any = None, keepdim: bool = False) -> Interval:
    return _anywhere(cast(x, BOOL), dim, keepdim, torch.amax, 0.0)


@rule_for("all")
def _all(x: Interval, dim: Any = None, keepdim: bool = False) -> Interval:
    return _anywhere(cast(x, BOOL), dim, keepdim, torch.amin, 1.0)


def _anywhere(x: Interval, dim: Any, keepdim: bool, compute: Rule, empty: float) -> Interval:
    dims = _dims(x, dim)
    if not x.ndim:
        return x
    if _count(x, dim) == 0:
        made = torch.full_like(x.lo.sum(dims, keepdim), empty)
        return Interval(made, made.clone(), BOOL)
    return Interval(compute(x.lo, dims, keepdim), compute(x.hi, dims, keepdim), BOOL)


def _arg_extreme(name: str) -> Rule:
    def rule(x: Interval, dim: int, keepdim: bool = False) -> Interval:
        if _count(x, dim) == 0 or not x.ndim:
            raise OutOfScope(f"{name} of nothing")
        lo, hi = (x.lo, x.hi) if name == "argmax" else (-x.hi, -x.lo)
        best = lo.amax(dim, keepdim=True)
        rivals = (hi >= best).sum(dim, keepdim=True)
        known = (rivals == 1) | _equal_rivals(lo, hi, best, dim)
        if not bool(known.all()):
            raise OutOfScope("the place of the largest is open")
        return Interval.exact(lo.argmax(dim, keepdim).double(), I64)

    return rule


def _equal_rivals(lo: torch.Tensor, hi: torch.Tensor, best: torch.Tensor, dim: int) -> torch.Tensor:
    """Where all that could be the largest are exactly equal: then it is the first of them."""
    return ((hi < best) | ((lo == best) & (hi == best))).all(dim, keepdim=True)


RULES["argmax"], RULES["argmin"] = _arg_extreme("argmax"), _arg_extreme("argmin")


@rule_for("prod")
def _prod(x: Interval, dim: int) -> Interval:
    if not x.is_exact() or (x.numel() and _grid(x.lo) != 1.0):
        raise OutOfScope("prod of what is not an integer")
    if x.numel() and float(x.lo.abs().clamp(min=1).prod(dim).max()) > 512:
        raise OutOfScope("prod of too much")
    dtype = x.dtype if x.dtype.is_floating_point else I64
    return Interval.exact(x.lo.prod(dim), dtype)


@rule_for("cumsum")
def _cumsum(x: Interval, dim: int) -> Interval:
    dtype = x.dtype if x.dtype.is_floating_point else I64
    lo, hi = x.lo.cumsum(dim), x.hi.cumsum(dim)
    if dtype is I64:
        return checked(Interval(lo, hi, I64))
    size = x.magnitude().cumsum(dim)
    off = _summed(torch.cat([x.lo.flatten(), x.hi.flatten()]), lo, size, _count(x, dim))
    return stored(lo - off, hi + off, dtype)


@rule_for("sort")
def _sort(x: Interval, dim: int, descending: bool = False) -> tuple[Interval, None]:
    """The values alone: which of two equal ones comes first is open."""
    lo, hi = (e.sort(dim, descending=descending).values for e in (x.lo, x.hi))
    return Interval(lo, hi, x.dtype), None


@rule_for("topk")
def _topk(x: Interval, k: int, dim: int, largest: bool = True) -> tuple[Interval, None]:
    values = _sort(x, dim, descending=largest)[0]
    return RULES["narrow"](values, dim, 0, k), None


@rule_for("max")
def _max(x: Interval, dim: int, keepdim: bool = False) -> tuple[Interval, None]:
    return RULES["amax"](x, dim, keepdim), None


@rule_for("min")
def _min(x: Interval, dim: int, keepdim: bool = False) -> tuple[Interval, None]:
    return RULES["amin"](x, dim, keepdim), None


# ---- taken apart as the compiler does it, which holds what a single kernel gives, too


@rule_for("softmax")
def _softmax(x: Interval, dim: int) -> Interval:
    powers = RULES["exp"](sub(x, RULES["amax"](x, dim, True)))
    # The largest is among the terms: no sum is below 1, and no quotient above.
    total = _sum(powers, dim, True)
    total = Interval(total.lo.clamp(min=1.0), total.hi, total.dtype)
    result = div(powers, total)
    return Interval(result.lo.clamp(min=0.0), result.hi, result.dtype)


@rule_for("log_softmax")
def _log_softmax(x: Interval, dim: int) -> Interval:
    below = sub(x, RULES["amax"](x, dim, True))
    total = _sum(RULES["exp"](below), dim, True)
    return sub(below, RULES["log"](Interval(total.lo.clamp(min=1.0), total.hi, total.dtype)))


@rule_for("logsumexp")
def _logsumexp(x: Interval, dim: int, keepdim: bool = False) -> Interval:
    most = RULES["amax"](x, dim, True)
    total = _sum(RULES["exp"](sub(x, most)), dim, True)
    total = Interval(total.lo.clamp(min=1.0), total.hi, total.dtype)
    result = add(RULES["log"](total), most)
    return result if keepdim else RULES["squeeze"](result, dim)


@rule_for("var")
def _var(x: Interval, dim: int, correction: int = 1, keepdim: bool = False) -> Interval:
    count = _count(x, dim)
    if count - correction <= 0:
        raise OutOfScope("var of too little")
    away = square(sub(x, _running_mean(x, dim)))
    total = _sum(away, dim, keepdim)
    # As a difference of mean squares it is off by a part of these.
    off = x.magnitude().square().sum(_dims(x, dim), keepdim) * (8 * UNIT)
    once = stored(((total.lo - off) / (count - correction)).clamp(min=0.0),
                   (total.hi + off) / (count - correction), x.dtype, 8 * UNIT)  # fmt: skip
    if correction == 0:
        return once
    # Or in parts: the mean square, times a number.
    parts = mul(_var(x, dim, 0, keepdim), count / (count - correction))
    return Interval(once.lo.minimum(parts.lo), once.hi.maximum(parts.hi), x.dtype)


@rule_for("layer_norm")
def _layer_norm(x: Interval, shape: Any, weight: Any = None, bias: Any = None) -> Interval:
    spread = _var(x, -1, correction=0, keepdim=True)
    result = mul(sub(x, _running_mean(x, -1)), RULES["rsqrt"](add(spread, 1e-5)))
    if weight is not None:
        result = mul(result, weight)
    return result if bias is None else add(result, bias)


# ---- products


@rule_for("matmul", "mm", "bmm")
def _matmul(x: Interval, y: Interval) -> Interval:
    if not x.dtype.is_floating_point or x.dtype is not y.dtype:
        raise OutOfScope("products of integers or of different types")
    middle = [(v.lo + v.hi) / 2 for v in (x, y)]
    radius = [(v.hi - v.lo) / 2 for v in (x, y)]
    value = middle[0] @ middle[1]
    size = x.magnitude() @ y.magnitude()
    off = middle[0].abs() @ radius[1] + radius[0] @ (middle[1].abs() + radius[1])
    terms = torch.tensor([_grid(x.lo), _grid(x.hi), _grid(y.lo), _grid(y.hi)])
    step = float(terms[:2].min() * terms[2:].min())
    exact = step > 0 and bool((size <= step * 2.0**24).all()) if size.numel() else True
    if not exact or bool((off > 0).any()):
        off = off + size * (x.shape[-1] * UNIT)
    return stored(value - off, value + off, x.dtype)


@rule_for("linear")
def _linear(x: Interval, weight: Interval, bias: Interval | None = None) -> Interval:
    product = _matmul(x, RULES["t"](weight))
    return product if bias is None else add(product, bias)


@rule_for("addmm")
def _addmm(bias: Interval, x: Interval, y: Interval) -> Interval:
    return add(_matmul(x, y), bias)


@rule_for("index_add")
def _index_add(x: Interval, dim: int, index: Interval, source: Interval) -> Interval:
    where = plain_index(index)
    if x.dtype is not source.dtype:
        raise OutOfScope("index_add of another type")
    lo, hi = x.lo.index_add(dim, where, source.lo), x.hi.index_add(dim, where, source.hi)
    size = x.magnitude().index_add(dim, where, source.magnitude())
    grid = _grid(torch.cat([e.flatten() for v in (x, source) for e in (v.lo, v.hi)]))
    exact = grid > 0 and bool((size <= grid * 512).all()) if size.numel() else True
    if x.dtype in (I64, BOOL) or exact:
        return checked(Interval(lo, hi, x.dtype))
    # Eager PyTorch rounds after each of the additions.
    off = size * (source.shape[dim] * (2.0**-10 if x.dtype is F16 else UNIT))
    return stored(lo - off, hi + off, x.dtype)
