"""Epochs, steps and batches: the iterators of a run. They end early when the run is asked to stop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.capture.torch_rng import TrackedRandomness
from holdfast.data.audit_log import AuditLog
from holdfast.data.torch_feed import Feed
from holdfast.engine.settings import Settings
from holdfast.engine.torch_loaders import Loaders
from holdfast.engine.torch_session import Session
from holdfast.errors import SetupError


class Loop:
    def __init__(self, session: Session, settings: Settings) -> None:
        self._session = session
        self._settings = settings
        self._loaders = Loaders(session.state, self._make_feed)
        self._cut_short = False
        # As restored, until training is where it was: see `_back_to`.
        self._streams = TrackedRandomness().take() if session.resumed else None
        self._audit: AuditLog | None = None
        team = session.together.team if session.together else None
        self._rank, self._world = (team.rank, team.world) if team else (0, 1)
        if settings.audit_data:
            state = session.state
            self._audit = AuditLog(
                Path(session.where),
                attempt=session.writer_epoch,
                start_step=state.step,
                step=lambda: state.step,
                rank=self._rank,
                world=self._world,
            )

    def close(self) -> None:
        if self._audit is not None:
            self._audit.close()

    def epochs(self, count: int) -> Iterator[int]:
        session, state = self._session, self._session.state
        if state.epoch < count:
            state.is_complete = False  # it may have been, for fewer epochs
        while state.epoch < count and not session.must_stop():
            self._cut_short = False
            yield state.epoch
            # An epoch whose batches ended early is not over, and goes on after the restart. One that was only
            # asked to stop meanwhile, in its validation perhaps, is: doing that part again would change it.
            if self._cut_short:
                return
            session.end_epoch(is_last=state.epoch + 1 >= count)

    def batches(self, loader: Any, name: str | None, **options: Any) -> Iterator[Any]:
        session = self._session
        feed = self._loaders.feed(loader, name, **options)
        if feed.trained_on:
            self._back_to(is_inside=feed.takes_up(session.state.epoch))
        if not feed.trained_on:
            session.hold()
        for batch in feed.batches(session.state.epoch):
            session.boundary.batch_begins(is_trained_on=feed.trained_on)
            before = session.state.step
            yield batch
            if session.state.step == before:
                session.boundary.batch_ended()
            if session.boundary.stepped:
                session.end_step(None, {})
            if not feed.trained_on:
                # Validation is no place to save (averaged weights may stand in for the model) and is not cut
                # short (the rest of the epoch would take its numbers for whole); but it is a sign of life.
                session.sign_of_life()
            elif session.must_stop():
                self._cut_short = True
                return
        session.meter.pause()
        if feed.trained_on:
            session.hold()

    def _back_to(self, *, is_inside: bool) -> None:
        """Before the first loop over training data. Where that is taken up inside, what the script drew or
        seeded on the way there, as at the beginning of every epoch, was done before the checkpoint, too: the
        random streams are put back once more."""
        streams, self._streams = self._streams, None
        if streams is not None and is_inside:
            TrackedRandomness().apply(streams)

    def numbers(self, count: int) -> Iterator[int]:
        session, state = self._session, self._session.state
        self._back_to(is_inside=state.step > 0)
        while state.step < count and not session.must_stop():
            before = state.step
            session.boundary.stepped = False
            yield before
            if state.step == before:
                session.end_step(None, {})
        state.is_complete = state.step >= count

    def endless_batches(self, count: int, loader: Any, name: str | None) -> Iterator[Any]:
        """Batches, epoch after epoch, until `count` steps are done."""
        session, state = self._session, self._session.state
        empty_passes = 0
        while state.step < count and not session.must_stop():
            empty_passes += 1
            for batch in self._batches_until(count, loader, name):
                empty_passes = 0
                yield batch
            # Not by its length, which an endless loader does not have. One empty pass is what a restart
            # behind the last batch of an epoch gives.
            if empty_passes > 1:
                raise SetupError("run.steps(over=...) was given a loader without batches")
            if state.step < count and not session.must_stop():
                session.end_epoch(is_last=False)
        state.is_complete = state.step >= count

    def _batches_until(self, count: int, loader: Any, name: str | None) -> Iterator[Any]:
        batches = self.batches(loader, name)
        while self._session.state.step < count:
            try:
                yield next(batches)
            except StopIteration:
                return

    def _make_feed(self, loader: Any, name: str, **options: Any) -> Feed:
        session = self._session
        return Feed(
            loader,
            name=name,
            seed=self._settings.seed,
            seed_samples=self._settings.seed_samples,
            audit=self._audit,
            steps=lambda: (session.boundary.optimizer_steps, session.state.step),
            rank=self._rank,
            world=self._world,
            **options,
        )
