"""Who reads what, to write what: encoding and rebuilding as small steps that I/O code carries out.

A step reads at most `window_bytes` from each of n members and adds them up one after the other, so it needs
memory for one read and its outputs. Steps are independent: they may run in any order, in parallel, again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np
import numpy.typing as npt

from holdfast.errors import InternalError, RestoreError
from holdfast.redundancy.cauchy import CELL_BYTES, CELL_GRANULE, Bytes, add_product
from holdfast.redundancy.codes import Combination
from holdfast.redundancy.record import ParityRecord
from holdfast.redundancy.stripes import Layout, Span

# ---- Blocks from blocks, chunk by chunk: parity from data, or lost blocks from those that are left.

BytesLike = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


def as_bytes(data: BytesLike) -> Bytes:
    """Any contiguous buffer as an array of bytes, uncopied."""
    return np.frombuffer(data, np.uint8)


class BlockBuilder:
    """Builds `combination.outputs` from `combination.inputs`, each `size` bytes long.

    Chunks of the inputs may come in any order and of any length, each byte once. `lengths` gives the length
    of inputs that end early, where padding begins. `block` refuses to answer before every byte has come.
    """

    def __init__(
        self,
        combination: Combination,
        size: int,
        *,
        lengths: Mapping[int, int] | None = None,
        cell_bytes: int = CELL_BYTES,
    ) -> None:
        if combination.code.name == "cauchy-bits" and (size % CELL_GRANULE or cell_bytes % CELL_GRANULE):
            raise InternalError(
                f"bit matrices need multiples of {CELL_GRANULE} bytes, not {size} in cells of {cell_bytes}"
            )
        self.combination = combination
        self.size = size
        self._cell_bytes = cell_bytes
        self._awaited = {block: (lengths or {}).get(block, size) for block in combination.inputs}
        self._outputs = [np.zeros(size, np.uint8) for _ in combination.outputs]

    def add(self, block: int, chunk: BytesLike, offset: int = 0) -> None:
        """`chunk` is what stands at `offset` of the input `block`."""
        source = as_bytes(chunk)
        if block not in self._awaited:
            raise InternalError(f"block {block} is no input of this combination")
        if offset < 0 or offset + len(source) > self.size or len(source) > self._awaited[block]:
            raise InternalError(f"block {block}: {len(source)} bytes at {offset} are more than it has")
        self._awaited[block] -= len(source)
        column = self.combination.inputs.index(block)
        for target, row in zip(self._outputs, self.combination.coefficients, strict=True):
            # Plain XOR knows the factors 0 and 1 only.
            if row[column]:
                add_product(target, source, row[column], offset, self._cell_bytes)

    def block(self, output: int) -> Bytes:
        """The finished block with number `output`."""
        late = [block for block, count in self._awaited.items() if count]
        if late:
            raise InternalError(f"blocks {late} have not come in full; the sum would be wrong")
        return self._outputs[self.combination.outputs.index(output)]


WINDOW_BYTES = 4 << 20


@dataclass(frozen=True)
class Step:
    """Read `reads`, combine, write `writes`.

    `reads` go with `combination.inputs`, `writes` with `combination.outputs`; an empty span is padding and
    needs neither. For each read: `builder.add(block, bytes)`. For each write: `output(builder, number)`.
    """

    stripe: int
    size: int
    combination: Combination
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    cell_bytes: int

    def builder(self) -> BlockBuilder:
        lengths = {block: span.size for block, span in zip(self.combination.inputs, self.reads, strict=True)}
        return BlockBuilder(self.combination, self.size, lengths=lengths, cell_bytes=self.cell_bytes)

    def output(self, builder: BlockBuilder, number: int) -> memoryview:
        """What to write to `writes[number]`."""
        return builder.block(self.combination.outputs[number]).data[: self.writes[number].size]


def plan_encode(
    record: ParityRecord, member: str | None = None, *, window_bytes: int = WINDOW_BYTES
) -> Iterator[Step]:
    """The steps that make the parity which `member` is to store; without a member, that of the whole set.

    Run by each member for itself, every member reads K times its share of data from others and sends as much.
    """
    layout, code = Layout(record), record.block_code
    if member is None:
        work = [(stripe, list(range(code.parity))) for stripe in layout.stripes]
    else:
        work = [(stripe, [row]) for stripe, row in layout.parity_of(member)]
    for stripe, rows in work:
        combination = code.encoding(rows)
        for start, stop in _windows(layout, stripe, window_bytes):
            yield _step(layout, stripe, start, stop, combination)


def plan_rebuild(
    record: ParityRecord,
    lost: Collection[str],
    *,
    damaged: Sequence[Span] = (),
    only: Collection[str] | None = None,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Step]:
    """The steps that write the data and parity of the `lost` members anew, and mend `damaged` spans.

    Damage counts only where it lies: two members with damage in different places are both mended by XOR.
    `only` names the members to rebuild, where not all are wanted.
    RestoreError, before the first step, if anything wanted cannot be had.
    """
    layout, code = Layout(record), record.block_code
    numbers = {layout.number(member) for member in lost}
    wanted = {m.name for m in record.members} if only is None else set(only)
    work: list[tuple[int, int, int, Combination]] = []
    hopeless: set[str] = set()
    for stripe in layout.stripes:
        spans = [layout.span(stripe, block) for block in range(code.data + code.parity)]
        gone = {b for b in range(len(spans)) if layout.holder(stripe, b) in numbers}
        harmed = [(b, bad) for b, span in enumerate(spans) for bad in damaged if _overlap(span, bad)]
        wanted_blocks = {b for b, span in enumerate(spans) if span.member in wanted}
        for start, stop in _windows(layout, stripe, window_bytes):
            missing = gone | {b for b, bad in harmed if _overlap(_cut(spans[b], start, stop), bad)}
            want = [b for b in sorted(missing & wanted_blocks) if _cut(spans[b], start, stop).size]
            if not want:
                continue
            # Padding is known: where a member's data has ended, its zeros cannot be lost.
            have = [b for b in range(len(spans)) if b not in missing or not _cut(spans[b], start, stop).size]
            try:
                work.append((stripe, start, stop, code.combination(have, want)))
            except RestoreError:
                hopeless.update(spans[b].member for b in want)
    if hopeless:
        raise RestoreError(
            f"{', '.join(sorted(hopeless))} cannot be rebuilt: too little is left of this set of "
            f"{len(record.members)}, protected by {record.scheme}",
            hint="restore from another tier or take an older checkpoint",
        )
    return (_step(layout, stripe, start, stop, how) for stripe, start, stop, how in work)


def _windows(layout: Layout, stripe: int, window_bytes: int) -> Iterator[tuple[int, int]]:
    # Whole cells, or a window would cut the code's symbols apart.
    unit = lcm(layout.record.cell_bytes, layout.record.align_bytes)
    window, size = max(window_bytes // unit, 1) * unit, layout.stripe_bytes(stripe)
    for start in range(0, size, window):
        yield start, min(start + window, size)


def _step(layout: Layout, stripe: int, start: int, stop: int, combination: Combination) -> Step:
    def window(block: int) -> Span:
        return _cut(layout.span(stripe, block), start, stop)

    return Step(
        stripe,
        stop - start,
        combination,
        tuple(window(block) for block in combination.inputs),
        tuple(window(block) for block in combination.outputs),
        layout.record.cell_bytes,
    )


def _cut(span: Span, start: int, stop: int) -> Span:
    """The part of a block's span that falls into a window of its stripe."""
    first = min(span.start + start, span.stop)
    return Span(span.member, span.kind, first, min(span.start + stop, span.stop))


def _overlap(span: Span, other: Span) -> bool:
    same = (span.member, span.kind) == (other.member, other.kind)
    return same and max(span.start, other.start) < min(span.stop, other.stop)
