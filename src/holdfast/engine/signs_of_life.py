"""What an open run lets others know while it trains: its supervisor, the journal, who wants it to halt."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.engine.halting import HaltWatch
from holdfast.engine.last_step import LastStep
from holdfast.engine.reported import Reported
from holdfast.engine.run_state import RunState
from holdfast.engine.stop_signals import show_stacks_on_request
from holdfast.engine.stopping import Stopping
from holdfast.events import Emit, NoticeReceived, Progress
from holdfast.jobs.heartbeat import HeartbeatWriter, Phase
from holdfast.jobs.notices import Notice
from holdfast.policy.debt import DebtPolicy

HEARTBEAT_SECONDS = 5.0
_LAST_PHASE: dict[str, Phase] = {"finished": "finished", "stopped": "stopped", "error": "failed"}


class SignsOfLife:
    def __init__(
        self,
        beats: HeartbeatWriter,
        halt: HaltWatch | None,
        state: RunState,
        reported: Reported,
        policy: DebtPolicy,
        clock: Clock,
        emit: Emit,
        last_step: LastStep | None = None,
    ) -> None:
        """`halt` and `last_step` are None where another rank looks and tells."""
        self._beats = beats
        self._halt = halt
        self._state = state
        self._reported = reported
        self._policy = policy
        self._clock = clock
        self._emit = emit
        self._last_step = last_step
        self._next = clock.monotonic()
        self._notice: Notice | None = None

    def begin(self, resumed_from: str | None) -> None:
        if self._beats.is_watched:
            show_stacks_on_request()
            self._beats.resumed_from = resumed_from
            self._beats.say(self._state.step, "training")

    def beat(self, now: float) -> None:
        """For the supervisor alone. Cheap enough for every batch."""
        self._beats.beat(now, self._state.step)

    def boundary(self, now: float, last_boundary: float) -> bool:
        """At every step's end; every few seconds it says more, and answers yes."""
        if self._last_step is not None:
            self._last_step.note(self._state.step, self._clock.wall())
        if says_more := now >= self._next:
            self._next = now + HEARTBEAT_SECONDS
            if self._halt is not None:
                self._halt.look_soon()
            self._emit(
                Progress(
                    time=self._clock.wall(),
                    step=self._state.step,
                    epoch=self._state.epoch,
                    step_seconds=now - last_boundary,
                    loss=self._reported.loss_or_none(),
                    policy=self._policy.explain(),
                )
            )
        self.beat(now)
        return says_more

    def hear_notice(self, stopping: Stopping) -> str | None:
        """The newest notice, in the journal once and for the policy as often as it asks."""
        notice = stopping.notice
        if notice is not None and notice != self._notice:
            self._notice = notice
            self._emit(
                NoticeReceived(
                    time=self._clock.wall(), source=notice.source, what=notice.what, stops=notice.stops
                )
            )
        return None if notice is None else str(notice)

    def finishing(self, why: str) -> None:
        self._beats.say(self._state.step, "finishing", why)

    def end(self, how: str, why: str) -> None:
        self._beats.say(self._state.step, _LAST_PHASE[how], why)
        self._beats.close()
        if self._last_step is not None:
            self._last_step.close(forget=True)  # the journal says how it ended, and where
