"""Everything the compiler refuses, one class for each kind of refusal.

A message says what, where (operation, shapes, layouts, source line) and what to try:

    NoLayout: cannot divide p0 of size 90 at [1, 64, 90]
      operation: identity of aten.clone.default
      input 0: arg0_1 torch.float16 [90, 64] strides [64, 1], layout [90, 64] / [64, 1]
      output: buf0 torch.float16 [5760] strides [1], no layout yet
      at: /home/me/model.py:12: y = x.reshape(-1)
      try: ...

The planner does not know the user's program: functions that work on one operation or node are
`@located` (operations/error_location.py), which adds the place to their exceptions. Lowerings raise
Unsupported without a place: the operation becomes a fallback with `what` as its reported reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OUTSIDE = (
    "compute it outside of the graph, in a function decorated with @torch.compiler.disable: "
    "there it runs eagerly"
)


@dataclass(frozen=True)
class Place:
    """What a refusal is about."""

    op: str
    tensors: tuple[str, ...] = ()
    source: str = ""


class Unsupported(NotImplementedError):
    """Something that this compiler cannot compile for the card."""

    usual_hint = OUTSIDE

    def __init__(
        self,
        what: str,
        *,
        op: str = "",
        tensors: Sequence[str] = (),
        source: str = "",
        hint: str = "",
    ) -> None:
        lines = [what]
        if op:
            lines.append(f"  operation: {op}")
        lines.extend(f"  {tensor}" for tensor in tensors)
        if source:
            lines.append(f"  at: {source}")
        if hint:
            lines.append(f"  try: {hint}")
        super().__init__("\n".join(lines))
        self.what = what
        self.op = op
        self.tensors = tuple(tensors)
        self.source = source
        self.hint = hint

    def at(self, place: Place) -> Unsupported:
        """The same refusal; what it does not say about its place is added."""
        return type(self)(
            self.what,
            op=place.op or self.op,
            tensors=self.tensors or place.tensors,
            source=self.source or place.source,
            hint=self.hint or self.usual_hint,
        )


class NoOpFunc(Unsupported):
    """A node needs an operation that the card does not have."""


class UnsupportedType(Unsupported):
    """A node works on a type that the operation does not have on the card."""

    usual_hint = f"convert the tensors to float16 or float32 before; or {OUTSIDE}"


class TooLarge(UnsupportedType):
    """Integers that overflow 32 bits: their users become fallbacks as well."""


class UnsupportedAccess(Unsupported):
    """A node reads or writes a tensor in a way that coordinates cannot express."""

    usual_hint = f"call .contiguous() on the input, or .clone() on the view; or {OUTSIDE}"


class NoLayout(Unsupported):
    """No choice of layouts makes an operation possible."""

    usual_hint = f"call .contiguous() on the input, or .clone() on the view; or {OUTSIDE}"


class CompilerMistake(Unsupported):
    """The compiler broke one of its own rules."""

    usual_hint = (
        "this is a mistake of the compiler, please report it with the directory that "
        f"TORCH_COMPILE_DEBUG=1 writes; until it is mended, {OUTSIDE}"
    )


def describe_layout(layout: Any) -> str:
    """A layout in a few characters, e.g. `[4, 128, 64] / [64, 256, 1]`."""
    return f"{list(layout.device_size)} / {list(layout.stride_map)}"
