"""`holdfast list`: the checkpoints of a run, newest first. Reads manifests, no data; never imports torch."""

from __future__ import annotations

import argparse
from typing import Any

from holdfast.checkpoints.find import Found, committed
from holdfast.cli.exit_codes import OK, of_checked
from holdfast.cli.json_output import add_json_option, print_json
from holdfast.cli.ranks_said import ranks_of
from holdfast.cli.run_folder import add_run_argument, open_run
from holdfast.cli.terminal import NEVER, age, clean, columns, plural, when
from holdfast.clock import SystemClock
from holdfast.stores.base import Store
from holdfast.units import format_bytes


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("list", help="the checkpoints of a run, newest first")
    add_run_argument(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    store = open_run(options.run_folder)
    found = committed(store)
    if options.json:
        print_json({"run": store.where, "checkpoints": [summary(store, one) for one in found]})
    else:
        _print(store, found)
    return of_checked(one.manifest is not None for one in found) if found else OK


def summary(store: Store, found: Found) -> dict[str, Any]:
    """The fields of one checkpoint in `list --json`."""
    manifest = found.manifest
    return {
        "name": str(found.name),
        "step": found.step,
        "epoch": manifest.progress.get("epoch") if manifest else None,
        "created": manifest.created if manifest else None,
        "bytes": manifest.total_bytes if manifest else None,
        "ranks": ranks_of(manifest) if manifest else None,
        "reason": manifest.reason if manifest else None,
        "metrics": dict(manifest.metrics) if manifest else {},
        "tags": list(manifest.tags) if manifest else [],
        "keep": manifest.keep if manifest else None,
        "problem": found.problem,
    }


def _print(store: Store, found: list[Found]) -> None:
    if not found:
        print(f"no checkpoint yet in {clean(store.where)}")
        return
    readable = [one.manifest for one in found if one.manifest is not None]
    rows = [["step", "epoch", "saved", "size", "loss", "why"], *map(_row, found)]
    if any(ranks_of(manifest) > 1 for manifest in readable):
        for row, text in zip(rows, ["ranks", *map(_ranks, found)], strict=True):
            row.insert(-1, text)
    for line in columns(rows[0], rows[1:], left=(2, len(rows[0]) - 1)):
        print(line)
    total = format_bytes(sum(manifest.total_bytes for manifest in readable))
    newest = age(readable[0].created, SystemClock().wall()) if readable else None
    ending = f"; the newest was saved {newest}" if newest else ""
    print(f"{plural(len(found), 'checkpoint')}, {total} in {clean(store.where)}{ending}")


def _ranks(found: Found) -> str:
    return str(ranks_of(found.manifest)) if found.manifest else NEVER


def _row(found: Found) -> list[str]:
    manifest = found.manifest
    if manifest is None:
        return [str(found.step), NEVER, NEVER, NEVER, NEVER, f"UNREADABLE: {clean(found.problem)}"]
    why = clean(manifest.reason)
    if manifest.keep is not None:
        why = f"kept: {clean(manifest.keep) or 'for ever'}; {why}"
    loss = manifest.metrics.get("loss")
    return [
        str(found.step),
        clean(manifest.progress.get("epoch", NEVER)),
        when(manifest.created),
        format_bytes(manifest.total_bytes),
        NEVER if loss is None else f"{loss:.4g}",
        why,
    ]
