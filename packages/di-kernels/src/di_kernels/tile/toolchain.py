"""TileLang and nvcc: are they there, and one compiled kernel per name and architecture.

TileLang keeps finished kernels on disk (`TILELANG_CACHE_DIR`), keyed by its version, the kernel's
text, the target and the options, so a folder filled on a machine without a GPU serves one with it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from di_kernels.errors import BackendMissingError, UnsupportedDeviceError

TILELANG = "tilelang"
"""Name of the backends made with it."""

TILELANG_VERSION = "0.1.15"
HOPPER = ((9, 0),)
"""Compute capabilities that the kernels were run on."""

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
"""Names the compile gate knows; a device of capability 9.0 runs sm_90a, and so on."""

SHARED_MEMORY_BYTES = {"sm_80": 163 << 10, "sm_90a": 227 << 10, "sm_100a": 227 << 10,
                       "sm_120a": 99 << 10}  # fmt: skip
"""Largest shared memory of a thread block (CUDA C++ programming guide, compute capabilities)."""

_INSTALL_HINT = "hint: pip install 'di-kernels[tilelang]'"


def find_nvcc() -> Path | None:
    """The CUDA compiler: of `CUDA_HOME`, on the PATH, of the PyPI packages, or in /usr/local."""
    candidates = [Path(home) / "bin" / "nvcc" for home in (os.environ.get("CUDA_HOME"),) if home]
    on_path = shutil.which("nvcc")
    candidates += [Path(on_path)] if on_path else []
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        candidates.append(Path(folder) / "cu13" / "bin" / "nvcc")
    candidates.append(Path("/usr/local/cuda/bin/nvcc"))
    return next((path for path in candidates if path.is_file()), None)


@functools.cache
def missing_tools() -> str | None:
    """What keeps TileLang kernels from being compiled here; None when nothing does."""
    if importlib.util.find_spec("tilelang") is None:
        return f"the module `tilelang` {TILELANG_VERSION} is not installed\n{_INSTALL_HINT}"
    if find_nvcc() is None:
        return f"no CUDA compiler: `nvcc` is neither installed nor on the PATH\n{_INSTALL_HINT}"
    return None


def require_tools() -> None:
    """Refuses where kernels cannot be compiled.

    Raises:
        BackendMissingError: TileLang or nvcc is not there.
    """
    missing = missing_tools()
    if missing is not None:
        raise BackendMissingError(f"cannot compile a TileLang kernel: {missing}")


def architecture_of(device: torch.device) -> str:
    """Architecture name of a CUDA device.

    Raises:
        UnsupportedDeviceError: It has another capability than the kernels are built for.
    """
    major, minor = torch.cuda.get_device_capability(device)
    name = {(8, 0): "sm_80", (9, 0): "sm_90a", (10, 0): "sm_100a", (12, 0): "sm_120a"}.get(
        (major, minor)
    )
    if name is None:
        raise UnsupportedDeviceError(
            f"TileLang kernels are built for {', '.join(ARCHITECTURES)}, "
            f"`{device}` has compute capability: {major}.{minor}\n"
            "hint: `use_backend('reference')`"
        )
    return name


def compile_kernel(
    function: object, architecture: str, options: tuple[tuple[str, object], ...]
) -> Callable[..., None]:
    """Compiles a kernel, or takes it from the cache on disk.

    Args:
        function: The TileLang function.
        architecture: One of `ARCHITECTURES`.
        options: TileLang pass options by name.

    """
    # TileLang reports progress on stdout, where `--json` has its document.
    with contextlib.redirect_stdout(sys.stderr):
        import tilelang

        compiled: Callable[..., None] = tilelang.compile(
            function,
            target={"kind": "cuda", "arch": architecture},
            pass_configs={tilelang.PassConfigKey(name): value for name, value in options},
        )
    return compiled
