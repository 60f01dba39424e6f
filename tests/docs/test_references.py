"""Every link, path and module that README and docs name exists.

In: README.md, CONTRIBUTING.md, CHANGELOG.md and docs/**/*.md. Checked, outside of fenced code:

- relative links and images, with their #anchor: `[Runtime](runtime/index.md#memory)`
- paths in backticks: `torch_spyre/hardware.py`, `docs/formats`, or a file name or a tail of a path
  that at least one file of the tree has: `opfuncs.py`, `layouts/stickify.py`
- dotted names in backticks: `torch_spyre.explain`, `torch_spyre.backend.steps`; modules are found
  as files, the rest by reading them (no import), `torch_spyre._C` from its stub

and inside of fenced code the files of `{image}`. Example of a message:

    docs/index.md:12: the link 'runtime.md' leads nowhere
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ALLOWED: dict[str, str] = {
    "torch_spyre.Stream": "what a stream prints, not a name of the package",
    "model.py": "the user's own program, in examples of messages",
    "plan.svg": "a file that an example writes",
}
"""Names that look like references and are none, each with its reason."""

MADE = ("docs/pictures/", "build/", ".venv/", "spyreCodeDir")
"""Places that programs fill when they run."""

SUFFIXES = (".py", ".pyi", ".md", ".cpp", ".h", ".inl", ".toml", ".svg", ".so")

_FENCE = re.compile(r"^\s*(```+|~~~+)")
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_IMAGE = re.compile(r"^\s*```\{(?:image|figure)\}\s*(\S+)")
_PATH = re.compile(r"[\w.\-*/{},]+")
_DOTTED = re.compile(r"torch_spyre(?:\.\w+)+")


# ---- What a page says ----------------------------------------------------------------------------


def lines_of(text: str) -> Iterator[tuple[int, str, bool]]:
    """Numbered lines, and whether each is inside of fenced code."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
            yield number, line, True
        elif mark and line.strip().startswith(fence) and not line.strip().strip("`~"):
            fence = ""
            yield number, line, True
        else:
            yield number, line, bool(fence)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as MyST and GitHub make them."""
    found: dict[str, int] = {}
    result = set()
    for _, line, code in lines_of(page.read_text(encoding="utf-8")):
        heading = None if code else re.match(r"#{1,6}\s+(.*)", line)
        if heading is None:
            continue
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        result.add(f"{slug}-{count}" if count else slug)
    return frozenset(result)


# ---- What there is -------------------------------------------------------------------------------


class Tree:
    """The files of a checkout, and the Python names in them."""

    def __init__(self, root: Path, files: list[str]) -> None:
        self.root = root
        self.files = frozenset(files)
        self.folders = frozenset(
            parent.as_posix() for f in files for parent in Path(f).parents if parent.name
        )

    def has_path(self, path: str) -> bool:
        path = path.removeprefix("./").rstrip("/")
        if path in self.files or path in self.folders:
            return True
        if "*" in path:
            pattern = re.escape(path).replace(r"\*", "[^/]*")
            return any(re.fullmatch(f"(.*/)?{pattern}", f) for f in self.files | self.folders)
        return any(f.endswith(f"/{path}") for f in self.files | self.folders)

    def has_name(self, dotted: str) -> bool:
        """Whether a module, or a name that a module defines or imports, exists."""
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            base = "/".join(parts[:length])
            for file in (f"{base}.py", f"{base}.pyi", f"{base}/__init__.py"):
                if file in self.files:
                    rest = parts[length:]
                    return not rest or self._defines(file, rest)
        return False

    def _defines(self, file: str, names: list[str]) -> bool:
        body: list[ast.stmt] = ast.parse((self.root / file).read_text(encoding="utf-8")).body
        for name in names:
            found = next((node for node in _statements(body) if name in _named(node)), None)
            if found is None:
                return "__getattr__" in {n for node in body for n in _named(node)}
            if isinstance(found, (ast.Import, ast.ImportFrom)):
                return True  # what lies beyond is another module's business
            body = found.body if isinstance(found, ast.ClassDef) else []
        return True


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, those under `if` and `try` included."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from _statements([*node.body, *node.orelse])


def _named(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {a.asname or a.name.split(".")[0] for a in node.names}
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}


# ---- The check -----------------------------------------------------------------------------------


def broken(tree: Tree, page: str) -> list[str]:
    """Messages for what a page names and the tree does not have."""
    result = []
    for number, line, code in lines_of((tree.root / page).read_text(encoding="utf-8")):
        image = _IMAGE.match(line)
        if image:
            wrong = [_link_error(tree, page, image[1])]
        elif code:
            continue
        else:
            plain = _CODE.sub(lambda m: "_" * len(m[0]), line)
            wrong = [_link_error(tree, page, m[1]) for m in _LINK.finditer(plain)]
            wrong += [_link_error(tree, page, m[1]) for m in _LINK.finditer(line)
                      if m[1] not in plain]  # fmt: skip
            wrong += [_code_error(tree, m[1]) for m in _CODE.finditer(line)]
        result += [f"{page}:{number}: {message}" for message in wrong if message]
    return result


def _link_error(tree: Tree, page: str, link: str) -> str:
    if re.match(r"[a-z]+:", link):
        return ""
    path, _, anchor = link.partition("#")
    target = _normal((Path(page).parent / path).as_posix()) if path else page
    if target.startswith(MADE):
        return ""
    if target not in tree.files and target not in tree.folders:
        return f"the link '{link}' leads nowhere"
    if anchor and target.endswith(".md") and anchor not in anchors(tree.root / target):
        return f"the link '{link}' leads to a heading that {target} does not have"
    return ""


def _normal(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _code_error(tree: Tree, code: str) -> str:
    if code in ALLOWED:
        return ""
    dotted = _DOTTED.match(code)
    if dotted and not code.startswith(f"{dotted[0]}/"):
        name = dotted[0]
        if name in ALLOWED or tree.has_name(name):
            return ""
        return f"'{name}' is no module or name of the package"
    if not _PATH.fullmatch(code) or "{" in code or code.startswith(("-", "/", ".")):
        return ""
    if code.startswith(MADE):
        return ""
    roots = ("torch_spyre/", "docs/", "tests/", "examples/", "benchmarks/", "csrc/", "_inductor/")
    is_path = "/" in code and code.endswith(SUFFIXES)
    if code.startswith(roots) or code.endswith(SUFFIXES[:2]) or is_path:
        return "" if tree.has_path(code) else f"'{code}' is no file or folder of the tree"
    return ""


# ---- Our pages -----------------------------------------------------------------------------------


@cache
def our_tree() -> Tree:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    files = [f for f in listed.stdout.splitlines() if (ROOT / f).is_file()]
    if not files:  # no git here, for example in a source archive
        files = [f.relative_to(ROOT).as_posix() for f in ROOT.rglob("*") if f.is_file()]
    return Tree(ROOT, files)


def our_pages() -> list[str]:
    docs = sorted((ROOT / "docs").rglob("*.md"))
    pages = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    return pages + [page.relative_to(ROOT).as_posix() for page in docs]


@pytest.mark.parametrize("page", our_pages())
def test_what_a_page_names_exists(page):
    messages = broken(our_tree(), page)
    assert not messages, "\n" + "\n".join(messages)


def test_every_page_of_the_docs_can_be_reached_from_the_index():
    """By the tables of contents: what is in none of them cannot be found."""
    reached, todo = set(), ["docs/index.md"]
    while todo:
        page = todo.pop()
        if page in reached:
            continue
        reached.add(page)
        text = (ROOT / page).read_text(encoding="utf-8")
        for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL):
            names = [n.strip() for n in block.splitlines() if n.strip() and n[0] != ":"]
            todo += [_normal((Path(page).parent / f"{name}.md").as_posix()) for name in names]
    assert {p for p in our_pages() if p.startswith("docs/")} == reached


def test_the_table_of_modules_is_complete():
    """Of the front-end's page: each row has the modules of its folder, no more and no less."""
    text = (ROOT / "docs/compiler/frontend.md").read_text(encoding="utf-8")
    table = text[text.index("## Modules") :]
    rows = dict(re.findall(r"^\| `([\w./]+)/` \|.*\| ([^|]*) \|$", table, re.MULTILINE))
    package = ROOT / "torch_spyre/_inductor"
    folders = {f.parent.relative_to(package).as_posix() for f in package.rglob("*.py")}
    wrong = []
    for folder in sorted(folders | set(rows)):
        modules = sorted(f.stem for f in (package / folder).glob("*.py") if f.stem != "__init__")
        right = ", ".join(f"`{m}`" for m in modules)
        if right != rows.get(folder, ""):
            wrong.append(f"`{folder}/` should have: {right}")
    assert not wrong, "\n" + "\n".join(wrong)


