"""CUDA tensors over pinned host memory, for tables that do not fit the device.

A kernel reads such a tensor over the bus, row by row as it needs them; nothing is copied before.
"""

from __future__ import annotations

import torch


class _CudaArray:
    """Bytes of a pinned tensor under the CUDA array interface; keeps the tensor alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.__cuda_array_interface__ = {
            "shape": (tensor.nbytes,),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def cuda_view(tensor: torch.Tensor, device: torch.device | str = "cuda") -> torch.Tensor:
    """The same memory as a tensor of a CUDA device.

    Args:
        tensor: Contiguous, in pinned host memory (`tensor.pin_memory()`), not empty. It must not be
            resized while the view lives.
        device: The device that pinned it.

    Returns:
        Shape and dtype of `tensor`.

    Raises:
        ValueError: The memory is not pinned, not contiguous, or of another device.
    """
    if tensor.is_cuda or not tensor.is_pinned():
        raise ValueError(
            f"expected a tensor in pinned host memory, got one on {tensor.device} that is not\n"
            "hint: tensor.pin_memory()"
        )
    if not tensor.is_contiguous() or not tensor.numel():
        raise ValueError(
            f"expected a contiguous tensor that is not empty, got shape {tuple(tensor.shape)}, "
            f"strides {tensor.stride()}"
        )
    view = torch.as_tensor(_CudaArray(tensor), device=device)
    if view.data_ptr() != tensor.data_ptr():
        raise ValueError(f"the memory was pinned for another device than: {device}")
    return view.view(tensor.dtype).view(tensor.shape)
