"""Reads a batch script, without running it, for mistakes that cost work later. Pure.

Slurm's in full; of PBS, LSF and SGE what applies there. Only what is certain from the text is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.doctor.finding import Finding
from holdfast.errors import SetupError
from holdfast.jobs.sbatch import time_limit_seconds

_DIRECTIVES = {
    "slurm": re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE),
    "pbs": re.compile(r"^#PBS\s+(.*)$", re.MULTILINE),
    "lsf": re.compile(r"^#BSUB\s+(.*)$", re.MULTILINE),
    "sge": re.compile(r"^#\$\s+(.*)$", re.MULTILINE),
}
_FIX = "holdfast slurm writes a script with all of this"
# Below this nothing but the smallest state is written; Slurm itself looks only twice a minute.
SHORTEST_WARNING = 10
# Another value in every job, or gone with it.
_CHANGES = re.compile(
    r"\$\{?(SLURM_JOB_?ID|PBS_JOBID|LSB_JOBID|JOB_ID|RANDOM|SECONDS)\b|\$\$|\$\(date|`date|\$\(mktemp|`mktemp"
)
_VOLATILE = re.compile(r"\$\{?(SLURM_TMPDIR|TMPDIR|PBS_JOBDIR)\b|(?:^|[\s=\"'])(?:/tmp|/dev/shm|/var/tmp)/")
_RUN_PATH = re.compile(r"(?:--run[= ]|^\s*(?:export\s+)?run=|hand-over )([^\s;&|]+|\"[^\"]*\")", re.MULTILINE)
_WORK = re.compile(
    r"(?:^|[;&|]\s*|\btime\s+)(?:exec\s+)?(?:python[\d.]*|torchrun|holdfast\s+(?:run|app)|accelerate|deepspeed)\s"
)
_ERREXIT = re.compile(r"^\s*set\s+(?:-\w*e|-o\s+errexit)|^#!.*\s-\w*e", re.MULTILINE)


@dataclass(frozen=True)
class Batch:
    name: str
    scheduler: str
    options: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The shell's lines, continued ones put together, without comments."""
        joined = re.sub(r"\\\n\s*", " ", self.text)
        return [
            line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")
        ]

    def has(self, *options: str) -> bool:
        return any(
            re.search(rf"(?:^|\s){re.escape(option)}(?:[=\s\[]|$)", self.options) for option in options
        )


def read_batch(name: str, text: str) -> Batch | None:
    """None if no scheduler is spoken to."""
    for scheduler, pattern in _DIRECTIVES.items():
        if options := " ".join(re.sub(r"\s#.*$", "", line) for line in pattern.findall(text)):
            return Batch(name, scheduler, options, text)
    return None


def examine_batch(name: str, text: str) -> Iterator[Finding]:
    batch = read_batch(name, text)
    if batch is None:
        return
    yield from _path(batch)
    yield from _array(batch)
    yield from _continues(batch)
    if batch.scheduler == "slurm":
        yield from _warning(batch)
        yield from _requeue(batch)
        yield from _steps(batch)


def _path(batch: Batch) -> Iterator[Finding]:
    for found in _RUN_PATH.finditer(batch.text):
        path = found[1]
        if _CHANGES.search(path):
            yield Finding(
                "script-run-path", "problem",
                f"{batch.name}: the run's path {path} is another one in every job, so that each starts anew",
                "give the run one name that stays",
            )  # fmt: skip
            return
        if _VOLATILE.search(f" {path.strip(chr(34))}"):
            yield Finding(
                "script-location", "problem",
                f"{batch.name}: {path} is cleared when the job ends, or at a reboot",
                "use a folder that lasts",
            )  # fmt: skip
            return


def _array(batch: Batch) -> Iterator[Finding]:
    one_at_a_time = {
        "slurm": (r"(?:--array|-a)[=\s]*\S+", r"%1(?!\d)", "#SBATCH --array=1-10%1"),
        "pbs": (r"-[Jt]\s*\d+-\d+", r"%1(?!\d)|max_run_subjobs=1", "#PBS -J 1-10%1"),
        "lsf": (r"-J\s*\S+\[", r"\]%1(?!\d)", '#BSUB -J "train[1-10]%1"'),
        "sge": (r"-t\s+\d+-\d+", r"-tc\s+1(?!\d)", "#$ -tc 1"),
    }
    is_array, is_chain, fix = one_at_a_time[batch.scheduler]
    if re.search(is_array, batch.options) and not re.search(is_chain, batch.options):
        # Tasks that each have a run of their own are a sweep.
        if re.search(r"ARRAY_TASK_ID|PBS_ARRAY_INDEX|LSB_JOBINDEX|SGE_TASK_ID", batch.text):
            return
        yield Finding(
            "script-array", "problem",
            f"{batch.name} is an array whose tasks run at the same time: they would write the same run", fix,
        )  # fmt: skip


