"""Synthetic weights of the right names, shapes and formats for any configuration.

A tensor's values depend on the seed and its name alone, so any subset can be made anywhere and
comes out the same. They are bell-shaped with the usual fan-in scaling, so that activations stay in
range through all layers. Only `PCG64.random_raw` is used, whose stream NumPy keeps stable across
versions, which makes weight files written from here reproducible byte for byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import floor, log2, prod
from statistics import NormalDist
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from di_engine.checkpoint.memory import Resident, check_memory, weight_memory
from di_engine.checkpoint.names import Part, TensorSpec, expected_tensors
from di_engine.checkpoint.source import TORCH_DTYPES, ProgressCallback
from di_engine.config import ModelConfig
from di_engine.errors import CheckpointError

__all__ = ["DummySource", "dummy_source"]

_CHUNK_VALUES = 1 << 22
_WORD_BYTES = 8
_SCALE_BIAS = 127  # UE8M0 byte of the scale 1

_E4M3_DEVIATION = 64.0  # of the unscaled codes; the largest quantile stays far below 448
_E2M1_DEVIATION = 2.0
_E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Each 64-bit word gives one value: the sum of four 16-bit lanes, which is bell-shaped.
_LANE_SUM_MEAN = 4 * 65535 / 2
_LANE_SUM_DEVIATION = (4 * (65536**2 - 1) / 12) ** 0.5


def dummy_source(
    config: ModelConfig,
    *,
    seed: int = 0,
    parts: tuple[Part, ...] = ("text",),
    resident: Resident = "stored",
    available_bytes: int | None = None,
    device: str = "cpu",
    progress: ProgressCallback | None = None,
) -> DummySource:
    """Returns a source of synthetic weights for a configuration.

    Args:
        config: The model configuration; decides names, shapes and formats.
        seed: Weights of different seeds are independent.
        parts: Parts of the model to offer.
        resident: Format the weights will have in memory; see `weight_memory`.
        available_bytes: Free memory of the device; None skips the memory check.
        device: Name of the device for messages.
        progress: Called with bytes made, total bytes and the tensor name.

    Raises:
        CapacityError: The weights do not fit into `available_bytes`.
    """
    if available_bytes is not None:
        check_memory(weight_memory(config, resident, parts), available_bytes, device)
    return DummySource(expected_tensors(config, parts), seed, progress)


class DummySource:
    """A `TensorSource` that makes each tensor when it is asked for."""

    def __init__(
        self,
        specs: dict[str, TensorSpec],
        seed: int,
        progress: ProgressCallback | None = None,
    ) -> None:
        self._specs = specs
        self._seed = seed
        self._progress = progress
        self._done_bytes = 0
        self._total_bytes = sum(spec.num_bytes for spec in specs.values())

    def names(self) -> Sequence[str]:
        """Returns the names of all tensors."""
        return list(self._specs)

    def get(self, name: str) -> torch.Tensor:
        """Makes one tensor. See `TensorSource.get`."""
        spec = self._specs.get(name)
        if spec is None:
            raise CheckpointError(f"no tensor `{name}` in the model configuration")
        tensor = self._make(spec)
        self._done_bytes += spec.num_bytes
        if self._progress is not None:
            done = min(self._done_bytes, self._total_bytes)
            self._progress(done, self._total_bytes, name)
        return tensor.view(TORCH_DTYPES[spec.dtypes[0]]).reshape(spec.shape)

    def _make(self, spec: TensorSpec) -> torch.Tensor:
        words = _words(self._seed, spec.name)
        count = prod(spec.shape)
        if spec.dtypes[0] == "F8_E4M3":
            return torch.from_numpy(_lookup(words, count, _e4m3_codes()))
        if spec.dtypes[0] == "I8":
            return torch.from_numpy(_lookup(words, count, _e2m1_code_pairs()))
        if spec.dtypes[0] == "F8_E8M0":
            weight = self._specs[spec.name.removesuffix("scale") + "weight"]
            return torch.from_numpy(_lookup(words, count, _scale_bytes(weight)))
        return _plain(words, spec)

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_Words = Callable[[int], npt.NDArray[np.uint64]]


def _words(seed: int, name: str) -> _Words:
    """Returns a function that gives the next n 64-bit words of a tensor's stream."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    generator = np.random.PCG64(int.from_bytes(digest, "little"))

    def take(count: int) -> npt.NDArray[np.uint64]:
        words = np.asarray(generator.random_raw(count), dtype=np.uint64)
        return words

    return take


