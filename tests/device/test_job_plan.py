"""SpyreCode directories and job plans: what runs, what comes back, and every refusal."""

from __future__ import annotations

import copy
import gc
import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_spyre._C as _C
from torch_spyre.hardware import CARD

BASE = 0x1C00000000
END = 0x2000000000
EMPTY_PROGRAM = b"SPYREPRG" + struct.pack("<II", 4, 0)
ALLOCATION = 1024
DATA_AT = 256  # where the plans below move data, behind the program

Json = Any


def entry(command: str, **properties: Json) -> Json:
    return {"command": command, "properties": properties}


def host_compute(ohandle: str, size: int = 64, **changes: Json) -> Json:
    properties = {"ohandle": ohandle, "size": str(size), "ishape": ["0"], "ihandle": "", "hcm": {}}
    return entry("ComputeOnHost", **{**properties, **changes})


def transfer(dirn: str, handle: str, size: int = 64, offset: int = DATA_AT) -> Json:
    return entry(
        "DataTransfer", dirn=dirn, dev_ptr=str(BASE + offset), size=str(size), host_handle=handle
    )


def h2d(handle: str, size: int = 64, offset: int = DATA_AT) -> Json:
    return transfer("false", handle, size, offset)


def d2h(handle: str, size: int = 64, offset: int = DATA_AT) -> Json:
    return transfer("true", handle, size, offset)


def compute(offset: int = 0) -> Json:
    return entry("ComputeOnDevice", job_bin_ptr=str(BASE + offset))


def manifest(*steps: Json, size: int = len(EMPTY_PROGRAM)) -> Json:
    init = entry("InitTransfer", init_bin_file="init.bin", dev_ptr=str(BASE), size=str(size))
    return {
        "JobPreparationPlan": [entry("Allocate", size=str(ALLOCATION)), init],
        "JobExecPlan": list(steps),
    }


def write(directory: Path, content: Json, program: bytes = EMPTY_PROGRAM) -> Path:
    directory.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / "spyrecode.json").write_text(text)
    (directory / "init.bin").write_bytes(program)
    return directory


def prepare(directory: Path, *steps: Json, program: bytes = EMPTY_PROGRAM) -> _C.JobPlan:
    content = manifest(*steps, size=len(program))
    return _C.prepare_kernel(str(write(directory, content, program)))


def run(plan: _C.JobPlan, *args: torch.Tensor) -> None:
    _C.launch_jobplan(plan, args)
    torch.spyre.synchronize()


def allocations() -> int:
    gc.collect()
    torch.spyre.synchronize()
    return torch.spyre.memory_stats()["allocation.all.current"]


# ---- what runs -----------------------------------------------------------------------------------


def test_a_plan_of_all_step_kinds_runs_and_describes_itself(tmp_path):
    plan = prepare(tmp_path, host_compute("fix"), h2d("fix"), compute(), d2h("back"))
    assert plan.num_steps() == 4 and plan.job_allocation_size() == ALLOCATION
    kinds = [plan.get_step_type(i) for i in range(4)]
    assert kinds == ["HostCompute", "H2D", "Compute", "D2H"]
    expected = "<JobPlan steps=4 job_allocation_size=1024 expected_inputs=0 pinned_buffers=2>"
    assert repr(plan) == expected
    run(plan)
    run(plan)
    for index in (4, -1):
        with pytest.raises(IndexError, match=f"Step index out of range: {index}"):
            plan.get_step_type(index)


def test_a_plan_without_steps_is_a_plan(tmp_path):
    plan = prepare(tmp_path)
    run(plan)
    assert plan.num_steps() == 0 and "steps=0" in repr(plan) and "pinned_buffers=0" in repr(plan)


