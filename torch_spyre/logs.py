"""Loggers of the package, switched by TORCH_LOGS, e.g. `TORCH_LOGS="+spyre.execution"`.

`+` shows debug messages, no sign shows info, `-` errors only; the parent's setting holds for all
below it. Registered while torch is imported, before torch reads the variable.
"""

from __future__ import annotations

import logging

from torch._logging._internal import register_log

COMPONENTS = (
    "spyre",
    "spyre.inductor",
    "spyre.inductor.lowering",
    "spyre.inductor.stickify",
    "spyre.inductor.codegen",
    "spyre.inductor.passes",
    "spyre.runtime",
    "spyre.execution",
    "spyre.device",
)


def register() -> None:
    """Make the components known to TORCH_LOGS and torch._logging.set_logs."""
    for name in COMPONENTS:
        register_log(name, name)


def get_logger(component: str) -> logging.Logger:
    """The logger of a component, e.g. `get_logger("spyre.execution")`."""
    if component not in COMPONENTS:
        raise ValueError(f"unknown component '{component}'; known are {', '.join(COMPONENTS)}")
    return logging.getLogger(component)
