"""When this process will be ended, from whatever the user, the supervisor or the scheduler says.

Wall-clock times, because that is what people and schedulers speak; turned into monotonic time once, at the
start of a run, so that a clock set right later cannot move the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from holdfast.clock import Clock
from holdfast.errors import SetupError, UsageError
from holdfast.jobs.environment import JobEnvironment, WallDeadline
from holdfast.units import parse_seconds

# Set by `holdfast run --time-limit` for its child; also for users.
VARIABLE = "HOLDFAST_DEADLINE"
_CLOCK_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_SLURM_LIMIT = re.compile(r"(?:(\d+)-)?(\d+):(\d{1,2})(?::(\d{1,2}))?")

GivenDeadline = datetime | float | str


def parse_deadline(value: GivenDeadline, now: float, source: str = "deadline=") -> WallDeadline:
    """A moment as people write it. `now` is wall-clock seconds.

    A datetime (without a zone: local time), a number of seconds from now, "18:30" (the next one),
    "2026-11-16 08:00", "90 min" from now, or "@1763280000", seconds since 1970.
    """
    if isinstance(value, datetime):
        return WallDeadline(value.timestamp(), source)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return WallDeadline(_ahead(float(value), value, now), source)
    text = value.strip() if isinstance(value, str) else ""
    if match := _CLOCK_TIME.fullmatch(text):
        return WallDeadline(_next_time_of_day(match, now), source)
    if text.startswith("@"):
        try:
            return WallDeadline(float(text[1:]), source)
        except ValueError:
            raise _unreadable(value) from None
    try:
        return WallDeadline(datetime.fromisoformat(text).timestamp(), source)
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return WallDeadline(_ahead(parse_seconds(text), value, now), source)
    except SetupError as error:
        raise _unreadable(value) from error


def parse_time_limit(text: str) -> float:
    """A length of time: "12 h", or as schedulers write it, "12:00:00", "30:00" (minutes), "1-12:00"."""
    match = _SLURM_LIMIT.fullmatch(text.strip())
    if match is None:
        seconds = parse_seconds(text)
    else:
        days, first, second, third = (int(part) if part else None for part in match.groups())
        if days is not None:  # days-hours:minutes[:seconds]
            seconds = days * 86400.0 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0)
        elif third is not None:
            seconds = (first or 0) * 3600.0 + (second or 0) * 60 + third
        else:
            seconds = (first or 0) * 60.0 + (second or 0)
    if seconds <= 0:
        raise UsageError(f"a time limit of {text!r} leaves no time", hint='write it as "12 h" or 12:00:00')
    return seconds


def find_deadline(
    given: GivenDeadline | None, environ: Mapping[str, str], job: JobEnvironment, clock: Clock
) -> WallDeadline | None:
    """The earliest end that anybody announces."""
    now = clock.wall()
    known = [job.deadline]
    if given is not None:
        known.append(parse_deadline(given, now))
    if environ.get(VARIABLE):
        known.append(parse_deadline(environ[VARIABLE], now, VARIABLE))
    return earliest(known)


def earliest(deadlines: Iterable[WallDeadline | None]) -> WallDeadline | None:
    return min((one for one in deadlines if one is not None), key=lambda one: one.at, default=None)


def as_monotonic(deadline: WallDeadline, clock: Clock) -> float:
    return clock.monotonic() + deadline.at - clock.wall()


def _ahead(seconds: float, value: object, now: float) -> float:
    if not seconds > 0:
        raise UsageError(
            f"a deadline {value!r} from now is already over", hint="give the seconds that are left"
        )
    return now + seconds


def _next_time_of_day(match: re.Match[str], now: float) -> float:
    here = datetime.fromtimestamp(now)
    moment = here.replace(hour=int(match[1]), minute=int(match[2]), second=int(match[3] or 0), microsecond=0)
    return (moment if moment > here else moment + timedelta(days=1)).timestamp()


def _unreadable(value: object) -> UsageError:
    return UsageError(
        f"cannot read {value!r} as a deadline",
        hint='use a datetime, seconds from now, "18:30", "2026-11-16 08:00" or "90 min"',
    )
