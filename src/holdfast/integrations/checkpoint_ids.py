"""The step inside a `checkpoint_id`, as users of DCP write it."""

from __future__ import annotations

import os
import re

from holdfast.errors import SetupError

_NUMBER_AT_END = re.compile(r"([0-9]{1,12})/*$", re.ASCII)


def ends_in_a_step(checkpoint_id: str | os.PathLike[str]) -> bool:
    return _NUMBER_AT_END.search(os.fspath(checkpoint_id)) is not None


def step_in(checkpoint_id: str | os.PathLike[str] | int) -> int:
    """The number a `checkpoint_id` ends in: 1000, "1000", "step-1000", "runs/a/step_1000"."""
    text = str(checkpoint_id) if isinstance(checkpoint_id, int) else os.fspath(checkpoint_id)
    match = _NUMBER_AT_END.search(text)
    if match is None:
        raise SetupError(
            f"checkpoint_id={text!r} does not end in a number",
            hint='give the step, such as checkpoint_id="1000"; the folder belongs into HoldfastWriter(path)',
        )
    return int(match[1])
