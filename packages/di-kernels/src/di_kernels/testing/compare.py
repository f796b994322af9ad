"""The numeric measure of this package: relative root-mean-square error."""

from __future__ import annotations

from dataclasses import dataclass

import torch

THRESHOLDS = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 5e-3}
"""Largest accepted relative RMS error of a result of each dtype.

Rounding to bfloat16 alone gives 1.7e-3, to float32 2.5e-8; the rest is room for the order of sums.
"""


class MismatchError(AssertionError):
    """Two tensors differ; the message names the worst coordinate and both values."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far a result is from what was expected.

    Args:
        relative_rms: RMS of the difference over RMS of the expected values; 0 for equal tensors,
            infinity where one has a NaN or an infinity and the other does not.
        max_abs: Largest absolute difference.
        num_different: Elements that differ in value (two NaN are equal).
        coordinate: Where the largest difference lies; None for equal tensors.
        actual: The value there.
        expected: The expected value there.
    """

    relative_rms: float
    max_abs: float
    num_different: int
    coordinate: tuple[int, ...] | None
    actual: float
    expected: float

    def report(self, name: str) -> str:
        """One line for people."""
        if self.coordinate is None:
            return f"{name}: equal"
        return (
            f"{name}: relative rms {self.relative_rms:.3g}, {self.num_different} elements differ, "
            f"worst at {self.coordinate}: got {self.actual!r}, expected {self.expected!r}"
        )


def compare(actual: torch.Tensor, expected: torch.Tensor) -> Comparison:
    """Measures `actual` against `expected` in float64.

    Args:
        actual: Any dtype.
        expected: Shape of `actual`, any dtype.

    Raises:
        MismatchError: The shapes differ.
    """
    if actual.shape != expected.shape:
        raise MismatchError(
            f"shapes differ: got {tuple(actual.shape)}, expected {tuple(expected.shape)}"
        )
    have, want = _as_float64(actual), _as_float64(expected)
    is_same = (have == want) | (have.isnan() & want.isnan())
    if bool(is_same.all()):
        return Comparison(0.0, 0.0, 0, None, 0.0, 0.0)
    difference = torch.where(is_same, 0.0, (have - want).abs()).nan_to_num(torch.inf, torch.inf)
    worst = int(difference.argmax())
    finite = torch.where(want.isfinite(), want, 0.0)
    norm = float(finite.square().mean().sqrt())
    error = float(difference.square().mean().sqrt())
    coordinate = tuple(int(index) for index in torch.unravel_index(torch.tensor(worst), have.shape))
    return Comparison(
        error / norm if norm else torch.inf,
        float(difference.max()),
        int((~is_same).sum()),
        coordinate,
        float(have.flatten()[worst]),
        float(want.flatten()[worst]),
    )


def assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    name: str = "result",
    *,
    dtype: torch.dtype | None = None,
    tolerance: float | None = None,
) -> None:
    """Refuses a result whose relative RMS error exceeds the threshold of its dtype.

    Args:
        actual: Result.
        expected: What it should be, usually computed in float64.
        name: Name in the report.
        dtype: Dtype whose threshold holds; that of `actual` when None. Dtypes without a threshold
            (integers, codes) must be equal.
        tolerance: Threshold instead of the dtype's.

    Raises:
        MismatchError: It does.
    """
    comparison = compare(actual, expected)
    limit = THRESHOLDS.get(dtype or actual.dtype, 0.0) if tolerance is None else tolerance
    if not comparison.relative_rms <= limit:
        raise MismatchError(f"{comparison.report(name)}, allowed {limit:.3g}")


def assert_bitwise(actual: torch.Tensor, expected: torch.Tensor, name: str = "result") -> None:
    """Refuses tensors whose bytes differ (so +0 and -0 differ, and NaN payloads count).

    Raises:
        MismatchError: They do, or dtype or shape differ.
    """
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        raise MismatchError(
            f"{name}: got {actual.dtype} {tuple(actual.shape)}, "
            f"expected {expected.dtype} {tuple(expected.shape)}"
        )
    have, want = _as_bytes(actual), _as_bytes(expected)
    if torch.equal(have, want):
        return
    element = int((have != want).any(-1).flatten().nonzero()[0])
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(element), actual.shape))
    raise MismatchError(
        f"{name}: bits differ, first at {place}: got {_as_float64(actual)[place].item()!r} "
        f"({_hex(have, element)}), expected {_as_float64(expected)[place].item()!r} "
        f"({_hex(want, element)})"
    )


def _as_float64(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e8m0fnu):
        tensor = tensor.to(torch.float32)
    return tensor.detach().to(torch.float64)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Bytes of every element, shape (..., element size)."""
    return tensor.detach().contiguous().unsqueeze(-1).view(torch.uint8)


def _hex(elements: torch.Tensor, element: int) -> str:
    return bytes(elements.flatten(0, -2)[element].tolist())[::-1].hex()
