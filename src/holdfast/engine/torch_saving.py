"""The saves of an open run, on the training thread: start one, hear how it ended, remember what is saved."""

from __future__ import annotations

import logging
import math
from typing import cast

from holdfast.capture.torch_registry import Tracked
from holdfast.checkpoints.retention import NOT_FINITE
from holdfast.clock import Clock
from holdfast.engine.copy_meter import CopyMeter
from holdfast.engine.handle import SaveHandle
from holdfast.engine.reported import Reported
from holdfast.engine.run_state import RunState
from holdfast.engine.settings import Settings
from holdfast.engine.torch_saver import Saver, SaveRequest
from holdfast.engine.torch_setting import setting_key
from holdfast.engine.torch_snapshots import Snapshots
from holdfast.errors import Fenced, HoldfastError, SaveError, TornSnapshot
from holdfast.events import Emit, SaveDecided
from holdfast.policy.debt import DebtPolicy
from holdfast.policy.observation import SaveCost
from holdfast.staging.copy_choice import Mode

log = logging.getLogger("holdfast")
# Of the time between two passes over the data, that holding the state between them may take.
_HOLD_SHARE = 0.01


class Saves:
    """`take_all_at_once` makes the next snapshot a blocking one, as after a torn one; `is_unfenced` makes all
    of them so, where nothing holds updates back."""

    def __init__(
        self,
        saver: Saver,
        snapshots: Snapshots,
        state: RunState,
        policy: DebtPolicy,
        reported: Reported,
        meter: CopyMeter,
        settings: Settings,
        clock: Clock,
        emit: Emit,
        *,
        where: str,
        tracked: list[Tracked],
        alone: bool,
        resumed_bytes: int | None,
    ) -> None:
        self.saver = saver
        self.take_all_at_once = False
        self.is_unfenced = False
        self._snapshots = snapshots
        self._state = state
        self._policy = policy
        self._reported = reported
        self._meter = meter
        self._settings = settings
        self._clock = clock
        self._emit = emit
        self._where = where
        self._tracked = tracked
        self._alone = alone
        self._resumed_bytes = resumed_bytes
        self._saved_at: tuple[int, int] | None = None if resumed_bytes is None else (state.step, state.epoch)
        self._last: SaveHandle | None = None
        self._held: SaveRequest | None = None
        self._held_at = -math.inf
        self._hold_seconds = 0.0
        self._names_at: tuple[tuple[int, int], int] = ((-1, -1), 0)
        self._setting_of: tuple[int, str] | None = None

    @property
    def is_saved(self) -> bool:
        """Whether the present state is saved, or on its way."""
        return self._saved_at == (self._state.step, self._state.epoch)

    @property
    def is_durable(self) -> bool:
        """Whether the present state is committed."""
        return self.is_saved and (self._last is None or self._last.outcome == "committed")

    @property
    def must_wait(self) -> bool:
        """Whether no save can start: one is in flight, or no staging memory is free."""
        return self.saver.in_flight or not self._snapshots.slot_available

    def now(
        self, reason: str, *, keep: str | None = None, notes: str = "", by_name: bool = True
    ) -> SaveHandle:
        """`by_name=False`: as when the policy asks for it."""
        handle = self.start(
            reason, self._clock.monotonic(), forced=True, by_name=by_name, keep=keep, notes=notes
        )
        if handle is None:
            raise SaveError(f"no staging memory came free for the save of step {self._state.step}")
        return handle

    def start(
        self, reason: str, now: float, *, forced: bool = False, by_name: bool = False,
        tags: tuple[str, ...] = (), keep: str | None = None, notes: str = "",
    ) -> SaveHandle | None:  # fmt: skip
        """None if no staging slot is free; a forced save waits for one.

        A save that was asked for by name (`save_now`, the best, an epoch's end) is wanted of this very state,
        so it is copied here: behind training it might tear, and a later boundary is another state.
        """
        state, request = self._state, self._request(reason, tags, keep, notes)
        limit = self._settings.wait_limit_seconds if forced or not self._alone else 0.0
        at_once = by_name and self._settings.copy != "overlapped"
        handle = self.saver.start(
            request, blocking=at_once or self.take_all_at_once or self.is_unfenced, slot_timeout=limit
        )
        if handle is not None:
            self.take_all_at_once = False
            self._saved_at, self._last = (state.step, state.epoch), handle
            numbers = self._policy.numbers()
            self._emit(SaveDecided(time=self._clock.wall(), step=state.step, reason=reason, numbers=numbers))
            self._policy.save_started(now, state.step)
            self._meter.save_started(now, cast(Mode, self.saver.last_mode))
        return handle

    def hold(self) -> None:
        """Keep this boundary's state within reach, should what follows fail before the next step."""
        now = self._clock.monotonic()
        if self.is_saved or self.must_wait or self._state.step == 0:
            return
        if self._hold_seconds > _HOLD_SHARE * (now - self._held_at):
            return  # Passes so short that there is next to nothing to lose.
        self._held, self._held_at = None, now
        try:
            request = self._request("an error after this step", (), None, "")
            if self._snapshots.hold() is not None:
                self._held = request
        except Exception as error:  # noqa: BLE001  the next save will meet it, and say it
            log.debug("holdfast: the state of step %d is not held: %r", self._state.step, error)
        self._hold_seconds = self._clock.monotonic() - now

    def save_held(self) -> SaveHandle | None:
        """The state that was held, if nothing has moved since."""
        request, self._held = self._held, None
        return None if request is None else self.saver.start_held(request)

    def _request(self, reason: str, tags: tuple[str, ...], keep: str | None, notes: str) -> SaveRequest:
        state = self._state
        if self._reported.is_not_finite():
            tags = (*tags, NOT_FINITE)
        state.policy = {**self._policy.state(), "setting": self._setting()}
        return SaveRequest(
            save=self._name(), step=state.step, reason=reason, progress=state.progress(),
            metrics=self._reported.numbers(state.step), tags=tags, notes=notes, keep=keep,
        )  # fmt: skip

    def settle(self, *, may_raise: bool) -> None:
        """Hear how background saves ended. A failure is said here, at the first boundary after it."""
        failures: list[HoldfastError] = []
        for handle in self.saver.finished():
            now = self._clock.monotonic()
            if handle.error is None:
                self._policy.save_committed(
                    now, SaveCost(handle.step, handle.stall_seconds, handle.persist_seconds, handle.bytes)
                )
                continue
            self._policy.save_failed(now, handle.step)
            self._saved_at = None
            self.take_all_at_once = isinstance(handle.error, TornSnapshot)
            log.warning("holdfast: the save of step %d failed: %s", handle.step, handle.error)
            failures.append(handle.error)
        fenced = [error for error in failures if isinstance(error, Fenced)]
        if fenced and may_raise:
            # Another process has taken this run over: whatever is trained here from now on is for nothing.
            raise fenced[0]
        if failures and may_raise and self._settings.on_save_error == "raise":
            raise failures[0]

    def _name(self) -> str:
        """What every rank calls this save. From the step and not from a count of saves: a rank that was left
        out of one must still find the others at the next."""
        at = (self._state.step, self._state.epoch)
        self._names_at = (at, self._names_at[1] + 1 if self._names_at[0] == at else 0)
        return f"{at[0]}.{at[1]}.{self._names_at[1]}"

    def _setting(self) -> str:
        # What was restored, before the first save: or a process that dies after one save would take all costs
        # with it.
        size = self._snapshots.total_bytes or self._resumed_bytes
        if size is None:
            return ""  # The first save of all: its layout, and with it its size, is not known yet.
        if self._setting_of is None or self._setting_of[0] != size:
            self._setting_of = (size, setting_key(self._where, self._tracked, size))
        return self._setting_of[1]
