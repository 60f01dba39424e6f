"""A fixed part of the OpInfo sweep that is quick enough for every test run.

In: representative operators of each kind, with the dtypes that PyTorch supports for them on CPU,
three samples each. Out: one test per operator and dtype, compared as in the sweep (compare.py), in
this process. A difference that known.py explains is an expected failure with that reason.

    pytest tests/opinfo -k "softmax and float16"
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from . import known
from .worker import all_ops, check_op, silence_warnings

# Another device can be named to try the test itself: OPINFO_DEVICE=cpu.
DEVICE = os.environ.get("OPINFO_DEVICE", "spyre")
SAMPLES = 3

FLOAT = ("float16", "float32")
WIDE = ("float32",)
NUMBER = (*FLOAT, "int64")
ALL = (*NUMBER, "bool")
WHOLE = ("int64", "bool")

SUBSET: dict[str, tuple[str, ...]] = {
    # unary
    "abs": NUMBER,
    "exp": ALL,
    "floor": NUMBER,
    "isnan": ALL,
    "log": ALL,
    "logical_not": ALL,
    "sigmoid": ALL,
    "tanh": ALL,
    "nn.functional.gelu": FLOAT,
    "nn.functional.relu": NUMBER,
    # binary and more
    "add": ALL,
    "sub": NUMBER,
    "mul": ALL,
    "div.no_rounding_mode": ALL,
    "pow": NUMBER,
    "maximum": ALL,
    "eq": ALL,
    "bitwise_and": WHOLE,
    "where": ALL,
    "clamp": NUMBER,
    # reductions and scans
    "sum": ALL,
    "mean": FLOAT,
    "amax": ALL,
    "argmax": NUMBER,
    "any": ALL,
    "var": FLOAT,
    "linalg.vector_norm": FLOAT,
    "logsumexp": ALL,
    "softmax": FLOAT,
    "cumsum": NUMBER,
    # indexing and scatter
    "index_select": ALL,
    "gather": ALL,
    "index_put": ALL,
    "masked_fill": ALL,
    "scatter": ALL,
    "scatter_add": ALL,
    "nn.functional.embedding": FLOAT,
    # views and data movement
    "view": ALL,
    "transpose": ALL,
    "expand": ALL,
    "as_strided": ALL,
    "unbind": ALL,
    "cat": ALL,
    "split": ALL,
    "flip": ALL,
    "tril": ALL,
    "repeat": ALL,
    "nn.functional.pad.constant": ALL,
    "to": ALL,
    # matmul
    "mm": NUMBER,
    "bmm": NUMBER,
    "matmul": NUMBER,
    "addmm": NUMBER,
    "einsum": NUMBER,
    "nn.functional.linear": NUMBER,
    "nn.functional.scaled_dot_product_attention": FLOAT,
    # norms, convolution, pooling, losses
    "nn.functional.layer_norm": FLOAT,
    "nn.functional.batch_norm": FLOAT,
    "nn.functional.rms_norm": FLOAT,
    "nn.functional.conv2d": NUMBER,
    "nn.functional.interpolate.bilinear": FLOAT,
    "nn.functional.cross_entropy": FLOAT,
    # fft and linalg
    "fft.fft": (*WIDE, *WHOLE),
    "linalg.solve": WIDE,
    "linalg.qr": WIDE,
    "cholesky": WIDE,
    # random and factories
    "bernoulli": FLOAT,
    "nn.functional.dropout": FLOAT,
    "randint": NUMBER,
    "randn": FLOAT,
    "arange": NUMBER,
    "full_like": ALL,
    "eye": ALL,
    "empty": ALL,
    # sorting and searching
    "sort": ALL,
    "topk": NUMBER,
    "unique": ALL,
    "nonzero": ALL,
}

DTYPES = ("float16", "float32", "int64", "bool")


@functools.cache
def _ops() -> dict[str, Any]:
    """Load the database once; it takes seconds."""
    return all_ops()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Hide warnings about fallbacks; use one thread, so that sums keep their order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        silence_warnings()
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("op", "dtype"), [(op, dtype) for op, dtypes in SUBSET.items() for dtype in dtypes]
)
def test_operator_agrees_with_cpu(op: str, dtype: str) -> None:
    outcome = check_op(_ops()[op], getattr(torch, dtype), torch.device(DEVICE), SAMPLES)
    explained = known.reason(op, dtype)
    if outcome.status != "match" and explained:
        pytest.xfail(explained)
    assert outcome.status == "match", f"{outcome.status}: {outcome.message} ({outcome.sample})"


def test_subset_names_the_dtypes_that_pytorch_supports() -> None:
    supported = {
        name: tuple(d for d in DTYPES if getattr(torch, d) in _ops()[name].supported_dtypes("cpu"))
        for name in SUBSET
    }
    assert supported == SUBSET
