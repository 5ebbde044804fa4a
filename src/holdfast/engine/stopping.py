"""Everything that may end a run before its work is done, behind one question: why must we stop?

Signals, the deadline and the provider's notices set flags here; the loop asks at step boundaries. Never acts
by itself: saving and leaving are the session's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Literal

from holdfast.clock import Clock
from holdfast.engine.stop_signals import CTRL_C, StopSignals
from holdfast.errors import SetupError
from holdfast.jobs import exit_codes
from holdfast.jobs.attempts import SAYS_DEADLINE, SAYS_NOTICE
from holdfast.jobs.deadline import GivenDeadline, as_monotonic, find_deadline, parse_deadline
from holdfast.jobs.environment import WallDeadline, detect
from holdfast.jobs.limit_warning import announces_the_limit
from holdfast.jobs.notices import Notice, NoticePoller
from holdfast.jobs.spot_machine import Spot, spot_poller

SAYS_NOT_FINITE = "the loss is not finite"
OnStop = Literal["exit", "return"]


class Stopped(SystemExit):
    """Training ends here, its state saved: raised at a step boundary when a run was asked to stop.

    Leaves the with block like any exception, so that nothing behind the loop takes the half-trained model for
    the result; then ends the process with a code that says "run me again".
    """


class Stopping:
    def __init__(
        self,
        clock: Clock,
        *,
        deadline: WallDeadline | None = None,
        notices: NoticePoller | None = None,
        on_stop: OnStop = "exit",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.signals = StopSignals()
        self.on_stop = on_stop
        self.deadline: float | None = None if deadline is None else as_monotonic(deadline, clock)
        self._deadline_source = "" if deadline is None else deadline.source
        self._notices = notices
        self._environ = os.environ if environ is None else environ
        # Whether saves were measured, so that the last one before the deadline is timed by that.
        self.last_save_is_planned: Callable[[], bool] = lambda: False
        self._final_save_taken = False
        self._agreed: tuple[str, int] | None = None
        self._halted: str | None = None
        self._diverged: tuple[str, int] | None = None
        self._longest_accumulation = 0.0

    @staticmethod
    def check(clock: Clock, *, deadline: GivenDeadline | None, spot: Spot, on_stop: OnStop) -> None:
        """What cannot be understood is said when it is given. Asks no scheduler."""
        if on_stop not in ("exit", "return"):
            raise SetupError(f"on_stop={on_stop!r}", hint='use "exit" or "return"')
        if deadline is not None:
            parse_deadline(deadline, clock.wall())
        spot_poller(spot, {})

    @staticmethod
    def from_environment(
        clock: Clock,
        *,
        deadline: GivenDeadline | None,
        spot: Spot,
        on_stop: OnStop,
        environ: Mapping[str, str] | None = None,
    ) -> Stopping:
        environ = os.environ if environ is None else environ
        found = find_deadline(deadline, environ, detect(environ, clock), clock)
        notices = spot_poller(spot, environ)
        return Stopping(clock, deadline=found, notices=notices, on_stop=on_stop, environ=environ)

    def open(self) -> None:
        self.signals.install()
        if self._notices is not None:
            self._notices.start()

    def close(self) -> None:
        self.signals.remove()
        if self._notices is not None:
            self._notices.close()

    @property
    def reason(self) -> str | None:
        """Why the loop must end at the next boundary, or None. Asked at every step."""
        if self._agreed is not None:
            return self._agreed[0]
        if self._halted is not None:
            return self._halted
        if self._diverged is not None:
            return self._diverged[0]
        if self.signals.reason is not None and not self._only_announces_the_limit():
            return self.signals.reason
        if self._final_save_taken:
            return f"{SAYS_DEADLINE} ({self._deadline_source})"
        notice = self.notice
        return f"{SAYS_NOTICE}: {notice}" if notice is not None and notice.stops else None

    def _only_announces_the_limit(self) -> bool:
        heard = self.signals.warned_at
        if heard is None or self.deadline is None or not self.last_save_is_planned():
            return False
        return announces_the_limit(self.signals.number, self.deadline - heard, self._environ)

    @property
    def notice(self) -> Notice | None:
        """The provider's newest word about this machine."""
        return None if self._notices is None else self._notices.newest

    @property
    def exit_code(self) -> int:
        if self._agreed is not None:
            return self._agreed[1]
        if self._halted is not None:
            return exit_codes.DO_NOT_RESTART
        if self._diverged is not None:
            return self._diverged[1]
        return exit_codes.INTERRUPTED if self.signals.reason == CTRL_C else exit_codes.PLEASE_RUN_AGAIN

    @property
    def is_agreed(self) -> bool:
        """Whether every rank stops at this boundary."""
        return self._agreed is not None

    def agreed(self, reason: str, exit_code: int) -> None:
        """Some rank was asked to stop, and all of them do so here."""
        self._agreed = (reason, exit_code)

    def halt(self, reason: str) -> None:
        """Somebody left a HALT note: save, end, and do not start again. From the worker: one attribute."""
        self._halted = reason

    def diverged(self, step: int, exit_code: int) -> None:
        """The loss is not finite, and such a state shall not be saved."""
        self._diverged = (f"{SAYS_NOT_FINITE} at step {step}", exit_code)

    @property
    def wants_last_save(self) -> bool:
        """Whether the state at the end is worth saving. Known to every rank by the reason they agreed on."""
        return not (self.reason or "").startswith(SAYS_NOT_FINITE)

    def final_save_taken(self) -> None:
        """No later save would be in time, so what is trained from here on would be trained twice."""
        self._final_save_taken = True

    def accumulated(self, seconds: float) -> None:
        """So long no save could start, because gradients were being accumulated: be earlier by that."""
        if self.deadline is not None and seconds > 1.1 * self._longest_accumulation:
            self.deadline -= seconds - self._longest_accumulation
            self._longest_accumulation = seconds
