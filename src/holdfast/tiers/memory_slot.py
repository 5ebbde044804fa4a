"""One slot of the memory tier: the images of one checkpoint as mapped files, and a manifest that comes last.

While the manifest is there, nobody may write to the images; before the first byte of the next checkpoint
goes in, the manifest is gone. So a process killed at any instant leaves a slot that is whole or not there.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import stat
from dataclasses import dataclass

from holdfast.errors import CorruptCheckpoint, InternalError, StoreNotFound
from holdfast.format.checksum import chunk_count, chunk_span
from holdfast.format.manifest import parse_manifest
from holdfast.format.names import is_file_name, parse_checkpoint_name
from holdfast.format.sealed import MAX_SEALED_BYTES, check_seal
from holdfast.stores.base import PAGE, ImageSource
from holdfast.stores.os_errors import store_errors

# The checkpoint's name is in the file's name: listing needs no parsing, and a rename commits.
_PREFIX, PART = "MANIFEST.", "MANIFEST.part"
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass
class SharedMemory:
    """Page-aligned writable bytes that are also a file. The same shape as staging's host memory."""

    view: memoryview
    keep_alive: mmap.mmap
    address: int


class MemorySlot:
    def __init__(self, path: str) -> None:
        self.path = path
        self._images: dict[str, SharedMemory] = {}

    # ---- the commit record

    @property
    def sealed(self) -> str | None:
        """The name of the checkpoint that lies here whole; None while there is none."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return None
        for name in names:
            if name.startswith(_PREFIX) and parse_checkpoint_name(name.removeprefix(_PREFIX)):
                return name.removeprefix(_PREFIX)
        return None

    def manifest(self, name: str) -> bytes:
        with store_errors("read a manifest", self.path):
            file = os.open(self._file(_PREFIX + name), os.O_RDONLY | _FLAGS)
            with os.fdopen(file, "rb") as opened:
                data = opened.read(MAX_SEALED_BYTES + 1)
        check_seal(data)
        return data

    def unseal(self) -> None:
        """Take the manifest away. From here on the images may change."""
        while (name := self.sealed) is not None:
            with store_errors("unseal", self.path), contextlib.suppress(FileNotFoundError):
                os.unlink(self._file(_PREFIX + name))

    def seal(self, name: str, manifest: bytes) -> None:
        """Vouch for the images as they are now. Nothing is fsynced: this memory does not survive the node."""
        check_seal(manifest)
        if self.sealed not in (None, name):
            raise InternalError(f"{self.path} is sealed already")
        with store_errors("seal", self.path):
            file = os.open(self._file(PART), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o600)
            with os.fdopen(file, "wb") as opened:
                opened.write(manifest)
            os.rename(self._file(PART), self._file(_PREFIX + name))

    # ---- the images

    def allocate(self, file: str, nbytes: int) -> SharedMemory:
        """Memory for one image, its own file. The same memory again where the size is the same."""
        if not is_file_name(file):
            raise InternalError(f"{file!r} may not name a file of a checkpoint")
        self.unseal()
        size = max(-(-nbytes // PAGE) * PAGE, PAGE)
        known = self._images.get(file)
        if known is not None and len(known.view) == size and os.path.exists(self._file(file)):
            return known
        # Always a new file: a dead trainer's worker may still have the old one mapped, and one that is not
        # as dead as it looks would write into ours.
        self.remove(file)
        with store_errors("allocate memory", self.path):
            os.makedirs(self.path, 0o700, exist_ok=True)
            self._images[file] = self._map(self._file(file), size)
        return self._images[file]

    def _map(self, path: str, size: int) -> SharedMemory:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        try:
            # Every page now, or an error now: a page that is missing at the first touch is a bus error
            # that kills training.
            os.posix_fallocate(file, 0, size)
            mapping = mmap.mmap(file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(file)
        return SharedMemory(memoryview(mapping), mapping, address_of(memoryview(mapping)))

    def holds(self, file: str, address: int) -> bool:
        """Whether the bytes at `address` are already this slot's image of that name."""
        known = self._images.get(file)
        return known is not None and known.address == address

    def mend(self, source: ImageSource) -> None:
        """Put a right image in the place of a damaged one, at once. Only where no process stages here: it
        would go on writing into the file that is replaced."""
        part = self._file("part-mend")
        with store_errors(f"mend {source.name}", self.path):
            file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o600)
            with os.fdopen(file, "wb", buffering=0) as opened:
                for index in range(chunk_count(source.size)):
                    start, stop = chunk_span(index, source.size)
                    rest = source.view(start, stop)
                    while rest:
                        rest = rest[opened.write(rest) :]
            os.replace(part, self._file(source.name))
        self._images.pop(source.name, None)

    def open(self, name: str, file: str) -> MemoryFile:
        if not is_file_name(file):
            raise StoreNotFound(f"{file!r} is not a file of a checkpoint")
        records = {record.name: record for record in parse_manifest(self.manifest(name)).files}
        if file not in records:
            raise StoreNotFound(f"{name} has no file {file}")
        with store_errors(f"open {file} of {name}", self.path):
            return MemoryFile(self._file(file), records[file].size)

    @property
    def files(self) -> set[str]:
        """The images that lie here, whether anything vouches for them or not."""
        try:
            return set(filter(is_file_name, os.listdir(self.path)))
        except FileNotFoundError:
            return set()

    def remove(self, file: str) -> None:
        self._images.pop(file, None)
        with store_errors("remove", self.path), contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(file))

    def clear(self) -> None:
        """Give the memory back, as far as nobody maps it any more."""
        self.unseal()
        for file in self.files:
            self.remove(file)

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)


class MemoryFile:
    """Satisfies StoredFile. A writer that lives may reuse the slot at any time: readers check digests."""

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDONLY | _FLAGS)
        state = os.fstat(self._file)
        if not stat.S_ISREG(state.st_mode):
            os.close(self._file)
            raise StoreNotFound(f"{path} is not a regular file")
        # The file is padded to whole pages; a shorter one shows its true size and is refused by whoever asks.
        self.size = min(state.st_size, size)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            with store_errors("read", self._path):
                got = os.preadv(self._file, [buffer[done:]], offset + done)
            if got == 0:
                raise CorruptCheckpoint(f"{self._path} ends at byte {offset + done}, before its time")
            done += got

    def close(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)


def address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
