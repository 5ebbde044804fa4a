"""`holdfast VERB ...`: finds the verb, runs it, and turns what goes wrong into one line and an exit code.

A verb's module is imported only when that verb is used, so that `holdfast list` stays quick and works
without torch. Each has `add_parser(subparsers)`, which sets `run`, a function from options to exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import holdfast
from holdfast.cli.exit_codes import FAILED, INTERRUPTED, OK, USAGE
from holdfast.cli.json_output import print_json
from holdfast.cli.terminal import clean
from holdfast.errors import HoldfastError, InternalError, UsageError, torch_is_missing

VERBS: dict[str, tuple[str, str]] = {
    "demo": ("demo_cmd", "train, kill -9 in the middle of an epoch, resume, compare bit for bit"),
    "list": ("list_cmd", "the checkpoints of a run, newest first"),
    "show": ("show_cmd", "everything one checkpoint says about itself"),
    "verify": ("verify_cmd", "check that checkpoints are whole"),
    "diff": ("diff_cmd", "what changed between two checkpoints"),
    "export": ("export_cmd", "weights as safetensors or torch file, or everything as DCP"),
    "prune": ("prune_cmd", "remove checkpoints that no rule keeps; a dry run unless --yes"),
    "run": ("run_cmd", "keep a command running until its work is done, whatever kills it"),
    "halt": ("halt_cmd", "end a run with a checkpoint, and keep it from starting again"),
    "bench": ("bench_cmd", "what this disk and machine can do, and how often that lets you save"),
    "plan": ("plan_cmd", "how often to save, from costs and failure rate"),
    "simulate": ("simulate_cmd", "what a policy would cost over weeks of failures"),
    "slurm": ("slurm_cmd", "write and submit a batch script that survives time limits; status of its jobs"),
    "app": ("app_cmd", "run a program that writes its own checkpoint files, or one under DMTCP"),
    "doctor": ("doctor_cmd", "what is wrong with a set-up, and how to fix it"),
    "rehearse": ("rehearse_cmd", "prove on your own script that saving and restarting change nothing"),
    "data-audit": ("data_audit", "prove that every sample came exactly once per epoch"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show "µ" is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    options = _parser(given).parse_args(given)
    if options.verb is None:
        _parser([]).print_help(sys.stderr)
        return USAGE
    return _run(options)


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
    available = available_verbs()
    if wanted in available:
        import_module(f"holdfast.cli.{VERBS[wanted][0]}").add_parser(verbs)
        # Parsed like any option, not searched for: behind `run` and `app` stand other people's options.
        _add_debug_option(verbs.choices[wanted], default=argparse.SUPPRESS)
    else:
        for verb in available:
            verbs.add_parser(verb, help=VERBS[verb][1])
    return parser


def _add_debug_option(parser: argparse.ArgumentParser, *, default: Any) -> None:
    parser.add_argument(
        "--debug", action="store_true", default=default, help="show the traceback of an error"
    )


def available_verbs() -> list[str]:
    """The verbs whose module is part of this installation."""
    return [verb for verb, (module, _) in VERBS.items() if find_spec(f"holdfast.cli.{module}")]


def _run(options: argparse.Namespace) -> int:
    try:
        code: int = options.run(options)
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
