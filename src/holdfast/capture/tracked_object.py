"""Schedulers, scalers, anything else with state_dict and load_state_dict."""

from __future__ import annotations

from typing import Any

from holdfast.capture.stateful import Stateful


class TrackedObject:
    role = "state"

    def __init__(self, key: str, obj: Stateful) -> None:
        self.key = key
        self.obj = obj

    def take(self) -> Any:
        return self.obj.state_dict()

    def check(self, state: Any) -> None:
        """What fits is for the object itself to say, in `apply`."""

    def apply(self, state: Any) -> None:
        self.obj.load_state_dict(state)
