"""One operation of a bundle, as data.

`sdsc_reader` makes it of an sdsc_<i>.json, `rules` examines it, `lower` turns it into steps. It
holds no addresses and no file names, so equal operations are equal values and are lowered once.

Example: `sdsc.size("mb")` is N_["mb_"], `sdsc.slice_size("mb")` what one core does of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from torch_spyre.backend.formats import Format
from torch_spyre.card_model.view_slices import Walk, local_storage
from torch_spyre.opfuncs import NONSTICK, OPFUNCS, OpFunc, find

MASK_CONSTANT = "samv-maskvalue"


@dataclass(frozen=True)
class Placement:
    """Layout of a storage and the shape it was made for; of a relayout only."""

    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    view_stride: tuple[int, ...]
    """One for each dimension, in label order."""
    view_offset: int


@dataclass(frozen=True)
class Parts:
    """How a tensor in scratchpads is spread over cores, where that is not as the operation is."""

    splits: tuple[tuple[str, int], ...]
    """By dimension: 1, or its size."""
    slices: tuple[tuple[int, tuple[int, ...]], ...]
    """The cores that have a part, and for each its slice of each dimension."""

    def split(self, dim: str) -> int:
        return dict(self.splits)[dim]


@dataclass(frozen=True)
class Tensor:
    """A labeled data structure with its allocate node."""

    number: int
    name: str
    label: str
    format: Format
    arrangement: str
    order: tuple[str, ...]
    """layoutDimOrder_ of the node: the axis nearest to the stick first."""
    label_order: tuple[str, ...]
    scales: tuple[tuple[str, int], ...]
    stick: str
    per_stick: int
    in_lx: bool
    gaps: tuple[tuple[str, int], ...]
    indirection: str
    placement: Placement | None = None
    parts: Parts | None = None
    """Of a move over the ring: which part each core has."""
    shared: bool = False
    """In LX, but all cores' slices are kept in one piece, as in memory: see `sharing`."""

    @property
    def is_local(self) -> bool:
        """A core has its own slice only, in its scratchpad."""
        return self.in_lx and not self.shared

    def scale(self, dim: str) -> int:
        """1, -1 or -2; a dimension that the tensor does not have counts as -1."""
        return dict(self.scales).get(dim, -1)

    def gap(self, dim: str) -> int:
        return dict(self.gaps).get(dim, 0)

    @property
    def is_dense(self) -> bool:
        """Its sticks hold one element for each lane."""
        return self.scale(self.stick) == 1


@dataclass(frozen=True)
class Axis:
    """A device axis that a dimension walks over."""

    entries: int
    stride: int
    """Bytes."""


@dataclass(frozen=True)
class Constant:
    name: str
    format: str
    bits: int
    value: float


