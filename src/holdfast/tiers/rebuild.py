"""After a loss: the files that a node must have, from copies where there are any, otherwise from parity.

Whatever is written was checked against the manifest, chunk by chunk. Nothing is guessed: where too little is
left, the answer says which files are gone and which nodes would have been needed.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.errors import HoldfastError, RestoreError
from holdfast.format.checksum import chunk_span, digest
from holdfast.format.manifest import FileRecord, parse_manifest
from holdfast.format.sealed import seal_of
from holdfast.redundancy.plan import plan_rebuild
from holdfast.redundancy.record import ParityRecord
from holdfast.redundancy.stripes import Layout, Span
from holdfast.stores.base import Store
from holdfast.tiers.bandwidth import Bandwidth, Cancelled
from holdfast.tiers.checked_files import CheckedFiles, ChunkLost
from holdfast.tiers.computed_stream import ComputedStream, SpanReader
from holdfast.tiers.protect import PulledFile
from holdfast.tiers.protect_record import StoredParity, is_record_name, is_stored, read_parity_record, set_key


@dataclass(frozen=True)
class Rebuilt:
    """What one node has again. `from_parity` are those of which at least one chunk had to be computed."""

    name: str
    good_already: tuple[str, ...]
    copied: tuple[str, ...]
    from_parity: tuple[str, ...]
    bytes_read: int


def rebuild(
    manifest: bytes,
    me: str,
    stores: Mapping[str, Store],
    wanted: Collection[str],
    *,
    bandwidth: Bandwidth | None = None,
    cancel: threading.Event | None = None,
) -> Rebuilt:
    """Bring the `wanted` files into the store of node `me`, and commit them there.

    `stores` has every node that may be reached, by its logical name, this one's too. What this node has
    already is checked and replaced only if it is damaged. RestoreError says what is beyond repair; files that
    could be had are kept for the next attempt, but the place is not committed. Afterwards `protect` gives the
    node its share for the others again.
    """
    parsed, mine = parse_manifest(manifest), stores[me]
    name = str(parsed.name)
    records = [record for record in parsed.files if record.name in wanted]
    unknown = set(wanted) - {record.name for record in records}
    if unknown:
        raise RestoreError(f"checkpoint {name} has no file {', '.join(sorted(unknown))}")
    good: list[str] = []
    copied: list[str] = []
    computed: list[str] = []
    gone: dict[str, str] = {}
    with CheckedFiles(name, {me: mine, **stores}, bandwidth=bandwidth, cancel=cancel) as files:
        files.know(parsed.files)
        parity = ParityOfCheckpoint(files, seal_of(manifest))
        for record in records:
            if is_stored(mine, name, record):
                good.append(record.name)
                continue
            source = MendedFile(record, files, parity)
            try:
                mine.write(name, source, expect=record, replace=record.name in files.held.get(me, {}))
            except Cancelled:
                raise
            except RestoreError as error:
                gone[record.name] = error.message
                continue
            (computed if source.was_computed else copied).append(record.name)
        if gone:
            raise _too_little_left(name, gone, files)
        mine.publish(name, manifest)
        return Rebuilt(name, tuple(good), tuple(copied), tuple(computed), files.bytes_read)


class MendedFile(PulledFile):
    """Each chunk from a node that has it good; one that nobody has, from parity."""

    def __init__(self, record: FileRecord, files: CheckedFiles, parity: ParityOfCheckpoint) -> None:
        super().__init__(record, self._chunk)
        self.was_computed = False
        self._files = files
        self._parity = parity

    def _chunk(self, file: str, index: int, buffer: memoryview) -> None:
        try:
            self._files.chunk_into(file, index, buffer)
        except ChunkLost as lost:
            self._parity.chunk_into(lost, buffer)
            self.was_computed = True


def _too_little_left(name: str, gone: Mapping[str, str], files: CheckedFiles) -> HoldfastError:
    silent = [f"{node} ({why})" for node, why in sorted(files.silent.items())]
    nodes = f"; nodes that could not help: {', '.join(silent)}" if silent else ""
    details = "".join(f"\n  {file}: {why}" for file, why in sorted(gone.items()))
    return RestoreError(
        f"{len(gone)} files of {name} cannot be rebuilt: {', '.join(sorted(gone))}{nodes}{details}",
        hint="bring those nodes back, restore from an outer tier, or take an older checkpoint",
    )


# ---- Chunks that no node has any more, computed from the parity of their sets.


class ParityOfCheckpoint:
    """All parity that the reachable nodes hold for one checkpoint. `checkpoint` is the manifest's seal."""

    def __init__(self, files: CheckedFiles, checkpoint: str) -> None:
        self._files = files
        found: dict[str, dict[str, StoredParity]] = {}
        for node, held in list(files.held.items()):
            for file in filter(is_record_name, held):
                stored = read_parity_record(files.sources[node], files.name, file)
                # Of another manifest it would be bytes of another state.
                if stored is not None and stored.checkpoint == checkpoint:
                    found.setdefault(set_key(stored.record), {})[stored.member] = stored
        self._sets = [_ParitySet(files, list(members.values())) for members in found.values()]

    def chunk_into(self, lost: ChunkLost, buffer: memoryview) -> None:
        """Compute the chunk that was lost; RestoreError if what is left does not suffice."""
        reasons = []
        for each in self._sets:
            if each.covers(lost.file):
                try:
                    return each.chunk_into(lost, buffer)
                except RestoreError as error:
                    reasons.append(error.message)
        raise RestoreError("; ".join([lost.message, *reasons]) or lost.message) from lost


