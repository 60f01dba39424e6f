"""SpyreCode directories that cannot be prepared: every refusal says what is wrong and where."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import torch_spyre._C as _C
from tests.support.job_plans import (
    ALLOCATION,
    BASE,
    EMPTY_PROGRAM,
    END,
    Json,
    compute,
    d2h,
    entry,
    h2d,
    host_compute,
    manifest,
    prepare,
    run,
    write,
)


def test_missing_directory_and_file(tmp_path):
    with pytest.raises(RuntimeError, match=r"SpyreCode directory does not exist: '.*/nowhere'"):
        _C.prepare_kernel(str(tmp_path / "nowhere"))
    with pytest.raises(RuntimeError, match=r"Required file spyrecode\.json not found in '.*'"):
        _C.prepare_kernel(str(tmp_path))
    (tmp_path / "spyrecode.json").mkdir()
    with pytest.raises(RuntimeError, match=r"Required file spyrecode\.json not found"):
        _C.prepare_kernel(str(tmp_path))


@pytest.mark.parametrize(
    "text, where",
    [
        ("", "line 1, column 1: expected a value, found the end of the file"),
        ("{", "line 1, column 2: expected a key in double quotes"),
        ('{"a": 1,}', "line 1, column 9: expected a key in double quotes, found '}'"),
        ("[1,\n 2,]", "line 2, column 4: expected a value, found '\\]'"),
        ("[01]", "line 1, column 3: expected ',' or '\\]', found '1'"),
        ("[1.]", "column 4: expected a digit"),
        ("{} x", "column 4: expected the end of the file, found 'x'"),
        ("[nul]", "column 2: expected a value, found 'n'"),
        ('{"a": 1, "a": 2}', "column 10: key 'a' appears twice"),
        ('["a\nb"]', "column 4: expected no control character, found byte 0x0a"),
        ('["\\x"]', "expected an escape of JSON"),
        ('["\\ud800"]', "expected a pair of surrogates"),
        ('["open', "expected '\"' at the end of a string, found the end of the file"),
        ("[" * 100 + "]" * 100, "nested more than 64 deep"),
    ],
)
def test_text_that_is_not_json(tmp_path, text: str, where: str):
    with pytest.raises(RuntimeError, match=f"spyrecode.json: not valid JSON: .*{where}"):
        _C.prepare_kernel(str(write(tmp_path, text)))


def test_bytes_that_are_not_utf8(tmp_path):
    for bad in (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"):
        write(tmp_path, "")
        (tmp_path / "spyrecode.json").write_bytes(b'{"' + bad + b'": 1}')
        with pytest.raises(RuntimeError, match="expected UTF-8, found byte 0x"):
            _C.prepare_kernel(str(tmp_path))


def test_json_escapes_and_unicode_in_handles(tmp_path):
    text = json.dumps(manifest(d2h('größe \U0001f600 "\\/\b\f\n\r\t', 16, 0)), indent=2)
    assert "\\ud83d\\ude00" in text and "\\u00f6" in text
    for form in (text, json.dumps(json.loads(text), ensure_ascii=False)):
        plan = _C.prepare_kernel(str(write(tmp_path, form)))
        run(plan)
        assert plan._pinned('größe \U0001f600 "\\/\b\f\n\r\t') == EMPTY_PROGRAM


def good() -> Json:
    return manifest(
        host_compute("fix", ishape=["2", "3"]), h2d("fix"), compute(), d2h("back"),
        host_compute("more", 64, ihandle="back"),
    )  # fmt: skip


def refusal(tmp_path: Path, change: Callable[[Json], object]) -> str:
    """The message for the good manifest after a change; the unchanged one must be fine."""
    content = good()
    _C.prepare_kernel(str(write(tmp_path, content)))
    changed = copy.deepcopy(content)
    replacement = change(changed)
    assert changed != content or replacement is not None
    with pytest.raises(RuntimeError) as error:
        _C.prepare_kernel(str(write(tmp_path, changed if replacement is None else replacement)))
    return str(error.value)


@pytest.mark.parametrize("name", ["JobPreparationPlan", "JobExecPlan"])
def test_missing_arrays(tmp_path, name: str):
    assert f"spyrecode.json: missing '{name}' array" in refusal(tmp_path, lambda m: {**m, name: {}})

    def remove(m: Json) -> None:
        del m[name]

    assert f"missing '{name}' array" in refusal(tmp_path, remove)


def test_a_manifest_that_is_no_object(tmp_path):
    assert "missing 'JobPreparationPlan' array" in refusal(tmp_path, lambda m: [m])


PREPARATION, EXECUTION = "JobPreparationPlan", "JobExecPlan"
ALL_PROPERTIES = [
    (PREPARATION, 0, "Allocate", "size"),
    (PREPARATION, 1, "InitTransfer", "init_bin_file"),
    (PREPARATION, 1, "InitTransfer", "dev_ptr"),
    (PREPARATION, 1, "InitTransfer", "size"),
    (EXECUTION, 0, "ComputeOnHost", "ohandle"),
    (EXECUTION, 0, "ComputeOnHost", "size"),
    (EXECUTION, 0, "ComputeOnHost", "ishape"),
    (EXECUTION, 0, "ComputeOnHost", "ihandle"),
    (EXECUTION, 0, "ComputeOnHost", "hcm"),
    (EXECUTION, 1, "DataTransfer", "dirn"),
    (EXECUTION, 1, "DataTransfer", "dev_ptr"),
    (EXECUTION, 1, "DataTransfer", "size"),
    (EXECUTION, 1, "DataTransfer", "host_handle"),
    (EXECUTION, 2, "ComputeOnDevice", "job_bin_ptr"),
]


@pytest.mark.parametrize("array, index, command, name", ALL_PROPERTIES)
def test_missing_properties(tmp_path, array: str, index: int, command: str, name: str):
    def remove(m: Json) -> None:
        del m[array][index]["properties"][name]

    message = refusal(tmp_path, remove)
    expected = f"spyrecode.json: {array}[{index}]: {command} command missing '{name}' property"
    assert expected in message


@pytest.mark.parametrize("array, index", [(PREPARATION, 1), (EXECUTION, 3)])
def test_entries_that_are_no_commands(tmp_path, array: str, index: int):
    def without(name: str) -> Callable[[Json], None]:
        return lambda m: m[array][index].pop(name) and None

    def put(value: Json) -> Callable[[Json], None]:
        return lambda m: m[array].__setitem__(index, value)

    where = f"{array}[{index}]: "
    assert where + "entry missing 'command' property" in refusal(tmp_path, without("command"))
    assert "command missing 'properties' property" in refusal(tmp_path, without("properties"))
    assert where + "expected an object, found the number 5" in refusal(tmp_path, put(5))
    message = refusal(tmp_path, put({"command": ["x"], "properties": {}}))
    assert where + "'command' must be a string, found an array of 1 elements" in message
    message = refusal(tmp_path, put({"command": "DataTransfer", "properties": []}))
    assert "'properties' of DataTransfer must be an object" in message
    message = refusal(tmp_path, put(entry("Explode", size="1")))
    assert where + "Explode: Unknown SpyreCode command type 'Explode'; allowed here" in message


def set_property(array: str, index: int, name: str, value: Json) -> Callable[[Json], None]:
    return lambda m: m[array][index]["properties"].__setitem__(name, value)


@pytest.mark.parametrize(
    "array, index, command, name",
    [p for p in ALL_PROPERTIES if p[3] in ("size", "dev_ptr", "job_bin_ptr")],
)
@pytest.mark.parametrize(
    "value, found",
    [
        (128, "the number 128"),
        ("0x80", "the string '0x80'"),
        ("-1", "the string '-1'"),
        ("+1", "the string '+1'"),
        (" 1", "the string ' 1'"),
        ("1.0", "the string '1.0'"),
        ("", "the string ''"),
        (None, "null"),
    ],
)
def test_numbers_are_decimal_strings(
    tmp_path, array: str, index: int, command: str, name: str, value: Json, found: str
):
    message = refusal(tmp_path, set_property(array, index, name, value))
    expected = f"{array}[{index}]: {command}: '{name}' must be a decimal string"
    assert expected in message and f"found {found}" in message


def test_numbers_fit_64_bits(tmp_path):
    message = refusal(tmp_path, set_property(EXECUTION, 1, "dev_ptr", str(1 << 64)))
    assert "'dev_ptr' does not fit 64 bits, found the string '18446744073709551616'" in message


def test_sizes_are_positive(tmp_path):
    for array, index, command, name in ALL_PROPERTIES:
        if name == "size":
            message = refusal(tmp_path, set_property(array, index, name, "0"))
            assert f"{array}[{index}]: {command}: 'size' is '0'; allowed: 1 byte or more" in message


def test_input_shapes(tmp_path):
    message = refusal(tmp_path, set_property(EXECUTION, 0, "ishape", "2"))
    assert "JobExecPlan[0]: ComputeOnHost: 'ishape' must be an array" in message
    message = refusal(tmp_path, set_property(EXECUTION, 0, "ishape", ["2", 3]))
    assert "'ishape' elements must be strings, found the number 3" in message
    message = refusal(tmp_path, set_property(EXECUTION, 0, "ishape", ["2", "x"]))
    assert "'ishape' must be a decimal string" in message and "'x'" in message


def test_handles(tmp_path):
    message = refusal(tmp_path, set_property(EXECUTION, 4, "ihandle", "ghost"))
    assert (
        "ComputeOnHost: ihandle 'ghost' not found in pinned buffer map; known: fix, back" in message
    )
    message = refusal(tmp_path, set_property(EXECUTION, 1, "host_handle", "ghost"))
    assert "host_handle 'ghost' not found in pinned buffer map" in message
    message = refusal(tmp_path, set_property(EXECUTION, 1, "host_handle", "back"))  # made later
    assert "host_handle 'back' not found in pinned buffer map" in message
    message = refusal(tmp_path, set_property(EXECUTION, 3, "host_handle", "fix"))
    assert "JobExecPlan[3]: DataTransfer: host_handle 'fix' must be new" in message
    message = refusal(tmp_path, set_property(EXECUTION, 4, "ohandle", "back"))
    assert "JobExecPlan[4]: ComputeOnHost: ohandle 'back' must be new" in message
    message = refusal(tmp_path, set_property(EXECUTION, 4, "ohandle", ""))
    assert "'ohandle' is ''" in message
    message = refusal(tmp_path, set_property(EXECUTION, 3, "host_handle", 7))
    assert "'host_handle' must be a string, found the number 7" in message
    message = refusal(tmp_path, set_property(EXECUTION, 4, "hcm", "blob"))
    assert "'hcm' must be an object, found the string 'blob'" in message


def test_buffers_are_large_enough(tmp_path):
    message = refusal(tmp_path, set_property(EXECUTION, 1, "size", "65"))
    assert "DataTransfer: 'size' = '65', but buffer 'fix' has 64 bytes" in message
    message = refusal(tmp_path, set_property(EXECUTION, 4, "size", "63"))
    assert "the buffer of 'ihandle' has 64 bytes; allowed: up to 'size' = '63'" in message


def test_transfer_direction(tmp_path):
    message = refusal(tmp_path, set_property(EXECUTION, 1, "dirn", "up"))
    assert "'dirn' = 'up'; allowed: 'false' (host to device), 'true' (device to host)" in message
    message = refusal(tmp_path, set_property(EXECUTION, 1, "dirn", False))
    assert "JobExecPlan[1]: 'dirn' must be a string, found false" in message


POINTERS = [p for p in ALL_PROPERTIES if p[3] in ("dev_ptr", "job_bin_ptr")]


@pytest.mark.parametrize("array, index, command, name", POINTERS)
def test_pointers_lie_in_the_program_segment_and_the_allocation(
    tmp_path, array: str, index: int, command: str, name: str
):
    for pointer in (0, BASE - 1, END, (1 << 64) - 1):
        message = refusal(tmp_path, set_property(array, index, name, str(pointer)))
        assert f"{command}: '{name}' = '{pointer}' ({pointer:#x}) is out of the program" in message
        assert "allowed: [0x1c00000000, 0x2000000000)" in message
    content = good()
    size = int(content[array][index]["properties"].get("size", 1))
    last = BASE + ALLOCATION - size
    _C.prepare_kernel(str(write(tmp_path, set_and_return(content, array, index, name, last))))
    for pointer in (last + 1, BASE + ALLOCATION + 1, END - 1):
        message = refusal(tmp_path, set_property(array, index, name, str(pointer)))
        assert f"({pointer:#x}) with {size} byte" in message
        assert "goes beyond the allocation; allowed: up to 0x1c00000400 (1024 bytes" in message


def set_and_return(content: Json, array: str, index: int, name: str, value: int) -> Json:
    set_property(array, index, name, str(value))(content)
    return content


def test_preparation_allocates_once_then_transfers(tmp_path):
    message = refusal(tmp_path, lambda m: m[PREPARATION].pop() and None)
    assert (
        "JobPreparationPlan has 1 entries; allowed: one Allocate, then one InitTransfer" in message
    )
    message = refusal(tmp_path, lambda m: m[PREPARATION].reverse())
    expected = "JobPreparationPlan[0]: InitTransfer: expected Allocate at this place, found InitTra"
    assert expected in message
    message = refusal(tmp_path, lambda m: m[PREPARATION].append(m[PREPARATION][0]))
    assert "JobPreparationPlan[2]: Allocate: expected InitTransfer at this place" in message
    message = refusal(tmp_path, set_property(PREPARATION, 0, "size", str(END - BASE + 1)))
    assert "is more than the program segment; allowed: up to 17179869184 bytes" in message


def test_initial_files(tmp_path):
    message = refusal(tmp_path, set_property(PREPARATION, 1, "init_bin_file", "other.bin"))
    assert "JobPreparationPlan[1]: InitTransfer: 'init_bin_file' = 'other.bin': file not" in message
    message = refusal(tmp_path, set_property(PREPARATION, 1, "size", "15"))
    assert "'init_bin_file' = 'init.bin' has 16 bytes, but 'size' is '15'" in message
    for name in ("", "../init.bin", str(tmp_path / "init.bin"), "sub/"):
        message = refusal(tmp_path, set_property(PREPARATION, 1, "init_bin_file", name))
        assert f"'init_bin_file' = '{name}' must be the name of a file next to" in message


@pytest.mark.parametrize(
    "steps, where",
    [
        ([host_compute("a")], "JobExecPlan[1]: {rule}; expected H2D, found the end"),
        ([host_compute("a"), compute()], "JobExecPlan[1]: {rule}; expected H2D, found Compute"),
        ([host_compute("a"), h2d("a")], "JobExecPlan[2]: {rule}; expected Compute, found the end"),
        (
            [host_compute("a"), h2d("a"), d2h("b"), compute()],
            "JobExecPlan[2]: {rule}; expected Compute, found D2H",
        ),
    ],
)
def test_a_program_is_corrected_before_it_runs(tmp_path, steps: list[Json], where: str):
    rule = "a plan that begins with HostCompute goes on with H2D, then Compute"
    with pytest.raises(RuntimeError) as error:
        prepare(tmp_path, *steps)
    assert where.format(rule=rule) in str(error.value)
