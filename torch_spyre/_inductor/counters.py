"""Counters of the compiler and of its kernels, for this process.

>>> counters["bundles_compiled"]
3
"""

from __future__ import annotations

counters: dict[str, int] = {
    "relaid_arguments": 0,
    "hoisted_copies": 0,
    "bundles_compiled": 0,
    "bundles_reused": 0,
    "padded_programs": 0,  # of graphs with open sizes: for more than one size ...
    "exact_programs": 0,  # ... and for one
    "operations_compiled": 0,
    "sdsc_files_written": 0,  # fewer than operations: layers share the programs of their operations
}
