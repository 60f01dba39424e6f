"""The fields of an sdsc file: each with its path, for messages that name what is wrong.

Example: `read_fields("sdsc_0.json", data).at("0_add").at("numCoresUsed_").integer(1, 32)`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from torch_spyre.backend.errors import BundleError, refuse


def read_fields(file: str, data: bytes) -> Field:
    """The whole of a file. Raises BundleError for what is no JSON, and for keys that repeat."""
    try:
        return Field(file, json.loads(data, object_pairs_hook=_unique(file)))
    except ValueError as error:
        refuse(file, "", f"not valid JSON: {error}", "an object")


def _unique(file: str) -> Any:
    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for i, key in enumerate(keys) if key in keys[:i])
            raise BundleError(f"{file}: {twice}: found twice in one object, allowed: once")
        return result

    return hook


class Field:
    """A value of the file and its path.

    There is one for each value that is looked at, so it is made fast; its path is put together
    when a message needs it."""

    __slots__ = ("file", "key", "parent", "value")

    def __init__(
        self, file: str, value: Any, parent: Field | None = None, key: str | int = ""
    ) -> None:
        self.file = file
        self.value = value
        self.parent = parent
        self.key = key

    @property
    def path(self) -> str:
        return "" if self.parent is None else self.parent.path_of(self.key)

    def path_of(self, key: str | int) -> str:
        """The path of a member."""
        if isinstance(key, int):
            return f"{self.path}[{key}]"
        return f"{self.path}.{key}" if self.path else key

    def fail(self, found: str, allowed: str) -> NoReturn:
        refuse(self.file, self.path, found, allowed)

    def show(self) -> str:
        text = json.dumps(self.value)
        return text if len(text) <= 60 else text[:57] + "..."

    def wrong(self, allowed: str) -> NoReturn:
        self.fail(self.show(), allowed)

    def at(self, key: str | int) -> Field:
        """A member of an object or an array, which must be there."""
        if isinstance(key, int):
            return Field(self.file, self.value[key], self, key)
        members = self.value if type(self.value) is dict else self.object()
        if key not in members:
            refuse(self.file, self.path_of(key), "nothing", f"this field; there are {self._keys()}")
        return Field(self.file, members[key], self, key)

    def find(self, key: str) -> Field | None:
        members = self.object()
        return Field(self.file, members[key], self, key) if key in members else None

    def _keys(self) -> str:
        return ", ".join(self.object()) or "no fields"

    def object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            self.wrong("an object")
        return self.value

    def members(self) -> Iterator[tuple[str, Field]]:
        for key in self.object():
            yield key, self.at(key)

    def items(self) -> list[Field]:
        if not isinstance(self.value, list):
            self.wrong("an array")
        return [self.at(i) for i in range(len(self.value))]

    def integer(self, low: int | None = None, high: int | None = None) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.wrong("an integer")
        if (low is not None and self.value < low) or (high is not None and self.value > high):
            bounds = f"{low} or more" if high is None else f"{low} to {high}"
            self.wrong(f"an integer of {bounds}")
        return self.value

    def decimal(self) -> int:
        """An integer written as a string, as in "4096" and "-1"."""
        if not isinstance(self.value, str) or not re.fullmatch(r"-?\d+", self.value):
            self.wrong('a decimal string like "4096"')
        return int(self.value)

    def text(self, *allowed: str) -> str:
        if not isinstance(self.value, str):
            self.wrong("a string")
        if allowed and self.value not in allowed:
            self.wrong(", ".join(allowed))
        return self.value

    def texts(self) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items())

    def integers(self) -> tuple[int, ...]:
        return tuple(item.integer() for item in self.items())

    def must_be(self, expected: Any, why: str) -> None:
        if self.value != expected:
            self.wrong(f"{json.dumps(expected)}, {why}")

    def repeats(self, expected: Any, why: str) -> None:
        """Must say what other fields say already; the error names the innermost difference."""
        if self.value == expected:
            return
        if isinstance(expected, dict):
            for key, value in expected.items():
                self.at(key).repeats(value, why)
            extra = next(key for key in self.object() if key not in expected)
            self.at(extra).fail("a field too many", f"{', '.join(expected) or 'none'}, {why}")
        if isinstance(expected, list) and len(self.items()) == len(expected):
            for item, value in zip(self.items(), expected, strict=True):
                item.repeats(value, why)
        self.must_be(expected, why)


def expect_cores(field: Field, cores: int) -> None:
    """An object with exactly the keys "0" to "<cores - 1>"."""
    found = list(field.object())
    for core in range(cores):
        if str(core) not in found:
            field.fail(f"no entry for core {core}", f"one for each of {cores} cores")
    for core_key in found:
        if not core_key.isdecimal() or int(core_key) >= cores:
            field.fail(f'an entry "{core_key}"', f"one for each of {cores} cores")
