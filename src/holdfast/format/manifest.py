"""The commit record of one checkpoint: which files, which digests, and everything small that belongs to it.

What this parser accepts is safe to act on: no unknown or missing fields, no name that leaves its
directory, no size that disagrees with its digests. It must never be lenient; a new field is a new format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import CorruptCheckpoint, NewerFormat, SaveError
from holdfast.format import sealed
from holdfast.format.checksum import ALGORITHM, DIGEST_HEX_LENGTH, chunk_count
from holdfast.format.names import (
    MAX_STEP,
    MAX_WRITER_EPOCH,
    CheckpointName,
    is_file_name,
    parse_checkpoint_name,
)

FORMAT = 1
MAX_FILES = 1 << 20
MAX_WORLD = 10**6
MAX_FILE_BYTES = 1 << 50
_DIGEST = re.compile(f"[0-9a-f]{{{DIGEST_HEX_LENGTH}}}", re.ASCII)
_SHA256 = re.compile("[0-9a-f]{64}", re.ASCII)
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NONCE = re.compile("[0-9a-f]{8}", re.ASCII)
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint: `digests` holds one per chunk of `chunk_bytes`, the last one shorter."""

    name: str
    size: int
    role: str
    algorithm: str
    chunk_bytes: int
    digests: tuple[str, ...]


@dataclass(frozen=True)
class Parent:
    """The checkpoint this one continues, pinned by the seal of its manifest."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything a committed checkpoint says about itself. `created` is for people, never for ordering."""

    store: str
    writer_epoch: int
    step: int
    nonce: str
    parent: Parent | None
    created: str
    reason: str
    files: tuple[FileRecord, ...]
    # How many ranks wrote it. With more than one, `values` is empty and each rank has a record of its own.
    world: int = 1
    progress: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    contains: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    notes: str = ""
    keep: str | None = None
    format: int = FORMAT

    @property
    def name(self) -> CheckpointName:
        return CheckpointName(self.writer_epoch, self.step, self.nonce)

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def to_bytes(self) -> bytes:
        """The sealed record. Whatever would not read back exactly is refused here, before it is written."""
        record: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        record["parent"] = vars(self.parent) if self.parent else None
        record["files"] = [{**vars(file), "digests": list(file.digests)} for file in self.files]
        record["metrics"] = {name: _metric_out(value) for name, value in self.metrics.items()}
        record["tags"] = list(self.tags)
        for name in ("progress", "values", "contains", "environment"):
            record[name] = dict(record[name])
            _require_plain_json(record[name], name)
        data = sealed.seal(record)
        try:
            parse_manifest(data)
        except CorruptCheckpoint as error:
            raise SaveError(
                f"the manifest of step {self.step} would be unreadable: {error.message}"
            ) from error
        return data


def parse_manifest(data: bytes) -> Manifest:
    """Read a sealed manifest back; CorruptCheckpoint says which field is wrong."""
    record = sealed.unseal(data)
    if record.get("format") != FORMAT or type(record.get("format")) is not int:
        refuse_newer(record.get("format"), FORMAT, "manifest")
        raise CorruptCheckpoint(
            f"manifest has format {str(record.get('format'))[:20]!r}, this version reads {FORMAT}"
        )
    expected = {f.name for f in fields(Manifest)}
    if set(record) != expected:
        odd = sorted(set(record) ^ expected)
        raise CorruptCheckpoint(f"manifest has missing or unknown fields: {', '.join(odd)[:200]}")
    for name in ("progress", "contains", "environment", "values", "metrics"):
        _expect(isinstance(record[name], dict), name)
    _expect(isinstance(record["store"], str) and _UUID.fullmatch(record["store"]), "store")
    _expect(_natural(record["writer_epoch"], MAX_WRITER_EPOCH), "writer_epoch")
    _expect(_natural(record["step"], MAX_STEP), "step")
    _expect(_natural(record["world"], MAX_WORLD) and record["world"] > 0, "world")
    _expect(isinstance(record["nonce"], str) and _NONCE.fullmatch(record["nonce"]), "nonce")
    _expect(
        all(isinstance(record[n], str) for n in ("created", "reason", "notes")), "created, reason or notes"
    )
    _expect(isinstance(record["tags"], list) and all(isinstance(t, str) for t in record["tags"]), "tags")
    _expect(record["keep"] is None or isinstance(record["keep"], str), "keep")
    return Manifest(
        **{
            **record,
            "parent": _parse_parent(record["parent"]),
            "files": _parse_files(record["files"]),
            "metrics": {name: _metric_in(value) for name, value in record["metrics"].items()},
            "tags": tuple(record["tags"]),
        }
    )


