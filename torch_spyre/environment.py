"""Names of all environment variables of the package, and a warning for one that is none of them.

Each is read where it counts (`csrc/settings.cpp`, `_inductor/config.py`, ...); a test holds this
list against the sources and against the page of environment variables.

    >>> unknown(["SPYRE_EAGR", "SPYRE_EAGER", "HOME"])
    {'SPYRE_EAGR': 'SPYRE_EAGER'}
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable

from torch_spyre.names import nearest

PREFIX = "SPYRE_"

VARIABLES = frozenset(
    {
        # Cards.
        "AIU_WORLD_SIZE", "FLEX_DEVICE", "LOCAL_RANK", "PCIDEVICE_IBM_COM_AIU_PF", "SENCORES",
        "SPYRE_DEVICES", "SPYRE_MEMORY", "SPYRE_VISIBLE_DEVICES",
        # Behaviour.
        "IS_INDUCTOR_SPAWNED_SUBPROCESS", "SPYRE_CACHE_LIMIT", "SPYRE_EAGER", "SPYRE_EAGER_LIMIT",
        "SPYRE_LAUNCH_BLOCKING", "SPYRE_NUMERICS", "SPYRE_NUM_THREADS", "SPYRE_PAIRS",
        "SPYRE_SANITIZE", "SPYRE_TRANSLATE",
        # Compiler.
        "BUNDLE_SYMBOLIC_ARGS", "CHUNK_LARGE_TENSORS", "CO_OPTIMIZING_LX_PLANNING",
        "DXP_LX_FRAC_AVAIL", "GLOBAL_STICK_OPTIMIZER", "LX_BOUNDARY_CLONES", "LX_PLANNING",
        "MAX_BUCKETS", "MIN_DEFAULT_GRANULARITY", "SPYRE_BACKEND_FUSION",
        "SPYRE_CORE_ID_K_FAST_EMISSION", "SPYRE_DUMP_COST", "SPYRE_DYNAMIC_SHAPES",
        "SPYRE_INDUCTOR_ENABLE_FUSION", "SPYRE_INDUCTOR_IGNORE_HINTS", "SPYRE_INDUCTOR_MEMORY_PLAN",
        "SPYRE_INDUCTOR_SHARE_SDSC", "SPYRE_OWN_TILING", "SPYRE_PRINT_AFTER", "SPYRE_RING_MOVES",
        "SPYRE_SHARE_LAYERS", "SPYRE_UPSTREAM", "SPYRE_VALIDATE", "SPYRE_WORK_DIVISION",
        "UNROLL_LOOPS",
        # Warnings and logs.
        "SPYRE_FALLBACK_WARN", "SPYRE_INDUCTOR_LOG", "SPYRE_INDUCTOR_LOG_LEVEL", "SPYRE_LOG_FILE",
        "TORCH_SPYRE_DOWNCAST_WARN",
    }
)  # fmt: skip


def unknown(names: Iterable[str]) -> dict[str, str]:
    """Names with our prefix that no part of the package reads, each with the nearest that one
    does."""
    strange = sorted(n for n in names if n.startswith(PREFIX) and n not in VARIABLES)
    return {name: nearest(name, VARIABLES) for name in strange}


def warn_of_unknown() -> None:
    """Warn of variables that are set and have no effect."""
    for name, near in unknown(os.environ).items():
        warnings.warn(
            f"the environment variable {name} is unknown and has no effect; the nearest is {near}",
            stacklevel=2,
        )
