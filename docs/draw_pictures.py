"""Draws the pictures of the documentation from real tensors on the card into docs/pictures.

Called by conf.py when the documentation is built; `python docs/draw_pictures.py` does it by hand.
"""

from collections.abc import Callable
from pathlib import Path

import torch

import torch_spyre
from torch_spyre._C import DataFormats, SpyreTensorLayout

FOLDER = Path(__file__).parent / "pictures"


def matrix() -> torch.Tensor:
    return torch.rand(512, 240, dtype=torch.float16).to("spyre")


def float32_matrix() -> torch.Tensor:
    return torch.rand(6, 72).to("spyre")


def vector() -> torch.Tensor:
    return torch.rand(120, dtype=torch.float16).to("spyre")


def batch() -> torch.Tensor:
    return torch.rand(4, 3, 100, dtype=torch.float16).to("spyre")


def linear_weight() -> torch.Tensor:
    return torch.nn.Linear(256, 512, dtype=torch.float16).to("spyre").weight


def sparse() -> torch.Tensor:
    layout = SpyreTensorLayout([6, 4], [4, 1], torch.float16, [0, 1, -1])
    return torch.rand(6, 4, dtype=torch.float16).to("spyre", device_layout=layout)


def broadcast() -> torch.Tensor:
    layout = SpyreTensorLayout([1, 8, 64], [64, 0, 1], DataFormats.SEN169_FP16)
    return torch.rand(60, dtype=torch.float16).to("spyre", device_layout=layout)


def folded() -> torch.Tensor:
    layout = SpyreTensorLayout([8, 64], [64, 1], DataFormats.SEN169_FP16)
    return torch.rand(10, 50, dtype=torch.float16).to("spyre", device_layout=layout)


def view() -> torch.Tensor:
    return torch.rand(6, 100, dtype=torch.float16).to("spyre")[1::2, 10:90]


# File name, maker, heading (None: what draw_layout says).
PICTURES: list[tuple[str, Callable[[], torch.Tensor], str | None]] = [
    ("matrix", matrix, None),
    ("float32", float32_matrix, None),
    ("vector", vector, None),
    ("batch", batch, None),
    ("linear_weight", linear_weight, "weight of nn.Linear(256, 512) on spyre:0"),
    ("sparse", sparse, "(6, 4) of torch.float16, one element per stick"),
    ("broadcast", broadcast, "(60,) of torch.float16, repeated along an axis"),
    ("folded", folded, "(10, 50) of torch.float16, folded"),
    ("view", view, "x[1::2, 10:90] of a (6, 100) tensor"),
]


def main(folder: Path = FOLDER) -> list[Path]:
    """Draw all pictures and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, make, title in PICTURES:
        file = folder / f"{name}.svg"
        file.write_text(torch_spyre.draw_layout(make(), title=title), encoding="utf-8")
        files.append(file)
    return files


if __name__ == "__main__":
    for drawn in main():
        print(drawn)
