"""Random numbers: one mt19937 generator per card; a seed gives the same sequence as on the CPU."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_spyre import _C
from torch_spyre.device.devices import DeviceLike, device_count, device_index


class _Generators(tuple[torch.Generator, ...]):
    """`torch.spyre.default_generators[i]`, made on first look so that importing starts nothing."""

    def __getitem__(self, index: int) -> torch.Generator:  # type: ignore[override]
        return _C._get_default_generator(index)

    def __len__(self) -> int:
        return device_count()

    def __iter__(self) -> Iterable[torch.Generator]:  # type: ignore[override]
        return (self[i] for i in range(len(self)))


default_generators = _Generators()


def manual_seed(seed: int) -> None:
    """Seed the generator of the current card."""
    _C.manual_seed(_as_uint64(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all cards. `torch.manual_seed` calls it."""
    _C.manual_seed_all(_as_uint64(seed))


def seed() -> None:
    """Seed the current card's generator with a random number."""
    _C.manual_seed(_fresh_seed())


def seed_all() -> None:
    """Seed all cards' generators with the same random number."""
    _C.manual_seed_all(_fresh_seed())


def initial_seed(device: DeviceLike = "spyre") -> int:
    """The seed that a card's generator started from."""
    return _C.initial_seed(device_index(device))


def get_rng_state(device: DeviceLike = "spyre") -> torch.Tensor:
    """The state of a card's generator, a CPU byte tensor."""
    return _C.get_rng_state(device_index(device))


def set_rng_state(state: torch.Tensor, device: DeviceLike = "spyre") -> None:
    """Restore what `get_rng_state` gave."""
    _C.set_rng_state(state.cpu(), device_index(device))


def _as_uint64(seed: int) -> int:
    seed = int(seed)
    if not -(1 << 63) <= seed < (1 << 64):
        raise ValueError(f"seed {seed} out of range [-2**63, 2**64)")
    return seed % (1 << 64)


def _fresh_seed() -> int:
    return torch.Generator().seed()
