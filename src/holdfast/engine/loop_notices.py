"""Looks once, after a restart, at the loop around our iterators: does it count by itself what we took up
inside?

An `enumerate` begins at 0 and a `range` at its beginning, whatever was done before the restart. Nothing is
wrong in such a script until it is restarted; then indices, schedules and the number of steps are not those
of the run.
"""

from __future__ import annotations

import ast
import gc
import linecache
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

log = logging.getLogger("holdfast")
_OURS = str(Path(__file__).resolve().parents[1])


def say_if_counted_around(batches: Any, done: int, name: str) -> None:
    """`batches` is the iterator of a pass that is taken up behind `done` batches."""
    for holder in gc.get_referrers(batches):
        if isinstance(holder, enumerate):
            log.warning(
                "holdfast: enumerate() around run.batches begins at 0, and this epoch of %r goes on "
                "at batch %d; "
                "write `for index, batch in run.enumerate(loader)`",
                name, done,
            )  # fmt: skip
        elif isinstance(holder, tuple) and (others := _zipped_with(holder, type(batches))):
            log.warning(
                "holdfast: zip() pairs batch %d of this epoch of %r, where it goes on, with the first of %s; "
                "use run.enumerate(loader), or begin the other at the same place",
                done, name, ", ".join(others),
            )  # fmt: skip


def _zipped_with(members: tuple[Any, ...], ours: type) -> list[str]:
    """What else a zip holds that is not a pass of ours, which knows its position."""
    if not any(isinstance(holder, zip) for holder in gc.get_referrers(members)):
        return []
    return [type(member).__name__ for member in members if not isinstance(member, ours)]


def say_if_counted_by_hand(step: int, passes: int | None) -> None:
    """A loop that is not `run.epochs` or `run.steps` around a run that is at `step`."""
    frame = _callers_frame()
    if frame is None:
        return
    for loop in _loops_around(frame):
        what = ast.unparse(loop.iter if isinstance(loop, ast.For) else loop.test)
        if isinstance(loop, ast.For) and _counts_from_its_beginning(loop.iter):
            log.warning(
                "holdfast: `for ... in %s` (line %d) begins at its beginning, and this run is at "
                "step %d%s: it will make more steps than asked. Use run.epochs(n) or run.steps(n)",
                what, loop.lineno, step, "" if passes is None else f", in pass {passes + 1} of its data",
            )  # fmt: skip
            return
        if isinstance(loop, ast.While) and (behind := _behind(loop.test, frame, step)):
            log.warning(
                "holdfast: `while %s` (line %d) begins with %s, and this run is at step %d: it will "
                "make more steps "
                "than asked. Begin with run.step, or put %s into run.remember(...)",
                what, loop.lineno, behind, step, behind.split(" ")[0],
            )  # fmt: skip
            return


def _callers_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(Path(frame.f_code.co_filename)).startswith(_OURS):
        frame = frame.f_back
    return frame


def _loops_around(frame: FrameType) -> Iterator[ast.For | ast.While]:
    """Those of the source around the line that is running, the innermost last."""
    lines = linecache.getlines(frame.f_code.co_filename)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return
    first = frame.f_code.co_firstlineno
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.While)) and first <= node.lineno <= frame.f_lineno <= (
            node.end_lineno or 0
        ):
            yield node


def _counts_from_its_beginning(source: ast.expr) -> bool:
    """range(10) does; range(run.epoch, 10) does not."""
    if isinstance(source, ast.Call) and isinstance(source.func, ast.Name):
        if source.func.id in ("enumerate", "tqdm", "trange") and source.args:
            return _counts_from_its_beginning(source.args[0]) or source.func.id == "trange"
        if source.func.id == "range":
            begin = source.args[0] if len(source.args) > 1 else ast.Constant(0)
            return isinstance(begin, ast.Constant)
    return False


def _behind(test: ast.expr, frame: FrameType, step: int) -> str | None:
    """A counter in the condition that stands at its beginning although the run does not."""
    for node in ast.walk(test):
        if isinstance(node, ast.Name):
            value = frame.f_locals.get(node.id, frame.f_globals.get(node.id))
            if type(value) is int and value == 0 and step > 0:
                return f"{node.id} = {value}"
    return None
