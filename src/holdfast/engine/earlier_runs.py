"""What this user's runs on this machine or cluster learned about failures: a small file in the cache folder.

So that a new run does not start from nothing. Never needed: whatever goes wrong with it, it counts as absent.
HOLDFAST_LEARN=off neither reads nor writes it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.policy.belief import Hint
from holdfast.policy.failures import FailureHistory
from holdfast.units import format_seconds

VARIABLE = "HOLDFAST_LEARN"
FILE = "failures.json"
MOST_RUNS = 40
# Below this much running there is nothing to be learned.
LEAST_SECONDS = 600.0
# Another program on the same machines may fail for other reasons.
TRUST = 0.6
WITHIN = 4.0


def hint_from_earlier_runs(environ: Mapping[str, str], uuid: str, nodes: int) -> Hint | None:
    """About a job on `nodes` nodes here, from all runs but `uuid`."""
    place = _place(environ)
    runs = [one for name, one in _read(environ).items() if name != uuid and one["place"] == place]
    lived = sum(one["node_seconds"] for one in runs)
    failures = sum(one["failures"] for one in runs)
    if lived < LEAST_SECONDS:
        return None
    # Half a failure more: of what never failed it is known that it lived so long, and no more.
    mtbf = lived / (failures + 0.5) / nodes
    many = "1 failure" if failures == 1 else f"{failures} failures"
    return Hint(mtbf, f"earlier runs here had {many} in {format_seconds(lived)}", trust=TRUST, within=WITHIN)


def remember(environ: Mapping[str, str], uuid: str, nodes: int, history: FailureHistory, wall: float) -> None:
    """Keep what the journal of this run says by now, in place of what it said before."""
    lived = sum(spell.end - spell.start for spell in history.spells)
    if lived < LEAST_SECONDS:
        return
    runs = _read(environ)
    runs[uuid] = {
        "place": _place(environ), "node_seconds": nodes * lived, "failures": history.failures, "at": wall,
    }  # fmt: skip
    newest = sorted(runs.items(), key=lambda item: item[1]["at"])[-MOST_RUNS:]
    write_cache(cache_file(environ, FILE), {"version": 1, "runs": dict(newest)})


def write_cache(path: Path | None, content: dict[str, Any]) -> None:
    """All or nothing, and without complaint."""
    if path is None:
        return
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content))
        part.replace(path)


def cache_file(environ: Mapping[str, str], name: str) -> Path | None:
    """None where nothing shall be learned, or nowhere kept."""
    if environ.get(VARIABLE, "").strip().lower() in ("off", "0", "no"):
        return None
    home = environ.get("XDG_CACHE_HOME") or (f"{environ['HOME']}/.cache" if environ.get("HOME") else "")
    return Path(home, "holdfast", name) if home else None


def _place(environ: Mapping[str, str]) -> str:
    """The cluster and partition, or this machine: what fails together."""
    cluster = environ.get("SLURM_CLUSTER_NAME")
    if cluster:
        return f"{cluster}/{environ.get('SLURM_JOB_PARTITION', '')}"
    return os.uname().nodename


def _read(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    path = cache_file(environ, FILE)
    try:
        raw = json.loads(path.read_text()) if path is not None else {}
    except (OSError, ValueError):
        return {}
    runs = raw.get("runs") if isinstance(raw, dict) and raw.get("version") == 1 else None
    return {name: one for name, one in runs.items() if _is_whole(one)} if isinstance(runs, dict) else {}


def _is_whole(one: object) -> bool:
    if not isinstance(one, dict) or not isinstance(one.get("place"), str):
        return False
    numbers = [one.get(name) for name in ("node_seconds", "failures", "at")]
    return all(isinstance(n, (int, float)) and not isinstance(n, bool) and n >= 0 for n in numbers)
