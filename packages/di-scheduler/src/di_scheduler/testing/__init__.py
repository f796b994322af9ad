"""A fake model and a fake device with real memory, for testing schedulers and engines."""

from di_scheduler.testing.device import FakeDevice, FaultError
from di_scheduler.testing.engine import FakeEngine
from di_scheduler.testing.model import FakeModel, expected_output

__all__ = ["FakeDevice", "FakeEngine", "FakeModel", "FaultError", "expected_output"]
