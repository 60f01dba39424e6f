"""Documented entry point: `SpyreOpFuncs`. It lives in `operations/opfunc_map.py`."""

from torch_spyre._inductor.operations.opfunc_map import SpyreOpFuncs, constant, opfunc

__all__ = ["SpyreOpFuncs", "constant", "opfunc"]
