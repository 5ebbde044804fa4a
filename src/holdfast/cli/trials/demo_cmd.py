"""`holdfast demo`: the first thing people see. Trains, is killed, resumes, compares; removes what it made.

The picture has 80 columns: live on a terminal, plain lines elsewhere. Colours only repeat what the words say.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from holdfast.cli.render import add_json_option, plural
from holdfast.cli.result import FAILED, OK, Result
from holdfast.cli.stored.whole_output import require_new
from holdfast.cli.trials.demo_run import KILLED, NONE, OURS, PLAIN, DemoResult, Lane, WayResult, play
from holdfast.clock import SystemClock
from holdfast.units import format_bytes, format_seconds

_BAR = 34
_REDRAW_SECONDS = 0.08
_GREEN, _RED, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[0m"
HEADING = """\
holdfast demo: the same training three times, then once more with kill -9
  a real model, real handwritten digits, processes of their own; about a minute
"""


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


def run(options: argparse.Namespace) -> Result:
    screen = Screen(sys.stdout)
    with ExitStack() as stack:
        if options.folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-")))
        else:
            folder = Path(options.folder)
            require_new(folder)
            folder.mkdir()
        if not options.json:
            print(HEADING, flush=True)
        result = play(folder, (lambda lanes: None) if options.json else screen.show, options.epochs)
    said = {"identical": result.is_identical, **asdict(result)}
    return Result(said, summary(result, screen.glyphs), OK if result.is_identical else FAILED)


class Glyphs:
    """Characters that this terminal can show."""

    def __init__(self, encoding: str | None) -> None:
        rich = (encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")
        self.done, self.open, self.dead, self.tick = ("█", "░", "✗", "✓") if rich else ("#", ".", "X", "yes:")


def lane_line(lane: Lane, glyphs: Glyphs) -> str:
    """One training as a bar. A resumed one begins where it was resumed."""
    first = round(_BAR * lane.first / lane.total)
    upto = max(round(_BAR * lane.step / lane.total), first)
    bar = glyphs.open * first + glyphs.done * (upto - first) + (glyphs.dead if lane.is_dead else "")
    bar = bar.ljust(_BAR, " " if lane.is_dead else glyphs.open)[:_BAR]
    end = f"{lane.step:>4}/{lane.total}"
    if lane.is_dead:
        end = f"{lane.step:>4} killed"
    elif lane.first:
        end += f"  from step {lane.first}"
    elif lane.seconds:
        end += f"  {lane.seconds:5.1f} s"
        end += f"  loss {lane.loss:.3f}" if lane.loss is not None and not lane.is_done else ""
    return f"  {lane.title:<14} {bar} {end}"[:80]


def summary(result: DemoResult, glyphs: Glyphs) -> Iterator[str]:
    """What was found, in numbers of this run only."""
    kill = result.kill
    million = f"{result.parameters / 1e6:.1f} million parameters"
    yield ""
    yield f"  {million}, AdamW, {format_bytes(result.state_bytes)} of state; saved every {result.every} steps"
    yield ""
    yield f"  {'':<14} {'time':>8} {'slower':>9} {'saves':>7}   a save stops training for"
    yield from (_way_line(way, result) for way in result.ways)
    if result.load > result.cores / 2:
        yield f"  (other work had a load of {result.load:.0f} on {result.cores} cores: these times are noisy)"
    yield ""
    yield (
        f"  killed after step {kill.killed_after_step}, {kill.epoch_share:.0%} into epoch {kill.epoch};"
        f" resumed at step {kill.resumed_at_step} in {format_seconds(kill.restore_seconds)}:"
    )
    yield f"  {plural(kill.steps_redone, 'step')} of {result.steps} redone"
    yield ""
    yield "  final weights and optimizer, SHA-256"
    yield from (f"    {way.way:<19} {way.fingerprint[:40]}" for way in result.ways)
    yield f"    {'killed and resumed':<19} {kill.fingerprint[:40]}"
    if result.is_identical:
        yield f"  {glyphs.tick} bit for bit the same, all four"
    else:
        yield f"  {glyphs.dead} NOT the same: this is a bug; please report it with this output"
    yield f"  {result.way(OURS).accuracy:.1%} of 297 digits that it never saw are read correctly"


def _way_line(way: WayResult, result: DemoResult) -> str:
    slower = way.seconds / result.way(NONE).seconds - 1
    cells = f"  {way.way:<14} {way.seconds:>6.2f} s "
    if way.stall_seconds is None:
        return cells + f"{'-':>9} {'-':>7}   -"
    cells += f"{slower:>+8.1%}  {way.saves:>7}   {format_seconds(way.stall_seconds)}"
    torch_save = result.way(PLAIN).stall_seconds
    if way.way == OURS and torch_save and way.stall_seconds:
        cells += f" ({torch_save / way.stall_seconds:.0f} times less)"
    return cells


class Screen:
    """Draws lanes over themselves on a terminal; elsewhere prints each of them once, when it has ended."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.glyphs = Glyphs(stream.encoding)
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._coloured = self._live and "NO_COLOR" not in os.environ
        self._clock = SystemClock()
        self._drawn, self._drawn_at = 0, -1.0
        self._ended: set[str] = set()

    def show(self, lanes: Mapping[str, Lane]) -> None:
        ended = {title for title, lane in lanes.items() if lane.is_done or lane.is_dead}
        new, self._ended = ended - self._ended, ended
        if not self._live:
            drawn = "".join(f"{lane_line(lanes[title], self.glyphs)}\n" for title in lanes if title in new)
        elif new or self._drawn != len(lanes) or self._clock.monotonic() - self._drawn_at >= _REDRAW_SECONDS:
            self._drawn_at = self._clock.monotonic()
            drawn = f"\x1b[{self._drawn}A" if self._drawn else ""
            drawn += "".join(f"\r\x1b[2K{self._paint(lane)}\n" for lane in lanes.values())
            self._drawn = len(lanes)
        else:
            return
        self._stream.write(drawn)
        self._stream.flush()

    def _paint(self, lane: Lane) -> str:
        colour = _RED if lane.title == KILLED else _GREEN if lane.title not in (NONE, PLAIN) else ""
        line = lane_line(lane, self.glyphs)
        return f"{colour}{line}{_PLAIN}" if self._coloured else line