@dataclass(frozen=True)
class Sdsc:
    """What one core does, and which core does what."""

    op: str
    """As in the file, e.g. sumnonstick."""
    sizes: tuple[tuple[str, int], ...]
    splits: tuple[tuple[str, int], ...]
    slices: tuple[tuple[int, ...], ...]
    """For each core its slice of each dimension, in the order of `sizes`."""
    masks: tuple[tuple[str, int, int], ...]
    constants: tuple[Constant, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    """Numbers of tensors; without the output, which reductions list too."""
    output: int
    index: int | None = None
    """The index tensor of a gather or a scatter."""
    _memo: dict[int, dict[str, Axis]] = field(
        default_factory=dict, compare=False, hash=False, repr=False
    )

    _offsets: dict[tuple[int, str], tuple[int, ...]] = field(
        default_factory=dict, compare=False, hash=False, repr=False
    )

    @property
    def cores(self) -> int:
        return len(self.slices)

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(d for d, _ in self.sizes)

    @property
    def opfunc(self) -> OpFunc:
        found = find(self.op)
        return found if found is not None else OPFUNCS[self.op]

    @property
    def scatters(self) -> bool:
        """The index tensor chooses rows of the output, not of the input."""
        return self.index is not None and self.tensors[self.output].indirection == "value_tensor"

    @property
    def is_nonstick(self) -> bool:
        return self.opfunc.kind == "reduction" and self.op.endswith(NONSTICK)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return dict(self.sizes)

    @cached_property
    def _splits(self) -> dict[str, int]:
        return dict(self.splits)

    @cached_property
    def _position(self) -> dict[str, int]:
        return {d: i for i, (d, _) in enumerate(self.sizes)}

    def size(self, dim: str) -> int:
        return self._sizes[dim]

    def split(self, dim: str) -> int:
        return self._splits[dim]

    def slice_size(self, dim: str) -> int:
        """Indices of the dimension that one core does."""
        return self._sizes[dim] // self._splits[dim]

    def slice(self, core: int, dim: str) -> int:
        return self.slices[core][self._position[dim]]

    def valid(self, dim: str) -> int:
        """Indices of the dimension that are not padding."""
        return min((first for d, first, _ in self.masks if d == dim), default=self.size(dim))

    def valid_in_slice(self, core: int, dim: str) -> int:
        step = self.slice_size(dim)
        return max(0, min(step, self.valid(dim) - self.slice(core, dim) * step))

    def walk(self, tensor: Tensor) -> Walk:
        """How a relayout walks over one of its tensors."""
        placement = tensor.placement
        assert placement is not None
        stride = dict(zip(tensor.label_order, placement.view_stride))
        return Walk(
            tuple([size for _, size in self.sizes]),
            tuple([stride.get(d, 0) for d in self.dims]),
            placement.view_offset,
            placement.device_size,
            placement.stride_map,
            prod(placement.size),
            tensor.number == self.output,
        )

    def constant(self, name: str) -> float:
        return next(c.value for c in self.constants if c.name == name)

    def local_size(self, tensor: Tensor, dim: str) -> int:
        """Iterated indices of the dimension in one storage: LX holds a core's slice only."""
        if not tensor.is_local:
            return self.size(dim)
        split = self.split(dim) if tensor.parts is None else tensor.parts.split(dim)
        return self.size(dim) // split

    def axes(self, tensor: Tensor) -> dict[str, Axis]:
        """The device axes of a tensor by dimension, nearest to the stick first."""
        if tensor.number not in self._memo:
            axes: dict[str, Axis] = {}
            stride = 128
            for dim in tensor.order:
                if tensor.scale(dim) != 1:
                    continue
                entries = self.local_size(tensor, dim) + tensor.gap(dim)
                if dim == tensor.stick:
                    entries //= tensor.per_stick
                axes[dim] = Axis(entries, stride)
                stride *= entries
            self._memo[tensor.number] = axes
        return self._memo[tensor.number]

    def storage_bytes(self, tensor: Tensor) -> int:
        """Of a tensor; in LX of what a core has of it."""
        if tensor.placement is not None:
            size = tensor.placement.device_size
            if tensor.is_local:
                own = local_storage(self.walk(tensor), [n for _, n in self.splits])
                assert own is not None, tensor  # rules._check_relayout has seen to that
                size = own.device_size
            return 128 * prod(size[:-1])
        return 128 * prod(axis.entries for axis in self.axes(tensor).values())

    def slice_offsets(self, tensor: Tensor, skip: str = "") -> tuple[int, ...]:
        """`slice_offset` of every core."""
        key = (tensor.number, skip)
        if key not in self._offsets:
            cores = range(self.cores)
            self._offsets[key] = tuple(self.slice_offset(tensor, core, skip) for core in cores)
        return self._offsets[key]

    def slice_offset(self, tensor: Tensor, core: int, skip: str = "") -> int:
        """Bytes from where core (0, 0, ...) begins to where this core begins."""
        if tensor.is_local or tensor.placement is not None:
            return 0  # the views of a relayout begin where the slices do
        offset = 0
        for dim, axis in self.axes(tensor).items():
            first = self.slice(core, dim) * self.slice_size(dim)
            if dim == skip:
                continue
            if dim == tensor.stick:
                sticks, rest = divmod(first, tensor.per_stick)
                offset += sticks * axis.stride + rest * tensor.format.bytes
            else:
                offset += first * axis.stride
        return offset

    @property
    def stick(self) -> str:
        """The dimension along which the sticks of a tile program lie."""
        tensors = [self.tensors[i] for i in (*self.inputs, self.output)]
        return next((t.stick for t in tensors if t.is_dense), tensors[-1].stick)

    def reduced_dims(self) -> tuple[str, ...]:
        """Dimensions that the output does not have."""
        out = self.tensors[self.output]
        return tuple(d for d in self.dims if out.scale(d) != 1)
