"""JSON writer of the bundle files: indented by 2, the innermost lists and objects on one line each.

In: dicts and lists. Out: text. Parts that many files share are `SharedDict` or `SharedList`: their
text is memoised, so they must not change once made.

Example: `dump_json({"N_": {"mb_": 4}})` has three lines.
"""

from __future__ import annotations

from json import JSONEncoder
from typing import Any


class SharedDict(dict[str, Any]):
    """An object that keeps its text, by indentation."""

    __slots__ = ("texts",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.texts: dict[str, str] = {}


class SharedList(list[Any]):
    """A list that keeps its text, by indentation."""

    __slots__ = ("texts",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.texts: dict[str, str] = {}


_encode = JSONEncoder().encode
_SCALARS = {str, int, float, bool, type(None)}


def dump_json(content: dict[str, Any]) -> str:
    """The text of a file."""
    parts: list[str] = []
    _dump(content, "\n", parts)
    parts.append("\n")
    return "".join(parts)


def _dump(value: Any, newline: str, out: list[str]) -> None:
    kind = type(value)
    if kind is SharedDict or kind is SharedList:
        text = value.texts.get(newline)
        if text is None:
            parts: list[str] = []
            _dump_parts(value, newline, parts)
            text = value.texts[newline] = "".join(parts)
        out.append(text)
    elif kind is str:
        out.append(_encode(value))
    elif kind is int:
        out.append(str(value))
    else:
        _dump_parts(value, newline, out)


def _dump_parts(value: Any, newline: str, out: list[str]) -> None:
    is_object = isinstance(value, dict)
    if not is_object and not isinstance(value, list):
        out.append(_encode(value))
        return
    children = value.values() if is_object else value
    if _SCALARS.issuperset(map(type, children)):
        out.append(_encode(value))
        return
    inner = newline + "  "
    separator = ("{" if is_object else "[") + inner
    if is_object:
        for name, child in value.items():
            out.append(f'{separator}"{name}": ')
            _dump(child, inner, out)
            separator = "," + inner
    else:
        for child in value:
            out.append(separator)
            _dump(child, inner, out)
            separator = "," + inner
    out.append(newline + ("}" if is_object else "]"))
