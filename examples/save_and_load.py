"""Checkpoints travel: saved from the card, loaded on the CPU, and back."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(100, 32), nn.LayerNorm(32), nn.Linear(32, 10))


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values())
    return all(torch.equal(x.cpu(), y.cpu()) for x, y in pairs)


def main(folder: Path | None = None) -> None:
    torch.spyre.set_fallback_warning(False)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(folder or scratch) / "model.pt"
        torch.manual_seed(0)
        on_card = make_model().to("spyre")

        torch.save(on_card.state_dict(), file)
        size = file.stat().st_size
        print(f"saved from {on_card[0].weight.device}: {size:,} bytes, an ordinary checkpoint")

        on_cpu = make_model()
        on_cpu.load_state_dict(torch.load(file, map_location="cpu"))
        print(f"loaded on the CPU, same values: {same(on_card, on_cpu)}")

        torch.save(on_cpu.state_dict(), file)
        back = make_model().to("spyre")
        back.load_state_dict(torch.load(file, map_location="spyre"))
        print(f"saved there, loaded on the card again: {same(back, on_cpu)}")
        print(f"the first weight lies there in {back[0].weight.device_tensor_layout()}")
        assert same(on_card, on_cpu) and same(back, on_cpu)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
