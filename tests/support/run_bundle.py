"""Runs bundles on the card and compares them with PyTorch on the CPU.

In: operations of make_bundle and host tensors. Out: what the card computed. A host tensor has one
dimension for each dimension that its tensor walks over, in the order of the operation's sizes;
padding is added by the layout. Tensors in the pool have no host side.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

import torch_spyre._C as _C
from tests.support.make_bundle import (
    INT32,
    POOL,
    UINT32,
    Op,
    Repeat,
    T,
    axis_entries,
    flatten,
    write_bundle,
)
from torch_spyre.backend import compile_bundle, write_checks


def layout_of(operation: Op, tensor: T, host: torch.Tensor) -> _C.SpyreTensorLayout:
    """The layout that the operation's fields describe, for a host tensor of this shape."""
    entries = axis_entries(operation, tensor)
    dims = tensor.host or [d for d in operation.sizes if d in entries]
    strides = dict(zip(dims, host.stride()))
    sizes = dict(zip(dims, host.shape))
    device_size, stride_map = [], []
    for dim in reversed(entries):
        step = strides[dim] * (tensor.per_stick if dim == tensor.stick else 1)
        device_size.append(entries[dim])
        count = -(-sizes[dim] // tensor.per_stick) if dim == tensor.stick else sizes[dim]
        stride_map.append(step if count > 1 else -1)
    device_size.append(tensor.per_stick)
    one = tensor.stick not in entries or sizes[tensor.stick] == 1
    stride_map.append(-1 if one else strides[tensor.stick])
    arrangement = getattr(_C.ElementArrangement, tensor.arrangement)
    fmt = getattr(_C.DataFormats, INT32 if tensor.fmt == UINT32 else tensor.fmt)
    return _C.SpyreTensorLayout(device_size, stride_map, fmt, arrangement)


def to_card(host: torch.Tensor, layout: _C.SpyreTensorLayout) -> torch.Tensor:
    tensor = _C.spyre_empty_with_layout(list(host.shape), list(host.stride()), host.dtype, layout)
    tensor.copy_(host)
    return tensor


def run(
    directory: Path,
    nodes: Sequence[Op | Repeat],
    *hosts: torch.Tensor,
    fuse: bool = True,
    symbolic: bool = True,
    pool_bytes: int = 1 << 20,
) -> list[torch.Tensor]:
    """Compile and run; the arguments afterwards, as host tensors. `hosts` are the arguments 0, 1,
    ... before."""
    operations = flatten(nodes)
    write_bundle(directory, nodes, symbolic=symbolic)
    has_pool = any(t.where == POOL for o in operations for t in o.tensors)
    arguments = []
    for number, host in enumerate(hosts):
        uses = [(o, t) for o in operations for t in o.tensors if t.where == number]
        layout = layout_of(*uses[0], host) if uses else None
        arguments.append(to_card(host, layout) if layout else host.to("spyre"))
    pool = [torch.zeros(pool_bytes // 4, device="spyre")] if has_pool else []
    code = compile_bundle(directory, fuse=fuse, pool=has_pool and not symbolic)
    if torch.spyre.is_sanitizing():
        write_checks(directory, code, fuse=fuse, pool=has_pool and not symbolic)
    plan = _C.prepare_kernel(str(code))
    _C.launch_jobplan(plan, [*pool, *arguments])
    torch.spyre.synchronize()
    return [argument.cpu() for argument in arguments]
