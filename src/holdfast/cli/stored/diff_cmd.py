"""`holdfast diff`: what changed between two checkpoints, of one run or of two. Needs no torch."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import require_manifest
from holdfast.cli.opened_run import add_run_argument, choose, open_run, ranks_of
from holdfast.cli.read_only_store import WatchedStore
from holdfast.cli.render import ProgressBar, add_json_option, plural, shorten
from holdfast.cli.result import DIFFERENT, OK, Block, Result, Table
from holdfast.contents.diff import (
    StateDiff,
    TensorChange,
    ValueChange,
    compare,
    is_known_equal,
    of_one_form,
)
from holdfast.contents.state import Leaf, Path, StoredState, of_rank, read_state
from holdfast.contents.tensors import StoredTensor, read_tensors
from holdfast.stores.base import Store

_SHOWN = 20
_Change = TypeVar("_Change", TensorChange, ValueChange)
# Tensors of about this size are in memory at a time, of either checkpoint.
_BATCH_BYTES = 512 << 20


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "diff",
        help="what changed between two checkpoints",
        description="Compares bits. A and B are steps, names or the word newest.",
    )
    add_run_argument(parser)
    parser.add_argument("before", metavar="A", help="step, name or newest")
    parser.add_argument("after", metavar="B", help="step, name or newest")
    parser.add_argument("--other-run", metavar="RUN", help="take B from this run")
    parser.add_argument("--all", action="store_true", help=f"print every difference, not the first {_SHOWN}")
    parser.add_argument("--exit-code", action="store_true", help="answer 5 if anything differs")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Result:
    store_a = open_run(options.run_folder)
    store_b = open_run(options.other_run) if options.other_run else store_a
    a, b = choose(store_a, options.before), choose(store_b, options.after)
    diff = compare_checkpoints(store_a, a, store_b, b)
    said = {
        "a": _identified(store_a, a),
        "b": _identified(store_b, b),
        "identical": diff.is_identical,
        **{field.name: getattr(diff, field.name) for field in fields(diff)},
    }
    text = _text(a, b, diff, limit=None if options.all else _SHOWN)
    return Result(said, text, DIFFERENT if options.exit_code and not diff.is_identical else OK)


def compare_checkpoints(store_a: Store, a: Found, store_b: Store, b: Found) -> StateDiff:
    """A part at a time, so that little is in memory; files with equal digests are not read."""
    before, after = matched(read_state(store_a, a), read_state(store_b, b))
    same = _equal_files(a, b)
    total = sum(record.size for found in (a, b) for record in require_manifest(found).files)
    parts = []
    with ProgressBar("comparing", total) as bar:
        watched_a, watched_b = WatchedStore(store_a, bar.add), WatchedStore(store_b, bar.add)
        for mine in _batches(before):
            theirs = {path: after[path] for path in mine if path in after}
            pairs = list(_to_read(mine, theirs, same))
            bytes_a = read_tensors(watched_a, a, [old for old, _ in pairs])
            bytes_b = read_tensors(watched_b, b, [new for _, new in pairs])
            parts.append(
                compare(mine, theirs, bytes_a.__getitem__, bytes_b.__getitem__, equal_files=same),
            )
    added = [leaf.label for path, leaf in after.items() if path not in before]
    return _joined([*parts, StateDiff(added=tuple(added))], [leaf.label for leaf in before.values()])


def matched(a: StoredState, b: StoredState) -> tuple[dict[Path, Leaf], dict[Path, Leaf]]:
    """Both states as leaves that can be compared by path.

    Where one of them has something that belongs to a single rank, the other one's leaf is what that rank
    would get from it.
    """
    before, after = dict(a.common), dict(b.common)
    for rank in sorted({*a.own, *b.own}):
        for path in {**a.own.get(rank, {}), **b.own.get(rank, {})}:
            for state, leaves in ((a, before), (b, after)):
                leaf = state.seen_by(rank, path)
                if leaf is not None:
                    # No tracked object has a name with a space in it.
                    leaves[f"rank {rank}", *path] = Leaf(of_rank(rank, leaf.label), leaf.value)
    return before, after


def _batches(leaves: Mapping[Path, Leaf]) -> Iterator[dict[Path, Leaf]]:
    batch: dict[Path, Leaf] = {}
    size = 0
    # In the order of the files: a chunk that holds many tensors is then read once.
    for path in sorted(leaves, key=lambda path: _place(leaves[path])):
        value = leaves[path].value
        nbytes = value.nbytes if isinstance(value, StoredTensor) else 0
        if batch and size + nbytes > _BATCH_BYTES:
            yield batch
            batch, size = {}, 0
        batch[path] = leaves[path]
        size += nbytes
    yield batch


def _place(leaf: Leaf) -> tuple[str, int]:
    return leaf.value.place if isinstance(leaf.value, StoredTensor) else ("", 0)


def _to_read(
    mine: Mapping[Path, Leaf], theirs: Mapping[Path, Leaf], same: Collection[str]
) -> Iterator[tuple[StoredTensor, StoredTensor]]:
    for path, other in theirs.items():
        old, new = mine[path].value, other.value
        if not isinstance(old, StoredTensor) or not isinstance(new, StoredTensor):
            continue
        if of_one_form(old, new) and not is_known_equal(old, new, same):
            yield old, new


def _equal_files(a: Found, b: Found) -> set[str]:
    theirs = {file.name: file for file in require_manifest(b).files}
    return {
        file.name
        for file in require_manifest(a).files
        if file.name in theirs and replace(file, role="") == replace(theirs[file.name], role="")
    }


def _joined(parts: Sequence[StateDiff], order: Sequence[str]) -> StateDiff:
    """All of them as one, in the order in which training lists its state."""
    place = {label: number for number, label in enumerate(order)}

    def by_place(changes: Iterable[_Change]) -> tuple[_Change, ...]:
        return tuple(sorted(changes, key=lambda change: place[change.path]))

    return StateDiff(
        removed=tuple(sorted((name for part in parts for name in part.removed), key=place.__getitem__)),
        added=tuple(name for part in parts for name in part.added),
        reshaped=by_place(change for part in parts for change in part.reshaped),
        tensors=by_place(change for part in parts for change in part.tensors),
        values=by_place(change for part in parts for change in part.values),
        tensors_equal=sum(part.tensors_equal for part in parts),
        values_equal=sum(part.values_equal for part in parts),
    )


def _identified(store: Store, found: Found) -> dict[str, Any]:
    ranks = ranks_of(require_manifest(found))
    return {"run": store.where, "name": str(found.name), "step": found.step, "ranks": ranks}


def _text(a: Found, b: Found, diff: StateDiff, *, limit: int | None) -> Iterator[Block]:
    for letter, found in (("a", a), ("b", b)):
        ranks = ranks_of(require_manifest(found))
        yield f"{letter}: step {found.step}  {found.name}{f'  {ranks} ranks' if ranks > 1 else ''}"
    if diff.is_identical:
        yield f"identical: {plural(diff.tensors_equal, 'tensor')}, {plural(diff.values_equal, 'value')}"
        return
    values = [
        [shorten(c.path, 40), f"{shorten(c.before, 40)} -> {shorten(c.after, 40)}"] for c in diff.values
    ]
    for title, rows in (
        ("only in a", [[name] for name in diff.removed]),
        ("only in b", [[name] for name in diff.added]),
        ("another form", [[change.path, f"{change.before} -> {change.after}"] for change in diff.reshaped]),
        ("tensors that differ", [_tensor_row(change) for change in diff.tensors]),
        ("values that differ", values),
    ):
        yield from _block(title, rows, limit)
    yield (
        f"{len(diff.tensors)} of {plural(len(diff.tensors) + diff.tensors_equal, 'tensor')} and"
        f" {len(diff.values)} of {plural(len(diff.values) + diff.values_equal, 'value')} differ"
    )


def _tensor_row(change: TensorChange) -> list[str]:
    shape = "×".join(map(str, change.shape)) or "scalar"
    share = f"{100 * change.differing / max(change.elements, 1):.3g}%"
    largest = "max |Δ| unknown" if change.max_abs is None else f"max |Δ| {change.max_abs:.3g}"
    return [shorten(change.path, 44), f"{change.kind} {shape}", share, largest]


def _block(title: str, rows: list[list[str]], limit: int | None) -> Iterator[Block]:
    if not rows:
        return
    yield f"{title}:"
    shown = rows if limit is None else rows[:limit]
    wide = range(len(rows[0]))
    yield Table([""] * len(wide), shown, left=wide, indent="  ")
    if len(shown) < len(rows):
        yield f"  and {len(rows) - len(shown)} more; --all prints them"
