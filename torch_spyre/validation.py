"""What the validators of front-end and back-end share: the switch and the error."""

from __future__ import annotations

import os


def flag(name: str, default: bool) -> bool:
    """A switch of the environment."""
    value = os.environ.get(name, "").strip().lower()
    if value == "":
        return default
    if value in ("0", "false", "off"):
        return False
    if value in ("1", "true", "on"):
        return True
    raise ValueError(f"invalid {name} value '{value}': expected 0 or 1")


VALIDATE = flag("SPYRE_VALIDATE", False)


class BrokenRule(ValueError):
    """A program inside of the compiler that breaks a rule of its form: found by a validator."""

    def __init__(self, rule: str, place: str, found: object, allowed: object) -> None:
        super().__init__(f"{place}: {rule}: found {found}, allowed {allowed}")
        self.rule = rule
        self.place = place
        self.found = found
        self.allowed = allowed