# ---- The checker itself --------------------------------------------------------------------------


@pytest.fixture
def made_up(tmp_path):
    files = {
        "docs/page.md": "# A page\n\n## Part one: *first*\n",
        "docs/other/index.md": "# Other\n",
        "torch_spyre/__init__.py": "from torch_spyre.show import explain\n",
        "torch_spyre/show.py": "def explain():\n    pass\n\nclass Plan:\n    def draw(self): ...\n",
        "torch_spyre/card/dma.h": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    anchors.cache_clear()

    def check(text: str) -> list[str]:
        (tmp_path / "docs/new.md").write_text(text)
        return broken(Tree(tmp_path, [*files, "docs/new.md"]), "docs/new.md")

    yield check
    anchors.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        "[a](page.md)",
        "[a](page.md#part-one-first)",
        "[a](other/index.md) and ![b](../torch_spyre/card/dma.h)",
        "[a](https://example.org/no.md)",
        "`torch_spyre.explain(f, x)`",
        "`torch_spyre.show.Plan.draw`",
        "`torch_spyre/show.py`, `show.py`, `card/dma.h`, `torch_spyre/card`, `torch_spyre/*.py`",
        "```\n[a](gone.md) `torch_spyre/gone.py`\n```",
        "```{image} pictures/made_when_the_docs_are.svg\n```",
        "`x.py(1)`, `git mv a b`, `DEVICE=spyre`",
    ],
)
def test_what_is_there_is_found(made_up, text):
    assert made_up(text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x\n[a](gone.md)", "docs/new.md:2: the link 'gone.md' leads nowhere"),
        ("[a](page.md#part-two)",
         "docs/new.md:1: the link 'page.md#part-two' leads to a heading that docs/page.md does not"
         " have"),
        ("[a](#nowhere)",
         "docs/new.md:1: the link '#nowhere' leads to a heading that docs/new.md does not have"),
        ("![a](gone.svg)", "docs/new.md:1: the link 'gone.svg' leads nowhere"),
        ("[`code`](gone.md)", "docs/new.md:1: the link 'gone.md' leads nowhere"),
        ("see `torch_spyre/gone.py`",
         "docs/new.md:1: 'torch_spyre/gone.py' is no file or folder of the tree"),
        ("see `gone.py`", "docs/new.md:1: 'gone.py' is no file or folder of the tree"),
        ("see `card/gone.h`", "docs/new.md:1: 'card/gone.h' is no file or folder of the tree"),
        ("`torch_spyre.gone`",
         "docs/new.md:1: 'torch_spyre.gone' is no module or name of the package"),
        ("`torch_spyre.show.Plan.gone()`",
         "docs/new.md:1: 'torch_spyre.show.Plan.gone' is no module or name of the package"),
        ("```{image} gone.svg\n```", "docs/new.md:1: the link 'gone.svg' leads nowhere"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_named_with_page_and_line(made_up, text, message):
    assert made_up(text) == [message]


def test_every_allowed_name_has_a_reason_and_is_used():
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in our_pages())
    unused = [name for name, reason in ALLOWED.items() if name not in text or not reason]
    assert not unused
