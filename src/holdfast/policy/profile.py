"""The measured costs of one setting, in a form that can be kept and taken up again. Plain numbers only."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Profile:
    """What saving costs here, in seconds and bytes. None means: not measured yet.

    `cost_seconds` is all the training time that one save takes: the stall, and how much slower the steps
    were until the save was durable.
    """

    step_seconds: float | None = None
    stall_seconds: float | None = None
    cost_seconds: float | None = None
    persist_seconds: float | None = None
    restore_seconds: float | None = None
    state_bytes: int | None = None
    saves: int = 0

    @property
    def slowdown_seconds(self) -> float | None:
        """The part of the cost that is not stall: steps that ran slower beside the persist."""
        if self.cost_seconds is None or self.stall_seconds is None:
            return None
        return max(0.0, self.cost_seconds - self.stall_seconds)

    @property
    def interference(self) -> float | None:
        """Share of throughput lost while a persist runs."""
        if self.slowdown_seconds is None or not self.persist_seconds:
            return None
        return min(1.0, self.slowdown_seconds / self.persist_seconds)

    @property
    def store_bytes_per_second(self) -> float | None:
        if not self.state_bytes or not self.persist_seconds:
            return None
        return self.state_bytes / self.persist_seconds

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> Profile:
        """Whatever is readable of `raw`; a value of the wrong kind counts as not measured."""
        values: dict[str, Any] = {}
        for field in fields(Profile):
            value = raw.get(field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if not math.isfinite(value) or value < 0:
                continue
            values[field.name] = int(value) if field.name in ("state_bytes", "saves") else float(value)
        return Profile(**values)


def profile_key(*, hardware: str, storage: str, world_size: int, dtype: str, state_bytes: int) -> str:
    """A short name for the setting that a profile belongs to; another setting has another name.

    The state's size enters rounded to a tenth of a power of two, so a step counter more does not count as
    another setting.
    """
    size = round(math.log2(max(1, state_bytes)) * 10)
    text = json.dumps([hardware, storage, world_size, dtype, size])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
