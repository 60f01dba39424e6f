"""When the plugin offers itself to vLLM."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint

import pytest
import torch_spyre_vllm
from torch_spyre_vllm import GROUP, PLATFORM, RELEASE, register

OURS = EntryPoint("torch_spyre", "torch_spyre_vllm:register", GROUP)


@pytest.fixture
def installed(monkeypatch):
    """Sets the plugins and the release of vLLM that are installed."""

    def install(*plugins: EntryPoint, release: str = RELEASE) -> None:
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: plugins)
        monkeypatch.setattr(importlib.metadata, "version", lambda name: release)

    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    return install


def test_alone_it_offers_its_platform(installed):
    installed(OURS, EntryPoint("ascend", "vllm_ascend:register", GROUP))
    assert register() == PLATFORM
    installed(OURS, release=f"{RELEASE}+empty")
    assert register() == PLATFORM


def test_it_stays_out_of_the_way_of_another_plugin_for_spyre(installed, caplog, monkeypatch):
    caplog.set_level("INFO")
    installed(OURS, EntryPoint("spyre", "some_other_package:register", GROUP))
    assert register() is None
    assert "leaves the card to the plugin spyre" in caplog.text
    monkeypatch.setenv("VLLM_PLUGINS", "torch_spyre")
    assert register() == PLATFORM, "vLLM does not load the other one"


def test_another_release_of_vllm_is_refused_with_a_way_out(installed, caplog):
    installed(OURS, release="0.28.0")
    assert register() is None
    assert f"written for vLLM {RELEASE}, and this is 0.28.0" in caplog.text
    assert "VLLM_PLUGINS" in caplog.text


def test_asking_for_it_imports_neither_vllm_nor_torch():
    assert not {"vllm", "torch"} & set(vars(torch_spyre_vllm))
