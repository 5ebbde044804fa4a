"""Paths as values of a state: words, and nothing that is looked at on a disk."""

from __future__ import annotations

from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any

from holdfast.format.scalars import ENCODERS, decode_scalar

PATHS: dict[str, type[PurePath]] = {
    kind.__name__: kind for kind in (PosixPath, PurePosixPath, WindowsPath, PureWindowsPath)
}


def encode_path(value: PurePath) -> Any:
    return ["path", [type(value).__name__, ENCODERS[str](str(value))]]


def decode_path(payload: Any) -> PurePath:
    name, text = payload
    return PATHS[name](decode_scalar(text, {}))
