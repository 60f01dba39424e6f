"""Run one operator with one dtype on the device and on CPU, and say how the results compare.

In: an OpInfo entry, a dtype, a device, how many samples. Out: an `Outcome`: match, mismatch, error
or skipped, with the first failure's message and sample. As a program it reads one JSON task per
line on standard input and answers with JSON lines on standard output: {"at": sample} before each
sample, so that a crash can be blamed on it, then {"outcome": ...}. What operators print goes to
standard error.

    echo '{"op": "add", "dtype": "bool"}' | python -m tests.opinfo.worker --device spyre
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import hashlib
import json
import os
import random
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from . import known
from .compare import After, Case, after_difference, count_roundings, form_difference, is_narrow

SEED = 20
LONGEST_TEXT = 240

# (input, args, kwargs) of one call.
Inputs = tuple[Any, tuple[Any, ...], dict[str, Any]]
Call = Callable[[Inputs], Any]


@dataclass(frozen=True)
class Outcome:
    """What one operator did with one dtype.

    `status` is match, mismatch, error, skipped, crash or hang; `compared` counts the samples whose
    results were compared; `form_only` says why only shapes were, if so; `note` is no failure. In
    compiled mode `way` is native, extension, host or no operation, and `host` what the host does.
    """

    op: str
    dtype: str
    status: str
    message: str = ""
    sample: str = ""
    compared: int = 0
    form_only: str = ""
    note: str = ""
    way: str = ""
    host: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", tuple(self.host))  # JSON has lists


class _Difference(Exception):
    """A result of the device that CPU's result does not explain."""


class _CpuRaised(Exception):
    """CPU itself refuses the sample; remembers whether the device refuses it in the same way."""

    def __init__(self, cpu: Exception, device: Exception | None) -> None:
        super().__init__(f"{type(cpu).__name__}: {cpu}")
        self.same = type(cpu) is type(device)
        self.kinds = type(cpu).__name__, type(device).__name__ if device else "no error"


# -------------------------------------------------------------------------------------------------
# 1. The operators and their samples


def op_name(op: Any) -> str:
    """Return the name of an OpInfo entry with its variant, as in `norm.fro`."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def all_ops() -> dict[str, Any]:
    """Return PyTorch's operator database by name, sorted."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {op_name(op): op for op in sorted(op_db, key=op_name)}


def pick_samples(op: Any, dtype: torch.dtype, count: int) -> list[Any]:
    """Return up to `count` samples, spread evenly over all that PyTorch has for this operator."""
    seed(SEED)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    if len(samples) <= count:
        return samples
    step = (len(samples) - 1) / max(count - 1, 1)
    return [samples[round(i * step)] for i in range(count)]


def describe(inputs: Inputs) -> str:
    """Write a call's inputs on one line, tensors as dtype and shape."""
    first, args, kwargs = inputs
    parts = [_show(x) for x in (first, *args)] + [f"{k}={_show(v)}" for k, v in kwargs.items()]
    return _shorten("(" + ", ".join(parts) + ")")


def _show(value: Any) -> str:
    """Write one argument."""
    if isinstance(value, torch.Tensor):
        holes = "" if value.layout != torch.strided or value.is_contiguous() else " strided"
        return f"{dtype_name(value.dtype)}{list(value.shape)}{holes}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_show(x) for x in value)}]"
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return repr(value)


# -------------------------------------------------------------------------------------------------
# 2. The same inputs on both sides


def place(
    inputs: Inputs, device: torch.device, args_on_host: bool = False
) -> tuple[Inputs, Inputs]:
    """Copy inputs to the device; return them there, and on the host as the device holds them.

    The same tensor passed twice stays one tensor on each side, strides are kept, and devices and
    generators are made for the side they are on. `args_on_host` leaves all but the first input.
    """
    if args_on_host:
        first = place((inputs[0], (), {}), device)
        return (first[0][0], *copy_inputs(inputs)[1:]), (first[1][0], *copy_inputs(inputs)[1:])
    seen: dict[int, tuple[Any, Any]] = {}

    def both(x: Any) -> tuple[Any, Any]:
        if isinstance(x, torch.Tensor):
            if id(x) not in seen:
                seen[id(x)] = _place_tensor(x.detach(), device)
            return seen[id(x)]
        if isinstance(x, torch.Generator):
            state = x.initial_seed()
            there, here = torch.Generator(device), torch.Generator()
            return there.manual_seed(state), here.manual_seed(state)
        names_cpu = str(x) == "cpu" if isinstance(x, str | torch.device) else False
        return (device, x) if names_cpu else (x, x)

    leaves, tree = tree_flatten(inputs)
    pairs = [both(x) for x in leaves]
    there, here = ([pair[side] for pair in pairs] for side in (0, 1))
    return tree.unflatten(there), tree.unflatten(here)


