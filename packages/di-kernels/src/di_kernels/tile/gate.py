"""The compile gate: every kernel for every architecture it is declared for, without a GPU.

A kernel fails when it does not lower or compile, spills registers, serialises wgmma, asks for more
shared memory than the architecture has, or lacks a matrix instruction where one is expected. A
green line says nothing about results: `python -m di_kernels check` does, on the device.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from di_kernels.tile.catalogue import kernels
from di_kernels.tile.kernel import Kernel
from di_kernels.tile.toolchain import SHARED_MEMORY_BYTES, require_tools
from di_kernels.tile.unit import compile_unit

# Kernels in one run of the compiler: more save little and keep results waiting.
_LARGEST_UNIT = 12
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
    architectures: Sequence[str],
    *,
    names: Sequence[str] = (),
    per_op: bool = False,
    jobs: int = 1,
) -> Iterator[GateResult]:
    """Compiles the catalogue, or the kernels named, several to a run of the compiler.

    Args:
        architectures: Of `ARCHITECTURES`.
        names: Kernels; empty for all.
        per_op: One kernel for every op instead of all (`one_per_op`).
        jobs: Processes that compile at a time.

    Raises:
        BackendMissingError: TileLang or nvcc is not there.
    """
    require_tools()
    units = []
    for architecture in architectures:
        wanted = one_per_op(architecture) if per_op else kernels()
        chosen = [kernels()[name] for name in wanted if not names or name in names]
        declared = [kernel.name for kernel in chosen if architecture not in kernel.undeclared]
        size = min(_LARGEST_UNIT, -(-len(declared) * len(architectures) // jobs))
        units += [(part, architecture) for part in _parts(declared, max(1, size))]
        for kernel in chosen:
            if architecture in kernel.undeclared:
                reason = kernel.undeclared[architecture]
                yield GateResult(kernel.name, architecture, "undeclared", detail=reason)
    if jobs == 1:
        for unit in units:
            yield from _compile(unit)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for results in pool.map(_compile, units):
            yield from results


def one_per_op(architecture: str) -> list[str]:
    """A kernel of every op that has one there: a product where the op is one, else its first."""
    first: dict[str, str] = {}
    for kernel in sorted(kernels().values(), key=lambda kernel: not kernel.has_tensor_core):
        if architecture not in kernel.undeclared:
            for op in kernel.ops:
                first.setdefault(op, kernel.name)
    return list(dict.fromkeys(first.values()))


def _parts(names: list[str], size: int) -> list[list[str]]:
    return [names[start : start + size] for start in range(0, len(names), size)]


def _compile(unit: tuple[list[str], str]) -> list[GateResult]:
    import tilelang

    names, architecture = unit
    results: dict[str, GateResult] = {}
    lowered: dict[str, tuple[str, int]] = {}
    for name in names:
        try:
            lowered[name] = _lower(kernels()[name], architecture)
        except (tilelang.tvm.error.TVMError, RuntimeError, ValueError, TypeError) as error:
            results[name] = GateResult(
                name, architecture, "fail", detail=f"does not lower: {error}"
            )
    if lowered:
        compiled = compile_unit([source for source, _ in lowered.values()], architecture)
        for (name, (_, dynamic_bytes)), made in zip(lowered.items(), compiled, strict=True):
            results[name] = _assess(
                kernels()[name], architecture, made.report, made.ptx, dynamic_bytes
            )
    return [results[name] for name in names]


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
