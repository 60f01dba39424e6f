"""The garbage collector is paused while a graph is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torch_spyre
from tests.support.upstream import needs
from torch_spyre.upstream.gc_pause import collections_paused

pytestmark = needs("collections-paused")


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


def test_a_graph_is_compiled_without_collections() -> None:
    seen: list[bool] = []

    @torch_spyre._inductor.add_pass("early")
    def look(graph: torch.fx.Graph) -> None:
        seen.append(gc.isenabled())

    torch._dynamo.reset()
    try:
        torch.compile(lambda a: a + 1)(torch.ones(64, device="spyre"))
    finally:
        torch_spyre._inductor.remove_pass("early", look)
    assert seen == [False]
    assert gc.isenabled()
