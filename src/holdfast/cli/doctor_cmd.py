"""`holdfast doctor`: what is wrong with a run, a script or this machine. Changes nothing."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from holdfast.cli.exit_codes import FAILED, OK
from holdfast.cli.json_output import add_json_option, print_json
from holdfast.cli.terminal import clean, plural, when
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


def run(options: argparse.Namespace) -> int:
    found: dict[str, list[Finding]] = {target: _examine(target, options) for target in options.targets}
    everything = [finding for findings in found.values() for finding in findings]
    if options.json:
        print_json({"findings": found, "attempts": {target: _ends(target) for target in options.targets}})
    else:
        for target, findings in found.items():
            _print(target, findings)
            _print_ends(_ends(target))
    return FAILED if any(finding.severity == "problem" for finding in everything) else OK


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


def _print_ends(ends: list[EndTold]) -> None:
    if ends:
        print("  how its attempts ended:")
    for end in ends:
        cause = end.detail if end.detail.startswith(end.cause) else f"{end.cause}, {end.detail}"
        lost = f"; lost {format_seconds(round(end.lost_seconds))} of work" if end.lost_seconds >= 1 else ""
        change = f"; {end.change}" if end.change else ""
        moment = when(utc_text(end.ended))
        print(f"    {moment} after {format_seconds(round(end.lasted))}: {clean(cause)}{lost}{change}")


def _print(target: str, findings: list[Finding]) -> None:
    if not findings:
        looked = "" if Path(target).is_file() else f" ({len(RUN_CHECKS)} checks)"
        print(f"{clean(target)}: nothing wrong{looked}")
        return
    problems = sum(finding.severity == "problem" for finding in findings)
    warnings = len(findings) - problems
    print(f"{clean(target)}: {plural(problems, 'problem')}, {plural(warnings, 'warning')}")
    for finding in findings:
        print(f"  {finding.severity}: {clean(finding.what)} [{finding.check}]")
        print(f"    fix: {clean(finding.fix)}")
