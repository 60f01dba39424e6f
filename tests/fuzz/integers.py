"""Random programs of integers, compared with the CPU bit for bit.

What rounds has bounds to be computed along (intervals.py); integers need none, so these programs
may use any value: near 0, 2**31, 2**32, 2**53, 2**62, the ends of each type, with casts between
them.

    python -m tests.fuzz.integers --programs 500        prints the programs that differ

A program is a list of lines over v0, v1, ...; it shrinks to the lines that its first wrong value
needs.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass

import torch

I8, I16, I32, I64, U8 = torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8
TYPES = (I64, I64, I64, I64, I32, I32, I16, I8, U8)
EDGES = [0, 1, 2, 7, 255, (1 << 15) - 1, (1 << 24) - 1, 1 << 24, (1 << 31) - 1, 1 << 31, 1 << 32,
         (1 << 53) + 1, 1 << 62, (1 << 63) - 1]  # fmt: skip


@dataclass(frozen=True)
class Program:
    """`lines[i]` computes v{i + len(inputs)}."""

    inputs: tuple[torch.Tensor, ...]
    lines: tuple[str, ...]

    @property
    def source(self) -> str:
        names = [f"v{i}" for i in range(len(self.inputs) + len(self.lines))]
        given = ", ".join(names[: len(self.inputs)])
        body = [f"    {n} = {line}" for n, line in zip(names[len(self.inputs) :], self.lines)]
        results = ", ".join(names[len(self.inputs) :])
        return "\n".join([f"def program({given}):", *body, f"    return ({results},)"])

    def run(self, compiled: bool = False) -> tuple[torch.Tensor, ...]:
        """On the CPU, or compiled for the card."""
        scope: dict[str, object] = {"torch": torch}
        exec(self.source, scope)
        function = scope["program"]
        assert callable(function)
        if not compiled:
            return tuple(function(*(x.clone() for x in self.inputs)))
        torch._dynamo.reset()
        found = torch.compile(function, dynamic=False)(*(x.to("spyre") for x in self.inputs))
        return tuple(x.cpu() for x in found)


def generate(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    inputs = tuple(_numbers(rng, rng.choice(TYPES)) for _ in range(rng.randint(1, 3)))
    lines: list[str] = []
    for _ in range(rng.randint(3, 12)):
        names = [f"v{i}" for i in range(len(inputs) + len(lines))]
        lines.append(_line(rng, rng.choice(names[-4:]), rng.choice(names)))
    return Program(inputs, tuple(lines))


def _numbers(rng: random.Random, dtype: torch.dtype) -> torch.Tensor:
    """Small, within 32 bits, or any: the classes that graphs are compiled for, and their ends."""
    largest = rng.choice((1, 1 << 24, 1 << 31, 1 << 63))
    values = [n for n in EDGES if n <= largest] + [rng.randrange(largest) for _ in range(4)]
    signed = [rng.choice((1, -1)) * rng.choice(values) for _ in range(12)]
    return torch.tensor([max(n, -(1 << 63)) for n in signed]).to(dtype).reshape(3, 4)


def _line(rng: random.Random, x: str, y: str) -> str:
    number = rng.choice((1, -1, 2, 3, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40))
    return rng.choice((
        f"{x} + {y}", f"{x} - {y}", f"{x} * {y}", f"-{x}", f"torch.abs({x})", f"~{x}",
        f"{x} + {rng.choice((1, -1, 100))}", f"{x}.long() * {number}", f"{x}.long() - {number}",
        f"torch.add({x}.long(), {y}.long(), alpha={rng.choice((2, -3, 1 << 16))})",
        f"{x} // {rng.choice((2, 3, 7, -5))}", f"{x} % {rng.choice((2, 3, 7, 100))}",
        f"{x} & {y}", f"{x} | {y}", f"{x} ^ {y}", f"{x} << {rng.choice((1, 3))}", f"{x} >> 2",
        f"torch.maximum({x}, {y})", f"torch.where({x} < {y}, {x}, {y})",
        f"torch.clamp({x}, -100, 100)" if rng.random() < 0.5 else f"torch.sign({x})",
        f"{x}.sum({rng.choice((0, 1))}, keepdim=True) + {y}", f"{x}.amax(1, keepdim=True) - {y}",
        f"{x}.cumsum(1)", f"{x}.prod(0, keepdim=True) + {y} * 0", f"({x} > {y}).sum(0) + {y}",
        f"{x}.argmax(1, keepdim=True) + {y}", f"torch.cat([{x}, {y}], 1)[:, 2:6]",
        f"({x} + {y}).to({rng.choice(TYPES)})",
        f"({x} % 1000).float().to(torch.int64) + {y}", f"{x}.t().contiguous().t() * 2 - {y}",
        f"torch.gather({y}, 1, {x}.long() % 4)", f"torch.nn.functional.pad({x}, (1, 0))[:, :4]",
    ))  # fmt: skip


def first_wrong(program: Program) -> int | None:
    """The first line whose value differs."""
    wanted = program.run()
    for i, (a, b) in enumerate(zip(wanted, program.run(compiled=True), strict=True)):
        if a.dtype is not b.dtype or not torch.equal(a, b):
            return i
    return None


def main() -> int:
    """Run some programs; 1 if one differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with")
    args = parser.parse_args()
    bad = 0
    for seed in range(args.first, args.first + args.programs):
        program = generate(seed)
        try:
            program.run()
        except RuntimeError:
            continue  # not even on the CPU: types that an operation does not take
        try:
            wrong = first_wrong(program)
        except Exception as problem:  # whatever it is, it is a finding
            bad += 1
            print(f"seed {seed}: {type(problem).__name__}: {str(problem)[:400]}\n{program.source}")
            print(program.inputs, flush=True)
            continue
        if wrong is not None:
            bad += 1
            print(f"seed {seed}: v{wrong + len(program.inputs)} differs\n{program.source}")
            print(program.inputs, flush=True)
    print(f"{args.programs} programs, {bad} differ")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
