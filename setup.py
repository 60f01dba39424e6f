"""Builds ``torch_spyre._C``: every C++ file below ``torch_spyre/csrc``.

Metadata lives in pyproject.toml. Objects are kept in ``build/objects`` whoever starts the build
(``pip install -e .``, ``setup.py build_ext --inplace``, ``make setup``), so that ninja compiles
only what changed.

Most of the time goes into the headers of torch and of the standard library, not into our files, so
the files of a folder are compiled together:

    build/units/torch_spyre/csrc/hooks/all.cpp:  #include "hooks/allocator.cpp" ...
"""

import os
import re
from collections import defaultdict
from pathlib import Path

# An installed but stale extension would make `import torch` fail, and with it every rebuild.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent
CSRC = Path("torch_spyre/csrc")
UNITS = Path("build/units")
# Compiled alone: what is for one kind of processor, or one form of a kernel. Their pragmas hold to
# the end of the compilation.
ALONE = re.compile(r'^SPYRE_TARGET_BEGIN|^#include ".*\.inl"', re.MULTILINE)


def sources(*suffixes: str) -> list[str]:
    """Source files at any depth, relative to the project, in a stable order."""
    files = (ROOT / CSRC).rglob("*")
    return sorted(str(f.relative_to(ROOT)) for f in files if f.suffix in suffixes)


def compilation_units(files: list[str]) -> list[str]:
    """What is compiled for these files: the ones that stand alone, and one file per folder."""
    units, folders = [], defaultdict(list)
    for file in files:
        alone = ALONE.search((ROOT / file).read_text())
        (units if alone else folders[Path(file).parent]).append(file)
    for folder, members in folders.items():
        units += members if len(members) == 1 else [written_unit(folder, members)]
    return units


def written_unit(folder: Path, members: list[str]) -> str:
    """The file that includes the members; touched only when the list of them changes."""
    unit = UNITS / folder / "all.cpp"
    text = "".join(f'#include "{Path(member).relative_to(CSRC)}"\n' for member in members)
    if not (ROOT / unit).exists() or (ROOT / unit).read_text() != text:
        (ROOT / unit).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / unit).write_text(text)
    return str(unit)


class PersistentBuild(BuildExtension):
    """Compiles units, into one persistent folder instead of a temporary one per kind of build."""

    def run(self) -> None:
        self.build_temp = str(ROOT / "build" / "objects")
        super().run()

    def build_extension(self, ext: Extension) -> None:
        # What a unit includes is looked at too when it is decided whether to build at all.
        ext.depends += ext.sources
        ext.sources = compilation_units(ext.sources)
        super().build_extension(ext)


os.environ.setdefault("MAX_JOBS", str(os.cpu_count() or 1))

# A further environment with the same Python and the same torch uses the extension that is there: to
# compile it with the headers of another folder would replace it.
BUILT = os.environ.get("SPYRE_EXTENSION") == "built"

setup(
    ext_modules=[]
    if BUILT
    else [
        CppExtension(
            "torch_spyre._C",
            sources(".cpp"),
            depends=sources(".h", ".inl"),
            include_dirs=[
                str(ROOT / CSRC),
                str(ROOT / CSRC / "card"),
                str(Path(torch.__file__).parent / "include" / "kineto"),
            ],
            extra_compile_args=[
                "-O3",
                "-g0",
                "-std=c++20",
                "-Wall",
                "-fvisibility=hidden",
                # torch's fmt is not exported from its libraries.
                "-DFMT_HEADER_ONLY=1",
            ],
            # The build id is the extension's part of the keys of caches (installation.py).
            extra_link_args=["-pthread", "-Wl,--build-id=sha1"],
        )
    ],
    cmdclass={"build_ext": PersistentBuild},
)
