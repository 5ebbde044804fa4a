"""What a feed asks of a loader: to be opened at a position, and to say what a position means for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from holdfast.data.position import Position, Shape
from holdfast.data.split import Turn


class Source(Protocol):
    # Stands for the loader in the seeds that are ours, and for the rank unless ranks share one order.
    salt: int
    shares_order: bool
    # Whether indices that are passed over after a restart are compared with those that were handed out.
    checks_indices: bool

    @property
    def shape(self) -> Shape: ...

    @property
    def once_each(self) -> bool:
        """Whether an epoch is promised to hold every index of range(size) once."""
        ...

    @property
    def may_drop(self) -> bool:
        """Whether a rest that fills no whole batch is left out of an epoch."""
        ...

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank; TypeError where nobody knows."""
        ...

    def remember(self) -> dict[str, Any]:
        """What a resumed process needs besides the position. Called at every save, so it must be small."""
        ...

    def put_back(self, kept: dict[str, Any], at: Position) -> None:
        """Take over what `remember` gave in the process that stopped at `at`. Nothing is opened yet."""
        ...

    def begin_pass(self, left: Position | None) -> None:
        """A new pass follows; `left` is where the one before was left (None: there was none)."""
        ...

    def open(self, at: Position) -> Iterator[tuple[Turn, Any]]:
        """The batches from `at` on, each with the turn that asked for it. Leaves training's generators
        alone."""
        ...

    def close(self) -> None:
        """End what outlives a pass."""
        ...
