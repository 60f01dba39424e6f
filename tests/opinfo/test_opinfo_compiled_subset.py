"""A fixed part of the compiled OpInfo sweep that is quick enough for every test run.

In: operators of each kind, one dtype for each in turn, two samples as one graph. Out: one test for
each, compared as in the sweep (compiled.py), in this process; where the card does all, that too.

    pytest tests/opinfo -k "compiled and softmax"
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from .compiled import HOST, check_compiled
from .compiled_report import as_page
from .report import Result, is_good
from .sweep import Log
from .test_opinfo_subset import _ops, _quiet  # noqa: F401  (a fixture)
from .worker import Outcome

SAMPLES = 2

# Operators that the card does, and the dtype to try.
ON_THE_CARD = {
    "abs": "int64", "add": "float16", "amax": "float16", "any": "bool",
    "argmax": "float32", "bmm": "float16", "cat": "int64", "clamp": "int64", "cumsum": "float32",
    "div.no_rounding_mode": "float16", "eq": "bool", "exp": "float32", "expand": "bool",
    "flip": "float16", "gather": "float32", "index_select": "float16", "isinf": "float32",
    "sort": "int64",
    "linalg.vector_norm": "float32", "logical_not": "int64", "logsumexp": "float32",
    "masked_fill": "bool", "nn.functional.avg_pool2d": "float32", "nn.functional.conv2d": "float32",
    "nn.functional.cross_entropy": "float32", "nn.functional.gelu": "float16",
    "nn.functional.max_pool2d": "float32", "nn.functional.pad.constant": "int64",
    "nn.functional.scaled_dot_product_attention": "float32", "softmax": "float16", "sub": "int64",
    "transpose": "bool", "var_mean": "float32", "where": "bool",
}  # fmt: skip

# Operators with a step of the host.
ON_THE_HOST = {
    "bitwise_and": "int64", "scatter_add": "float16", "nonzero": "bool",
    "linalg.qr": "float32", "fft.fft": "float32",
}  # fmt: skip


def attempt(op: str, dtype: str) -> Outcome:
    return check_compiled(_ops()[op], getattr(torch, dtype), torch.device("spyre"), SAMPLES)


@pytest.mark.parametrize(("op", "dtype"), ON_THE_CARD.items())
def test_compiled_operator_agrees_with_cpu_and_runs_on_the_card(op: str, dtype: str) -> None:
    outcome = attempt(op, dtype)
    assert outcome.status == "match", f"{outcome.status}: {outcome.message} ({outcome.sample})"
    assert outcome.way != HOST, outcome.host


@pytest.mark.parametrize(("op", "dtype"), ON_THE_HOST.items())
def test_compiled_operator_agrees_with_cpu_by_way_of_the_host(op: str, dtype: str) -> None:
    outcome = attempt(op, dtype)
    assert outcome.status == "match", f"{outcome.status}: {outcome.message} ({outcome.sample})"
    assert outcome.way == HOST and outcome.host


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_spyre._inductor.operations.opfunc_map import SpyreOpFuncs, opfunc

    wrong: Any = staticmethod(lambda x, y: opfunc("sub", x, y))
    monkeypatch.setattr(SpyreOpFuncs, "maximum", wrong)
    outcome = attempt("maximum", "float32")
    assert outcome.status == "mismatch" and "elements differ" in outcome.message


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Outcome("add", "bool", "match", way="native")
    failed = Outcome("sub", "int64", "error", "why")
    log = Log(tmp_path / "compiled.partial.jsonl", "this build")
    log.start([first])
    log.add(failed)
    assert log.read("") == [first, failed]
    assert log.read("match") == [first]
    assert Log(log.path, "another build").read("") == []
    assert Log(log.path, "another build").read("match,skipped") == [first]


def test_the_page_says_which_way_each_operator_takes() -> None:
    outcomes = (
        Outcome("add", "float16", "match", way="native"),
        Outcome("add", "int64", "match", way="extension"),
        Outcome("sort", "float16", "match", way="host", host=("aten.sort: no lowering",)),
        Outcome("view", "float16", "match", way="no operation"),
        Outcome("sub", "float16", "mismatch", "1 of 2 elements differ", "sample 1"),
    )
    result = Result("spyre", "2.13.0", 4, outcomes, compiled=True)
    page = as_page(result)
    assert "| `add` | native | ★ |  |" in page
    assert "| `sort` | host |  | aten.sort: no lowering |" in page
    assert "| `view` | – |  |  |" in page
    assert "| `sub` | float16 | mismatch | 1 of 2 elements differ (sample 1) |" in page
    assert not is_good(result) and is_good(Result("spyre", "2.13.0", 4, outcomes[:4], True))
