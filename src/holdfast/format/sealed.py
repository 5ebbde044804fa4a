"""A JSON object that knows whether it is whole: one canonical line, then the sha256 of that line.

    {"format":1,...}
    sha256:4be1...

A torn, zero-filled or altered record does not open. Canonical form makes equal records equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from holdfast.errors import CorruptCheckpoint, InternalError

MAX_SEALED_BYTES = 256 << 20
# About a million numbers.
MAX_VALUES_BYTES = 48 << 20
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
# Record, files, file, digests: deeper, and in longer lists, pieces are taken as a whole.
_FEW, _DEPTH = 4096, 4
_PREFIX = b"sha256:"
_SEAL_LENGTH = len(_PREFIX) + 64 + 1


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, ASCII. NaN and infinities are refused: JSON has no words for them."""
    return _text(value).encode("ascii")


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def seal(record: dict[str, Any]) -> bytes:
    try:
        line = canonical_json(record) + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise InternalError(f"a record holds something JSON cannot express: {error}") from error
    if len(line) + _SEAL_LENGTH > MAX_SEALED_BYTES:
        raise InternalError(f"a record of {len(line)} bytes exceeds the limit of {MAX_SEALED_BYTES}")
    return line + _PREFIX + hashlib.sha256(line).hexdigest().encode() + b"\n"


def check_seal(data: bytes) -> None:
    """CorruptCheckpoint unless it is a whole record."""
    end = len(data) - _SEAL_LENGTH
    if len(data) > MAX_SEALED_BYTES or end <= 0 or data[end - 1 : end] != b"\n":
        raise CorruptCheckpoint(f"record of {len(data)} bytes is torn or not a record")
    # Not a slice: a record may be large, and reading it must not take a multiple of that.
    with memoryview(data) as view:
        if data[end:] != _PREFIX + hashlib.sha256(view[:end]).hexdigest().encode() + b"\n":
            raise CorruptCheckpoint("record does not match its own sha256")


def unseal(data: bytes) -> dict[str, Any]:
    """The object inside. Only the one canonical spelling is accepted: no duplicate keys, no stray spaces."""
    check_seal(data)
    end = len(data) - _SEAL_LENGTH - 1
    _require_bounded(data, end)
    try:
        with memoryview(data) as view:
            record: dict[str, Any] = json.loads(str(view[:end], "ascii"))
        is_canonical = isinstance(record, dict) and _is_spelled(record, data, end)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"record is not JSON: {error}") from error
    if not is_canonical:
        raise CorruptCheckpoint("record is not one JSON object in canonical form")
    return record


def _is_spelled(record: dict[str, Any], data: bytes, end: int) -> bool:
    """Whether `data` holds the canonical form of `record`. Piece by piece: the whole of it would take as much
    memory as the record once more."""
    at = 0
    for piece in _pieces(record):
        if not data.startswith(piece.encode("ascii"), at):
            return False
        at += len(piece)
    return at == end


def _pieces(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, list) and len(value) > _FEW:
        for at in range(0, len(value), _FEW):
            yield ("," if at else "[") + _text(value[at : at + _FEW])[1:-1]
        yield "]"
    elif depth < _DEPTH and isinstance(value, list):
        yield "["
        for i, item in enumerate(value):
            yield "," if i else ""
            yield from _pieces(item, depth + 1)
        yield "]"
    elif depth < _DEPTH and isinstance(value, dict) and len(value) <= _FEW:
        yield "{"
        for i, key in enumerate(sorted(value)):
            yield f"{',' if i else ''}{_text(key)}:"
            yield from _pieces(value[key], depth + 1)
        yield "}"
    else:
        yield _text(value)


def _require_bounded(data: bytes, end: int) -> None:
    """Before anything is parsed: three bytes of JSON can ask for a hundred of memory. What strings take is in
    proportion to the line; what lists, objects and numbers take is counted, and limited."""
    if (
        _values_bytes(data) > MAX_VALUES_BYTES
        and _values_bytes(_STRING.sub(b"", data[:end])) > MAX_VALUES_BYTES
    ):
        raise CorruptCheckpoint(
            f"record of {len(data)} bytes holds more values than a record may", hint="put arrays into tensors"
        )


def _values_bytes(line: bytes) -> int:
    # An empty list or object takes 64 bytes and its place in another 8; a number about 32 and its place.
    return 72 * (line.count(b"[") + line.count(b"{")) + 40 * (line.count(b",") + line.count(b":"))


def seal_of(data: bytes) -> str:
    """The sha256 in a whole record's last line: what a successor names its parent by."""
    check_seal(data)
    return data[-65:-1].decode()
