"""The command `python -m examples.semantic_search`: arguments, the order of things, exit codes.

| exit code | |
|---|---|
| 0 | everything that is promised came out so |
| 1 | it did not: a line with a cross says what |
| 2 | texts, questions or arguments that cannot be used |
| 3 | a package or a file of the model is missing or damaged |
| 130 | interrupted |
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from examples.semantic_search import encoder, passages, ranking, report
from examples.semantic_search.anatomy import describe, what_compiles, what_computes
from examples.semantic_search.encoder import BATCH, TOKENS, Batch, Loaded
from examples.semantic_search.errors import QuestionError, SearchError
from examples.semantic_search.index import EmbedTexts, Index, Recalled, Same, store
from examples.semantic_search.measuring import CardEncoder, Race, cpu_embeddings, race
from examples.semantic_search.passages import Passage
from examples.semantic_search.progress import Progress
from examples.shared import interrupts
from examples.shared.quiet import quietly
from examples.shared.words import counted, size
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.properties import get_device_name

QUESTIONS = (
    "How can I see which operations the host computes?",
    "Why is there padding in a tensor on the card?",
    "How is the work divided among the cores?",
    "How do I add an operation of my own to the compiler?",
    "Can a forked process use the card?",
)
"""About our own documentation."""

ROUNDS = 5


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = _parse(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # texts may have what the terminal has not
    try:
        with interrupts.noticed(), quietly(), torch.no_grad():
            return _search(arguments)
    except SearchError as error:
        print(f"search: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nsearch: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.semantic_search",
        description="Semantic search in a folder of texts, on an emulated Spyre card.",
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, help=".md and .txt files; default: our documentation"
    )
    parser.add_argument(
        "-q", "--question", action="append", default=[], help="what to search for; may be repeated"
    )
    parser.add_argument("-i", "--interactive", action="store_true", help="ask for questions")
    parser.add_argument("--top", type=_positive, default=3, help="passages to show (default 3)")
    parser.add_argument(
        "--no-check", action="store_true", help="leave out the comparison with the CPU"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="embed every text, also those that earlier runs know"
    )
    parser.add_argument(
        "--model", type=Path, help="folder of another BERT-like sentence encoder with mean pooling"
    )
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of passages, 1 or more")
    return int(text)


# ---- The order of things -------------------------------------------------------------------------


@dataclass
class Asked:
    """A question and its embedding on the card."""

    question: str
    embedding: torch.Tensor


def _search(arguments: argparse.Namespace) -> int:
    began = time.perf_counter()
    texts, named = _texts(arguments)
    loaded = _load(arguments.model)
    for question in arguments.question:
        _check_question(question, loaded)

    found = passages.split_texts(texts, TOKENS, loaded.count)
    batches = loaded.batches(p.embedded for p in found)
    print(f"{_bold('Semantic search')} with {loaded.name} on {get_device_name()}\n")
    tokens = counted(sum(b.tokens for b in batches), "token")
    files, pieces = counted(len(texts), "file"), counted(len(found), "passage")
    _station("texts", f"{named}: {files}, {pieces}, {tokens}")
    card = CardEncoder(loaded.model)
    weights = size(card.weight_bytes)
    _station("model", f"{loaded.parameters / 1e6:.1f} M parameters, float16, {weights} on the card")
    _station("compiling", f"for batches of {BATCH} x {TOKENS} tokens ... ", end="")
    card.compile(batches[0])
    print(f"{card.compile_seconds:.1f} s" + ("" if card.bundles_compiled else ", from caches"))
    _station("explaining", "", end="")
    ids, mask = batches[0].ids.to(DEVICE_NAME), batches[0].mask.to(DEVICE_NAME)
    anatomy = describe(card.plain, ids, mask, loaded.identity)
    kernels = counted(anatomy.kernels, "kernel")
    print(f"{kernels} of {counted(anatomy.operations, 'operation')}")
    made = _embed(arguments, loaded, card, found)
    asked = _ask(arguments, loaded, card, found, made.rows)

    agreement = raced = None
    if not arguments.no_check:
        print()
        agreement = _check(arguments, loaded, found, asked, made.rows)
        raced = _race(loaded, card, batches)

    interrupts.check()
    promised = report.promises(agreement, card.counts, anatomy)
    costs = report.Costs(
        card.counts, anatomy, card.weight_bytes, card.compile_seconds,
        card.bundles_compiled > 0, made, raced, time.perf_counter() - began,
    )  # fmt: skip
    print(f"\n{_bold('Report')}")
    rows = [*(promise.row for promise in promised), *report.figures(costs)]
    print("\n".join(report.table(rows, _width())))
    broken = [p.name for p in promised if not p.holds]
    if broken:
        print(f"search: not as promised: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


def _texts(arguments: argparse.Namespace) -> tuple[list[passages.Text], str]:
    if arguments.folder is None:
        folder = passages.project_folder()
        return passages.read_texts(folder, passages.project_files(folder)), "README.md and docs"
    folder = arguments.folder
    return passages.read_texts(folder, passages.folder_files(folder)), str(folder)


def _load(folder: Path | None) -> Loaded:
    if folder is None:
        return encoder.load_installed()
    remedy = "Give a folder with a whole sentence encoder."
    encoder.check_files(folder, remedy)
    return encoder.load(folder, folder.resolve().name, remedy)


def _embed(
    arguments: argparse.Namespace, loaded: Loaded, card: CardEncoder, found: list[Passage]
) -> Recalled:
    """The passages on the card, those aside that an earlier run has embedded."""

    def embed(texts: list[str]) -> torch.Tensor:
        batches = loaded.batches(texts)
        with Progress("embedding", len(batches)) as progress:
            return card.embed(
                batches, lambda: progress.advance(f"{card.counts.tokens_per_second:,.0f} tokens/s")
            )

    made = _recalled(
        arguments,
        (loaded.fingerprint, what_computes(), what_compiles()),
        [p.embedded for p in found],
        embed,
        torch.equal,
    )
    if made.recalled:
        others = counted(made.recalled, "passage")
        _station("index", f"{others} as an earlier run embedded them")
    return made


def _check(
    arguments: argparse.Namespace,
    loaded: Loaded,
    found: list[Passage],
    asked: list[Asked],
    embeddings: torch.Tensor,
) -> report.Agreement:
    """All texts once more on the CPU in float32, those aside that an earlier run has checked."""

    def embed(texts: list[str]) -> torch.Tensor:
        with Progress("checking", -(-len(texts) // BATCH)) as progress:
            return cpu_embeddings(loaded.model, loaded.batches(texts), progress.advance)

    texts = [*(p.embedded for p in found), *(a.question for a in asked)]
    reference = _recalled(
        arguments, (loaded.fingerprint, what_computes()), texts, embed, _are_alike
    ).rows
    count = len(embeddings)
    on_card = torch.cat([embeddings, *(a.embedding[None] for a in asked)])
    cosines = torch.nn.functional.cosine_similarity(on_card.double(), reference.double())
    rankings = [
        ranking.compare(
            ranking.scores(a.embedding, embeddings),
            ranking.scores(reference[count + i], reference[:count]),
            arguments.top,
        )
        for i, a in enumerate(asked)
    ]
    lowest, mean = float(cosines.min()), float(cosines.mean())
    return report.Agreement(lowest, mean, len(cosines), rankings, count)


def _recalled(
    arguments: argparse.Namespace,
    maker: tuple[object, ...],
    texts: list[str],
    embed: EmbedTexts,
    same: Same,
) -> Recalled:
    if arguments.fresh:
        return Recalled(embed(texts))
    folder = None if arguments.folder is None else str(arguments.folder.resolve())
    made = Index(store(), repr((folder, maker))).recall(texts, embed, same)
    if made.problem:
        print(f"search: {made.problem}", file=sys.stderr)
    return made


def _are_alike(before: torch.Tensor, now: torch.Tensor) -> bool:
    """On the CPU the last bits depend on which texts are in a batch."""
    cosines = torch.nn.functional.cosine_similarity(before.double(), now.double())
    return float(cosines.min()) > 1 - 1e-6


def _race(loaded: Loaded, card: CardEncoder, batches: list[Batch]) -> Race:
    """One batch against torch.compile on the CPU."""
    with Progress("racing", ROUNDS + 1) as progress:
        fullest = max(batches, key=lambda b: b.tokens)
        return race(card, loaded.model, fullest, ROUNDS, progress.advance)


# ---- Questions -----------------------------------------------------------------------------------


def _ask(
    arguments: argparse.Namespace,
    loaded: Loaded,
    card: CardEncoder,
    found: list[Passage],
    embeddings: torch.Tensor,
) -> list[Asked]:
    """Answer the questions that were given, or typed, or ours."""
    asked: list[Asked] = []
    width = _width()

    def answer(questions: list[str], lines: int) -> None:
        batches = loaded.batches(questions)
        rows = card.embed(batches, lambda: None)
        for question, embedding in zip(questions, rows):
            asked.append(Asked(question, embedding))
            scores = ranking.scores(embedding, embeddings)
            best = [(float(scores[i]), found[i]) for i in ranking.best(scores, arguments.top)]
            print("\n".join([f"\n{_bold(question)}", *report.answer_lines(best, width, lines)]))

    if arguments.question:
        answer(arguments.question, 0)
    if arguments.interactive:
        print("\nAsk; an empty line ends.")
        for question in _typed():
            try:
                _check_question(question, loaded)
            except QuestionError as error:
                print(f"search: {error}", file=sys.stderr)
            else:
                answer([question], 0)
        if not asked and not sys.stdin.isatty():
            raise QuestionError(
                "there was no question on standard input, which is no terminal. "
                'Give one: --question "...", or one in each line of the input.'
            )
    elif not asked:
        # Ours are about our documentation; in other texts they find what is closest to them.
        answer(list(QUESTIONS), 2)
    return asked


def _typed() -> Iterator[str]:
    """Lines from the terminal, or from a pipe, until an empty one or the end."""
    while True:
        try:
            line = input("\n? " if sys.stdin.isatty() else "")
        except EOFError:
            return
        except UnicodeDecodeError:
            raise QuestionError("standard input is not UTF-8. Convert it, with iconv.") from None
        if not line.strip():
            return
        yield line.strip()


def _check_question(question: str, loaded: Loaded) -> None:
    if not question.strip():
        raise QuestionError("the question is empty. Ask for something, in a few words.")
    tokens = loaded.count(question)
    if tokens > TOKENS:
        raise QuestionError(
            f"the question has {tokens} tokens, the model reads {TOKENS} at once. Shorten it."
        )


# ---- On the screen -------------------------------------------------------------------------------


def _station(name: str, text: str, end: str = "\n") -> None:
    interrupts.check()
    print(f"{name:<12}{text}", end=end, flush=True)


def _width() -> int:
    return min(max(shutil.get_terminal_size((100, 24)).columns, 60), 100)


def _bold(text: str) -> str:
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ
    return text if plain else f"\x1b[1m{text}\x1b[0m"
