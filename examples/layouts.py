"""Layouts: the default rule, other orders, raw ones, views; what each costs in sticks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torch_spyre._C import DataFormats, SpyreTensorLayout


@dataclass(frozen=True)
class Cost:
    """What a layout needs on the card for a tensor of a given size."""

    sticks: int
    padding: float

    @classmethod
    def of(cls, layout: SpyreTensorLayout, elements: int) -> Cost:
        sticks = math.prod(layout.device_size[:-1])
        return cls(sticks, 1 - elements / (sticks * layout.elems_per_stick()))


def report(what: str, tensor: torch.Tensor) -> Cost:
    layout = tensor.device_tensor_layout()
    cost = Cost.of(layout, tensor.numel())
    size, strides = str(layout.device_size), str(layout.stride_map)
    print(f"{what:<34} {size:<19} {strides:<20} {cost.sticks:>7,} {cost.padding:>8.1%}")
    return cost


def main() -> dict[str, Cost]:
    torch.spyre.set_fallback_warning(False)
    half = torch.float16
    x = torch.rand(512, 240, dtype=half)
    costs = {}
    print(f"{'':<34} {'device_size':<19} {'stride_map':<20} {'sticks':>7} {'padding':>8}")

    costs["default"] = report("(512, 240), default", x.to("spyre"))

    # Sticks along dimension 0: what matmul wants of a weight, and what Module.to gives nn.Linear.
    order = SpyreTensorLayout([512, 240], [240, 1], half, [1, 0])
    costs["order"] = report("(512, 240), order [1, 0]", x.to("spyre", device_layout=order))
    linear = torch.nn.Linear(240, 512, dtype=half).to("spyre")
    costs["linear"] = report("weight of nn.Linear(240, 512)", linear.weight)

    # One element per stick: 64 times the memory.
    sparse = SpyreTensorLayout([512, 240], [240, 1], half, [0, 1, -1])
    costs["sparse"] = report("(512, 240), order [0, 1, -1]", x.to("spyre", device_layout=sparse))

    # Raw: the rows one after the other, without regard to where they end.
    folded = SpyreTensorLayout([1920, 64], [64, 1], DataFormats.SEN169_FP16)
    costs["folded"] = report("(512, 240), folded", x.to("spyre", device_layout=folded))

    # Few columns are mostly padding, unless the stick runs along the rows.
    narrow = torch.rand(512, 8, dtype=half)
    costs["narrow"] = report("(512, 8), default", narrow.to("spyre"))
    order = SpyreTensorLayout([512, 8], [8, 1], half, [1, 0])
    costs["narrow order"] = report(
        "(512, 8), order [1, 0]", narrow.to("spyre", device_layout=order)
    )

    # Whatever the layout: the values are the same, and a view shares the layout of its base.
    on_card = x.to("spyre")
    for layout in (sparse, folded):
        assert torch.equal(on_card.cpu(), x.to("spyre", device_layout=layout).cpu())
    assert on_card.t()[3:].device_tensor_layout() == on_card.device_tensor_layout()
    return costs


if __name__ == "__main__":
    main()
