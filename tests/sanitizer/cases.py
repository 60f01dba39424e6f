"""Kernels for the tests of the sanitizer: compiled functions, and bundles written by hand.

Sizes are chosen so that sticks have padding, work is divided over several cores, and every kind of
step is there: chains, reductions over lanes and over rows, products with and without epilogues,
copies between layouts, gathers, scatters, topk, scratchpads and loops.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

import torch_spyre._C as _C
from tests.sanitizer.faults import Argument, Case, read_arguments
from tests.support.make_bundle import LX, POOL, Op, Repeat, T, flatten, op, write_bundle
from tests.support.run_bundle import layout_of
from torch_spyre._inductor import config, spyre_hint
from torch_spyre._inductor.propagate_named_dims import declare_tensor_dim, name_tensor_dims


def half(*size: int) -> torch.Tensor:
    return torch.randn(*size).half()


def _mlp(x: Any, a: Any, b: Any, c: Any) -> Any:
    return F.linear(F.gelu(F.linear(x, a, b)), c)


def _attention(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def _block(x: Any, q: Any, k: Any, v: Any, o: Any, w: Any) -> Any:
    y = F.layer_norm(x, (x.shape[-1],), w)
    a = _attention(F.linear(y, q), F.linear(y, k), F.linear(y, v))
    return x + F.linear(a, o)


def _two_ways(x: Any, w: Any) -> Any:
    """Wants its intermediate by rows and by columns: it goes over the ring."""
    y = torch.relu(x @ w)
    return (y * y.sum(0) + y.amax(1, keepdim=True)) @ w.t()


def _heads(x: Any, w: Any) -> Any:
    """Heads of 32 columns, two in a stick: copied across sticks, in scratchpads."""
    y = (x @ w).view(x.shape[0], -1, 32).transpose(0, 1)
    return torch.relu(y @ y.transpose(1, 2))


def _norm(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(x + 1, (x.shape[-1],), w, b)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "chain": (
        lambda x, y: ((x - y) * torch.sigmoid(x), torch.relu(y) + 0.5),
        lambda: [half(70, 100), half(70, 100)],
    ),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: [half(96, 200)]),
    "layer norm": (_norm, lambda: [half(64, 130), half(130), half(130)]),
    "mlp": (_mlp, lambda: [half(40, 100), half(160, 100), half(160), half(72, 160)]),
    "attention": (_attention, lambda: [half(2, 3, 70, 64) for _ in range(3)]),
    "block": (_block, lambda: [half(2, 33, 100), *(half(100, 100) for _ in range(4)), half(100)]),
    "padded product": (lambda x, y: x @ y, lambda: [half(65, 100), half(100, 130)]),
    "transposed": (lambda x, y: x.t().contiguous() - y, lambda: [half(100, 70), half(70, 100)]),
    "sums": (
        lambda x: (x.sum(0), (x * x).sum(1), x.mean()),
        lambda: [half(130, 90)],
    ),
    "embedding": (
        lambda t, i: F.embedding(i, t) * 2,
        lambda: [half(50, 128), torch.randint(0, 50, (4, 33), dtype=torch.int32)],
    ),
    "largest": (lambda x: torch.topk(x, 5, dim=0)[0], lambda: [half(40, 100)]),
    "float32": (lambda x, y: (x.float() + y.float()) / 3, lambda: [half(33, 100), half(33, 100)]),
    "two ways": (_two_ways, lambda: [half(128, 256) / 8, half(256, 128) / 8]),
    "turned in LX": (
        lambda x, w: torch.relu(x @ w).transpose(1, 2) @ x,
        lambda: [half(2, 128, 64) / 8, half(64, 128) / 8],
    ),
    "heads": (_heads, lambda: [half(64, 128) / 8, half(128, 128) / 8]),
    "broadcast": (
        lambda x, r, c: x * r - c,
        lambda: [half(66, 140), half(140), half(66, 1)],
    ),
}


def both_ways(cases: list[Case]) -> list[Case]:
    """With the steps of the back-end joined, and one for each operation."""
    plain = [replace(case, name=f"{case.name}, not fused", fuse=False) for case in cases]
    return [*cases, *plain]


def compiled_cases() -> list[Case]:
    """The functions above, compiled; one case for each kernel."""
    torch.manual_seed(7)
    cases = []
    for name, (function, inputs) in FUNCTIONS.items():
        cases += record(name, function, inputs())
    return [*cases, *tiled_cases()]


def tiled_cases() -> list[Case]:
    """Programs in tiles: of rows, written out and in a loop, and of the depth of a product."""
    for name, size in (("M", 128), ("K", 256), ("N", 192)):
        declare_tensor_dim(name, size)
    cases = []
    for dim, unroll in (("M", True), ("M", False), ("K", False)):
        x, w = half(128, 256), half(256, 192)
        on_card = [x.to("spyre"), w.to("spyre")]
        name_tensor_dims(on_card[0], ["M", "K"])
        name_tensor_dims(on_card[1], ["K", "N"])

        def tiled(x: Any, w: Any, dim: str = dim) -> Any:
            with spyre_hint(num_tiles_per_dim={dim: 2}):
                return torch.softmax(torch.relu(x @ w), -1) if dim == "M" else x @ w

        with config.patch(unroll_loops=unroll):
            kind = "written out" if unroll else "in a loop"
            cases += record(f"tiles of {dim} {kind}", tiled, on_card)
    return cases


def record(name: str, function: Callable[..., Any], inputs: list[torch.Tensor]) -> list[Case]:
    """Compile and run a function; its kernels, with the tensors that they were launched with."""
    from torch_spyre._inductor.host.async_compile import SpyreKernel

    cases: list[Case] = []
    stock = SpyreKernel._prepare_and_run

    def prepare_and_run(kernel: SpyreKernel, tensors: list[torch.Tensor]) -> None:
        bundle = Path(kernel.directory).parent
        read = read_arguments(bundle)
        first = 1 if kernel.has_pool else 0
        arguments = [_argument(t, n in read) for n, t in enumerate(tensors[first:], first)]
        stock(kernel, tensors)
        constants = next(iter(kernel._plans.values()))[1]
        arguments += [_argument(t, True) for t in constants]
        pool_bytes = tensors[0].numel() * tensors[0].element_size() if first else 0
        cases.append(Case(f"{name} {len(cases)}", bundle, pool_bytes, tuple(arguments)))

    torch._dynamo.reset()
    with mock.patch.object(SpyreKernel, "_prepare_and_run", prepare_and_run), torch.no_grad():
        torch.compile(function)(*(t.to("spyre") for t in inputs))
        torch.spyre.synchronize()
    assert cases, name
    return cases


def _argument(tensor: torch.Tensor, is_read: bool) -> Argument:
    layout, size, stride = _C._get_placement(tensor)
    base = tensor.as_strided(size, stride, 0)
    return Argument(
        tuple(size), tuple(stride), tensor.dtype, layout, base.cpu() if is_read else None
    )


# ---- By hand -------------------------------------------------------------------------------------

ROWS = T(["mb", "out"])
SIZES = {"mb": 32, "out": 128}
SPLITS = {"mb": 4}
SLICE = 8 * 2 * 128
"""Bytes of one core's slice."""


