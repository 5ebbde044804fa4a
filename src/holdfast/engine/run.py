"""Run: the user's side of holdfast. It reads settings, opens a session and passes the loop's calls on."""

from __future__ import annotations

import difflib
import inspect
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from holdfast.capture.torch_plan import encode_values, plan_state, take_parts
from holdfast.capture.torch_registry import TrackedRandomness, track
from holdfast.checkpoints.retain import Retention, parse_keep
from holdfast.clock import Clock, SystemClock
from holdfast.engine.earlier_costs import costs_of_earlier_runs, remember_costs
from holdfast.engine.earlier_runs import hint_from_earlier_runs, remember
from holdfast.engine.halting import end_if_halted
from holdfast.engine.handle import SaveHandle
from holdfast.engine.last_step import with_last_sign
from holdfast.engine.loop_frames import user_place
from holdfast.engine.open_tiers import open_tiers
from holdfast.engine.outputs_block import Output
from holdfast.engine.remembered import Remembered
from holdfast.engine.run_state import RunState
from holdfast.engine.settings import CopyMode, OnNan, OnSaveError, Settings, as_bytes
from holdfast.engine.stopping import OnStop, Stopped, Stopping
from holdfast.engine.tiers_of_run import Tiers
from holdfast.engine.together import Together, claim_known
from holdfast.engine.torch_batches import Batches, Enumerated
from holdfast.engine.torch_loop import Loop
from holdfast.engine.torch_loop_look import Coverage, Look
from holdfast.engine.torch_rehearsal import Rehearsal
from holdfast.engine.torch_restorer import Resumed
from holdfast.engine.torch_session import Session
from holdfast.engine.torch_setting import setting_before_the_first_save
from holdfast.errors import SetupError
from holdfast.jobs.deadline import GivenDeadline
from holdfast.jobs.known_failures import what_is_known
from holdfast.jobs.spot_machine import Spot
from holdfast.jobs.torchrun import why_restarts_may_hang
from holdfast.policy.belief import Hint
from holdfast.policy.build import build_policy
from holdfast.policy.convergence import ConvergenceSettings
from holdfast.policy.debt import DebtPolicy
from holdfast.policy.failures import FailureHistory, Spell
from holdfast.policy.profile import Profile
from holdfast.ranks.torch_team import team_from_torch
from holdfast.stores.journal import read_events
from holdfast.tiers.words import Tier, parse_tiers
from holdfast.units import Every

log = logging.getLogger("holdfast")
_Items = TypeVar("_Items", bound=Iterator[Any])