def test_initial_transfers_arrive_in_program_memory(tmp_path):
    content = manifest(d2h("head", 16, 0), d2h("second", 100, 300))
    second = bytes(range(100))
    (tmp_path / "second.bin").write_bytes(second)
    content["JobPreparationPlan"].append(
        entry("InitTransfer", init_bin_file="second.bin", dev_ptr=str(BASE + 300), size="100")
    )
    plan = _C.prepare_kernel(write(tmp_path, content))
    run(plan)
    assert plan._pinned("head") == EMPTY_PROGRAM and plan._pinned("second") == second


def test_addresses_of_the_arguments_travel_to_the_card_and_back(tmp_path):
    plan = prepare(
        tmp_path, host_compute("addresses", ishape=["2"]), h2d("addresses"), compute(), d2h("back")
    )
    x, y = torch.ones(3, device="spyre"), torch.ones(70, device="spyre", dtype=torch.float16)
    run(plan, x, y)
    expected = struct.pack("<2q", x.data_ptr(), y.data_ptr()).ljust(64, b"\0")
    assert plan._pinned("back") == expected != bytes(64)
    run(plan, y, y, x)  # another launch of the same plan, with other tensors
    expected = struct.pack("<3q", y.data_ptr(), y.data_ptr(), x.data_ptr()).ljust(64, b"\0")
    assert plan._pinned("back") == expected


def test_a_view_is_passed_as_its_storage_and_an_empty_tensor_as_zero(tmp_path):
    plan = prepare(
        tmp_path, host_compute("addresses", 16, ishape=["2"]), h2d("addresses", 16), compute()
    )
    x = torch.arange(256.0, device="spyre")
    run(plan, x[64:], torch.empty(0, device="spyre"))
    assert plan._pinned("addresses") == struct.pack("<2q", x.data_ptr(), 0)


def test_host_compute_copies_its_input_buffer_and_pads_with_zeros(tmp_path):
    data = bytes(range(1, 33))
    plan = prepare(
        tmp_path,
        d2h("in", 32, 16),
        host_compute("out", 40, ihandle="in", ishape=["32"]),
        host_compute("nothing", 8),
        program=EMPTY_PROGRAM + data,
    )
    run(plan)
    assert plan._pinned("out") == data + bytes(8) and plan._pinned("nothing") == bytes(8)


def test_transfers_move_exactly_their_bytes(tmp_path):
    body = bytes(range(16, 256))
    plan = prepare(
        tmp_path,
        d2h("source", 10, 20),
        h2d("source", 4, 60),  # the head of the buffer only
        d2h("all", 256, 0),
        program=EMPTY_PROGRAM + body,
    )
    run(plan)
    expected = bytearray(EMPTY_PROGRAM + body)
    expected[60:64] = expected[20:24]
    assert plan._pinned("all") == bytes(expected)


def test_steps_run_on_the_current_stream_and_take_modelled_time(tmp_path):
    plan = prepare(tmp_path, host_compute("fix"), h2d("fix"), compute(), d2h("back"))
    stream = torch.spyre.Stream()
    torch.spyre.synchronize()
    with stream:
        start = stream.record_event(torch.Event("spyre", enable_timing=True))
        _C.launch_jobplan(plan, [])
        end = stream.record_event(torch.Event("spyre", enable_timing=True))
    end.synchronize()
    expected_us = CARD.job_us + 2 * (CARD.dma_us + 64 / CARD.host_bytes_per_us)
    assert start.elapsed_time(end) * 1000 == pytest.approx(expected_us)


@pytest.mark.parametrize("make", [torch.spyre.Stream, lambda: _C.get_stream_from_pool(0)])
def test_initial_transfers_use_the_given_stream(tmp_path, make: Callable[[], Any]):
    directory = write(tmp_path, manifest(d2h("head", 16, 0)))
    stream = make()
    number = stream.id if isinstance(stream, torch.Stream) else stream.id()
    torch.spyre.synchronize()
    _C._host_callback(0, number, lambda: None)
    before = _C._stream_time_us(0, number)
    default = _C._stream_time_us(0, 0)
    plan = _C.prepare_kernel(directory, stream=stream)
    took = _C._stream_time_us(0, number) - before
    assert took == pytest.approx(CARD.dma_us + 16 / CARD.host_bytes_per_us)
    assert _C._stream_time_us(0, 0) == default
    # The default stream begins no earlier than the program has arrived.
    _C.launch_jobplan(plan, [])
    assert _C._stream_time_us(0, 0) > _C._stream_time_us(0, number) >= before + took
    torch.spyre.synchronize()
    assert plan._pinned("head") == EMPTY_PROGRAM