def _place_tensor(x: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy one tensor to the device and back; a view of a larger storage stays one."""
    if x.layout != torch.strided:
        there = x.to(device, copy=True)
        return there, there.to("cpu", copy=True)
    whole = x.resolve_conj().resolve_neg()
    count = whole.untyped_storage().nbytes() // whole.element_size()
    if count == x.numel() and torch.ops.aten.is_non_overlapping_and_dense(x):
        there = whole.to(device, copy=True)
        return there, there.to("cpu", copy=True)
    base = whole.as_strided((count,), (1,), 0).to(device, copy=True)
    view = (x.size(), x.stride(), x.storage_offset())
    return base.as_strided(*view), base.to("cpu", copy=True).as_strided(*view)


def copy_inputs(inputs: Inputs, wide: bool = False) -> Inputs:
    """Copy a call's host inputs for one more CPU run, with `wide` in float32 instead of half."""

    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            x = _place_tensor(x, torch.device("cpu"))[0]
            return x.float() if wide and is_narrow(x.dtype) else x
        if isinstance(x, torch.dtype) and wide and is_narrow(x):
            return torch.float32
        if isinstance(x, torch.Generator):
            return torch.Generator().manual_seed(x.initial_seed())
        return x

    return tree_map(one, inputs)


# -------------------------------------------------------------------------------------------------
# 3. One call on both sides


@dataclass
class Trial:
    """Tries one form (functional, in-place, out=) of one operator on one sample after the other."""

    name: str
    dtype: torch.dtype
    device: torch.device
    form_only: str = ""

    def run(self, call: Call, inputs: Inputs) -> None:
        """Call on both sides with the same inputs; raise when the results are not explained."""
        there, here = place(inputs, self.device, self.name in known.ARGUMENTS_ON_HOST)
        before = copy_inputs(here)
        expected = self._expect(call, here, there)
        got = self._on_device(call, there)
        self._check(call, (got, there), (expected, here), before)

    def _on_device(self, call: Call, there: Inputs) -> Any:
        """Call on the device; one that is not told where (`arange(3)`) gets it as the default."""
        seed(SEED)
        told = any(isinstance(x, torch.Tensor | torch.device) for x in tree_flatten(there)[0])
        with contextlib.nullcontext() if told else self.device:
            return call(there)

    def _expect(self, call: Call, here: Inputs, there: Inputs) -> Any:
        """Return CPU's result; when CPU raises, see whether the device does so too."""
        seed(SEED)
        try:
            return call(here)
        except Exception as cpu_error:
            device_error = None
            try:
                self._on_device(call, there)
            except Exception as error:
                device_error = error
            raise _CpuRaised(cpu_error, device_error) from None

    def _check(
        self, call: Call, got: tuple[Any, Inputs], expected: tuple[Any, Inputs], before: Inputs
    ) -> None:
        """Compare results, and inputs after the call: both sides must leave the same alone."""
        said = form_difference(got[0], expected[0], self.device)
        if said:
            raise _Difference(said)
        if self.name in known.UNINITIALISED:
            self.form_only = "the values are uninitialised"
            return
        there, here = _after(*got), _after(*expected)
        said = after_difference(there, here, Case(self.dtype))
        if not said:
            return
        random = self._is_random(call, here, before)
        if is_narrow(self.dtype) or known.roundings(self.name):
            said = self._difference_with_roundings(call, there, here, before, random)
        if said and random:
            self.form_only = "the device draws other random numbers"
        elif said:
            raise _Difference(said)

    def _is_random(self, call: Call, expected: After, before: Inputs) -> bool:
        """Say whether CPU itself answers differently with another seed."""
        again = copy_inputs(before)
        tree_map(lambda x: x.manual_seed(SEED + 1) if isinstance(x, torch.Generator) else x, again)
        seed(SEED + 1)
        other = _after(call(again), again)
        return after_difference(other, expected, Case(self.dtype)) is not None

    def _difference_with_roundings(
        self, call: Call, got: After, expected: After, before: Inputs, random: bool
    ) -> str | None:
        """Compare again, knowing how often the operator rounds and what CPU gets in float32."""
        roundings = known.roundings(self.name) or 1
        wide = None
        if is_narrow(self.dtype) and roundings == 1:
            again = copy_inputs(before)
            seed(SEED)
            roundings = count_roundings(lambda: call(again))
        if is_narrow(self.dtype) and not random:  # float32 draws other numbers than half precision
            wide_inputs = copy_inputs(before, wide=True)
            with contextlib.suppress(Exception):  # some operators exist in half precision only
                wide = _after(call(wide_inputs), wide_inputs)
        return after_difference(got, expected, Case(self.dtype, roundings), wide)


def _after(result: Any, inputs: Inputs) -> After:
    """Return, on the host, what a call returned and the tensors among its inputs."""
    tensors = [x.cpu() for x in tree_flatten(inputs)[0] if isinstance(x, torch.Tensor)]
    return After(tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, result), tensors)


# -------------------------------------------------------------------------------------------------
# 4. One operator


