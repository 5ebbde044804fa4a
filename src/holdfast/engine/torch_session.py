"""An open run: from the moment its folder is claimed until it is given back. Sequences; decides nothing.

Everything here runs on the training thread, except what is handed to a worker by name.
"""

from __future__ import annotations

import logging
import os
from typing import Any, cast

from holdfast.capture.environment import describe_environment
from holdfast.capture.torch_optimizer import TrackedOptimizer
from holdfast.capture.torch_registry import Tracked
from holdfast.checkpoints.retain import Retention
from holdfast.checkpoints.write import Committed
from holdfast.clock import Clock
from holdfast.engine.background import Worker
from holdfast.engine.copy_meter import CopyMeter
from holdfast.engine.halting import HaltWatch
from holdfast.engine.handle import SaveHandle
from holdfast.engine.housekeeping import Housekeeping
from holdfast.engine.outputs import Outputs
from holdfast.engine.reported import Reported
from holdfast.engine.run_state import RunState
from holdfast.engine.settings import Settings
from holdfast.engine.stop_signals import show_stacks_on_request
from holdfast.engine.stopping import Stopped, Stopping
from holdfast.engine.telemetry import Telemetry
from holdfast.engine.tiers_of_run import Tiers
from holdfast.engine.together import Together
from holdfast.engine.torch_boundary import Boundary
from holdfast.engine.torch_restorer import Resumed
from holdfast.engine.torch_resume import resume
from holdfast.engine.torch_saver import Saver, SaveRequest
from holdfast.engine.torch_setting import setting_key
from holdfast.engine.torch_snapshots import Snapshots
from holdfast.engine.writers import writer_for
from holdfast.errors import HoldfastError, SaveError, TornSnapshot
from holdfast.events import (
    Event,
    NoticeReceived,
    Progress,
    RunEnded,
    RunStarted,
    SaveDecided,
)
from holdfast.format.manifest import Parent
from holdfast.jobs import exit_codes
from holdfast.jobs.heartbeat import HeartbeatWriter, Phase
from holdfast.jobs.notices import Notice
from holdfast.policy.debt import DebtPolicy
from holdfast.policy.observation import Decision, Observation, SaveCost
from holdfast.staging.copy_choice import Mode
from holdfast.staging.torch_fence import Fence
from holdfast.stores.directory import DirectoryStore
from holdfast.stores.journal import Journal

log = logging.getLogger("holdfast")
HEARTBEAT_SECONDS = 5.0
_LAST_PHASE: dict[str, Phase] = {"finished": "finished", "stopped": "stopped", "error": "failed"}
_FOLLOW = Decision(False, "rank 0 decides")
_TORN = Decision(True, "the last snapshot was torn; taken again, all at once")


