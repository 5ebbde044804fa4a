"""`holdfast prune`: remove checkpoints that no rule keeps. A dry run unless told --yes; says why."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.retain import Ledger, Pruning, parse_keep, prune
from holdfast.cli.opened_run import add_run_argument, open_run
from holdfast.cli.read_only_store import DryRun
from holdfast.cli.render import add_json_option, plural
from holdfast.cli.result import DAMAGED, FAILED, NOTHING_USABLE, OK, Block, Result
from holdfast.errors import RunInUse
from holdfast.format.names import parse_checkpoint_name
from holdfast.stores.locations import is_bucket
from holdfast.stores.store import CheckpointStore
from holdfast.units import format_bytes


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "prune",
        help="remove checkpoints that no rule keeps; a dry run unless --yes",
        description="Rules add up: a checkpoint goes only if none of them keeps it. The newest two that "
        "verify, those kept by name, damaged ones and those of other runs always stay.",
    )
    add_run_argument(parser)
    parser.add_argument(
        "--keep",
        required=True,
        metavar="RULES",
        help='such as 3, or "latest 3, every 1000 steps, lowest 2 of val_loss, epoch ends"',
    )
    parser.add_argument("--yes", action="store_true", help="really remove them")
    parser.add_argument(
        "--take-over", action="store_true",
        help="in a bucket: also if its last writer, on another machine, did not say that it has ended",
    )  # fmt: skip
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Result:
    retention = parse_keep(options.keep)
    store = open_run(options.run_folder)
    sizes = {str(one.name): one.manifest.total_bytes for one in committed(store) if one.manifest}
    if options.yes:
        # Nobody prunes a run while it trains, for training prunes by its own rules.
        with store:
            _claim(store, take_over=options.take_over)
            done = prune(store, retention, Ledger())
    else:
        done = prune(DryRun(store), retention, Ledger())
    code = FAILED if done.failed else OK
    if done.refused is not None:
        code = DAMAGED if sizes else NOTHING_USABLE
    removed = [{"name": name, "bytes": sizes.get(name, 0)} for name in done.retired]
    said = {
        "run": store.where,
        "dry_run": not options.yes,
        "removed": removed,
        "bytes": sum(sizes.get(name, 0) for name in done.retired),
        "kept": [{"name": name, "why": why} for name, why in done.kept],
        "leftovers_removed": list(done.swept),
        "failed": [{"name": name, "why": why} for name, why in done.failed],
        "refused": done.refused,
    }
    return Result(said, _text(store.where, done, sizes, is_dry_run=not options.yes), code)


def _claim(store: CheckpointStore, *, take_over: bool) -> None:
    try:
        store.claim(certain=not take_over)
    except RunInUse as error:
        # A folder's lock tells whether anybody writes there; in a bucket nobody can know.
        if not is_bucket(store.where):
            raise
        raise RunInUse(
            error.message,
            hint="wait for it to end; if it died on another machine, say --take-over",
        ) from error


def _text(where: str, done: Pruning, sizes: dict[str, int], *, is_dry_run: bool) -> Iterator[Block]:
    if done.refused is not None:
        yield f"nothing was removed: {done.refused}"
        return
    verb = "remove " if is_dry_run else "removed"
    lines = {name: f"keep    step {_step(name)}: {why}" for name, why in done.kept}
    for name in done.retired:
        lines[name] = f"{verb} step {_step(name)}: no rule keeps it ({format_bytes(sizes.get(name, 0))})"
    yield from (lines[name] for name in sorted(lines, reverse=True))
    yield from (f"removed an unfinished save: {name}" for name in done.swept)
    yield from (f"could not remove {name}: {why}" for name, why in done.failed)
    freed = format_bytes(sum(sizes.get(name, 0) for name in done.retired))
    verb = "would remove" if is_dry_run else "removed"
    yield f"{verb} {plural(len(done.retired), 'checkpoint')}, {freed}, from {where}"
    if is_dry_run and done.retired:
        yield "this was a dry run; add --yes to do it"


def _step(name: str) -> int:
    parsed = parse_checkpoint_name(name)
    return parsed.step if parsed else 0
