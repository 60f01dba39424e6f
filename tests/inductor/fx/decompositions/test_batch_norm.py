"""Batch norms in inference, with and without what they may have."""

from __future__ import annotations

import torch

from tests.support.together import host_steps, together

F = torch.nn.functional


def test_a_batch_norm_in_inference_follows_the_cpu() -> None:
    generator = torch.Generator().manual_seed(2)
    x, mean, var, weight, bias = (
        torch.rand(shape, generator=generator).half() + 0.25
        for shape in ((2, 70, 5, 6), (70,), (70,), (70,), (70,))
    )
    programs = {
        "all": lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        "no factor": lambda x, m, v, w, b: F.batch_norm(x, m, v, None, None, eps=0.1),
        "one dimension": lambda x, m, v, w, b: F.batch_norm(x[:, :, 0], m, v, w, b),
        "none": lambda x, m, v, w, b: F.batch_norm(x[:, :, 1, 2], m, v, w, b),
        "float32": lambda x, m, v, w, b: F.batch_norm(
            x.float(), m.float(), v.float(), w.float(), b.float()
        ),
    }
    assert not host_steps(together(programs, x, mean, var, weight, bias, tolerance=2.0**-9))
