"""Errors of this package; wrong shapes and dtypes are `ValueError` and `TypeError`."""


class KernelError(Exception):
    """Base class of every error this package defines."""


class UnknownOpError(KernelError):
    """No op of that name is registered."""


class UnknownBackendError(KernelError):
    """No op has a backend of that name."""


class BackendMissingError(KernelError):
    """The backend exists, but a library it needs cannot be imported here."""


class UnsupportedDeviceError(KernelError):
    """The chosen backend does not serve this device or compute capability."""


class UnsupportedDtypeError(KernelError):
    """The chosen backend does not serve this dtype."""


class UnsupportedShapeError(KernelError):
    """The chosen backend does not serve these sizes."""


class NotDifferentiableError(KernelError):
    """The chosen backend has no gradient and one was asked for."""


class NotRowInvariantError(KernelError):
    """The chosen backend is not batch invariant and the call asks for it."""


class UnsupportedWeightError(KernelError):
    """A weight holds values the chosen layout or backend cannot represent."""


class UnsupportedLayoutError(KernelError):
    """The chosen backend does not serve weights or records laid out like this."""
