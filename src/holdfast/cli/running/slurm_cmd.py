"""`holdfast slurm`: writes a batch script, submits it, and shows the state of its chain of jobs.

`finished` and `hand-over` are what the written script itself calls. Never imports torch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.checkpoints.verify import is_complete
from holdfast.cli.opened_run import open_folder
from holdfast.cli.render import add_json_option
from holdfast.cli.result import FAILED, OK, Result
from holdfast.cli.running.run_history import newest_checkpoint
from holdfast.cli.running.slurm_status import chain_text, read_chain
from holdfast.clock import SystemClock
from holdfast.doctor.script_checks import run_folder_in
from holdfast.errors import SetupError, UsageError
from holdfast.events import Event, HandedOver, RunEnded, RunStarted, SupervisorEnded
from holdfast.jobs.exit_codes import TOO_FEW_NODES
from holdfast.jobs.halt import read_halt
from holdfast.jobs.hand_over import JOBS_WITHOUT_PROGRESS, decide_hand_over, gain_of, job_name
from holdfast.jobs.sbatch import SbatchPlan, default_warning, sbatch_script, time_limit_seconds
from holdfast.jobs.slurm import SlurmJob, cancel_rest, requeue, slurm_job
from holdfast.stores.journal import Journal, read_events
from holdfast.stores.store import CheckpointStore
from holdfast.units import parse_seconds

_ABOUT = """\
holdfast slurm train.py --time 12:00:00 --array 10 [options] [-- arguments of train.py]
                                 write train.sbatch; with --submit also submit it
holdfast slurm status RUN        the jobs of a run so far, and those that wait
holdfast slurm finished RUN      exit code 0 if the work is complete (for scripts)"""
_SUBMIT_SECONDS = 60.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "slurm",
        help="write and submit a batch script that survives time limits; status of its jobs",
        usage=_ABOUT,
    )
    _add_options(parser)
    # The script and everything after it, options included; they are parsed in a second round, up to "--".
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="SCRIPT|status|finished")
    parser.set_defaults(run=run)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--time", help='time limit of one job, such as "12:00:00" or "2-00:00:00"')
    add("--array", type=int, metavar="N", help="a chain of N jobs; without it one job requeues itself")
    add("--run", dest="folder", metavar="DIR", help="the folder that SCRIPT gives to Run [runs/SCRIPT]")
    add(
        "--warning", help='how long before the limit to stop and save, such as "5 min" [a tenth of the limit]'
    )
    add("--name", help="name of the job [the script's]")
    add("--nodes", type=int, default=1)
    add("--gpus-per-node", type=int, default=0)
    add("--processes-per-node", type=int, help="torchrun's workers on each node [GPUs per node, or 1]")
    add("--cpus-per-task", type=int)
    add("--partition")
    add("--account")
    add("--mem", help="memory of a node, as Slurm writes it")
    add("--sbatch", action="append", default=[], metavar="OPTION", help='more, such as "--constraint=a100"')
    add("--setup", action="append", default=[], metavar="LINE", help='shell line, such as "module load cuda"')
    add("--output", "-o", help="where to write the script [SCRIPT.sbatch]")
    add("--submit", action="store_true", help="submit it with sbatch")
    add("--chain", action="store_true", help=argparse.SUPPRESS)
    add("--requeue", action="store_true", help=argparse.SUPPRESS)
    add("--code", type=int, default=0, help=argparse.SUPPRESS)
    add("--no-progress", type=int, default=JOBS_WITHOUT_PROGRESS, metavar="N", help=argparse.SUPPRESS)
    add_json_option(parser)


def run(options: argparse.Namespace) -> Result:
    own, script_arguments = _split(options.rest)
    if not own:
        raise UsageError("there is no script", hint="holdfast slurm train.py --time 12:00:00 --array 10")
    target = own[0]
    verb = {"status": _status, "finished": _finished, "hand-over": _hand_over}.get(target)
    parser = argparse.ArgumentParser(prog=f"holdfast slurm {target}", usage=_ABOUT)
    _add_options(parser)
    if verb is not None:
        parser.add_argument("folder", metavar="RUN")
    # Options in front of the script were read in the first round; these are added to them.
    parsed = parser.parse_args(own[1:], argparse.Namespace(**vars(options), target=target))
    # Read in the second round, and wanted by whoever prints.
    options.json = parsed.json
    return verb(parsed) if verb is not None else _write(parsed, script_arguments)


def _split(rest: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in rest:
        return rest, []
    cut = rest.index("--")
    return rest[:cut], rest[cut + 1 :]


# ---- writing the script


def _write(options: argparse.Namespace, script_arguments: list[str]) -> Result:
    if not options.time:
        raise UsageError("a job needs a time limit", hint='give --time, such as "12:00:00"')
    script = Path(options.target)
    if not script.is_file():
        raise SetupError(
            f"there is no script {options.target}", hint="or did you mean: holdfast slurm status RUN"
        )
    folder = _run_folder(script, options.folder)
    limit = time_limit_seconds(options.time)
    warning = round(parse_seconds(options.warning)) if options.warning else default_warning(limit)
    plan = SbatchPlan(
        script=str(script),
        arguments=tuple(script_arguments),
        run=folder,
        time=options.time,
        warning_seconds=warning,
        array=options.array,
        name=options.name or script.stem,
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        processes_per_node=options.processes_per_node or max(options.gpus_per_node, 1),
        cpus_per_task=options.cpus_per_task,
        partition=options.partition,
        account=options.account,
        memory=options.mem,
        extra=tuple(options.sbatch),
        setup=tuple(options.setup),
        python_folder=str(Path(sys.executable).parent),
    )
    target = Path(options.output or script.with_suffix(".sbatch"))
    target.write_text(sbatch_script(plan))
    # Slurm does not make the folder of --output; without it the job would vanish without a word.
    (Path(plan.run) / "slurm").mkdir(parents=True, exist_ok=True)
    job = _submit(target) if options.submit else None
    line = f"wrote {target}; submit it with: sbatch {target}"
    if job is not None:
        line = f"submitted job {job} ({target}); watch it with: holdfast slurm status {plan.run}"
    return Result({"script": str(target), "run": plan.run, "job": job}, [line])


def _run_folder(script: Path, given: str | None) -> str:
    """The folder that the script itself gives to Run, if it can be read there; else the user's word."""
    try:
        said = run_folder_in(script.read_text(encoding="utf-8")) if script.suffix == ".py" else None
    except (OSError, UnicodeDecodeError):
        said = None
    if said is None:
        return given or f"runs/{script.stem}"
    if given is not None and os.path.realpath(given) != os.path.realpath(said):
        raise SetupError(
            f"{script} saves into {said!r}, and --run says {given!r}: nobody would see its checkpoints",
            hint="leave --run out, or give the same folder in both places",
        )
    return given or said


