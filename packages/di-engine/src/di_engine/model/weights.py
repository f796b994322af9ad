"""Takes weights from a checkpoint, one by one, in the form the layers compute with.

Memory: quantised matrices are expanded once to the compute dtype on a CPU, where unpacking in every
product would cost more than the product. On other devices they stay in the checkpoint's formats.
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

Weight = Tensor | MXFP8Weight | MXFP4Weight


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
    """

    def __init__(
        self,
        source: TensorSource,
        numerics: Numerics,
        device: torch.device | str,
    ) -> None:
        self.numerics = numerics
        self.device = torch.device(device)
        self._source = source
        self._names = frozenset(source.names())
        self._expands = self.device.type == "cpu"

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
        return Linear(
            _stack_rows(parts),
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

    def experts(self, prefix: str, num_experts: int) -> tuple[Weight, Weight]:
        """Routed experts ``{prefix}.{e}.w1|w2|w3``.

        Returns:
            Gate rows then up rows, shape [E, 2I, H], and the down matrices, shape [E, H, I].
        """
        gate_up, down = [], []
        for expert in range(num_experts):
            name = f"{prefix}.{expert}"
            gate_up.append(_stack_rows([self.matrix(f"{name}.w1"), self.matrix(f"{name}.w3")]))
            down.append(self.matrix(f"{name}.w2"))
        return _stack(gate_up), _stack(down)

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
        if self._expands:
            return weight.dequantize(self.numerics.compute_dtype)
        return weight.to(self.device)

    def _get(self, name: str) -> Tensor:
        if name not in self._names:
            raise CheckpointError(f"the checkpoint has no tensor `{name}`")
        return self._source.get(name)


def _stack_rows(parts: list[Weight]) -> Weight:
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Tensor) for part in parts):
        return torch.cat(parts)
    return type(parts[0])(
        torch.cat([part.data for part in parts]), torch.cat([part.scale for part in parts])
    )


def _stack(parts: list[Weight]) -> Weight:
    if all(isinstance(part, Tensor) for part in parts):
        return torch.stack(parts)
    return type(parts[0])(
        torch.stack([part.data for part in parts]), torch.stack([part.scale for part in parts])
    )
