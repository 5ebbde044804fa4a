"""Who reads what, to write what: encoding and rebuilding as small steps that I/O code carries out.

A step reads at most `window_bytes` from each of n members and adds them up one after the other, so it needs
memory for one read and its outputs. Steps are independent: they may run in any order, in parallel, again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import lcm

from holdfast.errors import RestoreError
from holdfast.redundancy.builder import BlockBuilder
from holdfast.redundancy.codes import Combination
from holdfast.redundancy.record import ParityRecord
from holdfast.redundancy.stripes import Layout, Span

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
