"""`holdfast rehearse -- python train.py ...`: proves on one's own script that a restart changes nothing."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.cli.render import add_json_option, plural
from holdfast.cli.result import DIFFERENT, OK, Result
from holdfast.doctor.rehearsed import Cause, RehearsalVerdict
from holdfast.doctor.rehearsing import rehearse
from holdfast.errors import SetupError

_END_SECONDS = 40.0  # torchrun gives its ranks 30


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "rehearse", help="prove on your own script that saving and restarting change nothing",
        description="Runs the command for a few dozen steps in scratch folders: twice undisturbed, with "
        "saves, and killed and resumed inside an epoch, at its end and during a save. Compares every step "
        "and names what differs, why, and the line to write. The run's own folder is not touched. Exit code "
        "5 if something differs.",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=30, help="steps to rehearse [%(default)s]")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for each process [%(default)s]")
    parser.add_argument("--scratch", help="where to keep records and checkpoints [a folder that is removed]")
    add_json_option(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what starts training"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Result:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise SetupError("there is nothing to rehearse", hint="holdfast rehearse -- python train.py")
    if options.steps < 6:
        raise SetupError(f"--steps {options.steps} is too few to kill and resume", hint="use 6 or more")
    scratch = Path(options.scratch or tempfile.mkdtemp(prefix="holdfast-rehearsal-"))

    def launch(environment: Mapping[str, str], said: Path) -> int:
        return _launch(command, environment, said, options.timeout)

    def tell(what: str) -> None:
        if not options.json:
            print(f"  {what}", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGTERM, _leave)
    try:
        verdict = rehearse(launch, scratch, steps=options.steps, tell=tell)
    finally:
        signal.signal(signal.SIGTERM, before)
        if options.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)
    return Result(verdict, _lines(verdict), OK if verdict.exact else DIFFERENT)


def _leave(number: int, frame: Any) -> None:
    """As Ctrl-C does: up through everything that has something to end."""
    raise SystemExit(128 + number)


def _launch(command: Sequence[str], environment: Mapping[str, str], said: Path, limit: float) -> int:
    with open(said, "ab") as output:
        try:
            process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=output, stderr=output,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise SetupError(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired as error:
            raise SetupError(
                f"one process took longer than {limit:.0f} s", hint="fewer --steps, or a longer --timeout"
            ) from error
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A launcher that is killed leaves its ranks behind: it is asked, and has time to end them itself."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # What a shell script has started does not end with the shell.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _lines(verdict: RehearsalVerdict) -> list[str]:
    if verdict.exact:
        steps = plural(verdict.steps, "step")
        steps += f" on {verdict.ranks} ranks" if verdict.ranks > 1 else ""
        lines = [f"exact: {steps}, {', '.join(verdict.tried)}: every bit is the same"]
        if verdict.harmless:
            lines.append("  begins anew after a restart, without changing what was computed:")
            lines += [f"    {_told(cause)}" for cause in verdict.harmless]
        return lines
    difference = verdict.difference
    assert difference is not None
    where = f"rank {difference.rank}, " if verdict.ranks > 1 else ""
    lines = [f"different: {difference.when}, {where}step {difference.step}: {', '.join(difference.things)}"]
    for cause in difference.causes:
        lines.append(f"  {_told(cause)}")
        lines.append(f"    write: {cause.fix}")
    return lines


def _told(cause: Cause) -> str:
    where = f", {os.path.basename(cause.file)} line {cause.line}" if cause.file else ""
    return f"{cause.what}{where}"
