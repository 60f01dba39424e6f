"""Run one operator with one dtype through torch.compile on the device, and compare with CPU.

In: an OpInfo entry, a dtype, a device, how many samples. Out: an `Outcome`, with the way that the
operator took: only documented operations of the card, extensions too, or steps of the host. All
samples of an operator are one graph, since a compilation costs more than a hundred runs; when
something is wrong, each sample is tried alone. What the device fails at is then given to CPU
Inductor: only what that compiles, and computes as eager CPU does, counts against the device.

    echo '{"op": "add", "dtype": "bool"}' | python -m tests.opinfo.worker --device spyre --compiled
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from torch.testing._internal import common_methods_invocations
from torch.utils._pytree import tree_flatten, tree_map

from . import known
from .compare import After, Case, after_difference, count_roundings, form_difference, is_narrow
from .worker import (
    SEED,
    Inputs,
    Outcome,
    clean,
    copy_inputs,
    describe,
    dtype_name,
    explain,
    op_name,
    pick_samples,
    place,
    seed,
)

NATIVE, EXTENSION, HOST, NOTHING = "native", "extension", "host", "no operation"

# What Dynamo raises for a program that is not one graph.
NOT_ONE_GRAPH = (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)


class Failed(Exception):
    """The device raised, or its result is not explained; `status` is error or mismatch."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Way:
    """What became of a graph: operations of the card, and what the host does, with reasons."""

    opfuncs: frozenset[str] = frozenset()
    operations: int = 0
    host: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The weakest of what was needed."""
        from torch_spyre.opfuncs import find

        if self.host:
            return HOST
        if not self.opfuncs:
            return NOTHING
        rows = [find(name) for name in self.opfuncs]
        return EXTENSION if any(row is None or row.extension for row in rows) else NATIVE


def check_compiled(
    op: Any,
    dtype: torch.dtype,
    device: torch.device,
    count: int,
    progress: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Try an operator with up to `count` samples, all in one graph.

    Random operators of the database seed themselves, in a way that Dynamo does not trace; here the
    seed is set before each run.
    """
    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", _direct):
        return _check(op, dtype, device, count, progress)


