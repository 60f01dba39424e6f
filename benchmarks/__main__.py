"""`python -m benchmarks`: measure, print, and write docs/performance/overheads.{md,json}."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import overheads

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


def main() -> int:
    rows = overheads.measure()
    text = table(rows)
    print(text)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "overheads.json").write_text(
        json.dumps([asdict(row) for row in rows], indent=2) + "\n"
    )
    (FOLDER / "overheads.md").write_text(
        "# Overheads\n\nWritten by `make bench`: times of one call, best of several rounds that "
        f"alternate between the card and CPU PyTorch {torch.__version__.split('+')[0]} in one "
        f"process, {torch.get_num_threads()} threads. "
        "For copies the peer is a copy from host to host.\n\n" + text + "\n"
    )
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
