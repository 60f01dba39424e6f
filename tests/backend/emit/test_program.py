"""Programs come back from their bytes as they were, and what is none is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from torch_spyre.backend.emit.program import ProgramWriter, read_program
from torch_spyre.backend.emit.spyrecode import read_spyrecode, write_spyrecode
from torch_spyre.backend.errors import ProgramError, SpyreCodeError
from torch_spyre.backend.register_allocation import (
    LOAD,
    STORE,
    allocate_epilogue,
    allocate_registers,
)
from torch_spyre.backend.steps import (
    Address,
    Copy,
    CopySide,
    Form,
    Gather,
    GatherSide,
    Instruction,
    Item,
    LoopBegin,
    LoopEnd,
    Matmul,
    MatmulSide,
    Operand,
    Phase,
    ReduceOp,
    Reduction,
    Ring,
    Space,
    Step,
    Tile,
    Topk,
)
from torch_spyre.card_model.cost_model import Axis, Flow, Work, price
from torch_spyre.card_model.ring import BoxAxis, Transfer

numbers = iter(range(1000, 1 << 20))


def some(count: int) -> tuple[int, ...]:
    """Numbers that occur nowhere else: a field that is swapped with another is seen."""
    return tuple(next(numbers) for _ in range(count))


def address(cores: int = 2, loops: int = 0) -> Address:
    return Address(Space(0), *some(1), some(cores), some(loops))


def operand(dims: int, loops: int = 0) -> Operand:
    return Operand(0, Form.VECTOR, some(dims), *some(1), some(2), address(loops=loops))


def tile(loops: int = 0) -> Tile:
    body = (Instruction(LOAD, 0, 0), Instruction(STORE, 1, 0))
    return Tile("chain", 2, 64, 2, 1, (some(2), some(2)), ((1 << 100) + 5, 3),
                (operand(2, loops), operand(2, loops)), body, time_us=1.5)  # fmt: skip


def steps() -> dict[str, Step]:
    load, store = Instruction(LOAD, 0, 0), Instruction(STORE, 1, 0)
    side = CopySide(*some(2), some(3), some(3), some(2), some(2), some(2), (some(3), some(3)),
                    address())  # fmt: skip
    other = CopySide(*some(2), some(2), some(2), some(3), some(3), some(2), (some(3), some(3)),
                     address())  # fmt: skip
    gather = Gather("rows", 2, (some(2), some(2)), *some(2), GatherSide(some(2), address()),
                    GatherSide(some(2), address()), *some(2), some(2),
                    GatherSide(some(2), address()), 0.25)  # fmt: skip
    products = [MatmulSide(*some(1), some(3), address()) for _ in range(3)]
    epilogue = (Instruction(LOAD, 1, 0), Instruction(40, 2, 0, 1), Instruction(STORE, 0, 2))
    own = Operand(0, Form.VECTOR, some(3), 0, (), address())
    return {
        "tile": tile(),
        "reduction": replace(
            tile(), body=(load,), reductions=(Reduction(ReduceOp(0), 0, 0),), reduces_lanes=True,
            groups=some(2), epilogue=(store,), further=(Phase(body=(load, store)),),
        ),
        "matmul": Matmul("product", 2, 1, (some(4), some(4)), *products, some(2), (own,),
                         epilogue, 2.5, large=True),
        "copy": Copy("relayout", 2, side, other, 0.5),
        "gather": gather,
        "scatter": replace(gather, scatters=True),
        "topk": Topk("best", 2, *some(2), (some(1), some(1)), *some(2), True, False, operand(2),
                     operand(2), 0.125),
        "ring": Ring("move", 2, (BoxAxis(*some(3)),), address(), address(),
                     (Transfer(*some(4)), Transfer(*some(4))), 0.75),
    }  # fmt: skip


def written(items: list[Item]) -> bytes:
    writer = ProgramWriter()
    writer.add_all(items)
    return writer.bytes()


@pytest.mark.parametrize("name", steps())
def test_a_step_comes_back_as_it_was(name: str) -> None:
    """But for its registers, which are real ones then."""
    step = steps()[name]
    (found,) = read_program(written([step]))
    if isinstance(step, Tile):
        step = allocate_registers(step)
    elif isinstance(step, Matmul):
        step = replace(step, epilogue=allocate_epilogue(step.name, step.epilogue))
    assert found == step


def test_works_of_a_step_come_back_and_say_what_it_takes() -> None:
    flow = Flow(True, False, 128, (Axis(*some(4)), Axis(*some(4))))
    works = (Work("exp", 2, (flow,), *some(7)), Work("sum", 2, (), *some(7)))
    (found,) = read_program(written([replace(tile(), works=works)]))
    assert isinstance(found, Tile) and found.works == works
    assert found.time_us == pytest.approx(sum(price(work).us for work in works))


def test_loops_come_back_and_each_step_has_a_stride_for_every_loop_around_it() -> None:
    items: list[Item] = [LoopBegin(3), LoopBegin(2), tile(2), LoopEnd(), tile(1), LoopEnd(), tile()]
    assert read_program(written(items)) == items
    with pytest.raises(ProgramError, match="chain: found 0 loop strides, allowed: 1"):
        written([LoopBegin(3), tile(), LoopEnd()])
    with pytest.raises(ProgramError, match="found a loop end"):
        written([LoopEnd()])
    with pytest.raises(ProgramError, match="found 1 loops without an end"):
        written([LoopBegin(3), tile(1)])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda b: b[:10], "found 10 bytes"),
        (lambda b: b"NOTSPYRE" + b[8:], "found magic"),
        (lambda b: b[:8] + bytes([99, 0, 0, 0]) + b[12:], "found version 99"),
        (lambda b: b[:-8], "as the header says"),
        (lambda b: b[:16] + bytes([77]) + b[17:], "found kind 77"),
        (lambda b: b[:24] + bytes([3]) + b[25:], "found a step of"),
    ],
)
def test_bytes_that_are_no_program_are_refused(spoil: object, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        read_program(spoil(written([tile()])))  # type: ignore[operator]


def test_a_directory_of_code_comes_back_and_a_wrong_manifest_is_named(tmp_path: Path) -> None:
    step = tile()
    write_spyrecode(tmp_path, written([step]))
    assert read_spyrecode(tmp_path) == [step]
    path = tmp_path / "spyrecode.json"
    good = json.loads(path.read_text())
    assert good["JobExecPlan"][0]["command"] == "ComputeOnDevice"

    def spoiled(change: object) -> None:
        other = json.loads(json.dumps(good))
        change(other)  # type: ignore[operator]
        path.write_text(json.dumps(other))

    init = "JobPreparationPlan"
    for change, words in (
        (lambda m: m.pop("JobExecPlan"), "JobExecPlan: found nothing"),
        (lambda m: m[init].reverse(), "found InitTransfer, Allocate, allowed: Allocate"),
        (lambda m: m[init][0]["properties"].update(size="8"), "allowed: up to 8, as allocated"),
        (lambda m: m[init][1]["properties"].update(dev_ptr="0"), "dev_ptr: found 0, allowed"),
        (lambda m: m[init][1]["properties"].update(size=12), "size: found 12, allowed: a decimal"),
        (lambda m: m[init][1]["properties"].update(init_bin_file="x"), "found no file 'x'"),
    ):
        spoiled(change)
        with pytest.raises(SpyreCodeError, match=words):
            read_spyrecode(tmp_path)
    with pytest.raises(SpyreCodeError, match=r"found no spyrecode\.json"):
        read_spyrecode(tmp_path / "nowhere")
