"""Every operation of the OpFunc table against CPU float32: shapes, views, types, cores.

`pytest --full` runs every operation on every number of cores; by default each number of cores gets
a part of them, and a few operations get all.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.cases import cases, rows_under_test, run_cases
from torch_spyre.opfuncs import OpFunc

CORES = (1, 4, 5, 32)
ALWAYS = ("add", "where3", "sum", "max", "batchmatmul")
DTYPES = (torch.float16, torch.float32)


def _matrix() -> list[object]:
    made: list[object] = []
    for r, row in enumerate(rows_under_test()):
        for d, dtype in enumerate(DTYPES):
            for c, cores in enumerate(CORES):
                chosen = row.name in ALWAYS or (r + d) % len(CORES) == c
                name = f"{row.name}-{str(dtype)[6:]}-{cores}"
                marks = () if chosen else (pytest.mark.full,)
                made.append(pytest.param(row, dtype, cores, id=name, marks=marks))
    return made


@pytest.mark.parametrize(("row", "dtype", "cores"), _matrix())
def test_operation_gives_what_rounding_explains(
    row: OpFunc, dtype: torch.dtype, cores: int
) -> None:
    from torch_spyre._inductor import config

    torch.spyre.reset_fallback_counts()
    made = cases(row, dtype)
    with config.patch(cores=cores):
        problems = run_cases(made, dtype)
    assert not problems, f"{len(problems)} of {len(made)} cases:\n" + "\n".join(problems[:20])
    assert not torch.spyre.fallback_counts(), "every case runs on the card"