def check_op(
    op: Any,
    dtype: torch.dtype,
    device: torch.device,
    count: int,
    progress: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Try an operator with up to `count` samples, in-place and out= with the first of them."""
    name, kind = op_name(op), dtype_name(dtype)
    try:
        samples = pick_samples(op, dtype, count)
    except Exception as error:
        return Outcome(
            name, kind, "skipped", "PyTorch's own samples cannot be made: " + explain(error)
        )
    if not samples:
        return Outcome(name, kind, "skipped", "PyTorch has no samples for it")
    trial = Trial(name, dtype, device)
    compared, refused, notes = 0, "", []
    for index, sample in enumerate(samples):
        inputs = (sample.input, tuple(sample.args), dict(sample.kwargs))
        forms = forms_of(op, sample) if not compared else forms_of(op, sample)[:1]
        for form, call in forms:
            where = f"sample {index + 1} of {len(samples)}{form}: {describe(inputs)}"
            progress(where)
            try:
                trial.run(call, inputs)
            except _CpuRaised as raised:
                if form:
                    continue
                refused = refused or str(raised)
                if not raised.same:
                    notes.append("CPU raises {}, the device {}".format(*raised.kinds))
                break
            except _Difference as found:
                return Outcome(name, kind, "mismatch", str(found), where, compared)
            except Exception as error:
                return Outcome(name, kind, "error", explain(error), where, compared)
            if not form:
                compared += 1
    note = notes[0] if notes else ""
    if not compared:
        return Outcome(
            name, kind, "skipped", "CPU refuses every sample: " + clean(refused), note=note
        )
    return Outcome(name, kind, "match", compared=compared, form_only=trial.form_only, note=note)


def forms_of(op: Any, sample: Any) -> list[tuple[str, Call]]:
    """Return the ways to call an operator: functional, then in place and with out= if it can."""

    def functional(inputs: Inputs) -> Any:
        return op.op(inputs[0], *inputs[1], **inputs[2])

    def into(inputs: Inputs) -> Any:
        room = tree_map(
            lambda x: torch.ones_like(x) if isinstance(x, torch.Tensor) else x, functional(inputs)
        )
        seed(SEED)
        return op.op(inputs[0], *inputs[1], **inputs[2], out=room)

    forms: list[tuple[str, Call]] = [("", functional)]
    in_place = op.get_inplace()
    if in_place is not None and not sample.broadcasts_input:
        forms.append((", in place", lambda inputs: in_place(inputs[0], *inputs[1], **inputs[2])))
    if op.supports_out and "out" not in sample.kwargs:
        forms.append((", out=", into))
    return forms


def explain(error: BaseException) -> str:
    """Write an exception on one line."""
    return clean(f"{type(error).__name__}: {error}")


def clean(text: str) -> str:
    """Keep the first meaningful line of a message, without paths, addresses and process numbers."""
    line = next((x.strip() for x in text.splitlines() if x.strip()), "")
    if line.endswith(":") and len(text.splitlines()) > 1:
        line = " ".join(text.split())
    line = re.sub(r"0x[0-9a-fA-F]+", "0x…", line)
    line = re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+([\w.+-]+)", r"\1", line)
    return _shorten(line)


def _shorten(text: str) -> str:
    """Cut a text that is too long for a table."""
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without the module."""
    return str(dtype).removeprefix("torch.")


def seed(number: int) -> None:
    """Seed every generator that an operator or a sample may draw from, on every device."""
    random.seed(number)
    torch.manual_seed(number)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(number)


def silence_warnings() -> None:
    """Hide what thousands of samples warn about, fallbacks to CPU above all."""
    warnings.simplefilter("ignore")
    try:
        from torch_spyre.ops.fallbacks import FallbackWarning
    except ImportError:
        return
    warnings.filterwarnings("ignore", category=FallbackWarning)


# -------------------------------------------------------------------------------------------------
# 5. The worker program


def device_build() -> str:
    """Return a fingerprint of the device's code as this process finds it on disk."""
    package = sys.modules.get("torch_spyre")
    if package is None or package.__file__ is None:
        return ""
    digest = hashlib.sha256()
    for path in sorted(Path(package.__file__).parent.rglob("*")):
        if path.suffix in (".py", ".so"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def main() -> int:
    """Answer tasks until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--compiled", action="store_true")
    args = parser.parse_args()

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    faulthandler.enable()
    silence_warnings()
    torch.set_num_threads(1)

    def send(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    build = device_build()
    try:
        device = torch.device(args.device)
        torch.ones(1, device=device).cpu()
    except Exception as error:
        send(fatal=f"the device {args.device!r} does not work: {explain(error)}")
        return 1
    ops = all_ops()
    check = check_op
    if args.compiled:
        from .compiled import check_compiled as check
    send(build=build)
    for line in sys.stdin:
        task = json.loads(line)
        dtype = getattr(torch, task["dtype"])
        outcome = check(ops[task["op"]], dtype, device, args.samples, lambda at: send(at=at))
        send(outcome=asdict(outcome))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
