"""What belongs to the run itself and not to a tracked object: counters, data positions, extras, what the
policy has learned. Tracked like everything else, under the name "run"."""

from __future__ import annotations

from typing import Any

from holdfast.capture.torch_place import put_in_place
from holdfast.engine.remembered import Memories


class RunState:
    key = "run"
    role = "state"
    keeps_devices = True

    def __init__(self, seed: int | None) -> None:
        self.step = 0
        self.epoch = 0
        self.seed = seed
        self.is_complete = False
        self.extras: dict[str, Any] = {}
        self.memories = Memories()
        self.policy: dict[str, Any] = {}
        self.feeds: dict[str, Any] = {}
        # Positions read from a checkpoint, waiting for their loader to be used for the first time.
        self.positions: dict[str, Any] = {}

    def take(self) -> dict[str, Any]:
        positions = {**self.positions, **{name: feed.state_dict() for name, feed in self.feeds.items()}}
        return {
            "step": self.step,
            "epoch": self.epoch,
            "seed": self.seed,
            "complete": self.is_complete,
            "positions": positions,
            "extras": dict(self.extras),
            "memories": self.memories.take(),
            "policy": self.policy,
        }

    def close_feeds(self) -> None:
        """The run is left; should it be entered again, its loaders go on from where they stand."""
        self.positions = {**self.positions, **{name: feed.state_dict() for name, feed in self.feeds.items()}}
        self.feeds = {}

    def check(self, state: Any) -> None:
        """Positions are checked by their own loader, when it is first used."""

    def apply(self, state: Any) -> None:
        self.step, self.epoch = state["step"], state["epoch"]
        self.is_complete = state["complete"]
        self.positions = dict(state["positions"])
        self.extras.clear()
        self.extras.update(put_in_place(state["extras"], lambda: None))
        self.memories.apply(state.get("memories", {}))
        self.policy = state["policy"]

    def progress(self) -> dict[str, Any]:
        """The few numbers that people look for in a manifest."""
        return {"step": self.step, "epoch": self.epoch, "complete": self.is_complete}
