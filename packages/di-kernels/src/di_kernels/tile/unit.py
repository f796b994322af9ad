"""Several kernels in one run of nvcc, each with its own report and PTX.

Reading TileLang's headers takes nvcc about 4 s of a processor, a kernel's own code half a second.
So every source is a namespace of one unit, `k000`, `k001`, ..., behind the headers they share: the
same text with the same flags, whose entry functions tell by their mangled names whose they are.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from di_kernels.tile.toolchain import find_nvcc

_INCLUDE = re.compile(r"\s*#\s*include\b")
_ENTRY = re.compile(r"_ZN4k(\d{3})")
_CONDITION = re.compile(r"\s*#\s*(if|endif)")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What nvcc made of one source.

    Args:
        report: Lines of ptxas about it, or of the compiler that refused.
        ptx: Its entry functions; None where the compiler refused.
    """

    report: str
    ptx: str | None


def compile_unit(sources: Sequence[str], architecture: str) -> list[Compiled]:
    """Compiles CUDA sources, together if they compile.

    Args:
        sources: As TileLang writes them, at most 1,000.
        architecture: For which, `sm_90a` and so on.

    Returns:
        One result per source. Where the unit is refused, every source was compiled alone, so that
        the fault is where it belongs.
    """
    report, ptx = _run_nvcc(sources, architecture)
    if ptx is not None:
        return split_report(report, ptx, len(sources))
    if len(sources) == 1:
        return [Compiled(report, None)]
    return [result for source in sources for result in compile_unit([source], architecture)]


def split_report(report: str, ptx: str, count: int) -> list[Compiled]:
    """Gives every source the lines about it; lines about none in particular go to all."""
    reports: list[list[str]] = [[] for _ in range(count)]
    owner = None
    for line in report.splitlines():
        named = _ENTRY.search(line)
        owner = int(named[1]) if named else owner
        for lines in reports if owner is None else [reports[owner]]:
            lines.append(line)
    bodies = [""] * count
    for part in re.split(r"(?=\.entry\s)", ptx)[1:]:
        named = _ENTRY.search(part)
        if named:
            bodies[int(named[1])] += part
    return [
        Compiled("\n".join(lines), body) if body else Compiled("no entry function", None)
        for lines, body in zip(reports, bodies, strict=True)
    ]


def _shared_includes(sources: Sequence[str]) -> list[str]:
    """Their unconditional includes, once each, in order."""
    includes: dict[str, None] = {}
    for source in sources:
        depth = 0
        for line in source.splitlines():
            condition = _CONDITION.match(line)
            if condition:
                depth += 1 if condition[1] == "if" else -1
            elif depth == 0 and _INCLUDE.match(line):
                includes[line.strip()] = None
    return list(includes)


def _run_nvcc(sources: Sequence[str], architecture: str) -> tuple[str, str | None]:
    """Report of the unit and its PTX; no PTX where nvcc refuses."""
    import tilelang

    root = Path(tilelang.__file__).parent
    number = architecture.removeprefix("sm_")
    with tempfile.TemporaryDirectory() as folder:
        lines = _shared_includes(sources)
        for index, source in enumerate(sources):
            name = f"k{index:03d}"
            # A C name would be one function whatever the namespace.
            text = source.replace('extern "C" __global__', "__global__")
            (Path(folder) / f"{name}.cu").write_text(text)
            lines += [f"namespace {name} {{", f'#include "{name}.cu"', "}"]
        path = Path(folder) / "unit.cu"
        path.write_text("\n".join(lines) + "\n")
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
