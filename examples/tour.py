"""A short tour of the card: devices, tensors, layouts, computing, memory, streams.

Run it with `make tour`, or `python examples/tour.py [folder for the picture]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import torch_spyre

PICTURE_FOLDER = Path(__file__).resolve().parent.parent / "build"


def heading(number: int, text: str) -> None:
    print(f"\n{number}. {text}\n{'─' * 78}")


def show_device() -> None:
    properties = torch.spyre.get_device_properties()
    free, total = torch.spyre.mem_get_info()
    print(f"torch.spyre.device_count()      {torch.spyre.device_count()}")
    print(f"torch.spyre.get_device_name()   {torch.spyre.get_device_name()}")
    print(f"cores                           {properties.multi_processor_count}")
    print(f"scratchpad per core             {properties.lx_bytes_per_core >> 20} MiB")
    print(f"memory                          {total >> 30} GiB, {free >> 30} GiB free")
    print(f"torch.accelerator               {torch.accelerator.current_accelerator()}")


def show_tensors() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float16).to("spyre")
    print(f"{x}\nIts address, 0x{x.data_ptr():016x}, is one of the card and no host pointer.\n")

    print(
        "16-bit floats are DLFloat16 on the card: more range than IEEE half, one fraction bit less."
    )
    values = torch.tensor([1 / 3, 2050.0, 65504.0, float("-inf")], dtype=torch.float16)
    print(f"    {'float16 on the host':>22}   {'after a visit to the card':>26}")
    for before, after in zip(values.tolist(), values.to("spyre").cpu().tolist()):
        print(f"    {before:>22.6f}   {after:>26.6f}")


def show_layouts() -> None:
    print("Card memory is made of sticks of 128 bytes; tensors lie there in tiles of sticks.\n")
    examples = {
        "vector (120,) float16": torch.zeros(120, dtype=torch.float16),
        "matrix (512, 240) float16": torch.zeros(512, 240, dtype=torch.float16),
        "matrix (512, 240) float32": torch.zeros(512, 240),
        "indices (10,) int64": torch.arange(10),
        "mask (4, 4) bool": torch.ones(4, 4, dtype=torch.bool),
        "(3,) float64, carried": torch.zeros(3, dtype=torch.float64),
    }
    for name, tensor in examples.items():
        layout = tensor.to("spyre").device_tensor_layout()
        if layout is None:
            print(f"{name:<27} no tiles: the host's bytes, for eager use")
        else:
            size, strides = str(layout.device_size), str(layout.stride_map)
            print(f"{name:<27} {size:<14} {strides:<14} {layout.device_dtype.name}")


def show_computing() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(64, 128), torch.randn(128, 32)
    on_cpu = torch.softmax(x @ w, dim=-1)

    torch.spyre.reset_fallback_counts()
    torch.spyre.reset_eager_counts()
    for dtype in (torch.float32, torch.float16):
        on_card = torch.softmax(x.to("spyre", dtype) @ w.to("spyre", dtype), dim=-1)
        error = (on_card.cpu().float() - on_cpu).abs().max().item()
        print(f"softmax(x @ w) in {dtype!s:<14} largest difference from CPU float32: {error:.1e}")

    values = torch.sort(torch.randn(4, 70, dtype=torch.float64).to("spyre")).values
    print(f"What the card has no form for is computed by the host: {values[0, 0].item():.6f}")
    print("\nEagerly, without torch.compile, each operation is a program of its own. Counted:")
    for where, counts in (
        ("the card", torch.spyre.eager_counts()),
        ("the host", torch.spyre.fallback_counts()),
    ):
        for name, count in counts.items():
            print(f"    {where} {count:>3} × {name}")


def show_compiling() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(64, 96), torch.randn(96, 80)

    def attention_weights(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1)

    told = torch_spyre.explain(attention_weights, x.half().to("spyre"), w.half().to("spyre"))
    difference = (told.result.cpu().float() - attention_weights(x, w)).abs().max()
    print("torch.compile turns the function into one program for the card's 32 cores:")
    print()
    print(str(told).split("\nbundles")[0])
    print(f"Largest difference from CPU float32: {difference:.1e}. The files of the program:")
    for name in sorted(file.name for file in Path(told.artifacts[0]).iterdir()):
        print(f"  {name}")


def show_memory() -> None:
    before = torch.spyre.memory_allocated()
    x = torch.zeros(512, 240, dtype=torch.float16, device="spyre")
    taken = torch.spyre.memory_allocated() - before
    print(f"A (512, 240) float16 tensor has {x.nbytes:,} bytes and takes {taken:,} on the card.")
    del x
    left = torch.spyre.memory_allocated() - before
    print(f"Deleted, {left:,} of them are left. The card's own table:\n")
    print(torch.spyre.memory_summary())


def show_streams() -> None:
    megabytes = 64
    pinned = torch.zeros(megabytes << 20, dtype=torch.int8).pin_memory()
    start, end = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
    with torch.spyre.Stream() as stream:
        start.record()
        copy = pinned.to("spyre", non_blocking=True)
        end.record()
        print(f"Copying {megabytes} MiB in stream {stream.id}; the host goes on meanwhile.")
    end.synchronize()
    elapsed = start.elapsed_time(end)
    rate = copy.nbytes / elapsed / 1e6
    print(f"Modelled time: {elapsed:.3f} ms, {rate:.1f} GB/s, and the same in every run.")


def draw(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "layout.svg"
    x = torch.rand(512, 240, dtype=torch.float16).to("spyre")
    file.write_text(torch_spyre.draw_layout(x), encoding="utf-8")
    print(f"torch_spyre.draw_layout(tensor) shows every stick. Open {file}")


def main(folder: Path = PICTURE_FOLDER) -> None:
    # The tour shows both in words; the warnings would only repeat it.
    torch.spyre.set_fallback_warning(False)
    torch.spyre.set_downcast_warning(False)

    heading(1, "The card")
    show_device()
    heading(2, "Tensors")
    show_tensors()
    heading(3, "Layouts")
    show_layouts()
    heading(4, "Eager PyTorch")
    show_computing()
    heading(5, "torch.compile")
    show_compiling()
    heading(6, "Memory")
    show_memory()
    heading(7, "Streams, events, and the card's own clock")
    show_streams()
    heading(8, "A picture")
    draw(folder)
    print()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
