"""Names and values of settings: documented names that are others here, the nearest of the known
names to one that is none, and the values that are allowed.

    complete(config, allowed, {"sencores": "cores"})     # config.sencores = 4 sets config.cores
    nearest("SPYRE_EAGR", VARIABLES)                     # 'SPYRE_EAGER'

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


class Allowed(NamedTuple):
    """Values that a setting may have."""

    holds: Callable[[Any], bool]
    text: str
    """What they are, for messages."""


def whole(low: int, high: int) -> Allowed:
    """Whole numbers of a range."""
    return Allowed(lambda v: type(v) is int and low <= v <= high, f"{low} to {high}")


def one_of(*values: str) -> Allowed:
    """Some words."""
    return Allowed(lambda v: v in values, " or ".join(values))


FRACTION = Allowed(
    lambda v: isinstance(v, (int, float)) and 0 <= v < 1, "a number from 0 to below 1"
)
_SWITCH = Allowed(lambda v: isinstance(v, (bool, int)) and v in (0, 1), "True or False")


def complete(
    module: types.ModuleType,
    allowed: Callable[[str], Allowed | None],
    aliases: Mapping[str, str | Alias],
) -> None:
    """Let a config module (torch.utils._config_module) know further names of its values, and which
    values are allowed. What is True or False by default can be nothing else.

    A name that it does not have raises an AttributeError that names the nearest one, a value that
    is not allowed a ValueError."""
    stock: Any = type(module)
    known = {name: _alias(of) for name, of in aliases.items()}

    class Complete(stock):
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
            own, value = _checked(self, name, value)
            try:
                super().__setattr__(own, value)
            except AttributeError:
                raise _unknown(self, name) from None

        def __delattr__(self, name: str) -> None:  # of unittest.mock.patch
            super().__delattr__(known[name].of if name in known else name)

        def __dir__(self) -> list[str]:
            return sorted({*super().__dir__(), *self._config, *known})

        def patch(self, arg1: Any = None, arg2: Any = None, **kwargs: Any) -> Any:
            """As that of every config module; all or none of the changes are made."""
            given = {arg1: arg2} if isinstance(arg1, str) else arg1
            for name, value in {**(given or {}), **kwargs}.items():
                _checked(self, name, value)
            return super().patch(arg1, arg2, **kwargs)

    def _checked(self: Any, name: str, value: Any) -> tuple[str, Any]:
        """Our name of a setting, and the value that it gets."""
        alias = known.get(name)
        own = name if alias is None else alias.of
        is_switch = alias is not None and alias.read is not _same
        rule = _SWITCH if is_switch else _rule(self, own)
        if rule is not None and not rule.holds(value):
            raise ValueError(f"{module.__name__}.{name} = {value!r}: expected {rule.text}")
        return own, value if alias is None else alias.write(value)

    def _rule(self: Any, own: str) -> Allowed | None:
        entry = self._config.get(own)
        return _SWITCH if entry and isinstance(entry.default, bool) else allowed(own)

    def _unknown(self: Any, name: str) -> AttributeError:
        text = f"{module.__name__}.{name} does not exist"
        if name.startswith("__") or name in self._config:  # asked for by Python itself, or deleted
            return AttributeError(text)
        return AttributeError(f"{text}; the nearest is {nearest(name, (*self._config, *known))}")

    types.ModuleType.__setattr__(module, "__class__", Complete)  # past the names of settings


def _alias(of: str | Alias) -> Alias:
    return of if isinstance(of, Alias) else Alias(of, _same, _same)


def _same(value: Any) -> Any:
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like one that is not known."""
    import difflib  # only where something is wrong

    return difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)[0]
