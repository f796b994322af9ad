"""Optional compilation of the functions that launch many small kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_MOST_SHAPES = 64
# One entry per shape and per gradient mode: a stage has a few dozen.
torch._dynamo.config.recompile_limit = _MOST_SHAPES
torch._dynamo.config.accumulated_recompile_limit = 64 * _MOST_SHAPES
_state = {"enabled": False}


def use_compiler(enabled: bool) -> None:
    """Turns compilation of all `fusable` functions on or off."""
    _state["enabled"] = enabled


def fusable(function: Callable[P, R]) -> Callable[P, R]:
    """Marks a pure function of tensors that `torch.compile` may fuse."""
    compiled: Callable[P, R] = torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return (compiled if _state["enabled"] else function)(*args, **kwargs)

    return call
