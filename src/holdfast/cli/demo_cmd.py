"""`holdfast demo`: the first thing people see. Trains, is killed, resumes, compares; removes what it made."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from holdfast.cli.demo_picture import Screen, heading, summary
from holdfast.cli.demo_script import DemoResult, play
from holdfast.cli.exit_codes import FAILED, OK
from holdfast.cli.json_output import add_json_option, print_json
from holdfast.cli.whole_output import require_new


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="train, kill -9 in the middle of an epoch, resume, compare bit for bit",
        description="Trains a small model on real handwritten digits: without checkpoints, with torch.save, "
        "with holdfast, side by side; then kills a training with SIGKILL, resumes it and compares weights.",
    )
    parser.add_argument("--folder", metavar="DIR", help="work in this new folder and keep it")
    parser.add_argument("--epochs", type=int, metavar="N", help="default: as many as fit into a minute")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with ExitStack() as stack:
        if options.folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-")))
        else:
            folder = Path(options.folder)
            require_new(folder)
            folder.mkdir()
        if options.json:
            result = play(folder, lambda lanes: None, options.epochs)
            print_json(_described(result))
        else:
            screen = Screen(sys.stdout)
            screen.write(heading())
            result = play(folder, screen.show, options.epochs)
            screen.write(summary(result, screen.glyphs))
    return OK if result.is_identical else FAILED


def _described(result: DemoResult) -> dict[str, Any]:
    return {
        "identical": result.is_identical,
        "ways": result.ways,
        "kill": result.kill,
        "samples": result.samples,
        "parameters": result.parameters,
        "state_bytes": result.state_bytes,
        "epochs": result.epochs,
        "steps": result.steps,
        "every": result.every,
        "threads": result.threads,
        "torch": result.torch,
        "cores": result.cores,
        "load": result.load,
    }