def test_launches_of_one_plan_follow_one_another_whatever_their_streams(tmp_path):
    """They share the pinned buffers, so no two may overlap: their times add up."""
    plan = prepare(
        tmp_path, host_compute("fix", 8, ishape=["1"]), h2d("fix", 8), compute(), d2h("back", 8)
    )
    tensors = [torch.ones(64, device="spyre") for _ in range(4)]
    streams = [torch.spyre.Stream() for _ in tensors]
    torch.spyre.synchronize()
    start = max(_C._stream_time_us(0, i) for i in range(65))

    def work(tensor: torch.Tensor, stream: torch.spyre.Stream) -> None:
        with stream:
            for _ in range(50):
                _C.launch_jobplan(plan, [tensor])

    threads = [threading.Thread(target=work, args=pair) for pair in zip(tensors, streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.spyre.synchronize()
    end = max(_C._stream_time_us(0, stream.id) for stream in streams)
    launch_us = CARD.job_us + 2 * (CARD.dma_us + 8 / CARD.host_bytes_per_us)
    assert end - start == pytest.approx(4 * 50 * launch_us)
    assert plan._pinned("back") in {struct.pack("<q", t.data_ptr()) for t in tensors}


# ---- what a plan holds ---------------------------------------------------------------------------


def test_program_memory_is_given_back_with_the_plan(tmp_path):
    torch.ones(1, device="spyre")
    before, bytes_before = allocations(), torch.spyre.memory_allocated()
    plan = prepare(tmp_path, compute())
    assert allocations() == before + 1
    assert torch.spyre.memory_allocated() == bytes_before + ALLOCATION
    del plan
    assert allocations() == before and torch.spyre.memory_allocated() == bytes_before


def test_queued_steps_hold_the_plan_and_the_arguments(tmp_path):
    before = allocations()
    gate = threading.Event()
    plan = prepare(tmp_path, host_compute("a", 8, ishape=["1"]), h2d("a", 8), compute())
    torch.spyre.synchronize()
    _C._host_callback(0, 0, gate.wait)
    x = torch.empty(64, device="spyre")
    _C.launch_jobplan(plan, [x])
    address = x.data_ptr()
    del plan, x
    stats = torch.spyre.memory_stats()
    other = torch.empty(64, device="spyre")
    gate.set()
    assert other.data_ptr() != address  # that memory is still in use
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"] + 64 * 4
    assert stats["allocation.all.current"] == before + 1  # the plan's
    del other
    assert allocations() == before
    stats = torch.spyre.memory_stats()
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]


def test_a_refused_directory_allocates_nothing(tmp_path):
    before = allocations()
    with pytest.raises(RuntimeError):
        prepare(tmp_path, compute(), entry("Nonsense"))
    assert allocations() == before


def test_pinned_bytes_of_an_unknown_handle(tmp_path):
    with pytest.raises(KeyError, match="no pinned buffer 'nobody'"):
        prepare(tmp_path)._pinned("nobody")


# ---- refused directories -------------------------------------------------------------------------


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


# ---- refused launches, failing programs ----------------------------------------------------------


def test_arguments_are_tensors_of_the_card(tmp_path):
    plan = prepare(tmp_path, compute())
    x = torch.ones(2, device="spyre")
    with pytest.raises(RuntimeError, match=r"args\[1\] must be a tensor on spyre:0, .*one on cpu"):
        _C.launch_jobplan(plan, [x, torch.ones(2)])
    with pytest.raises(RuntimeError, match=r"args\[0\] must be a tensor on spyre:0, .*on meta"):
        _C.launch_jobplan(plan, [torch.ones(2, device="meta")])
    with pytest.raises(TypeError, match=r"args\[2\] must be a spyre tensor, found <class 'int'>"):
        _C.launch_jobplan(plan, (x, x, 3))
    with pytest.raises(TypeError, match=r"args\[0\] must be a spyre tensor.*NoneType"):
        _C.launch_jobplan(plan, [None])
    with (
        torch._subclasses.FakeTensorMode(),
        pytest.raises(RuntimeError, match=r"args\[0\] must be"),
    ):
        _C.launch_jobplan(plan, [torch.empty(2, device="spyre")])
    run(plan, x)


def test_arguments_and_streams_of_another_card_are_refused_or_followed(script, tmp_path):
    write(tmp_path, manifest(host_compute("a", 8, ishape=["1"]), h2d("a", 8), compute()))
    out = script(
        f"""
        import torch, torch_spyre._C as _C
        here = torch.ones(2, device="spyre:0")
        there = torch.ones(2, device="spyre:1")
        stream = torch.spyre.Stream(device=1)
        plan = _C.prepare_kernel({str(tmp_path)!r}, stream)
        print(torch.spyre.memory_allocated(0) < torch.spyre.memory_allocated(1))
        _C.launch_jobplan(plan, [there])
        torch.spyre.synchronize(1)
        print(int.from_bytes(plan._pinned("a"), "little") == there.data_ptr())
        try:
            _C.launch_jobplan(plan, [here])
        except RuntimeError as error:
            print(error)
        """,
        AIU_WORLD_SIZE="2",
    ).splitlines()
    assert out[:2] == ["True", "True"]
    assert out[2].startswith("args[0] must be a tensor on spyre:1, the card of the kernel, found")


def test_streams_that_are_none(tmp_path):
    directory = str(write(tmp_path, manifest(compute())))
    with pytest.raises(TypeError, match=r"must be None or a stream of a spyre device.*'str'"):
        _C.prepare_kernel(directory, "stream")
    with pytest.raises(TypeError, match="must be None or a stream"):
        _C.prepare_kernel(directory, 0)


def test_more_addresses_than_fit_are_refused_before_anything_runs(tmp_path):
    plan = prepare(tmp_path, host_compute("a", 15, ishape=["1"]), h2d("a", 8), compute(), d2h("b"))
    x = torch.ones(2, device="spyre")
    run(plan, x)
    before = plan._pinned("a")
    with pytest.raises(RuntimeError, match="step 0: the addresses of 2 arguments take 16 bytes"):
        _C.launch_jobplan(plan, [x, x])
    torch.spyre.synchronize()
    assert plan._pinned("a") == before


@pytest.mark.parametrize(
    "program, offset, message",
    [
        (b"ELFELFEL" + bytes(8), 0, "no Spyre program at 0x1c00000000: expected magic 'SPYREPRG', "
         "found 'ELFELFEL'"),
        (bytes(8) + b"a\\" + bytes(22), 8, "no Spyre program at 0x1c00000008: expected magic "
         r"'SPYREPRG', found 'a\x5c\x00\x00\x00\x00\x00\x00'"),
        (b"SPYREPRG" + struct.pack("<II", 7, 0), 0, "program version 7 at 0x1c00000000: this card "
         "runs version 4"),
        (b"SPYREPRG" + struct.pack("<II", 0x01000000, 0), 0, "program version 16777216 at"),
        (b"SPYREPRG" + struct.pack("<II", 4, 127), 0, "the program at 0x1c00000000 has 127 words, "
         "but its memory ends after 126"),
        (b"SPYREPRG" + struct.pack("<II6q", 4, 6, 11, 6, 0, 0, 0, 0), 0, "step '0' of the program "
         "is malformed: its kind is 11"),
        (EMPTY_PROGRAM, ALLOCATION - 5, "no Spyre program at 0x1c000003fb: expected a header of 16 "
         "bytes, found 5 bytes"),
    ],
)  # fmt: skip
def test_a_bad_program_fails_at_the_next_synchronisation(tmp_path, program, offset, message):
    plan = prepare(tmp_path / "mine", d2h("head", 8, 0), compute(offset), program=program)
    _C.launch_jobplan(plan, [])
    with pytest.raises(RuntimeError) as error:
        torch.spyre.synchronize()
    assert str(error.value).startswith("job plan mine step 1: ") and message in str(error.value)
    torch.spyre.synchronize()  # told once


def test_a_job_is_named_after_its_directory_however_it_is_spelled(tmp_path, monkeypatch):
    directory = write(tmp_path / "kernel_3", manifest(compute()), b"x" * 16)
    monkeypatch.chdir(directory)
    for spelling in (f"{directory}/", ".", "../kernel_3/."):
        _C.launch_jobplan(_C.prepare_kernel(spelling), [])
        with pytest.raises(RuntimeError, match=r"^job plan kernel_3 step 0: no Spyre program"):
            torch.spyre.synchronize()


def test_errors_come_at_once_when_launches_block(script, tmp_path):
    write(tmp_path, manifest(compute()), b"x" * 16)
    out = script(
        f"""
        import torch, torch_spyre._C as _C
        plan = _C.prepare_kernel({str(tmp_path)!r})
        try:
            _C.launch_jobplan(plan, [])
        except RuntimeError as error:
            print(error)
        torch.spyre.synchronize()
        """,
        SPYRE_LAUNCH_BLOCKING="1",
    )
    assert "no Spyre program at 0x1c00000000" in out


# ---- the older form ------------------------------------------------------------------------------


def hex_lines(program: bytes) -> str:
    program = program.ljust(-(-len(program) // 128) * 128, b"\0")
    lines = [program[i : i + 128][::-1].hex() for i in range(0, len(program), 128)]
    return "# program\n\n" + "\n".join(f"{line}  # {i}" for i, line in enumerate(lines)) + "\n"


def write_kernel(directory: Path, text: str) -> Path:
    program = directory / "loadprogram_to_device" / f"{directory.name}-SenProgSend"
    program.mkdir(parents=True, exist_ok=True)
    (program / "init.txt").write_text(text)
    (directory / "bundle.mlir").write_text("module {}\n")
    return directory


@pytest.fixture
def kernel(tmp_path: Path):
    _C._clear_kernel_cache()
    yield tmp_path / "sdsc_add"
    _C._clear_kernel_cache()


@pytest.mark.parametrize("spell", [str, str.upper, lambda text: text.replace("\n", "\r\n")])
def test_a_hex_kernel_runs(kernel, spell):
    text = hex_lines(EMPTY_PROGRAM + bytes(200))
    comment, _, rest = text.partition("\n")
    write_kernel(kernel, comment + "\n" + spell(rest))
    x = torch.ones(2, device="spyre")
    _C.launch_kernel(str(kernel), [x, x])
    torch.spyre.synchronize()


def test_a_hex_kernel_is_loaded_once_per_directory(kernel, tmp_path):
    before = allocations()
    write_kernel(kernel, hex_lines(EMPTY_PROGRAM))
    _C.launch_kernel(str(kernel), [])
    assert allocations() == before + 1
    (kernel / "bundle.mlir").unlink()
    _C.launch_kernel(str(kernel), ())
    _C.launch_kernel(str(kernel) + "/", ())
    assert allocations() == before + 1
    _C.launch_kernel(str(write_kernel(tmp_path / "other", hex_lines(EMPTY_PROGRAM))), [])
    assert allocations() == before + 2
    _C._clear_kernel_cache()
    assert allocations() == before
    with pytest.raises(
        RuntimeError, match=r"Required file bundle\.mlir not found in '.*/sdsc_add'"
    ):
        _C.launch_kernel(str(kernel), [])


def test_a_hex_kernel_is_loaded_at_the_base_of_the_program_segment(kernel):
    write_kernel(kernel, hex_lines(b"PROGRAM?" + bytes(120)))
    _C.launch_kernel(str(kernel), [])
    expected = "^kernel sdsc_add step 0: no Spyre program at 0x1c00000000.*found 'PROGRAM\\?'"
    with pytest.raises(RuntimeError, match=expected):
        torch.spyre.synchronize()


def test_a_hex_kernel_runs_on_the_card_of_its_arguments(script, kernel):
    write_kernel(kernel, hex_lines(EMPTY_PROGRAM))
    out = script(
        f"""
        import torch, torch_spyre._C as _C
        x = [torch.ones(2, device=f"spyre:{{i}}") for i in range(2)]
        before = [torch.spyre.memory_allocated(i) for i in range(2)]
        _C.launch_kernel({str(kernel)!r}, [x[1]])
        print([torch.spyre.memory_allocated(i) - before[i] for i in range(2)])
        _C.launch_kernel({str(kernel)!r}, [x[0]])
        print([torch.spyre.memory_allocated(i) - before[i] for i in range(2)])
        try:
            _C.launch_kernel({str(kernel)!r}, [x[0], x[1]])
        except RuntimeError as error:
            print(error)
        """,
        AIU_WORLD_SIZE="2",
    ).splitlines()
    assert out[:2] == ["[0, 128]", "[128, 128]"]
    assert out[2].startswith("args[1] must be a tensor on spyre:0")


def test_missing_files_of_a_hex_kernel(kernel):
    with pytest.raises(RuntimeError, match=r"kernel directory does not exist: '.*/sdsc_add'"):
        _C.launch_kernel(str(kernel), [])
    write_kernel(kernel, hex_lines(EMPTY_PROGRAM))
    init = kernel / "loadprogram_to_device" / "sdsc_add-SenProgSend" / "init.txt"
    init.unlink()
    with pytest.raises(
        RuntimeError, match=r"Required file init\.txt not found: '.*SenProgSend/init"
    ):
        _C.launch_kernel(str(kernel), [])
    write_kernel(kernel, hex_lines(EMPTY_PROGRAM))
    _C.launch_kernel(str(kernel), [])  # a refusal is not remembered
    torch.spyre.synchronize()


@pytest.mark.parametrize(
    "text, message",
    [
        ("# only a comment\n", "init.txt: holds no program"),
        ("", "init.txt: holds no program"),
        ("00" * 128 + "\n" + "0" * 255, "init.txt:2: expected 256 hex digits a line, found 255"),
        ("0" * 258, "init.txt:1: expected 256 hex digits a line, found 258"),
        (
            "\n" + "0" * 10 + "g" + "0" * 245,
            "init.txt:2: expected hex digits, found 'g' at digit 11",
        ),
        ("0x" + "0" * 254, "init.txt:1: expected hex digits, found 'x' at digit 2"),
        ("00 " * 128, "init.txt:1: expected hex digits, found ' ' at digit 3"),
    ],
)
def test_bad_hex(kernel, text: str, message: str):
    with pytest.raises(RuntimeError) as error:
        _C.launch_kernel(str(write_kernel(kernel, text)), [])
    assert message in str(error.value)


def test_free_runtime_drops_cached_kernels(script, kernel):
    write_kernel(kernel, hex_lines(EMPTY_PROGRAM))
    out = script(
        f"""
        import torch, torch_spyre._C as _C
        for _ in range(2):
            _C.launch_kernel({str(kernel)!r}, [])
            _C.free_runtime()
            print(_C._is_started())
        """
    )
    assert out.split() == ["False", "False"]
