"""Bundles whose files do not belong together: directories, bundle.mlir, addresses."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.support.broken_bundles import broken_copy, refusal
from tests.support.make_bundle import Repeat, T, op, write_bundle
from torch_spyre.backend import read_bundle

SIZES = {"mb": 128, "out": 256}
ROWS = T(["mb", "out"])


def test_missing_directory_and_files(tmp_path):
    assert "nowhere: found no such directory" in refusal(tmp_path / "nowhere")
    assert "found no bundle.mlir" in refusal(tmp_path)
    directory = broken_copy(tmp_path)
    (directory / "sdsc_1.json").rename(directory / "sdsc_2.json")
    message = refusal(directory)
    assert "bundle.mlir: line 23: found unknown file 'sdsc_1.json'" in message
    assert "allowed: sdsc_0.json, sdsc_2.json" in message


def test_a_file_that_is_not_used(tmp_path):
    directory = broken_copy(tmp_path)
    shutil.copy(directory / "sdsc_1.json", directory / "sdsc_2.json")
    assert refusal(directory).startswith("sdsc_2.json: found no sdsc_execute of it in bundle.mlir")


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


EXECUTE = "sdscbundle.sdsc_execute (%pool, "


@pytest.mark.parametrize(
    "change, parts",
    [
        (replaced("module", "modul"), ["line 1, column 1", "found 'modul'", "'module'"]),
        (replaced("@sdsc_bundle", "@main"), ["line 2", "found '@main'", "'@sdsc_bundle'"]),
        (replaced("\t\treturn\n", ""), ["found '}'", "an operation of the subset, or 'return'"]),
        (replaced("\t}\n}\n", "\t}\n"), ["the end of the file", "'}'"]),
        (lambda text: text + "module", ["found 'module'", "the end of the file"]),
        (replaced("return", "?"), ["found '?'", "MLIR subset"]),
        (replaced("arith.addi", "arith.muli"), ["found 'arith.muli'", "arith.addi"]),
        (replaced("%arg_0, %offset_3072", "%arg_9, %offset_3072"),
         ["line 8, column 33", "unknown SSA value %arg_9", "%pool, %arg_0"]),
        (replaced("%arg_0, %offset_3072", "%arg_0_base_addr, %offset_3072"),
         ["unknown SSA value %arg_0_base_addr (a parameter: extract its value first)"]),
        (replaced("%arg_0, %offset_3072", "%arg_0, %arg_1"), ["an address with two bases"]),
        (replaced("arith.constant 3072", "arith.constant many"), ["found 'many'", "an integer"]),
        (replaced("from %arg_1_base_addr", "from %arg_7_base_addr"),
         ["unknown parameter %arg_7_base_addr", "%pool_base_addr, %arg_0_base_addr"]),
        (replaced("%arg_1_base_addr:", "%arg_0_base_addr:"), ["%arg_0_base_addr appears twice"]),
        (replaced("%arg_1 =", "%arg_0 ="), ["%arg_0 is defined twice", "once"]),
        (replaced("!sdscbundle.input_arg<index>", "index"), ["'index'", "!sdscbundle.input_arg"]),
        (replaced(EXECUTE, "sdscbundle.sdsc_execute ("),
         ["line 23", "found 7 operands and 8 symbol_ids", "one operand for each"]),
        (replaced("-13, -14", "-13, -13"), ["symbol id -13 appears twice"]),
        (replaced("-13, -14", "-13, 14"), ["symbol id 14", "negative integers"]),
        (replaced("-13, -14", "-13, -21"), ["sdsc_1.json", "symbol id -14", "-13, -21, -15"]),
        (replaced('sdsc_filename="sdsc_1.json", ', ""), ["without sdsc_filename"]),
        (replaced('"symbol_ids"', '"ids"'), ['unknown attribute "ids"', "symbol_ids"]),
        (replaced('"sdsc_1.json"', "sdsc_1.json"), ["found 'sdsc_1.json'", "a file name"]),
        (replaced('"sdsc_1.json"', '"../x.json"'), ["unknown file '../x.json'"]),
        (replaced("%pool_base_addr: !sdscbundle.input_arg<index>, %arg_0_base_addr",
                  "%arg_0_base_addr: !sdscbundle.input_arg<index>, %pool_base_addr"),
         ["%pool_base_addr is parameter 1", "allowed: 0"]),
        (replaced("arith.constant 3072", "arith.constant 3073"),
         ["sdsc_0.json", "data_.[1, 0, 0]", "found 3073", "a multiple of 128"]),
        (replaced("arith.constant 3072", "arith.constant 17179869184"),
         ["sdsc_0.json", "17179869184 with", "the end of the segment"]),
        (replaced("arith.constant 3072", "arith.constant -3072"), ["found -3072 with", "up to"]),
        (replaced("%arg_2_core_3072 = arith.addi %arg_2", "%arg_2_core_3072 = arith.addi %arg_1"),
         ["sdsc_1.json", "several bases", "one base for all cores"]),
        (replaced("(%pool, %pool_core_3072", "(%pool_core_3072, %pool_core_3072"),
         ["sdsc_1.json", "scheduleTree_[0]", "found 3072", "allowed: 6144, where the slice"]),
        (replaced("%arg_2, %arg_2_core_3072", "%arg_2, %arg_2"),
         ["scheduleTree_[1]", "found 0, where core 0 writes another slice", "place of its own"]),
    ],
)  # fmt: skip
def test_a_broken_bundle_mlir(tmp_path, change: Callable[[str], str], parts: list[str]):
    directory = broken_copy(tmp_path)
    path = directory / "bundle.mlir"
    path.write_text(change(path.read_text()))
    message = refusal(directory)
    for part in parts:
        assert part in message, message


LOOP = """#map_0 = affine_map<(d0)[s0] -> (s0 + 128*d0)>
module {
\tfunc.func @sdsc_bundle(%arg_0_base_addr: !sdscbundle.input_arg<index>) {
\t\t%arg_0 = sdscbundle.input_arg_extract value from %arg_0_base_addr : !sdscbundle.input_arg<index> -> index
\t\t%c0 = arith.constant 0 : index
\t\t%c1 = arith.constant 1 : index
\t\t%n = arith.constant 4 : index
\t\tscf.for %i_0 = %c0 to %n step %c1 {
\t\t\t%a = affine.apply #map_0(%i_0)[%arg_0]
\t\t}
\t\treturn
\t}
}
"""  # noqa: E501


@pytest.mark.parametrize(
    "change, parts",
    [
        (replaced("%c0 to %n", "%c0 to %arg_0"), ["loop upper bound %arg_0 is not constant"]),
        (replaced("= %c0 to", "= %arg_0 to"), ["loop lower bound %arg_0 is not constant"]),
        (replaced("constant 4", "constant 0"), ["loop runs 0 times", "once or more"]),
        (replaced("constant 1", "constant 0"), ["loop step is 0", "1 or more"]),
        (replaced("#map_0(", "#map_1("), ["unknown map #map_1", "#map_0"]),
        (replaced("(%i_0)[%arg_0]", "(%i_0, %i_0)[%arg_0]"), ["2 dimensions for #map_0"]),
        (replaced("(%i_0)[%arg_0]", "(%i_0)"), ["0 symbols for #map_0", "allowed: 1"]),
        (replaced("128*d0", "d0*d0"), ["found 'd0'", "constants times dimensions"]),
        (replaced("128*d0", "2*s0"), ["two bases"]),
        (replaced("%a =", "%c0 ="), ["%c0 is defined twice"]),
        (replaced("(%i_0)[", "(%i_1)["), ["unknown SSA value %i_1"]),
    ],
)
def test_a_broken_loop(tmp_path, change: Callable[[str], str], parts: list[str]):
    (tmp_path / "bundle.mlir").write_text(LOOP)
    assert read_bundle(tmp_path).operations() == []
    (tmp_path / "bundle.mlir").write_text(change(LOOP))
    message = refusal(tmp_path)
    assert message.startswith("bundle.mlir: line ")
    for part in parts:
        assert part in message, message


def test_cores_that_move_differently_in_a_loop(tmp_path):
    moving = ROWS.at(0, loop_strides=(128,))
    operation = op("exp", SIZES, [moving], ROWS.at(1, loop_strides=(0,)), splits={"mb": 2})
    write_bundle(tmp_path, [Repeat(2, [operation])])
    path = tmp_path / "bundle.mlir"
    lines = path.read_text().split("\n")
    lines.insert(0, "#map_9 = affine_map<(d0)[s0] -> (s0 + 256*d0)>")
    at = next(i for i, line in enumerate(lines) if "affine.apply #map_0" in line)
    lines[at] = lines[at].replace("#map_0", "#map_9")
    path.write_text("\n".join(lines))
    assert "cores that move differently in a loop" in refusal(tmp_path)


def test_concrete_addresses_in_a_bundle_with_parameters(tmp_path):
    operations = [op("exp", SIZES, [ROWS.at(0)], ROWS.at(1))]
    write_bundle(tmp_path / "a", operations)
    write_bundle(tmp_path / "b", operations, symbolic=False)
    shutil.copy(tmp_path / "b" / "sdsc_0.json", tmp_path / "a")
    path = tmp_path / "a" / "bundle.mlir"
    text = path.read_text()
    start = text.index("sdscbundle.sdsc_execute")
    call = 'sdscbundle.sdsc_execute () {sdsc_filename="sdsc_0.json"}'
    path.write_text(text[:start] + call + "\n\t\treturn\n\t}\n}\n")
    assert "bundle.mlir has parameters" in refusal(tmp_path / "a")


def test_addresses_in_several_segments(tmp_path):
    operation = op("exp", SIZES, [ROWS.at(0)], ROWS.at(1), splits={"mb": 2})
    write_bundle(tmp_path, [operation], symbolic=False)
    path = tmp_path / "sdsc_0.json"
    path.write_text(path.read_text().replace('"8192"', f'"{2 << 34}"'))
    assert "addresses in segments [0, 2]" in refusal(tmp_path)
