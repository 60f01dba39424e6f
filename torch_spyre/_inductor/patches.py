"""Documented entry point: `enable_spyre_context`.

    with enable_spyre_context(example_inputs):
        compiled = torch._inductor.compile_fx.compile_fx(graph, example_inputs)

What is changed about PyTorch is in `torch_spyre/upstream`, and it asks each graph whether it is for
the card: nothing has to be enabled, and other devices are compiled as ever in the same block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch_spyre._inductor.compile import register


@contextlib.contextmanager
def enable_spyre_context(example_inputs: Any = None) -> Iterator[None]:
    """A block in which Inductor knows the card; it does so outside, too, from the first graph on.

    `example_inputs` are not needed: layouts are those of the tensors that a graph is compiled for.
    """
    register()
    yield
