"""Bundles: a directory with one sdsc_<i>.json per operation and the bundle.mlir that runs them.

In: OpSpecs (aligned, divided over cores) and LoopSpecs, in order. Out: files. With symbolic
addresses each kernel argument is a parameter of the function, and loops stay loops; with concrete
addresses they are constants in the files, and loops are unrolled.

Example: one operation on one core, with two tensors and symbolic addresses, runs as
`sdscbundle.sdsc_execute (%arg_0, %arg_1) {sdsc_filename="sdsc_0.json", "symbol_ids"=[-1, -2]}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch_spyre._inductor.codegen.addresses import different_addresses
from torch_spyre._inductor.codegen.json_text import dump_json
from torch_spyre._inductor.codegen.superdsc import generate
from torch_spyre._inductor.codegen.symbols import LX, POOL, Address, SymbolTable
from torch_spyre._inductor.opspec.access import InvalidOpSpec
from torch_spyre._inductor.opspec.frames import Frame, content_key, frame_of
from torch_spyre._inductor.opspec.loops import Spec, unroll
from torch_spyre._inductor.opspec.op_spec import LoopSpec, OpSpec, UnimplementedOp


def generate_bundle(
    specs: Sequence[Spec],
    directory: str | Path,
    *,
    symbolic: bool = True,
    has_pool: bool,
    unroll_loops: bool = True,
    k_fast: bool = True,
    num_args: int = 0,
    share: bool = False,
) -> Written:
    """Write the bundle into a directory that exists. `num_args` is the number of kernel arguments,
    if the last ones are not used by any operation. `share`: with symbolic addresses, operations
    that differ only in addresses have one file, which runs several times.

    What goes wrong with an operation is a FailedOperation, whose cause says what."""
    folder = Path(directory)
    writer = _Writer(folder, SymbolTable() if symbolic else None, has_pool, k_fast)
    writer.share = share and symbolic
    writer.num_args = max(num_args, 1 + _largest_argument(specs))
    body = unroll(specs) if unroll_loops or not symbolic else specs
    writer.write_specs(body, [])
    (folder / "bundle.mlir").write_text(writer.mlir())
    return Written(writer.operations, writer.files)


class Written(NamedTuple):
    """How many operations a bundle runs, and how many files they share."""

    operations: int
    files: int


class FailedOperation(Exception):
    """An operation whose file could not be written."""

    def __init__(self, index: int, name: str) -> None:
        super().__init__(f"operation {index} of the bundle, {name}")
        self.index = index


def _largest_argument(specs: Sequence[Spec]) -> int:
    largest = -1
    for spec in specs:
        if isinstance(spec, LoopSpec):
            largest = max(largest, _largest_argument(spec.body))
        elif isinstance(spec, OpSpec):
            largest = max(largest, *(arg.arg_index for arg in spec.args))
    return largest


# ---- bundle.mlir ---------------------------------------------------------------------------------


class _Writer:
    """Collects the lines of bundle.mlir while the operations are written one by one."""

    def __init__(
        self, folder: Path, symbols: SymbolTable | None, has_pool: bool, k_fast: bool
    ) -> None:
        self.folder = folder
        self.symbols = symbols
        self.has_pool = has_pool
        self.k_fast = k_fast
        self.num_args = 0
        self.share = False
        self.operations = 0
        self.files = 0
        self.shared: dict[tuple[Any, ...], tuple[str, str]] = {}
        """File and symbol ids of what was written, by content and by which addresses are equal."""
        self.frames: dict[tuple[Any, ...], tuple[Frame, int]] = {}
        self.contents: dict[tuple[Any, ...], int] = {}
        self.loop_bounds: list[int] = []
        self.applied = 0
        self.maps: dict[tuple[int, ...], str] = {}
        self.bases: dict[Address, str] = {}
        """Name of every address that no loop moves, in order of first use."""
        self.base_lines: list[str] = []
        self.pool_lines: list[str] = []
        self.body: list[str] = []

    def write_specs(self, specs: Sequence[Spec], loops: list[int]) -> None:
        tabs = "\t" * (2 + len(loops))
        for spec in specs:
            if isinstance(spec, LoopSpec):
                number = len(self.loop_bounds)
                self.loop_bounds.append(spec.count)
                bounds = f"%c0 to %loop_bound_{number} step %c1"
                self.body.append(f"{tabs}scf.for %i_{number} = {bounds} {{")
                self.write_specs(spec.body, [*loops, number])
                self.body.append(f"{tabs}}}")
            elif isinstance(spec, UnimplementedOp):
                raise InvalidOpSpec("operations of a bundle", "bundle", spec.op, "OpFuncs")
            else:
                self._write_op(spec, loops, tabs)

    def _write_op(self, op: OpSpec, loops: list[int], tabs: str) -> None:
        """Write the file of an operation, if no equal one has it, and the line that runs it."""
        index = self.operations
        self.operations += 1
        counts = [self.loop_bounds[number] for number in loops]
        try:
            if self.symbols is None:
                name = self._write_file(op, index, counts)
                self.body.append(f'{tabs}sdscbundle.sdsc_execute () {{sdsc_filename="{name}"}}')
                return
            numbers, key = self._number(op, counts)
            known = self.shared.get(key) if self.share else None
            if known is None:
                name = self._write_file(op, index, counts)
                ids = ", ".join([str(n) for n in self.symbols.files.get(index, {}).values()])
                known = self.shared[key] = (name, ids)
        except Exception as problem:
            raise FailedOperation(index, op.op) from problem
        name, ids = known
        bases = self.bases
        operands = ", ".join(
            [bases.get(address) or self._operand(address, loops, tabs) for address in numbers]
        )
        attributes = f'{{sdsc_filename="{name}", "symbol_ids"=[{ids}]}}'
        self.body.append(f"{tabs}sdscbundle.sdsc_execute ({operands}) {attributes}")

    def _write_file(self, op: OpSpec, index: int, counts: list[int]) -> str:
        """A file is named by the number of the first operation that it is for."""
        name = f"sdsc_{index}.json"
        content = generate(
            op,
            index,
            self.symbols,
            has_pool=self.has_pool,
            k_fast=self.k_fast,
            loop_counts=counts,
        )
        (self.folder / name).write_text(dump_json(content))
        self.files += 1
        return name

    def _number(self, op: OpSpec, counts: list[int]) -> tuple[dict[Address, int], tuple[Any, ...]]:
        """The addresses of an operation in the order of their symbols, and the key of its file:
        its content, what it has in LX, and which of its addresses are the same."""
        frame, number = self._frame(op, counts)
        numbers: dict[Address, int] = {}
        pattern: list[Any] = []
        for places in different_addresses(frame, op):
            if places[0].base == LX:
                pattern.append(places[0])
            else:
                pattern.append(tuple([numbers.setdefault(p, len(numbers)) for p in places]))
        return numbers, (number, *pattern)

    def _frame(self, op: OpSpec, counts: list[int]) -> tuple[Frame, int]:
        """The frame of an operation, with a number for its content. Layers that are alike have
        sizes and coordinates in common, as objects: found by these, which live as long as this."""
        ids = (
            op.op, op.is_reduction, id(op.iteration_space), id(op.op_info) if op.op_info else 0,
            tuple(op.tiled_symbols), tuple(counts),
            *[(id(a.device_size), id(a.device_coordinates), id(a.stride_map), "lx" in a.allocation,
               a.is_input, a.device_dtype, a.per_tile_fixed, a.fixed_loops, a.name,
               a.element_arrangement) for a in op.args],
        )  # fmt: skip
        if ids not in self.frames:
            content = content_key(op, self.k_fast, counts)
            number = self.contents.setdefault(content, len(self.contents))
            self.frames[ids] = frame_of(op, self.k_fast, counts), number
        return self.frames[ids]

    def _operand(self, address: Address, loops: list[int], tabs: str) -> str:
        base = self._base(Address(address.base, address.offset))
        if not address.strides:
            return base
        mapping = self.maps.setdefault(address.strides, f"#map_{len(self.maps)}")
        counters = ", ".join(f"%i_{number}" for number in loops[-len(address.strides) :])
        name = f"%addr_{self.applied}"
        self.applied += 1
        self.body.append(f"{tabs}{name} = affine.apply {mapping}({counters})[{base}]")
        return name

    def _base(self, address: Address) -> str:
        """The name of base + offset, computed once at the top of the function."""
        known = self.bases.get(address)
        if known is not None:
            return known
        base, offset, _ = address
        if base == POOL:
            name, start = f"%pool_addr_{offset}", "%pool"
            constant, lines = f"%pool_offset_{offset}", self.pool_lines
        else:
            name, start = f"%arg_{base}_core_{offset}", f"%arg_{base}"
            constant, lines = f"%arg_{base}_core_offset_{offset}", self.base_lines
            if offset == 0:
                name = start
        if name != start:
            lines.append(f"\t\t{constant} = arith.constant {offset} : index")
            lines.append(f"\t\t{name} = arith.addi {start}, {constant} : index")
        self.bases[address] = name
        return name

    def mlir(self) -> str:
        names = []
        if self.symbols is not None:
            names = ["pool"] if self.has_pool else []
            names += [f"arg_{number}" for number in range(self.num_args)]
        form = "!sdscbundle.input_arg<index>"
        lines = [self._map(strides, name) for strides, name in self.maps.items()]
        parameters = ", ".join(f"%{name}_base_addr: {form}" for name in names)
        lines += ["module {", f"\tfunc.func @sdsc_bundle({parameters}) {{"]
        extract = "sdscbundle.input_arg_extract value from"
        lines += [f"\t\t%{n} = {extract} %{n}_base_addr : {form} -> index" for n in names]
        if self.loop_bounds:
            constants = {"c0": 0, "c1": 1}
            constants |= {f"loop_bound_{n}": count for n, count in enumerate(self.loop_bounds)}
            lines += [
                f"\t\t%{n} = arith.constant {value} : index" for n, value in constants.items()
            ]
        lines += [*self.base_lines, *self.pool_lines, *self.body, "\t\treturn", "\t}", "}", ""]
        return "\n".join(lines)

    def _map(self, strides: tuple[int, ...], name: str) -> str:
        counters = ", ".join(f"d{n}" for n in range(len(strides)))
        total = " + ".join(["s0", *(f"{stride}*d{n}" for n, stride in enumerate(strides))])
        return f"{name} = affine_map<({counters})[s0] -> ({total})>"
