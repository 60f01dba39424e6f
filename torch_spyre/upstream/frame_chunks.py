"""Room for the calls of a compiler, in one piece.

The interpreter (since Python 3.11) keeps the frames of Python functions in pieces of 16 KB, one
behind the other. A call that does not fit into the last piece asks the system for another one, and
gives it back when it returns. Compilers call small functions from far down: wherever a loop happens
to stand at the end of a piece, each turn of it costs a system call or two and a page fault, 5 to 10
us instead of 0.1. Which loop that is depends on the depth at which it was called; of compiling a
model it is a sixth.

A piece is as large as the first frame in it needs, and twice as large if that is a little more than
a power of two. So a function that claims to need 2 MB brings 2 MB more for all that it calls:

    with_room(compile, graph)      # compile(graph), 2 MB of frames deep before it asks for more

Memory that nobody touches is never really there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from torch_spyre.constants import DEVICE_NAME

T = TypeVar("T")

_BYTES = 1 << 21
_SLOT = 8  # bytes of a place for one object on a frame's stack


def with_room(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """`function(*args, **kwargs)`."""
    return function(*args, **kwargs)


with_room.__code__ = with_room.__code__.replace(co_stacksize=_BYTES // _SLOT)


def give_dynamo_room(convert_frame: Any) -> None:
    """Wrap what Dynamo calls for each frame that it compiles, once a card has started.

    Fails when it can go: test_calls_at_the_end_of_a_piece_take_new_memory_each_time.
    """
    stock = convert_frame._compile

    @functools.wraps(stock)
    def _compile(*args: Any, **kwargs: Any) -> Any:
        if not torch.get_device_module(DEVICE_NAME).is_initialized():
            return stock(*args, **kwargs)
        return with_room(stock, *args, **kwargs)

    convert_frame._compile = _compile
