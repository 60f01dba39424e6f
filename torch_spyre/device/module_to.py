"""Moving models to the card.

`module.to("spyre")` comes here: weights of `nn.Linear` get the layout that matmul wants (sticks
along out_features), so that no re-layout runs per call; everything else gets the default layout.
Weights that are made on a card, or reach it before they belong to a module, get it when they are
registered: `from_pretrained(device_map="spyre")`, `nn.Linear(..., device="spyre")`,
`load_state_dict(assign=True)`.
"""

from __future__ import annotations

import torch
from torch import nn

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.dtypes import has_device_format
from torch_spyre.on_card import is_on_card


def load_model_to_spyre(
    model: nn.Module,
    dtype: torch.dtype | None = None,
    *,
    device: torch.device | str = DEVICE_NAME,
    non_blocking: bool = False,
) -> nn.Module:
    """Move parameters and buffers to a card, converting floating point ones to `dtype`."""
    if dtype is not None:
        _check_dtype(dtype)
    device = torch.device(device)
    weights = {id(w) for w in _linear_weights(model)}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        wanted = dtype if tensor.is_floating_point() or tensor.is_complex() else None
        if id(tensor) not in weights or is_on_card(tensor):
            return tensor.to(device, wanted, non_blocking)
        layout = linear_weight_layout(tensor, wanted or tensor.dtype)
        return tensor.to(device, wanted, non_blocking, device_layout=layout)  # type: ignore[call-overload]

    return model._apply(move)


def lay_out_registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
    """Called by PyTorch with each parameter that a module gets. Changes the storage in place, so
    that weights never need memory twice; a layout that somebody has chosen stays."""
    if name != "weight" or not isinstance(module, nn.Linear) or type(parameter) is not nn.Parameter:
        return
    if not is_on_card(parameter) or parameter.dim() != 2 or parameter.numel() == 0:
        return
    size, stride = list(parameter.size()), list(parameter.stride())
    if not _can_be_tiled(parameter) or parameter.storage_offset() != 0:
        return
    default = _C.SpyreTensorLayout(size, stride, parameter.dtype, [0, 1])
    if _C._get_placement(parameter) == (default, size, stride):
        _C._lay_out(parameter, linear_weight_layout(parameter, parameter.dtype))


def linear_weight_layout(weight: torch.Tensor, dtype: torch.dtype) -> _C.SpyreTensorLayout:
    """Sticks along out_features: dim_order [1, 0]."""
    return _C.SpyreTensorLayout(list(weight.size()), list(weight.stride()), dtype, [1, 0])


def _linear_weights(model: nn.Module) -> list[torch.Tensor]:
    linear = (m.weight for m in model.modules() if isinstance(m, nn.Linear))
    weights = (w for w in linear if not nn.parameter.is_lazy(w))  # which has no shape yet
    return [w for w in weights if w.dim() == 2 and w.numel() > 0 and _can_be_tiled(w)]


def _can_be_tiled(weight: torch.Tensor) -> bool:
    dense = weight.is_contiguous() or weight.t().is_contiguous()
    return dense and has_device_format(weight.dtype)


def _check_dtype(dtype: torch.dtype) -> None:
    if not has_device_format(dtype):
        raise ValueError(
            f"Spyre backend does not support dtype {dtype}: a model on the card needs one that "
            "has a device format, such as torch.float16 or torch.float32"
        )
