"""What one of several ranks knows of its own part: its small values, and where its tensors lie.

A reader with another number of ranks learns from these records alone which bytes it needs, without opening
the images of everybody.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import CorruptCheckpoint, SaveError
from holdfast.format import sealed
from holdfast.format.image import MAX_HEADER_BYTES, ImageLayout, parse_image
from holdfast.format.manifest import refuse_newer
from holdfast.format.names import is_file_name, of_rank

FORMAT = 1


def record_name(rank: int) -> str:
    return of_rank("rank.json", rank)


@dataclass(frozen=True)
class ImageHeader:
    """The JSON of an image's header, how long the header is with its padding, and the size of the file."""

    text: str
    header_bytes: int
    file_bytes: int

    @classmethod
    def of(cls, layout: ImageLayout) -> ImageHeader:
        return cls(layout.header[8:].decode().rstrip(), len(layout.header), layout.size)

    def layout(self) -> ImageLayout:
        inside = self.header_bytes - 8
        return parse_image(struct.pack("<Q", inside) + self.text.encode().ljust(inside), self.file_bytes)


@dataclass(frozen=True)
class RankRecord:
    rank: int
    world: int
    values: Mapping[str, Any]
    headers: Mapping[str, ImageHeader] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The sealed record. What would not read back is refused here, before it is written."""
        headers = {file: [h.text, h.header_bytes, h.file_bytes] for file, h in self.headers.items()}
        data = sealed.seal(
            {
                "format": FORMAT,
                "rank": self.rank,
                "world": self.world,
                "values": dict(self.values),
                "headers": headers,
            }
        )
        try:
            parse_rank_record(data)
        except CorruptCheckpoint as error:
            raise SaveError(f"the record of rank {self.rank} would be unreadable: {error.message}") from error
        return data

    def layouts(self) -> dict[str, ImageLayout]:
        return {file: header.layout() for file, header in self.headers.items()}


def parse_rank_record(data: bytes) -> RankRecord:
    record = sealed.unseal(data)
    refuse_newer(record.get("format"), FORMAT, "record of a rank")
    try:
        if record["format"] != FORMAT or set(record) != {"format", "rank", "world", "values", "headers"}:
            raise ValueError("unknown fields or format")
        headers = {file: _parse_header(raw) for file, raw in record["headers"].items()}
        if not all(is_file_name(file) for file in headers) or not isinstance(record["values"], dict):
            raise ValueError("a name or the values are not what this format allows")
        return RankRecord(int(record["rank"]), int(record["world"]), record["values"], headers)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(f"the record of a rank cannot be read: {error!r}") from error


def _parse_header(raw: Any) -> ImageHeader:
    text, header_bytes, file_bytes = raw
    if not isinstance(text, str) or type(header_bytes) is not int or type(file_bytes) is not int:
        raise ValueError("a header is not text and two numbers")
    if not 8 <= header_bytes <= MAX_HEADER_BYTES + 8:
        raise ValueError(f"a header of {header_bytes} bytes")
    return ImageHeader(text, header_bytes, file_bytes)
