"""No search for garbage while something is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torch_spyre.upstream.gc_pause import collections_paused


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_nothing_is_collected_inside_and_everything_afterwards() -> None:
    runs: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        runs.append(info["generation"])

    gc.callbacks.append(note)
    try:
        with collections_paused():
            kept = [[number] for number in range(100_000)]
            assert not runs and not gc.isenabled()
        assert gc.isenabled()
        assert not gc.get_freeze_count()
        fresh = [[number] for number in range(100_000)]
    finally:
        gc.callbacks.remove(note)
    assert runs and len(kept) == len(fresh)


def test_what_was_made_inside_is_among_the_old_objects() -> None:
    with collections_paused():
        made: list[Any] = [[]]
    assert any(found is made[0] for found in gc.get_objects(generation=2))


def test_garbage_that_was_made_inside_is_found_later() -> None:
    class Cycle:
        gone = 0

        def __init__(self) -> None:
            self.myself = self

        def __del__(self) -> None:
            Cycle.gone += 1

    with collections_paused():
        Cycle()
    assert Cycle.gone == 0
    gc.collect()
    assert Cycle.gone == 1


def test_collections_that_are_off_stay_off() -> None:
    gc.disable()
    with collections_paused():
        pass
    assert not gc.isenabled()


def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with collections_paused():
            pass
        assert gc.get_freeze_count() == pytest.approx(count, abs=100)
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def test_an_error_inside_does_not_leave_them_off() -> None:
    with pytest.raises(KeyError), collections_paused():
        raise KeyError
    assert gc.isenabled()


def test_dynamo_compiles_without_collections_also_after_a_reset() -> None:
    seen: list[bool] = []

    def backend(gm: Any, inputs: Any) -> Any:
        seen.append(gc.isenabled())
        return gm.forward

    x = torch.ones(64, device="spyre")
    for _ in range(2):
        torch._dynamo.reset()
        torch.compile(lambda a: a + 1, backend=backend)(x)
    assert seen == [False, False]
    assert gc.isenabled()


def test_a_reset_of_dynamo_forgets_what_is_called_back() -> None:
    called: list[Any] = []
    torch._dynamo.callback_handler.register_start_callback(called.append)
    torch._dynamo.reset()
    torch.compile(lambda a: a + 1, backend="eager")(torch.ones(3))
    assert not called