class _ParitySet:
    """One set of members, as some of them recorded it."""

    def __init__(self, files: CheckedFiles, stored: list[StoredParity]) -> None:
        self._files = files
        self._record: ParityRecord = stored[0].record
        self._layout = Layout(self._record)
        self._parity = {one.member: one.file.name for one in stored}
        self._owner = {file.name: one.name for one in self._record.members for file in one.files}
        self._member_of_parity = {one.file.name: one.member for one in stored}
        self._damaged: list[Span] = []
        self._streams: dict[str, ComputedStream] = {}
        self._planning = threading.Lock()
        files.know(one.file for one in stored)
        self._note_what_nobody_has()

    def covers(self, file: str) -> bool:
        return file in self._owner

    def chunk_into(self, lost: ChunkLost, buffer: memoryview) -> None:
        record = self._files.record(lost.file)
        start, stop = chunk_span(lost.index, record.size, record.chunk_bytes)
        member = self._owner[lost.file]
        span = self._layout.span_of_file(member, lost.file, start, stop)
        self._note(lost)
        # Each turn learns of at least one more damaged chunk, so it ends: computed, or too little left.
        while True:
            try:
                self._stream(member).read_into(span.start, buffer)
                break
            except ChunkLost as another:
                self._note(another)
        if digest(buffer) != record.digests[lost.index]:
            raise RestoreError(
                f"{lost.file}: what parity gives for chunk {lost.index} does not match its digest"
            )

    def _note_what_nobody_has(self) -> None:
        for member in self._record.members:
            for file in member.files:
                if not self._files.holders(file.name):
                    self._damaged.append(self._layout.span_of_file(member.name, file.name))
            parity = self._parity.get(member.name)
            if parity is None or not self._files.holders(parity):
                size = self._layout.parity_bytes(member.name)
                self._damaged.append(Span(member.name, "parity", 0, size))

    def _note(self, lost: ChunkLost) -> None:
        record = self._files.record(lost.file)
        start, stop = chunk_span(lost.index, record.size, record.chunk_bytes)
        if lost.file in self._member_of_parity:
            span = Span(self._member_of_parity[lost.file], "parity", start, stop)
        else:
            span = self._layout.span_of_file(self._owner[lost.file], lost.file, start, stop)
        with self._planning:
            if any(_covers(known, span) for known in self._damaged):
                return
            self._damaged.append(span)
            self._streams.clear()

    def _stream(self, member: str) -> ComputedStream:
        with self._planning:
            if member not in self._streams:
                steps = plan_rebuild(self._record, (), damaged=self._damaged, only=[member])
                reader = SpanReader(self._layout, self._files, self._parity)
                self._streams[member] = ComputedStream(steps, member, "data", reader)
            return self._streams[member]


def _covers(known: Span, span: Span) -> bool:
    same = (known.member, known.kind) == (span.member, span.kind)
    return same and known.start <= span.start and span.stop <= known.stop