def _continues(batch: Batch) -> Iterator[Finding]:
    ways = {
        "slurm": r"--requeue|--array|(?:^|\s)-a[\s=]",
        "pbs": r"-r\s*y|-[Jt]\s*\d",
        "lsf": r"(?:^|\s)-r(?:\s|$)|-Q\s|-J\s*\S+\[",
        "sge": r"-r\s+y|-t\s+\d",
    }
    resubmits = re.search(r"^\s*(?:sbatch|qsub|bsub|scontrol requeue)\b", batch.text, re.MULTILINE)
    if not re.search(ways[batch.scheduler], batch.options) and not resubmits:
        fix = {"slurm": f"--requeue; {_FIX}", "pbs": "#PBS -r y", "lsf": "#BSUB -r", "sge": "#$ -r y"}
        yield Finding(
            "script-continues", "problem",
            f"{batch.name} neither is run again nor is an array: after the limit nobody continues",
            fix[batch.scheduler],
        )  # fmt: skip


# ---- Slurm


def _warning(batch: Batch) -> Iterator[Finding]:
    found = re.search(r"--signal[=\s]+([A-Z]*:)?(?:SIG)?\w+(?:@(\d+))?", batch.options)
    if found is None:
        if "--time-limit" not in batch.text:
            yield Finding(
                "script-signal", "problem",
                f"{batch.name} has a time limit and no --signal: Slurm gives no warning before the end",
                f"#SBATCH --signal=USR1@300; {_FIX}",
            )  # fmt: skip
        return
    seconds = int(found[2] or 60)
    limit = _limit(batch)
    if limit is not None and seconds >= limit:
        yield Finding(
            "script-warning", "problem",
            f"{batch.name}: a warning {seconds} s before the end of a job of {limit} s comes at its start",
            f"#SBATCH --signal=USR1@{max(limit // 10, SHORTEST_WARNING)}",
        )  # fmt: skip
    elif seconds < SHORTEST_WARNING:
        yield Finding(
            "script-warning", "problem",
            f"{batch.name}: {seconds} s before the end are too few to save anything",
            "#SBATCH --signal=USR1@300",
        )  # fmt: skip
    to_the_shell = found[1] is not None and "B" in found[1]
    if to_the_shell and "trap" not in batch.text and "exec " not in batch.text:
        yield Finding(
            "script-trap", "problem",
            f"{batch.name} sends the warning to the batch shell alone (B:), which does not pass it on",
            "leave B: out and start the training with srun, or add a trap",
        )  # fmt: skip


def _requeue(batch: Batch) -> Iterator[Finding]:
    requeues = batch.has("--requeue")
    if requeues and not re.search(r"--open-mode[=\s]+append", batch.options):
        yield Finding(
            "script-log", "warning",
            f"{batch.name} is requeued with --open-mode=truncate: the log begins anew",
            "#SBATCH --open-mode=append",
        )  # fmt: skip
    hands_over = re.search(r"hand-over|scontrol\s+requeue", batch.text)
    if requeues and not batch.has("--array", "-a") and not hands_over:
        yield Finding(
            "script-hand-over", "problem",
            f"{batch.name}: --requeue is for lost nodes and preemption; at the time limit nobody requeues it",
            "holdfast slurm hand-over RUN --requeue --code $? as the last line",
        )  # fmt: skip
    errexit = _ERREXIT.search(batch.text)
    guarded = re.search(r"\|\|\s*(?:\w+=\$\?|true|:)|set \+e", batch.text)
    if errexit and hands_over and not guarded:
        yield Finding(
            "script-set-e", "problem",
            f"{batch.name}: with set -e the shell ends when the training stops with 75, before the hand-over",
            "leave set -e out, or write: srun ... && code=0 || code=$?",
        )  # fmt: skip


def _steps(batch: Batch) -> Iterator[Finding]:
    to_the_shell = re.search(r"--signal[=\s]+\w*B\w*:", batch.options)
    if to_the_shell:
        return
    for line in batch.commands:
        if _WORK.search(line) and "srun" not in line and "mpirun" not in line:
            yield Finding(
                "script-srun", "problem",
                f"{batch.name}: {line.split()[0]} runs in the batch shell; Slurm sends its signals to steps",
                f"srun {line[:60]}",
            )  # fmt: skip
            return


def _limit(batch: Batch) -> int | None:
    found = re.search(r"(?:--time|(?:^|\s)-t)[=\s]+([\d:-]+)", batch.options)
    if found is None:
        return None
    try:
        return time_limit_seconds(found[1])
    except SetupError:
        return None
