"""TORCH_LOGS knows the components of the package."""

from __future__ import annotations

import logging

import pytest

from torch_spyre import logs

FALL_BACK = "import torch; torch.ones(2, device='spyre')"


@pytest.mark.parametrize(
    ("setting", "shown"),
    [("+spyre", True), ("spyre.execution", True), ("-spyre", False), ("spyre.device", False)],
)
def test_torch_logs_switches_the_components(script, setting, shown):
    source = (
        FALL_BACK
        + "; import logging; print(logging.getLogger('spyre.execution').isEnabledFor(logging.INFO))"
    )
    assert script(source, TORCH_LOGS=setting).splitlines()[-1] == str(shown)


def test_unknown_component_is_refused():
    assert logs.get_logger("spyre.device") is logging.getLogger("spyre.device")
    with pytest.raises(ValueError, match="unknown component"):
        logs.get_logger("spyre.gpu")
