"""TORCH_LOGS knows the components of the package, and programs can change levels."""

from __future__ import annotations

import logging
import warnings

import pytest

from torch_spyre import logs


def test_torch_logs_switches_the_components(script):
    source = """
        import logging, torch
        for name in ("spyre.inductor", "spyre.execution"):
            print(logging.getLogger(name).isEnabledFor(logging.INFO))
    """
    shown = script(source, TORCH_LOGS="+spyre,-spyre.execution")
    assert shown.splitlines()[:2] == ["True", "False"]


def test_unknown_component_is_refused():
    assert logs.get_logger("spyre.device") is logging.getLogger("spyre.device")
    with pytest.raises(ValueError, match="unknown component"):
        logs.get_logger("spyre.gpu")


# ---- Forms of TORCH_LOGS ------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def levels_as_before():
    """Levels that a test sets are taken back."""
    before = {name: logging.getLogger(name).level for name in logs.COMPONENTS}
    sources = dict(logs._sources)
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)
    logs._sources.clear()
    logs._sources.update(sources)


@pytest.mark.parametrize(
    ("settings", "others", "levels"),
    [
        ("+spyre", "", {"spyre": logging.DEBUG}),
        ("spyre.inductor", "", {"spyre.inductor": logging.INFO}),
        ("-spyre.execution", "", {"spyre.execution": logs.OFF}),
        ("spyre.inductor.stickify:DEBUG", "", {"spyre.inductor.stickify": logging.DEBUG}),
        ("spyre:warning, +dynamo", "+dynamo", {"spyre": logging.WARNING}),
        ("+dynamo,spyre.device:15,-aot", "+dynamo,-aot", {"spyre.device": 15}),
        ("inductor,graph_breaks", "inductor,graph_breaks", {}),
        ("spyred", "spyred", {}),
    ],
)
def test_our_entries_are_taken_out_of_the_value(settings, others, levels):
    assert logs.take_settings(settings) == (others, levels)


@pytest.mark.parametrize("settings", ["spyre.gpu", "spyre:LOUD", "+spyre.", "spyre::DEBUG"])
def test_an_entry_that_makes_no_sense_is_a_warning(settings):
    with pytest.warns(UserWarning, match="is ignored"):
        assert logs.take_settings(settings) == ("", {})


# ---- In a program -------------------------------------------------------------------------------


def test_levels_are_those_of_the_parent_until_set():
    logs.set_log_level("spyre.inductor", "debug")
    assert logs.get_log_level("spyre.inductor.codegen") == logging.DEBUG
    assert logs.get_config_source("spyre.inductor.codegen") == (
        "set in the program for spyre.inductor"
    )
    logs.disable("spyre.inductor.codegen")
    config = logs.get_effective_config()
    assert config["spyre.inductor.codegen"] == "OFF" and config["spyre.inductor.passes"] == "DEBUG"
    assert list(config) == logs.list_components() == list(logs.COMPONENTS)
    logs.enable("spyre.inductor.codegen")
    assert logs.get_log_level("spyre.inductor.codegen") == logging.INFO
    assert logs.get_config_for_cpp()["spyre.inductor.codegen"] == 20
    assert logs.get_config_source("spyre.inductor.codegen") == "set in the program"
    with pytest.raises(ValueError, match="unknown level 'LOUD'"):
        logs.set_log_level("spyre", "LOUD")
    with pytest.raises(ValueError, match="unknown component"):
        logs.enable("spyre.gpu")


def test_messages_can_go_to_a_file(tmp_path):
    file = tmp_path / "spyre.log"
    logs.set_log_file(file)
    logs.enable("spyre.device")
    logs.get_logger("spyre.device").info("one")
    logs.get_logger("spyre.runtime").info("not shown")
    logs.set_log_file(None)
    logs.get_logger("spyre.device").info("two")
    lines = file.read_text().splitlines()
    assert len(lines) == 1 and lines[0].endswith("INFO spyre.device: one")


# ---- Variables of earlier versions --------------------------------------------------------------


def test_old_variables_work_and_are_deprecated(tmp_path):
    file = tmp_path / "old.log"
    old = {
        "SPYRE_INDUCTOR_LOG": "1",
        "SPYRE_INDUCTOR_LOG_LEVEL": "DEBUG",
        "SPYRE_LOG_FILE": str(file),
    }
    with pytest.warns(DeprecationWarning) as caught:
        assert logs._old_settings(old) == {"spyre.inductor": logging.DEBUG}
    logs.set_log_file(None)
    assert file.exists()
    assert [str(w.message).split()[0] for w in caught] == list(old)
    assert "TORCH_LOGS" in str(caught[0].message)
    with pytest.warns(DeprecationWarning):
        assert logs._old_settings({"SPYRE_INDUCTOR_LOG": "0"}) == {}
    with pytest.warns(DeprecationWarning), pytest.warns(UserWarning, match="unknown level"):
        assert logs._old_settings({"SPYRE_INDUCTOR_LOG_LEVEL": "LOUD"}) == {
            "spyre.inductor": logging.INFO
        }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert logs._old_settings({}) == {}


def test_torch_logs_wins_over_old_variables(monkeypatch):
    monkeypatch.setenv("SPYRE_INDUCTOR_LOG", "1")
    assert logs.take_settings("+dynamo") == ("+dynamo", {"spyre.inductor": logging.INFO})
    assert logs.take_settings("-spyre.inductor") == ("", {"spyre.inductor": logs.OFF})


def test_nothing_in_these_variables_keeps_torch_from_being_imported(script, tmp_path):
    source = """
        import torch
        from torch_spyre import logs
        levels = logs.get_effective_config()
        for name in ("spyre.inductor.passes", "spyre.device", "spyre.runtime"):
            print(levels[name], logs.get_config_source(name))
        logs.get_logger("spyre.inductor.passes").debug("to the file")
    """
    file = tmp_path / "x.log"
    shown = script(
        source,
        TORCH_LOGS="spyre.device:INFO,spyre.gpu,spyre.runtime:LOUD,+dynamo",
        SPYRE_INDUCTOR_LOG="1",
        SPYRE_INDUCTOR_LOG_LEVEL="DEBUG",
        SPYRE_LOG_FILE=str(file),
    )
    assert shown.splitlines()[:3] == [
        "DEBUG SPYRE_INDUCTOR_LOG for spyre.inductor",
        "INFO TORCH_LOGS",
        "WARNING default",
    ]
    assert "to the file" in file.read_text()
