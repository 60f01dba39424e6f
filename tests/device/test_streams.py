"""Streams, events, callbacks and errors of queued work."""

from __future__ import annotations

import threading
import time

import pytest
import torch

import torch_spyre._C as _C
from torch_spyre.hardware import CARD


def test_stream_ids_and_priorities():
    assert torch.spyre.default_stream().id == 0 and torch.spyre.current_stream().id == 0
    low, high = torch.spyre.Stream(), torch.spyre.Stream(priority=-1)
    assert 1 <= low.id <= 32 and low.priority == 0
    assert 33 <= high.id <= 64 and high.priority == -1
    assert torch.spyre.Stream(priority=5).priority == -1
    assert low.device() == torch.device("spyre:0")
    assert repr(low) == f"<torch_spyre.Stream device=0 id={low.id}>"
    assert low != high and low == torch.spyre.Stream(
        stream_id=low.id, device_index=low.device_index, device_type=low.device_type
    )


def test_pool_hands_out_round_robin():
    ids = [_C.get_stream_from_pool(0).id() for _ in range(33)]
    assert ids[0] == ids[32] and sorted(ids[:32]) == list(range(1, 33))


def test_stream_is_a_context_manager():
    s = torch.spyre.Stream()
    with s:
        assert torch.spyre.current_stream() == s
        with torch.spyre.stream(torch.spyre.Stream()) as inner:
            assert torch.spyre.current_stream() == inner
        assert torch.spyre.current_stream() == s
    assert torch.spyre.current_stream().id == 0
    torch.spyre.set_stream(s)
    assert torch.accelerator.current_stream().stream_id == s.id
    torch.spyre.set_stream(torch.spyre.default_stream())


def test_native_stream_functions():
    s = _C.get_stream_from_pool(0, 0)
    previous = _C.set_current_stream(s)
    assert _C.current_stream(0) == s and _C.current_stream("spyre:0") == s
    assert _C.set_current_stream(previous) == s
    assert s.query() is True and s.device() == torch.device("spyre", 0) and s.priority() == 0
    s.synchronize()
    assert repr(s) == f"<torch_spyre.Stream device=0 id={s.id()}>"


def test_event_times_are_modelled_device_time():
    host = torch.zeros(1 << 20, dtype=torch.float16)
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))

    def transfer() -> float:
        start.record()
        host.to("spyre")
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    expected = (CARD.dma_us + (2 << 20) / CARD.host_bytes_per_us) / 1000
    times = [transfer() for _ in range(3)]
    with torch.spyre.Stream():  # a stream that was idle so far does not start in the past
        times.append(transfer())
    assert times == pytest.approx([expected] * 4, rel=1e-6)


def test_events_order_streams():
    a, b = torch.spyre.Stream(), torch.spyre.Stream()
    event = torch.spyre.Event()
    x = torch.zeros(1000, 1000, device="spyre")
    with a:
        y = x.clone()
        event.record()
    b.wait_event(event)
    with b:
        z = y.clone()
    b.synchronize()
    assert event.query() and (z.cpu() == 0).all()
    b.wait_stream(a)


def test_callbacks_run_in_order():
    seen: list[int] = []
    for i in range(5):
        _C._host_callback(0, i % 3, lambda i=i: seen.append(i))
    torch.spyre.synchronize()
    assert seen == [0, 1, 2, 3, 4]


def test_error_of_queued_work_shows_at_the_next_synchronisation():
    def fail() -> None:
        raise ValueError("something broke")

    _C._host_callback(0, 0, fail)
    with pytest.raises(RuntimeError, match="something broke"):
        torch.spyre.synchronize()
    torch.spyre.synchronize()  # delivered once
    assert torch.ones(3, device="spyre").sum().item() == 3


def test_host_goes_on_while_the_card_works():
    queued = threading.Event()
    _C._host_callback(0, 0, lambda: queued.wait(60))  # the card works until the host has gone on
    t = torch.ones(100).pin_memory().to("spyre", non_blocking=True)
    back = torch.zeros(100).pin_memory()
    back.copy_(t, non_blocking=True)
    assert not torch.spyre.current_stream().query() and (back == 0).all()
    queued.set()
    torch.spyre.synchronize()
    assert (back == 1).all() and torch.spyre.current_stream().query()


def test_blocking_copy_waits_for_queued_work():
    _C._host_callback(0, 0, lambda: time.sleep(0.05))
    t = torch.arange(10).pin_memory().to("spyre", torch.float32, non_blocking=True)
    assert t.cpu().tolist() == list(range(10))


def test_freed_tensor_is_not_recycled_under_queued_work():
    done: list[bool] = []
    source = torch.full((64, 64), 3.0, device="spyre")
    torch.spyre.synchronize()
    _C._host_callback(0, 0, lambda: (time.sleep(0.1), done.append(True)))
    copy = source.clone()  # queued after the sleep
    del source
    other = torch.empty(64, 64, device="spyre")  # must not take source's place
    with torch.spyre.Stream():
        pass
    assert copy.data_ptr() != other.data_ptr()
    other.fill_(5.0)
    assert (copy.cpu() == 3).all() and done


def test_streams_of_unknown_cards_are_refused():
    with pytest.raises(RuntimeError, match="out of range"):
        torch.spyre.Stream(device=4)
    with pytest.raises(RuntimeError, match="spyre stream"):
        torch.ones(2, device="spyre").record_stream(
            torch.Stream(stream_id=0, device_index=0, device_type=0)
        )


def test_launch_blocking(script):
    out = script(
        """
        import time, torch, torch_spyre._C as _C
        torch.ones(1, device="spyre")
        begin = time.perf_counter()
        _C._host_callback(0, 0, lambda: time.sleep(0.2))
        print(time.perf_counter() - begin > 0.19)
        """,
        SPYRE_LAUNCH_BLOCKING="1",
    )
    assert out == "True"


def test_callbacks_and_blocking_launches_do_not_deadlock(script):
    out = script(
        """
        import threading, torch, torch_spyre._C as _C
        seen = []
        def work():
            for _ in range(100):
                _C._host_callback(0, 0, lambda: seen.append(1))
                torch.ones(3, device="spyre") + 1
        threads = [threading.Thread(target=work) for _ in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        _C._host_callback(0, 0, lambda: None)
        torch.spyre.synchronize()
        print(len(seen))
        """,
        SPYRE_LAUNCH_BLOCKING="1",
    )
    assert out == "300"
