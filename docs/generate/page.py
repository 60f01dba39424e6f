"""The command line of a page that is made from a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def run(
    module: str, page: Callable[[], str], file: Path, arguments: Sequence[str] | None = None
) -> int:
    """Write the page, or with `--check` compare; the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=f"Write {file.name}.")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is outdated")
    parser.add_argument("file", type=Path, nargs="?", default=file, help=f"default: {file.name}")
    options = parser.parse_args(arguments)
    text = page()
    if not options.check:
        options.file.write_text(text)
        print(f"written to {options.file}")
        return 0
    if options.file.is_file() and options.file.read_text() == text:
        return 0
    print(f"{options.file} is outdated: run {parser.prog}", file=sys.stderr)
    return 1
