"""Bundles with pools, loops and symbols; and the text form of OpSpecs."""

from __future__ import annotations

import json
from unittest import mock

import pytest
import sympy
from sympy import Mod, Symbol, floor

from torch_spyre._C import DataFormats
from torch_spyre._inductor.codegen.bundle import generate_bundle
from torch_spyre._inductor.opspec import frames
from torch_spyre._inductor.opspec.alignment import align
from torch_spyre._inductor.opspec.loops import loop_strides, unroll
from torch_spyre._inductor.opspec.op_spec import (
    IndirectAccess,
    LoopSpec,
    OpSpec,
    TensorArg,
    UnimplementedOp,
)
from torch_spyre._inductor.opspec.text import dump, parse, read, sympify
from torch_spyre._inductor.opspec.validate import InvalidOpSpec, validate_op_spec
from torch_spyre.backend import read_bundle

c0, c1 = sympy.symbols("c0 c1")
FP16 = DataFormats.SEN169_FP16
SEGMENT = 1 << 34


def tensor(number, out=False, space="hbm", at=0, row=c0, **more):
    index = number if space == "hbm" else -1
    coordinates = [floor(c1 / 64), row, Mod(c1, 64)]
    return TensorArg(not out, index, FP16, [4, 128, 64], coordinates, {space: at}, **more)


def add(slices=1, size=128, tiled=(), args=None):
    args = args or [tensor(0), tensor(1), tensor(2, out=True)]
    return align(OpSpec("add", False, {c0: (size, slices), c1: (256, 1)}, args, {}, list(tiled)))


def mlir(tmp_path, specs, has_pool=False, **options):
    generate_bundle(specs, tmp_path, has_pool=has_pool, **options)
    return (tmp_path / "bundle.mlir").read_text()


def starts(path, number):
    ((_, top),) = json.loads(path.read_text()).items()
    ((_, dsc),) = top["dscs_"][0].items()
    node = dsc["scheduleTree_"][number]
    return [int(a) for a in node["startAddressCoreCorelet_"]["data_"].values()], node


# ---- Bundles -------------------------------------------------------------------------------------


def test_a_concrete_bundle_has_no_parameters(tmp_path):
    assert mlir(tmp_path, [add(), add()], symbolic=False) == (
        "module {\n"
        "\tfunc.func @sdsc_bundle() {\n"
        '\t\tsdscbundle.sdsc_execute () {sdsc_filename="sdsc_0.json"}\n'
        '\t\tsdscbundle.sdsc_execute () {sdsc_filename="sdsc_1.json"}\n'
        "\t\treturn\n"
        "\t}\n"
        "}\n"
    )


def test_operations_that_differ_in_addresses_share_a_file(tmp_path):
    def body():
        again = [tensor(1), tensor(-1, space="pool", at=512), tensor(0, out=True)]
        twice = [tensor(1), tensor(1), tensor(0, out=True)]
        return [add(4), add(4, args=again), add(4, args=twice), add(2), add(4)]

    for name in ("shared", "own"):
        (tmp_path / name).mkdir()
    written = generate_bundle(body(), tmp_path / "shared", has_pool=True, share=True)
    assert written == (5, 3)
    names = sorted(path.name for path in (tmp_path / "shared").glob("*.json"))
    assert names == ["sdsc_0.json", "sdsc_2.json", "sdsc_3.json"]
    assert generate_bundle(body(), tmp_path / "own", has_pool=True) == (5, 5)
    shared, own = (read_bundle(tmp_path / name).operations() for name in ("shared", "own"))
    assert [o.file for o in shared] == [f"sdsc_{n}.json" for n in (0, 0, 2, 3, 0)]
    for a, b in zip(shared, own, strict=True):
        assert (a.name, a.sdsc, a.addresses) == (b.name, b.sdsc, b.addresses)


def test_what_is_in_the_scratchpad_is_part_of_a_shared_file(tmp_path):
    def in_lx(at):
        return add(4, args=[tensor(-1, space="lx", at=at), tensor(1), tensor(2, out=True)])

    specs = [in_lx(0), in_lx(128), in_lx(0)]
    assert generate_bundle(specs, tmp_path, has_pool=False, share=True) == (3, 2)


def test_concrete_addresses_are_not_shared(tmp_path):
    specs = [add(4), add(4)]
    assert generate_bundle(specs, tmp_path, symbolic=False, has_pool=False, share=True) == (2, 2)


