"""A stored generation back into the program's working folder. Nothing there is deleted: what must make room
is set aside."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from holdfast.checkpoints.file_image import FileImage, sign_of
from holdfast.checkpoints.read import open_checked
from holdfast.format.checksum import chunk_span, digest
from holdfast.format.manifest import FileRecord
from holdfast.programs.generation import Generation, StoredAs
from holdfast.stores.base import Store

# A folder, and hidden: a file beside the others would match the patterns by which programs find their own.
SET_ASIDE = ".holdfast-set-aside"
PART = ".holdfast-part"


def in_place(generation: Generation, folder: Path) -> bool:
    """Whether the working folder holds exactly these bytes already."""
    return all(_same_bytes(folder / name, stored.record) for name, stored in generation.files.items())


def put_back(store: Store, generation: Generation, folder: Path, present: Collection[str]) -> list[str]:
    """Make the files of `generation` the ones in `folder`; returns what was set aside to make room.

    `present` are the program's files there now. One that the generation does not have would be taken for
    its newest checkpoint.
    """
    names = sorted({*present, *generation.files})
    stored = generation.files
    wrong = [one for one in names if one not in stored or not _same_bytes(folder / one, stored[one].record)]
    aside = set_aside(folder, wrong)
    for name in wrong:
        if name in stored:
            copy_out(store, generation, stored[name], folder / name)
    return aside


def set_aside(folder: Path, names: Collection[str]) -> list[str]:
    """Move what is there of these into a folder of its own; returns where it lies now."""
    there = [name for name in names if os.path.lexists(folder / name)]
    if not there:
        return []
    number = 1
    while (home := folder / SET_ASIDE / str(number)).exists():
        number += 1
    moved = []
    for name in there:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder / name, home / name)
        moved.append(f"{SET_ASIDE}/{number}/{name}")
    return moved


def copy_out(store: Store, generation: Generation, stored: StoredAs, path: Path) -> None:
    """One file of a verified generation to `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + PART)
    record = stored.record
    file = open_checked(store, generation.found, record)
    try:
        with open(part, "wb") as out:
            for index in range(len(record.digests)):
                start, stop = chunk_span(index, record.size, record.chunk_bytes)
                chunk = memoryview(bytearray(stop - start))
                file.read_into(start, chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    finally:
        file.close()
    os.chmod(part, stored.mode)
    os.utime(part, ns=(stored.mtime_ns, stored.mtime_ns))
    os.replace(part, path)


def _same_bytes(path: Path, record: FileRecord) -> bool:
    sign = sign_of(path)
    if sign is None or sign.size != record.size:
        return False
    image = FileImage(record.name, path)
    try:
        for index, expected in enumerate(record.digests):
            start, stop = chunk_span(index, record.size, record.chunk_bytes)
            if digest(image.view(start, stop)) != expected:
                return False
    finally:
        image.close()
    return True
