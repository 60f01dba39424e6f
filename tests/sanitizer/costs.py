"""What checking costs, kind by kind: `python -m tests.sanitizer.costs [part of a name]`.

Each case is a function of tensors, compiled unless it says otherwise. Printed are milliseconds
without and with the sanitizer and how many times more, of the processor (all threads) and elapsed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Cost:
    """Seconds of a call: the least of several."""

    elapsed: float
    processor: float


def cost(call: Callable[[], object], runs: int, most_seconds: float = 1.0) -> Cost:
    """Of at least three calls, and of no more than `runs` or `most_seconds` allow."""
    elapsed, processor = [], []
    end = time.perf_counter() + most_seconds
    while len(elapsed) < 3 or (len(elapsed) < runs and time.perf_counter() < end):
        begin, begin_processor = time.perf_counter(), time.process_time()
        call()
        torch.spyre.synchronize()
        elapsed.append(time.perf_counter() - begin)
        processor.append(time.process_time() - begin_processor)
    return Cost(min(elapsed), min(processor))


def half(*size: int) -> torch.Tensor:
    return torch.randn(*size).half()


@dataclass(frozen=True)
class Kind:
    """A kernel of one kind."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], list[torch.Tensor]] = field(repr=False)
    compiled: bool = True

    def call(self) -> Callable[[], object]:
        """Ready to run: compiled, with tensors on the card, called twice with the sanitizer (the
        first call follows the operations, the second one finds the sums of copies)."""
        torch._dynamo.reset()
        function = torch.compile(self.function, dynamic=False) if self.compiled else self.function
        inputs = [x.to("spyre") for x in self.inputs()]
        with torch.no_grad():
            function(*inputs)
            with torch.spyre.sanitizer():
                function(*inputs)
                function(*inputs)
                torch.spyre.synchronize()

        def run() -> object:
            with torch.no_grad():
                return function(*inputs)

        return run


