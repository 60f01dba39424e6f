"""What can be wrong with what the command was given. Each message says what to do about it."""

from __future__ import annotations

from pathlib import Path

INSTALL = "make chat installs all that it needs; by hand:"


class ChatError(Exception):
    """The command cannot go on. `exit_code` is what the shell gets."""

    exit_code = 2


class PromptError(ChatError):
    """There is nothing to answer, or more than the model can read."""


class PackageMissing(ChatError):
    """An optional package is not installed."""

    exit_code = 3

    def __init__(self, package: str, purpose: str, options: str = "") -> None:
        super().__init__(
            f"the package {package} is missing: {purpose}. {INSTALL}\n"
            f"    pip install {options}{package}"
        )


class ModelError(ChatError):
    """A file of the model is missing or damaged."""

    exit_code = 3

    def __init__(self, file: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{file}: {problem}. {remedy}")
