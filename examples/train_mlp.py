"""Trains a small network eagerly on the card and on the CPU, and compares the losses."""

from __future__ import annotations

import torch
from torch import nn

STEPS = 30


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Points in the plane; the class is whether they lie inside the unit circle."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(512, 2, generator=generator)
    return points, (points.norm(dim=1) < 1.0).long()


def train(device: str, autocast: bool = False) -> list[float]:
    """Train on a device and return the loss of every step."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)
    )
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    points, labels = (tensor.to(device) for tensor in make_data())
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16, enabled=autocast):
            loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> dict[str, list[float]]:
    torch.spyre.set_fallback_warning(False)
    torch.spyre.set_downcast_warning(False)
    losses = {
        "cpu float32": train("cpu"),
        "spyre float32": train("spyre"),
        "spyre autocast": train("spyre", autocast=True),
    }
    print(f"{'step':>6}" + "".join(f"{name:>18}" for name in losses))
    for step in [*range(0, STEPS, 5), STEPS - 1]:
        print(f"{step:>6}" + "".join(f"{run[step]:>18.6f}" for run in losses.values()))
    return losses


if __name__ == "__main__":
    main()