def _chunks(count: int) -> Iterator[slice]:
    for start in range(0, count, _CHUNK_VALUES):
        yield slice(start, min(start + _CHUNK_VALUES, count))


def _lookup(words: _Words, count: int, table: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Returns `count` bytes drawn uniformly from a table of 256."""
    values = np.empty(count, np.uint8)
    for part in _chunks(count):
        size = part.stop - part.start
        random_bytes = words(-(-size // _WORD_BYTES)).view(np.uint8)[:size]
        values[part] = table[random_bytes]
    return values


@cache
def _e4m3_codes() -> npt.NDArray[np.uint8]:
    """Returns the codes of 256 equally likely normal values of deviation 64."""
    normal = NormalDist(sigma=_E4M3_DEVIATION)
    values = torch.tensor([normal.inv_cdf((index + 0.5) / 256) for index in range(256)])
    return values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


@cache
def _e2m1_code_pairs() -> npt.NDArray[np.uint8]:
    """Returns bytes of two codes each, from 16 equally likely normal values of deviation 2."""
    normal = NormalDist(sigma=_E2M1_DEVIATION)
    codes = []
    for index in range(16):
        value = normal.inv_cdf((index + 0.5) / 16)
        magnitude = min(range(8), key=lambda code: abs(_E2M1_VALUES[code] - abs(value)))
        codes.append(magnitude | (8 if value < 0 else 0))
    pairs = [codes[byte & 15] | codes[byte >> 4] << 4 for byte in range(256)]
    return np.array(pairs, np.uint8)


def _scale_bytes(weight: TensorSpec) -> npt.NDArray[np.uint8]:
    """Returns UE8M0 bytes that bring a weight to its deviation: two octaves, mixed to fit.

    Both octaves always occur, so that a scale read from the wrong place shows.
    """
    is_fp4 = weight.dtypes[0] == "I8"
    wanted = _deviation(weight) / (_E2M1_DEVIATION if is_fp4 else _E4M3_DEVIATION)
    lower = floor(log2(wanted))
    # Mean square of the mixture: upper * 4 + (1 - upper) * 1, in units of the lower octave.
    upper = min(max(((wanted / 2.0**lower) ** 2 - 1) / 3, 1 / 8), 7 / 8)
    is_upper = np.arange(256) < round(256 * upper)
    return (_SCALE_BIAS + lower + is_upper).astype(np.uint8)


def _deviation(spec: TensorSpec) -> float:
    """Returns the standard deviation of a matrix: 1 for tables, fan-in scaling for linears."""
    if "embed." in spec.name:
        return 1.0
    return float(_inputs(spec) ** -0.5)


def _inputs(spec: TensorSpec) -> int:
    return spec.shape[-1] * (2 if spec.dtypes[0] == "I8" else 1)


def _plain(words: _Words, spec: TensorSpec) -> torch.Tensor:
    """Returns BF16 or F32 values: near 1 for norm weights and gate vectors, else around 0."""
    mean, deviation = _location(spec)
    count = prod(spec.shape)
    values = torch.empty(count, dtype=TORCH_DTYPES[spec.dtypes[0]])
    for part in _chunks(count):
        lanes = words(part.stop - part.start).view(np.uint16).reshape(-1, 4)
        total = lanes.sum(axis=1, dtype=np.float64)
        unit = (total - _LANE_SUM_MEAN) / _LANE_SUM_DEVIATION
        values[part] = torch.from_numpy((mean + deviation * unit).astype(np.float32))
    return values


def _location(spec: TensorSpec) -> tuple[float, float]:
    name = spec.name
    if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "q_weight", "k_weight")):
        return 1.0, 0.1
    if name.endswith(("hc_attn_scale", "hc_ffn_scale")):
        return 0.5, 0.05
    if len(spec.shape) == 1:
        # Biases, mix bases, sinks, delimiters: small against unit-variance scores.
        return 0.0, 0.1
    return 0.0, _deviation(spec)
