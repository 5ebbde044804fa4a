"""Everything the checks look at: the run, the machine, the environment. Reads; judges nothing."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from platform import python_version

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.verify import Verdict, verify
from holdfast.clock import Clock
from holdfast.errors import SetupError, StoreError
from holdfast.events import Event
from holdfast.jobs.environment import WallDeadline
from holdfast.jobs.slurm import SlurmJob, slurm_job
from holdfast.stores.journal import read_events
from holdfast.stores.place import CKPT
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.forgotten_memory import forgotten
from holdfast.tiers.memory_folder import MemoryFolder, default_root
from holdfast.tiers.tier_list import recall_tiers

SHARED_MEMORY = Path("/dev/shm")
# Reading more than this takes minutes; then the sizes must do, and the doctor says so.
DEEP_LIMIT_BYTES = 20 * 10**9
_VERSIONS = ("torch", "numpy", "holdfast")
MOUNT_TABLE = Path("/proc/self/mountinfo")
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
NETWORK = frozenset({
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs", "9p", "fuse.sshfs", "wekafs",
    "pvfs2", "glusterfs", "fuse.glusterfs", "panfs", "virtiofs",
})  # fmt: skip


@dataclass(frozen=True)
class Mount:
    """A mounted file system. `options` holds those of the mount and those of the file system together."""

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


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A run (or the folder where one shall be), the machine under it, and the job around it."""

    folder: Path
    exists: bool
    now: float
    mount: Mount | None
    home: Path
    scratch: str | None
    free_bytes: int
    total_bytes: int
    free_files: int | None
    writable: bool
    others_may_write: bool
    shared_memory_bytes: int | None
    checkpoints: tuple[Found, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    unfinished: int = 0
    events: tuple[Event, ...] = ()
    # Places of copies that are not on the run's own file system.
    elsewhere: tuple[str, ...] = ()
    # What runs of this user that live no more hold in memory.
    stale_memory: tuple[MemoryFolder, ...] = ()
    versions: Mapping[str, str]
    job: SlurmJob | None = None
    deadline: WallDeadline | None = None
    in_cluster: bool = False
    problem: str | None = None

    @property
    def newest_bytes(self) -> int:
        return next((one.manifest.total_bytes for one in self.checkpoints if one.manifest), 0)


def gather(
    folder: Path,
    clock: Clock,
    environ: Mapping[str, str],
    *,
    deep: bool = True,
    mount_table: Path = MOUNT_TABLE,
    shared_memory: Path = SHARED_MEMORY,
) -> Facts:
    """Look at everything. Nothing is created, not even the folder."""
    there = _nearest_existing(folder)
    space = os.statvfs(there)
    job = slurm_job(environ, clock)
    found, verdicts, problem = _checkpoints(folder, deep=deep)
    return Facts(
        folder=folder,
        exists=folder.is_dir(),
        now=clock.wall(),
        mount=mount_of(there, parse_mounts(_text(mount_table))),
        home=Path(environ.get("HOME") or "/nonexistent"),
        scratch=next((environ[name] for name in ("SCRATCH", "WORK", "PSCRATCH") if environ.get(name)), None),
        free_bytes=space.f_bavail * space.f_frsize,
        total_bytes=space.f_blocks * space.f_frsize,
        # Some file systems count no files and say 0 of 0.
        free_files=space.f_favail if space.f_files else None,
        writable=os.access(there, os.W_OK | os.X_OK),
        others_may_write=bool(folder.is_dir() and folder.stat().st_mode & stat.S_IWOTH),
        shared_memory_bytes=_size_of(shared_memory),
        checkpoints=tuple(found),
        verdicts=tuple(verdicts),
        unfinished=_unfinished(folder, found),
        events=tuple(read_events(folder)) if folder.is_dir() else (),
        elsewhere=tuple(_elsewhere(folder)),
        stale_memory=tuple(forgotten(str(shared_memory / Path(default_root()).name), wall=clock.wall())),
        versions={"python": python_version(), **{name: _version(name) for name in _VERSIONS}},
        job=job,
        deadline=job.deadline if job else None,
        in_cluster=job is not None or shutil.which("sbatch", path=environ.get("PATH")) is not None,
        problem=problem,
    )


def _checkpoints(folder: Path, *, deep: bool) -> tuple[list[Found], list[Verdict], str | None]:
    if not folder.is_dir():
        return [], [], None
    store = CheckpointStore(folder)
    try:
        found = committed(store)
    except StoreError as error:
        return [], [], error.message
    total = sum(one.manifest.total_bytes for one in found[:2] if one.manifest)
    deep = deep and total <= DEEP_LIMIT_BYTES
    # The newest two are what a restore would use; the rest is looked at without being read.
    return found, [verify(store, one, deep=deep and i < 2) for i, one in enumerate(found)], None


def _unfinished(folder: Path, found: list[Found]) -> int:
    """Places that were begun and never committed; some may be under way."""
    place = folder / CKPT
    return len(list(place.iterdir())) - len(found) if place.is_dir() else 0


def _elsewhere(folder: Path) -> Iterator[str]:
    try:
        tiers = recall_tiers(folder).now
    except StoreError:
        return
    for tier in tiers:
        if tier.kind == "objects" or tier.protect not in (None, "single"):
            yield tier.location
        elif tier.kind == "directory":
            try:
                place = _nearest_existing(Path(tier.path))
            except SetupError:
                # Other nodes know its variable; what cannot be known here is not held against it.
                yield tier.location
                continue
            if place.stat().st_dev != folder.stat().st_dev:
                yield tier.location


def _nearest_existing(path: Path) -> Path:
    path = path.absolute()
    return next(one for one in (path, *path.parents) if one.exists())


def _size_of(folder: Path) -> int | None:
    try:
        space = os.statvfs(folder)
    except OSError:
        return None
    return space.f_blocks * space.f_frsize


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


# ---- which file system a path lies on: Linux's own table, read and never guessed


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