class Session:
    def __init__(
        self,
        store: DirectoryStore,
        tracked: list[Tracked],
        state: RunState,
        policy: DebtPolicy,
        retention: Retention,
        settings: Settings,
        clock: Clock,
        history: list[Event],
        stopping: Stopping,
        together: Together | None = None,
        tiers: Tiers | None = None,
    ) -> None:
        self.state = state
        self.together = together
        self._tiers = tiers
        self.stopping = stopping
        self.policy = policy
        self.resumed: Resumed | None = None
        self._store = store
        self._tracked = tracked
        self._settings = settings
        self._clock = clock
        # One journal per run: rank 0's.
        append = Journal(store.where).append if together is None or together.leads else _nowhere
        self._telemetry = Telemetry(append)
        self._emit = self._telemetry.emit
        first = tiers.first if tiers else store
        self._housekeeping = Housekeeping(
            first, retention, clock, self._telemetry, spare=lambda: tiers.needed if tiers else frozenset()
        )
        parent: Parent | None = None
        taken_up = resume(
            store, tracked, state, policy, history, settings=settings, clock=clock, emit=self._emit,
            together=together, tiers=tiers,
        )  # fmt: skip
        if taken_up is not None:
            self.resumed, parent = taken_up
            self._housekeeping.ledger.resumed_from = self.resumed.name
        optimizers = [t.optimizer for t in tracked if isinstance(t, TrackedOptimizer)]
        self._persister = Worker("holdfast-persist", idle=self._telemetry.flush, polite=True)
        self._copier = Worker("holdfast-copy")
        ranks = None if together is None else (together.team.rank, together.team.world)
        memory = tiers.memory if tiers else None
        self.snapshots = Snapshots(
            tracked, settings, clock, self._copier, ranks=ranks, memory=memory,
            needed=lambda: tiers.needed if tiers else frozenset(),
        )  # fmt: skip
        self.meter = CopyMeter(self.snapshots.choice)
        writer = tiers.writer(together) if tiers else writer_for(store, together)
        self._saver = Saver(
            tiers or store, writer, self.snapshots, describe_environment(), clock, self._emit,
            self._persister, wait_limit=settings.wait_limit_seconds, parent=parent,
            after_commit=self._after_commit,
        )  # fmt: skip
        self.outputs = Outputs(
            store, clock, self._persister, self._emit, limit=settings.wait_limit_seconds, together=together
        )
        self._halt = HaltWatch(store.where, self._persister, stopping)
        self.beats = HeartbeatWriter.from_environment(store.where)
        self._reported = Reported()
        self.boundary = Boundary(optimizers)
        self._unclean_since: float | None = None
        self._notice: Notice | None = None
        self._retry_blocking = False
        self._saves_at: tuple[tuple[int, int], int] = ((-1, -1), 0)
        self._setting_of: tuple[int, str] | None = None
        self._last_saved: tuple[int, int] | None = (state.step, state.epoch) if self.resumed else None
        self._last_boundary = self._heartbeat_at = clock.monotonic()
        self._fence = Fence(optimizers, self.snapshots.hold_updates, self.boundary.optimizer_stepped)
        self.stopping.open()
        self._begin_heartbeat()
        self._emit(
            RunStarted(
                time=clock.wall(), step=state.step, host=os.uname().nodename, pid=os.getpid(),
                writer_epoch=store.writer_epoch, policy=settings.when,
            )
        )  # fmt: skip
        if tiers is not None:
            tiers.start_draining(self._emit, self.resumed.name if self.resumed else None)
        self._telemetry.flush()

    def _after_commit(self, committed: Committed) -> None:
        if self.together is None or self.together.leads:
            self._housekeeping.after_commit(committed)
        if self._tiers is not None:
            self._tiers.committed(str(committed.name))

    # ---- step boundaries

    @property
    def where(self) -> str:
        return self._store.where

    @property
    def writer_epoch(self) -> int:
        return self._store.writer_epoch

    @property
    def stop_reason(self) -> str | None:
        # With several ranks only where all of them stop: a loop that looked here would leave the others.
        if self.together is not None and not self.stopping.is_agreed:
            return None
        return self.stopping.reason

    def _begin_heartbeat(self) -> None:
        if self.beats.is_watched:
            show_stacks_on_request()
            self.beats.resumed_from = self.resumed.name if self.resumed is not None else None
            self.beats.say(self.state.step, "training")

    def sign_of_life(self) -> None:
        self.beats.beat(self._clock.monotonic(), self.state.step)

    def must_stop(self) -> bool:
        """Whether the loop must end here; its state is on the way to disk then.

        Only for places where model, optimizer and data position belong together. Raises `Stopped` where
        holdfast ends the process.
        """
        reason = self.stopping.reason
        if reason is None or not self.boundary.is_here:
            return False
        if self.together is not None and not self.stopping.is_agreed:
            # At the boundary that all ranks agree on, or they would wait for each other for ever.
            self.together.ask_to_stop(reason, self.stopping.exit_code)
            if not self.together.stop_unheard(self._clock.monotonic()):
                return False
            self.stopping.agreed(reason, self.stopping.exit_code)
        if self._last_saved != (self.state.step, self.state.epoch):
            # Now and not only at the end: the code behind the loop may not get the time to run.
            self.start_save(f"stopping: {reason}", self._clock.monotonic(), forced=True)
        if self.stopping.on_stop == "exit":
            raise Stopped(self.stopping.exit_code)
        return True

    def end_step(self, loss: Any, metrics: dict[str, float]) -> None:
        state, now = self.state, self._clock.monotonic()
        state.step += 1
        self.meter.boundary(now)
        self.settle_saves(may_raise=True)
        self.boundary.passed()
        self._reported.note(loss, metrics)
        decision = self._decide(now)
        if self.boundary.is_clean:
            self._unclean_since = None
            if self.together is None and decision.save:
                self._obey(decision, now)
        else:
            self._accumulating()
        if self.together is not None:
            self._go_along(self.together, decision, now)
        if now >= self._heartbeat_at:
            self._heartbeat(now)
        self._last_boundary = now
        self.beats.beat(now, state.step)
        self.must_stop()

    def _decide(self, now: float) -> Decision:
        if self.together is not None and not self.together.leads:
            return _FOLLOW
        decision = self.policy.decide(self._observe(now))
        return _TORN if self._retry_blocking and not decision.save else decision

    def _go_along(self, together: Together, decision: Decision, now: float) -> None:
        """Save or stop where all ranks do."""
        step = self.state.step
        if decision.save and self.boundary.is_clean:
            together.propose(decision, step)
        if (reason := self.stopping.reason) is not None:
            together.ask_to_stop(reason, self.stopping.exit_code)
        due = together.due(step, is_clean=self.boundary.is_clean)
        if due is None:
            return
        if due.kind == "stop":
            self.stopping.agreed(due.reason, int(due.detail.get("exit_code", exit_codes.PLEASE_RUN_AGAIN)))
            return
        final = bool(due.detail.get("final"))
        self._obey(Decision(True, due.reason, final=final), now)
        if final:
            self.stopping.agreed(self.stopping.reason or due.reason, self.stopping.exit_code)

    def _obey(self, decision: Decision, now: float, *, tags: tuple[str, ...] = ()) -> None:
        self.start_save(decision.reason, now, forced=decision.final, tags=tags)
        if decision.final:
            self.stopping.final_save_taken()

    def _accumulating(self) -> None:
        """No save can start here, so the one before a deadline must be planned for earlier."""
        if self._unclean_since is None:
            self._unclean_since = self._last_boundary
        self.stopping.accumulated(self._last_boundary - self._unclean_since)

    def end_epoch(self, *, is_last: bool) -> None:
        self.state.epoch += 1
        self.state.is_complete = is_last
        self.meter.pause()
        now = self._clock.monotonic()
        leads = self.together is None or self.together.leads
        decision = self.policy.decide(self._observe(now, epoch_ended=True)) if leads else _FOLLOW
        if self.together is not None:
            decision = self.together.same_for_all("epoch end", decision)
        if decision.save and self.boundary.is_here:
            self._obey(decision, now, tags=("epoch-end",))

    def would_save(self) -> bool:
        leads = self.together is None or self.together.leads
        decision = self.policy.decide(self._observe(self._clock.monotonic())) if leads else _FOLLOW
        return (self.together.same_for_all("save due", decision) if self.together else decision).save

    def _observe(self, now: float, *, epoch_ended: bool = False) -> Observation:
        return Observation(
            now=now,
            step=self.state.step,
            epoch=self.state.epoch,
            epoch_ended=epoch_ended,
            save_in_flight=self._saver.in_flight or not self.snapshots.slot_available,
            loss=self._reported.loss if self._reported.has_loss else None,
            deadline=self.stopping.deadline,
            notice=self._hear_notice(),
        )

    def _hear_notice(self) -> str | None:
        notice = self.stopping.notice
        if notice is not None and notice != self._notice:
            self._notice = notice
            self._emit(
                NoticeReceived(
                    time=self._clock.wall(), source=notice.source, what=notice.what, stops=notice.stops
                )
            )
        return None if notice is None else str(notice)

    def _heartbeat(self, now: float) -> None:
        self._heartbeat_at = now + HEARTBEAT_SECONDS
        if self.together is None or self.together.leads:
            self._halt.look_soon()
        self._emit(
            Progress(
                time=self._clock.wall(), step=self.state.step, epoch=self.state.epoch,
                step_seconds=now - self._last_boundary,
                loss=self._reported.loss_or_none(), policy=self.policy.explain(),
            )
        )  # fmt: skip

    # ---- saving

    def save_now(self, reason: str, *, keep: str | None = None, notes: str = "") -> SaveHandle:
        handle = self.start_save(reason, self._clock.monotonic(), forced=True, keep=keep, notes=notes)
        if handle is None:
            raise SaveError(f"no staging memory came free for the save of step {self.state.step}")
        return handle

    def start_save(
        self, reason: str, now: float, *, forced: bool = False, tags: tuple[str, ...] = (),
        keep: str | None = None, notes: str = "",
    ) -> SaveHandle | None:  # fmt: skip
        """None if no staging slot is free; a forced save waits for one."""
        state = self.state
        state.policy = {**self.policy.state(), "setting": self._setting()}
        request = SaveRequest(
            save=self._save_name(), step=state.step, reason=reason, progress=state.progress(),
            metrics=self._reported.numbers(), tags=tags, notes=notes, keep=keep,
        )  # fmt: skip
        limit = self._settings.wait_limit_seconds if forced or self.together is not None else 0.0
        handle = self._saver.start(request, blocking=self._retry_blocking, slot_timeout=limit)
        if handle is not None:
            self._retry_blocking = False
            self._last_saved = (state.step, state.epoch)
            self._emit(SaveDecided(time=self._clock.wall(), step=state.step, reason=reason))
            self.policy.save_started(now, state.step)
            self.meter.save_started(now, cast(Mode, self._saver.last_mode))
        return handle

    def _save_name(self) -> str:
        """What every rank calls this save. From the step and not from a count of saves: a rank that was left
        out of one must still find the others at the next."""
        at = (self.state.step, self.state.epoch)
        self._saves_at = (at, self._saves_at[1] + 1 if self._saves_at[0] == at else 0)
        return f"{at[0]}.{at[1]}.{self._saves_at[1]}"

    def _setting(self) -> str:
        size = self.snapshots.total_bytes
        if size is None and self.resumed is not None:
            size = self.resumed.bytes  # or a process that dies after one save would take all costs with it
        if size is None:
            return ""  # The first save: its layout, and with it its size, is not known yet.
        if self._setting_of is None or self._setting_of[0] != size:
            self._setting_of = (size, setting_key(self._store.where, self._tracked, size))
        return self._setting_of[1]

    def settle_saves(self, *, may_raise: bool) -> None:
        """Hear how background saves ended. A failure is said here, at the first boundary after it."""
        failures: list[HoldfastError] = []
        for handle in self._saver.finished():
            now = self._clock.monotonic()
            if handle.error is None:
                self.policy.save_committed(
                    now, SaveCost(handle.step, handle.stall_seconds, handle.persist_seconds, handle.bytes)
                )
                continue
            self.policy.save_failed(now, handle.step)
            self._last_saved = None
            self._retry_blocking = isinstance(handle.error, TornSnapshot)
            log.warning("holdfast: the save of step %d failed: %s", handle.step, handle.error)
            failures.append(handle.error)
        if failures and may_raise and self._settings.on_save_error == "raise":
            raise failures[0]

    # ---- the end

    def finish(self, *, failed: bool) -> int | None:
        """Returns the exit code of a run that was stopped; None if its work is done, or failed."""
        reason = None if self.state.is_complete else self.stopping.reason
        how = "error" if failed else ("stopped" if reason else "finished")
        self.beats.say(self.state.step, "finishing", reason or "")
        try:
            try:
                if not failed:
                    self._last_save(how)
            except HoldfastError:
                self._drain(may_raise=False)
                raise
            self._drain(may_raise=not failed)
        finally:
            self._emit(RunEnded(time=self._clock.wall(), step=self.state.step, how=how, why=reason or ""))
            self._fence.remove()
            self.stopping.close()
            if self._tiers is not None:
                self._tiers.close(self._settings.wait_limit_seconds, durable=self._is_durable(how))
            self._telemetry.flush()
            self.outputs.close()
            self._store.release()
            if self.together is not None:
                self.together.close()
            self.beats.say(self.state.step, _LAST_PHASE[how], reason or "")
            self.beats.close()
        if how != "stopped":
            return None
        if self._last_saved != (self.state.step, self.state.epoch):
            return exit_codes.STOPPED_UNSAVED
        log.warning("holdfast: stopped at step %d (%s), with a checkpoint", self.state.step, reason)
        return self.stopping.exit_code

    def _last_save(self, how: str) -> None:
        # One that is still in flight may fail: then this is where the state of this step is saved again.
        self._saver.wait_for_all()
        self.settle_saves(may_raise=False)
        at_boundary = self.boundary.is_here
        if self.boundary.stepped:
            # The loop was left between an optimizer step and its boundary. The step was taken: it counts.
            self.state.step += 1
            self.boundary.stepped = False
        if self._last_saved == (self.state.step, self.state.epoch):
            return
        if not at_boundary:
            # Better than to lose every step since the last save.
            log.warning(
                "holdfast: the loop ended with gradients that no optimizer step has used; they are not saved"
            )
        reason = f"stopping: {self.stopping.reason}" if how == "stopped" else "the training loop ended"
        # All at once: there is nothing left to hide the copy behind, and no later boundary to try again at.
        self._retry_blocking = True
        try:
            self.save_now(reason).wait()
        except HoldfastError as error:
            log.error("holdfast: the last checkpoint (step %d) was not saved: %s", self.state.step, error)
            if self._settings.on_save_error == "raise":
                raise

    def _is_durable(self, how: str) -> bool:
        """Whether the last state is where it survives this node."""
        return how != "error" and self._last_saved == (self.state.step, self.state.epoch)

    def _drain(self, *, may_raise: bool) -> None:
        limit = self._settings.wait_limit_seconds
        if not (self._copier.close(limit) and self._persister.close(limit)):
            log.error("holdfast: a save did not end within %.0f s and was given up", limit)
        self.settle_saves(may_raise=may_raise)


def _nowhere(event: Event) -> None:
    """Rank 0 writes the journal."""
