"""Each rule of steps has a violation that names step, rule, found and allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.make_bundle import INT32, POOL, Op, T, op, write_bundle
from torch_spyre.backend import compile, read_bundle, steps_of
from torch_spyre.backend.steps import (
    Choice,
    Form,
    Instruction,
    LoopBegin,
    LoopEnd,
    Phase,
    Ring,
    Space,
    Step,
    addresses,
    with_addresses,
)
from torch_spyre.backend.validate import RULES, Scope, check_fused, check_step, check_steps
from torch_spyre.card_model.ring import BoxAxis, Transfer
from torch_spyre.opfuncs import TILE_OPCODES
from torch_spyre.validation import BrokenRule

SIZES = {"mb": 128, "out": 256}
ROWS = T(["mb", "out"])
MEANS = T(["mb", "out"], scale={"out": -2})
FULL = 128 * 256 * 2
AROUND = Scope((), 4)


def pool(number: int) -> T:
    return ROWS.at(POOL, number * FULL)


def product() -> Op:
    x, y = T(["mb", "in"], stick="in", label="INPUT"), T(["in", "out"], label="KERNEL")
    sizes = {"mb": 128, "out": 256, "in": 64}
    return op("batchmatmul", sizes, [x.at(0), y.at(1)], pool(0), splits={"out": 2, "mb": 2})


def gather() -> Op:
    index = T(["mb", "out"], INT32, stick="mb", scale={"out": -1}, label="KERNEL_IDX", where=0,
              indirection="index_tensor")  # fmt: skip
    value = T(["mb", "out"], where=1, indirection="value_tensor", gap={"mb": 1000 - 64})
    sizes = {"mb": 64, "out": 128}
    return op("identity", sizes, [value], ROWS.at(2), splits={"mb": 8}, index=index)


def relayout() -> Op:
    place: dict[str, Any] = {
        "placement": {"deviceSize_": [4, 128, 64], "strideMap_": [64, 256, 1],
                      "size_": [128, 256], "stride_": [256, 1]},
        "view": {"stride_": [256, 1], "offset_": 0},
    }  # fmt: skip
    return op("relayout", SIZES, [ROWS.at(0, **place)], ROWS.at(1, **place), splits={"mb": 4})


def topk() -> Op:
    source = T(["mb", "out", "x"], scale={"x": -1}, label="KERNEL")
    out = T(["x", "out", "mb"], INT32, scale={"mb": -1}, where=1)
    return op("topkindex", {"mb": 16, "x": 4, "out": 64}, [source], out)


def binary(name: str, a: T, b: T, out: T) -> Op:
    return op(name, SIZES, [a, b], out, splits={"mb": 4})


PROGRAMS: dict[str, list[Any]] = {
    "tile": [binary("add", ROWS.at(0), ROWS.at(1), ROWS.at(2))],
    "sum": [op("sum", SIZES, [ROWS.at(0)], MEANS.at(1), splits={"mb": 4})],
    "product": [product(), op("gelufwd", SIZES, [pool(0)], ROWS.at(2), splits={"mb": 4})],
    "gather": [gather()],
    "copy": [relayout()],
    "topk": [topk()],
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A step of each kind."""
    made: dict[str, Any] = {}
    for name, operations in PROGRAMS.items():
        path: Path = tmp_path_factory.mktemp(name)
        (made[name],) = steps_of(read_bundle(write_bundle(path, operations)))
    there = replace(addresses(made["tile"])[0], space=Space.LX)
    made["ring"] = Ring(
        "0_ringmove", 4, (BoxAxis(2, 128, 128),),
        replace(there, offsets=(0,) * 4), replace(there, offsets=(4096,) * 4),
        (Transfer(0, 1, 0, 0), Transfer(1, 2, 0, 256)),
        source=("0_ringmove",), works=made["tile"].works,
    )  # fmt: skip
    step = made["product"]
    numbers = replace(addresses(made["tile"])[0], offsets=(0,) * step.cores)
    made["chosen"] = replace(step, choice=Choice(
        8, FULL, (0,) * (step.batch + 1), True, 128, numbers, (0,) * step.cores,
    ))  # fmt: skip
    return made


def chosen(step: Any, **fields: Any) -> Any:
    return replace(step, choice=replace(step.choice, **fields))


def moved(step: Step, number: int, **fields: Any) -> Step:
    """With another address of one operand."""
    there = list(addresses(step))
    there[number] = replace(there[number], **fields)
    return with_addresses(step, tuple(there))


