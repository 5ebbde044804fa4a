"""A file system that is asked to sync and, where an ablation says so, is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from holdfast.format.names import PART_FILE, parse_checkpoint_name
from holdfast.stores.folder_place import INCOMING, LEAVING
from holdfast.testing.memory_io import MemoryIO
from holdfast.testing.recording_io import RecordingIO


class ForgetfulIO(RecordingIO):
    """Skips those fsyncs whose place in the store the ablation names."""

    def __init__(self, skip: Callable[[str, int], bool]) -> None:
        super().__init__(MemoryIO())
        self._skip = skip
        self._seen: Counter[str] = Counter()
        self.skipped = 0
        self.sites: Counter[str] = Counter()

    def _skips(self, handle: int, suffix: str) -> bool:
        path = self._paths[self._inodes[handle]] + suffix
        site = "/".join(map(_kind, path.split("/")))
        self._seen[path] += 1
        skip = self._skip(site, self._seen[path])
        self.sites[site] += not skip
        self.skipped += skip
        return skip

    def fsync(self, file: int) -> None:
        if not self._skips(file, ""):
            super().fsync(file)

    def fsync_directory(self, directory: int) -> None:
        if not self._skips(directory, "/."):
            super().fsync_directory(directory)


def _kind(name: str) -> str:
    """What is of one kind bears one name."""
    if parse_checkpoint_name(name.removesuffix(INCOMING).removesuffix(LEAVING)):
        return "<name>"
    if name.startswith(PART_FILE):
        return "<part>"
    return "STORE.json" if name.startswith("STORE.json.") else name
