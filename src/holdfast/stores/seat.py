"""The one writer's seat of a store: the courtesy lock, the fencing epoch, and the process that holds both."""

from __future__ import annotations

import contextlib
import os

from holdfast.errors import SetupError
from holdfast.stores import claims
from holdfast.stores.io import StoreIO
from holdfast.stores.owner import Owner

LOCK = "LOCK"


class WriterSeat:
    """Empty until taken. A forked child inherits the object but never the seat."""

    def __init__(self, io: StoreIO, where: str) -> None:
        self._io = io
        self._where = where
        self._claim: claims.Claim | None = None
        self._lock: int | None = None
        self._pid = -1

    @property
    def is_mine(self) -> bool:
        return self._claim is not None and self._pid == os.getpid()

    @property
    def is_guest(self) -> bool:
        """Whether another process holds the claim: what it has in progress, only that one knows."""
        return self._claim is not None and self._claim.owner is None

    @property
    def epoch(self) -> int:
        if self._claim is None or not self.is_mine:
            raise SetupError(
                f"this process is not the writer of {self._where}",
                hint="call claim() first; a forked child must not write for its parent",
            )
        return self._claim.epoch

    def lock(self, root: int, writers_hint: str, *, take_over: bool) -> bool:
        """Whether the lock is held now; RunInUse if another process holds it."""
        try:
            self._lock = self._io.lock(root, LOCK)
        except BlockingIOError as error:
            if not take_over:
                raise claims.run_in_use(self._where, self._newest_owner(root, writers_hint)) from error
        return self._lock is not None

    def take(self, writers: int, me: Owner, *, at_least: int, launch: str | None = None) -> int:
        self._claim = claims.take_claim(
            self._io, writers, me, at_least=at_least, place=self._where, launch=launch
        )
        self._pid = os.getpid()
        return self._claim.epoch

    def join(self, writers: int, epoch: int) -> None:
        """Sit beside whoever claimed `epoch`, without the lock. Fenced if a newer writer has."""
        claims.require_unfenced(self._io, writers, epoch, self._where)
        if epoch not in claims.claimed_epochs(self._io, writers):
            raise SetupError(
                f"nobody has claimed writer epoch {epoch} of {self._where}",
                hint="is this the folder that rank 0 writes to, on a file system that all ranks share?",
            )
        self._claim = claims.Claim(epoch, None)
        self._pid = os.getpid()

    def require_unfenced(self, writers: int) -> None:
        claims.require_unfenced(self._io, writers, self.epoch, self._where)

    def release(self) -> None:
        lock, self._claim, self._lock = self._lock, None, None
        if lock is not None:
            self._io.unlock(lock)

    def newest(self, root: int, writers_name: str) -> claims.Claim | None:
        """Who sat here last; None where that cannot be read, too."""
        with contextlib.suppress(OSError):
            writers = self._io.open_directory(root, writers_name)
            try:
                return claims.newest_claim(self._io, writers)
            finally:
                self._io.close(writers)
        return None

    def _newest_owner(self, root: int, writers_name: str) -> Owner | None:
        # Only for the message: whatever goes wrong here, the refusal stands.
        newest = self.newest(root, writers_name)
        return newest.owner if newest else None
