"""The files that a program's checkpoint consists of: what the patterns name now, folders with all that is in
them."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.checkpoints.file_image import FileSign, sign_of
from holdfast.programs.putting_back import PART, SET_ASIDE

Signs = dict[str, FileSign]


def signs_of(patterns: Sequence[str], folder: Path) -> Signs:
    """Every plain file that is meant, by its path below `folder`. Links are passed over."""
    found: Signs = {}
    for pattern in patterns:
        for name in sorted(glob.glob(pattern, root_dir=folder)):
            for path in _files(os.path.normpath(name), folder):
                sign = sign_of(folder / path)
                if sign is not None:
                    found[path] = sign
    return found


def _files(name: str, folder: Path) -> Iterator[str]:
    if name.endswith(PART) or SET_ASIDE in Path(name).parts:
        return
    if not (folder / name).is_dir() or (folder / name).is_symlink():
        yield name
        return
    for inside in sorted(os.listdir(folder / name)):
        yield from _files(os.path.join(name, inside), folder)
