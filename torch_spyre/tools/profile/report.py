"""A profile as text: compile time by phase, host time of a call, time on the card by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch_spyre.tools.profile.card_steps import Step
from torch_spyre.tools.profile.sampling import stages

if TYPE_CHECKING:
    from torch_spyre.tools.profile.measure import HostTimes, Profile

TOP = 16  # rows of a table in the terminal


def text(profile: Profile, *, everything: bool = False) -> str:
    """The report; with `everything` no table is cut, and single steps are listed."""
    top = 10**6 if everything else TOP
    lines = [f"profile of {profile.name}", "", *_compile_lines(profile, top)]
    lines += ["", *_host_lines(profile.host, profile.fallbacks)]
    lines += ["", *_card_lines(profile.steps, profile.host, top)]
    if everything:
        lines += ["", "the card's steps, in order", *_step_lines(profile.steps)]
    return "\n".join(lines)


# ---- Compile time -------------------------------------------------------------------------------


def _compile_lines(profile: Profile, top: int) -> list[str]:
    whole = profile.compile_seconds
    counted = ", ".join(f"{key.replace('_', ' ')} {n}" for key, n in profile.counters.items() if n)
    lines = [
        f"compile time: {whole:.2f} s, first call included" + (f" ({counted})" * bool(counted))
    ]
    lines += _bars(list(stages(profile.phases).items()), whole, "s", top)
    lines += ["", "the same in more detail"]
    lines += _bars(list(profile.phases.items()), whole, "s", top)
    if profile.other_threads:
        lines += ["", "at the same time in other threads"]
        lines += _bars(list(profile.other_threads.items()), whole, "s", top)
    lines += ["", "functions of torch_spyre: with what they call, and their own lines"]
    rows = [
        (f"{seconds:7.2f} s", f"{own:7.2f} s", f"{seconds / whole:5.0%}", name)
        for name, (seconds, own) in list(profile.functions.items())[:top]
    ]
    lines += table(rows)
    lines += ["", "PyTorch's own clocks: each with all that happens inside of it"]
    own = [(name, s) for name, s in profile.torch_phases.items() if s >= 0.01 * whole]
    return lines + _bars(own, whole, "s", top)


# ---- A call, on the host ------------------------------------------------------------------------


def _host_lines(host: HostTimes, fallbacks: dict[str, int]) -> list[str]:
    whole = host.total
    rows = [
        ("guards, PyTorch's wrappers", host.call - host.host_code),
        ("generated host code", host.host_code - host.launch),
        (f"launches ({host.launches})", host.launch),
        ("waiting for the card", host.total - host.call),
    ]
    lines = [f"one call: {whole / 1000:.3f} ms (median)", *_bars(rows, whole, "us", len(rows))]
    if fallbacks:
        counted = ", ".join(f"{op} {n}" for op, n in sorted(fallbacks.items()))
        lines.append(f"  operations of a call that the host does: {counted}")
    return lines


# ---- A call, on the card ------------------------------------------------------------------------


def _card_lines(steps: Sequence[Step], host: HostTimes, top: int) -> list[str]:
    whole = sum(step.us for step in steps)
    if not whole:
        return ["the card ran no program"]
    modelled = sum(step.modelled_us for step in steps)
    lines = [
        f"on the card: {whole / 1000:.3f} ms of a call here, {modelled:.0f} us on a real one "
        f"(modelled), {sum(step.runs for step in steps):g} steps",
        *_bars(_sums((step.kind, step.us) for step in steps), whole, "us", top),
        "",
        "steps of the same kind and size together",
    ]
    alike: dict[tuple[tuple[str, ...], str], list[Step]] = {}
    for step in steps:
        alike.setdefault((step.opfuncs, step.shape), []).append(step)
    groups = sorted(alike.values(), key=lambda group: -sum(step.us for step in group))
    rows = [("us", "share", "runs", "GFLOP/s", "real us", "step", "size", "first line")]
    for group in groups[:top]:
        us, runs = sum(step.us for step in group), sum(step.runs for step in group)
        flops = sum(step.flops * step.runs for step in group)
        rows.append(
            (
                f"{us:.0f}",
                f"{us / whole:.1%}",
                f"{runs:g}",
                f"{flops / us / 1e3:.1f}" if flops else "",
                f"{sum(step.modelled_us for step in group):.1f}",
                _short("+".join(group[0].opfuncs), 44),
                group[0].shape,
                _line(group[0].source),
            )
        )
    lines += table(rows)
    if len(groups) > top:
        rest = sum(step.us for group in groups[top:] for step in group)
        lines.append(f"  and {len(groups) - top} more, {rest / whole:.1%}")
    return lines


def _step_lines(steps: Sequence[Step]) -> list[str]:
    rows = [("us", "GFLOP/s", "real us", "program", "step", "size", "line")]
    for step in steps:
        gflops = f"{step.gflops:.1f}" if step.flops else ""
        modelled = f"{step.modelled_us:.2f}"
        place = (f"{step.program}", step.name, step.shape, _line(step.source))
        rows.append((f"{step.us:.1f}", gflops, modelled, *place))
    return table(rows)


# ---- Pieces -------------------------------------------------------------------------------------


def _sums(pairs: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    sums: dict[str, float] = {}
    for name, value in pairs:
        sums[name] = sums.get(name, 0.0) + value
    return sorted(sums.items(), key=lambda item: -item[1])


def _bars(rows: Sequence[tuple[str, float]], whole: float, unit: str, top: int) -> list[str]:
    """Name, value, share and a bar; the remaining rows are summed up."""
    shown = list(rows[:top])
    if len(rows) > top:
        shown.append((f"and {len(rows) - top} more", sum(value for _, value in rows[top:])))
    digits = 2 if unit == "s" else 0
    return table(
        [
            (name, f"{value:9.{digits}f} {unit}", f"{value / whole:4.0%}", _bar(value / whole))
            for name, value in shown
        ]
    )


def _bar(share: float) -> str:
    return "█" * round(30 * max(0.0, min(share, 1.0)))


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, those of numbers to the right."""
    if not rows:
        return []
    columns = list(zip(*rows))
    widths = [max(map(len, column)) for column in columns]
    right = [sum(map(_is_number, column)) * 2 > sum(map(bool, column)) for column in columns]
    return ["  " + "  ".join(map(_aligned, row, widths, right)).rstrip() for row in rows]


def _aligned(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)


def _is_number(cell: str) -> bool:
    """`12`, `1.5 s`, `3%`."""
    return cell.strip().rstrip("%su ").replace(".", "", 1).isdigit()


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _line(source: str) -> str:
    from torch_spyre._inductor.inspect.report import source_text

    return _short(source_text(source), 52) if source else ""
