"""What the device costs before it computes anything: allocation, eager calls, copies, import.

Each row compares with CPU PyTorch in the same run and states the bound that the project promises.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import torch

from benchmarks.results import Result
from benchmarks.timing import best_of


def measure(wanted: Callable[[str], bool], quick: bool, failed: list[str]) -> list[Result]:
    """All rows, in the order of the table. They are cheap: `quick` changes nothing."""
    torch.spyre.set_fallback_warning(False)
    rows = [
        empty(),
        *eager("host", 15),
        *eager("card", 25),
        first_eager_call(),
        *launches(),
        *copies(),
        *slice_writes(),
        import_cost(),
    ]
    return [row for row in rows if wanted(row.name)]


def empty() -> Result:
    t = best_of(
        {
            "cpu": lambda: torch.empty(4, 4, device="cpu"),
            "spyre": lambda: torch.empty(4, 4, device="spyre"),
        },
        calls=5000,
    )
    return Result(
        "torch.empty (4, 4)",
        t["spyre"],
        {"cpu": t["cpu"]},
        "us",
        "<= 1.5x cpu + 1 us",
        t["spyre"] <= 1.5 * t["cpu"] + 1,
    )


def eager(place: str, bound: float) -> list[Result]:
    """Operations by way of the host, and as programs of the card: these are queued, and the card is
    waited for once in a while."""
    torch.spyre.set_eager(place)
    where = "" if place == "host" else " on the card"
    rows = []
    for dtype in (torch.float32, torch.float16):
        host = torch.randn(4, 4).to(dtype)
        card = host.to("spyre")
        operations = {
            "add": (lambda h=host: h + h, lambda c=card: c + c),
            "add_": (lambda h=host: h.add_(0), lambda c=card: c.add_(0)),
            "mm": (lambda h=host: h @ h, lambda c=card: c @ c),
            "softmax": (lambda h=host: h.softmax(1), lambda c=card: c.softmax(1)),
        }
        for name, (on_cpu, on_card) in operations.items():
            t = best_of({"cpu": on_cpu, "spyre": on_card}, calls=1000)
            label = f"eager {name}{where} (4, 4) {str(dtype).removeprefix('torch.')}"
            ours, text = t["spyre"], f"<= {bound:.0f} us"
            rows.append(Result(label, ours, {"cpu": t["cpu"]}, "us", text, ours <= bound))
    torch.spyre.set_eager("card")
    return rows


def first_eager_call() -> Result:
    """In a new process that finds the program on disk."""
    source = """
        import time, torch
        results = []
        for place in ("cpu", "spyre"):
            x = torch.ones(64, 128).half().to(place)
            torch.spyre.synchronize()
            begin = time.perf_counter()
            x + x
            results.append((time.perf_counter() - begin) * 1e6)
        print(*results)
    """

    def once() -> tuple[float, float]:
        env = {**os.environ, "SPYRE_EAGER": "card"}
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(source)]
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        cpu, spyre = map(float, run.stdout.split())
        return spyre, cpu

    once()  # compiles it
    ours, cpu = min(once() for _ in range(6))
    name = "first eager add of a process, program on disk"
    return Result(name, ours, {"cpu": cpu}, "us", "<= 10 ms", ours <= 10_000)


@torch.no_grad()
def launches() -> list[Result]:
    """A compiled graph of one kernel, called in a row as a model's graphs are."""
    host = torch.randn(64)
    card = host.half().to("spyre")
    # Two functions: graphs of one function share its guards, and each would pay for the other's.
    on_cpu = torch.compile(lambda x: x + 1)
    on_card = torch.compile(lambda x: x + 2)
    on_cpu(host), on_card(card)
    calls = 500

    def cpu() -> None:
        for _ in range(calls):
            on_cpu(host)

    def queued() -> None:
        for _ in range(calls):
            on_card(card)
        torch.spyre.synchronize()

    def waited_for() -> None:
        for _ in range(calls):
            on_card(card)
            torch.spyre.synchronize()

    t = best_of({"cpu": cpu, "queued": queued, "waited for": waited_for}, calls=1)
    peer = t["cpu"] / calls
    queue, wait = t["queued"] / calls, t["waited for"] / calls
    name = "compiled one-kernel call"
    return [
        Result(f"{name}, queued", queue, {"cpu": peer}, "us", "<= 1.1", queue <= 1.1 * peer),
        Result(f"{name}, each waited for", wait, {"cpu": peer}),
    ]


