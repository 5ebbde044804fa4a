"""Values of the loop that are saved with every checkpoint: sums, counters, best values, histories.

Those of an epoch begin anew with every epoch, and are what they were where an epoch is taken up inside.
"""

from __future__ import annotations

import copy
from typing import Any

from holdfast.errors import IncompatibleState


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
    """An object of the user's (a meter) is what its attributes are. A tensor has attributes as well, but is
    a value."""
    if _is_tensor(value):
        return {"value": _copied(value)}
    if hasattr(value, "__dict__") and not hasattr(value, "state_dict") and not callable(value):
        return {"attributes": {name: _copied(attribute) for name, attribute in vars(value).items()}}
    return {"state": value.state_dict()} if hasattr(value, "state_dict") else {"value": _copied(value)}


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "clone")


def _copied(value: Any) -> Any:
    """A deep copy without graphs: the hidden state that a recurrent net hands on has one until its next step,
    and `deepcopy` refuses such tensors."""
    if _is_tensor(value):
        return value.detach().clone()
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    return copy.deepcopy(value)


def _put_back(made: Remembered, name: str, kept: dict[str, Any]) -> None:
    if "value" in kept:
        setattr(made, name, kept["value"])
        return
    begun = getattr(made, name)
    if not hasattr(begun, "load_state_dict" if "state" in kept else "__dict__"):
        raise IncompatibleState(
            f"run.remember({name}=...) was an object when it was saved and begins as {begun!r} now; "
            f"begin it with an object of the same class"
        )
    if "state" in kept:
        begun.load_state_dict(kept["state"])
    else:
        vars(begun).update(kept["attributes"])
