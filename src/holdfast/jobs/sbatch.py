"""The text of a batch script for Slurm, as a person would have written it. Pure: submits and reads nothing.

Every line that is not obvious says in the script why it is there; the user is meant to read and edit it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from holdfast.errors import UsageError
from holdfast.jobs.torchrun import OWN_STORE

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_DIRECTIVE_VALUE = re.compile(r"[^\s\"'`$\\#]+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class SbatchPlan:
    """What the script shall ask for. `array` is how many time limits in a row; None means requeue."""

    script: str
    arguments: tuple[str, ...] = ()
    run: str
    time: str
    warning_seconds: int
    array: int | None = None
    name: str = "train"
    nodes: int = 1
    gpus_per_node: int = 0
    processes_per_node: int = 1
    cpus_per_task: int | None = None
    partition: str | None = None
    account: str | None = None
    memory: str | None = None
    extra: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    python_folder: str = ""
    port: int = 29400

    def __post_init__(self) -> None:
        limit = time_limit_seconds(self.time)
        if self.array is not None and self.array < 1:
            raise UsageError(f"--array {self.array}", hint="give the number of time limits, 1 or more")
        if self.nodes < 1 or self.processes_per_node < 1:
            raise UsageError(
                "a job needs at least one node and one process on it",
                hint="give --nodes and --processes-per-node from 1 up",
            )
        if not 0 < self.warning_seconds < limit:
            raise UsageError(
                f"a warning {self.warning_seconds} s before the end does not fit a limit of {limit} s",
                hint="give a shorter --warning or a longer --time",
            )
        for value in (self.name, self.run, self.partition, self.account, self.memory, *self.extra):
            # Slurm expands nothing in these lines and cuts them at white space.
            if value is not None and _DIRECTIVE_VALUE.fullmatch(value) is None:
                raise UsageError(
                    f"{value!r} cannot stand in an #SBATCH line",
                    hint="use no spaces, quotes, $ or # in names and paths",
                )

    @property
    def is_distributed(self) -> bool:
        return self.nodes > 1 or self.processes_per_node > 1


def time_limit_seconds(text: str) -> int:
    """Slurm's ways to write a limit: "30" (minutes), "30:00", "12:00:00", "2-12", "2-12:30", "2-12:30:00"."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise UsageError(
            f"cannot read {text!r} as a time limit", hint='write it as "12:00:00" or "2-00:00:00"'
        )
    days, first, second, third = match.groups()
    if days is not None:
        return int(days) * 86400 + int(first) * 3600 + int(second or 0) * 60 + int(third or 0)
    if third is not None:
        return int(first) * 3600 + int(second) * 60 + int(third)
    return int(first) * 60 + int(second or 0)


def default_warning(limit_seconds: int) -> int:
    """How long before the limit to ask for the last save: a tenth of it, from half a minute to ten minutes.

    Slurm sends the warning up to a minute early, and what is unused goes to the next job.
    """
    return max(min(limit_seconds // 10, 600), min(30, limit_seconds // 2), 1)


def sbatch_script(plan: SbatchPlan) -> str:
    """The whole file."""
    parts = [_head(plan), _preparation(plan), _work(plan), _ending(plan)]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _head(plan: SbatchPlan) -> list[str]:
    log = "%x-%A_%a.log" if plan.array else "%x-%j.log"
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={plan.name}",
        f"#SBATCH --time={plan.time}",
        f"#SBATCH --nodes={plan.nodes}",
        "#SBATCH --ntasks-per-node=1",
    ]
    if plan.array:
        lines += [f"# {plan.array} time limits, one after the other", f"#SBATCH --array=1-{plan.array}%1"]
    lines += [
        "# tell the training before the limit, so that it can save; no B: because the steps shall hear it",
        f"#SBATCH --signal=USR1@{plan.warning_seconds}",
        "# run again after preemption and node failure, and continue the same log",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={plan.run}/slurm/{log}",
    ]
    options = {
        "gpus-per-node": plan.gpus_per_node or None,
        "cpus-per-task": plan.cpus_per_task,
        "partition": plan.partition,
        "account": plan.account,
        "mem": plan.memory,
    }
    lines += [f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None]
    return lines + [f"#SBATCH {option}" for option in plan.extra]


def _preparation(plan: SbatchPlan) -> list[str]:
    lines = [f"run={shlex.quote(plan.run)}"]
    if plan.python_folder:
        lines += [f"export PATH={shlex.quote(plan.python_folder)}:$PATH"]
    lines += plan.setup
    if plan.array:
        lines += [
            "",
            "# When the work is complete, the tasks that are left end here, at once and successfully.",
            'holdfast slurm finished "$run" && exit 0',
        ]
    return lines


def _work(plan: SbatchPlan) -> list[str]:
    program = shlex.join([plan.script, *plan.arguments])
    if not plan.is_distributed:
        runner = {".py": "python ", ".sh": "bash "}.get(plan.script[-3:], "")
        # The shell looks for a bare name on PATH and not here.
        here = "" if runner or "/" in plan.script else "./"
        return [
            "# Lets a training that knows its end use its time until then, and not only until the warning.",
            f"export HOLDFAST_WARNING={plan.warning_seconds}",
            "# Under srun, because Slurm sends its signals to steps and not to this shell.",
            f'srun holdfast run --run "$run" -- {runner}{here}{program}',
            "code=$?",
        ]
    return [
        "head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)",
        "# Or workers that torchrun restarts would look for their dead predecessors.",
        f"export {OWN_STORE}=1",
        "# One torchrun on each node, restarting crashed workers itself. It must pass USR1 on, or the",
        "# warning would kill it, and it must not kill its workers while they write the last checkpoint.",
        "srun --kill-on-bad-exit=1 torchrun --max-restarts=3 \\",
        f'    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node={plan.processes_per_node} \\',
        f'    --rdzv-backend=c10d --rdzv-endpoint="$head:{plan.port}" \\',
        '    --rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \\',
        "    --signals-to-handle=SIGTERM,SIGINT,SIGUSR1 \\",
        f"    --shutdown-timeout={plan.warning_seconds} \\",
        # Without "--" it would take the script's options for its own, also shortened ones.
        f"    -- {program}",
        "code=$?",
    ]  # fmt: skip


def _ending(plan: SbatchPlan) -> list[str]:
    way = "the next task continues" if plan.array else "it goes back into the queue (scontrol requeue)"
    flag = "--chain" if plan.array else "--requeue"
    return [
        f"# Complete: done. Stopped in time: {way}. Anything else is a failure.",
        f'exec holdfast slurm hand-over "$run" {flag} --warning={plan.warning_seconds} --code "$code"',
    ]
