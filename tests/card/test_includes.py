"""The card's folders in their order: a file includes files of its own folder and of earlier ones.

So there is no include cycle between folders. The card knows nothing of PyTorch: none of its files
includes a header of torch or Python.
"""

import re
from pathlib import Path

CARD = Path(__file__).resolve().parents[2] / "torch_spyre" / "csrc" / "card"
TOP = "."  # card.h and card.cpp, which put everything together

# From what stands on nothing to what stands on everything.
ORDER = [
    "threads",
    "numerics",
    "memory",
    "queue",
    "step",
    "tile",
    "jit",
    "matmul",
    "program",
    "sanitizer",
    TOP,
]
FOREIGN = ("torch/", "ATen/", "c10/", "pybind11/", "Python.h")


def includes(opening: str, closing: str) -> list[tuple[Path, str]]:
    """Each file of the card, relative to it, with each name that it includes."""
    pattern = re.compile(rf'^\s*#\s*include\s*{opening}([^>"]+){closing}', re.MULTILINE)
    files = [f for f in sorted(CARD.rglob("*")) if f.suffix in (".h", ".cpp", ".inl")]
    return [(f.relative_to(CARD), name) for f in files for name in pattern.findall(f.read_text())]


def test_every_folder_of_the_card_has_a_place_in_the_order():
    folders = {str(f.relative_to(CARD).parent) for f in CARD.rglob("*.cpp")}
    assert folders == set(ORDER)


def test_includes_are_written_from_the_root_of_the_card():
    missing = [
        f"{file}: {name}" for file, name in includes('"', '"') if not (CARD / name).is_file()
    ]
    assert not missing


def test_no_folder_includes_a_later_one():
    place = {folder: number for number, folder in enumerate(ORDER)}
    against = {
        f"{file} includes {name}"
        for file, name in includes('"', '"')
        if place[str(Path(name).parent)] > place[str(file.parent)]
    }
    assert not against, "\n".join(sorted(against))


def test_the_card_includes_no_header_of_torch_or_python():
    found = includes('"', '"') + includes("<", ">")
    foreign = [f"{file} includes {name}" for file, name in found if name.startswith(FOREIGN)]
    assert not foreign, "\n".join(foreign)
