"""Files to passages: pieces of text of a size that the model reads at once.

In: a folder. Out: `Passage`s, in the order of files and text. Markdown is cut at its headings;
inside of a section, paragraphs, list items and rows of tables are packed together until the limit
is reached. Fenced code is left out: the model was trained on sentences. Plain text is cut at empty
lines.

    >>> split_markdown("# Card\n\n## Memory\n\nIt has 128 GB.", "card.md", 64, count_words)
    [Passage(file='card.md', heading='Card > Memory', text='It has 128 GB.')]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.semantic_search.errors import TextError

SUFFIXES = (".md", ".txt")

Count = Callable[[str], int]
"""The number of tokens of a text."""


@dataclass(frozen=True)
class Passage:
    """A piece of a file."""

    file: str
    heading: str
    """The headings above it, outermost first; empty in plain text."""
    text: str

    @property
    def embedded(self) -> str:
        """What the model reads: the heading says what the text is about."""
        return f"{self.heading.replace(' > ', ', ')}. {self.text}" if self.heading else self.text

    @property
    def place(self) -> str:
        return f"{self.file} > {self.heading}" if self.heading else self.file


# ---- Files ---------------------------------------------------------------------------------------


def project_folder() -> Path:
    """The clone that this package is in, whose documentation is searched by default."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / "docs").is_dir() or not (folder / "README.md").is_file():
        raise TextError(
            "the documentation of torch-spyre is not beside this installation. "
            "Give a folder of .md or .txt files to search in."
        )
    return folder


def project_files(folder: Path) -> list[Path]:
    return [folder / "README.md", *sorted((folder / "docs").rglob("*.md"))]


def folder_files(folder: Path) -> list[Path]:
    """Files of a folder with text in them, also of the folders inside."""
    kinds = " and ".join(SUFFIXES)
    if not folder.exists():
        raise TextError(f"{folder}: there is no such folder. Give one with {kinds} files.")
    if not folder.is_dir():
        raise TextError(f"{folder}: this is a file. Give the folder that it is in.")
    try:
        found = sorted(f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())
    except OSError as error:
        raise TextError(
            f"{error.filename}: {error.strerror}. Give a folder to read from."
        ) from None
    if not found:
        raise TextError(f"{folder}: no {kinds} files in it. Give a folder that has some.")
    return found


@dataclass(frozen=True)
class Text:
    """A file: its name, relative to the folder, and what is in it."""

    name: str
    content: str


def read_texts(folder: Path, files: Iterable[Path]) -> list[Text]:
    return [Text(file.relative_to(folder).as_posix(), _read(file)) for file in files]


def split_texts(texts: Iterable[Text], limit: int, count: Count) -> list[Passage]:
    """The passages of the texts, none with more than `limit` tokens as the model reads it."""
    passages: list[Passage] = []
    for text in texts:
        split = split_markdown if text.name.lower().endswith(".md") else split_text
        passages += split(text.content, text.name, limit, count)
    if not passages:
        raise TextError(
            "there are no sentences in these files (code is not searched). "
            "Give a folder with text to search in."
        )
    return passages


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(
            f"{file}: not UTF-8 at byte {error.start}. Convert the file, for example with\n"
            f"    iconv -f latin1 -t utf-8 {file.name} > converted{file.suffix}"
        ) from None
    except OSError as error:
        raise TextError(f"{file}: {error.strerror}. It must be readable.") from None


# ---- Sections ------------------------------------------------------------------------------------

_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*\s*$")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_ITEM = re.compile(r"^\s*([-*+]|\d+[.)])\s+")
_RULE = re.compile(r"[\s|:+=-]+$")


def split_markdown(text: str, file: str, limit: int, count: Count) -> list[Passage]:
    """Passages of a Markdown text."""
    passages: list[Passage] = []
    for heading, lines in _sections(text):
        passages += _pack(file, heading, list(_blocks(lines)), limit, count)
    return passages


def split_text(text: str, file: str, limit: int, count: Count) -> list[Passage]:
    """Passages of a plain text."""
    blocks = (" ".join(block.split()) for block in re.split(r"\n\s*\n", text))
    return _pack(file, "", [block for block in blocks if block], limit, count)


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Headings, outermost first, and the lines under them; without code and comments."""
    path: list[tuple[int, str]] = []
    lines: list[str] = []
    fence = ""
    for line in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).splitlines():
        mark = _FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
            lines.append("")  # a block ends here
        elif not fence and (title := _HEADING.match(line)):
            yield _join(path), lines
            level, lines = len(title[1]), []
            path = [*(p for p in path if p[0] < level), (level, plain(title[2]))]
        elif not fence:
            lines.append(line)
    yield _join(path), lines


def _join(path: list[tuple[int, str]]) -> str:
    return " > ".join(name for _, name in path)


def _blocks(lines: list[str]) -> Iterator[str]:
    """Paragraphs, list items and rows of tables, each as one line of plain text."""
    block: list[str] = []

    def taken() -> Iterator[str]:
        text = plain(" ".join(part.strip() for part in block))
        block.clear()
        if re.search(r"\w", text):
            yield text

    for line in lines:
        row = line.strip().startswith("|")
        if not line.strip() or row or _ITEM.match(line):
            yield from taken()
        if row and not _RULE.match(line):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
            block.append(" · ".join(cell for cell in cells if cell).replace("\\|", "|"))
            yield from taken()
        elif line.strip() and not row:
            block.append(_ITEM.sub("", line, count=1))
    yield from taken()


def plain(text: str) -> str:
    """Markdown without its marks: the words that a reader sees."""
    parts = re.split(r"(`+)(.+?)\1", text)  # text, ticks, code, text, ticks, code, ..., text
    for i in range(0, len(parts), 3):
        parts[i] = re.sub(r"(\*\*|__|\*)(?=\S)(.+?)(?<=\S)\1", r"\2", parts[i])
        if i:
            parts[i - 2] = ""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", "".join(parts))
    return " ".join(text.split())


# ---- Packing -------------------------------------------------------------------------------------


def _pack(file: str, heading: str, blocks: list[str], limit: int, count: Count) -> list[Passage]:
    """Neighbouring blocks together, as many as fit; blocks that are too long in pieces."""

    def fits(text: str) -> bool:
        return count(Passage(file, heading, text).embedded) <= limit

    if blocks and not fits(""):
        # A heading that leaves no room is not worth more than the text under it.
        return _pack(file, "", blocks, limit, count)
    passages: list[Passage] = []
    current = ""
    for piece in (p for block in blocks for p in _pieces(block, fits)):
        joined = f"{current}\n{piece}" if current else piece
        if current and not fits(joined):
            passages.append(Passage(file, heading, current))
            joined = piece
        current = joined
    if current:
        passages.append(Passage(file, heading, current))
    return passages


def _pieces(block: str, fits: Callable[[str], bool]) -> Iterator[str]:
    """The block, or sentences of it, or words, or characters: the largest pieces that fit."""
    if fits(block):
        yield block
        return
    for pattern in (r"(?<=[.!?;:])\s+", r"\s+", ""):
        parts = [part for part in re.split(pattern, block) if part] if pattern else list(block)
        if len(parts) > 1 and all(fits(part) for part in parts):
            yield from _joined(parts, "" if not pattern else " ", fits)
            return
    raise TextError(f"no part of {block[:40]!r} fits into what the model reads at once")


def _joined(parts: list[str], between: str, fits: Callable[[str], bool]) -> Iterator[str]:
    current = parts[0]
    for part in parts[1:]:
        if fits(current + between + part):
            current += between + part
        else:
            yield current
            current = part
    yield current
