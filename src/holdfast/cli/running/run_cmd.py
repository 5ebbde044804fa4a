"""`holdfast run -- command`: keeps a command running until its work is done, whatever kills it."""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path
from typing import Any

from holdfast.cli.render import add_json_option
from holdfast.cli.result import Result
from holdfast.cli.running.rescue import rescue
from holdfast.cli.running.run_history import History, RunView, leaving, newest_checkpoint, output_opener
from holdfast.cli.running.run_nodes import add_node_options, run_nodes, wants_nodes
from holdfast.clock import SystemClock
from holdfast.errors import UsageError
from holdfast.jobs.attempts import RestartRules
from holdfast.jobs.deadline import VARIABLE, earliest, parse_deadline, parse_time_limit
from holdfast.jobs.environment import WallDeadline, detect
from holdfast.jobs.limit_warning import HAND_OVER_SECONDS, warning_seconds
from holdfast.jobs.spot_machine import spot_poller
from holdfast.jobs.supervisor import Supervisor, SupervisorSettings
from holdfast.jobs.watchdog import HangLimits
from holdfast.programs.dmtcp import dmtcp_command
from holdfast.units import parse_seconds

EXIT_CODES = """\
exit codes:
  0   the work is complete
  75  stopped with a checkpoint (signal, time limit, spot notice): run the same command again
  78  the command said that running again cannot help
  91  too few nodes are left; the newest checkpoint they had is in the run's folder
  92  the budget of restarts is used up
  93  restarts made no new checkpoint
  94  the other nodes took this one for lost and go on without it
  126, 127  the command cannot be executed, or does not exist
  130 interrupted by Ctrl-C, with a checkpoint
"""


def add_parser(verbs: Any) -> None:
    parser: argparse.ArgumentParser = verbs.add_parser(
        "run",
        help="keep a command running until its work is done",
        usage="holdfast run [options] -- command ...",
        description="Starts the command and starts it again after a crash, a kill or a hang, for as long as "
        "that brings new checkpoints. A training that uses holdfast continues where it stopped; its "
        "heartbeat tells the supervisor the folder of the run, so that nothing has to be configured.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    rules = RestartRules()
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument(
        "--run", dest="folder", metavar="DIR", help="the run's folder, if no heartbeat says it"
    )
    parser.add_argument(
        "--restarts", type=int, default=rules.restarts, metavar="N", help="budget (default %(default)s)"
    )
    parser.add_argument(
        "--no-progress", type=int, default=rules.no_progress, metavar="N",
        help="give up after N attempts in a row without a new checkpoint (default %(default)s; 0: never)",
    )  # fmt: skip
    parser.add_argument(
        "--pause", default=str(rules.first_pause), metavar="TIME",
        help="before the first restart; doubles while nothing gets on, up to 5 min (default %(default)s s)",
    )  # fmt: skip
    parser.add_argument(
        "--hang-timeout", default="auto", metavar="TIME",
        help="silence that means a hang: a time, auto (10 x the longest seen, at least 10 min) or off",
    )  # fmt: skip
    parser.add_argument("--start-timeout", metavar="TIME", help="the same before the first sign of life")
    parser.add_argument(
        "--time-limit", metavar="TIME", help="end with a checkpoint within this time: 12:00:00, 12h"
    )
    parser.add_argument(
        "--deadline", metavar="WHEN", help='the same as a moment: "18:30", "2026-11-16 08:00"'
    )
    parser.add_argument(
        "--grace", default="10 min", metavar="TIME", help="from a request to stop until the command is killed"
    )
    parser.add_argument(
        "--spot", metavar="CLOUD", help="heed notices of auto, aws, gcp or azure (default auto), or off"
    )
    parser.add_argument("--log", metavar="FILE", help="append every event as a line of JSON")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="the command's output goes here; {attempt} and {rank} in it are replaced",
    )
    parser.add_argument(
        "--status", action=argparse.BooleanOptionalAction, default=None,
        help="a live status line (default: on a terminal, if --output keeps it free)",
    )  # fmt: skip
    parser.add_argument(
        "--dmtcp", action="store_true",
        help="checkpoint the whole process with DMTCP, for a program that cannot save anything itself",
    )  # fmt: skip
    parser.add_argument(
        "--interval", default="auto", metavar="TIME",
        help="with --dmtcp: time between checkpoints (default auto, from measured costs)",
    )  # fmt: skip
    add_node_options(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Result:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UsageError("there is no command to run", hint="holdfast run [options] -- python train.py")
    if options.dmtcp:
        options.folder = options.folder or f"runs/{Path(command[0]).name}"
        command = dmtcp_command(command, run=options.folder, interval=options.interval)
    settings = _settings(options)
    if wants_nodes(options):
        return run_nodes(options, command, settings)
    live = options.status
    if live is None:
        live = sys.stderr.isatty() and options.output is not None
    view = RunView(live=live)
    history = History(options.log, view.tell)
    notices = spot_poller(options.spot, os.environ)
    open_output = output_opener(options.output, to_stderr=options.json)
    supervisor = Supervisor(
        command,
        settings,
        report=history.report,
        newest_checkpoint=newest_checkpoint,
        leaving=lambda: leaving(notices),
        show=view.show,
        open_output=lambda attempt: open_output(attempt, 0),
    )
    if notices is not None:
        notices.start()
    try:
        code = supervisor.run()
    finally:
        view.clear()
        if notices is not None:
            notices.close()
    rescued = rescue(history.folder) if history.folder is not None else None
    said = {"exit_code": code, "run": history.folder, "rescued": rescued, "events": history.as_json()}
    return Result(said, code=code)


def _settings(options: argparse.Namespace) -> SupervisorSettings:
    rules = RestartRules(options.restarts, options.no_progress, parse_seconds(options.pause))
    if rules.restarts < 0 or rules.no_progress < 0 or rules.first_pause < 0:
        raise UsageError("a number of attempts or seconds cannot be negative", hint="use 0 or more")
    return SupervisorSettings(
        rules=rules,
        hang=_hang_limits(options),
        grace=parse_seconds(options.grace),
        deadline=_deadline(options),
        run=options.folder,
    )


def _hang_limits(options: argparse.Namespace) -> HangLimits:
    words = {"auto": None, "off": math.inf}
    given: str = options.hang_timeout
    silence = words[given] if given in words else parse_seconds(given)
    if options.start_timeout is not None:
        start: float | None = parse_seconds(options.start_timeout)
    else:
        start = math.inf if given == "off" else None
    return HangLimits(silence, start)


def _deadline(options: argparse.Namespace) -> WallDeadline | None:
    now = SystemClock().wall()
    known = [detect().deadline]
    if options.time_limit is not None:
        known.append(WallDeadline(now + parse_time_limit(options.time_limit), "--time-limit"))
    if options.deadline is not None:
        known.append(parse_deadline(options.deadline, now, "--deadline"))
    if os.environ.get(VARIABLE):
        known.append(parse_deadline(os.environ[VARIABLE], now, VARIABLE))
    end = earliest(known)
    if end is None or not warning_seconds(os.environ):
        return end
    # Used to the last second, the job would end as a timeout, and in the middle of its hand-over.
    return WallDeadline(end.at - HAND_OVER_SECONDS, end.source)
