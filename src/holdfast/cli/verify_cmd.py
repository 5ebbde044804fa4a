"""`holdfast verify`: are the checkpoints of a run whole? Reports; repairs only if asked, never removes."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.verify import Verdict, verify
from holdfast.cli.exit_codes import DAMAGED, OK, of_checked
from holdfast.cli.json_output import add_json_option, print_json
from holdfast.cli.progress_bar import ProgressBar
from holdfast.cli.run_folder import add_run_argument, open_folder, open_run
from holdfast.cli.terminal import clean, plural
from holdfast.clock import SystemClock
from holdfast.errors import RestoreError
from holdfast.stores.base import Store
from holdfast.units import format_bytes, format_seconds


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "verify",
        help="check that checkpoints are whole",
        description="Checks manifests and file sizes; with --deep every byte against its digest.",
    )
    add_run_argument(parser)
    parser.add_argument("--deep", action="store_true", help="read every byte and compare its digest")
    parser.add_argument("--step", type=int, metavar="N", help="only the checkpoints of this step")
    parser.add_argument(
        "--data", action="store_true", help="also check that every sample came exactly once per epoch"
    )
    parser.add_argument(
        "--all-tiers", action="store_true", help="every copy in every tier that this node can see"
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="replace damaged or missing files from another tier's good ones (reads every byte; the run must "
        "not be running)",
    )
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.all_tiers or options.repair:
        # Here, because only these options need it.
        from holdfast.cli.verify_tiers import run as verify_all_tiers

        return verify_all_tiers(options)
    store = open_run(options.run_folder)
    if options.data:
        open_folder(options.run_folder, "the record of the data")
    found = [one for one in committed(store) if options.step in (None, one.step)]
    if options.step is not None and not found:
        raise RestoreError(f"no checkpoint of step {options.step} in {store.where}", hint="see holdfast list")
    clock = SystemClock()
    started = clock.monotonic()
    verdicts = _verify_all(store, found, deep=options.deep)
    seconds = clock.monotonic() - started
    audit = _audit(options.run_folder) if options.data else None
    if options.json:
        _print_json(store, verdicts, audit, options.deep)
    else:
        _print(store, verdicts, audit, options.deep, seconds)
    code = of_checked(verdict.is_whole for verdict in verdicts)
    return DAMAGED if code == OK and audit is not None and not audit.ok else code


def _verify_all(store: Store, found: list[Found], *, deep: bool) -> list[Verdict]:
    total = sum(one.manifest.total_bytes for one in found if one.manifest)
    with ProgressBar("verifying", total if deep else 0) as bar:
        verdicts = []
        for one in found:
            before = 0

            def tell(done: int, _: int) -> None:
                nonlocal before
                bar.add(done - before)
                before = done

            verdicts.append(verify(store, one, deep=deep, progress=tell))
    return verdicts


def _audit(path: str) -> Any:
    # Here, because only this option needs it.
    from holdfast.data.audit import audit_run

    return audit_run(path)


def _print_json(store: Store, verdicts: list[Verdict], audit: Any, deep: bool) -> None:
    said: dict[str, Any] = {
        "run": store.where,
        "deep": deep,
        "checkpoints": [
            {
                "name": str(verdict.name),
                "step": verdict.name.step,
                "whole": verdict.is_whole,
                "bytes_checked": verdict.bytes_checked,
                "problems": list(verdict.problems),
            }
            for verdict in verdicts
        ],
    }
    if audit is not None:
        said["data"] = {
            "ok": audit.ok,
            "attempts": audit.attempts,
            "undone": audit.undone,
            "violations": list(audit.violations),
            "passes": list(audit.passes),
        }
    print_json(said)


def _print(store: Store, verdicts: list[Verdict], audit: Any, deep: bool, seconds: float) -> None:
    if not verdicts:
        print(f"no checkpoint in {clean(store.where)}")
    for verdict in verdicts:
        state = "whole" if verdict.is_whole else "DAMAGED"
        checked = f"{format_bytes(verdict.bytes_checked)} checked" if deep else "manifest and sizes checked"
        print(f"step {verdict.name.step}  {state}  {checked}  {verdict.name}")
        for problem in verdict.problems:
            print(f"    {clean(problem)}")
    whole = sum(verdict.is_whole for verdict in verdicts)
    print(f"{whole} of {plural(len(verdicts), 'checkpoint')} whole, in {format_seconds(seconds)}")
    if not deep and verdicts:
        print("  (use --deep to read every byte)", file=sys.stderr)
    if audit is not None:
        _print_audit(audit)


def _print_audit(audit: Any) -> None:
    verdict = "every batch accounted for" if audit.ok else "VIOLATED"
    samples = sum(report.samples for report in audit.passes)
    print(
        f"data: {verdict}: {plural(len(audit.passes), 'pass')}, {plural(samples, 'sample')},"
        f" {plural(audit.attempts, 'attempt')}, {plural(audit.undone, 'batch')} undone by restarts"
    )
    for violation in audit.violations:
        print(f"    {clean(violation)}")
