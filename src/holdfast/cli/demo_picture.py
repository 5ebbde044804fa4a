"""The demo in 80 columns: live where somebody watches, plain lines where not. Pure but for `Screen`.

Everything can be read without colours; colours only repeat what the words say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TextIO

from holdfast.cli.demo_script import KILLED, NONE, OURS, PLAIN, DemoResult, Lane, WayResult
from holdfast.clock import SystemClock
from holdfast.units import format_bytes, format_seconds

_BAR = 34
_REDRAW_SECONDS = 0.08
_BOLD, _GREEN, _RED, _PLAIN = "\x1b[1m", "\x1b[32m", "\x1b[31m", "\x1b[0m"


class Glyphs:
    """Characters that this terminal can show."""

    def __init__(self, encoding: str | None) -> None:
        rich = (encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")
        self.done, self.open, self.dead, self.tick = ("█", "░", "✗", "✓") if rich else ("#", ".", "X", "yes:")


def lane_line(lane: Lane, glyphs: Glyphs) -> str:
    """One training as a bar. A resumed one begins where it was resumed."""
    first = round(_BAR * lane.first / lane.total)
    upto = max(round(_BAR * lane.step / lane.total), first)
    bar = glyphs.open * first + glyphs.done * (upto - first)
    bar = (bar + (glyphs.dead if lane.is_dead else "")).ljust(_BAR, " " if lane.is_dead else glyphs.open)[
        :_BAR
    ]
    end = f"{lane.step:>4}/{lane.total}"
    if lane.is_dead:
        end = f"{lane.step:>4} killed"
    elif lane.first:
        end += f"  from step {lane.first}"
    elif lane.seconds:
        end += f"  {lane.seconds:5.1f} s"
        end += f"  loss {lane.loss:.3f}" if lane.loss is not None and not lane.is_done else ""
    return f"  {lane.title:<14} {bar} {end}"[:80]


def heading() -> list[str]:
    return [
        "holdfast demo: the same training three times, then once more with kill -9",
        "  a real model, real handwritten digits, processes of their own; about a minute",
        "",
    ]


def summary(result: DemoResult, glyphs: Glyphs) -> list[str]:
    """What was found, in numbers of this run only."""
    kill = result.kill
    million = f"{result.parameters / 1e6:.1f} million parameters"
    lines = [
        "",
        f"  {million}, AdamW, {format_bytes(result.state_bytes)} of state; saved every {result.every} steps",
        "",
        f"  {'':<14} {'time':>8} {'slower':>9} {'saves':>7}   a save stops training for",
    ]
    lines += [_way_line(way, result) for way in result.ways]
    if result.is_busy:
        lines.append(
            f"  (other work had a load of {result.load:.0f} on {result.cores} cores: these times are noisy)"
        )
    lines += [
        "",
        f"  killed after step {kill.killed_after_step}, {kill.epoch_share:.0%} into epoch {kill.epoch};"
        f" resumed at step {kill.resumed_at_step} in {format_seconds(kill.restore_seconds)}:",
        f"  {_steps(kill.steps_redone)} of {result.steps} redone",
        "",
        "  final weights and optimizer, SHA-256",
    ]
    for way in result.ways:
        lines.append(f"    {way.way:<19} {way.fingerprint[:40]}")
    lines.append(f"    {'killed and resumed':<19} {kill.fingerprint[:40]}")
    if result.is_identical:
        lines.append(f"  {glyphs.tick} bit for bit the same, all four")
    else:
        lines.append(f"  {glyphs.dead} NOT the same: this is a bug; please report it with this output")
    right = result.way(OURS).accuracy
    lines.append(f"  {right:.1%} of 297 digits that it never saw are read correctly")
    return lines


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


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
        self._drawn = 0
        self._drawn_at = -1.0
        self._printed: set[str] = set()

    def show(self, lanes: Mapping[str, Lane]) -> None:
        ended = sum(lane.is_done or lane.is_dead for lane in lanes.values())
        if not self._live:
            for lane in lanes.values():
                if (lane.is_done or lane.is_dead) and lane.title not in self._printed:
                    self._printed.add(lane.title)
                    self.write([lane_line(lane, self.glyphs)])
            return
        now = self._clock.monotonic()
        if (
            now - self._drawn_at < _REDRAW_SECONDS
            and ended == len(self._printed)
            and self._drawn == len(lanes)
        ):
            return
        self._printed = {lane.title for lane in lanes.values() if lane.is_done or lane.is_dead}
        self._drawn_at = now
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        drawn = "".join(f"\r\x1b[2K{self._paint(lane)}\n" for lane in lanes.values())
        self._stream.write(up + drawn)
        self._stream.flush()
        self._drawn = len(lanes)

    def _paint(self, lane: Lane) -> str:
        line = lane_line(lane, self.glyphs)
        if not self._coloured:
            return line
        colour = _RED if lane.title == KILLED else (_GREEN if lane.title not in (NONE, PLAIN) else "")
        return f"{colour}{line}{_PLAIN}"

    def write(self, lines: Sequence[str]) -> None:
        for line in lines:
            mark = line.strip().startswith(self.glyphs.tick) or line.startswith("holdfast demo")
            text = f"{_BOLD}{line}{_PLAIN}" if mark and self._coloured else line
            self._stream.write(text + "\n")
        self._stream.flush()
