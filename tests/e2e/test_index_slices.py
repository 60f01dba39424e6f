"""Row numbers of gathers and scatters that are a slice, a row or an element of a larger table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support.together import host_steps, together

ROWS = 16

TABLES = {
    "1": (40,), "2": (2, 40), "3": (2, 3, 40), "4": (2, 2, 3, 40), "one row": (1, 40),
    "odd": (3, 5, 7), "columns": (40, 1),
}  # fmt: skip

ELEMENTS = (0, 1, -1, 7)


def slices(shape: tuple[int, ...]) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Views of a table: elements, parts of rows, columns, blocks and steps."""
    found: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    last = shape[-1]
    inside = tuple(min(1, n - 1) for n in shape[:-1])
    for i in (i for i in ELEMENTS if -last <= i < last):
        end = None if i == -1 else i + 1
        found[f"element {i}"] = lambda t, i=i, end=end: t[(*inside, slice(i, end))]
    for start, stop in ((0, 2), (1, None), (5, 9), (-3, None), (31, 34)):
        if len(range(last)[start:stop]) > 0:
            found[f"part {start}:{stop}"] = lambda t, a=start, b=stop: t[(*inside, slice(a, b))]
            found[f"block {start}:{stop}"] = lambda t, a=start, b=stop: t[..., a:b]
    found["steps"] = lambda t: t[(*inside, slice(None, None, 3))]
    found["clone"] = lambda t: t[(*inside, slice(0, 1))].clone()
    if len(shape) > 1:
        found["column"] = lambda t: t[..., -1]
        found["one of a column"] = lambda t: t[-1:, ..., last // 2]
        found["transposed"] = lambda t: t.transpose(0, -1)[last // 2 :]
    return found


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("name", TABLES)
def test_rows_are_read_by_any_view_of_a_table_of_indices(name: str, dtype: torch.dtype) -> None:
    shape = TABLES[name]
    weight = torch.randn(ROWS, 128, dtype=torch.float16)
    table = torch.randint(0, ROWS, shape, dtype=dtype)
    programs: dict[str, Callable[..., Any]] = {}
    for view, of in slices(shape).items():
        programs[f"embedding, {view}"] = lambda w, t, of=of: F.embedding(of(t), w)
        programs[f"index, {view}"] = lambda w, t, of=of: w[of(t)]
        programs[f"index_select, {view}"] = lambda w, t, of=of: w.index_select(0, of(t).flatten())
    report = together(programs, weight, table)
    assert not host_steps(report)


@pytest.mark.parametrize("name", ["1", "2", "3", "odd"])
def test_rows_are_written_by_any_view_of_a_table_of_indices(name: str) -> None:
    shape = TABLES[name]
    count = torch.Size(shape).numel()
    weight = torch.randn(count, 64, dtype=torch.float16)
    table = torch.randperm(count).reshape(shape)  # no row twice: which one wins is not defined
    values = torch.randn(count, 64, dtype=torch.float16)
    programs: dict[str, Callable[..., Any]] = {}
    for view, of in slices(shape).items():
        programs[f"index_copy, {view}"] = lambda w, t, v, of=of: w.index_copy(
            0, of(t).flatten(), v[: of(t).numel()]
        )
        programs[f"index_put, {view}"] = lambda w, t, v, of=of: torch.index_put(
            w, (of(t).flatten(),), v[: of(t).numel()] + 1
        )
    report = together(programs, weight, table, values)
    assert not host_steps(report)


def test_a_page_of_paged_attention_is_found_by_one_element_of_a_table() -> None:
    pages = torch.randn(6, 64, 2, 64, dtype=torch.float16)
    table = torch.tensor([[3, 1, 5], [0, 4, 2]])
    query = torch.randn(2, 4, 64, dtype=torch.float16)

    def attend(pages: torch.Tensor, table: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        found = [
            query @ pages.index_select(0, table[s, p : p + 1])[0].permute(1, 2, 0)
            for s in range(2)
            for p in range(3)
        ]
        return torch.stack(found)

    assert not host_steps(together({"scores": attend}, pages, table, query))
