"""`holdfast halt`: end a run with a checkpoint, and keep it from starting again until the note is cleared."""

from __future__ import annotations

import argparse
import getpass
import os
from typing import Any

from holdfast.cli.opened_run import add_run_argument, open_folder
from holdfast.cli.render import add_json_option
from holdfast.cli.result import Result
from holdfast.clock import SystemClock
from holdfast.jobs.halt import MAX_REASON, HaltNote, clear_halt, write_halt
from holdfast.stores.os_errors import store_errors


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "halt",
        help="end a run with a checkpoint, and keep it from starting again",
        description="Leaves a note in the run's folder. A training that runs sees it within about 5 s, saves "
        "at the next step boundary, on all ranks alike, and ends with exit code 78, which no supervisor "
        "restarts. One that starts later ends at once. --clear takes the note away.",
    )
    add_run_argument(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--reason", default="", metavar="TEXT", help="for whoever wonders why it ended")
    what.add_argument("--clear", action="store_true", help="let the run start again")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Result:
    folder = open_folder(options.run_folder, "the note that halts a run").where
    if options.clear:
        with store_errors("clear the halt", folder):
            was_halted = clear_halt(folder)
        said = {"run": folder, "halted": False, "was_halted": was_halted}
        return Result(said, [f"{folder} may run again" if was_halted else f"{folder} was not halted"])
    note = HaltNote(options.reason[:MAX_REASON], _who(), SystemClock().wall())
    with store_errors("halt the run", folder):
        write_halt(folder, note)
    then = "a training that runs saves and ends within some seconds; none starts before --clear"
    said = {"run": folder, "halted": True, "reason": note.reason, "by": note.by}
    return Result(said, [f"{folder} is {note}", then])


def _who() -> str:
    try:
        return f"{getpass.getuser()}@{os.uname().nodename}"
    except (KeyError, OSError):
        return os.uname().nodename
