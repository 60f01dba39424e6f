"""torch-spyre: IBM's Spyre accelerator as a PyTorch device, with an emulated card.

`import torch` finds this package through its `torch.backends` entry point and calls `_autoload`:
the device gets its name and `torch.spyre` appears. No card is started before the first use.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from torch_spyre.show.explain import explain
    from torch_spyre.show.layout_picture import draw_layout

__all__ = ["__version__", "draw_layout", "explain"]

_loaded = False


def _autoload() -> None:
    """Make `spyre` a device of this process. Runs once; called by `import torch`."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    if importlib.util.find_spec("torch_spyre._C") is None:
        raise ImportError("torch_spyre is not built: run `make setup` in its folder")
    from torch_spyre.device import registration

    registration.register()


def __getattr__(name: str) -> Any:
    if name == "draw_layout":
        from torch_spyre.show.layout_picture import draw_layout

        return draw_layout
    if name == "explain":
        from torch_spyre.show.explain import explain

        return explain
    raise AttributeError(f"module 'torch_spyre' has no attribute '{name}'")


# Also for `import torch_spyre` with TORCH_DEVICE_BACKEND_AUTOLOAD=0. During torch's own import this
# module is imported by the entry point, torch is nearly complete, and the call below does the work.
import torch  # noqa: E402, F401

_autoload()
