"""`python -m torch_spyre.backend DIR`: compile a bundle and show what became of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_spyre.backend import OUTPUT, BackendError, compile_bundle, read_bundle, steps_of
from torch_spyre.backend.emit.spyrecode import read_spyrecode
from torch_spyre.backend.report import describe_bundle, describe_steps, disassemble


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m torch_spyre.backend",
        description="Compile a SuperDSC bundle into a SpyreCode directory.",
    )
    parser.add_argument("directory", type=Path, help="bundle.mlir and sdsc_*.json")
    parser.add_argument("-o", "--output", type=Path, help=f"default: DIRECTORY/{OUTPUT}")
    parser.add_argument("--no-fuse", action="store_true", help="one step for each operation")
    parser.add_argument(
        "--pool", action="store_true", help="argument 0 is the pool (concrete addresses only)"
    )
    parser.add_argument("--disassemble", action="store_true", help="print the program too")
    options = parser.parse_args(arguments)
    try:
        bundle = read_bundle(options.directory, pool=options.pool)
        steps = steps_of(bundle, fuse=not options.no_fuse)
        output = compile_bundle(
            options.directory, options.output, fuse=not options.no_fuse, pool=options.pool
        )
        program = read_spyrecode(output)
    except (BackendError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(describe_bundle(bundle)))
    print("\n".join(describe_steps(steps)))
    if options.disassemble:
        print(disassemble(program))
    print(f"written to {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
