"""Settings of the compiler, in the manner of Inductor's: environment variables are read here only.

    from torch_spyre._inductor import config
    with config.patch(cores=4): ...

Every value is part of the key of Inductor's caches. Names of the documented system that are others
here are aliases, at the end: `sencores` is `cores`. A name that is none raises an AttributeError
with the nearest one, and a value that is not allowed a ValueError.
"""

import os as _os
import sys as _sys
from typing import Any as _Any

from torch.utils._config_module import install_config_module as _install

from torch_spyre import hardware as _hardware
from torch_spyre import names as _names
from torch_spyre import validation as _validation
from torch_spyre.validation import flag as _flag


def _allowed(setting: str) -> _names.Allowed | None:
    """The values that a setting may have, from the environment or from a program; None: any."""
    return {
        "cores": _names.whole(1, _hardware.CARD.cores),
        "work_division": _names.one_of("joint", "documented"),
        "lx_residents": _names.one_of("all", "reductions"),
        "lx_reserved": _names.FRACTION,
        "max_buckets": _names.whole(1, 1 << 20),
        "min_default_granularity": _names.whole(1, 1 << 20),
    }.get(setting)


def _read(name: str, setting: str, default: _Any) -> _Any:
    """The value of a variable as the type of the default, if it is set."""
    text = _os.environ.get(name, "").strip()
    if text == "":
        return default
    allowed = _allowed(setting)
    assert allowed is not None, setting
    try:
        value = type(default)(text)
        is_allowed = allowed.holds(value)
    except ValueError:
        is_allowed = False
    if not is_allowed:
        raise ValueError(f"invalid {name} value '{text}': expected {allowed.text}")
    return value


def _work_division() -> str:
    """SPYRE_WORK_DIVISION, or CO_OPTIMIZING_LX_PLANNING, which is the documented name of one half
    of it."""
    value: str = _read("SPYRE_WORK_DIVISION", "work_division", "joint")
    joint = _flag("CO_OPTIMIZING_LX_PLANNING", value == "joint")
    if joint == (value == "joint"):
        return value
    if _os.environ.get("SPYRE_WORK_DIVISION", "").strip():
        raise ValueError(
            f"CO_OPTIMIZING_LX_PLANNING={int(joint)} and SPYRE_WORK_DIVISION={value} contradict "
            "each other: set one of them"
        )
    return "joint" if joint else "documented"


# SENCORES: cores over which work is divided.
cores: int = _read("SENCORES", "cores", _hardware.CARD.cores)

# SPYRE_WORK_DIVISION: how work is divided. joint: for the least modelled time of a kernel;
# documented: by the documented rules, operation by operation. CO_OPTIMIZING_LX_PLANNING=1 is joint,
# 0 documented.
work_division: str = _work_division()

# SPYRE_INDUCTOR_IGNORE_HINTS: what programs ask for with spyre_hint does not count.
ignore_hints: bool = _flag("SPYRE_INDUCTOR_IGNORE_HINTS", False)

# BUNDLE_SYMBOLIC_ARGS: addresses in bundles are symbols, bound at launch. 0: numbers in segments of
# 16 GiB, which allow 7 tensors a bundle.
symbolic_args: bool = _flag("BUNDLE_SYMBOLIC_ARGS", True)

# SPYRE_CORE_ID_K_FAST_EMISSION: cores that share a result have neighbouring numbers.
k_fast_emission: bool = _flag("SPYRE_CORE_ID_K_FAST_EMISSION", True)

# UNROLL_LOOPS: loops in bundles are written out. 0: as scf.for.
unroll_loops: bool = _flag("UNROLL_LOOPS", True)

# SPYRE_INDUCTOR_SHARE_SDSC: operations of a bundle that differ only in symbolic addresses have one
# sdsc file, which runs several times. 0: each its own file.
share_sdsc: bool = _flag("SPYRE_INDUCTOR_SHARE_SDSC", True)

# SPYRE_INDUCTOR_ENABLE_FUSION: several operations in one bundle, and in one launch.
enable_fusion: bool = _flag("SPYRE_INDUCTOR_ENABLE_FUSION", True)

# SPYRE_SHARE_LAYERS: of layers that are equal one is lowered and planned for all. 0: each.
share_layers: bool = _flag("SPYRE_SHARE_LAYERS", True)

# SPYRE_BACKEND_FUSION: the back-end chains operations whose intermediates die. 0: one step each.
backend_fusion: bool = _flag("SPYRE_BACKEND_FUSION", True)

