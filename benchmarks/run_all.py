"""Runs every benchmark one after the other in an environment of their own, then writes the summary.

`make bench` calls this. It never fails because of a number; a script that breaks is named at the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from environment import prepare
from options import HERE, REPOSITORY
from summary import write_summary

SCRIPTS = (
    "raw_limits", "stall", "slowdown", "durable_write", "restore", "small_costs", "policy_speed", "memory",
    "checkfreq_budget", "interference", "failure_injection", "data_overhead", "data_resume", "deadline",
    "ranks_stall", "multi_level", "multi_level_restart", "cached_restart", "hot_restart", "ranks_protect",
    "ranks_restore", "memory_tier", "protect", "erasure_codes", "object_store",
)  # fmt: skip
LIMIT_SECONDS = 3600


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small states and two repeats, a few minutes")
    parser.add_argument(
        "--dir", type=Path, default=REPOSITORY / "runs", help="where to write: picks the disk"
    )
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=SCRIPTS, metavar="SCRIPT")
    given = parser.parse_args()
    out = given.dir / "bench-quick-results" if given.quick else HERE / "results"
    python = prepare()
    broken = []
    for name in given.only:
        command = [
            str(python),
            "-W",
            "ignore",
            str(HERE / f"{name}.py"),
            "--dir",
            str(given.dir),
            "--out",
            str(out),
        ]
        if given.quick:
            command.append("--quick")
        print(f"\n=== {name}", flush=True)
        if subprocess.run(command, check=False, timeout=LIMIT_SECONDS).returncode != 0:
            broken.append(name)
    print(f"\nwrote {write_summary(out)}")
    if broken:
        print(f"did not run: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
