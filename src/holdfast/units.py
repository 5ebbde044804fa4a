"""Quantities as people write them, in and out: "3%", "10 min", "2GiB", "200 steps"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import UsageError

_SECONDS = {
    "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0,
    "h": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0, "w": 604800.0, "week": 604800.0,
}  # fmt: skip
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15,
          "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "pib": 2**50}  # fmt: skip
_NUMBER_UNIT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z%]*)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Every:
    """A rhythm given by the user: every `amount` steps, seconds or epochs."""

    amount: float
    unit: Literal["steps", "seconds", "epochs"]


def _split(text: str, what: str) -> tuple[float, str]:
    match = _NUMBER_UNIT.fullmatch(text)
    if match is None:
        raise UsageError(
            f"cannot read {text!r} as {what}", hint='write a number and a unit, such as "10 min"'
        )
    return float(match[1]), match[2].lower()


def _singular(unit: str) -> str:
    return unit[:-1] if len(unit) > 2 and unit.endswith("s") else unit


def parse_seconds(value: str | float) -> float:
    """ "10 min" -> 600.0; a bare number is seconds."""
    if isinstance(value, (int, float)):
        return float(value)
    amount, unit = _split(value, "a time")
    if unit == "":
        return amount
    factor = _SECONDS.get(unit, _SECONDS.get(_singular(unit)))
    if factor is None:
        raise UsageError(f"unknown unit of time {unit!r} in {value!r}", hint="use ms, s, min, h, d or w")
    return amount * factor


def parse_bytes(value: str | int) -> int:
    """ "2GiB" -> 2147483648; a bare number is bytes."""
    if isinstance(value, int):
        return value
    amount, unit = _split(value, "a size")
    if unit and unit not in _BYTES:
        raise UsageError(
            f"unknown unit of size {unit!r} in {value!r}", hint="use B, MB, GB, TB, MiB, GiB or TiB"
        )
    return round(amount * _BYTES.get(unit, 1))


def parse_share(value: str | float) -> float:
    """ "3%" -> 0.03; a bare number is a fraction."""
    if isinstance(value, (int, float)):
        share = float(value)
    else:
        amount, unit = _split(value, "a share")
        if unit not in ("", "%"):
            raise UsageError(f"cannot read {value!r} as a share", hint='write it as "3%" or 0.03')
        share = amount / 100 if unit == "%" else amount
    if not 0 < share < 1:
        raise UsageError(f"a share must lie between 0 and 1, not {value!r}", hint='write it as "3%" or 0.03')
    return share


def parse_every(value: str | int | Every) -> Every:
    """ "200 steps", "10 min", "1 epoch"; a bare integer is steps."""
    if isinstance(value, Every):
        return value
    if isinstance(value, int):
        every = Every(value, "steps")
    else:
        amount, unit = _split(value, "a rhythm")
        name = _singular(unit)
        if name in ("step", "iteration", ""):
            every = Every(amount, "steps")
        elif name in ("epoch", "ep"):
            every = Every(amount, "epochs")
        else:
            every = Every(parse_seconds(value), "seconds")
    if every.amount <= 0 or (every.unit != "seconds" and every.amount != int(every.amount)):
        raise UsageError(f"cannot save every {value!r}", hint='use a whole number, such as "200 steps"')
    return every


def format_bytes(count: float) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(count) >= size:
            return (
                f"{count / size:.3g} {unit}" if abs(count) < 999.5 * size else f"{count / size:,.0f} {unit}"
            )
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """0.0042 -> "4.2 ms"; 211 -> "3 min 31 s"."""
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    for big, small, big_name, small_name in (
        (86400, 3600, "d", "h"),
        (3600, 60, "h", "min"),
        (60, 1, "min", "s"),
    ):
        if seconds >= big:
            whole, rest = divmod(round(seconds / small), big // small)
            return f"{whole} {big_name} {rest} {small_name}" if rest else f"{whole} {big_name}"
    raise AssertionError("unreachable")
