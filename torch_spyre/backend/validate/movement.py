"""Rules of steps that move elements: copies, gathers, topk, and moves over the ring."""

from __future__ import annotations

from torch_spyre.backend.formats import ARRANGEMENTS, FORMAT_OF_NUMBER
from torch_spyre.backend.steps import Copy, Gather, Matmul, Ring, Topk, addresses
from torch_spyre.backend.validate.places import Found, Scope


def copied(step: Copy, scope: Scope) -> Found:
    sides = (step.source_side, step.destination)
    for side in sides:
        numbers = [len(side.device_size), len(side.stride_map)]
        numbers += [len(side.sizes), len(side.strides)]
        if numbers[0] != numbers[1] or numbers[2] != numbers[3]:
            yield f"{numbers} sizes and strides", "a stride for each size"
        if side.arrangement not in ARRANGEMENTS.values() or side.format not in FORMAT_OF_NUMBER:
            yield f"format {side.format}, {side.arrangement}", "formats and arrangements"
    bytes_of = [FORMAT_OF_NUMBER[side.format].bytes for side in sides]
    if bytes_of[0] != bytes_of[1]:
        yield f"elements of {bytes_of} bytes", "elements of one size"
    for core, (a, b) in enumerate(zip(*(side.views for side in sides))):
        if a[1:] != b[1:]:
            yield f"{a[1:]} to {b[1:]} on core {core}", "the same points on both sides"


def views(step: Copy, scope: Scope) -> Found:
    for side in (step.source_side, step.destination):
        last = sum((n - 1) * s for n, s in zip(side.sizes, side.strides))
        for view in side.views:
            end = view[0] + sum((n - 1) * s for n, s in zip(view[1:], side.view_strides) if n)
            if min(view) < 0 or (all(view[1:]) and end > last):
                yield f"elements {view[0]} to {end}", f"0 to {last}"


def rows(step: Gather, scope: Scope) -> Found:
    if step.rows < 1 or min(step.first_index) < 0:
        yield f"{step.rows} rows, first index {min(step.first_index)}", "1 or more, 0 or more"
    if step.stick_dim >= 0 and step.index.strides[step.stick_dim]:
        yield f"stride {step.index.strides[step.stick_dim]} of indices", "0 along the stick"


def matrices(step: Matmul, scope: Scope) -> Found:
    choice = step.choice
    if choice is None:
        return
    if choice.count < 1 or min(choice.first) < 0:
        yield f"{choice.count} matrices, first row {min(choice.first)}", "1 or more, 0 or more"
    if len(choice.strides) != step.batch + 1:
        yield f"{len(choice.strides)} strides of numbers", f"{step.batch + 1}"
    if choice.along_sticks and choice.strides[-1]:
        yield f"stride {choice.strides[-1]} of numbers", "0 along the stick"


def chosen(step: Topk, scope: Scope) -> Found:
    if not 1 <= step.k <= step.count:
        yield f"{step.k} of {step.count}", f"1 to {step.count}"
    kind = FORMAT_OF_NUMBER[step.output.format].kind
    if step.indices and kind != "int":
        yield f"indices as {kind}", "int"


def transfers(step: Ring, scope: Scope) -> Found:
    for transfer in step.transfers:
        if not (0 <= transfer.source < step.cores and 0 <= transfer.target < step.cores):
            yield f"core {transfer.source} to {transfer.target}", f"0 to {step.cores - 1}"
    targets = [(t.target, t.target_offset) for t in step.transfers]
    if len(set(targets)) != len(targets):
        yield "two transfers to one place", "a place for each"
    spaces = {a.space.name for a in addresses(step)}
    if spaces != {"LX"}:
        yield sorted(spaces), "LX"