def test_symbolic_addresses_of_cores_are_made_once(tmp_path):
    text = mlir(tmp_path, [add(4), add(4)])
    assert text.count("arith.addi") == 9
    assert text.count("input_arg_extract") == 3
    assert "%arg_1_core_8192 = arith.addi %arg_1, %arg_1_core_offset_8192 : index\n" in text
    first = ", ".join(str(-n) for n in range(1, 13))
    second = ", ".join(str(-n) for n in range(13, 25))
    assert f'{{sdsc_filename="sdsc_0.json", "symbol_ids"=[{first}]}}' in text
    assert f'{{sdsc_filename="sdsc_1.json", "symbol_ids"=[{second}]}}' in text
    addresses, node = starts(tmp_path / "sdsc_1.json", 0)
    assert addresses == [-13, -14, -15, -16]
    assert node["isStartAddrSymbolic_"] == 1


def test_the_pool_is_the_first_parameter(tmp_path):
    spec = add(args=[tensor(0), tensor(1, space="pool", at=512), tensor(1, out=True)])
    text = mlir(tmp_path, [spec], has_pool=True)
    parameters = ["%pool_base_addr", "%arg_0_base_addr", "%arg_1_base_addr"]
    declared = ", ".join(f"{p}: !sdscbundle.input_arg<index>" for p in parameters)
    assert f"@sdsc_bundle({declared})" in text
    assert "%pool_addr_512 = arith.addi %pool, %pool_offset_512 : index" in text
    assert "sdsc_execute (%arg_0, %pool_addr_512, %arg_1)" in text


def test_lx_addresses_are_never_symbols(tmp_path):
    spec = add(4, args=[tensor(0), tensor(1, space="lx", at=1024), tensor(1, out=True)])
    text = mlir(tmp_path, [spec])
    assert len(text.partition('"symbol_ids"=[')[2].partition("]")[0].split(",")) == 8
    addresses, node = starts(tmp_path / "sdsc_0.json", 1)
    assert addresses == [1024] * 4
    assert "isStartAddrSymbolic_" not in node


def test_arguments_that_nothing_uses_are_parameters_too(tmp_path):
    assert mlir(tmp_path, [add()], num_args=5).count("input_arg_extract") == 5


def test_an_unimplemented_operation_has_no_bundle(tmp_path):
    with pytest.raises(InvalidOpSpec, match="xor_sum"):
        mlir(tmp_path, [UnimplementedOp("xor_sum")])


# ---- Loops ---------------------------------------------------------------------------------------


def tiled_add(fixed=False):
    """32 rows of 128 at a time."""
    args = [tensor(0), tensor(1, per_tile_fixed=fixed), tensor(2, out=True)]
    return add(2, 32, [c0], args)


def test_a_tile_of_rows_moves_by_its_rows_in_the_device_layout():
    assert loop_strides(tiled_add()) == [(4096,)] * 3
    assert loop_strides(tiled_add(fixed=True))[1] == ()


def test_two_loops_over_one_symbol_nest():
    spec = tiled_add()
    spec.tiled_symbols = [c0, c0]
    assert loop_strides(spec, [2, 2]) == [(8192, 4096)] * 3


def test_a_tile_of_half_a_stick_is_refused():
    spec = add(tiled=[c1])
    spec.iteration_space[c1] = (32, 1)
    with pytest.raises(InvalidOpSpec, match="whole sticks"):
        loop_strides(spec)


def test_an_unrolled_loop_is_one_file_per_iteration(tmp_path):
    mlir(tmp_path, [LoopSpec(4, [tiled_add(fixed=True)], [c0])], symbolic=False)
    for tile in range(4):
        addresses, node = starts(tmp_path / f"sdsc_{tile}.json", 0)
        assert addresses == [4096 * tile, 4096 * tile + 2048]
        assert node["backGapCore_"] == {"mb": {"-1": "96"}}
        assert starts(tmp_path / f"sdsc_{tile}.json", 1)[0] == [SEGMENT, SEGMENT + 2048]
    assert not (tmp_path / "sdsc_4.json").exists()


def test_unrolled_operations_are_valid_and_have_no_tiles():
    flat = unroll([LoopSpec(2, [LoopSpec(2, [tiled_add()], [c0])])])
    assert [op.args[0].allocation["hbm"] for op in flat] == [0, 4096, 0, 4096]
    for op in flat:
        assert op.tiled_symbols == []
        validate_op_spec(op)


