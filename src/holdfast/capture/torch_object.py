"""Schedulers, scalers, anything else with state_dict and load_state_dict."""

from __future__ import annotations

from typing import Any

from holdfast.capture.stateful import Stateful
from holdfast.capture.torch_place import put_in_place


class TrackedObject:
    role = "state"
    # Models and optimizers have a device of their own to load to; this one takes over what it is given.
    keeps_devices = True

    def __init__(self, key: str, obj: Stateful) -> None:
        self.key = key
        self.obj = obj

    def take(self) -> Any:
        return self.obj.state_dict()

    def check(self, state: Any) -> None:
        """What fits is for the object itself to say, in `apply`."""

    def apply(self, state: Any) -> None:
        self.obj.load_state_dict(put_in_place(state, self._live))

    def _live(self) -> Any:
        try:
            return self.obj.state_dict()
        except Exception:  # noqa: BLE001  the user's code, asked before it has a state: then nothing stands there
            return None
