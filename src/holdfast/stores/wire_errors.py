"""Errors that cross the wire: which classes may, and how they come back on the other side."""

from __future__ import annotations

from typing import Any

from holdfast.errors import (
    CorruptCheckpoint,
    HoldfastError,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreNotFound,
    StoreUnavailable,
)

_MAX_TEXT = 4000
# A fixed list: a peer chooses among these and cannot name any class it likes.
_CLASSES: dict[str, type[HoldfastError]] = {
    kind.__name__: kind
    for kind in (CorruptCheckpoint, StoreDenied, StoreError, StoreFull, StoreNotFound, StoreUnavailable)
}


def error_out(error: HoldfastError) -> dict[str, Any]:
    name = type(error).__name__
    return {
        "error": name if name in _CLASSES else "StoreError",
        "message": error.message[:_MAX_TEXT],
        "hint": (error.hint or "")[:_MAX_TEXT],
    }


def error_in(header: dict[str, Any], where: str) -> HoldfastError:
    """The error that `header` tells of. Its text ends up on a terminal, so only printable text is taken."""
    kind = _CLASSES.get(str(header.get("error")), StoreError)
    message, hint = (_printable(header.get(key)) for key in ("message", "hint"))
    return kind(f"{where} answers: {message or 'an error without words'}", hint=hint or None)


def _printable(text: object) -> str:
    said = text if isinstance(text, str) else ""
    return "".join(c if c.isprintable() else "?" for c in said[:_MAX_TEXT])
