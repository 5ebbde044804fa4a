"""Who a process is, and whether it is still alive, told apart from a later process with the same number."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Owner:
    """A process, named so that no other can be mistaken for it."""

    host: str
    pid: int
    boot_id: str
    pid_namespace: str
    start_ticks: int
    job: str
    started: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(raw: Any) -> Owner | None:
        """None for anything that is not a whole owner."""
        if not isinstance(raw, dict) or set(raw) != {f.name for f in fields(Owner)}:
            return None
        if type(raw["pid"]) is not int or type(raw["start_ticks"]) is not int:
            return None
        texts = [raw[name] for name in ("host", "boot_id", "pid_namespace", "job", "started")]
        # They end up in messages on a terminal, and anybody may have written them.
        if not all(isinstance(text, str) and len(text) <= 256 and text.isprintable() for text in texts):
            return None
        return Owner(**raw)

    def __str__(self) -> str:
        job = f", job {self.job}" if self.job else ""
        return f"pid {self.pid} on {self.host}{job}, started {self.started}"


def this_process(started: str) -> Owner:
    return Owner(
        host=socket.gethostname(),
        pid=os.getpid(),
        boot_id=_read("/proc/sys/kernel/random/boot_id"),
        pid_namespace=_link("/proc/self/ns/pid"),
        start_ticks=_start_ticks(os.getpid()),
        job=_job(os.environ),
        started=started,
    )


def _job(environ: Mapping[str, str]) -> str:
    """As the scheduler's own commands write it: "1234", or "1234_5" for a task of an array."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID", "")


def launch_of(environ: Mapping[str, str]) -> str | None:
    """What started this process and will start its successors: an elastic job, by its id or, where it was
    given none, by the process of its launcher. None where there is no such thing."""
    job = environ.get("TORCHELASTIC_RUN_ID")
    if job is None:
        return None
    if job not in ("", "none"):
        return f"elastic job {job[:128]}"
    launcher = os.getppid()
    boot = _read("/proc/sys/kernel/random/boot_id")
    return f"launcher {boot} {_link('/proc/self/ns/pid')} {launcher} {_start_ticks(launcher)}"


def is_same(one: Owner, other: Owner) -> bool:
    """Whether both are one process, whenever each was noted."""
    return _identity(one) == _identity(other)


def _identity(owner: Owner) -> tuple[object, ...]:
    return owner.host, owner.boot_id, owner.pid_namespace, owner.pid, owner.start_ticks


def is_alive(owner: Owner, me: Owner) -> bool | None:
    """True or False where this process can know, None where it cannot (another machine or container)."""
    # Another boot id is another boot or another machine of the same name; only the first would prove death.
    if not owner.boot_id or (owner.boot_id, owner.pid_namespace) != (me.boot_id, me.pid_namespace):
        return None
    return _start_ticks(owner.pid) == owner.start_ticks != -1


def _start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; -1 if there is none."""
    text = _read(f"/proc/{pid}/stat")
    # The command name stands in parentheses and may hold anything, spaces and parentheses included.
    after_name = text.rpartition(")")[2].split()
    # A zombie has died; only its parent has not looked yet.
    return int(after_name[19]) if len(after_name) > 19 and after_name[0] not in "ZX" else -1


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
