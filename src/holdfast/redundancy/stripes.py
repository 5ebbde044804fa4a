"""Where everything lies: members' files as streams, streams in pieces, pieces and parity in stripes.

A member's files, one after the other, are its stream. In a set of S members of which K may be lost, streams
are cut into n = S-K equal pieces; those that end early are taken to go on in zeros. There are S stripes.
Stripe r has its K parity blocks on members r, r+1, ... (mod S); its data block j is piece j of the member
K+j places after r. So every member has data in n stripes and parity in K, each on a different stripe:

    xor:4    member 0  member 1  member 2  member 3
    piece 0    r=3       r=0       r=1       r=2
    piece 1    r=2       r=3       r=0       r=1
    piece 2    r=1       r=2       r=3       r=0
    parity     r=0       r=1       r=2       r=3

A parity block is as long as the longest data in its stripe, so nobody stores the padding of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from holdfast.errors import InternalError
from holdfast.redundancy.record import ParityRecord


@dataclass(frozen=True)
class Span:
    """Bytes `start` up to `stop` of what one member holds: its own stream, or its parity."""

    member: str
    kind: Literal["data", "parity"]
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class FileRange:
    """Part of one of a member's files; `at` is where it begins within the span it was asked for."""

    name: str
    offset: int
    size: int
    at: int


@dataclass(frozen=True)
class Layout:
    """The arithmetic of one set."""

    record: ParityRecord

    @cached_property
    def piece_bytes(self) -> int:
        longest = max(member.size for member in self.record.members)
        return _round_up(-(-longest // self.record.block_code.data), self.record.align_bytes)

    @property
    def stripes(self) -> range:
        return range(len(self.record.members))

    def holder(self, stripe: int, block: int) -> int:
        """The number of the member that holds a block of a stripe."""
        code, count = self.record.block_code, len(self.record.members)
        if block < code.data:
            return (stripe + code.parity + block) % count
        return (stripe + block - code.data) % count

    def span(self, stripe: int, block: int) -> Span:
        """Where a block lies. Data is cut where the member's stream ends, parity where its stripe does."""
        holder, code = self.holder(stripe, block), self.record.block_code
        member = self.record.members[holder]
        if block < code.data:
            start = min(block * self.piece_bytes, member.size)
            return Span(member.name, "data", start, min(start + self.piece_bytes, member.size))
        row = block - code.data
        before = sum(self.stripe_bytes(self._stripe_of_parity(holder, r)) for r in range(row))
        return Span(member.name, "parity", before, before + self.stripe_bytes(stripe))

    def stripe_bytes(self, stripe: int) -> int:
        """The length of a stripe's blocks: that of its longest data."""
        return self._stripe_bytes[stripe]

    @cached_property
    def _stripe_bytes(self) -> tuple[int, ...]:
        align, data = self.record.align_bytes, range(self.record.block_code.data)
        return tuple(_round_up(max(self.span(r, j).size for j in data), align) for r in self.stripes)

    def parity_bytes(self, member: str) -> int:
        """How much a member stores for the others."""
        number = self.number(member)
        rows = range(self.record.block_code.parity)
        return sum(self.stripe_bytes(self._stripe_of_parity(number, row)) for row in rows)

    def parity_of(self, member: str) -> Iterator[tuple[int, int]]:
        """(stripe, row) of each parity block that a member holds, in the order of its parity stream."""
        number = self.number(member)
        for row in range(self.record.block_code.parity):
            yield self._stripe_of_parity(number, row), row

    def _stripe_of_parity(self, holder: int, row: int) -> int:
        return (holder - row) % len(self.record.members)

    def number(self, member: str) -> int:
        for number, one in enumerate(self.record.members):
            if one.name == member:
                return number
        raise InternalError(f"{member!r} is no member of this set")

    def file_ranges(self, span: Span) -> tuple[FileRange, ...]:
        """A span of a stream as parts of the member's files."""
        if span.kind != "data":
            raise InternalError("parity belongs to whoever stores it; only data has files")
        ranges, begin = [], 0
        for file in self.record.members[self.number(span.member)].files:
            start, stop = max(span.start, begin), min(span.stop, begin + file.size)
            if start < stop:
                ranges.append(FileRange(file.name, start - begin, stop - start, start - span.start))
            begin += file.size
        return tuple(ranges)

    def span_of_file(self, member: str, name: str, start: int = 0, stop: int | None = None) -> Span:
        """Bytes of a file as a span of its member's stream: how damage is told to `plan_rebuild`."""
        begin = 0
        for file in self.record.members[self.number(member)].files:
            if file.name == name:
                end = file.size if stop is None else min(stop, file.size)
                return Span(member, "data", begin + start, begin + end)
            begin += file.size
        raise InternalError(f"{name!r} is no file of member {member!r}")


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
