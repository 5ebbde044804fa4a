"""`holdfast app`: runs a program that nobody can change, and keeps its checkpoints. Never imports torch.

With a recipe for one that writes checkpoint files of its own, or under DMTCP for one that writes none.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.checkpoints.retain import parse_keep
from holdfast.cli.render import add_json_option
from holdfast.cli.result import FAILED, Result
from holdfast.clock import SystemClock
from holdfast.errors import UsageError
from holdfast.events import Event
from holdfast.jobs.deadline import find_deadline, parse_time_limit
from holdfast.jobs.environment import detect
from holdfast.jobs.plain import ATTEMPT
from holdfast.policy.build import build_policy
from holdfast.policy.failures import FailureHistory
from holdfast.programs.attempt import Attempt, Driver
from holdfast.programs.dmtcp import DmtcpDriver, require_dmtcp
from holdfast.programs.generations import Generations
from holdfast.programs.outer_tiers import (
    claim_home,
    open_tiers,
    parse_outer,
    seconds_for_last_copies,
)
from holdfast.programs.recipe import Recipe, load_recipe, prepare, shipped_recipes
from holdfast.programs.recipe_driver import RecipeDriver
from holdfast.stores.journal import Journal, read_events

DMTCP = "dmtcp"
_SWITCHES = ("replaces_files", "independent_files", "trust_files")
_USAGE = "holdfast app RECIPE [options] -- program arguments..."


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "app", help="run a program that writes its own checkpoint files, or one under DMTCP", usage=_USAGE
    )
    _add_options(parser)
    # The recipe and everything after it: our options in a second round, the program's after "--".
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, metavar="RECIPE",
        help=f"{', '.join(shipped_recipes())}, {DMTCP}, the path of a TOML file, or list",
    )  # fmt: skip
    parser.set_defaults(run=run)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--run", dest="folder", metavar="DIR", help="where the generations are kept [runs/PROGRAM]")
    add("--keep", default="2", help='which generations stay, such as "latest 3" [2]')
    add(
        "--tier", action="append", default=[], metavar="PLACE",
        help='one more place for copies: a path or a bucket, such as "s3://bucket/run every 10, 50 MB/s"',
    )  # fmt: skip
    add("--file", action="append", default=[], metavar="PATTERN", help="checkpoint file of the program")
    add("--restart", metavar="ARGUMENTS", help="added to the command when it continues")
    add("--complete-file", action="append", default=[], metavar="FILE", help="exists when the work is done")
    add("--replaces-files", action="store_true", help="the program renames a new file over the old one")
    add("--written-last", metavar="FILE", help="the file that is written when all others are done")
    add("--ends-with", metavar="TEXT", help="the end of a whole file")
    add("--check", metavar="COMMAND", help="ends with 0 if the files there are a whole checkpoint")
    add("--independent-files", action="store_true", help="each file is a checkpoint of its own")
    add("--trust-files", action="store_true", help="keep files at rest without any sign that they are whole")
    add("--stop-signal", metavar="NAME", help="asks the program to save and end [TERM]")
    add("--interval", default="auto", help='DMTCP: "auto", or such as "10 min"')
    add("--once", action="store_true", help="one attempt, without a supervisor that starts it again")
    add("--time-limit", help='end in time for this limit, such as "12 h"')
    add_json_option(parser)


def run(options: argparse.Namespace) -> Result:
    cut = options.rest.index("--") if "--" in options.rest else len(options.rest)
    if cut == 0:
        raise UsageError("there is no recipe", hint=_USAGE)
    parser = argparse.ArgumentParser(prog=f"holdfast app {options.rest[0]}", usage=_USAGE)
    _add_options(parser)
    known = argparse.Namespace(**vars(options), recipe=options.rest[0])
    given, options = options, parser.parse_args(options.rest[1:cut], known)
    # Read in the second round, and wanted by whoever prints.
    given.json = options.json
    if options.recipe == "list":
        return _list()
    command = options.rest[cut + 1 :]
    if not command:
        raise UsageError("there is no command to run", hint="holdfast app RECIPE -- program arguments...")
    folder = options.folder or f"runs/{Path(command[0]).name}"
    # Under a supervisor already: a second one inside the first would only hide what happens from it.
    if options.once or ATTEMPT in os.environ:
        return Result(code=_attempt(options, command, folder))
    return _supervised(options, command, folder)


def _list() -> Result:
    recipes = {name: load_recipe(name).about for name in shipped_recipes()}
    recipes[DMTCP] = "any program, as an image of its processes (needs DMTCP)"
    return Result({"recipes": recipes}, [f"{name:10} {about}" for name, about in recipes.items()])


def _supervised(options: argparse.Namespace, command: list[str], folder: str) -> Result:
    # Here, because an attempt, which is to start quickly, does not need it.
    from holdfast.cli.running import run_cmd

    # What is wrong with the call should be said once, here, and not by every attempt.
    parse_outer(options.tier)
    if options.recipe == DMTCP:
        require_dmtcp()
    else:
        prepare(_recipe(options), command)
    own = [sys.executable, "-m", "holdfast.cli.main", "app", "--once", "--run", folder]
    for flag in ("keep", "interval", "restart", "stop_signal", "written_last", "ends_with", "check"):
        value = getattr(options, flag)
        own += [f"--{flag.replace('_', '-')}={value}"] if value is not None else []
    own += [f"--tier={place}" for place in options.tier]
    own += [f"--file={pattern}" for pattern in options.file]
    own += [f"--complete-file={name}" for name in options.complete_file]
    for flag in _SWITCHES:
        own += [f"--{flag.replace('_', '-')}"] if getattr(options, flag) else []
    ours = [*(["--json"] if options.json else [])]
    ours += ["--time-limit", options.time_limit] if options.time_limit else []
    parser = argparse.ArgumentParser(prog="holdfast")
    run_cmd.add_parser(parser.add_subparsers())
    supervised = ["run", "--run", folder, *ours, "--", *own, options.recipe, "--", *command]
    return run_cmd.run(parser.parse_args(supervised))


def _attempt(options: argparse.Namespace, command: list[str], folder: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    clock = SystemClock()
    limit = None if options.time_limit is None else parse_time_limit(options.time_limit)
    deadline = find_deadline(limit, os.environ, detect(), clock)
    outer, retention = parse_outer(options.tier), parse_keep(_keep(options.keep))
    umask = _keep_from_others(folder) if options.recipe == DMTCP else -1
    with claim_home(folder, outer, clock) as home:
        journal, history = Journal(home.where), read_events(home.where)
        tiers = open_tiers(home, outer, retention, clock)
        code = FAILED
        try:
            generations = Generations(home, clock, journal.append, retention, tiers)
            driver = _driver(options, command, generations, clock, journal, history)
            attempt = Attempt(
                generations, driver, clock, journal.append, deadline=deadline, environ=os.environ, umask=umask
            )
            code = attempt.run()
        finally:
            if tiers is not None:
                left = None if deadline is None else deadline.at - clock.wall()
                tiers.close(seconds_for_last_copies(code, left))
    return code


def _keep_from_others(folder: str) -> int:
    """An image holds the program's memory and environment, passwords included. Returns the umask before."""
    umask = os.umask(0o077)
    os.makedirs(folder, exist_ok=True)
    with contextlib.suppress(PermissionError):  # a folder of somebody else, who decides about it
        os.chmod(folder, 0o700)
    return umask


