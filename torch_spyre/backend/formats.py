"""Element formats by their names in SuperDSC: their numbers in programs and their sizes.

The C++ card has the same numbers (`_C.DataFormats`); a test compares them. They stand here again
because the back-end runs without the extension.
Example: `FORMATS["SEN169_FP16"].per_stick` is 64.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_spyre.constants import BYTES_IN_STICK


@dataclass(frozen=True)
class Format:
    """One element format of device tensors."""

    name: str
    number: int
    bytes: int
    kind: str
    """float, or int: what a register holds after a load."""

    @property
    def per_stick(self) -> int:
        return BYTES_IN_STICK // self.bytes

    @property
    def exact(self) -> bool:
        """A store and a load give back the 32 bits of the register."""
        return self.bytes == 4


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("SEN169_FP16", 0, 2, "float"),
        Format("IEEE_FP32", 1, 4, "float"),
        Format("SEN143_FP8", 3, 1, "float"),
        Format("SEN152_FP8", 4, 1, "float"),
        Format("SENINT8", 8, 1, "int"),
        Format("SENINT16", 9, 2, "int"),
        Format("IEEE_INT32", 12, 4, "int"),
        Format("SENUINT32", 13, 4, "int"),
        Format("IEEE_FP16", 15, 2, "float"),
        Format("BFLOAT16", 17, 2, "float"),
    )
}

FORMAT_OF_NUMBER = {f.number: f for f in FORMATS.values()}

# Formats that a register can be loaded from and stored to.
TILE_FORMATS = frozenset(
    ("SEN169_FP16", "IEEE_FP32", "SEN143_FP8", "IEEE_FP16", "BFLOAT16", "IEEE_INT32", "SENUINT32",
     "SENINT8")
)  # fmt: skip

ARRANGEMENTS: dict[str, int] = {"STANDARD": 0, "DL16_TO_FP32": 1, "QFP8CH": 2, "EXX2": 3}