def _direct(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _check(
    op: Any,
    dtype: torch.dtype,
    device: torch.device,
    count: int,
    progress: Callable[[str], None],
) -> Outcome:
    blank = Outcome(op_name(op), dtype_name(dtype), "skipped")
    try:
        drawn = pick_samples(op, dtype, count)
    except Exception as error:
        return replace(blank, message="PyTorch's own samples cannot be made: " + explain(error))
    samples = [(s.input, tuple(s.args), dict(s.kwargs)) for s in drawn]
    if not samples:
        return replace(blank, message="PyTorch has no samples for it")
    good, refused = _accepted(op.op, samples)
    if not good:
        return replace(blank, message="CPU refuses every sample: " + refused)
    return _Attempt(op, dtype, device, progress).run(good, blank)


def _accepted(function: Callable[..., Any], samples: list[Inputs]) -> tuple[list[Inputs], str]:
    """The samples that CPU computes, and what it says about the first of the others."""
    good, refused = [], ""
    for sample in samples:
        try:
            _call(function, copy_inputs(sample))
            good.append(sample)
        except Exception as error:
            refused = refused or explain(error)
    return good, refused


def _call(function: Callable[..., Any], inputs: Inputs) -> Any:
    return function(inputs[0], *inputs[1], **inputs[2])


@dataclass
class _Attempt:
    """Compiles samples of one operator, together and alone."""

    op: Any
    dtype: torch.dtype
    device: torch.device
    progress: Callable[[str], None]
    way: Way = field(default_factory=Way)
    form_only: str = ""
    fullgraph: bool = True
    """Until Dynamo says, on CPU too, that the operator is not one graph."""

    def run(self, samples: list[Inputs], blank: Outcome) -> Outcome:
        """The outcome of the operator."""
        self.progress(f"{len(samples)} samples: {describe(samples[0])}")
        try:
            self.together(samples)
        except Failed as failure:
            return self.alone(samples, blank, failure)
        return self.matched(blank, len(samples))

    def matched(self, blank: Outcome, count: int) -> Outcome:
        """All is well, if anything was compiled."""
        if not self.fullgraph and self.way.kind == NOTHING:
            return replace(blank, message="Dynamo leaves it to eager PyTorch, on CPU as well")
        host = tuple(f"{op}: {why}" for op, why in sorted(self.way.host.items()))
        return replace(blank, status="match", message="", compared=count, form_only=self.form_only,
                       way=self.way.kind, host=host)  # fmt: skip

    def alone(self, samples: list[Inputs], blank: Outcome, joint: Failed) -> Outcome:
        """Try each sample by itself, to find the one to blame, and ask CPU Inductor about it."""
        left, excused, ways = 0, "", []
        for index, sample in enumerate(samples):
            where = f"sample {index + 1} of {len(samples)}: {describe(sample)}"
            self.progress(where)
            try:
                if len(samples) == 1:
                    raise joint
                self.together([sample])
            except Failed as failure:
                self.progress(where + " by CPU Inductor")
                excuse = self.excuse(sample)
                if not excuse:
                    return replace(blank, status=failure.status, message=str(failure),
                                   sample=where, compared=left)  # fmt: skip
                excused = excused or excuse
                continue
            left += 1
            ways.append(self.way)
        if not left:
            return replace(blank, message=excused)
        if not excused:
            where = f"all {len(samples)} samples in one graph, of which each alone matches"
            return replace(blank, status=joint.status, message=str(joint), sample=where)
        self.way = _joined(ways)
        return self.matched(blank, left)

    def excuse(self, sample: Inputs) -> str:
        """Why a sample that the device fails at is not one that CPU Inductor manages; or empty."""
        here = sample
        with contextlib.suppress(Exception):  # sparse tensors cannot go there and back
            _, here = place(sample, self.device, op_name(self.op) in known.ARGUMENTS_ON_HOST)
        batch, again = [copy_inputs(here)], [copy_inputs(here)]
        expected = self._on_cpu(again)
        torch._dynamo.reset()
        seed(SEED)
        try:
            compiled = torch.compile(self._program(), dynamic=False, fullgraph=self.fullgraph)
            got = compiled(batch)
        except Exception as error:
            return "CPU Inductor does not compile it: " + explain(error)
        case = Case(self.dtype, known.roundings(op_name(self.op)) or 8)
        said = form_difference(got, expected.result, torch.device("cpu"))
        said = said or after_difference(_after(got, batch), expected, case)
        return f"CPU Inductor gives something else than eager CPU: {said}" if said else ""

    def together(self, samples: list[Inputs]) -> None:
        """Compile one graph of all samples, run it and compare; raises Failed."""
        on_host = op_name(self.op) in known.ARGUMENTS_ON_HOST
        try:
            pairs = [place(sample, self.device, on_host) for sample in samples]
        except Exception as error:
            raise Failed("error", explain(error)) from error
        there, here = [a for a, _ in pairs], [b for _, b in pairs]
        before = [copy_inputs(x) for x in here]
        expected = self._on_cpu(here)
        torch._dynamo.reset()
        seed(SEED)
        try:
            with watched() as ways, _default_device(there, self.device):
                compiled = torch.compile(self._program(), dynamic=False, fullgraph=self.fullgraph)
                got = compiled(there)
            actual = _after(got, there)
        except NOT_ONE_GRAPH as error:
            if not self.fullgraph or self._is_one_graph(before):
                raise Failed("error", explain(error)) from error
            self.fullgraph = False
            self.together(samples)
            return
        except Exception as error:
            raise Failed("error", explain(error)) from error
        self.way = ways[0]
        self._check(got, actual, expected, before)

    def _is_one_graph(self, before: list[Inputs]) -> bool:
        """Say whether Dynamo makes one graph of the same call on CPU."""
        torch._dynamo.reset()
        try:
            program = torch.compile(self._program(), backend="eager", fullgraph=True, dynamic=False)
            program([copy_inputs(x) for x in before])
        except NOT_ONE_GRAPH:
            return False
        return True

    def _check(self, got: Any, actual: After, expected: After, before: list[Inputs]) -> None:
        said = form_difference(got, expected.result, self.device)
        if said:
            raise Failed("mismatch", said)
        if op_name(self.op) in known.UNINITIALISED:
            self.form_only = "the values are uninitialised"
            return
        said = after_difference(actual, expected, Case(self.dtype))
        if not said:
            return
        random = self._is_random(expected, before)
        said = self._difference_with_roundings(actual, expected, before, random)
        if said and random:
            self.form_only = "the device draws other random numbers"
        elif said:
            raise Failed("mismatch", said)

    def _difference_with_roundings(
        self, actual: After, expected: After, before: list[Inputs], random: bool
    ) -> str | None:
        """Compare again, knowing how many operations the card does and what float32 gives."""
        again = [copy_inputs(x) for x in before]
        counted = count_roundings(lambda: self._on_cpu(again)) if is_narrow(self.dtype) else 1
        steps = 1 + math.ceil(math.sqrt(self.way.operations / len(before)))
        roundings = max(counted, steps, known.roundings(op_name(self.op)) or 1)
        wide = None
        if is_narrow(self.dtype) and not random:
            inputs = [copy_inputs(x, wide=True) for x in before]
            with contextlib.suppress(Exception):  # some operators exist in half precision only
                wide = self._on_cpu(inputs)
        return after_difference(actual, expected, Case(self.dtype, roundings), wide)

    def _is_random(self, expected: After, before: list[Inputs]) -> bool:
        """Say whether CPU itself answers differently with another seed."""
        other = self._on_cpu([copy_inputs(x) for x in before], SEED + 1)
        return after_difference(other, expected, Case(self.dtype)) is not None

    def _on_cpu(self, batch: list[Inputs], number: int = SEED) -> After:
        seed(number)
        for x in tree_flatten(batch)[0]:
            if isinstance(x, torch.Generator) and number != SEED:
                x.manual_seed(number)
        return _after(self._program()(batch), batch)

    def _program(self) -> Callable[[list[Inputs]], list[Any]]:
        function = self.op.op

        def program(batch: list[Inputs]) -> list[Any]:
            return [function(first, *args, **kwargs) for first, args, kwargs in batch]

        return program


def _joined(ways: Sequence[Way]) -> Way:
    host = {op: why for way in ways for op, why in way.host.items()}
    opfuncs = frozenset(name for way in ways for name in way.opfuncs)
    return Way(opfuncs, sum(way.operations for way in ways), host)


@contextlib.contextmanager
def watched() -> Iterator[list[Way]]:
    """The ways that graphs take which are compiled in the block; filled in when it ends."""
    from torch_spyre._inductor.inspect import debug_dir

    ways: list[Way] = []
    with debug_dir.listen() as record:
        yield ways
    operations = [op for plan in record.plans for k in plan.kernels for op in k.operations]
    host = {clean(step.op): clean(step.reason) for plan in record.plans for step in plan.fallbacks}
    ways.append(Way(frozenset(op.opfunc for op in operations), len(operations), host))


def _default_device(batch: list[Inputs], device: torch.device) -> Any:
    """Operators that are not told where (`arange(3)`) get the device as the default."""
    told = all(
        any(isinstance(x, torch.Tensor | torch.device) for x in tree_flatten(inputs)[0])
        for inputs in batch
    )
    return contextlib.nullcontext() if told else device


def _after(result: Any, batch: list[Inputs]) -> After:
    """Return, on the host, what a call returned and the tensors among its inputs."""
    tensors = [x.cpu() for x in tree_flatten(batch)[0] if isinstance(x, torch.Tensor)]
    return After(tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, result), tensors)
