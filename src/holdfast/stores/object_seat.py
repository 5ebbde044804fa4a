"""The one writer's seat of a bucket: the epoch, the process that holds it, and whether it is shared."""

from __future__ import annotations

import os
from dataclasses import dataclass

from holdfast.errors import SetupError
from holdfast.stores.object_claims import ObjectClaims
from holdfast.stores.owner import Owner


@dataclass
class ObjectSeat:
    """Empty until taken. A forked child inherits the object but never the seat."""

    claims: ObjectClaims
    where: str
    _epoch: int = 0
    _pid: int = -1
    _is_guest: bool = False

    @property
    def is_mine(self) -> bool:
        return self._pid == os.getpid()

    @property
    def epoch(self) -> int:
        if not self.is_mine:
            raise SetupError(
                f"this process is not the writer of {self.where}",
                hint="call claim() first; a forked child must not write for its parent",
            )
        return self._epoch

    def take(self, me: Owner, *, at_least: int) -> int:
        self._epoch = self.claims.take(me, at_least=at_least)
        self._pid, self._is_guest = os.getpid(), False
        return self._epoch

    def join(self, epoch: int) -> None:
        self.claims.adopt(epoch)
        self._epoch, self._pid, self._is_guest = epoch, os.getpid(), True

    def require_unfenced(self) -> None:
        self.claims.require_unfenced(self.epoch)

    def release(self) -> None:
        if self.is_mine and not self._is_guest:
            self.claims.release(self._epoch)
        self._pid = -1
