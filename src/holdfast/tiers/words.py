"""What a user writes as `tiers=`, read strictly: which places, in which order, and each one's own rhythm.

tiers=["memory", "/local/nvme", "partner", "/lustre/run", "s3://bucket/run every 10, 200 MB/s"]
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from holdfast.checkpoints.retain import parse_keep
from holdfast.errors import SetupError
from holdfast.units import parse_bytes

MEMORY, HOME = "memory", "run"
_WORDS = (MEMORY, HOME, "single", "partner", "xor:4", "rs:4+2")
Kind = Literal["memory", "home", "directory", "objects"]
_PROTECTION = re.compile(r"single|partner|xor:[1-9][0-9]*|rs:[1-9][0-9]*\+[1-9][0-9]*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://\S+")
_EVERY = re.compile(r"every\s+([1-9][0-9]*)(?:\s+(?:saves?|checkpoints?))?")
_KEEP = re.compile(r"keep\s+([0-9]+)")
_RATE = re.compile(r"([0-9].*)/\s*s")
_HINT = 'write tiers like ["memory", "/local/nvme", "partner", "/lustre/run", "s3://bucket/run every 10"]'


@dataclass(frozen=True)
class Tier:
    """One place for copies.

    `location` is "memory", "run" (the run's own folder), a path (with $VARIABLES that each node fills in) or
    a URL. `flush_every=10` copies every tenth checkpoint and the last one; without it, the newest as often as
    the place can take. `bandwidth` ("200 MB/s") limits what copying may use, `keep` what stays there.
    `protect` makes a tier local to each node: "single" (no more copies), "partner", "xor:4", "rs:4+2".
    """

    location: str
    flush_every: int | None = None
    bandwidth: str | int | None = None
    keep: int | str | None = None
    protect: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.location, str) or not self.location.strip():
            raise SetupError(f"cannot read {self.location!r} as the place of a tier", hint=_HINT)
        if self.flush_every is not None and (type(self.flush_every) is not int or self.flush_every < 1):
            raise SetupError(f"flush_every={self.flush_every!r} of {self.location} is not a count from 1 up")
        if self.keep is not None:
            parse_keep(self.keep)
        if self.protect is not None and not _PROTECTION.fullmatch(self.protect):
            raise SetupError(f"cannot protect {self.location} by {self.protect!r}", hint=_PROTECTIONS)
        if self.protect is not None and self.kind == "objects":
            raise SetupError(
                f"{self.protect!r} protects what nodes keep themselves, and {self.location} is elsewhere",
                hint="put it behind the node-local tier",
            )
        _ = self.bytes_per_second

    @property
    def kind(self) -> Kind:
        if self.location == MEMORY:
            return "memory"
        if self.location == HOME:
            return "home"
        return "objects" if _SCHEME.fullmatch(self.location) else "directory"

    @property
    def is_node_local(self) -> bool:
        return self.kind == "memory" or self.protect is not None

    @property
    def bytes_per_second(self) -> int | None:
        if self.bandwidth is None:
            return None
        text = str(self.bandwidth)
        match = _RATE.fullmatch(text.strip())
        rate = parse_bytes(match[1].strip() if match else text)
        if rate < 1:
            raise SetupError(f"bandwidth {self.bandwidth!r} of {self.location} would never end")
        return rate

    @property
    def path(self) -> str:
        """Where a directory tier lies on this node."""
        filled = os.path.expanduser(os.path.expandvars(self.location))
        if "$" in filled:
            raise SetupError(
                f"the tier {self.location} needs a variable that is not set here",
                hint="export it on every node, or write the path out",
            )
        return os.path.abspath(filled)

    def to_json(self) -> dict[str, Any]:
        return vars(self).copy()


_PROTECTIONS = 'use "single", "partner", "xor:N" or "rs:N+K"'


def parse_tiers(given: Sequence[str | Tier]) -> tuple[Tier, ...]:
    """The tiers in order, nearest first; SetupError names the word that cannot be read."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise SetupError(f"tiers={given!r} is not a list", hint=_HINT)
    tiers: list[Tier] = []
    for word in given:
        if isinstance(word, Tier):
            tiers.append(word)
        elif not isinstance(word, str):
            raise SetupError(f"cannot read {word!r} as a tier", hint=_HINT)
        elif _is_protection(word.strip()):
            tiers[-1:] = [_protected(tiers, word.strip())]
        else:
            tiers.append(_parse_one(word))
    _check_together(tiers)
    return tuple(tiers)


def _is_protection(word: str) -> bool:
    # Also what was meant as one and is misspelt: "xor:0" is no path that anybody has.
    return (
        _PROTECTION.fullmatch(word) is not None or re.fullmatch(r"(?:xor|rs|partner):?\S*", word) is not None
    )


def _protected(tiers: list[Tier], word: str) -> Tier:
    if not tiers:
        raise SetupError(f"{word!r} stands first and protects nothing", hint="write the tier before it")
    if tiers[-1].protect is not None:
        raise SetupError(f"{tiers[-1].location} is protected by {tiers[-1].protect!r} and by {word!r}")
    return replace(tiers[-1], protect=word)


def _parse_one(text: str) -> Tier:
    location, _, rest = text.strip().partition(" ")
    options: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in rest.split(","))):
        name, value = _parse_option(word, text)
        if name in options:
            raise SetupError(f"the tier {text!r} says {name} twice", hint=_HINT)
        options[name] = value
    if location and re.fullmatch(r"[^/\\$~.]+", location) and location not in (MEMORY, HOME):
        near = difflib.get_close_matches(location, _WORDS, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise SetupError(
            f"{location!r} is no kind of tier", hint=f"{meant}A folder of that name is './{location}'"
        )
    return Tier(location, **options)


def _parse_option(word: str, text: str) -> tuple[str, Any]:
    if match := _EVERY.fullmatch(word):
        return "flush_every", int(match[1])
    if match := _KEEP.fullmatch(word):
        return "keep", int(match[1])
    if _RATE.fullmatch(word):
        return "bandwidth", word
    raise SetupError(
        f"cannot read {word!r} in the tier {text!r}",
        hint='after the place may follow "every 10", "keep 3" and "200 MB/s"; '
        "a path with spaces goes into Tier(...)",
    )


def _check_together(tiers: list[Tier]) -> None:
    places = [tier.location for tier in tiers]
    twice = {place for place in places if places.count(place) > 1}
    if twice:
        raise SetupError(f"the tier {min(twice)} is listed twice")
    if all(tier.kind == "memory" for tier in tiers):
        raise SetupError(
            "no tier outlives this machine",
            hint='add a folder or a bucket, such as "run" or "s3://bucket/run"',
        )
