"""Attributes of a stranger's object, read without running anything of it: no property, no `__getattr__`.

`hasattr(ctypes.cdll, "step")` tries to load a library of that name.
"""

from __future__ import annotations

from typing import Any


def own(value: Any) -> dict[str, Any]:
    """What stands in the object itself."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def has(value: Any, name: str) -> bool:
    return name in own(value) or any(name in vars(kind) for kind in type(value).__mro__)
