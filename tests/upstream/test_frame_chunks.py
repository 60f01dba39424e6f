"""A chunk of frames for the compiler."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from tests.support.upstream import needs
from torch_spyre.upstream import frame_chunks
from torch_spyre.upstream.frame_chunks import with_room

_CALLS = 200


def _nothing() -> None:
    return None


def _faults_at(depth: int) -> int:
    """Page faults of many calls of a function that does nothing, so far down."""
    if depth > 0:
        return _faults_at(depth - 1)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(_CALLS):
        _nothing()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def _most_faults() -> int:
    """At the worst of many depths; some of them are the end of a chunk."""
    return max(_faults_at(depth) for depth in range(400))


def in_a_thread(function: Callable[[], int]) -> int:
    """A thread has frames of its own: nobody has left room for it before."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="frames are objects before Python 3.11, not parts of a stack"
)
def test_calls_at_the_end_of_a_chunk_take_new_memory_each_time() -> None:
    assert in_a_thread(_most_faults) >= _CALLS


def test_with_room_no_depth_is_worse_than_another() -> None:
    assert in_a_thread(lambda: with_room(_most_faults)) < _CALLS // 10


def test_arguments_results_and_errors_go_through() -> None:
    assert with_room(dict, [("a", 1)], b=2) == {"a": 1, "b": 2}
    with pytest.raises(ZeroDivisionError):
        with_room(divmod, 1, 0)


def test_room_can_be_had_inside_of_room() -> None:
    def down(levels: int) -> int:
        return with_room(down, levels - 1) + 1 if levels else 0

    assert down(20) == 20


@needs("frame-room")
def test_graphs_of_the_card_are_compiled_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr(
        frame_chunks, "with_room", lambda run, *args, **kw: given.append(run) or run(*args, **kw)
    )
    for device, calls in (("cpu", 0), ("spyre", 1)):
        torch._dynamo.reset()
        torch.compile(lambda z: z + 1)(torch.ones(64, device=device))
        assert len(given) == calls


def test_a_deep_program_still_ends_where_python_says() -> None:
    def forever(function: Callable[..., int]) -> int:
        return function(function) + 1

    with pytest.raises(RecursionError):
        with_room(forever, forever)
