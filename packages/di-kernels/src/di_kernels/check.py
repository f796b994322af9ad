"""`check`: every backend of every op against an independent answer, and its promises about bits.

The references are measured against formulas in float64 written for that purpose; every other
backend is measured against the same answers, and so against the reference. A backend that promises
row invariance must give a row alone the bits it gives it among others.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from di_kernels.cases import SIZES, Case, all_cases
from di_kernels.cases.case import Source
from di_kernels.cases.kernels import kernel_cases
from di_kernels.errors import KernelError, UnsupportedDeviceError
from di_kernels.registry import (
    REFERENCE,
    Backend,
    backends,
    compute_capability_of,
    op_names,
    use_backend,
)
from di_kernels.testing import MismatchError, assert_bitwise, assert_close

KERNELS = "kernels"
"""Name of the shapes that only accelerated backends are checked with."""

_MOST_ROWS_ALONE = 257


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Outcome of one case with one backend.

    Args:
        op: Name of the op.
        case: Sizes and dtype.
        backend: Name of the backend.
        status: `pass`, `fail`, or `unsupported` where the backend does not serve the case.
        detail: What differs, or why it is not served.
    """

    op: str
    case: str
    backend: str
    status: str
    detail: str = ""


def run_checks(
    device: str | torch.device = "cpu", *, op_filter: Sequence[str] = (), shapes: str = "small"
) -> Iterator[CheckResult]:
    """Checks all ops, or those named.

    Args:
        device: Where to run.
        op_filter: Names of ops; empty for all.
        shapes: `small`, `real`, or `kernels`: the accelerated GPU backends at the release's widths
            and awkward sizes, without the references.
    """
    for batch_invariant in (False, True):
        for case in _built(_cases(shapes, device, batch_invariant)):
            if isinstance(case, CheckResult):
                yield case
                continue
            if op_filter and case.op not in op_filter:
                continue
            for backend in backends(case.op):
                if shapes == KERNELS and not _is_kernel_of(backend, case.op, device):
                    continue
                if batch_invariant and backend.determinism != "row_invariant_on_request":
                    continue  # the same call as before
                yield _check(case, backend, batch_invariant)


def why_no_kernels(device: str | torch.device, op_filter: Sequence[str] = ()) -> str | None:
    """Why the shapes `kernels` would run nothing on a GPU; None where a kernel serves.

    Args:
        device: A CUDA device.
        op_filter: Names of ops; empty for all.
    """
    device = torch.device(device)
    capability = compute_capability_of(device)
    refusals = []
    for op in op_filter or op_names():
        for backend in backends(op):
            if backend.name == REFERENCE or backend.device_types == ("cpu",):
                continue
            refusal = backend.refusal(op, device.type, capability)
            if refusal is None:
                return None
            refusals.append(str(refusal))
    if not refusals:
        return f"no backend but the reference: {', '.join(op_filter)}"
    others = f" ({len(refusals) - 1} more like it)" if len(refusals) > 1 else ""
    return f"no kernel serves `{device}`{others}: {refusals[0]}\nthe references serve there"


def _is_kernel_of(backend: Backend[..., object], op: str, device: str | torch.device) -> bool:
    """Whether it is no reference, and made for such a device."""
    device = torch.device(device)
    refusal = backend.refusal(op, device.type, compute_capability_of(device))
    return backend.name != REFERENCE and not isinstance(refusal, UnsupportedDeviceError)


def _cases(shapes: str, device: str | torch.device, batch_invariant: bool) -> Iterator[Case]:
    if shapes != KERNELS:
        return all_cases(SIZES[shapes], device, batch_invariant=batch_invariant)
    generator = torch.Generator(device).manual_seed(0)
    return kernel_cases(Source(torch.device(device), torch.bfloat16, batch_invariant, generator))


def _built(cases: Iterator[Case]) -> Iterator[Case | CheckResult]:
    """The cases; a failure in place of the rest where one cannot be built."""
    try:
        yield from cases
    except Exception as error:
        yield CheckResult("-", "the next case cannot be built", "-", "fail", _said(error))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _poisoned_outputs() -> Iterator[None]:
    """Fills what `torch.empty` gives with NaN, so that an element nobody writes shows."""
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warned)


def _check(case: Case, backend: Backend[..., object], batch_invariant: bool) -> CheckResult:
    label = f"{case.name}{' batch invariant' if batch_invariant else ''}"
    with use_backend(backend.name), torch.no_grad(), _poisoned_outputs():
        try:
            _compare(case)
            if batch_invariant or backend.determinism == "row_invariant":
                _compare_rows_alone(case)
        except MismatchError as mismatch:
            return CheckResult(case.op, label, backend.name, "fail", str(mismatch))
        except KernelError as refusal:
            return CheckResult(case.op, label, backend.name, "unsupported", str(refusal))
        except Exception as error:  # one broken kernel must not hide the others
            return CheckResult(case.op, label, backend.name, "fail", _said(error))
    return CheckResult(case.op, label, backend.name, "pass")


def _compare(case: Case) -> None:
    outputs = case.run(case.all_rows)
    for index, (actual, oracle) in enumerate(zip(outputs, case.oracle(), strict=True)):
        name = f"{case.name} output {index}"
        # On the device of the result: a prefill's float64 copies take a CPU minutes.
        expected = oracle.to(actual.device)
        if case.is_exact:
            # A code of zero may carry a sign; its value is what counts.
            assert_bitwise(actual + 0, expected.to(actual.dtype) + 0, name)
        else:
            assert_close(actual, expected, name, tolerance=case.tolerance)
    for actual, again in zip(outputs, case.run(case.all_rows), strict=True):
        assert_bitwise(again, actual, f"{case.name} repeated")


def _compare_rows_alone(case: Case) -> None:
    if case.num_rows < 2:
        return
    together = case.run(case.all_rows)
    stride = -(-case.num_rows // _MOST_ROWS_ALONE)
    for row in range(0, case.num_rows, stride):
        alone = case.run(torch.tensor([row]))
        for whole, single in zip(together, alone, strict=True):
            assert_bitwise(single, whole[row : row + 1], f"{case.name} row {row} alone")
