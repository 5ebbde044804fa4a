"""`holdfast verify`: are the checkpoints of a run whole? Reports; repairs only if asked, never removes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.verify import Verdict, verify
from holdfast.cli.opened_run import add_run_argument, open_folder, open_run
from holdfast.cli.render import ProgressBar, add_json_option, plural
from holdfast.cli.result import DAMAGED, NOTHING_USABLE, OK, Block, Result, Table, of_checked
from holdfast.clock import SystemClock
from holdfast.data.audit import AuditReport, PassReport, audit_run
from holdfast.errors import RestoreError, SetupError
from holdfast.stores.base import Store
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.named_tier import NamedTier
from holdfast.tiers.opening import readable_tiers
from holdfast.tiers.scrub import Scrubbed, scrub
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
    parser.add_argument("--data-only", action="store_true", help="check nothing but that, epoch by epoch")
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


def run(options: argparse.Namespace) -> Result:
    if options.data_only:
        report = audit_run(options.run_folder)
        said = {"ok": report.ok, **vars(report)}
        return Result(said, _epochs(report), OK if report.ok else DAMAGED)
    if options.all_tiers or options.repair:
        return _verify_tiers(options)
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
    audit = audit_run(options.run_folder) if options.data else None
    code = of_checked(verdict.is_whole for verdict in verdicts)
    if code == OK and audit is not None and not audit.ok:
        code = DAMAGED
    return Result(
        _described(store.where, verdicts, audit, options.deep),
        _text(store.where, verdicts, audit, options.deep, seconds),
        code,
        () if options.deep or options.json or not verdicts else ("  (use --deep to read every byte)",),
    )


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


def _described(
    where: str, verdicts: Sequence[Verdict], audit: AuditReport | None, deep: bool
) -> dict[str, Any]:
    said: dict[str, Any] = {
        "run": where,
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
        fields = ("ok", "attempts", "undone", "violations", "passes")
        said["data"] = {name: getattr(audit, name) for name in fields}
    return said


def _text(
    where: str, verdicts: Sequence[Verdict], audit: AuditReport | None, deep: bool, seconds: float
) -> Iterator[Block]:
    if not verdicts:
        yield f"no checkpoint in {where}"
    for verdict in verdicts:
        name, state = verdict.name, _state(verdict.is_whole)
        yield f"step {name.step}  {state}  {_checked(verdict.bytes_checked, deep)}  {name}"
        yield from (f"    {problem}" for problem in verdict.problems)
    whole = sum(verdict.is_whole for verdict in verdicts)
    yield f"{whole} of {plural(len(verdicts), 'checkpoint')} whole, in {format_seconds(seconds)}"
    if audit is not None:
        samples = sum(report.samples for report in audit.passes)
        yield (
            f"data: {'every batch accounted for' if audit.ok else 'VIOLATED'}:"
            f" {plural(len(audit.passes), 'pass')}, {plural(samples, 'sample')},"
            f" {plural(audit.attempts, 'attempt')}, {plural(audit.undone, 'batch')} undone by restarts"
        )
        yield from (f"    {violation}" for violation in audit.violations)


def _state(is_whole: bool) -> str:
    return "whole" if is_whole else "DAMAGED"


def _checked(count: int, deep: bool) -> str:
    return f"{format_bytes(count)} checked" if deep else "manifest and sizes checked"


# ---- --data-only: what training was handed, read from the logs


def _epochs(report: AuditReport) -> Iterator[Block]:
    header = ["loader", "epoch", "batches", "samples", "padding", "left out", "verdict"]
    yield Table(header, [_epoch(one) for one in report.passes], left=(0, 6))
    yield f"{plural(report.attempts, 'attempt')}, {plural(report.undone, 'batch')} undone by restarts"
    yield from (f"VIOLATED: {violation}" for violation in report.violations)
    yield from (f"UNKNOWN: {unknown}" for unknown in report.unknown)


def _epoch(one: PassReport) -> list[str]:
    words = {True: "exactly once", False: "VIOLATED", None: "own order; no batch lost or repeated"}
    verdict = words[one.exactly_once] if one.finished else f"unfinished; {words[one.exactly_once]} so far"
    numbers = (one.batches, one.samples, one.padding, one.left_out)
    return [one.feed, str(one.epoch), *(f"{number:,}" for number in numbers), verdict]


# ---- --all-tiers: every copy of every checkpoint, wherever this node can see one


def _verify_tiers(options: argparse.Namespace) -> Result:
    if options.data:
        raise SetupError("--data looks at the run's own folder", hint="leave out --all-tiers and --repair")
    home = open_folder(options.run_folder, "the list of tiers").where
    tiers = readable_tiers(home)
    clock = SystemClock()
    started = clock.monotonic()
    deep = options.deep or options.repair
    found = _scrub(tiers, options.step, deep=deep)
    if options.step is not None and not found:
        raise RestoreError(f"no checkpoint of step {options.step} in any tier", hint="see holdfast list")
    if options.repair and not all(one.is_whole for one in found):
        found = _repair(home, tiers, found, options.step)
    code = OK if all(one.is_whole for one in found) else DAMAGED
    return Result(
        _described_tiers(home, tiers, found, deep),
        _tiers_text(tiers, found, deep, clock.monotonic() - started),
        code if any(one.is_restorable for one in found) else NOTHING_USABLE,
    )


def _scrub(tiers: list[NamedTier], step: int | None, *, deep: bool, repair: bool = False) -> list[Scrubbed]:
    sizes = {str(one.name): one.manifest.total_bytes for one in committed(Ladder(tiers)) if one.manifest}
    total = sum(sizes.get(name, 0) for tier in tiers for name in tier.store.names())
    with ProgressBar("verifying", total if deep else 0) as bar:
        return scrub(tiers, step=step, deep=deep, repair=repair, checked=bar.add)


def _repair(home: str, tiers: list[NamedTier], found: list[Scrubbed], step: int | None) -> list[Scrubbed]:
    """Look again and repair. Only now, and only where something is wrong, does this process become a writer:
    a run that lives looks after itself and is not disturbed."""
    wrong = {copy.tier.name for one in found for copy in one.copies if not copy.is_whole}
    with ExitStack() as claimed:
        # The run's own folder first: its seat says whether the run lives.
        ordered = sorted(tiers, key=lambda tier: tier.store.where != home)
        for tier in ordered:
            if tier.name in wrong or tier.store.where == home:
                tier.store.claim()
                claimed.callback(tier.store.release)
        return _scrub(tiers, step, deep=True, repair=True)


def _described_tiers(home: str, tiers: list[NamedTier], found: list[Scrubbed], deep: bool) -> dict[str, Any]:
    return {
        "run": home,
        "deep": deep,
        "tiers": [
            {"name": tier.name, "where": tier.store.where, "survives": tier.store.properties.survives}
            for tier in tiers
        ],
        "checkpoints": [
            {
                "name": str(one.name),
                "step": one.name.step,
                "whole": one.is_whole,
                "restorable": one.is_restorable,
                "lost": one.lost,
                "copies": [
                    {
                        "tier": copy.tier.name,
                        "whole": copy.is_whole,
                        "bytes_checked": copy.bytes_checked,
                        "problems": copy.problems,
                        "repaired": copy.repaired,
                        "refused": copy.refused,
                    }
                    for copy in one.copies
                ],
            }
            for one in found
        ],
    }


def _tiers_text(tiers: list[NamedTier], found: list[Scrubbed], deep: bool, seconds: float) -> Iterator[Block]:
    if not found:
        yield f"no checkpoint in {', '.join(tier.name for tier in tiers)}"
    for tier in tiers:
        yield f"{tier.name} survives the loss of its {', '.join(tier.store.properties.survives)}"
    for one in found:
        state = _state(one.is_whole) if one.is_restorable else "LOST"
        yield f"step {one.name.step}  {state}  {plural(len(one.copies), 'tier')}  {one.name}"
        for copy in one.copies:
            mended = f", repaired: {', '.join(copy.repaired)}" if copy.repaired else ""
            checked = _checked(copy.bytes_checked, deep)
            yield f"    {copy.tier.name}: {_state(copy.is_whole)}, {checked}{mended}"
            refused = copy.refused or ([] if copy.is_whole else copy.problems)
            yield from (f"        {problem}" for problem in refused)
        yield from (f"    no good copy is left: {lost}" for lost in one.lost)
    whole = sum(one.is_whole for one in found)
    yield f"{whole} of {plural(len(found), 'checkpoint')} whole in every tier, in {format_seconds(seconds)}"
