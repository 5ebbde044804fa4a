"""One committed set of a program's files, as its manifest describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoints.file_image import is_inside
from holdfast.checkpoints.find import Found
from holdfast.format.manifest import FileRecord


@dataclass(frozen=True)
class Generation:
    """One committed set of files. `files` maps the program's own paths to what is stored for each."""

    found: Found
    files: Mapping[str, StoredAs]

    @property
    def name(self) -> str:
        return str(self.found.name)

    @property
    def values(self) -> Mapping[str, Any]:
        return self.found.manifest.values if self.found.manifest else {}


@dataclass(frozen=True)
class StoredAs:
    record: FileRecord
    mode: int
    mtime_ns: int


def read_generation(found: Found) -> Generation | None:
    """What the manifest says of its files; None if this is not a generation of a program's files."""
    manifest = found.manifest
    said = manifest.values.get("files") if manifest else None
    if manifest is None or not isinstance(said, dict):
        return None
    files = {}
    for record in manifest.files:
        entry = said.get(record.name)
        if not isinstance(entry, dict) or not is_inside(entry.get("path")):
            return None
        mode, mtime = entry.get("mode"), entry.get("mtime_ns")
        if type(mode) is not int or type(mtime) is not int or mtime < 0:
            return None
        # Never more than the user's own bits: a manifest must not be able to make a file set-uid.
        files[entry["path"]] = StoredAs(record, mode & 0o777, mtime)
    return Generation(found, files)
