"""Copies of a program's generations in other places: whose they are, and how long the last may take.

A generation is a checkpoint like any other, so copying, choosing and falling back are the tiers' own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from holdfast.checkpoints.retain import Retention
from holdfast.clock import Clock
from holdfast.engine.tiers_of_run import TiersOfRun
from holdfast.errors import SetupError
from holdfast.jobs.exit_codes import INTERRUPTED, PLEASE_RUN_AGAIN
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.lost_home import known_elsewhere
from holdfast.tiers.tier_list import TierList, recall_tiers
from holdfast.tiers.words import HOME, Tier, parse_tiers

LAST_COPIES_SECONDS = 300.0
# Who was asked to stop may be killed soon, and must say "run me again" before; the next attempt copies on.
LAST_COPIES_WHEN_STOPPED = 30.0
_SPARE_SECONDS = 10.0


def parse_outer(words: Sequence[str]) -> tuple[Tier, ...]:
    """The tiers behind the run's own folder. SetupError for one that makes no sense for a program's files."""
    tiers = parse_tiers(words) if words else ()
    for tier in tiers:
        if tier.kind in ("memory", "home") or tier.protect is not None:
            raise SetupError(
                f"{tier.location!r} is no place for copies of a program's files"
                + (f", nor can {tier.protect!r} protect them" if tier.protect else ""),
                hint='use folders and buckets, such as --tier /lustre/run --tier "s3://bucket/run every 10"',
            )
    return tuple(map(_from_anywhere, tiers))


def _from_anywhere(tier: Tier) -> Tier:
    """The list of tiers is read again from other folders, where a relative path would mean something else."""
    if tier.kind == "objects" or tier.location.startswith(("$", "~")):
        return tier
    return replace(tier, location=os.path.abspath(tier.location))


def claim_home(folder: str, outer: Sequence[Tier], clock: Clock) -> CheckpointStore:
    """The run's own folder, claimed. One that was lost is made again as the same run, if a tier knows it."""
    known = known_elsewhere(folder, outer)
    home = CheckpointStore(folder, clock=clock, uuid=known.uuid)
    home.claim(at_least=known.at_least)
    return home


def open_tiers(
    home: CheckpointStore, outer: Sequence[Tier], retention: Retention, clock: Clock
) -> TiersOfRun | None:
    """None where there is, and was, nothing but the run's own folder."""
    if not outer and recall_tiers(home.where) == TierList():
        return None
    return TiersOfRun(home, (Tier(HOME), *outer), retention, clock)


def seconds_for_last_copies(exit_code: int, seconds_left: float | None) -> float:
    """How long the end of an attempt may wait for copies. What is unfinished, the next attempt finishes."""
    asked_to_stop = exit_code in (PLEASE_RUN_AGAIN, INTERRUPTED)
    limit = LAST_COPIES_WHEN_STOPPED if asked_to_stop else LAST_COPIES_SECONDS
    return limit if seconds_left is None else max(min(limit, seconds_left - _SPARE_SECONDS), 0.0)
