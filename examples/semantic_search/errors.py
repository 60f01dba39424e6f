"""What can be wrong with what the command was given. Each message says what to do about it."""

from __future__ import annotations

from pathlib import Path

EXTRA = "torch-spyre[models]"


class SearchError(Exception):
    """The command cannot go on. `exit_code` is what the shell gets."""

    exit_code = 2


class TextError(SearchError):
    """There is nothing to search in, or it is no text."""


class QuestionError(SearchError):
    """There is nothing to search for."""


class PackageMissing(SearchError):
    """An optional package is not installed."""

    exit_code = 3

    def __init__(self, package: str, purpose: str) -> None:
        super().__init__(
            f"the package {package} is missing: {purpose}. Install it with\n"
            f"    pip install {package}\n"
            f'or all that this command needs with  pip install "{EXTRA}"  (in a clone: make run)'
        )


class ModelError(SearchError):
    """A file of the model is missing or damaged."""

    exit_code = 3

    def __init__(self, file: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{file}: {problem}. {remedy}")