def copies() -> list[Result]:
    host = torch.randn(4096, 4096).half()
    target = torch.empty_like(host)
    card = host.to("spyre")
    turned = host.to(
        "spyre",
        device_layout=torch.spyre.SpyreTensorLayout([4096, 4096], [4096, 1], torch.float16, [1, 0]),
    )

    def restickify() -> None:
        turned.copy_(card)
        torch.spyre.synchronize()

    t = best_of(
        {
            "memcpy": lambda: target.copy_(host),
            "cpu -> spyre": lambda: card.copy_(host),
            "spyre -> cpu": lambda: target.copy_(card),
            "cpu -> spyre, weight layout": lambda: turned.copy_(host),
            "spyre -> spyre, restickify": restickify,
        },
        calls=1,
        rounds=25,
    )
    memcpy = t.pop("memcpy")
    rows = []
    for name, ours in t.items():
        bounded = name in ("cpu -> spyre", "spyre -> cpu")
        bound = "speed >= 0.6x of memcpy" if bounded else ""
        rows.append(
            Result(
                f"{name}, (4096, 4096) float16",
                ours,
                {"cpu": memcpy},
                "us",
                bound,
                memcpy / ours >= 0.6 or not bounded,
            )
        )
    return rows


@torch.no_grad()
def slice_writes() -> list[Result]:
    """A token written to a cache, compiled: by a slice, which is known, and by a position that is
    read from a tensor. What they cost does not depend on the cache."""

    def by_slice(cache: torch.Tensor, value: torch.Tensor) -> None:
        cache[:, 3:4] = value

    def by_index(cache: torch.Tensor, place: torch.Tensor, value: torch.Tensor) -> None:
        cache.index_copy_(1, place, value)

    calls, rows = 50, []
    for size in (64, 512, 2048):
        cache, value = torch.zeros(8, size, 512), torch.ones(8, 1, 512)
        place = torch.tensor([3]).to("spyre")
        on_card, given = (t.half().to("spyre") for t in (cache, value))
        on_cpu, sliced, indexed = (torch.compile(f) for f in (by_slice, by_slice, by_index))

        def cpu(run=on_cpu, cache=cache, value=value) -> None:
            for _ in range(calls):
                run(cache, value)

        def card(run=sliced, arguments=(on_card, given)) -> None:
            for _ in range(calls):
                run(*arguments)
            torch.spyre.synchronize()

        indices = functools.partial(card, indexed, (on_card, place, given))
        t = best_of({"cpu": cpu, "slice": card, "index_copy_": indices}, calls=1)
        ours, peer = t["slice"] / calls, t["index_copy_"] / calls
        name = f"cache[:, 3:4] = v, compiled, (8, {size}, 512)"
        bound = f"<= 1.5x index_copy_, {peer:.0f} us"
        rows.append(Result(name, ours, {"cpu": t["cpu"] / calls}, "us", bound, ours <= 1.5 * peer))
    return rows


def import_cost() -> Result:
    """What `import torch` does at its end for devices of other packages, timed by itself: a whole
    import varies by more than the promise. PyTorch's search for packages is in it, 4 ms. Bytecode
    of all modules is on disk, as in an installation."""
    source = """
        import time
        import torch
        begin = time.process_time()
        torch._import_device_backends()
        print(begin, time.process_time())
    """
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", textwrap.dedent(source)]

    def once() -> tuple[float, float]:
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        without, with_us = map(float, run.stdout.split())
        return (with_us - without) * 1e6, without * 1e6

    once()  # writes the bytecode
    runs = [once() for _ in range(8)]
    more, without = min(more for more, _ in runs), min(without for _, without in runs)
    name = "import torch, processor time that the device adds"
    return Result(name, more, {"cpu": without}, "us", "<= 50 ms", more <= 50_000)
