"""Documented entry point: the operators of `torch.ops.spyre`. They live in `fx/customops.py`."""

import torch_spyre._inductor.fx.customops  # noqa: F401  defines the operators
