"""Epochs, steps and batches: the iterators of a run. They end early when the run is asked to stop."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

from holdfast.capture.torch_rng import TrackedRandomness
from holdfast.data.audit_log import AuditLog
from holdfast.data.position import position_from_state
from holdfast.data.torch_feed import Feed
from holdfast.engine.loop_notices import say_if_counted_by_hand
from holdfast.engine.run_state import RunState
from holdfast.engine.settings import Settings
from holdfast.engine.torch_batches import Batches, Pass
from holdfast.engine.torch_session import Session
from holdfast.errors import SetupError


class Loop:
    def __init__(self, session: Session, settings: Settings) -> None:
        self._session = session
        self._settings = settings
        self._loaders = Loaders(session.state, self._make_feed)
        self._cut_short = False
        self._holding: WeakSet[Pass] = WeakSet()  # passes whose batch training has
        # Whether epochs are counted by us: a loop of one's own begins again at its beginning.
        self._counts_epochs = False
        self.in_epoch = False
        # The epoch that training was in when it was interrupted, until that is over.
        self._interrupted: int | None = session.state.epoch if session.resumed else None
        self._looked_around = session.resumed is None
        self._in_steps = False
        session.comes_round = self._comes_round
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

    @property
    def loaders(self) -> list[Any]:
        """What the user reads through this run."""
        return self._loaders.given

    def close(self) -> None:
        self._loaders.close()
        if self._audit is not None:
            self._audit.close()

    def epochs(self, count: int) -> Iterator[int]:
        session, state = self._session, self._session.state
        if state.epoch < count:
            state.is_complete = False  # it may have been, for fewer epochs
        self._counts_epochs = True
        while state.epoch < count and not session.must_stop():
            self._cut_short = False
            self.in_epoch = True
            try:
                yield state.epoch
            finally:
                self.in_epoch = False
            # An epoch whose batches ended early is not over, and goes on after the restart. One that was only
            # asked to stop meanwhile, in its validation perhaps, is: doing that part again would change it.
            if self._cut_short:
                return
            self._settle_step()
            self._interrupted = None
            session.end_epoch(is_last=state.epoch + 1 >= count)

    def batches(self, loader: Any, name: str | None, **options: Any) -> Batches:
        def feed() -> Feed:
            return self._loaders.feed(loader, name, **options)

        return Batches(loader, lambda: self._open(feed()), feed)

    def _open(self, feed: Feed) -> Pass:
        session = self._session
        epoch = session.state.epoch
        if feed.trained_on:
            self.look_around(feed)
            session.save_best()
            self._settle_step()
            self._back_to(is_inside=feed.takes_up(epoch))
        else:
            session.hold()
        batches = feed.batches(epoch, counted=self._counts_epochs)
        return Pass(session, feed, batches, self._holding, self._stop_here)

    @property
    def inside_epoch(self) -> bool:
        """Whether this epoch is taken up behind its beginning."""
        state = self._session.state
        if self._interrupted != state.epoch:
            return False
        feeds = [feed.state_dict() for feed in state.feeds.values()]
        for kept in (*state.positions.values(), *feeds):
            at, _ = position_from_state(kept, "")
            if at is not None and at.epoch == state.epoch and kept["trained_on"] and at.batches:
                return True
        return False

    def look_around(self, feed: Feed | None = None) -> None:
        """Once after a restart: a loop that counts for itself would count again what was done. Where no data
        is read through the run, its first boundary is the place to look from."""
        if not self._looked_around and not self._counts_epochs:
            say_if_counted_by_hand(self._session.state.step, feed.passes_done if feed else None)
        self._looked_around = True

    def _comes_round(self) -> bool:
        """Whether the loop asks us for something before it trains again. One that makes several steps on a
        batch does not."""
        made = self._session.state.step + self._session.boundary.stepped
        several = any(made > one.step_at_batch + 1 for one in self._holding)
        return (self.in_epoch or self._in_steps or len(self._holding) > 0) and not several

    def _stop_here(self) -> None:
        self._cut_short = True

    def _settle_step(self) -> None:
        """A loop without `end_step` was left by `break` behind an optimizer step: that one was made."""
        if self._session.boundary.stepped and not self._session.boundary.ended_by_hand:
            self._session.end_step(None, {})

    def _back_to(self, *, is_inside: bool) -> None:
        """Before the first loop over training data. Where that is taken up inside, what the script drew or
        seeded on the way there, as at the beginning of every epoch, was done before the checkpoint, too: the
        random streams are put back once more."""
        streams, self._streams = self._streams, None
        if streams is not None and is_inside:
            TrackedRandomness().apply(streams)

    def numbers(self, count: int) -> Iterator[int]:
        session, state = self._session, self._session.state
        self._looked_around = True
        self._back_to(is_inside=state.step > 0)
        while state.step < count and not session.must_stop():
            before = state.step
            session.boundary.stepped = False
            self._in_steps = True
            try:
                yield before
            finally:
                self._in_steps = False
            if state.step == before:
                session.end_step(None, {})
            session.save_best()
        state.is_complete = state.step >= count

    def endless_batches(self, count: int, loader: Any, name: str | None) -> Iterator[Any]:
        """Batches, epoch after epoch, until `count` steps are done."""
        session, state = self._session, self._session.state
        empty_passes = 0
        self._counts_epochs = True
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
        batches = iter(self.batches(loader, name))
        while self._session.state.step < count:
            try:
                yield next(batches)
            except StopIteration:
                return

    def _seed_for(self, seeds: Literal["torch", "sample"] | None) -> int | None:
        """None where torch's own draws decide the data."""
        if seeds not in (None, "torch", "sample"):
            raise SetupError(f"seeds={seeds!r}", hint='use "torch" or "sample"')
        given = self._settings.seed
        return None if seeds == "torch" else (given or 0) if seeds == "sample" else given

    def _make_feed(self, loader: Any, name: str, seeds: Any = None, **options: Any) -> Feed:
        session = self._session
        return Feed(
            loader,
            name=name,
            seed=self._seed_for(seeds),
            seed_samples=self._settings.seed_samples,
            audit=self._audit,
            steps=lambda: (session.boundary.optimizer_steps, session.state.step),
            rank=self._rank,
            world=self._world,
            **options,
        )


