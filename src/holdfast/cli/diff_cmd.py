"""`holdfast diff`: what changed between two checkpoints, of one run or of two. Needs no torch."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import read_files, require_manifest
from holdfast.cli.exit_codes import DIFFERENT, OK
from holdfast.cli.json_output import add_json_option, print_json
from holdfast.cli.progress_bar import ProgressBar
from holdfast.cli.run_folder import add_run_argument, choose, open_run
from holdfast.cli.state_diff import StateDiff, TensorChange, compare
from holdfast.cli.stored_state import Leaf, StoredTensor, leaves_of, read_layouts
from holdfast.cli.terminal import clean, columns, plural
from holdfast.cli.watched_store import WatchedStore
from holdfast.stores.base import Store
from holdfast.stores.directory import DirectoryStore

_SHOWN = 20


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


def run(options: argparse.Namespace) -> int:
    store_a = open_run(options.run_folder)
    store_b = open_run(options.other_run) if options.other_run else store_a
    a, b = choose(store_a, options.before), choose(store_b, options.after)
    diff = compare_checkpoints(store_a, a, store_b, b)
    if options.json:
        _print_json(_identified(store_a, a), _identified(store_b, b), diff)
    else:
        _print(a, b, diff, limit=None if options.all else _SHOWN)
    return DIFFERENT if options.exit_code and not diff.is_identical else OK


def compare_checkpoints(store_a: DirectoryStore, a: Found, store_b: DirectoryStore, b: Found) -> StateDiff:
    """File by file, so that only one file of each is in memory; files with equal digests are not read."""
    leaves_a = leaves_of(a, read_layouts(store_a, a))
    leaves_b = leaves_of(b, read_layouts(store_b, b))
    same = _equal_files(a, b)
    total = sum(record.size for found in (a, b) for record in require_manifest(found).files)
    parts = []
    with ProgressBar("comparing", total) as bar:
        for file in sorted({_file(leaf) for leaf in leaves_a.values()}):
            mine = {path: leaf for path, leaf in leaves_a.items() if _file(leaf) == file}
            # What moved to another file is compared where it was.
            theirs = {path: leaves_b[path] for path in mine if path in leaves_b}
            reader_a = _Reader(WatchedStore(store_a, bar.add), a)
            reader_b = _Reader(WatchedStore(store_b, bar.add), b)
            parts.append(compare(mine, theirs, reader_a.bytes_of, reader_b.bytes_of, equal_files=same))
    added = {path: leaf for path, leaf in leaves_b.items() if path not in leaves_a}
    return _joined([*parts, StateDiff(added=tuple(leaf.label for leaf in added.values()))])


class _Reader:
    """The verified bytes of tensors, a whole file at a time: digests cover chunks, not tensors."""

    def __init__(self, store: Store, found: Found) -> None:
        self._store, self._found = store, found
        self._images: dict[str, memoryview] = {}

    def bytes_of(self, tensor: StoredTensor) -> memoryview:
        if tensor.file not in self._images:
            self._images |= read_files(self._store, self._found, [tensor.file])
        return self._images[tensor.file][tensor.start : tensor.stop]


def _file(leaf: Leaf) -> str:
    return leaf.value.file if isinstance(leaf.value, StoredTensor) else ""


def _equal_files(a: Found, b: Found) -> set[str]:
    theirs = {file.name: file for file in require_manifest(b).files}
    return {
        file.name
        for file in require_manifest(a).files
        if file.name in theirs and replace(file, role="") == replace(theirs[file.name], role="")
    }


def _joined(parts: list[StateDiff]) -> StateDiff:
    return StateDiff(
        removed=tuple(name for part in parts for name in part.removed),
        added=tuple(name for part in parts for name in part.added),
        reshaped=tuple(change for part in parts for change in part.reshaped),
        tensors=tuple(change for part in parts for change in part.tensors),
        values=tuple(change for part in parts for change in part.values),
        tensors_equal=sum(part.tensors_equal for part in parts),
        values_equal=sum(part.values_equal for part in parts),
    )


def _print_json(a: dict[str, Any], b: dict[str, Any], diff: StateDiff) -> None:
    print_json(
        {
            "a": a,
            "b": b,
            "identical": diff.is_identical,
            "removed": diff.removed,
            "added": diff.added,
            "reshaped": diff.reshaped,
            "tensors": diff.tensors,
            "values": diff.values,
            "tensors_equal": diff.tensors_equal,
            "values_equal": diff.values_equal,
        }
    )


def _identified(store: DirectoryStore, found: Found) -> dict[str, Any]:
    return {"run": store.where, "name": str(found.name), "step": found.step}


def _print(a: Found, b: Found, diff: StateDiff, *, limit: int | None) -> None:
    print(f"a: step {a.step}  {a.name}\nb: step {b.step}  {b.name}")
    if diff.is_identical:
        print(f"identical: {plural(diff.tensors_equal, 'tensor')}, {plural(diff.values_equal, 'value')}")
        return
    _block("only in a", [[clean(name)] for name in diff.removed], limit)
    _block("only in b", [[clean(name)] for name in diff.added], limit)
    forms = [[clean(c.path), f"{clean(c.before)} -> {clean(c.after)}"] for c in diff.reshaped]
    _block("another form", forms, limit)
    _block("tensors that differ", [_tensor_row(change) for change in diff.tensors], limit)
    rows = [[clean(c.path, 40), f"{clean(c.before, 40)} -> {clean(c.after, 40)}"] for c in diff.values]
    _block("values that differ", rows, limit)
    print(
        f"{len(diff.tensors)} of {plural(len(diff.tensors) + diff.tensors_equal, 'tensor')} and"
        f" {len(diff.values)} of {plural(len(diff.values) + diff.values_equal, 'value')} differ"
    )


def _tensor_row(change: TensorChange) -> list[str]:
    shape = "×".join(map(str, change.shape)) or "scalar"
    share = f"{100 * change.differing / max(change.elements, 1):.3g}%"
    largest = "max |Δ| unknown" if change.max_abs is None else f"max |Δ| {change.max_abs:.3g}"
    return [clean(change.path, 44), f"{clean(change.kind)} {shape}", share, largest]


def _block(title: str, rows: list[list[str]], limit: int | None) -> None:
    if not rows:
        return
    print(f"{title}:")
    shown = rows if limit is None else rows[:limit]
    for line in columns([""] * len(rows[0]), shown, left=tuple(range(len(rows[0]))))[1:]:
        print(f"  {line}")
    if len(shown) < len(rows):
        print(f"  and {len(rows) - len(shown)} more; --all prints them")
