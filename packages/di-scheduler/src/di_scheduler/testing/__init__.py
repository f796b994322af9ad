"""A fake model and a fake device with real memory, for testing schedulers and engines."""

from di_scheduler.testing.device import FakeDevice, FaultError
from di_scheduler.testing.engine import FakeEngine
from di_scheduler.testing.model import FakeModel, expected_output
from di_scheduler.testing.store import FakeConnector, FakeStore

__all__ = [
    "FakeConnector",
    "FakeDevice",
    "FakeEngine",
    "FakeModel",
    "FakeStore",
    "FaultError",
    "expected_output",
]
