"""`holdfast verify --all-tiers`: every copy of every checkpoint, wherever this node can see one."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from holdfast.checkpoints.find import committed
from holdfast.cli.exit_codes import DAMAGED, NOTHING_USABLE, OK
from holdfast.cli.json_output import print_json
from holdfast.cli.progress_bar import ProgressBar
from holdfast.cli.run_folder import open_folder
from holdfast.cli.terminal import clean, plural
from holdfast.clock import SystemClock
from holdfast.errors import RestoreError, SetupError
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.mending import claim_to_mend
from holdfast.tiers.named_tier import NamedTier
from holdfast.tiers.opening import readable_tiers
from holdfast.tiers.scrub import Scrubbed, scrub
from holdfast.units import format_bytes, format_seconds


def run(options: argparse.Namespace) -> int:
    if options.data:
        raise SetupError("--data looks at the run's own folder", hint="leave out --all-tiers and --repair")
    home = open_folder(options.run_folder, "the list of tiers").where
    tiers = readable_tiers(home)
    clock = SystemClock()
    started = clock.monotonic()
    deep = options.deep or options.repair
    found = _scrub(tiers, options.step, deep=deep)
    if options.step is not None and not found:
        raise RestoreError(f"no checkpoint of step {options.step} in any tier", hint="see holdfast list")
    if options.repair and not all(one.is_whole for one in found):
        found = _repair(home, tiers, found, options.step)
    if options.json:
        print_json(_as_json(home, tiers, found, deep))
    else:
        _print(tiers, found, deep, clock.monotonic() - started)
    if not any(one.is_restorable for one in found):
        return NOTHING_USABLE
    return OK if all(one.is_whole for one in found) else DAMAGED


def _scrub(tiers: list[NamedTier], step: int | None, *, deep: bool, repair: bool = False) -> list[Scrubbed]:
    sizes = {str(one.name): one.manifest.total_bytes for one in committed(Ladder(tiers)) if one.manifest}
    total = sum(sizes.get(name, 0) for tier in tiers for name in tier.store.names())
    with ProgressBar("verifying", total if deep else 0) as bar:
        return scrub(tiers, step=step, deep=deep, repair=repair, checked=bar.add)


def _repair(home: str, tiers: list[NamedTier], found: list[Scrubbed], step: int | None) -> list[Scrubbed]:
    """Look again and repair. Only now, and only where something is wrong, does this process become a writer:
    a run that lives looks after itself and is not disturbed."""
    wrong = {copy.tier.name for one in found for copy in one.copies if not copy.is_whole}
    with ExitStack() as claimed:
        # The run's own folder first: its seat says whether the run lives.
        ordered = sorted(tiers, key=lambda tier: tier.store.where != home)
        for tier in ordered:
            if tier.name in wrong or tier.store.where == home:
                claim_to_mend(tier.store)
                if hasattr(tier.store, "release"):
                    claimed.callback(tier.store.release)
        return _scrub(tiers, step, deep=True, repair=True)


def _as_json(home: str, tiers: list[NamedTier], found: list[Scrubbed], deep: bool) -> dict[str, Any]:
    return {
        "run": home,
        "deep": deep,
        "tiers": [
            {"name": tier.name, "where": tier.store.where, "survives": tier.store.properties.survives}
            for tier in tiers
        ],
        "checkpoints": [
            {
                "name": str(one.name),
                "step": one.name.step,
                "whole": one.is_whole,
                "restorable": one.is_restorable,
                "lost": one.lost,
                "copies": [
                    {
                        "tier": copy.tier.name,
                        "whole": copy.is_whole,
                        "bytes_checked": copy.bytes_checked,
                        "problems": copy.problems,
                        "repaired": copy.repaired,
                        "refused": copy.refused,
                    }
                    for copy in one.copies
                ],
            }
            for one in found
        ],
    }


def _print(tiers: list[NamedTier], found: list[Scrubbed], deep: bool, seconds: float) -> None:
    if not found:
        print(f"no checkpoint in {clean(', '.join(tier.name for tier in tiers))}")
    for tier in tiers:
        print(f"{clean(tier.name)} survives the loss of its {', '.join(tier.store.properties.survives)}")
    for one in found:
        state = "whole" if one.is_whole else "DAMAGED" if one.is_restorable else "LOST"
        print(f"step {one.name.step}  {state}  {plural(len(one.copies), 'tier')}  {one.name}")
        for copy in one.copies:
            checked = f"{format_bytes(copy.bytes_checked)} checked" if deep else "manifest and sizes checked"
            mended = f", repaired: {', '.join(copy.repaired)}" if copy.repaired else ""
            state = "whole" if copy.is_whole else "DAMAGED"
            print(f"    {clean(copy.tier.name)}: {state}, {checked}{clean(mended)}")
            for problem in copy.refused or ([] if copy.is_whole else copy.problems):
                print(f"        {clean(problem)}")
        for lost in one.lost:
            print(f"    no good copy is left: {clean(lost)}")
    whole = sum(one.is_whole for one in found)
    print(f"{whole} of {plural(len(found), 'checkpoint')} whole in every tier, in {format_seconds(seconds)}")
