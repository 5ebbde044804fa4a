"""Which file system a path lies on, and how it is mounted: Linux's own table, read and never guessed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MOUNT_TABLE = Path("/proc/self/mountinfo")
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
NETWORK = frozenset({
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs", "9p", "fuse.sshfs", "wekafs",
    "pvfs2", "glusterfs", "fuse.glusterfs", "panfs", "virtiofs",
})  # fmt: skip


@dataclass(frozen=True)
class Mount:
    """`options` holds those of the mount and those of the file system together."""

    point: str
    kind: str
    options: frozenset[str]

    @property
    def is_in_memory(self) -> bool:
        return self.kind in IN_MEMORY

    @property
    def is_shared(self) -> bool:
        """Whether other machines see it too."""
        return self.kind in NETWORK


def parse_mounts(text: str) -> list[Mount]:
    """The lines of a mountinfo file; what cannot be read is left out."""
    found = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if dash and len(before) >= 6 and len(after) >= 3:
            options = frozenset(before[5].split(",")) | frozenset(after[2].split(","))
            found.append(Mount(_unescape(before[4]), after[0], options))
    return found


def mount_of(path: Path, mounts: list[Mount]) -> Mount | None:
    """The mount that holds `path`; the last one of a name hides those before it."""
    real = os.path.realpath(path)
    best: Mount | None = None
    for mount in mounts:
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _unescape(text: str) -> str:
    """The kernel writes a space in a path as an octal escape."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