def refuse_newer(said: object, known: int, what: str) -> None:
    """Not damage: whoever stepped back to an older checkpoint for it would lose what came after."""
    if type(said) is int and said > known:
        raise NewerFormat(
            f"a newer holdfast wrote this checkpoint: its {what} has format {said}, this one reads {known}",
            hint="install the holdfast that wrote it, or a later one",
        )


def utc_text(wall_seconds: float) -> str:
    """Seconds since 1970 as ISO 8601 UTC, for `created`."""
    return datetime.fromtimestamp(wall_seconds, UTC).isoformat(timespec="milliseconds")


def _expect(holds: object, what: str) -> None:
    if not holds:
        raise CorruptCheckpoint(f"manifest field {what} is not what this format allows")


def _natural(value: object, limit: int) -> bool:
    # type() and not isinstance(): JSON true must not pass for 1.
    return type(value) is int and 0 <= value <= limit


def _parse_parent(raw: Any) -> Parent | None:
    if raw is None:
        return None
    _expect(isinstance(raw, dict) and set(raw) == {"name", "sha256"}, "parent")
    _expect(isinstance(raw["name"], str) and parse_checkpoint_name(raw["name"]), "parent.name")
    _expect(isinstance(raw["sha256"], str) and _SHA256.fullmatch(raw["sha256"]), "parent.sha256")
    return Parent(raw["name"], raw["sha256"])


def _parse_files(raw: Any) -> tuple[FileRecord, ...]:
    _expect(isinstance(raw, list) and len(raw) <= MAX_FILES, "files")
    records = tuple(parse_file_record(entry) for entry in raw)
    _expect(len({record.name for record in records}) == len(records), "files (one name twice)")
    return records


def parse_file_record(raw: Any) -> FileRecord:
    """One entry of `files`, checked."""
    expected = {f.name for f in fields(FileRecord)}
    _expect(isinstance(raw, dict) and set(raw) == expected, "files")
    _expect(isinstance(raw["name"], str) and is_file_name(raw["name"]), "files.name")
    _expect(_natural(raw["size"], MAX_FILE_BYTES), "files.size")
    _expect(isinstance(raw["role"], str), "files.role")
    # Fail closed: a file whose digests we cannot compute is a file we cannot vouch for.
    _expect(raw["algorithm"] == ALGORITHM, "files.algorithm")
    _expect(_natural(raw["chunk_bytes"], 1 << 30) and raw["chunk_bytes"] >= 4096, "files.chunk_bytes")
    digests = raw["digests"]
    _expect(isinstance(digests, list), "files.digests")
    _expect(len(digests) == chunk_count(raw["size"], raw["chunk_bytes"]), "files.digests (count)")
    _expect(all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in digests), "files.digests")
    return FileRecord(**{**raw, "digests": tuple(digests)})


def _metric_out(value: float) -> float | str:
    number = float(value)
    if math.isfinite(number):
        return number
    return "nan" if math.isnan(number) else ("inf" if number > 0 else "-inf")


def _metric_in(raw: Any) -> float:
    if isinstance(raw, str) and raw in _NON_FINITE:
        return _NON_FINITE[raw]
    _expect(type(raw) in (int, float), "metrics")
    return float(raw)


def _require_plain_json(value: Any, path: str) -> None:
    """Refuse what JSON would change in silence: integer keys, tuples, NaN. Names the place."""
    if value is None or isinstance(value, (str, bool)) or type(value) is int:
        return
    if type(value) is float:
        if not math.isfinite(value):
            raise SaveError(f"{path} is {value}, which JSON cannot hold", hint="tag it or put it in metrics")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _require_plain_json(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise SaveError(f"{path} has the key {key!r}, which is not a string")
            _require_plain_json(item, f"{path}.{key}")
    else:
        raise SaveError(f"{path} is a {type(value).__name__}, which JSON cannot hold")
