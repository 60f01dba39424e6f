"""vLLM on the card: a platform plugin for one release of vLLM.

vLLM calls `register` through the entry point `vllm.platform_plugins` and gets the name of the
platform class, or None if the plugin stays out of the way. This module imports neither vLLM nor
torch: it is asked in every process that imports vLLM.

    from vllm import LLM
    LLM("a/folder/with/a/model").generate("The card")        # runs on the card
"""

from __future__ import annotations

import importlib.metadata
import logging
import os

PLATFORM = "torch_spyre_vllm.platform.SpyrePlatform"
GROUP = "vllm.platform_plugins"
NAME = "torch_spyre"
RELEASE = "0.27.1"

_log = logging.getLogger("vllm.torch_spyre")


def register() -> str | None:
    """The platform, or None if another plugin for Spyre is there or vLLM is another release."""
    others = other_plugins()
    if others:
        _log.info("torch-spyre-vllm leaves the card to the plugin %s", ", ".join(others))
        return None
    found = importlib.metadata.version("vllm").split("+")[0]
    if found != RELEASE:
        _log.error(
            "torch-spyre-vllm is written for vLLM %s, and this is %s: install that release, or "
            "set VLLM_PLUGINS='' to run without the plugin",
            RELEASE,
            found,
        )
        return None
    return PLATFORM


def other_plugins() -> list[str]:
    """Platform plugins of others that have Spyre in their name and that vLLM will load."""
    allowed = os.environ.get("VLLM_PLUGINS")
    names = []
    for plugin in importlib.metadata.entry_points(group=GROUP):
        if plugin.name == NAME and plugin.value.startswith("torch_spyre_vllm:"):
            continue
        loaded = allowed is None or plugin.name in allowed.split(",")
        if loaded and "spyre" in f"{plugin.name} {plugin.value}".lower():
            names.append(plugin.name)
    return names
