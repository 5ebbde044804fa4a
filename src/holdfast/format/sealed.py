"""A JSON object that knows whether it is whole: one canonical line, then the sha256 of that line.

    {"format":1,...}
    sha256:4be1...

A torn, zero-filled or altered record does not open. Canonical form makes equal records equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from holdfast.errors import CorruptCheckpoint, InternalError

MAX_SEALED_BYTES = 256 << 20
# About a million numbers.
MAX_VALUES_BYTES = 48 << 20
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
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
    _require_bounded(line)
    try:
        record = json.loads(line)
        canonical = canonical_json(record)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"record is not JSON: {error}") from error
    if not isinstance(record, dict) or canonical + b"\n" != line:
        raise CorruptCheckpoint("record is not one JSON object in canonical form")
    return record


def _require_bounded(line: bytes) -> None:
    """Before anything is parsed: three bytes of JSON can ask for a hundred of memory. What strings take is in
    proportion to the line; what lists, objects and numbers take is counted, and limited."""
    if _values_bytes(line) > MAX_VALUES_BYTES and _values_bytes(_STRING.sub(b"", line)) > MAX_VALUES_BYTES:
        raise CorruptCheckpoint(
            f"record of {len(line)} bytes holds more values than a record may", hint="put arrays into tensors"
        )


def _values_bytes(line: bytes) -> int:
    # An empty list or object takes 64 bytes and its place in another 8; a number about 32 and its place.
    return 72 * (line.count(b"[") + line.count(b"{")) + 40 * (line.count(b",") + line.count(b":"))


def seal_of(data: bytes) -> str:
    """The sha256 in a whole record's last line: what a successor names its parent by."""
    check_seal(data)
    return data[-65:-1].decode()
