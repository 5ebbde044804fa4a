"""What must be known to rebuild a lost member of a set; every member stores it beside its parity.

Members go by logical names, never by rank or host: after a loss others stand in their place. The record
lists the files of all members, so a lost node's file names and sizes survive it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from holdfast.errors import CorruptCheckpoint, HoldfastError, SetupError
from holdfast.redundancy.cauchy import CELL_BYTES, CELL_GRANULE
from holdfast.redundancy.codes import CODE_NAMES, Code, CodeName
from holdfast.redundancy.scheme import Scheme, parse_scheme

FORMAT = 1
MAX_FILES = 1 << 20
MAX_FILE_BYTES = 1 << 50
# Pieces begin on pages, so that they can be read and written past the page cache.
PAGE = 4096
# A partner keeps plain copies of files, which need no record.
CODE_OF: dict[str, CodeName] = {"xor": "xor", "rs": "cauchy-bits"}
_COMPONENT = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAME = re.compile(_COMPONENT, re.ASCII)
# No component begins with a dot: a path cannot leave the folder it is taken from.
_PATH = re.compile(f"{_COMPONENT}(/{_COMPONENT}){{0,7}}", re.ASCII)


@dataclass(frozen=True)
class MemberFile:
    """One protected file: a path relative to the member's own folder."""

    name: str
    size: int


@dataclass(frozen=True)
class Member:
    """One member of a set and its files, in the order in which they make up its stream."""

    name: str
    files: tuple[MemberFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, kw_only=True)
class ParityRecord:
    """One set as it was encoded. `align_bytes` rounds pieces, `cell_bytes` is the unit of "cauchy-bits"."""

    scheme: Scheme
    code: CodeName
    members: tuple[Member, ...]
    align_bytes: int = PAGE
    cell_bytes: int = CELL_BYTES
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.code != CODE_OF.get(self.scheme.kind):
            raise SetupError(f"the scheme {self.scheme} has no code {self.code!r}")
        names = [member.name for member in self.members]
        if len(names) < self.scheme.set_size or len(set(names)) != len(names):
            raise SetupError(f"{self.scheme} needs {self.scheme.set_size} different members, not {names}")
        for member in self.members:
            _check_member(member)
        for what in ("align_bytes", "cell_bytes"):
            value = getattr(self, what)
            if not 0 < value <= 1 << 30 or value % CELL_GRANULE:
                raise SetupError(f"{what} must be a multiple of {CELL_GRANULE}, not {value}")
        _ = self.block_code

    @property
    def block_code(self) -> Code:
        """The code of one stripe."""
        return Code(self.code, len(self.members) - self.scheme.failures, self.scheme.failures)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "scheme": str(self.scheme),
            "code": self.code,
            "align_bytes": self.align_bytes,
            "cell_bytes": self.cell_bytes,
            "members": [
                {"name": member.name, "files": [vars(file).copy() for file in member.files]}
                for member in self.members
            ],
        }


def default_code(scheme: Scheme) -> CodeName:
    if scheme.kind not in CODE_OF:
        raise SetupError(f"the scheme {scheme} stores no parity")
    return CODE_OF[scheme.kind]


def parse_record(raw: Any) -> ParityRecord:
    """Read back what `to_json` gave. Never lenient: CorruptCheckpoint for anything unknown or missing."""
    _expect(isinstance(raw, dict) and raw.get("format") == FORMAT, f"format (this version reads {FORMAT})")
    _expect(type(raw["format"]) is int and set(raw) == {f.name for f in fields(ParityRecord)}, "names")
    _expect(isinstance(raw["scheme"], str) and raw["code"] in CODE_NAMES, "scheme or code")
    _expect(all(type(raw[what]) is int for what in ("align_bytes", "cell_bytes")), "align_bytes, cell_bytes")
    _expect(isinstance(raw["members"], list) and len(raw["members"]) <= 256, "members")
    try:
        scheme = parse_scheme(raw["scheme"])
        _expect(str(scheme) == raw["scheme"], "scheme")
        members = tuple(_parse_member(entry) for entry in raw["members"])
        return ParityRecord(**{**raw, "scheme": scheme, "members": members})
    except CorruptCheckpoint:
        raise
    except HoldfastError as error:
        raise CorruptCheckpoint(f"a parity record is not what was written: {error.message}") from error


def _parse_member(raw: Any) -> Member:
    _expect(isinstance(raw, Mapping) and set(raw) == {"name", "files"}, "members")
    _expect(isinstance(raw["name"], str) and isinstance(raw["files"], list), "members")
    for entry in raw["files"]:
        _expect(isinstance(entry, dict) and set(entry) == {"name", "size"}, "members.files")
        _expect(isinstance(entry["name"], str) and type(entry["size"]) is int, "members.files")
    return Member(raw["name"], tuple(MemberFile(**entry) for entry in raw["files"]))


def _check_member(member: Member) -> None:
    if _NAME.fullmatch(member.name) is None:
        raise SetupError(f"{member.name[:80]!r} cannot name a member of a set")
    if len(member.files) > MAX_FILES or len({file.name for file in member.files}) != len(member.files):
        raise SetupError(f"member {member.name} lists too many files, or one of them twice")
    for file in member.files:
        if _PATH.fullmatch(file.name) is None:
            raise SetupError(f"member {member.name}: {file.name[:80]!r} cannot name a protected file")
        if not 0 <= file.size <= MAX_FILE_BYTES:
            raise SetupError(f"member {member.name}: {file.name} cannot have {file.size} bytes")


def _expect(holds: object, what: str) -> None:
    if not holds:
        raise CorruptCheckpoint(f"parity record field {what} is not what this format allows")
