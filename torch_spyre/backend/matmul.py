"""Matrix products as matmul steps.

In: an Sdsc of batchmatmul or batchmatmulfp8; its dimensions are mb (rows), in (K), out (N), and
batches. Out: one Matmul. Masked indices of `in` do not take part; cores that divide `in` form
groups whose partial sums are added.
"""

from __future__ import annotations

from torch_spyre.backend.sdsc import Sdsc, Tensor
from torch_spyre.backend.steps import Matmul, MatmulSide
from torch_spyre.backend.tile import reduction_groups, tensor_address

ROWS, DEPTH, COLUMNS = "mb", "in", "out"


def lower_matmul(sdsc: Sdsc) -> Matmul:
    """One product as one step."""
    x, y = (sdsc.tensors[i] for i in sdsc.inputs)
    out = sdsc.tensors[sdsc.output]
    batch = tuple(d for d in sdsc.dims if d not in (ROWS, DEPTH, COLUMNS) and sdsc.size(d) > 1)
    rows = sdsc.slice_size(ROWS) if ROWS in sdsc.dims else 1
    extents = tuple(
        (
            *(sdsc.slice_size(d) for d in batch),
            rows,
            _columns(sdsc, out, core),
            sdsc.valid_in_slice(core, DEPTH),
        )
        for core in range(sdsc.cores)
    )
    return Matmul(
        name=sdsc.op,
        cores=sdsc.cores,
        batch=len(batch),
        extents=extents,
        x=_side(sdsc, x, (*batch, ROWS, DEPTH)),
        y=_side(sdsc, y, (*batch, DEPTH, COLUMNS)),
        out=_side(sdsc, out, (*batch, ROWS, COLUMNS)),
        groups=reduction_groups(sdsc),
        source=(sdsc.op,),
    )


def _columns(sdsc: Sdsc, out: Tensor, core: int) -> int:
    """Sticks of the result that a core computes: y may be padded further than the result is."""
    own = -(-sdsc.slice_size(COLUMNS) // out.per_stick)
    if out.gap(COLUMNS) >= 0:
        return own
    before = 0 if out.in_lx else sdsc.slice(core, COLUMNS) * own
    return max(0, min(own, sdsc.axes(out)[COLUMNS].entries - before))


def _side(sdsc: Sdsc, tensor: Tensor, dims: tuple[str, ...]) -> MatmulSide:
    axes = sdsc.axes(tensor)
    strides = tuple(axes[d].stride if d in axes else 0 for d in dims)
    return MatmulSide(tensor.format.number, strides, tensor_address(sdsc, tensor))
