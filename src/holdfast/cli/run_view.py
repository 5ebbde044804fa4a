"""What `holdfast run` says on standard error: a line for every event, and one live line in between."""

from __future__ import annotations

import sys

from holdfast.cli.terminal import clean, shorten, width
from holdfast.events import AttemptEnded, AttemptStarted, Event, SupervisorEnded, Warned
from holdfast.jobs.supervisor import Status
from holdfast.units import format_seconds


class RunView:
    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._shown = 0

    def tell(self, event: Event) -> None:
        text = describe(event)
        if text:
            self.clear()
            print(f"holdfast run: {text}", file=sys.stderr, flush=True)

    def show(self, status: Status) -> None:
        if self._live:
            text = shorten(status_line(status), width() - 1)
            print("\r" + text.ljust(self._shown), end="", file=sys.stderr, flush=True)
            self._shown = len(text)

    def clear(self) -> None:
        if self._shown:
            print("\r" + " " * self._shown + "\r", end="", file=sys.stderr, flush=True)
            self._shown = 0


def describe(event: Event) -> str | None:
    """One line for people; None for what they need not know."""
    if isinstance(event, AttemptStarted):
        return f"attempt {event.attempt + 1} started (pid {event.pid})"
    if isinstance(event, AttemptEnded):
        ended = event.detail if event.detail.startswith(event.cause) else f"{event.cause}, {event.detail}"
        saved = f"; newest checkpoint {clean(event.checkpoint)}" if event.checkpoint else ""
        then = f"; {event.then}" if event.will_restart else ""
        lived = format_seconds(event.seconds)
        return f"attempt {event.attempt + 1} ended after {lived}: {clean(ended)}{saved}{then}"
    if isinstance(event, SupervisorEnded):
        return f"exit code {event.exit_code}: {clean(event.why)}"
    return clean(event.message) if isinstance(event, Warned) else None


def status_line(status: Status) -> str:
    parts = [f"attempt {status.attempt + 1}"]
    if status.pausing is not None:
        parts.append(f"starts in {format_seconds(round(status.pausing))}")
    else:
        parts.append(f"up {format_seconds(round(status.seconds))}")
    if status.beat is not None:
        parts.append(f"step {status.beat.step:,}, {status.beat.phase}")
    if status.restarts:
        parts.append(f"{status.restarts} failures so far")
    return "holdfast run: " + " · ".join(parts)
