"""Whether somebody has a file open for writing, or maps it so: then what is in it may be half done.

Looks at every process of this machine that it may look at, without stopping any: a program that is frozen and
continued sees some of its waits fail. The caller compares the files before and after; what did not change
meanwhile and was open nowhere was complete as far as the program's own closing says.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

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
