"""Documented entry point: `load_model_to_spyre`. It lives in `device/module_to.py`."""

from torch_spyre.device.module_to import load_model_to_spyre

__all__ = ["load_model_to_spyre"]
