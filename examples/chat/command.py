"""The command `python -m examples.chat`: arguments, the order of things, exit codes.

Answers go to standard output, all else to standard error: `make chat PROMPT="..." > answer` has
the answer alone.

| exit code | |
|---|---|
| 0 | every answer was the CPU's, ties aside, and the card left nothing to the host |
| 1 | not so: a line with a cross says what |
| 2 | a prompt or arguments that cannot be used |
| 3 | a package or a file of the model is missing or damaged |
| 130 | interrupted |
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from examples.chat import measuring, programs, report, weights
from examples.chat.agreement import compare
from examples.chat.conversation import Conversation, Turn
from examples.chat.decoder import ROWS, Decoder, check_length, check_rows
from examples.chat.errors import ChatError, PromptError
from examples.chat.measuring import Costs
from examples.chat.streaming import Text
from examples.chat.weights import Files, Loaded
from examples.shared import interrupts
from examples.shared.quiet import quietly
from examples.shared.words import size
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.memory import memory_allocated
from torch_spyre.device.properties import get_device_name

TOKENS = 256
INTERRUPTED = "interrupted"
NEW = "/new"


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = _parse(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # answers may have what the terminal has not
    try:
        with interrupts.noticed(), quietly(), torch.no_grad():
            return _chat(arguments)
    except ChatError as error:
        print(f"chat: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nchat: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the answer has seen enough. Python would complain while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.chat",
        description="A conversation with a language model, on an emulated Spyre card. Without a "
        "prompt it asks for them; from a pipe, each line is one.",
    )
    parser.add_argument("prompt", nargs="*", help="what to say to it; several are said in turn")
    parser.add_argument("--system", help="who the model shall be, instead of what it is told")
    parser.add_argument(
        "--tokens", type=_positive, default=TOKENS, help=f"of an answer, at most (default {TOKENS})"
    )
    parser.add_argument(
        "--context", type=_positive, default=ROWS,
        help=f"tokens that a conversation can have (default {ROWS})",
    )  # fmt: skip
    parser.add_argument(
        "--no-check", action="store_true", help="leave out the comparison with the CPU"
    )
    parser.add_argument(
        "--compare", action="store_true",
        help="at the end, tokens per second against torch.compile on the CPU (compiles a minute)",
    )  # fmt: skip
    parser.add_argument(
        "--model", type=Path, help="folder of another model to talk to, as transformers saves it"
    )
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens, 1 or more")
    return int(text)


# ---- The order of things -------------------------------------------------------------------------


@dataclass
class Session:
    """What a conversation needs."""

    arguments: argparse.Namespace
    files: Files
    card: Loaded
    decoder: Decoder
    talk: Conversation
    reference: Loaded | None = None
    """The same model on the CPU, in float32, once it is wanted."""
    is_as_promised: bool = True
    answers: int = 0

    def on_cpu(self) -> Loaded:
        if self.reference is None:
            self.reference = weights.load(self.files, torch.float32)
        return self.reference


def _chat(arguments: argparse.Namespace) -> int:
    session = _begin(arguments)
    typed = not arguments.prompt
    prompts = _typed() if typed else iter(arguments.prompt)
    for prompt in prompts:
        try:
            if typed and prompt == NEW:
                session.talk = Conversation(session.card.tokenizer, arguments.system)
                _tell("a new conversation")
                continue
            turn = session.talk.ask(prompt)
            check_length(len(turn.tokens), session.decoder.rows)
        except PromptError as error:
            if not typed:
                raise
            session.is_as_promised &= sys.stdin.isatty()
            print(f"chat: {error}", file=sys.stderr)
            continue
        if _answer(session, turn).end == INTERRUPTED:
            return 130
    if not session.answers and not sys.stdin.isatty():
        raise PromptError(
            "there was no prompt on standard input, which is no terminal. "
            'Give one: make chat PROMPT="...", or one in each line of the input.'
        )
    if arguments.compare and session.answers:
        _race(session)
    return 0 if session.is_as_promised else 1


def _begin(arguments: argparse.Namespace) -> Session:
    """Model, programs and an empty conversation; nothing is loaded for arguments that are wrong."""
    began = time.perf_counter()
    for prompt in arguments.prompt:
        if not prompt.strip():
            raise PromptError("the prompt is empty. Ask for something, in a few words.")
    kept = weights.store()
    if arguments.model is None:
        files = weights.installed_files(kept, _tell)
    else:
        files = weights.folder_files(arguments.model)
    loaded = weights.load(files, torch.float16)
    check_rows(loaded.model, arguments.context)
    talk = Conversation(loaded.tokenizer, arguments.system)
    if len(arguments.prompt) == 1:
        check_length(len(talk.ask(arguments.prompt[0]).tokens), arguments.context)
    interrupts.check()

    before = memory_allocated()
    loaded.model.to(DEVICE_NAME)
    decoder = Decoder(loaded.model, arguments.context)
    interrupts.check()
    made = programs.programs(decoder, kept, _tell)
    decoder.prefill, decoder.decode = made.prefill, made.decode
    interrupts.check()
    _tell(
        f"{files.name} on {get_device_name()}: {loaded.parameters / 1e6:.1f} M parameters in "
        f"float16, {size(memory_allocated() - before)} with a cache for {decoder.rows} tokens"
    )
    programs_from = f"compiled in {made.seconds:.0f} s" if made.compiled else "from caches"
    _tell(f"ready after {time.perf_counter() - began:.1f} s, programs {programs_from}")
    return Session(arguments, files, loaded, decoder, talk)


def _answer(session: Session, turn: Turn) -> Costs:
    """Say it while it is made, then tell what it cost."""
    costs, said, text = Costs(), [], Text(session.card.tokenizer)
    made = measuring.answer(
        session.decoder, turn.tokens, session.card.stops, session.arguments.tokens, costs
    )
    try:
        for token in made:
            said.append(token)
            print(text.add(token), end="", flush=True)
            interrupts.check()
    except KeyboardInterrupt:
        costs.end = INTERRUPTED
    print(text.rest(), flush=True)
    session.answers += 1
    session.talk.answer(turn, said)
    _tell(f"  {report.costs_line(costs)}")
    session.is_as_promised &= not costs.host_steps
    if not session.arguments.no_check and costs.end != INTERRUPTED:
        found = compare(session.on_cpu().model, turn.tokens, said)
        session.is_as_promised &= found.holds
        interrupts.check()
        for line in report.agreement_lines(found, session.card.word):
            _tell(f"  {line}")
    return costs


def _race(session: Session) -> None:
    """The next tokens of the conversation, on the card and on the CPU."""
    model = session.on_cpu().model
    cpu = Decoder(model, session.decoder.rows, decode=programs.for_cpu())
    _tell("compiling for the CPU ...")
    tokens = session.talk.tokens[: session.decoder.rows - 1]
    for line in report.race_lines(measuring.race(session.decoder, cpu, tokens)):
        _tell(line)


# ---- Prompts and lines ---------------------------------------------------------------------------


def _typed() -> Iterator[str]:
    """Lines from the terminal until an empty one, or all from a pipe."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        _tell(f"Ask. {NEW} begins a new conversation, an empty line ends.")
    while True:
        try:
            line = input("\n> " if is_terminal else "").strip()
        except EOFError:
            return
        except UnicodeDecodeError:
            raise PromptError("standard input is not UTF-8. Convert it, with iconv.") from None
        if line:
            yield line
        elif is_terminal:
            return


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
