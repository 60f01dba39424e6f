"""Local search for the divisions of a kernel, with incremental cost updates.

In: for each operation its candidates with their views of its tensors (`candidates.Options`),
and which buffers they share. Out: choices, one candidate for each operation.

The cost of a choice is that of its operations, given which of their tensors are LX-resident, plus
that of the copies and moves into scratchpads (`scratchpad/estimate`, buffer by buffer). A `_State`
is a choice with all these numbers. A change of one operation invalidates the estimates of its own
buffers, and the prices of those operations whose tensors become resident or stop being so: only
these are recomputed. The best candidate of an operation depends on few neighbours, so it is
memoised across identical layers.

Example: `search.improve([0] * len(options))`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from torch_spyre._inductor.planning.scratchpad.estimate import Estimate, estimate, uses_in_order
from torch_spyre.card_model.core_slices import CoreView
from torch_spyre.hardware import CARD

_SWEEPS = 4
_WASTE = 2.0
"""Microseconds that a tensor may cost before several operations are changed for it."""
_BROKEN = 24
"""Tensors that are mended in one kernel."""
_SPREAD = 32
"""Operations that are changed together."""
_MANY = 8
"""Uses of a buffer that are counted by view."""

_Views = tuple[int, ...]
"""Numbers of views, one for each use of a buffer."""
Flags = tuple[bool, ...]
"""Which tensors of an operation are in scratchpads."""


class PricedOptions(Protocol):
    """The candidates of an operation, priced; shared by identical operations."""

    cheapest: int

    @property
    def views(self) -> Sequence[tuple[CoreView | None, ...]]:
        """For each candidate the views of the tensors; None where one cannot be in scratchpads."""

    def us(self, candidate: int, in_lx: Flags) -> float:
        """Modelled time of a candidate with some of the tensors in scratchpads."""


class _Use(NamedTuple):
    time: int
    number: int
    """Of the tensor in its operation."""


@dataclass(frozen=True)
class _Buffer:
    uses: tuple[_Use, ...]
    """The writer comes first."""
    order: tuple[int, ...]
    """The operations of the uses, numbered from 0."""
    is_written: bool
    in_memory: bool
    kind: int
    """Equal for buffers of which the same views have the same estimate."""

    @cached_property
    def used_once_each(self) -> bool:
        """No operation uses it twice."""
        return self.order == tuple(range(len(self.order)))


class _Tensor(NamedTuple):
    """A tensor of an operation that can stay: its number, and those of its buffer and use."""

    number: int
    buffer: int
    use: int


@dataclass
class _State:
    """A choice, and what follows from it."""

    choice: list[int]
    views: list[_Views]
    """For each buffer those of its uses."""
    estimates: list[Estimate]
    flags: list[Flags]
    us: list[float]
    looks: list[int]
    """A number for each operation with its choice and flags; equal where these are."""
    total: float = 0.0

    def copy(self) -> _State:
        return _State(
            self.choice[:],
            self.views[:],
            self.estimates[:],
            self.flags[:],
            self.us[:],
            self.looks[:],
            self.total,
        )


class _Numbers:
    """Interns values as small numbers: cheaper to compare and to look up."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def of(self, thing: Hashable) -> int:
        return self._known.setdefault(thing, len(self._known))


