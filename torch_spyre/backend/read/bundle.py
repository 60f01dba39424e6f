"""Reads a bundle directory: bundle.mlir and the sdsc files it runs.

In: a directory as docs/formats/superdsc.md describes it. Out: a Bundle, whose operations have their
addresses, in the order and the loops in which they run. Whatever is wrong is a BundleError that
names file, field, what was found and what is allowed.

Example: `read_bundle("tests/backend/handwritten").operations()[0].sdsc.op` is "add".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch_spyre.backend.errors import BundleError, refuse
from torch_spyre.backend.read.mlir import parse_bundle_mlir
from torch_spyre.backend.read.mlir_function import Execute, Function, Loop, Node, Value
from torch_spyre.backend.read.rules import (
    check_addresses,
    check_coordinates,
    check_sdsc,
    node_path,
)
from torch_spyre.backend.read.sdsc import Sdsc, Tensor
from torch_spyre.backend.read.sdsc_reader import SdscFile, read_sdsc
from torch_spyre.backend.steps import Address, Space
from torch_spyre.constants import SEGMENT_BYTES

BUNDLE_FILE = "bundle.mlir"


@dataclass(frozen=True)
class Operation:
    """One run of an sdsc file."""

    file: str
    name: str
    """Key of the file, e.g. 0_add; with its own number when another one had the file before."""
    sdsc: Sdsc
    addresses: tuple[Address, ...]
    """One for each tensor."""
    copies: tuple[Operation, ...] = ()
    """Copies beside it that the emulator need not make; they cost what they cost on the card."""


@dataclass(frozen=True)
class OperationLoop:
    count: int
    body: tuple[Operation | OperationLoop, ...]


BundleNode = Operation | OperationLoop


@dataclass(frozen=True)
class Bundle:
    directory: Path
    parameters: tuple[str, ...]
    """Of the function; empty when addresses are concrete."""
    pool: int | None
    """Number of the argument that holds intermediates only, if there is one."""
    body: tuple[BundleNode, ...]

    def operations(self) -> list[Operation]:
        """All of them in order, loops flattened."""
        return list(_flatten(self.body))


def _flatten(nodes: tuple[BundleNode, ...]) -> Iterator[Operation]:
    for node in nodes:
        if isinstance(node, OperationLoop):
            yield from _flatten(node.body)
        else:
            yield node


def bundle_files(directory: Path) -> list[Path]:
    """bundle.mlir and the sdsc files, in order of their names."""
    return [directory / BUNDLE_FILE, *sorted(directory.glob("sdsc_*.json"))]


def read_bundle(directory: str | Path, *, pool: bool = False) -> Bundle:
    """Read and check a bundle.

    `pool` says that argument 0 is the pool in a bundle with concrete addresses, which can not say
    so itself; in one with parameters the name of the first says it."""
    directory = Path(directory)
    if not directory.is_dir():
        raise BundleError(f"{directory}: found no such directory, allowed: a bundle directory")
    path = directory / BUNDLE_FILE
    if not path.is_file():
        raise BundleError(f"{directory}: found no {BUNDLE_FILE}, allowed: a bundle with that file")
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise BundleError(f"{BUNDLE_FILE}: found {error}, allowed: UTF-8 text") from None
    function = parse_bundle_mlir(text, BUNDLE_FILE)
    binder = _Binder(directory, function)
    body = binder.bind_nodes(function.body, 0)
    for other in bundle_files(directory)[1:]:
        if other.name not in binder.files:
            raise BundleError(
                f"{other.name}: found no sdsc_execute of it in {BUNDLE_FILE}, "
                "allowed: files that are used"
            )
    for file in binder.files.values():
        check_coordinates(file)
    has_pool = function.has_pool if function.parameters else pool
    return Bundle(directory, function.parameters, 0 if has_pool else None, body)


class _Binder:
    """Gives the runs of files their addresses."""

    def __init__(self, directory: Path, function: Function) -> None:
        self._directory = directory
        self._function = function
        self._runs = 0
        self.files: dict[str, SdscFile] = {}

    def bind_nodes(self, nodes: tuple[Node, ...], depth: int) -> tuple[BundleNode, ...]:
        bound: list[BundleNode] = []
        for node in nodes:
            if isinstance(node, Loop):
                bound.append(OperationLoop(node.count, self.bind_nodes(node.body, depth + 1)))
            else:
                bound.append(self._bind(node, depth))
        return tuple(bound)

    def _bind(self, node: Execute, depth: int) -> Operation:
        seen = node.file in self.files
        file = self.files[node.file] if seen else self._read(node)
        symbols = dict(node.symbols)
        addresses = tuple(
            _address(file, tensor, symbols, self._function, node, depth)
            for tensor in file.sdsc.tensors
        )
        if not symbols.keys() <= file.symbols:
            strange = next(s for s in symbols if s not in file.symbols)
            known = ", ".join(map(str, sorted(file.symbols, reverse=True))) or "none"
            raise BundleError(
                f"{BUNDLE_FILE}: line {node.line}: found symbol id {strange}, which {file.file} "
                f"does not use, allowed: {known}"
            )
        check_addresses(file, addresses)
        name = f"{self._runs}_{file.sdsc.op}" if seen else file.key
        self._runs += 1
        return Operation(file.file, name, file.sdsc, addresses)

    def _read(self, node: Execute) -> SdscFile:
        path = self._directory / node.file
        if Path(node.file).name != node.file or not path.is_file():
            known = ", ".join(p.name for p in bundle_files(self._directory)[1:]) or "none"
            raise BundleError(
                f"{BUNDLE_FILE}: line {node.line}: found unknown file '{node.file}', "
                f"allowed: {known}"
            )
        file = read_sdsc(path)
        check_sdsc(file)
        self.files[node.file] = file
        return file


def _address(
    file: SdscFile,
    tensor: Tensor,
    symbols: dict[int, Value],
    function: Function,
    node: Execute,
    depth: int,
) -> Address:
    starts = file.starts[tensor.number]
    field = f"{node_path(file, tensor)}.startAddressCoreCorelet_.data_"
    if tensor.in_lx:
        if file.symbolic[tensor.number]:
            refuse(file.file, field, "symbol ids in LX", "addresses in the scratchpad")
        return Address(Space.LX, 0, starts, (0,) * depth)
    if not file.symbolic[tensor.number]:
        if function.parameters:
            refuse(
                file.file,
                field,
                f"the address {starts[0]}, but {BUNDLE_FILE} has parameters",
                "symbol ids, with isStartAddrSymbolic_ 1",
            )
        segments = {start // SEGMENT_BYTES for start in starts}
        if len(segments) > 1:
            refuse(file.file, field, f"addresses in segments {sorted(segments)}", "one segment")
        offsets = tuple(start % SEGMENT_BYTES for start in starts)
        return Address(Space.ARGUMENT, segments.pop(), offsets, (0,) * depth)
    missing = next((core for core, start in enumerate(starts) if start not in symbols), None)
    if missing is not None:
        known = ", ".join(map(str, symbols)) or "none"
        refuse(
            file.file,
            f"{field}.[{missing}, 0, 0]",
            f"symbol id {starts[missing]}",
            f"symbol_ids of line {node.line} of {BUNDLE_FILE}: {known}",
        )
    values = [symbols[start] for start in starts]
    bases = {value.base for value in values}
    if len(bases) > 1 or None in bases:
        refuse(file.file, field, "addresses of several bases or of none", "one base for all cores")
    strides = {value.strides for value in values}
    if len(strides) > 1:
        refuse(
            file.file, field, "cores that move differently in a loop", "one stride for all cores"
        )
    base = values[0].base
    assert base is not None
    return Address(Space.ARGUMENT, base, tuple(v.constant for v in values), values[0].strides)
