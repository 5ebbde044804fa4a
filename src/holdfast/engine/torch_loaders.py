"""Which position belongs to which loader: by the name that the user gives, else by what the loader is.

Many loops make their loaders anew for every epoch. Such a loader goes on where the one before it stood; were
it taken for another one, a restart would look for its position under the wrong name and repeat samples.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from typing import Any

from holdfast.data.position import position_from_state
from holdfast.data.torch_feed import Feed
from holdfast.engine.run_state import RunState
from holdfast.errors import SetupError

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
