"""Bundles: a directory with one sdsc_<i>.json per operation and the bundle.mlir that runs them.

In: OpSpecs (aligned, divided over cores) and LoopSpecs, in order. Out: files. With symbolic
addresses each kernel argument is a parameter of the function, and loops can stay loops; with
concrete ones addresses stand in the files and loops are written out.

Example: one operation on one core, with two tensors and symbolic addresses, runs as
`sdscbundle.sdsc_execute (%arg_0, %arg_1) {sdsc_filename="sdsc_0.json", "symbol_ids"=[-1, -2]}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch_spyre._inductor.codegen.access import InvalidOpSpec
from torch_spyre._inductor.codegen.json_text import dump_json
from torch_spyre._inductor.codegen.loops import Spec, unroll
from torch_spyre._inductor.codegen.superdsc import generate
from torch_spyre._inductor.codegen.symbols import POOL, Address, SymbolTable
from torch_spyre._inductor.op_spec import LoopSpec, OpSpec, UnimplementedOp


def generate_bundle(
    specs: Sequence[Spec],
    directory: str | Path,
    *,
    symbolic: bool = True,
    has_pool: bool,
    unroll_loops: bool = True,
    k_fast: bool = True,
    num_args: int = 0,
) -> None:
    """Write the bundle into a directory that exists. `num_args` is the number of kernel arguments,
    if the last ones are not used by any operation."""
    folder = Path(directory)
    writer = _Writer(folder, SymbolTable() if symbolic else None, has_pool, k_fast)
    writer.num_args = max(num_args, 1 + _largest_argument(specs))
    body = unroll(specs) if unroll_loops or not symbolic else specs
    writer.write_specs(body, [])
    (folder / "bundle.mlir").write_text(writer.mlir())


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
        self.files = 0
        self.loop_bounds: list[int] = []
        self.applied = 0
        self.maps: dict[tuple[int, ...], str] = {}
        self.bases: dict[tuple[int, int], str] = {}
        """Name of every base + offset, in order of first use."""
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
        index = self.files
        self.files += 1
        name = f"sdsc_{index}.json"
        counts = [self.loop_bounds[number] for number in loops]
        content = generate(
            op,
            index,
            self.symbols,
            has_pool=self.has_pool,
            k_fast=self.k_fast,
            loop_counts=counts,
        )
        (self.folder / name).write_text(dump_json(content))
        if self.symbols is None:
            self.body.append(f'{tabs}sdscbundle.sdsc_execute () {{sdsc_filename="{name}"}}')
            return
        symbols = self.symbols.files.get(index, {})
        operands = ", ".join([self._operand(address, loops, tabs) for address in symbols])
        ids = ", ".join([str(number) for number in symbols.values()])
        attributes = f'{{sdsc_filename="{name}", "symbol_ids"=[{ids}]}}'
        self.body.append(f"{tabs}sdscbundle.sdsc_execute ({operands}) {attributes}")

    def _operand(self, address: Address, loops: list[int], tabs: str) -> str:
        base = self._base(address.base, address.offset)
        if not address.strides:
            return base
        mapping = self.maps.setdefault(address.strides, f"#map_{len(self.maps)}")
        counters = ", ".join(f"%i_{number}" for number in loops[-len(address.strides) :])
        name = f"%addr_{self.applied}"
        self.applied += 1
        self.body.append(f"{tabs}{name} = affine.apply {mapping}({counters})[{base}]")
        return name

    def _base(self, base: int, offset: int) -> str:
        """The name of base + offset, computed once at the top of the function."""
        known = self.bases.get((base, offset))
        if known is not None:
            return known
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
        self.bases[base, offset] = name
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
