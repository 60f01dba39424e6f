"""Numbers for people.

>>> size(641e6), counted(3, "passage")
('641 MB', '3 passages')
"""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes for people: 641 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.1f} {unit}"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
