"""`holdfast data-audit`: epoch by epoch, what training was handed. Reads logs only; never imports torch."""

from __future__ import annotations

import argparse
from typing import Any

from holdfast.cli.exit_codes import DAMAGED, OK
from holdfast.cli.json_output import add_json_option, print_json
from holdfast.cli.run_folder import add_run_argument
from holdfast.cli.terminal import clean, columns, plural
from holdfast.data.audit import AuditReport, PassReport, audit_run


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("data-audit", help="prove that every sample came exactly once per epoch")
    add_run_argument(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    report = audit_run(options.run_folder)
    if options.json:
        print_json({"ok": report.ok, **vars(report)})
    else:
        _print(report)
    return OK if report.ok else DAMAGED


def _print(report: AuditReport) -> None:
    header = ["loader", "epoch", "batches", "samples", "padding", "left out", "verdict"]
    for line in columns(header, [_row(one) for one in report.passes], left=(0, 6)):
        print(line)
    print(f"{plural(report.attempts, 'attempt')}, {plural(report.undone, 'batch')} undone by restarts")
    for violation in report.violations:
        print(f"VIOLATED: {clean(violation)}")
    for unknown in report.unknown:
        print(f"UNKNOWN: {clean(unknown)}")


def _row(one: PassReport) -> list[str]:
    words = {True: "exactly once", False: "VIOLATED", None: "own order; no batch lost or repeated"}
    verdict = words[one.exactly_once] if one.finished else f"unfinished; {words[one.exactly_once]} so far"
    numbers = (one.batches, one.samples, one.padding, one.left_out)
    return [clean(one.feed), str(one.epoch), *(f"{number:,}" for number in numbers), verdict]
