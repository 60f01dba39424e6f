"""Names of settings: documented ones that have another name here, and the nearest of those there
are to one that there is not.

    give_aliases(config, {"sencores": "cores"})     # config.sencores = 4 sets config.cores
    nearest("SPYRE_EAGR", VARIABLES)                # 'SPYRE_EAGER'

An alias is a second name of one value, not a second value: what is set by one name is read by the
other, and only the value counts in the keys of caches. This module is loaded with the settings of
eager operations, before anything of the compiler.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple


class Alias(NamedTuple):
    """A second name whose values are others: how they are read and set."""

    of: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


def give_aliases(module: types.ModuleType, aliases: Mapping[str, str | Alias]) -> None:
    """Let a config module (torch.utils._config_module) know further names of its values.

    A name that it does not have raises an AttributeError that names the nearest one."""
    stock: Any = type(module)
    known = {name: _alias(of) for name, of in aliases.items()}

    class WithAliases(stock):
        """Settings with their documented names, too."""

        def __getattr__(self, name: str) -> Any:
            alias = known.get(name)
            if alias is not None:
                return alias.read(super().__getattr__(alias.of))
            try:
                return super().__getattr__(name)
            except AttributeError:
                raise _unknown(self, name) from None

        def __setattr__(self, name: str, value: Any) -> None:
            alias = known.get(name)
            if alias is not None:
                super().__setattr__(alias.of, alias.write(value))
                return
            try:
                super().__setattr__(name, value)
            except AttributeError:
                raise _unknown(self, name) from None

        def __delattr__(self, name: str) -> None:  # of unittest.mock.patch
            super().__delattr__(known[name].of if name in known else name)

        def __dir__(self) -> list[str]:
            return sorted({*super().__dir__(), *self._config, *known})

    def _unknown(self: Any, name: str) -> AttributeError:
        text = f"{module.__name__}.{name} does not exist"
        if name.startswith("__") or name in self._config:  # asked for by Python itself, or deleted
            return AttributeError(text)
        return AttributeError(f"{text}; the nearest is {nearest(name, (*self._config, *known))}")

    types.ModuleType.__setattr__(module, "__class__", WithAliases)  # past the names of settings


def _alias(of: str | Alias) -> Alias:
    return of if isinstance(of, Alias) else Alias(of, _same, _same)


def _same(value: Any) -> Any:
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like one that is not known."""
    import difflib  # only where something is wrong

    return difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)[0]
