"""`holdfast VERB ...`: finds the verb, prints its result, turns an error into one line and an exit code.

A verb's module is imported only when that verb is used, so that `holdfast list` stays quick and works
without torch. Each has `add_parser(subparsers)`, which sets `run`, a function from options to a Result.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import holdfast
from holdfast.cli.render import clean, print_json, show
from holdfast.cli.result import FAILED, INTERRUPTED, OK, USAGE
from holdfast.errors import HoldfastError, InternalError, UsageError, torch_is_missing

VERBS: dict[str, tuple[str, str]] = {
    "demo": ("trials.demo_cmd", "train, kill -9 in the middle of an epoch, resume, compare bit for bit"),
    "list": ("stored.list_cmd", "the checkpoints of a run, newest first"),
    "show": ("stored.show_cmd", "everything one checkpoint says about itself"),
    "verify": ("stored.verify_cmd", "check that checkpoints are whole"),
    "diff": ("stored.diff_cmd", "what changed between two checkpoints"),
    "export": ("stored.export_cmd", "weights as safetensors or torch file, or everything as DCP"),
    "prune": ("stored.prune_cmd", "remove checkpoints that no rule keeps; a dry run unless --yes"),
    "run": ("running.run_cmd", "keep a command running until its work is done, whatever kills it"),
    "halt": ("running.halt_cmd", "end a run with a checkpoint, and keep it from starting again"),
    "bench": ("trials.bench_cmd", "what this disk and machine can do, and how often that lets you save"),
    "plan": ("trials.plan_cmd", "how often to save, from costs and failure rate"),
    "slurm": (
        "running.slurm_cmd",
        "write and submit a batch script that survives time limits; its jobs' status",
    ),
    "app": ("running.app_cmd", "run a program that writes its own checkpoint files, or one under DMTCP"),
    "doctor": ("trials.doctor_cmd", "what is wrong with a set-up, and how to fix it"),
    "rehearse": ("trials.rehearse_cmd", "prove on your own script that saving and restarting change nothing"),
}
# Verbs of earlier versions, and what they are now.
ALIASES = {"simulate": ("plan", "--simulate"), "data-audit": ("verify", "--data-only")}


def main(arguments: Sequence[str] | None = None) -> int:
    given = _in_new_words(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show "µ" is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    options = _parser(given).parse_args(given)
    if options.verb is None:
        _parser([]).print_help(sys.stderr)
        return USAGE
    return _run(options)


def _in_new_words(given: Sequence[str]) -> list[str]:
    at = next((number for number, word in enumerate(given) if not word.startswith("-")), 0)
    return [*given[:at], *ALIASES.get(given[at], (given[at],)), *given[at + 1 :]] if given else []


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast",
        description="Checkpoints of deep-learning training: look, check, compare, export, prune, measure.",
        epilog="Exit codes: 0 fine, 1 failed, 2 wrong usage, 3 damaged but usable, 4 nothing usable, "
        "5 different (diff --exit-code). Every verb takes --json.",
    )
    parser.add_argument("--version", action="version", version=f"holdfast {holdfast.__version__}")
    _add_debug_option(parser, default=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    wanted = next((argument for argument in given if not argument.startswith("-")), None)
    if wanted in VERBS:
        import_module(f"holdfast.cli.{VERBS[wanted][0]}").add_parser(verbs)
        # Parsed like any option, not searched for: other people's options follow `run` and `app`.
        _add_debug_option(verbs.choices[wanted], default=argparse.SUPPRESS)
    else:
        for verb, (_, line) in VERBS.items():
            verbs.add_parser(verb, help=line)
    return parser


def _add_debug_option(parser: argparse.ArgumentParser, *, default: Any) -> None:
    parser.add_argument(
        "--debug", action="store_true", default=default, help="show the traceback of an error"
    )


def _run(options: argparse.Namespace) -> int:
    try:
        code = show(options.run(options), as_json=getattr(options, "json", False))
        sys.stdout.flush()
        return code
    except HoldfastError as error:
        if options.debug:
            raise
        return _explain(error, as_json=getattr(options, "json", False))
    except ModuleNotFoundError as missing:
        if missing.name != "torch" or options.debug:
            raise
        said = torch_is_missing(f"holdfast {options.verb}")
        return _explain(said, as_json=getattr(options, "json", False))
    except BrokenPipeError:
        # `holdfast list | head`: the reader has seen enough. Python would complain again at exit otherwise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        print("\nholdfast: interrupted", file=sys.stderr)
        return INTERRUPTED


def _explain(error: HoldfastError, *, as_json: bool) -> int:
    ours = isinstance(error, InternalError)
    hint = error.hint or ("this is a bug in holdfast: please report it with --debug" if ours else None)
    if as_json:
        said: dict[str, Any] = {"kind": type(error).__name__, "message": error.message, "hint": hint}
        print_json({"error": said})
    # Line by line: some errors list every checkpoint with its reason.
    lines = [clean(line) for line in error.message.splitlines()] or [type(error).__name__]
    print("\n".join([f"holdfast: {lines[0]}", *lines[1:]]), file=sys.stderr)
    if hint:
        print(f"  hint: {clean(hint)}", file=sys.stderr)
    return USAGE if isinstance(error, UsageError) else FAILED


if __name__ == "__main__":
    sys.exit(main())
