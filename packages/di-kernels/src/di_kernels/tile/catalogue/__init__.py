"""Every kernel and variant by name: how it is built, and for which architectures.

Names are what `python -m di_kernels compile` prints. A kernel that is not declared for an
architecture says why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from di_kernels.tile.catalogue import (
    attention,
    entries,
    experts_e4m3,
    few_rows,
    hyper_connections,
    index,
    layer,
    products,
    sampling,
    selection,
)
from di_kernels.tile.kernel import Kernel
from di_kernels.tile.toolchain import architecture_of, compile_kernel, require_tools

_FAMILIES = (
    products,
    few_rows,
    experts_e4m3,
    attention,
    entries,
    hyper_connections,
    layer,
    selection,
    index,
    sampling,
)


@functools.cache
def kernels() -> dict[str, Kernel]:
    """The catalogue, by name."""
    return {kernel.name: kernel for family in _FAMILIES for kernel in family.kernels()}


@functools.cache
def _compiled(name: str, architecture: str) -> Callable[..., None]:
    require_tools()
    kernel = kernels()[name]
    return compile_kernel(
        kernel.build(architecture), architecture, kernel.options_for(architecture)
    )


def kernel_for(name: str, device: torch.device) -> Callable[..., None]:
    """The compiled kernel for a device; compiled or read from disk by the first call.

    Raises:
        KernelError: A tool is missing or the device is not served.
    """
    return _compiled(name, architecture_of(device))