def _lx(number: int) -> T:
    return ROWS.at(LX, number * SLICE)


def scratchpad_operations() -> list[Op | Repeat]:
    """Two intermediates live in LX at a time."""
    return [
        op("exp", SIZES, [ROWS.at(0)], _lx(0), splits=SPLITS),
        op("tanh", SIZES, [ROWS.at(0)], _lx(1), splits=SPLITS),
        op("mul", SIZES, [_lx(1), _lx(1)], _lx(2), splits=SPLITS),
        op("sub", SIZES, [_lx(0), _lx(2)], ROWS.at(1), splits=SPLITS),
    ]


def long_scratchpad_operations() -> list[Op | Repeat]:
    """Six intermediates in LX, several of which live at a time."""
    names = ("exp", "tanh", "sigmoid", "neg", "abs", "relufwd")
    made = [op(name, SIZES, [ROWS.at(0)], _lx(i), splits=SPLITS) for i, name in enumerate(names)]
    made += [op("sub", SIZES, [_lx(i), _lx(5 - i)], _lx(6 + i), splits=SPLITS) for i in range(3)]
    made.append(op("mul", SIZES, [_lx(6), _lx(7)], _lx(9), splits=SPLITS))
    return [*made, op("sub", SIZES, [_lx(9), _lx(8)], ROWS.at(1), splits=SPLITS)]


