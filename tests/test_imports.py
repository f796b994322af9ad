"""What importing a package brings along, in a fresh interpreter."""

import importlib.util
import subprocess
import sys

import pytest

# Modules that must not be loaded by `import <package>`.
KERNEL_LIBRARIES = ("deep_ep", "deep_gemm", "flash_mla", "tilelang")
FORBIDDEN = {
    "deepseek_recipe": ("torch", "numpy", "di_engine"),
    "di_engine": ("torch", "transformers", *KERNEL_LIBRARIES),
    "di_kernels": ("transformers", "di_engine", *KERNEL_LIBRARIES),
    "di_scheduler": ("torch", "pandas", "di_engine"),
    "di_structured": ("torch", "xgrammar", "di_engine"),
    "di_spec": ("torch", "vllm", "sglang", "di_engine"),
}


def modules_after(statement: str) -> set[str]:
    """Returns the names of the modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    return set(result.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("package", FORBIDDEN)
def test_an_import_brings_nothing_heavy_along(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not in this environment")
    loaded = modules_after(f"import {package}")
    assert package in loaded
    assert sorted(loaded & set(FORBIDDEN[package])) == []
