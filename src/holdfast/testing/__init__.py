"""Public test doubles. Nothing in holdfast imports them."""

from holdfast.testing.crash_states import CrashState, crash_states
from holdfast.testing.crashing_io import CrashingIO, SimulatedCrash
from holdfast.testing.failing_io import FailingIO
from holdfast.testing.fake_clock import FakeClock
from holdfast.testing.memory_image import MemoryImage, image_of
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.recording_io import Recording, RecordingIO
from holdfast.testing.store_contract import StoreContract

__all__ = [
    "CrashState",
    "CrashingIO",
    "FailingIO",
    "FakeClock",
    "MemoryIO",
    "MemoryImage",
    "Recording",
    "RecordingIO",
    "SimulatedCrash",
    "StoreContract",
    "crash_states",
    "image_of",
]
