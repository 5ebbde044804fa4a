"""An open run: from the moment its folder is claimed until it is given back. Sequences; decides nothing.

Everything here runs on the training thread, except what is handed to a worker by name.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from holdfast.capture.environment import describe_environment
from holdfast.capture.torch_registry import Tracked
from holdfast.checkpoints.retain import Retention
from holdfast.checkpoints.write import Committed
from holdfast.clock import Clock
from holdfast.engine.background import Worker
from holdfast.engine.best_so_far import best_so_far
from holdfast.engine.copy_meter import CopyMeter
from holdfast.engine.halting import HaltWatch
from holdfast.engine.housekeeping import Housekeeping
from holdfast.engine.last_step import LastStep, last_epoch
from holdfast.engine.onlooker import Onlooker
from holdfast.engine.outputs import Outputs
from holdfast.engine.reported import Reported
from holdfast.engine.run_state import RunState
from holdfast.engine.settings import Settings
from holdfast.engine.signs_of_life import SignsOfLife
from holdfast.engine.stopping import SAYS_NOT_FINITE, Stopped, Stopping
from holdfast.engine.telemetry import Telemetry
from holdfast.engine.tiers_of_run import Tiers
from holdfast.engine.together import Together
from holdfast.engine.torch_boundary import Boundary
from holdfast.engine.torch_restorer import Resumed
from holdfast.engine.torch_resume import resume
from holdfast.engine.torch_saver import Saver
from holdfast.engine.torch_saving import Saves
from holdfast.engine.torch_snapshots import Snapshots
from holdfast.engine.torch_steppers import Steppers
from holdfast.engine.torch_unheard import Unheard, standing_still
from holdfast.engine.torch_weight_watch import WeightWatch
from holdfast.engine.writers import writer_for
from holdfast.errors import HoldfastError, SaveError, SetupError, StoreUnavailable
from holdfast.events import (
    Event,
    LastSign,
    RunEnded,
    RunStarted,
    Warned,
)
from holdfast.format.manifest import Parent
from holdfast.jobs import exit_codes
from holdfast.jobs.heartbeat import HeartbeatWriter
from holdfast.policy.debt import DebtPolicy
from holdfast.policy.observation import Decision, Observation
from holdfast.staging.torch_fence import Fence
from holdfast.stores.journal import Journal
from holdfast.stores.store import CheckpointStore

log = logging.getLogger("holdfast")
# How long a run that is done may go on reading back what it saved last.
_READ_BACK_SECONDS = 60.0
_FOLLOW = Decision(False, "rank 0 decides")
_DIVERGED = Decision(False, "the loss is not finite")
_TORN = Decision(True, "the last snapshot was torn; taken again, all at once")


class Session:
    def __init__(
        self,
        store: CheckpointStore,
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
        stopping.last_save_is_planned = lambda: policy.explanation().persist_seconds is not None
        self.policy = policy
        self.resumed: Resumed | None = None
        self.onlooker: Onlooker | None = None
        self._store = store
        self._tracked = tracked
        self._best = retention.best
        self._best_due: tuple[int, Decision] | None = None
        # Asked of the loop: will it ask us for something before it trains again?
        self.comes_round: Callable[[], bool] = lambda: False
        self._settings = settings
        self._clock = clock
        # One journal per run: rank 0's.
        append = Journal(store.where).append if together is None or together.leads else _nowhere
        self._telemetry = Telemetry(append)
        self._emit = self._telemetry.emit
        if history and isinstance(history[-1], LastSign):
            self._emit(history[-1])
        self._first = tiers.first if tiers else store
        self._housekeeping = Housekeeping(
            self._first,
            tiers.retention if tiers else retention,
            clock,
            self._telemetry,
            spare=lambda: tiers.needed if tiers else frozenset(),
            busy=lambda: self.saves.saver.in_flight,
            team=together.team if together else None,
        )
        parent: Parent | None = None
        taken_up = resume(
            store, tracked, state, policy, history, settings=settings, clock=clock, emit=self._emit,
            together=together, tiers=tiers,
        )  # fmt: skip
        if taken_up is not None:
            self.resumed, parent = taken_up
            self._housekeeping.ledger.resumed_from = self.resumed.name
            if together is None and tiers is None:
                # Every byte of it has just been checked.
                self._housekeeping.ledger.verified.add(self.resumed.name)
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
        saver = Saver(
            tiers or store, writer, self.snapshots, describe_environment(), clock, self._emit,
            self._persister, wait_limit=settings.wait_limit_seconds, parent=parent,
            after_commit=self._after_commit,
        )  # fmt: skip
        self.outputs = Outputs(
            store, clock, self._persister, self._emit, limit=settings.wait_limit_seconds, together=together
        )
        self._reported = Reported()
        self.saves = Saves(
            saver, self.snapshots, state, policy, self._reported, self.meter, settings, clock, self._emit,
            where=store.where, tracked=tracked, alone=together is None,
            resumed_bytes=self.resumed.bytes if self.resumed else None,
        )  # fmt: skip
        leads = together is None or together.leads
        self._life = SignsOfLife(
            HeartbeatWriter.from_environment(store.where),
            HaltWatch(store.where, self._persister, stopping) if leads else None,
            state, self._reported, policy, clock, self._emit,
            LastStep(store.uuid, store.writer_epoch, keep=last_epoch(history)) if leads else None,
        )  # fmt: skip
        self._steppers = Steppers(tracked)
        self.boundary = Boundary(self._steppers, WeightWatch(self._steppers.weights))
        self._unheard = Unheard(self.boundary, self._steppers, clock, self._emit)
        # Where the loss stopped being finite in an earlier attempt: to come no further is not to get on.
        self._diverged_before = max(
            (e.step for e in history if isinstance(e, RunEnded) and e.why.startswith(SAYS_NOT_FINITE)),
            default=-1,
        )
        self._unclean_since: float | None = None
        self._last_boundary = clock.monotonic()
        self._fence = Fence(self._steppers, self.snapshots.hold_updates, self._optimizer_stepped)
        self.stopping.open()
        self._life.begin(self.resumed.name if self.resumed else None)
        self._emit(
            RunStarted(
                time=clock.wall(), step=state.step, host=os.uname().nodename, pid=os.getpid(),
                writer_epoch=store.writer_epoch, policy=settings.when, decides=policy.starts_from(),
            )
        )  # fmt: skip
        if leads and (said := standing_still(history, state.step)) is not None:
            log.warning("holdfast: %s", said)
            self._emit(Warned(time=clock.wall(), message=said))
        if tiers is not None:
            tiers.start_draining(self._emit, self.resumed.name if self.resumed else None)
        self._telemetry.flush()

    def _after_commit(self, committed: Committed) -> None:
        self._housekeeping.after_commit(committed)
        if self._tiers is not None:
            self._tiers.committed(str(committed.name), committed.manifest)

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

    def sign_of_life(self) -> None:
        self._life.beat(self._clock.monotonic())

    def must_stop(self) -> bool:
        """Whether the loop must end here; its state is on the way to disk then.

        Only for places where model, optimizer and data position belong together. Raises `Stopped` where
        holdfast ends the process.
        """
        reason = self.stopping.reason
        is_here = self.boundary.is_here
        if reason is None or not (is_here or self.boundary.is_overdue):
            return False
        if self.together is not None and not self.stopping.is_agreed:
            # At the boundary that all ranks agree on, or they would wait for each other for ever.
            self.together.ask_to_stop(reason, self.stopping.exit_code)
            if not self.together.stop_unheard(self._clock.monotonic()):
                return False
            self.stopping.agreed(reason, self.stopping.exit_code)
        if is_here and not self.saves.is_saved and self.stopping.wants_last_save:
            # Now and not only at the end: the code behind the loop may not get the time to run.
            self.saves.start(f"stopping: {reason}", self._clock.monotonic(), forced=True)
        if self.stopping.on_stop == "exit":
            raise Stopped(self.stopping.exit_code)
        return True

    def end_step(self, loss: Any, metrics: dict[str, float], *, stepped: bool = False) -> None:
        state, now = self.state, self._clock.monotonic()
        state.step += 1
        self.meter.boundary(now)
        self.saves.settle(may_raise=True)
        self.boundary.passed(stepped=stepped)
        self.saves.is_unfenced = self.boundary.unfenced_steps > 0
        self._reported.note(state.step, loss, metrics)
        if self.onlooker is not None:
            self.onlooker.boundary(loss)
        decision = self._decide(now)
        if decision.save and self._has_diverged():
            decision = _DIVERGED
        if self.boundary.is_clean:
            self._unclean_since = None
            if self.together is None and decision.save:
                self._obey(decision, now, forced=decision.final)
        else:
            self._accumulating()
        if self.together is not None:
            self._go_along(self.together, decision, now)
        if self._life.boundary(now, self._last_boundary):
            self._has_diverged()
        self._last_boundary = now
        self._unheard.look()
        if self.onlooker is not None:
            self.onlooker.passed()
            if self.onlooker.is_over:
                self.onlooker = None
        self.must_stop()

    def optimizer_named(self, optimizer: Optimizer) -> None:
        """Somebody has told the user that it is not tracked."""
        self._steppers.named.add(optimizer)

    def _optimizer_stepped(self, optimizer: Optimizer) -> None:
        self.boundary.optimizer_stepped(optimizer)
        if self.boundary.is_overdue:
            # A loop that never says where its steps end.
            self._unheard.look()
            if self.stopping.reason is not None and self.stopping.on_stop == "exit":
                raise Stopped(self.stopping.exit_code)

    def _has_diverged(self) -> bool:
        """Whether the loss is not finite and the run shall end for it. Looked at when a save is due and every
        few seconds: reading a loss makes an accelerator wait."""
        if self._settings.on_nan == "warn" or not self._reported.is_not_finite():
            return False
        step = self.state.step
        again = self._settings.on_nan == "rewind" and step > self._diverged_before
        code = exit_codes.PLEASE_RUN_AGAIN if again else exit_codes.DO_NOT_RESTART
        self.stopping.diverged(step, code)
        return True

    def _decide(self, now: float) -> Decision:
        if self.together is not None and not self.together.leads:
            return _FOLLOW
        decision = self.policy.decide(self._observe(now))
        return _TORN if self.saves.take_all_at_once and not decision.save else decision

    def _go_along(self, together: Together, decision: Decision, now: float) -> None:
        """Save or stop where all ranks do."""
        step = self.state.step
        if decision.save and self.boundary.is_clean:
            together.propose(decision, step)
        if (reason := self.stopping.reason) is not None:
            together.ask_to_stop(reason, self.stopping.exit_code)
        due = together.due(step, is_clean=self.boundary.is_clean or self.boundary.is_overdue)
        if due is None or not (self.boundary.is_clean or due.kind == "stop"):
            return
        if due.kind == "stop":
            self.stopping.agreed(due.reason, int(due.detail.get("exit_code", exit_codes.PLEASE_RUN_AGAIN)))
            return
        final = bool(due.detail.get("final"))
        self._obey(Decision(True, due.reason, final=final), now, forced=final)
        if final:
            self.stopping.agreed(self.stopping.reason or due.reason, self.stopping.exit_code)

    def _obey(
        self,
        decision: Decision,
        now: float,
        *,
        forced: bool,
        by_name: bool = False,
        tags: tuple[str, ...] = (),
    ) -> None:
        self.saves.start(decision.reason, now, forced=forced, by_name=by_name, tags=tags)
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
        self.save_best()
        now = self._clock.monotonic()
        leads = self.together is None or self.together.leads
        decision = self.policy.decide(self._observe(now, epoch_ended=True)) if leads else _FOLLOW
        if self.together is not None:
            decision = self.together.same_for_all("epoch end", decision)
        if decision.save and self.boundary.is_here and not self._has_diverged():
            # Where epoch ends are kept, none is left out because the save before is still being written.
            forced = decision.final or self.policy.settings.epoch_ends
            by_name = self.policy.settings.epoch_ends
            self._obey(decision, now, forced=forced, by_name=by_name, tags=("epoch-end",))

    def report(self, metrics: dict[str, float]) -> None:
        """Numbers of the state as it is. Every rank reports; rank 0's are compared and recorded."""
        # Between an optimizer step and its boundary the weights are those of the step that is under way.
        step = self.state.step + self.boundary.stepped
        self._reported.note(step, None, metrics)
        best, together = self._best, self.together
        if best is None or best.metric not in metrics:
            return
        decision = _FOLLOW
        if together is None or together.leads:
            decision = best_so_far(best, self._reported.numbers(step), {self._first, self._store})
        if together is not None:
            decision = together.same_for_all("best so far", decision)
        if decision.save and self.boundary.is_here:
            self._best_due = step, decision
            if not self.comes_round():
                self.save_best()

    def save_best(self) -> None:
        """What `report` asked for. Inside a loop of ours it waits until the loop comes round or the epoch
        ends: averaged weights may stand in for the model until then, and code that follows would be done
        twice after a restart, or never."""
        due, self._best_due = self._best_due, None
        if due is None:
            return
        step, decision = due
        if step != self.state.step:
            log.warning("holdfast: %s (step %d), but training went on before the loop came round, so "
            "it is not saved; "
            "call run.save_now() there", decision.reason, step)  # fmt: skip
        elif self.boundary.is_here:
            self._obey(decision, self._clock.monotonic(), forced=True, by_name=True)

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
            save_in_flight=self.saves.must_wait,
            loss=self._reported.loss if self._reported.has_loss else None,
            deadline=self.stopping.deadline,
            notice=self._life.hear_notice(self.stopping),
        )

    # ---- the end

    def hold(self) -> None:
        """Training pauses here, for a validation perhaps. Should that fail, this boundary can still be saved.
        With several ranks nobody could say that all of them failed alike."""
        if self.together is None and self.boundary.is_here:
            self.saves.hold()

    def _save_what_was_whole(self) -> None:
        handle = self.saves.save_held()
        if handle is not None and handle.ended_within(self._settings.wait_limit_seconds) and not handle.error:
            log.warning("holdfast: step %d, the last whole one before the error, is saved", handle.step)

    def finish(self, *, failed: bool, may_save: bool = True) -> int | None:
        """Returns the exit code of a run that was stopped; None if its work is done, or failed. Raises why
        the last state is not saved: nobody may take such a run for complete."""
        diverged = not failed and self._diverged_at_the_end()
        reason = self.stopping.reason if diverged or not self.state.is_complete else None
        how = "error" if failed else ("stopped" if reason else "finished")
        self._life.finishing(reason or "")
        unsaved: HoldfastError | None = None
        try:
            try:
                if not failed:
                    self._last_save(how)
                elif may_save:
                    self._save_what_was_whole()
                self._drain(may_raise=not failed)
                if not failed and not self.saves.is_durable and self.stopping.wants_last_save:
                    raise SaveError(f"the save of step {self.state.step} did not end in time")
            except HoldfastError as error:
                self._drain(may_raise=False)
                unsaved, reason = error, f"the last state is not saved: {error.message}"
                log.error("holdfast: the last state (step %d) is not saved: %s", self.state.step, error)
        finally:
            ending = "error" if unsaved is not None else how
            self._fence.remove()
            self.stopping.close()
            # A run that was told to stop has no time for it; the next one reads back and prunes.
            self._housekeeping.close(_READ_BACK_SECONDS if ending == "finished" else 0.0)
            if self._tiers is not None:
                in_vain = self._tiers.close(self._settings.wait_limit_seconds, durable=ending != "error")
                if in_vain is not None and self.stopping.wants_last_save:
                    unsaved, reason = (
                        SaveError(f"the last state (step {self.state.step}) will not last: {in_vain}"),
                        in_vain,
                    )
                    ending = "error"
                    log.error("holdfast: %s", unsaved)
            # Behind the last copies: who reads that it ended knows that nothing is to come.
            self._emit(RunEnded(time=self._clock.wall(), step=self.state.step, how=ending, why=reason or ""))
            self._telemetry.flush()
            self.outputs.close()
            self._store.release()
            if self.together is not None:
                self.together.close(in_order=not failed)
            self._life.end(ending, reason or "")
        if unsaved is not None:
            is_said = self._settings.on_save_error == "warn" and not isinstance(unsaved, SetupError)
            if how == "stopped" and self.stopping.on_stop == "exit" and is_said:
                return exit_codes.STOPPED_UNSAVED
            raise unsaved
        if how != "stopped":
            return None
        saved = "with a checkpoint" if self.stopping.wants_last_save else "without saving it"
        log.warning("holdfast: stopped at step %d (%s), %s", self.state.step, reason, saved)
        return self.stopping.exit_code

    def _diverged_at_the_end(self) -> bool:
        """The last steps came since somebody looked, and perhaps on another rank. Such an end is a stop."""
        if self._settings.on_nan == "warn" or self.stopping.is_agreed:
            return not self.stopping.wants_last_save
        self._has_diverged()
        if self.together is not None:
            mine = [not self.stopping.wants_last_save, self.stopping.reason, self.stopping.exit_code]
            limit = self._settings.wait_limit_seconds
            try:
                heard = self.together.team.gather("diverged", json.dumps(mine).encode(), limit)
            except StoreUnavailable as error:
                log.warning("holdfast: whether another rank has diverged is not known: %s", error)
                return not self.stopping.wants_last_save
            for diverged, reason, code in map(json.loads, heard):
                if diverged:
                    self.stopping.agreed(reason, code)
                    break
        return not self.stopping.wants_last_save

    def _last_save(self, how: str) -> None:
        # One that is still in flight may fail: then this is where the state of this step is saved again.
        self.saves.saver.wait_for_all()
        self.saves.settle(may_raise=False)
        at_boundary = self.boundary.is_here
        if self.boundary.stepped:
            # The loop was left between an optimizer step and its boundary. The step was taken: it counts.
            self.state.step += 1
            self.boundary.stepped = False
        self.save_best()
        if self.saves.is_saved or not self.stopping.wants_last_save:
            return
        if not at_boundary:
            # Better than to lose every step since the last save.
            log.warning(
                "holdfast: the loop ended with gradients that no optimizer step has used; they are not saved"
            )
        reason = f"stopping: {self.stopping.reason}" if how == "stopped" else "the training loop ended"
        # All at once: there is nothing left to hide the copy behind, and no later boundary to try again at.
        self.saves.take_all_at_once = True
        self.saves.now(reason).wait()

    def _drain(self, *, may_raise: bool) -> None:
        limit = self._settings.wait_limit_seconds
        if not (self._copier.close(limit) and self._persister.close(limit)):
            log.error("holdfast: a save did not end within %.0f s and was given up", limit)
        self.saves.settle(may_raise=may_raise)


def _nowhere(event: Event) -> None:
    """Rank 0 writes the journal."""
