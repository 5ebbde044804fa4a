"""`holdfast list`: the checkpoints of a run, newest first. Reads manifests; imports no torch, no NumPy."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.checkpoints.find import Found, committed
from holdfast.cli.opened_run import add_run_argument, open_run, ranks_of
from holdfast.cli.render import NEVER, add_json_option, age, plural, when
from holdfast.cli.result import OK, Block, Result, Table, of_checked
from holdfast.clock import SystemClock
from holdfast.units import format_bytes


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("list", help="the checkpoints of a run, newest first")
    add_run_argument(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Result:
    store = open_run(options.run_folder)
    found = committed(store)
    code = of_checked(one.manifest is not None for one in found) if found else OK
    said = {"run": store.where, "checkpoints": [summary(one) for one in found]}
    return Result(said, _text(store.where, found), code)


def summary(found: Found) -> dict[str, Any]:
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


def _text(where: str, found: Sequence[Found]) -> Iterator[Block]:
    if not found:
        yield f"no checkpoint yet in {where}"
        return
    readable = [one.manifest for one in found if one.manifest is not None]
    ranks = any(ranks_of(manifest) > 1 for manifest in readable)
    header = ["step", "epoch", "saved", "size", "loss", *(["ranks"] if ranks else []), "why"]
    yield Table(header, [_row(one, ranks=ranks) for one in found], left=(2, len(header) - 1))
    total = format_bytes(sum(manifest.total_bytes for manifest in readable))
    newest = age(readable[0].created, SystemClock().wall()) if readable else None
    ending = f"; the newest was saved {newest}" if newest else ""
    yield f"{plural(len(found), 'checkpoint')}, {total} in {where}{ending}"


def _row(found: Found, *, ranks: bool) -> list[str]:
    manifest = found.manifest
    if manifest is None:
        return [str(found.step), *[NEVER] * (5 if ranks else 4), f"UNREADABLE: {found.problem}"]
    kept = "" if manifest.keep is None else f"kept: {manifest.keep or 'for ever'}; "
    loss = manifest.metrics.get("loss")
    return [
        str(found.step),
        str(manifest.progress.get("epoch", NEVER)),
        when(manifest.created),
        format_bytes(manifest.total_bytes),
        NEVER if loss is None else f"{loss:.4g}",
        *([str(ranks_of(manifest))] if ranks else []),
        kept + manifest.reason,
    ]
