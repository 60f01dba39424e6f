"""A failing program as a file that pytest runs.

In: a program, its failure, its cores. Out: the text of a test module. It fails as long as the fault
is there, and can stay among the tests afterwards.
"""

from __future__ import annotations

from dataclasses import MISSING, fields

from tests.fuzz.programs import Input, Program
from tests.fuzz.run import Failure


def as_test(program: Program, failure: Failure, cores: int, seed: int, lx: bool = False) -> str:
    """The text of a module with one test."""
    inputs = "".join(f"            {_input_text(x)},\n" for x in program.inputs)
    lines = "".join(f"            {line!r},\n" for line in program.lines)
    outputs = ", ".join(repr(n) for n in program.outputs) + ","
    said = str(failure).replace("\\", "/").replace('"""', "'''")
    return f'''"""Found by the fuzzer, from seed {seed}.

{said}
"""

from tests.fuzz.programs import Input, Program
from tests.fuzz.run import check


def test_program_of_seed_{seed}() -> None:
    program = Program(
        inputs=(
{inputs}        ),
        lines=(
{lines}        ),
        outputs=({outputs}),
    )
    check(program, cores={cores}{", lx=True" if lx else ""})
'''


def _input_text(x: Input) -> str:
    """The call that makes an input, without what is the default anyway."""
    said = []
    for f in fields(x):
        value = getattr(x, f.name)
        if f.default is MISSING:
            said.append(repr(value))
        elif value != f.default:
            said.append(f"{f.name}={value!r}")
    return f"Input({', '.join(said)})"
