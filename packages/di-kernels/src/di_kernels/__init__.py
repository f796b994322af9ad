"""The tensor operations of DeepSeek-V4.1, with readable torch references, in one registry.

`ops.<name>(...)` checks its arguments, picks the backend that serves the call and runs it. The
references are the fallback on every device and the oracle the faster backends are checked against
(`python -m di_kernels check`).
"""

from di_kernels import _backends as _backends
from di_kernels import ops
from di_kernels.errors import (
    BackendMissingError,
    KernelError,
    NotDifferentiableError,
    NotRowInvariantError,
    UnknownBackendError,
    UnknownOpError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedWeightError,
)
from di_kernels.fragments import (
    FragmentWeight,
    MXFP4FragmentWeight,
    MXFP8FragmentWeight,
    mxfp4_to_fragment_order,
    mxfp8_to_fragment_order,
)
from di_kernels.fragments_e4m3 import MXFP4E4M3FragmentWeight, mxfp4_to_e4m3_fragment_order
from di_kernels.packed import (
    MXFP4PackedWeight,
    MXFP8PackedWeight,
    PackedWeight,
    mxfp4_to_packed_scales,
    mxfp8_to_packed_scales,
)
from di_kernels.pinned import cuda_view
from di_kernels.records import RecordPool
from di_kernels.registry import (
    Backend,
    Service,
    SizeRule,
    backends,
    describe,
    is_supported,
    op_names,
    serving_backend,
    use_backend,
)
from di_kernels.timed_pair import TimedPair
from di_kernels.weights import MXFP4Weight, MXFP8Weight, QuantizedWeight, Weight

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "BackendMissingError",
    "FragmentWeight",
    "KernelError",
    "MXFP4E4M3FragmentWeight",
    "MXFP4FragmentWeight",
    "MXFP4PackedWeight",
    "MXFP4Weight",
    "MXFP8FragmentWeight",
    "MXFP8PackedWeight",
    "MXFP8Weight",
    "NotDifferentiableError",
    "NotRowInvariantError",
    "PackedWeight",
    "QuantizedWeight",
    "RecordPool",
    "Service",
    "SizeRule",
    "TimedPair",
    "UnknownBackendError",
    "UnknownOpError",
    "UnsupportedDeviceError",
    "UnsupportedDtypeError",
    "UnsupportedLayoutError",
    "UnsupportedShapeError",
    "UnsupportedWeightError",
    "Weight",
    "backends",
    "cuda_view",
    "describe",
    "is_supported",
    "mxfp4_to_e4m3_fragment_order",
    "mxfp4_to_fragment_order",
    "mxfp4_to_packed_scales",
    "mxfp8_to_fragment_order",
    "mxfp8_to_packed_scales",
    "op_names",
    "ops",
    "serving_backend",
    "use_backend",
]
