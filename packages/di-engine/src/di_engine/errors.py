"""Errors of `di_engine`: one base class, one subclass per kind of remedy.

Every message says what was given, what is allowed and what to do. `exit_code` is what the command
line returns for an error that ends the run: 1 the run failed, 2 wrong use, 3 unsupported
environment.
"""

from __future__ import annotations

__all__ = [
    "CapacityError",
    "CheckpointError",
    "ConfigError",
    "EngineError",
    "EngineStoppedError",
    "InvalidRequestError",
    "ModelExecutionError",
    "UnsupportedEnvironmentError",
]


class EngineError(Exception):
    """Base class of everything `di_engine` raises on purpose.

    Attributes:
        exit_code: Exit code of a command that ends with this error.
    """

    exit_code: int = 1


class InvalidRequestError(EngineError, ValueError):
    """One request cannot be served as it is; the engine and the other requests go on.

    Attributes:
        param: Name of the offending `SamplingParams` field or prompt part, or None.
    """

    exit_code = 2

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class CapacityError(EngineError):
    """A limit of this engine (pool size, queue length, memory) is in the way."""


class ConfigError(EngineError, ValueError):
    """A configuration value or a model `config.json` is wrong; the message lists every problem."""

    exit_code = 2


class CheckpointError(EngineError):
    """A checkpoint is missing, damaged, or does not match its configuration."""


class UnsupportedEnvironmentError(EngineError):
    """This machine (device, driver, library version) cannot do what was asked."""

    exit_code = 3


class ModelExecutionError(EngineError):
    """The model failed while a step was running; the message names the phase and the requests."""


class EngineStoppedError(EngineError):
    """The engine was closed or stopped after a failure and takes no more work."""


class HostSyncError(EngineError):
    """The host waited for the device where a step must only be enqueued; raised when debugging."""
