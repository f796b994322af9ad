"""Checks of arguments, with one wording."""

from __future__ import annotations

from typing import Protocol

import torch


class HasShape(Protocol):
    """A tensor, or a weight in a block format."""

    @property
    def shape(self) -> torch.Size:
        """Logical shape."""
        ...


def check_multiple(name: str, value: int, multiple: int) -> None:
    """Refuses a size that is not a multiple.

    Raises:
        ValueError: It is not.
    """
    if value % multiple:
        raise ValueError(
            f"invalid size of `{name}`: expected a multiple of {multiple}, got: {value}"
        )


def check_shape(name: str, tensor: HasShape, expected: tuple[int | None, ...]) -> None:
    """Refuses a tensor of another shape; None in `expected` stands for any size.

    Raises:
        ValueError: The shape differs.
    """
    shape = tensor.shape
    if len(shape) == len(expected):
        for have, want in zip(shape, expected, strict=True):
            if want is not None and have != want:
                break
        else:
            return
    wanted = ", ".join("any" if size is None else str(size) for size in expected)
    raise ValueError(f"invalid shape of `{name}`: expected ({wanted}), got: {tuple(shape)}")


def check_dtype(name: str, tensor: torch.Tensor, allowed: tuple[torch.dtype, ...]) -> None:
    """Refuses a tensor of another dtype.

    Raises:
        TypeError: The dtype is not in `allowed`.
    """
    if tensor.dtype not in allowed:
        wanted = " or ".join(str(dtype) for dtype in allowed)
        raise TypeError(f"invalid dtype of `{name}`: expected {wanted}, got: {tensor.dtype}")
