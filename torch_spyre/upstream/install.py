"""Replaces attributes of PyTorch, as `table.py` says; nothing else in the package assigns into it.

    install(WITH_THE_COMPILER)

A row names its targets and a function of this folder that makes their replacements from what is
there: `run(stock) -> replacement`, for two targets `both(first, second) -> (new, new)`. Class and
static methods are functions here and become what they were again; a replaced function has PyTorch's
as its `__wrapped__`. What does not exist yet is None.

SPYRE_UPSTREAM=semantics leaves out what only saves time: PyTorch as it is, to compare with.
SPYRE_UPSTREAM=without:NAME,NAME leaves out single rows, of any kind.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
from collections.abc import Iterable, Iterator
from typing import Any

from torch_spyre.upstream.import_hooks import after_import
from torch_spyre.upstream.table import ADDED, PATCHES, SCOPED, Patch

VARIABLE = "SPYRE_UPSTREAM"


def install(patches: Iterable[Patch]) -> None:
    """Install those that are on, in order."""
    for patch in patches:
        if is_on(patch.name):
            _install(patch)


def install_when_imported(patches: Iterable[Patch]) -> None:
    """Install each that is on when the module of its targets is imported, by whomever."""
    for patch in patches:
        if is_on(patch.name):
            module = patch.targets[0].partition(":")[0]
            after_import(module, functools.partial(_install_late, patch))


def is_on(name: str) -> bool:
    """Whether a row holds in this process."""
    return name not in _left_out()


@functools.cache
def _left_out() -> frozenset[str]:
    """Names of rows that are not installed."""
    value = os.environ.get(VARIABLE, "").strip()
    if value in ("", "all"):
        return frozenset()
    if value == "semantics":
        return frozenset(patch.name for patch in PATCHES if patch.kind == "time")
    known = {patch.name for patch in PATCHES}
    form, colon, names = value.partition(":")
    wanted = frozenset(name.strip() for name in names.split(","))
    if form != "without" or not colon or not wanted <= known:
        raise ValueError(
            f"invalid {VARIABLE} value '{value}': expected all, semantics, or without: and some of "
            f"{', '.join(sorted(known))}"
        )
    return wanted


@contextlib.contextmanager
def scoped(target: str, value: Any) -> Iterator[None]:
    """Another value of an attribute that `table.SCOPED` lists, for as long as the block takes."""
    assert target in SCOPED, f"{target} is not in upstream/table.py"
    owner, name = _found(target)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def add_attribute(owner: str, name: str, value: Any) -> None:
    """A further attribute of something that `table.ADDED` lists."""
    assert owner in ADDED, f"{owner} is not in upstream/table.py"
    found, last = _found(owner)
    setattr(getattr(found, last), name, value)


def _install(patch: Patch) -> None:
    module, _, name = patch.by.partition(".")
    make = getattr(importlib.import_module(f"torch_spyre.upstream.{module}"), name)
    places = [_found(target) for target in patch.targets]
    stock = [_stock(owner, name) for owner, name in places]
    made = make(*(_function(value) for value in stock))
    for place, old, new in zip(places, stock, made if len(places) > 1 else (made,), strict=True):
        if inspect.isfunction(new) and old is not None:
            functools.update_wrapper(new, _function(old))
        setattr(*place, type(old)(new) if isinstance(old, (classmethod, staticmethod)) else new)


def _install_late(patch: Patch, _module: Any) -> None:
    _install(patch)


def _found(target: str) -> tuple[Any, str]:
    """The object that has an attribute, and its name: `module:Class.attribute`."""
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(module)), name


def _stock(owner: Any, name: str) -> Any:
    found = inspect.getattr_static(owner, name, None)
    return found if isinstance(found, (classmethod, staticmethod)) else getattr(owner, name, None)


def _function(value: Any) -> Any:
    return value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
