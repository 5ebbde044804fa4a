"""A class by its name, among those that the running program has imported already.

A checkpoint may say that a value was of a class of the program's own: an enumeration, a tensor made of
several. Nothing is ever imported for that: a file must not decide which code runs.
"""

from __future__ import annotations

import sys
from typing import Any

from holdfast.errors import IncompatibleState, SetupError


def name_of_class(kind: type, where: str) -> str:
    """ "module:Outer.Inner"; SetupError for a class that could not be found again."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not is_named(kind):
        raise SetupError(
            f"cannot save {where}: the class {name} cannot be found by its name",
            hint="define it at the top of a module",
        )
    return name


def class_named(name: Any, base: type, what: str) -> Any:
    """The class, which must be a `base`; IncompatibleState if this program has not imported it."""
    found = _find(name) if isinstance(name, str) else None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise IncompatibleState(
            f"the checkpoint holds {what} of the class {str(name)[:200]!r}, which is not imported here",
            hint="import it before the run is opened, under the name that it had",
        )
    return found


def is_named(kind: type) -> bool:
    """Whether the class can be found again by its name. One that a function has made cannot."""
    return _find(f"{kind.__module__}:{kind.__qualname__}") is kind


def _find(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        # vars() and not getattr(): looking must not run a module's or a class's own code.
        found = getattr(found, "__dict__", {}).get(part)
    return found
