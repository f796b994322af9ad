"""The libraries behind the adapters: is the right one here, in the version they were written for?

The short names on the public package index belong to strangers, so a module of the right name
proves nothing. Counted as the library is what comes from its distribution, in the version whose
signatures were read, and offers the functions with the parameters that the adapters use.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

BLACKWELL = ((10, 0), (10, 3))
"""Compute capabilities that both libraries name."""

_INSTALL_HINT = (
    "hint: `DG_PACKAGE_NAME=deepinfer-gemm pip install --no-build-isolation 'di-kernels[sm100]'`, "
    "on a machine with torch for CUDA and nvcc 13.1 or newer"
)


@dataclass(frozen=True)
class Library:
    """A library that adapters call.

    Args:
        module: Import name.
        distribution: The distribution that brings it.
        version: The version whose signatures were read.
        parameters: Parameters the adapters pass, by function.
    """

    module: str
    distribution: str
    version: str
    parameters: dict[str, tuple[str, ...]]


FLASH_MLA = Library(
    "flash_mla",
    "deepinfer-flashmla",
    "1.0.0",
    {
        "get_mla_metadata": (),
        "flash_mla_with_kvcache": (
            "q", "k_cache", "block_table", "cache_seqlens", "head_dim_v",
            "tile_scheduler_metadata", "softmax_scale", "indices", "attn_sink", "extra_k_cache",
            "extra_indices_in_kvcache", "enable_batch_invariant",
        ),
    },
)  # fmt: skip
DEEP_GEMM = Library(
    "deep_gemm",
    "deepinfer-gemm",
    "2.8.2",
    {
        "fp8_gemm_nt": ("a", "b", "d", "recipe"),
        "m_grouped_fp8_fp4_gemm_nt_contiguous": (
            "a", "b", "d", "grouped_layout", "recipe", "use_psum_layout",
        ),
        "get_mk_alignment_for_contiguous_layout": (),
    },
)  # fmt: skip


def missing(library: Library) -> Callable[[], str | None]:
    """The `availability` of a backend: what keeps the library from being used here."""
    return functools.partial(problem_with, library.module)


@functools.cache
def problem_with(module: str) -> str | None:
    """Why the library of that import name cannot be used; None when it can. Imports it once."""
    library = next(known for known in (FLASH_MLA, DEEP_GEMM) if known.module == module)
    if importlib.util.find_spec(module) is None:
        return f"the module `{module}` is not installed\n{_INSTALL_HINT}"
    try:
        installed = importlib.metadata.version(library.distribution)
    except importlib.metadata.PackageNotFoundError:
        return (
            f"the module `{module}` is not that of `{library.distribution}` {library.version}: "
            f"the short names on the public index are other people's\n{_INSTALL_HINT}"
        )
    if installed.split("+")[0] != library.version:
        return (
            f"the adapter was written for `{library.distribution}` {library.version}, "
            f"installed: {installed}"
        )
    try:
        loaded = importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        return f"the module `{module}` cannot be imported: {error}"
    lacking = [
        name
        for name, parameters in library.parameters.items()
        if not _accepts(loaded, name, parameters)
    ]
    if lacking:
        return f"the module `{module}` lacks or changed: {', '.join(lacking)}"
    return None


def _accepts(module: ModuleType, name: str, parameters: tuple[str, ...]) -> bool:
    """Whether the module has the function with these parameters."""
    function = getattr(module, name, None)
    if not callable(function):
        return False
    try:
        known = set(inspect.signature(function).parameters)
    except ValueError:
        # A bound C++ function has its signature in the first line of its docstring.
        lines = (function.__doc__ or "").splitlines()
        known = set(re.findall(r"(\w+):", lines[0])) if lines else set()
    return known.issuperset(parameters)
