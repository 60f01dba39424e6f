"""Runtime of generated host code: kernels from OpSpec text, constants, memory pools.

`sdsc(name, text, ...)` is the documented way from OpSpecs to something that runs: OpSpec text ->
SuperDSC bundle -> back-end -> SpyreCode -> JobPlan. Bundles are cached on disk by content
(cache/store.py), so that a second process finds them; a kernel is loaded onto a card lazily, when
it is first run there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch

from torch_spyre import _C
from torch_spyre._C import SpyreTensorLayout
from torch_spyre._inductor import config
from torch_spyre._inductor.capture import graph_cache
from torch_spyre._inductor.capture.fingerprints import settings, source_hash
from torch_spyre._inductor.counters import counters
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre.cache.keys import bundle_root, bundle_store
from torch_spyre.constants import CODE_DIRECTORY, DEVICE_NAME
from torch_spyre.device.sanitizer import is_sanitizing
from torch_spyre.dtypes import SIXTEEN_BITS
from torch_spyre.logs import get_logger
from torch_spyre.on_card import is_on_card

_log = get_logger("spyre.inductor.codegen")


@dataclass(frozen=True)
class ArgumentSpec:
    """What a kernel expects of a tensor: the layout of its storage and the shape that was made
    for."""

    layout: SpyreTensorLayout
    size: tuple[int, ...]
    stride: tuple[int, ...]
    written: bool


def sdsc(
    name: str,
    text: str,
    *,
    arguments: list[ArgumentSpec],
    constants: list[tuple[Any, torch.dtype]],
    pool_bytes: int,
) -> SpyreKernel:
    """A kernel from the text of its OpSpecs."""
    return SpyreKernel(name, text, arguments, constants, pool_bytes)


_hoisted: dict[Any, tuple[int, torch.Tensor]] = {}


class HoistedCopy:
    """A view of a parameter in the layout that a kernel wants; copied again when it has changed.

    Graphs share copies. Each call site of the host code caches its own, so that a call costs no
    lookup."""

    def __init__(
        self,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int,
        layout: SpyreTensorLayout,
    ) -> None:
        self.view = (size, stride, offset)
        self.layout = layout
        self._find, self._place = _C._remembered()

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = self._find(tensor)
        if copy is None:
            copy = self._shared(tensor)
            _C._remember(self._place, tensor, copy)
        return copy

    def _shared(self, tensor: torch.Tensor) -> torch.Tensor:
        key = (id(tensor), *self.view, self.layout)
        version = -1 if tensor.is_inference() else tensor._version
        known = _hoisted.get(key)
        if known is not None and known[0] == version >= 0:
            return known[1]
        counters["hoisted_copies"] += 1
        size, stride, offset = self.view
        view = tensor.detach().as_strided(size, stride, offset)
        strides = torch.empty(size, device="meta").stride()
        copy = _C._empty_spyre(size, strides, tensor.dtype, self.layout, tensor.device.index)
        copy.copy_(view)
        if known is None:
            weakref.finalize(tensor, _hoisted.pop, key, None)
        _hoisted[key] = (version, copy)
        return copy


class SpyreKernel:
    """A compiled bundle; `run` launches it on the card of its arguments."""

    def __init__(
        self,
        name: str,
        text: str,
        arguments: list[ArgumentSpec],
        constants: list[tuple[Any, torch.dtype]],
        pool_bytes: int,
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.constants = constants
        self.has_pool = pool_bytes > 0
        self.directory = compile_text(name, text, self.has_pool)
        self._made_from = (text, cast(Any, config).get_config_copy())
        self._plans: dict[int, tuple[Any, list[torch.Tensor]]] = {}
        _kernels.add(self)
        if is_sanitizing():
            self.write_checks()
        layouts = [spec.layout for spec in arguments]
        self._launch, self._loaded = _C._compiled_kernel(
            self.has_pool, layouts, [spec.written for spec in arguments]
        )

    def write_checks(self) -> None:
        """What the sanitizer wants to know, beside the program."""
        from torch_spyre import backend

        bundle = Path(self.directory).parent
        backend.write_checks(
            bundle,
            self.directory,
            fuse=config.backend_fusion,
            pool=self.has_pool,
            private_lx=True,
        )

    def run(self, *tensors: torch.Tensor) -> None:
        """Queue the kernel on the current stream."""
        if not self._launch(*tensors):
            self._prepare_and_run(list(tensors))

    def _prepare_and_run(self, args: list[torch.Tensor]) -> None:
        """The first call on a card, and calls with tensors that are not as expected."""
        index = next((t.device.index for t in args if is_on_card(t)), None)
        index = _C.current_device() if index is None else index
        plan, constants = self._plans.get(index) or self._load(index)
        first = 1 if self.has_pool else 0
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for i, spec in enumerate(self.arguments, first):
            if not is_on_card(args[i]):  # a number that the host keeps as a 0-D tensor
                args[i] = args[i].to(torch.device(DEVICE_NAME, index))
            if not _C._is_placed(args[i], spec.layout):
                args[i] = self._relaid(args[i], spec, copies)
        _C.launch_jobplan(plan, args + constants)
        for original, copy in copies:
            original.copy_(copy)

    def _relaid(
        self,
        tensor: torch.Tensor,
        spec: ArgumentSpec,
        copies: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """The tensor in the layout that the kernel was compiled for."""
        _log.info("%s: an argument of shape %s gets a copy", self.name, list(tensor.shape))
        counters["relaid_arguments"] += 1
        base = _C._empty_spyre(
            spec.size, spec.stride, tensor.dtype, spec.layout, tensor.device.index
        )
        view = base.as_strided(tensor.shape, tensor.stride(), 0)
        view.copy_(tensor)
        if not _C._is_placed(base, spec.layout):
            raise RuntimeError(
                f"{self.name} got an {tensor.dtype} tensor of shape {list(tensor.shape)} with a "
                "value that does not fit 32 bits, the integers of the card. Compute with it "
                "outside of the graph, in a function decorated with @torch.compiler.disable, or "
                "convert it to float32."
            )
        if spec.written:
            copies.append((tensor, view))
        return base

    def _load(self, index: int) -> tuple[Any, list[torch.Tensor]]:
        device = torch.device(DEVICE_NAME, index)
        constants = [constant_tensor(value, device, dtype) for value, dtype in self.constants]
        with torch.spyre.device(index):  # type: ignore[attr-defined]
            plan = self._prepare()
        self._plans[index] = (plan, constants)
        _C._load_compiled_kernel(self._loaded, index, plan, constants)
        return self._plans[index]

    def _prepare(self) -> Any:
        """The program on the current card. Files that are gone or were changed since they were
        found are made again: a cache may be trimmed or deleted at any time."""
        try:
            return _C.prepare_kernel(self.directory)
        except RuntimeError as problem:
            if self.directory not in str(problem):
                raise  # memory, not the files
            _log.warning("%s is compiled again: %s", self.name, problem)
        text, values = self._made_from
        with config.patch(values):  # type: ignore[attr-defined]
            self.directory = compile_text(self.name, text, self.has_pool)
        return _C.prepare_kernel(self.directory)


_kernels: weakref.WeakSet[SpyreKernel] = weakref.WeakSet()


def write_checks_of_all() -> None:
    """Switch the sanitizer on for all loaded kernels.

    For those whose files were deleted since, only accesses to memory are checked."""
    for kernel in list(_kernels):
        if Path(kernel.directory).is_dir():
            kernel.write_checks()
        else:
            _log.warning("%s is checked without names: %s is gone", kernel.name, kernel.directory)


def constant_tensor(value: Any, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """A 0-D tensor with a number, on the card; one for each number."""
    return _constant_tensor(value, math.copysign(1, value), device, dtype)


@cache
def _constant_tensor(
    value: Any, sign: float, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """`sign` is part of the key: 0.0 and -0.0 are equal, and two numbers."""
    if dtype not in SIXTEEN_BITS:
        return torch.tensor(value, dtype=dtype).to(device)
    # Not by way of a host type of 16 bits: the card's format holds numbers that float16 does not.
    return torch.empty((), dtype=dtype, device=device).copy_(
        torch.tensor(value, dtype=torch.float32)
    )


def spyre_constant_tensor(
    value: Any, device: torch.device, dtype: torch.dtype = torch.float16
) -> torch.Tensor:
    """A 0-D device tensor."""
    return constant_tensor(value, torch.device(device), dtype)


# ---- Bundles ------------------------------------------------------------------------------------


def bundle_directory(name: str, text: str, has_pool: bool) -> Path:
    """Where the bundle of a kernel is, or will be."""
    return bundle_root() / bundle_entry(name, text, has_pool)[0]


def bundle_entry(name: str, text: str, has_pool: bool) -> tuple[str, str]:
    """The name and the key of a bundle in the store."""
    key = _key(text, has_pool)
    return _entry(name, key), key


def _entry(name: str, key: str) -> str:
    return f"{name[:80]}_{key[:24]}"


def _key(text: str, has_pool: bool) -> str:
    what = repr((text.strip(), has_pool, settings(), source_hash()))
    return hashlib.sha256(what.encode()).hexdigest()


def compile_text(name: str, text: str, has_pool: bool) -> str:
    """The SpyreCode directory of a kernel; compiled on a cache miss."""
    entry, key = bundle_entry(name, text, has_pool)
    directory = bundle_store().find(entry, key)
    if directory is not None:
        counters["bundles_reused"] += 1
        debug_dir.record_bundle(name, str(directory), "made earlier")
        return str(directory / CODE_DIRECTORY)
    counters["bundles_compiled"] += 1
    start = time.perf_counter()
    make = functools.partial(_make_bundle, name, text, has_pool)
    try:
        directory = bundle_store().publish(entry, key, make)
    except OSError as problem:  # the disk, not the bundle
        directory = graph_cache.without_the_disk(problem, lambda: _publish_again(entry, key, make))
    seconds = time.perf_counter() - start
    debug_dir.record_bundle(name, str(directory), f"made in {seconds:.2f} s")
    return str(directory / CODE_DIRECTORY)


def _publish_again(entry: str, key: str, make: Callable[[Path], None]) -> Path:
    """In the place that caches have by now."""
    return bundle_store().find(entry, key) or bundle_store().publish(entry, key, make)


def _make_bundle(name: str, text: str, has_pool: bool, work: Path) -> None:
    from torch_spyre import backend  # a process that finds its bundles does without

    try:
        write_bundle(text, work, has_pool)
        _write_names(name, text, work, has_pool)
        backend.compile_bundle(
            work,
            work / CODE_DIRECTORY,
            fuse=config.backend_fusion,
            pool=has_pool,
            private_lx=True,  # plans end with their kernel
            validate=config.validate,
        )
    except OSError:
        raise  # the disk, not the bundle
    except Exception as problem:  # whatever it is: say which operation and line it came from
        raise debug_dir.refuse_bundle(name, text, work, problem) from problem


def write_bundle(text: str, directory: Path, has_pool: bool) -> None:
    """OpSpec text to SuperDSC files."""
    from torch_spyre._inductor.codegen import bundle
    from torch_spyre._inductor.opspec import validate
    from torch_spyre._inductor.opspec.text import parse

    specs = parse(text)
    if config.validate:
        for spec in specs:
            validate.validate_op_spec(spec)
    written = bundle.generate_bundle(
        specs,
        directory,
        symbolic=config.symbolic_args,
        has_pool=has_pool,
        unroll_loops=config.unroll_loops,
        k_fast=config.k_fast_emission,
        share=config.share_sdsc,
    )
    counters["operations_compiled"] += written.operations
    counters["sdsc_files_written"] += written.files
    (directory / "op_specs.py").write_text(text)


def _write_names(name: str, text: str, directory: Path, has_pool: bool) -> None:
    """Source lines and names of tensors: for messages, nothing depends on them."""
    known = debug_dir.known_names(text)
    if known is None:
        return  # the graph came from a cache
    arguments = [*(["the pool"] if has_pool else []), *known["arguments"]]
    names = {**known, "kernel": name, "arguments": arguments}
    (directory / "names.json").write_text(json.dumps(names, indent=1) + "\n")
