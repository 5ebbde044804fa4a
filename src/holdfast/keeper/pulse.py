"""Whether somebody leads, told by the shared file system: a leader writes a number there that keeps growing.

A keeper that lost its leader cannot tell a dead leader from a broken network. If it took over while the other
lives, it would end a healthy training. The folder that all nodes see is the witness: as long as that number
grows, somebody leads, and whoever cannot reach it is the one that is cut off.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.keeper.meeting import Meeting
from holdfast.keeper.world import Card

PROBE_SECONDS = 1.0
_LOOK_SECONDS = 0.2


class Pulse:
    """From a thread of its own, until stopped. A file system that fails is tried again."""

    def __init__(self, meeting: Meeting, number: int, seconds: float) -> None:
        self._meeting = meeting
        self._number = number
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="holdfast-pulse", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        # A file system that hangs must not keep a job from ending.
        self._thread.join(self._seconds + PROBE_SECONDS)

    def _beat(self) -> None:
        count = 0
        while True:
            count += 1
            with contextlib.suppress(HoldfastError):
                self._meeting.write_pulse(self._number, count)
            if self._stop.wait(self._seconds):
                return


def somebody_leads(
    meeting: Meeting, me: Card, seconds: float, clock: Clock, pause: Callable[[float], None]
) -> bool:
    """Whether another keeper's pulse is seen to beat within `seconds`. Returns at once where no process is
    left that could. `pause` may return early."""
    before = meeting.pulses()
    able = [card for card in meeting.registered() if card.number in before and card.number != me.number]
    able = [card for card in able if not _refuses(card)]
    end = clock.monotonic() + seconds
    while able and (left := end - clock.monotonic()) > 0:
        pause(min(left, _LOOK_SECONDS))
        after = meeting.pulses()
        if any(after.get(card.number) not in (None, before[card.number]) for card in able):
            return True
    return False


def _refuses(card: Card) -> bool:
    """Its machine answers that there is no such process any more."""
    try:
        socket.create_connection((card.address, card.port), timeout=PROBE_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