def test_a_loop_that_stays_a_loop_applies_maps(tmp_path):
    loop = LoopSpec(4, [tiled_add(fixed=True)], [c0])
    text = mlir(tmp_path, [loop, add()], unroll_loops=False)
    lines = text.split("\n")
    assert lines[0] == "#map_0 = affine_map<(d0)[s0] -> (s0 + 4096*d0)>"
    assert lines[1] == "module {"
    for constant in ("%c0 = arith.constant 0", "%c1 = arith.constant 1"):
        assert f"\t\t{constant} : index" in lines
    assert "\t\t%loop_bound_0 = arith.constant 4 : index" in lines
    begin = lines.index("\t\tscf.for %i_0 = %c0 to %loop_bound_0 step %c1 {")
    assert lines[begin + 1] == "\t\t\t%addr_0 = affine.apply #map_0(%i_0)[%arg_0]"
    assert lines[begin + 2] == "\t\t\t%addr_1 = affine.apply #map_0(%i_0)[%arg_0_core_2048]"
    assert lines[begin + 5].startswith(
        "\t\t\tsdscbundle.sdsc_execute (%addr_0, %addr_1, %arg_1, %arg_1_core_2048, %addr_2"
    )
    assert lines[begin + 6] == "\t\t}"
    assert 'sdsc_filename="sdsc_1.json"' in lines[begin + 7]


def test_nested_loops_use_the_innermost_counters(tmp_path):
    both = tiled_add()
    both.tiled_symbols = [c0, c0]
    nest = LoopSpec(3, [LoopSpec(2, [LoopSpec(2, [both, tiled_add()])])])
    text = mlir(tmp_path, [nest], unroll_loops=False)
    assert "affine_map<(d0, d1)[s0] -> (s0 + 8192*d0 + 4096*d1)>" in text
    assert "affine.apply #map_0(%i_1, %i_2)[%arg_0]" in text
    assert "affine.apply #map_1(%i_2)[%arg_0]" in text


def test_operations_with_one_content_are_worked_out_once(tmp_path):
    specs = [add(32) for _ in range(50)]
    frames._frames.clear()
    with mock.patch.object(frames, "make_op_plan", wraps=frames.make_op_plan) as plans:
        mlir(tmp_path, specs)
    assert plans.call_count == 1


# ---- Text ----------------------------------------------------------------------------------------


def everything():
    row = IndirectAccess(Symbol("idx"))
    gather = OpSpec(
        "identity",
        False,
        {c0: (40, 1), c1: (256, 4)},
        [
            TensorArg(
                True,
                0,
                DataFormats.IEEE_INT32,
                [2, 32],
                [floor(c0 / 32), Mod(c0, 32)],
                {"hbm": 0},
                name="idx",
            ),
            tensor(1, row=row + 3, stride_map=[64, 256, 1]),
            tensor(2, out=True, per_tile_fixed=True, element_arrangement="EXX2"),
        ],
        {"constants": {"clipMin": float("-inf"), "clipMax": 6.5}, "relayout": {"size": [1, (2,)]}},
        [c0],
    )
    return [add(4), LoopSpec(3, [gather, LoopSpec(2, [add()], [c1])], [c0]), UnimplementedOp("any")]


def test_text_comes_back_as_it_was():
    specs = everything()
    assert read(dump(specs)) == specs
    assert parse(f"\n{dump(specs)}") == specs
    assert dump(read(dump(specs))) == dump(specs)


def test_text_is_readable():
    text = dump([add(4)])
    lines = text.split("\n")
    assert lines[:6] == [
        "[",
        "    OpSpec(",
        "        op='add',",
        "        is_reduction=False,",
        "        iteration_space={sympify('c0'): (128, 4), sympify('c1'): (256, 1)},",
        "        args=[",
    ]
    assert lines[6].startswith("            TensorArg(is_input=True, arg_index=0, device_dtype=")
    assert (
        "device_coordinates=[sympify('floor(c1/64)'), sympify('c0'), sympify('Mod(c1, 64)')]"
        in text
    )
    assert sum("TensorArg(" in line for line in lines) == 3


def test_names_of_mathematics_are_plain_symbols():
    assert sympify("floor(E/64) + S") == floor(Symbol("E") / 64) + Symbol("S")
    assert sympify("0").is_Integer


def test_what_has_no_text_form_is_refused():
    spec = add()
    spec.op_info = {"constants": {"eps": object()}}
    with pytest.raises(TypeError, match="object"):
        dump([spec])


def test_text_runs_nothing():
    with pytest.raises(NameError):
        parse("[__import__('os')]")