def _attention(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def _mlp(x: Any, a: Any, b: Any, c: Any) -> Any:
    return F.linear(F.gelu(F.linear(x, a, b)), c)


def _two_ways(x: Any, w: Any) -> Any:
    y = torch.relu(x @ w)
    return (y * y.sum(0) + y.amax(1, keepdim=True)) @ w.t()


def _indices(rows: int, *size: int) -> torch.Tensor:
    return torch.randint(0, rows, size, dtype=torch.int32)


COPIES = [
    Kind("transposed", lambda a: a.t() + a, lambda: [half(1024, 1024)]),
    Kind("cut through sticks", lambda a: a[:, 10:].contiguous(), lambda: [half(1024, 1024)]),
    Kind(
        "heads of half a stick",
        lambda a: a.view(1024, 32, 32).transpose(0, 1).contiguous() + 1,
        lambda: [half(1024, 1024)],
    ),
    Kind(
        "heads of a stick",
        lambda a: a.view(1024, 16, 64).transpose(0, 1).contiguous() + 1,
        lambda: [half(1024, 1024)],
    ),
    Kind("transposed, small", lambda a: a.t() + a, lambda: [half(128, 128)]),
    Kind("transposed, uneven", lambda a: a.t() + 1, lambda: [half(1000, 700)]),
    Kind("transposed, in a product", lambda a, b: (a.t() + 1) @ b,
         lambda: [half(512, 512), half(512, 512)]),
    Kind("transposed back", lambda a: torch.relu(a.t().contiguous() + 1).t().contiguous(),
         lambda: [half(1024, 1024)]),
    Kind("three axes", lambda a: a.permute(2, 0, 1).contiguous() + 1, lambda: [half(32, 64, 512)]),
    Kind("joined", lambda a, b: torch.cat([a, b], 1), lambda: [half(1024, 300), half(1024, 700)]),
    Kind("every second column", lambda a: a[:, ::2] + 1, lambda: [half(1024, 1024)]),
    Kind("turned round", lambda a: a.flip(1), lambda: [half(512, 512)]),
    Kind("padded", lambda a: F.pad(a, (3, 5)), lambda: [half(1024, 1000)]),
    Kind("one column", lambda a: a[:, 7].contiguous() + 1, lambda: [half(4096, 256)]),
    Kind("rows of a few", lambda a: a.view(4096, 16).t() + 1, lambda: [half(64, 1024)]),
    Kind("flattened", lambda a: a.reshape(-1, 1000) + 1, lambda: [half(1000, 700)]),
]  # fmt: skip

OTHERS = [
    Kind("add", torch.add, lambda: [half(2048, 2048), half(2048, 2048)]),
    Kind("add, small", torch.add, lambda: [half(64, 256), half(64, 256)]),
    Kind("add, tiny", torch.add, lambda: [half(1, 64), half(1, 64)]),
    Kind("exp of sin", lambda a: torch.exp(torch.sin(a)), lambda: [half(2048, 1024)]),
    Kind("broadcast", lambda a, r, c: a * r - c, lambda: [half(2048, 1024), half(1024),
                                                          half(2048, 1)]),
    Kind("fill", lambda a: torch.zeros_like(a), lambda: [half(2048, 1024)]),
    Kind("where", lambda a, b: torch.where(a > b, a, b * 2), lambda: [half(2048, 1024),
                                                                      half(2048, 1024)]),
    Kind("sum of rows", lambda a: a.sum(1), lambda: [half(2048, 1024)]),
    Kind("sum of columns", lambda a: a.sum(0), lambda: [half(2048, 1024)]),
    Kind("sum of all", lambda a: a.sum(), lambda: [half(2048, 1024)]),
    Kind("largest of rows", lambda a: a.amax(1), lambda: [half(2048, 1024)]),
    Kind("argmax", lambda a: a.argmax(1), lambda: [half(256, 1024)]),
    Kind("softmax", lambda a: torch.softmax(a, -1), lambda: [half(2048, 1024)]),
    Kind("softmax of columns", lambda a: torch.softmax(a, 0), lambda: [half(1024, 1024)]),
    Kind("softmax of short rows", lambda a: torch.softmax(a, -1), lambda: [half(4096, 64)]),
    Kind("layer norm", lambda a, w, b: F.layer_norm(a, (1024,), w, b),
         lambda: [half(1024, 1024), half(1024), half(1024)]),
    Kind("rms norm", lambda a, w: F.rms_norm(a, (1024,), w),
         lambda: [half(1024, 1024), half(1024)]),
    Kind("product", torch.matmul, lambda: [half(512, 1024), half(1024, 1024)]),
    Kind("product, small", torch.matmul, lambda: [half(64, 64), half(64, 64)]),
    Kind("product of a row", torch.matmul, lambda: [half(1, 1024), half(1024, 4096)]),
    Kind("product, shallow", torch.matmul, lambda: [half(2048, 64), half(64, 2048)]),
    Kind("product, deep (K split)", torch.matmul, lambda: [half(64, 8192), half(8192, 64)]),
    Kind("product, transposed weight", F.linear, lambda: [half(256, 1024), half(1024, 1024)]),
    Kind("batched product", torch.bmm, lambda: [half(16, 128, 64), half(16, 64, 128)]),
    Kind("batched product, thin", torch.bmm, lambda: [half(64, 1, 128), half(64, 128, 64)]),
    Kind("mlp", _mlp, lambda: [half(256, 512), half(2048, 512), half(2048), half(512, 2048)]),
    Kind("attention", _attention, lambda: [half(1, 8, 256, 64) for _ in range(3)]),
    Kind("attention in tiles", _attention, lambda: [half(1, 4, 2048, 64) for _ in range(3)]),
    Kind("attention of one row", _attention,
         lambda: [half(1, 8, 1, 64), half(1, 8, 1024, 64), half(1, 8, 1024, 64)]),
    Kind("over the ring", _two_ways, lambda: [half(512, 1024) / 8, half(1024, 512) / 8]),
    Kind("convolution", lambda a, w: F.conv2d(a, w, padding=1),
         lambda: [half(2, 32, 28, 28), half(32, 32, 3, 3) / 8]),
    Kind("max pool", lambda a: F.max_pool2d(a, 2), lambda: [half(4, 32, 56, 56)]),
    Kind("embedding", lambda t, i: F.embedding(i, t), lambda: [half(32000, 512),
                                                               _indices(32000, 512)]),
    Kind("index select", lambda a, i: a[i] + 1, lambda: [half(1024, 1024), _indices(1024, 700)]),
    Kind("scatter", lambda a, i, b: a.index_put((i,), b), lambda: [
        half(1024, 1024), torch.randperm(1024)[:512].int(), half(512, 1024)]),
    Kind("topk", lambda a: torch.topk(a, 5, dim=0)[0], lambda: [half(1024, 512)]),
    Kind("topk of rows", lambda a: torch.topk(a, 5)[0], lambda: [half(512, 512)]),
    Kind("sort", lambda a: torch.sort(a, dim=0)[0], lambda: [half(64, 512)]),
    Kind("cumsum", lambda a: a.cumsum(0), lambda: [half(64, 512)]),
    Kind("to float32", lambda a: a.float(), lambda: [half(2048, 1024)]),
    Kind("float32 chain", lambda a, b: ((a.float() + b.float()) / 3).half(),
         lambda: [half(1024, 1024), half(1024, 1024)]),
    Kind("int32", lambda a: a * 3 + 1, lambda: [_indices(1000, 1024, 1024)]),
    Kind("comparison to bool", lambda a, b: a > b, lambda: [half(2048, 1024), half(2048, 1024)]),
]  # fmt: skip

EAGER = [
    Kind("eager add", torch.add, lambda: [half(1024, 1024), half(1024, 1024)], compiled=False),
    Kind("eager add, small", torch.add, lambda: [half(8, 64), half(8, 64)], compiled=False),
    Kind("eager softmax", lambda a: torch.softmax(a, -1), lambda: [half(512, 512)], compiled=False),
    Kind("eager product", torch.matmul, lambda: [half(256, 256), half(256, 256)], compiled=False),
    Kind("to the host", lambda a: a.cpu(), lambda: [half(1024, 1024)], compiled=False),
    Kind("to the host, small", lambda a: a.cpu(), lambda: [half(4, 64)], compiled=False),
    Kind("to another tensor", lambda a: a.clone(), lambda: [half(1024, 1024)], compiled=False),
    Kind("transposed to another tensor", lambda a: a.t().contiguous(), lambda: [half(1024, 1024)],
         compiled=False),
    Kind("columns to another tensor", lambda a: a[:, 10:].contiguous(),
         lambda: [half(1024, 1024)], compiled=False),
    Kind("filled", lambda a: a.fill_(1), lambda: [half(1024, 1024)], compiled=False),
]  # fmt: skip

KINDS = [*COPIES, *OTHERS, *EAGER]


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    print(f"{'':32} {'':>8} processor {'':>8}   {'':>8} elapsed")
    for kind in KINDS:
        if part not in kind.name:
            continue
        call = kind.call()
        without = cost(call, 60)
        with torch.spyre.sanitizer():
            call()
            checked = cost(call, 30, 2.0)
        a, b = without, checked
        print(
            f"{kind.name:32} {1e3 * a.processor:8.3f} {1e3 * b.processor:8.2f} "
            f"{b.processor / a.processor:5.1f}   {1e3 * a.elapsed:8.3f} {1e3 * b.elapsed:8.2f} "
            f"{b.elapsed / a.elapsed:5.1f}",
            flush=True,
        )


if __name__ == "__main__":
    torch.spyre.set_fallback_warning(False)
    main()
