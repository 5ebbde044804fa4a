"""Who drew from the default streams while data was read in training's own process: the data, training, or
both.

Data that keeps no state is found again by reading it again from the streams as they were. That gives the same
numbers unless training drew from the same stream in between; then nobody can find them again, and it is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.data.torch_streams import STREAMS

T = TypeVar("T")


def marks() -> dict[str, Any]:
    return {stream.name: stream.mark() for stream in STREAMS}


def put_back(kept: dict[str, Any]) -> None:
    for stream in STREAMS:
        stream.restore(kept[stream.name])


def hidden(work: Callable[[], T]) -> T:
    """What `work` draws, it draws unnoticed."""
    trainings = marks()
    try:
        return work()
    finally:
        put_back(trainings)


class Watch:
    """Of one pass. `begun` is where the streams stood when it began."""

    def __init__(self, kept: dict[str, Any] | None = None) -> None:
        self.begun: dict[str, Any] = kept["begun"] if kept else marks()
        self._data = set(kept["data"]) if kept else set()
        self._training = set(kept["training"]) if kept else set()
        self._behind: dict[str, Any] | None = None

    def pull(self, take: Callable[[], T]) -> T:
        before = marks()
        if self._behind is not None:
            self._training |= {name for name, mark in before.items() if mark != self._behind[name]}
        taken = take()
        self._behind = marks()
        # What is drawn for the first batch is drawn before training can draw anything.
        if self._training:
            self._data |= {name for name, mark in before.items() if mark != self._behind[name]}
        return taken

    def remember(self) -> dict[str, Any]:
        return {"begun": self.begun, "data": sorted(self._data), "training": sorted(self._training)}

    def say_if_mixed(self, what: str) -> None:
        if both := sorted(self._data & self._training):
            warnings.warn(
                f"{what} draws from {', '.join(both)} in training's own process, and so does "
                f"training: what remains "
                "of this epoch comes with other random numbers than without the restart. Give it "
                "generators of "
                "its own, workers, or state_dict and load_state_dict",
                stacklevel=4,
            )