class Search:
    """`fixed` buffers are in memory in any case, those in `never` are nowhere else. `moves`:
    scratchpads can be moved to others over the ring."""

    def __init__(
        self,
        options: Sequence[PricedOptions],
        buffers: Sequence[Sequence[Any]],
        lx_bytes: int,
        fixed: Collection[Any],
        never: Collection[Any],
        moves: bool,
    ) -> None:
        self._options = options
        self._lx_bytes = lx_bytes
        self._moves = moves
        self._counts = [len(names) for names in buffers]
        self._kinds, self._views, self._looks = _Numbers(), _Numbers(), _Numbers()
        self._view_of: list[CoreView | None] = []
        self._seen = self._numbered_views()
        self._buffers = self._found(buffers, fixed, never) if lx_bytes else []
        self._tensors: list[list[_Tensor]] = [[] for _ in options]
        for number, buffer in enumerate(self._buffers):
            for use, (time, tensor) in enumerate(buffer.uses):
                self._tensors[time].append(_Tensor(tensor, number, use))
        self._uses: list[list[tuple[int, list[_Tensor]]]] = []
        """For each operation its buffers, and the tensors that each of them is."""
        for tensors in self._tensors:
            by_buffer: dict[int, list[_Tensor]] = {}
            for mine in tensors:
                by_buffer.setdefault(mine.buffer, []).append(mine)
            self._uses.append(list(by_buffer.items()))
        self._around: list[tuple[int, ...]] = []
        """For each operation those that share a buffer with it, and itself."""
        for time, tensors in enumerate(self._tensors):
            near = {use.time for t in tensors for use in self._buffers[t.buffer].uses}
            self._around.append(tuple(sorted(near | {time})))
        self._shapes = self._numbered_shapes()
        self._estimates: dict[tuple[Any, ...], Estimate] = {}
        self._many: dict[tuple[Any, ...], tuple[frozenset[int], float]] = {}
        self._answers: dict[tuple[Any, ...], int] = {}

    # ---- What there is ----

    def _numbered_views(self) -> list[list[tuple[int, ...]]]:
        """The views of all candidates as numbers."""
        known: dict[int, list[tuple[int, ...]]] = {}
        for options in self._options:
            if id(options) not in known:
                known[id(options)] = [
                    tuple([self._number_of(view) for view in views]) for views in options.views
                ]
        return [known[id(options)] for options in self._options]

    def _number_of(self, view: CoreView | None) -> int:
        number = self._views.of(view)
        if number == len(self._view_of):
            self._view_of.append(view)
        return number

    def _found(
        self, buffers: Sequence[Sequence[Any]], fixed: Collection[Any], never: Collection[Any]
    ) -> list[_Buffer]:
        writers: dict[Any, list[_Use]] = {}
        readers: dict[Any, list[_Use]] = {}
        for time, names in enumerate(buffers):
            for number, name in enumerate(names):
                writers.setdefault(name, [])
                kind_of_use = writers if number == len(names) - 1 else readers
                kind_of_use.setdefault(name, []).append(_Use(time, number))
        found = []
        for name, first in writers.items():
            rest = readers.get(name, [])
            if name in never or not uses_in_order([u.time for u in first], [u.time for u in rest]):
                continue
            uses = (*first, *rest)
            numbers = {time: i for i, time in enumerate(dict.fromkeys(u.time for u in uses))}
            order = tuple([numbers[use.time] for use in uses])
            kind = (order, bool(first), name in fixed)
            found.append(_Buffer(uses, *kind, self._kinds.of(kind)))
        return found

    def _numbered_shapes(self) -> list[int]:
        """A number for each operation, equal where operations and buffers around it are the same
        ones, connected in the same way."""
        numbers = _Numbers()
        shapes = []
        for time, tensors in enumerate(self._tensors):
            local = {t: i for i, t in enumerate(self._around[time])}
            connected = tuple([
                (t.number, t.use, self._buffers[t.buffer].kind,
                 tuple([(local[u.time], u.number) for u in self._buffers[t.buffer].uses]))
                for t in tensors
            ])  # fmt: skip
            near = tuple([id(self._options[t]) for t in self._around[time]])
            shapes.append(numbers.of((local[time], near, connected)))
        return shapes

    # ---- What a choice costs ----

    def state(self, choice: Sequence[int]) -> _State:
        """A choice with all that follows from it."""
        views = [self._views_of(b, choice, {}) for b in self._buffers]
        estimates = [self._estimate(b, mine) for b, mine in zip(self._buffers, views)]
        count = len(choice)
        state = _State(list(choice), views, estimates, [()] * count, [0.0] * count, [0] * count)
        for time in range(count):
            flags = [False] * self._counts[time]
            for tensor in self._tensors[time]:
                flags[tensor.number] = estimates[tensor.buffer].in_lx[tensor.use]
            self._set(state, time, tuple(flags))
        state.total = sum(state.us) + sum(e.us for e in estimates)
        return state

    def _views_of(
        self, buffer: _Buffer, choice: Sequence[int], changed: Mapping[int, int]
    ) -> _Views:
        """Of a buffer, with other candidates for operations that are `changed`."""
        seen, get = self._seen, changed.get
        return tuple([seen[t][get(t, choice[t])][n] for t, n in buffer.uses])

    def _estimate(self, buffer: _Buffer, views: _Views) -> Estimate:
        key = (buffer.kind, views)
        found = self._estimates.get(key)
        if found is None:
            few = len(views) < _MANY or not buffer.used_once_each
            make = self._estimated if few else self._estimated_by_count
            found = self._estimates[key] = make(buffer, views)
        return found

    def _estimated(self, buffer: _Buffer, views: _Views) -> Estimate:
        return estimate(
            tuple([self._view_of[view] for view in views]),
            buffer.order,
            buffer.is_written,
            buffer.in_memory,
            self._lx_bytes,
            self._moves,
        )

    def _estimated_by_count(self, buffer: _Buffer, views: _Views) -> Estimate:
        """What each layer uses: which view is the first one, which come in which order, and how
        often each, is all that counts."""
        counts = tuple([(view, views.count(view)) for view in dict.fromkeys(views)])
        key = (buffer.is_written, buffer.in_memory, counts)
        if key not in self._many:
            found = self._estimated(buffer, views)
            inside = frozenset(view for view, in_lx in zip(views, found.in_lx) if in_lx)
            self._many[key] = inside, found.us
        inside, us = self._many[key]
        return Estimate(tuple([view in inside for view in views]), us)

    def _set(self, state: _State, time: int, flags: Flags) -> None:
        candidate = state.choice[time]
        state.flags[time] = flags
        state.us[time] = self._options[time].us(candidate, flags)
        state.looks[time] = self._looks.of((id(self._options[time]), candidate, flags))

    def change(self, state: _State, changed: Mapping[int, int]) -> set[int]:
        """Give operations other candidates; those for which something else can be best now."""
        touched = dict.fromkeys(t.buffer for time in changed for t in self._tensors[time])
        before = state.total
        flags: dict[int, list[bool]] = {time: list(state.flags[time]) for time in changed}
        for number in touched:
            buffer = self._buffers[number]
            views = state.views[number] = self._views_of(buffer, state.choice, changed)
            old, new = state.estimates[number], self._estimate(buffer, views)
            if new is old:
                continue
            state.estimates[number] = new
            before += new.us - old.us
            if new.in_lx != old.in_lx:
                for use, (time, tensor) in enumerate(buffer.uses):
                    if new.in_lx[use] != old.in_lx[use]:
                        mine = flags.setdefault(time, list(state.flags[time]))
                        mine[tensor] = new.in_lx[use]
        for time, candidate in changed.items():
            state.choice[time] = candidate
        for time, new_flags in flags.items():
            before -= state.us[time]
            self._set(state, time, tuple(new_flags))
            before += state.us[time]
        state.total = before
        return {near for time in flags for near in self._around[time]}

    # ---- One operation at a time ----

    def improve(self, start: _State) -> _State:
        """Change one operation at a time while that helps."""
        state = start.copy()
        waiting = set(range(len(state.choice)))
        for _ in range(_SWEEPS if self._lx_bytes else 1):
            now, changed = waiting, False
            waiting = set()
            for time in range(len(state.choice)):
                if time not in now:
                    continue
                waiting.discard(time)
                best = self._best(time, state)
                if best != state.choice[time]:
                    changed = True
                    near = self.change(state, {time: best})
                    now |= near
                    waiting |= near
            if not changed:
                break
        return state

    def _best(self, time: int, state: _State) -> int:
        key = (self._shapes[time], tuple([state.looks[t] for t in self._around[time]]))
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = self._compare(time, state)
        return found

    def _compare(self, time: int, state: _State) -> int:
        """The candidate with the least cost of all that depends on it."""
        options, tensors = self._options[time], self._tensors[time]
        best = state.choice[time]
        mine = self._seen[time]
        known: dict[tuple[int, ...], tuple[float, Flags]] = {}

        def cost(candidate: int) -> float:
            views = tuple([mine[candidate][t.number] for t in tensors])
            found = known.get(views)
            if found is None:
                found = known[views] = self._rest(time, candidate, state)
            return found[0] + options.us(candidate, found[1])

        least = cost(best)
        for candidate in range(len(mine)):
            if candidate != best and (us := cost(candidate)) < least - 1e-6:
                least, best = us, candidate
        return best

    def _rest(self, time: int, candidate: int, state: _State) -> tuple[float, Flags]:
        """What others pay more than now when an operation has a candidate; and its own flags."""
        us = 0.0
        others: dict[int, list[bool]] = {}
        flags = [False] * self._counts[time]
        mine = self._seen[time][candidate]
        for number, tensors in self._uses[time]:
            buffer, old, views = self._buffers[number], state.estimates[number], state.views[number]
            for tensor in tensors:
                use = tensor.use
                views = (*views[:use], mine[tensor.number], *views[use + 1 :])
            new = old if views == state.views[number] else self._estimate(buffer, views)
            for tensor in tensors:
                flags[tensor.number] = new.in_lx[tensor.use]
            us += new.us - old.us
            if new.in_lx == old.in_lx:
                continue
            for use, (t, number) in enumerate(buffer.uses):
                if t != time and new.in_lx[use] != old.in_lx[use]:
                    others.setdefault(t, list(state.flags[t]))[number] = new.in_lx[use]
        for t, changed in others.items():
            us += self._options[t].us(state.choice[t], tuple(changed)) - state.us[t]
        return us, tuple(flags)

    # ---- Several at once ----

    def agree(self, state: _State) -> _State:
        """Change several operations at once: those around a tensor that costs much because they
        do not agree, all to the division of one of them, and their neighbours with them."""
        best = state
        wasted = [self._wasted(number, state) for number in range(len(self._buffers))]
        broken = sorted([(-us, number) for number, us in enumerate(wasted) if us > _WASTE])
        for _, number in broken[:_BROKEN]:
            if self._wasted(number, best) <= _WASTE:
                continue  # mended with another one
            for time in dict.fromkeys(use.time for use in self._buffers[number].uses):
                trial = best.copy()
                self.change(trial, self._spread(time, number, best.choice))
                if trial.total < best.total - 1e-6:
                    best = trial
        return best

    def _wasted(self, number: int, state: _State) -> float:
        """Microseconds that a buffer costs because its users do not agree."""
        found, buffer = state.estimates[number], self._buffers[number]
        missing = len(buffer.uses) - sum(found.in_lx) - buffer.in_memory
        if missing <= 0:
            return found.us
        return found.us + missing * self._bytes(number, state.choice) / CARD.memory_bytes_per_us

    def _view(self, use: _Use, choice: Sequence[int]) -> CoreView | None:
        return self._options[use.time].views[choice[use.time]][use.number]

    def _bytes(self, number: int, choice: Sequence[int]) -> int:
        views = (self._view(use, choice) for use in self._buffers[number].uses)
        return max((view.all_bytes for view in views if view is not None), default=0)

    def _spread(self, time: int, number: int, choice: Sequence[int]) -> dict[int, int]:
        """All who share large tensors with an operation, and with them, divided as it is."""
        changed: dict[int, int] = {}
        enough = self._bytes(number, choice) // 4
        seen, waiting = {time}, [time]
        while waiting and len(seen) < _SPREAD:
            now = waiting.pop(0)
            mine = self._seen[now][changed.get(now, choice[now])]
            for tensor in self._tensors[now]:
                wanted = mine[tensor.number]
                view = self._view_of[wanted]
                if view is None or view.all_bytes < enough:
                    continue
                for t, n in self._buffers[tensor.buffer].uses:
                    if t in seen:
                        continue
                    fitting = [i for i, views in enumerate(self._seen[t]) if views[n] == wanted]
                    if not fitting:
                        continue
                    seen.add(t)
                    waiting.append(t)
                    if choice[t] not in fitting:
                        all_lx = (True,) * self._counts[t]
                        us = self._options[t].us
                        changed[t] = min(fitting, key=_with(us, all_lx))
        return changed

    def forward(self) -> list[int]:
        """Operation after operation, each as its inputs would like it, hoping that its own readers
        do the same."""
        choice: list[int] = []
        known: dict[tuple[Any, ...], int] = {}
        for time, options in enumerate(self._options):
            wanted = tuple([self._wanted(time, tensor, choice) for tensor in self._tensors[time]])
            key = (id(options), wanted)
            if key not in known:
                known[key] = self._liked(time, wanted)
            choice.append(known[key])
        return choice

    def _wanted(self, time: int, tensor: _Tensor, choice: Sequence[int]) -> tuple[int, int]:
        """The number of a tensor, and its view so far; -1 for none yet, -2 where it is in memory or
        those who use it do not agree."""
        buffer = self._buffers[tensor.buffer]
        views = {self._seen[t][choice[t]][n] for t, n in buffer.uses if t < time}
        if len(views) > 1 or (buffer.in_memory and not views):
            return tensor.number, -2
        return tensor.number, views.pop() if views else -1

    def _liked(self, time: int, wanted: Sequence[tuple[int, int]]) -> int:
        options = self._options[time]

        def us(candidate: int) -> float:
            flags = [False] * self._counts[time]
            for number, view in wanted:
                mine = self._seen[time][candidate][number]
                found = self._view_of[mine]
                fits = found is not None and found.own_bytes <= self._lx_bytes
                flags[number] = fits and view in (-1, mine)
            return options.us(candidate, tuple(flags))

        return min([options.cheapest, *range(len(self._seen[time]))], key=us)


def _with(us: Callable[[int, Flags], float], flags: Flags) -> Callable[[int], float]:
    return lambda candidate: us(candidate, flags)
