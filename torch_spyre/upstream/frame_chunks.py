"""Allocates a 2 MB chunk of CPython frames before the compiler runs.

The interpreter (since Python 3.11) keeps the frames of Python functions in chunks of 16 KB. A call
that does not fit into the last chunk maps another one, and unmaps it when it returns. Compilers
call small functions from far down: wherever a loop happens to stand at the end of a chunk, each
turn of it costs a system call or two and a page fault, 5 to 10 us instead of 0.1.

A chunk is as large as its first frame needs, and twice as large if that is a little more than a
power of two. So a function that claims to need 2 MB brings 2 MB more for all that it calls:

    with_room(compile, graph)      # compile(graph), 2 MB of frames deep before it maps more

Memory that is never touched is never really there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_BYTES = 1 << 21
_SLOT = 8  # bytes of a place for one object on a frame's stack


def with_room(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """`function(*args, **kwargs)`."""
    return function(*args, **kwargs)


with_room.__code__ = with_room.__code__.replace(co_stacksize=_BYTES // _SLOT)
