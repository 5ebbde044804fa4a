"""Open directories for as long as a `with` block lasts, one component at a time, never through a link."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from holdfast.stores.io import StoreIO
from holdfast.stores.os_errors import store_errors


class Folders:
    """The directories of one store. Opened anew for each use: a store may move away and come back."""

    def __init__(self, io: StoreIO, where: str) -> None:
        self._io = io
        self._where = where

    @contextlib.contextmanager
    def inside(self, *path: str, doing: str) -> Iterator[int]:
        """The directory at `path` below the root. Any OSError meanwhile becomes "cannot `doing` in …"."""
        with store_errors(doing, self._where), contextlib.ExitStack() as opened:
            directory = opened.enter_context(self.root())
            for name in path:
                directory = opened.enter_context(self.below(directory, name))
            yield directory

    @contextlib.contextmanager
    def root(self, *, create: bool = False) -> Iterator[int]:
        root = self._io.open_root(self._where, create=create)
        with self._closed_after(root):
            yield root

    @contextlib.contextmanager
    def below(self, parent: int, name: str) -> Iterator[int]:
        directory = self._io.open_directory(parent, name)
        with self._closed_after(directory):
            yield directory

    @contextlib.contextmanager
    def _closed_after(self, directory: int) -> Iterator[None]:
        try:
            yield
        finally:
            # Nothing was written through the handle of a directory that its close could lose.
            with contextlib.suppress(OSError):
                self._io.close(directory)
