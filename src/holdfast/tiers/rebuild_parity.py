"""Chunks that no node has any more, computed from the parity of their sets."""

from __future__ import annotations

import threading

from holdfast.errors import RestoreError
from holdfast.format.checksum import chunk_span, digest
from holdfast.redundancy.plan import plan_rebuild
from holdfast.redundancy.record import ParityRecord
from holdfast.redundancy.stripes import Layout, Span
from holdfast.tiers.checked_files import CheckedFiles, ChunkLost
from holdfast.tiers.computed_stream import ComputedStream, SpanReader
from holdfast.tiers.protect_record import StoredParity, is_record_name, set_key
from holdfast.tiers.protect_stored import read_parity_record


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
