"""What the back-end says when it can not go on.

Each message is one line: file, field, what was found, what is allowed.
Example: `sdsc_0.json: dscs_[0].add.N_.mb_: found 0, allowed: an integer of 1 or more`.
"""

from __future__ import annotations

from typing import NoReturn


class BackendError(Exception):
    """Something the back-end refuses."""


class BundleError(BackendError):
    """A bundle that breaks a rule of docs/formats/superdsc.md."""


class ProgramError(BackendError):
    """Bytes that are no device program, or a step that the format can not express."""


class SpyreCodeError(BackendError):
    """A SpyreCode directory that the runtime would refuse."""


def refuse(file: str, field: str, found: str, allowed: str) -> NoReturn:
    """Raise a BundleError of the usual form."""
    where = f"{file}: {field}" if field else file
    raise BundleError(f"{where}: found {found}, allowed: {allowed}")
