"""Without warnings whose subject a report has.

with quietly():
    search()        # counts fallbacks and shows them itself
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch_spyre import _C
from torch_spyre.ops import fallbacks


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Fallbacks are in the report, and that token numbers fit into 32 bits is known."""
    fallback, downcast = fallbacks.get_fallback_warning(), _C.get_downcast_warning()
    fallbacks.set_fallback_warning(False)
    _C.set_downcast_warning(False)
    try:
        yield
    finally:
        fallbacks.set_fallback_warning(fallback)
        _C.set_downcast_warning(downcast)
