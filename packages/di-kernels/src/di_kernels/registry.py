"""Which implementation serves an op: capability as data, selection in one place.

An `Op` holds its torch reference and the faster implementations registered beside it. A `Backend`
states what it serves (devices, compute capabilities, dtypes, size rules, gradients, determinism) as
plain fields, so that "would this model run here?" is answered without compiling and without
touching a device.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, ParamSpec, TypeVar, cast

import torch

from di_kernels.errors import (
    BackendMissingError,
    KernelError,
    NotDifferentiableError,
    NotRowInvariantError,
    UnknownBackendError,
    UnknownOpError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)
from di_kernels.timed_pair import TimedPair

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

REFERENCE = "reference"
FLOATS = (torch.float32, torch.float64, torch.bfloat16)

Determinism = Literal["row_invariant", "row_invariant_on_request", "repeatable"]
"""What a backend promises about bits.

row_invariant: a row's result does not depend on the other rows, their number or its place among
them. row_invariant_on_request: the same, when the op is called with `batch_invariant=True`.
repeatable: equal calls give equal bits.
"""


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A limit on one named size of a call.

    Args:
        size: Name of the size, as the op passes it (for example `head_dim`).
        minimum: Smallest value served.
        maximum: Largest value served; None for no limit.
        multiple_of: The value must be a multiple of this.
    """

    size: str
    minimum: int = 0
    maximum: int | None = None
    multiple_of: int = 1

    def accepts(self, value: int) -> bool:
        """Whether `value` obeys the rule."""
        in_range = value >= self.minimum and (self.maximum is None or value <= self.maximum)
        return in_range and value % self.multiple_of == 0

    def __str__(self) -> str:
        parts = [f"{self.size} >= {self.minimum}"] if self.minimum else []
        if self.maximum is not None:
            parts.append(f"{self.size} <= {self.maximum}")
        if self.multiple_of > 1:
            parts.append(f"{self.size} % {self.multiple_of} == 0")
        return " and ".join(parts) or f"any {self.size}"


@dataclass(frozen=True, slots=True)
class Backend(Generic[P, R]):
    """One implementation of an op and what it serves.

    Args:
        name: Name users choose it by: `reference`, `numpy`, `tilelang`, ...
        run: The implementation, with the signature of the op's reference.
        device_types: Torch device types served; None for every device torch serves.
        compute_capabilities: CUDA capabilities served, as (major, minor); None when the device type
            alone decides.
        dtypes: Dtypes of the leading tensor served.
        size_rules: Limits on the sizes of a call.
        determinism: What is promised about bits.
        is_differentiable: Whether autograd works through it where the mathematics has a gradient.
        requires: Module that must be importable; None for nothing beyond torch and numpy.
        availability: Says why the backend cannot run here (a missing compiler), None when it can;
            must be cheap.
        layouts: Layouts of weights or records served, by the names the op uses; None for all.
        is_verified: False marks an adapter that was never run on its hardware.
        note: One sentence for tables: design, measured times, why it exists.
    """

    name: str
    run: Callable[P, R]
    device_types: tuple[str, ...] | None = None
    compute_capabilities: tuple[tuple[int, int], ...] | None = None
    dtypes: tuple[torch.dtype, ...] = FLOATS
    size_rules: tuple[SizeRule, ...] = ()
    determinism: Determinism = "repeatable"
    is_differentiable: bool = False
    requires: str | None = None
    availability: Callable[[], str | None] | None = None
    layouts: tuple[str, ...] | None = None
    is_verified: bool = True
    note: str = ""

    def refusal(
        self,
        op: str,
        device_type: str,
        compute_capability: tuple[int, int] | None,
        dtype: torch.dtype | None = None,
        sizes: Mapping[str, int] | None = None,
        *,
        needs_grad: bool = False,
        row_invariant: bool = False,
        layout: str | None = None,
    ) -> KernelError | None:
        """Why this backend cannot serve such a call; None when it can."""
        who = f"`{op}` backend `{self.name}`" + ("" if self.is_verified else " (unverified)")
        if self.device_types is not None and device_type not in self.device_types:
            return UnsupportedDeviceError(
                f"{who} needs a device of type {' or '.join(self.device_types)}, got: {device_type}"
            )
        capabilities = self.compute_capabilities
        if capabilities is not None and compute_capability not in capabilities:
            needed = ", ".join(f"{major}.{minor}" for major, minor in capabilities)
            given = "unknown" if compute_capability is None else "{}.{}".format(*compute_capability)
            return UnsupportedDeviceError(
                f"{who} needs compute capability {needed}, this device has: {given}"
            )
        if self.requires is not None and not _is_importable(self.requires):
            return BackendMissingError(f"{who} needs the module: {self.requires}")
        missing = self.availability() if self.availability is not None else None
        if missing is not None:
            return BackendMissingError(f"{who} cannot run here: {missing}")
        if dtype is not None and dtype not in self.dtypes:
            served = ", ".join(str(served) for served in self.dtypes)
            return UnsupportedDtypeError(f"{who} serves {served}, got: {dtype}")
        if layout is not None and self.layouts is not None and layout not in self.layouts:
            return UnsupportedLayoutError(
                f"{who} serves {' or '.join(self.layouts)}, got: {layout}"
            )
        broken = [
            f"{rule} (got {sizes[rule.size]})"
            for rule in self.size_rules
            if sizes is not None and rule.size in sizes and not rule.accepts(sizes[rule.size])
        ]
        if broken:
            return UnsupportedShapeError(f"{who} needs {'; '.join(broken)}")
        if needs_grad and not self.is_differentiable:
            return NotDifferentiableError(f"{who} has no gradient and an input requires one")
        if row_invariant and self.determinism == "repeatable":
            return NotRowInvariantError(f"{who} is not batch invariant and the call asks for it")
        return None