def operand(step: Any, number: int, **fields: Any) -> Any:
    operands = list(step.operands)
    operands[number] = replace(operands[number], **fields)
    return replace(step, operands=tuple(operands))


def instruction(step: Any, number: int, **fields: Any) -> Any:
    body = list(step.body)
    body[number] = replace(body[number], **fields)
    return replace(step, body=tuple(body))


def ins(name: str, destination: int, a: int = -1, b: int = -1) -> Instruction:
    return Instruction(TILE_OPCODES[name], destination, a, b)


def many(count: int) -> tuple[Instruction, ...]:
    """All loaded before the first is read."""
    loads = [ins("load", n, 0) for n in range(count)]
    adds = [ins("add", count + n, n, n + 1) for n in range(count - 1)]
    return (*loads, *adds, ins("store", 2, count))


def side(step: Any, **fields: Any) -> Any:
    return replace(step, destination=replace(step.destination, **fields))


VIOLATIONS: list[tuple[str, str, Callable[[Any], Any], str]] = [
    ("range of cores", "tile", lambda s: replace(s, cores=33), "found 33, allowed 1 to 32"),
    ("an entry for each core", "tile", lambda s: replace(s, extents=s.extents[:3]),
     "found 3 entries, allowed 4, one for each core"),
    ("work", "tile", lambda s: replace(s, works=()), "found none, allowed one for each operation"),
    ("work", "tile", lambda s: replace(s, works=(s.works[0]._replace(lane_cycles=-1),)),
     "found add with [4, -1, 0, 0, 0, 0, 0, 0], allowed 0 or more, on 1 to 32 cores"),
    ("work", "tile", lambda s: replace(s, time_us=float("nan")), "found nan us, allowed 0 or more"),
    ("loop strides", "tile", lambda s: moved(s, 0, loop_strides=(128,)),
     "found 1, allowed 0, one for each loop around it"),
    ("space of an operand", "tile", lambda s: moved(s, 0, space=Space.DEVICE),
     "found DEVICE, allowed ARGUMENT, LX or SHARED"),
    ("space of an operand", "tile", lambda s: moved(s, 0, argument=4),
     "found ARGUMENT 4, allowed 0 to 3"),
    ("begin of an operand", "tile", lambda s: moved(s, 0, offsets=(0, 64, 128, 256)),
     "found 64, allowed multiples of 128"),
    ("bytes of an operand", "tile", lambda s: moved(s, 0, space=Space.LX, argument=0,
     offsets=(2097152 - 128,) * 4), "found LX 2097024 to 2150272, allowed 0 to 2097152"),
    ("bytes of an operand", "tile", lambda s: moved(s, 0, offsets=(-128, 0, 128, 256)),
     "found ARGUMENT -128 to 53504, allowed 0 to 17179869184"),
    ("extents", "tile", lambda s: replace(s, extents=((4, -1),) * 4),
     "found -1, allowed 0 or more"),
    ("extents", "tile", lambda s: replace(s, extents=(*s.extents[1:], (1,))),
     "found [1, 2] dimensions, allowed the same number for all cores, up to 16"),
    ("strides of an operand", "tile", lambda s: operand(s, 1, strides=(128,)),
     "found 1 strides, allowed 2, one for each dimension"),
    ("strides of an operand", "product", lambda s: replace(s, x=replace(s.x, strides=(128,))),
     "found 1 strides, allowed 2, one for each dimension"),
    ("strides of an operand", "gather", lambda s: replace(s, out=replace(s.out, strides=())),
     "found 0 strides, allowed 2, one for each dimension"),
    ("stick dimension", "tile", lambda s: replace(s, stick_dim=2), "found 2, allowed -1 to 1"),
    ("lanes", "tile", lambda s: replace(s, lanes=48), "found 48, allowed (32, 64, 128)"),
    ("lanes", "sum", lambda s: replace(s, tails=(1 << 64,) * 4),
     "found tail 0x10000000000000000, allowed a mask of 64 lanes"),
    ("format of an operand", "tile", lambda s: operand(s, 0, format=9),
     "found SENINT16, allowed BFLOAT16, IEEE_FP16"),
    ("format of an operand", "product", lambda s: replace(s, y=replace(s.y, format=12)),
     "found ['float', 'int'], allowed floats as inputs"),
    ("number of operands", "tile", lambda s: replace(s, operands=s.operands * 11),
     "found 33, allowed up to 32"),
    ("whole sticks", "tile", lambda s: operand(s, 0, format=3),
     "found 128 in a stick of @0, allowed divisors of 64"),
    ("opcode", "tile", lambda s: instruction(s, 2, opcode=99),
     "found 99, allowed an opcode of opfuncs.TILE_OPCODES"),
    ("opcode", "product", lambda s: replace(s, epilogue=(ins("widen", 9, 0), *s.epilogue)),
     "found widen, allowed none that moves lanes in the epilogue of a product"),
    ("operand of an instruction", "tile", lambda s: instruction(s, 0, a=3),
     "found load @3, allowed @0 to @2"),
    ("form of an operand", "tile", lambda s: operand(s, 2, form=Form.SPLAT),
     "found store of SPLAT, allowed VECTOR, SPLAT_STORE, EXX2_STORE"),
    ("registers of an opcode", "tile", lambda s: instruction(s, 2, b=-1),
     "found add of 1 registers, allowed 2"),
    ("constants", "tile", lambda s: instruction(s, 2, immediate0=1 << 32),
     "found add with 4294967296, 0, allowed 32 bits each"),
    ("order of reads and writes", "tile", lambda s: replace(s, body=s.body[1:]),
     "found r0 is read first, allowed reads after the write"),
    ("order of reads and writes", "tile", lambda s: instruction(s, 1, destination=0),
     "found r0 is written twice, allowed one write for each register"),
    ("order of reads and writes", "sum", lambda s: replace(s, epilogue=(ins("store", 1, 0),)),
     "found r0 is read first, allowed reads after the write"),
    ("kind of registers", "tile", lambda s: instruction(s, 2, opcode=TILE_OPCODES["int_add"]),
     "found int_add of float, float, allowed int"),
    ("kind of registers", "tile", lambda s: replace(operand(s, 2, format=12), lanes=64),
     "found store of float, allowed int"),
    ("number of registers", "tile", lambda s: replace(s, body=many(40)),
     "found 40 in use at one time, allowed up to 32"),
    ("number of registers", "product", lambda s: replace(s, epilogue=tuple(
     replace(i, destination=i.destination + (i.opcode != 1),
             a=i.a + (i.opcode > 1), b=i.b + (i.opcode > 1))
     for i in many(40)[:-1])),
     "found 40 in use at one time, allowed up to 32"),
    ("phases", "tile", lambda s: replace(s, kept=1),
     "found 0 reductions, allowed some if dimensions or lanes are reduced"),
    ("phases", "sum", lambda s: replace(s, further=(Phase(), Phase())),
     "found phases that reduce: [True, False, False], allowed all but the last"),
    ("operands of epilogues", "sum", lambda s: operand(s, 1, strides=(128, 128)),
     "found @1 with (128, 128), allowed 0 along what is reduced"),
    ("sides of a copy", "copy", lambda s: side(s, stride_map=(1,)),
     "found [3, 1, 2, 2] sizes and strides, allowed a stride for each size"),
    ("sides of a copy", "copy", lambda s: side(s, format=1),
     "found elements of [2, 4] bytes, allowed elements of one size"),
    ("sides of a copy", "copy", lambda s: side(s, views=((0, 32, 128),) * 4),
     "found (32, 256) to (32, 128) on core 0, allowed the same points on both sides"),
    ("view of a copy", "copy", lambda s: side(s, view_strides=(512, 1)),
     "allowed 0 to 32767"),
    ("rows of a gather", "gather", lambda s: replace(s, rows=0), "found 0 rows, first index 0"),
    ("rows of a gather", "gather", lambda s: replace(s, index=replace(s.index, strides=(0, 4))),
     "found stride 4 of indices, allowed 0 along the stick"),
    ("matrices of a product", "chosen", lambda s: chosen(s, count=0),
     "found 0 matrices, first row 0, allowed 1 or more, 0 or more"),
    ("matrices of a product", "chosen", lambda s: chosen(s, first=(0, -1, 0, 0)),
     "found 8 matrices, first row -1"),
    ("matrices of a product", "chosen", lambda s: chosen(s, strides=(0, 0, 0, 0)),
     "found 4 strides of numbers"),
    ("matrices of a product", "chosen", lambda s: chosen(s, strides=(4,) * (s.batch + 1)),
     "found stride 4 of numbers, allowed 0 along the stick"),
    ("topk", "topk", lambda s: replace(s, k=17), "found 17 of 16, allowed 1 to 16"),
    ("topk", "topk", lambda s: replace(s, output=replace(s.output, format=1)),
     "found indices as float, allowed int"),
    ("transfers", "ring", lambda s: replace(s, transfers=(Transfer(0, 4, 0, 0),)),
     "found core 0 to 4, allowed 0 to 3"),
    ("transfers", "ring", lambda s: replace(s, transfers=s.transfers[:1] * 2),
     "found two transfers to one place, allowed a place for each"),
    ("transfers", "ring", lambda s: moved(s, 1, space=Space.SHARED),
     "found ['LX', 'SHARED'], allowed LX"),
    ("points of each core", "tile", lambda s: replace(s, starts=s.starts[:3] + s.starts[:1]),
     "found cores 0 and 3 at (0, 0), allowed points of one core"),
    ("results of each core", "tile", lambda s: moved(s, 2, offsets=(0, 4096, 8192, 8192)),
     "found 4 cores at 3 places, allowed a place for each core"),
]  # fmt: skip


