"""What ranks talk through: a small key-value store that every rank can reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class RankStore(Protocol):
    """One connection to it. Use one per thread: a call that waits keeps its connection busy.

    Every call raises `StoreUnavailable` when the connection is gone. A store whose machine has fallen silent
    may keep a call for ever, whatever its limit says; `Line` is for callers that must not wait so long.
    """

    def set(self, key: str, value: bytes) -> None: ...

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """In one message. For small values."""
        ...

    def set_first(self, key: str, value: bytes) -> bytes:
        """Set it unless somebody was faster; what it is now. For small values that are never deleted and
        set again."""
        ...

    def get(self, key: str, limit: float) -> bytes | None:
        """Its value as soon as there is one; None if there is none within `limit` seconds."""
        ...

    def get_many(self, keys: Sequence[str], limit: float) -> list[bytes] | None:
        """All of them, or None if one of them is still missing after `limit` seconds."""
        ...

    def check(self, keys: Sequence[str]) -> bool:
        """Are all of them there now?"""
        ...

    def add(self, key: str, amount: int) -> int:
        """A counter; starts at 0. What it is now."""
        ...

    def delete(self, key: str) -> None: ...

    def clone(self) -> RankStore:
        """A connection of its own. Takes its time when the store is gone: connect early."""
        ...

    def scoped(self, prefix: str) -> RankStore:
        """The same connection; keys below `prefix`."""
        ...
