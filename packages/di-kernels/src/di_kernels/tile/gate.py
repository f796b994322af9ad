"""The compile gate: every kernel for every architecture it is declared for, without a GPU.

A kernel fails when it does not lower or compile, spills registers, serialises wgmma, asks for more
shared memory than the architecture has, or lacks a matrix instruction where one is expected. A
green line says nothing about results: `python -m di_kernels check` does, on the device.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from di_kernels.tile.catalogue import kernels
from di_kernels.tile.kernel import Kernel
from di_kernels.tile.toolchain import SHARED_MEMORY_BYTES, find_nvcc, require_tools

_MATRIX_INSTRUCTION = re.compile(r"\b(wgmma\.mma_async|mma\.sync|tcgen05\.mma)")
_REGISTERS = re.compile(r"Used (\d+) registers")
_STATIC_BYTES = re.compile(r"(\d+) bytes smem")
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")
_SERIALISED = re.compile(r"wgmma.*serializ", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GateResult:
    """One kernel on one architecture.

    Args:
        kernel: Name in the catalogue.
        architecture: For which it was compiled.
        status: `pass`, `fail` or `undeclared`.
        registers: Registers per thread at entry.
        spill_bytes: Bytes of spill stores and loads.
        shared_bytes: Static and dynamic shared memory of a thread block.
        detail: What failed, or why it is not declared.
    """

    kernel: str
    architecture: str
    status: str
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    detail: str = ""


def run_gate(
    architectures: Sequence[str], *, names: Sequence[str] = (), jobs: int = 1
) -> Iterator[GateResult]:
    """Compiles the catalogue, or the kernels named.

    Args:
        architectures: Of `ARCHITECTURES`.
        names: Kernels; empty for all.
        jobs: Processes that compile at a time.

    Raises:
        BackendMissingError: TileLang or nvcc is not there.
    """
    require_tools()
    pairs = [
        (name, architecture)
        for name in kernels()
        if not names or name in names
        for architecture in architectures
    ]
    if jobs == 1:
        yield from map(_compile, pairs)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(_compile, pairs)


def _compile(pair: tuple[str, str]) -> GateResult:
    name, architecture = pair
    kernel = kernels()[name]
    reason = kernel.undeclared.get(architecture)
    if reason is not None:
        return GateResult(name, architecture, "undeclared", detail=reason)
    import tilelang

    try:
        source, dynamic_bytes = _lower(kernel, architecture)
    except (tilelang.tvm.error.TVMError, RuntimeError, ValueError, TypeError) as error:
        return GateResult(kernel.name, architecture, "fail", detail=f"does not lower: {error}")
    return _assess(kernel, architecture, *_run_nvcc(source, architecture), dynamic_bytes)


def _assess(
    kernel: Kernel, architecture: str, report: str, ptx: str | None, dynamic_bytes: int
) -> GateResult:
    """Reads the compiler's report; `ptx` is None where it refused."""
    if ptx is None:
        return GateResult(kernel.name, architecture, "fail", detail=f"nvcc: {report[-400:]}")
    registers = max(map(int, _REGISTERS.findall(report)), default=0)
    spills = sum(map(int, _SPILLS.findall(report)))
    shared = dynamic_bytes + max(map(int, _STATIC_BYTES.findall(report)), default=0)
    faults = []
    if spills:
        faults.append(f"spills {spills} bytes")
    if _SERIALISED.search(report):
        faults.append("wgmma is serialised")
    if shared > SHARED_MEMORY_BYTES[architecture]:
        faults.append(f"shared memory: at most {SHARED_MEMORY_BYTES[architecture]}, got: {shared}")
    if kernel.has_tensor_core and not _MATRIX_INSTRUCTION.search(ptx):
        faults.append("no matrix instruction")
    status = "fail" if faults else "pass"
    return GateResult(
        kernel.name, architecture, status, registers, spills, shared, "; ".join(faults)
    )


def _lower(kernel: Kernel, architecture: str) -> tuple[str, int]:
    """CUDA source and dynamic shared memory."""
    import tilelang

    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": architecture})
    options = dict(kernel.options_for(architecture))
    with target, tilelang.tvm.transform.PassContext(opt_level=3, config=options):
        artifact = tilelang.lower(kernel.build(architecture), target=target)
    functions = artifact.device_mod.functions.values()
    dynamic = [int(function.attrs.get("dyn_shared_memory_buf", 0)) for function in functions]
    return artifact.kernel_source, max(dynamic, default=0)


def _run_nvcc(source: str, architecture: str) -> tuple[str, str | None]:
    """Report of ptxas and the PTX; no PTX where nvcc refuses."""
    import tilelang

    root = Path(tilelang.__file__).parent
    number = architecture.removeprefix("sm_")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source)
        command = [
            str(find_nvcc()), "-cubin", "-O3", "-std=c++20", "--keep", f"--keep-dir={folder}",
            "-Xptxas=-v", f"-gencode=arch=compute_{number},code={architecture}",
            f"-I{root / 'src'}", f"-I{root / '3rdparty' / 'cutlass' / 'include'}",
            "-o", str(path.with_suffix(".cubin")), str(path),
        ]  # fmt: skip
        # Our own command line: the compiler on our own source.
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=False
        )
        report = done.stdout + done.stderr
        if done.returncode:
            return report, None
        return report, "".join(ptx.read_text() for ptx in Path(folder).glob("*.ptx"))
