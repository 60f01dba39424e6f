"""What a compilation knows ends with it, and is its own."""

from __future__ import annotations

import threading

import pytest

import torch_spyre._inductor  # noqa: F401
from torch_spyre._inductor import state


class Notes(dict[str, int]):
    pass


class Graph:
    pass


def test_a_compilation_knows_what_was_noted_in_it_and_forgets_it() -> None:
    with state.compiling():
        state.current().get(Notes)["a"] = 1
        assert state.current().get(Notes) == {"a": 1}
    assert not state.is_compiling()
    with state.compiling():
        assert state.current().get(Notes) == {}


def test_inductor_calls_itself_within_one_compilation() -> None:
    with state.compiling():
        state.current().get(Notes)["a"] = 1
        with state.compiling():
            assert state.current().get(Notes) == {"a": 1}
        assert state.is_compiling()


def test_another_thread_is_in_no_compilation() -> None:
    seen: list[bool] = []
    with state.compiling():
        thread = threading.Thread(target=lambda: seen.append(state.is_compiling()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_what_is_held_for_a_block_is_let_go_also_when_it_fails() -> None:
    with state.compiling():
        with pytest.raises(KeyError), state.current().holding(Notes(b=2)):
            assert state.current().get(Notes) == {"b": 2}
            raise KeyError
        assert state.current().get(Notes) == {}


def test_each_graph_has_its_own() -> None:
    one, other = Graph(), Graph()
    state.of(one, Notes)["a"] = 1
    assert state.of(one, Notes) == {"a": 1} and state.of(other, Notes) == {}
