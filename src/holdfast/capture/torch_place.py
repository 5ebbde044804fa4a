"""Where the tensors of a user's own object go when they come back: to the device of the tensor that stands in
their place now, else to the one that they were saved from, if it exists here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

# On a restored tensor, until its object has it: the device that it was saved from.
SAVED_FROM = "_holdfast_saved_from"


def put_in_place(state: Any, live: Callable[[], Any]) -> Any:
    """`state` with every tensor on its device. Containers are those of `state`; a tensor that stands in two
    places is one again. `live` gives what stands there now, and is asked only where there are tensors."""
    moved: dict[int, Any] = {}

    def place(value: Any, beside: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in moved:
                moved[id(value)] = _moved(value, beside)
            return moved[id(value)]
        if isinstance(value, dict):
            for key, item in value.items():
                value[key] = place(item, _item(beside, key))
        elif isinstance(value, list):
            value[:] = [place(item, _item(beside, i)) for i, item in enumerate(value)]
        elif type(value) is tuple:
            return tuple(place(item, _item(beside, i)) for i, item in enumerate(value))
        return value

    return place(state, live()) if _has_tensors(state) else state


def _has_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_tensors, value.values()))
    return (
        any(map(_has_tensors, value)) if isinstance(value, (list, tuple)) else isinstance(value, torch.Tensor)
    )


def _moved(value: torch.Tensor, beside: Any) -> torch.Tensor:
    device = destination(value.__dict__.pop(SAVED_FROM, None), beside)
    # To the meta device nothing is moved: values would be lost.
    return value if device is None or device.type == "meta" else value.to(device)


def destination(saved_from: str | None, beside: Any) -> torch.device | None:
    """None where a tensor may stay where it is."""
    if isinstance(beside, torch.Tensor):
        return beside.device
    return None if saved_from is None else _existing(torch.device(saved_from))


def _existing(device: torch.device) -> torch.device:
    """The device; another one of its kind if there are fewer here; the host if there is none."""
    for candidate in (device, torch.device(device.type)):
        try:
            torch.empty(0, device=candidate)
        except (RuntimeError, AssertionError):
            continue
        return candidate
    return torch.device("cpu")


def _item(beside: Any, key: Any) -> Any:
    if isinstance(beside, Mapping) or (isinstance(beside, (list, tuple)) and isinstance(key, int)):
        try:
            return beside[key]
        except (KeyError, IndexError):
            return None
    return None
