"""Programs of several operations: scratchpads, pool, loops, and the same bits fused and not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.make_bundle import LX, POOL, Op, Repeat, T, op
from tests.support.run_bundle import run
from tests.support.values import ROWS, SPARSE, compare, values


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("symbolic", [True, False])
def test_softmax_with_intermediates_in_lx_and_pool(tmp_path, fuse: bool, symbolic: bool):
    x = values((128, 256))
    sizes, splits = {"mb": 128, "out": 256}, {"mb": 4}
    largest, total = SPARSE.at(LX, 0), SPARSE.at(LX, 8192)
    shifted, raised = ROWS.at(POOL), ROWS.at(POOL, 65536)
    operations = [
        op("max", sizes, [ROWS.at(0)], largest, splits=splits),
        op("sub", sizes, [ROWS.at(0), largest], shifted, splits=splits),
        op("exp", sizes, [shifted], raised, splits=splits),
        op("sum", sizes, [raised], total, splits=splits),
        op("realdiv", sizes, [raised, total], ROWS.at(1), splits=splits),
    ]
    found = run(tmp_path, operations, x, x * 0, fuse=fuse, symbolic=symbolic)[1]
    compare(found, x.float().softmax(1))


@pytest.mark.parametrize("fuse", [True, False])
def test_a_loop_over_tiles_of_rows(tmp_path, fuse: bool):
    x = values((128, 256))
    sizes = {"mb": 32, "out": 256}
    tile = {"gap": {"mb": 96}, "loop_strides": (32 * 128,)}
    scratch = ROWS.at(POOL, loop_strides=(0,))
    operations = [
        Repeat(4, [
            op("exp", sizes, [ROWS.at(0, **tile)], scratch, splits={"mb": 2}),
            op("add", sizes, [scratch, ROWS.at(0, **tile)], ROWS.at(1, **tile), splits={"mb": 2}),
        ])
    ]  # fmt: skip
    found = run(tmp_path, operations, x, x * 0, fuse=fuse)[1]
    compare(found, x.float().exp() + x.float())


def test_an_accumulator_in_a_loop_is_stored_each_time(tmp_path):
    x = values((128, 64))
    sizes = {"mb": 32, "out": 64}
    total = ROWS.at(POOL, loop_strides=(0,))
    part = ROWS.at(0, gap={"mb": 96}, loop_strides=(32 * 128,))
    zero = ROWS.at(POOL)
    operations = [
        op("sub", sizes, [ROWS.at(0, gap={"mb": 96}), ROWS.at(0, gap={"mb": 96})], zero),
        Repeat(4, [op("add", sizes, [total, part], total)]),
        op("neg", sizes, [zero], ROWS.at(1)),
    ]
    found = run(tmp_path, operations, x, torch.zeros((32, 64)).half())[1]
    compare(found, -x.float().reshape(4, 32, 64).sum(0), 8e-3)


def random_program(seed: int) -> list[Op]:
    """Operations over a few tensors that are written again and again: arguments 0 to 2, five in the
    pool, two columns of one value a row in the pool."""
    generator = torch.Generator().manual_seed(seed)

    def pick(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    sizes = {"mb": 16, "out": 128}
    full, column_bytes = 16 * 128 * 2, 16 * 128

    def place(which: int) -> T:
        return ROWS.at(which) if which < 3 else ROWS.at(POOL, (which - 3) * full)

    def column(tensor: T) -> T:
        return tensor.at(POOL, 5 * full + pick(2) * column_bytes)

    # Nothing is read from the pool that was not written there before.
    operations = [op("identity", sizes, [place(n % 3)], place(n), splits={"mb": 2})
                  for n in range(3, 8)]  # fmt: skip
    operations += [
        op("max", sizes, [place(n)], SPARSE.at(POOL, 5 * full + n * column_bytes)) for n in range(2)
    ]
    for _ in range(14):
        kind = pick(8)
        splits = [{"mb": 2}, {"mb": 2}, {"mb": 2, "out": 2}][pick(3)]
        x, y, out = place(pick(8)), place(pick(8)), place(2 + pick(6))
        if kind == 0:
            made = op(["sum", "max"][pick(2)], sizes, [x], column(SPARSE), splits=splits)
        elif kind == 1:
            made = op("mul", sizes, [x, column(SPARSE)], out, splits=splits)
        elif kind == 2:
            of_columns = {"mb": 16, "out": 64}
            made = op("sigmoid", of_columns, [column(ROWS)], column(ROWS), splits={"mb": 2})
        elif kind < 5:
            made = op(["tanh", "neg"][pick(2)], sizes, [x], out, splits=splits)
        else:
            name = ["add", "maximum", "sub"][kind - 5]
            made = op(name, sizes, [x, y], out, splits=splits)
        operations.append(made)
    operations.append(op("identity", sizes, [place(3)], place(1), splits={"mb": 2}))
    operations.append(op("mul", sizes, [place(4), column(SPARSE)], place(0), splits={"mb": 2}))
    return operations


def random_shapes(seed: int) -> list[Op]:
    """The same, with products and with rows that some operations see as batches of rows, on other
    numbers of cores each."""
    generator = torch.Generator().manual_seed(seed)

    def pick(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    rows, cube = {"mb": 16, "out": 128}, {"x": 4, "mb": 4, "out": 128}
    full, column_bytes = 16 * 128 * 2, 16 * 128

    def placed(tensor: T, which: int) -> T:
        return tensor.at(which) if which < 3 else tensor.at(POOL, (which - 3) * full)

    operations = [op("identity", rows, [placed(ROWS, n % 3)], placed(ROWS, n)) for n in range(3, 8)]
    for n in range(2):
        column = replace(ROWS, scale={"out": -2}).at(POOL, 5 * full + n * column_bytes)
        operations.append(op("max", rows, [placed(ROWS, n)], column))
    for _ in range(12):
        kind = pick(8)
        is_cube = pick(2) == 1
        shape = T(["mb", "x", "out"]) if is_cube else ROWS
        sizes = cube if is_cube else rows
        cut = [{}, {"mb": 2}, {"out": 2}, {"mb": 4, "out": 2}, {"x": 2} if is_cube else {"mb": 8}]
        splits = cut[pick(5)]
        value = replace(shape, scale={"out": -2}).at(POOL, 5 * full + pick(2) * column_bytes)
        first = 3 if is_cube else 0  # arguments have two dimensions
        x, y = (placed(shape, first + pick(8 - first)) for _ in range(2))
        out = placed(shape, 3 + pick(5))
        if kind < 2:
            operations.append(
                op(["sum", "max"][kind], sizes, [x], value, splits=cut[[0, 1, 4][pick(3)]])
            )
        elif kind == 2:
            operations.append(op("mul", sizes, [x, value], out, splits=splits))
        elif kind == 3:
            source, target = 3 + pick(5), 2 + pick(6)
            if target == source:  # a core would write what another one still reads
                target = 2
            operands = [
                placed(T(["mb", "in"], stick="in", label="INPUT"), source),
                T(["in", "out"], label="KERNEL", where=3),
            ]
            result = replace(placed(ROWS, target), label="OUTPUT")
            split = [{}, {"mb": 2}, {"out": 2}, {"mb": 4, "out": 2}][pick(4)]
            operations.append(
                op("batchmatmul", {**rows, "in": 128}, operands, result, splits=split)
            )
        elif kind < 6:
            operations.append(op(["tanh", "gelufwd"][kind - 4], sizes, [x], out, splits=splits))
        else:
            operations.append(op(["add", "maximum"][kind - 6], sizes, [x, y], out, splits=splits))
    operations.append(op("add", rows, [placed(ROWS, 3), placed(ROWS, 4)], placed(ROWS, 1)))
    operations.append(op("add", rows, [placed(ROWS, 5), placed(ROWS, 6)], placed(ROWS, 0)))
    return operations


@pytest.mark.parametrize("number", range(60))
def test_fused_and_unfused_shapes_give_the_same_bits(tmp_path, number: int):
    hosts = [values((16, 128)) for _ in range(3)]
    hosts.append(values((128, 128)) * 0.1)
    operations = random_shapes(number)
    fused, plain = (
        run(tmp_path / str(fuse), operations, *hosts, fuse=fuse) for fuse in (True, False)
    )
    for a, b in zip(fused, plain):
        assert torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("number", range(60))
def test_fused_and_unfused_give_the_same_bits(tmp_path, number: int):
    hosts = [values((16, 128)) for _ in range(3)]
    operations = random_program(number)
    fused, plain = (
        run(tmp_path / str(fuse), operations, *hosts, fuse=fuse) for fuse in (True, False)
    )
    for a, b in zip(fused, plain):
        assert torch.equal(a.view(torch.int16), b.view(torch.int16))