def test_sound_steps_break_no_rule(sound: dict[str, Any]) -> None:
    for name, step in sound.items():
        check_step(step, AROUND, name)


def test_every_rule_has_a_violation() -> None:
    assert [rule for rule, _, _ in RULES] == list(dict.fromkeys(
        sorted((v[0] for v in VIOLATIONS), key=[rule for rule, _, _ in RULES].index)
    ))  # fmt: skip


@pytest.mark.parametrize("rule, name, spoil, message", VIOLATIONS)
def test_a_violation_is_named(
    sound: dict[str, Any], rule: str, name: str, spoil: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(BrokenRule) as caught:
        check_step(spoil(sound[name]), AROUND, f"step 0, {sound[name].name}")
    assert caught.value.rule == rule
    assert str(caught.value).startswith(f"step 0, {sound[name].name}: {rule}: found ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "items, message",
    [
        ([LoopBegin(0), LoopEnd()], "step 0: count of a loop: found 0, allowed 1 or more"),
        ([LoopEnd()], "step 0: loops: found an end, allowed an end after a begin"),
        ([LoopBegin(2)], "program: loops: found 1 without an end, allowed none"),
    ],
)
def test_loops_are_closed(items: list[Any], message: str) -> None:
    with pytest.raises(BrokenRule) as caught:
        check_steps(items, 1)
    assert str(caught.value) == message


# ---- What fuse may do ----------------------------------------------------------------------------


@pytest.fixture
def chain(tmp_path: Path) -> list[Any]:
    """Two values in the pool, of which the second needs the first, and a result of both."""
    operations = [
        binary("add", ROWS.at(0), ROWS.at(1), pool(0)),
        binary("mul", pool(0), pool(0), pool(1)),
        binary("sub", pool(0), pool(1), ROWS.at(2)),
    ]
    return steps_of(read_bundle(write_bundle(tmp_path, operations)), fuse=False)


FUSED: dict[str, tuple[Callable[[list[Any]], list[Any]], str]] = {
    "a load before its store": (
        lambda s: [s[1], s[0], s[2]],
        "step 0, 1_mul: stores before loads: found bytes 0 to 65536 of ARGUMENT 0 from [], "
        "allowed ['0_add']",
    ),
    "a lost store": (
        lambda s: s[1:],
        "step 0, 1_mul: stores before loads: found bytes 0 to 65536 of ARGUMENT 0 from [], "
        "allowed ['a lost step']",
    ),
    "a lost result": (
        lambda s: s[:2],
        "end of the program: stores before loads: found bytes 0 to 65536 of ARGUMENT 3 from [], "
        "allowed ['a lost step']",
    ),
    "an operation that is done twice": (
        lambda s: [*s, s[0]],
        "step 3, 0_add: operations: found 0_add twice, allowed each in one step",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_what_fuse_breaks_is_named(chain: list[Any], name: str) -> None:
    check_fused(chain, chain, 0)
    spoil, message = FUSED[name]
    with pytest.raises(BrokenRule) as caught:
        check_fused(chain, spoil(chain), 0)
    assert str(caught.value) == message


def test_the_way_from_a_bundle_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default here, as tests/__init__.py sets SPYRE_VALIDATE; `validate` says so for one."""
    bundle = read_bundle(write_bundle(tmp_path, PROGRAMS["product"]))
    monkeypatch.setattr(compile, "schedule", lambda items, pool, fuse: items[:1])
    with pytest.raises(BrokenRule, match="end of the program: stores before loads"):
        steps_of(bundle)
    assert len(steps_of(bundle, validate=False)) == 1
