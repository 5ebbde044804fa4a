"""What holdfast asks of an object store. Keys lie below one prefix; everything is written once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ObjectState:
    """`tag` changes whenever the object does; None where the server does not say."""

    size: int
    tag: str | None


class Bucket(Protocol):
    """Every call ends within its limits and raises only StoreErrors.

    StoreUnavailable from a call that writes means: nobody knows. The request may still arrive.
    """

    @property
    def where(self) -> str: ...

    def create(self, key: str, data: bytes) -> None:
        """Write a small object unless the key is taken (KeyTaken). A server may ignore the condition."""
        ...

    def upload(self, key: str, pieces: Iterator[memoryview | bytes], *, size: int, part_bytes: int) -> None:
        """An object of any size, whose pieces follow each other. What exceeds one part is sent in parts,
        several at a time; nothing is visible before the last one is there.

        A piece must keep its bytes until the call returns. What failed is aborted if the server listens.
        """
        ...

    def look(self, key: str) -> ObjectState | None:
        """None if there is no such object."""
        ...

    def read(self, key: str, start: int, buffer: memoryview, tag: str | None) -> None:
        """Fill `buffer` from `start`, whole or raise. With a `tag`: from that very object."""
        ...

    def keys(self, prefix: str, *, after: str | None = None) -> list[str]:
        """All keys below `prefix`, which ends in "/"; with `after`, only those that sort behind it."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Remove in any order. What is not there is no error."""
        ...