def loop_operations() -> list[Op | Repeat]:
    """Tiles of rows, with an intermediate in the pool."""
    tile = {"gap": {"mb": 96}, "loop_strides": (32 * 128,)}
    scratch = ROWS.at(POOL, loop_strides=(0,))
    return [
        Repeat(4, [
            op("exp", SIZES, [ROWS.at(0, **tile)], scratch, splits=SPLITS),
            op("sub", SIZES, [scratch, ROWS.at(0, **tile)], ROWS.at(1, **tile), splits=SPLITS),
        ])
    ]  # fmt: skip


def split_sum_operations() -> list[Op | Repeat]:
    """Cores that divide a sum, through LX: its lanes are padded."""
    column = T(["mb", "out"], scale={"out": -2})
    return [
        op("add", SIZES, [ROWS.at(0), ROWS.at(0)], _lx(0), splits=SPLITS),
        op("sum", SIZES, [_lx(0)], column.at(LX, 4 * SLICE), splits=SPLITS,
           masks={"out": (100, 28)}, constants={"samv-maskvalue": ("SEN169_FP16", 0)}),
        op("mul", SIZES, [_lx(0), column.at(LX, 4 * SLICE)], ROWS.at(1), splits=SPLITS),
    ]  # fmt: skip


def handmade_cases(directory: Path) -> list[Case]:
    torch.manual_seed(8)
    made = {
        "scratchpad": (scratchpad_operations(), [half(32, 128)], 32),
        "long scratchpad": (long_scratchpad_operations(), [half(32, 128)], 32),
        "loop": (loop_operations(), [half(128, 128)], 128),
        "padded sum": (split_sum_operations(), [half(32, 100)], 32),
    }
    cases = []
    for name, (operations, inputs, rows) in made.items():
        cases.append(handmade(directory / name, operations, inputs, rows))
    return cases


def handmade(
    directory: Path,
    nodes: list[Op | Repeat],
    inputs: list[torch.Tensor],
    rows: int,
    meant: list[Op | Repeat] | None = None,
) -> Case:
    """A case of a bundle whose arguments are its inputs and one output of as many rows. `meant` are
    the same operations where each intermediate has a place of its own, which says which is which;
    without them a place is an intermediate."""
    write_bundle(directory, nodes, symbolic=True)
    write_names(directory, nodes, meant or nodes)
    operations = flatten(nodes)
    has_pool = any(t.where == POOL for o in operations for t in o.tensors)
    hosts = [*inputs, torch.zeros(rows, inputs[0].shape[1]).half()]
    arguments = []
    for number, host in enumerate(hosts):
        uses = [(o, t) for o in operations for t in o.tensors if t.where == number]
        layout = layout_of(*uses[0], host)
        value = host if number < len(inputs) else None
        arguments.append(
            Argument(tuple(host.shape), tuple(host.stride()), host.dtype, layout, value)
        )
    return Case(directory.name, directory, (1 << 16) if has_pool else 0, tuple(arguments))


def write_names(directory: Path, nodes: list[Op | Repeat], meant: list[Op | Repeat]) -> None:
    """names.json of a bundle."""
    operations = flatten(nodes)
    buffers: dict[tuple[Any, int], dict[str, Any]] = {}
    for number, (operation, same) in enumerate(zip(operations, flatten(meant), strict=True)):
        for tensor, which in zip(operation.tensors, same.tensors, strict=True):
            if tensor.where not in (LX, POOL):
                continue
            is_column = any(scale < 0 for scale in tensor.scale.values())
            size = 8 * 128 if is_column else SLICE if tensor.where == LX else 32 * 2 * 128
            entry = buffers.setdefault(
                (which.where, which.offset),
                {
                    "name": f"buf{len(buffers)}", "space": tensor.where, "offset": tensor.offset,
                    "bytes": size, "first": number, "begins": tensor is operation.output,
                },
            )  # fmt: skip
            entry["last"] = number
    names = {
        "version": 1,
        "kernel": directory.name,
        "arguments": [],
        "operations": [{"source": f"model.py:{n + 1}: line {n}"} for n in range(len(operations))],
        "buffers": list(buffers.values()),
    }
    (directory / "names.json").write_text(json.dumps(names))
