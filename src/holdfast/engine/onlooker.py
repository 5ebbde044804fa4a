"""Who looks on at the boundaries of a loop, without a part in it."""

from __future__ import annotations

from typing import Any, Protocol


class Onlooker(Protocol):
    def boundary(self, loss: Any) -> None:
        """A step is complete; nothing has been decided about it yet."""

    def passed(self) -> None:
        """Everything that belongs to this boundary is done."""

    @property
    def is_over(self) -> bool:
        """Whether it has seen enough."""
