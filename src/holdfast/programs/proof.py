"""Whether a program's files, as they lie there, are a whole checkpoint: by which sign, or that nobody knows.

A file at rest proves nothing: programs pause while they write, and write one file after the other. Files that
nobody vouches for are at most a candidate (see `candidate`), which is never put over anything unasked.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.checkpoints.file_image import FileSign, sign_of
from holdfast.errors import SaveError
from holdfast.programs.generations import PART, SET_ASIDE
from holdfast.programs.recipe import Prepared, Recipe

# ---- The files that a program's checkpoint consists of: what the patterns name now, folders with all that is
# in them.

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


log = logging.getLogger("holdfast")
CHECK_SECONDS = 600.0
HINT = (
    "say how to tell: --check COMMAND, --written-last FILE, --ends-with TEXT, --replaces-files; or "
    "--trust-files to take the risk"
)


class Proof:
    """Each answer is the sign in words, or None."""

    def __init__(self, recipe: Recipe, prepared: Prepared, folder: Path, environ: Mapping[str, str]) -> None:
        self._recipe = recipe
        self._prepared = prepared
        self._folder = folder
        self._can_look = on_one_machine(environ)
        self._refused: Signs = {}

    def stand_alone(self, signs: Signs) -> bool:
        """Whether no file of these needs another one of the same moment."""
        return len(signs) == 1 or self._recipe.independent_files

    def while_running(self, signs: Signs, before: Signs) -> str | None:
        """`before` is what the last look saw, a second ago."""
        recipe = self._recipe
        if recipe.trust_files:
            return "trusted" if recipe.replaces_files or signs == before else None
        if recipe.check:
            return self._checked(signs) if signs == before and not self.is_open(signs) else None
        if recipe.written_last:
            return self._marked(signs) if not self.is_open(signs) else None
        if not self.stand_alone(signs):
            return None
        if recipe.replaces_files:
            return "renamed into place"
        if recipe.ends_with and not self.is_open(signs):
            return self._signed(signs)
        return None

    def after_its_end(self, signs: Signs, returncode: int | None) -> str | None:
        """Nobody writes any more. `returncode` None: it is not known how it ended; it may have been killed
        halfway, and then only what survives that is a sign."""
        recipe = self._recipe
        if recipe.trust_files:
            return "trusted"
        if recipe.check:
            return self._checked(signs)
        if returncode == 0:
            return "the program ended by itself"
        marker_is_apart = bool(recipe.written_last) and not set(self._markers()) & set(signs)
        if marker_is_apart and self._marked(signs):
            return self._marked(signs)
        if recipe.replaces_files and self.stand_alone(signs) and not recipe.written_last:
            return "renamed into place"
        return None

    def is_open(self, signs: Signs) -> bool:
        """Also where that cannot be told."""
        return not self._can_look or are_being_written([self._folder / name for name in signs]) is not False

    def _markers(self) -> Signs:
        return signs_of([self._prepared.written_last], self._folder)

    def _marked(self, signs: Signs) -> str | None:
        markers = self._markers()
        newest = max((sign.mtime_ns for sign in markers.values()), default=None)
        others = [sign.mtime_ns for name, sign in signs.items() if name not in markers]
        if newest is None or any(mtime > newest for mtime in others):
            return None
        return f"{self._prepared.written_last} was written last"

    def _signed(self, signs: Signs) -> str | None:
        end = self._recipe.ends_with.encode()
        for name in signs:
            try:
                with open(self._folder / name, "rb") as file:
                    # A last line may or may not be closed by a line feed.
                    file.seek(max(signs[name].size - len(end) - 2, 0))
                    if not file.read().rstrip(b"\r\n").endswith(end.rstrip(b"\r\n")):
                        return None
            except OSError:
                return None
        return f"ends with {self._recipe.ends_with!r}"

    def _checked(self, signs: Signs) -> str | None:
        if signs == self._refused:
            return None
        command = list(self._prepared.check)
        try:
            done = subprocess.run(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=CHECK_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SaveError(f"the check {' '.join(command)} cannot be run: {error}") from error
        if done.returncode == 0:
            return "the check accepted it"
        self._refused = signs
        said = (done.stderr or done.stdout).strip().splitlines()
        log.warning(
            "holdfast: the check refused what the program wrote (exit code %d): %s",
            done.returncode, said[-1][:200] if said else "no reason given",
        )  # fmt: skip
        return None


# ---- Whether somebody has a file open for writing, or maps it so: then what is in it may be half done.
#
# Looks at every process of this machine that it may look at, without stopping any: a program that is
# frozen and continued sees some of its waits fail. The caller compares the files before and after; what
# did not change meanwhile and was open nowhere was complete as far as the program's own closing says.

_PROC = Path("/proc")
Identity = tuple[int, int]


def are_being_written(paths: Collection[Path]) -> bool | None:
    """None where it cannot be told."""
    if not (_PROC / "self" / "fd").is_dir():
        return None
    try:
        wanted = {(found.st_dev, found.st_ino) for found in map(os.stat, paths)}
    except OSError:
        return None  # it is being replaced this moment
    mine, unreadable = os.getpid(), set()
    for process in _processes():
        try:
            if any(_writes(process, wanted)):
                return True
        except PermissionError:
            unreadable.add(int(process.name))
        except OSError:
            continue  # it ended
    # What others do is their own affair; a child that cannot be seen into may be the one that writes.
    return None if any(_descends(pid, mine) for pid in unreadable) else False


def on_one_machine(environ: Mapping[str, str]) -> bool:
    """Whether everybody who could write is on this machine, as far as the scheduler says."""
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "NHOSTS", "OMPI_MCA_orte_num_nodes"):
        if environ.get(name, "1").isdecimal() and int(environ.get(name, "1")) > 1:
            return False
    if len(set(environ.get("LSB_HOSTS", "").split())) > 1:
        return False
    with contextlib.suppress(OSError, KeyError):
        return len(set(Path(environ["PBS_NODEFILE"]).read_text().split())) <= 1
    return True


def _processes() -> Iterator[Path]:
    return (entry for entry in _PROC.iterdir() if entry.name.isdecimal())


def _writes(process: Path, wanted: Collection[Identity]) -> Iterator[bool]:
    for number in os.listdir(process / "fd"):
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(process / "fd" / number)
            if (found.st_dev, found.st_ino) in wanted:
                yield _for_writing((process / "fdinfo" / number).read_text())
    inodes = {inode for _, inode in wanted}
    for line in (process / "maps").read_text(errors="replace").splitlines():
        # address rights offset device inode path; devices are written in another way on some file systems
        words = line.split(None, 5)
        yield words[1][1] == "w" and words[1][3] == "s" and int(words[4]) in inodes


def _for_writing(fdinfo: str) -> bool:
    flags = next((line.split()[1] for line in fdinfo.splitlines() if line.startswith("flags:")), "0")
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        try:
            pid = int((_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return pid == ancestor
