"""Settings under their documented names."""

from __future__ import annotations

from unittest import mock

import pytest

from torch_spyre._inductor import config
from torch_spyre.cache.keys import settings
from torch_spyre.names import nearest

ALIASES = {
    "sencores": ("cores", 4, 4),
    "ignore_work_division_hints": ("ignore_hints", True, True),
    "bundle_symbolic_args": ("symbolic_args", False, False),
    "core_id_k_fast_emission": ("k_fast_emission", False, False),
    "hbm_planning": ("memory_plan", False, False),
    "hbm_pool_planning": ("memory_plan", False, False),
    "dxp_lx_frac_avail": ("lx_reserved", 0.5, 0.5),
    "co_optimizing_lx_planning": ("work_division", False, "documented"),
}
"""A documented name: ours, a value, and what that is under our name."""

SAME = (
    "lx_planning", "chunk_large_tensors", "global_stick_optimizer", "allow_all_ops_in_lx_planning",
    "lx_boundary_clones", "max_buckets", "min_default_granularity", "unroll_loops", "layout_solver",
)  # fmt: skip


@pytest.mark.parametrize("name", ALIASES)
def test_what_is_set_by_one_name_is_read_by_the_other(name):
    ours, value, means = ALIASES[name]
    before, known = getattr(config, ours), getattr(config, name)
    assert known != value, "the value must be another one than the default"
    with config.patch(name, value):
        assert (getattr(config, ours), getattr(config, name)) == (means, value)
    with config.patch({ours: means}):
        assert getattr(config, name) == value
    with mock.patch.object(config, name, value):
        assert getattr(config, ours) == means
    setattr(config, name, value)
    assert getattr(config, ours) == means
    setattr(config, name, known)
    assert getattr(config, ours) == before


@pytest.mark.parametrize("name", SAME)
def test_documented_names_that_are_ours_can_be_set_and_patched(name):
    before = getattr(config, name)
    others = {bool: lambda: not before, int: lambda: before + 1, str: lambda: "greedy"}
    other = others[type(before)]()
    with config.patch(**{name: other}):
        assert getattr(config, name) == other
    assert getattr(config, name) == before


def test_an_alias_is_no_second_value_in_the_keys_of_caches():
    plain = settings()
    assert not {name for name, _ in plain} & ALIASES.keys()
    with config.patch(sencores=4):
        changed = settings()
    assert dict(changed)["cores"] == "4" and dict(plain) != dict(changed)
    assert settings() == plain


def test_a_joint_division_is_what_co_optimizing_says():
    assert config.work_division == "joint" and config.co_optimizing_lx_planning is True


def test_a_setting_that_does_not_exist_is_an_error_that_names_the_nearest():
    with pytest.raises(AttributeError, match=r"config.sencore does not exist; .*is sencores"):
        config.sencore  # noqa: B018
    with pytest.raises(AttributeError, match=r"config.lx_plannin does not exist; .*is lx_planning"):
        config.lx_plannin = False
    with pytest.raises(AttributeError, match=r"max_bucket does not exist; .*is max_buckets"):
        config.patch(max_bucket=3).__enter__()
    assert not hasattr(config, "sencore") and not hasattr(config, "__path__")
    assert getattr(config, "hbm", None) is None


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("cores", 33, "1 to 32"),
        ("cores", 0, "1 to 32"),
        ("sencores", "4", "1 to 32"),
        ("cores", True, "1 to 32"),
        ("work_division", "jont", "joint or documented"),
        ("co_optimizing_lx_planning", "joint", "True or False"),
        ("lx_residents", "some", "all or reductions"),
        ("dxp_lx_frac_avail", 1.5, "a number from 0 to below 1"),
        ("max_buckets", 0, "1 to 1048576"),
        ("lx_planning", "0", "True or False"),
        ("lx_planning", 2, "True or False"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_where_it_is_set(name, value, allowed):
    before = settings()
    for change in (
        lambda: setattr(config, name, value),
        lambda: config.patch(name, value),
        lambda: config.patch({"unroll_loops": False, name: value}),
        lambda: config.patch(unroll_loops=False, **{name: value}),
    ):
        with pytest.raises(ValueError, match=f"config.{name} = {value!r}: expected {allowed}"):
            change()
    assert settings() == before


def test_switches_may_be_numbers_as_in_the_environment():
    with config.patch(lx_planning=0, co_optimizing_lx_planning=0):
        assert not config.lx_planning and config.work_division == "documented"


def test_all_names_are_listed():
    assert {*ALIASES, *SAME, "cores"} <= set(dir(config))


def test_the_nearest_name_is_the_one_with_the_most_in_common():
    assert nearest("sencore", ["cores", "sencores", "lx"]) == "sencores"
    assert nearest("xyz", ["abc"]) == "abc", "there is always one"


def test_environment_variables_of_both_names_agree_or_are_refused(monkeypatch):
    def division(**variables):
        for name in ("CO_OPTIMIZING_LX_PLANNING", "SPYRE_WORK_DIVISION"):
            monkeypatch.setenv(name, variables.get(name, ""))
        return config._work_division()

    assert division() == "joint"
    assert division(CO_OPTIMIZING_LX_PLANNING="0") == "documented"
    assert division(CO_OPTIMIZING_LX_PLANNING="1") == "joint"
    assert division(SPYRE_WORK_DIVISION="documented") == "documented"
    assert division(CO_OPTIMIZING_LX_PLANNING="1", SPYRE_WORK_DIVISION="joint") == "joint"
    contradiction = "CO_OPTIMIZING_LX_PLANNING=1 and SPYRE_WORK_DIVISION=documented contradict"
    with pytest.raises(ValueError, match=contradiction):
        division(CO_OPTIMIZING_LX_PLANNING="1", SPYRE_WORK_DIVISION="documented")


def test_variables_of_documented_settings_set_them(script):
    told = script(
        """
        from torch_spyre._inductor import config
        print(config.max_buckets, config.min_default_granularity, config.chunk_large_tensors,
              config.unroll_loops, config.core_id_k_fast_emission, config.co_optimizing_lx_planning)
        """,
        MAX_BUCKETS="3", MIN_DEFAULT_GRANULARITY="4", CHUNK_LARGE_TENSORS="1", UNROLL_LOOPS="0",
        SPYRE_CORE_ID_K_FAST_EMISSION="0", CO_OPTIMIZING_LX_PLANNING="0",
    )  # fmt: skip
    assert told == "3 4 True False False False"
