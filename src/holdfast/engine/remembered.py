"""Values of the loop that are saved with every checkpoint: sums, counters, best values, histories.

Those of an epoch begin anew with every epoch, and are what they were where an epoch is taken up inside.
"""

from __future__ import annotations

import copy
from typing import Any


class Remembered:
    """Attributes that outlive a restart. Made by `run.remember(total=0.0, best=None, history=[])`."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    def __repr__(self) -> str:
        return f"remembered({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class Memories:
    """All of them, by the names that they hold. Part of the run's own state."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}
        self._live: dict[str, tuple[int | None, Remembered]] = {}

    def remember(self, values: dict[str, Any], epoch: int | None) -> Remembered:
        """`epoch` is None for what belongs to the whole run."""
        key = ", ".join(sorted(values))
        before = self._live.get(key)
        if before is not None and before[0] == epoch:
            return before[1]
        kept = self._kept.pop(key, None)
        made = Remembered(values)
        if kept is not None and kept["epoch"] == epoch:
            for name, value in kept["values"].items():
                _put_back(made, name, value)
        self._live[key] = (epoch, made)
        return made

    @property
    def values(self) -> list[Any]:
        """What is remembered now."""
        return [value for _, made in self._live.values() for value in vars(made).values()]

    def take(self) -> dict[str, Any]:
        live = {
            key: {"epoch": epoch, "values": {k: _taken(v) for k, v in vars(made).items()}}
            for key, (epoch, made) in self._live.items()
        }
        return {**self._kept, **live}

    def apply(self, kept: dict[str, Any]) -> None:
        self._kept, self._live = dict(kept), {}


def _taken(value: Any) -> Any:
    """An object of the user's (a meter) is what its attributes are."""
    if hasattr(value, "__dict__") and not hasattr(value, "state_dict") and not callable(value):
        return {"attributes": copy.deepcopy(vars(value))}
    return {"state": value.state_dict()} if hasattr(value, "state_dict") else {"value": copy.deepcopy(value)}


def _put_back(made: Remembered, name: str, kept: dict[str, Any]) -> None:
    if "attributes" in kept:
        vars(getattr(made, name)).update(kept["attributes"])
    elif "state" in kept:
        getattr(made, name).load_state_dict(kept["state"])
    else:
        setattr(made, name, kept["value"])
