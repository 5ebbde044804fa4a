"""All tiers read as one store, nearest first: where one copy is missing or damaged, the next one serves.

A copy is good if its bytes match the manifest's digests, wherever it lies. Nothing is passed over in silence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.checkpoints.verified import Copy, DamagedChunk, Failure, VerifiedFile
from holdfast.errors import (
    CorruptCheckpoint,
    HoldfastError,
    InternalError,
    StoreError,
    StoreNotFound,
    StoreUnavailable,
)
from holdfast.format.manifest import FileRecord, parse_manifest
from holdfast.format.sealed import seal_of
from holdfast.stores.base import ImageSource, StoredFile, StoreProperties
from holdfast.tiers.named_tier import Fallback, NamedTier, verdict_of

__all__ = ["Fallback", "Ladder", "NamedTier"]


@dataclass(frozen=True)
class _Seen:
    """The checkpoint that is being read, and which tiers are known to hold this very one."""

    name: str
    records: Mapping[str, FileRecord]
    seal: str
    same: dict[str, bool] = field(default_factory=dict)


class Ladder:
    """Satisfies the reading half of Store, so that a restore reads the nearest copies.

    `tell(fallback)` hears of every copy passed over, from any reading thread.
    """

    def __init__(self, tiers: Sequence[NamedTier], *, tell: Callable[[Fallback], None] | None = None) -> None:
        if not tiers or len({tier.name for tier in tiers}) != len(tiers):
            raise InternalError("a ladder needs tiers, each with a name of its own")
        self.tiers = tuple(tiers)
        self._tell = tell or (lambda fallback: None)
        self._lock = threading.Lock()
        self._bytes = {tier.name: 0 for tier in tiers}
        self._listed: dict[str, frozenset[str]] = {}
        self._seen: _Seen | None = None

    def without(self, name: str) -> Ladder:
        """The other tiers: what one of them can be filled or repaired from."""
        return Ladder([tier for tier in self.tiers if tier.name != name], tell=self._tell)

    @property
    def bytes_by_tier(self) -> Mapping[str, int]:
        """Bytes of files read from each tier so far, manifests not counted."""
        with self._lock:
            return dict(self._bytes)

    @property
    def properties(self) -> StoreProperties:
        each = [tier.store.properties for tier in self.tiers]
        return StoreProperties(
            survives_process=any(one.survives_process for one in each),
            survives_node=any(one.survives_node for one in each),
            survives_job=any(one.survives_job for one in each),
            survives_site=any(one.survives_site for one in each),
        )

    @property
    def where(self) -> str:
        return ", ".join(tier.name for tier in self.tiers)

    @property
    def uuid(self) -> str:
        return self.tiers[0].store.uuid

    # ---- reading

    def names(self) -> list[str]:
        """Every checkpoint that any tier holds.

        A tier that outlives the job and cannot be listed is an error: it may hold the newest, and going on
        without it could mean to start afresh. So is a read error of any tier of this node. Others are passed
        over.
        """
        found: dict[str, frozenset[str]] = {}
        for tier in self.tiers:
            try:
                found[tier.name] = frozenset(tier.store.names())
            except StoreError as error:
                if tier.must_answer or (isinstance(error, StoreUnavailable) and not tier.elsewhere):
                    raise
                found[tier.name] = frozenset()
                self._tell(Fallback("", tier.name, error.message))
        self._listed = found
        return sorted(frozenset().union(*found.values()))

    def manifest(self, name: str) -> bytes:
        """The nearest commit record that is whole."""
        failures: list[tuple[NamedTier, HoldfastError]] = []
        for tier in self.tiers:
            # What the last listing did not show is not asked for: a far tier costs a round trip.
            if name not in self._listed.get(tier.name, {name}):
                continue
            try:
                return tier.store.manifest(name)
            except StoreNotFound as error:
                failures.append((tier, error))
            except (StoreError, CorruptCheckpoint) as error:
                failures.append((tier, error))
                self._tell(Fallback(name, tier.name, error.message))
        if (doubt := verdict_of(f"the manifest of {name}", failures)) is not None:
            raise doubt
        damaged = [error for _, error in failures if isinstance(error, CorruptCheckpoint)]
        raise next(iter([*damaged, *(error for _, error in failures)]), None) or StoreNotFound(
            f"no tier has a checkpoint {name!r}"
        )

    def open(self, name: str, file: str) -> VerifiedFile:
        seen = self._parsed(name)
        record = seen.records.get(file)
        if record is None:
            raise StoreNotFound(f"checkpoint {name} has no file {file!r}")
        tiers = {tier.name: tier for tier in self.tiers}

        def failed(copy: Copy, error: HoldfastError, index: int | None) -> None:
            # Where files of other ranks are not expected, their absence is not worth a word.
            absent = index is None and isinstance(error, StoreNotFound) and tiers[copy.name].partial
            if not absent and not isinstance(error, _NotThis):
                self._tell(Fallback(name, copy.name, error.message, file, index))

        def lost(index: int | None, failures: list[Failure]) -> HoldfastError:
            what = f"{file} of {name}" if index is None else f"chunk {index} of {file} of {name}"
            doubt = verdict_of(what, [(tiers[copy.name], error) for copy, error in failures])
            if doubt is not None:
                return doubt
            if index is None:
                hint = "holdfast verify --all-tiers shows what is left"
                return StoreNotFound(f"no tier has a usable copy of {what}", hint=hint)
            said = [f"{copy.name}: {why.message}" for copy, why in failures if not isinstance(why, _NotThis)]
            return DamagedChunk(
                f"{what} is good in no tier: {'; '.join(said) or 'none has it'}", record, index
            )

        copies = [
            Copy(tier.name, lambda tier=tier: self._open_in(tier, seen, file))  # type: ignore[misc]
            for tier in self.tiers
        ]
        return VerifiedFile(record, name, copies, lost=lost, failed=failed, count=self._count).opened()

    def _open_in(self, tier: NamedTier, seen: _Seen, file: str) -> StoredFile:
        # A node that holds only some ranks' files is asked for the file first: mostly it does not have it,
        # and a manifest is much longer than a no.
        if not tier.partial and not self._is_same(tier, seen):
            raise _NotThis("it does not hold this checkpoint")
        opened = tier.store.open(seen.name, file)
        if tier.partial and not self._is_same(tier, seen):
            opened.close()
            raise _NotThis("it does not hold this checkpoint")
        return opened

    def _parsed(self, name: str) -> _Seen:
        """Kept for the files of one checkpoint that are opened in a row. Names are never reused."""
        with self._lock:
            seen = self._seen
        if seen is None or seen.name != name:
            data = self.manifest(name)
            records = {record.name: record for record in parse_manifest(data).files}
            seen = _Seen(name, records, seal_of(data))
            with self._lock:
                self._seen = seen
        return seen

    def _is_same(self, tier: NamedTier, seen: _Seen) -> bool:
        """Whether this tier's checkpoint of that name is the one we read. Asked before its first byte is,
        and once: a manifest of many ranks is as long as they are many, and so is the list of their files."""
        with self._lock:
            known = seen.same.get(tier.name)
        if known is not None:
            return known
        try:
            other = seal_of(tier.store.manifest(seen.name))
        except StoreNotFound:
            return False
        except (StoreError, CorruptCheckpoint):
            # Its manifest is damaged, its files need not be: the digests decide.
            return True
        if other != seen.seal:
            self._tell(Fallback(seen.name, tier.name, "it holds another checkpoint of the same name"))
        with self._lock:
            seen.same[tier.name] = other == seen.seal
        return other == seen.seal

    def _count(self, copy: Copy, count: int) -> None:
        with self._lock:
            self._bytes[copy.name] += count

    # ---- writing: each tier is written on its own

    def claim(self, *, at_least: int = 1, take_over: bool = False) -> int:
        raise _read_only()

    def release(self) -> None: ...

    def begin(self, name: str, need_bytes: int) -> None:
        raise _read_only()

    def write(
        self, name: str, source: ImageSource, *, expect: FileRecord | None = None, replace: bool = False
    ) -> FileRecord:
        raise _read_only()

    def publish(self, name: str, manifest: bytes) -> None:
        raise _read_only()

    def abandon(self, name: str) -> None:
        raise _read_only()

    def retire(self, name: str) -> None:
        raise _read_only()

    def leftovers(self, *, before: str | None = None) -> list[str]:
        return []

    def held(self, name: str) -> Mapping[str, int]:
        raise _read_only()

    def damaged_records(self, name: str, right: bytes) -> list[str]:
        raise _read_only()


class _NotThis(StoreNotFound):
    """A tier without this checkpoint, or with another of its name, which has been said already."""


def _read_only() -> InternalError:
    return InternalError("a ladder only reads; write to one of its tiers")
