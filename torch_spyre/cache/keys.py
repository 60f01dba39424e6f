"""Cache keys: the identity of the compiler and its settings, without importing it.

In: the sources of this package, the environment, what the program has set. Out: a hash of the
sources, the settings, and the directory where compiled kernels are kept. An eager operation finds
its program with these, and a process with cache hits only never imports Inductor, which takes
seconds.

    >>> bundle_root().name
    'inductor-spyre'
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch

from torch_spyre.cache.installation import package_hash, quick_hash
from torch_spyre.cache.store import Store

_ROOT = os.path.dirname(os.path.dirname(__file__))


def source_hash() -> str:
    """A hash of all sources that determine the compiled program."""
    added = _added_opfuncs()
    return package_hash() if not added else _hash(package_hash(), *added)


def quick_source_hash() -> str:
    """The same by times of files: also another one when nothing but a time has changed."""
    return _hash(quick_hash(), *_added_opfuncs())


def settings() -> tuple[tuple[str, str], ...]:
    """The settings of the compiler as they are now."""
    values: dict[str, Any] = cast(Any, compiler_config()).get_config_copy()
    return tuple(sorted((name, repr(value)) for name, value in values.items()))


def compiler_config() -> types.ModuleType:
    """`torch_spyre._inductor.config`, also while its package is not loaded."""
    name = "torch_spyre._inductor.config"
    return sys.modules.get(name) or _load(name, os.path.join(_ROOT, "_inductor", "config.py"))


def bundle_root() -> Path:
    """Where compiled kernels are kept: a folder beside Inductor's own caches."""
    return Path(_cache_dirs().cache_dir()) / "inductor-spyre"


def bundle_store() -> Store:
    """The kernels that are kept, and the programs of eager operations beside them."""
    return _store(bundle_root())


@cache
def _store(root: Path) -> Store:
    return Store(root)


@cache
def _cache_dirs() -> types.ModuleType:
    name = "torch._inductor.runtime.cache_dir_utils"
    path = os.path.join(os.path.dirname(str(torch.__file__)), *name.split(".")[1:]) + ".py"
    # Under another name: its own would be taken for a loaded Inductor.
    return sys.modules.get(name) or _load("torch_spyre._cache_dir_utils", path)


def _load(name: str, path: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _added_opfuncs() -> list[str]:
    """Rows of the OpFunc table that are not those of the package."""
    if "torch_spyre.opfuncs" not in sys.modules:
        return []
    from torch_spyre import opfuncs

    return sorted({_row_text(row) for row in opfuncs.OPFUNCS.values()} - _own_opfuncs())


@cache
def _own_opfuncs() -> frozenset[str]:
    from torch_spyre import opfuncs

    return frozenset(_row_text(row) for row in opfuncs._rows())


def _row_text(row: Any) -> str:
    return repr(dataclasses.replace(row, reference=None))


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