def _submit(script: Path) -> str:
    if shutil.which("sbatch") is None:
        raise SetupError(f"sbatch is not on PATH; {script} was written", hint="submit it from a login node")
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(script)],
            capture_output=True, text=True, timeout=_SUBMIT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise SetupError(
            f"sbatch gave no answer within {_SUBMIT_SECONDS:.0f} s",
            hint="look with squeue whether the job is there before submitting again",
        ) from error
    if done.returncode != 0:
        raise SetupError(f"sbatch refused {script}: {done.stderr.strip()[:300]}")
    return done.stdout.strip().partition(";")[0]


# ---- what the script calls


def _finished(options: argparse.Namespace) -> Result:
    done = Path(options.folder).is_dir() and is_complete(CheckpointStore(options.folder))
    text = [f"the work of {options.folder} is complete; nothing to do"] if done else []
    return Result({"run": options.folder, "complete": done}, text, OK if done else FAILED)


def _stopped_in_time(events: Sequence[Event]) -> bool:
    """Whether another job can go on from here: the journal knows, also where srun or torchrun ends with
    another code. Srun's is that of a lost node's keeper, even if all others finished."""
    ends = [event for event in events if isinstance(event, (RunStarted, RunEnded, SupervisorEnded))]
    runs = [event for event in ends if not isinstance(event, SupervisorEnded)]
    if runs and isinstance(runs[-1], RunEnded) and runs[-1].how == "stopped":
        return True
    # Too few nodes were left. Too few that ever came are no reason to try again and again: nothing ran then.
    return (
        len(ends) > 1
        and isinstance(ends[-1], SupervisorEnded)
        and ends[-1].exit_code == TOO_FEW_NODES
        and not isinstance(ends[-2], SupervisorEnded)
    )


def _hand_over(options: argparse.Namespace) -> Result:
    clock = SystemClock()
    job = slurm_job(os.environ, clock)
    there = Path(options.folder).is_dir()
    events = read_events(options.folder) if there else []
    newest = newest_checkpoint(options.folder) if there else None
    gain = gain_of(events, newest, job, options.no_progress)
    decision = decide_hand_over(
        options.code,
        complete=bool(events) and is_complete(CheckpointStore(options.folder)),
        stopped=_stopped_in_time(events),
        mode="requeue" if options.requeue else "chain",
        job=job,
        seconds_left=job.deadline.at - clock.wall() if job and job.deadline else None,
        warning_seconds=parse_seconds(options.warning) if options.warning else 0.0,
        halted=_halted(options.folder),
        gain=gain,
    )
    print(f"holdfast: {decision.why}", flush=True)
    # Also where the training never got so far as to make it: jobs that bring nothing are counted there.
    os.makedirs(options.folder, exist_ok=True)
    Journal(options.folder).append(
        HandedOver(
            time=clock.wall(), job=job_name(job), checkpoint=newest, barren=bool(gain.barren),
            exit_code=decision.code, why=decision.why,
        )
    )  # fmt: skip
    if decision.cancel_rest and job is not None:
        _cancel_rest(job)
    if decision.requeue and job is not None:
        requeue(job)
    return Result(code=decision.code)


def _cancel_rest(job: SlurmJob) -> None:
    try:
        cancel_rest(job)
    except SetupError as error:
        # The other tasks then find out for themselves.
        print(f"holdfast: the tasks that wait could not be cancelled: {error.message}", flush=True)


def _halted(folder: str) -> str | None:
    try:
        note = read_halt(folder)
    except OSError:
        return None
    return None if note is None else str(note)


# ---- status


def _status(options: argparse.Namespace) -> Result:
    chain = read_chain(open_folder(options.folder, "the journal of a chain"))
    return Result(chain, chain_text(chain))
