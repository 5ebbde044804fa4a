"""Where checkpoints in shared memory lie: /dev/shm/holdfast-<uid>/<run>/, plain files.

Plain files outlive a killed process, and nothing unlinks them behind our back. (Python's own shared memory
is removed by its resource tracker as soon as its creator is killed.) /dev/shm is open to every user of the
machine, so a folder that is not ours alone is refused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from dataclasses import dataclass

from holdfast.errors import CorruptCheckpoint
from holdfast.format.sealed import seal, unseal
from holdfast.stores.os_errors import store_errors
from holdfast.stores.owner import Owner, is_alive, this_process
from holdfast.stores.ownership import not_private
from holdfast.stores.stored_file import read_regular

log = logging.getLogger("holdfast")
SHM = "/dev/shm"
OWNER = "OWNER.json"
# A machine that stands for a weekend must not lose what a run left behind; one that stands for a month may.
STALE_SECONDS = 3 * 86400.0
_FOLDER = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII)


@dataclass(frozen=True)
class MemoryFolder:
    """One folder of one run, as found. `alive` is None where nobody can know."""

    path: str
    uuid: str
    run: str | None
    alive: bool | None
    age_seconds: float
    bytes: int


def default_root() -> str:
    return os.path.join(SHM, f"holdfast-{os.getuid()}")


def write_owner(folder: str, owner: Owner, run: str) -> None:
    part = os.path.join(folder, f"{OWNER}.part")
    with store_errors("claim", folder):
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as opened:
            opened.write(seal({"format": 1, "owner": owner.to_json(), "run": run}))
        os.replace(part, os.path.join(folder, OWNER))


def read_owner(folder: str) -> tuple[Owner | None, str | None]:
    """Who wrote here last and for which run's folder; None for what cannot be read."""
    try:
        record = unseal(read_regular(os.path.join(folder, OWNER), 64 << 10))
    except (OSError, CorruptCheckpoint):
        return None, None
    run = record.get("run")
    return Owner.from_json(record.get("owner")), run if isinstance(run, str) else None


def memory_folders(root: str | None = None, *, wall: float) -> list[MemoryFolder]:
    """Every folder of this user, whatever its run. `wall` is now, in seconds since 1970."""
    root = root or default_root()
    found = []
    for name in sorted(_names_in(root)):
        match, path = _FOLDER.fullmatch(name), os.path.join(root, name)
        if match is None or not _is_private(path):
            continue
        owner, run = read_owner(path)
        alive = is_alive(owner, this_process("")) if owner else None
        used, newest = weigh(path)
        found.append(MemoryFolder(path, match[1], run, alive, max(wall - newest, 0.0), used))
    return found


def stale_folders(
    root: str | None = None, *, wall: float, older_than: float = STALE_SECONDS
) -> list[MemoryFolder]:
    """Folders whose run does not live and has not written for `older_than` seconds.

    One whose owner cannot be judged (another container) waits ten times as long.
    """
    return [
        folder
        for folder in memory_folders(root, wall=wall)
        if folder.alive is not True
        and folder.age_seconds >= (older_than if folder.alive is False else 10 * older_than)
    ]


def remove_folder(folder: MemoryFolder) -> None:
    """Give the memory back. Files are unlinked and never cut short: a process that still maps one would
    be killed by the next touch."""
    with store_errors("remove", folder.path):
        shutil.rmtree(folder.path)


def _names_in(root: str) -> list[str]:
    """Nothing, where another user made the folder first: what lies in it is not this user's."""
    return os.listdir(root) if _is_private(root) else []


def _is_private(path: str) -> bool:
    try:
        why = not_private(path)
    except FileNotFoundError:
        return False
    if why is not None:
        log.warning("holdfast: %s is passed over: %s", path, why)
    return why is None


def weigh(path: str) -> tuple[int, float]:
    """Bytes held, and when something was last written."""
    used, newest = 0, os.lstat(path).st_mtime
    for parent, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                state = os.lstat(os.path.join(parent, name))
                used += state.st_blocks * 512
                newest = max(newest, state.st_mtime)
    return used, newest
