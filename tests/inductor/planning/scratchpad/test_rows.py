"""Gathers, scatters and topk with scratchpads: rows that are chosen, put, and looked through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_spyre
from torch_spyre._inductor import config
from torch_spyre.backend.fuse.shared_lx import share_scratchpads
from torch_spyre.backend.read.bundle import read_bundle


def half(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size))).half()


ROWS = torch.randperm(96, generator=torch.Generator().manual_seed(0))

CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "an embedding": (
        lambda table, i: F.layer_norm(F.embedding(i, table) + 1, (128,)),
        [half(200, 128), ROWS.view(2, 48)],
    ),
    "rows that are put": (
        lambda x, i, y: x.neg().index_copy(0, i, y.relu() * 2) * 1.5,
        [half(96, 128), ROWS[:40], half(40, 128)],
    ),
    "the largest": (lambda x: (x * 2 + 1).topk(4, dim=0)[0], [half(96, 128)]),
}
# The operation, how many operands it has, and which of them.
IN_LX = {
    "an embedding": ("identity", 3, 2),
    "rows that are put": ("identity", 3, 0),
    "the largest": ("topkvalue", 2, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_cores_and_scratchpads(case):
    function, arguments = CASES[case]

    def run(cores: int, lx: bool) -> torch.Tensor:
        torch._dynamo.reset()
        with config.patch(cores=cores, lx_planning=lx), torch.spyre.sanitizer():
            return torch.compile(function)(*(a.to("spyre") for a in arguments)).cpu()

    plain = run(1, False)
    wide = [a.float() if a.is_floating_point() else a for a in arguments]
    torch.testing.assert_close(plain.float(), function(*wide), rtol=2e-2, atol=2e-2)
    for cores in (4, 5, 32):
        assert torch.equal(run(cores, True), plain)


@pytest.mark.parametrize("case", CASES)
def test_what_has_a_plain_share_for_each_core_stays_there(case):
    function, arguments = CASES[case]
    torch._dynamo.reset()
    told = torch_spyre.explain(function, *(a.to("spyre") for a in arguments))
    name, count, number = IN_LX[case]
    (op,) = [op for op in told.ops if op.opfunc == name and len(op.operands) == count]
    assert op.operands[number].place == "lx"
    others = [o.place for i, o in enumerate(op.operands) if i != number]
    (folder,) = told.artifacts
    bundle = read_bundle(Path(folder))
    assert share_scratchpads(bundle) is not bundle  # and the emulator keeps them in one piece
    assert set(others) == {"memory"}  # tables, indices and what they choose in are in memory
