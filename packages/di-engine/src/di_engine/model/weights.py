"""Takes weights from a checkpoint, one by one, in the form the layers compute with.

Memory: quantised matrices are expanded once to the compute dtype on a CPU, where unpacking in every
product would cost more than the product: 2 (native), 4 (float32) or 8 (float64) bytes per
parameter. On other devices, or when asked, they stay in the checkpoint's formats.
Small BF16 matrices become float32 on a CPU: the same values, and a BF16 product there costs about
30 us however small it is, a float32 one with the casts of input and output 6 to 15 us.
Engram tables always stay as stored, since a step reads a few rows only; the embedding too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from di_engine.checkpoint import TensorSource
from di_engine.errors import CheckpointError
from di_engine.model.numerics import Numerics
from di_kernels import MXFP4Weight, MXFP8Weight, ops
from di_kernels.ops import EngramTable
from di_kernels.weights import MXFP8_TILE

_WIDENED_VALUES = 1 << 16
"""Largest BF16 matrix whose float32 product is the faster one on a CPU, at 1 and 8 rows."""
_WIDENED_EXPERTS_VALUES = 1 << 18
"""The same for the matrices of all experts together, which one product then serves."""

Weight = Tensor | MXFP8Weight | MXFP4Weight
ExpertWeight = Tensor | MXFP4Weight


class Linear:
    """``y = x W^T`` with the arithmetic of the model.

    Args:
        weight: Shape [out, in].
        quantize_input: Quantise the input to MXFP8 first (native arithmetic, quantised weights).
        out_dtype: Dtype of the output; None is the input's.
        batch_invariant: Keep a row's bits independent of the other rows.
    """

    __slots__ = ("batch_invariant", "out_dtype", "quantize_input", "weight")

    def __init__(
        self,
        weight: Weight,
        *,
        quantize_input: bool = False,
        out_dtype: torch.dtype | None = None,
        batch_invariant: bool = False,
    ) -> None:
        self.weight = weight
        self.quantize_input = quantize_input
        self.out_dtype = out_dtype
        self.batch_invariant = batch_invariant

    def __call__(self, x: Tensor) -> Tensor:
        """Maps x of shape [T, in] to [T, out]."""
        return ops.linear(
            x,
            self.weight,
            quantize_input=self.quantize_input,
            out_dtype=self.out_dtype,
            batch_invariant=self.batch_invariant,
        )


class WeightReader:
    """Reads tensors by name and brings them to the compute dtype and the device.

    Args:
        source: Where tensors come from.
        numerics: Arithmetic of the model.
        device: Where the model runs.
        keep_packed: Whether quantised matrices stay in the checkpoint's formats; None leaves it to
            the device.
    """

    def __init__(
        self,
        source: TensorSource,
        numerics: Numerics,
        device: torch.device | str,
        keep_packed: bool | None = None,
    ) -> None:
        self.numerics = numerics
        self.device = torch.device(device)
        self._source = source
        self._names = frozenset(source.names())
        self._keeps_packed = self.device.type != "cpu" if keep_packed is None else keep_packed

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """An unquantised tensor, in `dtype` or as stored."""
        return self._get(name).to(device=self.device, dtype=dtype)

    def wide(self, name: str) -> Tensor:
        """An unquantised tensor in the dtype of statistics."""
        return self.tensor(name, self.numerics.wide_dtype)

    def linear(self, *names: str) -> Linear:
        """Linear map of the stacked outputs of one or more matrices with one input.

        Args:
            names: Tensor names without ``.weight``; all quantised or none.
        """
        parts = [self.matrix(name) for name in names]
        quantized = [self._is_quantized(name) for name in names]
        if len(set(quantized)) > 1:
            raise CheckpointError(
                f"{' and '.join(f'`{name}`' for name in names)} must all be quantised or none: "
                "some have a `.scale` and some do not"
            )
        weight = _stack_rows(parts, self.numerics.compute_dtype)
        return Linear(
            _widen_small(weight, _WIDENED_VALUES) if isinstance(weight, Tensor) else weight,
            quantize_input=self.numerics.is_native and quantized[0],
            batch_invariant=self.numerics.deterministic,
        )

    def wide_linear(self, *names: str) -> Linear:
        """Like `linear` for unquantised matrices, with wide products and a wide result."""
        dtype = self.numerics.wide_dtype
        return Linear(
            torch.cat([self.wide(f"{name}.weight") for name in names]),
            out_dtype=dtype,
            batch_invariant=self.numerics.deterministic,
        )

    def matrix(self, name: str) -> Weight:
        """Matrix `name` without ``.weight``: dense, or quantised where weights stay packed."""
        data = self._get(f"{name}.weight")
        if not self._is_quantized(name):
            return data.to(device=self.device, dtype=self.numerics.compute_dtype)
        scale = self._get(f"{name}.scale")
        if data.dtype == torch.float8_e4m3fn:
            return self._place(MXFP8Weight(data, scale))
        return self._place(MXFP4Weight(data, scale))

    def dense_matrix(self, name: str) -> Tensor:
        """Matrix `name` without ``.weight``, expanded to the compute dtype on every device."""
        weight = self.matrix(name)
        if isinstance(weight, Tensor):
            return weight
        return weight.dequantize(self.numerics.compute_dtype)

    def experts(self, prefix: str, num_experts: int) -> tuple[ExpertWeight, ExpertWeight]:
        """Routed experts ``{prefix}.{e}.w1|w2|w3``.

        Returns:
            Gate rows then up rows, shape [E, 2I, H], and the down matrices, shape [E, H, I].
        """
        names = [f"{prefix}.{expert}" for expert in range(num_experts)]
        gates = self._stacked_experts([f"{name}.w1" for name in names])
        ups = self._stacked_experts([f"{name}.w3" for name in names])
        downs = self._stacked_experts([f"{name}.w2" for name in names])
        if isinstance(gates, Tensor) and isinstance(ups, Tensor) and isinstance(downs, Tensor):
            w13 = torch.cat([gates, ups], dim=1)
            limit = _WIDENED_EXPERTS_VALUES
            return _widen_small(w13, limit), _widen_small(downs, limit)
        if isinstance(gates, MXFP4Weight) and isinstance(ups, MXFP4Weight):
            data = torch.cat([gates.data, ups.data], dim=1)
            return MXFP4Weight(data, torch.cat([gates.scale, ups.scale], dim=1)), downs
        raise CheckpointError(f"`{prefix}.*`: `w1`, `w2` and `w3` must have the same format")

    def _stacked_experts(self, names: list[str]) -> ExpertWeight:
        parts = [self.matrix(name) for name in names]
        dense = [part for part in parts if isinstance(part, Tensor)]
        if len(dense) == len(parts):
            return torch.stack(dense)
        packed = [part for part in parts if isinstance(part, MXFP4Weight)]
        if len(packed) < len(parts):
            raise CheckpointError(f"`{names[0]}` and the others must all be MXFP4 or none")
        return MXFP4Weight(
            torch.stack([part.data for part in packed]),
            torch.stack([part.scale for part in packed]),
        )

    def engram_table(self, name: str) -> Tensor | EngramTable:
        """Embedding rows of an Engram layer, as stored."""
        data = self._get(f"{name}.weight").to(self.device)
        if not self._is_quantized(name):
            return data
        return EngramTable(data, self._get(f"{name}.scale").to(self.device))

    def is_quantized(self, name: str) -> bool:
        """Whether matrix `name` (without ``.weight``) is stored quantised."""
        return self._is_quantized(name)

    def _is_quantized(self, name: str) -> bool:
        return f"{name}.scale" in self._names

    def _place(self, weight: MXFP8Weight | MXFP4Weight) -> Weight:
        if self._keeps_packed:
            return weight.to(self.device)
        return weight.dequantize(self.numerics.compute_dtype).to(self.device)

    def _get(self, name: str) -> Tensor:
        if name not in self._names:
            raise CheckpointError(f"the checkpoint has no tensor `{name}`")
        return self._source.get(name)


def _stack_rows(parts: list[Weight], dtype: torch.dtype) -> Weight:
    """One matrix with the rows of all parts; packed when whole tiles can be stacked."""
    if len(parts) == 1:
        return parts[0]
    packed = [part for part in parts if isinstance(part, MXFP8Weight)]
    if len(packed) == len(parts) and not any(part.shape[0] % MXFP8_TILE for part in packed[:-1]):
        data = torch.cat([part.data for part in packed])
        return MXFP8Weight(data, torch.cat([part.scale for part in packed]))
    return torch.cat(
        [part if isinstance(part, Tensor) else part.dequantize(dtype) for part in parts]
    )


def _widen_small(weight: Tensor, limit: int) -> Tensor:
    """The weight in float32 where that computes sooner and changes no value."""
    if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and weight.numel() <= limit:
        return weight.float()
    return weight
