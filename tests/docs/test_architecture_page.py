"""The table of files of the architecture page is the way that a program takes."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import Script

PAGE = Path(__file__).parents[2] / "docs/compiler/architecture.md"
ROW = re.compile(r"\| ([\w-]+) \| `torch_spyre/(\S+)` \| `(\S+)` \| .* \|")

CALLED_BY_OTHERS = {"pipeline", "operations"}
"""Stages that the page says are entered more than once."""

PROGRAM = """
    import json, sys, torch

    x = torch.randn(128, 64, dtype=torch.float16).to("spyre")
    w = torch.randn(64, 128, dtype=torch.float16).to("spyre")
    moments = []

    def note(frame, event, _):
        if event == "call" and "/torch_spyre/" in frame.f_code.co_filename:
            code = frame.f_code
            function = getattr(code, "co_qualname", code.co_name)
            moments.append((code.co_filename.rpartition("/torch_spyre/")[2], function))

    sys.setprofile(note)
    torch.compile(lambda x, w: torch.softmax(x @ w, -1))(x, w)
    sys.setprofile(None)
    print(json.dumps(moments))
"""


def rows() -> list[tuple[str, str, str]]:
    return [match.groups() for match in map(ROW.match, PAGE.read_text().splitlines()) if match]


@pytest.fixture(scope="module")
def moments(script: Script, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Every call of a function of the package while the example is compiled, with cold caches."""
    caches = str(tmp_path_factory.mktemp("caches"))
    found = script(PROGRAM, TORCHINDUCTOR_CACHE_DIR=caches).splitlines()[-1]
    return [(file, function) for file, function in json.loads(found)]


def calls(moments: list[tuple[str, str]], file: str, function: str) -> list[int]:
    return [i for i, (f, name) in enumerate(moments) if f == file and _is(name, function)]


def _is(qualified: str, function: str) -> bool:
    """The function itself, or one of its name that it has made."""
    return function in (qualified, qualified.rpartition(".")[2])


def test_files_are_entered_in_the_order_of_the_page(moments: list[tuple[str, str]]) -> None:
    entered = [calls(moments, file, function) for _, file, function in rows()]
    never = [row for row, when in zip(rows(), entered, strict=True) if not when]
    assert not never, f"the page names functions that are not called: {never}"
    firsts = [when[0] for when in entered]
    for row, here, after in zip(rows(), firsts, firsts[1:], strict=False):
        assert here < after, f"{row[1]} is entered after the row below it"


def test_no_stage_is_entered_again_once_a_later_one_has_the_program(
    moments: list[tuple[str, str]],
) -> None:
    whens: dict[str, list[int]] = {}
    for stage, file, function in rows():
        if stage not in CALLED_BY_OTHERS:
            whens.setdefault(stage, []).extend(calls(moments, file, function))
    names = list(whens)
    for one, other in pairwise(names):
        assert max(whens[one]) < min(whens[other]), f"{one} is entered again after {other} began"


def test_the_page_says_how_many_files_there_are() -> None:
    files = [file for _, file, _ in rows()]
    assert len(set(files)) == len(files)
    back_end = sum(file.startswith("backend/") for file in files)
    said = re.search(r"(\d+) files to the bundle, (\d+) more to the program", PAGE.read_text())
    assert said is not None
    assert (int(said[1]), int(said[2])) == (len(files) - back_end, back_end)
