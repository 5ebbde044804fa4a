"""Nodes as dictionaries of bytes, and the plainest executor of plans there can be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from holdfast.redundancy.plan import Step, plan_encode
from holdfast.redundancy.record import Member, MemberFile, ParityRecord, default_code
from holdfast.redundancy.scheme import parse_scheme
from holdfast.redundancy.stripes import Layout, Span


@dataclass
class Node:
    files: dict[str, bytearray]
    parity: bytearray = field(default_factory=bytearray)


class SetOfNodes:
    """A protected set in memory. The sizes of cells and pages are small enough to see edges."""

    def __init__(self, scheme: str, file_sizes: list[list[int]], *, cell: int = 64) -> None:
        chosen = parse_scheme(scheme)
        rng = np.random.default_rng(sum(map(sum, file_sizes)))
        self.nodes = {
            f"m{number}": Node({f"f{at}": bytearray(rng.bytes(size)) for at, size in enumerate(sizes)})
            for number, sizes in enumerate(file_sizes)
        }
        self.record = ParityRecord(
            scheme=chosen,
            code=default_code(chosen),
            members=tuple(
                Member(name, tuple(MemberFile(file, len(data)) for file, data in node.files.items()))
                for name, node in self.nodes.items()
            ),
            align_bytes=64,
            cell_bytes=cell,
        )
        self.layout = Layout(self.record)
        for name, node in self.nodes.items():
            node.parity = bytearray(self.layout.parity_bytes(name))
        self.most_read = 0

    def encode(self, *, window: int, together: bool = False) -> None:
        for name in [None] if together else list(self.nodes):
            self.execute(plan_encode(self.record, name, window_bytes=window))

    def lose(self, names: Iterable[str]) -> None:
        """Fresh nodes in their place: files of the right size that hold rubbish."""
        for name in names:
            node = self.nodes[name]
            self.nodes[name] = Node(
                {file: bytearray(b"\xee" * len(data)) for file, data in node.files.items()},
                bytearray(b"\xee" * len(node.parity)),
            )

    def contents(self) -> dict[str, tuple[dict[str, bytes], bytes]]:
        return {
            name: ({file: bytes(data) for file, data in node.files.items()}, bytes(node.parity))
            for name, node in self.nodes.items()
        }

    def execute(self, steps: Iterable[Step]) -> int:
        count = 0
        for step in steps:
            builder = step.builder()
            for block, span in zip(step.combination.inputs, step.reads, strict=True):
                self.most_read = max(self.most_read, span.size)
                if span.size:
                    builder.add(block, self.read(span))
            for number, span in enumerate(step.writes):
                self.write(span, step.output(builder, number))
            count += 1
        return count

    def read(self, span: Span) -> bytes:
        node = self.nodes[span.member]
        if span.kind == "parity":
            return bytes(node.parity[span.start : span.stop])
        parts = self.layout.file_ranges(span)
        assert [part.at for part in parts] == [sum(p.size for p in parts[:i]) for i in range(len(parts))]
        return b"".join(bytes(node.files[p.name][p.offset : p.offset + p.size]) for p in parts)

    def write(self, span: Span, data: memoryview) -> None:
        assert len(data) == span.size
        node = self.nodes[span.member]
        if span.kind == "parity":
            node.parity[span.start : span.stop] = data
            return
        for part in self.layout.file_ranges(span):
            node.files[part.name][part.offset : part.offset + part.size] = data[part.at : part.at + part.size]

    def harm(self, span: Span) -> None:
        self.write(span, memoryview(bytes(255 - byte for byte in self.read(span))))
