"""`python -m benchmarks`: measure, print, and write docs/performance/*.{md,json}."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import compiling, overheads

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "performance"


def table(rows: list[overheads.Row]) -> str:
    """A Markdown table that is readable as it stands."""
    head = ["what", "spyre", "cpu", "spyre / cpu", "promised", "holds"]
    lines = [
        [
            row.name,
            _time(row.ours),
            _time(row.peer),
            f"{row.ratio:.2f}",
            row.bound or "-",
            _verdict(row),
        ]
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in [head, rule, *lines]
    )


def _verdict(row: overheads.Row) -> str:
    return "-" if not row.bound else "yes" if row.holds else "NO"


def _time(us: float) -> str:
    return f"{us:.2f} us" if us < 1000 else f"{us / 1000:.1f} ms"


def _write(name: str, title: str, about: str, rows: list[overheads.Row]) -> bool:
    """Print a table and keep it; whether every promise in it holds."""
    text = table(rows)
    print(f"\n{title}\n\n{text}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    content = json.dumps([asdict(row) for row in rows], indent=2) + "\n"
    (FOLDER / f"{name}.json").write_text(content)
    (FOLDER / f"{name}.md").write_text(f"# {title}\n\n{about}\n\n{text}\n")
    return all(row.holds for row in rows)


def main() -> int:
    version = torch.__version__.split("+")[0]
    holds = _write(
        "overheads",
        "Overheads",
        "Written by `make bench`: times of one call, best of several rounds that alternate between "
        f"the card and CPU PyTorch {version} in one process, {torch.get_num_threads()} threads. "
        "For copies the peer is a copy from host to host.",
        overheads.measure(),
    )
    holds &= _write(
        "compiling",
        "Compiling",
        "Written by `make bench`: time from `torch.compile` to the first result, imports not "
        "counted, each in a process of its own, best of two that alternate. Cold: empty caches. "
        "Warm: the caches that the cold process left. The peer is Inductor for the CPU, PyTorch "
        f"{version}.",
        compiling.measure(),
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
