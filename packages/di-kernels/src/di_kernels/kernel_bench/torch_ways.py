"""The ways a small op can be called: by TileLang, by its torch reference, by torch.compile."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from di_kernels.registry import REFERENCE, get_op, use_backend
from di_kernels.tile.toolchain import TILELANG

logger = logging.getLogger(__name__)

COMPILED = "torch.compile"


def ways_of(op: str, *args: object, compiles: bool) -> dict[str, Callable[[], object]]:
    """Calls by name, each with the arguments the op passes to its backends.

    Args:
        op: Name of an op with a TileLang backend.
        args: Arguments of the reference.
        compiles: Whether to measure `torch.compile` too; it takes seconds for each shape.
    """
    known = get_op(op)
    backend = next(backend for backend in known.backends if backend.name == TILELANG)
    ways: dict[str, Callable[[], object]] = {
        "tilelang": lambda: backend.run(*args),
        "torch": _on_reference(known.reference, args),
    }
    if compiles:
        ways |= compiled_way(op, _on_reference(torch.compile(known.reference, dynamic=False), args))
    return ways


def compiled_way(op: str, call: Callable[[], object]) -> dict[str, Callable[[], object]]:
    """A compiled call by its name; none where torch does not compile it.

    Its compiler raises errors of many kinds.

    Args:
        op: Name in the log.
        call: A call of what `torch.compile` gave.
    """
    try:
        with torch.inference_mode():
            call()
    except Exception as error:
        logger.warning("%s: torch.compile fails: %s", op, str(error).splitlines()[0])
        return {}
    return {COMPILED: call}


def _on_reference(
    function: Callable[..., object], args: tuple[object, ...]
) -> Callable[[], object]:
    """The call with every op inside it on its reference."""

    def call() -> object:
        with use_backend(REFERENCE):
            return function(*args)

    return call
