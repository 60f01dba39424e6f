"""The report says what was measured, and marks what is not as promised."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from examples.semantic_search.anatomy import Anatomy
from examples.semantic_search.index import Recalled
from examples.semantic_search.measuring import Counts, Race
from examples.semantic_search.passages import Passage
from examples.semantic_search.ranking import Comparison
from examples.semantic_search.report import (
    Agreement,
    Costs,
    answer_lines,
    counted,
    figures,
    promises,
    size,
    table,
)

COUNTS = Counts(
    batches=2, texts=12, tokens=1000, seconds=0.5, card_ms=4.0, sent_bytes=2000, received_bytes=500
)
ANATOMY = Anatomy(1, 270, 26, [], 0, 600_000_000)
SAME, SWAPPED = Comparison(True, True, 0.001), Comparison(True, True, 0.1)
NEW = Recalled(torch.zeros(10, 4))
AGREEMENT = Agreement(0.99991, 0.99995, 12, [SAME, SAME], 10)


def held(agreement=AGREEMENT, counts=COUNTS, anatomy=ANATOMY) -> dict[str, bool]:
    return {p.name: p.holds for p in promises(agreement, counts, anatomy)}


def test_everything_holds_when_everything_agrees():
    assert held() == {"embeddings": True, "ranking": True, "fallbacks": True}
    assert held(agreement=None) == {"fallbacks": True}


def test_one_embedding_that_is_off_breaks_the_promise():
    assert not held(replace(AGREEMENT, lowest=0.9989))["embeddings"]


def test_one_question_with_another_ranking_breaks_the_promise():
    assert not held(replace(AGREEMENT, rankings=[SAME, SWAPPED]))["ranking"]


def test_a_host_step_of_the_graph_or_an_eager_operation_breaks_the_promise():
    assert not held(anatomy=replace(ANATOMY, host_steps=["aten.cumsum.default"]))["fallbacks"]
    assert not held(counts=replace(COUNTS, host_operations=Counter({"aten::mm": 3})))["fallbacks"]
    assert not held(anatomy=replace(ANATOMY, graph_breaks=1))["fallbacks"]


def test_a_broken_promise_says_what_it_is_about():
    counts = replace(COUNTS, host_operations=Counter({"aten::mm": 3}))
    [promise] = promises(None, counts, replace(ANATOMY, host_steps=["aten.cumsum.default"]))
    assert promise.row.mark == "✗"
    assert "aten.cumsum.default" in promise.note and "aten::mm (3 times)" in promise.note


def test_the_figures_are_those_of_the_counts():
    race = Race(card_seconds=0.1, cpu_seconds=0.2, rounds=5, cpu_compile_seconds=30.0)
    costs = Costs(COUNTS, ANATOMY, 45_000_000, 12.34, True, NEW, race, 60.0)
    rows = {row.name or "link": row for row in figures(costs)}
    assert rows["speed here"].value == "2,000 tokens/s"
    assert rows["on the card"].value == "250,000 tokens/s"
    assert "2.00 ms per batch" in rows["on the card"].note
    assert rows["bytes moved"].value == "1.2 GB"
    assert rows["link"].value == "2.5 kB"
    assert rows["compiling"].value == "12.3 s" and "30.0 s" in rows["compiling"].note
    assert rows["against CPU"].value == "0.50 x the time"
    assert "against CPU" not in {row.name for row in figures(replace(costs, race=None))}


def test_passages_of_an_earlier_run_are_told_apart():
    costs = Costs(COUNTS, ANATOMY, 45_000_000, 12.34, True, NEW, None, 60.0)
    assert "index" not in {row.name for row in figures(costs)}
    made = replace(NEW, recalled=7, checked=2)
    row = next(row for row in figures(replace(costs, made=made)) if row.name == "index")
    assert row.value == "7" and "10 passages" in row.note and "2 others" in row.note


def test_tables_keep_to_the_width_and_to_their_columns():
    costs = Costs(COUNTS, ANATOMY, 45_000_000, 12.34, False, NEW, None, 60.0)
    rows = [*(p.row for p in promises(AGREEMENT, COUNTS, ANATOMY)), *figures(costs)]
    for width in (70, 100):
        lines = table(rows, width)
        assert max(map(len, lines)) <= width
        assert sum(line.lstrip().startswith("✓") for line in lines) == 3


def test_answers_show_score_place_and_text():
    passage = Passage("docs/a.md", "A > B", "word " * 60)
    lines = answer_lines([(0.5, passage)], 80)
    assert lines[0] == "   1  0.500  docs/a.md > A > B"
    assert " ".join(lines[1:]).split() == ["word"] * 60
    assert max(map(len, lines)) <= 80
    short = answer_lines([(0.5, passage)], 80, lines=2)
    assert len(short) == 3 and short[-1].endswith("word …")


def test_long_places_keep_the_file_and_the_last_heading():
    passage = Passage("docs/a.md", f"{'very ' * 20} > The end", "text")
    assert answer_lines([(0.5, passage)], 60)[0].endswith("docs/a.md > … > The end")


def test_numbers_are_for_people():
    assert [size(n) for n in (0, 999, 1500, 641_000_000, 4.04e10)] == [
        "0 B", "999 B", "1.5 kB", "641 MB", "40.4 GB",
    ]  # fmt: skip
    assert counted(1, "text") == "1 text" and counted(42040, "token") == "42,040 tokens"