@functools.cache
def _is_importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@functools.cache
def _cuda_capability(index: int | None) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def compute_capability_of(device: torch.device) -> tuple[int, int] | None:
    """CUDA compute capability of `device`; None where there is no such thing or no such device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return _cuda_capability(device.index)


@dataclass(slots=True)
class Op(Generic[P, R]):
    """An op: its reference, and the backends registered beside it in order of preference.

    Args:
        name: Public name, `ops.<name>`.
        reference: The torch implementation.
        dtypes: Dtypes of the leading tensor the reference serves.
        determinism: What the reference promises about bits.
        is_differentiable: Whether the reference has gradients.
        beside_torch: Measured cases in which a torch call is faster than the kernel, or so near the
            floor that there is none.

    Attributes:
        _is_gpu_only: Whether no backend beside the reference serves a CPU.
    """

    name: str
    reference: Callable[P, R]
    dtypes: tuple[torch.dtype, ...] = FLOATS
    determinism: Determinism = "row_invariant"
    is_differentiable: bool = True
    beside_torch: tuple[TimedPair, ...] = ()
    backends: list[Backend[P, R]] = field(init=False)
    _logged: set[tuple[str, str]] = field(init=False, default_factory=set)
    _is_gpu_only: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        summary = (self.reference.__doc__ or "").strip().splitlines()
        self.backends = [
            Backend(
                REFERENCE,
                self.reference,
                dtypes=self.dtypes,
                determinism=self.determinism,
                is_differentiable=self.is_differentiable,
                note=summary[0] if summary else "",
            )
        ]
        if self.name in _OPS:
            raise ValueError(f"op registered twice: {self.name}")
        _OPS[self.name] = cast("Op[..., object]", self)

    def register(self, backend: Backend[P, R]) -> None:
        """Adds an implementation, preferred over those registered before it.

        One that was never run on its hardware comes behind those that were.

        Raises:
            ValueError: The op has a backend of this name.
        """
        if any(known.name == backend.name for known in self.backends):
            raise ValueError(f"op `{self.name}` has a backend of this name: {backend.name}")
        verified = sum(known.is_verified for known in self.backends[:-1])
        self.backends.insert(0 if backend.is_verified else verified, backend)
        self._is_gpu_only &= backend.device_types is not None and "cpu" not in backend.device_types

    def select(
        self,
        like: torch.Tensor,
        row_invariant: bool = False,
        layout: str | None = None,
        **sizes: int,
    ) -> Callable[P, R]:
        """The implementation that serves a call whose leading tensor is `like`.

        Args:
            like: Tensor whose device, dtype and need of a gradient decide.
            row_invariant: Leave out backends that promise no more than repeatability.
            layout: Layout of the weights or records of the call.
            sizes: Sizes of the call, checked against the backends' size rules.

        Raises:
            KernelError: `use_backend` asked for a backend of this op that cannot serve the call.
        """
        wanted = _FORCED.get()
        if wanted is None and like.is_cpu and like.dtype in self.dtypes:
            # Known after the first call; refusals cost more than many an op.
            if self._is_gpu_only and (REFERENCE, "cpu") in self._logged:
                return self.reference
        elif wanted is None and len(self.backends) == 1:
            self._announced(self.backends[0], like.device.type)
            return self.reference
        needs_grad = like.requires_grad and torch.is_grad_enabled()
        capability = compute_capability_of(like.device)
        refused: KernelError | None = None
        for backend in self.backends:
            if wanted is not None and backend.name not in (wanted, REFERENCE):
                continue
            refusal = backend.refusal(
                self.name,
                like.device.type,
                capability,
                like.dtype,
                sizes,
                # A reference without a gradient gives a result that has none.
                needs_grad=needs_grad and backend.name != REFERENCE,
                row_invariant=row_invariant,
                layout=layout,
            )
            if refusal is None:
                return self._announced(backend, like.device.type, refused)
            if backend.name == wanted:
                hint = f"leave out `use_backend`, then `{REFERENCE}` serves on {like.device}"
                raise type(refusal)(f"{refusal}\nhint: {hint}")
            refused = refused or refusal
        raise UnsupportedDtypeError(
            f"`{self.name}` serves {', '.join(map(str, self.dtypes))}, got: {like.dtype}"
        )

    def _announced(
        self, backend: Backend[P, R], device_type: str, refused: KernelError | None = None
    ) -> Callable[P, R]:
        """Logs once who serves where there is a choice, and why the preferred one does not."""
        key = (backend.name, device_type)
        if key not in self._logged:
            self._logged.add(key)
            if len(self.backends) == 1:
                return backend.run
            reason = f" ({str(refused).splitlines()[0]})" if refused is not None else ""
            logger.info("%s: %s on %s%s", self.name, backend.name, device_type, reason)
        return backend.run


_OPS: dict[str, Op[..., object]] = {}
_FORCED: contextvars.ContextVar[str | None] = contextvars.ContextVar("backend", default=None)


def op_names() -> list[str]:
    """Names of all registered ops, sorted."""
    return sorted(_OPS)


def get_op(name: str) -> Op[..., object]:
    """The op of that name.

    Raises:
        UnknownOpError: There is none.
    """
    try:
        return _OPS[name]
    except KeyError:
        raise UnknownOpError(f"unknown op: {name}\nhint: one of {', '.join(op_names())}") from None


def backends(op: str) -> list[Backend[..., object]]:
    """Backends of an op in order of preference; the reference is last.

    Raises:
        UnknownOpError: There is no such op.
    """
    return list(get_op(op).backends)


def serving_backend(
    op: str,
    device: str | torch.device,
    *,
    compute_capability: tuple[int, int] | None = None,
    dtype: torch.dtype | None = None,
    **sizes: int,
) -> Backend[..., object]:
    """The backend that would serve such a call. Nothing is compiled or launched.

    Args:
        op: Name of the op.
        device: Device or device type.
        compute_capability: Capability to assume, for a device that is not present.
        dtype: Dtype of the leading tensor; None skips that check.
        sizes: Named sizes of the call; sizes not given are not checked.

    Raises:
        UnknownOpError: There is no such op.
        KernelError: No backend serves it; the message lists every refusal.
    """
    device = torch.device(device)
    capability = compute_capability or compute_capability_of(device)
    refusals = []
    for backend in get_op(op).backends:
        refusal = backend.refusal(op, device.type, capability, dtype, sizes)
        if refusal is None:
            return backend
        refusals.append(refusal)
    raise type(refusals[-1])("\n".join(str(refusal) for refusal in refusals))


def is_supported(
    op: str,
    device: str | torch.device,
    *,
    compute_capability: tuple[int, int] | None = None,
    dtype: torch.dtype | None = None,
    **sizes: int,
) -> bool:
    """Whether any backend serves such a call; the arguments are those of `serving_backend`.

    Raises:
        UnknownOpError: There is no such op.
    """
    get_op(op)
    try:
        serving_backend(op, device, compute_capability=compute_capability, dtype=dtype, **sizes)
    except KernelError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Service:
    """Who serves an op on a device, and why not the others.

    Args:
        op: Name of the op.
        backend: Name of the serving backend.
        determinism: What it promises about bits.
        is_verified: Whether it was run on such hardware.
        refusals: One line per preferred backend that cannot serve.
        beside_torch: One line per measured case in which a torch call is the better choice.
    """

    op: str
    backend: str
    determinism: Determinism
    is_verified: bool
    refusals: tuple[str, ...]
    beside_torch: tuple[str, ...] = ()


def describe(
    device: str | torch.device, *, compute_capability: tuple[int, int] | None = None
) -> list[Service]:
    """One `Service` per op, for tables that tell a user what runs where."""
    device = torch.device(device)
    capability = compute_capability or compute_capability_of(device)
    services = []
    for name in op_names():
        serving = serving_backend(name, device, compute_capability=compute_capability)
        refusals = (
            backend.refusal(name, device.type, capability) for backend in get_op(name).backends
        )
        services.append(
            Service(
                name,
                serving.name,
                serving.determinism,
                serving.is_verified,
                tuple(str(refusal) for refusal in refusals if refusal is not None),
                tuple(str(pair) for pair in get_op(name).beside_torch),
            )
        )
    return services


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Serves every op that has a backend of this name with it, the others with their reference.

    Holds for the current context (thread or task). A call the backend cannot serve raises instead
    of falling back.

    Raises:
        UnknownBackendError: No op has such a backend.
    """
    known = sorted({backend.name for op in _OPS.values() for backend in op.backends})
    if name not in known:
        raise UnknownBackendError(f"unknown backend: {name}\nhint: one of {', '.join(known)}")
    token = _FORCED.set(name)
    try:
        yield
    finally:
        _FORCED.reset(token)
