"""A running digest of the indices that training was handed, to check those that are passed over later."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable
from typing import Any


def with_indices(digest: int, indices: Iterable[Any]) -> int:
    """`digest` and these. The same however they are grouped, so that batch sizes may change."""
    try:
        return zlib.crc32(array("q", indices), digest)
    except (TypeError, OverflowError):
        for key in indices:
            digest = with_indices(digest, key) if isinstance(key, (list, tuple)) else _with_key(digest, key)
        return digest


def _with_key(digest: int, key: Any) -> int:
    try:
        return zlib.crc32(array("q", [key]), digest)
    except (TypeError, OverflowError):
        return zlib.crc32(repr(key).encode(), digest)
