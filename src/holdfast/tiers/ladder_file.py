"""One file of a checkpoint, read from whichever tier has it: every chunk is checked against the manifest
and comes from the nearest copy in which it is good. Damaged is the same as lost."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from holdfast.checkpoints.read import allocate_pages
from holdfast.errors import CorruptCheckpoint, HoldfastError, StoreError, StoreNotFound
from holdfast.format.checksum import chunk_span, digest
from holdfast.format.manifest import FileRecord
from holdfast.stores.base import StoredFile
from holdfast.tiers.named_tier import Fallback, NamedTier, verdict_of

# Readers of small pieces (a header, a megabyte at a time) come back to the chunk they were in.
_CHUNKS_KEPT = 4


class LadderFile:
    """Satisfies StoredFile. `read_into` may be called from several threads."""

    def __init__(
        self,
        checkpoint: str,
        record: FileRecord,
        tiers: Sequence[NamedTier],
        *,
        may_serve: Callable[[NamedTier], bool],
        tell: Callable[[Fallback], None],
        count: Callable[[NamedTier, int], None],
    ) -> None:
        self.size = record.size
        # Whoever wants these digests need not compute them again.
        self.checked_against = record.digests
        self._checkpoint = checkpoint
        self._record = record
        self._tiers = list(tiers)
        self._may_serve = may_serve
        self._tell = tell
        self._count = count
        self._opening = threading.Lock()
        self._open: dict[str, StoredFile | None] = {}
        # Closed at the end only: another thread may be reading from it.
        self._failed: list[StoredFile] = []
        # Why a tier that may have it gave nothing.
        self._failures: dict[str, tuple[NamedTier, HoldfastError]] = {}
        self._kept: OrderedDict[int, memoryview] = OrderedDict()
        # Now, not at the first read: a pruner may take the name away, but not what is open.
        if not any(self._file_in(tier) for tier in self._tiers):
            if (doubt := self._doubt(f"{record.name} of {checkpoint}")) is not None:
                raise doubt
            raise StoreNotFound(
                f"no tier has a usable copy of {record.name} of {checkpoint}",
                hint="holdfast verify --all-tiers shows what is left",
            )

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with checked bytes. Fastest when it covers whole chunks."""
        done = 0
        while done < len(buffer):
            index = (offset + done) // self._record.chunk_bytes
            start, stop = chunk_span(index, self.size, self._record.chunk_bytes)
            if offset + done >= stop:
                raise CorruptCheckpoint(f"{self._record.name} of {self._checkpoint} ends at byte {self.size}")
            inside = offset + done - start
            take = min(stop - start - inside, len(buffer) - done)
            if take == stop - start:
                self._read_chunk(index, buffer[done : done + take])
            else:
                buffer[done : done + take] = self._whole_chunk(index)[inside : inside + take]
            done += take

    def close(self) -> None:
        with self._opening:
            files, self._open = [*self._open.values(), *self._failed], {}
            self._tiers = []
        for file in files:
            if file is not None:
                file.close()

    def _whole_chunk(self, index: int) -> memoryview:
        with self._opening:
            kept = self._kept.get(index)
        if kept is not None:
            return kept
        start, stop = chunk_span(index, self.size, self._record.chunk_bytes)
        chunk = allocate_pages(stop - start)
        self._read_chunk(index, chunk)
        with self._opening:
            self._kept[index] = chunk
            while len(self._kept) > _CHUNKS_KEPT:
                self._kept.popitem(last=False)
        return chunk

    def _read_chunk(self, index: int, buffer: memoryview) -> None:
        start, stop = chunk_span(index, self.size, self._record.chunk_bytes)
        reasons = []
        for tier in self._tiers:
            file = self._file_in(tier)
            if file is None:
                continue
            try:
                file.read_into(start, buffer)
                self._count(tier, stop - start)
                if digest(buffer) == self._record.digests[index]:
                    return
                why = f"bytes {start} to {stop} do not match their digest"
            except CorruptCheckpoint as error:
                why = error.message
            except StoreError as error:
                # Not asked again for every chunk: each time might cost a time limit.
                why = error.message
                self._give_up(tier)
                self._failures[tier.name] = (tier, error)
            reasons.append(f"{tier.name}: {why}")
            self._tell(Fallback(self._checkpoint, tier.name, why, self._record.name, index))
        if (doubt := self._doubt(f"chunk {index} of {self._record.name} of {self._checkpoint}")) is not None:
            raise doubt
        raise CorruptCheckpoint(
            f"chunk {index} of {self._record.name} of {self._checkpoint} is good in no tier: "
            + ("; ".join(reasons) or "no tier has it")
        )

    def _doubt(self, what: str) -> StoreError | None:
        return verdict_of(what, list(self._failures.values()))

    def _give_up(self, tier: NamedTier) -> None:
        with self._opening:
            file = self._open.get(tier.name)
            self._open[tier.name] = None
        if file is not None:
            self._failed.append(file)

    def _file_in(self, tier: NamedTier) -> StoredFile | None:
        """The open file of this tier; None, and said once, if this tier cannot serve it."""
        with self._opening:
            if tier.name not in self._open:
                self._open[tier.name] = None
                with contextlib.suppress(_Unusable):
                    self._open[tier.name] = self._open_in(tier)
            return self._open[tier.name]

    def _open_in(self, tier: NamedTier) -> StoredFile:
        # A node that holds only some ranks' files is asked for the file first: mostly it does not have it,
        # and a manifest is much longer than a no.
        if not tier.partial and not self._may_serve(tier):
            raise _Unusable
        try:
            file = tier.store.open(self._checkpoint, self._record.name)
        except StoreNotFound as error:
            # Where files of other ranks are not expected, their absence is not worth a word.
            if not tier.partial:
                self._tell(Fallback(self._checkpoint, tier.name, error.message, self._record.name))
            raise _Unusable from error
        except HoldfastError as error:
            self._failures[tier.name] = (tier, error)
            self._tell(Fallback(self._checkpoint, tier.name, error.message, self._record.name))
            raise _Unusable from error
        if file.size != self.size:
            why = f"it has {file.size} bytes, not {self.size}"
            file.close()
            self._tell(Fallback(self._checkpoint, tier.name, why, self._record.name))
            raise _Unusable
        if tier.partial and not self._may_serve(tier):
            file.close()
            raise _Unusable
        return file


class _Unusable(Exception): ...
