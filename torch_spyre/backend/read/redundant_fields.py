"""Fields of a SuperDSC file that say once more what others say: how work folds over cores.

The back-end does not need them, but a file in which they contradict the rest has no one meaning, so
the reader compares them. Example: `attributes(4)[0] == {"factor_": 4, "label_": "core"}`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

TIME = {"factor_": 1, "label_": "time"}
OPERATION = {
    "dim_prop_func": [{"Affine": {"alpha_": 1, "beta_": 0}}],
    "dim_prop_attr": [TIME],
    "data_": {"[0]": "0"},
}
OF_ADDRESSES: list[Any] = [{"Map": {}}, {"Const": {}}, {"Const": {}}]
OF_CONSTANTS: list[Any] = [{"Const": {}}, {"Const": {}}, {"Map": {}}]


@cache
def attributes(cores: int) -> list[dict[str, Any]]:
    """`dim_prop_attr` of addresses and constants."""
    return [{"factor_": cores, "label_": "core"}, {"factor_": 1, "label_": "corelet"}, TIME]


@cache
def schedules(cores: int) -> dict[str, Any]:
    """`coreIdToDscSchedule`."""
    return {str(core): [[-1, 0, 0, 0]] for core in range(cores)}


@cache
def coordinates(share: int, slices: int, scale: int, per_stick: int) -> dict[str, Any]:
    """An entry of `coordInfo`: `share` indices a core; `per_stick` is 0 for all but the stick."""
    if scale != 1:
        share, slices = per_stick or 1, 1
    alphas, factors = [share, 0, 0, 1], [slices, 1, 1, share]
    labels = ["core_fold", "corelet_fold", "row_fold", "elem_arr_0"]
    if per_stick:
        alphas = [share, 0, 0, per_stick, 0 if scale == -2 else 1]
        factors = [slices, 1, 1, -(-share // per_stick), per_stick]
        labels.insert(3, "elem_arr_1")
    return {
        "spatial": 3,
        "temporal": 0,
        "elemArr": 2 if per_stick else 1,
        "padding": "nopad",
        "folds": {
            "dim_prop_func": [{"Affine": {"alpha_": alpha, "beta_": 0}} for alpha in alphas],
            "dim_prop_attr": [{"factor_": f, "label_": n} for f, n in zip(factors, labels)],
        },
    }