# SPYRE_INDUCTOR_MEMORY_PLAN: intermediates share one pool. 0: each its own place in it.
memory_plan: bool = _flag("SPYRE_INDUCTOR_MEMORY_PLAN", True)

# LX_PLANNING: intermediates stay in the scratchpads where they can. 0: all are in the pool.
lx_planning: bool = _flag("LX_PLANNING", True)

# SPYRE_OWN_TILING: groups of operations whose intermediates do not fit into the scratchpads run in
# loops over tiles, where that takes less modelled time. 0: only the loops of hints.
own_tiling: bool = _flag("SPYRE_OWN_TILING", True)

# CHUNK_LARGE_TENSORS: pointwise operations of which a core would have to address more than 256 MB
# of a tensor run in loops over chunks. 0: they run as they are, and a log entry says so.
chunk_large_tensors: bool = _flag("CHUNK_LARGE_TENSORS", False)

# LX_BOUNDARY_CLONES: what is read more than once is copied into the scratchpads first, and results
# that are read again are copied out of them. 0: only intermediates stay, for all of their life.
lx_boundary_clones: bool = _flag("LX_BOUNDARY_CLONES", True)

# SPYRE_RING_MOVES: what stays in scratchpads is sent over the ring to cores that divide it
# differently. 0: it goes through memory.
lx_ring_moves: bool = _flag("SPYRE_RING_MOVES", True)

# DXP_LX_FRAC_AVAIL: the part of each scratchpad that is left to the back-end (its name says the
# opposite).
lx_reserved: float = _read("DXP_LX_FRAC_AVAIL", "lx_reserved", 0.2)

# Who decides what stays: search, exact, or the documented greedy, firstfit and bestfit.
layout_solver: str = "search"

# Results of all operations may stay. False: of those that the documented planner knows.
allow_all_ops_in_lx_planning: bool = True

# Whose results may stay: "all", or only those of "reductions".
lx_residents: str = "all"

# A result may reuse the bytes of an operand that is dead (in place).
lx_in_place: bool = True

# GLOBAL_STICK_OPTIMIZER: choose layouts for the whole graph at once. 0: operation by operation.
global_stick_optimizer: bool = _flag("GLOBAL_STICK_OPTIMIZER", True)
stick_beam_width: int = 64

# SPYRE_DYNAMIC_SHAPES: sizes that change from call to call stay open. 0: a graph for each.
dynamic_shapes: bool = _flag("SPYRE_DYNAMIC_SHAPES", True)

# Programs that a graph with open sizes keeps; the one that was not used for longest goes first.
max_dynamic_programs: int = 64

# MAX_BUCKETS: of an open size whose largest value is known (mark_dynamic(max=)), for how many sizes
# there are programs.
max_buckets: int = _read("MAX_BUCKETS", "max_buckets", 32)

# MIN_DEFAULT_GRANULARITY: the smallest size that an open size other than that of sticks is padded
# to. The documented default is 4.
min_default_granularity: int = _read("MIN_DEFAULT_GRANULARITY", "min_default_granularity", 8)

# SPYRE_DUMP_COST: print what each operation of a kernel costs, when it is compiled.
dump_cost: bool = _flag("SPYRE_DUMP_COST", False)

# SPYRE_PRINT_AFTER: names of stages (pipeline.py), separated by commas: the program after each of
# them is printed.
print_after: str = _os.environ.get("SPYRE_PRINT_AFTER", "")

# SPYRE_VALIDATE: check the program after the stages that have a validator (pipeline.py), every
# OpSpec and every SuperDSC before it is used, and the steps of the back-end.
validate: bool = _validation.VALIDATE

# Largest tensor, in elements, that is computed while compiling because it depends on nothing.
max_folded_elements: int = 1 << 24

_install(_sys.modules[__name__])

# Documented names of what has another name here, and what settings may be.
_names.complete(
    _sys.modules[__name__],
    _allowed,
    {
        "sencores": "cores",
        "ignore_work_division_hints": "ignore_hints",
        "bundle_symbolic_args": "symbolic_args",
        "core_id_k_fast_emission": "k_fast_emission",
        "hbm_planning": "memory_plan",
        "hbm_pool_planning": "memory_plan",
        "dxp_lx_frac_avail": "lx_reserved",
        "co_optimizing_lx_planning": _names.Alias(
            "work_division",
            lambda value: value == "joint",
            lambda on: "joint" if on else "documented",
        ),
    },
)
