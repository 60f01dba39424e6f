"""Draws the pictures of the documentation into docs/pictures: of real tensors on the card, and of
plans of real graphs.

Called by conf.py when the documentation is built; by hand:
`python -m docs.generate.pictures`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import torch_spyre
from torch_spyre._C import DataFormats, SpyreTensorLayout
from torch_spyre._inductor import config

FOLDER = Path(__file__).parents[1] / "pictures"


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


class Plan(NamedTuple):
    """A graph, and what is drawn of its plan."""

    make: Callable[[], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]
    parts: tuple[str, ...]
    settings: Mapping[str, Any] = MappingProxyType({})


def softmax() -> Any:
    return lambda x: torch.softmax(x, 0), (torch.rand(512, 1024, dtype=torch.float16).to("spyre"),)


def mlp() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
    x = torch.randn(256, 512, dtype=torch.float16)
    return model.half().eval().to("spyre"), (x.to("spyre"),)


def attention(heads: int, tokens: int) -> Any:
    tensors = (torch.randn(1, heads, tokens, 64, dtype=torch.float16) for _ in range(3))
    return scaled_dot_product_attention, tuple(t.to("spyre") for t in tensors)


DOCUMENTED = {
    "work_division": "documented",
    "layout_solver": "greedy",
    "allow_all_ops_in_lx_planning": False,
    "lx_boundary_clones": False,
    "lx_ring_moves": False,
}
"""The documented system, as `benchmarks.plans` has it."""

PLANS: dict[str, Plan] = {
    "softmax_in_memory": Plan(softmax, ("time",), {"lx_planning": False}),
    "softmax_plan": Plan(softmax, ("time",)),
    "mlp_documented": Plan(mlp, ("time", "cores"), DOCUMENTED),
    "mlp_joint": Plan(mlp, ("time", "cores")),
    "softmax_lx": Plan(softmax, ("lx",)),
    "attention_lx": Plan(lambda: attention(4, 512), ("time", "lx")),
    "attention_tiles": Plan(lambda: attention(12, 2048), ("time", "lx")),
    "mlp_lx": Plan(mlp, ("lx",)),
}


def draw_plan(plan: Plan) -> str:
    function, arguments = plan.make()
    torch._dynamo.reset()
    with config.patch(**plan.settings), torch.no_grad():
        return torch_spyre.explain(function, *arguments).draw(parts=plan.parts)


def main(folder: Path = FOLDER) -> list[Path]:
    """Draw all pictures and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, make, title in PICTURES:
        file = folder / f"{name}.svg"
        file.write_text(torch_spyre.draw_layout(make(), title=title), encoding="utf-8")
        files.append(file)
    for name, plan in PLANS.items():
        file = folder / f"{name}.svg"
        file.write_text(draw_plan(plan), encoding="utf-8")
        files.append(file)
    return files


if __name__ == "__main__":
    for drawn in main():
        print(drawn)
