"""What saves cost this user's earlier runs, by hardware, storage and size: a small file in the cache folder.

So that a new run weighs its first saves by a price that was measured, and not by its first save, which
allocates and is dearer than all that follow. Never needed: whatever goes wrong with it, it counts as absent,
and the run's own saves overrule it. HOLDFAST_LEARN=off neither reads nor writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.engine.earlier_runs import cache_file, write_cache
from holdfast.policy.profile import Profile

FILE = "costs.json"
MOST_SETTINGS = 40
# The first save of a process is no measure of the others.
LEAST_SAVES = 2


def costs_of_earlier_runs(environ: Mapping[str, str], setting: str) -> Profile | None:
    """Those of the newest run in this setting. Not its step, which is another program's."""
    kept = _read(environ).get(setting)
    if kept is None:
        return None
    profile = Profile.from_dict(kept["profile"])
    known = profile.cost_seconds is not None and profile.stall_seconds is not None
    return replace(profile, step_seconds=None, saves=LEAST_SAVES) if known else None


def remember_costs(environ: Mapping[str, str], setting: str, profile: Profile, wall: float) -> None:
    if profile.saves < LEAST_SAVES or profile.cost_seconds is None:
        return
    kept = _read(environ)
    kept[setting] = {"profile": profile.to_dict(), "at": wall}
    newest = sorted(kept.items(), key=lambda item: item[1]["at"])[-MOST_SETTINGS:]
    write_cache(cache_file(environ, FILE), {"version": 1, "settings": dict(newest)})


def _read(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    path = cache_file(environ, FILE)
    try:
        raw = json.loads(path.read_text()) if path is not None else {}
    except (OSError, ValueError):
        return {}
    found = raw.get("settings") if isinstance(raw, dict) and raw.get("version") == 1 else None
    if not isinstance(found, dict):
        return {}
    return {
        name: one
        for name, one in found.items()
        if isinstance(one, dict)
        and isinstance(one.get("profile"), dict)
        and isinstance(one.get("at"), (int, float))
    }