def _driver(
    options: argparse.Namespace,
    command: list[str],
    generations: Generations,
    clock: SystemClock,
    journal: Journal,
    history: list[Event],
) -> Driver:
    if options.recipe != DMTCP:
        recipe = _recipe(options)
        prepared = prepare(recipe, command)
        return RecipeDriver(recipe, prepared, generations, Path.cwd(), clock, journal.append, history)
    every = None if options.interval == "auto" else options.interval
    policy = build_policy(every=every, history=FailureHistory.from_events(history))
    scratch = Path(generations.where) / "dmtcp"
    return DmtcpDriver(command, generations, scratch, policy, clock, journal.append)


def _keep(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _recipe(options: argparse.Namespace) -> Recipe:
    """The recipe, with what the user says in its place."""
    recipe = load_recipe(options.recipe)
    changes: dict[str, Any] = {}
    if options.file:
        changes["checkpoint"] = tuple(options.file)
    if options.restart is not None:
        changes["restart"] = tuple(shlex.split(options.restart))
    if options.complete_file:
        changes["complete_files"] = tuple(options.complete_file)
    changes.update({switch: True for switch in _SWITCHES if getattr(options, switch)})
    if options.check:
        changes["check"] = tuple(shlex.split(options.check))
    for text in ("written_last", "ends_with"):
        if getattr(options, text):
            changes[text] = getattr(options, text)
    if options.stop_signal:
        changes["stop_signal"] = options.stop_signal.removeprefix("SIG")
    return replace(recipe, **changes)
