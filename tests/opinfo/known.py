"""Differences between the device and CPU that are understood, each with its reason.

In: nothing, this is data. Out: `reason(op, dtype)` for the report, `roundings(op)` for the
comparison, and `UNINITIALISED`, the operators whose values mean nothing. A known difference still
counts as one in the percentages: the entry only explains it.

    Known(r"sparse\\..*", (), "sparse tensors live on CPU only")  # () is: every dtype
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """One explained difference: operator (regular expression), dtypes (empty: all), reason."""

    op: str
    dtypes: tuple[str, ...]
    reason: str

    def explains(self, op: str, dtype: str) -> bool:
        """Say whether this entry is about operator `op` with `dtype`."""
        return (not self.dtypes or dtype in self.dtypes) and re.fullmatch(self.op, op) is not None


@dataclass(frozen=True)
class IllConditioned:
    """An operator that amplifies rounding: how many roundings to allow, and why."""

    roundings: int
    reason: str


# Operators that hand out memory without writing it: only shape, dtype and device can be compared.
UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)

# Operators whose tensor arguments PyTorch wants on the host for every device, and why.
ARGUMENTS_ON_HOST = {"tensor_split": "PyTorch reads the indices on the host"}

DIFFERENCES: tuple[Known, ...] = (
    Known(
        r"to_sparse|sparse\..*",
        (),
        "Sparse layouts do not exist on the device; the tensor has to go to the host first.",
    ),
)

ILL_CONDITIONED: dict[str, IllConditioned] = {
    "linalg.vecdot": IllConditioned(
        4, "products are rounded before they are summed, and are eleven times the sum in a sample"
    ),
    "nn.functional.hinge_embedding_loss": IllConditioned(
        32, "terms are rounded before their mean is taken, and are 130 times the mean in a sample"
    ),
    "nn.functional.scaled_dot_product_attention": IllConditioned(
        4, "scores near 100 go through exp; device and CPU are equally far from float64"
    ),
}


def reason(op: str, dtype: str) -> str | None:
    """Return why `op` with `dtype` is known to differ, or None when nothing is known."""
    for entry in DIFFERENCES:
        if entry.explains(op, dtype):
            return entry.reason
    return None


def roundings(op: str) -> int | None:
    """Return the number of roundings that an ill-conditioned operator is allowed, or None."""
    entry = ILL_CONDITIONED.get(op)
    return entry.roundings if entry else None
