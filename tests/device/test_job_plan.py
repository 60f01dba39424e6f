"""Job plans: what runs, what comes back, what they hold, and launches that are refused."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_spyre._C as _C
from tests.support.job_plans import (
    ALLOCATION,
    BASE,
    EMPTY_PROGRAM,
    allocations,
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
from torch_spyre.hardware import CARD

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
         "runs version 5"),
        (b"SPYREPRG" + struct.pack("<II", 0x01000000, 0), 0, "program version 16777216 at"),
        (b"SPYREPRG" + struct.pack("<II", 5, 127), 0, "the program at 0x1c00000000 has 127 words, "
         "but its memory ends after 126"),
        (b"SPYREPRG" + struct.pack("<II6q", 5, 6, 12, 6, 0, 0, 0, 0), 0, "step '0' of the program "
         "is malformed: its kind is 12"),
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
