"""The folders of the package in the order of the data's way: an import points down, never up.

The list is read from top to bottom: a module may import what stands in its own line or above it.
The most exact entry counts, so that a module can stand elsewhere than its folder. Two lines are
out of the order in which a graph passes the stages, each for a reason that is given there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FRONT = "torch_spyre._inductor"

ORDER = [
    # What everyone reads.
    "torch_spyre._C",
    "torch_spyre.constants",
    "torch_spyre.hardware",
    "torch_spyre.opfuncs",
    "torch_spyre.logs",
    "torch_spyre.names",
    "torch_spyre.environment",
    "torch_spyre.validation",
    "torch_spyre.dtypes",
    "torch_spyre.on_card",
    "torch_spyre.upstream.import_hooks",
    "torch_spyre.upstream.table",
    "torch_spyre.upstream.install",  # knows those that change something by their names alone
    "torch_spyre.cache.store",
    "torch_spyre.cache",
    "torch_spyre.card_model",
    # The back-end: a bundle in, SpyreCode out.
    "torch_spyre.backend.errors",
    "torch_spyre.backend.formats",
    "torch_spyre.backend.steps",
    "torch_spyre.backend.register_allocation",  # fuse asks how many, emit allocates
    "torch_spyre.backend.read",
    "torch_spyre.backend.lower",
    "torch_spyre.backend.fuse",
    "torch_spyre.backend.validate",
    "torch_spyre.backend.emit",
    "torch_spyre.backend.compile",
    "torch_spyre.backend",
    # The device, and eager operations.
    "torch_spyre.device",
    "torch_spyre.ops",
    # Changes to PyTorch that know nothing of the compiler.
    "torch_spyre.upstream.gc_pause",
    "torch_spyre.upstream.frame_chunks",
    # The front-end: what all of its stages read ...
    f"{FRONT}.config",
    f"{FRONT}.errors",
    f"{FRONT}.counters",
    f"{FRONT}.state",
    f"{FRONT}.passes",
    f"{FRONT}.propagate_named_dims",
    f"{FRONT}.hints",
    # ... its two languages ...
    f"{FRONT}.opspec",
    f"{FRONT}.operations.operation",
    # ... and its stages. `operations` comes before `lowering`, which asks it of each node whether
    # the card can do it.
    f"{FRONT}.capture",
    f"{FRONT}.dynamic",
    f"{FRONT}.fx",
    f"{FRONT}.operations",
    f"{FRONT}.lowering",
    f"{FRONT}.layouts",
    f"{FRONT}.planning.op_cost",
    f"{FRONT}.planning.scratchpad",
    f"{FRONT}.planning.division",
    f"{FRONT}.planning.divide_and_place",
    f"{FRONT}.planning.tiling.loops",
    f"{FRONT}.planning.device_addresses",
    f"{FRONT}.planning.tiling",
    f"{FRONT}.planning",
    f"{FRONT}.codegen",
    f"{FRONT}.inspect",
    f"{FRONT}.pipeline",
    f"{FRONT}.host",
    # Changes to PyTorch, and the driver.
    "torch_spyre.upstream",
    f"{FRONT}",
    "torch_spyre.show",
    "torch_spyre.tools",
    "torch_spyre",
]


DOORS = {
    # Something of PyTorch calls us, and what it needs is loaded then.
    ("torch_spyre.upstream.compile_fx", FRONT): "torch.compile met a graph with spyre tensors",
    ("torch_spyre.ops.eager", f"{FRONT}.host.single_op"): "an eager operation without a program",
    ("torch_spyre.device.devices", "torch_spyre.ops.eager"): "the card starts: eager ops are next",
    # The steps that make spyre a device, in order.
    ("torch_spyre.device.registration", "torch_spyre.upstream.compile_fx"): "import torch",
    # The folder of the package, to tell its frames from the user's.
    (f"{FRONT}.operations.origins", "torch_spyre"): "its __file__",
}
"""Imports that point up, and why."""


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / "torch_spyre").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Modules of the package that a file imports, wherever it does, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in known or name == "torch_spyre._C":
                    yield node.lineno, name
                elif node.module in known:
                    yield node.lineno, node.module


def rank(module: str) -> int:
    fits = [(len(entry), i) for i, entry in enumerate(ORDER)
            if module == entry or module.startswith(f"{entry}.")]  # fmt: skip
    return max(fits)[1]


def test_no_module_imports_from_a_stage_after_its_own():
    known = modules()
    wrong = [
        f"{path.relative_to(ROOT)}:{line} ({ORDER[rank(module)]}) imports {name} "
        f"({ORDER[rank(name)]})"
        for module, path in known.items()
        for line, name in imports(path, known)
        if rank(name) > rank(module) and (module, name) not in DOORS
    ]
    assert not wrong, "imports that point up:\n" + "\n".join(wrong)


def test_every_door_is_used():
    known = modules()
    used = {(module, name) for module, path in known.items() for _, name in imports(path, known)}
    assert set(DOORS) <= used


# ---- Changes to PyTorch --------------------------------------------------------------------------


def from_torch(tree: ast.AST) -> set[str]:
    """Names of a file that stand for something of PyTorch."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "torch":
                    found.add(alias.asname or "torch")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            found.update(alias.asname or alias.name for alias in node.names)
    return found


def changes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines of a file that assign to an attribute of something of PyTorch, or delete one.

    Entries of its tables (`decompositions[op] = ...`) are what they are there for.
    """
    ours = from_torch(tree)
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = list(node.targets)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            targets = [ast.Attribute(node.args[0], "*")]
        for target in targets:
            if isinstance(target, ast.Attribute) and root(target) in ours:
                yield node.lineno, ast.unparse(node).partition("\n")[0]


def root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_nothing_but_the_table_changes_pytorch() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for module, path in modules().items()
        for line, text in changes(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "upstream/table.py is the place for this:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.empty = 1",
        "import torch._dynamo\ntorch._dynamo.config.x: int = 1",
        "from torch._inductor import ir as I\nI.IRNode.x |= {2}",
        "from torch import nn\nsetattr(nn.Module, 'to', 1)",
        "from torch import nn\ndel nn.Module.to",
        "from torch import ops\nops.x['y'].z = 3",
    ],
)
def test_a_change_of_pytorch_is_seen(code: str) -> None:
    assert list(changes(ast.parse(code)))


# ---- Tests in the shape of the package -----------------------------------------------------------


ELSEWHERE = {
    "ops": "tests/device: operations in eager mode are the device's, for who uses them",
}
"""Folders of the package whose tests are in another one, and why."""


def test_every_folder_of_the_package_has_tests_of_its_own() -> None:
    files = [path for path in modules().values() if not path.stem.startswith("__")]
    found = {path.parent.relative_to(ROOT / "torch_spyre") for path in files}
    bare = []
    for folder in sorted(found):
        tests = ROOT / "tests" / folder.as_posix().replace("_inductor", "inductor")
        if folder.name and folder.as_posix() not in ELSEWHERE and not any(tests.glob("test_*.py")):
            bare.append(str(folder))
    assert not bare, f"folders without a test: {bare}"
    assert all((ROOT / "torch_spyre" / folder).is_dir() for folder in ELSEWHERE)