# ---- Which position belongs to which loader: by the name that the user gives, else by what the loader is.
#
# Many loops make their loaders anew for every epoch. Such a loader goes on where the one before it stood;
# were it taken for another one, a restart would look for its position under the wrong name and repeat
# samples.

_OURS = re.compile(r"loader[0-9]+")


class Loaders:
    """The feeds of an open run. `make(loader, name)` makes one, at the beginning of its data."""

    def __init__(self, state: RunState, make: Callable[..., Feed]) -> None:
        self._state = state
        self._make = make
        # Not to keep them alive: a loop may make a new one, with new data, for every rollout.
        self._owners: dict[str, Callable[[], Any]] = {}
        # The epoch in which each was last asked for.
        self._asked: dict[str, int] = {}

    @property
    def given(self) -> list[Any]:
        """The loaders as the user gave them."""
        return [loader for owner in self._owners.values() if (loader := owner()) is not None]

    def feed(self, loader: Any, name: str | None, *, limit: int | None = None, **options: Any) -> Feed:
        if limit is not None and limit < 1:
            raise SetupError(f"limit={limit} leaves no batches", hint="use 1 or more")
        for known, owner in self._owners.items():
            if owner() is loader and name in (None, known):
                feed: Feed = self._state.feeds[known]
                feed.attach(loader)
                feed.limit = limit
                break
        else:
            feed = self._make(loader, name or "", limit=limit, **options)
            feed.name = name or self._name_for(feed)
            self._place(feed)
            self._owners[feed.name] = _weakly(loader)
            feed.may_let_go = True
            self._state.feeds[feed.name] = feed
        self._asked[feed.name] = self._state.epoch
        return feed

    def close(self) -> None:
        """Workers that stay from pass to pass end with the run, and not a minute after it."""
        for feed in self._state.feeds.values():
            feed.close()

    def _place(self, feed: Feed) -> None:
        """Put a new feed where its data was left."""
        before: Feed | None = self._state.feeds.get(feed.name)
        if before is not None:
            is_other = self._asked[feed.name] == self._state.epoch and not feed.is_like(before.shape)
            if is_other or not before.is_between_passes(self._state.epoch):
                raise SetupError(f"two loaders are called {feed.name!r}", hint="give each its own name=")
            feed.follow(before)
        elif feed.name in self._state.positions:
            feed.load_state_dict(self._state.positions.pop(feed.name))

    def _name_for(self, feed: Feed) -> str:
        epoch = self._state.epoch
        for name in filter(_OURS.fullmatch, self._owners):
            before: Feed = self._state.feeds[name]
            # Of two loaders that training uses in one epoch, the second is another one, unless the first is
            # gone.
            is_gone = self._owners[name]() is None
            is_over = self._asked[name] < epoch or not before.trained_on or is_gone
            if is_over and before.is_between_passes(epoch) and feed.is_like(before.shape):
                return name
        free = (f"loader{n}" for n in range(len(self._owners), 1 << 62))
        next_one = next(name for name in free if name not in self._owners)
        return self._left_like(feed) or next_one

    def _left_like(self, feed: Feed) -> str | None:
        """Right after a restart: the first position of this epoch that fits, whatever came before it."""
        for name in sorted(filter(_OURS.fullmatch, self._state.positions), key=lambda n: (len(n), n)):
            at, shape = position_from_state(self._state.positions[name], name)
            if at is not None and at.epoch == self._state.epoch and feed.is_like(shape):
                return name
        return None


def _weakly(loader: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(loader)
    except TypeError:  # a list, for one
        return lambda: loader
