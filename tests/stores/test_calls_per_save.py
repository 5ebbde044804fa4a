"""How often a small save opens and closes folders. What is counted here was twice that once."""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from holdfast.checkpoints.write import write_checkpoint
from holdfast.stores.store import CheckpointStore
from holdfast.testing.forwarding_io import ForwardingIO
from holdfast.testing.memory_image import image_of
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.store_contract import draft

T = TypeVar("T")


class CountingIO(ForwardingIO):
    def __init__(self) -> None:
        super().__init__(MemoryIO())
        self.calls: Counter[str] = Counter()

    def _pass(self, verb: str, call: Callable[[], T]) -> T:
        self.calls[verb] += 1
        return call()


def test_a_save_of_two_small_files_opens_each_folder_once_or_twice() -> None:
    io = CountingIO()
    with CheckpointStore("/run", io=io) as store:
        epoch = store.claim()
        io.calls.clear()
        files = [image_of(1, name=f"r00000-{i:03d}.safetensors") for i in range(2)]
        write_checkpoint(store, draft(1, writer_epoch=epoch), files)
        assert io.calls["open_root"] <= 2
        assert io.calls["open_directory"] <= 4
        assert io.calls["close"] <= 10
        # Two files and two manifests; the folder of checkpoints, and that of this one twice.
        assert (io.calls["fsync"], io.calls["fsync_directory"]) == (4, 3)
