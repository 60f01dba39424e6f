"""Do something right after a module is imported, without importing it.

`torch._dynamo` and `torch._inductor` take seconds to import; what we have to tell them waits here
until they are imported elsewhere. Example: `after_import("torch._inductor.compile_fx", patch)`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def after_import(name: str, action: Callable[[Any], None]) -> None:
    """Call `action(module)` once the module of that name is there; now if it is."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, action: Callable[[Any], None]) -> None:
        self.name = name
        self.action = action

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.action(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
