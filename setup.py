"""Builds ``torch_spyre._C``: every C++ file below ``torch_spyre/csrc``.

Metadata lives in pyproject.toml. Objects are kept in ``build/objects`` whoever starts the build
(``pip install -e .``, ``setup.py build_ext --inplace``, ``make setup``), so that ninja compiles
only what changed.
"""

import os
from pathlib import Path

# An installed but stale extension would make `import torch` fail, and with it every rebuild.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent
CSRC = Path("torch_spyre/csrc")


def sources(*suffixes: str) -> list[str]:
    """Source files at any depth, relative to the project, in a stable order."""
    files = (ROOT / CSRC).rglob("*")
    return sorted(str(f.relative_to(ROOT)) for f in files if f.suffix in suffixes)


class PersistentBuild(BuildExtension):
    """Compiles into one persistent folder instead of a temporary one per kind of build."""

    def run(self) -> None:
        self.build_temp = str(ROOT / "build" / "objects")
        super().run()


os.environ.setdefault("MAX_JOBS", str(os.cpu_count() or 1))

setup(
    ext_modules=[
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
