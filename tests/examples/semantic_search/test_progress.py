"""A bar in a terminal, percentages elsewhere, and an end in any case."""

from __future__ import annotations

import io

import pytest

from examples.semantic_search.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_is_one_line_with_four_marks():
    stream = io.StringIO()
    with Progress("working", 100, stream) as progress:
        for i in range(100):
            progress.advance(f"{i} done")
    assert stream.getvalue() == "working 25% 50% 75% 100%  99 done\n"


def test_few_steps_pass_several_marks_at_once():
    stream = io.StringIO()
    with Progress("working", 3, stream) as progress:
        for _ in range(3):
            progress.advance()
    assert stream.getvalue() == "working 25% 50% 75% 100%\n"


def test_in_a_terminal_the_bar_grows_in_place():
    stream = Terminal()
    with Progress("working", 2, stream) as progress:
        progress.advance("half")
        progress.advance("all")
    frames = stream.getvalue().split("\r")[1:]
    assert [frame.count("█") for frame in frames] == [0, 14, 28]
    assert "1/2  half" in frames[1] and frames[2].endswith("\x1b[K\n")


def test_an_interruption_ends_the_line():
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Progress("working", 4, stream) as progress:
        progress.advance("note")
        raise KeyboardInterrupt
    assert stream.getvalue() == "working 25%\n"
