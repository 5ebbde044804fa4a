"""Every setting of a run, validated when it is given and not hours later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.errors import SetupError
from holdfast.units import parse_bytes

OnSaveError = Literal["warn", "raise"]
OnNan = Literal["warn", "stop", "rewind"]
CopyMode = Literal["auto", "overlapped", "blocking"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the engine itself needs to know; policy and retention have settings of their own."""

    # None: what torch draws decides the data.
    seed: int | None = None
    on_save_error: OnSaveError = "warn"
    on_nan: OnNan = "warn"
    copy: CopyMode = "auto"
    memory_limit_bytes: int | None = None
    save_frozen: bool = True
    # Every wait has a limit. Generous: a slow disk is not an error, a dead one is.
    wait_limit_seconds: float = 600.0
    seed_samples: bool = True
    audit_data: bool = False
    # When to save, in the user's words: for the journal.
    when: str = ""

    def __post_init__(self) -> None:
        if self.on_save_error not in ("warn", "raise"):
            raise SetupError(f"on_save_error={self.on_save_error!r}", hint='use "warn" or "raise"')
        if self.on_nan not in ("warn", "stop", "rewind"):
            raise SetupError(f"on_nan={self.on_nan!r}", hint='use "warn", "stop" or "rewind"')
        if self.copy not in ("auto", "overlapped", "blocking"):
            raise SetupError(f"copy={self.copy!r}", hint='use "auto", "overlapped" or "blocking"')
        seed = 0 if self.seed is None else self.seed
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise SetupError(f"seed={self.seed!r}", hint="use a whole number, 0 or larger, or None")
        if self.wait_limit_seconds <= 0:
            raise SetupError(
                f"wait_limit={self.wait_limit_seconds!r}", hint="use a positive number of seconds"
            )


def as_bytes(value: str | int | None) -> int | None:
    return None if value is None else parse_bytes(value)