class Run:
    """Checkpoints a training loop, and continues it where it stopped.

    >>> with holdfast.Run("runs/resnet50", model=model, optimizer=opt, scheduler=sched) as run:
    ...     for epoch in run.epochs(90):
    ...         for x, y in run.batches(loader):
    ...             loss = loss_fn(model(x), y)
    ...             loss.backward()
    ...             opt.step(); sched.step(); opt.zero_grad()
    ...             run.end_step(loss=loss)

    `path` is the run's folder. Objects are tracked by keyword: anything with `state_dict` and
    `load_state_dict`. Everything else has a default that needs no thought:

    - `policy`, `budget`, `every`, `max_loss`, `mtbf`, `convergence`: when to save; see docs/policies.md.
    - `tiers`: where copies go, nearest first: ["memory", "/local/nvme", "run", "s3://bucket/run every 10"];
      "run" is the run's own folder, which is all there is by default. See docs/tiers.md.
    - `keep`: which checkpoints stay: a number, or words: "latest 3, lowest 2 of val_loss, epoch ends"; the
      best are those that `report` told of, and what shall be kept is saved. See docs/policies.md.
    - `seed`: None leaves the data to torch's own draws, as without holdfast. With a number, order and
      samples are a function of it, the epoch and the loader's name; see docs/data.md.
    - `on_save_error`: "warn" (training goes on, a later boundary tries again) or "raise". If the last state
      of all cannot be saved, leaving the block raises why, whatever this says.
    - `on_nan`: when the loss that `end_step` is given is not finite: "warn" (training goes on, and the newest
      checkpoint from before is kept), "stop" (nothing more is saved; exit code 78) or "rewind" (exit code 75:
      the next start goes back to that checkpoint; 78 if it comes no further). See docs/policies.md.
    - `copy`: "auto", "overlapped" or "blocking"; `memory_limit`: host memory that staging may take.
    - `save_frozen=False` leaves out parameters that do not require gradients.
    - `seed_samples=False` leaves the randomness inside datasets alone; see docs/data.md.
    - `audit_data=True` records which samples every step saw; `holdfast verify --data` proves exactly-once.
    - `wait_limit`: seconds after which a wait for the disk is given up.
    - `deadline`: when this process will be ended: a datetime, seconds from now, "18:30". The scheduler's own
      time limit is found without it. The last save starts in time, and training stops behind it.
    - `spot`: "auto", "off", "aws", "gcp" or "azure": whose notices to heed; see docs/spot.md.
    - `on_stop`: after SIGTERM, SIGUSR1, SIGUSR2, a deadline or a notice the state is saved at the next step
      boundary. "exit" then ends the process with code 75, "run me again" (Ctrl-C: 130); "return" ends the
      loops early and lets the script go on, which should look at `run.stopping`.
    - `check_loop=False`: do not look, at the first steps, for what the loop changes and nobody tracks.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        policy: str = "auto",
        budget: str | float = "3%",
        every: str | int | Every | None = None,
        max_loss: str | float | None = None,
        mtbf: str | float | None = None,
        convergence: ConvergenceSettings | None = None,
        tiers: Sequence[str | Tier] | None = None,
        keep: int | str | Retention = 2,
        seed: int | None = None,
        on_save_error: OnSaveError = "warn",
        on_nan: OnNan = "warn",
        copy: CopyMode = "auto",
        memory_limit: str | int | None = None,
        save_frozen: bool = True,
        seed_samples: bool = True,
        audit_data: bool = False,
        wait_limit: float = 600.0,
        deadline: GivenDeadline | None = None,
        spot: Spot = None,
        on_stop: OnStop = "exit",
        check_loop: bool = True,
        clock: Clock | None = None,
        **tracked: Any,
    ) -> None:
        _refuse_misspelt(tracked)
        self._made_at, self._check_loop = user_place(sys._getframe(1)), check_loop
        self._rehearsal = Rehearsal.asked_for(path)
        if self._rehearsal is not None:
            # Nothing of the real run is touched, and nothing is saved but what the plan asks for.
            path, tiers, deadline, spot = self._rehearsal.folder, None, None, "off"
            policy, every, max_loss, convergence = "auto", 10**9, None, None
        self._given_tiers = None if tiers is None else parse_tiers(tiers)
        self._retention = parse_keep(keep)
        self.path = _folder(path)
        self._when: dict[str, Any] = {
            "policy": policy, "budget": budget, "every": every, "max_loss": max_loss, "mtbf": mtbf,
            "convergence": convergence, "epoch_ends": self._retention.epoch_ends,
        }  # fmt: skip
        self._settings = Settings(
            when=", ".join(f"{name}={value!r}" for name, value in self._when.items() if value),
            seed=seed,
            on_save_error=on_save_error,
            on_nan=on_nan,
            copy=copy,
            memory_limit_bytes=as_bytes(memory_limit),
            save_frozen=save_frozen,
            seed_samples=seed_samples,
            audit_data=audit_data,
            wait_limit_seconds=wait_limit,
        )
        self._clock = clock or SystemClock()
        self._stop: dict[str, Any] = {"deadline": deadline, "spot": spot, "on_stop": on_stop}
        Stopping.check(self._clock, **self._stop)
        self.policy: DebtPolicy = build_policy(**self._when)
        self._state = RunState(seed)
        self._tracked = [*track(tracked, save_frozen=save_frozen), self._state, TrackedRandomness()]
        # A value that cannot be stored is an error here, not after the first hours of training.
        parts = take_parts(self._tracked)
        plan_state(parts, set())
        encode_values(parts)
        self._session: Session | None = None
        self._learned: tuple[str, int, FailureHistory, float] | None = None
        self._setting: str | None = None
        self.resumed: Resumed | None = None

    # ---- the with block

    def __enter__(self) -> Self:
        if self._session is not None:
            raise SetupError("this run is already open")
        limit = self._settings.wait_limit_seconds
        team = team_from_torch(os.path.abspath(self.path), limit=limit)
        end_if_halted(self.path, team, limit)
        store = claim_known(self.path, self._given_tiers or (), self._clock, team, limit)
        together = None if team is None else Together(team, self._clock, limit=limit)
        tiers: Tiers | None = None
        try:
            tiers = open_tiers(
                store, self._given_tiers, self._retention, self._clock, together, limit, os.environ
            )
            # Rank 0 decides, so nobody else needs the run's history.
            leads = team is None or team.leads
            if leads and (why := why_restarts_may_hang(os.environ)) is not None:
                log.warning("holdfast: %s", why)
            events = with_last_sign(read_events(self.path), store.uuid) if leads else []
            nodes = 1 if team is None else len(set(team.nodes))
            history = FailureHistory.from_events(events)
            leads = together is None or together.leads
            self.policy = build_policy(
                **self._when,
                hints=self._hints(store.uuid, nodes, history) if leads else (),
                history=history,
                profile=self._earlier_costs(1 if team is None else team.world) if leads else None,
            )
            session = Session(
                store,
                self._tracked,
                self._state,
                self.policy,
                self._retention,
                self._settings,
                self._clock,
                events,
                Stopping.from_environment(self._clock, **self._stop),
                together,
                tiers,
            )
        except BaseException:
            if tiers is not None:
                tiers.close(0.0)
            store.release()
            if together is not None:
                together.close()
            raise
        try:
            self._loop = Loop(session, self._settings)
        except BaseException:
            session.finish(failed=True)
            raise
        self._session, self.resumed = session, session.resumed
        self._remember_costs()  # what a predecessor measured that was killed before it could
        coverage = Coverage(self._tracked, self._state, lambda: self._loop.loaders)
        if self._rehearsal is not None:
            self._rehearsal.open(session, self._tracked, coverage, self._made_at)
            session.onlooker = self._rehearsal
        elif self._check_loop and (together is None or together.leads):
            session.onlooker = Look(coverage, self._made_at, [self], session.optimizer_named)
        return self

    def _hints(self, uuid: str, nodes: int, history: FailureHistory) -> tuple[Hint, ...]:
        """What is known of the failure rate from elsewhere, asked by the process that decides."""
        if self._when["every"] is not None or self._when["mtbf"] is not None:
            return ()
        spot, seen = self._stop["spot"], history.failures
        self._learned = (uuid, nodes, history, self._clock.wall())
        remember(os.environ, *self._learned)
        # The run's own journal is worth more than that of others.
        earlier = None if seen else hint_from_earlier_runs(os.environ, uuid, nodes)
        known = what_is_known(nodes, spot, os.environ, failures_seen=seen)
        return known if earlier is None else (*known, earlier)

    def _earlier_costs(self, world: int) -> Profile | None:
        self._setting = setting_before_the_first_save(self.path, self._tracked, world)
        return costs_of_earlier_runs(os.environ, self._setting)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._require_open()
        # `sys.exit()` inside the block is an end like another.
        left = isinstance(error, Stopped) or (isinstance(error, SystemExit) and not error.code)
        try:
            # Who presses Ctrl-C twice does not want to wait.
            hurried = isinstance(error, KeyboardInterrupt)
            code = session.finish(failed=error is not None and not left, may_save=not hurried)
        finally:
            self._loop.close()
            self._state.close_feeds()
            self._session = None
            self._remember(failed=error is not None and not left)
        if code is not None and session.stopping.on_stop == "exit":
            raise Stopped(code) from None

    def _remember(self, *, failed: bool) -> None:
        """For other runs: how long this one lived, whether it failed, and what its saves cost."""
        self._remember_costs()
        if self._learned is not None:
            uuid, nodes, history, began = self._learned
            now = self._clock.wall()
            spell = Spell(began, max(began, now), "failure" if failed else "planned")
            remember(os.environ, uuid, nodes, FailureHistory((*history.spells, spell)), now)

    def _remember_costs(self) -> None:
        if self._setting is not None:
            remember_costs(os.environ, self._setting, self.policy.profile, self._clock.wall())

    # ---- what the user reads

    @property
    def step(self) -> int:
        """Step boundaries passed, over all attempts of this run."""
        return self._state.step

    @property
    def epoch(self) -> int:
        """Epochs completed, over all attempts of this run."""
        return self._state.epoch

    @property
    def extras(self) -> dict[str, Any]:
        """Plain values of yours that are saved with every checkpoint and restored."""
        return self._state.extras

    def remember(self, **values: Any) -> Remembered:
        """Sums, counters, best values, histories, meters: saved with every checkpoint, and what they were
        after a restart.

        >>> best = run.remember(val_loss=float("inf"), history=[])
        >>> for epoch in run.epochs(90):
        ...     sums = run.remember(loss=0.0, samples=0)        # of this epoch: begins anew with the next
        ...     for x, y in run.batches(loader):
        ...         ...
        ...         sums.loss += loss.item()
        """
        self._require_open()
        return self._state.memories.remember(values, self.epoch if self._loop.in_epoch else None)

    @property
    def inside_epoch(self) -> bool:
        """Whether this epoch is taken up behind its beginning, after a restart. What a script does once
        when an epoch begins belongs under `if not run.inside_epoch:`."""
        self._require_open()
        return self._loop.inside_epoch

    @property
    def stopping(self) -> bool:
        """Whether a signal, the deadline or a notice asked the loop to end."""
        return self._session is not None and self._session.stop_reason is not None

    @property
    def save_due(self) -> bool:
        """For loops that save on their own terms: would the policy save now? With several ranks, all of them
        ask, and get rank 0's answer."""
        return self._require_open().would_save()

    # ---- the loop

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs still to do, beginning inside the one that was interrupted."""
        self._require_open()
        return self._loop.epochs(count)

    def batches(
        self,
        loader: Any,
        name: str | None = None,
        *,
        limit: int | None = None,
        whole_passes: bool = False,
        changed_data: Literal["error", "restart"] = "error",
        seeds: Literal["torch", "sample"] | None = None,
    ) -> Batches:
        """The batches of this epoch that training has not seen yet, in their fixed order.

        Without `end_step`, pulling the next batch after an optimizer step is the boundary. `limit` ends the
        epoch after so many batches, counting those before a restart. `whole_passes` is for evaluation: every
        call gives the whole loader. `changed_data="restart"` begins the epoch again if the dataset is not the
        one that was saved. `seeds="sample"` seeds every sample by (seed, epoch, index), whoever loads it;
        "torch" leaves that to torch; the default follows `Run(seed=)`.
        """
        self._require_open()
        return self._seen(
            self._loop.batches(
                loader, name, limit=limit, whole_passes=whole_passes, changed_data=changed_data, seeds=seeds
            )
        )

    def enumerate(
        self, loader: Any, start: int = 0, *, name: str | None = None, **options: Any
    ) -> Enumerated:
        """`batches` with the index of each in its epoch, which `enumerate` around it would begin at 0
        again. `start` is where Python's own `enumerate` has it."""
        return Enumerated(self.batches(loader, name, **options), start)

    def steps(self, count: int, over: Any = None, name: str | None = None) -> Iterator[Any]:
        """Until `count` steps are done: their numbers, or with `over=loader` its batches over and over."""
        self._require_open()
        return self._seen(
            self._loop.numbers(count) if over is None else self._loop.endless_batches(count, over, name)
        )

    def _seen(self, items: _Items) -> _Items:
        return items if self._rehearsal is None else self._rehearsal.watched(items)

    def end_step(self, loss: Any = None, *, stepped: bool = False, **metrics: float) -> None:
        """A step is complete: the model, the optimizer and the data position belong together now.

        `loss` and other numbers are recorded if this step is saved; a tensor is read only when needed.
        `stepped=True` says that weights were updated where torch tells nobody, as by a captured CUDA graph of
        the whole step; such a run is copied in front of training.
        """
        session = self._session
        if session is None:
            session = self._require_open()
        session.boundary.ended_by_hand = True
        self._loop.look_around()
        session.end_step(loss, metrics, stepped=stepped)

    def report(self, **metrics: float) -> None:
        """Numbers of the state as it is now, such as a validation loss: recorded if it is saved.

        It is saved at once if `keep="lowest 2 of val_loss"` asks for this metric and this is among them.
        Every rank reports.
        """
        self._require_open().report(metrics)

    def save_now(self, reason: str = "asked for", *, keep: str | None = None, notes: str = "") -> SaveHandle:
        """Save at once, whatever the policy thinks. `keep="name"` keeps this checkpoint for ever.

        Returns a handle at once; `handle.wait()` returns when the checkpoint is durable.
        """
        return self._require_open().saves.now(reason, keep=keep, notes=notes)

    # ---- files of others

    def output(
        self,
        name: str,
        *,
        step: int | None = None,
        keep: int | str | Retention = 2,
        scratch: str | os.PathLike[str] | None = None,
    ) -> Output:
        """Keep files that you or a library write, with checksums, all or nothing, `keep` generations of them.

        >>> with run.output("samples") as out:
        ...     numpy.save(out.path("images.npy"), images)

        Durable when the block has ended. Every rank enters it, also one without files; if one of them fails,
        all get an error and nothing is kept. The files are first written below the run's folder, or below
        `scratch`, such as a node's own disk. See docs/scr.md.
        """
        session = self._require_open()
        return Output(session.outputs, name, self.step if step is None else step, keep=keep, scratch=scratch)

    def restored_output(self, name: str, *, step: int | None = None, rank: int | None = None) -> Path | None:
        """A read-only folder with the files of the newest whole output of this name, or of `step`; None if
        there is none. Every byte is checked; a damaged output means the next older one, said in the log.

        Every rank asks, and gets what the same rank wrote; `rank` asks for another one's files, as a
        different number of ranks must. The folder is there until the run ends.
        """
        return self._require_open().outputs.restored(name, step=step, rank=rank)

    def _require_open(self) -> Session:
        if self._session is None:
            raise SetupError(
                "this run is not open", hint="use it in a with block: with holdfast.Run(...) as run:"
            )
        return self._session


def _folder(path: str | os.PathLike[str]) -> str:
    folder = os.fspath(path)
    if not isinstance(folder, str) or not folder.strip():
        raise SetupError(f"the run's folder is {folder!r}", hint='name one: Run("runs/resnet50", ...)')
    if "://" in folder:
        raise SetupError(
            f"a run's own place is a folder, and {folder} is none",
            hint=f'make it a tier: Run("runs/resnet50", tiers=["run", "{folder}"], ...)',
        )
    return folder


def _refuse_misspelt(tracked: Mapping[str, Any]) -> None:
    """Every keyword that is no setting is an object to track: a misspelt setting should not read like one."""
    settings = [
        name for name in inspect.signature(Run.__init__).parameters if name not in ("self", "tracked")
    ]
    for name, value in tracked.items():
        near = difflib.get_close_matches(name, settings, n=1, cutoff=0.75)
        if near and not hasattr(value, "state_dict"):
            raise SetupError(f"there is no setting {name!r}", hint=f"did you mean {near[0]}=?")
