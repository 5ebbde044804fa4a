"""A JSON object that knows whether it is whole: one canonical line, then the sha256 of that line.

    {"format":1,...}
    sha256:4be1...

A torn, zero-filled or altered record does not open. Canonical form makes equal records equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from holdfast.errors import CorruptCheckpoint, InternalError

MAX_SEALED_BYTES = 256 << 20
_PREFIX = b"sha256:"
_SEAL_LENGTH = len(_PREFIX) + 64 + 1


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, ASCII. NaN and infinities are refused: JSON has no words for them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def seal(record: dict[str, Any]) -> bytes:
    try:
        line = canonical_json(record) + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise InternalError(f"a record holds something JSON cannot express: {error}") from error
    if len(line) + _SEAL_LENGTH > MAX_SEALED_BYTES:
        raise InternalError(f"a record of {len(line)} bytes exceeds the limit of {MAX_SEALED_BYTES}")
    return line + _PREFIX + hashlib.sha256(line).hexdigest().encode() + b"\n"


def check_seal(data: bytes) -> bytes:
    """The JSON line of a whole record; CorruptCheckpoint otherwise."""
    line, seal_line = data[:-_SEAL_LENGTH], data[-_SEAL_LENGTH:]
    if len(data) > MAX_SEALED_BYTES or not line.endswith(b"\n"):
        raise CorruptCheckpoint(f"record of {len(data)} bytes is torn or not a record")
    if seal_line != _PREFIX + hashlib.sha256(line).hexdigest().encode() + b"\n":
        raise CorruptCheckpoint("record does not match its own sha256")
    return line


def unseal(data: bytes) -> dict[str, Any]:
    """The object inside. Only the one canonical spelling is accepted: no duplicate keys, no stray spaces."""
    line = check_seal(data)
    try:
        record = json.loads(line)
        canonical = canonical_json(record)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"record is not JSON: {error}") from error
    if not isinstance(record, dict) or canonical + b"\n" != line:
        raise CorruptCheckpoint("record is not one JSON object in canonical form")
    return record


def seal_of(data: bytes) -> str:
    """The sha256 in a whole record's last line: what a successor names its parent by."""
    check_seal(data)
    return data[-65:-1].decode()
