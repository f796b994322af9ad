"""Cases for the accelerated backends: the release's widths, awkward numbers of rows, a GPU.

References in float64 from dequantised inputs, computed on the device.
"""

from __future__ import annotations

from collections.abc import Iterator

from di_kernels.cases.case import Case, Source
from di_kernels.cases.kernels import (
    attention,
    entries,
    experts_e4m3,
    hyper_connections,
    index,
    layer,
    products,
    quantized_input,
    rows,
    sampling,
    selection,
)

_FAMILIES = (
    products,
    experts_e4m3,
    quantized_input,
    attention,
    rows,
    entries,
    hyper_connections,
    layer,
    selection,
    index,
    sampling,
)


def kernel_cases(source: Source) -> Iterator[Case]:
    """Every op with an accelerated GPU backend; bfloat16, on the source's device."""
    for family in _FAMILIES:
        yield from family.cases(source)
