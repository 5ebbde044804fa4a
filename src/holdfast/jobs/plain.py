"""Jobs without a module of their own: a shell, a supervisor, or PBS, LSF and SGE, known by a variable."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from holdfast.clock import Clock
from holdfast.jobs.environment import WallDeadline

# ---- When PBS, LSF or SGE will end this job: no variable says it, so their own command is asked, once.
#
# Only asks. A command that is missing, slow or speaks another dialect means that the deadline is not
# known, never an error: the user can still give it.

ASK_SECONDS = 10.0
_HMS = r"((?:\d+:)?\d+:\d{2})"


def pbs_deadline(environ: Mapping[str, str], clock: Clock) -> WallDeadline | None:
    """`qstat -f`: the time limit, counted from the start of the job."""
    text = _ask(["qstat", "-f", environ.get("PBS_JOBID", "")], environ)
    limit = re.search(rf"Resource_List\.walltime = {_HMS}", text)
    if limit is None:
        return None
    start = re.search(r"^\s*(?:stime|start_time) = (.+)$", text, re.MULTILINE)
    began = _c_time(start[1]) if start is not None else None
    return _from_start(began if began is not None else _session_began(), _seconds(limit[1]), "qstat")


def lsf_deadline(environ: Mapping[str, str], clock: Clock) -> WallDeadline | None:
    """`bjobs -o time_left`: "1:30 L" for a run limit, in whole minutes."""
    job, index = environ.get("LSB_JOBID", ""), environ.get("LSB_JOBINDEX", "0")
    # All elements of an array have one job number, and asking for that shows every one of them.
    which = f"{job}[{index}]" if job and index != "0" else job
    text = _ask(["bjobs", "-noheader", "-o", "time_left", which], environ)
    left = re.match(r"\s*(\d+):(\d{2})\s+L", text)
    if left is None:
        return None
    # Rounded to the minute in a way that is not documented: be early rather than late.
    seconds = max(int(left[1]) * 3600 + int(left[2]) * 60 - 60, 0)
    return WallDeadline(clock.wall() + seconds, "bjobs")


def sge_deadline(environ: Mapping[str, str], clock: Clock) -> WallDeadline | None:
    """`qstat -j`: h_rt among the requested resources; counted from the start of the job's shell."""
    text = _ask(["qstat", "-j", environ.get("JOB_ID", "")], environ)
    limit = re.search(rf"\bh_rt=(?:{_HMS}|(\d+))", text)
    if limit is None:
        return None
    seconds = _seconds(limit[1]) if limit[1] else float(limit[2])
    return _from_start(_session_began(), seconds, "qstat")


def _ask(command: list[str], environ: Mapping[str, str]) -> str:
    if not command[-1]:
        return ""
    try:
        # A locale of our own: dates in the answer are read below.
        done = subprocess.run(
            command, env={**environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=ASK_SECONDS, check=False, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _from_start(began: float | None, limit: float, source: str) -> WallDeadline | None:
    return None if began is None else WallDeadline(began + limit, source)


def _seconds(hours_minutes_seconds: str) -> float:
    total = 0
    for part in hours_minutes_seconds.split(":"):
        total = total * 60 + int(part)
    return float(total)


def _c_time(text: str) -> float | None:
    try:
        return datetime.strptime(text.strip(), "%a %b %d %H:%M:%S %Y").timestamp()
    except ValueError:
        return None


def _session_began() -> float | None:
    """When the shell that runs the job script was started: the job's start, but for its prologue.

    In a container with its own process ids the shell cannot be seen (its id reads as 0): the oldest
    process of the session among our parents is the nearest that can.
    """
    oldest = None
    try:
        booted = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text().splitlines()
            if line.startswith("btime")
        )
        process, session = os.getpid(), os.getsid(0)
        while process:
            stat = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(stat[3]) != session:
                break
            oldest = booted + int(stat[19]) / os.sysconf("SC_CLK_TCK")
            process = int(stat[1])
    except (OSError, ValueError, IndexError, StopIteration):
        pass  # without /proc there is no answer; a parent that just ended leaves the one before it
    return oldest


# Set by `holdfast run` for its child: 0, 1, 2, ...
ATTEMPT = "HOLDFAST_ATTEMPT"
# kind, and the variable that tells it.
_SCHEDULERS = (("pbs", "PBS_JOBID"), ("lsf", "LSB_JOBID"), ("sge", "SGE_TASK_ID"))


@dataclass(frozen=True)
class PlainJob:
    """Satisfies JobEnvironment."""

    kind: str = "plain"
    job_id: str | None = None
    attempt: int = 0
    deadline: WallDeadline | None = None
    requeue_command: tuple[str, ...] | None = None


def plain_job(environ: Mapping[str, str]) -> PlainJob:
    return PlainJob(attempt=_number(environ.get(ATTEMPT)))


def batch_job(environ: Mapping[str, str], clock: Clock) -> PlainJob | None:
    """A job of PBS, LSF or SGE."""
    for kind, variable in _SCHEDULERS:
        if environ.get(variable):
            return PlainJob(
                kind=kind,
                job_id=environ.get("JOB_ID") if kind == "sge" else environ[variable],
                attempt=_number(environ.get(ATTEMPT)),
                deadline=_DEADLINE_OF[kind](environ, clock),
            )
    return None


_DEADLINE_OF = {"pbs": pbs_deadline, "lsf": lsf_deadline, "sge": sge_deadline}


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
