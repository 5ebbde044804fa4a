"""`holdfast doctor`: what is wrong with a run, a script or this machine. Changes nothing."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.cli.render import add_json_option, plural, when
from holdfast.cli.result import FAILED, OK, Block, Result
from holdfast.clock import SystemClock
from holdfast.doctor.attempts_told import EndTold, tell_attempts
from holdfast.doctor.checks import RUN_CHECKS, examine
from holdfast.doctor.facts import gather
from holdfast.doctor.finding import Finding
from holdfast.doctor.script_checks import examine_script
from holdfast.errors import SetupError, StoreError
from holdfast.format.manifest import utc_text
from holdfast.stores.journal import read_events
from holdfast.stores.locations import is_bucket
from holdfast.units import format_seconds


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor", help="what is wrong with a set-up, and how to fix it",
        description="Looks at a run (or the folder where one shall be), a training script or a batch script. "
        "Exit code 1 if there is a problem, 0 if there are at most warnings.",
    )  # fmt: skip
    parser.add_argument("targets", nargs="*", default=["."], metavar="RUN|SCRIPT", help="[this folder]")
    parser.add_argument("--quick", action="store_true", help="do not read the checkpoints' bytes")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Result:
    found = {target: _examine(target, options) for target in options.targets}
    ends = {target: _ends(target) for target in options.targets}
    everything = [finding for findings in found.values() for finding in findings]
    code = FAILED if any(finding.severity == "problem" for finding in everything) else OK
    return Result({"findings": found, "attempts": ends}, _text(found, ends), code)


def _examine(target: str, options: argparse.Namespace) -> list[Finding]:
    if is_bucket(target):
        raise SetupError(
            f"doctor looks at folders and scripts, and {target} is a bucket",
            hint="holdfast verify --deep reads what is in a bucket",
        )
    path = Path(target)
    try:
        path.absolute()
    except FileNotFoundError:
        return [
            Finding(
                "working-folder", "problem",
                "the folder in which this runs was deleted: relative paths lead nowhere",
                "cd to a folder that exists",
            )
        ]  # fmt: skip
    if path.is_file():
        try:
            return examine_script(target, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError(f"{target} cannot be read as a script: {error}") from error
    if path.suffix in (".py", ".sh", ".sbatch"):
        raise SetupError(f"there is no script {target}", hint="give a script or the folder of a run")
    return examine(gather(path, SystemClock(), os.environ, deep=not options.quick))


def _ends(target: str) -> list[EndTold]:
    """How the attempts of a run ended; nothing for anything else."""
    try:
        return tell_attempts(read_events(target)) if Path(target).is_dir() else []
    except StoreError:
        return []


def _text(found: dict[str, list[Finding]], ends: dict[str, list[EndTold]]) -> Iterator[Block]:
    for target, findings in found.items():
        problems = sum(finding.severity == "problem" for finding in findings)
        if findings:
            yield f"{target}: {plural(problems, 'problem')}, {plural(len(findings) - problems, 'warning')}"
        else:
            looked = "" if Path(target).is_file() else f" ({len(RUN_CHECKS)} checks)"
            yield f"{target}: nothing wrong{looked}"
        for finding in findings:
            yield f"  {finding.severity}: {finding.what} [{finding.check}]"
            yield f"    fix: {finding.fix}"
        if ends[target]:
            yield "  how its attempts ended:"
        for end in ends[target]:
            cause = end.detail if end.detail.startswith(end.cause) else f"{end.cause}, {end.detail}"
            lost = (
                f"; lost {format_seconds(round(end.lost_seconds))} of work" if end.lost_seconds >= 1 else ""
            )
            change = f"; {end.change}" if end.change else ""
            moment, lasted = when(utc_text(end.ended)), format_seconds(round(end.lasted))
            yield f"    {moment} after {lasted}: {cause}{lost}{change}"
