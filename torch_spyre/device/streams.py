"""Streams and events.

A card has 65 streams: 0 is the default, 1-32 have low and 33-64 high priority. Times of events are
modelled device time. Example::

    start, end = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
    start.record(); y = x.to("spyre"); end.record()
    print(start.elapsed_time(end), "ms on the card")
"""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.devices import DeviceLike, device_index
from torch_spyre.on_card import is_spyre

_LAST_LOW_PRIORITY_ID = 32


class Stream(torch.Stream):
    """A queue of work on a card, and a context manager that makes it current."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        index = device_index(device)
        return super().__new__(cls, device=torch.device(DEVICE_NAME, index), priority=priority)

    @property
    def id(self) -> int:
        """0 is the default stream; 1-32 come from the low, 33-64 from the high priority pool."""
        return self.stream_id

    @property
    def priority(self) -> int:
        """0, or -1 for the high priority pool."""
        return -1 if self.stream_id > _LAST_LOW_PRIORITY_ID else 0

    def device(self) -> torch.device:  # type: ignore[override]
        """The card that the stream belongs to."""
        return torch.device(DEVICE_NAME, self.device_index)

    def __repr__(self) -> str:
        return f"<torch_spyre.Stream device={self.device_index} id={self.stream_id}>"


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and is_spyre(instance.device)


class Event(metaclass=_EventType):
    """A point in a stream. With enable_timing, `elapsed_time` gives modelled milliseconds.

    Makes a plain torch.Event of the card: torch.Event.elapsed_time and Stream.record_event refuse
    instances of subclasses (torch 2.13).
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, device: DeviceLike = None
    ) -> torch.Event:
        where = torch.device(DEVICE_NAME, device_index(device))
        return torch.Event(device=where, enable_timing=enable_timing, blocking=blocking)


def _from_id(stream_id: int, device: DeviceLike) -> Stream:
    """A handle for a stream that exists, without taking one from the pools."""
    known = torch.accelerator.current_stream(device_index(device))
    return Stream(
        stream_id=stream_id, device_index=known.device_index, device_type=known.device_type
    )


def current_stream(device: DeviceLike = None) -> Stream:
    """The calling thread's current stream on a card."""
    return _from_id(torch.accelerator.current_stream(device_index(device)).stream_id, device)


def default_stream(device: DeviceLike = None) -> Stream:
    """Stream 0 of a card."""
    return _from_id(0, device)


def set_stream(stream: torch.Stream) -> None:
    """Make a stream (and its card) current for the calling thread."""
    torch.accelerator.set_stream(stream)


def stream(stream: Stream) -> Stream:
    """The stream itself: it is a context manager. `with torch.spyre.stream(s): ...`."""
    return stream


def synchronize(device: DeviceLike = None) -> None:
    """Wait for all work of a card; delivers its pending error, if any."""
    _C.synchronize(device_index(device))
