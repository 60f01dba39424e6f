"""Benchmarks: how rows are timed, judged, kept, compared and drawn. The times are not tested."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import compiling, pages, plot, speed, timing, workloads
from benchmarks.results import (
    Change,
    Promise,
    Result,
    Run,
    busy,
    compare,
    dump,
    geometric_mean,
    is_commit,
    load,
    merged,
    parse,
)
from benchmarks.timing import interleaved

ROWS = [
    Result("fast", 10.0, {"a": 100.0, "b": 20.0}, bound="<= 1.2", holds=True),
    Result("slow", 3000.0, {"a": 1000.0, "b": 6000.0}, bound="<= 1.2", holds=False, spread=0.3),
]
MACHINE = {"processor": "one", "cores": 2}


# ---- Timing -------------------------------------------------------------------------------------


class Clock:
    """A clock that advances only in waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of `benchmarks.timing`: what others do to the machine has no say in a test."""
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def _takes(seconds: float, calls: list[float], clock: Clock) -> Callable[[], None]:
    def function() -> None:
        calls.append(seconds)
        clock.sleep(seconds)

    return function


def test_functions_are_timed_in_turns_and_the_slow_one_less_often(clock: Clock) -> None:
    calls: list[float] = []
    functions = {"short": _takes(0.001, calls, clock), "long": _takes(0.03, calls, clock)}
    times = interleaved(functions, seconds=0.1, rounds=5, block=0.002)
    assert times["short"].best == pytest.approx(1000)
    assert times["long"].best == pytest.approx(30_000)
    assert times["short"].rounds == 5
    assert times["long"].rounds == 2  # the second round goes beyond its tenth of a second
    rounds = calls[4:]  # after warming up and the first look at each
    assert rounds[:6] == [0.001] * 3 + [0.03] * 3


def test_calls_that_are_short_beside_their_time_get_25_rounds(clock: Clock) -> None:
    times = interleaved({"short": _takes(0.02, [], clock)}, seconds=0.1, rounds=50)
    assert times["short"].rounds in (25, 26)  # as long as 25 take, by the first look


def test_a_call_that_is_longer_than_its_time_is_measured_once(clock: Clock) -> None:
    calls: list[float] = []
    times = interleaved({"long": _takes(0.03, calls, clock)}, seconds=0.01)
    assert times["long"].rounds == 1 and len(calls) == 2
    assert times["long"].spread == 0


# ---- Results ------------------------------------------------------------------------------------


def test_results_survive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    path.write_text(dump(Run(MACHINE, ROWS, 0.25), [Promise("mean", 0.5, 0.8)]))
    assert load(path) == Run(MACHINE, ROWS, 0.25)
    assert json.loads(path.read_text())["promises"][0]["holds"] is True


def test_no_file_is_no_run_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    assert load(tmp_path / "speed.json") is None
    (tmp_path / "speed.json").write_text("[]")
    with pytest.raises(ValueError, match=r"speed\.json: not the results of a run.*--against"):
        load(tmp_path / "speed.json")
    (tmp_path / "speed.json").write_text("{")
    with pytest.raises(ValueError, match=r"speed\.json"):
        load(tmp_path / "speed.json")


def test_a_run_can_be_read_from_a_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    path = tmp_path / "speed.json"
    git("init")
    path.write_text(dump(Run(MACHINE, ROWS[:1]), []))
    git("add", "speed.json")
    git("commit", "-m", "one")
    path.write_text(dump(Run(MACHINE, ROWS), []))
    committed = load(path, "HEAD")
    assert committed is not None and committed.results == ROWS[:1]
    assert is_commit("HEAD", tmp_path) and not is_commit("no-such-commit", tmp_path)
    assert load(tmp_path / "memory.json", "HEAD") is None


def test_rows_that_were_measured_again_replace_those_of_the_last_run() -> None:
    again = replace(ROWS[0], ours=7.0)
    old = [*ROWS, replace(ROWS[0], name="gone")]
    assert merged([again], old, ["fast", "slow"]) == [again, ROWS[1]]


def test_others_who_use_the_machine_are_noticed() -> None:
    work = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(work) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(0.2)
        share = busy(0.3)
        assert share is not None and share > 0.5
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_parse_refuses_rows_with_unknown_fields() -> None:
    with pytest.raises(ValueError, match="colour"):
        parse(json.dumps({"machine": {}, "results": [{"name": "x", "colour": 1}]}))


# ---- Comparison ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "peer", "verdict"),
    [
        (5.0, 100.0, "better"),
        (20.0, 100.0, "worse"),
        (10.5, 100.0, "same"),
        (5.0, 50.0, "same"),  # everything ran faster: the machine, not us
        (20.0, 200.0, "same"),
    ],
)
def test_a_change_shows_in_the_time_and_in_the_ratio(
    ours: float, peer: float, verdict: str
) -> None:
    now = replace(ROWS[0], ours=ours, peers={"a": peer, "b": 1.0})
    (change,) = compare([now], ROWS)
    assert change.verdict == verdict


def test_rows_whose_rounds_differed_need_a_bigger_change() -> None:
    now = replace(ROWS[1], ours=3000 * 1.25)
    (change,) = compare([now], ROWS)
    assert change.noise == 0.3 and change.verdict == "same"
    (change,) = compare([replace(now, ours=3000 * 1.4)], ROWS)
    assert change.verdict == "worse"


def test_rows_of_other_names_or_units_are_not_compared() -> None:
    assert compare([replace(ROWS[0], name="new"), replace(ROWS[1], unit="MB")], ROWS) == []


# ---- Promises -----------------------------------------------------------------------------------


def test_the_geometric_mean_of_a_ratio_and_its_inverse_is_one() -> None:
    assert math.isclose(geometric_mean([4, 0.25]), 1)
    assert math.isclose(geometric_mean([1, 10, 100]), 10)


def test_promises_of_speed_are_means_over_the_rows_of_inference() -> None:
    peers = {"compile float32": 10.0, "compile float16": 40.0, "eager float32": 1.0}
    rows = [Result("x", 5.0, peers), Result("y", 20.0, peers)]
    assert speed.promises([Result("training step, 8x64 tokens", 1.0, peers)]) == []
    single, half = speed.promises([*rows, Result("training step, 8x64 tokens", 1.0, peers)])
    assert math.isclose(single.value, 1.0) and not single.holds  # 0.5 and 2
    assert math.isclose(half.value, 0.25) and half.holds  # 0.125 and 0.5


def test_layers_are_promised_to_share_their_compilation() -> None:
    def row(layers: int, seconds: float) -> Result:
        return Result(f"decoder, {layers} layers, cold", seconds, {"Inductor": 1.0})

    assert compiling.promises([row(6, 2.0)]) == []
    (promise,) = compiling.promises([row(6, 2.0), row(24, 5.0)])
    assert promise.value == 2.5 and promise.holds
    (promise,) = compiling.promises([row(6, 2.0), row(24, 7.0)])
    assert not promise.holds


# ---- Tables and pictures ------------------------------------------------------------------------


def _cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_a_table_has_a_ratio_for_each_peer() -> None:
    head, rule, fast, slow = _cells(pages.results_table(ROWS))
    assert head == ["what", "spyre", "/ a", "/ b", "promised", "holds"]
    assert set("".join(rule)) == {"-"}
    assert fast == ["fast", "10.00 us", "0.10", "0.50", "<= 1.2", "yes"]
    assert slow == ["slow", "3 ms", "3.00", "0.50", "<= 1.2", "NO"]


def test_a_single_peer_is_shown_with_its_time() -> None:
    rows = [Result("memory", 500, {"cpu": 250.0}, "MB")]
    head, _, row = _cells(pages.results_table(rows))
    assert head == ["what", "spyre", "cpu", "spyre / cpu", "promised", "holds"]
    assert row == ["memory", "500 MB", "250 MB", "2.00", "-", "-"]


def test_a_page_of_changes_lists_only_what_changed() -> None:
    changes = [Change("x", 2.0, 2.0, 0.1), Change("y", 1.01, 0.99, 0.1)]
    assert [row[0] for row in _cells(pages.changes_table(changes))[2:]] == ["x"]
    assert "Nothing changed" in pages.changes_table(changes[1:])


@pytest.mark.parametrize(
    ("us", "text"), [(1.234, "1.23 us"), (1234, "1.23 ms"), (123456, "123 ms"), (2e6, "2.00 s")]
)
def test_times_are_shown_in_the_unit_that_suits_them(us: float, text: str) -> None:
    assert pages.quantity(us, "us") == text


def test_marks_of_a_picture_lie_where_their_ratios_are() -> None:
    root = ElementTree.fromstring(plot.ratios(ROWS))
    space = "{http://www.w3.org/2000/svg}"
    at = {
        mark.findtext(f"{space}title"): float(mark.attrib["cx"])
        for mark in root.iter(f"{space}circle")
        if mark.find(f"{space}title") is not None
    }
    labels = {
        text.text: float(text.attrib["x"])
        for text in root.iter(f"{space}text")
        if "n m" in text.attrib.get("class", "")
    }
    # 0.1 is a number of the axis, 3 lies between two of them.
    assert math.isclose(at["fast: 0.10 of a"], labels["0.1"], abs_tol=0.1)
    assert labels["2"] < at["slow: 3.00 of a"] < labels["5"]
    texts = {text.text for text in root.iter(f"{space}text")}
    assert {"fast", "slow", "a", "b", "geometric mean", "10.00 us"} <= texts


def test_a_picture_refuses_more_peers_than_it_has_marks_for() -> None:
    row = Result("x", 1.0, {f"peer {i}": 1.0 for i in range(5)})
    with pytest.raises(ValueError, match="at most 4 peers"):
        plot.ratios([row])


# ---- What is measured ---------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 5])
def test_the_cached_decoder_block_computes_causal_attention(length: int) -> None:
    """Tokens one by one through the cache give what all at once give."""
    torch.manual_seed(0)
    block, (x, places, cos, sin, mask) = workloads.prefill(1, length, 8, 64, 2, 1, 96)
    whole = block(x, places, cos, sin, mask)
    block.keys.zero_(), block.values.zero_()
    single = [
        block(x[:, i : i + 1], places[i : i + 1], cos[i : i + 1], sin[i : i + 1], mask[i : i + 1])
        for i in range(length)
    ]
    torch.testing.assert_close(torch.cat(single, 1), whole)


def test_a_wrong_result_is_not_timed_and_the_other_rows_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = workloads.Computation(lambda x: x if x.device.type == "cpu" else x * 1.5)
    case = speed.Case("wrong", lambda: workloads.Workload(wrong, (torch.ones(4, 64),)))
    right = speed.Case("right", workloads.one_kernel)
    monkeypatch.setattr(speed, "CASES", [case, right])
    failed: list[str] = []
    results = speed.measure(lambda name: True, True, failed)
    assert failed == ["wrong"] and [result.name for result in results] == ["right"]
    assert "relative error of 0.5" in capsys.readouterr().out


def test_every_case_of_speed_has_a_name_of_its_own() -> None:
    names = [case.name for case in speed.CASES]
    assert len(set(names)) == len(names)


def test_unknown_groups_and_rows_are_refused_with_what_there_is() -> None:
    def refused(*arguments: str) -> str:
        command = [sys.executable, "-m", "benchmarks", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        return done.stderr

    assert "groups are speed, compiling, overheads, memory" in refused("--only", "sped")
    assert "GEMV, 1x4096x4096" in refused("--only", "speed", "--rows", "gemw")
    assert "'no-such-commit' is no commit" in refused("--against", "no-such-commit")
